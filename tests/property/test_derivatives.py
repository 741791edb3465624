"""Planned derivatives of drawn scores: against the reverse mode of `Tape`, and, where smooth, against sympy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings, strategies as st

from attngen.ir.evaluate import Tape, evaluate
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import nodes
from attngen.plan.score.derivative import derivative
from property import grammar
from property.kernels import analysed

SIZES = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 7, "Sk": 9, "D": 16, "Dv": 16}
QK = Symbol("qk", Type.FLOAT)


def environment(seed: int) -> dict[str, Any]:
    r = np.random.default_rng(seed)
    return {
        **SIZES,
        "b": r.integers(0, 2),
        "h": 3,
        "hkv": 1,
        "q": r.integers(0, 7),
        "k": r.integers(0, 7),
        "scale": 0.25,
        "qk": r.uniform(-3, 3),
    }


def leaves(e: Expr) -> list[Expr]:
    found = [n for n in nodes(e) if isinstance(n, Scalar | Load) and n.type is Type.FLOAT]
    return list(dict.fromkeys([QK, *found]))


def check_against_tape(score: str, seed: int) -> None:
    e = analysed(grammar.spec(f"score = {score}")).score
    env, params = environment(seed), grammar.mask_values(SIZES, seed)
    params = {n: np.asarray(x, np.float64) if np.asarray(x).dtype.kind == "f" else x for n, x in params.items()}
    tape = Tape((e,), env, params)
    symbols, wanted = tape.pullback([(e, np.ones(()))])
    totals: dict[str, float] = {}
    for leaf in leaves(e):
        found = derivative(e, leaf)
        value = 0.0 if found is None else float(evaluate(found, env, params))
        name = "qk" if leaf == QK else leaf.param  # type: ignore[union-attr]
        totals[name] = totals.get(name, 0.0) + value
    for name, total in totals.items():
        want = float(symbols.get("qk", np.zeros(()))) if name == "qk" else float(np.sum(wanted.get(name, 0.0)))
        assert math.isclose(total, want, rel_tol=1e-9, abs_tol=1e-9), f"d score / d {name}: {total}, tape {want}"


@settings(max_examples=150)
@given(grammar.scores, st.integers(0, 999))
def test_derivatives_are_those_of_the_tape(score: str, seed: int) -> None:
    check_against_tape(score, seed)


@pytest.mark.slow
@settings(max_examples=5000)
@given(grammar.scores, st.integers(0, 999))
def test_derivatives_are_those_of_the_tape_at_length(score: str, seed: int) -> None:
    check_against_tape(score, seed)


# ---------------------------------------------------------------- smooth scores, by sympy

SYMPY = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.DIV: lambda a, b: a / b,
    Op.POW: lambda a, b: a**b,
    Op.NEG: lambda a: -a,
    Op.EXP: sympy.exp,
    Op.EXP2: lambda a: 2**a,
    Op.LOG: sympy.log,
    Op.LOG2: lambda a: sympy.log(a) / sympy.log(2),
    Op.SQRT: sympy.sqrt,
    Op.RSQRT: lambda a: 1 / sympy.sqrt(a),
    Op.TANH: sympy.tanh,
    Op.SIGMOID: lambda a: 1 / (1 + sympy.exp(-a)),
    Op.SIN: sympy.sin,
    Op.COS: sympy.cos,
    Op.ERF: sympy.erf,
    Op.TO_FLOAT: lambda a: a,
    Op.SIGN: sympy.sign,
}


def to_sympy(e: Expr) -> Any:
    match e:
        case Literal():
            return sympy.nsimplify(e.value)
        case Symbol():
            return sympy.Symbol(e.id, real=True)
        case Scalar():
            return sympy.Symbol(e.param, positive=True)
        case Load():
            return sympy.Symbol(f"{e.param}_{abs(hash(e.indices))}", positive=True)
        case Apply():
            return SYMPY[e.op](*map(to_sympy, e.args))


_smooth_atoms = st.sampled_from(["qk * scale", "0.5 * qk", "slope[h]", "cap", "bias", "gain[b, hkv]", "0.25"])


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(st.sampled_from(["({}) + ({})", "({}) - ({})", "({}) * ({})"]), inner, inner)
    forms = [
        "tanh({})",
        "sigmoid({})",
        "sin({})",
        "cos({})",
        "erf({})",
        "exp({})",
        "exp2({})",
        "-({})",
        "softcap({}, cap)",
        "({}) ** 2",
        "({}) ** 3",
        "(2.0 + tanh({})) ** -2",
        "log(2.0 + sin({}))",
        "log2(2.0 + sin({}))",
        "sqrt(2.0 + sin({}))",
        "rsqrt(2.0 + sin({}))",
        "bias / (2.0 + sin({}))",
    ]
    return st.one_of(
        pairs.map(lambda p: p[0].format(*p[1:])),
        st.tuples(st.sampled_from(forms), inner).map(lambda p: p[0].format(p[1])),
    )


@settings(max_examples=40)
@given(st.recursive(_smooth_atoms, _grow, max_leaves=4), st.integers(0, 999))
def test_smooth_derivatives_are_those_of_sympy(score: str, seed: int) -> None:
    e = analysed(grammar.spec(f"score = {score}")).score
    whole = to_sympy(e)
    r = np.random.default_rng(seed)
    point = {x: float(r.uniform(0.2, 1.2)) for x in sorted(whole.free_symbols, key=str)}
    for leaf in leaves(e):
        found = derivative(e, leaf)
        ours = 0.0 if found is None else complex(to_sympy(found).evalf(subs=point)).real
        want = complex(sympy.diff(whole, to_sympy(leaf)).evalf(subs=point)).real
        assert math.isclose(ours, want, rel_tol=1e-8, abs_tol=1e-8), f"d ({score}) / d {leaf}: {ours}, sympy {want}"
