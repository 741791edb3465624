"""The kernels of compute capability 9.0, beside the portable ones: what `templates/gluon/` reads.

Takes the plan, the kernels' code and the loops' ranges, as the Triton emitter has them, gives a `GluonView`, a
`GluonBackwardView`, a `GluonApartView` and what the last two share, a `GluonPairView`.
The expressions are Triton's own text, which Gluon takes as it is; Gluon adds layouts, shared memory and barriers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from attngen.emit.options import TunedGpu
from attngen.emit.text.params import ParamView
from attngen.emit.text.render import bracket
from attngen.emit.text.runs import numbering, total
from attngen.emit.triton.kernel_code import KernelCode
from attngen.emit.triton.param_gradients import GradientView, RowSum
from attngen.emit.triton.tile_loops import RangeView
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.loops import ZERO, Run
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.tiles.hopper import (
    ApartSkeleton,
    BackwardSkeleton,
    apart_skeletons,
    backward_skeletons,
    from_the_diagonal,
    in_turn,
    listed_apart,
    row_terms,
    skeletons,
    slack,
    sums_beside,
    sums_beside_dkdv,
)


@dataclass(frozen=True, slots=True)
class ListView:
    """Where a kernel of its own lists which tiles a tile of the other axis meets, once for all batches and heads that
    do not differ in it. `times`: what the tiles of one list are multiplied by; `place`: the number of the list that a
    batch and a head read; `batch` and `head`: for whom tile `tile`, counted through all lists, is listed.
    """

    times: str
    place: str
    batch: str
    head: str


def _list_view(walked: TileRanges) -> ListView:
    match listed_apart(walked):
        case True, True:
            return ListView(" * B * Hq", "(batch * Hq + head)", "tile // n_tiles // Hq", "tile // n_tiles % Hq")
        case True, False:
            return ListView(" * B", "batch", "tile // n_tiles", "0")
        case False, True:
            return ListView(" * Hq", "head", "0", "tile // n_tiles")
        case _:
            return ListView("", "0", "0", "0")


@dataclass(frozen=True, slots=True)
class OwnWalkView:
    """The steps of a tile's walk at which a warpgroup's own queries meet a tile: `first … stop - 1`; the others it lets
    go by. Empty where that is the walk's own first step, or its end. `pipelined`: so do warpgroups that overlap their
    own products.
    """

    first: str
    stop: str
    pipelined: bool


def _own_walk(keys: RangeView, *, backwards: bool) -> OwnWalkView:
    """All steps where a walk has several stretches, whose tiles are numbered through, and where it begins late without
    a list that says when."""
    _, n_steps = _walk(keys)
    listed = bool(keys.tests)
    if n_steps == "any_hi" and (listed or keys.full):
        return OwnWalkView("n_steps - own_any_hi", "", True) if backwards else OwnWalkView("", "own_any_hi", listed)
    if n_steps == "any_hi - any_lo" and listed:
        first, stop = "own_any_lo - any_lo", "own_any_hi - any_lo"
        if backwards:
            first, stop = f"n_steps - ({stop})", f"n_steps - ({first})"
        return OwnWalkView(first, stop, listed)
    return OwnWalkView("", "", pipelined=False)


@dataclass(frozen=True, slots=True)
class GluonView:
    """The lines `at` bind the tile of `step`, of which there are `n_steps`. `masked` says whether this warpgroup's own
    queries need a mask there, by the bounds `own_results`. `lists`: whose there are, where data decides. `slack`: by
    how many powers of two the reference of weights may lag behind their maximum, or 0.
    """

    arguments: tuple[str, ...]
    unspecialized: list[str]
    lists: ListView | None
    longest_first: bool
    at: tuple[str, ...]
    n_steps: str
    full: tuple[Run, ...]
    own_results: tuple[str, ...]
    masked: str
    own_walk: OwnWalkView
    slack: int
    table: tuple[tuple[tuple[int, int], tuple[int | bool | str, ...]], ...]


def gluon_view(
    plan: KernelPlan,
    keys: RangeView,
    params: tuple[ParamView, ...],
    arguments: tuple[str, ...],
    sizes: tuple[str, ...],
    tile: tuple[int, int] | None,
    tuned: tuple[TunedGpu, ...] = (),
) -> GluonView | None:
    """None where no query has a key, so that there is nothing to be fast at, and where no row has the spec's tile.

    `tuned`: rows that were timed here, in the place of the planner's; and where the portable kernel was faster, none.
    """
    slower = {t.head_block for t in tuned if t.forward}
    rows = {t.dims: t.row for t in tuned if t.row is not None}
    table = {dims: rows.get(dims, row) for dims, row in skeletons(plan, tile).items() if max(dims) not in slower}
    if not table or not (keys.partial or keys.full):
        return None

    full = tuple(Run(_own(r.start), _own(r.stop)) for r in keys.full)
    backwards = from_the_diagonal(plan)
    return GluonView(
        arguments,
        ["n_work", "together", *_unspecialized(params, sizes)],
        _list_view(plan.keys) if keys.tests else None,
        plan.longest_first,
        *_walk(keys, backwards=backwards),
        keys.full,
        tuple(_own(name) for name in keys.results),
        _outside(full),
        _own_walk(keys, backwards=backwards),
        slack(plan),
        tuple((key, skeleton.row) for key, skeleton in table.items()),
    )


def _own(name: str) -> str:
    """The bound `name`, for a warpgroup's own share of a tile."""
    return name if name == ZERO else f"own_{name}"


