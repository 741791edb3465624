"""What a caller chooses beside the spec."""

from __future__ import annotations

from dataclasses import dataclass

from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton, Skeleton

ITEMSIZES = {"fp8": 1, "fp16": 2, "bf16": 2, "fp32": 4}


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
    """What was timed on a GPU, in the place of the planner's choice: tiles, (queries, keys, warps, stages), of portable
    kernels, and rows of the tables of the chip's own at `dims`, the head dims of Q and K and of V, rounded up.

    What is None stays. A tile for `forward` takes the place of the chip's own forward kernel at these head dims;
    `portable`: the portable backward kernels take that of its own at `dims`.
    """

    chip: str
    itemsize: int
    head_block: int
    forward: tuple[int, int, int, int] | None = None
    dkdv: tuple[int, int, int, int] | None = None
    dq: tuple[int, int, int, int] | None = None
    dims: tuple[int, int] = (0, 0)
    row: Skeleton | None = None
    backward: BackwardSkeleton | ApartSkeleton | None = None
    portable: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """`tile`, (queries, keys), takes the place of the spec's own before anything is planned: `emit` refuses a plan that
    was made for another one. `precision` ("ieee" or "tf32") is of float32 products.

    The next four are for the Triton target and say what a file is for; it holds nothing else. `arch`: "auto" for every
    chip (the file picks by the card that it meets), a chip's name for that one, "portable" for every chip without the
    kernels that some have for themselves. `head_dim`: (of q and k, of v), or all up to 256. `dtype`: of q, k and v, or
    all. `forward`: without a backward pass. Triton's interpreter always runs the file.

    `geometry`: the functions that it has, see `plan.sides`; dense is always among them. `emit` writes no pieces:
    those are joined to what it writes.

    `tuned` has at most one entry for a TPU and bytes of an element; `tuned_gpu` one for a GPU, bytes of an element and
    head dim.
    """

    target: str = "triton"
    arch: str = "auto"
    head_dim: tuple[int, int] | None = None
    dtype: str | None = None
    forward: bool = False
    geometry: tuple[str, ...] = ("dense",)
    precision: str = "ieee"
    tile: tuple[int, int] | None = None
    tuned: tuple[Tuned, ...] = ()
    tuned_gpu: tuple[TunedGpu, ...] = ()

    @property
    def chip(self) -> str | None:
        """The one chip that the file is for."""
        return None if self.arch in ("auto", "portable") else self.arch

    @property
    def sequences(self) -> bool:
        """Whether some kernels find out where their sequence is."""
        return not {"lengths", "packed"}.isdisjoint(self.geometry)

    def holds(self, chip: str, itemsize: int) -> bool:
        """Whether the file is for this chip and elements of so many bytes. Triton's interpreter, "cpu", always counts:
        there bfloat16 becomes float32.
        """
        sized = self.dtype is None or itemsize == ITEMSIZES[self.dtype]
        return chip == "cpu" or (sized and self.chip in (None, chip))
