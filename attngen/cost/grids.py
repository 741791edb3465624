"""Which tiles the plan's loops visit, summed over batches and heads.

Takes a plan, sizes, the mask's params and a tile, returns `Visits`. The grid of one head comes from the plan's
closed-form ranges, or by the mask's pairs (`plan.simulate`); where the mask reads no head or batch, one grid stands for
all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attngen.errors import UsageError
from attngen.ir.walk import reads
from attngen.plan import KernelPlan
from attngen.plan.host_map import FULL, SKIPPED
from attngen.plan.simulate import visited


@dataclass(frozen=True, slots=True)
class Visits:
    """Counts over all batches and query heads; `heads` is how many those are, `kv_heads` how many key/value heads.

    A tile at the end of a sequence counts with the positions that it has. `walked` queries: the sum over visited tiles
    of their queries, that is how many rows are fetched if a tile of queries is fetched for each tile of keys that it
    meets. `seen` keys: how many different ones any visited tile has, over key/value heads. And so on.
    """

    tile: tuple[int, int]
    heads: int
    kv_heads: int
    tiles: int  # visited
    query_tiles: int
    pairs: int  # in visited tiles
    masked_pairs: int  # of these, in tiles that run with the mask
    all_pairs: int
    queries: int
    keys: int  # over query heads
    walked_queries: int
    walked_keys: int
    seen_queries: int
    seen_keys: int  # over key/value heads

    @property
    def skipped(self) -> float:
        """The share of the pairs that no tile visits."""
        return 1 - self.pairs / self.all_pairs if self.all_pairs else 0.0


_MOST = 2**28
"""Tiles of a head: 2 GiB of areas."""


def visits(
    plan: KernelPlan, sizes: Mapping[str, int], params: Mapping[str, Any], tile: tuple[int, int], axis: str = "k"
) -> Visits:
    """`axis` is the one that the loop walks; the two directions may skip differently where data decides."""
    mask = plan.attention.mask
    batches = sizes["B"] if reads(mask, "b") else 1
    heads = sizes["Hq"] if reads(mask, "h", "hkv") else 1
    group = sizes["Hq"] // sizes["Hkv"]
    queries, keys = _lengths(sizes["Sq"], tile[0]), _lengths(sizes["Sk"], tile[1])
    if queries.size * keys.size > _MOST:
        shape = f"{queries.size} x {keys.size} tiles of {tile[0]} x {tile[1]}"
        raise UsageError(f"{shape} are more than are counted one by one, {_MOST}: say a shorter length")
    differ = heads if reads(mask, "h") else max(1, heads // group)
    areas = queries[:, None] * keys[None, :]
    tiles = pairs = masked = walked_queries = walked_keys = seen_queries = seen_keys = 0
    for b in range(batches):
        apart = range(0, heads, heads // differ)
        own = [visited(plan, sizes, params, tile=tile, axis=axis, b=b, h=h) for h in apart]
        grids = [own[h * differ // heads] for h in range(heads)]
        for h, grid in enumerate(grids):
            met = grid != SKIPPED
            weight = (sizes["B"] // batches) * (sizes["Hq"] // heads)
            tiles += weight * int(met.sum())
            pairs += weight * int(areas[met].sum())
            masked += weight * int(areas[met & (grid != FULL)].sum())
            walked_queries += weight * int((met * queries[:, None]).sum())
            walked_keys += weight * int((met * keys[None, :]).sum())
            seen_queries += weight * int(queries[met.any(axis=1)].sum())
            if h % group == 0:  # a key/value head's tiles are those that any of its query heads meets
                together = np.any([g != SKIPPED for g in grids[h : h + group]], axis=0)
                share = (sizes["B"] // batches) * (1 if heads > 1 else sizes["Hkv"])
                seen_keys += share * int(keys[together.any(axis=0)].sum())
    all_heads = sizes["B"] * sizes["Hq"]
    return Visits(
        tile=tile,
        heads=all_heads,
        kv_heads=sizes["B"] * sizes["Hkv"],
        tiles=tiles,
        query_tiles=all_heads * len(queries),
        pairs=pairs,
        masked_pairs=masked,
        all_pairs=all_heads * sizes["Sq"] * sizes["Sk"],
        queries=all_heads * sizes["Sq"],
        keys=all_heads * sizes["Sk"],
        walked_queries=walked_queries,
        walked_keys=walked_keys,
        seen_queries=seen_queries,
        seen_keys=seen_keys,
    )


def _lengths(size: int, tile: int) -> npt.NDArray[np.int64]:
    """How many positions each tile has."""
    starts = np.arange(0, size, tile)
    return np.minimum(starts + tile, size) - starts
