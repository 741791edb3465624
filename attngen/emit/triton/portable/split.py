"""Short queries, whose walk over keys is cut into pieces: what `short_queries/` reads.

Takes the plan, the kernels' arguments and the names of what the launcher hands over, returns a `SplitView`. The main
loop is the forward kernel's own code, in which a head of each row may stand where there is one head; the end of the
pass is the forward kernel's, too, in a kernel that merges the pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.options import Options
from attngen.emit.text.params import ParamView
from attngen.emit.text.render import bracket
from attngen.emit.text.weights import WeightView
from attngen.emit.triton.code.kernel_code import KernelCode, KernelWriter
from attngen.emit.triton.code.tile_loops import RangeView, in_brackets, plain_lines
from attngen.emit.triton.portable.forward import finish_view, range_lines, rescaling, seed_pointer, state_names
from attngen.emit.triton.portable.frame import Frame
from attngen.emit.triton.portable.views import (
    EntryView,
    FinishView,
    KernelView,
    ListedView,
    LoopView,
    loop_views,
    strides,
)
from attngen.ir.build import TRUE
from attngen.ir.nodes import Expr
from attngen.plan import passes
from attngen.plan.footprint import loads_of
from attngen.plan.kernel import KernelPlan
from attngen.plan.levels import Level
from attngen.plan.split import CUT, Cut, shares


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """One number of a row that a piece stores behind its sums: under which name, at which place, how the merging kernel
    calls those of several pieces, and what it reads for a piece that does not exist."""

    name: str
    at: int
    piece: str
    missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitView:
    """There are `rows` of one of the `heads` by which programs go. `place_lines` say which queries a tile's rows are,
    `walk_lines` which tiles of keys it meets, `piece_lines` what a piece walks of them. `merge` is the code
    of the merging kernel, whose results end the pass; `rescale` and `weight` are what the sums so far, and those of a
    piece, are multiplied by; `sums` are those of all pieces. `cut`: by what the launcher decides at the call.
    """

    cut: Cut
    packed: bool
    summary: str
    rows: str
    host_rows: str
    heads: str
    entry: EntryView
    place_lines: tuple[str, ...]
    walk_lines: tuple[str, ...]
    piece_lines: tuple[str, ...]
    loops: tuple[LoopView, ...]
    parts: tuple[PartView, ...]
    merge: KernelCode
    merge_entry: EntryView
    rescale: str
    weight: str
    sums: str
    finish: FinishView
    table: tuple[tuple[tuple[str, int], tuple[int, ...]], ...]


_PACKED_SUMMARY = "One piece of the walk of one tile, whose rows are the queries of all heads that share keys."
_PACKED = (
    "kv_head = i % Hkv",
    "head = kv_head * group + row % group  # one for each row",
    "q_idx = row // group",
    "q0 = tile * BQ // group",
    "q1 = tl.minimum((tile * BQ + BQ - 1) // group, Sq - 1)",
)
_ALONE_SUMMARY = "One piece of the walk of one tile of queries of one head."
_ALONE = (
    "head = i % Hq",
    "kv_head = head // group",
    "q_idx = row",
    "q0 = tile * BQ",
    "q1 = tl.minimum(q0 + BQ, Sq) - 1",
)


def split_view(
    frame: Frame,
    options: Options,
    weights: WeightView,
    kernel: KernelView,
    keys: RangeView,
    code: KernelCode,
) -> SplitView | None:
    """None where queries are never so much shorter than keys. `code`: the forward kernel's. A list is one of all
    queries."""
    plan = frame.plan
    assert plan.gpu_walks is not None
    split = plan.gpu_walks.split
    if split is None:
        return None
    printer = frame.printer()

    def ends(run: tuple[Expr, Expr] | None) -> str:
        return "" if run is None else ", ".join(map(printer.text, run))

    runs = (plan.key_loops.full, plan.key_loops.partial)
    counts = (
        f"{s.name} = {in_brackets(own, printer).text(s.value)}" for s, own in zip(split.counts, runs, strict=True)
    )
    outputs = ("out", "lse", *(("den",) if weights.saves_den else ()))
    rest = ("rest",) if weights.saves_rest else ()
    entry = kernel.entry(("parts_ptr", *seed_pointer(frame), *frame.walk_pointers("k"), "pieces"), place=frame.place)
    unspecialized = '["pieces", *UNSPECIALIZED]'
    merge = _merge(plan, frame.params, frame.known)
    factor = merge.results["factor"]
    of_pieces = state_names(weights)[1:]
    return SplitView(
        cut=CUT,
        packed=split.packed,
        summary=_PACKED_SUMMARY if split.packed else _ALONE_SUMMARY,
        rows="group * Sq" if split.packed else "Sq",
        host_rows="Hq // Hkv * Sq" if split.packed else "Sq",
        heads="Hkv" if split.packed else "Hq",
        entry=replace(entry, unspecialized=unspecialized),
        place_lines=_PACKED if split.packed else _ALONE,
        walk_lines=(*code.test_lines, *range_lines(keys, code, ListedView("0", "1", frame.place.listed["q"].room))),
        piece_lines=(*counts, *plain_lines(split.steps, printer, "pieces")),
        loops=loop_views(keys, ends(split.full), ends(split.partial)),
        parts=tuple(
            PartView(
                name=name,
                at=at,
                piece=name.replace("row_", "part_"),
                missing='float("-inf")' if name == "row_max" else "0.0",
            )
            for at, name in enumerate(of_pieces)
        ),
        merge=merge,
        merge_entry=EntryView(
            unspecialized=unspecialized,
            operands=(
                "parts_ptr",
                *(f"{x}_ptr" for x in (*outputs, *rest)),
                "pieces",
                *kernel.arguments,
                *strides("out"),
            ),
            constants=("D", "Dv", "PIECES", "ALIGN", *(("PRECISE",) if rest else ())),
        ),
        rescale=rescaling("row_max - shift", factor),
        weight=rescaling("part_max - shift", factor),
        sums=bracket(", ".join(state_names(weights))),
        finish=finish_view(weights, merge),
        table=tuple(
            (key, share.row)
            for key, share in shares(plan.attention.tile, plan.burden, loads_of(plan).chosen, plan.numerics).items()
            if options.holds(*key)
        ),
    )


_OF_HEADS = ("factor", "log2_extra", "extra", "value_scale")


def _merge(plan: KernelPlan, params: tuple[ParamView, ...], known: tuple[str, ...]) -> KernelCode:
    """What merging and finishing read: the logits' factor, and the denominator's extra term."""
    outside = passes.forward(plan).head
    code = KernelWriter(plan, params, Level.ROW).write({}, TRUE, known=known, outside=outside)
    return replace(code, results={**dict.fromkeys(_OF_HEADS, ""), **code.results})
