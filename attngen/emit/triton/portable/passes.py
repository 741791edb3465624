"""The portable kernels of a module: their code, and the views that their templates read, for one place of the rows.

Takes the module's frame, whose `place` says where a sequence's rows are, and what all kernels share; returns the views
of the forward, dQ and dK/dV kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.text.weights import WeightView
from attngen.emit.triton.code.kernel_code import KernelCode
from attngen.emit.triton.portable.backward import backward_code
from attngen.emit.triton.portable.forward import forward_view
from attngen.emit.triton.portable.frame import Frame
from attngen.emit.triton.portable.kernels import forward_code
from attngen.emit.triton.portable.param_gradients import RowSum, row_sums
from attngen.emit.triton.portable.tile_gradients import dkdv_view, dq_view
from attngen.emit.triton.portable.views import BackwardView, DkdvView, DqView, ForwardView, KernelView
from attngen.plan.kernel import Gather
from attngen.plan.levels import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """The code of the three kernels, and the sums of params' gradients that the last two keep."""

    forward: KernelCode
    dq: KernelCode
    dkdv: KernelCode
    dq_sums: tuple[RowSum, ...]
    dkdv_sums: tuple[RowSum, ...]


def codes_of(frame: Frame, *, by_diagonal: bool = False) -> Codes:
    """by_diagonal: of backward kernels that compute once what is one along a diagonal of a tile."""
    of_rows = row_sums(frame.plan, frame.params, Gather.HEAD, Gather.ROW)
    of_columns = row_sums(frame.plan, frame.params, Gather.COLUMN)
    dq, dq_sums = backward_code(frame, Level.ROW, of_rows, by_diagonal=by_diagonal)
    dkdv, dkdv_sums = backward_code(frame, Level.COLUMN, of_columns, by_diagonal=by_diagonal)
    return Codes(forward=forward_code(frame), dq=dq, dkdv=dkdv, dq_sums=dq_sums, dkdv_sums=dkdv_sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableViews:
    forward: ForwardView
    dq: DqView
    dkdv: DkdvView


def portable_views(
    frame: Frame, codes: Codes, backward: BackwardView, weights: WeightView, kernel: KernelView
) -> PortableViews:
    keys, queries = frame.key_ranges(), frame.query_ranges()
    of_keys, of_queries = frame.walk_pointers("k"), frame.walk_pointers("q")
    return PortableViews(
        forward=forward_view(frame, codes.forward, weights, kernel, keys, of_keys),
        dq=dq_view(frame, codes.dq, backward, weights, kernel, keys, of_keys, codes.dq_sums),
        dkdv=dkdv_view(frame, codes.dkdv, backward, weights, kernel, queries, of_queries, codes.dkdv_sums),
    )
