"""What a caller chooses beside the spec."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """`arch`: "auto", whose file picks by the card, or "portable", without the kernels of one architecture alone.
    `tile` overrides the spec's own (queries, keys); `precision` ("ieee" or "tf32") is of float32 products."""

    target: str = "triton"
    arch: str = "auto"
    precision: str = "ieee"
    tile: tuple[int, int] | None = None
