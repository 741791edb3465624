"""The code of a kernel's loops over tiles: the plan's steps printed, and its walks, by which a step becomes a tile.

Takes `Loops` and `TwoWalks`, returns `RangeView`: the body of a jit function that a kernel calls once, and the heads of
its two loops. All arithmetic is on scalars.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from attngen.emit.text.loop_steps import by_helper, step_lines
from attngen.emit.text.render import bracket
from attngen.emit.triton.code.expressions import Printer
from attngen.emit.triton.code.lists import ListView, list_view
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.loops import Assigned, Loops, Rounded, Run, Step
from attngen.plan.mask.walks import TwoWalks, Walk, length


@dataclass(frozen=True, slots=True)
class WalkView:
    """The lines `at` bind the tile of `step`, of which there are `n_steps`. No lines: there is no step."""

    n_steps: str
    at: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RangeView:
    """The function `name` of the tile's ends, its `lines`, and what it returns, `returned`: the ends of the runs, which
    are `results` outside. The `unmasked` tiles are walked first. `lists`: where walks are over places of lists.
    """

    axis: str
    name: str
    lines: tuple[str, ...]
    returned: tuple[str, ...]
    results: tuple[str, ...]
    unmasked: WalkView
    masked: WalkView
    tests: tuple[DataTest, ...]
    lists: ListView | None


def range_view(found: Loops, walks: TwoWalks, printer: Printer, block: str) -> RangeView:
    """`block` is the name of the walked tile's size."""
    lines = plain_lines(found.steps, printer, block, f"S{found.axis}")
    unmasked, masked = (_walk_view(w, printer) for w in (walks.unmasked, walks.masked))
    returned = tuple(map(printer.text, found.results))
    return RangeView(
        found.axis, found.name, lines, returned, found.names, unmasked, masked, found.tests, list_view(found.lists)
    )


def in_brackets(runs: tuple[Run, ...], printer: Printer) -> Printer:
    """Of several runs, one that prints the length of each in brackets, so that sums of them can be read."""
    lengths = [length(run) for run in runs] if len(runs) > 1 else []
    return replace(printer, names={**printer.names, **{e: bracket(printer.text(e)) for e in lengths}})


def _walk_view(walk: Walk, printer: Printer) -> WalkView:
    printer = in_brackets(walk.runs, printer)
    return WalkView(printer.text(walk.n_steps), assigned_lines(walk.at, printer))


def assigned_lines(steps: Iterable[Assigned], printer: Printer) -> tuple[str, ...]:
    return tuple(f"{s.name} = {printer.text(s.value)}" for s in steps)


def plain_lines(steps: tuple[Step, ...], printer: Printer, block: str, size: str = "") -> tuple[str, ...]:
    """The steps, in order; `block` is the name of what bounds are rounded to, `size` that of the walked length."""

    def rounded(step: Rounded) -> str:
        text, strength = printer.definition(step.bound)
        tiles = f"tl.cdiv({text}, {block})" if step.up else f"{text if strength > 6 else f'({text})'} // {block}"
        if step.clamped:
            tiles = f"tl.minimum(tl.maximum({tiles}, 0), tl.cdiv({size}, {block}))"
        return f"tl.cast({tiles}, tl.int32)"

    return step_lines(
        steps,
        rounded=rounded,
        text=lambda e: printer.definition(e)[0],
        ordered=lambda step: by_helper(step, "rows.sorted_runs"),
    )
