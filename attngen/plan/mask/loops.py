"""The loops of a kernel over tiles: which tiles are walked, in which runs, and which runs need the mask.

Takes `TileRanges` (positions), returns `Loops` (tiles): a short straight-line program over int names, and the runs that
it computes. `any` is rounded outwards to whole tiles and `all` inwards; runs are brought into order and made disjoint,
so that no tile is walked twice; `full` runs go without the mask, `partial` ones, which are `any` less `all`, with it.
A target prints the program, as a function; the prover executes it. The size of a walked tile is the symbol `tile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from attngen.ir.build import index, integer, maximum, minimum
from attngen.ir.function import Assigned
from attngen.ir.nodes import Expr, Literal, Type
from attngen.ir.walk import nodes, params
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment

ZERO = "0"
"""The start of a run that begins with the axis: a number, not a name."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tiles `start … stop - 1`; both are names, or `ZERO`."""

    start: str
    stop: str


@dataclass(frozen=True, slots=True)
class Rounded:
    """`name` = the position `bound` in tiles, rounded up or down (towards 0 where it is negative).

    clamped: brought to 0 … the number of tiles of the walked axis. Params decide such a bound, which may be any int of
    64 bits, whatever a spec says of them; tiles are counted in 32.
    """

    name: str
    bound: Expr
    up: bool
    clamped: bool = False


@dataclass(frozen=True, slots=True)
class Ordered:
    """Exchanges two runs where the second starts first."""

    first: Run
    second: Run


Step = Rounded | Assigned | Ordered


@dataclass(frozen=True, slots=True)
class Loops:
    """What one kernel walks, as a function of the held tile's ends: its `steps` compute ends of runs, and it returns
    `results`, which whoever calls it calls `names`. `full` runs need no mask. `lists`: the runs are of places of a list
    that names tiles, not of tiles; whose lists there are.
    """

    axis: str  # "k" or "q": what is walked
    steps: tuple[Step, ...]
    full: tuple[Run, ...]
    partial: tuple[Run, ...]
    tests: tuple[DataTest, ...]
    names: tuple[str, ...]
    results: tuple[Expr, ...]
    lists: Lists | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        return (*self.full, *self.partial)

    @property
    def name(self) -> str:
        return "key_tiles" if self.axis == "k" else "query_tiles"

    @property
    def returned(self) -> Mapping[str, Expr]:
        """What it returns, by the names that it has outside."""
        return dict(zip(self.names, self.results, strict=True))

    @property
    def in_ints(self) -> bool:
        """Whether the bounds are made of ints alone, and so the same wherever they are computed."""
        values = [s.bound if isinstance(s, Rounded) else s.value for s in self.steps if not isinstance(s, Ordered)]
        return all(node.type is not Type.FLOAT for value in values for node in nodes(value))


def loops(found: TileRanges) -> Loops:
    steps: list[Step] = []
    some = _runs("any", found.any, steps, inner=False)
    every = _runs("full", found.all, steps, inner=True)
    if len(some) == 1 and len(every) == 1:
        a, f = some[0], every[0]
        if f.start != a.start:
            start = minimum(maximum(_tile(f.start), _tile(a.start)), _tile(a.stop))
            f = Run("full_lo", f.stop)  # also where it was 0, which has no name
            every = [f]
            steps.append(Assigned(f.start, start))
        steps.append(Assigned(f.stop, minimum(maximum(_tile(f.stop), _tile(f.start)), _tile(a.stop))))
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
                run = Run(f"part{i}{j}_lo", f"part{i}{j}_hi")
                start = _tile(a.start) if j == 0 else maximum(_tile(a.start), _tile(every[j - 1].stop))
                stop = _tile(a.stop) if j == len(every) else minimum(_tile(a.stop), _tile(every[j].start))
                steps.append(Assigned(run.start, start))
                steps.append(Assigned(run.stop, maximum(stop, _tile(run.start))))
                partial.append(run)
    ends = (n for run in (*every, *partial) for n in (run.start, run.stop) if n != ZERO)
    names = tuple(dict.fromkeys(ends))
    results = tuple(map(index, names))
    return Loops(found.axis, tuple(steps), tuple(every), tuple(partial), found.tests, names, results)


def _tile(name: str) -> Expr:
    return integer(0) if name == ZERO else index(name)


def _runs(name: str, segments: tuple[Segment, ...], steps: list[Step], *, inner: bool) -> list[Run]:
    """Steps that turn segments of positions into disjoint, sorted runs of tiles, rounded inwards or outwards."""
    runs: list[Run] = []
    for number, s in enumerate(segments):
        suffix = str(number) if len(segments) > 1 else ""
        low, high = f"{name}{suffix}_lo", f"{name}{suffix}_hi"
        if isinstance(s.lo, Literal) and s.lo.value <= 0 and len(segments) == 1:
            low = ZERO
        else:
            steps.append(Rounded(low, s.lo, up=inner, clamped=bool(params(s.lo))))
        steps.append(Rounded(high, s.hi, up=not inner, clamped=bool(params(s.hi))))
        steps.append(Assigned(high, maximum(index(high), _tile(low))))
        runs.append(Run(low, high))
    if len(runs) > 1:
        for i in range(len(runs)):  # exchange sort by start: four runs at most
            for j in range(len(runs) - 1 - i):
                steps.append(Ordered(runs[j], runs[j + 1]))
        for a, b in pairwise(runs):
            steps.append(Assigned(b.start, maximum(index(b.start), index(a.stop))))
            steps.append(Assigned(b.stop, maximum(index(b.stop), index(b.start))))
    return runs
