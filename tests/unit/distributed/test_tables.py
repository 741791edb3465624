"""The claims of JAX's tables against a run of them over block numbers, for tables that are right and for edits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from unit.distributed.table_coverage import table_coverage

import attngen
from attngen.distributed import Schedule, Sequences, row_work, schedule
from attngen.distributed.plan.blocks import Blocks, Turn, balanced_blocks, contiguous_blocks, headtail_blocks, turns
from attngen.distributed.plan.schedule import Exchange
from attngen.prove.verdict import Proved, Refuted

MASKS = {
    "causal": lambda q, k: k <= q,
    "0 <= q - k < 11": lambda q, k: (q >= k) & (q - k < 11),
    "causal or k < 7": lambda q, k: (k <= q) | (k < 7),
}


@dataclass(frozen=True)
class Made:
    mask: str
    kernel: attngen.Kernel
    schedule: Schedule
    blocks: Blocks
    turns: tuple[Turn, ...]

    def claims(self) -> dict[str, Proved | Refuted]:
        found = table_coverage(self.kernel, self.schedule, self.blocks, self.blocks, self.turns)
        return {c.subject: c.verdict for c in found}  # pyright: ignore[reportReturnType]

    def truth(self) -> dict[str, bool]:
        """What the ranks compute, if each runs its part of the tables."""
        own, s = self.blocks, self.schedule.sequences
        count = np.zeros((own.total, own.total), int)
        right = True
        for turn in self.turns:
            arrived: list[list[int]] = [[] for _ in own.held]
            for move in turn.moves:
                there = np.full((len(own.held), move.slots), -1)
                if not move.pairs:
                    there = own.held
                for source, target in move.pairs:
                    there[target] = own.held[source][move.sent[source]]
                right &= all(len(set(ranks)) == len(ranks) for ranks in zip(*move.pairs, strict=True))
                for rank, numbers in enumerate(there.tolist()):
                    arrived[rank] += numbers
            for rank, pieces in enumerate(turn.pieces):
                for block, slot, number, b in pieces[: turn.counts[rank]]:
                    right &= slot < len(arrived[rank]) and arrived[rank][slot] == number
                    numbers = own.held[rank, block], number
                    rows = ([x for x in range(n * own.size, (n + 1) * own.size) if s.q[b] <= x < s.q[b + 1]]
                            for n in numbers)  # fmt: skip
                    count[np.ix_(*rows)] += 1
        rows = np.arange(own.total)
        b = np.searchsorted(s.q, rows, "right") - 1
        at = rows - np.asarray(s.q)[b]
        allowed = MASKS[self.mask](at[:, None], at[None, :]) & (b[:, None] == b[None, :])
        once = bool(count.max() <= 1)
        return {"slots": bool(right), "once": once, "complete": once and bool((count[allowed] > 0).all())}


def cases(mask: str) -> Iterator[Made]:
    kernel = attngen.compile(f"attention c\nmask = {mask}\n")
    exchanges: tuple[Exchange, ...] = ("ring", "gather")
    for ends in ((0, 48), (0, 45), (0, 20, 21, 45)):
        sequences = Sequences.of_offsets(ends)
        work = row_work(kernel, sequences)
        for own in (contiguous_blocks(ends[-1], 4), headtail_blocks(ends[-1], 4), balanced_blocks(work, 4)):
            for exchange in exchanges:
                made = schedule(kernel, own.layout(), sequences, exchange)
                yield Made(mask, kernel, made, own, turns(made, own, own))


def edited(made: Made, rng: random.Random) -> Made | None:
    """One number of the tables changed; None where there is none of the kind."""
    at = rng.randrange(len(made.turns))
    turn = made.turns[at]
    rank, ranks = rng.randrange(4), 4
    match rng.choice(["piece", "piece", "count", "sent", "pairs", "turn"]):
        case "piece":
            if not turn.counts[rank]:
                return None
            i, column = rng.randrange(turn.counts[rank]), rng.randrange(4)
            most = (made.blocks.each, 64, made.blocks.held.size, made.schedule.sequences.count)[column]
            pieces = turn.pieces.copy()
            pieces[rank, i, column] = np.clip(pieces[rank, i, column] + rng.choice([-1, 1]), 0, most - 1)
            turn = replace(turn, pieces=pieces)
        case "count":
            counts = turn.counts.copy()
            counts[rank] = np.clip(counts[rank] + rng.choice([-1, 1]), 0, turn.pieces.shape[1])
            turn = replace(turn, counts=counts)
        case "turn":
            return replace(made, turns=(*made.turns[:at], *made.turns[at + 1 :]))
        case kind:
            moving = [i for i, move in enumerate(turn.moves) if move.pairs]
            if not moving:
                return None
            which = rng.choice(moving)
            move = turn.moves[which]
            if kind == "sent":
                sent = move.sent.copy()
                sent[rank, rng.randrange(move.slots)] = rng.randrange(made.blocks.each)
                move = replace(move, sent=sent)
            else:
                pair = rng.randrange(len(move.pairs))
                other = (rng.randrange(ranks), rng.randrange(ranks))
                kept = (*move.pairs[:pair], *move.pairs[pair + 1 :])
                move = replace(move, pairs=rng.choice([kept, (*kept, other)]))
                if not move.pairs:
                    return None  # that would be the ranks' own keys
            moves = (*turn.moves[:which], move, *turn.moves[which + 1 :])
            turn = replace(turn, moves=moves)
    return replace(made, turns=(*made.turns[:at], turn, *made.turns[at + 1 :]))


@pytest.mark.parametrize("mask", MASKS)
def test_tables_are_proved(mask: str) -> None:
    for made in cases(mask):
        assert all(isinstance(v, Proved) for v in made.claims().values()), made
        assert all(made.truth().values())


@pytest.mark.parametrize("mask", MASKS)
def test_an_edit_is_refuted_where_a_run_finds_it(mask: str) -> None:
    rng, refuted, same = random.Random(mask), Counter[str](), 0
    for made in cases(mask):
        for _ in range(25):
            other = edited(made, rng)
            if other is None:
                continue
            claims, truth = other.claims(), other.truth()
            found = {name: isinstance(claims[name], Proved) for name in truth}
            assert found == truth, (other, claims)
            assert isinstance(claims["held"], Proved) or not truth["slots"]
            refuted.update(name for name, holds in found.items() if not holds)
            same += all(truth.values())
    assert min(refuted[name] for name in ("slots", "once", "complete")) >= 20, refuted
    assert same < sum(refuted.values()) / 2  # blocks that are sent and not read, say


def test_the_counterexamples_in_words() -> None:
    made = next(cases("causal"))
    (turn, *more), own = made.turns, made.blocks
    second = more[0]
    pieces = second.pieces.copy()
    pieces[2, 0, 2] = 0
    verdict = replace(made, turns=(turn, replace(second, pieces=pieces))).claims()["slots"]
    assert isinstance(verdict, Refuted)
    assert verdict.example == ("turn 1, rank 2: slot 0 holds block 1, and the mask sees block 0",)
    held = own.held[::-1].copy()
    verdict = replace(made, blocks=replace(own, held=held)).claims()["held"]
    assert isinstance(verdict, Refuted) and "has queries that are not there" in verdict.example[0]
    verdict = replace(made, turns=(turn,)).claims()["complete"]
    assert isinstance(verdict, Refuted)
    assert verdict.example == ("sequence 0, head 0: the mask allows key 0 to query 12, and no rank computes them",)
