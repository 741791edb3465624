"""Which positions an element varies with, and how its gradient is gathered: q . k in an index is a pair's."""

from __future__ import annotations

import pytest
from property.kernels import analysed

from attngen.plan import plan
from attngen.plan.kernel import Gather, KernelPlan
from attngen.plan.operands import Extent, operands
from attngen.plan.score.distance import distance_index

WITH_PRODUCTS = (
    ("f32[40]", "min(int(abs(qk)), 39)"),
    ("f32[Hq, 16]", "h, clamp(floor(qk * scale) + 8, 0, 15)"),
    ("f32[B, 4]", "b, clamp(floor(qk), 0, 3)"),
    ("f32[Sq, 4]", "q, clamp(floor(qk), 0, 3)"),
    ("f32[B, Sk, 4]", "b, k, clamp(floor(qk), 0, 3)"),
    ("f32[Hq, 40]", "h, min(abs(q - k), 20) if qk > 0 else 39"),
)


def planned(shape: str, index: str) -> KernelPlan:
    return plan(analysed(f"attention subject\nparam t: {shape}\nscore = qk * scale + t[{index}]\n"))


@pytest.mark.parametrize(("shape", "index"), WITH_PRODUCTS)
def test_an_index_that_reads_the_product_is_no_function_of_the_distance(shape: str, index: str) -> None:
    found = planned(shape, index)
    (access,) = found.choices.accesses
    assert distance_index(access.load) is None
    assert [g.gather for g in found.gradients] == [Gather.SCATTER]
    (operand,) = operands(found)
    assert (operand.extent, operand.per_batch, operand.per_head) == (Extent.PAIR, True, True)


@pytest.mark.parametrize(
    ("shape", "index", "gather", "extent"),
    [
        ("f32[Hq]", "h", Gather.HEAD, Extent.HEAD),
        ("f32[Hq, 40]", "h, min(abs(q - k), 39)", Gather.DIAGONAL, Extent.DISTANCE),
        ("f32[40]", "min(int(scale * float(abs(q - k))), 39)", Gather.DIAGONAL, Extent.DISTANCE),
        ("f32[40]", "min(q * k, 39)", Gather.SCATTER, Extent.PAIR),
    ],
)
def test_other_indices(shape: str, index: str, gather: Gather, extent: Extent) -> None:
    found = planned(shape, index)
    assert [g.gather for g in found.gradients] == [gather]
    assert [o.extent for o in operands(found)] == [extent]
