"""The views of the portable backward kernels.

Takes the module's frame, the kernels' `KernelCode` and the sums that gradients of params need, returns what
`backward_delta.py.j2`, `backward_dq.py.j2` and `backward_dkdv.py.j2` read.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.emit.text.render import bracket
from attngen.emit.text.weights import WeightView
from attngen.emit.triton.code.kernel_code import KernelCode
from attngen.emit.triton.code.tile_loops import RangeView
from attngen.emit.triton.portable.forward import keep, load_lines, range_lines, seed_line, seed_pointer, terms
from attngen.emit.triton.portable.frame import Frame
from attngen.emit.triton.portable.kernels import kept_view
from attngen.emit.triton.portable.param_gradients import PairView, RowSum
from attngen.emit.triton.portable.views import (
    BackwardView,
    DkdvView,
    DqView,
    EntryView,
    KernelView,
    PairKernelView,
    PlaceView,
    RowValuesView,
    SlopeView,
    SumView,
    loop_views,
    strides,
)

_ROWS = "tl.zeros([BQ], tl.float32)"
_COLUMNS = "tl.zeros([BK], tl.float32)"


def dq_view(
    frame: Frame,
    code: KernelCode,
    bwd: BackwardView,
    weights: WeightView,
    kernel: KernelView,
    keys: RangeView,
    key_pointers: tuple[str, ...],
    sums: tuple[RowSum, ...],
) -> DqView:
    names = tuple(s.name for s in sums)
    pointers = (*bwd.row_pointers, "dq_ptr", *(s.pointer for s in sums), *seed_pointer(frame), *key_pointers)
    return DqView(
        entry=kernel.entry(("d_out_ptr", *pointers), ("d_out", "dq"), bwd.flags, place=frame.place),
        place=frame.place.of("d_out", "dq"),
        code=code,
        slope=row_slope(frame, code, bwd, weights),
        state=("dq", *names),
        zeros=("tl.zeros([BQ, rows.block(D)], tl.float32)", *(_ROWS for _ in names)),
        held=("q", "d_out", *bwd.row_names, *terms(code)),
        sums=_sum_views(sums),
        key_lines=load_lines("k", "D", kept_view(frame)),
        tile_lines=(*seed_line(frame), *code.head_lines, *row_lines(bwd, code), *code.held_lines),
        walk_lines=(*code.test_lines, *range_lines(keys, code, frame.place.listed["q"])),
        loops=loop_views(keys),
        factor=bwd.dq_factor,
        sum_lines=tuple(line for s in sums for line in _row_sum_lines(frame.place, s)),
    )


def dkdv_view(
    frame: Frame,
    code: KernelCode,
    bwd: BackwardView,
    weights: WeightView,
    kernel: KernelView,
    queries: RangeView,
    query_pointers: tuple[str, ...],
    sums: tuple[RowSum, ...],
) -> DkdvView:
    names = tuple(s.name for s in sums)
    pointers = (
        *bwd.row_pointers, "dk_ptr", "dv_ptr", *(s.pointer for s in sums), *seed_pointer(frame), *query_pointers
    )  # fmt: skip
    row_lines: tuple[str, ...] = ()
    if bwd.row_names:
        known = bwd.row_loads("row + queries", "", "[None, :]", code.results["kappa"])
        checked = bwd.row_loads("row + queries", "queries < Sq", "[None, :]", code.results["kappa"])
        row_lines = ("if MASKED:", *_indented(checked), "else:", *_indented(known))
    return DkdvView(
        entry=kernel.entry(("d_out_ptr", *pointers), ("d_out", "dk", "dv"), bwd.flags, place=frame.place),
        place=frame.place.of("d_out", "dk", "dv"),
        code=code,
        slope=_column_slope(frame, code, bwd, weights),
        state=("dk", "dv", *names),
        zeros=("dk", "dv", *(_COLUMNS for _ in names)),
        held=("k", "v", *(("row", *bwd.row_pointers) if bwd.row_names else ()), *terms(code)),
        sums=_sum_views(sums),
        row_lines=row_lines,
        tile_lines=seed_line(frame),
        head_lines=(*code.head_lines, *code.held_lines),
        walk_lines=(*code.test_lines, *range_lines(queries, code, frame.place.listed["k"])),
        loops=loop_views(queries),
        factor=bwd.dk_factor,
        sum_lines=tuple(line for s in sums for line in _column_sum_lines(frame.place, s)),
    )


def pair_kernel_view(
    frame: Frame,
    pair: PairView,
    bwd: BackwardView,
    weights: WeightView,
    kernel: KernelView,
    keys: RangeView,
) -> PairKernelView:
    """The kernel of one leaf whose index depends on the pair."""
    code, scatters = pair.code, pair.gather == "scatter"
    asks = keys.lists is not None and not scatters
    found = ("map_ptr",) if asks else frame.walk_pointers("k")
    pointers = ("d_out_ptr", *bwd.row_pointers, *pair.outputs, *seed_pointer(frame), *found)
    walk = () if asks else range_lines(keys, code, replace(frame.place.listed["q"], row="query_tile"))
    return PairKernelView(
        pair=pair,
        body=f"triton/portable/pairs/{pair.gather}.py.j2",
        summary=f"d loss / d {pair.text}, for every pair of a tile{', and the index' if scatters else ''}.",
        entry=kernel.entry(pointers, ("d_out",), more=pair.constants, place=frame.place),
        slope=row_slope(frame, code, bwd, weights, pair_only=True),
        held=("q", "d_out", *bwd.row_names, *terms(code)),
        seed_lines=seed_line(frame),
        row_lines=(*row_lines(bwd, code), *code.held_lines, *code.test_lines, *walk),
        loops=loop_views(keys),
    )


def row_values_view(
    bwd: BackwardView, weights: WeightView, *, terms: bool, cleared: int, needed: bool
) -> RowValuesView | None:
    """None where rows have no values that pairs read. `terms`: the kernel of compute capability 9.0 reads both from
    memory that its copy engine fetches, and where they are not `needed` elsewhere, a call may leave them out.
    `cleared`: how many counters a program clears."""
    if not (bwd.has_lse or bwd.has_delta):
        return None
    rest = ("rest_ptr",) if weights.saves_rest else ()
    operands = (
        *(("lse_ptr", "scaled_lse_ptr") if bwd.has_lse else ()),
        *(("out_ptr", *rest, "d_out_ptr", "d_lse_ptr", "delta_ptr") if bwd.has_delta else ()),
        *("Hq", "Sq"),
        *(strides("out", "d_out") if bwd.has_delta else ()),
        *(("counters_ptr", "n_counters") if cleared else ()),
        *(("terms_ptr", "scale") if terms else ()),
    )
    optional = terms and not needed
    values = (
        *(("the log-sum-exp to base 2, inf for rows that met no key",) if bwd.has_lse else ()),
        *(("delta",) if bwd.has_delta else ()),
    )
    return RowValuesView(
        entry=EntryView(
            unspecialized='["n_counters", *UNSPECIALIZED]' if cleared else "UNSPECIALIZED",
            operands=operands,
            constants=("Dv", "ROWS", "ALIGN", "HAS_D_LSE", *(("PRECISE",) if rest else ())),
        ),
        summary="; ".join(values),
        lse=bwd.has_lse,
        delta=bwd.has_delta,
        rest=bool(rest),
        terms=terms,
        cleared=cleared,
        store_lse=_row_store("scaled_lse", 'tl.where(lse == float("-inf"), float("inf"), lse * rows.LOG2E)', optional),
        store_delta=_row_store("delta", "delta", optional),
    )


def _row_store(name: str, value: str, optional: bool) -> tuple[str, ...]:
    store = f"tl.store({name}_ptr + row + queries, {value}, mask=queries < Sq)"
    return (f"if {name}_ptr is not None:", f"    {store}") if optional else (store,)


# ---------------------------------------------------------------- what the kernels of rows share


def row_lines(bwd: BackwardView, code: KernelCode) -> tuple[str, ...]:
    """Loads the values of the queries that are held."""
    return bwd.row_loads("row + queries", "queries < Sq", "[:, None]", code.results["kappa"])


def row_slope(
    frame: Frame, code: KernelCode, bwd: BackwardView, weights: WeightView, *, pair_only: bool = False
) -> SlopeView:
    """`pair_only`: the kernel needs the gradient of a pair's score, and no dS."""
    if weights.exponential:
        weight = "p"
        lines: tuple[str, ...] = (f"p = tl.exp2({code.results['logit']} - row_lse)",)
    else:
        weight = "slope_p"
        slope = f"slope_p = {bracket(code.results['slope'])}{bwd.normalised}"
        lines = (f"x = {code.results['logit']}", *code.weight_lines, slope)
    dropped: tuple[str, ...] = ()
    if frame.plan.attention.dropout is not None:
        dropped = (f"dp = tl.where({keep(code)}, dp * inv_keep, 0.0)",)
    ds, ds_lines = ("", ()) if pair_only else _ds(code, "")
    return SlopeView(
        weight=weight,
        weight_lines=lines,
        value_lines=(),
        dp_lines=(*dropped, *_less_delta(bwd)),
        ds_lines=(f"g = {weight} * dp", *(() if pair_only else _without_forbidden(frame)), *ds_lines),
        ds=ds,
    )


