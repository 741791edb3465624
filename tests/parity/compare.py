"""Comparing a kernel with float64: cotangents, errors relative to the largest number, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Numbers:
    """out, lse and the gradients of q, k, v and every float param, by name, all in float64 on the CPU."""

    values: dict[str, Tensor]


def cotangents(out: Tensor, lse: Tensor, with_lse: bool) -> tuple[Tensor, Tensor]:
    """Fixed numbers of no particular pattern, the same on every device; zero for an lse that nobody differentiates."""
    generator = torch.Generator().manual_seed(7)
    d_out = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    d_lse = torch.randn(lse.shape, generator=generator, dtype=torch.float64) * float(with_lse)
    # Multiples of 1/32 below 4 are exact in every dtype.
    return tuple(((x * 32).round() / 32).clamp(-4, 4) for x in (d_out, d_lse))  # type: ignore[return-value]


def numbers(out: Tensor, lse: Tensor, leaves: dict[str, Tensor], with_lse: bool) -> Numbers:
    """Differentiates by torch's autograd; a leaf that the result does not depend on has zeros."""
    d_out, d_lse = cotangents(out, lse, with_lse)
    results, seeds = [out], [d_out.to(out)]
    if with_lse:
        results.append(lse)
        seeds.append(d_lse.to(lse))
    gradients = torch.autograd.grad(results, list(leaves.values()), seeds, allow_unused=True)
    values = {"out": out, "lse": lse}
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        values[f"d_{name}"] = torch.zeros_like(leaf) if gradient is None else gradient
    return Numbers({name: value.detach().double().cpu() for name, value in values.items()})


def error(got: Tensor, want: Tensor, floor: float) -> float:
    """The largest difference over the largest number, or over `floor` where all are small; infinities must agree."""
    if got.shape != want.shape:
        return float("inf")
    if want.numel() == 0:
        return 0.0
    finite = torch.isfinite(want)
    if not torch.equal(got[~finite], want[~finite]):
        return float("inf")
    difference = (got - want)[finite].abs()
    if difference.numel() == 0:
        return 0.0
    worst = difference.max().item()
    largest = max(want[finite].abs().max().item(), floor)
    return worst / largest if worst == worst else float("inf")


def disagreements(got: Numbers, want: Numbers, tolerance: float, floor: float, coarse: frozenset[str]) -> list[str]:
    """A line for each result that is off; those named in `coarse` are stored in half precision and allowed 1e-2."""
    assert got.values.keys() == want.values.keys()
    lines: list[str] = []
    for name, value in want.values.items():
        off = error(got.values[name], value, floor)
        allowed = max(tolerance, 1e-2) if name in coarse else tolerance
        if not off <= allowed:
            lines.append(f"{name}: error {off:.2e}, allowed {allowed:.0e}")
    return lines
