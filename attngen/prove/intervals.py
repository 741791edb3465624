"""What values an IR expression can have: interval arithmetic that knows what holds at the place of the expression.

Takes a `Box` (how large inputs are taken to be) and conditions that hold (`where`s, `assume`s, a mask, the condition of
a branch), gives an `Interval` for any expression. Beside the intervals of single expressions it keeps linear facts
about ints, so that `1.0 / (q - k)` is fine under `k < q`; a branch is evaluated under its condition, so that
`log(x) if x > 0 else 0.0` is. Uses nothing of the planner's.

A condition that keeps a float from 0 is taken to keep it `Box.tiny` away from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from attngen.ir import build
from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Storage, Symbol, Type
from attngen.ir.walk import substitute
from attngen.prove import interval as i
from attngen.prove.forms import Fact, Form, form, size, upper
from attngen.prove.interval import Interval

EXACT = 2**24
"""Whole numbers up to here are float32 numbers."""
_DEEPEST = 24
_NESTED = 3
"""Facts may be about the very terms that bounding by facts asks for: so deep, and then by intervals alone."""


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


@dataclass(frozen=True, slots=True)
class Truth:
    """Whether a condition can hold, and whether it can fail."""

    can_hold: bool
    can_fail: bool


_EITHER = Truth(True, True)


class Ranges:
    """Intervals of expressions at one place. Immutable to its users: `given` makes another one that knows more."""

    def __init__(self, attention: Attention, box: Box, *, scale_positive: bool = False):
        self.attention = attention
        self.box = box
        self.scale_positive = scale_positive
        self.params = {p.name: p for p in attention.params}
        self.known: dict[Expr, Interval] = {}
        self.apart: set[frozenset[tuple[Expr, int]]] = set()  # forms without constant that are not -constant
        self.facts: tuple[Fact, ...] = _edges()
        self.dead = False
        self._depth = 0
        self._memo: dict[int, tuple[Expr, Interval]] = {}
        self._elements: dict[str, Interval] = {}
        self._bounding = 0

    # ------------------------------------------------------------ places

    def given(self, *conditions: Expr, holds: bool = True) -> Ranges:
        """What is known where the conditions hold too (or, with `holds` False, where they fail)."""
        inner = self._copy()
        for condition in conditions:
            inner._assume(condition, holds)
        return inner

    def with_interval(self, e: Expr, value: Interval) -> Ranges:
        inner = self._copy()
        inner._narrow(e, value)
        return inner

    def _copy(self) -> Ranges:
        inner = Ranges(self.attention, self.box, scale_positive=self.scale_positive)
        inner.known = dict(self.known)
        inner.apart = set(self.apart)
        inner.facts = self.facts
        inner.dead = self.dead
        inner._depth = self._depth + 1
        inner._elements = self._elements
        return inner

    # ------------------------------------------------------------ values

    def of(self, e: Expr) -> Interval:
        """The values that `e` can have here. Floats and ints; a bool is 0 or 1."""
        found = self._memo.get(id(e))
        if found is not None:
            return found[1]
        value = self._evaluate(e)
        known = self.known.get(e)
        if known is not None:
            value = i.meet(value, known)
        if self._bounding < _NESTED:
            self._memo[id(e)] = (e, value)
        return value

    def _evaluate(self, e: Expr) -> Interval:
        match e:
            case Literal():
                return i.point(i.single(e.value) if e.type is Type.FLOAT else int(e.value))
            case Symbol():
                return self._symbol(e)
            case Scalar():
                return self._element(e.param)
            case Load():
                return self._load(e)
            case Apply():
                if e.type is Type.BOOL:
                    truth = self.truth(e)
                    return Interval(0 if truth.can_fail else 1, 1 if truth.can_hold else 0)
                value = self._apply(e)
                return self._linear(e, value) if e.op in (Op.ADD, Op.SUB, Op.NEG, Op.MUL) else value
            case _:
                assert_never(e)

    def _symbol(self, e: Symbol) -> Interval:
        box = self.box
        match e.id:
            case "qk":
                return i.between(-box.qk, box.qk)
            case "scale":
                return i.between(box.tiny if self.scale_positive else -box.scale, box.scale)
            case "b" | "h" | "hkv" | "q" | "k":
                return i.between(0, box.length - 1)
            case "D" | "Dv":
                return i.between(1, 256)
            case _ if e.type is Type.INT:
                return i.between(1, box.length)  # sizes: a call with an empty dim launches nothing
            case _:
                return i.ANYTHING  # s, m, n, and the prover's own: what is known of them is given

    def _element(self, name: str) -> Interval:
        """The values of a scalar, or of any element of a tensor, under its `where`."""
        found = self._elements.get(name)
        if found is None:
            param = self.params[name]
            self._elements[name] = found = self._stored(param.storage)
            if param.where is not None:
                leaf = Scalar(name, param.type)
                inside = Ranges(self.attention, self.box, scale_positive=self.scale_positive)
                inside._elements = {**self._elements}
                found = inside.given(param.where).of(leaf)
                self._elements[name] = found
        return found

    def _stored(self, storage: Storage) -> Interval:
        match storage:
            case Storage.F32 | Storage.BF16:
                return i.between(-self.box.param, self.box.param)
            case Storage.F16:
                top = min(self.box.param, i.HALF_MAX)
                return i.between(-top, top)
            case Storage.INT:
                return i.between(-(2**31), 2**31 - 1)
            case Storage.BOOL:
                return i.ANY_BOOL_AS_INT

    def _load(self, e: Load) -> Interval:
        element = self._element(e.param)
        indices = [self.of(x) for x in e.indices]
        if any(x.nan for x in indices):
            return replace(element, nan=True)
        return element if self.inside(e) else i.join(element, i.point(0))

    def inside(self, e: Load) -> bool:
        """Whether the index lies inside the tensor for certain; outside, the element is 0."""
        shape = self.params[e.param].shape
        return all(
            self.of(x).least >= 0 and self.at_most(build.sub(x, dim)) < 0
            for x, dim in zip(e.indices, shape, strict=True)
        )

    def at_most(self, e: Expr) -> float:
        """An upper bound of an int expression, the linear facts used to the full."""
        return min(upper(form(e), self.facts, self._ends), self.of(e).most)

    def _ends(self, term: Expr) -> tuple[float, float]:
        value = self.of(term)
        return value.low, value.high

    def _linear(self, e: Apply, value: Interval) -> Interval:
        """`value` tightened by the linear facts, where `e` is a sum of whole numbers."""
        if not value.has_finite or self._bounding >= _NESTED:
            return value
        f = form(e)
        if len(f.terms) < 2 and not (f.terms and f.terms[0][0] != e):
            return value
        if e.type is Type.FLOAT and not self._exact(f):
            return value
        self._bounding += 1
        high, low = upper(f, self.facts, self._ends), -upper(-f, self.facts, self._ends)
        self._bounding -= 1
        value = i.settled(replace(value, low=max(value.low, low), high=min(value.high, high)))
        if self._is_apart(f):
            value = i.settled(replace(value, away=max(value.away, 1)))
        return value

    def _exact(self, f: Form) -> bool:
        """Whether a float sum of these terms is computed without rounding."""
        if any(t.type is not Type.INT and not _whole(t) for t, _ in f.terms):
            return False
        return size(f, self._ends) <= EXACT

    def _is_apart(self, f: Form) -> bool:
        return _apart_key(f) in self.apart

    # ------------------------------------------------------------ operations

    def _apply(self, e: Apply) -> Interval:
        if e.op is Op.SELECT:
            return self._select(e)
        x = self.of(e.args[0])
        y = self.of(e.args[1]) if len(e.args) > 1 else x
        ints = e.type is Type.INT
        match e.op:
            case Op.ADD:
                return i.int_add(x, y) if ints else i.add(x, y)
            case Op.SUB:
                return i.int_add(x, i.negate(y)) if ints else self._difference(e, x, y)
            case Op.MUL:
                if ints:
                    return i.int_multiply(x, y)
                return self._product(e, x, y)
            case Op.DIV:
                return self._ratio(e, x, y)
            case Op.FLOORDIV:
                return i.floor_divide(x, y)
            case Op.MOD:
                return i.floor_mod(x, y)
            case Op.POW:
                return i.power(x, y, ints=ints)
            case Op.NEG:
                return i.negate(x)
            case Op.ABS:
                return i.absolute(x)
            case Op.SIGN:
                return i.sign(x)
            case Op.MIN:
                return i.minimum(x, y)
            case Op.MAX:
                return i.maximum(x, y)
            case Op.EXP:
                return i.exponential(x, math.e)
            case Op.EXP2:
                return i.exponential(x, 2.0)
            case Op.LOG:
                return i.logarithm(x, math.e)
            case Op.LOG2:
                return i.logarithm(x, 2.0)
            case Op.SQRT:
                return i.square_root(x)
            case Op.RSQRT:
                return i.divide(i.point(1.0), i.square_root(x))
            case Op.TANH:
                return i.tanh(x)
            case Op.SIGMOID:
                return i.sigmoid(x)
            case Op.SIN | Op.COS:
                return i.wave(x)
            case Op.ERF:
                return i.erf(x)
            case Op.TO_FLOAT:
                return i.to_float(x)
            case Op.TO_INT:
                return x if _first(e).type is Type.BOOL else i.to_int(x, math.trunc)
            case Op.FLOOR:
                return i.to_int(x, math.floor)
            case Op.CEIL:
                return i.to_int(x, math.ceil)
            case Op.LT | Op.LE | Op.EQ | Op.NE | Op.NOT | Op.AND | Op.OR:
                return i.ANY_BOOL_AS_INT
            case _:
                assert_never(e.op)

    def _select(self, e: Apply) -> Interval:
        condition, then, otherwise = e.args
        truth = self.truth(condition)
        found = i.EMPTY
        if self._depth >= _DEEPEST:
            return i.join(self.of(then), self.of(otherwise))
        if truth.can_hold:
            inner = self.given(condition) if truth.can_fail else self
            found = found if inner.dead else inner.of(then)
        if truth.can_fail:
            inner = self.given(condition, holds=False) if truth.can_hold else self
            found = found if inner.dead else i.join(found, inner.of(otherwise))
        return found

    def _difference(self, e: Apply, x: Interval, y: Interval) -> Interval:
        """x - y of floats, with what their forms say of its sign."""
        a, b = e.args[0], e.args[1]
        found = i.subtract(x, y)
        if a == b:
            return replace(i.point(0.0), nan=x.nan or not x.finite)
        low, high = -math.inf, math.inf
        if _is(b, Op.MAX, a) or _is(a, Op.MIN, b) or _is(b, Op.ABS, a):
            high = 0.0
        if _is(b, Op.MIN, a) or _is(a, Op.MAX, b) or _is(a, Op.ABS, b):
            low = 0.0
        return i.settled(replace(found, low=max(found.low, low), high=min(found.high, high)))

    def _ratio(self, e: Apply, x: Interval, y: Interval) -> Interval:
        a, b = e.args[0], e.args[1]
        found = i.divide(x, y)
        if a == b and x.finite and not x.zero:
            return i.point(1.0)
        low, high = self._quotient(a, b)
        if x.finite and (low > found.low or high < found.high):
            tight = replace(found, low=max(found.low, low), high=min(found.high, high), plus=False, minus=False)
            found = i.rounded(tight)
        return found

    def _quotient(self, a: Expr, b: Expr) -> tuple[float, float]:
        """Bounds of a / b from what the linear facts say of whole numbers a and b > 0."""
        low, high = -math.inf, math.inf
        y = self.of(b)
        if not (y.finite and y.low > 0 and _whole(a) and _whole(b)):
            return low, high
        top, bottom = form(a), form(b)
        for times in dict.fromkeys((1, *(abs(c) for _, c in top.terms))):
            # a <= times * b + over: the quotient is at most times + over / b; and alike from below.
            limit = bottom.times(times)
            over = upper(top.plus(-limit), self.facts, self._ends)
            under = upper((-top).plus(-limit), self.facts, self._ends)
            high = min(high, times + over / y.high) if over <= 0 else high
            low = max(low, -times - under / y.high) if under <= 0 else low
        return low, high

    def _product(self, e: Apply, x: Interval, y: Interval) -> Interval:
        """x * y of floats. A product with 1 / b is a quotient that is rounded twice."""
        found = i.square(x) if e.args[0] == e.args[-1] else i.multiply(x, y)
        for a, other in (e.args, e.args[::-1]):
            if isinstance(other, Apply) and other.op is Op.DIV and isinstance(other.args[0], Literal):
                low, high = self._quotient(a, other.args[1])
                factor = float(other.args[0].value)
                if factor > 0 and found.finite:
                    low, high = (
                        end * factor + side * abs(end * factor) / 2**22 for end, side in ((low, -1), (high, 1))
                    )
                    found = i.settled(replace(found, low=max(found.low, low), high=min(found.high, high)))
        return found

    # ------------------------------------------------------------ conditions

    def truth(self, e: Expr) -> Truth:
        match e:
            case Literal():
                return Truth(bool(e.value), not e.value)
            case Apply(op=Op.NOT):
                inner = self.truth(e.args[0])
                return Truth(inner.can_fail, inner.can_hold)
            case Apply(op=Op.AND):
                parts = [self.truth(a) for a in e.args]
                return Truth(all(p.can_hold for p in parts), any(p.can_fail for p in parts))
            case Apply(op=Op.OR):
                parts = [self.truth(a) for a in e.args]
                return Truth(any(p.can_hold for p in parts), all(p.can_fail for p in parts))
            case Apply(op=Op.LT | Op.LE | Op.EQ | Op.NE) if e.args[0].type is not Type.BOOL:
                return self._compare(e)
            case _:
                known = self.known.get(e)
                return _EITHER if known is None else Truth(known.high >= 1, known.low <= 0)

    def _compare(self, e: Apply) -> Truth:
        a, b = e.args
        x, y = self.of(a), self.of(b)
        if x.nan or y.nan:
            return _EITHER
        if x.empty or y.empty:
            return Truth(False, False)
        below, above = x.most, y.least
        over = under = math.inf  # a - b <= over, b - a <= under
        if a.type is Type.INT:
            difference = form(a).plus(-form(b))
            over = upper(difference, self.facts, self._ends)
            under = upper(-difference, self.facts, self._ends)
            apart = self._is_apart(difference)
        else:
            apart = False
        match e.op:
            case Op.LT:
                return Truth(x.least < y.most and under > 0, below >= above and over >= 0)
            case Op.LE:
                return Truth(x.least <= y.most and under >= 0, below > above and over > 0)
            case Op.EQ | Op.NE:
                disjoint = below < above or x.least > y.most or over < 0 or under < 0 or apart
                same = x.least == x.most == y.least == y.most or (over <= 0 and under <= 0)
                equal = Truth(not disjoint, not same)
                return equal if e.op is Op.EQ else Truth(equal.can_fail, equal.can_hold)
            case _:
                return _EITHER

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
                self.apart.add(_apart_key(difference))
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


def _edges() -> tuple[Fact, ...]:
    """Positions lie below their sizes; heads come in groups."""
    pairs = (("q", "Sq"), ("k", "Sk"), ("h", "Hq"), ("hkv", "Hkv"), ("b", "B"))
    below = tuple(Form(((build.index(a), 1), (build.index(b), -1)), 1) for a, b in pairs)
    return (
        *below,
        Form(((build.index("Hkv"), 1), (build.index("Hq"), -1)), 0),
        Form(((build.index("hkv"), 1), (build.index("h"), -1)), 0),
    )


def _apart_key(f: Form) -> frozenset[tuple[Expr, int]]:
    """The form and its negative share a key; the constant is part of it."""
    here = (*f.terms, (build.integer(1), f.constant))
    there = tuple((t, -c) for t, c in here)
    return frozenset(min(here, there, key=lambda terms: sorted((repr(t), c) for t, c in terms)))


def _is(e: Expr, op: Op, part: Expr) -> bool:
    return isinstance(e, Apply) and e.op is op and part in e.args


def _first(e: Apply) -> Expr:
    return e.args[0]


def _whole(e: Expr) -> bool:
    """Whether a float is a whole number by its form: conversions of ints, sums of them, literals."""
    if e.type is Type.INT:
        return True
    if isinstance(e, Literal):
        return e.type is Type.FLOAT and float(e.value).is_integer()
    if isinstance(e, Apply):
        if e.op is Op.TO_FLOAT:
            return True
        return e.op in (Op.ADD, Op.SUB, Op.NEG, Op.ABS, Op.MIN, Op.MAX, Op.MUL) and all(_whole(a) for a in e.args)
    return False


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


def disjuncts(e: Expr, most: int = 16) -> tuple[tuple[Expr, ...], ...]:
    """The cases of a condition: at least one of the conjunctions holds where it does. One case if they are too many."""
    cases = _cases(e)
    return cases if len(cases) <= most else ((e,),)


def _cases(e: Expr) -> tuple[tuple[Expr, ...], ...]:
    if isinstance(e, Apply) and e.op is Op.OR:
        return tuple(case for part in e.args for case in _cases(part))
    if isinstance(e, Apply) and e.op is Op.AND:
        found: tuple[tuple[Expr, ...], ...] = ((),)
        for part in e.args:
            found = tuple((*left, *right) for left in found for right in _cases(part))
            if len(found) > 64:
                return ((e,),)
        return found
    return ((e,),)
