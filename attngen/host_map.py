"""What a mask allows of tiles of queries and of keys, on the host: a map as kernels of GPUs make it, in NumPy.

Takes the plan's `TileTest`, which `tile-ranges` proves, and what the mask reads; says of ranges of queries and of keys
which tiles hold allowed pairs, and how many keys each query may attend to. Tiles of which the test leaves it open are
looked at pair by pair, up to a limit; beyond it all of their pairs count as allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.plan.mask.holes import Part, TileTest

Range = tuple[int, int]
Bools = npt.NDArray[np.bool_]

TILE = 128
_MOST = 2**26
"""Pairs that are looked at one by one."""
_AT_ONCE = 2**22
"""Tiles, or pairs, that are looked at together."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Some tiles of queries beside all tiles of keys: where they begin, and where the last ends. By batch, head, tile of
    queries and tile of keys: `can`, some pair may be allowed; `must`, all are; `mixed`, some are and others are not."""

    q: npt.NDArray[np.int64]
    k: npt.NDArray[np.int64]
    can: Bools
    must: Bools
    mixed: Bools


@dataclass
class HostMap:
    """`env` and `data`: what the mask reads but for q and k, batches and heads along the first two axes. `left`: how
    many pairs may still be looked at."""

    test: TileTest
    mask: Expr
    env: Mapping[str, Any]
    data: Mapping[str, Any]
    left: int = field(default=_MOST)
    _of_keys: dict[Range, tuple[Any, dict[str, tuple[Any, Any]]]] = field(default_factory=dict)

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

    def met(self, q_range: Range, k_range: Range) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Bools]:
        """Where tiles of queries begin, and tiles of keys, each with the end of the last; which of them hold a pair that
        some batch and head may allow."""
        q_ends: list[Any] = []
        found: list[Bools] = []
        k_ends = np.array(k_range)
        for strip in self._strips(q_range, k_range):
            some = (strip.must | strip.mixed).any((0, 1))
            doubtful = strip.can.any((0, 1)) & ~some
            some |= doubtful
            for i, j, allowed in self._looked_at(strip, (strip.can & doubtful)):
                some[i, j] = bool(allowed.any())
            found.append(some)
            q_ends.append(strip.q[:-1])
            k_ends = strip.k
        return np.append(np.concatenate(q_ends), q_range[1]), k_ends, np.concatenate(found)

    def _strips(self, q_range: Range, k_range: Range) -> Iterator[Strip]:
        if k_range not in self._of_keys:
            k = np.append(np.arange(*k_range, TILE), k_range[1])
            self._of_keys[k_range] = k, {p.name: self._ends(p, "k", k) for p in self.test.parts if p.of_keys}
        k, of_keys = self._of_keys[k_range]
        step = max(1, _AT_ONCE // len(k)) * TILE
        for start in range(*q_range, step):
            stop = min(start + step, q_range[1])
            q = np.append(np.arange(start, stop, TILE), stop)
            of_queries = {p.name: self._ends(p, "q", q) for p in self.test.parts if not p.of_keys}
            ends = {n: (low[..., None], high[..., None]) for n, (low, high) in of_queries.items()}
            ends |= {n: (low[..., None, :], high[..., None, :]) for n, (low, high) in of_keys.items()}
            env = {**self._beside(1)}
            for name, (low, high) in ends.items():
                env |= {f"{name}_least": low, f"{name}_most": high}
            can, must, mixed = (
                np.broadcast_to(x, (*np.broadcast_shapes((1, 1), np.shape(x)[:-2]), len(q) - 1, len(k) - 1))
                for x in (np.asarray(self._value(c, env)) for c in (self.test.can, self.test.must, self.test.mixed))
            )
            shape = np.broadcast_shapes(can.shape, must.shape, mixed.shape)
            yield Strip(
                q=q, k=k, **{n: np.broadcast_to(x, shape) for n, x in (("can", can), ("must", must), ("mixed", mixed))}
            )

    def _ends(self, part: Part, axis: str, ends: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        """The least and the greatest value of a part in each tile of its axis."""
        found = np.asarray(self._value(part.value, {**self.env, axis: np.arange(ends[0], ends[-1])}), np.int64)
        found = np.broadcast_to(found, (*np.broadcast_shapes((1, 1), found.shape[:-1]), ends[-1] - ends[0]))
        at = ends[:-1] - ends[0]
        return np.minimum.reduceat(found, at, -1), np.maximum.reduceat(found, at, -1)

    def _looked_at(self, strip: Strip, asked: Bools) -> Iterator[tuple[int, int, Any]]:
        """Of the tiles that some batch and head asks for, which pairs are allowed, as long as the limit lasts: the tile
        of queries, that of keys, and (batch, head, query, key)."""
        tiles = np.argwhere(asked.any((0, 1)))
        apart = int(np.prod(asked.shape[:2]))
        size = TILE * TILE * apart
        step = max(1, _AT_ONCE // size)
        inside = np.arange(TILE)
        env = self._beside(2)
        for start in range(0, len(tiles), step):
            own = tiles[start : start + step]
            self.left -= len(own) * size
            if self.left < 0:
                return
            q, k = (
                np.minimum(ends[at][:, None] + inside, ends[-1] - 1)
                for ends, at in zip((strip.q, strip.k), own.T, strict=True)
            )
            allowed = self._value(self.mask, {**env, "q": q[:, :, None], "k": k[:, None, :]})
            allowed = np.broadcast_to(
                allowed, (*np.broadcast_shapes((1, 1), np.shape(allowed)[:-3]), len(own), TILE, TILE)
            )
            for n, (i, j) in enumerate(own.tolist()):
                rows, keys = int(strip.q[i + 1] - strip.q[i]), int(strip.k[j + 1] - strip.k[j])
                yield i, j, allowed[..., n, :rows, :keys]

    def _beside(self, axes: int) -> dict[str, Any]:
        """What is read beside q and k, where so many axes follow that of q."""
        more = (None,) * axes
        return {**self.env, **{name: self.env[name][(..., *more)] for name in ("b", "h", "hkv")}}

    def _value(self, e: Expr, env: Mapping[str, Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return evaluate(e, env, self.data, np.float32)
