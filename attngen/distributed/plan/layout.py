"""Which rows of a tensor each rank holds.

Takes a number of rows, or the work of each row; returns a `Layout`. Knows neither masks nor tensors: rows are those of
the sequence's dimension, or of the tokens' dimension of packed sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from attngen.errors import UsageError

Range = tuple[int, int]
"""Rows start … stop - 1."""
Ranges = tuple[Range, ...]
"""Ascending, none empty, and no two that touch."""

TILE = 128
"""Rows of queries and of keys in a kernel's tiles. Where a piece's first query and first key lie whole tiles apart, a
diagonal of the mask cuts one tile of keys for each tile of queries, and else two."""
OVERLOAD = 0.02
"""How much more than the mean `balanced` lets a rank work."""


@dataclass(frozen=True, slots=True)
class Layout:
    """By rank, the stretches of rows that it holds. Together they are each row of the tensor, once.

    A rank's own tensor has its rows in ascending order. A rank may hold nothing.
    """

    stretches: tuple[Ranges, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stretches", tuple(joined(own) for own in self.stretches))
        reach = 0
        for start, stop in sorted(r for own in self.stretches for r in own):
            if start != reach:
                raise UsageError(
                    f"a layout holds each row once: row {min(start, reach)} is held by none or by two ranks"
                )
            reach = stop

    @property
    def ranks(self) -> int:
        return len(self.stretches)

    @property
    def total(self) -> int:
        return max((own[-1][1] for own in self.stretches if own), default=0)

    def rows(self, rank: int) -> int:
        """How many rows a rank holds."""
        return length(self.stretches[rank])

    def holders(self) -> tuple[tuple[int, int, int], ...]:
        """(start, stop, rank) of all stretches, in the order of their rows."""
        return tuple(sorted((*r, rank) for rank, own in enumerate(self.stretches) for r in own))

    def grouped(self, size: int) -> Layout:
        """The layout of groups: `size` ranks that follow one another hold their rows together."""
        if self.ranks % size:
            raise UsageError(f"{self.ranks} ranks are not whole groups of {size}")
        groups = (self.stretches[i : i + size] for i in range(0, self.ranks, size))
        return Layout(tuple(tuple(r for own in group for r in own) for group in groups))

    def divided(self, size: int) -> Layout:
        """Each rank's rows cut into `size` equal parts, for as many ranks: the inverse of `grouped`."""
        parts: list[Ranges] = []
        for own in self.stretches:
            ends = _shares(length(own), size)
            parts += [section(own, start, stop) for start, stop in pairwise(ends)]
        return Layout(tuple(parts))


