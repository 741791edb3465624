"""Gradients: every example's are proved, wrong ones are refuted at a point, and none can go missing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from property.kernels import analysed

from attngen.ir.attention import Attention
from attngen.ir.build import add, apply, index, mul, neg, real
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Apply, Expr, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import children, rebuild, substitute
from attngen.plan import KernelPlan, plan
from attngen.plan.index import read
from attngen.plan.kernel import Gather, LeafGradient
from attngen.plan.score.weights import Form
from attngen.prove.budget.work import Work
from attngen.prove.obligations.gradients import gradients
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))

RICH = """attention rich
param a: f32[Hq]
param c: f32 where c > 0
param bias: f32[Hq, Sq, Sk]
param row: f32[B, Sq]
param col: f32[B, Sk]
param table: f32[Hq, n]
score = softcap(qk * scale, c) + bias[h, q, k] * a[h] + row[b, q] * col[b, k] + table[h, q - k + 9] * exp(-c * q)
normalizer = softmax(sink = a[h] * c)
"""
ODD = """attention odd
param a: f32[Hq]
param c: f32 where c > 0
normalizer own(a, c) {
    weight(s) = (1 + (a * s) ** 2) * exp(c * s)
    denominator = sum + exp(a) * c
    shift = max
    weight(s, m) = (1 + (a * s) ** 2) * exp(c * (s - m))
    rescale(m, n) = exp(c * (m - n))
}
score = qk * scale + a[h] * q
normalizer = own(a = a[h], c = c)
"""
DIRECT = """attention direct
param a: f32[Hq]
param c: f32
normalizer own(a, c) {
    weight(s) = sigmoid(a * s + c)
    denominator = sum + exp(c) * a ** 2
    shift = none
}
score = qk * scale * a[h] + c
normalizer = own(a = a[h], c = c)
"""
KINKS = """attention kinks
param a: f32
param c: f32 where c > 0
score = max(qk * scale, a) + clamp(a * qk, -c, c) + abs(qk - a) + (qk if qk < c else a)
"""


def planned(text: str) -> tuple[Attention, KernelPlan]:
    attention = analysed(text)
    return attention, plan(attention)


def open_claims(claims: tuple[Claim, ...]) -> list[str]:
    return [f"{c.subject}: {c.verdict}" for c in claims if not isinstance(c.verdict, Proved)]


def refuted(claims: tuple[Claim, ...]) -> dict[str, Refuted]:
    return {c.subject: c.verdict for c in claims if isinstance(c.verdict, Refuted)}


# ---------------------------------------------------------------- what is right


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_is_proved(path: Path) -> None:
    assert not open_claims(gradients(*planned(path.read_text()), Work()))


SCORES = {
    "functions": "log(1 + c * qk ** 2) + sqrt(1 + a * a) * erf(qk) + sin(a * qk) * cos(qk) + log2(c) * exp2(a)",
    "quotients": "qk / (c + qk ** 2) - a / c ** 3",
    "sigmoid": "sigmoid(a * qk) * tanh(qk / c)",
    "infinite": "-inf if k % 2 == 0 else a * qk",
    "an infinite branch of the score": "qk * a if qk < c else -inf",
    "ints": "qk * float(q // 4) + a * float((q + k) % 3) + int(a) * c",
    "flat": "floor(qk * a) + ceil(c) + sign(a) * qk",
    "powers": "qk ** 3 + a ** q + c ** -2",
    "nested": "max(abs(a * qk), min(c, tanh(qk)))",
    "shared kinks": "abs(a * qk) + sign(a * qk) * c + max(a * qk, 0)",
    "a condition of ints": "a * qk if q < k else c * qk",
    "one cell in two spellings": "qk * t[q - k + 8] + t[8 - k + q] * c",
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_every_operation_are_proved(name: str) -> None:
    declared = "param a: f32\nparam c: f32 where c > 0\nparam t: f32[n]\n"
    declared = declared if "t[" in SCORES[name] else declared.replace("param t: f32[n]\n", "")
    assert not open_claims(gradients(*planned(f"attention subject\n{declared}score = {SCORES[name]}\n"), Work()))


@pytest.mark.parametrize("text", [RICH, ODD, DIRECT, KINKS], ids=["rich", "odd", "direct", "kinks"])
def test_every_form_is_proved(text: str) -> None:
    assert not open_claims(gradients(*planned(text), Work()))


def test_forms_and_gathers_as_planned() -> None:
    assert [planned(t)[1].weights.form for t in (RICH, ODD, DIRECT)] == [Form.EXPONENTIAL, Form.SHIFTED, Form.DIRECT]
    kinds = {g.gather for g in planned(RICH)[1].gradients}
    assert kinds == {Gather.HEAD, Gather.DENSE, Gather.ROW, Gather.COLUMN, Gather.DIAGONAL}


def test_programs_that_miss_a_head_of_a_dense_gradient_are_refuted() -> None:
    attention, plan = planned(RICH)
    found = {c.subject: c.verdict for c in gradients(attention, plan, Work())}
    assert isinstance(found["gather by dense"], Proved)
    assert "gather by dense" not in {c.subject for c in gradients(*planned(ODD), Work())}
    assert plan.gpu_walks is not None
    text = plan.gpu_walks.index.text
    assert "return count if ALL" in text
    wrong = read(text.replace("return count if ALL", "return 0 if ALL"))
    missing = replace(plan, gpu_walks=replace(plan.gpu_walks, index=wrong))
    verdict = refuted(gradients(attention, missing, Work()))["gather by dense"]
    assert dict(verdict.values) == {"one": 1, "whole": 1, "group": 1, "count": 1, "program": 0}


def test_kinks_are_named_with_their_side() -> None:
    notes = {c.subject: c.note for c in gradients(*planned(KINKS), Work())}
    assert "max takes qk * scale where it equals a" in notes["d score / d qk"]
    assert "abs is flat where qk - a = 0" in notes["d score / d qk"]
    assert "the branch of `qk < c` is taken as it is at qk = c" in notes["d score / d qk"]
    assert "min takes max(a * qk, -c) where it equals c" in notes["d natural / d a"]


@pytest.mark.parametrize(
    ("score", "noted"),
    [
        ("softplus(qk) + a", []),
        ("a * logsigmoid(qk - a)", []),
        ("qk * softplus(a) - softplus(qk)", []),
        ("qk * a * (abs(a) - log(1 + abs(a)))", []),
        ("qk * softplus(a) + abs(a)", ["a"]),
        ("softplus(abs(a) * qk)", ["a"]),
        ("a * sqrt(abs(qk) ** 2)", ["qk"]),
        ("a * abs(qk) ** 2 * (1 / abs(qk))", ["qk"]),
        ("qk * (abs(a) - sin(abs(2 * a)))", ["2.0 * a", "a"]),
        ("qk * exp(-abs(a))", ["a"]),
    ],
)
def test_a_kink_that_leaves_the_derivative_exact_has_no_note(score: str, noted: list[str]) -> None:
    text = f"attention subject\nparam a: f32\nscore = {score}\n"
    notes = "; ".join(c.note for c in gradients(*planned(text), Work()))
    assert sorted({*re.findall(r"abs is flat where (.*?) = 0", notes)}) == noted


def test_params_without_a_gradient_are_named() -> None:
    text = "attention subject\nparam p: f32 where 0 <= p < 1\nparam reach: f32\nmask = q - k < reach\ndropout = p\n"
    note = next(c.note for c in gradients(*planned(text), Work()) if c.subject == "complete")
    assert note.endswith("p, reach")


# ---------------------------------------------------------------- what is wrong

C, QK = Scalar("c", Type.FLOAT), Symbol("qk", Type.FLOAT)
Change = Callable[[Any], Any]

CHANGES: dict[str, Change] = {
    "negated": neg,
    "doubled": lambda e: mul(e, real(2.0)),
    "off by a part in a million": lambda e: mul(e, real(1.000001)),
    "a term added": lambda e: add(e, real(0.001)),
    "another variable": lambda e: substitute(e, {C: QK}) if substitute(e, {C: QK}) != e else mul(e, C),
    "zero": lambda e: None,
}


def of(attention_and_plan: tuple[Attention, KernelPlan], leaf: str) -> tuple[KernelPlan, int, LeafGradient]:
    _, p = attention_and_plan
    number = next(i for i, g in enumerate(p.gradients) if g.param == leaf)
    return p, number, p.gradients[number]


def with_gradient(p: KernelPlan, number: int, g: LeafGradient) -> KernelPlan:
    return replace(p, gradients=(*p.gradients[:number], g, *p.gradients[number + 1 :]))


PARTS = [
    (RICH, "a", "pair"), (RICH, "a", "extra"), (RICH, "c", "pair"), (RICH, "c", "extra"), (RICH, "bias", "pair"),
    (RICH, "row", "pair"), (RICH, "col", "pair"), (RICH, "table", "pair"),
    (ODD, "a", "pair"), (ODD, "a", "weight"), (ODD, "a", "extra"), (ODD, "c", "weight"), (ODD, "c", "extra"),
    (DIRECT, "a", "pair"), (DIRECT, "a", "weight"), (DIRECT, "a", "extra"), (DIRECT, "c", "weight"),
    (DIRECT, "c", "extra"), (KINKS, "a", "pair"), (KINKS, "c", "pair"),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("text", "leaf", "part"), PARTS, ids=lambda x: x.split()[1] if "\n" in x else x)
def test_wrong_shares_are_refuted_at_a_point(text: str, leaf: str, part: str, change: str) -> None:
    attention, _ = planned(text)
    p, number, g = of(planned(text), leaf)
    right = getattr(g, part)
    assert right is not None
    wrong = CHANGES[change](right)
    if wrong is not None and same_in_numbers(attention, right, wrong):
        wrong = mul(wrong, C)
    found = refuted(gradients(attention, with_gradient(p, number, replace(g, **{part: wrong})), Work()))
    assert len(found) == 1
    ((subject, verdict),) = found.items()
    assert f"/ d {leaf}" in subject
    values = dict(verdict.values)
    assert abs(float(values["planned"]) - float(values["true"])) > 1e-9


def test_the_point_is_as_it_says() -> None:
    """The planned value and the true one, by NumPy and by a difference quotient, from the point's values alone."""
    attention, p = planned(KINKS)
    _, number, g = of((attention, p), "c")
    assert g.pair is not None
    verdict = refuted(gradients(attention, with_gradient(p, number, replace(g, pair=neg(g.pair))), Work()))
    values = {k: float(v) for k, v in verdict["d natural / d c"].values}
    env = {k: values[k] for k in ("qk", "scale")}
    params = {k: values[k] for k in ("a", "c")}

    def score(c: float) -> float:
        return float(evaluate(attention.score, env, {**params, "c": c}))

    slope = (score(params["c"] + 1e-6) - score(params["c"] - 1e-6)) / 2e-6
    assert slope == pytest.approx(values["true"], abs=1e-6)
    assert float(evaluate(neg(g.pair), env, params)) == pytest.approx(values["planned"])


