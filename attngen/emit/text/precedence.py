"""Printing with few brackets: text carries how strongly its outermost operator binds (Python's order)."""

from __future__ import annotations

import re

Text = tuple[str, int]
"""(text, strength): 9 for names and calls, down to 1 for comparisons."""


def atom(text: str) -> Text:
    return text, 9


def infix(sign: str, strength: int, left: Text, right: Text, *, chain: bool = False) -> Text:
    """`left sign right`. With `chain`, an equally strong left side is bracketed too (comparisons must not chain)."""
    a = left[0] if left[1] > strength or (left[1] == strength and not chain) else f"({left[0]})"
    b = right[0] if right[1] > strength else f"({right[0]})"
    return f"{a} {sign} {b}", strength


def times(left: str, factor: str | None) -> str:
    """`left * factor`, or `left` where there is no factor; `left` is a product already."""
    if not factor:
        return left
    whole = re.fullmatch(r"[\w.]+", factor) is not None
    return f"{left} * {factor}" if whole else f"{left} * ({factor})"


def shifted_right(left: Text, right: Text) -> Text:
    """`left >> right`, which binds between `&` and sums: in brackets of its own."""
    a, b = (text if strength > 4 else f"({text})" for text, strength in (left, right))
    return atom(f"({a} >> {b})")
