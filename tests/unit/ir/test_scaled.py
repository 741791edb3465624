"""Taking the exponential out of an expression: the value is kept, and what would overflow no longer does."""

from __future__ import annotations

import numpy as np
import pytest

from attngen.ir import build
from attngen.ir.evaluate import Tape, evaluate
from attngen.ir.nodes import Expr, Op, Symbol, Type
from attngen.ir.scaled import split

S = Symbol("s", Type.FLOAT)
ONE, TWO = build.real(1.0), build.real(2.0)


def exp(e: Expr) -> Expr:
    return build.apply(Op.EXP, e)


POSITIVE = build.apply(Op.LT, build.real(0.0), S)
CASES: dict[str, Expr] = {
    "exp": exp(S),
    "exp2": build.apply(Op.EXP2, S),
    "temperature": exp(build.div(S, TWO)),
    "softplus": build.apply(Op.LOG, build.add(ONE, exp(S))),
    "softplus2": build.apply(Op.LOG2, build.add(exp(S), ONE)),
    "logistic": build.div(exp(S), build.add(ONE, exp(S))),
    "product": build.mul(exp(S), build.mul(S, exp(build.neg(S)))),
    "difference": build.sub(exp(S), TWO),
    "power": build.apply(Op.POW, build.add(exp(S), ONE), build.integer(3)),
    "root": build.apply(Op.SQRT, build.add(exp(S), TWO)),
    "inverse root": build.apply(Op.RSQRT, exp(S)),
    "select": build.select(POSITIVE, exp(S), build.add(S, TWO)),
    "min": build.minimum(exp(S), TWO),
    "max": build.maximum(exp(build.neg(S)), S),
    "negative": build.apply(Op.ABS, build.neg(exp(S))),
    "inside": build.apply(Op.TANH, exp(S)),
    "square": build.add(build.mul(S, S), ONE),
    "cosh": build.div(build.add(exp(S), exp(build.neg(S))), TWO),
}


@pytest.mark.parametrize("name", CASES)
def test_factor_times_exponential_is_the_expression_and_so_is_its_derivative(name: str):
    e = CASES[name]
    factor, exponent = split(e)
    s = np.array([-3.0, -0.4, 0.0, 0.8, 2.0])
    whole, parts = Tape((e,), {"s": s}, {}), Tape((factor, exponent), {"s": s}, {})
    f, g = np.broadcast_to(parts.value(factor), s.shape), np.broadcast_to(parts.value(exponent), s.shape)
    np.testing.assert_allclose(f * np.exp(g), whole.value(e), rtol=1e-14)
    expected, _ = whole.pullback([(e, np.ones(5))])
    found, _ = parts.pullback([(factor, np.exp(g)), (exponent, f * np.exp(g))])
    np.testing.assert_allclose(found["s"], expected["s"], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "logarithm"),
    [
        ("exp", lambda s: s),
        ("exp2", lambda s: s * np.log(2)),
        ("softplus", lambda s: np.log(s)),
        ("logistic", lambda s: 0 * s),
        ("power", lambda s: 3 * s),
        ("root", lambda s: s / 2),
        ("cosh", lambda s: s - np.log(2)),
        ("product", lambda s: np.log(s)),
    ],
)
def test_huge_arguments_stay_finite(name: str, logarithm):
    factor, exponent = split(CASES[name])
    s = np.array([1e3, 1e4, 1e6])
    found = np.log(evaluate(factor, {"s": s}, {})) + evaluate(exponent, {"s": s}, {})
    np.testing.assert_allclose(found, logarithm(s), rtol=1e-12, atol=1e-12)
    slope, _ = Tape((factor, exponent), {"s": s}, {}).pullback([(factor, np.ones(3)), (exponent, np.ones(3))])
    assert np.isfinite(slope["s"]).all()


def test_shared_nodes_are_split_once():
    e: Expr = exp(S)
    for _ in range(60):  # as a tree this has 2^60 leaves
        e = build.apply(Op.MUL, e, e)
    factor, exponent = split(e)
    assert factor == ONE and evaluate(exponent, {"s": np.array(1.0)}, {}) == 2.0**60


def test_what_holds_no_exponential_is_left_alone():
    for e in (S, CASES["square"], build.maximum(S, TWO), build.apply(Op.TANH, S)):
        assert split(e) == (e, build.real(0.0))
    assert split(build.add(exp(S), build.mul(S, exp(S)))) == (build.add(ONE, S), S)
