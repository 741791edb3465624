"""The function that finds runs of tiles, for the targets of JAX: the plan's steps printed.

Takes `Loops` and their lines, returns the whole function.
"""

from __future__ import annotations

from collections.abc import Iterable

from attngen.emit.jax_shared.expressions import Printer
from attngen.emit.text.loop_steps import function_lines
from attngen.plan.mask.loops import ZERO, Loops, Run


def range_function(
    found: Loops,
    runs: tuple[tuple[Run, ...], tuple[Run, ...]],
    arguments: tuple[str, ...],
    body: Iterable[str],
    printer: Printer,
) -> tuple[str, ...]:
    """`runs`: those that need no mask, and those that do. `arguments`: those after the ends of the held tile."""
    ends, held = (("q0", "q1"), "queries q0 … q1") if found.axis == "k" else (("k0", "k1"), "keys k0 … k1")
    meet = f"Runs of tiles that the {held} meet: those in which every pair is allowed, then those that need the mask."
    returned = {ZERO: ZERO, **{name: printer.text(e) for name, e in found.returned.items()}}
    lists = ([f"({returned[r.start]}, {returned[r.stop]})" for r in own] for own in runs)
    return function_lines(
        (f"def _{found.name}({', '.join((*ends, *arguments))}):",),
        (f'"""{meet}"""',),
        body,
        ", ".join(f"[{', '.join(own)}]" for own in lists),
    )