def _column_slope(frame: Frame, code: KernelCode, bwd: BackwardView, weights: WeightView) -> SlopeView:
    if weights.exponential:
        lines: tuple[str, ...] = (f"p = tl.exp2({code.results['logit']} - row_lse)",)
        g_lines = ("g = p * dp", *_without_forbidden(frame))
    else:
        stream = code.results["stream"]
        p = f"{bracket(stream)}{bwd.normalised}" if bwd.normalised else stream
        lines = (f"x = {code.results['logit']}", *code.weight_lines, f"p = {p}")
        slope = f"{bracket(code.results['slope'])}{bwd.normalised}"
        g_lines = (f"g = {slope} * dp", "if MASKED:", "    g = tl.where(allowed, g, 0.0)")
    if frame.plan.attention.dropout is not None:
        drawn: tuple[str, ...] = (f"keep = {keep(code)}",)
        kept, dropped = "tl.where(keep, p * inv_keep, 0.0)", ("dp = tl.where(keep, dp * inv_keep, 0.0)",)
    else:
        drawn, kept, dropped = (), "p", ()
    ds, ds_lines = _ds(code, bwd.dk_factor_in_tile)
    return SlopeView(
        weight="p",
        weight_lines=lines,
        value_lines=(*drawn, f"dv = tl.dot({kept}.to(d_out.dtype), d_out, dv, input_precision=PRECISION)"),
        dp_lines=(*dropped, *_less_delta(bwd)),
        ds_lines=(*g_lines, *ds_lines),
        ds=ds,
    )


