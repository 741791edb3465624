"""Whether a schedule computes each allowed pair on exactly one rank, with keys that are there: four claims.

Takes a kernel, a schedule and what its mask reads; returns claims as the prover makes them, each with a counterexample
in numbers where it is refuted. Exact, by ranges on the host, in NumPy: 512 ranks take seconds. Nothing that made the
schedule is used here. What is not computed is held against the plan's stretches and its test of tiles, which
`tile-ranges` proves of every kernel, and against the mask itself where these are not exact.

`held`: a piece's queries and keys are on its group, by the layouts and the transfers of its round. `once`: no pair is
in two pieces. `complete`: a pair in no piece is allowed to no query. `used`: a row that is sent is held by its sender
and read by its receiver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attngen.distributed.plan.layout import Layout
from attngen.distributed.plan.schedule import Masked, Round, Schedule, Sequences
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict
from attngen.visits import Case, Planned, Range, mapped, pairs, stretches

Ints = npt.NDArray[np.int64]

_BIG = 2**31
"""Above every position, so that owner * _BIG + position orders positions by owner."""
_AT_ONCE = 2**16
"""Queries, or pairs in units of 16, that are looked at together."""
_MOST = 2**26
"""Pairs that are looked at one by one."""

_NOTHING = Masked()

_SENTENCES = {
    "held": "each rank computes with queries that it holds, and with keys that it holds or receives in that round",
    "once": "no pair of a query and a key is computed twice",
    "complete": "a pair that no rank computes is allowed to no query",
    "used": "each row that is sent is held by its sender, and is read in that round by its receiver",
}


def coverage(kernel: Planned, schedule: Schedule, masked: Masked = _NOTHING) -> tuple[Claim, ...]:
    """The four claims, in the order above. Each claim is about groups of ranks; members of a group share its heads."""
    work = Pieces.of(schedule)
    computed = _computed(schedule, work)
    once = _once(schedule, work, computed)
    complete: Verdict = Unknown("ranges", "rests on once")
    if isinstance(once, Proved):
        complete = _complete(kernel, schedule, computed, masked)
    verdicts = {"held": _held(schedule, work), "once": once, "complete": complete, "used": _used(schedule, work)}
    return tuple(Claim(name, sentence, verdicts[name]) for name, sentence in _SENTENCES.items())


# ---------------------------------------------------------------- pieces in arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """All pieces of a schedule: their round, group and sequence, queries as rows and keys as positions."""

    turn: Ints
    group: Ints
    sequence: Ints
    q0: Ints
    q1: Ints
    k0: Ints
    k1: Ints
    first_key: Ints
    """The row of the sequence's first key."""

    @classmethod
    def of(cls, s: Schedule) -> Pieces:
        flat = np.fromiter(
            (
                x
                for turn, r in enumerate(s.rounds)
                for group, own in enumerate(r.pieces)
                for b, q, k in own
                for x in (turn, group, b, *q, *k)
            ),
            np.int64,
        ).reshape(-1, 7)
        turn, group, sequence, q0, q1, k0, k1 = flat.T
        at_q, at_k = (np.array(ends[:-1], np.int64)[sequence] for ends in (s.sequences.q, s.sequences.k))
        return cls(turn=turn, group=group, sequence=sequence, q0=q0 + at_q, q1=q1 + at_q, k0=k0, k1=k1, first_key=at_k)

    def shown(self, i: int, s: Schedule) -> str:
        """`ranks 2 and 3, round 1: sequence 0, queries 8 … 15, keys 0 … 7`."""
        first = s.sequences.q[int(self.sequence[i])]
        queries = int(self.q0[i]) - first, int(self.q1[i]) - first
        keys = int(self.k0[i]), int(self.k1[i])
        where = f"{_ranks(int(self.group[i]), s)}, round {self.turn[i]}: sequence {self.sequence[i]}"
        return f"{where}, queries {_span(*queries)}, keys {_span(*keys)}"


def _span(start: int, stop: int) -> str:
    return f"{start} … {stop - 1}" if stop > start else f"none from {start} on"


