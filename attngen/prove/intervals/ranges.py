"""What values an IR expression can have: interval arithmetic that knows what holds at the place of the expression.

Takes a `Box` (how large inputs are taken to be) and conditions that hold (`where`s, `assume`s, a mask, the condition of
a branch), returns an `Interval` for any expression. Beside the intervals of single expressions it keeps linear facts
about ints, so that `1.0 / (q - k)` is fine under `k < q`; a branch is evaluated under its condition, so that
`log(x) if x > 0 else 0.0` is. Uses nothing of the planner's.

A condition that keeps a float from 0 is taken to keep it `Box.tiny` away from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Self, assert_never

from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import substitute
from attngen.prove.intervals import interval_type as i
from attngen.prove.intervals.input_boxes import Box
from attngen.prove.intervals.interval_type import Interval
from attngen.prove.intervals.linear_facts import Fact, Form, form
from attngen.prove.intervals.values import EXACT, Values, apart_key


class Ranges(Values):
    """Intervals of expressions at one place. Immutable to its users: `given` makes another one that knows more."""

    # ------------------------------------------------------------ places

    def given(self, *conditions: Expr, holds: bool = True) -> Self:
        """What is known where the conditions hold too (or, with `holds` False, where they fail)."""
        inner = self._copy()
        for condition in conditions:
            inner._assume(condition, holds)
        return inner

    def with_interval(self, e: Expr, value: Interval) -> Self:
        inner = self._copy()
        inner._narrow(e, value)
        return inner

    def _copy(self) -> Self:
        inner = type(self)(self.attention, self.box, scale_positive=self.scale_positive)
        inner.known = dict(self.known)
        inner.apart = set(self.apart)
        inner.facts = self.facts
        inner.dead = self.dead
        inner._depth = self._depth + 1
        inner._elements = self._elements
        return inner

    # ------------------------------------------------------------ conditions

    def _assume(self, e: Expr, holds: bool) -> None:
        truth = self.truth(e)
        if not (truth.can_hold if holds else truth.can_fail):
            self.dead = True
            return
        match e:
            case Apply(op=Op.NOT):
                self._assume(e.args[0], not holds)
            case Apply(op=Op.AND) if holds:
                # Twice: what the later parts say may sharpen what the earlier ones say of the same expressions.
                for part in (*e.args, *e.args):
                    self._assume(part, True)
            case Apply(op=Op.OR) if not holds:
                for part in e.args:
                    self._assume(part, False)
            case Apply(op=Op.AND | Op.OR):
                # Some part decides; if only one can, it does.
                able = [a for a in e.args if (self.truth(a).can_fail if e.op is Op.AND else self.truth(a).can_hold)]
                if len(able) == 1:
                    self._assume(able[0], holds)
            case Apply(op=Op.LT | Op.LE | Op.EQ | Op.NE) if e.args[0].type is not Type.BOOL:
                self._assume_comparison(e, holds)
            case Symbol() | Scalar() | Load() | Apply():
                self._note(e, i.between(int(holds), int(holds)))
            case Literal():
                pass
            case _:
                assert_never(e)

    def _assume_comparison(self, e: Apply, holds: bool) -> None:
        a, b = e.args
        op = e.op
        if not holds:
            if a.type is Type.FLOAT and (self.of(a).nan or self.of(b).nan):
                return  # a comparison with NaN fails without saying anything
            flipped = {Op.LT: (Op.LE, b, a), Op.LE: (Op.LT, b, a), Op.EQ: (Op.NE, a, b), Op.NE: (Op.EQ, a, b)}
            op, a, b = flipped[op]
        if a.type is Type.INT:
            self._assume_ints(op, a, b)
        x, y = self.of(a), self.of(b)
        match op:
            case Op.LT | Op.LE:
                strict = op is Op.LT
                self._narrow(a, _not_above(y.most, strict, a.type, self.box.tiny))
                self._narrow(b, _not_below(x.least, strict, b.type, self.box.tiny))
                if a.type is Type.FLOAT and x.finite and y.finite:
                    gap = self.box.tiny if strict else 0.0
                    self._note(Apply(Op.SUB, (b, a), Type.FLOAT), Interval(gap, i.FLOAT_MAX, gap, plus=True))
                    self._note(Apply(Op.SUB, (a, b), Type.FLOAT), Interval(-i.FLOAT_MAX, -gap, gap, minus=True))
            case Op.EQ:
                both = i.meet(replace(x, nan=False), replace(y, nan=False))
                self._narrow(a, both)
                self._narrow(b, both)
            case Op.NE:
                for e1, e2 in ((a, b), (b, a)):
                    if self.of(e2) == i.point(0) or self.of(e2) == i.point(0.0):
                        gap = 1 if e1.type is Type.INT else self.box.tiny
                        whole = replace(self.of(e1), away=max(self.of(e1).away, gap))
                        self._narrow(e1, i.settled(whole))
            case _:
                pass

    def _assume_ints(self, op: Op, a: Expr, b: Expr) -> None:
        difference = form(a).plus(-form(b))
        new: list[Fact] = []
        match op:
            case Op.LT:
                new = [difference.plus(Form((), 1))]
            case Op.LE:
                new = [difference]
            case Op.EQ:
                new = [difference, -difference]
            case _:
                self.apart |= {apart_key(difference), apart_key(-difference)}
        self.facts = (*self.facts, *(f for f in new if f.terms and f not in self.facts))
        self._memo.clear()

    def _note(self, e: Expr, value: Interval) -> None:
        """`e` lies in `value` too."""
        old = self.known.get(e)
        self.known[e] = value if old is None else i.meet(old, value)
        self._memo.clear()

    def _narrow(self, e: Expr, value: Interval) -> None:
        """`e` lies in `value` too; so what it is made of may be bounded as well."""
        old = self.of(e)
        new = i.meet(old, value)
        if new == old:
            return
        if new.empty:
            self.dead = True
            return
        if not isinstance(e, Literal):
            self._note(e, new)
        if isinstance(e, Apply) and new.finite:
            for part, bound in self._parts(e, new):
                self._narrow(part, bound)

    def _parts(self, e: Apply, value: Interval) -> Iterable[tuple[Expr, Interval]]:
        """What `e` in `value` says of its arguments. Float bounds are a little loose, for the sake of rounding."""
        a, b = e.args[0], e.args[-1]
        low, high = value.low, value.high
        if e.type is Type.FLOAT and e.op in (Op.ADD, Op.SUB):
            slack = 2.0**-21 * (self.of(a).magnitude + self.of(b).magnitude + value.magnitude)
            low, high = low - slack, high + slack
        match e.op:
            case Op.NEG:
                return [(a, _bounds(-high, -low, value.away))]
            case Op.TO_FLOAT if a.type is Type.INT:
                return [
                    (a, _bounds(math.ceil(low - abs(low) / EXACT), math.floor(high + abs(high) / EXACT), value.away))
                ]
            case Op.ADD:
                x, y = self.of(a), self.of(b)
                return [(a, _bounds(low - y.high, high - y.low)), (b, _bounds(low - x.high, high - x.low))]
            case Op.SUB:
                x, y = self.of(a), self.of(b)
                return [(a, _bounds(low + y.low, high + y.high)), (b, _bounds(x.low - high, x.high - low))]
            case Op.ABS:
                own = self.of(a)
                least = max(low, value.away, 0)
                if own.low >= 0:
                    return [(a, _bounds(least, high, value.away))]
                return [(a, _bounds(-high, -least if own.high <= 0 else high, max(least, 0)))]
            case Op.MAX:
                return [(a, _bounds(-math.inf, high)), (b, _bounds(-math.inf, high))]
            case Op.MIN:
                return [(a, _bounds(low, math.inf)), (b, _bounds(low, math.inf))]
            case Op.MUL if e.type is Type.FLOAT:
                # The sign only: exact, whatever the rounding.
                found: list[tuple[Expr, Interval]] = []
                for part, other in ((a, b), (b, a)):
                    y = self.of(other)
                    if y.low > 0 and y.finite:
                        if low > 0 or value.away > 0:
                            found.append((part, _bounds(-math.inf if low < 0 else 0.0, math.inf, self.box.tiny)))
                        elif high < 0:
                            found.append((part, _bounds(-math.inf, 0.0, self.box.tiny)))
                return found
            case _:
                return []


# ---------------------------------------------------------------- parts


def _bounds(low: float, high: float, away: float = 0.0) -> Interval:
    """These ends, and any infinity that lies beyond an open one."""
    return Interval(low, high, away, plus=high == math.inf, minus=low == -math.inf, masked=low == -math.inf)


def _not_above(end: float, strict: bool, type: Type, tiny: float) -> Interval:
    if type is Type.INT:
        return _bounds(-math.inf, end - strict)
    if strict and end == 0:
        return Interval(-math.inf, -tiny, tiny, minus=True, masked=True)
    if strict and math.isinf(end):
        return Interval(-math.inf, i.FLOAT_MAX, minus=True, masked=True)
    high = _next(end, -1) if strict else end
    return Interval(-math.inf, high, plus=end == math.inf, minus=True, masked=True)


def _not_below(end: float, strict: bool, type: Type, tiny: float) -> Interval:
    if type is Type.INT:
        return _bounds(end + strict, math.inf)
    if strict and end == 0:
        return Interval(tiny, math.inf, tiny, plus=True)
    if strict and math.isinf(end):
        return Interval(-i.FLOAT_MAX, math.inf, plus=True)
    low = _next(end, 1) if strict else end
    down = end == -math.inf
    return Interval(low, math.inf, plus=True, minus=down, masked=down)


def _next(x: float, direction: int) -> float:
    """The next float32 number, as far as a float64 can tell."""
    if math.isinf(x):
        return x
    step = abs(x) * 2.0**-23
    return i.single(x + direction * step) if step else direction * i.LEAST_NORMAL


def ranges(attention: Attention, box: Box, loads: Iterable[Load] = (), *, scale_positive: bool = False) -> Ranges:
    """What is known everywhere: the `assume`s, and the `where`s of scalars and of the elements that are read."""
    found = Ranges(attention, box, scale_positive=scale_positive)
    facts = list(attention.assumes)
    facts += [p.where for p in attention.params if p.is_scalar and p.where is not None]
    found = found.given(*facts)
    relations: list[Expr] = []
    for load in loads:
        where = found.params[load.param].where
        if where is not None and found.inside(load):
            leaf = Scalar(load.param, load.type)
            relations.append(substitute(where, {leaf: load}))
    return found.given(*relations) if relations else found