def length(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def joined(ranges: Iterable[Range], gap: int = 0) -> Ranges:
    """The union of ranges; two with at most `gap` rows between them become one."""
    found: list[Range] = []
    for start, stop in sorted(r for r in ranges if r[0] < r[1]):
        if found and start <= found[-1][1] + gap:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def common(a: Ranges, b: Ranges) -> Ranges:
    """The intersection of two unions of ranges."""
    found: list[Range] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, stop = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < stop:
            found.append((start, stop))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def section(ranges: Ranges, start: int, stop: int) -> Ranges:
    """The rows number `start` … `stop - 1` of those that `ranges` hold."""
    found: list[Range] = []
    before = 0
    for low, high in ranges:
        own = max(low, low + start - before), min(high, low + stop - before)
        if own[0] < own[1]:
            found.append(own)
        before += high - low
    return tuple(found)


def _shares(total: int, parts: int) -> list[int]:
    """Ends of equal parts, which differ by at most one row."""
    return [total * i // parts for i in range(parts + 1)]


def contiguous(total: int, ranks: int) -> Layout:
    """One stretch for each rank, in order; they differ by at most one row."""
    _checked(ranks)
    return Layout(tuple(((a, b),) for a, b in pairwise(_shares(total, ranks))))


def headtail(total: int, ranks: int) -> Layout:
    """Two stretches for each rank, one from the head and one from the tail ("zigzag"): equal work where it grows
    linearly with the row, as that of one causal sequence does."""
    _checked(ranks)
    parts = [*pairwise(_shares(total, 2 * ranks))]
    return Layout(tuple((parts[i], parts[-1 - i]) for i in range(ranks)))


def balanced(work: npt.NDArray[Any], ranks: int, bounds: Collection[int] = ()) -> Layout:
    """Equal rows (to one) and equal work (to `OVERLOAD`) for each rank, in few stretches, whatever each row's work.

    Ranks are halved again and again. Of rows laid in a circle, some window that holds a half's number of rows also has
    exactly a half's work, since the mean over all windows is that (a necklace is divided so). So a cut into m and n - m
    ranks needs two cuts of rows, and all ranks together hold at most 2 (ranks - 1) + 1 stretches. The first rows are
    taken where that overloads nobody; else a window that begins or ends at `bounds` (where sequences begin), if any.
    """
    _checked(ranks)
    work = np.asarray(work, np.float64)
    total = len(work)
    falls = np.zeros(total + 1, np.bool_)
    falls[1:-1] = np.diff(work) < 0
    falls[[0, -1]] = True
    starts = np.array(sorted({0, *(b for b in bounds if 0 <= b <= total)}))
    falls[starts] = True
    at = np.arange(total + 1)
    tiled = (at - starts[np.searchsorted(starts, at, "right") - 1]) % TILE == 0
    marked = _Rows(work, falls, tiled)
    mean = float(work.sum()) / ranks
    found: list[Ranges] = [()] * ranks

    def halve(own: Ranges, first: int, count: int) -> None:
        if count == 1 or not own:
            found[first] = own
            return
        here = count // 2
        rows = length(own)
        size = rows * here // count
        start = _window(own, size, (here, count - here), mean, marked)
        if start + size <= rows:
            inside = section(own, start, start + size)
            outside = section(own, 0, start) + section(own, start + size, rows)
        else:
            inside = section(own, 0, start + size - rows) + section(own, start, rows)
            outside = section(own, start + size - rows, start)
        halve(inside, first, here)
        halve(outside, first + here, count - here)

    halve(((0, total),) if total else (), 0, ranks)
    return Layout(tuple(sorted(found)))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The work of each row; where work falls, or a sequence begins; and where a tile of its sequence begins."""

    work: npt.NDArray[np.float64]
    falls: npt.NDArray[np.bool_]
    tiled: npt.NDArray[np.bool_]


def _window(own: Ranges, size: int, counts: Range, mean: float, marked: _Rows) -> int:
    """Where the window of `size` rows begins, in the circle of the rows of `own`: if it can, where a tile begins."""
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([marked.work[a:b] for a, b in own]))])
    rows, whole = len(sums) - 1, float(sums[-1])
    start = np.arange(rows)
    stop = start + size
    wrapped = stop > rows
    stop[wrapped] -= rows
    inside = sums[stop] - sums[start] + np.where(wrapped, whole, 0.0)
    fair = [count * mean for count in counts]
    load = np.maximum(inside / fair[0], (whole - inside) / fair[1]) if mean else np.zeros(rows)
    if load[0] <= 1 + OVERLOAD:
        return 0
    begins = np.concatenate([marked.falls[a:b] for a, b in own] + [[True]])
    begins[np.cumsum([0] + [b - a for a, b in own])] = True
    cuts = 2 - begins[start].astype(np.int8) - begins[stop]
    least = min(float(load.min()), whole / (sum(counts) * mean))
    cuts[load > max(1 + OVERLOAD, least)] = 3
    apart = (cuts < 3) & ~np.concatenate([marked.tiled[a:b] for a, b in own])
    return int(np.lexsort((load, apart, cuts))[0])


def _checked(ranks: int) -> None:
    if ranks < 1:
        raise UsageError(f"ranks must be at least 1, not {ranks}")
