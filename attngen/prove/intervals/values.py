"""What values an IR expression can have at one place: the half of `ranges` that goes from leaves to roots.

Takes what a `Box` says of inputs and what is known at the place (intervals of single expressions, linear facts about
ints), returns `Interval`s of floats and ints, and the `Truth` of conditions. Branches are evaluated where their
condition holds; how a place comes to know it is in `ranges`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import reduce
from typing import Self, assert_never

from attngen.ir import build
from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Storage, Symbol, Type
from attngen.prove.intervals import interval_type as i, operations as op
from attngen.prove.intervals.ingredients import disjuncts
from attngen.prove.intervals.input_boxes import Box
from attngen.prove.intervals.interval_type import Interval
from attngen.prove.intervals.linear_facts import Fact, Form, edges, form, is_whole, size, upper

EXACT = 2**24
"""Whole numbers up to here are float32 numbers."""
_DEEPEST = 24
_NESTED = 3
"""Facts may be about the very terms that bounding by facts asks for: so deep, and then by intervals alone."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Whether a condition can hold, and whether it can fail."""

    can_hold: bool
    can_fail: bool


_EITHER = Truth(True, True)


class Values(ABC):
    """Evaluation; `known`, `apart` and `facts` are what the place knows."""

    def __init__(self, attention: Attention, box: Box, *, scale_positive: bool = False):
        self.attention = attention
        self.box = box
        self.scale_positive = scale_positive
        self.params = {p.name: p for p in attention.params}
        self.known: dict[Expr, Interval] = {}
        self.apart: set[frozenset[tuple[Expr, int]]] = set()  # forms that are not 0
        self.facts: tuple[Fact, ...] = edges()
        self.dead = False
        self._depth = 0
        self._memo: dict[tuple[int, int], tuple[Expr, Interval]] = {}
        self._elements: dict[str, Interval] = {}
        self._bounding = 0

    @abstractmethod
    def given(self, *conditions: Expr, holds: bool = True) -> Self:
        """What is known where the conditions hold too (or, with `holds` False, where they fail)."""

    # ------------------------------------------------------------ values

    def of(self, e: Expr) -> Interval:
        """The values that `e` can have here. Floats and ints; a bool is 0 or 1."""
        place = id(e), self._bounding  # a value that is bounded deeper is looser
        found = self._memo.get(place)
        if found is not None:
            return found[1]
        value = self._evaluate(e)
        known = self.known.get(e)
        if known is not None:
            value = i.meet(value, known)
        self._memo[place] = (e, value)
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
                inside = type(self)(self.attention, self.box, scale_positive=self.scale_positive)
                inside._elements = {**self._elements}
                cases = [inside.given(*case) for case in disjuncts(param.where)]
                found = reduce(i.join, (case.of(leaf) for case in cases if not case.dead), i.EMPTY)
                self._elements[name] = found
        return found

    def _stored(self, storage: Storage) -> Interval:
        match storage:
            case Storage.F32 | Storage.F16 | Storage.BF16:  # a call may bring any float dtype
                return i.between(-self.box.param, self.box.param)
            case Storage.BOOL:
                return i.ANY_BOOL_AS_INT
            case _:
                assert storage.ends is not None
                return i.between(*storage.ends)

    def _load(self, e: Load) -> Interval:
        if e.member is not None:
            return i.ANY_BOOL_AS_INT
        element = self._element(e.param)
        indices = [self.of(x) for x in e.indices]
        if any(x.nan for x in indices):
            return replace(element, nan=True)
        return element if self.inside(e) else i.join(element, i.point(0))

    def inside(self, e: Load) -> bool:
        """Whether the index lies inside the tensor for certain; outside, the element is 0."""
        return all(
            self._is_remainder(x, dim) or (self.of(x).least >= 0 and self.at_most(build.sub(x, dim)) < 0)
            for x, dim in self.params[e.param].axes(e)
        )

    def _is_remainder(self, x: Expr, dim: Expr) -> bool:
        """Whether `x` is something modulo `dim`, which is at least 1: from 0 to dim - 1."""
        return isinstance(x, Apply) and x.op is Op.MOD and x.args[1] == dim and self.of(dim).least >= 1

    def at_most(self, e: Expr) -> float:
        """An upper bound of an int expression, the linear facts used to the full."""
        return min(self._upper(form(e)), self.of(e).most)

    def _upper(self, f: Form) -> float:
        if self._bounding >= _NESTED:
            return math.inf
        self._bounding += 1
        found = upper(f, self.facts, self._ends)
        self._bounding -= 1
        return found

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
        high, low = self._upper(f), -self._upper(-f)
        value = i.settled(replace(value, low=max(value.low, low), high=min(value.high, high)))
        if self._is_apart(f):
            value = i.settled(replace(value, away=max(value.away, 1)))
        return value

    def _exact(self, f: Form) -> bool:
        """Whether a float sum of these terms is computed without rounding."""
        if any(t.type is not Type.INT and not is_whole(t) for t, _ in f.terms):
            return False
        return size(f, self._ends) <= EXACT

    def _is_apart(self, f: Form) -> bool:
        return bool(self.apart) and apart_key(f) in self.apart

    # ------------------------------------------------------------ operations

    def _apply(self, e: Apply) -> Interval:
        if e.op is Op.SELECT:
            return self._select(e)
        x = self.of(e.args[0])
        y = self.of(e.args[1]) if len(e.args) > 1 else x
        ints = e.type is Type.INT
        match e.op:
            case Op.ADD:
                return op.int_add(x, y) if ints else op.add(x, y)
            case Op.SUB:
                return op.int_add(x, op.negate(y)) if ints else self._difference(e, x, y)
            case Op.MUL:
                if ints:
                    return op.int_multiply(x, y)
                return self._product(e, x, y)
            case Op.DIV:
                return self._ratio(e, x, y)
            case Op.FLOORDIV:
                return op.floor_divide(x, y)
            case Op.MOD:
                return op.floor_mod(x, y)
            case Op.POW:
                return op.power(x, y, ints=ints)
            case Op.SHIFT_RIGHT:
                return op.floor_divide(x, op.power(i.point(2), y, ints=True))
            case Op.BIT_AND | Op.BIT_OR | Op.BIT_XOR:
                return op.bits(x, y)
            case Op.NEG:
                return op.negate(x)
            case Op.ABS:
                return op.absolute(x)
            case Op.SIGN:
                return op.sign(x)
            case Op.MIN:
                return op.minimum(x, y)
            case Op.MAX:
                return op.maximum(x, y)
            case Op.EXP:
                return op.exponential(x, math.e)
            case Op.EXP2:
                return op.exponential(x, 2.0)
            case Op.LOG:
                return op.logarithm(x, math.e)
            case Op.LOG2:
                return op.logarithm(x, 2.0)
            case Op.SQRT:
                return op.square_root(x)
            case Op.RSQRT:
                return op.divide(i.point(1.0), op.square_root(x))
            case Op.TANH:
                return op.tanh(x)
            case Op.SIGMOID:
                return op.sigmoid(x)
            case Op.SIN:
                return op.wave(x, -math.pi / 2)
            case Op.COS:
                return op.wave(x, 0.0)
            case Op.ERF:
                return op.erf(x)
            case Op.TO_FLOAT:
                return op.to_float(x)
            case Op.TO_INT:
                return x if _first(e).type is Type.BOOL else op.to_int(x, math.trunc)
            case Op.FLOOR:
                return op.to_int(x, math.floor)
            case Op.CEIL:
                return op.to_int(x, math.ceil)
            case Op.LT | Op.LE | Op.EQ | Op.NE | Op.NOT | Op.AND | Op.OR:
                return i.ANY_BOOL_AS_INT
            case _:
                assert_never(e.op)

    def _select(self, e: Apply) -> Interval:
        condition, then, otherwise = e.args
        if self._bounding or self._depth >= _DEEPEST:
            # A fact about a select asks for its ends: to assume the condition there would use the fact again.
            return i.join(self.of(then), self.of(otherwise))
        truth = self.truth(condition)
        found = i.EMPTY
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
        found = op.subtract(x, y)
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
        found = op.divide(x, y)
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
        if not (y.finite and y.low > 0 and is_whole(a) and is_whole(b)):
            return low, high
        top, bottom = form(a), form(b)
        for times in dict.fromkeys((1, *(abs(c) for _, c in top.terms))):
            # a <= times * b + over: the quotient is at most times + over / b; and alike from below.
            limit = bottom.times(times)
            over = self._upper(top.plus(-limit))
            under = self._upper((-top).plus(-limit))
            high = min(high, times + over / y.high) if over <= 0 else high
            low = max(low, -times - under / y.high) if under <= 0 else low
        return low, high

    def _product(self, e: Apply, x: Interval, y: Interval) -> Interval:
        """x * y of floats. A product with 1 / b is a quotient that is rounded twice."""
        found = op.square(x) if e.args[0] == e.args[-1] else op.multiply(x, y)
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
            over = self._upper(difference)
            under = self._upper(-difference)
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


# ---------------------------------------------------------------- parts


def _is(e: Expr, op: Op, part: Expr) -> bool:
    return isinstance(e, Apply) and e.op is op and part in e.args


def _first(e: Apply) -> Expr:
    return e.args[0]


def apart_key(f: Form) -> frozenset[tuple[Expr, int]]:
    return frozenset((*f.terms, (build.integer(1), f.constant)))
