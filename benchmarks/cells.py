"""What is measured: the variants and shapes, their inputs, and how many operations each is worth.

Gives cells (one variant at one shape), fresh inputs for a cell, the fraction of pairs that its mask allows, and the
variant's score and mask as elementwise torch functions. Those are written here by hand, apart from the `.attn` files:
the dense check (check.py) and FlexAttention (peers.py) both take them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

VARIANTS = (
    "full",
    "causal",
    "alibi",
    "softcap",
    "sliding_window",
    "prefix_lm",
    "documents",
    "relative_bias",
)
"""The plain masks, then the variants; `alibi`, `softcap` and `documents` are causal, `relative_bias` sees every key."""

Index = Any  # an int, or an int tensor that broadcasts: what a modifier gets for b, h, q and k
ScoreMod = Callable[[Tensor, Index, Index, Index, Index], Tensor]
MaskMod = Callable[[Index, Index, Index, Index], Tensor]


@dataclass(frozen=True, slots=True)
class Settings:
    """The constants of the variants. The generated kernels have `window`, `cap` and `radius` compiled in."""

    window: int = 1024
    prefix: int = 1024
    documents: int = 8
    cap: float = 50.0
    radius: int = 127


FULL_SIZE = Settings()
DRY_SIZE = Settings(window=24, prefix=24, documents=3, cap=5.0, radius=7)
"""For dry runs on the CPU, where N is 64."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant at one shape: `tokens` in all, so B = tokens / N, and `width` / D heads."""

    variant: str
    D: int
    N: int
    tokens: int = 16384
    width: int = 2048

    @property
    def B(self) -> int:
        return max(1, self.tokens // self.N)

    @property
    def H(self) -> int:
        return max(1, self.width // self.D)

    @property
    def key(self) -> str:
        return f"{self.variant}:{self.D}:{self.N}"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.B, self.H, self.N, self.D)

    def forward_flops(self, fraction: float) -> float:
        """4 B H N² D for the two products, times the fraction of pairs that the mask allows."""
        return 4.0 * self.B * self.H * self.N * self.N * self.D * fraction

    def backward_flops(self, fraction: float) -> float:
        """Five products where the forward has two, whatever a kernel really computes."""
        return 2.5 * self.forward_flops(fraction)


def matrix() -> tuple[Cell, ...]:
    """Every cell of the table, those that say most first, in case time runs out."""
    plain = [(128, 4096), (128, 16384), (128, 1024), (64, 4096), (64, 16384), (256, 4096), (256, 16384)]
    cells = [Cell(variant, D, N) for D, N in plain[:2] for variant in ("causal", "full")]
    cells += [Cell(variant, 128, N) for variant in VARIANTS[2:] for N in (4096, 16384)]
    cells += [Cell(variant, D, N) for D, N in plain[2:] for variant in ("causal", "full")]
    return tuple(cells)


def quick_matrix() -> tuple[Cell, ...]:
    """A minute's look: one shape, the variants that are made differently."""
    return tuple(Cell(variant, 128, 4096) for variant in ("causal", "alibi", "softcap", "documents"))


def dry_matrix() -> tuple[Cell, ...]:
    """Every variant, at a size that the interpreter manages."""
    return tuple(Cell(variant, 16, 64, tokens=128, width=32) for variant in VARIANTS)


def document_lengths(cell: Cell, documents: int) -> list[list[int]]:
    """The documents of each batch row: uneven lengths, cut off the tile grid, the same on every run."""
    generator = torch.Generator().manual_seed(1234)
    least = max(1, cell.N // (4 * documents))
    rows: list[list[int]] = []
    for _ in range(cell.B):
        share = torch.rand(documents, generator=generator, dtype=torch.float64) + 0.25
        free = cell.N - documents * least
        lengths = [least + int(free * float(s)) for s in share / share.sum()]
        lengths[-1] += cell.N - sum(lengths)
        rows.append(lengths)
    return rows


def fraction(cell: Cell, settings: Settings) -> float:
    """The share of the N² pairs that the mask allows, exactly, as a mean over the batch."""
    N = cell.N
    match cell.variant:
        case "full" | "relative_bias":
            pairs = float(N * N)
        case "causal" | "alibi" | "softcap":
            pairs = N * (N + 1) / 2
        case "sliding_window":
            w = min(settings.window, N)
            pairs = w * (w + 1) / 2 + (N - w) * w
        case "prefix_lm":
            p = min(settings.prefix, N)
            pairs = p * p + (N * (N + 1) - p * (p + 1)) / 2
        case "documents":
            rows = document_lengths(cell, settings.documents)
            pairs = sum(n * (n + 1) / 2 for row in rows for n in row) / len(rows)
        case _:
            raise ValueError(f"no variant {cell.variant!r}; there are {', '.join(VARIANTS)}")
    return pairs / (N * N)


@dataclass(frozen=True, slots=True)
class Inputs:
    """One cell's tensors: q, k, v (B, H, N, D), leaves that want gradients; `params` go by the .attn files' names."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad_out: Tensor
    params: Mapping[str, Tensor | int | float]

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        return (self.q, self.k, self.v)

    def scaled(self, gain: float) -> Inputs:
        """The same inputs with q multiplied, so that the scores spread wider."""
        q = (self.q.detach() * gain).requires_grad_(self.q.requires_grad)
        return Inputs(q, self.k, self.v, self.grad_out, self.params)


def measured_dtype(device: str) -> torch.dtype:
    """bfloat16; float16 on the CPU, because Triton's interpreter multiplies bfloat16 as if its bits were integers."""
    return torch.bfloat16 if device == "cuda" else torch.float16


def make_inputs(cell: Cell, settings: Settings, *, device: str, seed: int, dtype: torch.dtype | None = None) -> Inputs:
    """Random inputs, every one of them full of other numbers: zeros hide mistakes and run faster than data does."""
    dtype = measured_dtype(device) if dtype is None else dtype
    generator = torch.Generator(device=device).manual_seed(seed)

    def draw() -> Tensor:
        return torch.randn(cell.shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    q, k, v, grad_out = draw(), draw(), draw(), draw()
    params = params_of(cell, settings, generator)
    return Inputs(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad_out, params)


def params_of(cell: Cell, settings: Settings, generator: torch.Generator) -> dict[str, Tensor | int | float]:
    """By the names of the spec's params, on the generator's device."""
    device = generator.device
    params: dict[str, Tensor | int | float] = {}
    match cell.variant:
        case "alibi":
            slope = [2.0 ** (-8.0 * (h + 1) / cell.H) for h in range(cell.H)]
            params["slope"] = torch.tensor(slope, device=device)
        case "prefix_lm":
            params["prefix"] = settings.prefix
        case "documents":
            rows = [
                torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row))
                for row in document_lengths(cell, settings.documents)
            ]
            params["ids"] = torch.stack(rows).to(device=device, dtype=torch.int32)
        case "relative_bias":
            # Values that bfloat16 holds, so that FlexAttention may read a half-size table: with float32 it ran at
            # half the speed or less.
            table = torch.randn(cell.H, 2 * settings.radius + 1, generator=generator, device=device)
            params["table"] = table.bfloat16().float()
        case _:
            pass
    return params


def score_mod(variant: str, settings: Settings, params: Mapping[str, Any]) -> ScoreMod | None:
    """What the variant does to one scaled score, elementwise, as FlexAttention's users write it; None for nothing."""
    match variant:
        case "alibi":
            slope = params["slope"]
            return lambda s, b, h, q, k: s + slope[h] * (k - q)  # causal, so k - q = -|q - k|
        case "softcap":
            cap = settings.cap
            return lambda s, b, h, q, k: cap * torch.tanh(s / cap)
        case "relative_bias":
            table, radius = params["table"].bfloat16(), settings.radius
            return lambda s, b, h, q, k: s + table[h, torch.clamp(q - k, -radius, radius) + radius]
        case _:
            return None


def mask_mod(variant: str, settings: Settings, params: Mapping[str, Any]) -> MaskMod | None:
    """Which pairs may attend, elementwise; None for all."""
    match variant:
        case "causal" | "alibi" | "softcap":
            return lambda b, h, q, k: k <= q
        case "sliding_window":
            window = settings.window
            return lambda b, h, q, k: (k <= q) & (q - k < window)
        case "prefix_lm":
            prefix = params["prefix"]
            return lambda b, h, q, k: (k <= q) | (k < prefix)
        case "documents":
            ids = params["ids"]
            return lambda b, h, q, k: (k <= q) & (ids[b, q] == ids[b, k])
        case _:
            return None


def check_gain(variant: str) -> float:
    """By how much the check multiplies q. Scores near 5 hardly feel a cap of 50: near 20 they do."""
    return 4.0 if variant == "softcap" else 1.0


def target(cell: Cell) -> float:
    """How many times FlexAttention's speed attngen owes in this cell, at least."""
    return 1.5 if cell.D == 256 or cell.variant == "softcap" else 1.0
