"""What a caller chooses beside the spec."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuned:
    """Tiles that were tuned for a TPU, in the place of the planner's: (queries, keys, full tiles at a time) of each."""

    chip: str
    itemsize: int
    forward: tuple[int, int, int]
    dkdv: tuple[int, int, int]
    dq: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TunedGpu:
    """Tiles that were timed on a GPU, in the place of the planner's: (queries, keys, warps, stages) of each kernel.

    No `forward` where the chip's own forward kernel is faster than any; with one, it takes that kernel's place at these
    head dims.
    """

    chip: str
    itemsize: int
    head_block: int
    forward: tuple[int, int, int, int] | None
    dkdv: tuple[int, int, int, int]
    dq: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Options:
    """`tile` overrides the spec's own (queries, keys); `precision` ("ieee" or "tf32") is of float32 products.

    `arch` says for which chips the file holds kernels of their own, beside those that run on all: "auto" for every chip
    that has some (the file picks by the card that it meets), a chip's name, or "portable" for none. `tuned` has at most
    one entry for a TPU and bytes of an element; `tuned_gpu` one for a GPU, bytes of an element and head dim.
    """

    target: str = "triton"
    arch: str = "auto"
    precision: str = "ieee"
    tile: tuple[int, int] | None = None
    tuned: tuple[Tuned, ...] = ()
    tuned_gpu: tuple[TunedGpu, ...] = ()
