"""Rows without keys: proved for every form, and the model of the kernel agrees with the oracle in numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numeric_specs import RIGHT

from attngen import api, reference
from attngen.errors import Source
from attngen.ir.attention import Attention
from attngen.ir.build import apply, disjunction
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr, Op
from attngen.plan.kernel import KernelPlan
from attngen.plan.score.weights import LOG2E, Form
from attngen.prove.budget.work import Work
from attngen.prove.obligations import recurrence as kernel
from attngen.prove.obligations.empty_rows import empty_rows
from attngen.prove.verdict import Proved, Refuted, Unknown

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))
FORMS = ("sink_of_param", "softmax_one", "plus_positive", "base_two", "quadratic_exponential", "sigmoid_biased")
FORMS += ("tanh_plus_one", "relu", "relu_squared", "square", "linear_unnormalized", "masked_relu")


def planned(body: str) -> tuple[Attention, KernelPlan]:
    a = api.analyse(Source(f"attention empty_rows\n{body}\n"))
    return a, api.plan(a)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples(path: Path) -> None:
    a = api.analyse(Source(path.read_text(), path.name))
    found = empty_rows(a, api.plan(a), Work())
    assert all(isinstance(c.verdict, Proved) for c in found)
    assert {"forward", "backward"} <= {c.subject for c in found}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    found = empty_rows(*planned(RIGHT[name]), Work())
    assert [c for c in found if not isinstance(c.verdict, Proved)] == []


FAR_ZERO = """normalizer n {
    weight(s)     = (s - 100) ** 2 * exp(s)
    denominator   = sum + 1
    shift         = max
    weight(s, m)  = (s - 100) ** 2 * exp(s - m)
    rescale(m, n) = exp(m - n)
}
normalizer = n"""


def test_a_weight_that_vanishes_at_the_maximum_is_refuted_beside_an_extra_term() -> None:
    """One key of score 100: its weight is 0, and exp2(0 - 144) of the extra term is 0 beside it in float32 at 110."""
    body = FAR_ZERO.replace("100", "120")
    found = {c.subject: c.verdict for c in empty_rows(*planned(body), Work())}
    verdict = found["denominator 0"]
    assert isinstance(verdict, Refuted)
    s = dict(verdict.values)["s"]
    assert (s - 120) ** 2 == 0
    assert float(np.exp2(np.float32(-s * LOG2E))) < 2.0**-149 or np.exp2(np.float32(-s * LOG2E)) == 0


def test_without_an_extra_term_it_is_found_empty() -> None:
    found = empty_rows(*planned(FAR_ZERO.replace("sum + 1", "sum")), Work())
    assert [c for c in found if not isinstance(c.verdict, Proved)] == []


def test_a_finish_that_forgets_the_empty_row_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    a, plan = planned("mask = causal")
    assert all(isinstance(c.verdict, Proved) for c in empty_rows(a, plan, Work()))
    whole = kernel.finish_shifted

    def careless(*, exponential: bool, extra: bool) -> kernel.Finish:
        found = whole(exponential=exponential, extra=extra)
        return replace(found, acc=apply(Op.DIV, kernel.ACC, kernel.ROW_SUM))

    monkeypatch.setattr(kernel, "finish_shifted", careless)
    verdict = empty_rows(a, plan, Work())[0].verdict
    assert isinstance(verdict, Unknown) and "NaN" in verdict.reason


def test_an_unguarded_shift_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guard the step evaluates -inf - -inf."""
    a, plan = planned("mask = causal")
    rescale = apply(Op.MUL, apply(Op.SUB, kernel.ROW_MAX, kernel.NEW_MAX), kernel.FACTOR)
    monkeypatch.setattr(kernel, "RESCALE", rescale)
    assert isinstance(empty_rows(a, plan, Work())[0].verdict, Unknown)
    assert isinstance(next(iter(kernel.exponents(plan))).verdict, Unknown)


# ---------------------------------------------------------------- the model, run


def run(
    plan: KernelPlan, scores: np.ndarray, v: np.ndarray, tile: int, log2_extra: float | None
) -> tuple[float, float]:
    """One row through the model's own expressions: out and lse. Masked pairs have score -inf."""
    w = plan.weights
    assert w.form is Form.EXPONENTIAL
    factor = float(evaluate(w.factor, {"scale": 1.0}, {}))
    state = {"row_max": -math.inf, "row_sum": 0.0, "acc": 0.0, "factor": factor}

    def at(e: Expr, **more: object) -> np.ndarray:
        return evaluate(e, {**state, **more}, {})

    for start in range(0, len(scores), tile):
        x = scores[start : start + tile]
        top = {"tile_max": x.max(), "x": x}
        rescale = at(apply(Op.EXP2, kernel.RESCALE), **top)
        weight = at(apply(Op.EXP2, kernel.WEIGHT), **top)
        row_sum = state["row_sum"] * rescale + weight.sum()
        acc = state["acc"] * rescale + (weight * v[start : start + tile]).sum()
        state |= {"row_max": float(at(kernel.NEW_MAX, **top)), "row_sum": float(row_sum), "acc": float(acc)}
    finish = kernel.finish_shifted(exponential=True, extra=log2_extra is not None)
    end = {"total": state["row_max"] * factor, "extra": log2_extra if log2_extra is not None else -math.inf}
    return float(at(finish.acc, **end)), float(at(finish.lse, **end)) / LOG2E


@pytest.mark.parametrize("sink", [None, 0.7])
@pytest.mark.parametrize("keys", [0, 1, 3, 7])
def test_the_model_computes_what_the_definition_says(keys: int, sink: float | None) -> None:
    rng = np.random.default_rng(keys)
    body = "param n: int\nmask = k < n" + ("" if sink is None else f"\nnormalizer = softmax(sink = {sink})")
    a, plan = planned(body)
    k, v = rng.standard_normal((1, 1, 7, 1)) * 4, rng.standard_normal((1, 1, 7, 1))
    q = np.ones((1, 1, 1, 1))
    right = reference.evaluate(a, q, k, v, params={"n": keys}, scale=1.0)
    scores = np.where(np.arange(7) < keys, k.reshape(-1), -math.inf)
    for tile in (1, 2, 7):
        out, lse = run(plan, scores, v.reshape(-1), tile, None if sink is None else sink * LOG2E)
        assert out == pytest.approx(right.out.item(), abs=1e-12)
        assert lse == pytest.approx(right.lse.item(), abs=1e-12) or lse == right.lse.item()


def test_certain_needs_a_decided_condition() -> None:
    at = kernel.place(planned("mask = causal")[1], row_max=kernel.FINITE)
    undecided = disjunction(apply(Op.LT, kernel.ROW_MAX, kernel.FACTOR), apply(Op.EQ, kernel.ROW_MAX, kernel.NONE))
    truth = at.truth(undecided)
    assert truth.can_hold and truth.can_fail
