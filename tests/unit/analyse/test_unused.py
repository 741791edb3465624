"""A param that nothing reads is a warning of `compile`."""

from __future__ import annotations

import pytest

from attngen.analyse import analyse
from attngen.analyse.unused import unused_params
from attngen.errors import Source
from attngen.syntax.parser import parse


def found(text: str) -> list[str]:
    source = Source(f"attention a\n{text}\n", "a.attn")
    return [d.line("warning") for d in unused_params(analyse(parse(source), source), source)]


def test_it_names_the_param_and_its_line() -> None:
    (line,) = found("param used: f32[Hq]\nparam idle: int where idle > 0\nscore = qk * used[h]")
    assert line.startswith("a.attn:3:1: warning[unused-param]: no score") and "`idle`" in line


def test_a_param_of_a_let_that_nothing_uses_is_unused() -> None:
    assert len(found("param slope: f32[Hq]\nlet bias = slope[h] * q\nmask = causal")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "param p: f32[Hq]\nscore = qk - p[h]",
        "param n: int\nmask = k < n",
        "param n: int\nassume n > 4",
        "param n: int\nparam m: int where m < n\nmask = k < m",
        "param s: f32[Hq]\nnormalizer = softmax(sink = s[h])",
        "param rate: f32 where 0 <= rate < 1\ndropout = rate",
    ],
)
def test_every_place_that_reads_a_param_counts(text: str) -> None:
    assert found(text) == []
