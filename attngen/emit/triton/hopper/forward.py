"""The forward kernel of compute capability 9.0, beside the portable one: what `hopper/forward.py.j2` reads.

Takes the plan, the forward kernel's code and the loops' ranges, as the Triton emitter has them, returns a `GluonView`.
The expressions are Triton's own text, which Gluon takes as it is; Gluon adds layouts, shared memory and barriers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from attngen.emit.options import TunedGpu
from attngen.emit.text.weights import WeightView
from attngen.emit.triton.code.expressions import Printer
from attngen.emit.triton.code.kernel_code import KernelCode, free_names
from attngen.emit.triton.code.lists import ListView, list_view
from attngen.emit.triton.code.test_views import TestView
from attngen.emit.triton.code.tile_loops import assigned_lines
from attngen.emit.triton.hopper.backward import (
    ITEM_ROWS,
    LISTED_ENTRY,
    LISTED_MASKED,
    LISTED_TILE,
    PLACES,
    SEQUENCES,
    limited,
    unspecialized,
)
from attngen.emit.triton.portable.frame import Frame
from attngen.emit.triton.portable.kernels import kept_view
from attngen.emit.triton.portable.map import MapView, found_of, of_map
from attngen.emit.triton.portable.views import KeptView, KernelView
from attngen.ir.nodes import Symbol, Type
from attngen.plan.hopper import Fetched, HopperForward, Skeleton
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.loops import Loops
from attngen.plan.mask.walks import Share, outside, own
from attngen.plan.score.weights import Form
from attngen.plan.table import Table, keyed

_CONVERTED = "gl.convert_layout(weight.to(config.dtype), weight_layout)"
_WITH_EXTRA = "acc, row_sum, total = sm90.with_extra(acc, row_sum, total, extra)"
_TILES = ("BLOCK_D", "BLOCK_DV", "BQ", "BK", "STAGES", "SCHEDULE", "ORDERED", "OUT_APART", "PIPELINED")
_DERIVED = ("Q_COLS", "K_COLS", "K_PARTS", "PARTS", "ORDER", "dtype", "qk_layout")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormView:
    """What depends on the form of the weights, whose functions are in `template`. `state` are the running numbers of a
    row, `weighed` is what `_weigh` returns.

    `begin` binds the state of rows that have met no key, and `rescale` brings earlier products to a new reference.
    `operand` is the weights as the next product reads them. The function `normalize` takes `closed` and returns
    `normalized`. If it is the file's own, `closing` are its parameters, `extra_lines` in it add the denominator's extra
    term, and `empty` says which rows have met no key.
    """

    template: str
    state: tuple[str, ...]
    begin: tuple[str, ...]
    weighed: tuple[str, ...]
    rescale: tuple[str, ...]
    operand: str
    normalize: str
    closing: tuple[str, ...]
    closed: tuple[str, ...]
    normalized: tuple[str, ...]
    extra_lines: tuple[str, ...]
    empty: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareView:
    """The steps of a tile's walk at which a warpgroup's own queries meet a tile: `first … stop - 1`. The lines `bound`
    bind these. `released_before` and `released_after` release the tiles of the other steps.
    """

    first: str
    stop: str
    bound: tuple[str, ...]
    released_before: tuple[str, ...]
    released_after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedView:
    """The param `param`, of pairs, whose tiles come with those of keys where the kernel's constant FETCHES holds, and
    `place`, where the tile of a warpgroup begins in the tensor, for the producer."""

    param: str
    place: tuple[str, ...]

    @property
    def box(self) -> str:
        """The shape of a tile."""
        return ", ".join([*["1"] * (len(self.place) - 2), "64", "BK"])


@dataclass(frozen=True, slots=True, kw_only=True)
class GluonView:
    """`call` and `config` are the fields of what travels together, `outputs` the pointers through which results are
    stored; `arguments` and `constants` are those of the kernel.

    `key_runs` is the template of the function that returns `ends`, the ends of runs of tiles of keys, for some queries.
    The lines `at` bind the tile of `step`, of which there are `n_steps`; `masked` says whether this warpgroup's own
    queries need a mask there. `walked` are the ends that these two read. `terms` are what the weights of a tile read
    beside its scores. `lists`: whose lists there are, where data decides. `slack`: by how many powers of two the
    reference of weights may lag behind their maximum, or 0. `sequences`: whether it also takes tiles of sequences.
    `fetched`: elements of pairs that come by tiles, if any do. `order`: the constants of `items.tile_of_item`.
    `narrow`: q, k and v are 8-bit floats.
    """

    code: KernelCode
    kernel: KernelView
    kept: KeptView | None
    tests: tuple[TestView, ...]
    test_pointers: tuple[str, ...]
    outputs: tuple[str, ...]
    call: tuple[str, ...]
    arguments: tuple[str, ...]
    config: tuple[str, ...]
    constants: tuple[str, ...]
    unspecialized: list[str]
    lists: ListView | None
    map: MapView | None
    order: str
    key_runs: str
    ends: tuple[str, ...]
    at: tuple[str, ...]
    n_steps: str
    walked: tuple[str, ...]
    terms: tuple[str, ...]
    masked: str
    share: ShareView
    form: FormView
    slack: int
    saves_den: bool
    saves_rest: bool
    sequences: bool
    table: Table
    fetched: FetchedView | None
    narrow: bool

    @property
    def values(self) -> str:
        """The tile of values of a turn, yet to be named, as the product with weights reads it."""
        if self.narrow:
            return "sm90.arrived(rings.v, {}, config.BLOCK_DV, BK).permute((1, 0))"
        return "sm90.arrived(rings.v, {}, BK, config.BLOCK_DV)"

    @property
    def value_shape(self) -> tuple[str, str]:
        return ("BLOCK_DV", "BK") if self.narrow else ("BK", "BLOCK_DV")

    @property
    def value_box(self) -> tuple[str, ...]:
        """Where a tile of values begins."""
        return ("0", "v0") if self.narrow else ("v0",)

    @property
    def weight_width(self) -> int:
        """How many neighbouring weights a thread has in a register."""
        return 4 if self.narrow else 2

    @property
    def depth(self) -> int:
        """How many numbers of a row one instruction multiplies: 32 bytes of them."""
        return 32 if self.narrow else 16

    @property
    def multiplied(self) -> str:
        """The weights that values are multiplied by. `p` of 8-bit floats are words."""
        return "quads.as_operand(p, weight_layout)" if self.narrow else "p"

    @property
    def scaled(self) -> tuple[str, ...]:
        scale = self.code.results["value_scale"]
        return (f"acc *= {scale}",) if scale else ()

    @property
    def ahead(self) -> tuple[str, ...]:
        """Asks for the bits of a step's pairs, before its scores."""
        if not self.by_bits:
            return ()
        return (
            f"if {self.masked}:",
            f"    words = sm90.pair_words(no_scores, bits + {self.tile} * (BK // 32 * config.BQ))",
        )

    @property
    def own_bits(self) -> tuple[str, ...]:
        """Moves to the bits of this warpgroup's queries."""
        return ("bits += PART * (64 * BK // 32)",) if self.by_bits else ()

    @property
    def first_words(self) -> tuple[str, ...]:
        """Any words, for tiles that need no mask."""
        return ("words = sm90.pair_words(no_scores, bits)",) if self.by_bits else ()

    @property
    def by_bits(self) -> bool:
        return self.map is not None and self.map.as_bits

    @property
    def mask_lines(self) -> tuple[str, ...]:
        return ("allowed = sm90.kept_pairs(qk, words)",) if self.by_bits else self.code.mask_lines

    @property
    def item_rows(self) -> str:
        """What `_key_runs` takes of where an item's rows are."""
        return ITEM_ROWS[self.sequences and self.map is not None]

    @property
    def tiles_met(self) -> str:
        """The tiles of keys that an item's queries meet."""
        call = "own" if self.sequences else "call"
        given = f"work, {call}, config" if self.map else f"{call}, config, BQ"
        return f"_key_runs(q0, {self.item_rows}, head, kv_head, {given})"

    @property
    def work(self) -> tuple[str, ...]:
        """What says which items a program takes, and where the tiles that it walks are listed."""
        own = ("n_tiles", "items_ptr", *(("q_slots",) if self.map else ())) if self.sequences else ()
        return ("notes", "queue_ptr", "n_work", "together", *own, *of_map(self.map))

    @property
    def descriptors(self) -> tuple[str, ...]:
        """What the producer reads tensors by."""
        return ("q_desc", "k_desc", "v_desc", *(("pairs_desc",) if self.fetched else ()))

    @property
    def tile(self) -> str:
        """The tile of keys of a step."""
        return LISTED_TILE if self.map else "at"

    @property
    def elements(self) -> str:
        """The template of how elements of pairs come."""
        return "elements_fetched" if self.fetched else "elements_loaded"

    @property
    def scored(self) -> tuple[str, ...]:
        """A tile's products, and what else of its pairs and keys is there."""
        return ("qk", *(("pairs",) if self.fetched else ()), *(("words",) if self.by_bits else ()))

    @property
    def places(self) -> str:
        """The template of where an item's rows are."""
        return PLACES[self.sequences]

    @property
    def unpacked_terms(self) -> str:
        return f"{self.terms[0]}," if len(self.terms) == 1 else ", ".join(self.terms)

    @property
    def cleared(self) -> tuple[str, ...]:
        """Unpacks what `clearing` and `ahead` read."""
        return (f"{self.unpacked_terms} = terms",) if self.kept or self.by_bits else ()

    @property
    def clearing(self) -> str:
        """Clears the rows of the tile of values of a step, yet to be named, whose keys no query may attend to."""
        arguments = ", ".join(self.kept.arguments if self.kept else ())
        values = self.values.replace("{}", "turn + {}")
        return f"_clear_rows({values}, {self.tile} * BK, {arguments}, BK, config.BLOCK_DV)"

    @property
    def limited(self) -> tuple[str, ...]:
        return limited(self.ends)

    @property
    def listed_ends(self) -> tuple[str, ...]:
        return tuple(f"gl.load(ends{f' + {i}' if i else ''})" for i in range(len(self.ends)))


