"""Which scores rise by the same amount from key to key, and that what is planned for them is the logit."""

from __future__ import annotations

import numpy as np
import pytest
from property.kernels import analysed

from attngen.ir.build import mul
from attngen.ir.evaluate import evaluate
from attngen.ir.printing import expression
from attngen.plan import KernelPlan, plan

SLOPE, N = np.array([0.5, -0.25], np.float32), np.array([7])
RISING = [
    ("alibi(slope)", "causal"),
    ("slope[h] * (k - q)", "causal"),
    ("2.0 * slope[h] * (k - q) + slope[h]", "true"),
    ("slope[h] * abs(q - k)", "q <= k"),
    ("-slope[h] * abs(k - q)", "k < q and k < n[b]"),
    ("alibi(slope) - 3.0", "causal and q - k < 5"),
    ("0.5 * slope[0] * qk + alibi(slope)", "causal"),
    ("slope[h] * (k - q) - slope[0] * abs(k - q)", "causal"),  # where Sq and Sk differ, k may come after q
]
LEVEL = [
    ("-slope[h] * abs(q - k)", "true"),
    ("alibi(slope)", "k <= q + Sk - Sq + 1"),
    ("alibi(slope)", "causal or k < 2"),
    ("slope[h] * (k - q) * (k - q)", "causal"),
    ("slope[h] * (k // 2)", "causal"),
    ("slope[h] * min(k - q, 4)", "causal"),
    ("slope[h] * (k - q + n[b])", "causal"),  # as large as its type holds: floats would round it
]


def planned(term: str, mask: str) -> KernelPlan:
    params = "param slope: f32[Hq]\nparam n: int[B]\n"
    return plan(analysed(f"attention a\n\n{params}\nscore = qk * scale + {term}\nmask = {mask}\n"))


@pytest.mark.parametrize(("term", "mask"), RISING)
@pytest.mark.parametrize(("Sq", "Sk"), [(9, 9), (5, 12)])
def test_the_rising_logit_is_the_logit(term: str, mask: str, Sq: int, Sk: int) -> None:
    made = planned(term, mask)
    assert made.ramp is not None
    q, k = np.arange(Sq)[:, None], np.arange(Sk)[None, :]
    env = {"b": 0, "q": q, "k": k, "k0": k // 4 * 4, "Sq": Sq, "Sk": Sk, "Hq": 2, "B": 1, "scale": 0.25}
    for h in (0, 1):
        values = {**env, "h": h, "hkv": h, "qk": np.random.default_rng(h).standard_normal((Sq, Sk))}
        params = {"slope": SLOPE, "n": N}
        allowed = np.broadcast_to(evaluate(made.attention.mask, values, params), (Sq, Sk))
        wanted = evaluate(mul(made.weights.factor, made.weights.unit), values, params)
        found = evaluate(made.ramp.logit, values, params)
        assert allowed.any()
        np.testing.assert_allclose(found[allowed], wanted[allowed], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("term", "mask"), LEVEL)
def test_other_scores_do_not_rise(term: str, mask: str) -> None:
    assert planned(term, mask).ramp is None


def test_the_row_s_part_is_one_exact_distance() -> None:
    """Differences of large products would lose what is small beside them."""
    ramp = planned("slope[h] * k - slope[h] * q", "causal").ramp
    assert ramp is not None
    assert expression(ramp.unit) == "qk"
    assert expression(ramp.row) == "float(k0 - q) * (slope[h] * 1.4426950408889634)"
