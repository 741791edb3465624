"""Intervals of float32 numbers and of ints.

An `Interval` says what values an expression can have: finite ones between two ends, and by flags whether +inf, -inf or
NaN (for ints: no value at all) are among them. Floats are float32: sums, products, quotients and square roots are
rounded correctly, and rounding is monotone, so rounding the ends is enough; what leaves float32's range sets a flag,
what is closer to 0 than its normal numbers may be 0. Ends are closed: on the floats `x > c` is `x >= next(c)`.

Leaves to `operations` what each operation of the language makes of intervals, and to `values` where those of symbols
and params come from.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

FLOAT_MAX = 3.4028234663852886e38
HALF_MAX = 65504.0
LEAST_NORMAL = 2.0**-126
INT_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class Interval:
    """The finite values lie in [low, high] (none where low > high), and not nearer to 0 than `away`.

    `plus`, `minus`: +inf, -inf may come out by computation. `masked`: -inf may come out because the file says so,
    which counts as masked. `nan`: NaN, or for ints no value, may come out.
    """

    low: float
    high: float
    away: float = 0.0
    plus: bool = False
    minus: bool = False
    masked: bool = False
    nan: bool = False

    @property
    def has_finite(self) -> bool:
        return self.low <= self.high

    @property
    def empty(self) -> bool:
        """Whether nothing can come out: the place is never reached."""
        return not (self.has_finite or self.plus or self.minus or self.masked or self.nan)

    @property
    def finite(self) -> bool:
        """Whether every value is finite."""
        return not (self.plus or self.minus or self.masked or self.nan)

    @property
    def sound(self) -> bool:
        """Whether every value is finite, or -inf where the file says so."""
        return not (self.plus or self.minus or self.nan)

    @property
    def zero(self) -> bool:
        return self.low <= 0 <= self.high and self.away == 0

    @property
    def positive(self) -> bool:
        """Whether some finite value is."""
        return self.has_finite and self.high > 0

    @property
    def negative(self) -> bool:
        return self.has_finite and self.low < 0

    @property
    def least(self) -> float:
        """The least value, infinite ones included."""
        return -math.inf if self.minus or self.masked else self.low if self.has_finite else math.inf

    @property
    def most(self) -> float:
        return math.inf if self.plus else self.high if self.has_finite else -math.inf

    @property
    def magnitude(self) -> float:
        return max(abs(self.low), abs(self.high)) if self.has_finite else 0.0

    def __str__(self) -> str:
        parts = [f"[{number(self.low)}, {number(self.high)}]"] if self.has_finite else []
        parts += ["-inf"] if self.minus or self.masked else []
        parts += ["+inf"] if self.plus else []
        parts += ["NaN"] if self.nan else []
        return " or ".join(parts) or "nothing"


def number(x: float) -> str:
    """A short text of a number: powers of two by their exponents."""
    if isinstance(x, float) and math.isinf(x):
        return "inf" if x > 0 else "-inf"
    size = abs(x)
    if size >= 2**12 and math.frexp(size)[0] == 0.5:
        return f"{'-' if x < 0 else ''}2**{math.frexp(size)[1] - 1}"
    return f"{x:.6g}" if size < 1e6 else f"{x:.4g}"


EMPTY = Interval(math.inf, -math.inf)
ANYTHING = Interval(-FLOAT_MAX, FLOAT_MAX, plus=True, minus=True, masked=True)
ANY_BOOL_AS_INT = Interval(0, 1)


def point(x: float) -> Interval:
    """One value; an infinite one is meant as written."""
    if math.isinf(x):
        return replace(EMPTY, plus=x > 0, masked=x < 0)
    return Interval(x, x, abs(x))


def between(low: float, high: float) -> Interval:
    return settled(Interval(low, high))


def settled(i: Interval) -> Interval:
    """`i` with its ends and `away` brought into agreement."""
    if not i.has_finite:
        return replace(i, low=math.inf, high=-math.inf, away=0.0)
    low, high, away = i.low, i.high, i.away
    if low > 0:
        away = max(away, low)
    elif high < 0:
        away = max(away, -high)
    if away > 0:
        low = max(low, away) if low > -away else low
        high = min(high, -away) if high < away else high
        if low > high:
            return replace(i, low=math.inf, high=-math.inf, away=0.0)
    if (low, high, away) == (i.low, i.high, i.away):
        return i
    return replace(i, low=low, high=high, away=away)


def join(a: Interval, b: Interval) -> Interval:
    """What comes out of `a` or of `b`."""
    away = min(a.away, b.away) if a.has_finite and b.has_finite else a.away if a.has_finite else b.away
    return Interval(
        min(a.low, b.low),
        max(a.high, b.high),
        away,
        a.plus or b.plus,
        a.minus or b.minus,
        a.masked or b.masked,
        a.nan or b.nan,
    )


def meet(a: Interval, b: Interval) -> Interval:
    """What `a` and `b` both allow."""
    return settled(
        Interval(
            max(a.low, b.low),
            min(a.high, b.high),
            max(a.away, b.away),
            a.plus and b.plus,
            a.minus and (b.minus or b.masked),
            a.masked and (b.minus or b.masked),
            a.nan and b.nan,
        )
    )


# ---------------------------------------------------------------- float32


def single(x: float) -> float:
    """`x` as the nearest float32; what overflows is infinite."""
    if x == 0 or math.isinf(x):
        return x
    try:
        return struct.unpack("f", struct.pack("f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def rounded(i: Interval) -> Interval:
    """The real interval `i` after rounding to float32."""
    if not i.has_finite:
        return settled(i)
    low, high = single(i.low), single(i.high)
    plus, minus = i.plus, i.minus
    if high > FLOAT_MAX:
        plus, high = True, FLOAT_MAX
        low = math.inf if low > FLOAT_MAX else low
    if low < -FLOAT_MAX:
        minus, low = True, -FLOAT_MAX
        high = -math.inf if high < -FLOAT_MAX else high
    if 0 < low < LEAST_NORMAL:
        low = 0.0
    if -LEAST_NORMAL < high < 0:
        high = 0.0
    away = single(i.away)
    return settled(Interval(low, high, away if away >= LEAST_NORMAL else 0.0, plus, minus, i.masked, i.nan))
