"""The backward kernels of compute capability 9.0, beside the portable ones: what `templates/triton/hopper/` reads.

Takes the plan, the kernels' code and the loops' ranges, as the Triton emitter has them, returns a `GluonBackwardView`,
a `GluonApartView` and what both share, a `GluonPairView`. `hopper/forward.py` has the forward kernel.
The expressions are Triton's own text, which Gluon takes as it is; Gluon adds layouts, shared memory and barriers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from attngen.emit.options import TunedGpu
from attngen.emit.text.params import ParamView
from attngen.emit.text.render import bracket
from attngen.emit.triton.code.expressions import Printer
from attngen.emit.triton.code.kernel_code import KernelCode
from attngen.emit.triton.code.lists import ListView, host_text, list_view
from attngen.emit.triton.code.tile_loops import assigned_lines
from attngen.emit.triton.hopper.shares import host_lines
from attngen.emit.triton.portable.kernels import BITS
from attngen.emit.triton.portable.map import MapView, found_of, of_map
from attngen.emit.triton.portable.param_gradients import GradientView, RowSum
from attngen.plan.hopper import (
    ApartSkeleton,
    BackwardSkeleton,
    Dims,
    DkdvSkeleton,
    DqSkeleton,
    HopperApart,
    HopperPlan,
    ListedWalk,
)
from attngen.plan.index import items
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.loops import ZERO
from attngen.plan.mask.walks import outside
from attngen.plan.table import Table, keyed


def unspecialized(params: tuple[ParamView, ...], sizes: tuple[str, ...]) -> list[str]:
    """The arguments whose value, were it 1 or a multiple of 16, is no reason to compile again."""
    found = [*sizes]
    for p in params:
        found += p.unspecialized
    return found


SEQUENCES = "sequences"
"""Stands in keys of tables after the head dims: a row for packed sequences and lengths."""

PLACES = {False: "places_dense", True: "places_listed"}
"""The template of where an item's rows are, by whether it may be a tile of a sequence."""

ITEM_ROWS = {False: "batch", True: "batch, q_rows, k_rows"}
"""What a kernel knows of where an item's rows are, by the same."""

LISTED_ENTRY, LISTED_TILE, LISTED_MASKED = "entry = gl.load(met + at)", "(entry >> 1)", "entry % 2 == 0"
"""What a map's list says of the step `at`, the tile that it names, and whether that needs a mask."""

_KEPT = "_kept_bits(no_pairs, at * BQ, k0, batch, head, kv_head, call, config, HALF)"
_WORDS = "sm90.pair_words(no_pairs, bits + at * (config.BK * BQ // 32))"
"""The mask of the tile of queries `at`: a number for two pairs, and where a map has bits, their words."""


# ---------------------------------------------------------------- backward


@dataclass(frozen=True, slots=True, kw_only=True)
class GluonPairView:
    """What makes the weights of a tile, keys down and queries across.

    `terms`, names of a tuple, are what the scores of a tile read beside its place; `mask` is the mask's code by itself.
    `weights` are the names of the pairs' weights and, where it is not one, of that times what the score grows with
    q . k, which `products` bind from `p`; the last of them makes dS.
    """

    terms: str
    mask: KernelCode
    products: tuple[tuple[str, str], ...]

    @property
    def weights(self) -> tuple[str, ...]:
        return ("weight", *(name for name, _ in self.products))


def gluon_pair_view(code: KernelCode, mask: KernelCode, factor: str) -> GluonPairView:
    """`code` is the dK/dV kernel's, `mask` that of the mask alone, `factor` what dK needs in every tile."""
    own = (a for a in code.arguments if a not in ("Sk", "k0", "k_idx", "kv_head"))
    return GluonPairView(terms=_terms("Sq", "Sk", *own), mask=mask, products=_slope(_factor(code) + factor))


def _terms(*names: str) -> str:
    """The elements of a tuple, without those of the kernel's configuration."""
    own = [name for name in names if name != "FAST"]
    return ", ".join(own) + ("," if len(own) == 1 else "")


def _slope(factor: str) -> tuple[tuple[str, str], ...]:
    return (("slope_p", f"p{factor}"),) if factor else ()


def _factor(code: KernelCode) -> str:
    """What a pair's weight is multiplied by for its share of dS."""
    d_pair = code.results["d_pair"]
    return f" * {bracket(d_pair)}" if d_pair else ""


