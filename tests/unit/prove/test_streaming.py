"""Streaming: right normalizers proved, however they are spelt; wrong ones refuted with numbers that check by hand."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from property.grammar import NORMALIZERS
from property.kernels import analysed

from attngen.ir.attention import Attention
from attngen.ir.build import add, apply, div, mul, neg, real, sub
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr, Op, Scalar, Type
from attngen.plan import KernelPlan, plan
from attngen.plan.score.weights import Form, M, S, Weights
from attngen.prove.budget.work import Budget, Work
from attngen.prove.obligations.streaming import streaming
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))


def spec(
    weight: str = "exp(s)",
    stream: str = "exp(s - m)",
    rescale: str = "exp(m - n)",
    denominator: str = "sum",
    *more: str,
) -> str:
    lines = [f"weight(s) = {weight}", f"denominator = {denominator}"]
    if stream == "none":
        lines.append("shift = none")
    else:
        lines += ["shift = max", f"weight(s, m) = {stream}", f"rescale(m, n) = {rescale}"]
    body = "\n".join(f"    {line}" for line in lines)
    declared = ["param c: f32 where c > 0", "param e: f32", "param neg: f32 where neg < 0"]
    return "\n".join(["attention subject", *declared, *more, f"normalizer own {{\n{body}\n}}", "normalizer = own\n"])


def proved(claims: tuple[Claim, ...]) -> list[str]:
    return [f"{c.subject}: {c.verdict}" for c in claims if not isinstance(c.verdict, Proved)]


def refuted(claims: tuple[Claim, ...]) -> dict[str, Refuted]:
    return {c.subject: c.verdict for c in claims if isinstance(c.verdict, Refuted)}


def streamed(text: str) -> tuple[Claim, ...]:
    attention = analysed(text)
    return streaming(attention, plan(attention), Work())


# ---------------------------------------------------------------- what is right


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_is_proved(path: Path) -> None:
    claims = streamed(path.read_text())
    assert not proved(claims)
    assert {"tiles", "finish", "state monoid"} <= {c.subject for c in claims}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_the_property_tests_normalizers_are_proved(name: str) -> None:
    declared = "param slope: f32[Hq] where slope > 0\nparam cap: f32 where cap > 0.5\n"
    assert not proved(streamed(f"attention subject\n{declared}{NORMALIZERS[name]}\n"))


RIGHT = {
    "a quotient": spec(rescale="exp(m) / exp(n)"),
    "a minus outside": spec(rescale="exp(-(n - m))"),
    "a reciprocal": spec(rescale="1 / exp(n - m)"),
    "weight as a quotient": spec(stream="exp(s) / exp(m)"),
    "weight as a product": spec(stream="exp(s) * exp(-m)"),
    "base 2": spec("exp2(s)", "exp2(s - m)", "exp2(m - n)"),
    "base 2 by log2 e": spec("exp2(s * 1.4426950408889634)"),
    "base e by ln 2": spec("exp2(s)", "exp(0.6931471805599453 * (s - m))", "exp2(m) / exp2(n)"),
    "squared": spec("exp(s) ** 2", "exp(s - m) ** 2", "exp(m - n) ** 2"),
    "squared, mixed": spec("exp(s) * exp(s)", "exp(2 * s - 2 * m)", "exp(m - n) ** 2"),
    "root": spec("sqrt(exp(s))", "exp((s - m) / 2)", "exp((m - n) / 2)"),
    "a param": spec("exp(c * s)", "exp(c * (s - m))", "exp(c * (m - n))"),
    "a param, multiplied out": spec("exp(c * s)", "exp(c * s - c * m)", "exp(c * m) / exp(c * n)"),
    "a temperature": spec("exp(s / c)", "exp((s - m) / c)", "exp((m - n) / c)", "sum + exp(e / c)"),
    "a decimal": spec("exp(0.3 * s)", "exp(0.3 * (s - m))", "exp(0.3 * m - 0.3 * n)"),
    "falling": spec("exp(-s)", "exp(m - s)", "exp(n - m)"),
    "a factor of s": spec("s ** 2 * exp(s)", "s ** 2 * exp(s - m)"),
    "a signed factor": spec("s * exp(s)", "s * exp(s - m)"),
    "a kink": spec("abs(s) * exp(s)", "abs(s) * exp(s - m)"),
    "a branch": spec("exp(s) if s > 0 else 0.0", "exp(s - m) if s > 0 else 0.0"),
    "a branch of equals": spec("exp(s) if s > 0 else exp(s)"),
    "tanh": spec("exp(s) * (1 + tanh(s))", "exp(s - m) * (1 + tanh(s))"),
    "tanh by sigmoid": spec("exp(s) * (1 + tanh(s))", "exp(s - m) * 2 * sigmoid(2 * s)"),
    "cos": spec("exp(s) * cos(s) ** 2", "cos(s) * cos(s) * exp(s - m)"),
    "only as the maximum moves": spec(stream="exp(-abs(s - m))"),
    "a constant that cancels": spec(stream="2 * exp(s - m)"),
    "a constant in both": spec("2 * exp(s)", "2 * exp(s - m)"),
    "extra 1": spec(denominator="sum + 1"),
    "extra constant": spec(denominator="sum + exp(1.3)"),
    "extra param": spec(denominator="sum + c"),
    "extra product": spec(denominator="sum + c * exp(e)"),
    "relu squared": spec("max(s, 0.0) ** 2", "none"),
    "softplus": spec("log(1 + exp(s))", "none"),
    "sigmoid": spec("1 / (1 + exp(-s))", "none", denominator="1"),
    "direct, extra": spec("sigmoid(s)", "none", denominator="sum + c"),
    "direct, signed extra": spec("sigmoid(s)", "none", denominator="sum + e"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_normalizers_are_proved(name: str) -> None:
    assert not proved(streamed(RIGHT[name]))


def test_a_constant_that_cancels_is_named() -> None:
    notes = [c.note for c in streamed(RIGHT["a constant that cancels"]) if c.note]
    assert notes == ["up to the constant 2.0, which cancels in weight / denominator"]


def test_the_induction_is_written_out() -> None:
    claims = {c.subject: c.verdict for c in streamed(spec())}
    tiles, states = claims["tiles"], claims["state monoid"]
    assert isinstance(tiles, Proved) and isinstance(states, Proved)
    assert any(step.startswith("base:") for step in tiles.steps) and any("-inf" in step for step in tiles.steps)
    assert any("identity" in step for step in states.steps) and any("associative" in step for step in states.steps)


# ---------------------------------------------------------------- what is wrong

WRONG = {
    "no rescaling": spec(rescale="1.0"),
    "rescaling backwards": spec(rescale="exp(n - m)"),
    "rescaling twice": spec(rescale="exp(2 * (m - n))"),
    "half the rescaling": spec(rescale="exp((m - n) / 2)"),
    "another base": spec(rescale="exp2(m - n)"),
    "the old maximum alone": spec(rescale="exp(m)"),
    "the new maximum alone": spec(rescale="exp(-n)"),
    "a constant in the rescaling": spec(rescale="2 * exp(m - n)"),
    "a rational function": spec(rescale="1 / (1 + m - n)"),
    "a small factor": spec(rescale="exp(m - n) * (1 + 0.001 * (m - n))"),
    "nearly 1": spec(rescale="exp(0.9999 * (m - n))"),
    "a branch": spec(rescale="exp(m - n) if m > 0 else 1.0"),
    "no maximum": spec(stream="exp(s)"),
    "the maximum added": spec(stream="exp(s + m)"),
    "the score twice": spec(stream="exp(2 * s - m)"),
    "the maximum twice": spec(stream="exp(s - 2 * m)"),
    "a factor of s": spec(stream="s * exp(s - m)"),
    "a term": spec(stream="exp(s - m) + 1"),
    "nothing": spec(stream="0.0"),
    "a small slope": spec(stream="exp(1.0001 * s - m)"),
    "a small term": spec(stream="exp(s - m) * (1 + 0.0001 * s)"),
    "base 2 defined": spec("exp2(s)"),
    "base 2 streamed": spec(stream="exp2(s - m)", rescale="exp2(m - n)"),
    "the param at the score": spec("exp(c * s)", "exp(c * s - m)", "exp(c * (m - n))"),
    "the param not at the maxima": spec("exp(c * s)", "exp(c * (s - m))", "exp(m - n)"),
    "the param forgotten": spec("exp(c * s)"),
    "the param divided by": spec("exp(s / c)", "exp(c * (s - m))", "exp(c * (m - n))"),
    "a power forgotten": spec("exp(s) ** 2"),
    "a square forgotten": spec("s ** 2 * exp(s)", "s * exp(s - m)"),
    "a square in the exponent": spec("exp(s + s * s / 100)"),
    "a constant with an extra term": spec("2 * exp(s)", "exp(s - m)", denominator="sum + 1"),
    "a sign that the maximum loses": spec("abs(s) * exp(s)", "s * exp(s - m)"),
    "tanh for sigmoid": spec("exp(s) * sigmoid(s)", "exp(s - m) * tanh(s)"),
    "an extra term of any sign": spec(denominator="sum + e"),
    "a negative extra term": spec(denominator="sum + neg"),
    "a negative temperature": spec("s ** 2 * exp(neg * s)", "s ** 2 * exp(neg * (s - m))", "exp(neg * (m - n))"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_normalizers_are_refuted_with_numbers(name: str) -> None:
    found = refuted(streamed(WRONG[name]))
    assert found
    for verdict in found.values():
        assert verdict.example
    assert any(re.search(r"\d", line) for verdict in found.values() for line in verdict.example)


LAWS = [n for n in WRONG if not n.endswith(("sign", "extra term", "temperature")) and n != "nothing"]


@pytest.mark.parametrize("name", [n for n in LAWS if n != "a constant with an extra term"])
def test_the_two_tiles_of_a_counterexample_are_as_it_says(name: str) -> None:
    """The numbers of the example, run again by NumPy from the spec's lines alone."""
    claims = streamed(WRONG[name])
    folds = [v for v in refuted(claims).values() if v.by == "two tiles"]
    assert folds, [f"{c.subject}: {c.verdict}" for c in claims if not isinstance(c.verdict, Proved)]
    values = {key: float(v) for key, v in folds[0].values if isinstance(v, int | float)}
    n = analysed(WRONG[name]).normalizer
    assert n.stream_weight is not None and n.rescale is not None
    params = {"c": 0.75, "e": 0.5, "neg": -0.5} | {key: v for key, v in values.items() if key in ("c", "e", "neg")}
    shown = re.search(r"c = ([-\d.]+)", folds[0].example[0])
    if shown:
        params["c"] = float(shown[1])

    def value(e: Expr, **symbols: float) -> float:
        return float(evaluate(e, symbols, params))

    a, b = values["score 0"], values["score 1"]
    top = max(a, b)
    acc = value(n.stream_weight, s=a, m=a) * value(n.rescale, m=a, n=top)
    total = acc + value(n.stream_weight, s=b, m=top)
    true = value(n.weight, s=a) / (value(n.weight, s=a) + value(n.weight, s=b))
    assert true == pytest.approx(values["defined"], rel=1e-9)
    if "streamed" in values:
        assert acc / total == pytest.approx(values["streamed"], rel=1e-9)
        assert abs(acc / total - true) > 1e-10
    else:
        assert total == pytest.approx(0.0, abs=1e-12)


