"""What it costs to multiply a term out, worked out before it is done: sympy counts no steps and cannot be stopped.

Takes a sympy term, returns units of work. The number of factors in the result is bounded by that of the term's form: a
sum has the terms of all its parts, a product each choice of one term from every factor.
"""

from __future__ import annotations

import math
from typing import Any

_CALL, _FACTOR = 1_000, 20
"""Units for a call, and for each factor of the result."""
_MOST = 10**12
"""Greater numbers of terms are taken for this one."""


def price(*terms: Any) -> int:
    """Units for multiplying these terms out."""
    known: dict[Any, tuple[int, int]] = {}
    return sum(_CALL + _FACTOR * _factors(_size(term, known)) for term in terms)


def _factors(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _size(x: Any, known: dict[Any, tuple[int, int]]) -> tuple[int, int]:
    """How many terms `x` has once it is multiplied out, and how many factors each has at most."""
    if x not in known:
        count, length = _form(x, known)
        known[x] = min(count, _MOST), min(length, _MOST)
    return known[x]


def _form(x: Any, known: dict[Any, tuple[int, int]]) -> tuple[int, int]:
    parts = [_size(a, known) for a in x.args]
    if not parts:
        return 1, 1
    if x.is_Add:
        return sum(count for count, _ in parts), max(length for _, length in parts)
    if x.is_Mul:
        return math.prod(count for count, _ in parts), sum(length for _, length in parts)
    if x.is_Pow and x.exp.is_Integer:
        (count, length), power = parts[0], min(abs(int(x.exp)), _MOST)
        if count == 1:
            return 1, length
        # Choices of `power` out of `count` terms, their order left out.
        chosen = math.comb(count + power - 1, power) if power <= 64 and count <= 4096 else _MOST
        return chosen, length * power
    return 1, 1 + sum(map(_factors, parts))
