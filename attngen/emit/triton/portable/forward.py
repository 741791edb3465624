"""The views of the portable forward kernel.

Takes the module's frame and the forward pass's `KernelCode`, returns the `ForwardView` that `forward.py.j2` reads. The
kernels of short queries share its parts.
"""

from __future__ import annotations

from attngen.emit.text.render import bracket
from attngen.emit.text.weights import WeightView
from attngen.emit.triton.code.kernel_code import KernelCode
from attngen.emit.triton.code.lists import ListView
from attngen.emit.triton.code.tile_loops import RangeView
from attngen.emit.triton.portable.frame import Frame
from attngen.emit.triton.portable.kernels import kept_view
from attngen.emit.triton.portable.views import (
    FinishView,
    ForwardView,
    KeptView,
    KernelView,
    ListedView,
    WeighView,
    loop_views,
)

SEED_LINE = "seed = tl.load(seed_ptr)"


def forward_view(
    frame: Frame,
    code: KernelCode,
    weights: WeightView,
    kernel: KernelView,
    keys: RangeView,
    key_pointers: tuple[str, ...],
) -> ForwardView:
    den = ("den_ptr",) if weights.saves_den else ()
    rest = ("rest_ptr",) if weights.saves_rest else ()
    pointers = ("out_ptr", "lse_ptr", *den, *rest, *seed_pointer(frame), *key_pointers)
    return ForwardView(
        entry=kernel.entry(pointers, ("out",), more=("PRECISE",) if weights.saves_rest else (), place=frame.place),
        place=frame.place.of("out"),
        weigh=_weigh_view(frame, code, weights),
        tile_lines=(*seed_line(frame), *code.head_lines, *code.held_lines),
        walk_lines=(*code.test_lines, *range_lines(keys, code, frame.place.listed["q"])),
        loops=loop_views(keys),
        finish=finish_view(weights, code),
    )


def _weigh_view(frame: Frame, code: KernelCode, weights: WeightView) -> WeighView:
    factor, raised = code.results["factor"], frame.plan.numerics.raised
    stream = code.results.get("stream", "")
    masked = ("if MASKED:", f"    weight = tl.where({code.allowed}, weight, 0.0)")
    if weights.exponential:
        exponent = "x - shift[:, None]"
        if factor:
            exponent = f"x * {factor} - (shift * {factor})[:, None]"
        lines: tuple[str, ...] = (f"weight = tl.exp2({exponent})",)
    elif weights.shift:
        lines = ("ref = shift[:, None]", *code.weight_lines, f"weight = {stream}", *masked)
    else:
        lines = (*code.weight_lines, f"weight = {stream}")
    return WeighView(
        code=code,
        state=state_names(weights),
        held=("q", *terms(code)),
        rescale=rescaling("row_max - shift", factor) if weights.shift else "",
        weight_lines=lines,
        dropout_lines=_dropout_lines(frame, code),
        value_lines=load_lines("v", "Dv", kept_view(frame)),
        multiplied=f"(weight * {2.0**raised}).to(v.dtype)" if raised else "weight.to(v.dtype)",
    )


def _dropout_lines(frame: Frame, code: KernelCode) -> tuple[str, ...]:
    if frame.plan.attention.dropout is None:
        return ()
    return (f"weight = tl.where({keep(code)}, weight * inv_keep, 0.0)",)


def keep(code: KernelCode) -> str:
    """Whether dropout keeps a pair."""
    batch, head, query, key = (code.results[f"counted_{i}"] for i in "bhqk")
    return f"rows.keep(seed, {batch}, {head}, {query}, {key}, threshold)"


def finish_view(weights: WeightView, code: KernelCode) -> FinishView:
    """`code`: that of the kernel that ends the pass."""
    factor = code.results["factor"] if weights.shift else ""
    extra = code.results["log2_extra" if weights.shift else "extra"] if weights.sums else ""
    given = {"factor": factor, "extra": extra, "value_scale": code.results["value_scale"]}
    if extra and weights.shift:
        empty = 'total == float("-inf")'
    else:
        empty = 'row_max == float("-inf")'
        empty = empty if weights.exponential else f"({empty}) | (row_sum == 0.0)"
    return FinishView(
        parameters=tuple(name for name, text in given.items() if text),
        arguments=tuple(text for text in given.values() if text),
        results=("acc", "lse", *(("den",) if weights.saves_den else ())),
        empty=empty,
        saves_den=weights.saves_den,
        saves_rest=weights.saves_rest,
    )


def state_names(weights: WeightView) -> tuple[str, ...]:
    """What is summed of each row's keys, or kept of them."""
    return ("acc", *(("row_max",) if weights.shift else ()), *(("row_sum",) if weights.sums else ()))


def terms(code: KernelCode) -> tuple[str, ...]:
    """The names that the function of a tile reads, short of those that it has of `tiling`."""
    return tuple(name for name in code.arguments if name not in ("D", "Dv", "FAST"))


def rescaling(exponent: str, factor: str) -> str:
    """2 to the power of `exponent`, in units of the logits."""
    return f"tl.exp2({exponent})" if not factor else f"tl.exp2({bracket(exponent)} * {factor})"


def range_lines(found: RangeView, code: KernelCode, held: ListedView) -> tuple[str, ...]:
    """Lines that find which tiles are walked, where any are."""
    block, function = ("BK", "_key_tiles") if found.axis == "k" else ("BQ", "_query_tiles")
    if found.lists is not None:
        row = list_row(found.lists, held)
        return (f"{', '.join(found.results)}, listed = rows.listed_tiles(walks_ptr, tiles_ptr, {row}, {held.room})",)
    if not found.results:
        return ()
    return (f"{', '.join(found.results)} = {function}({', '.join((*code.range_arguments, block))})",)


def list_row(lists: ListView, held: ListedView) -> str:
    """The number of a held tile among those of all lists."""
    place = f"items.list_of(batch, {lists.head}, {lists.heads}, {lists.flags})"
    return f"items.entry_of({place}, {held.row}, {held.count}, 0, 1)"


def load_lines(name: str, cols: str, kept: KeptView | None) -> tuple[str, ...]:
    """Lines of a function of a tile that load `k` or `v`; rows that the mask forbids by themselves as zeros."""
    if kept is None:
        return (f"{name} = rows.load({name}_rows, k0, tiling.BK, tiling.{cols}, MASKED)",)
    arguments = ", ".join(("(k0 + tl.arange(0, tiling.BK))[:, None]", *kept.arguments))
    return (
        "if MASKED:",
        f"    kept = _kept_keys({arguments})",
        f"    {name} = rows.load_kept({name}_rows, k0, kept, tiling.BK, tiling.{cols})",
        "else:",
        f"    {name} = rows.load({name}_rows, k0, tiling.BK, tiling.{cols}, False)",
    )


def seed_pointer(frame: Frame) -> tuple[str, ...]:
    return ("seed_ptr",) if frame.plan.attention.dropout is not None else ()


def seed_line(frame: Frame) -> tuple[str, ...]:
    return (SEED_LINE,) if frame.plan.attention.dropout is not None else ()
