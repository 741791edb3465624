"""How targets divide ints downwards, made of the division towards zero that chips have.

Gives `FLOOR_DIV` and `FLOOR_MOD`, each an `Expansion`: the helper that the printers of Triton and of JAX write into a
generated file, step by step, as expressions. They print these values, and `obligations.divisions` bounds them: no step
leaves the register of its operands, at either end, as long as the quotient itself does not. A constant power of two
needs no helper: a shift and a mask round down as they are. PyTorch and Python divide downwards themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attngen.ir import build
from attngen.ir.build import add, conjunction, index, integer, mul, select, sub
from attngen.ir.nodes import Apply, Expr, Literal, Op
from attngen.plan.ints.facts import Facts

NUMBER, DIVISOR, QUOTIENT, REMAINDER = (index(name) for name in ("number", "divisor", "quotient", "remainder"))
"""The operands, the quotient rounded towards zero, and what that leaves, which has the sign of `number`."""

MOST_SHIFT = 30
"""Of 2, the highest power that an int of 32 bits holds."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """`helper` computes `quotient`, then `remainder`, then `value`; `doc` is its docstring."""

    helper: str
    doc: str
    remainder: Expr
    value: Expr


def _expansions() -> tuple[Expansion, Expansion]:
    zero = integer(0)
    remainder = sub(NUMBER, mul(QUOTIENT, DIVISOR))
    signs_differ = build.apply(Op.NE, build.apply(Op.LT, REMAINDER, zero), build.apply(Op.LT, DIVISOR, zero))
    rounded_up = conjunction(build.apply(Op.NE, REMAINDER, zero), signs_differ)
    return (
        Expansion(
            "_floor_div",
            "number // divisor, rounded down, as the specification has it (the hardware rounds to zero).",
            remainder,
            sub(QUOTIENT, build.apply(Op.TO_INT, rounded_up)),
        ),
        Expansion(
            "_floor_mod",
            "number % divisor, with the sign of the divisor, as the specification has it.",
            remainder,
            add(REMAINDER, select(rounded_up, DIVISOR, zero)),
        ),
    )


FLOOR_DIV, FLOOR_MOD = _expansions()
EXPANSIONS = {Op.FLOORDIV: FLOOR_DIV, Op.MOD: FLOOR_MOD}


def is_division(e: Expr) -> bool:
    return isinstance(e, Apply) and e.op in EXPANSIONS


def shift(e: Apply) -> int | None:
    """Where `e` divides by a constant power of two that 32 bits hold, the exponent: a shift and a mask round down."""
    divisor = e.args[1]
    if not (isinstance(divisor, Literal) and 0 < divisor.value <= 2**MOST_SHIFT):
        return None
    exponent = int(math.log2(divisor.value))
    return exponent if 2**exponent == divisor.value else None


def may_be_minus_one(divisor: Expr, facts: Facts) -> bool:
    """Dividing by -1 gives the least int's opposite, which its register lacks."""
    if facts.is_positive(divisor):
        return False
    low, high = facts.bounds(divisor)
    return (low is None or low <= -1) and (high is None or high >= -1)