def _unspecialized(params: tuple[ParamView, ...], sizes: tuple[str, ...]) -> list[str]:
    """The arguments whose value, were it 1 or a multiple of 16, is no reason to compile again."""
    found = [*sizes]
    for p in params:
        found += p.strides[:-1] if p.by_pointer else [p.name]
    return found


def _walk(keys: RangeView, *, backwards: bool = False) -> tuple[tuple[str, ...], str]:
    """How a step's tile is found, and how many there are. One stretch needs no case, and may be walked from its end."""
    runs = (*keys.partial, *keys.full)
    names = ("any_lo", "any_hi")
    if len(keys.full) <= 1 and all(r.start in (*names, ZERO) or r.stop in names for r in keys.partial):
        nth = "n_steps - 1 - step" if backwards else "step"
        if "any_lo" in keys.results:
            return (f"at = any_lo + {nth}",), "any_hi - any_lo"
        return (f"at = {nth}",), "any_hi"
    return numbering(runs, "at"), total(runs)


def _outside(full: tuple[Run, ...]) -> str:
    """Whether the tile `at` lies in none of the runs."""
    outside = [f"at >= {r.stop}" if r.start == ZERO else f"(at < {r.start}) | (at >= {r.stop})" for r in full]
    return outside[0] if len(outside) == 1 else " & ".join(f"({text})" for text in outside) or "True"


# ---------------------------------------------------------------- backward


@dataclass(frozen=True, slots=True)
class GluonPairView:
    """What makes the weights of a tile, keys down and queries across.

    `arguments` are what the scores of a tile read beside its place, `mask_arguments` what its mask reads and they do
    not; `mask` is the mask's code by itself. `slope`: what turns a weight into its share of dS, a factor; `handed` is
    the name of that product, which is the weight's own where there is no factor.
    """

    kernel_arguments: tuple[str, ...]
    arguments: tuple[str, ...]
    mask_arguments: tuple[str, ...]
    mask: KernelCode
    slope: str

    @property
    def handed(self) -> str:
        return "slope_p" if self.slope else "weight"

    @property
    def weighed(self) -> str:
        return "weight, slope_p" if self.slope else "weight"


def gluon_pair_view(code: KernelCode, mask: KernelCode, arguments: tuple[str, ...], factor: str) -> GluonPairView:
    """`code` is the dK/dV kernel's, `mask` that of the mask alone, `factor` what dK needs in every tile."""
    own = ("Sq", "Sk", *(a for a in code.arguments if a not in ("Sk", "k0", "k_idx", "kv_head")))
    return GluonPairView(arguments, own, tuple(a for a in arguments if a not in own), mask, _factor(code) + factor)


def _factor(code: KernelCode) -> str:
    """What a pair's weight is multiplied by for its share of dS."""
    d_pair = code.results["d_pair"]
    return f" * {bracket(d_pair)}" if d_pair != "1.0" else ""


@dataclass(frozen=True, slots=True)
class GluonBackwardView:
    """The lines `walk` make a head's tiles of queries `first … stop - 1`; `masked` says whether the one at `at` needs a
    mask, by the names of `runs`; `lists`: whose there are, where a kernel of its own writes them down; `backwards`:
    tiles of keys may be taken from the last to the first; `row_terms`: products take a row's log-sum-exp off its
    scores, and its delta off dP.

    `elsewhere` are the params (their positions among the gradients) that make the portable kernels run when their
    gradient is wanted.
    """

    arguments: tuple[str, ...]
    unspecialized: list[str]
    walk: tuple[str, ...]
    runs: tuple[str, ...]
    lists: ListView | None
    backwards: bool
    row_terms: bool
    masked: str
    elsewhere: tuple[int, ...]
    table: tuple[tuple[tuple[int, int], tuple[int | bool, ...]], ...]


def gluon_backward_view(
    plan: KernelPlan,
    queries: RangeView,
    params: tuple[ParamView, ...],
    arguments: tuple[str, ...],
    sizes: tuple[str, ...],
    gradients: tuple[GradientView, ...],
    tile: tuple[int, int] | None,
    tuned: tuple[TunedGpu, ...] = (),
) -> GluonBackwardView | None:
    """None where there is no row, or no key meets any. `tuned`: see `gluon_view`."""
    rows = {t.dims: t.backward for t in tuned if isinstance(t.backward, BackwardSkeleton)}
    planned = backward_skeletons(plan, tile)
    known = {
        dims: replace(row, backwards=row.backwards and planned[dims].backwards)
        for dims, row in rows.items()
        if dims in planned
    }
    table = _backward_table(planned, known, tuned)
    if not table or not queries.results:
        return None
    full = dict.fromkeys(name for run in queries.full for name in (run.start, run.stop) if name != ZERO)
    return GluonBackwardView(
        arguments,
        ["n_work", "together", *_unspecialized(params, sizes)],
        _hull(queries),
        ("first", "stop", *full),
        None if in_turn(plan) else _list_view(plan.queries),
        any(skeleton.backwards for skeleton in table.values()),
        row_terms(plan),
        _outside(tuple(Run(_own(r.start), _own(r.stop)) for r in queries.full)),
        _positions(gradients, params, sums_beside(plan)),
        tuple((key, skeleton.row) for key, skeleton in table.items()),
    )


