"""Sums over calls, in half precision: rows with no addend, one, two and many, whole and in pieces, in any order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings, strategies as st

from attngen.distributed.torch.sums import Adds, Store, Stretch, Sum, Where, adds_of, placed, plus

SIZE = 12


@pytest.fixture(autouse=True, scope="module")
def new_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills what is allocated with NaN
    yield
    torch.use_deterministic_algorithms(False)


@st.composite
def addends(draw: st.DrawFn) -> list[list[Stretch]]:
    """Of each, ascending places that do not meet, with rows of another's between them."""
    found: list[list[Stretch]] = []
    for _ in range(draw(st.integers(0, 5))):
        ends = sorted(draw(st.lists(st.integers(0, SIZE), min_size=2, max_size=6, unique=True)))
        ranges = list(zip(ends[::2], ends[1::2], strict=False))
        places, at = list[Stretch](), 0
        for start, stop in ranges:
            at += draw(st.integers(0, 2))
            places.append(Stretch(start, stop, at))
            at += stop - start
        found.append(places)
    return found


@settings(max_examples=200)
@given(addends(), st.sampled_from([torch.float16, torch.float32]), st.booleans())
def test_each_row_is_the_sum_of_its_addends(adds: list[list[Stretch]], dtype: torch.dtype, given_out: bool) -> None:
    generator = torch.Generator().manual_seed(len(adds))
    out = torch.full((2, SIZE), torch.nan, dtype=dtype) if given_out else None
    total = Sum(adds_of(SIZE, adds), 1, lambda dtype: torch.empty((2, SIZE), dtype=dtype), dtype, out)
    expected = torch.zeros((2, SIZE))
    for places in adds:
        rows = max(p.at + p.stop - p.start for p in places)
        new = torch.randn((2, rows), generator=generator).half()
        for start, stop, at in places:
            expected[:, start:stop] += new[:, at : at + stop - start].float()
        total.add(new, plus)
    result = total.result()
    assert result.dtype == dtype and (out is None or result is out)
    assert torch.equal(result, expected.to(dtype))


def test_what_has_all_rows_becomes_the_result_and_others_are_added_in_place() -> None:
    adds = adds_of(4, [placed([(0, 4)]), placed([(1, 3)])])
    total = Sum(adds, 0, lambda dtype: torch.empty(4, dtype=dtype), torch.float16)
    first = torch.tensor([1.0, 2.0, 3.0, 4.0]).half()
    total.add(first, plus)
    total.add(torch.tensor([10.0, 20.0]).half(), plus)
    assert total.result() is first and first.tolist() == [1.0, 12.0, 23.0, 4.0]


def test_rows_in_another_order_are_copied() -> None:
    adds = adds_of(4, [[Stretch(0, 2, 2), Stretch(2, 4, 0)]])
    total = Sum(adds, 0, lambda dtype: torch.empty(4, dtype=dtype), torch.float16)
    total.add(torch.tensor([1.0, 2.0, 3.0, 4.0]).half(), plus)
    assert total.result().tolist() == [3.0, 4.0, 1.0, 2.0]


def test_rows_without_an_addend_are_known() -> None:
    once = Where.NOWHERE, Where.RESULT
    assert adds_of(6, [placed([(1, 2)]), placed([(4, 6)])]) == Adds(
        6, ((Store(Stretch(1, 2, 0), *once),), (Store(Stretch(4, 6, 0), *once),)), ((0, 1), (2, 4))
    )
    assert adds_of(0, []).none == ()
