"""The backward kernels of compute capability 9.0, beside the portable ones: what `templates/gluon/` reads.

Takes the plan, the kernels' code and the loops' ranges, as the Triton emitter has them, returns a `GluonBackwardView`,
a `GluonApartView` and what both share, a `GluonPairView`. `hopper_forward` has the forward kernel.
The expressions are Triton's own text, which Gluon takes as it is; Gluon adds layouts, shared memory and barriers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from attngen.emit.options import TunedGpu
from attngen.emit.text.params import ParamView
from attngen.emit.text.render import bracket
from attngen.emit.triton.expressions import Printer
from attngen.emit.triton.kernel_code import KernelCode
from attngen.emit.triton.param_gradients import GradientView, RowSum
from attngen.plan.hopper import (
    ApartSkeleton,
    BackwardSkeleton,
    Dims,
    HopperApart,
    HopperBackward,
    ListedWalk,
    Lists,
)
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.loops import ZERO, Assigned, Loops
from attngen.plan.mask.walks import outside


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


def list_view(lists: Lists | None) -> ListView | None:
    match lists:
        case None:
            return None
        case True, True:
            return ListView(" * B * Hq", "(batch * Hq + head)", "tile // n_tiles // Hq", "tile // n_tiles % Hq")
        case True, False:
            return ListView(" * B", "batch", "tile // n_tiles", "0")
        case False, True:
            return ListView(" * Hq", "head", "0", "tile // n_tiles")
        case _:
            return ListView("", "0", "0", "0")


def assigned_lines(steps: tuple[Assigned, ...], printer: Printer) -> tuple[str, ...]:
    return tuple(f"{s.name} = {printer.text(s.value)}" for s in steps)


def unspecialized(params: tuple[ParamView, ...], sizes: tuple[str, ...]) -> list[str]:
    """The arguments whose value, were it 1 or a multiple of 16, is no reason to compile again."""
    found = [*sizes]
    for p in params:
        found += p.strides[:-1] if p.by_pointer else [p.name]
    return found


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
    return f" * {bracket(d_pair)}" if d_pair else ""


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
    backward: HopperBackward | None,
    printer: Printer,
    params: tuple[ParamView, ...],
    arguments: tuple[str, ...],
    sizes: tuple[str, ...],
    gradients: tuple[GradientView, ...],
    tuned: tuple[TunedGpu, ...] = (),
) -> GluonBackwardView | None:
    """None where the plan has no row. `tuned`: see `gluon_view`."""
    if backward is None:
        return None
    planned = dict(backward.rows)
    rows = {t.dims: t.backward for t in tuned if isinstance(t.backward, BackwardSkeleton)}
    known = {
        dims: replace(row, backwards=row.backwards and planned[Dims(*dims)].backwards)
        for dims, row in rows.items()
        if dims in planned
    }
    table = _backward_table(planned, known, tuned)
    if not table:
        return None
    ends = dict.fromkeys(name for run in backward.unmasked for name in (run.start, run.stop) if name != ZERO)
    return GluonBackwardView(
        arguments,
        ["n_work", "together", *unspecialized(params, sizes)],
        assigned_lines(backward.hull.steps, printer),
        ("first", "stop", *(name.removeprefix("own_") for name in ends)),
        list_view(backward.lists),
        any(skeleton.backwards for skeleton in table.values()),
        backward.row_terms,
        printer.text(outside(backward.unmasked)),
        _positions(gradients, params, backward.elsewhere),
        tuple(((key[0], key[1]), skeleton.row) for key, skeleton in table.items()),
    )


_Row = TypeVar("_Row", BackwardSkeleton, ApartSkeleton)


def _backward_table(
    planned: Mapping[Dims, _Row], timed: Mapping[tuple[int, int], _Row], tuned: tuple[TunedGpu, ...]
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


def _walk_view(found: ListedWalk, loops: Loops, printer: Printer) -> WalkView:
    walk = found.walk
    masked = _in_brackets(printer.text(outside(found.unmasked)))
    return WalkView(
        loops.names, assigned_lines(walk.at, printer), printer.text(walk.n_steps), masked, list_view(found.lists)
    )


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
    apart: HopperApart | None,
    printer: Printer,
    dq: KernelCode,
    sums: tuple[RowSum, ...],
    params: tuple[ParamView, ...],
    arguments: tuple[str, ...],
    sizes: tuple[str, ...],
    gradients: tuple[GradientView, ...],
    tuned: tuple[TunedGpu, ...] = (),
) -> GluonApartView | None:
    """`dq` is the dQ kernel's code, `sums` what it sums. None where the plan has no row. `tuned`: see `gluon_view`."""
    if apart is None:
        return None
    rows = {t.dims: t.backward for t in tuned if isinstance(t.backward, ApartSkeleton)}
    table = _backward_table(dict(apart.rows), rows, tuned)
    if not table:
        return None
    return GluonApartView(
        arguments,
        ["n_work", "together", *unspecialized(params, sizes)],
        _walk_view(apart.queries, plan.query_loops, printer),
        _walk_view(apart.keys, plan.key_loops, printer),
        "n_work - 1 - gl.program_id(0)" if plan.longest_first else "gl.program_id(0)",
        _factor(dq),
        " or ".join(dict.fromkeys(s.flag for s in sums)),
        _positions(gradients, params, apart.elsewhere),
        tuple(((key[0], key[1]), skeleton.row) for key, skeleton in table.items()),
    )
