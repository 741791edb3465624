"""The three forms of the weights, and the algebra that finds them."""

from __future__ import annotations

import math

import pytest
from property.grammar import NORMALIZERS
from property.kernels import analysed

from attngen.errors import SpecError
from attngen.ir import printing
from attngen.ir.build import real
from attngen.ir.nodes import Expr
from attngen.plan.ints.facts import facts
from attngen.plan.score.weights import Form, Weights, gathered, leading_factor, logarithm, split_factor, weights


def planned(*lines: str) -> Weights:
    attention = analysed("\n".join(["attention subject", *lines]))
    return weights(attention, facts(attention))


def text(e: Expr | None) -> str | None:
    return None if e is None else printing.expression(e)


SLOPE, CAP = "param slope: f32[Hq]", "param cap: f32 where cap > 0.5"


@pytest.mark.parametrize(
    ("name", "form", "sums"),
    [
        ("softmax", Form.EXPONENTIAL, True),
        ("softmax1", Form.EXPONENTIAL, True),
        ("sink", Form.EXPONENTIAL, True),
        ("temperature", Form.EXPONENTIAL, True),
        ("binary", Form.EXPONENTIAL, True),
        ("shifted", Form.SHIFTED, True),
        ("sigmoid", Form.DIRECT, False),
        ("relu", Form.DIRECT, True),
        ("plain", Form.DIRECT, True),
    ],
)
def test_forms(name: str, form: Form, sums: bool) -> None:
    found = planned(SLOPE, CAP, NORMALIZERS[name])
    assert (found.form, found.sums) == (form, sums)
    assert (found.rescale is None) == (form is Form.DIRECT)
    assert (found.slope is None) == (form is Form.EXPONENTIAL)


def test_the_scale_is_folded_into_the_factor() -> None:
    found = planned()
    assert text(found.unit) == "qk"
    assert text(found.factor) == f"scale * {1 / math.log(2)!r}"
    assert text(found.natural) == "qk * scale"


def test_a_factor_of_unknown_sign_stays_in_the_unit() -> None:
    found = planned("param g: f32", "score = g * qk")
    assert text(found.factor) == "1.0"
    assert "g" in str(text(found.unit))


def test_the_extra_term_is_kept_as_a_logarithm() -> None:
    assert text(planned(SLOPE, NORMALIZERS["sink"]).log_extra) == "slope[h]"
    assert text(planned(NORMALIZERS["softmax1"]).log_extra) == "0.0"
    assert planned().log_extra is None
    assert text(planned(SLOPE, NORMALIZERS["plain"]).extra) == "slope[h]"


def test_a_rescaling_that_is_no_exponential_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        planned(
            "normalizer odd {\n weight(s) = exp(s)\n denominator = sum\n shift = max\n"
            " weight(s, m) = exp(s) / (1 + m * m)\n rescale(m, n) = (1 + m * m) / (1 + n * n)\n}\nnormalizer = odd"
        )
    assert caught.value.diagnostics[0].code == "rescale-form"


def score(body: str, *params: str) -> tuple[Expr, object]:
    attention = analysed("\n".join(["attention subject", *params, f"score = {body}"]))
    return attention.score, facts(attention)


@pytest.mark.parametrize(
    ("body", "factor", "unit"),
    [
        ("qk * scale", None, None),  # the sign of the scale is the caller's
        ("cap * tanh(qk)", "cap", "tanh(qk)"),
        ("tanh(qk) * cap * 2.0", "2.0 * cap", "tanh(qk)"),
        ("slope[h] * qk", "1.0", "slope[h] * qk"),
        ("qk + cap", "1.0", "qk + cap"),
        ("qk * row[b, q]", "1.0", "qk * row[b, q]"),
    ],
)
def test_leading_factor(body: str, factor: str | None, unit: str | None) -> None:
    e, known = score(body, SLOPE, CAP, "param row: f32[B, Sq] where row > 0")
    found = leading_factor(e, known)  # type: ignore[arg-type]
    if factor is not None:
        assert (text(found[0]), text(found[1])) == (factor, unit)
    for part in found:
        assert isinstance(part, Expr)


@pytest.mark.parametrize(
    ("body", "factor", "rest"),
    [
        ("qk * scale", "scale", "qk"),
        ("-(slope[h] * qk)", "-slope[h]", "qk"),
        ("qk * slope[h] / cap", "slope[h] / cap", "qk"),
        ("cap * slope[h]", "cap * slope[h]", "1.0"),
        ("qk * row[b, q] * slope[h]", "slope[h]", "qk * row[b, q]"),
        ("qk + cap", "1.0", "qk + cap"),
    ],
)
def test_split_factor(body: str, factor: str, rest: str) -> None:
    e, _ = score(body, SLOPE, CAP, "param row: f32[B, Sq]")
    assert tuple(map(text, split_factor(e))) == (factor, rest)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("exp(qk)", "qk"),
        ("exp2(qk)", f"qk * {math.log(2)!r}"),
        ("exp(qk) * exp(cap)", "qk + cap"),
        ("exp(qk) / exp(cap)", "qk - cap"),
        ("exp(qk) ** 3", "qk * 3.0"),
        ("tanh(qk)", None),
        ("exp(qk) + 1.0", None),
        ("exp(qk) * tanh(qk)", None),
    ],
)
def test_logarithm(body: str, want: str | None) -> None:
    assert text(logarithm(score(body, CAP)[0])) == want


def test_logarithm_of_literals() -> None:
    assert text(logarithm(real(math.e))) == "1.0"
    assert logarithm(real(0.0)) is None and logarithm(real(-1.0)) is None


@pytest.mark.parametrize(
    ("written", "planned_as"),
    [
        ("qk / 3 * 2", "qk * 0.6666666666666666"),
        # What is compared or becomes an int or a sign stays as it is written, but for powers of two.
        ("qk + int(exp(qk) / 3 * 2)", "qk + float(int(exp(qk) / 3.0 * 2.0))"),
        ("qk + int(exp(qk / 4) / 8 * 2)", "qk + float(int(exp(qk * 0.25) * 0.25))"),
        ("qk + floor(exp(qk) * 3 / 3)", "qk + float(floor(exp(qk) * 3.0 / 3.0))"),
        ("qk + sign(exp(qk) / 3 * 2 - 1)", "qk + sign(exp(qk) / 3.0 * 2.0 - 1.0)"),
        (
            "qk / 3 * 2 if exp(qk) / 3 * 2 < 1 else qk",
            "qk * 0.6666666666666666 if exp(qk) / 3.0 * 2.0 < 1.0 else qk",
        ),
    ],
)
def test_where_the_last_bit_decides_nothing_is_rounded_otherwise(written: str, planned_as: str) -> None:
    assert text(gathered(analysed(f"attention subject\nscore = {written}").score)) == planned_as
