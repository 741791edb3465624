"""Closed-form tile ranges: which keys a tile of queries can meet, and which it meets in full (and the reverse).

Takes the mask and an axis, gives `TileRanges`: `any` covers every allowed position, in `all` every pair is allowed.
For the axis `k` the tile is the queries `q0 … q1` (both inclusive, symbols of the bounds); for `q` it is `k0 … k1`.
Bounds are int expressions over the tile's ends, sizes, scalars, and loads that depend on `b` and `h` alone.

The rules: a comparison is brought to the form `c * t + rest <= 0` with one term `t` that holds the axis; `t` is peeled
(`//` by a positive divisor, abs, min, max) down to the axis itself, which gives a half-line whose end is bounded over
the tile by interval arithmetic: `any` takes the looser end, `all` the tighter. `and` meets, `or` joins. Whatever does
not fit gives `any` = everything, `all` = nothing, which is always true. Comparisons of row data with column data
become `DataTest`s, answered at run time from the minima and maxima of each tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attngen.ir import build
from attngen.ir.build import FALSE, TRUE, add, floordiv, index, integer, maximum, minimum, mul, neg, select, sub
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Symbol, Type
from attngen.ir.walk import nodes, reads
from attngen.plan.facts import Facts
from attngen.plan.linear import additive, from_linear, linear, total
from attngen.plan.segments import Pair, Segment, both, either, join, meet
from attngen.plan.width import fits


@dataclass(frozen=True, slots=True)
class DataTest:
    """`row <= col` or (`equal`) `row == col`, where `row` reads q and `col` reads k, each with a load in it or plain.

    In bounds, its answer for axis `k` stands as the symbols `NAME_any_lo`, `NAME_any_hi`, `NAME_all_lo`, `NAME_all_hi`
    (positions): the hull of the tiles in which the test can hold for some pair, and a run of tiles, perhaps empty, in
    which it holds for every pair.
    """

    name: str
    equal: bool
    row: Expr
    col: Expr

    def bound(self, which: str) -> Symbol:
        return Symbol(f"{self.name}_{which}", Type.INT)

    def can(self, axis: str) -> Expr:
        """Whether the test can hold between the held tile's values, from `here_least` to `here_most`, and those of a
        tile of `axis`, from `there_least` to `there_most`."""
        here_least, here_most, there_least, there_most = self._extremes()
        if self.equal:
            overlap = build.apply(Op.LE, there_least, here_most), build.apply(Op.LE, here_least, there_most)
            return build.conjunction(*overlap)
        return build.apply(Op.LE, here_least, there_most) if axis == "k" else build.apply(Op.LE, there_least, here_most)

    def must(self, axis: str) -> Expr:
        """Whether it then holds for every pair."""
        here_least, here_most, there_least, there_most = self._extremes()
        if self.equal:
            others = (there_most, here_least, here_most)
            return build.conjunction(*(build.apply(Op.EQ, there_least, other) for other in others))
        return build.apply(Op.LE, here_most, there_least) if axis == "k" else build.apply(Op.LE, there_most, here_least)

    def _extremes(self) -> tuple[Symbol, Symbol, Symbol, Symbol]:
        type = self.row.type
        return (
            Symbol("here_least", type),
            Symbol("here_most", type),
            Symbol("there_least", type),
            Symbol("there_most", type),
        )


@dataclass(frozen=True, slots=True)
class TileRanges:
    axis: str  # "k" or "q": what the segments range over
    any: tuple[Segment, ...]
    all: tuple[Segment, ...]
    tests: tuple[DataTest, ...]


def tile_ranges(mask: Expr, axis: str, facts: Facts) -> TileRanges:
    """The ranges of `axis` for a tile of the other axis. The ends of the sequences are always among the conditions."""
    solver = _Solver(axis, facts)
    inside = Pair((Segment(integer(0), solver.size),), (Segment(integer(0), solver.size),))
    found = meet(inside, solver.solve(mask))
    return TileRanges(axis, found.any, found.all, tuple(solver.tests))


def ends(axis: str) -> tuple[Symbol, Symbol]:
    """The symbols of the first and last position of the tile that is held while `axis` is walked."""
    return (index("q0"), index("q1")) if axis == "k" else (index("k0"), index("k1"))


class _Solver:
    def __init__(self, axis: str, facts: Facts):
        self.axis = axis
        self.other = "q" if axis == "k" else "k"
        self.size = index("Sk" if axis == "k" else "Sq")
        self.first, self.last = ends(axis)
        self.facts = facts
        self.tests: list[DataTest] = []

    # ------------------------------------------------------------ conditions

    def everything(self) -> tuple[Segment, ...]:
        return (Segment(integer(0), self.size),)

    def unknown(self) -> Pair:
        return Pair(self.everything(), ())

    def solve(self, c: Expr) -> Pair:
        if not reads(c, self.axis) and not _reads_data(c, self.other):
            return self.row_condition(c)
        if isinstance(c, Apply):
            match c.op:
                case Op.AND:
                    found = self.solve(c.args[0])
                    for part in c.args[1:]:
                        found = meet(found, self.solve(part))
                    return found
                case Op.OR:
                    found = self.solve(c.args[0])
                    for part in c.args[1:]:
                        found = join(found, self.solve(part))
                    return found
                case Op.NOT:
                    return self.negated(c.args[0])
                case Op.SELECT:
                    condition, then, otherwise = c.args
                    return self.solve(
                        build.disjunction(
                            build.conjunction(condition, then),
                            build.conjunction(build.apply(Op.NOT, condition), otherwise),
                        )
                    )
                case Op.LE | Op.LT | Op.EQ | Op.NE:
                    return self.within_64_bits(self.comparison(c))
                case _:
                    return self.unknown()
        return self.flag(c, build.apply(Op.TO_INT, c)) if isinstance(c, Load) else self.unknown()

    def within_64_bits(self, found: Pair) -> Pair:
        """Without bounds that a kernel could not compute for every param."""
        bounds = [e for s in (*found.any, *found.all) for e in (s.lo, s.hi)]
        return found if all(fits(e, self.facts) for e in bounds) else self.unknown()

    def negated(self, c: Expr) -> Pair:
        # `build` has pushed `not` down to leaves and float comparisons.
        return self.flag(c, sub(integer(1), build.apply(Op.TO_INT, c))) if isinstance(c, Load) else self.unknown()

    def flag(self, c: Load, number: Expr) -> Pair:
        """A bool load as a data test: where `number`, 0 or 1 and made of it, is 1."""
        if reads(c, "q") and reads(c, "k"):
            return self.unknown()
        if reads(c, "k"):
            return self.data_test(integer(1), number, equal=False)
        return self.data_test(sub(integer(1), number), integer(0), equal=False)

    def row_condition(self, c: Expr) -> Pair:
        """A condition that the axis does not enter: all of the axis, or nothing of it."""
        some, every = self.over_tile(c)
        return Pair(self.if_(some), self.if_(every))

    def if_(self, condition: Expr) -> tuple[Segment, ...]:
        if condition == FALSE:
            return ()
        return (Segment(integer(0), select(condition, self.size, integer(0))),)

    def over_tile(self, c: Expr) -> tuple[Expr, Expr]:
        """Conditions on the tile alone: implied by `c` at some position of it, and implying `c` at every one."""
        if not reads(c, self.other):
            return c, c
        if isinstance(c, Apply):
            match c.op:
                case Op.AND | Op.OR:
                    parts = [self.over_tile(a) for a in c.args]
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

    # ------------------------------------------------------------ comparisons

    def comparison(self, c: Apply) -> Pair:
        left, right = c.args
        if left.type is not Type.INT:
            return self.split(c)
        match c.op:
            case Op.LE:
                found = self.at_most(sub(left, right))
            case Op.LT:
                found = self.at_most(add(sub(left, right), integer(1)))
            case Op.EQ:
                up, down = self.at_most(sub(left, right)), self.at_most(sub(right, left))
                found = None if up is None or down is None else meet(up, down)
            case _:
                below = self.at_most(add(sub(left, right), integer(1)))
                above = self.at_most(add(sub(right, left), integer(1)))
                found = None if below is None or above is None else join(below, above)
        return self.split(c) if found is None else found

    def at_most(self, e: Expr) -> Pair | None:
        """`e <= 0`; None where it cannot be solved for the axis."""
        terms, constant = linear(e)
        own = [(t, c) for t, c in terms if reads(t, self.axis)]
        if len(own) != 1:
            return None
        term, factor = own[0]
        rest = from_linear([(t, c) for t, c in terms if not reads(t, self.axis)], constant)
        if factor > 0:  # t <= floor(-rest / factor)
            return self.peel_at_most(term, floordiv(neg(rest), integer(factor)))
        # t >= ceil(rest / -factor)
        return self.peel_at_least(term, neg(floordiv(neg(rest), integer(-factor))))

    def peel_at_most(self, t: Expr, limit: Expr) -> Pair | None:
        """`t <= limit`, where `limit` is free of the axis."""
        if t == index(self.axis):
            spread = self.extremes(limit)
            if spread is None:
                return None
            one = integer(1)
            return Pair(
                (Segment(integer(0), add(spread[1], one)),),
                (Segment(integer(0), add(spread[0], one)),),
            )
        if not isinstance(t, Apply):
            return None
        a = t.args[0]
        match t.op:
            case Op.FLOORDIV if self.facts.is_positive(t.args[1]) and not reads(t.args[1], self.axis):
                c = t.args[1]
                return self.at_most(sub(a, add(mul(limit, c), sub(c, integer(1)))))
            case Op.ABS:
                return both(self.at_most(sub(a, limit)), self.at_most(sub(neg(a), limit)))
            case Op.MAX:
                return both(self.at_most_or_row(a, limit), self.at_most_or_row(t.args[1], limit))
            case Op.MIN:
                return either(self.at_most_or_row(a, limit), self.at_most_or_row(t.args[1], limit))
            case Op.SELECT:
                return self.solve_select(t, Op.LE, limit)
            case _:
                return None

    def peel_at_least(self, t: Expr, limit: Expr) -> Pair | None:
        """`t >= limit`, where `limit` is free of the axis."""
        if t == index(self.axis):
            spread = self.extremes(limit)
            if spread is None:
                return None
            return Pair((Segment(spread[0], self.size),), (Segment(spread[1], self.size),))
        if not isinstance(t, Apply):
            return None
        a = t.args[0]
        match t.op:
            case Op.FLOORDIV if self.facts.is_positive(t.args[1]) and not reads(t.args[1], self.axis):
                return self.at_most(sub(mul(limit, t.args[1]), a))
            case Op.ABS:
                return either(self.at_most(sub(limit, a)), self.at_most(add(limit, a)))
            case Op.MIN:
                return both(self.at_least_or_row(a, limit), self.at_least_or_row(t.args[1], limit))
            case Op.MAX:
                return either(self.at_least_or_row(a, limit), self.at_least_or_row(t.args[1], limit))
            case Op.SELECT:
                return self.solve_select(t, Op.LT, limit)
            case _:
                return None

    def at_most_or_row(self, a: Expr, limit: Expr) -> Pair | None:
        return self.as_condition(build.apply(Op.LE, a, limit))

    def at_least_or_row(self, a: Expr, limit: Expr) -> Pair | None:
        return self.as_condition(build.apply(Op.LE, limit, a))

    def as_condition(self, c: Expr) -> Pair | None:
        if reads(c, self.axis) and isinstance(c, Apply):
            return self.at_most(sub(c.args[0], c.args[1]))
        return None if _reads_data(c, self.other) else self.row_condition(c)

    def solve_select(self, t: Apply, op: Op, limit: Expr) -> Pair:
        condition, then, otherwise = t.args

        def side(e: Expr) -> Expr:
            return build.apply(Op.LE, e, limit) if op is Op.LE else build.apply(Op.LE, limit, e)

        return self.solve(
            build.disjunction(
                build.conjunction(condition, side(then)),
                build.conjunction(build.apply(Op.NOT, condition), side(otherwise)),
            )
        )

    # ------------------------------------------------------------ the other axis, over the tile

    def extremes(self, e: Expr) -> tuple[Expr, Expr] | None:
        """Bounds of an int expression over the positions of the tile, as expressions over its ends."""
        if not reads(e, self.other):
            return e, e
        if e == index(self.other):
            return self.first, self.last
        if not isinstance(e, Apply):
            return None
        terms, constant = linear(e)
        if len(terms) > 1 or (terms and terms[0][0] != e):
            return self.sum_extremes(terms, constant)
        a = self.extremes(e.args[0]) if e.op is not Op.SELECT else None
        match e.op:
            case Op.MUL:
                b = self.extremes(e.args[1])
                return None if a is None or b is None else self.product_extremes(e.args, a, b)
            case Op.FLOORDIV if self.facts.is_positive(e.args[1]) and not reads(e.args[1], self.other):
                return None if a is None else (floordiv(a[0], e.args[1]), floordiv(a[1], e.args[1]))
            case Op.MOD if self.facts.is_positive(e.args[1]) and not reads(e.args[1], self.other):
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
                return minimum(then[0], otherwise[0]), maximum(then[1], otherwise[1])
            case Op.TO_INT if e.args[0].type is Type.BOOL:
                return integer(0), integer(1)
            case _:
                return None

    def sum_extremes(self, terms: list[tuple[Expr, int]], constant: int) -> tuple[Expr, Expr] | None:
        low: list[tuple[Expr, int]] = []
        high: list[tuple[Expr, int]] = []
        for term, factor in terms:
            spread = self.extremes(term)
            if spread is None:
                return None
            low.append((spread[0] if factor > 0 else spread[1], factor))
            high.append((spread[1] if factor > 0 else spread[0], factor))
        return from_linear(low, constant), from_linear(high, constant)

    def product_extremes(self, args: tuple[Expr, ...], a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
        for factor, spread in ((args[1], a), (args[0], b)):
            if not reads(factor, self.other):
                low, high = mul(spread[0], factor), mul(spread[1], factor)
                return (low, high) if self.facts.is_nonnegative(factor) else (minimum(low, high), maximum(low, high))
        corners = [mul(x, y) for x in a for y in b]
        low, high = corners[0], corners[0]
        for corner in corners[1:]:
            low, high = minimum(low, corner), maximum(high, corner)
        return low, high

    # ------------------------------------------------------------ row data against column data

    def split(self, c: Apply) -> Pair:
        """A comparison whose difference falls into a part of q and a part of k becomes a data test."""
        left, right = c.args
        if left.type is Type.BOOL or c.op is Op.NE or reads(c, "qk"):
            return self.unknown()
        parts = additive(left, right)
        if any(isinstance(t, Literal) and not math.isfinite(t.value) for t, _ in parts):
            return self.unknown()  # moved to the other side, infinity less infinity would be no number
        own = [t for t in parts if reads(t[0], self.axis)]
        if not own or any(reads(t[0], self.other) for t in own):
            return self.unknown()
        if not any(_reads_data(t[0], "q", "k") for t in parts) and left.type is Type.INT:
            return self.unknown()
        # left - right = row part + column part: compare the row part with the negated column part.
        rows = [t for t in parts if not reads(t[0], "k")]
        columns = [(t, -sign) for t, sign in parts if reads(t, "k")]
        row, col = total(rows, left.type), total(columns, left.type)
        if left.type is Type.INT:
            if c.op is Op.LT:
                row = add(row, integer(1))
            elif all(sign < 0 for _, sign in (*rows, *columns)):
                # -1 - x, which 32 bits hold for every x that they hold.
                row, col = (sub(integer(-1), total([(t, -sign) for t, sign in p], left.type)) for p in (rows, columns))
        # A strict float test is weakened in `any` and must stay strict in `all`: only `all` would be wrong with <=.
        strict = c.op is Op.LT and left.type is Type.FLOAT
        found = self.data_test(row, col, equal=c.op is Op.EQ)
        return Pair(found.any, ()) if strict else found

    def data_test(self, row: Expr, col: Expr, *, equal: bool) -> Pair:
        for test in self.tests:
            if (test.row, test.col, test.equal) == (row, col, equal):
                break
        else:
            test = DataTest(f"test{len(self.tests)}", equal, row, col)
            self.tests.append(test)
        return Pair(
            (Segment(test.bound("any_lo"), test.bound("any_hi")),),
            (Segment(test.bound("all_lo"), test.bound("all_hi")),),
        )


def _reads_data(e: Expr, *axes: str) -> bool:
    """Whether `e` holds a load whose index depends on one of these axes."""
    return any(isinstance(n, Load) and reads(n, *axes) for n in nodes(e))
