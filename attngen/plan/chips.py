"""What the planner knows of a chip and of a kernel's loads, whatever kernel it plans."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SHARED_MEMORY = {"sm_80": 163, "sm_86": 99, "sm_90": 227, "sm_100": 227, "gfx942": 64, "cpu": 1 << 20}
"""KiB of shared memory that one program may use. `cpu` is Triton's interpreter."""


class Burden(StrEnum):
    """What a kernel computes beside the products, which decides between tiles of the same speed."""

    LIGHT = "light"
    """The score reads no position, and the mask no data."""
    ENDS = "ends"
    """As light, but the mask reads one number of a batch or head. The portable kernel's larger tile would spill."""
    SCORE = "score"
    """The score reads positions."""
    PAIRS = "pairs"
    """The score reads a param by more than the distance of a pair."""
    DATA = "data"
    """Tiles are skipped by what tensors hold, so runs are short."""
    RANDOM = "random"
    """Dropout, whose bits take more registers than the products."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of params in the loops, in bytes: of all that are read for one pair, and of the widest of them; of all that
    are read for one row or column. `addresses`: some pair's address is dear to compute. `chosen`: some depends on the
    product of query and key. `gathered`: kernels of their own gather a gradient over pairs, with the dQ kernel's tiles
    and no stages.
    """

    pair: int = 0
    widest: int = 0
    addresses: bool = False
    chosen: bool = False
    line: int = 0
    gathered: bool = False