def gluon_view(
    frame: Frame,
    forward: HopperForward | None,
    code: KernelCode,
    weights: WeightView,
    tests: tuple[TestView, ...],
    tuned: tuple[TunedGpu, ...] = (),
    *,
    map: MapView | None,
    sequences: bool,
) -> GluonView | None:
    """None where no query has a key, so that there is nothing to be fast at, and where the plan has no row. `tests` are
    those of keys.

    `tuned`: rows that were timed here, in the place of the planner's; and where the portable kernel was faster, none.
    `sequences`: the file has other geometries, too; the kernel serves them where no data decides which tiles meet.
    """
    if forward is None or not forward.walk.runs:
        return None
    slower = {t.head_block for t in tuned if t.forward}
    rows = {t.dims: t.row for t in tuned if t.row is not None}
    sequences = sequences and (map is not None or forward.lists is None)
    table: dict[tuple[int | str, ...], Skeleton] = {
        dims: rows.get(dims, row) for dims, row in forward.rows if max(dims) not in slower
    }
    if sequences:
        table |= {(*dims, SEQUENCES): row for dims, row in forward.of_sequences}
    if not table:
        return None
    plan, printer = frame.plan, frame.printer()
    assert plan.hopper is not None
    lists = list_view(forward.lists)
    own = ("items_ptr", "q_slots") if sequences else ()
    flags = ("RAGGED", "PACKED") if sequences else ()
    call = "own" if sequences else "call"
    at = assigned_lines(forward.walk.at, printer)
    masked = printer.text(outside(forward.unmasked))
    if map:
        at, masked = (*at, LISTED_ENTRY), LISTED_MASKED
    kept = kept_view(frame)
    rest = ("PRECISE",) if weights.saves_rest else ()
    listed = of_map(map) if map else ("lists_ptr",) if lists else ()
    fetched = _fetched_view(forward.fetched, printer, frame, LISTED_TILE if map else "at")
    fetches = ("FETCHES",) if fetched else ()
    outputs = ("lse_ptr", *(("den_ptr",) if weights.saves_den else ()), *(("rest_ptr",) if weights.saves_rest else ()))
    return GluonView(
        code=code,
        kernel=frame.kernel_view(),
        kept=kept,
        tests=tests,
        test_pointers=tuple(p for t in tests for p in t.pointers),
        outputs=outputs,
        call=(*(listed if not map else ()), *frame.arguments),
        arguments=("queue_ptr", "n_work", "together", *own, *listed, *frame.arguments),
        config=("D", "Dv", "FAST", *_TILES[1:], *rest, *_DERIVED, *fetches, *flags),
        constants=("D", "Dv", *_TILES, "REGISTERS", "SPARE", "FAST", *rest, *fetches, *flags[1:]),
        unspecialized=["n_work", "together", *own[1:], *unspecialized(frame.params, frame.sizes)],
        lists=lists,
        map=map,
        order=f"{plan.longest_first}, {forward.batches_inside}",
        key_runs=f"triton/hopper/key_runs{'_mapped' if map else '_listed' if lists else ''}.py.j2",
        ends=forward.loops.names + found_of(map),
        at=at,
        n_steps=printer.text(forward.walk.n_steps),
        walked=_read((*_either(forward.loops), "met"), [*at, masked]),
        terms=_terms(code, kept),
        masked=masked,
        share=_share_view(forward.share, forward.loops, call),
        form=_form_view(plan, weights, code),
        slack=plan.hopper.slack,
        saves_den=weights.saves_den,
        saves_rest=weights.saves_rest,
        sequences=sequences,
        table=Table(kernel="_hopper_forward_kernel", kind=Skeleton, rows=keyed(table.items())),
        fetched=fetched,
        narrow=plan.narrow,
    )


