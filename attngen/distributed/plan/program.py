"""What one rank does with its tensors, step by step: a schedule's rounds as rows of local tensors.

Takes a `Schedule` and a group, returns its steps: which rows it sends, what arrives, and the calls of a kernel. Plain
Python; `distributed/torch/run.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from attngen.distributed.plan.layout import Range, Ranges, common, joined, length
from attngen.distributed.plan.schedule import Piece, Schedule


class Part(NamedTuple):
    """Rows start … stop - 1 of the group's own tensor (`source` is the group itself), or of what a group sent."""

    source: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Call:
    """Pieces that one call of a kernel computes: several only of packed sequences, whose rows follow one another."""

    pieces: tuple[Piece, ...]
    q: Ranges
    """Rows of the group's queries."""
    k: tuple[Part, ...]
    """Where the keys of the pieces lie, in their order."""

    @property
    def q_offsets(self) -> tuple[int, ...]:
        return _ends(p.q for p in self.pieces)

    @property
    def k_offsets(self) -> tuple[int, ...]:
        return _ends(p.k for p in self.pieces)


@dataclass(frozen=True, slots=True)
class Step:
    """`send`: to which group which of the own rows of K and V; `receive`: from which group how many rows. There is one
    for each round, with nothing in it perhaps: so all ranks send and receive in one order. `early`: calls that need
    nothing of what is received, and are computed while it is on its way; then `calls`.

    The backward pass goes through the steps from the last to the first. What arrives last may be `kept` for it:
    `again` is what has to be sent once more."""

    send: tuple[tuple[int, Ranges], ...]
    receive: tuple[tuple[int, int], ...]
    early: tuple[Call, ...]
    calls: tuple[Call, ...]
    kept: bool
    again: tuple[tuple[int, Ranges], ...]

    @property
    def remote(self) -> tuple[Call, ...]:
        """Calls that need keys of others, which the backward pass computes in this step."""
        return self.calls if self.receive else ()


class Turn(NamedTuple):
    """What the backward pass computes at a time, `calls`, and then adds: what came home of the keys of the steps
    `home`. `step`: whose calls these are; None for those that need own keys alone."""

    step: Step | None
    calls: tuple[Call, ...]
    home: tuple[Step, ...]


def turns(steps: tuple[Step, ...]) -> tuple[Turn, ...]:
    """The order of the backward pass. Calls of own keys come last, except that the first of several hides a fetch where
    keys of others were not kept. Gradients of K and V go home in float32, twice what was fetched. They are awaited when
    something was computed meanwhile, or when those of two steps are on their way."""
    own = tuple(c for s in steps for c in (s.early if s.receive else s.calls))
    first = next((s for s in reversed(steps) if s.receive), None)
    ahead = own[:1] if len(own) > 1 and first is not None and not first.kept else ()
    found = [Turn(None, ahead, ())] if ahead else []
    going: tuple[Step, ...] = ()
    for step in reversed(steps):
        home = going if step.remote or sum(1 for s in going if s.send) > 1 else ()
        found.append(Turn(step, step.remote, home))
        going = (*(going if not home else ()), step)
    return (*found, Turn(None, own[len(ahead) :], going))


def steps(schedule: Schedule, group: int, *, together: bool) -> tuple[Step, ...]:
    """`together`: whether one call may have the pieces of several sequences."""
    own_q = schedule.q_layout.grouped(schedule.heads).stretches[group]
    own_k = schedule.k_layout.grouped(schedule.heads).stretches[group]
    ends = schedule.sequences
    kept = schedule.kept()
    found: list[Step] = []
    for i, r in enumerate(schedule.rounds):
        held = {group: own_k, **{t.source: t.rows for t in r.transfers if t.target == group}}
        calls: list[Call] = []
        for pieces in _calls(r.pieces[group], together):
            q = joined(part for p in pieces for part in _local(own_q, _moved(p.q, ends.q[p.sequence])))
            k = _merged(x for p in pieces for x in _parts(held, _moved(p.k, ends.k[p.sequence])))
            calls.append(Call(pieces, q, k))
        send = tuple(
            (t.target, tuple(x for rows in t.rows for x in _local(own_k, rows)))
            for t in r.transfers
            if t.source == group
        )
        receive = tuple((t.source, length(t.rows)) for t in r.transfers if t.target == group)
        early = tuple(c for c in calls if receive and all(part.source == group for part in c.k))
        again = tuple((target, rows) for target, rows in send if kept[target] != i)
        found.append(Step(send, receive, early, tuple(c for c in calls if c not in early), kept[group] == i, again))
    return tuple(found)


def fewer_together(schedule: Schedule) -> bool:
    """Whether some group has fewer calls where a call may have several pieces."""
    return any(len(_calls(pieces, True)) < len(pieces) for r in schedule.rounds for pieces in r.pieces)


def local(own: Ranges, rows: Ranges) -> Ranges:
    """Rows of the whole, as rows of the tensor that has the rows `own`."""
    return joined(x for r in rows for x in _local(own, r))


def _calls(pieces: tuple[Piece, ...], together: bool) -> list[tuple[Piece, ...]]:
    """In a call, the pieces' queries ascend and so do their keys."""
    if not together:
        return [(p,) for p in pieces]
    calls: list[list[Piece]] = []
    for piece in sorted(pieces):
        fitting = (own for own in calls if _follows(own[-1], piece))
        own = next(fitting, None)
        if own is None:
            calls.append([piece])
        else:
            own.append(piece)
    return [tuple(own) for own in calls]


def _follows(a: Piece, b: Piece) -> bool:
    return a.sequence < b.sequence or (a.q[1] <= b.q[0] and a.k[1] <= b.k[0])


def _moved(r: Range, by: int) -> Range:
    return r[0] + by, r[1] + by


def _local(own: Ranges, rows: Range) -> Iterator[Range]:
    before = 0
    for start, stop in own:
        low, high = max(start, rows[0]), min(stop, rows[1])
        if low < high:
            yield before + low - start, before + high - start
        before += stop - start


def _parts(held: dict[int, Ranges], rows: Range) -> list[Part]:
    """Where rows lie, in their order."""
    found: list[tuple[int, Part]] = []
    for source, own in held.items():
        for low, high in common(own, (rows,)):
            found += [(low, Part(source, *r)) for r in _local(own, (low, high))]
    return [part for _, part in sorted(found)]


def _merged(parts: Iterator[Part]) -> tuple[Part, ...]:
    found: list[Part] = []
    for part in parts:
        if found and found[-1].source == part.source and found[-1].stop == part.start:
            found[-1] = found[-1]._replace(stop=part.stop)
        else:
            found.append(part)
    return tuple(found)


def _ends(ranges: Iterator[Range]) -> tuple[int, ...]:
    found = [0]
    for start, stop in ranges:
        found.append(found[-1] + stop - start)
    return tuple(found)
