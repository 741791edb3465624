"""What each pass evaluates, by the form of the weights."""

from __future__ import annotations

import pytest

from attngen import api
from attngen.errors import Source
from attngen.ir.walk import symbols
from attngen.plan import KernelPlan, passes

SHIFTED = (
    "normalizer r {\n weight(s) = s ** 2 * exp(s)\n denominator = sum\n shift = max\n"
    " weight(s, m) = s ** 2 * exp(s - m)\n rescale(m, n) = exp(m - n)\n}\nnormalizer = r"
)
DIRECT = "normalizer r {\n weight(s) = max(s, 0)\n denominator = sum + 1\n shift = none\n}\nnormalizer = r"


def planned(body: str) -> KernelPlan:
    return api.checked_plan(Source(f"attention subject\n{body}\n"))[1]


@pytest.mark.parametrize(
    ("body", "pair", "head", "rows"),
    [
        ("mask = causal", {"unit"}, {"factor"}, ("lse", "delta")),
        ("score = qk", {"unit"}, {"factor"}, ("lse", "delta")),
        ("normalizer = softmax1", {"unit"}, {"factor", "log2_extra"}, ("lse", "delta")),
        (SHIFTED, {"unit", "stream"}, {"factor"}, ("lse", "delta")),
        (DIRECT, {"unit", "stream"}, {"extra"}, ("den", "delta")),
        ("normalizer = sigmoid", {"unit", "stream"}, set[str](), ()),
    ],
    ids=["softmax", "unscaled", "softmax1", "shifted", "direct", "sigmoid"],
)
def test_the_forward_pass(body: str, pair: set[str], head: set[str], rows: tuple[str, ...]) -> None:
    plan = planned(body)
    found = passes.forward(plan)
    assert set(found.pair) == pair
    assert set(found.head) == head
    assert passes.rows(plan) == rows


def test_logits_that_are_multiplied_at_once_have_no_factor_left() -> None:
    found = passes.forward(planned("mask = causal"), scaled=True)
    assert set(found.pair) == {"logit"}
    assert "factor" not in found.head
    assert "scale" in symbols(found.pair["logit"])


def test_the_backward_pass_of_softmax() -> None:
    found = passes.backward(planned("mask = causal"), ())
    assert set(found.pair) == {"logit"}, "d_pair is 1, and so left out"
    assert set(found.head) == {"d_factor"}


def test_the_backward_pass_reads_the_reference_point_of_its_row() -> None:
    found = passes.backward(planned(SHIFTED), ())
    assert set(found.pair) == {"logit", "stream", "slope"}
    assert set(found.head) == {"d_factor", "kappa"}
    assert {"x", "row_ref"} <= symbols(found.pair["slope"])


def test_the_parts_of_a_leaf() -> None:
    plan = planned("param gain: f32[Hq]\nparam level: f32[Hq]\nscore = qk * scale * gain[h] + level[h]")
    found = passes.backward(plan, ((g.param, g) for g in plan.gradients))
    assert "pair_gain" in found.pair
    assert "pair_level" not in found.pair, "its factor is 1"
    assert not any(name.startswith("extra_") for name in found.head)
    alone = passes.backward(plan, ())
    assert not any(name.startswith("pair_") for name in alone.pair)


def test_the_extra_term_is_evaluated_only_for_a_leaf_that_it_reads() -> None:
    plan = planned("param level: f32[Hq]\nscore = qk * scale + level[h] * k\nnormalizer = softmax(sink = level[h])")
    found = passes.backward(plan, ((str(i), g) for i, g in enumerate(plan.gradients)))
    assert "log2_extra" in found.head
    assert not any(name.startswith("extra_") for name in found.head), "its derivative in the logarithm is 1"
    assert "log2_extra" not in passes.backward(plan, ()).head
