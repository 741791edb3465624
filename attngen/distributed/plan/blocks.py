"""Layouts and schedules in blocks of equal size, for programs that are the same on every rank.

A program over `shard_map` has the same shapes on all ranks, so a rank's rows are blocks, as many and as long as any
other's, and only their numbers differ. The last blocks may have rows behind the last row of the sequence: padding,
which nothing reads. Takes layouts and a `Schedule`; returns tables by rank. Plain Python and NumPy.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attngen.distributed.plan.layout import Layout, Range, balanced, common, joined, section
from attngen.distributed.plan.schedule import Round, Schedule, Sequences
from attngen.errors import UsageError

Table = npt.NDArray[np.int32]
STRETCH = 0.01
"""The share of a rank's work that `balanced_blocks` spends to avoid a stretch."""
MOST = 16
"""Blocks of a rank: each pair of blocks is a piece of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Rows number n * size … (n + 1) * size - 1 are block n; those from `total` on are padding. `held`: by rank, the
    numbers of its blocks, ascending. Together they are 0, 1, … up to the number of blocks."""

    size: int
    total: int
    held: Table

    @property
    def each(self) -> int:
        """How many blocks a rank holds."""
        return self.held.shape[1]

    @property
    def rows(self) -> int:
        """Of all ranks, padding too."""
        return self.held.size * self.size

    @property
    def padded(self) -> bool:
        return self.rows > self.total

    def touched(self, positions: Range, first: int) -> range:
        """Numbers of the blocks that have some of these positions of a sequence, of which `first` is the first row."""
        return range((positions[0] + first) // self.size, -(-(positions[1] + first) // self.size))

    def places(self) -> dict[int, tuple[int, int]]:
        """By number, the rank that holds a block, and whether it is its first, its second and so on."""
        return {int(n): (rank, i) for rank, own in enumerate(self.held) for i, n in enumerate(own)}

    def order(self) -> npt.NDArray[np.int64]:
        """Row numbers, rank by rank."""
        return (self.held.reshape(-1, 1) * np.int64(self.size) + np.arange(self.size)).reshape(-1)

    def layout(self, members: int = 1) -> Layout:
        """Who holds which rows, without padding, where `members` ranks that follow one another share out those of each
        rank here evenly."""
        share = self.each * self.size // members
        own = [joined((int(n) * self.size, int(n + 1) * self.size) for n in numbers) for numbers in self.held]
        parts = (section(padded, i * share, (i + 1) * share) for padded in own for i in range(members))
        return Layout(tuple(common(part, ((0, self.total),)) for part in parts))


def _size(total: int, ranks: int, each: int, members: int) -> int:
    """The least size of blocks with room for all rows, such that `members` ranks can share a rank's rows evenly."""
    unit = members // math.gcd(members, each)
    return max(1, -(-total // (ranks * each * unit))) * unit


def contiguous_blocks(total: int, ranks: int, members: int = 1) -> Blocks:
    return Blocks(_size(total, ranks, 1, members), total, np.arange(ranks, dtype=np.int32)[:, None])


def headtail_blocks(total: int, ranks: int, members: int = 1) -> Blocks:
    """Two blocks for each rank, one from the head and one from the tail."""
    first = np.arange(ranks, dtype=np.int32)
    return Blocks(_size(total, ranks, 2, members), total, np.stack([first, 2 * ranks - 1 - first], 1))


def blocks(layout: Layout, members: int = 1) -> Blocks:
    """A layout of one's own. Ranks that have fewer rows than others get blocks of padding.

    Raises `UsageError` where stretches are not whole blocks, or too many.
    """
    groups, total = layout.grouped(members), layout.total
    ends = {end for own in groups.stretches for r in own for end in r} - {total}
    size = math.gcd(*ends) or max(1, total)
    held = [[n for a, b in own for n in range(a // size, -(-b // size))] for own in groups.stretches]
    each = max(1, *map(len, held))
    spare = -(-total // size)
    for own in held:
        own += range(spare, spare + each - len(own))
        spare = max(spare, own[-1] + 1)
    if each <= MOST and each * size % members == 0:
        found = Blocks(size, total, np.asarray(held, np.int32))
        if found.layout(members) == layout:
            return found
    raise UsageError(
        f"in JAX a rank's rows are at most {MOST} blocks of equal size, and stretches begin and end with blocks; this "
        f"layout of {total} rows on {layout.ranks} ranks has other stretches: take 'auto', 'contiguous' or 'headtail'"
    )


def balanced_blocks(work: npt.NDArray[Any], ranks: int, members: int = 1) -> Blocks:
    """Up to 8 blocks for each rank that balance the work of the rows, in few stretches.

    Blocks that follow one another, as `layout.balanced` takes them, need fewer keys from others; blocks that are dealt
    one by one balance better. `STRETCH` says how much balance one more stretch is worth; padding counts as work.
    """
    total = len(work)
    mean, found = float(work.sum()) / ranks, (math.inf, contiguous_blocks(total, ranks, members))
    for each in (1, 2, 4, 8):
        size = _size(total, ranks, each, members)
        if each > 1 and size == 1:
            break
        padded = np.zeros(ranks * each * size)
        padded[:total] = work
        of_blocks = padded.reshape(ranks * each, size).sum(1)
        for made in (balanced(of_blocks, ranks), _dealt(of_blocks, ranks)):
            most = max(sum(float(of_blocks[a:b].sum()) for a, b in own) for own in made.stretches)
            cost = most / mean + STRETCH * sum(map(len, made.stretches)) / ranks if mean else 0.0
            cost += len(padded) / max(1, total)
            if cost < found[0] - 1e-9:
                held = np.asarray([[n for r in own for n in range(*r)] for own in made.stretches], np.int32)
                found = cost, Blocks(size, total, held)
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


# ---------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Blocks of keys move by `pairs` of (source, target); none where they are the ranks' own. `sent`: by source, which
    of its blocks, (ranks, slots)."""

    pairs: tuple[tuple[int, int], ...]
    sent: Table

    @property
    def slots(self) -> int:
        return self.sent.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """What moves together, and is there together: its slots are those of the first move, the second, and so on.

    `pieces`: by rank, what is computed then, (block of queries, slot, number of the slot's block, sequence), as many
    as `counts` says.
    """

    moves: tuple[Move, ...]
    pieces: Table
    counts: Table


def turns(schedule: Schedule, q_blocks: Blocks, k_blocks: Blocks) -> tuple[Turn, ...]:
    """The rounds of a schedule, in blocks."""
    found = (_turn(r, schedule.sequences, q_blocks, k_blocks) for r in schedule.rounds)
    return tuple(turn for turn in found if turn.counts.any())


def _turn(r: Round, sequences: Sequences, q_blocks: Blocks, k_blocks: Blocks) -> Turn:
    """Blocks that a rank needs of the one before it move together, those of the one before that, and so on."""
    ranks = len(r.pieces)
    q_at, k_at = q_blocks.places(), k_blocks.places()
    met: list[list[tuple[int, int, int, int]]] = []
    for rank, own in enumerate(r.pieces):
        found: set[tuple[int, int, int, int]] = set()
        for b, q, k in own:
            of_q, of_k = q_blocks.touched(q, sequences.q[b]), k_blocks.touched(k, sequences.k[b])
            found |= {(q_at[m][1], (rank - k_at[n][0]) % ranks, n, b) for m in of_q for n in of_k}
        met.append(sorted(found))
    numbers: dict[tuple[int, int], list[int]] = {}
    """By how far they move, and the rank that gets them."""
    for rank, own in enumerate(met):
        for far in {far for _, far, _, _ in own}:
            needed = sorted({n for _, f, n, _ in own if f == far})
            numbers[far, rank] = needed if far else k_blocks.held[rank].tolist()
    moves: list[Move] = []
    first: dict[int, int] = {}
    for far in sorted({far for far, _ in numbers}):
        first[far] = sum(move.slots for move in moves)
        of_source = [numbers.get((far, (source + far) % ranks), []) for source in range(ranks)]
        sent = np.zeros((ranks, max(map(len, of_source))), np.int32)
        for source, own in enumerate(of_source):
            sent[source, : len(own)] = [k_at[n][1] for n in own]
        pairs = ((source, (source + far) % ranks) for source, own in enumerate(of_source) if far and own)
        moves.append(Move(tuple(pairs), sent))
    pieces = np.zeros((ranks, max(map(len, met)), 4), np.int32)
    for rank, own in enumerate(met):
        for i, (block, far, n, b) in enumerate(own):
            pieces[rank, i] = block, first[far] + numbers[far, rank].index(n), n, b
    return Turn(tuple(moves), pieces, np.asarray([len(own) for own in met], np.int32))
