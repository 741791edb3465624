"""What a rank's calls give, merged in any order: a call that has all rows may come last, and become the result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import attngen
from attngen.distributed.torch.run import Run, _Total  # pyright: ignore[reportPrivateUsage]
from attngen.distributed.torch.sums import adds_of, placed

ROWS, HEADS, DIM = 8, 2, 4
ADDENDS = [
    [[(2, 6)], [(0, 8)]],
    [[(2, 6)], [(1, 4)], [(0, 8)]],
    [[(0, 8)], [(0, 8)]],
    [[(1, 3), (5, 8)], [(0, 2)]],
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("addends", ADDENDS, ids=str)
def test_parts_are_merged_whatever_covers_all_rows(addends: list[list[tuple[int, int]]], packed: bool) -> None:
    kernel = attngen.compile("attention t\n")
    dim = 0 if packed else 2
    adds = adds_of(ROWS, [placed(a) for a in addends])
    run = SimpleNamespace(
        kernel=kernel,
        sequences=SimpleNamespace(packed=packed),
        link=SimpleNamespace(rows=dim),
        addends=lambda *_: SimpleNamespace(forward=adds),
    )
    torch.manual_seed(0)

    def drawn(rows: int) -> tuple[Any, Any]:
        out = torch.randn((rows, HEADS, DIM) if packed else (1, HEADS, rows, DIM)).half()
        return out, torch.randn((HEADS, rows) if packed else (1, HEADS, rows))

    q = drawn(ROWS)[0]
    total = _Total(cast(Run, run), q, q, torch.float16)
    weights, sums = torch.zeros((HEADS, ROWS)), torch.zeros((HEADS, ROWS, DIM))
    for ranges in addends:
        out, lse = drawn(sum(b - a for a, b in ranges))
        at = 0
        for start, stop in ranges:
            by_head = (out.transpose(0, 1) if packed else out[0])[:, at : at + stop - start].float()
            weight = lse.reshape(HEADS, -1)[:, at : at + stop - start].exp()
            weights[:, start:stop] += weight
            sums[:, start:stop] += weight[..., None] * by_head
            at += stop - start
        total.absorb(out, lse)
    out, lse = total.finished({})
    expected = torch.where(weights[..., None] > 0, sums / weights[..., None], 0.0)
    torch.testing.assert_close((out.transpose(0, 1) if packed else out[0]).float(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(lse.reshape(HEADS, ROWS), weights.log(), rtol=2e-3, atol=2e-3)