D_QK: dict[str, Change] = {
    "negated": neg,
    "without the scale": lambda e: substitute(e, {Symbol("scale", Type.FLOAT): real(1.0)}),
    "doubled": lambda e: mul(e, real(2.0)),
    "zero": lambda e: real(0.0),
    "one": lambda e: real(1.0),
}


@pytest.mark.parametrize("change", D_QK)
@pytest.mark.parametrize("text", [RICH, ODD, DIRECT, KINKS], ids=["rich", "odd", "direct", "kinks"])
def test_a_wrong_derivative_of_the_score_is_refuted(text: str, change: str) -> None:
    attention, p = planned(text)
    wrong = D_QK[change](mul(p.d_factor, p.d_pair))
    claims = gradients(attention, replace(p, d_factor=real(1.0), d_pair=wrong), Work())
    assert list(refuted(claims)) == ["d score / d qk"]


def dropped(e: Expr) -> list[Expr]:
    """`e` with one argument of one sum or product left out, in every way."""
    found: list[Expr] = []
    parts = children(e)
    if isinstance(e, Apply) and e.op in (Op.ADD, Op.MUL):
        found += parts
    for number, part in enumerate(parts):
        found += [rebuild(e, (*parts[:number], less, *parts[number + 1 :])) for less in dropped(part)]
    return found


