"""Normalizers, built in and defined, with their arguments put in."""

from __future__ import annotations

import pytest

from attngen.analyse import analyse
from attngen.errors import Source, Span
from attngen.ir import attention as ir, printing, walk
from attngen.ir.nodes import Symbol, Type
from attngen.syntax.parser import parse


def normalizer(statements: str) -> ir.Normalizer:
    source = Source(f"attention a\n{statements}\n", "a.attn")
    return analyse(parse(source), source).normalizer


def text(statements: str) -> list[str]:
    """The lines of the normalizer, without the frame."""
    return [line.strip() for line in printing.normalizer(normalizer(statements)).splitlines()[1:-1]]


STREAM = ["weight(s, m) = exp(s - m)", "rescale(m, n) = exp(m - n)"]


@pytest.mark.parametrize(
    ("use", "lines"),
    [
        ("softmax", ["weight(s) = exp(s)", "denominator = sum", "shift = max", *STREAM]),
        ("softmax()", ["weight(s) = exp(s)", "denominator = sum", "shift = max", *STREAM]),
        ("softmax1", ["weight(s) = exp(s)", "denominator = sum + 1.0", "shift = max", *STREAM]),
        (
            "softmax(sink = sinks[h])",
            ["weight(s) = exp(s)", "denominator = sum + exp(sinks[h])", "shift = max", *STREAM],
        ),
        (
            "softmax(sink = 2)",
            ["weight(s) = exp(s)", "denominator = sum + 7.38905609893065", "shift = max", *STREAM],
        ),
        (
            "softmax(sink = t * log(Sk) + scale)",
            ["weight(s) = exp(s)", "denominator = sum + exp(t * log(float(Sk)) + scale)", "shift = max", *STREAM],
        ),
        ("sigmoid", ["weight(s) = sigmoid(s)", "denominator = 1", "shift = none"]),
    ],
)
def test_built_in(use: str, lines: list[str]) -> None:
    before = "param sinks: f32[Hq]\nparam t: f32\n"
    assert text(f"{before}normalizer = {use}") == lines
    assert normalizer(f"{before}normalizer = {use}").name == use.split("(")[0]


def test_span_is_that_of_the_use() -> None:
    assert normalizer("normalizer = softmax1").span == Span(2, 1, 2, 22)


def test_definition_with_arguments() -> None:
    n = normalizer(
        """param temperature: f32[Hq]
param escape: f32[Hq, n]
let cold(t) = max(t, 1)
normalizer tempered(t, e) {
    weight(x)     = exp(x / cold(t))
    denominator   = exp(e / t) + sum
    shift         = max
    weight(x, y)  = exp((x - y) / cold(t))
    rescale(y, z) = exp((y - z) / cold(t))
}
normalizer = tempered(e = escape[h, n - 1], t = temperature[h])"""
    )
    assert printing.normalizer(n).splitlines() == [
        "normalizer tempered {",
        "    weight(s) = exp(s / max(temperature[h], 1.0))",
        "    denominator = sum + exp(escape[h, n - 1] / temperature[h])",
        "    shift = max",
        "    weight(s, m) = exp((s - m) / max(temperature[h], 1.0))",
        "    rescale(m, n) = exp((m - n) / max(temperature[h], 1.0))",
        "}",
    ]
    assert n.extra is not None
    # The size `n` of the file and the reference point `n` of the stream differ in type.
    assert Symbol("n", Type.INT) in set(walk.nodes(n.extra))
    assert n.rescale is not None
    assert Symbol("n", Type.FLOAT) in set(walk.nodes(n.rescale))


def test_a_tensor_can_be_an_argument() -> None:
    definition = "normalizer n(t) {\nweight(s) = exp(s)\ndenominator = sum + t[h]\nshift = none\n}"
    assert text(f"param sinks: f32[Hq]\n{definition}\nnormalizer = n(t = sinks)")[1] == "denominator = sum + sinks[h]"


@pytest.mark.parametrize(
    ("denominator", "sums", "extra"),
    [
        ("sum", True, None),
        ("sum + 1", True, "1.0"),
        ("2 + sum", True, "2.0"),
        ("sum - 1", True, "-1.0"),
        ("sum + c + exp(x)", True, "3.0 + exp(x)"),
        ("1 + sum + x", True, "1.0 + x"),
        ("1 - x + sum", True, "1.0 - x"),
        ("sum + x - 1", True, "x - 1.0"),
        ("(sum)", True, None),
        ("1", False, None),
        ("1.0", False, None),
        ("one", False, None),
    ],
)
def test_denominators(denominator: str, sums: bool, extra: str | None) -> None:
    n = normalizer(
        f"const c = 3\nconst one = 1\nparam x: f32\nnormalizer n {{\nweight(s) = exp(s)\ndenominator = {denominator}\n"
        "shift = none\n}\nnormalizer = n"
    )
    assert n.sums is sums
    assert (None if n.extra is None else printing.expression(n.extra)) == extra
    assert not n.shift


def test_without_a_shift_the_stream_lines_are_ignored() -> None:
    n = normalizer(
        "normalizer n {\nweight(s) = max(s, 0)\ndenominator = sum\nshift = none\nweight(s, m) = s - m\n"
        "rescale(m, n) = m - n\n}\nnormalizer = n"
    )
    assert (n.stream_weight, n.rescale) == (None, None)
    assert printing.expression(n.weight) == "max(s, 0.0)"


def test_a_definition_alone_is_not_used() -> None:
    definition = "normalizer n {\nweight(s) = s\ndenominator = 1\nshift = none\n}"
    assert normalizer(definition).name == "softmax"
    assert normalizer(f"{definition}\nnormalizer = n").name == "n"


def test_ints_become_floats() -> None:
    n = normalizer("normalizer n {\nweight(s) = 1\ndenominator = sum + Sk\nshift = none\n}\nnormalizer = n")
    assert n.weight.type is Type.FLOAT
    assert n.extra is not None
    assert n.extra.type is Type.FLOAT