def _ranks(group: int, s: Schedule) -> str:
    return f"rank {group}" if s.heads == 1 else f"ranks {group * s.heads} … {(group + 1) * s.heads - 1}"


class _Union(NamedTuple):
    """Disjoint stretches by owner, in order: owner * _BIG + position."""

    start: Ints
    stop: Ints

    @classmethod
    def of(cls, owner: Ints, low: Ints, high: Ints) -> _Union:
        kept = low < high
        start, stop = owner[kept] * _BIG + low[kept], owner[kept] * _BIG + high[kept]
        order = np.argsort(start, kind="stable")
        start, reach = start[order], np.maximum.accumulate(stop[order])
        if not len(start):
            return cls(start, reach)
        first = np.concatenate([[True], start[1:] > reach[:-1]])
        return cls(start[first], reach[np.append(first[1:], True)])

    def outside(self, owner: Ints, low: Ints, high: Ints) -> npt.NDArray[np.bool_]:
        """Which of these stretches, not empty, are not inside one of the union's."""
        if not len(self.start):
            return np.asarray(low < high)
        at = np.searchsorted(self.start, owner * _BIG + low, "right") - 1
        return (low < high) & ((at < 0) | (self.stop[at] < owner * _BIG + high))


def _owned(layout: Layout) -> tuple[Ints, Ints, Ints]:
    flat = np.array(layout.holders(), np.int64).reshape(-1, 3)
    return flat[:, 2], flat[:, 0], flat[:, 1]


# ---------------------------------------------------------------- held, used


def _held(s: Schedule, work: Pieces) -> Verdict:
    ends = [np.array(ends, np.int64) for ends in (s.sequences.q, s.sequences.k)]
    b = work.sequence
    inside = (work.q0 >= ends[0][b]) & (work.q1 <= ends[0][b + 1])
    inside &= (work.k0 >= 0) & (work.k1 <= ends[1][b + 1] - ends[1][b])
    wrong = ~inside
    if wrong.any():
        return _refuted(s, work, wrong, "is outside its sequence")
    wrong = _Union.of(*_owned(s.q_layout.grouped(s.heads))).outside(work.group, work.q0, work.q1)
    if wrong.any():
        return _refuted(s, work, wrong, "has queries that are not there")
    own = _owned(s.k_layout.grouped(s.heads))
    for turn, r in enumerate(s.rounds):
        here = _turn(work, turn)
        sent = _sent(r)
        there = _Union.of(*(np.concatenate(x) for x in zip(own, (sent[:, 1], sent[:, 2], sent[:, 3]), strict=True)))
        first = work.first_key[here]
        missing = there.outside(work.group[here], work.k0[here] + first, work.k1[here] + first)
        if missing.any():
            wrong[here[missing]] = True
            return _refuted(s, work, wrong, "has keys that are not there")
    return Proved("ranges")


def _used(s: Schedule, work: Pieces) -> Verdict:
    holders = _Union.of(*_owned(s.k_layout.grouped(s.heads)))
    for turn, r in enumerate(s.rounds):
        sent = _sent(r)
        source, target, low, high = sent.T
        strange = (source == target) | (source < 0) | (source >= s.groups) | (target < 0) | (target >= s.groups)
        here = _turn(work, turn)
        first = work.first_key[here]
        read = _Union.of(work.group[here], work.k0[here] + first, work.k1[here] + first)
        for wrong, why in (
            (strange, "there is no such transfer between two groups"),
            (holders.outside(source, low, high), "the sender does not hold them"),
            (read.outside(target, low, high), "the receiver does not read them all"),
        ):
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                a, b = (_ranks(int(x), s) for x in sent[at, :2])
                line = f"round {turn}: {a} to {b}, rows of keys {_span(*map(int, sent[at, 2:]))}: {why}"
                return Refuted("ranges", (line,), _values(round=turn, row=sent[at, 2]))
        order = np.lexsort((low, target))
        order = order[(low < high)[order]]
        again = (target[order][1:] == target[order][:-1]) & (low[order][1:] < high[order][:-1])
        if again.any():
            at = int(order[np.flatnonzero(again)[0] + 1])
            line = f"round {turn}: row {low[at]} of the keys is sent to {_ranks(int(target[at]), s)} twice"
            return Refuted("ranges", (line,), _values(round=turn, row=low[at]))
    return Proved("ranges")


