"""The code of tile ranges: segments of positions become counts of tiles, and an iteration's number becomes a tile.

Takes `TileRanges`, gives `RangeView`: the body of a jit function that a kernel calls once, and how its loops number
their tiles. All arithmetic is on scalars.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from attngen.emit.triton_expressions import Printer
from attngen.ir.nodes import Expr, Literal
from attngen.plan.ranges import DataTest, TileRanges
from attngen.plan.segments import Segment


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tiles `start … stop - 1`; both are names or integers."""

    start: str
    stop: str


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
        return tuple(dict.fromkeys(n for n in found if not n.isdigit()))


def ranges(found: TileRanges, printer: Printer, block: str) -> RangeView:
    """`block` is the name of the walked tile's size."""
    lines: list[str] = []
    some = _runs("any", found.any, printer, block, lines, inner=False)
    every = _runs("full", found.all, printer, block, lines, inner=True)
    if len(some) == 1 and len(every) == 1:
        a, f = some[0], every[0]
        start, stop = f.start, f.stop
        if start != a.start:
            lines.append(f"{start} = tl.minimum(tl.maximum({start}, {a.start}), {a.stop})")
        lines.append(f"{stop} = tl.minimum(tl.maximum({stop}, {start}), {a.stop})")
    partial: list[Run] = []
    if not every:
        partial = list(some)
    elif len(some) == 1 and len(every) == 1:
        if some[0].start != every[0].start:
            partial.append(Run(some[0].start, every[0].start))
        partial.append(Run(every[0].stop, some[0].stop))
    else:
        for i, a in enumerate(some):
            for j in range(len(every) + 1):
                start = a.start if j == 0 else f"tl.maximum({a.start}, {every[j - 1].stop})"
                stop = a.stop if j == len(every) else f"tl.minimum({a.stop}, {every[j].start})"
                name = f"part{i}{j}"
                lines.append(f"{name}_lo = {start}")
                lines.append(f"{name}_hi = tl.maximum({stop}, {name}_lo)")
                partial.append(Run(f"{name}_lo", f"{name}_hi"))
    return RangeView(found.axis, tuple(lines), tuple(every), tuple(partial), found.tests)


def _runs(
    name: str, segments: tuple[Segment, ...], printer: Printer, block: str, lines: list[str], *, inner: bool
) -> list[Run]:
    """Lines that turn segments of positions into disjoint, sorted runs of tiles, rounded inwards or outwards."""
    runs: list[Run] = []
    for number, s in enumerate(segments):
        suffix = str(number) if len(segments) > 1 else ""
        low, high = f"{name}{suffix}_lo", f"{name}{suffix}_hi"
        if isinstance(s.lo, Literal) and s.lo.value <= 0 and len(segments) == 1:
            low = "0"
        else:
            lines.append(f"{low} = {_rounded(s.lo, printer, block, up=inner)}")
        lines.append(f"{high} = {_rounded(s.hi, printer, block, up=not inner)}")
        lines.append(f"{high} = tl.maximum({high}, {low})")
        runs.append(Run(low, high))
    if len(runs) > 1:
        for i in range(len(runs)):  # exchange sort by start: four runs at most
            for j in range(len(runs) - 1 - i):
                a, b = runs[j], runs[j + 1]
                lines.append(
                    f"{a.start}, {a.stop}, {b.start}, {b.stop} = _sorted_runs({a.start}, {a.stop}, {b.start}, {b.stop})"
                )
        for a, b in pairwise(runs):
            lines.append(f"{b.start} = tl.maximum({b.start}, {a.stop})")
            lines.append(f"{b.stop} = tl.maximum({b.stop}, {b.start})")
    return runs


def _rounded(e: Expr, printer: Printer, block: str, *, up: bool) -> str:
    """A bound in tiles. The planner's bounds lie inside the axis, but for the ends of empty stretches."""
    text, strength = printer.definition(e)
    inner = f"tl.cdiv({text}, {block})" if up else f"{text if strength > 6 else f'({text})'} // {block}"
    return f"tl.cast({inner}, tl.int32)"


def total(runs: tuple[Run, ...]) -> str:
    """The number of tiles in all runs."""
    if len(runs) == 1:
        return runs[0].stop if runs[0].start == "0" else f"{runs[0].stop} - {runs[0].start}"
    return " + ".join(r.stop if r.start == "0" else f"({r.stop} - {r.start})" for r in runs) or "0"


def numbering(runs: tuple[Run, ...], name: str) -> tuple[str, ...]:
    """Lines that bind `name` to the tile of iteration `step`, counting through the runs in order."""
    lines = [f"{name} = {'step' if runs[0].start == '0' else f'{runs[0].start} + step'}"]
    passed = ""
    for before, run in pairwise(runs):
        length = before.stop if before.start == "0" else f"({before.stop} - {before.start})"
        passed = f"{passed} + {length}" if passed else length
        before_it = passed if passed.startswith("(") and " + " not in passed else f"({passed})"
        lines.append(f"{name} = tl.where(step < {passed}, {name}, {run.start} + step - {before_it})")
    return tuple(lines)
