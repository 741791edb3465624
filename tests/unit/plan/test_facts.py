"""Constant bounds of expressions, from the language and from the file's facts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from property import grammar
from property.kernels import analysed

from attngen.ir.build import integer
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Apply, Expr, Op
from attngen.plan.ints.facts import Facts, facts


def read(score: str, *params: str) -> tuple[Facts, Expr]:
    attention = analysed("\n".join(["attention subject", *params, f"score = qk + ({score})"]))
    assert isinstance(attention.score, Apply) and attention.score.op is Op.ADD
    return facts(attention), attention.score.args[1]


@pytest.mark.parametrize(
    ("params", "text", "bounds"),
    [
        ((), "float(q)", (0, None)),
        ((), "float(k - 3)", (-3, None)),
        ((), "float(3 - k)", (None, 3)),
        ((), "float(q // 4)", (0, None)),
        ((), "float((q - k) % 5)", (0, 4)),
        ((), "float(min(q, 7))", (0, 7)),
        ((), "float(max(q - k, 7))", (7, None)),
        ((), "float(Sk)", (1, None)),
        ((), "tanh(qk)", (-1, 1)),
        ((), "sigmoid(qk)", (0, 1)),
        ((), "exp(qk)", (0, None)),
        ((), "log(qk)", (None, None)),
        ((), "float(int(sqrt(float(q))))", (None, None)),  # what NaN becomes as an int is the chip's choice
        ((), "float(floor(39.0 * sigmoid(qk)))", (None, None)),
        ((), "float(min(int(sqrt(float(q))), 7))", (None, 7)),
        ((), "1.0 if q < k else -2.0", (-2, 1)),
        ((), "float(q < k)", (0, 1)),
        (("param c: int where c > 3",), "float(c)", (4, None)),
        (("param c: int where 2 <= c < 9",), "float(c * 2)", (4, 16)),
        (("param c: f32 where c > 3",), "c", (3, None)),
        (("param c: f32[Hq] where 1 <= c <= 3",), "c[h]", (0, 3)),  # a load outside the tensor is 0
        (("param c: f32", "assume c <= 2"), "-c", (-2, None)),
    ],
)
def test_bounds(params: tuple[str, ...], text: str, bounds: tuple[float | None, float | None]) -> None:
    known, e = read(text, *params)
    assert known.bounds(e) == bounds


@pytest.mark.parametrize(
    ("params", "text", "positive"),
    [
        (("param c: f32 where c > 0",), "c", True),
        (("param c: f32 where c >= 0",), "c", False),
        (("param c: f32 where c >= 0.5",), "c", True),
        (("param c: f32",), "c", False),
        (("param c: f32 where c > 0",), "c * c / 3.0", True),
        (("param c: f32 where c > 0",), "c - 1.0", False),
        (("param c: f32 where c > 0",), "c + sigmoid(qk)", True),
        (("param c: f32[Hq] where c > 0",), "c[h]", True),  # it is inside
        (("param c: f32[Hq] where c > 0",), "c[h + 1]", False),  # 0 outside the tensor
        ((), "float(q)", False),
        ((), "float(q + 1)", True),
        ((), "exp(qk)", False),  # underflows
    ],
)
def test_positive(params: tuple[str, ...], text: str, positive: bool) -> None:
    known, e = read(text, *params)
    assert known.is_positive(e) is positive


@settings(max_examples=60)
@given(grammar.ints, st.integers(0, 99))
def test_bounds_hold(text: str, seed: int) -> None:
    attention = analysed(grammar.spec(f"score = qk + float({text})"))
    known = facts(attention)
    sizes = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 5, "Sk": 7, "D": 16, "Dv": 16}
    values = grammar.mask_values(sizes, seed)
    env = {**sizes, "qk": 0.0, "b": 1, "h": 3, "hkv": 1, "q": np.arange(5)[:, None], "k": np.arange(7)}
    number = attention.score
    low, high = known.bounds(number.args[1]) if isinstance(number, Apply) else (None, None)
    found = evaluate(number, env, values)
    assert low is None or (found >= low).all(), (text, low)
    assert high is None or (found <= high).all(), (text, high)


def test_a_literal_is_its_own_bounds() -> None:
    assert Facts({}, frozenset()).bounds(integer(7)) == (7, 7)
