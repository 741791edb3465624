"""Tile sizes fit the chip, whatever the head dim and whatever the spec asks for."""

from __future__ import annotations

import itertools

import pytest

from attngen.plan.chips import SHARED_MEMORY
from attngen.plan.tiles.portable import HEAD_BLOCKS, KERNELS, Tile, fitted, shared_bytes, table

SIZES = (16, 32, 64, 128, 256)


def has_room(kernel: str, tile: Tile, chip: str, itemsize: int, block: int) -> bool:
    return shared_bytes(kernel, tile, chip, itemsize, block) <= SHARED_MEMORY[chip] * 1024


@pytest.mark.parametrize("chip", SHARED_MEMORY)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_every_tile_can_be_made_to_fit(chip: str, itemsize: int) -> None:
    for kernel, block, queries, keys, stages in itertools.product(KERNELS, HEAD_BLOCKS, SIZES, SIZES, (1, 3)):
        tile = fitted(kernel, Tile(queries, keys, 4, stages), chip, itemsize, block)
        assert has_room(kernel, tile, chip, itemsize, block), (kernel, block, tile)
        assert tile.queries in SIZES and tile.keys in SIZES and tile.stages >= 1
        assert tile.queries <= queries and tile.keys <= keys and tile.stages <= stages


def test_what_fits_is_left_alone() -> None:
    tile = Tile(64, 64, 4, 2)
    assert fitted("forward", tile, "sm_90", 2, 64) == tile


@pytest.mark.parametrize("own", [None, (16, 16), (128, 256), (256, 256)])
def test_the_table_has_every_row_once_and_all_fit(own: tuple[int, int] | None) -> None:
    rows = table(own)
    keys = [(r.chip, r.itemsize, r.head_block) for r in rows]
    assert len(set(keys)) == len(keys) == len(SHARED_MEMORY) * 2 * len(HEAD_BLOCKS)
    for r in rows:
        for kernel, tile in zip(KERNELS, (r.forward, r.dkdv, r.dq), strict=True):
            assert has_room(kernel, tile, r.chip, r.itemsize, r.head_block), (kernel, r)


def test_the_specs_own_tile_is_kept_where_there_is_room() -> None:
    row = next(r for r in table((32, 16)) if (r.chip, r.itemsize, r.head_block) == ("sm_90", 2, 64))
    assert {(t.queries, t.keys) for t in (row.forward, row.dq)} == {(32, 16)}
    assert row.dkdv == next(r for r in table(None) if (r.chip, r.itemsize, r.head_block) == ("sm_90", 2, 64)).dkdv
    row = next(r for r in table((32, 16)) if (r.chip, r.itemsize, r.head_block) == ("cpu", 4, 64))
    assert {(t.queries, t.keys) for t in (row.forward, row.dkdv, row.dq)} == {(32, 16)}
