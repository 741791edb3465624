"""Layouts in equal blocks, and a ring's turns in them: what is sent and computed covers what the mask allows."""

from __future__ import annotations

import numpy as np
import pytest

import attngen
from attngen.distributed import Layout, Sequences, contiguous, headtail, row_work, schedule
from attngen.distributed.blocks import balanced_blocks, blocks, turns
from attngen.errors import UsageError

MASKS = {
    "causal": lambda q, k: k <= q,
    "0 <= q - k < 11": lambda q, k: (q >= k) & (q - k < 11),
    "causal or k < 7": lambda q, k: (k <= q) | (k < 7),
    "q // 20 == k // 20": lambda q, k: q // 20 == k // 20,
}


def test_blocks_of_layouts() -> None:
    own = blocks(headtail(24, 3))
    assert own.size == 4 and own.held.tolist() == [[0, 5], [1, 4], [2, 3]] and own.rows == 24
    assert own.order().tolist()[:8] == [0, 1, 2, 3, 20, 21, 22, 23]
    assert blocks(contiguous(24, 3)).held.tolist() == [[0], [1], [2]]
    with pytest.raises(UsageError, match="each rank holds the same number of rows"):
        blocks(Layout((((0, 10),), ((10, 15),))))
    with pytest.raises(UsageError, match="at most 16 blocks"):
        blocks(Layout((((0, 19), (20, 21)), ((19, 20), (21, 40)))))


@pytest.mark.parametrize("ranks", [8, 64, 512])
@pytest.mark.parametrize("mask", ["causal", "window", "prefix", "documents"])
def test_work_is_balanced(mask: str, ranks: int) -> None:
    rows = np.arange(1, 2**17 + 1, dtype=np.float64)
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(7, 1.3, 400), 16, 2**15).astype(int)
    documents = np.concatenate([rows[:n] for n in lengths])[: 2**17]
    of = {"causal": rows, "window": np.minimum(rows, 4096), "prefix": np.maximum(rows, 2**15), "documents": documents}
    layout = balanced_blocks(of[mask], ranks)
    loads = [sum(of[mask][a:b].sum() for a, b in own) for own in layout.stretches]
    assert max(loads) <= 1.05 * np.mean(loads)
    assert {layout.rows(rank) for rank in range(ranks)} == {2**17 // ranks}
    assert blocks(layout).each <= 8
    if mask in ("causal", "window"):
        assert max(map(len, layout.stretches)) <= 2


@pytest.mark.parametrize("layout", ["contiguous", "headtail", "auto"])
@pytest.mark.parametrize("mask", MASKS)
def test_each_allowed_pair_is_in_one_piece(mask: str, layout: str) -> None:
    kernel = attngen.compile(f"attention c\nmask = {mask}\n")
    sequences = Sequences.dense(96)
    own = {
        "contiguous": contiguous(96, 6),
        "headtail": headtail(96, 6),
        "auto": balanced_blocks(row_work(kernel, sequences), 6),
    }[layout]
    found = blocks(own)
    count, held = np.zeros((96, 96), int), found.held
    for turn in turns(schedule(kernel, own, sequences), found, found):
        source = {target: source for source, target in turn.pairs}
        assert len(source) == len(turn.pairs) == len({s for s, _ in turn.pairs})
        for rank in range(6):
            for a, slot, number in turn.pieces[rank, : turn.counts[rank]]:
                holder = source[rank] if turn.pairs else rank
                assert held[holder, turn.sent[holder, slot]] == number
                q, k = held[rank, a] * found.size, number * found.size
                count[q : q + found.size, k : k + found.size] += 1
    q, k = np.arange(96)[:, None], np.arange(96)[None, :]
    assert count.max() == 1 and (count[MASKS[mask](q, k)] == 1).all()