def _fetched_view(fetched: Fetched | None, printer: Printer, frame: Frame, tile: str) -> FetchedView | None:
    if fetched is None:
        return None
    names = {Symbol("q0", Type.INT): "q0 + part * 64", Symbol("k0", Type.INT): f"{tile} * BK"}
    own = replace(printer, names={**printer.names, **names})
    param = next(p.name for p in frame.params if p.keyword == fetched.load.param)
    return FetchedView(param=param, place=tuple(own.text(e) for e in fetched.place))


def _either(loops: Loops) -> tuple[str, ...]:
    return (*loops.names, *(own(name) for name in loops.names))


def _read(names: Iterable[str], lines: Iterable[str]) -> tuple[str, ...]:
    read = free_names(lines)
    return tuple(name for name in names if name in read)


def _terms(code: KernelCode, kept: KeptView | None) -> tuple[str, ...]:
    """What the functions of a tile unpack: at least one name."""
    texts = (code.results.get(name, "") for name in ("unit", "stream", "factor", "rise", "row"))
    read = free_names([*code.along(), *code.score_lines, *code.weight_lines, *code.mask_lines, *texts, code.allowed])
    ours = tuple(name for name in ("batch", "kv_head", "Sk") if name in read or (name == "Sk" and "k1" in read))
    cleared = tuple(name for name in (kept.arguments if kept else ()) if name not in ("D", "Dv"))
    return tuple(dict.fromkeys((*ours, *code.arguments, *cleared))) or ("Sk",)


