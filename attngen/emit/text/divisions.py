"""Division downwards, printed: the plan's expansions as helpers for the templates, and a power of two as a shift.

Takes the printer of a target whose chips divide towards zero, returns `HelperView`s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attngen.emit.text.precedence import Text, atom
from attngen.ir.nodes import Apply, Expr, Op
from attngen.plan.ints.divisions import EXPANSIONS


@dataclass(frozen=True, slots=True)
class HelperView:
    """`name`(number, divisor), by `operator` where both are Python's ints; the texts of its steps."""

    name: str
    operator: str
    doc: str
    remainder: str
    value: str


def helper_views(text: Callable[[Expr], str]) -> tuple[HelperView, ...]:
    """`text` prints the expansions' expressions, whose symbols are the helpers' own names."""
    return tuple(
        HelperView(e.helper, op.value, e.doc, text(e.remainder), text(e.value)) for op, e in EXPANSIONS.items()
    )


def by_shift(e: Apply, number: Text, exponent: int) -> Text:
    """`e` divides by 2 ** `exponent`."""
    text, strength = number
    text = text if strength > 4 else f"({text})"
    return atom(f"({text} & {2**exponent - 1})" if e.op is Op.MOD else f"({text} >> {exponent})")
