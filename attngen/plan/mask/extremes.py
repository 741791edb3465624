"""What holds over the positions of a held tile: bounds of ints, and conditions on the tile alone.

Takes expressions that read one axis, and the ends of the tile of that axis; returns expressions over those ends, by
interval arithmetic. None, or "perhaps" (`TRUE`, `FALSE`), where there is no bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir import build
from attngen.ir.build import FALSE, TRUE, floordiv, index, integer, maximum, minimum, mul, neg, select, sub
from attngen.ir.nodes import Apply, Expr, Op, Symbol, Type
from attngen.ir.walk import reads
from attngen.plan.ints.facts import Facts
from attngen.plan.ints.linear import from_linear, linear


@dataclass(frozen=True, slots=True)
class HeldTile:
    """The positions of `axis`, q or k, from `first` to `last`."""

    axis: str
    first: Symbol
    last: Symbol
    facts: Facts

    def conditions(self, c: Expr) -> tuple[Expr, Expr]:
        """Conditions on the tile alone: implied by `c` at some position of it, and implying `c` at every one."""
        if not reads(c, self.axis):
            return c, c
        if isinstance(c, Apply):
            match c.op:
                case Op.AND | Op.OR:
                    parts = [self.conditions(a) for a in c.args]
                    return (
                        build.apply(c.op, *(p[0] for p in parts)),
                        build.apply(c.op, *(p[1] for p in parts)),
                    )
                case Op.LE | Op.LT if c.args[0].type is Type.INT:
                    spread = self.extremes(sub(c.args[0], c.args[1]))
                    if spread is not None:
                        zero = integer(0)
                        return build.apply(c.op, spread[0], zero), build.apply(c.op, spread[1], zero)
                case Op.EQ if c.args[0].type is Type.INT:
                    spread = self.extremes(sub(c.args[0], c.args[1]))
                    if spread is not None:
                        low = build.apply(Op.LE, spread[0], integer(0))
                        high = build.apply(Op.LE, integer(0), spread[1])
                        same = build.apply(Op.EQ, spread[0], integer(0)), build.apply(Op.EQ, spread[1], integer(0))
                        return build.conjunction(low, high), build.conjunction(*same)
                case _:
                    pass
        return TRUE, FALSE

    def extremes(self, e: Expr) -> tuple[Expr, Expr] | None:
        """Bounds of an int expression over the positions of the tile, as expressions over its ends."""
        if not reads(e, self.axis):
            return e, e
        if e == index(self.axis):
            return self.first, self.last
        if not isinstance(e, Apply):
            return None
        terms, constant = linear(e)
        if len(terms) > 1 or (terms and terms[0][0] != e):
            return self._sum(terms, constant)
        a = self.extremes(e.args[0]) if e.op is not Op.SELECT else None
        match e.op:
            case Op.MUL:
                b = self.extremes(e.args[1])
                return None if a is None or b is None else self._product(e.args, a, b)
            case Op.FLOORDIV if self.facts.is_positive(e.args[1]) and not reads(e.args[1], self.axis):
                return None if a is None else (floordiv(a[0], e.args[1]), floordiv(a[1], e.args[1]))
            case Op.MOD if self.facts.is_positive(e.args[1]) and not reads(e.args[1], self.axis):
                return integer(0), sub(e.args[1], integer(1))
            case Op.MIN | Op.MAX:
                b = self.extremes(e.args[1])
                if a is None or b is None:
                    return None
                return build.apply(e.op, a[0], b[0]), build.apply(e.op, a[1], b[1])
            case Op.ABS:
                if a is None:
                    return None
                return maximum(integer(0), maximum(a[0], neg(a[1]))), maximum(neg(a[0]), a[1])
            case Op.SELECT:
                then, otherwise = self.extremes(e.args[1]), self.extremes(e.args[2])
                if then is None or otherwise is None:
                    return None
                return self._choice(e.args[0], then, otherwise)
            case Op.TO_INT if e.args[0].type is Type.BOOL:
                return integer(0), integer(1)
            case _:
                return None

    def _choice(self, c: Expr, then: tuple[Expr, Expr], otherwise: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
        """Bounds of a select: of one branch where `c` is the same all over the tile, else of both."""
        some, every = self.conditions(c)

        def one(a: Expr, b: Expr, either: Expr) -> Expr:
            return select(every, a, select(some, either, b))

        return (
            one(then[0], otherwise[0], minimum(then[0], otherwise[0])),
            one(then[1], otherwise[1], maximum(then[1], otherwise[1])),
        )

    def _sum(self, terms: list[tuple[Expr, int]], constant: int) -> tuple[Expr, Expr] | None:
        low: list[tuple[Expr, int]] = []
        high: list[tuple[Expr, int]] = []
        for term, factor in terms:
            spread = self.extremes(term)
            if spread is None:
                return None
            low.append((spread[0] if factor > 0 else spread[1], factor))
            high.append((spread[1] if factor > 0 else spread[0], factor))
        return from_linear(low, constant), from_linear(high, constant)

    def _product(self, args: tuple[Expr, ...], a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
        for factor, spread in ((args[1], a), (args[0], b)):
            if not reads(factor, self.axis):
                low, high = mul(spread[0], factor), mul(spread[1], factor)
                return (low, high) if self.facts.is_nonnegative(factor) else (minimum(low, high), maximum(low, high))
        corners = [mul(x, y) for x in a for y in b]
        low, high = corners[0], corners[0]
        for corner in corners[1:]:
            low, high = minimum(low, corner), maximum(high, corner)
        return low, high