def test_no_rescaling_is_finite_and_wrong() -> None:
    """The founding text's second break: two scores in tiles of 1."""
    attention = analysed(WRONG["no rescaling"])
    claims = streaming(attention, plan(attention), Work())
    claim = next(c for c in claims if c.subject == "homomorphism")
    assert isinstance(claim.verdict, Refuted)
    assert claim.verdict.example[0] == "scores -0.5 | 1.5 in tiles of 1, values 1 | 0:"
    assert claim.verdict.example[3] == "streamed 1 / 2 = 0.5, defined 0.606531 / 5.08822 = 0.119203"
    assert claim.fix == "write rescale(m, n) = exp(m - n)"
    assert attention.normalizer.rescale is not None and claim.span == attention.normalizer.rescale.span
    rests = {c.subject: c.verdict for c in claims}
    assert isinstance(rests["tiles"], Unknown) and "homomorphism" in rests["tiles"].reason


# ---------------------------------------------------------------- wrong plans


C = Scalar("c", Type.FLOAT)
LOG2E = real(1 / math.log(2))
SOFTMAX = "attention subject\nparam c: f32 where c > 0\nparam bias: f32\nscore = softcap(qk * scale, c) + bias\n"
SINK = "attention subject\nparam c: f32\nnormalizer = softmax(sink = c)\n"
SHIFTED = spec("s ** 2 * exp(c * s)", "s ** 2 * exp(c * (s - m))", "exp(c * (m - n))", "sum + c")
DIRECT = spec("max(s, 0.0) ** 2", "none", denominator="sum + c")


