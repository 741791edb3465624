"""What the planner knows of a chip and of a kernel's loads, whatever kernel it plans."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SHARED_MEMORY = {"sm_80": 163, "sm_86": 99, "sm_90": 227, "sm_100": 227, "gfx942": 64, "cpu": 1 << 20}
"""KiB of shared memory that one program may use. `cpu` is Triton's interpreter."""


class Burden(StrEnum):
    """What a kernel has to bear beside the products: it decides between tiles of the same speed otherwise.

    light: the score reads no position, the mask no data. ends: so, but for numbers of a batch or head, by which a
    portable kernel's larger tile would not keep its values in registers. score: it does. pairs: so it reads a param, by
    more than the distance. data: tiles are skipped by what tensors hold, so runs are short. random: dropout, whose bits
    take more registers than the products.
    """

    LIGHT = "light"
    ENDS = "ends"
    SCORE = "score"
    PAIRS = "pairs"
    DATA = "data"
    RANDOM = "random"


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
