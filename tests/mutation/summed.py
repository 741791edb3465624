"""What programs sum of a gradient with an element for each pair: edits of it, and brute force, the programs of small
calls.

`edited_summed` takes `Summed`, returns it with one edit. `wrong_summed` takes a plan (mutated or not), returns the
first mistake in words, or nothing. Each batch or head adds a power of two of its own, so a sum tells who is in it. It
shares no code with the prover.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product

from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.plan.kernel import KernelPlan
from attngen.plan.summed import Summed
from mutation.edits import off_by_one


def edited_summed(s: Summed) -> Iterator[tuple[str, Summed]]:
    for field in fields(s):
        for what, e in off_by_one(getattr(s, field.name)):
            yield f"{field.name}: {what}", replace(s, **{field.name: e})


def wrong_summed(plan: KernelPlan) -> str:
    for whole, group, one in product((1, 2, 3, 7), (1, 2, 3, 5), (True, False)):
        found = _sums(plan.summed, whole, group, one)
        if found:
            return f"{found}; {whole} elements of {group} each, or of all: {one}"
    return ""


def _value(e: Expr, names: dict[str, int]) -> int:
    return int(evaluate(e, names, {}))


def _sums(summed: Summed, whole: int, group: int, one: bool) -> str:
    """Each element as its program leaves it, against the sum of those that read it."""
    names = {"all": one, "whole": whole, "group": group, "count": whole * group}
    programs = _value(summed.programs, names)
    wanted = [0] * (1 if one else whole)
    if not 0 < programs <= len(wanted):
        return f"{programs} programs"
    for member in range(whole * group):
        wanted[0 if one else member // group] += 1 << member
    for program in range(programs):
        at = {**names, "program": program}
        members = range(_value(summed.first, at), _value(summed.stop, at))
        if members and not 0 <= members[0] <= members[-1] < whole * group:
            return f"program {program} sums {members}"
        if sum(1 << m for m in members) != wanted[program]:
            return f"program {program} sums {members}"
    return "an element has no program" if any(wanted[programs:]) else ""
