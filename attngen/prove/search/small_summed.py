"""Gradients of few batches or heads, for a counterexample to which of them a program sums.

Takes the plan's `Summed`, returns the sizes and the place at which it goes wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from attngen.ir.nodes import Expr
from attngen.plan.summed import Summed

LARGEST = 5


def _value(e: Expr, names: Mapping[str, int]) -> int:
    from attngen.ir.evaluate import evaluate  # with NumPy, which is not loaded for what z3 shows

    return int(evaluate(e, names, {}))


def wrong_sum(summed: Summed) -> Mapping[str, int | float | bool] | None:
    """A program that does not sum exactly those that read its element, or an element that no program has."""
    sizes = range(1, LARGEST)
    for whole, group, one in product(sizes, sizes, (True, False)):
        names = {"all": one, "whole": whole, "group": group, "count": whole * group}
        if _value(summed.programs, names) != (1 if one else whole):
            return names
        each = names["count"] if one else group
        for program in range(1 if one else whole):
            at = {**names, "program": program}
            wanted = range(program * each, (program + 1) * each)
            if range(_value(summed.first, at), _value(summed.stop, at)) != wanted:
                return at
    return None
