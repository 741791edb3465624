"""Which int operations a kernel does in 64 bits.

Takes expressions and facts, gives the sums, differences, products and opposites that may leave 32 bits. Magnitudes
only, from constants upwards: positions and sizes are below 2**27 (the launcher refuses longer sequences), params and
their elements any 32-bit number unless a `where` says less. That the others stay inside is a claim for the prover.
"""

from __future__ import annotations

from collections.abc import Iterable

from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import nodes
from attngen.plan.facts import Facts

LONGEST = 2**27
"""Sequences are shorter than this."""


def wide(expressions: Iterable[Expr], facts: Facts) -> tuple[Apply, ...]:
    """The int operations that need 64 bits, each once, in a stable order."""
    found: dict[Apply, None] = {}
    for root in expressions:
        for node in nodes(root):
            if isinstance(node, Apply) and leaves_32_bits(node, facts):
                found[node] = None
    return tuple(found)


def leaves_32_bits(e: Apply, facts: Facts) -> bool:
    if e.type is not Type.INT or e.op not in (Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS):
        return False
    known = [_magnitude(a, facts) for a in e.args]
    total = known[0] * known[1] if e.op is Op.MUL else sum(known)
    return total >= 2.0**31


def _magnitude(e: Expr, facts: Facts) -> float:
    """The largest absolute value that an int expression can have."""
    match e:
        case Literal():
            return abs(float(e.value))
        case Symbol():
            return float(LONGEST)
        case Scalar() | Load():
            low, high = facts.bounds(e)
            return 2.0**31 if low is None or high is None else max(abs(low), abs(high))
        case Apply(op=Op.MOD | Op.MIN | Op.MAX | Op.SELECT | Op.FLOORDIV | Op.NEG | Op.ABS):
            return max(_magnitude(a, facts) for a in e.args if a.type is Type.INT)
        case Apply(op=Op.ADD | Op.SUB):
            return min(sum(_magnitude(a, facts) for a in e.args), 2.0**63)
        case Apply(op=Op.MUL):
            return min(_magnitude(e.args[0], facts) * _magnitude(e.args[1], facts), 2.0**63)
        case Apply(op=Op.TO_INT) if e.args[0].type is Type.BOOL:
            return 1.0
        case Apply(op=Op.SIGN):
            return 1.0
        case _:
            return 2.0**31
