"""Is an expression finite wherever it counts? By intervals if so, by concrete inputs if not.

Takes a plan's attention, an expression and the conditions under which it is used; returns `Holds` with the box in which
it was shown, a `Witness` with numbers, or None where neither was found. The same for ints whose value may be undefined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attngen.ir import build, walk
from attngen.ir.attention import Attention
from attngen.ir.build import apply, conjunction, disjunction
from attngen.ir.nodes import MOST_SHIFTED, Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.prove.algebra.assumptions import scale_enters_as_product
from attngen.prove.budget.work import Work
from attngen.prove.intervals import interval_type as i
from attngen.prove.intervals.ingredients import disjuncts
from attngen.prove.intervals.input_boxes import BOXES, LEAST, Box
from attngen.prove.intervals.interval_type import Interval
from attngen.prove.intervals.ranges import Ranges, ranges
from attngen.prove.search.witness import Witness

if TYPE_CHECKING:
    from attngen.prove.search.float_search import Search

_BOXES_SPLIT = 300
"""Boxes tried before halving is given up, at effort 1."""
_LOOK, _SEARCH = 1_000, 100_000
"""Units for one look at a box, and for one search among the samples."""


@dataclass(frozen=True, slots=True)
class Holds:
    """The expression's values, for inputs in the box."""

    box: Box
    values: Interval


class Finiteness:
    """The questions about one attention."""

    def __init__(self, attention: Attention, signed: bool, work: Work):
        """`signed`: whether the launcher takes the sign of the scale into q, which is right where q . k and the scale
        are read as their product alone. Each question raises `OutOfWork` where `work` does not suffice."""
        self.attention = attention
        self.work = work
        self.signed = signed
        self.scale_positive = signed and scale_enters_as_product(attention)
        self._places: dict[tuple[Box, tuple[Expr, ...]], Ranges] = {}
        self._held: list[Box] = []

    def given(self, param: str, fact: Expr) -> Finiteness:
        """The same questions of the attention whose param has one more fact."""
        params = tuple(
            replace(p, where=fact if p.where is None else conjunction(p.where, fact)) if p.name == param else p
            for p in self.attention.params
        )
        return Finiteness(replace(self.attention, params=params), self.signed, self.work)

    def place(self, box: Box, conditions: Sequence[Expr] = (), expressions: Sequence[Expr] = ()) -> Ranges:
        """What is known under the conditions, in this box."""
        self.work.spend(_LOOK)
        loads = tuple(dict.fromkeys(load for e in (*expressions, *conditions) for load in walk.loads(e)))
        key = box, (*conditions, *loads)
        if key not in self._places:
            base = ranges(self.attention, box, loads, scale_positive=self.scale_positive)
            self._places[key] = base.given(*conditions)
        return self._places[key]

    def values(self, e: Expr, conditions: Sequence[Expr], box: Box) -> Interval:
        """The values of `e` under the conditions; by cases where a condition is an `or`."""
        place = self.place(box, conditions, (e,))
        if place.dead:
            return i.EMPTY
        found = place.of(e)
        cases = disjuncts(conjunction(*conditions))
        if found.sound or len(cases) < 2:
            return found
        joined = i.EMPTY
        for case in cases:
            inner = place.given(*case)
            joined = joined if inner.dead else i.join(joined, inner.of(e))
        return joined

    @property
    def narrowest(self) -> Box:
        """The box in which everything holds that was shown so far."""
        return max(self._held, key=BOXES.index, default=BOXES[0])

    def _holds(self, box: Box) -> Box:
        self._held.append(box)
        return box

    def search(self, *, scale_positive: bool = False) -> Search:
        """A search for inputs in the least box, where the scale is positive if the kernel sees it so, or as asked."""
        self.work.spend(_SEARCH)
        from attngen.prove.search.float_search import Search

        return Search(self.attention, LEAST, scale_positive=scale_positive or self.scale_positive)

    def finite(self, e: Expr, conditions: Sequence[Expr] = ()) -> Holds | Witness | None:
        """Whether every value is finite, or -inf as written."""
        for box in BOXES:
            values = self.values(e, conditions, box)
            if values.sound:
                return Holds(self._holds(box), values)
        witness = self.search().find(e, conditions)
        if witness is not None:
            return witness
        values = self._by_halves(e, conditions)
        return None if values is None else Holds(self._holds(LEAST), values)

    def _by_halves(self, e: Expr, conditions: Sequence[Expr]) -> Interval | None:
        """The least box cut into smaller ones until `e` is finite in each; None if that takes too many."""
        leaves = [x for x in dict.fromkeys(walk.nodes(e)) if isinstance(x, Symbol | Scalar | Load)]
        leaves = [x for x in leaves if x.type is Type.FLOAT]
        if not leaves:
            return None
        found = i.EMPTY
        work = [self.place(LEAST, conditions, (e,))]
        for _ in range(int(_BOXES_SPLIT * self.work.effort)):
            if not work:
                return found
            self.work.spend(_LOOK)
            place = work.pop()
            values = i.EMPTY if place.dead else place.of(e)
            if values.sound:
                found = i.join(found, values)
                continue
            leaf = max(leaves, key=lambda x: _width(place.of(x)))
            own = place.of(leaf)
            if _width(own) < 1e-4:
                return None
            middle = _middle(own.low, own.high)
            work.append(place.with_interval(leaf, i.between(own.low, middle)))
            work.append(place.with_interval(leaf, i.between(middle, own.high)))
        return None

    def true(self, e: Expr, conditions: Sequence[Expr] = ()) -> Box | Witness | None:
        """Whether a condition always holds: the largest box in which it does."""
        for box in BOXES:
            place = self.place(box, conditions, (e,))
            if place.dead or not place.truth(e).can_fail:
                return self._holds(box)
        return self.search().find(apply(Op.NOT, e), conditions, "true")

    def defined(self, e: Expr, conditions: Sequence[Expr] = ()) -> Box | tuple[Apply, Witness | None]:
        """Whether every int in `e` has a value: the largest box in which it does, or an operation that has none."""
        failed: list[Apply] = []
        for box in BOXES:
            failed = undefined_operations(e, self.place(box, conditions, (e,)))
            if not failed:
                return self._holds(box)
        search = self.search()
        for node in failed:
            witness = search.find(undefined(e, node), conditions, "true")
            if witness is not None:
                return node, witness
        return failed[0], None


