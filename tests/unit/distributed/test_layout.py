"""Layouts hold each row once; balanced ones give every rank its share of the rows and of the work."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attngen
from attngen.distributed import Layout, Sequences, balanced, contiguous, headtail, row_work
from attngen.distributed.plan.layout import common, joined, length, section
from attngen.distributed.plan.schedule import Masked
from attngen.errors import UsageError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TOKENS = 2**20


def documents(tokens: int) -> tuple[int, ...]:
    """Offsets of documents with log-normal lengths, as corpora have them: median 1340, and a long tail."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(7.2, 1.3, 4 * tokens // 1000)).astype(int), 1, tokens // 8)
    ends = np.cumsum(lengths)
    return (0, *map(int, ends[ends < tokens]), tokens)


CU = documents(TOKENS)
IDS = np.repeat(np.arange(len(CU) - 1), np.diff(CU))[None]
CASES: dict[str, tuple[str, Sequences, dict[str, Any]]] = {
    "causal": ("causal", Sequences.dense(TOKENS), {}),
    "window": ("sliding_window", Sequences.dense(TOKENS), {}),
    "prefix": ("prefix_lm", Sequences.dense(TOKENS), {"prefix": TOKENS // 5}),
    "packed": ("causal", Sequences.of_offsets(CU), {}),
    "documents": ("documents", Sequences.dense(TOKENS), {"ids": IDS}),
}


@pytest.mark.parametrize("case", CASES)
def test_balanced_at_8_64_and_512_ranks(case: str) -> None:
    name, sequences, params = CASES[case]
    kernel = attngen.compile(EXAMPLES / f"{name}.attn")
    work = row_work(kernel, sequences, Masked(params=params))
    assert work.shape == (TOKENS,)
    for ranks in (8, 64, 512):
        layout = balanced(work, ranks, sequences.q)
        rows = [layout.rows(r) for r in range(ranks)]
        own = [sum(float(work[a:b].sum()) for a, b in stretches) for stretches in layout.stretches]
        assert max(rows) - min(rows) <= 1
        assert max(own) <= 1.05 * sum(own) / ranks
        assert sum(map(len, layout.stretches)) <= 2 * ranks - 1
        if case == "window":
            assert layout == contiguous(TOKENS, ranks)


def test_documents_as_data_and_as_offsets_are_the_same_work() -> None:
    packed, dense = (
        row_work(attngen.compile(EXAMPLES / f"{CASES[c][0]}.attn"), CASES[c][1], Masked(params=CASES[c][2]))
        for c in ("packed", "documents")
    )
    assert (packed == dense).all()
    assert (packed == np.concatenate([np.arange(n) + 1 for n in np.diff(CU)])).all()


def test_work_reads_each_pair_of_short_sequences_and_hulls_of_long_ones() -> None:
    kernel = attngen.compile(EXAMPLES / "documents.attn")
    for rows in (100, 3000):
        ids = np.random.default_rng(1).integers(0, 4, (2, rows))
        ids[0].sort()
        found = row_work(kernel, Sequences.dense(rows), Masked(params={"ids": ids}))
        pairs = (ids[:, :, None] == ids[:, None, :]) & np.tri(rows, dtype=bool)
        exact = pairs.sum(-1)
        hull = np.where(pairs, np.arange(rows), rows).min(-1)
        wanted = exact if rows == 100 else np.arange(1, rows + 1) - hull
        assert np.allclose(found, wanted.mean(0))


@pytest.mark.parametrize("seed", range(60))
def test_any_work_is_balanced(seed: int) -> None:
    """Whatever the work of a row: rows equal to one, and no rank has more than its share and a few rows' worth."""
    draw = random.Random(seed)
    total, ranks = draw.randint(0, 400), draw.randint(1, 9)
    work = np.array([draw.choice((0, 1, 5, draw.random() * 40)) for _ in range(total)])
    layout = balanced(work, ranks, [draw.randint(0, total) for _ in range(4)])
    rows = [layout.rows(r) for r in range(ranks)]
    assert layout.ranks == ranks and layout.total == total and max(rows) - min(rows) <= 1
    own = [sum(float(work[a:b].sum()) for a, b in stretches) for stretches in layout.stretches]
    most = float(work.max(initial=0.0))
    assert max(own) <= 1.02 * float(work.sum()) / ranks + most * (ranks.bit_length() + 1)


def test_head_and_tail() -> None:
    assert headtail(8, 2).stretches == (((0, 2), (6, 8)), ((2, 6),))
    assert headtail(11, 3).stretches == (((0, 1), (9, 11)), ((1, 3), (7, 9)), ((3, 7),))
    assert contiguous(5, 3).stretches == (((0, 1),), ((1, 3),), ((3, 5),))
    assert headtail(2, 4).stretches == ((), ((0, 1),), (), ((1, 2),)) or headtail(2, 4).total == 2


def test_grouped_and_divided() -> None:
    layout = headtail(23, 3)
    fine = layout.divided(2)
    assert fine.ranks == 6 and fine.grouped(2) == layout
    assert fine.stretches[0] == ((0, 3),)
    with pytest.raises(UsageError, match="6 ranks are not whole groups of 4"):
        fine.grouped(4)


def test_a_layout_is_a_partition() -> None:
    for stretches in ((((0, 3),), ((2, 4),)), (((0, 3),), ((4, 5),)), (((1, 2),),)):
        with pytest.raises(UsageError, match="holds each row once"):
            Layout(stretches)
    assert Layout((((3, 4), (0, 2), (2, 3)), ())).stretches == (((0, 4),), ())


def test_ranges() -> None:
    assert joined([(5, 6), (0, 2), (1, 3), (4, 4)]) == ((0, 3), (5, 6))
    assert joined([(5, 6), (0, 3)], gap=2) == ((0, 6),)
    assert common(((0, 4), (6, 9)), ((2, 7), (8, 20))) == ((2, 4), (6, 7), (8, 9))
    assert section(((0, 4), (6, 9)), 3, 6) == ((3, 4), (6, 8))
    assert length(((0, 4), (6, 9))) == 7


def test_no_ranks() -> None:
    with pytest.raises(UsageError, match="ranks must be at least 1"):
        contiguous(4, 0)
