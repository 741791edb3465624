"""Tile sizes of the Pallas target, and the vector memory that kernels may use.

Takes the spec's own tile, returns the table that a generated file carries: for each chip and bytes of an element the
forward, dK/dV and dQ kernels' (queries, keys, full tiles walked at a time).
"""

from __future__ import annotations

from dataclasses import dataclass

VMEM = {"v4": 16, "v5e": 96, "v5p": 64, "v6e": 96, "7x": 56, "cpu": 1 << 14}
"""MiB. `cpu` is Pallas' interpreter, where a head is resident whatever its length."""


STRAIGHT = 16
"""Tiles that the forward kernel may have one after the other, outside its loop: code grows with them."""


LISTS = 2**18
"""Bytes of scalar memory that the lists of a map may take."""


WIDE = ("v6e", "7x")
"""Chips whose matrix units are 256 columns wide. A head dim of 128 fills half of them, unless weights stand in them and
the values stream past."""
PIECE = 512
"""Queries and keys that their forward kernel computes at a time."""
AHEAD = 2
"""Pieces whose scores it computes before their weights: with fewer the matrix units wait, with more registers spill."""


@dataclass(frozen=True, slots=True)
class TpuTile:
    queries: int
    keys: int
    unroll: int


Row = tuple[TpuTile, TpuTile, TpuTile]


def row(*tiles: tuple[int, int, int]) -> Row:
    """The forward, dK/dV and dQ kernels' tiles."""
    forward, dkdv, dq = (TpuTile(*t) for t in tiles)
    return forward, dkdv, dq


_BEST: dict[tuple[str, int], Row] = {
    ("v4", 2): row((512, 512, 4), (512, 512, 1), (512, 512, 1)),
    ("v4", 4): row((256, 512, 1), (256, 256, 1), (256, 256, 1)),
    ("v5e", 2): row((512, 512, 4), (512, 512, 1), (512, 512, 1)),
    ("v5e", 4): row((512, 512, 1), (256, 512, 1), (256, 512, 1)),
    ("v5p", 2): row((512, 512, 4), (512, 512, 1), (512, 512, 1)),
    ("v5p", 4): row((512, 512, 1), (256, 512, 1), (256, 512, 1)),
    ("v6e", 2): row((1024, 1024, 4), (512, 512, 1), (512, 512, 1)),
    ("v6e", 4): row((512, 512, 1), (256, 512, 1), (256, 512, 1)),
    ("7x", 2): row((1024, 1024, 4), (512, 512, 1), (512, 512, 1)),
    ("7x", 4): row((512, 512, 1), (256, 512, 1), (256, 512, 1)),
    ("cpu", 2): row((128, 128, 1), (128, 128, 1), (128, 128, 1)),
    ("cpu", 4): row((128, 128, 1), (128, 128, 1), (128, 128, 1)),
}
LEAST = 128
"""Rows and columns of a tile on a chip: a register's lanes. The interpreter takes smaller ones."""


def table(own: tuple[int, int] | None) -> dict[tuple[str, int], Row]:
    """`own` is the spec's tile or the caller's; a chip rounds it up to what it can hold in registers."""
    if own is None:
        return dict(_BEST)
    found: dict[tuple[str, int], Row] = {}
    for chip, itemsize in _BEST:
        least = 16 if chip == "cpu" else LEAST
        tile = (max(own[0], least), max(own[1], least), 1)
        found[chip, itemsize] = row(tile, tile, tile)
    return found
