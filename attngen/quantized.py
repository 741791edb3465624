"""Tensors as 8-bit floats with factors, as kernels of them take q, k and v: `attngen.quantize`.

Needs torch, which is imported when a function is called.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# PyTorch has few types.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from attngen.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 448.0
"""Of float8_e4m3fn."""
SMALLEST = 2.0**-100
"""A tensor with no larger number has this one's factor, which float32 holds."""


class Quantized(NamedTuple):
    """A tensor (B, H, S, D) as 8-bit floats. What it stands for is `values * descale`, plus `mean`, and if `rotated`
    that times a Hadamard matrix, which is its own inverse.

    `values` is float8_e4m3fn, with the shape and the layout of `source`; `descale` (B, heads), `mean` (B, H, 1, D) or
    None, both float32.
    """

    values: Tensor
    descale: Tensor
    mean: Tensor | None
    rotated: bool
    source: Tensor
    """The tensor that it was made of, which a kernel's gradient goes to."""


def quantize(
    x: Tensor,
    granularity: Literal["head", "tensor"] = "head",
    *,
    heads: int | None = None,
    smooth: bool = False,
    rotate: bool = False,
) -> Quantized:
    """`x` (B, H, S, D), a float tensor, as 8-bit floats. Give the result to a kernel in the place of q, k or v.

    Each number is divided by a factor, the least power of two that leaves none above 448, the largest that
    float8_e4m3fn has: so what the result stands for is exact in bfloat16. With `granularity` "head" there is a factor
    for each batch and KV head, with "tensor" one for all. `heads`: how many KV heads there are, for a q that has more
    (default: H).

    Of k alone, `smooth` subtracts the mean over the sequence, which adds one number to all scores of a query; kernels
    refuse it where that changes the result. `rotate`, of both q and k, spreads outliers over the head dim by a Hadamard
    matrix, which leaves q . k as it is; D must be a power of two. Raises `UsageError`.
    (Shah et al., "FlashAttention-3", 2024, section 3.3; Zhang et al., "SageAttention", 2024, section 4.2.)
    """
    import torch

    if not isinstance(cast(Any, x), torch.Tensor) or x.dim() != 4 or not x.is_floating_point():
        found = f"{tuple(x.shape)} of {x.dtype}" if isinstance(cast(Any, x), torch.Tensor) else type(x).__name__
        raise UsageError(f"x must be a float tensor (batch, heads, length, head dim), not {found}")
    if granularity not in ("head", "tensor"):
        raise UsageError(f'granularity must be "head" or "tensor", not {granularity!r}')
    B, H, S, D = x.shape
    heads = H if heads is None else heads
    if type(heads) is not int or heads < 1 or H % heads:
        raise UsageError(f"heads must divide the {H} heads of x, not {heads!r}")
    exact = x.detach().float()
    mean = exact.sum(2, keepdim=True) / max(S, 1) if smooth else None
    exact = exact if mean is None else exact - mean
    if rotate:
        exact, mean = turned(exact), None if mean is None else turned(mean)
    grouped: Any = exact.unflatten(1, (heads, H // heads))
    most: Any = grouped.abs().amax((2, 3, 4)) if S and D else exact.new_zeros(B, heads)
    most = most.amax().expand(B, heads) if granularity == "tensor" and most.numel() else most
    part, exponent = torch.frexp(most.clamp(min=SMALLEST) / LARGEST)
    descale = torch.where(most > 0.0, torch.ldexp(torch.where(part > 0.5, 1.0, 0.5), exponent), 1.0)
    values = (grouped / descale[:, :, None, None, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return Quantized(values.flatten(1, 2), descale, mean, rotate, x)


def dequantized(x: Quantized) -> Tensor:
    """What it stands for, in float32."""
    each = x.descale.repeat_interleave(x.values.shape[1] // x.descale.shape[1], 1)
    exact = x.values.float() * each[:, :, None, None]
    exact = exact if x.mean is None else exact + x.mean
    return turned(exact) if x.rotated else exact


def turned(x: Tensor) -> Tensor:
    """x (…, D) times the Hadamard matrix of D columns, divided by its root: a rotation that is its own inverse."""
    import torch

    D = x.shape[-1]
    if D & (D - 1) or not D:
        raise UsageError(f"rotate needs a head dim that is a power of two, not {D}")
    matrix = torch.ones(1, 1, device=x.device)
    while len(matrix) < D:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    with torch.autocast(x.device.type, enabled=False):
        return x @ (matrix / D**0.5)
