"""The code of a kernel's loops over tiles: the plan's steps printed, and how an iteration's number becomes a tile.

Takes `Loops`, gives `RangeView`: the body of a jit function that a kernel calls once. All arithmetic is on scalars.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from attngen.emit.triton.expressions import Printer
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.loops import ZERO, Assigned, Loops, Ordered, Rounded, Run, Step


@dataclass(frozen=True, slots=True)
class RangeView:
    """`lines` compute the runs from the tile's ends; `full` runs need no mask, `partial` ones do."""

    axis: str
    lines: tuple[str, ...]
    full: tuple[Run, ...]
    partial: tuple[Run, ...]
    tests: tuple[DataTest, ...]

    @property
    def results(self) -> tuple[str, ...]:
        """The names that the lines bind and the loops read."""
        found = [name for run in (*self.full, *self.partial) for name in (run.start, run.stop)]
        return tuple(dict.fromkeys(n for n in found if n != ZERO))


def range_view(found: Loops, printer: Printer, block: str) -> RangeView:
    """`block` is the name of the walked tile's size."""
    lines = plain_lines(found.steps, printer, block)
    return RangeView(found.axis, lines, found.full, found.partial, found.tests)


def plain_lines(steps: tuple[Step, ...], printer: Printer, block: str) -> tuple[str, ...]:
    """The steps, in order; `block` is the name of the size that bounds are rounded to."""
    return tuple(_line(step, printer, block) for step in steps)


def _line(step: Step, printer: Printer, block: str) -> str:
    match step:
        case Rounded():
            text, strength = printer.definition(step.bound)
            tiles = f"tl.cdiv({text}, {block})" if step.up else f"{text if strength > 6 else f'({text})'} // {block}"
            return f"{step.name} = tl.cast({tiles}, tl.int32)"
        case Assigned():
            return f"{step.name} = {printer.definition(step.value)[0]}"
        case Ordered(a, b):
            names = f"{a.start}, {a.stop}, {b.start}, {b.stop}"
            return f"{names} = _sorted_runs({names})"
        case _:
            assert_never(step)
