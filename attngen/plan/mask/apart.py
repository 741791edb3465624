"""Comparisons of a difference with a constant, or of how large one is, with what each tile decides on its own side.

`abs(x[q] - x[k]) <= 8` is three operations of a pair, in 64 bits. `x[q] - 8 <= x[k] <= x[q] + 8` is two comparisons of
a pair, whose sums a kernel that holds queries has once for each.
Takes a mask and the level whose tile a kernel holds, returns a mask that allows the same pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, apply, conjunction, disjunction, sub
from attngen.ir.nodes import Apply, Expr, Literal, Op, Type
from attngen.ir.walk import nodes, substitute
from attngen.plan.levels import Level, level_of

_MOST_CONSTANT = 2**28


@dataclass(frozen=True, slots=True)
class Separation:
    """`comparison` as it stands, and as it is asked, `apart`, for whatever ints `held` and `other` are."""

    comparison: Apply
    held: Expr
    other: Expr
    apart: Expr


def apart(mask: Expr, held: Level) -> Expr:
    return substitute(mask, {s.comparison: s.apart for s in separations(mask, held)})


def separations(mask: Expr, held: Level) -> tuple[Separation, ...]:
    comparisons = (n for n in nodes(mask) if isinstance(n, Apply) and n.op in (Op.LE, Op.LT, Op.EQ, Op.NE))
    found = (_separation(c, held) for c in dict.fromkeys(comparisons))
    return tuple(s for s in found if s is not None)


def _separation(c: Apply, held: Level) -> Separation | None:
    """Of a comparison of a difference, or of how large one is, with a constant."""
    left, right = c.args
    first = isinstance(right, Literal)
    difference, constant = (left, right) if first else (right, left)
    far = isinstance(difference, Apply) and difference.op is Op.ABS
    if far:
        assert isinstance(difference, Apply)
        difference = difference.args[0]
    if not (
        isinstance(constant, Literal)
        and isinstance(difference, Apply)
        and difference.op is Op.SUB
        and difference.type is Type.INT
        and abs(constant.value) <= _MOST_CONSTANT
        and {level_of(a) for a in difference.args} == {Level.ROW, Level.COLUMN}
    ):
        return None
    turned = level_of(difference.args[0]) is not held
    own, other = difference.args[::-1] if turned else difference.args
    low, high = sub(own, constant), add(own, constant)
    if c.op in (Op.EQ, Op.NE):
        return None if far else Separation(c, own, other, apply(c.op, other, high if turned else low))
    under, over = apply(c.op, other, low), apply(c.op, high, other)  # by so much, or more
    above, below = apply(c.op, low, other), apply(c.op, other, high)  # by no more
    if far:
        return Separation(c, own, other, conjunction(above, below) if first else disjunction(under, over))
    if turned:
        return Separation(c, own, other, below if first else over)
    return Separation(c, own, other, above if first else under)
