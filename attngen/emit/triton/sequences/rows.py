"""Sequences that begin and end anywhere: how a program of a portable kernel finds the rows of its own.

Takes the module's frame, returns its `PlaceView`, and the `SequenceView` that `sequences/rows.py.j2` and the host read.
In a kernel, `Sq` and `Sk` become those of its sequence, and every pointer to rows begins at the sequence's first, so
the rest of the kernel is that of dense tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attngen.emit.triton.portable.frame import Frame
from attngen.emit.triton.portable.views import ListedView, PlaceView
from attngen.errors import UsageError
from attngen.ir.nodes import Symbol
from attngen.ir.walk import symbols
from attngen.plan.kernel import KernelPlan

OPERANDS = ("q_start_ptr", "q_stop_ptr", "k_start_ptr", "k_stop_ptr", "n_sequences")
_SIZES = (
    "total_q, total_k = Sq, Sk",
    *(f"{x}_first, S{x} = ragged.rows_of_sequence({x}_start_ptr, {x}_stop_ptr, batch, total_{x})" for x in "qk"),
)
"""Bind the rows and the sizes of the sequence `batch`."""
_OF_QUERIES, _OF_KEYS = ("q", "out", "d_out", "dq"), ("k", "v", "dk", "dv")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceView:
    """`late`: the last tiles of queries have most work. The lines `moved` move params to a sequence's first rows.
    `operands` are those of kernels of sequences, `own_lines` bind what is of the sequence `batch`, `extreme_lines`
    begin a kernel that looks for extremes, by axis."""

    late: bool
    moved: tuple[str, ...]
    operands: tuple[str, ...]
    own_lines: tuple[str, ...]
    extreme_lines: Mapping[str, tuple[str, ...]]


def sequence_view(frame: Frame) -> SequenceView:
    return SequenceView(
        late=frame.plan.longest_first,
        moved=_moved_params(frame),
        operands=OPERANDS,
        own_lines=(*_SIZES, *_moved_params(frame)),
        extreme_lines={axis: _extreme_lines(frame, axis) for axis in "qk"},
    )


def sequence_place(frame: Frame) -> PlaceView:
    def lines(axis: str, block: str, heads: str, head: str) -> tuple[str, ...]:
        return (
            f"{head} = tl.program_id(0) % {heads}",
            f"slot = tl.num_programs(0) // {heads} - 1 - tl.program_id(0) // {heads}",
            f"tile, batch = ragged.tile_of_slot(slot, {axis}_start_ptr, S{axis}, n_sequences, {block}, PACKED)",
            *_SIZES,
            f"if (tile < 0) | (tile * {block} >= S{axis}):",
            "    return",
            *_moved_params(frame),
        )

    head = "((0 if PACKED else batch) * tl.cast(Hq, tl.int64) + head)"
    sides = (("q", _OF_QUERIES), ("k", _OF_KEYS))
    return PlaceView(
        prefix="sequence_",
        operands=OPERANDS,
        constants=("PACKED",),
        query_lines=lines("q", "BQ", "Hq", "head"),
        key_lines=lines("k", "BK", "Hkv", "kv_head"),
        row=f"{head} * total_q + q_first",
        column=f"{head} * total_k + k_first",
        rows={"q": "total_q", "k": "total_k"},
        listed={
            "q": ListedView("slot", "tl.num_programs(0) // Hq", "tl.cdiv(total_k, BK)"),
            "k": ListedView("slot", "tl.num_programs(0) // Hkv", "tl.cdiv(total_q, BQ)"),
        },
        moved={x: _moved(f"{x}_ptr", axis, f"{x}_strides[2]", aligned=True) for axis, side in sides for x in side},
    )


def _extreme_lines(frame: Frame, axis: str) -> tuple[str, ...]:
    """For the kernel that finds the extremes of data in a tile of a sequence, its program's second number."""
    return (
        "batch = tl.program_id(1)",
        *_SIZES,
        f"if tl.program_id(0) * TILE >= S{axis}:",
        "    return",
        *_moved_params(frame),
    )


def _moved(pointer: str, axis: str, stride: str, *, aligned: bool = False) -> str:
    step = f"({stride} // ALIGN * ALIGN)" if aligned else stride
    return f"{pointer} += tl.cast({axis}_first, tl.int64) * {step}"


def _moved_params(frame: Frame) -> tuple[str, ...]:
    """A param that has an element for each row begins at the sequence's first."""
    lines: list[str] = []
    for view, param in zip(frame.params, frame.plan.attention.params, strict=True):
        for axis, dim in enumerate(param.shape):
            for name, rows in (("Sq", "q"), ("Sk", "k")):
                if dim == Symbol(name, dim.type):
                    lines.append(_moved(f"{view.name}_ptr", rows, view.strides[axis]))
    return tuple(lines)


def refuse_sequences(plan: KernelPlan) -> None:
    """Raises UsageError where a param's shape has no meaning for sequences that share a tensor."""
    for param in plan.attention.params:
        rows = [d for d in param.shape if symbols(d) & {"Sq", "Sk"}]
        if any(not isinstance(d, Symbol) for d in rows):
            raise UsageError(
                f"`{param.name}` has a dimension that is computed from a sequence's length: no geometry but dense has "
                "a tensor of that shape. Make it a size of its own, or a const"
            )
        if len(rows) > 1:
            raise UsageError(
                f"`{param.name}` has an element for each pair of a query and a key, which sequences of different "
                "lengths do not share: only the dense geometry takes it"
            )