def _less_delta(bwd: BackwardView) -> tuple[str, ...]:
    return ("dp = dp - delta",) if bwd.has_delta else ()


def _without_forbidden(frame: Frame) -> tuple[str, ...]:
    if frame.plan.keeps_key is None:
        return ()
    return "if MASKED:", "    g = tl.where(allowed, g, 0.0)  # a value row that the mask forbids may be NaN"


def _ds(code: KernelCode, factor: str) -> tuple[str, tuple[str, ...]]:
    """The name of dS, and the lines that bind it where it is not `g` itself."""
    d_pair = code.results["d_pair"]
    if not d_pair and not factor:
        return "g", ()
    lines = (
        f"ds = g{f' * {bracket(d_pair)}' if d_pair else ''}{factor}",
        "if MASKED:",
        "    ds = tl.where(allowed, ds, 0.0)  # the derivative may be infinite where the mask forbids",
    )
    return "ds", lines


# ---------------------------------------------------------------- sums beside dQ and dK


def _sum_views(sums: tuple[RowSum, ...]) -> tuple[SumView, ...]:
    return tuple(SumView(name=s.name, flag=s.flag, contribution=s.contribution) for s in sums)


def _row_sum_lines(place: PlaceView, s: RowSum) -> tuple[str, ...]:
    extra = (f"    {s.name} += tl.reshape({s.extra}, [BQ])",) if s.extra else ()
    if s.per_row:
        store = f"tl.store({s.pointer} + row + queries, {s.name}, mask=queries < Sq)"
    else:
        cell = f"{s.pointer} + (batch * Hq + head) * tl.cdiv({place.rows['q']}, BQ) + q0 // BQ"
        store = f"tl.store({cell}, tl.sum(tl.where(queries < Sq, {s.name}, 0.0), 0))"
    return (f"if {s.flag}:", *extra, f"    {store}")


def _column_sum_lines(place: PlaceView, s: RowSum) -> tuple[str, ...]:
    cell = f"{s.pointer} + {place.column} + columns"
    return (
        f"if {s.flag}:",
        "    columns = k0 + tl.arange(0, BK)",
        f"    tl.store({cell}, {s.name}, mask=columns < Sk)",
    )


def _indented(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"    {line}" for line in lines)
