"""What a caller chooses beside the spec."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """`tile` overrides the spec's own (queries, keys); `precision` ("ieee" or "tf32") is of float32 products."""

    target: str = "triton"
    precision: str = "ieee"
    tile: tuple[int, int] | None = None
