"""Layouts in equal blocks, and a ring's turns in them: what is sent and computed covers what the mask allows."""

from __future__ import annotations

import numpy as np
import pytest

import attngen
from attngen.distributed import Layout, Sequences, contiguous, headtail, row_work, schedule
from attngen.distributed.plan.blocks import balanced_blocks, blocks, contiguous_blocks, headtail_blocks, turns
from attngen.distributed.plan.schedule import Exchange
from attngen.errors import UsageError

MASKS = {
    "causal": lambda q, k: k <= q,
    "0 <= q - k < 11": lambda q, k: (q >= k) & (q - k < 11),
    "causal or k < 7": lambda q, k: (k <= q) | (k < 7),
    "q // 20 == k // 20": lambda q, k: q // 20 == k // 20,
}


def test_blocks_of_layouts() -> None:
    own = blocks(headtail(24, 3))
    assert own.size == 4 and own.held.tolist() == [[0, 5], [1, 4], [2, 3]] and own.rows == 24 and not own.padded
    assert own.order().tolist()[:8] == [0, 1, 2, 3, 20, 21, 22, 23]
    assert blocks(contiguous(24, 3)).held.tolist() == [[0], [1], [2]]
    with pytest.raises(UsageError, match="at most 16 blocks"):
        blocks(Layout((((0, 19), (20, 21)), ((19, 20), (21, 40)))))


@pytest.mark.parametrize("total", [0, 1, 5, 23, 24, 25])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_any_number_of_rows(total: int, members: int) -> None:
    """Blocks hold each row once; a rank's rows and those of a group's members are as many as any other's."""
    made = [contiguous_blocks(total, 4, members), headtail_blocks(total, 4, members)]
    made.append(balanced_blocks(np.arange(total) + 1.0, 4, members))
    for own in made:
        assert sorted(own.order().tolist()) == list(range(own.rows)) and own.rows >= total
        assert own.each * own.size % members == 0 and own.layout(members).total == total
        share = own.rows // 4 // members
        for rank, numbers in enumerate(own.order().reshape(-1, share)):
            held = [n for a, b in own.layout(members).stretches[rank] for n in range(a, b)]
            assert held == [n for n in numbers.tolist() if n < total]


def test_blocks_of_layouts_with_padding() -> None:
    own = blocks(Layout((((0, 10),), ((10, 15),), ((15, 23),))))
    assert own.size == 5 and own.held.tolist() == [[0, 1], [2, 5], [3, 4]] and own.rows == 30
    assert own.layout() == Layout((((0, 10),), ((10, 15),), ((15, 23),)))
    assert blocks(Layout(((), ()))).rows == 2


@pytest.mark.parametrize("ranks", [8, 64, 512])
@pytest.mark.parametrize("mask", ["causal", "window", "prefix", "documents"])
def test_work_is_balanced(mask: str, ranks: int) -> None:
    rows = np.arange(1, 2**17 + 1, dtype=np.float64)
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(7, 1.3, 400), 16, 2**15).astype(int)
    documents = np.concatenate([rows[:n] for n in lengths])[: 2**17]
    of = {"causal": rows, "window": np.minimum(rows, 4096), "prefix": np.maximum(rows, 2**15), "documents": documents}
    own = balanced_blocks(of[mask], ranks)
    layout = own.layout()
    loads = [sum(of[mask][a:b].sum() for a, b in own) for own in layout.stretches]
    assert max(loads) <= 1.05 * np.mean(loads)
    assert {layout.rows(rank) for rank in range(ranks)} == {2**17 // ranks}
    assert own.each <= 8
    if mask in ("causal", "window"):
        assert max(map(len, layout.stretches)) <= 2


@pytest.mark.parametrize("exchange", ["ring", "gather"])
@pytest.mark.parametrize("ends", [(0, 96), (0, 93), (0, 30, 31, 31, 93)])
@pytest.mark.parametrize("layout", ["contiguous", "headtail", "auto"])
@pytest.mark.parametrize("mask", MASKS)
def test_each_allowed_pair_is_in_one_piece(mask: str, layout: str, ends: tuple[int, ...], exchange: Exchange) -> None:
    kernel = attngen.compile(f"attention c\nmask = {mask}\n")
    sequences = Sequences.of_offsets(ends)
    total = ends[-1]
    found = {
        "contiguous": lambda: contiguous_blocks(total, 6),
        "headtail": lambda: headtail_blocks(total, 6),
        "auto": lambda: balanced_blocks(row_work(kernel, sequences), 6),
    }[layout]()
    made = schedule(kernel, found.layout(), sequences, exchange)
    count, held = np.zeros((found.rows, found.rows), int), found.held
    for turn in turns(made, found, found):
        for rank in range(6):
            slots: list[int] = []
            for move in turn.moves:
                assert len({s for s, _ in move.pairs}) == len({t for _, t in move.pairs}) == len(move.pairs)
                source = {target: source for source, target in move.pairs}.get(rank, rank)
                slots += held[source, move.sent[source]].tolist()
            for a, slot, number, b in turn.pieces[rank, : turn.counts[rank]]:
                assert slots[slot] == number
                q, k = (range(n * found.size, (n + 1) * found.size) for n in (held[rank, a], number))
                own = range(ends[b], ends[b + 1])
                count[np.ix_([x for x in q if x in own], [x for x in k if x in own])] += 1
    rows = np.arange(total)
    b = np.searchsorted(ends, rows, "right") - 1
    at = rows - np.asarray(ends)[b]
    allowed = MASKS[mask](at[:, None], at[None, :]) & (b[:, None] == b[None, :])
    assert count.max() == 1 and (count[:total, :total][allowed] == 1).all()
