"""Scores that change by the same amount from key to key, as those of ALiBi do under a causal mask.

Takes weights and the mask, returns a `Ramp`, or None where there is none. Where the mask allows no key after the query,
|q - k| is q - k, and `slope * |q - k|` changes by the same step from each key to the next. So a kernel need not compute
it for each pair: the query's part is taken once for a tile, and the places of keys in a tile are known to the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attngen.ir.build import add, apply, integer, mul, neg, real, sub
from attngen.ir.nodes import Apply, Expr, Op, Symbol, Type
from attngen.ir.walk import reads
from attngen.plan.ints.facts import Facts
from attngen.plan.ints.linear import additive, linear, total
from attngen.plan.score.weights import Form, Weights, is_distance, leading_factor, scaled, split_factor

_K, _K0 = Symbol("k", Type.INT), Symbol("k0", Type.INT)
Summands = list[tuple[Expr, int]]
"""Signed, as `additive` returns them."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """What `logit` is made of, where k0 is the first key of a tile. `factor`, which is positive, and `rise` are the
    head's; `row` is free of the key.
    """

    factor: Expr
    unit: Expr
    rise: Expr
    row: Expr

    @property
    def logit(self) -> Expr:
        """To base 2, of each pair that the mask allows."""
        return add(mul(self.unit, self.factor), self.rising)

    @property
    def rising(self) -> Expr:
        """What `logit` has beside its unit."""
        return add(mul(apply(Op.TO_FLOAT, sub(_K, _K0)), self.rise), self.row)


def ramp(weights: Weights, mask: Expr, facts: Facts) -> Ramp | None:
    """The ramp of exponential weights, where the score has multiples of one distance between query and key."""
    if weights.form is not Form.EXPONENTIAL:
        return None
    distances: dict[Expr, Summands] = {}  # by what each is multiplied by
    terms: dict[Expr, Summands] = {}  # likewise
    others: Summands = []
    for term, sign in additive(scaled(weights.unit, weights.factor), real(0.0)):
        factor, rest = split_factor(term)
        place = _place(rest, mask)
        if place is None:
            others.append((term, sign))
        else:
            factor, own = _unsigned(factor)
            terms.setdefault(factor, []).append((term, sign))
            distances.setdefault(factor, []).extend((e, s * sign * own) for e, s in additive(place, integer(0)))
    rising = [factor for factor, parts in distances.items() if any(reads(e, "k") for e, _ in parts)]
    if len(rising) != 1:
        return None
    (rise,) = rising
    parts = distances[rise]
    others += [found for factor, own in terms.items() if factor != rise for found in own]
    keys = [s for e, s in parts if e == _K]
    away = [(e, s) for e, s in parts if e != _K]
    rest = total(others, Type.FLOAT)
    if len(keys) != 1 or any(reads(e, "k") for e, _ in away) or not reads(rest, "qk"):
        return None
    (step,) = keys  # rise * step * (k - the other parts)
    distance = sub(_K0, total([(e, -step * s) for e, s in away], Type.INT))
    rise = rise if step > 0 else neg(rise)
    factor, unit = leading_factor(rest, facts)
    return Ramp(factor, unit, rise, mul(apply(Op.TO_FLOAT, distance), rise))


def _unsigned(factor: Expr) -> tuple[Expr, int]:
    match factor:
        case Apply(op=Op.NEG, args=(a,)):
            return a, -1
        case Apply(op=Op.MUL, args=(Apply(op=Op.NEG, args=(a,)), b)):
            return mul(a, b), -1
        case _:
            return factor, 1


def _place(e: Expr, mask: Expr) -> Expr | None:
    """The sum of positions whose value as a float is `e`, for every pair that the mask allows."""
    place = _in_ints(e)
    if place is None or not is_distance(place):
        return None
    if not (isinstance(place, Apply) and place.op is Op.ABS):
        return place
    (place,) = place.args
    sign = _sign(place, mask)
    return None if not sign else place if sign > 0 else neg(place)


def _in_ints(e: Expr) -> Expr | None:
    """The int whose value as a float is `e`, which is made of ints that floats hold exactly."""
    if not isinstance(e, Apply):
        return None
    if e.op is Op.TO_FLOAT:
        return e.args[0]
    parts = [part for part in map(_in_ints, e.args) if part is not None]
    exact = e.op in (Op.ADD, Op.SUB, Op.NEG, Op.ABS) and len(parts) == len(e.args)
    return apply(e.op, *parts) if exact else None


def _sign(place: Expr, mask: Expr) -> int:
    """1 where every pair that the mask allows has place >= 0, -1 where it has place <= 0; 0 where it may have both."""
    for low, high in _ordered(mask):
        for sign in (1, -1):
            terms, constant = linear(sub(place if sign > 0 else neg(place), sub(high, low)))
            if not terms and constant >= 0:
                return sign
    return 0


def _ordered(mask: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Pairs of ints of which the first is at most the second, for all that the mask allows."""
    match mask:
        case Apply(op=Op.AND):
            for part in mask.args:
                yield from _ordered(part)
        case Apply(op=Op.LE, args=(a, b)) if a.type is Type.INT:
            yield a, b
        case Apply(op=Op.LT, args=(a, b)) if a.type is Type.INT:
            yield add(a, integer(1)), b
        case _:
            pass
