"""Attention by pieces for the target that takes PyTorch's tensors: `pieces`, by the runtime that generated files carry.

Takes a `Kernel` and what its methods `partial`, `merge`, `finish`, `partial_backward` and `finish_backward` were called
with, after the kernel's own checks. A generated file calls the same functions with its own kernels of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch
from torch import Tensor

from attngen.emit.torch_shared.calls import PLAIN
from attngen.emit.torch_shared.own_term import own_lines, readable_term
from attngen.errors import UsageError
from attngen.ir.pieces import piece_of, row_axes
from attngen.piece_arguments import Checks, check_known
from attngen.pieces import Kernel, Place
from attngen.runtime.exported.arguments import element_at, list_holds
from attngen.runtime.exported.merging import PART
from attngen.runtime.exported.pieces import Pieces
from attngen.runtime.exported.places import PiecePlace


def checks(kernel: Kernel) -> Checks:
    return Checks(
        name=kernel.name,
        kinds=(Tensor,),
        noun="a torch.Tensor",
        is_float=lambda dtype: dtype.is_floating_point,
        is_float32=lambda dtype: dtype is torch.float32,
        packed=True,
        heads_inside=False,
        traced=torch.compiler.is_compiling(),
    )


class KernelPieces(Pieces):
    """Those of a `Kernel`, whose kernels of pieces are compiled when they are first asked for."""

    def __init__(self, kernel: Kernel) -> None:
        spec, piece = kernel.spec, piece_of(kernel.spec, each=False)

        def refuse(message: str) -> NoReturn:
            raise UsageError(f"{kernel.name}: {message}")

        super().__init__(
            refuse,
            numbers=piece.numbers,
            read=tuple(p.name for p in piece.own.params if p.name not in piece.numbers),
            rows=row_axes(spec),
            sums=spec.normalizer.sums,
            draws=spec.dropout is not None,
            own_term=_own_term(kernel, refuse),
        )
        self.kernel = kernel

    def function(self, place: PiecePlace) -> Callable[..., Any]:
        _, own = self.kernel.piece(each=place.each)
        return own.varlen if place.packed else own

    def finished(self, place: PiecePlace, out: Tensor, lse: Tensor) -> AbstractContextManager[None]:
        return self.kernel.piece(each=place.each)[1].with_results(out, lse)


def _own_term(kernel: Kernel, refuse: Callable[[str], NoReturn]) -> Callable[..., Tensor | None] | None:
    """The function that evaluates the denominator's own term, of the lines that a generated file has for it."""
    try:
        term = readable_term(kernel.name, kernel.plan.weights)
    except UsageError as error:
        unreadable = error

        def refused(*_: Any) -> NoReturn:
            raise unreadable

        return refused
    if term is None:
        return None
    lines = own_lines(kernel.spec, term, refuse="_refuse", calls=PLAIN)
    found: dict[str, Any] = {"torch": torch, "_refuse": refuse, "_element": element_at, "_listed": list_holds}
    exec("\n    ".join(("def own_term(lse, params, cu_seqlens_q):", *lines)), found)
    return found["own_term"]


# ---------------------------------------------------------------- forward


def partial(kernel: Kernel, operands: Sequence[Any], place: Place, scale: Any, params: Mapping[str, Any]) -> PART:
    return _pieces(kernel, params).partial(operands, place.runtime, params, scale)


def part(kernel: Kernel, operands: Sequence[Any], place: Place, scale: Any, params: Mapping[str, Any]) -> PART:
    """`partial`, out as the kernel stores it, in the dtype of q."""
    return _pieces(kernel, params).part(operands, place.runtime, params, scale)


def _pieces(kernel: Kernel, params: Mapping[str, Any]) -> Pieces:
    """Raises `UsageError` for a param that the kernel does not have."""
    check_known(kernel.name, kernel.spec.params, params)
    return kernel.pieces()


def merge(kernel: Kernel, parts: Sequence[PART]) -> PART:
    return kernel.pieces().merge(parts)


def finish(kernel: Kernel, part: PART, params: Mapping[str, Any], cu_seqlens_q: Any = None) -> PART:
    return _pieces(kernel, params).finish(*part, params, cu_seqlens_q)


def own_part(kernel: Kernel, lse: Tensor, params: Mapping[str, Any]) -> Tensor | None:
    """The logarithm of the denominator's own term, like `lse`; None where there is none."""
    return kernel.pieces().own_part(lse, params)


# ---------------------------------------------------------------- backward


def partial_backward(
    kernel: Kernel,
    operands: tuple[Any, Any, Any],
    cotangents: tuple[Any, Any],
    results: PART,
    place: Place,
    scale: Any,
    params: Mapping[str, Any],
    accumulate: tuple[Any, Any, Any] | None,
) -> tuple[Any, Any, Any, dict[str, Any]]:
    pieces = _pieces(kernel, params)
    return pieces.partial_backward(operands, results, cotangents, place.runtime, params, scale, accumulate)


def slopes(
    kernel: Kernel,
    operands: Sequence[Any],
    cotangents: tuple[Any, Any],
    results: PART,
    place: Place,
    scale: Any,
    params: Mapping[str, Any],
) -> tuple[tuple[Tensor | None, ...], dict[str, Tensor]]:
    """Gradients of q, k and v as the kernel stores them (None: zeros), and those of params."""
    return _pieces(kernel, params).slopes(operands, results, cotangents, place.runtime, params, scale)


def finish_backward(
    kernel: Kernel,
    cotangents: tuple[Any, Any],
    results: PART,
    params: Mapping[str, Any],
    cu_seqlens_q: Any = None,
) -> dict[str, Tensor]:
    return _pieces(kernel, params).finish_backward(results, cotangents, params, cu_seqlens_q)
