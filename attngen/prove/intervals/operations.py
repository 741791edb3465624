"""What each operation of the language makes of intervals: the float32 values, and the ints, that can come out.

Takes and returns `Interval`s. Functions that a chip approximates are widened by a relative 2**-20 (tanh by 2**-10),
inside their own bounds: no sigmoid above 1, no exponential of a negative number above 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from attngen.prove.intervals.interval_type import (
    EMPTY,
    FLOAT_MAX,
    INT_LIMIT,
    LEAST_NORMAL,
    Interval,
    between,
    join,
    point,
    rounded,
    settled,
    single,
)

_WIDER = 2.0**-20
_TANH_WIDER = 2.0**-10


def widened(low: float, high: float, by: float = _WIDER) -> tuple[float, float]:
    return low - abs(low) * by, high + abs(high) * by


# ---------------------------------------------------------------- floats


def negate(a: Interval) -> Interval:
    # -inf as written becomes +inf.
    return Interval(-a.high, -a.low, a.away, a.minus or a.masked, a.plus, False, a.nan)


def add(a: Interval, b: Interval) -> Interval:
    downwards_a, downwards_b = a.minus or a.masked, b.minus or b.masked
    nan = a.nan or b.nan or (a.plus and downwards_b) or (b.plus and downwards_a)
    if a.has_finite and b.has_finite:
        low, high = a.low + b.low, a.high + b.high
    else:
        low, high = math.inf, -math.inf
    minus, masked = a.minus or b.minus, a.masked or b.masked
    return rounded(Interval(low, high, 0.0, a.plus or b.plus, minus, masked, nan))


def subtract(a: Interval, b: Interval) -> Interval:
    flipped = Interval(-b.high, -b.low, b.away, b.minus or b.masked, b.plus, False, b.nan)
    return add(a, flipped)


def multiply(a: Interval, b: Interval) -> Interval:
    infinite_a, infinite_b = a.plus or a.minus or a.masked, b.plus or b.minus or b.masked
    nan = a.nan or b.nan or (infinite_a and b.zero) or (infinite_b and a.zero)
    plus = minus = masked = False
    for x, y in ((a, b), (b, a)):
        plus |= (x.plus and (y.positive or y.plus)) or ((x.minus or x.masked) and (y.negative or y.minus or y.masked))
        minus |= (x.plus and (y.negative or y.minus or y.masked)) or (x.minus and (y.positive or y.plus))
        masked |= x.masked and (y.positive or y.plus)
    low, high = _corners(a, b, lambda x, y: x * y)
    return rounded(Interval(low, high, a.away * b.away, plus, minus, masked, nan))


def _corners(a: Interval, b: Interval, f: Callable[[float, float], float]) -> tuple[float, float]:
    if not (a.has_finite and b.has_finite):
        return math.inf, -math.inf
    values = [f(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(values), max(values)


def square(a: Interval) -> Interval:
    return _even(multiply(a, a), a, 2)


def divide(a: Interval, b: Interval) -> Interval:
    return multiply(a, reciprocal(b)) if b.zero or not b.finite else _quotient(a, b)


def _quotient(a: Interval, b: Interval) -> Interval:
    """a / b where b is finite and never 0."""
    parts = (_part(b, math.nextafter(0, 1), math.inf), _part(b, -math.inf, math.nextafter(0, -1)))
    found = replace(EMPTY, nan=a.nan)
    for p in parts:
        if p.has_finite:
            low, high = _corners(a, p, lambda x, y: x / y)
            away = a.away / p.magnitude
            up = p.low > 0
            down = a.minus or a.masked
            plus, minus = (a.plus, a.minus) if up else (down, a.plus)
            masked = a.masked and up
            found = join(found, rounded(Interval(low, high, away, plus, minus, masked, a.nan)))
    return found


def _part(a: Interval, low: float, high: float) -> Interval:
    return settled(Interval(max(a.low, low), min(a.high, high), a.away))


def reciprocal(a: Interval) -> Interval:
    """1 / a, a division by 0 giving either infinity."""
    found = replace(EMPTY, nan=a.nan)
    if a.plus or a.minus or a.masked:
        found = join(found, point(0.0))
    for p in (_part(a, math.nextafter(0, 1), math.inf), _part(a, -math.inf, math.nextafter(0, -1))):
        if p.has_finite:
            low, high = 1 / p.high, 1 / p.low
            found = join(found, rounded(Interval(low, high, min(abs(low), abs(high)))))
    if a.zero:
        found = replace(found, plus=found.plus or a.high >= 0, minus=found.minus or a.low <= 0)
    return found


def absolute(a: Interval) -> Interval:
    if a.low >= 0:
        low, high = a.low, a.high
    elif a.high <= 0:
        low, high = -a.high, -a.low
    else:
        low, high = a.away, max(-a.low, a.high)
    if not a.has_finite:
        low, high = math.inf, -math.inf
    return settled(Interval(low, high, a.away, a.plus or a.minus or a.masked, False, False, a.nan))


def minimum(a: Interval, b: Interval) -> Interval:
    low = min(a.low, b.low)
    high = min(a.most, b.most)
    high = max(a.high, b.high) if math.isinf(high) and high > 0 else high
    return settled(
        Interval(
            low,
            high,
            min(a.away, b.away),
            a.plus and b.plus,
            a.minus or b.minus,
            a.masked or b.masked,
            a.nan or b.nan,
        )
    )


def maximum(a: Interval, b: Interval) -> Interval:
    high = max(a.high, b.high)
    low = max(a.least, b.least)
    low = min(a.low, b.low) if math.isinf(low) and low < 0 else low
    down_a, down_b = a.minus or a.masked, b.minus or b.masked
    written = a.masked and b.masked
    return settled(
        Interval(
            low,
            high,
            min(a.away, b.away),
            a.plus or b.plus,
            down_a and down_b and not (written and not a.minus and not b.minus),
            written,
            a.nan or b.nan,
        )
    )


def sign(a: Interval) -> Interval:
    low = -1 if a.least < 0 else 0 if a.zero else 1
    high = 1 if a.most > 0 else 0 if a.zero else -1
    return replace(between(low, high), nan=a.nan)


def monotone(
    a: Interval,
    f: Callable[[float], float],
    below: float,
    above: float,
    by: float = _WIDER,
    *,
    infinite: bool = False,
) -> Interval:
    """A rising function with the limits `below` at -inf and `above` at +inf, which its values do not leave.

    With `infinite` the upper limit is +inf, reached at +inf.
    """
    found = replace(EMPTY, nan=a.nan)
    if a.has_finite:
        low, high = widened(f(a.low), f(a.high), by)
        found = join(found, rounded(Interval(max(low, below), min(high, above))))
    if a.minus or a.masked:
        found = join(found, point(below))
    if a.plus:
        found = replace(found, plus=True) if infinite else join(found, point(above))
    return found


def exponential(a: Interval, base: float) -> Interval:
    """base ** a. At most 1 where a is not positive, at least 1 where it is not negative."""
    found = monotone(a, lambda x: _power(base, x), 0.0, math.inf, infinite=True)
    if a.most <= 0 and found.has_finite:
        found = replace(found, high=min(found.high, 1.0))
    if a.least >= 0 and found.has_finite:
        found = replace(found, low=max(found.low, 1.0))
    return settled(found)


def _power(base: float, x: float) -> float:
    try:
        return math.exp(x) if base == math.e else 2.0**x
    except OverflowError:
        return math.inf


def logarithm(a: Interval, base: float) -> Interval:
    found = replace(EMPTY, nan=a.nan or a.negative or a.minus or a.masked, plus=a.plus)
    positive = _part(a, LEAST_NORMAL * 2.0**-23, math.inf)
    if positive.has_finite:
        low, high = (math.log(x) / math.log(base) for x in (positive.low, positive.high))
        low, high = widened(low, high)
        if positive.low >= 1:
            low = max(low, 0.0)
        if positive.high <= 1:
            high = min(high, 0.0)
        found = join(found, rounded(Interval(low, high)))
    return replace(found, minus=a.zero)


def square_root(a: Interval) -> Interval:
    found = replace(EMPTY, nan=a.nan or a.negative or a.minus or a.masked, plus=a.plus)
    part = _part(a, 0.0, math.inf)
    if part.has_finite:
        low, high = math.sqrt(part.low), math.sqrt(part.high)
        found = join(found, rounded(Interval(low, high)))
    return found


def tanh(a: Interval) -> Interval:
    found = monotone(a, math.tanh, -1.0, 1.0, _TANH_WIDER)
    return _odd(found, a)


def erf(a: Interval) -> Interval:
    return _odd(monotone(a, math.erf, -1.0, 1.0), a)


def _odd(found: Interval, a: Interval) -> Interval:
    """The values of an odd, rising function have the sign of its argument."""
    low = max(found.low, 0.0) if a.least >= 0 else found.low
    high = min(found.high, 0.0) if a.most <= 0 else found.high
    return settled(replace(found, low=low, high=high))


def sigmoid(a: Interval) -> Interval:
    return monotone(a, lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0, 0.0, 1.0)


_WAVE_WIDER = 2.0**-18
"""What a sine or cosine may be off by, the approximate instructions among them."""
_TURNS = 2.0**16
"""Arguments beyond this are taken for any angle."""


def wave(a: Interval, ahead: float) -> Interval:
    """cos(a + ahead): the cosine, and with `ahead` = -pi / 2 the sine."""
    undefined = a.nan or a.plus or a.minus or a.masked
    if not a.has_finite:
        return replace(EMPTY, nan=undefined)
    low, high = a.low + ahead, a.high + ahead
    least, most = -1.0, 1.0
    if max(abs(low), abs(high)) < _TURNS:
        ends = math.cos(low), math.cos(high)
        if math.ceil(low / (2 * math.pi)) > math.floor(high / (2 * math.pi)):  # no multiple of 2 pi between them
            most = min(1.0, max(ends) + _WAVE_WIDER)
        if math.ceil((low - math.pi) / (2 * math.pi)) > math.floor((high - math.pi) / (2 * math.pi)):
            least = max(-1.0, min(ends) - _WAVE_WIDER)
    return replace(between(least, most), nan=undefined)


def _even(found: Interval, a: Interval, n: int) -> Interval:
    """a ** n for an even n > 0: never negative, and least where |a| is."""
    infinite = a.plus or a.minus or a.masked
    low = 0.0 if not a.has_finite else a.away if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    low = min(_whole_power(low, n), FLOAT_MAX)
    low = single(low if n == 2 else low * (1 - _WIDER))  # more than one product is rounded more than once
    found = replace(found, low=max(found.low, low), plus=found.plus or infinite, minus=False, masked=False)
    return settled(replace(found, nan=a.nan))


def _whole_power(x: float, n: int) -> float:
    try:
        return x**n
    except OverflowError:
        return math.inf


def power(a: Interval, n: Interval, *, ints: bool) -> Interval:
    """a ** n for an int n; of ints too, where a negative n has no value."""
    if not n.has_finite:
        return replace(EMPTY, nan=a.nan or n.nan)
    if ints:
        return _int_power(a, n)
    if n.low == n.high:
        return _fixed_power(a, int(n.low))
    size = absolute(a)
    low, high = math.inf, -math.inf
    if size.has_finite:
        values = [_whole(x, k) for x in (size.low, size.high) for k in (n.low, n.high)]
        values += [1.0] if n.low <= 0 <= n.high or size.low <= 1 <= size.high else []
        low, high = widened(min(values), max(values))
    found = rounded(Interval(low, high, 0.0, a.plus or a.minus or a.masked))
    if a.negative or a.minus or a.masked:
        found = join(found, replace(negate(found), masked=False))
    return replace(found, nan=a.nan or n.nan)


def _whole(x: float, n: float) -> float:
    if x == 0:
        return 0.0 if n > 0 else 1.0 if n == 0 else math.inf
    try:
        return float(x) ** n
    except OverflowError:
        return math.inf


def _fixed_power(a: Interval, n: int) -> Interval:
    if n == 0:
        return replace(point(1.0), nan=a.nan)
    if n < 0:
        return divide(point(1.0), _fixed_power(a, -n))
    if n == 1:
        return a
    if n == 2:
        return square(a)
    low, high = math.inf, -math.inf
    if a.has_finite:
        ends = (a.low, a.high) if n % 2 or not a.low < 0 < a.high else (0.0, a.low, a.high)
        values = [math.copysign(_whole_power(abs(x), n), x if n % 2 else 1.0) for x in ends]
        low, high = widened(min(values), max(values))
        if a.magnitude <= 1:  # however the products are rounded
            low, high = max(low, -1.0), min(high, 1.0)
    down = a.minus or a.masked
    away = _whole_power(a.away, n)
    found = rounded(Interval(low, high, min(away, FLOAT_MAX) * (1 - _WIDER), a.plus, down and n % 2 == 1, False, a.nan))
    return _even(replace(found, plus=found.plus or down), a, n) if n % 2 == 0 else found


# ---------------------------------------------------------------- ints: exact


def _ints(low: float, high: float, *, nan: bool) -> Interval:
    return settled(Interval(max(low, -INT_LIMIT), min(high, INT_LIMIT), nan=nan))


def int_add(a: Interval, b: Interval) -> Interval:
    if not (a.has_finite and b.has_finite):
        return replace(EMPTY, nan=a.nan or b.nan)
    return _ints(a.low + b.low, a.high + b.high, nan=a.nan or b.nan)


def int_multiply(a: Interval, b: Interval) -> Interval:
    low, high = _corners(a, b, lambda x, y: x * y)
    found = _ints(low, high, nan=a.nan or b.nan)
    return settled(replace(found, away=min(a.away * b.away, INT_LIMIT))) if found.has_finite else found


def floor_divide(a: Interval, b: Interval) -> Interval:
    undefined = a.nan or b.nan or b.zero
    found = replace(EMPTY, nan=undefined)
    for p in (_part(b, 1, math.inf), _part(b, -math.inf, -1)):
        if p.has_finite and a.has_finite:
            low, high = _corners(a, p, lambda x, y: x // y)
            found = join(found, _ints(low, high, nan=False))
    return replace(found, nan=undefined)


def floor_mod(a: Interval, b: Interval) -> Interval:
    undefined = a.nan or b.nan or b.zero
    found = replace(EMPTY, nan=undefined)
    if not a.has_finite:
        return found
    up, down = _part(b, 1, math.inf), _part(b, -math.inf, -1)
    if up.has_finite:
        inside = a.low >= 0 and a.high < up.low
        low, high = (a.low, a.high) if inside else (0, min(up.high - 1, a.high) if a.low >= 0 else up.high - 1)
        found = join(found, _ints(low, high, nan=False))
    if down.has_finite:
        found = join(found, _ints(down.low + 1, 0, nan=False))
    return replace(found, nan=undefined)


def bits(a: Interval, b: Interval) -> Interval:
    """`a & b`, `a | b` and `a ^ b` of ints: as many bits of two's complement as the wider of the two has."""
    undefined = a.nan or b.nan
    if not (a.has_finite and b.has_finite):
        return replace(EMPTY, nan=undefined)
    ends = (a.low, a.high, b.low, b.high)
    if not all(math.isfinite(end) for end in ends):
        return replace(_ints(-math.inf, math.inf, nan=False), nan=undefined)
    largest = 2 ** max(int(end).bit_length() for end in ends)
    low = 0 if min(ends) >= 0 else -largest
    return replace(_ints(low, largest - 1, nan=False), nan=undefined)


