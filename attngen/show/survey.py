"""What a picture of a mask shows: which pairs may attend, and which tiles the kernel skips, masks, or runs bare.

Takes a plan, sizes, params and a tile; returns a `Survey`, which the renderers only lay out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from attngen.errors import InternalError, UsageError
from attngen.ir.evaluate import Array, evaluate
from attngen.plan import KernelPlan
from attngen.plan.host_map import FULL, PARTIAL, SKIPPED
from attngen.plan.simulate import by_pairs, visited

_MOST_BORDERS = 64  # tiles along a side: with more, lines would hide what they part
_SAMPLES = 2048  # positions looked at along each side; all of them up to this length
MOST_PAIRS = 2**28  # for so many the mask is evaluated in seconds


class Pair(IntEnum):
    """What becomes of one (query, key) pair."""

    SKIPPED = 0  # never computed
    MASKED = 1  # computed in a partial tile, then masked away
    ALLOWED = 2  # computed in a partial tile, and kept
    FULL = 3  # computed in a tile that needs no mask


@dataclass(frozen=True, eq=False)
class Survey:
    """One head of one batch entry. `tiles` is the simulator's: 0 skipped, 1 partial, 2 full; `pairs` holds `Pair`s.

    `pairs` has one entry for every `stride[0]` queries and `stride[1]` keys. `with_pairs`: how many tiles hold a pair
    that may attend; None where there are too many pairs to look at.
    """

    name: str
    queries: int
    keys: int
    batch: int
    head: int
    tile: tuple[int, int]
    tiles: Array
    pairs: Array
    stride: tuple[int, int]
    with_pairs: int | None

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many tiles are skipped, partial, and full."""
        skipped, partial, full = (int((self.tiles == kind).sum()) for kind in (SKIPPED, PARTIAL, FULL))
        return skipped, partial, full

    @property
    def allowed(self) -> float:
        """The share of pairs that may attend."""
        return float((self.pairs >= Pair.ALLOWED).mean()) if self.pairs.size else 0.0

    @property
    def borders(self) -> tuple[range, range]:
        """Between which queries, and between which keys, tiles meet; none where tiles are too many to be told apart."""
        if max(self.tiles.shape) > _MOST_BORDERS:
            return range(0), range(0)
        high, wide = self.tile
        return range(high, self.queries, high), range(wide, self.keys, wide)

    def summary(self) -> str:
        """Three lines of figures, or two."""
        skipped, partial, full = self.counts
        about = "" if self.stride == (1, 1) else "about "
        return (
            f"{skipped / max(self.tiles.size, 1):.1%} of the work is skipped: of {self.tiles.size} tiles of "
            f"{self.tile[0]} x {self.tile[1]}, {skipped} are skipped, {partial} are masked, {full} need no mask\n"
            f"{about}{self.allowed:.1%} of the pairs may attend"
        ) + (
            ""
            if self.with_pairs is None
            else f"\nFlexAttention's block mask of such tiles would visit {self.with_pairs} of them"
        )

    def reduced(self, queries: int, keys: int) -> Array:
        """`pairs` on a coarser grid, whose cells stand for (at least) `queries` x `keys` pairs.

        A cell shows a pair that may attend if it has one; a cell across a tile's border shows the partial tile.
        """
        high, wide = -(-queries // self.stride[0]), -(-keys // self.stride[1])
        rows, columns = -(-self.pairs.shape[0] // high), -(-self.pairs.shape[1] // wide)
        missing = (rows * high - self.pairs.shape[0], columns * wide - self.pairs.shape[1])
        blocks = np.pad(self.pairs, ((0, missing[0]), (0, missing[1])), mode="edge").reshape(rows, high, columns, wide)
        shown = np.full((rows, columns), int(Pair.SKIPPED), np.int8)
        for kind in (Pair.FULL, Pair.MASKED, Pair.ALLOWED):
            shown[(blocks == kind).any(axis=(1, 3))] = kind
        return shown


def survey(
    plan: KernelPlan,
    sizes: Mapping[str, int],
    params: Mapping[str, Any],
    *,
    tile: tuple[int, int],
    batch: int = 0,
    head: int = 0,
) -> Survey:
    """Look at one head's mask and at what the plan does with each of its tiles."""
    for what, value, size in (("batch", batch, sizes["B"]), ("head", head, sizes["Hq"])):
        if not 0 <= value < size:
            raise UsageError(f"{what} {value} is out of range: there are {size}")
    queries, keys = sizes["Sq"], sizes["Sk"]
    stride = (-(-queries // _SAMPLES), -(-keys // _SAMPLES))
    rows, columns = np.arange(0, queries, stride[0]), np.arange(0, keys, stride[1])
    indices = {"b": batch, "h": head, "hkv": head // (sizes["Hq"] // sizes["Hkv"])}
    env = {**sizes, **indices, "q": rows[:, None], "k": columns[None, :]}
    allowed = np.broadcast_to(evaluate(plan.attention.mask, env, params), (len(rows), len(columns)))
    tiles = visited(plan, sizes, params, tile=tile, b=batch, h=head)
    held = tiles if plan.map is not None else None
    if held is None and tiles.size * tile[0] * tile[1] <= MOST_PAIRS:
        held = by_pairs(plan, sizes, params, tile=tile, b=batch, h=head)
    kinds = tiles[rows[:, None] // tile[0], columns[None, :] // tile[1]]
    wrong = ((kinds == SKIPPED) & allowed) | ((kinds == FULL) & ~allowed)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise InternalError(
            f"the plan treats the pair q = {rows[row]}, k = {columns[column]} of {plan.attention.name} wrongly"
        )
    partial = np.where(allowed, np.int8(Pair.ALLOWED), np.int8(Pair.MASKED))
    pairs = np.where(kinds == SKIPPED, np.int8(Pair.SKIPPED), np.where(kinds == FULL, np.int8(Pair.FULL), partial))
    with_pairs = None if held is None else int((held != SKIPPED).sum())
    return Survey(plan.attention.name, queries, keys, batch, head, tile, tiles, pairs, stride, with_pairs)
