"""Consecutive tiles of several runs, numbered through, as text."""

from __future__ import annotations

from itertools import pairwise

from attngen.plan.mask.loops import ZERO, Run


def total(runs: tuple[Run, ...]) -> str:
    """The number of tiles in all runs."""
    if len(runs) == 1:
        return runs[0].stop if runs[0].start == ZERO else f"{runs[0].stop} - {runs[0].start}"
    return " + ".join(r.stop if r.start == ZERO else f"({r.stop} - {r.start})" for r in runs) or "0"


def numbering(runs: tuple[Run, ...], name: str) -> tuple[str, ...]:
    """Lines that bind `name` to the tile of iteration `step`, counting through the runs in order."""
    lines = [f"{name} = {'step' if runs[0].start == ZERO else f'{runs[0].start} + step'}"]
    passed = ""
    for before, run in pairwise(runs):
        length = before.stop if before.start == ZERO else f"({before.stop} - {before.start})"
        passed = f"{passed} + {length}" if passed else length
        before_it = passed if passed.startswith("(") and " + " not in passed else f"({passed})"
        lines.append(f"{name} = tl.where(step < {passed}, {name}, {run.start} + step - {before_it})")
    return tuple(lines)
