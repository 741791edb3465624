"""Gradients of few batches or heads, for a counterexample to which of them a program sums.

Takes the functions of sums, returns the sizes and the place at which they go wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from attngen.ir.function import Function, results_of

LARGEST = 5


def wrong_sum(
    programs: Function, start: Function, stop: Function, start_of_all: Function, stop_of_all: Function
) -> Mapping[str, int] | None:
    """A program that does not sum exactly those that read its element, or an element that no program has."""
    sizes = range(1, LARGEST)
    for whole, group, one in product(sizes, sizes, (1, 0)):
        names = {"one": one, "whole": whole, "group": group, "count": whole * group}
        if results_of(programs, names) != (1 if one else whole,):
            return names
        each, ends = (names["count"], (start_of_all, stop_of_all)) if one else (group, (start, stop))
        for program in range(1 if one else whole):
            at = {**names, "program": program}
            first, last = (results_of(f, at)[0] for f in ends)
            if range(first, last) != range(program * each, (program + 1) * each):
                return at
    return None