_Row = TypeVar("_Row", BackwardSkeleton, ApartSkeleton)


def _backward_table(
    planned: Mapping[tuple[int, int], _Row], timed: Mapping[tuple[int, int], _Row], tuned: tuple[TunedGpu, ...]
) -> dict[tuple[int, int], _Row]:
    slower = {t.dims for t in tuned if t.portable}
    return {dims: timed.get(dims, row) for dims, row in planned.items() if dims not in slower}


def _positions(
    gradients: tuple[GradientView, ...], params: tuple[ParamView, ...], keywords: tuple[str, ...]
) -> tuple[int, ...]:
    names = {p.name for p in params if p.keyword in keywords}
    return tuple(i for i, g in enumerate(gradients) if g.param in names)


def _in_brackets(condition: str) -> str:
    return f"({condition})" if " | " in condition else condition


def _hull(queries: RangeView) -> tuple[str, ...]:
    """Lines that bind the first tile of all runs, and the one after the last."""
    if "any_hi" in queries.results:  # one stretch, which no more than one run without a mask cuts
        return (f"first = {'any_lo' if 'any_lo' in queries.results else ZERO}", "stop = any_hi")
    lines = ["first = 2**30", "stop = 0"]
    for run in (*queries.full, *queries.partial):
        lines.append(f"first = tl.where({run.start} < {run.stop}, tl.minimum(first, {run.start}), first)")
        lines.append(f"stop = tl.where({run.start} < {run.stop}, tl.maximum(stop, {run.stop}), stop)")
    return (*lines, "first = tl.minimum(first, stop)")


# ---------------------------------------------------------------- backward, dK/dV and dQ apart


@dataclass(frozen=True, slots=True)
class WalkView:
    """The tiles that one kernel walks: the lines `at` bind that of `step`, of which there are `n_steps`, by the ends of
    runs, `ends`; `masked` says whether it needs a mask. `lists`: whose there are, where data decides, and a kernel of
    its own writes the ends down for each tile that is held.
    """

    ends: tuple[str, ...]
    at: tuple[str, ...]
    n_steps: str
    masked: str
    lists: ListView | None


def _walk_view(found: RangeView, walked: TileRanges) -> WalkView:
    lists = _list_view(walked) if found.tests else None
    return WalkView(found.results, *_walk(found), _in_brackets(_outside(found.full)), lists)


@dataclass(frozen=True, slots=True)
class GluonApartView:
    """`item` is the number of a dQ program's tile, `slope` what turns a weight into its share of dS there, a factor;
    `summed` whether it sums the gradient of a param.
    `elsewhere` as in `GluonBackwardView`, of the dK/dV kernel alone.
    """

    arguments: tuple[str, ...]
    unspecialized: list[str]
    queries: WalkView
    keys: WalkView
    item: str
    slope: str
    summed: str
    elsewhere: tuple[int, ...]
    table: tuple[tuple[tuple[int, int], tuple[tuple[int | bool, ...], ...]], ...]

    @property
    def handed(self) -> str:
        return "slope_p" if self.slope else "p"

    @property
    def weighed(self) -> str:
        return "p, slope_p" if self.slope else "p"


def gluon_apart_view(
    plan: KernelPlan,
    queries: RangeView,
    keys: RangeView,
    dq: KernelCode,
    sums: tuple[RowSum, ...],
    params: tuple[ParamView, ...],
    arguments: tuple[str, ...],
    sizes: tuple[str, ...],
    gradients: tuple[GradientView, ...],
    tile: tuple[int, int] | None,
    tuned: tuple[TunedGpu, ...] = (),
) -> GluonApartView | None:
    """`dq` is the dQ kernel's code, `sums` what it sums. None where there is no row, or no key meets any query.
    `tuned`: see `gluon_view`.
    """
    rows = {t.dims: t.backward for t in tuned if isinstance(t.backward, ApartSkeleton)}
    table = _backward_table(apart_skeletons(plan, tile), rows, tuned)
    if not table or not queries.results or not keys.results:
        return None
    return GluonApartView(
        arguments,
        ["n_work", "together", *_unspecialized(params, sizes)],
        _walk_view(queries, plan.queries),
        _walk_view(keys, plan.keys),
        "n_work - 1 - gl.program_id(0)" if plan.longest_first else "gl.program_id(0)",
        _factor(dq),
        " or ".join(dict.fromkeys(s.flag for s in sums)),
        _positions(gradients, params, sums_beside_dkdv(plan)),
        tuple((key, skeleton.row) for key, skeleton in table.items()),
    )
