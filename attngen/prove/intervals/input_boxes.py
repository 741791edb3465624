"""How large inputs are taken to be, from generous to the least that every kernel must bear.

A claim is tried in the largest box first and says the one in which it holds; one that fails in the least of them is
wrong for ordinary inputs. The dot product is bounded by what the dtype can hold in the largest: 256 products of fp16
numbers are below 2**40.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attngen.ir import walk
from attngen.ir.attention import Attention
from attngen.ir.nodes import COMPARISONS, INDICES, Apply, Expr, Load, Scalar, Symbol, Type
from attngen.prove.intervals.interval_type import number


@dataclass(frozen=True, slots=True)
class Box:
    """How large what comes from outside is taken to be: |q . k|, |scale|, float params, lengths.

    `tiny`: what a `where` or a condition keeps from 0 is at least that large. `score`: the largest score that a search
    tries where scores stand for themselves.
    """

    qk: float
    scale: float
    param: float
    tiny: float
    length: int
    score: float = 0.0


BOXES = (
    Box(qk=2.0**40, scale=2.0**10, param=2.0**40, tiny=2.0**-40, length=2**27),
    Box(qk=2.0**30, scale=2.0**4, param=2.0**20, tiny=2.0**-20, length=2**27),
    Box(qk=2.0**20, scale=2.0, param=2.0**14, tiny=2.0**-14, length=2**24),
    Box(qk=2.0**13, scale=1.0, param=2.0**10, tiny=2.0**-10, length=2**20, score=128.0),
)
LEAST = BOXES[-1]
LEAST_SCORE = 128.0
"""Every kernel must bear scores of this size, in every dtype: beyond what trained models show, and where exp in fp32
overflows (88.7) well inside."""
LONGEST = 2**27
"""Sequences are shorter than this."""


def stated(box: Box, attention: Attention, expressions: Iterable[Expr]) -> str:
    """The part of the box that matters to the expressions, in words."""
    read: dict[str, None] = {}
    tiny = False
    for e in expressions:
        for node in walk.nodes(e):
            match node:
                case Symbol(id="qk"):
                    read[f"|q . k| <= {number(box.qk)}"] = None
                case Symbol(id="scale"):
                    read[f"|scale| <= {number(box.scale)}"] = None
                case Scalar() | Load() if node.type is Type.FLOAT:
                    read[f"float params up to {number(box.param)}"] = None
                    tiny = tiny or attention.param(node.param).where is not None
                case Symbol() if node.type is Type.INT and (node.id in INDICES or node.id in ("Sq", "Sk")):
                    read[f"lengths below {number(float(box.length))}"] = None
                case Apply() if node.op in COMPARISONS and node.args[0].type is Type.FLOAT:
                    tiny = True
                case _:
                    pass
    if tiny:
        read[f"what a `where` or a condition keeps from 0 at least {number_below(box.tiny)} away from it"] = None
    return ", ".join(read)


def number_below(x: float) -> str:
    """A power of two below 1."""
    from math import log2

    return f"2**{int(log2(x))}"