def _turn(work: Pieces, turn: int) -> Ints:
    """The numbers of a round's pieces, which are in the order of rounds."""
    first, last = (int(x) for x in np.searchsorted(work.turn, (turn, turn + 1)))
    return np.arange(first, last)


def _sent(r: Round) -> Ints:
    """(source, target, start, stop) of all rows that a round sends."""
    flat = np.fromiter((x for t in r.transfers for rows in t.rows for x in (t.source, t.target, *rows)), np.int64)
    return flat.reshape(-1, 4)


def _refuted(s: Schedule, work: Pieces, wrong: npt.NDArray[np.bool_], why: str) -> Refuted:
    at = int(np.flatnonzero(wrong)[0])
    values = _values(rank=work.group[at] * s.heads, sequence=work.sequence[at], q=work.q0[at], k=work.k0[at])
    return Refuted("ranges", (f"a piece {why}: {work.shown(at, s)}",), values)


def _values(**numbers: Any) -> tuple[tuple[str, int], ...]:
    return tuple((name, int(x)) for name, x in numbers.items())


# ---------------------------------------------------------------- once, complete


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """Rows of queries in blocks, whose rows no piece tells apart; and, by block, the keys that are computed."""

    ends: Ints
    """Where blocks begin, and where the last one ends."""
    block: Ints
    piece: Ints
    """Entries: this piece computes this block."""


def _computed(s: Schedule, work: Pieces) -> _Computed:
    bounds = np.array(s.sequences.q, np.int64)
    own = bounds[work.sequence], bounds[work.sequence + 1]
    start, stop = (np.clip(x, *own) for x in (work.q0, work.q1))
    ends = np.unique(np.concatenate([start, stop, bounds]))
    first, last = (np.searchsorted(ends, x) for x in (start, stop))
    count = np.maximum(last - first, 0)
    piece = np.repeat(np.arange(len(count)), count)
    block = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count) + first[piece]
    order = np.lexsort((work.k0[piece], block))
    return _Computed(ends=ends, block=block[order], piece=piece[order])


def _once(s: Schedule, work: Pieces, computed: _Computed) -> Verdict:
    low, high = (computed.block * _BIG + np.maximum(k, 0)[computed.piece] for k in (work.k0, work.k1))
    kept = np.flatnonzero(low < high)
    again = np.flatnonzero(low[kept][1:] < np.maximum.accumulate(high[kept])[:-1])
    if not len(again):
        return Proved("ranges")
    second = int(kept[again[0] + 1])
    before = kept[: again[0] + 1]
    first = int(before[high[before] > low[second]][0])
    one, other = (int(computed.piece[i]) for i in (first, second))
    b, row = int(work.sequence[other]), int(computed.ends[computed.block[second]])
    values = _values(sequence=b, q=row - s.sequences.q[b], k=work.k0[other])
    line = f"sequence {b}: query {row - s.sequences.q[b]} and key {work.k0[other]} are in two pieces:"
    return Refuted("ranges", (line, work.shown(one, s), work.shown(other, s)), values)


def _complete(kernel: Planned, s: Schedule, computed: _Computed, masked: Masked) -> Verdict:
    work = Pieces.of(s)
    done = _Union.of(computed.block, work.k0[computed.piece], work.k1[computed.piece])
    looker = _Looker(kernel, done, _MOST)
    exact = False
    for b in range(s.sequences.count):
        start, stop = s.sequences.q[b : b + 2]
        blocks = range(*np.searchsorted(computed.ends, (start, stop)))
        if not len(blocks) or not s.sequences.sizes(b)[1]:
            continue
        found = looker.sequence(b, computed.ends[blocks.start : blocks.stop + 1], blocks, s.sequences, masked)
        match found:
            case bool():
                exact |= found
            case _:
                return found
    return Proved("ranges and pairs" if exact else "ranges")