def _width(x: Interval) -> float:
    """The width on a scale that is logarithmic far from 0."""
    if not x.has_finite:
        return 0.0
    return math.asinh(x.high * 16) - math.asinh(x.low * 16)


def _middle(low: float, high: float) -> float:
    if low < 0 < high:
        return 0.0
    return i.single(math.sinh((math.asinh(low * 16) + math.asinh(high * 16)) / 2) / 16)


# ---------------------------------------------------------------- ints without a value


def _lacks_value(e: Apply) -> Expr | None:
    """The condition under which this int operation has no value."""
    match e.op:
        case Op.FLOORDIV | Op.MOD:
            return apply(Op.EQ, e.args[1], build.integer(0))
        case Op.SHIFT_RIGHT:
            last = build.integer(MOST_SHIFTED)
            inside = conjunction(apply(Op.LE, build.integer(0), e.args[1]), apply(Op.LE, e.args[1], last))
            return apply(Op.NOT, inside)
        case Op.POW if e.type is Type.INT:
            return apply(Op.LT, e.args[1], build.integer(0))
        case Op.TO_INT | Op.FLOOR | Op.CEIL if e.args[0].type is Type.FLOAT:
            limit = build.real(2.0**31)
            inside = conjunction(apply(Op.LT, build.real(-(2.0**31)), e.args[0]), apply(Op.LT, e.args[0], limit))
            return Apply(Op.NOT, (inside,), Type.BOOL)
        case _:
            return None


def undefined_operations(e: Expr, place: Ranges) -> list[Apply]:
    """The int operations in `e` that may have no value, each looked at under the conditions of its branch.

    In `a and b`, `b` counts only where `a` holds; in `a or b` only where it fails.
    """
    found: dict[Apply, None] = {}

    def visit(e: Expr, place: Ranges, seen: set[int]) -> None:
        if place.dead or id(e) in seen:
            return
        seen.add(id(e))
        if isinstance(e, Apply) and e.op is Op.SELECT:
            condition, then, otherwise = e.args
            visit(condition, place, seen)
            visit(then, place.given(condition), set())
            visit(otherwise, place.given(condition, holds=False), set())
            return
        if isinstance(e, Apply) and e.op in (Op.AND, Op.OR):
            inner = place
            for part in e.args:
                visit(part, inner, seen if inner is place else set())
                inner = inner.given(part, holds=e.op is Op.AND)
            return
        for child in walk.children(e):
            visit(child, place, seen)
        if isinstance(e, Apply) and _may_lack_value(e, place):
            found[e] = None

    visit(e, place, set())
    return list(found)


def _may_lack_value(e: Apply, place: Ranges) -> bool:
    match e.op:
        case Op.FLOORDIV | Op.MOD:
            return place.truth(apply(Op.EQ, e.args[1], build.integer(0))).can_hold and not _nonzero(place, e.args[1])
        case Op.SHIFT_RIGHT:
            return place.of(e.args[1]).least < 0 or place.of(e.args[1]).most > MOST_SHIFTED
        case Op.POW if e.type is Type.INT:
            return place.of(e.args[1]).least < 0
        case Op.TO_INT | Op.FLOOR | Op.CEIL if e.args[0].type is Type.FLOAT:
            return place.of(e).nan
        case _:
            return False


def _nonzero(place: Ranges, e: Expr) -> bool:
    return not place.of(e).zero


def undefined(e: Expr, node: Apply) -> Expr:
    """The condition under which `e` comes to evaluate `node` where it has no value."""
    if e == node:
        own = _lacks_value(node)
        assert own is not None
        return own
    if isinstance(e, Literal | Symbol | Scalar):
        return build.FALSE
    if isinstance(e, Apply) and e.op is Op.SELECT:
        condition, then, otherwise = e.args
        return disjunction(
            undefined(condition, node),
            conjunction(condition, undefined(then, node)),
            conjunction(apply(Op.NOT, condition), undefined(otherwise, node)),
        )
    if isinstance(e, Apply) and e.op in (Op.AND, Op.OR):
        parts: list[Expr] = []
        for n, part in enumerate(e.args):
            before = e.args[:n] if e.op is Op.AND else tuple(apply(Op.NOT, a) for a in e.args[:n])
            parts.append(conjunction(*before, undefined(part, node)))
        return disjunction(*parts)
    return disjunction(*(undefined(c, node) for c in walk.children(e)))
