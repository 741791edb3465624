"""Closed-form tile ranges: which keys a tile of queries can meet, and which it meets in full (and the reverse).

Takes the mask and an axis, returns `TileRanges`: `any` covers every allowed position, in `all` every pair is allowed.
For the axis `k` the tile is the queries `q0 … q1` (both inclusive, symbols of the bounds); for `q` it is `k0 … k1`.
Bounds are int expressions over the tile's ends, sizes, scalars, and loads that depend on `b` and `h` alone.

The rules: a comparison is brought to the form `c * t + rest <= 0` with one term `t` that holds the axis; `t` is peeled
(`//` by a positive divisor, abs, min, max) down to the axis itself, which gives a half-line whose end is bounded over
the held tile (`extremes`): `any` takes the looser end, `all` the tighter. `and` meets, `or` joins. Whatever does not
fit, such as `in`, gives `any` = everything, `all` = nothing, which is always true. Comparisons of row data with column
data are left to `data_tests`, and so are the elements of `named` params: bools for each pair, which kernels of the
target read ahead.
A comparison whose ints a condition on the axis chooses (`lifting`) becomes one of two, under that condition.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir import build
from attngen.ir.build import FALSE, add, floordiv, index, integer, mul, neg, select, sub
from attngen.ir.nodes import Apply, Expr, Load, Op, Symbol, Type
from attngen.ir.walk import looks_in_lists, reads
from attngen.plan.ints.facts import Facts
from attngen.plan.ints.linear import from_linear, linear
from attngen.plan.ints.width import fits, rounds
from attngen.plan.mask.data_tests import DataTest, Sign, reads_data, sides
from attngen.plan.mask.extremes import HeldTile
from attngen.plan.mask.lifting import lifted
from attngen.plan.mask.segments import Pair, Segment, both, either, join, larger, meet, smaller


@dataclass(frozen=True, slots=True)
class TileRanges:
    axis: str  # "k" or "q": what the segments range over
    any: tuple[Segment, ...]
    all: tuple[Segment, ...]
    tests: tuple[DataTest, ...]
    solved: bool = True
    """Whether `any` and `all` are of every condition of the mask; some may have said nothing."""


def tile_ranges(mask: Expr, axis: str, facts: Facts) -> TileRanges:
    """The ranges of `axis` for a tile of the other axis. The ends of the sequences are always among the conditions."""
    solver = _Solver(axis, facts)
    inside = Pair((Segment(integer(0), solver.size),), (Segment(integer(0), solver.size),))
    found = meet(inside, solver.solve(mask))
    some, every = (tuple(_in_positions(s, solver.size, facts) for s in segments) for segments in (found.any, found.all))
    return TileRanges(axis, some, every, tuple(solver.tests), solver.solved)


def _in_positions(s: Segment, size: Expr, facts: Facts) -> Segment:
    """The same stretch, all of which is between 0 and `size`, with ends that can be rounded to tiles."""
    lo = s.lo if rounds(s.lo, facts, below_size=False) else smaller(s.lo, size)
    hi = s.hi if rounds(s.hi, facts, below_size=True) else larger(s.hi, integer(0))
    return Segment(lo, hi)


def ends(axis: str) -> tuple[Symbol, Symbol]:
    """The symbols of the first and last position of the tile that is held while `axis` is walked."""
    return (index("q0"), index("q1")) if axis == "k" else (index("k0"), index("k1"))


class _Solver:
    def __init__(self, axis: str, facts: Facts):
        self.axis = axis
        self.other = "q" if axis == "k" else "k"
        self.size = index("Sk" if axis == "k" else "Sq")
        self.held = HeldTile(self.other, *ends(axis), facts)
        self.facts = facts
        self.tests: list[DataTest] = []
        self.solved = True

    # ------------------------------------------------------------ conditions

    def everything(self) -> tuple[Segment, ...]:
        return (Segment(integer(0), self.size),)

    def unknown(self) -> Pair:
        self.solved = False
        return Pair(self.everything(), ())

    def solve(self, c: Expr) -> Pair:
        if looks_in_lists(c) and not (isinstance(c, Apply) and c.op in (Op.AND, Op.OR)):
            return self.unknown()
        if not reads(c, self.axis) and not reads_data(c, self.other):
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
            return self.data_test(integer(1), number)
        return self.data_test(sub(integer(1), number), integer(0))

    def row_condition(self, c: Expr) -> Pair:
        """A condition that the axis does not enter: all of the axis, or nothing of it."""
        some, every = self.held.conditions(c)
        return Pair(self.if_(some), self.if_(every))

    def if_(self, condition: Expr) -> tuple[Segment, ...]:
        if condition == FALSE:
            return ()
        return (Segment(integer(0), select(condition, self.size, integer(0))),)

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
        if found is not None:
            return found
        cases = lifted(c, self.axis)
        return self.split(c) if cases is None else self.solve(cases)

    def at_most(self, e: Expr) -> Pair | None:
        """`e <= 0`; None where it cannot be solved for the axis."""
        terms, constant = linear(e)
        own = [(t, c) for t, c in terms if reads(t, self.axis)]
        if len(own) != 1:
            return None
        term, factor = own[0]
        rest = [(t, c) for t, c in terms if not reads(t, self.axis)]
        if factor == -1:
            return self.peel_at_least(term, from_linear(rest, constant))
        opposite = from_linear([(t, -c) for t, c in rest], -constant)
        if factor > 0:  # t <= floor(-rest / factor)
            return self.peel_at_most(term, floordiv(opposite, integer(factor)))
        # t >= ceil(rest / -factor)
        return self.peel_at_least(term, neg(floordiv(opposite, integer(-factor))))

    def peel_at_most(self, t: Expr, limit: Expr) -> Pair | None:
        """`t <= limit`, where `limit` is free of the axis."""
        if t == index(self.axis):
            spread = self.held.extremes(limit)
            if spread is None:
                return None
            return Pair((Segment(integer(0), _next(spread[1])),), (Segment(integer(0), _next(spread[0])),))
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
            spread = self.held.extremes(limit)
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
        return None if reads_data(c, self.other) else self.row_condition(c)

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

    # ------------------------------------------------------------ row data against column data

    def split(self, c: Apply) -> Pair:
        """A comparison whose difference falls into a part of q and a part of k becomes a data test."""
        found = sides(c, self.axis, self.other)
        if found is None:
            return self.unknown()
        answer = self.data_test(found.row, found.col, found.sign)
        # A strict float test is weakened in `any` and must stay strict in `all`: only `all` would be wrong with <=.
        return Pair(answer.any, ()) if found.strict else answer

    def data_test(self, row: Expr, col: Expr, sign: Sign = "<=") -> Pair:
        for test in self.tests:
            if (test.row, test.col, test.sign) == (row, col, sign):
                break
        else:
            test = DataTest(f"test{len(self.tests)}", sign, row, col)
            self.tests.append(test)
        return Pair(
            (Segment(test.bound("any_lo"), test.bound("any_hi")),),
            (Segment(test.bound("all_lo"), test.bound("all_hi")),),
        )


def _next(e: Expr) -> Expr:
    """`e + 1`; of `n - 1` that is `n`, which leaves no register."""
    terms, constant = linear(e)
    return from_linear(terms, 0) if terms and constant == -1 else add(e, integer(1))
