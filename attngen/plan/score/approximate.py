"""Which functions of a pair may be one approximate instruction of the chip, in half precision.

Takes the expressions of a plan, returns the applications whose value only adds to or scales a number: there an error
below the rounding of the dtype is not seen. What is compared, or becomes a sign or an int, stays exact, since any error
could turn it, and so do divisors and what is under a root or a logarithm, where an error could grow. The bounds are
NVIDIA's; that they are below the rounding is a claim for the prover (`prove/obligations/approximation.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from attngen.ir.nodes import Apply, Expr, Literal, Op, Type
from attngen.ir.walk import nodes
from attngen.plan.levels import Level, level_of
from attngen.plan.score.weights import TURNED


class Per(StrEnum):
    """What an error is relative to: the function's value; 1, which bounds the function; the larger of both."""

    VALUE = "the value"
    ONE = "1"
    LARGER = "the value, or of 1 where that is larger"


@dataclass(frozen=True, slots=True)
class Approximation:
    """`error` is the largest, relative to `per`."""

    instruction: str
    error: float
    per: Per
    source: str


_GUIDE = "CUDA C++ Programming Guide, {}; the reduction to one period adds 2**-21, for arguments below 2**22"
_LOG2 = "PTX ISA 9.7.3, lg2: 2**-22, from 1/2 to 2 absolute, else of the value"
APPROXIMATIONS: Mapping[Op, Approximation] = {
    Op.TANH: Approximation("tanh.approx.f32", 2.0**-11, Per.VALUE, "PTX ISA 9.7.3, tanh"),
    Op.SIN: Approximation("sin.approx.f32", 2.0**-20, Per.ONE, _GUIDE.format("__sinf: 2**-21.4")),
    Op.COS: Approximation("cos.approx.f32", 2.0**-20, Per.ONE, _GUIDE.format("__cosf: 2**-21.2")),
    Op.LOG: Approximation("lg2.approx.f32", 2.0**-21, Per.LARGER, f"{_LOG2}; the product with ln 2 adds 2**-24"),
    Op.LOG2: Approximation("lg2.approx.f32", 2.0**-22, Per.LARGER, _LOG2),
}
"""What a target that has them prints in the place of a function, for half precision on NVIDIA's chips."""

ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-9}
"""Half of the distance between neighbouring numbers near 1."""

_STEEP = (Op.LOG, Op.LOG2, Op.SQRT, Op.RSQRT)
"""Near 0 these make a small error large, or give no number; so do quotients, and powers that are not whole."""


def approximate(numbers: Iterable[Expr], decisions: Iterable[Expr]) -> tuple[Apply, ...]:
    """Of `numbers` (scores, weights, derivatives), each application once; `decisions` are masks, bounds and tests."""
    roots = tuple(numbers)
    if not any(isinstance(n, Apply) and n.op in APPROXIMATIONS for root in roots for n in nodes(root)):
        return ()
    exact = {n for d in decisions for n in nodes(d)} | {n for root in roots for n in decided(root)}
    found: dict[Apply, None] = {}
    for root in roots:
        for node in nodes(root):
            if isinstance(node, Apply) and node.op in APPROXIMATIONS and node not in exact and _is_pair(node):
                found[node] = None
    return tuple(found)


def decided(e: Expr) -> set[Expr]:
    """Every part of `e` that a comparison, sign or conversion to int depends on, or where a small error may grow."""
    found: set[Expr] = set()
    for node in nodes(e):
        if not isinstance(node, Apply) or not any(a.type is Type.FLOAT for a in node.args):
            continue
        if node.op in TURNED or node.op in _STEEP or (node.op is Op.POW and not _is_whole(node.args[1])):
            found |= {part for a in node.args for part in nodes(a)}
        elif node.op is Op.DIV:
            found |= set(nodes(node.args[1]))
    return found


def _is_whole(exponent: Expr) -> bool:
    return isinstance(exponent, Literal) and exponent.value >= 0 and exponent.value == int(exponent.value)


def _is_pair(e: Apply) -> bool:
    """What is not computed for every pair can be exact always."""
    return level_of(e) is Level.PAIR
