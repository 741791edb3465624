"""How large an int of a call may be: so large that 64 bits hold what is computed from it.

Takes every expression that a plan evaluates, returns a `Reach` for each int scalar that an operation computes with. The
bounds of loops are among the expressions: `k - q < n` has no sum with n, and its last key, q + n, is one. The call
refuses ints beyond the reach, and `integer-width` proves that none up to it leaves 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Expr, Op, Scalar, Type
from attngen.ir.walk import nodes, params as read_params
from attngen.plan.ints.facts import Facts


@dataclass(frozen=True, slots=True)
class Reach:
    """A call's value of the int scalar `param` is from -2**low to 2**high - 1; the message says `why`."""

    param: str
    low: int
    high: int
    why: str


def reaches(roots: Iterable[Expr], attention: Attention, facts: Facts) -> tuple[Reach, ...]:
    """Positions are below 2**27, so one addition leaves room for a bit less than all, and a product of two for half."""
    scalars = [p.name for p in attention.params if p.is_scalar and p.type is Type.INT]
    found: dict[str, Reach] = {}
    for node in dict.fromkeys(n for e in roots for n in nodes(e)) if scalars else ():
        for name in read_params(node):
            limit = _limit(node, facts) if name in scalars else None
            if limit is not None:
                low, high, why = limit
                known = found.get(name, Reach(name, 63, 63, ""))
                near = min(low, high) < min(known.low, known.high)
                found[name] = Reach(name, min(low, known.low), min(high, known.high), why if near else known.why)
    return tuple(found[name] for name in scalars if name in found)


def _limit(node: Expr, facts: Facts) -> tuple[int, int, str] | None:
    """How many bits of a scalar in this operation are safe, below and above 0, and what the kernel does with it."""
    match node:
        case Apply(op=Op.MUL | Op.POW, type=Type.INT):
            return 31, 31, "multiplies it"
        case Apply(op=Op.ADD | Op.SUB, type=Type.INT, args=(a, b)) if read_params(a) and read_params(b):
            return 31, 31, "adds it to another"
        case Apply(op=Op.SUB, type=Type.INT, args=(a, Scalar())) if facts.is_nonnegative(a):
            return 62, 63, "adds to it"
        case Apply(op=Op.ADD | Op.SUB, type=Type.INT):
            return 62, 62, "adds to it"
        case Apply(op=Op.NEG | Op.ABS, type=Type.INT):
            return 62, 62, "turns its sign"
        case Apply(op=Op.FLOORDIV | Op.MOD, type=Type.INT, args=(_, divisor)) if read_params(divisor):
            return 62, 62, "divides by a param"
        case _:
            return None
