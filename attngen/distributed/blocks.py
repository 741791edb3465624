"""Layouts and schedules in blocks of equal size, for programs that are the same on every rank.

A program over `shard_map` has the same shapes on all ranks, so a rank's rows are blocks, as many and as long as any
other's, and only their numbers differ. Takes layouts and a `Schedule`; returns tables by rank. Plain Python and NumPy.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attngen.distributed.layout import Layout, Range, balanced, contiguous
from attngen.distributed.schedule import Round, Schedule
from attngen.errors import UsageError

Table = npt.NDArray[np.int32]
STRETCH = 0.01
"""The share of a rank's work that `balanced_blocks` spends to avoid a stretch."""
MOST = 16
"""Blocks of a rank: each pair of blocks is a piece of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Rows number n * size … (n + 1) * size - 1 are block n. `held`: by rank, the numbers of its blocks, ascending."""

    size: int
    held: Table

    @property
    def each(self) -> int:
        """How many blocks a rank holds."""
        return self.held.shape[1]

    @property
    def rows(self) -> int:
        """Of all ranks."""
        return self.held.size * self.size

    def touched(self, rank: int, rows: Range) -> list[int]:
        """Which of a rank's blocks have some of these rows: first, second, …"""
        return [i for i, n in enumerate(self.held[rank]) if n * self.size < rows[1] and rows[0] < (n + 1) * self.size]

    def order(self) -> npt.NDArray[np.int64]:
        """Row numbers, rank by rank."""
        return (self.held.reshape(-1, 1) * np.int64(self.size) + np.arange(self.size)).reshape(-1)


def blocks(layout: Layout) -> Blocks:
    """Raises `UsageError` where the ranks' stretches are not equal numbers of equal blocks, or too many."""
    size = math.gcd(*(end for own in layout.stretches for r in own for end in r))
    rows = {layout.rows(rank) for rank in range(layout.ranks)}
    if len(rows) > 1 or not size or max(rows) > MOST * size:
        raise UsageError(
            f"in JAX each rank holds the same number of rows, in at most {MOST} blocks of equal size; this layout of "
            f"{layout.total} rows on {layout.ranks} ranks has other stretches: pad the sequence, or take 'contiguous'"
        )
    held = [[n for a, b in own for n in range(a // size, b // size)] for own in layout.stretches]
    return Blocks(size, np.asarray(held, np.int32))


def balanced_blocks(work: npt.NDArray[Any], ranks: int) -> Layout:
    """Up to 8 blocks for each rank that balance the work of the rows, in few stretches.

    Blocks that follow one another, as `layout.balanced` takes them, need fewer keys from others; blocks that are dealt
    one by one balance better. `STRETCH` says how much balance one more stretch is worth.
    """
    total = len(work)
    if total % ranks:
        raise UsageError(f"{total} rows are not the same number on each of {ranks} ranks: pad the sequence")
    mean, found = float(work.sum()) / ranks, (math.inf, contiguous(total, ranks))
    for each in (1, 2, 4, 8):
        if total % (ranks * each):
            break
        of_blocks, size = work.reshape(ranks * each, -1).sum(1), total // (ranks * each)
        for made in (balanced(of_blocks, ranks), _dealt(of_blocks, ranks)):
            most = max(sum(float(of_blocks[a:b].sum()) for a, b in own) for own in made.stretches)
            cost = most / mean + STRETCH * sum(map(len, made.stretches)) / ranks if mean else 0.0
            if cost < found[0] - 1e-9:
                found = cost, Layout(tuple(tuple((a * size, b * size) for a, b in own) for own in made.stretches))
    return found[1]


def _dealt(work: npt.NDArray[Any], ranks: int) -> Layout:
    """The heaviest block that is left goes to the rank with the least work of those that lack blocks."""
    own: list[list[int]] = [[] for _ in range(ranks)]
    heap = [(0.0, rank) for rank in range(ranks)]
    for block in np.argsort(-work, kind="stable"):
        load, rank = heapq.heappop(heap)
        own[rank].append(int(block))
        if len(own[rank]) < len(work) // ranks:
            heapq.heappush(heap, (load + float(work[block]), rank))
    return Layout(tuple(sorted(tuple((n, n + 1) for n in sorted(held)) for held in own)))


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A round: blocks of keys move by `pairs` of (source, target), none where they are the ranks' own.

    `sent`: by source, which of its blocks, (ranks, slots). `pieces`: by rank, what is computed then, (block of queries,
    slot, number of the slot's block), as many as `counts` says. There is a slot for each block that a target needs.
    """

    pairs: tuple[tuple[int, int], ...]
    sent: Table
    pieces: Table
    counts: Table


def turns(schedule: Schedule, q_blocks: Blocks, k_blocks: Blocks) -> tuple[Turn, ...]:
    """The rounds of a ring's schedule, in blocks."""
    found = (_turn(r, q_blocks, k_blocks) for r in schedule.rounds)
    return tuple(turn for turn in found if turn.counts.any())


def _turn(r: Round, q_blocks: Blocks, k_blocks: Blocks) -> Turn:
    ranks = len(r.pieces)
    source_of = {t.target: t.source for t in r.transfers} or {rank: rank for rank in range(ranks)}
    met = [
        sorted(
            {
                (a, b)
                for piece in r.pieces[rank]
                for a in q_blocks.touched(rank, piece.q)
                for b in k_blocks.touched(source_of[rank], piece.k)
            }
        )
        for rank in range(ranks)
    ]
    sent: list[list[int]] = [[] for _ in range(ranks)]
    for rank, source in source_of.items():
        sent[source] = sorted({b for _, b in met[rank]})
    if not r.transfers:
        sent = [list(range(k_blocks.each))] * ranks
    slots, most = max(map(len, sent)), max(map(len, met))
    pieces = np.zeros((ranks, most, 3), np.int32)
    for rank, own in enumerate(met):
        for i, (a, b) in enumerate(own):
            source = source_of[rank]
            pieces[rank, i] = a, sent[source].index(b), k_blocks.held[source, b]
    return Turn(
        pairs=tuple((source, target) for target, source in source_of.items()) if r.transfers else (),
        sent=np.asarray([own + [0] * (slots - len(own)) for own in sent], np.int32),
        pieces=pieces,
        counts=np.asarray([len(own) for own in met], np.int32),
    )
