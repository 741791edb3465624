"""Which masks hold however a chip rounds: floats that every chip computes alike, and the others.

Kernels compute with float32. A load, a comparison, one sum or one product have the same bits everywhere. A product that
goes into a sum may be rounded once or twice, and quotients and functions have errors of their own. `bounds` takes a
mask, returns two, for whoever decides on the host about what a kernel will see.
"""

from __future__ import annotations

from attngen.ir import build
from attngen.ir.nodes import Apply, Expr, Op, Type
from attngen.ir.walk import nodes

_EXACT = (Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS, Op.SIGN, Op.MIN, Op.MAX, Op.SELECT, Op.TO_FLOAT)


def varies(e: Expr) -> bool:
    """Whether a chip may give another value than float32 in NumPy, rounded after each operation."""
    return any(_varies(node) for node in nodes(e))


def _varies(node: Expr) -> bool:
    if not isinstance(node, Apply) or node.type is not Type.FLOAT:
        return False
    if node.op in (Op.ADD, Op.SUB):
        parts = (n for a in node.args for n in nodes(a))
        return any(isinstance(n, Apply) and n.op is Op.MUL and n.type is Type.FLOAT for n in parts)
    return node.op not in _EXACT


def bounds(mask: Expr) -> tuple[Expr, Expr]:
    """Two masks that are the same in float32 on every chip: one allows only pairs that `mask` allows on each of them,
    the other all that it allows on any."""
    if not varies(mask):
        return mask, mask
    if not isinstance(mask, Apply):  # a load, whose indices vary
        return build.FALSE, build.TRUE
    match mask.op:
        case Op.AND | Op.OR:
            certain, possible = zip(*map(bounds, mask.args), strict=True)
            return build.apply(mask.op, *certain), build.apply(mask.op, *possible)
        case Op.NOT:
            certain, possible = bounds(mask.args[0])
            return build.apply(Op.NOT, possible), build.apply(Op.NOT, certain)
        case Op.SELECT:
            condition, (yes, may), (no, might) = mask.args[0], *map(bounds, mask.args[1:])
            either = build.apply(Op.AND, yes, no), build.apply(Op.OR, may, might)
            if not varies(condition):
                either = build.apply(Op.SELECT, condition, yes, no), build.apply(Op.SELECT, condition, may, might)
            return either
        case Op.EQ | Op.NE if mask.args[0].type is Type.BOOL:
            either = build.apply(Op.AND, mask.args[0], build.apply(Op.NOT, mask.args[1]))
            other = build.apply(Op.AND, build.apply(Op.NOT, mask.args[0]), mask.args[1])
            differ = build.apply(Op.OR, either, other)
            return bounds(differ if mask.op is Op.NE else build.apply(Op.NOT, differ))
        case _:
            return build.FALSE, build.TRUE
