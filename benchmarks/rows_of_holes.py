"""Masks with holes over rows: packed, with lengths, and in the pieces of two ranks, beside dense calls of `holes.py`.

Each is the same attention of the same tensors: packed sequences are the rows of all batches, lengths are those of whole
batch rows, and a rank holds half of the queries and of the keys, and computes what the mask needs of each pair of
halves, one after the other, on one GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hole_masks import MASKS, Cell
from saved import Files, Spec

if TYPE_CHECKING:
    import grouped
    from torch import Tensor

_MASKS = ("rollouts", "image")


def _of_rows(text: str) -> str:
    """With a param's dimension of batches, which packed rows ask for."""
    text = re.sub(r"\[Sk\]", "[B, Sk]", text)
    return re.sub(r"\[([qk])\]", r"[b, \1]", text)


SPECS: Mapping[str, Spec] = {
    f"{name}_rows": Spec(_of_rows(MASKS[name].text), geometry=("packed", "lengths", "pieces")) for name in _MASKS
}


def takes(cell: Cell) -> bool:
    return cell.mask in _MASKS and cell.N % 2 == 0


def builds(cell: Cell, files: Files, given: Mapping[str, Tensor]) -> dict[str, grouped.Build]:
    """Contenders by name. The file's own dense function, of params with batches, is among them."""
    import torch

    from attngen.bench.race import Contender

    module = files.module(f"{cell.mask}_rows")
    name = files.manifest[f"{cell.mask}_rows"]["function"]
    params = {n: x if x.dim() == 2 else x.expand(cell.B, -1).contiguous() for n, x in given.items()}
    device = next(iter(params.values())).device
    ends = torch.arange(cell.B + 1, device=device, dtype=torch.int32) * cell.N
    stop = torch.full((cell.B,), cell.N, device=device, dtype=torch.int32)
    flat = {n: x.reshape(-1) for n, x in params.items()}

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = (x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3]) for x in (q, k, v))
        out = getattr(module, f"{name}_varlen")(*rows, cu_seqlens_q=ends, **flat)
        return out.reshape(cell.B, cell.N, cell.Hq, -1).transpose(1, 2)

    def lengths(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return getattr(module, f"{name}_lengths")(q, k, v, q_stop=stop, k_stop=stop, **params)

    own: dict[str, Callable[..., Any]] = {
        "dense, rows": lambda q, k, v: getattr(module, name)(q, k, v, **params),
        "packed": packed,
        "lengths": lengths,
        "pieces": _pieces(cell, module, name, params),
    }

    def build(name: str) -> Contender:
        return Contender(name, own[name])

    return {name: (lambda name=name: build(name)) for name in own}


def _pieces(cell: Cell, module: Any, name: str, params: Mapping[str, Tensor]) -> Callable[..., Any]:
    import torch

    half = cell.N // 2
    host = {n: x.cpu() for n, x in params.items()}
    spans = ((0, half), (half, cell.N))
    visits = getattr(module, f"{name}_visits")
    met = [(a, b) for a in spans for b in spans if visits(a, b, Sq=cell.N, Sk=cell.N, **host) != "none"]
    sizes = {"Sq": cell.N, "Sk": cell.N}

    def of(x: Tensor, span: tuple[int, int]) -> Tensor:
        return x[:, :, span[0] : span[1]]

    class Whole(torch.autograd.Function):
        """Both ranks, forward and backward."""

        @staticmethod
        def forward(ctx: Any, *operands: Any) -> Any:
            q, k, v = operands
            found: list[tuple[Tensor, Tensor]] = []
            for a in spans:
                parts = [
                    getattr(module, f"{name}_partial")(
                        of(q, a), of(k, b), of(v, b), q_offset=a[0], k_offset=b[0], **sizes, **params
                    )
                    for held, b in met
                    if held == a
                ]
                found.append(getattr(module, f"{name}_merge")(parts))
            ctx.save_for_backward(q, k, v, *(x for part in found for x in part))
            return torch.cat([out.to(q.dtype) for out, _ in found], 2)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            q, k, v, *rest = ctx.saved_tensors
            (d_out,) = gradients
            parts = dict(zip(spans, zip(rest[::2], rest[1::2], strict=True), strict=True))
            sums = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (q, k, v)]
            for a, b in met:
                out, lse = parts[a]
                dq, dk, dv, _ = getattr(module, f"{name}_partial_backward")(
                    of(q, a), of(k, b), of(v, b), of(d_out, a), out, lse,
                    q_offset=a[0], k_offset=b[0], **sizes, **params,
                )  # fmt: skip
                for total, span, x in zip(sums, (a, b, b), (dq, dk, dv), strict=True):
                    of(total, span).add_(x)
            return tuple(total.to(x.dtype) for total, x in zip(sums, (q, k, v), strict=True))

    return lambda q, k, v: Whole.apply(q, k, v)
