"""The derivative of each operation against central differences, and the rules at kinks."""

from __future__ import annotations

import pytest
from property.kernels import analysed

from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Scalar, Symbol, Type
from attngen.plan.score.derivative import derivative

QK = Symbol("qk", Type.FLOAT)
ENV = {"scale": 0.5, "q": 3, "k": 1, "h": 1, "D": 16}

SMOOTH = [
    "qk + 2 * qk", "1.0 - qk", "-qk", "qk * qk * c", "c / qk", "qk / c", "qk ** 3", "qk ** -2", "qk ** q", "abs(qk)",
    "min(qk, c)", "max(qk, c)", "clamp(qk, -c, c)", "qk if q > k else c", "exp(qk)", "exp2(qk)", "log(qk)", "log2(qk)",
    "sqrt(qk)", "rsqrt(qk)", "tanh(qk)", "sigmoid(qk)", "sin(qk)", "cos(qk)", "erf(qk)", "softcap(qk, c)",
]  # fmt: skip


@pytest.mark.parametrize("body", SMOOTH)
@pytest.mark.parametrize("point", [0.37, 1.9])
@pytest.mark.parametrize("leaf", ["qk", "c"])
def test_against_differences(body: str, point: float, leaf: str) -> None:
    e = analysed(f"attention subject\nparam c: f32\nscore = 0.0 * qk + 0.0 * c + {body}\n").score

    def value(at: float) -> float:
        qk, c = (at, 0.8) if leaf == "qk" else (point, at)
        return float(evaluate(e, {**ENV, "qk": qk}, {"c": c}))

    at = point if leaf == "qk" else 0.8
    found = derivative(e, QK if leaf == "qk" else Scalar("c", Type.FLOAT))
    ours = 0.0 if found is None else float(evaluate(found, {**ENV, "qk": point}, {"c": 0.8}))
    step = 1e-6
    assert ours == pytest.approx((value(at + step) - value(at - step)) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(
    "body", ["sign(qk)", "float(floor(qk))", "float(ceil(qk))", "float(int(qk))", "float(qk > 0)", "c"]
)
def test_what_passes_nothing_on(body: str) -> None:
    e = analysed(f"attention subject\nparam c: f32\nscore = {body}\n").score
    assert derivative(e, QK) is None


@pytest.mark.parametrize(
    ("body", "at", "want"),
    [
        ("abs(qk)", 0.0, 0.0),
        ("min(qk, 1.0)", 1.0, 1.0),  # a tie: the first
        ("min(1.0, qk)", 1.0, 0.0),
        ("max(qk, 1.0)", 1.0, 1.0),
        ("max(1.0, qk)", 1.0, 0.0),
        ("clamp(qk, 0.0, 1.0)", 1.0, 1.0),
        ("clamp(qk, 0.0, 1.0)", 0.0, 1.0),
        ("clamp(qk, 0.0, 1.0)", 2.0, 0.0),
        ("qk if qk > 0 else 3.0 * qk", 0.0, 3.0),
    ],
)
def test_kinks(body: str, at: float, want: float) -> None:
    found = derivative(analysed(f"attention subject\nscore = {body}\n").score, QK)
    assert found is not None
    assert float(evaluate(found, {**ENV, "qk": at}, {})) == want


def test_each_load_is_a_leaf_of_its_own() -> None:
    e = analysed("attention subject\nparam s: f32[Hq]\nscore = s[h] * qk + s[0] * 3.0\n").score
    loads = (e.args[0].args[0], e.args[1].args[0])  # type: ignore[union-attr]
    values = [derivative(e, n) for n in loads]
    env = {**ENV, "qk": 2.0}
    assert [float(evaluate(d, env, {"s": [1.0, 5.0]})) for d in values if d is not None] == [2.0, 3.0]
