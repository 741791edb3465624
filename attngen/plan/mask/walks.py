"""How a kernel walks the runs of its loops: which tile is taken at which step, and which steps a part of it can skip.

Takes `Loops`, returns values over the names that their steps bind, over `step` and `n_steps`, and over `own_…`, the
same names for a part of the held tile. Targets print them; `prove.obligations.tile_walks` shows what each claims.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from attngen.ir.build import add, apply, conjunction, disjunction, index, integer, maximum, minimum, sub
from attngen.ir.nodes import Expr, Op
from attngen.ir.walk import substitute
from attngen.plan.mask.loops import ZERO, Assigned, Loops, Run

STEP, N_STEPS, AT = index("step"), index("n_steps"), index("at")
LO, HI, START, PASSED = index("lo"), index("hi"), index("start"), index("passed")
ZERO_TILES = integer(0)
BEYOND = 2**30
"""A tile after the last of any sequence."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The tiles of `runs`, each at one step: the assignments `at` make the tile of `step`, of which there are
    `n_steps`. A later assignment reads what an earlier one has bound. `inverse` is, for each run, the step that
    takes its tile `at`. `least`: where the runs have fewer tiles, so many steps are taken all the same, and take tiles
    that need the mask.
    """

    runs: tuple[Run, ...]
    n_steps: Expr
    at: tuple[Assigned, ...]
    inverse: tuple[Expr, ...]
    least: int = 0


@dataclass(frozen=True, slots=True)
class Fold:
    """A walk of any number of runs, which a kernel that has them as a list makes of them.

    `first` is the tile `at` of `step` in the first run, over its `start`. For each later run, `steps` bind `passed`,
    the number of tiles of all runs before it, which is 0 at first, and then `at`, over the ends `lo` and `hi` of the
    run before it and its own `start`. `length` is how many tiles a run has, over its ends.
    """

    length: Expr
    first: Expr
    steps: tuple[Assigned, ...]


@dataclass(frozen=True, slots=True)
class TwoWalks:
    """One after the other: the tiles that need no mask, then those that do. Either may have no run, and so no step."""

    unmasked: Walk
    masked: Walk


@dataclass(frozen=True, slots=True)
class Share:
    """The steps `own_steps` of a walk over `stretch`, outside of which a warpgroup's own rows meet no tile. Unless
    `begins`, it begins with the walk, and unless `ends`, it ends with it. `pipelined`: warpgroups that overlap their
    own products skip the others, too.
    """

    stretch: Run
    backwards: bool
    begins: bool
    ends: bool
    pipelined: bool

    @property
    def own(self) -> Run:
        """The stretch of a warpgroup's own rows."""
        return Run(own(self.stretch.start), own(self.stretch.stop))


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


def numbering() -> Fold:
    """Counts through the runs in their order."""
    later = sub(add(START, STEP), PASSED)
    return Fold(
        length=sub(HI, LO),
        first=add(START, STEP),
        steps=(
            Assigned("passed", add(PASSED, sub(HI, LO))),
            Assigned("at", apply(Op.SELECT, apply(Op.LT, STEP, PASSED), AT, later)),
        ),
    )


def unrolled(fold: Fold, runs: tuple[Run, ...]) -> Walk:
    """The walk that the fold makes of these runs."""
    if not runs:
        return Walk((), ZERO_TILES, (), ())
    steps = [Assigned("at", substitute(fold.first, {START: tile(runs[0].start)}))]
    passed = n_steps = ZERO_TILES
    for before, run in pairwise(runs):
        ends: dict[Expr, Expr] = {LO: tile(before.start), HI: tile(before.stop), START: tile(run.start)}
        for s in fold.steps:
            value = substitute(s.value, {**ends, PASSED: passed})
            if s.name == "passed":
                passed = value
            else:
                steps.append(Assigned(s.name, value))
    for run in runs:
        n_steps = add(n_steps, substitute(fold.length, {LO: tile(run.start), HI: tile(run.stop)}))
    inverse = (add(sub(AT, tile(run.start)), counted(runs[:n])) for n, run in enumerate(runs))
    return Walk(runs, n_steps, tuple(steps), tuple(inverse))


def numbered(runs: tuple[Run, ...]) -> Walk:
    """Counts through these runs in their order."""
    return unrolled(numbering(), runs)


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


def at_least_one(walk: Walk) -> Walk:
    """A walk for a kernel whose first step has no case of its own for rows that meet no tile."""
    return replace(walk, n_steps=maximum(walk.n_steps, integer(1)), least=1)


def share(loops: Loops, *, backwards: bool) -> Share | None:
    """The share of a walk of at least one step. All steps where a walk has several stretches, whose tiles are numbered
    through, and where it begins late without a list that says when."""
    stretch, listed = one_stretch(loops), bool(loops.tests)
    if stretch is None or not (listed or (stretch.start == ZERO and loops.full)):
        return None
    early = stretch.start == ZERO
    return Share(
        stretch, backwards, begins=backwards or not early, ends=not (backwards and early), pipelined=listed or backwards
    )


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