def limited(names: tuple[str, ...]) -> tuple[str, ...]:
    """Ends of runs, brought to `stop`."""
    return tuple(f"items.limited({name}, stop)" for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class GluonBackwardView:
    """`work` are the pointers and counts that the kernel takes after its descriptors. The lines `walk` make a head's
    tiles of queries `first … stop - 1`, of which a warpgroup's half of the keys takes a part; `masked` says whether the
    one at `at` needs a mask, by the names of `runs`, and the lines `cut` make all need it where the end cuts the half;
    `lists`: whose there are, where a kernel of its own writes them down; `backwards`: tiles of keys may be taken from
    the last to the first; `row_terms`: products take a row's log-sum-exp off its scores, and its delta off dP.

    `elsewhere` are the params (their positions among the gradients) that make the portable kernels run when their
    gradient is wanted. The lines `shared` bind how query heads that share keys are divided among items, and in which
    order these are taken; `listed_shared` where items are tiles of all sequences. `room`: how many counters of a kind
    there are. `sequences`: whether it also takes tiles of sequences.
    """

    unspecialized: list[str]
    work: tuple[str, ...]
    walk: tuple[str, ...]
    cut: tuple[str, ...]
    runs: tuple[str, ...]
    lists: ListView | None
    backwards: bool
    row_terms: bool
    masked: str
    elsewhere: tuple[int, ...]
    shared: tuple[str, ...]
    listed_shared: tuple[str, ...]
    room: str
    sequences: bool
    table: Table
    map: MapView | None

    @property
    def mapped(self) -> bool:
        return self.map is not None

    @property
    def own_bits(self) -> tuple[str, ...]:
        """Moves to the bits of this warpgroup's keys."""
        return ("bits += PART * (HALF * config.BQ // 32)",) if self.by_bits else ()

    @property
    def by_bits(self) -> bool:
        return self.map is not None and self.map.as_bits

    @property
    def held(self) -> tuple[str, ...]:
        """What a warpgroup knows of its keys."""
        return ("batch", "head", "kv_head", "k0", "k_idx", *(("bits",) if self.by_bits else ()))

    @property
    def places(self) -> str:
        """The template of where an item's rows are."""
        return PLACES[self.sequences]

    @property
    def item_rows(self) -> str:
        """What `_query_runs` takes of where an item's rows are."""
        return ITEM_ROWS[self.sequences and self.mapped]

    @property
    def tile(self) -> str:
        """The tile of queries of a step."""
        return LISTED_TILE if self.mapped else "at"

    @property
    def entry(self) -> tuple[str, ...]:
        """Binds what a map's list says of the step `at`."""
        return (LISTED_ENTRY,) if self.mapped else ()

    @property
    def asked(self) -> tuple[str, ...]:
        """Asks for the mask of a tile while the product of the scores runs: most tiles of a map need it."""
        if not self.mapped:
            return ()
        ahead = (
            (f"    words = {_WORDS}",)
            if self.by_bits
            else ("    kept = sm90.packed(no_pairs, dtype) | -1", "    if masked:", f"        kept = {_KEPT}")
        )
        return ("if not config.EARLY:  # then there are registers for it", *ahead)

    def forbidding(self, weights: tuple[str, ...]) -> tuple[str, ...]:
        """Takes the weights off that the mask forbids."""
        taken = tuple(f"    {name} &= kept" for name in weights)
        if self.by_bits:
            late = ("    if config.EARLY:", f"        words = {_WORDS}")
            return "if masked:", *late, "    kept = _kept_bits(no_pairs, words, config)", *taken
        first = ("if not config.EARLY:", *taken, "elif masked:") if self.mapped else ("if masked:",)
        return (*first, f"    kept = {_KEPT}", *taken)

    @property
    def named(self) -> tuple[str, ...]:
        """The same for kernels that ask for the tile alone."""
        return ("at = gl.load(met + at) >> 1",) if self.mapped else ()

    @property
    def way(self) -> str:
        """Whether tiles of keys may go backwards, as the kernel knows it."""
        return "config.BACKWARDS" if self.backwards else "False"

    @property
    def rows(self) -> str:
        """The template of what takes log-sum-exps and delta off."""
        return "rows_in_products" if self.row_terms else "rows_in_threads"

    @property
    def turns(self) -> str:
        """The template of who adds to a tile of dQ before a tile of keys."""
        return "order_mapped" if self.mapped else "order_listed" if self.lists else "order_before"

    @property
    def dk_over_ds(self) -> str:
        """Whether dK takes the shared memory of dS at its end: beside terms there is no other room for 128 columns."""
        return "BLOCK_D == 128" if self.row_terms else "False"

    @property
    def row_arrivals(self) -> int:
        """How often the producer arrives at the barrier of a tile of queries: again where it stores rows itself."""
        return 1 if self.row_terms else 2


def gluon_backward_view(
    hopper: HopperPlan,
    printer: Printer,
    params: tuple[ParamView, ...],
    sizes: tuple[str, ...],
    gradients: tuple[GradientView, ...],
    tuned: tuple[TunedGpu, ...] = (),
    *,
    map: MapView | None,
    sequences: bool,
) -> GluonBackwardView | None:
    """None where the plan has no row. `map`: which names tiles. `tuned` and `sequences`: see `gluon_view`."""
    backward = hopper.backward
    if backward is None:
        return None
    planned = dict(backward.rows)
    rows = {t.dims: t.backward for t in tuned if isinstance(t.backward, BackwardSkeleton)}
    known = {
        dims: replace(row, backwards=row.backwards and planned[Dims(*dims)].backwards)
        for dims, row in rows.items()
        if dims in planned
    }
    table: dict[tuple[int | str, ...], BackwardSkeleton] = {**_backward_table(planned, known, tuned)}
    mapped = map is not None
    sequences = sequences and (mapped or not backward.lists)
    if not table:
        return None
    if sequences:
        table |= {(*dims, SEQUENCES): row for dims, row in backward.of_sequences}
    ends = dict.fromkeys(name for run in backward.unmasked for name in (run.start, run.stop) if name != ZERO)
    own_ends = tuple(name.removeprefix("own_") for name in ends)
    rows = ("terms_desc",) if backward.row_terms else ("lse_ptr", "delta_ptr")
    lists = ("walks_ptr", "met_ptr") if backward.lists else ()
    lists = ("met_ptr", "map_ptr", *of_map(map)) if mapped else lists
    return GluonBackwardView(
        unspecialized=[
            *("n_work", "together", "span"),
            *(("q_slots", "k_slots") if sequences else ()),
            *unspecialized(params, sizes),
        ],
        work=(
            *rows,
            "dq_parts_ptr",
            "parts_ptr",
            "added_ptr",
            "queue_ptr",
            "n_work",
            "together",
            "span",
            *lists,
        ),
        walk=assigned_lines(backward.hull.steps, printer),
        cut=tuple(f"own_{name} = items.unless_cut(own_{name}, k0, HALF, Sk)" for name in own_ends),
        runs=("first", "stop", *found_of(map)) if mapped else ("first", "stop", *own_ends),
        lists=list_view(backward.lists),
        backwards=any(skeleton.backwards for skeleton in table.values()),
        row_terms=backward.row_terms,
        masked=LISTED_MASKED if mapped else printer.text(outside(backward.unmasked)),
        elsewhere=_positions(gradients, params, backward.elsewhere),
        shared=host_lines(items().of("share_count"), backward.grouped),
        listed_shared=host_lines(items().of("share_count"), backward.grouped, sequences=True),
        room=host_text(items().of("counters")),
        sequences=sequences,
        table=Table(
            kernel="_hopper_backward_kernel",
            kind=BackwardSkeleton,
            rows=keyed(table.items()),
        ),
        map=map,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisView:
    """An axis as a kernel names it. `start … stop` are the positions of a tile, `index` those of its elements, `size`
    the length, `tile` that of a tile; `tiles` is the function that finds tiles of this axis.
    """

    name: str
    start: str
    stop: str
    index: str
    size: str
    tile: str
    tiles: str


_QUERIES = AxisView(name="queries", start="q0", stop="q1", index="q_idx", size="Sq", tile="BQ", tiles="_query_tiles")
_KEYS = AxisView(name="keys", start="k0", stop="k1", index="k_idx", size="Sk", tile="BK", tiles="_key_tiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkView:
    """The tiles of `walked` that one kernel walks: the lines `at` bind that of `step`, of which there are `n_steps`, by
    the ends of runs, `ends`, which `function` returns for a tile of `held`; `masked` says
    whether it needs a mask.
    `lists`: whose there are, where data decides, and a kernel of its own, `lister`, writes the ends down for each tile
    that is held.
    """

    held: AxisView
    walked: AxisView
    ends: tuple[str, ...]
    at: tuple[str, ...]
    n_steps: str
    masked: str
    lists: ListView | None
    mapped: bool

    @property
    def tile(self) -> str:
        """The tile of a step."""
        return LISTED_TILE if self.mapped else "at"

    @property
    def own_bits(self) -> tuple[str, ...]:
        """Moves to the bits of a warpgroup's 64 queries."""
        return ("bits += PART * (64 * BK // 32)",) if BITS in self.ends else ()

    @property
    def function(self) -> str:
        return f"_{self.walked.name}_met"

    @property
    def limited(self) -> tuple[str, ...]:
        return limited(self.ends)

    @property
    def lister(self) -> str:
        return f"_list{self.function}"


def _walk_view(found: ListedWalk, printer: Printer, held: AxisView, walked: AxisView, map: MapView | None) -> WalkView:
    at, mapped = assigned_lines(found.walk.at, printer), map is not None
    return WalkView(
        held=held,
        walked=walked,
        ends=found.loops.names + found_of(map),
        at=(*at, LISTED_ENTRY) if mapped else at,
        n_steps=printer.text(found.walk.n_steps),
        masked=LISTED_MASKED if mapped else _in_brackets(printer.text(outside(found.unmasked))),
        lists=list_view(found.lists),
        mapped=mapped,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GluonApartView:
    """`dkdv_work` and `dq_work` are the pointers and counts that each kernel takes after its descriptors, `dq_config`
    what the dQ kernel is compiled for. `late`: the last tiles of queries are the longest. `dq_terms`, names of a tuple,
    are what scores read there. `weights` are the names of the pairs' weights and, where it is not one, of that times
    what the score grows with q . k, which `products` bind; the last of them makes dS. `summed`: whether it sums the
    gradient of a param.
    `elsewhere` as in `GluonBackwardView`, of the dK/dV kernel alone.
    """

    unspecialized: list[str]
    queries: WalkView
    keys: WalkView
    dkdv_work: tuple[str, ...]
    dq_work: tuple[str, ...]
    dq_config: tuple[str, ...]
    late: bool
    dq_terms: str
    products: tuple[tuple[str, str], ...]
    summed: str
    elsewhere: tuple[int, ...]
    dkdv: Table
    dq: Table

    @property
    def weights(self) -> tuple[str, ...]:
        return ("p", *(name for name, _ in self.products))

    @property
    def kept(self) -> str:
        """The bits of the mask of a tile of queries, in the dK/dV kernel."""
        if BITS in self.queries.ends:
            return f"_kept_bits(qk, sm90.pair_words(qk, bits + {self.queries.tile} * (BK * BQ // 32)), config)"
        return f"_kept_bits(qk, {self.queries.tile} * BQ, k0, batch, head, kv_head, call, config, BK)"


def gluon_apart_view(
    plan: KernelPlan,
    apart: HopperApart | None,
    printer: Printer,
    dq: KernelCode,
    sums: tuple[RowSum, ...],
    params: tuple[ParamView, ...],
    flags: tuple[str, ...],
    sizes: tuple[str, ...],
    gradients: tuple[GradientView, ...],
    tuned: tuple[TunedGpu, ...] = (),
    *,
    map: MapView | None,
) -> GluonApartView | None:
    """`dq` is the dQ kernel's code, `sums` what it sums, if it is asked to by `flags`. None where the plan has no row.
    `tuned`, `map`: see `gluon_view`.
    """
    if apart is None:
        return None
    rows = {t.dims: t.backward for t in tuned if isinstance(t.backward, ApartSkeleton)}
    table = _backward_table(dict(apart.rows), rows, tuned)
    if not table:
        return None
    work = ("lse_ptr", "delta_ptr"), ("n_work", "together")
    listed = of_map(map) or ("walks_ptr",)
    sizes_of_tiles = ("D", "Dv", "BLOCK_D", "BLOCK_DV", "BQ", "BK")
    return GluonApartView(
        unspecialized=["n_work", "together", *unspecialized(params, sizes)],
        queries=_walk_view(apart.queries, printer, _KEYS, _QUERIES, map),
        keys=_walk_view(apart.keys, printer, _QUERIES, _KEYS, map),
        dkdv_work=(*work[0], *work[1], *(listed if apart.queries.lists else ())),
        dq_work=(*work[0], *(s.pointer for s in sums), *work[1], *(listed if apart.keys.lists else ())),
        dq_config=(*sizes_of_tiles, *flags, "FAST"),
        late=plan.longest_first,
        dq_terms=_terms("Sk", *dq.arguments),
        products=_slope(_factor(dq)),
        summed=" or ".join(dict.fromkeys(f"config.{s.flag}" for s in sums)),
        elsewhere=_positions(gradients, params, apart.elsewhere),
        dkdv=Table(
            kernel="_hopper_dkdv_kernel",
            kind=DkdvSkeleton,
            rows=keyed((dims, row.dkdv) for dims, row in table.items()),
        ),
        dq=Table(
            kernel="_hopper_dq_kernel",
            kind=DqSkeleton,
            rows=keyed((dims, row.dq) for dims, row in table.items()),
        ),
    )
