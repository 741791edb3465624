"""What the loops' own loads take of shared memory, and what the tiles give up for it."""

from __future__ import annotations

import pytest

from attngen import api
from attngen.errors import Source
from attngen.plan.chips import SHARED_MEMORY, Burden, Loads
from attngen.plan.footprint import loads_of
from attngen.plan.split import shares
from attngen.plan.tiles.portable import KERNELS, NO_LOADS, Tile, fitted, shared_bytes, table

HEAD = "attention a\nparam t: {storage}[{shape}]\n"


def found(storage: str, shape: str, *lines: str) -> Loads:
    text = HEAD.format(storage=storage, shape=shape) + "\n".join(lines) + "\n"
    return loads_of(api.plan(api.analyse(Source(text))))


@pytest.mark.parametrize(("storage", "width"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_a_bias_for_every_pair(storage: str, width: int) -> None:
    loads = found(storage, "Sq, Sk", "score = qk * scale + t[q, k]")
    assert loads == Loads(pair=width, widest=width, gathered=True)


def test_a_mask_for_every_pair() -> None:
    assert found("bool", "Sq, Sk", "mask = t[q, k]") == Loads(pair=1, widest=1)
    assert found("int", "Sq, Sk", "mask = t[q, k] > 2") == Loads(pair=8, widest=8)


def test_addresses_that_are_dear_to_compute() -> None:
    cheap = found("f32", "64", "score = qk + t[clamp(abs(q - k) // 2, 0, 63)]")
    assert not cheap.addresses
    assert found("f32", "64", "score = qk + t[int(log2(1 + abs(q - k)))]").addresses
    nested = found("int", "Sk", "param u: f32[64]", "score = qk + u[t[abs(q - k)]]")
    assert nested.addresses and nested.pair == 8 + 4 and nested.widest == 8


def test_addresses_that_wait_for_the_product() -> None:
    """The compiler can put no stage between a product and the load that it chooses."""
    chosen = found("f32", "64", "score = qk * scale + t[clamp(floor(qk), 0, 63)]")
    assert chosen.chosen and not found("f32", "64", "score = qk * scale + t[min(abs(q - k), 63)]").chosen
    assert {tile.stages for row in table(None, Burden.PAIRS, chosen) for tile in (row.forward, row.dkdv, row.dq)} == {1}
    assert {row.forward.stages for row in table((128, 64), Burden.PAIRS, chosen)} == {1}
    assert {share.stages for share in shares(None, Burden.PAIRS, chosen.chosen).values()} == {1}


def test_what_is_read_once_a_row_or_a_column() -> None:
    loads = found("int", "B, Sk", "mask = t[b, q] == t[b, k]")
    assert loads == Loads(line=16)
    assert found("f32", "Hq", "score = qk - t[h]") == NO_LOADS


def test_a_load_is_counted_once() -> None:
    assert found("f32", "Sq, Sk", "score = t[q, k] * qk + t[q, k]").pair == 4


@pytest.mark.parametrize("chip", SHARED_MEMORY)
def test_loads_only_add(chip: str) -> None:
    heavy = Loads(pair=12, widest=8, addresses=True, line=32, gathered=True)
    for kernel in KERNELS:
        for stages in (1, 2, 3):
            tile = Tile(128, 64, 8, stages)
            light = shared_bytes(kernel, tile, chip, 2, 64)
            assert light <= shared_bytes(kernel, tile, chip, 2, 64, heavy)
    for row in table(None, loads=heavy):
        for kernel, tile in zip(KERNELS, (row.forward, row.dkdv, row.dq), strict=True):
            assert shared_bytes(kernel, tile, row.chip, row.itemsize, row.head_block, heavy) <= (
                SHARED_MEMORY[row.chip] * 1024
            )


def test_a_bias_in_flight_costs_stages() -> None:
    tile = Tile(128, 128, 8, 3)
    bias = Loads(pair=4, widest=4)
    assert fitted("forward", tile, "sm_90", 2, 64).stages == 3
    assert fitted("forward", tile, "sm_90", 2, 64, bias) == Tile(128, 128, 8, 2)
