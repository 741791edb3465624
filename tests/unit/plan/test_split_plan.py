"""Which specs may split the walk of short queries, and whose rows may share a tile."""

from __future__ import annotations

import pytest

from attngen.analyse import analyse
from attngen.errors import Source
from attngen.plan import plan
from attngen.plan.chips import SHARED_MEMORY, Burden
from attngen.plan.split import Split, shares
from attngen.plan.tiles.portable import HEAD_BLOCKS
from attngen.syntax.parser import parse


def planned(body: str) -> Split | None:
    source = Source(f"attention subject\n{body}\n")
    walks = plan(analyse(parse(source), source, {})).gpu_walks
    assert walks is not None
    return walks.split


@pytest.mark.parametrize(
    "body",
    [
        "mask = causal",
        "param slope: f32[Hq]\nscore = qk * scale - slope[h] * abs(q - k)",
        "param sink: f32[Hq]\nnormalizer = softmax(sink = sink[h])",
        "param cap: f32[Hkv] where cap > 0\nscore = softcap(qk * scale, cap[hkv])",
        "dropout = 0.5",
        "normalizer = sigmoid",
    ],
)
def test_heads_that_share_keys_share_tiles(body: str) -> None:
    found = planned(body)
    assert found is not None and found.packed


@pytest.mark.parametrize(
    "body",
    [
        "param heat: f32[Hq]\nscore = qk * scale * (1 + abs(heat[h]))",  # one factor for a tile's maxima
        "mask = k <= q + h",  # one walk for a tile
        "param ids: int[Hq, Sk]\nmask = ids[h, k] == q",
        "param ids: int[Hkv, Sk]\nmask = ids[hkv, k] == q",  # answers of data tests are found by the head
    ],
)
def test_heads_that_differ_in_more_than_a_row_do_not(body: str) -> None:
    found = planned(body)
    assert found is not None and not found.packed


@pytest.mark.parametrize(
    "body", ["mask = false", "mask = causal\nassume Sq == Sk", "assume Sk <= Sq", "assume B == 1 and Sk == Sq"]
)
def test_no_split_where_queries_are_never_few(body: str) -> None:
    assert planned(body) is None


def test_queries_that_may_be_few_are_split() -> None:
    assert planned("assume Sq <= Sk") is not None and planned("assume B == Sk") is not None


@pytest.mark.parametrize("burden", Burden)
@pytest.mark.parametrize("own", [None, (16, 16), (32, 128), (256, 8)])
def test_tiles_are_powers_of_two_that_products_take(own: tuple[int, int] | None, burden: Burden) -> None:
    found = shares(own, burden)
    assert set(found) == {(chip, size) for chip in SHARED_MEMORY for size in (2, 4)}
    for share in found.values():
        for size in (share.rows, share.keys, share.area // HEAD_BLOCKS[-1]):
            assert size >= 16 and size & (size - 1) == 0
        if own is not None:
            assert share.rows <= max(16, own[0]) and share.keys <= max(16, own[1])
