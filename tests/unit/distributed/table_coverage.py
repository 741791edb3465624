"""Whether the tables of a program over `shard_map` compute each allowed pair on exactly one rank: four claims.

Takes a kernel, a schedule's layouts and sequences, and the tables (`blocks`) that the program looks up; returns claims
as the prover makes them. The tables are read as the program reads them, and so become a schedule of their own, of which
`coverage` proves that its keys are there (`held`), that no pair is computed twice (`once`) and that none is left out
(`complete`). `slots`: a piece reads the block whose positions its mask sees. Nothing that made the tables is used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attngen.distributed.plan import coverage
from attngen.distributed.plan.blocks import Blocks, Move, Turn
from attngen.distributed.plan.layout import Range, common, joined
from attngen.distributed.plan.schedule import Masked, Piece, Round, Schedule, Transfer
from attngen.prove.verdict import Claim, Proved, Refuted, Verdict
from attngen.visits import Planned

_SENTENCE = "each piece reads the block of keys whose positions its mask sees"
_NOTHING = Masked()


def table_coverage(
    kernel: Planned,
    schedule: Schedule,
    q_blocks: Blocks,
    k_blocks: Blocks,
    turns: Sequence[Turn],
    masked: Masked = _NOTHING,
) -> tuple[Claim, ...]:
    """The four claims. Of `schedule` only the layouts, the sequences and the groups are read."""
    claims = coverage.coverage(kernel, as_schedule(schedule, q_blocks, k_blocks, turns), masked)
    # Blocks are sent whole, so not every row is read.
    kept = (claim for claim in claims if claim.subject != "used")
    return (Claim("slots", _SENTENCE, _slots(k_blocks, turns)), *kept)


def as_schedule(schedule: Schedule, q_blocks: Blocks, k_blocks: Blocks, turns: Sequence[Turn]) -> Schedule:
    """What the tables say is computed and sent, in rows that are no padding."""
    s = schedule.sequences
    rounds: list[Round] = []
    for turn in turns:
        pieces: list[tuple[Piece, ...]] = []
        for rank, own in enumerate(turn.pieces):
            found: list[Piece] = []
            for block, _, number, b in own[: turn.counts[rank]].tolist():
                q = _positions(q_blocks, int(q_blocks.held[rank, block]), s.q[b : b + 2])
                k = _positions(k_blocks, number, s.k[b : b + 2])
                if q[0] < q[1] and k[0] < k[1]:
                    found.append(Piece(b, q, k))
            pieces.append(tuple(found))
        transfers = (t for move in turn.moves for t in _transfers(move, k_blocks))
        rounds.append(Round(tuple(transfers), tuple(pieces)))
    return replace(schedule, rounds=tuple(rounds))


def _positions(own: Blocks, number: int, ends: Sequence[int]) -> Range:
    """The part of a block that the mask of a piece lets through: positions of a sequence that begins and ends there."""
    first, stop = ends
    start = number * own.size - first
    return max(0, start), min(stop - first, start + own.size)


def _transfers(move: Move, k_blocks: Blocks) -> list[Transfer]:
    found: list[Transfer] = []
    for source, target in move.pairs:
        numbers = k_blocks.held[source, move.sent[source]].tolist()
        rows = joined((n * k_blocks.size, (n + 1) * k_blocks.size) for n in numbers)
        found.append(Transfer(source, target, common(rows, ((0, k_blocks.total),))))
    return found


def _slots(k_blocks: Blocks, turns: Sequence[Turn]) -> Verdict:
    for at, turn in enumerate(turns):
        for move in turn.moves:
            for side, ranks in zip(("sends", "receives"), zip(*move.pairs, strict=True), strict=False):
                twice = next((r for r in ranks if ranks.count(r) > 1), None)
                if twice is not None:
                    return Refuted("tables", (f"turn {at}: rank {twice} {side} twice in one move",), ())
        for rank, own in enumerate(turn.pieces):
            here = _arrived(k_blocks, turn, rank)
            for _, slot, number, _ in own[: turn.counts[rank]].tolist():
                holds = here[int(slot)] if slot < len(here) else None
                if holds != number:
                    what = "nothing" if holds is None else f"block {holds}"
                    line = f"turn {at}, rank {rank}: slot {slot} holds {what}, and the mask sees block {number}"
                    return Refuted("tables", (line,), (("turn", at), ("rank", rank), ("slot", slot)))
    return Proved("tables")


def _arrived(k_blocks: Blocks, turn: Turn, rank: int) -> list[int | None]:
    """By slot, the number of the block that a rank has there."""
    found: list[int | None] = []
    for move in turn.moves:
        if not move.pairs:
            found += k_blocks.held[rank].tolist()
            continue
        source = next((source for source, target in move.pairs if target == rank), None)
        sent = [None] * move.slots if source is None else k_blocks.held[source, move.sent[source]].tolist()
        found += sent
    return found