def _int_power(a: Interval, n: Interval) -> Interval:
    undefined = a.nan or n.nan or n.low < 0
    low_n, high_n = (min(max(x, 0), 2.0**53) for x in (n.low, n.high))
    if not a.has_finite:
        return replace(EMPTY, nan=undefined)
    bases = [x for x in (a.low, a.high, -1, 0, 1) if a.low <= x <= a.high]
    exponents = [k for k in (low_n, low_n + 1, high_n - 1, high_n) if low_n <= k <= high_n]
    # From 64 on only the parity matters: powers of 0, 1 and -1 repeat, and no int holds those of others.
    values = [x ** int(k if k < 64 else 64 + k % 2) for x in bases for k in exponents]
    return _ints(min(values), max(values), nan=undefined)


def to_float(a: Interval) -> Interval:
    return rounded(Interval(a.low, a.high, a.away, nan=a.nan))


def to_int(a: Interval, f: Callable[[float], int]) -> Interval:
    """Truncation, floor or ceiling: no value beyond 32 bits, where the kernel's conversion has none."""
    outside = a.low <= -(2**31) - 1 or a.high >= 2**31
    undefined = a.nan or a.plus or a.minus or a.masked or (a.has_finite and outside)
    if not a.has_finite:
        return replace(EMPTY, nan=undefined)
    low, high = (f(min(max(x, -(2.0**31)), 2.0**31 - 1)) for x in (a.low, a.high))
    return replace(between(low, high), nan=undefined)
