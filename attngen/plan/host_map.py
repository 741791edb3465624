"""What a mask allows of tiles of queries and of keys, on the host: a map as kernels of GPUs make it, in NumPy.

Takes the plan's `TileTest`, which `tile-ranges` proves, and what the mask reads; says of ranges of queries and of keys
which tiles hold allowed pairs, and how many keys each query may attend to. Tiles of which the test leaves it open are
looked at pair by pair, up to a limit; beyond it all of their pairs count as allowed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attngen.ir.build import FALSE, TRUE
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.ir.walk import reads
from attngen.plan.mask.holes import Part, TileTest

Range = tuple[int, int]
Ends = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SKIPPED, PARTIAL, FULL = 0, 1, 2
"""What becomes of a tile: it holds no allowed pair, some, or none that is forbidden."""
TILE = (128, 128)
_MOST = 2**26
"""Pairs that are looked at one by one."""
_AT_ONCE = 2**22
"""Tiles, or pairs, that are looked at together."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Some tiles of queries beside all tiles of keys: where they begin, and where the last ends. By batch, head, tile
    of queries and tile of keys: `can`, some pair may be allowed; `must`, all are; `mixed`, some are and others not."""

    q: Ends
    k: Ends
    can: Bools
    must: Bools
    mixed: Bools


@dataclass
class HostMap:
    """`env` and `data`: what the mask reads but for q and k, batches and heads along the first two axes. `left`: how
    many pairs may still be looked at; `tile`: queries and keys of a tile. `real`: the dtype of floats. Without a `test`
    all tiles are looked at."""

    test: TileTest | None
    mask: Expr
    env: Mapping[str, Any]
    data: Mapping[str, Any]
    left: float = field(default=_MOST)
    tile: tuple[int, int] | None = None
    real: Any = np.float32
    _of_keys: dict[Range, tuple[Ends, dict[str, Any]]] = field(default_factory=dict[Range, Any])

    def counts(self, q_range: Range, k_range: Range) -> tuple[Any, Any]:
        """By batch, head and query of the range, how many of the keys are certainly allowed, and how many may be."""
        certain: list[Any] = []
        possible: list[Any] = []
        for strip in self._strips(q_range, k_range):
            widths, heights = np.diff(strip.k), np.diff(strip.q)
            known = np.repeat((strip.must * widths).sum(-1), heights, -1)
            most = np.repeat((strip.can * widths).sum(-1), heights, -1)
            low = known.copy()
            for i, j, allowed in self._looked_at(strip, strip.can & ~strip.must):
                rows = slice(int(strip.q[i] - strip.q[0]), int(strip.q[i + 1] - strip.q[0]))
                # Of batches and heads whose tile is open, what is allowed in place of all.
                is_open = (strip.can & ~strip.must)[..., i, j][..., None]
                own = allowed.sum(-1)
                low[..., rows] += np.where(is_open, own, 0)
                most[..., rows] -= np.where(is_open, widths[j] - own, 0)
            certain.append(low)
            possible.append(most)
        return np.concatenate(certain, -1), np.concatenate(possible, -1)

    def met(self, q_range: Range, k_range: Range) -> tuple[Ends, Ends, Bools]:
        """Where tiles of queries begin, and tiles of keys, each with the end of the last; which of them hold a pair
        that some batch and head may allow."""
        grids = list(self.grids(q_range, k_range))
        q_ends = np.append(np.concatenate([strip.q[:-1] for strip, _ in grids]), q_range[1])
        return q_ends, grids[-1][0].k, np.concatenate([(grid != SKIPPED).any((0, 1)) for _, grid in grids])

    def grids(self, q_range: Range, k_range: Range) -> Iterator[tuple[Strip, npt.NDArray[np.int8]]]:
        """What becomes of each tile, by batch, head, tile of queries and tile of keys."""
        for strip in self._strips(q_range, k_range):
            grid = np.where(strip.must, FULL, np.where(strip.can, PARTIAL, SKIPPED)).astype(np.int8)
            for i, j, allowed in self._looked_at(strip, strip.can & ~strip.must & ~strip.mixed):
                some, every = allowed.any((-1, -2)), allowed.all((-1, -2))
                grid[..., i, j] = np.where(every, FULL, np.where(some, PARTIAL, SKIPPED))
            yield strip, grid

    @property
    def _sizes(self) -> tuple[int, int]:
        return TILE if self.tile is None else self.tile

    @property
    def _apart(self) -> tuple[int, int]:
        """How many batches and heads the mask tells apart."""
        batches, heads = reads(self.mask, "b"), reads(self.mask, "h", "hkv")
        return np.size(self.env["b"]) if batches else 1, np.size(self.env["h"]) if heads else 1

    def _strips(self, q_range: Range, k_range: Range) -> Iterator[Strip]:
        parts, conditions = ((), (TRUE, FALSE, FALSE)) if self.test is None else (self.test.parts, self.test.conditions)
        rows, columns = self._sizes
        if k_range not in self._of_keys:
            k = np.append(np.arange(*k_range, columns), k_range[1])
            self._of_keys[k_range] = k, {p.name: self._ends(p, "k", k) for p in parts if p.of_keys}
        k, of_keys = self._of_keys[k_range]
        step = max(1, _AT_ONCE // len(k)) * rows
        for start in range(*q_range, step):
            stop = min(start + step, q_range[1])
            q = np.append(np.arange(start, stop, rows), stop)
            env = self._beside(1)
            for part in parts:
                low, high = of_keys[part.name] if part.of_keys else self._ends(part, "q", q)
                least, most = (x[..., None, :] if part.of_keys else x[..., None] for x in (low, high))
                env |= {f"{part.name}_least": least, f"{part.name}_most": most}
            shape = (*self._apart, len(q) - 1, len(k) - 1)
            can, must, mixed = (np.broadcast_to(self._value(c, env), shape) for c in conditions)
            yield Strip(q=q, k=k, can=can, must=must, mixed=mixed)

    def _ends(self, part: Part, axis: str, ends: Ends) -> tuple[Any, Any]:
        """The least and the greatest value of a part in each tile of its axis."""
        found = np.asarray(self._value(part.value, {**self.env, axis: np.arange(ends[0], ends[-1])}), np.int64)
        found = np.broadcast_to(found, (*np.broadcast_shapes((1, 1), found.shape[:-1]), ends[-1] - ends[0]))
        at = ends[:-1] - ends[0]
        return np.minimum.reduceat(found, at, -1), np.maximum.reduceat(found, at, -1)

    def _looked_at(self, strip: Strip, asked: Bools) -> Iterator[tuple[int, int, Any]]:
        """Of the tiles that some batch and head asks for, which pairs are allowed, as long as the limit lasts: the tile
        of queries, that of keys, and (batch, head, query, key)."""
        tiles = np.argwhere(asked.any((0, 1)))
        rows, columns = self._sizes
        size = rows * columns * math.prod(self._apart)
        step = max(1, _AT_ONCE // size)
        env = self._beside(2)
        for start in range(0, len(tiles), step):
            own = tiles[start : start + step]
            self.left -= len(own) * size
            if self.left < 0:
                return
            q = np.minimum(strip.q[own[:, :1]] + np.arange(rows), strip.q[-1] - 1)
            k = np.minimum(strip.k[own[:, 1:]] + np.arange(columns), strip.k[-1] - 1)
            allowed = self._value(self.mask, {**env, "q": q[:, :, None], "k": k[:, None, :]})
            allowed = np.broadcast_to(allowed, (*self._apart, len(own), rows, columns))
            for n, (i, j) in enumerate(own.tolist()):
                height, width = int(strip.q[i + 1] - strip.q[i]), int(strip.k[j + 1] - strip.k[j])
                yield i, j, allowed[..., n, :height, :width]

    def _beside(self, axes: int) -> dict[str, Any]:
        """What is read beside q and k, where so many axes follow that of q."""
        more = (None,) * axes
        return {**self.env, **{name: self.env[name][(..., *more)] for name in ("b", "h", "hkv")}}

    def _value(self, e: Expr, env: Mapping[str, Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return evaluate(e, env, self.data, self.real)
