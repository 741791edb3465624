"""Triton's scalar ints, as Python objects that refuse to leave their register: what a printed expression is run on.

`Register` has a value and a width; `NAMESPACE` holds what printed text calls, `tl` among it. Division is towards zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


class Left(Exception):
    """An int has left its register."""


@dataclass(frozen=True, eq=False)
class Register:
    value: int
    bits: int = 32

    def __post_init__(self) -> None:
        if not -(2 ** (self.bits - 1)) <= self.value < 2 ** (self.bits - 1):
            raise Left(f"{self.value} in {self.bits} bits")

    def _with(self, other: Any) -> tuple[int, int]:
        """The other's value, and the width of what both make."""
        other = held(other)
        return other.value, max(self.bits, other.bits)

    def __add__(self, other: Any) -> Register:
        b, bits = self._with(other)
        return Register(self.value + b, bits)

    def __sub__(self, other: Any) -> Register:
        b, bits = self._with(other)
        return Register(self.value - b, bits)

    def __mul__(self, other: Any) -> Register:
        b, bits = self._with(other)
        return Register(self.value * b, bits)

    def __rsub__(self, other: Any) -> Register:
        return held(other) - self

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Register:
        return Register(-self.value, self.bits)

    def __floordiv__(self, other: Any) -> Register:
        b, bits = self._with(other)
        quotient = abs(self.value) // abs(b)
        return Register(quotient if (self.value < 0) == (b < 0) else -quotient, bits)

    def __mod__(self, other: Any) -> Register:
        return self - self // other * other

    def __rfloordiv__(self, other: Any) -> Register:
        return held(other) // self

    def __rmod__(self, other: Any) -> Register:
        return held(other) % self

    def __rshift__(self, places: int) -> Register:
        return Register(self.value >> places, self.bits)

    def __and__(self, mask: int) -> Register:
        return Register(self.value & mask, self.bits)

    def __lt__(self, other: Any) -> bool:
        return self.value < held(other).value

    def __le__(self, other: Any) -> bool:
        return self.value <= held(other).value

    def __gt__(self, other: Any) -> bool:
        return self.value > held(other).value

    def __ge__(self, other: Any) -> bool:
        return self.value >= held(other).value

    def __eq__(self, other: object) -> bool:
        return self.value == held(other).value

    def __ne__(self, other: object) -> bool:
        return self.value != held(other).value

    __hash__ = None  # type: ignore[assignment]


def held(x: Any) -> Register:
    """A constant has 32 bits where it fits them."""
    if isinstance(x, Register):
        return x
    return Register(int(x), 32 if -(2**31) <= x < 2**31 else 64)


def _wider(value: Register, other: Register) -> Register:
    return Register(value.value, max(value.bits, other.bits))


def _where(condition: bool, a: Any, b: Any) -> Any:
    if isinstance(a, bool) and isinstance(b, bool):
        return a if condition else b
    a, b = held(a), held(b)
    return _wider(a, b) if condition else _wider(b, a)


def _minimum(a: Any, b: Any) -> Register:
    a, b = held(a), held(b)
    return _where(a <= b, a, b)


def _maximum(a: Any, b: Any) -> Register:
    a, b = held(a), held(b)
    return _where(a >= b, a, b)


def _sorted_runs(a_lo: Any, a_hi: Any, b_lo: Any, b_hi: Any) -> tuple[Any, ...]:
    return (b_lo, b_hi, a_lo, a_hi) if b_lo < a_lo else (a_lo, a_hi, b_lo, b_hi)


NAMESPACE: dict[str, Any] = {
    "tl": SimpleNamespace(
        int32=32,
        int64=64,
        cast=lambda x, bits: Register(held(x).value, bits),
        minimum=_minimum,
        maximum=_maximum,
        where=_where,
        abs=lambda x: _maximum(x, -held(x)) if held(x) >= 0 else -held(x),
        cdiv=lambda x, tile: (held(x) + (tile - 1)) // tile,
    ),
    "rows": SimpleNamespace(
        sorted_runs=_sorted_runs,
        int_sign=lambda x: held((held(x) > 0) - (held(x) < 0)),
    ),
}
