"""The benchmark of many chips runs where attngen's prover is not: what `prepare` leaves needs no compiling."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngen import pieces

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import context


def test_loaded_kernels_compile_no_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "SPECS", {"causal": context.SPECS["causal"]})
    context.prepare(tmp_path)
    kernel = context.loaded(tmp_path, "causal")

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a piece was compiled")

    monkeypatch.setattr(pieces, "make", refused)
    for each in (False, True):
        piece, own = kernel.piece(each=each)
        assert piece.each == each and own.proof is None and "_varlen" in own.with_geometry("packed")


@pytest.mark.parametrize("mask", list(context.KERNEL_OF))
def test_pairs_are_those_of_the_mask(mask: str) -> None:
    cell = context.Cell(mask, 20000, (2, 1))
    q = np.arange(cell.tokens)
    ends = np.array(cell.offsets())
    seen = {
        "causal": q + 1,
        "window": np.minimum(q + 1, context.WINDOW),
        "prefix": np.maximum(q + 1, context.PREFIX),
        "documents": q + 1 - ends[np.searchsorted(ends, q, "right") - 1],
    }[mask]
    assert cell.pairs() == seen.sum()


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_card_s_share_of_the_heads_is_whole(ranks: int) -> None:
    for cell in (*context.CELLS, *context.small(ranks)):
        assert all(heads % ranks == 0 and heads // ranks >= 1 for heads in cell.heads), cell.key