def _share_view(share: Share | None, loops: Loops, call: str) -> ShareView:
    """`call`: the name of what an item's call gives."""
    bound: list[str] = []
    if loops.full or share is not None:
        own_ends = ", ".join(own(name) for name in loops.names)
        bound += [f"{own_ends} = _key_runs(q0, batch, head, kv_head, {call}, config, 64)"]
    if share is not None:
        ends = f"{share.stretch.start}, n_steps, {share.own.start}, {share.own.stop}, {share.backwards}"
        bound.append(f"own_first, own_stop = items.own_steps({ends})")
    begins, stops = (False, False) if share is None else (share.begins, share.ends)

    def released(steps: str) -> tuple[str, ...]:
        parts = "config.ORDER, PART, (PART + 1) % config.PARTS"
        return f"for step in range({steps}):", f"    sm90.pass_by(turn + step, rings.k, rings.v, {parts})"

    if share is not None and stops and not share.pipelined:
        bound.append("own_stop = n_steps if config.PIPELINED else own_stop")
    return ShareView(
        first="own_first" if begins else "0",
        stop="own_stop" if stops else "n_steps",
        bound=tuple(bound),
        released_before=released("own_first") if begins else (),
        released_after=released("own_stop, n_steps") if stops else (),
    )


def _form_view(plan: KernelPlan, weights: WeightView, code: KernelCode) -> FormView:
    form = plan.weights.form
    operand = f"quads.words_of(weight, {plan.numerics.raised})" if plan.narrow else _CONVERTED
    ramp = "rise" in code.results  # then references are logits
    factor = "1.0" if ramp else code.results["factor"] or "1.0"
    log2_extra, extra = code.results["log2_extra"], code.results["extra"]
    match form:
        case Form.EXPONENTIAL:
            return FormView(
                template="ramped" if ramp else "lagging",
                state=("row_sum", "row_max"),
                begin=("row_sum, row_max = sm90.no_key_yet(no_scores)",),
                weighed=("weight", "rescale", "row_sum", "row_max"),
                rescale=("acc = sm90.rescaled(acc, rescale)",),
                operand="quads.words_of_lagging(weight)"
                if plan.narrow
                else "sm90.unpacked(weight, config.dtype, weight_layout)",
                normalize="sm90.normalized",
                closing=(),
                closed=("acc", "row_sum", "row_max", factor, log2_extra or "None"),
                normalized=("acc", "lse"),
                extra_lines=(),
                empty="",
            )
        case Form.SHIFTED:
            empty = 'total == float("-inf")' if log2_extra else '(row_max == float("-inf")) | (row_sum == 0.0)'
            return FormView(
                template="shifted",
                state=("row_sum", "row_max"),
                begin=("row_sum, row_max = sm90.no_maximum_yet(no_scores)",),
                weighed=("weight", "rescale", "row_sum", "row_max"),
                rescale=("acc = sm90.scaled_rows(acc, rescale)",),
                operand=operand,
                normalize="_normalized",
                closing=("acc", "row_sum", "row_max", "factor", *(("extra",) if log2_extra else ())),
                closed=("acc", "row_sum", "row_max", factor, *((log2_extra,) if log2_extra else ())),
                normalized=("acc", "lse"),
                extra_lines=(_WITH_EXTRA,) if log2_extra else (),
                empty=empty,
            )
        case Form.DIRECT if weights.sums:
            return FormView(
                template="summed",
                state=("row_sum",),
                begin=("row_sum = sm90.lane_sums(no_scores)",),
                weighed=("weight", "row_sum"),
                rescale=(),
                operand=operand,
                normalize="_normalized",
                closing=("acc", "row_sum", *(("extra",) if extra else ())),
                closed=("acc", "row_sum", *((extra,) if extra else ())),
                normalized=("acc", "lse", "den"),
                extra_lines=("den += extra",) if extra else (),
                empty="den == 0.0",
            )
        case Form.DIRECT:
            return FormView(
                template="alone",
                state=(),
                begin=(),
                weighed=("weight",),
                rescale=(),
                operand=operand,
                normalize="_normalized",
                closing=("acc",),
                closed=("acc",),
                normalized=("acc", "lse"),
                extra_lines=(),
                empty="",
            )
        case _:
            assert_never(form)