def changed(text: str, name: str, change: object) -> tuple[Attention, KernelPlan]:
    attention = analysed(text)
    planned = plan(attention)
    w: Weights = planned.weights
    return attention, replace(planned, weights=replace(w, **{name: change(getattr(w, name))}))  # type: ignore[operator]


FOLDINGS = {
    "the factor without log2 e": (SINK, "factor", lambda e: div(e, LOG2E)),
    "the factor with ln 2": (SINK, "factor", lambda e: mul(div(e, LOG2E), real(math.log(2)))),
    "the factor doubled": (SINK, "factor", lambda e: mul(e, real(2.0))),
    "the factor negated": (SINK, "factor", neg),
    "log2 e to six digits": (SINK, "factor", lambda e: mul(div(e, LOG2E), real(1.44269))),
    "the unit negated": (SINK, "unit", neg),
    "the unit with a term": (SINK, "unit", lambda e: add(e, real(1e-3))),
    "a bias folded twice": (SOFTMAX, "unit", lambda e: add(e, Scalar("bias", Type.FLOAT))),
    "a bias not scaled": (
        SOFTMAX,
        "unit",
        lambda e: add(e, mul(Scalar("bias", Type.FLOAT), sub(real(1.0), LOG2E))),
    ),
    "the natural logit halved": (SINK, "natural", lambda e: mul(e, real(0.5))),
    "kappa doubled": (SINK, "kappa", lambda e: mul(e, real(2.0))),
    "kappa negated": (SINK, "kappa", neg),
    "the sum dropped": (SINK, "sums", lambda _: False),
    "the extra term dropped": (SINK, "log_extra", lambda _: None),
    "the extra term not as a logarithm": (SINK, "log_extra", lambda e: apply(Op.EXP, e)),
    "the extra term to base 2": (SINK, "log_extra", lambda e: mul(e, LOG2E)),
    "the extra term shifted": (SINK, "log_extra", lambda e: sub(e, real(1.0))),
    "an extra term where there is none": (SOFTMAX, "log_extra", lambda _: real(0.0)),
    "shifted: the stream without m": (SHIFTED, "stream", lambda e: mul(e, apply(Op.EXP, mul(C, M)))),
    "shifted: the stream doubled": (SHIFTED, "stream", lambda e: mul(e, real(2.0))),
    "shifted: the factor without log2 e": (SHIFTED, "factor", lambda e: div(e, LOG2E)),
    "shifted: kappa halved": (SHIFTED, "kappa", lambda e: mul(e, real(0.5))),
    "shifted: the unit scaled": (SHIFTED, "unit", lambda e: mul(e, C)),
    "shifted: another extra term": (SHIFTED, "log_extra", lambda e: add(e, C)),
    "direct: the stream without a square": (DIRECT, "stream", lambda _: apply(Op.MAX, S, real(0.0))),
    "direct: the unit negated": (DIRECT, "unit", neg),
    "direct: the extra term as a logarithm": (DIRECT, "extra", lambda e: apply(Op.LOG, e)),
    "direct: the extra term dropped": (DIRECT, "extra", lambda _: None),
}


