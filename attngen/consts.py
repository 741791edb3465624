"""What a caller may give for a const: a number of Python, of NumPy, or in an array of one number.

Takes a value, returns the same number as Python's bool, int or float. That it fits the const is for `analyse`.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

from attngen.errors import UsageError
from attngen.vocabulary import Const


def const(name: str, given: Any) -> Const:
    """`given` by its value. Raises `UsageError` where it is no number, or no float is exactly this number."""
    value = given
    if getattr(given, "shape", None) == () and hasattr(given, "item"):
        try:
            value = given.item()
        except TypeError:  # an array of JAX that is being traced
            raise UsageError(f"const {name!r} must be known when the spec is compiled, and is traced here") from None
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if not isinstance(value, numbers.Real):
        raise UsageError(f"const {name!r} must be a bool, an int or a float, not {_shown(given)}")
    try:
        near = float(value)
    except OverflowError:
        near = math.inf
    if near != value and not math.isnan(near):
        raise UsageError(f"const {name!r} is {given!r}, and no float is exactly that: write float(…) around it")
    return near


def _shown(given: Any) -> str:
    shape = getattr(given, "shape", ())
    return f"an array of shape {tuple(shape)}" if shape else repr(given)
