"""Which dense batches of one sequence are computed as packed rows."""

from __future__ import annotations

import pytest

from attngen import api
from attngen.errors import Source
from attngen.plan import plan
from attngen.plan.limits import Limits
from attngen.plan.packed_alias import PackedAlias


def aliased(body: str, limits: Limits) -> PackedAlias | None:
    return plan(api.analyse(Source(f"attention subject\n{body}\n")), limits).packed_alias


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("mask = causal", PackedAlias(head_dims=128, learns=False)),
        ("param slope: f32[Hq]\nscore = qk - slope[h]", PackedAlias(head_dims=128, learns=False)),
        ("param shift: f32[B]\nscore = qk - shift[b]", PackedAlias(head_dims=128, learns=False)),
        ("mask = q - k < 8 * (b + 1)", None),  # packed sequences have other numbers
        ("param row: f32[Sq]\nscore = qk - row[q]", None),  # packed tensors have no such params
        ("param ids: int[B, 64]\nmask = ids[b, k // 64] == ids[b, q // 64]", None),  # data decides which tiles meet
        ("dropout = 0.5", None),
    ],
)
def test_where_packed_rows_are_as_fast(body: str, wanted: PackedAlias | None) -> None:
    assert aliased(body, Limits(gpu=True)) == wanted


def test_targets_without_kernels_of_sequences_have_none() -> None:
    assert aliased("mask = causal", Limits()) is None


@pytest.mark.parametrize(
    ("head_dims", "learns", "wanted"), [((128, 64), False, True), ((64, 129), False, False), ((64, 64), True, False)]
)
def test_which_tensors_it_serves(head_dims: tuple[int, int], learns: bool, wanted: bool) -> None:
    assert PackedAlias(head_dims=128, learns=False).serves(*head_dims, learns=learns) is wanted
    assert PackedAlias(head_dims=256, learns=True).serves(*head_dims, learns=learns)
