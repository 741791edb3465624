"""How a TPU's kernels walk the runs of their loops: the grid brings the tiles, or a loop takes them from vector memory.

A kernel has the runs as two lists, and one text serves all of them: so these are values over names that stand for any
run, any number of tiles and any step. `n_full` is how many tiles the runs have that need no mask, and `n_partial` those
that do; one fold numbers either kind. Targets print these values; `prove.obligations.tpu_walks` shows what they claim.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, apply, conjunction, index, integer, maximum, minimum, mul, sub
from attngen.ir.nodes import Expr, Op
from attngen.plan.mask.loops import Loops, Rounded, Run
from attngen.plan.mask.walks import AT, HI, LO, STEP, Fold, numbering

N_FULL, N_PARTIAL, N_TILES = (index(name) for name in ("n_full", "n_partial", "n_tiles"))
COUNT, UNROLL, ROUNDS, ROUND, PLACE = (index(name) for name in ("count", "unroll", "rounds", "i", "j"))
LOOPED = index("looped")


@dataclass(frozen=True, slots=True)
class Runs:
    """The lists of one axis: runs of tiles that need no mask, and of those that do."""

    unmasked: tuple[Run, ...]
    masked: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid takes each step of a held tile and brings one walked tile, the unmasked ones first, all numbered as one
    list of runs.

    `number` is which of them a `step` brings: after the last one, the last again, which costs no copy. `brought` is
    where that tile `at` lies among the tensor's `n_tiles`. A step is of the walk without the mask where `unmasked`
    holds, and of the one with it where `masked` does, as its step `own`. Where numbers of tiles are known, the grid has
    as many steps as the held tile with the most `needed`; else as many as `suffice` for each.
    """

    needed: Expr
    suffice: Expr
    number: Expr
    brought: Expr
    unmasked: Expr
    masked: Expr
    own: Expr


@dataclass(frozen=True, slots=True)
class Rounds:
    """A loop over the steps 0 … `count` - 1. Round `i` of `rounds` takes `step` for each j below `unroll`, a power of
    two; from `rest` on steps are taken one by one, unless `unroll` is 1.
    """

    rounds: Rounded
    step: Expr
    rest: Expr


@dataclass(frozen=True, slots=True)
class Resident:
    """A kernel that does not know the numbers of tiles: unmasked tiles in a loop, the first `looped` masked tiles in
    another, and where there are `some`, the step `last` together with what ends the kernel; that alone where there are
    `none`.
    """

    looped: Expr
    some: Expr
    none: Expr
    last: Expr


@dataclass(frozen=True, slots=True)
class Straight:
    """A kernel whose held tiles have few and known numbers of tiles: `rounds` of `unroll` unmasked tiles, `looped` in
    all, in a loop; then without a loop `left` unmasked tiles and all masked ones, number `i` of which is the step
    `unmasked` or `masked`. These are none only where there is no tile at all.
    """

    rounds: Rounded
    looped: Expr
    left: Expr
    unmasked: Expr
    masked: Expr


@dataclass(frozen=True, slots=True)
class TpuWalks:
    """`pairs`: whether tile `at` is in the run `lo` … `hi`, for the kernel that takes each tile of pairs once."""

    keys: Runs
    queries: Runs
    numbering: Fold
    grid: Grid
    rounds: Rounds
    resident: Resident
    straight: Straight
    pairs: Expr


def tpu_walks(keys: Loops, queries: Loops) -> TpuWalks:
    one, zero, total = integer(1), integer(0), add(N_FULL, N_PARTIAL)
    kept_back = minimum(N_PARTIAL, one)  # where no tile is masked, an unmasked one is left for the end
    return TpuWalks(
        keys=Runs(keys.full, keys.partial),
        queries=Runs(queries.full, queries.partial),
        numbering=numbering(),
        grid=Grid(
            needed=maximum(total, one),
            suffice=N_TILES,
            number=minimum(STEP, maximum(sub(total, one), zero)),
            brought=minimum(maximum(AT, zero), sub(N_TILES, one)),
            unmasked=apply(Op.LT, STEP, N_FULL),
            masked=conjunction(apply(Op.LE, N_FULL, STEP), apply(Op.LT, STEP, total)),
            own=sub(STEP, N_FULL),
        ),
        rounds=Rounds(
            rounds=Rounded("rounds", COUNT, up=False),
            step=add(mul(ROUND, UNROLL), PLACE),
            rest=mul(ROUNDS, UNROLL),
        ),
        resident=Resident(
            looped=sub(N_PARTIAL, one),
            some=apply(Op.LT, zero, N_PARTIAL),
            none=apply(Op.LE, N_PARTIAL, zero),
            last=sub(N_PARTIAL, one),
        ),
        straight=Straight(
            rounds=Rounded("rounds", maximum(add(sub(N_FULL, one), kept_back), zero), up=False),
            looped=mul(ROUNDS, UNROLL),
            left=sub(N_FULL, LOOPED),
            unmasked=add(LOOPED, ROUND),
            masked=ROUND,
        ),
        pairs=conjunction(apply(Op.LE, LO, AT), apply(Op.LT, AT, HI)),
    )