class _Looker:
    """Looks for an allowed pair that no piece has, sequence by sequence, with a budget of pairs."""

    def __init__(self, kernel: Planned, done: _Union, budget: int):
        self.kernel, self.done, self.budget = kernel, done, budget

    def sequence(self, b: int, ends: Ints, blocks: range, sequences: Sequences, masked: Masked) -> Verdict | bool:
        """False: no query's stretch reaches a key that is left out. True: some do, and the mask forbids these keys."""
        case, first = masked.case(self.kernel.spec, sequences, b), sequences.q[b]
        looked = False
        for low in range(first, sequences.q[b + 1], _AT_ONCE):
            rows = np.arange(low, min(low + _AT_ONCE, sequences.q[b + 1]))
            block = blocks.start + np.searchsorted(ends, rows, "right") - 1
            known = stretches(self.kernel, rows - first, case)
            lows, highs = ([x] for x in (np.zeros(1, np.int64), np.full(1, case.sizes[1]))) if known is None else known
            open_rows = np.zeros(len(rows), np.bool_)
            for a, z in zip(lows, highs, strict=True):
                outside = self.done.outside(np.broadcast_to(block, (*a.shape[:-1], len(rows))), a, z)
                open_rows |= outside.reshape(-1, len(rows)).any(0)
            if not open_rows.any():
                continue
            if known is None:
                return Unknown("ranges", f"sequence {b}: keys are left out, and what the mask reads is not given")
            looked = True
            for at in np.unique(block[open_rows]):
                own = rows[open_rows & (block == at)] - first
                found = self._pairs(b, own, int(at), case, packed=sequences.packed)
                if found is not None:
                    return found
        return looked

    def _pairs(self, b: int, rows: Ints, block: int, case: Case, *, packed: bool) -> Verdict | None:
        """The mask itself, on the keys that are left out for these rows of a block."""
        for start, stop in self._left_out(block, case.sizes[1]):
            for of_rows, keys in self._doubtful(rows, (start, stop), case):
                step = max(1, 16 * _AT_ONCE // (keys[1] - keys[0]))
                for at in range(0, len(of_rows), step):
                    own = of_rows[at : at + step]
                    self.budget -= len(own) * (keys[1] - keys[0])
                    if self.budget < 0:
                        return Unknown("pairs", f"sequence {b}: more pairs are left out than are looked at one by one")
                    allowed = pairs(self.kernel, own, keys, case)
                    if allowed.any():
                        batch, head, i, j = (int(x) for x in np.argwhere(allowed)[0])
                        q, k = int(own[i]), keys[0] + j
                        batch, where = (b, f"sequence {b}") if packed else (batch, f"batch {batch}")
                        line = f"{where}, head {head}: the mask allows key {k} to query {q}, and no rank computes them"
                        return Refuted("pairs", (line,), _values(sequence=b, b=batch, h=head, q=q, k=k))
        return None

    def _doubtful(self, rows: Ints, keys: Range, case: Case) -> Iterator[tuple[Ints, Range]]:
        """The rows and keys of which some pair may be allowed, as tiles say."""
        found = mapped(self.kernel, case)
        if found is None:
            yield from ((rows, (low, min(low + _AT_ONCE, keys[1]))) for low in range(*keys, _AT_ONCE))
            return
        q_ends, k_ends, some = found.met((int(rows[0]), int(rows[-1]) + 1), keys)
        for i, j in np.argwhere(some).tolist():
            own = rows[np.searchsorted(rows, q_ends[i]) : np.searchsorted(rows, q_ends[i + 1])]
            if len(own):
                yield own, (int(k_ends[j]), int(k_ends[j + 1]))

    def _left_out(self, block: int, size: int) -> list[Range]:
        here = slice(*np.searchsorted(self.done.start, (block * _BIG, (block + 1) * _BIG)))
        done = zip(self.done.start[here] - block * _BIG, self.done.stop[here] - block * _BIG, strict=True)
        edges = [(0, 0), *((int(a), int(z)) for a, z in done), (size, size)]
        return [(a[1], z[0]) for a, z in pairwise(edges) if a[1] < z[0]]