@pytest.mark.parametrize("name", FOLDINGS)
def test_wrong_foldings_are_refuted(name: str) -> None:
    text, field, change = FOLDINGS[name]
    assert not proved(streamed(text))
    attention, planned = changed(text, field, change)
    found = refuted(streaming(attention, planned, Work()))
    assert found
    assert all(verdict.example for verdict in found.values())


def test_a_wrong_folding_comes_with_the_point() -> None:
    attention, planned = changed(SINK, "factor", lambda e: div(e, LOG2E))
    verdict = refuted(streaming(attention, planned, Work()))["base 2"]
    values = dict(verdict.values)
    assert float(values["planned"]) == pytest.approx(float(values["qk"]) * float(values["scale"]))
    assert float(values["true"]) == pytest.approx(float(values["planned"]) / math.log(2))


@pytest.mark.parametrize(
    ("normalizer", "score"),
    [
        ("softmax", "qk if k < 4 else -inf"),
        ("tempered", "(qk if k < 4 else -inf) - abs(q - k)"),
        ("tempered", "-inf if q < k else qk * scale"),
    ],
)
@pytest.mark.parametrize(("fact", "right"), [("where t > 0", True), ("", False), ("where t != 0", False)])
def test_an_infinite_score_has_weight_0_where_the_exponent_rises(
    normalizer: str, score: str, fact: str, right: bool
) -> None:
    lines = ["weight(s) = exp(t * s)", "denominator = sum", "shift = max"]
    lines += ["weight(s, m) = exp(t * (s - m))", "rescale(m, n) = exp(t * (m - n))"]
    tempered = "normalizer tempered {\n" + "".join(f"    {line}\n" for line in lines) + "}"
    text = f"attention infinite\nparam t: f32 {fact}\n{tempered}\nscore = {score}\nnormalizer = {normalizer}\n"
    claims = streamed(text)
    (claim,) = [c for c in claims if c.subject == "infinite scores"]
    assert claim.span.line == text.split("\n").index(f"score = {score}") + 1
    if right or normalizer == "softmax":
        assert not proved(claims)
        return
    assert isinstance(claim.verdict, Refuted)
    assert float(dict(claim.verdict.values)["t"]) <= 0
    assert claim.fix == "mask such pairs instead"
    assert "tiles" in {c.subject for c in claims if isinstance(c.verdict, Unknown)}


