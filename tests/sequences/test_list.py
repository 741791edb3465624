"""The list of tiles that the backward kernels of sequences take their items from, as its kernel writes it."""

from __future__ import annotations

import math
from itertools import zip_longest
from pathlib import Path

import pytest
import torch

import attngen
from attngen.runtime.loader import execute

TILE = 16
LENGTHS = {
    "two": (40, 70),
    "alike": (32, 32, 32),
    "empty ones": (0, 5, 0, 100, 0),
    "one": (90,),
    "more than a block": tuple((i * 37) % 90 for i in range(150)),
    "long": (16 * 140, 3, 16 * 129),
}


def listed(lengths: tuple[int, ...], *, paired: bool) -> list[tuple[int, int]]:
    """(sequence, tile) of each place."""
    made = attngen.compile(Path(__file__).parents[2] / "examples" / "causal.attn")
    module = execute(made.with_geometry("packed"), made.name)
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    total, count = int(ends[-1]), len(lengths)
    slots = total // TILE + count
    items = torch.full((8 * slots + 8,), -1, dtype=torch.int32)
    x = torch.zeros(1, 1, max(total, 1), 16)
    bounds, strides = (ends[:-1], ends[1:]) * 2, (x.stride()[:3],) * 3
    module._before_backward_kernel[(count, 1, 1)](
        *bounds, count, x, x, x, 1, total, total, *strides, items, total, total,
        D=16, Dv=16, TILE=TILE, PAIRED=paired, PACKED=True, ALIGN=1,
    )  # fmt: skip
    assert slots >= items[0] and (items[8 * (int(items[0]) + 1) :] == -1).all()
    return [(row[1], row[0]) for row in items[8 : 8 * (int(items[0]) + 1)].reshape(-1, 8).tolist()]


def expected(lengths: tuple[int, ...], *, paired: bool) -> list[tuple[int, int]]:
    tiles = [math.ceil(rows / TILE) for rows in lengths]
    order = sorted(range(len(lengths)), key=lambda i: (-tiles[i], i))
    own = [[(i, tile) for tile in range(tiles[i])] for i in order]
    if paired:
        pairs = zip_longest(own[::2], own[1::2], fillvalue=[])
        own = [[x for both in zip_longest(*pair) for x in both if x is not None] for pair in pairs]
    return [x for tiles in own for x in tiles]


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("paired", [False, True])
def test_the_longest_come_first_and_two_sequences_alternate(name: str, paired: bool) -> None:
    assert listed(LENGTHS[name], paired=paired) == expected(LENGTHS[name], paired=paired)