@pytest.mark.parametrize("text", [RICH, ODD, DIRECT], ids=["rich", "odd", "direct"])
def test_dropped_terms_and_factors_are_refuted(text: str) -> None:
    attention, p = planned(text)
    tried = 0
    for number, g in enumerate(p.gradients):
        for part in ("pair", "weight", "extra"):
            right = getattr(g, part)
            for wrong in dropped(right) if right is not None else []:
                mutant = with_gradient(p, number, replace(g, **{part: wrong}))
                found = refuted(gradients(attention, mutant, Work()))
                assert found or same_in_numbers(attention, right, wrong), (part, right, wrong)
                tried += 1
    assert tried >= 6


def same_in_numbers(attention: Attention, a: Expr, b: Expr) -> bool:
    """Whether two expressions agree at a point: the mutant changes nothing."""
    import numpy as np

    rng = np.random.default_rng(0)
    sizes = {"B": 2, "Hq": 2, "Hkv": 2, "Sq": 12, "Sk": 12, "D": 8, "Dv": 8, "n": 32}
    env = {**sizes, "b": 1, "h": 1, "hkv": 1, "q": 7, "k": 3, "qk": 0.8, "scale": 0.3, "s": 0.7, "m": 1.1}
    params = {
        x.name: rng.uniform(0.2, 1.5, tuple(int(evaluate(d, sizes, {})) for d in x.shape)) for x in attention.params
    }
    return bool(np.allclose(evaluate(a, env, params), evaluate(b, env, params), rtol=1e-12))


# ---------------------------------------------------------------- missing, doubled, in the wrong place


@pytest.mark.parametrize("leaf", ["a", "c", "bias", "row", "col", "table"])
def test_a_missing_gradient_is_refuted(leaf: str) -> None:
    attention, p = planned(RICH)
    mutant = replace(p, gradients=tuple(g for g in p.gradients if g.param != leaf))
    found = refuted(gradients(attention, mutant, Work()))
    assert found
    assert all(f"/ d {leaf}" in subject for subject in found)


