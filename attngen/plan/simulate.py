"""Which tiles a plan's ranges visit, and which of them without the mask.

Takes a plan, sizes, params and tile sizes, returns a grid. NumPy evaluates the ends of stretches and rounds them to
tiles; the prover shows that the loops of `mask/loops.py` visit the same tiles. Where a map names tiles, it does what
the map's kernels do. `attngen show` draws the grid, and the property tests compare it with brute force.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import SIZES, Expr
from attngen.plan.host_map import FULL, PARTIAL, HostMap
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.holes import tile_test
from attngen.plan.mask.ranges import TileRanges


def classify(
    plan: KernelPlan,
    sizes: Mapping[str, int],
    params: Mapping[str, Any],
    *,
    tile: tuple[int, int],
    axis: str = "k",
    b: int = 0,
    h: int = 0,
) -> npt.NDArray[np.int8]:
    """int8 [query tiles, key tiles]: 0 skipped, 1 visited with the mask, 2 visited without.

    `sizes` gives B, Hq, Hkv, Sq, Sk, D, Dv and the sizes bound at the call; `axis` is the one that the loop walks: `k`
    for the forward and dQ kernels, `q` for dK/dV.
    """
    ranges = plan.keys if axis == "k" else plan.queries
    env = _of_head(plan, sizes, b, h)
    held_tile, walked_tile = tile if axis == "k" else tile[::-1]
    held_size, walked_size = (sizes["Sq"], sizes["Sk"]) if axis == "k" else (sizes["Sk"], sizes["Sq"])
    held_names = ("q0", "q1") if axis == "k" else ("k0", "k1")
    walked = -(-walked_size // walked_tile)
    rows: list[npt.NDArray[np.int8]] = []
    for first in range(0, held_size, held_tile):
        last = min(first + held_tile, held_size) - 1
        env.update(zip(held_names, (first, last), strict=True))
        for test in ranges.tests:
            env.update(_answer(test, ranges, env, params, first, last, walked_size, walked_tile))

        def value(e: Expr) -> int:
            return int(evaluate(e, env, params))

        row = np.zeros(walked, np.int8)
        for s in ranges.any:
            low, high = max(value(s.lo), 0), min(value(s.hi), walked_size)
            if low < high:
                row[low // walked_tile : -(-high // walked_tile)] = PARTIAL
        for s in ranges.all:
            low, high = -(-max(value(s.lo), 0) // walked_tile), min(value(s.hi), walked_size) // walked_tile
            if low < high:
                row[low:high] = FULL
        rows.append(row)
    grid = np.stack(rows) if rows else np.zeros((0, walked), np.int8)
    return grid if axis == "k" else np.ascontiguousarray(grid.T)


def visited(
    plan: KernelPlan,
    sizes: Mapping[str, int],
    params: Mapping[str, Any],
    *,
    tile: tuple[int, int],
    axis: str = "k",
    b: int = 0,
    h: int = 0,
) -> npt.NDArray[np.int8]:
    """`classify`, of the kernels for dense calls: those that a map tells where to go see the tiles that hold a pair. In
    JAX, where nobody looks at pairs, they see some more."""
    if plan.map is None:
        return classify(plan, sizes, params, tile=tile, axis=axis, b=b, h=h)
    grid = by_pairs(plan, sizes, params, tile=tile, b=b, h=h)
    if axis == "k" and sizes["Sk"] % tile[1]:
        grid[:, -1] = np.minimum(grid[:, -1], PARTIAL)
    if axis == "q" and sizes["Sq"] % tile[0]:
        grid[-1] = np.minimum(grid[-1], PARTIAL)
    return grid


def by_pairs(
    plan: KernelPlan, sizes: Mapping[str, int], params: Mapping[str, Any], *, tile: tuple[int, int], b: int, h: int
) -> npt.NDArray[np.int8]:
    """int8 [query tiles, key tiles]: 0 where the mask allows no pair, 2 where it allows all, else 1. As a map's kernels
    do, it asks the extremes of tiles first, and looks at the pairs of those that they leave open."""
    env = _of_head(plan, sizes, b, h)
    env |= {name: np.full((1, 1, 1), env[name]) for name in ("b", "h", "hkv")}
    shape = -(-sizes["Sq"] // tile[0]), -(-sizes["Sk"] // tile[1])
    if 0 in shape:
        return np.zeros(shape, np.int8)
    mask, test = plan.attention.mask, tile_test(plan.attention.mask, plan.facts)
    found = HostMap(test=test, mask=mask, env=env, data=params, left=math.inf, tile=tile, real=np.float64)
    grids = found.grids((0, sizes["Sq"]), (0, sizes["Sk"]))
    return np.concatenate([grid[0, 0] for _, grid in grids])


def _of_head(plan: KernelPlan, sizes: Mapping[str, int], b: int, h: int) -> dict[str, Any]:
    env: dict[str, Any] = {planned(plan, name): value for name, value in sizes.items()}
    return env | {"b": b, "h": h, "hkv": h // (sizes["Hq"] // sizes["Hkv"]), "inf": np.inf}


def planned(plan: KernelPlan, size: str) -> str:
    """The plan's name for a size of the spec (see `plan.ints.renaming`)."""
    known = (*SIZES, *plan.attention.sizes)
    return next((name for name in (size, f"{size}_size", f"{size}_size_size") if name in known), size)


def _answer(
    test: DataTest,
    ranges: TileRanges,
    env: Mapping[str, Any],
    params: Mapping[str, Any],
    first: int,
    last: int,
    size: int,
    tile: int,
) -> dict[str, int]:
    """The four bounds of a data test, in positions."""
    held, walked = (test.row, test.col) if ranges.axis == "k" else (test.col, test.row)
    held_name, walked_name = ("q", "k") if ranges.axis == "k" else ("k", "q")
    here = np.broadcast_to(evaluate(held, {**env, held_name: np.arange(first, last + 1)}, params), (last - first + 1,))
    there = np.atleast_2d(evaluate(walked, {**env, walked_name: np.arange(size)}, params))
    there = np.broadcast_to(there, (there.shape[0], size))
    some: list[int] = []
    every: list[int] = []
    for number, start in enumerate(range(0, size, tile)):
        part = there[:, start : start + tile]
        extremes = {"here_least": here.min(), "here_most": here.max()}
        extremes |= {"there_least": part.min(), "there_most": part.max()}
        if evaluate(test.can(ranges.axis), extremes, {}):
            some.append(number)
        if evaluate(test.must(ranges.axis), extremes, {}):
            every.append(number)
    contiguous = bool(every) and every[-1] - every[0] + 1 == len(every)
    return {
        f"{test.name}_any_lo": some[0] * tile if some else 0,
        f"{test.name}_any_hi": (some[-1] + 1) * tile if some else 0,
        f"{test.name}_all_lo": every[0] * tile if contiguous else 0,
        f"{test.name}_all_hi": (every[-1] + 1) * tile if contiguous else 0,
    }
