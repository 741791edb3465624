"""Functions that a chip approximates: where the plan lets it, what the prover says of that, and what is emitted."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import attngen
from attngen import api
from attngen.aot.compile import compile_kernels
from attngen.errors import Source
from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Op
from attngen.ir.walk import nodes
from attngen.plan import KernelPlan
from attngen.plan.score import approximate as approximate_plan
from attngen.plan.score.approximate import APPROXIMATIONS
from attngen.prove.discharge import prove
from attngen.prove.verdict import Claim, Obligation, Proved, Refuted

WAVES = "attention waves\nscore = qk * scale + 0.5 * sin(float(q - k) * 0.3) + 0.25 * cos(qk)\nmask = causal\n"


def planned(text: str, target: str = "triton") -> tuple[Attention, KernelPlan]:
    spec = api.analyse(Source(text, "waves.attn"))
    return spec, api.plan(spec, target)


def claims(spec: Attention, plan: KernelPlan) -> list[Claim]:
    found = prove(spec, plan).of(Obligation.RANGE_SAFETY).claims
    return [c for c in found if c.subject.startswith("approximate")]


LOGS = (
    "attention logs\nparam g: f32[Hq]\nscore = qk * scale - g[h] * log(1 + abs(q - k)) + 0.5 * log2(2 + abs(q - k))\n"
)


def test_logarithms_of_a_pair_are_approximate_and_proved() -> None:
    """Where logits are in base 2, natural logarithms are, too: the factor log2 e goes into that of the head."""
    spec, plan = planned(LOGS)
    assert {n.op for n in nodes(plan.weights.unit) if isinstance(n, Apply)} & {Op.LOG, Op.LOG2} == {Op.LOG2}
    assert {e.op for e in plan.choices.approximate} == {Op.LOG, Op.LOG2}  # log: of the gradient of g
    found = claims(spec, plan)
    assert {c.subject for c in found} == {"approximate log", "approximate log2"}
    assert all(isinstance(c.verdict, Proved) and "lg2.approx.f32" in c.note for c in found)
    proof = prove(spec, plan)
    assert not proof.refuted and not proof.unknown


def test_waves_of_a_pair_are_approximate_and_proved() -> None:
    spec, plan = planned(WAVES)
    assert {e.op for e in plan.choices.approximate} == {Op.SIN, Op.COS}
    found = claims(spec, plan)
    assert {c.subject for c in found} == {"approximate sin", "approximate cos"}
    assert all(isinstance(c.verdict, Proved) and "2**-20" in c.note for c in found)


@pytest.mark.parametrize("target", ["pallas", "jax", "torch"])
def test_other_targets_approximate_nothing(target: str) -> None:
    assert planned(WAVES, target)[1].choices.approximate == ()


@pytest.mark.parametrize(
    "text",
    [
        "attention a\nscore = qk * scale\nmask = sin(float(q - k)) > 0.5\n",
        "attention a\nscore = qk * scale if tanh(qk) > 0.5 else 0.0\n",
        "attention a\nscore = qk * scale + float(floor(tanh(qk) * 4.0))\n",
        "attention a\nscore = qk * scale + sign(sin(qk) - 0.5)\n",
        "attention a\nscore = qk * scale + sqrt(1.5 + tanh(qk))\n",
        "attention a\nscore = qk * scale / (1.5 + tanh(qk))\n",
        "attention a\nscore = qk * scale + float(floor(log(1 + abs(q - k))))\n",
        "attention a\nscore = qk * scale / (1.5 + log(1 + abs(q - k)))\n",
        "attention a\nlet x = tanh(qk)\nscore = x if x > 0.5 else 2.0 * x\n",
    ],
    ids=[
        "mask",
        "condition",
        "floor",
        "sign",
        "root",
        "divisor",
        "floor of a log",
        "divided by a log",
        "compared and added",
    ],
)
def test_what_decides_is_exact(text: str) -> None:
    spec, plan = planned(text)
    assert plan.choices.approximate == ()
    assert claims(spec, plan) == []
    assert not re.search(r"_(tanh|sin|cos|log|log2)\(.*, FAST\)", attngen.compile(text).source)


@pytest.mark.parametrize(
    "score", ["qk * scale if tanh(qk) > 0.5 else 0.0", "qk * scale + sign(tanh(qk) - 0.5)", "qk / (2.0 + tanh(qk))"]
)
def test_an_approximation_that_decides_is_refuted(score: str) -> None:
    spec, plan = planned(f"attention a\nscore = {score}\n")
    tanh = next(n for n in approximate_plan.decided(plan.weights.unit) if isinstance(n, Apply) and n.op is Op.TANH)
    broken = replace(plan, choices=replace(plan.choices, approximate=(tanh,)))
    (claim,) = claims(spec, broken)
    assert isinstance(claim.verdict, Refuted) and "decides by it" in claim.verdict.example[0]


def test_an_error_above_the_rounding_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, plan = planned(WAVES)
    coarse = replace(APPROXIMATIONS[Op.SIN], error=2.0**-10)
    monkeypatch.setitem(APPROXIMATIONS, Op.SIN, coarse)  # type: ignore[arg-type]
    verdicts = {c.subject: c.verdict for c in claims(spec, plan)}
    assert isinstance(verdicts["approximate sin"], Refuted)
    assert isinstance(verdicts["approximate cos"], Proved)


@pytest.mark.parametrize(("dtype", "approximates"), [("bf16", True), ("fp32", False)])
def test_only_half_precision_takes_the_instructions(dtype: str, approximates: bool) -> None:
    """At the least head dim, where products are short and the compiler is quick."""
    kernel = attngen.compile(WAVES)
    found = compile_kernels(kernel.source, kernel.spec, arch="sm_90", dtype=dtype, head_dim=(16, 16), kind="ptx")
    assert {"forward", "dkdv", "dq"} <= {a.kernel for a in found}
    for a in found:
        assert isinstance(a.data, str)
        if a.kernel in ("forward", "dkdv", "dq"):
            assert ("sin.approx.f32" in a.data and "cos.approx.f32" in a.data) is approximates
