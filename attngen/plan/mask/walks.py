"""How a kernel walks the runs of its loops: which tile is taken at which step, and which steps a part of it can skip.

Takes `Loops`, returns values over the names that their steps bind, over `step` and `n_steps`, and over `own_…`, the
same names for a part of the held tile. Targets print them; `prove.obligations.tile_walks` shows what each claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from attngen.ir.build import add, apply, conjunction, disjunction, index, integer, maximum, minimum, sub
from attngen.ir.nodes import Expr, Op
from attngen.plan.mask.loops import ZERO, Assigned, Loops, Run

STEP, N_STEPS, AT = index("step"), index("n_steps"), index("at")
ZERO_TILES = integer(0)
BEYOND = 2**30
"""A tile after the last of any sequence."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The tiles of `runs`, each at one step: the assignments `at` make the tile of `step`, of which there are
    `n_steps`. A later assignment reads what an earlier one has bound. `inverse` is, for each run, the step that
    takes its tile `at`.
    """

    runs: tuple[Run, ...]
    n_steps: Expr
    at: tuple[Assigned, ...]
    inverse: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class TwoWalks:
    """One after the other: the tiles that need no mask, then those that do. Either may have no run, and so no step."""

    unmasked: Walk
    masked: Walk


@dataclass(frozen=True, slots=True)
class Share:
    """The steps `first` … `stop` - 1 of a walk, outside of which a warpgroup's own rows meet no tile. None: the walk's
    own first step, or its end. `pipelined`: warpgroups that overlap their own products skip the others, too.
    """

    first: Expr | None
    stop: Expr | None
    pipelined: bool


WHOLE = Share(None, None, pipelined=False)


@dataclass(frozen=True, slots=True)
class Hull:
    """The steps bind `first`, the first tile of any run, and `stop`, the one after the last: what lies between the runs
    is walked, and masked away."""

    runs: tuple[Run, ...]
    steps: tuple[Assigned, ...]


def tile(name: str) -> Expr:
    """The end of a run as a value."""
    return integer(0) if name == ZERO else index(name)


def length(run: Run) -> Expr:
    return sub(tile(run.stop), tile(run.start))


def own(name: str) -> str:
    """The same end for a part of the held tile."""
    return name if name == ZERO else f"own_{name}"


def one_stretch(loops: Loops) -> Run | None:
    """The stretch that all runs make together, where they follow each other without a gap."""
    ends = ("any_lo", "any_hi")
    if len(loops.full) <= 1 and all(r.start in (*ends, ZERO) or r.stop in ends for r in loops.partial):
        return Run("any_lo" if "any_lo" in loops.names else ZERO, "any_hi")
    return None


def counted(runs: tuple[Run, ...], before: Expr = ZERO_TILES) -> Expr:
    """How many tiles the runs have, and `before`."""
    if len(runs) == 1:
        return sub(add(before, tile(runs[0].stop)), tile(runs[0].start))
    for run in runs:
        before = add(before, length(run))
    return before


def numbered(runs: tuple[Run, ...]) -> Walk:
    """Counts through the runs in their order."""
    if not runs:
        return Walk((), ZERO_TILES, (), ())
    steps = [Assigned("at", add(tile(runs[0].start), STEP))]
    inverse = [sub(AT, tile(runs[0].start))]
    passed: Expr | None = None
    for before, run in pairwise(runs):
        passed = length(before) if passed is None else add(passed, length(before))
        later = sub(add(tile(run.start), STEP), passed)
        steps.append(Assigned("at", apply(Op.SELECT, apply(Op.LT, STEP, passed), AT, later)))
        inverse.append(add(sub(AT, tile(run.start)), passed))
    return Walk(runs, counted(runs), tuple(steps), tuple(inverse))


def two_walks(loops: Loops) -> TwoWalks:
    return TwoWalks(numbered(loops.full), numbered(loops.partial))


def walk(loops: Loops, *, backwards: bool = False) -> Walk:
    """All runs of the loops. One stretch needs no case, and may be taken from its end."""
    runs = (*loops.partial, *loops.full)
    stretch = one_stretch(loops)
    if stretch is None:
        return numbered(runs)
    start, n_steps = tile(stretch.start), sub(index(stretch.stop), tile(stretch.start))
    at, inverse = add(start, STEP), sub(AT, start)
    if backwards:
        at, inverse = sub(sub(add(start, N_STEPS), integer(1)), STEP), sub(sub(add(start, N_STEPS), integer(1)), AT)
    return Walk(runs, n_steps, (Assigned("at", at),), (inverse,) * len(runs))


def share(loops: Loops, *, backwards: bool) -> Share:
    """All steps where a walk has several stretches, whose tiles are numbered through, and where it begins late without
    a list that says when."""
    stretch, listed = one_stretch(loops), bool(loops.tests)
    if stretch is None or not (listed or (stretch.start == ZERO and loops.full)):
        return WHOLE
    start, stop = tile(stretch.start), index(own(stretch.stop))
    if stretch.start == ZERO:
        return Share(sub(N_STEPS, stop), None, True) if backwards else Share(None, stop, listed)
    first, end = sub(index(own(stretch.start)), start), sub(stop, start)
    if backwards:
        first, end = sub(N_STEPS, end), sub(N_STEPS, first)
    return Share(first, end, listed)


def hull(loops: Loops) -> Hull:
    stretch = one_stretch(loops)
    runs = (*loops.full, *loops.partial)
    if stretch is not None:
        return Hull(runs, (Assigned("first", tile(stretch.start)), Assigned("stop", index(stretch.stop))))
    first, stop = index("first"), index("stop")
    steps = [Assigned("first", integer(BEYOND)), Assigned("stop", integer(0))]
    for run in runs:
        some = apply(Op.LT, tile(run.start), tile(run.stop))
        steps.append(Assigned("first", apply(Op.SELECT, some, minimum(first, tile(run.start)), first)))
        steps.append(Assigned("stop", apply(Op.SELECT, some, maximum(stop, tile(run.stop)), stop)))
    return Hull(runs, (*steps, Assigned("first", minimum(first, stop))))


def outside(runs: tuple[Run, ...]) -> Expr:
    """Whether the tile `at` lies in none of the runs, and so needs the mask."""
    parts: list[Expr] = []
    for run in runs:
        after = apply(Op.LE, tile(run.stop), AT)
        parts.append(after if run.start == ZERO else disjunction(apply(Op.LT, AT, tile(run.start)), after))
    return conjunction(*parts)