def test_a_param_of_any_name_is_told_from_the_prover_s_own_scores() -> None:
    text = spec("exp(s / t)", "exp(s - m)", "exp(m - n)", "sum", "param t: f32 where t > 0")
    example = refuted(streamed(text))["reference"].example
    values = {k: float(v) for k, v in re.findall(r"([a-z']+) = (-?[\d.]+)[,:]", example[-3])}
    assert values.keys() == {"s", "m", "s'", "t"}
    left, right = (float(line.rsplit(" = ", 1)[1]) for line in example[-2:])
    s, m, other, t = (values[name] for name in ("s", "m", "s'", "t"))
    assert left == pytest.approx(math.exp(s - m) * math.exp(other / t), rel=1e-5)
    assert right == pytest.approx(math.exp(other - m) * math.exp(s / t), rel=1e-5)


def test_the_sign_that_is_wrong_is_said_with_what_it_must_be() -> None:
    example = refuted(streamed(spec(denominator="sum + e")))["extra term"].example
    assert example == ("at e = -0.5: e is -0.5, and must be at least 0",)


def test_no_infinite_score_needs_no_claim() -> None:
    assert "infinite scores" not in {c.subject for c in streamed(RIGHT["a temperature"])}


def test_forms_as_planned() -> None:
    """The specs above take the three forms, so that each is mutated."""
    forms = [plan(analysed(text)).weights.form for text in (SINK, SHIFTED, DIRECT)]
    assert forms == [Form.EXPONENTIAL, Form.SHIFTED, Form.DIRECT]


def test_a_score_that_cannot_be_multiplied_out_is_no_hang() -> None:
    top = "(tanh(qk * scale) + tanh(a) + tanh(x * float(q)) + c * float(k) + 1.0) ** 9"
    params = "".join(f"param {name}: f32\n" for name in "axc")
    attention = analysed(f"attention large\n{params}score = {top} / (1.0 + (tanh(qk) + tanh(c)) ** 8)\n")
    assert streaming(attention, plan(attention), Work())  # sympy would take hours


def test_no_time_is_unknown_and_not_a_hang() -> None:
    attention = analysed(RIGHT["a temperature"])
    claims = streaming(attention, plan(attention), Work(Budget(effort=0.0)))
    assert not refuted(claims)
    assert any(isinstance(c.verdict, Unknown) for c in claims)
