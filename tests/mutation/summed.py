"""What programs sum of a gradient with an element for each pair, by brute force: the programs of small calls.

`wrong_summed` takes the functions of sums as Python, returns the first mistake in words, or nothing. Each batch or head
adds a power of two of its own, so a sum tells who is in it. It shares no code with the prover.
"""

from __future__ import annotations

from itertools import product
from typing import Any

SUMMED = frozenset({"sum_programs", "sum_start", "sum_stop"})
"""The functions that plans without such a gradient do not call."""


def wrong_summed(f: dict[str, Any]) -> str:
    for whole, group, one in product((1, 2, 3, 7), (1, 2, 3, 5), (True, False)):
        found = _sums(f, whole, group, one)
        if found:
            return f"{found}; {whole} elements of {group} each, or of all: {one}"
    return ""


def _sums(f: dict[str, Any], whole: int, group: int, one: bool) -> str:
    """Each element as its program leaves it, against the sum of those that read it."""
    programs = f["sum_programs"](one, whole)
    wanted = [0] * (1 if one else whole)
    if not 0 < programs <= len(wanted):
        return f"{programs} programs"
    for member in range(whole * group):
        wanted[0 if one else member // group] += 1 << member
    for program in range(programs):
        members = range(f["sum_start"](program, group, one), f["sum_stop"](program, whole * group, group, one))
        if members and not 0 <= members[0] <= members[-1] < whole * group:
            return f"program {program} sums {members}"
        if sum(1 << m for m in members) != wanted[program]:
            return f"program {program} sums {members}"
    return "an element has no program" if any(wanted[programs:]) else ""