def test_a_gradient_planned_twice_is_refuted() -> None:
    attention, p = planned(RICH)
    found = refuted(gradients(attention, replace(p, gradients=(*p.gradients, p.gradients[0])), Work()))
    assert {"complete", "d natural / d a[h]"} <= set(found)


def test_a_gradient_of_what_is_not_read_is_refuted() -> None:
    attention, p = planned(RICH)
    stray = LeafGradient("a", Load("a", (index("k"),), Type.FLOAT), Gather.COLUMN, real(1.0), None, None)
    found = refuted(gradients(attention, replace(p, gradients=(*p.gradients, stray)), Work()))
    assert list(found) == ["d natural / d a[k]"]


def test_another_spelling_of_an_element_is_no_counterexample() -> None:
    """Where a point's two loads read one element, neither's derivative alone says anything of the element's."""
    attention, p = planned(
        "attention a\nparam t: f32[16, Hq]\nscore = qk * scale + t[int(log(k + 1.0) / log(10.0) * 2), h]"
    )
    (own,) = p.gradients
    assert isinstance(own.leaf, Load)
    spelled = substitute(own.leaf, {own.leaf.indices[0]: _bucket(2 / math.log(10.0))})
    claims = gradients(attention, with_gradient(p, 0, replace(own, leaf=spelled)), Work())
    assert not refuted(claims)
    assert [type(c.verdict) for c in claims if c.subject.startswith("d natural")] == [Unknown, Unknown]
    wrong = substitute(own.leaf, {own.leaf.indices[0]: _bucket(7.0)})
    assert len(refuted(gradients(attention, with_gradient(p, 0, replace(own, leaf=wrong)), Work()))) == 2


def _bucket(factor: float) -> Expr:
    return apply(Op.TO_INT, mul(apply(Op.LOG, add(apply(Op.TO_FLOAT, index("k")), real(1.0))), real(factor)))


def test_a_weight_share_of_an_exponential_is_refuted() -> None:
    attention, p = planned(RICH)
    mutant = with_gradient(p, 0, replace(p.gradients[0], weight=Symbol("s", Type.FLOAT)))
    assert "d weight / d a[h]" in refuted(gradients(attention, mutant, Work()))


SOUND = {
    "a": {Gather.HEAD, Gather.ROW},  # it has a part of the extra term's, which is a row's
    "c": {Gather.HEAD},
    "bias": {Gather.DENSE, Gather.SCATTER},
    "row": {Gather.ROW, Gather.SCATTER},
    "col": {Gather.COLUMN, Gather.SCATTER},
    "table": {Gather.DIAGONAL, Gather.SCATTER},
}


@pytest.mark.parametrize("kind", Gather)
@pytest.mark.parametrize("leaf", SOUND)
def test_gathers_that_the_index_does_not_allow_are_refuted(leaf: str, kind: Gather) -> None:
    attention, p = planned(RICH)
    _, number, g = of((attention, p), leaf)
    claims = gradients(attention, with_gradient(p, number, replace(g, gather=kind)), Work())
    assert bool(refuted(claims)) == (kind not in SOUND[leaf])
    if kind in SOUND[leaf]:
        assert not open_claims(claims)


DISTANCES = {
    "q - k + 9": True,
    "9 - (k - q)": True,
    "abs(q - k)": True,
    "clamp(q + Sk - Sq - k, -4, 4) + 4": True,
    "(q - k + 9) // 2": True,
    "q + k": False,
    "q - 2 * k + 20": False,
    "q // 2 - k // 2 + 8": False,
    "q * k": False,
    "ids[b, q] - ids[b, k] + 4": False,
}


@pytest.mark.parametrize("text", DISTANCES)
def test_diagonals_are_functions_of_the_distance(text: str) -> None:
    attention, p = planned(
        "attention subject\nparam table: f32[n]\n"
        + ("param ids: int[B, Sk]\n" if "ids" in text else "")
        + f"score = qk + table[{text}]\n"
    )
    mutant = with_gradient(p, 0, replace(p.gradients[0], gather=Gather.DIAGONAL))
    claims = gradients(attention, mutant, Work())
    assert (not open_claims(claims)) == DISTANCES[text], open_claims(claims)


def test_the_slope_is_compared() -> None:
    for text in (ODD, DIRECT):
        attention, p = planned(text)
        assert p.weights.slope is not None
        for wrong in (neg(p.weights.slope), apply(Op.ABS, p.weights.slope), real(0.0)):
            mutant = replace(p, weights=replace(p.weights, slope=wrong))
            assert list(refuted(gradients(attention, mutant, Work()))) == ["d weight / d s"]
