"""Intervals against evaluation: whatever an expression evaluates to lies in its interval, under any conditions."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from attngen import api
from attngen.errors import Source
from attngen.ir import build, printing
from attngen.ir.attention import Attention
from attngen.ir.evaluate import Tape, evaluate
from attngen.ir.nodes import Apply, Expr, Op, Scalar, Symbol, Type
from attngen.ir.walk import loads, nodes
from attngen.prove.intervals import interval_type as i, operations as op
from attngen.prove.intervals.ingredients import disjuncts
from attngen.prove.intervals.input_boxes import Box
from attngen.prove.intervals.interval_type import Interval
from attngen.prove.intervals.ranges import Ranges, ranges

BOX = Box(qk=2.0**13, scale=1.0, param=2.0**10, tiny=2.0**-10, length=2**20)
SPEC = """attention intervals
param c: f32 where c > 0
param slope: f32
param n: int where 0 <= n <= 100
param table: f32[Hq, n_offsets] where table >= 1
param t: f32[B, Sk] where t > 0
param flag: bool
"""


def spec(body: str = "") -> Attention:
    return api.analyse(Source(SPEC + body))


def score(text: str, mask: str = "true") -> tuple[Expr, Ranges]:
    """The score `text` and what is known where `mask` holds."""
    a = spec(f"score = {text}\nmask = {mask}\n")
    return a.score, ranges(a, BOX, loads(a.score)).given(a.mask)


def of(text: str, mask: str = "true") -> Interval:
    e, at = score(text, mask)
    return at.of(e)


# ---------------------------------------------------------------- what must be seen


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("1.0 / (1.0 + abs(q - k))", "true"),
        ("1.0 / (q - k)", "k < q"),
        ("1.0 / (q - k)", "q != k"),
        ("1.0 / (q + Sk - Sq - k + 1)", "causal"),
        ("log(q + Sk - Sq + 1.0)", "causal"),
        ("log(float(max(q, 1)))", "true"),
        ("log(q - k)", "0 < q - k < 64"),
        ("log(qk) if qk > 0 else 0.0", "true"),
        ("1.0 / qk if qk != 0 else 0.0", "true"),
        ("qk / c", "true"),
        ("log(c)", "true"),
        ("qk / table[h, 0]", "n > 0 and table[h, 0] > 1"),
        ("qk / t[b, k]", "true"),
        ("rsqrt(t[b, k] * c)", "true"),
        ("exp(-c * abs(q - k))", "true"),
        ("exp(min(qk, 10.0))", "true"),
        ("exp(clamp(slope, -5, 5))", "true"),
        ("sqrt(1.0 - tanh(qk) ** 2)", "true"),
        ("sqrt(qk * qk)", "true"),
        ("log(Sk) * qk", "true"),
        ("exp2(-8.0 * (h + 1) / Hq)", "true"),
        ("1.0 / exp2(-8.0 * (h + 1) / Hq)", "true"),
        ("2.0 ** (q - k)", "0 <= q - k < 100"),
        ("log(1.0 + exp(-abs(qk)))", "true"),
        ("qk / max(abs(qk), 1.0)", "true"),
        ("1.0 / (n + 1)", "true"),
        ("float(q // (n + 1))", "true"),
        ("log(1.0 - float(k) / Sk)", "true"),
    ],
)
def test_it_sees_that_it_is_finite(text: str, mask: str) -> None:
    assert of(text, mask).sound


@pytest.mark.parametrize(
    "text",
    [
        "1.0 / (q - k)",
        "log(qk)",
        "log(slope)",
        "1.0 / slope",
        "sqrt(qk)",
        "exp(qk)",
        "exp(slope)",
        "1.0 / n",
        "log(1.0 - tanh(qk))",
        "1.0 / table[h, q - k]",
        "inf if q == k else qk",
        "float(q % n)",
        "qk ** -1",
        "rsqrt(abs(qk))",
        "-inf * float(k > q)",
        "1.0 / (qk + 0.5) ** 4",
        "log((qk - 1.0) ** 2)",
        "qk ** -6",
    ],
)
def test_it_does_not_call_finite_what_is_not(text: str) -> None:
    assert not of(text).sound


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("c - c", 0.0, 0.0),
        ("tanh(qk)", -1.0, 1.0),
        ("sigmoid(qk)", 0.0, 1.0),
        ("5.0 * tanh(qk / 5.0)", -5.0, 5.0),
        ("clamp(qk, -2, 3)", -2.0, 3.0),
        ("max(qk, 1.5) - 1.5", 0.0, 2.0**13),
        ("float(k % 7)", 0.0, 6.0),
        ("float(abs(clamp(q - k, -9, 4)))", 0.0, 9.0),
        ("qk * qk", 0.0, 2.0**26),
        ("clamp(qk, -3, 2) ** 4", 0.0, 81.001),
        ("qk - max(qk, slope)", -(2.0**14), 0.0),
        ("1.0 if flag else 2.0", 1.0, 2.0),
    ],
)
def test_bounds(text: str, low: float, high: float) -> None:
    found = of(text)
    assert low <= found.low and found.high <= high and found.finite


@pytest.mark.parametrize("n", [2, 4, 6])
def test_an_even_power_is_least_at_zero(n: int) -> None:
    assert of(f"(qk + 0.5) ** {n}").low == 0.0
    assert of(f"clamp(qk, -3, 2) ** {n}").high >= 3**n
    assert 0.99 * 2**n < of(f"clamp(qk, -3, -2) ** {n}").low <= 2**n


def test_infinite_as_written_is_told_from_infinite_by_computation() -> None:
    written, computed = of("-inf if k > q else qk"), of("log(t[b, k]) + log(float(q - k))", "k <= q")
    assert written.masked and written.sound
    assert computed.minus and not computed.sound


def test_a_branch_that_is_never_taken_does_not_count() -> None:
    assert of("log(float(q - k)) if q > k else 0.0", "true").sound
    assert of("1.0 / (k - q) if k > q else 0.0", "k <= q").sound


def test_disjuncts_cover_their_condition() -> None:
    a = spec("mask = (k < 3 or q == k) and (q < 5 or k > 2)\n")
    cases = disjuncts(a.mask)
    q, k = np.arange(9)[:, None], np.arange(9)[None, :]
    env = {"q": q, "k": k}
    whole = evaluate(a.mask, env, {})
    parts = [np.broadcast_to(evaluate(build.conjunction(*case), env, {}), (9, 9)) for case in cases]
    assert len(cases) == 4
    assert (np.logical_or.reduce(parts) == whole).all()


# ---------------------------------------------------------------- against evaluation

_INTS = st.sampled_from(["q", "k", "n", "Sk - Sq", "h", "Sk", "3", "-2", "q - k", "q + Sk - Sq - k"])
_FLOATS = st.sampled_from(
    ["qk", "scale", "slope", "c", "0.5", "-3.0", "1e-3", "float(q - k)", "t[b, k]", "table[h, q - k]"]
)


def _grow_int(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(st.sampled_from(["({} + {})", "({} - {})", "min({}, {})", "max({}, {})", "({} * {})"]), pair).map(
            lambda p: p[0].format(*p[1])
        ),
        st.tuples(st.sampled_from(["abs({})", "-({})", "({}) // 3", "({}) % 5", "({}) % -4", "sign({})"]), inner).map(
            lambda p: p[0].format(p[1])
        ),
    )


ints = st.recursive(_INTS, _grow_int, max_leaves=3)


def _grow_float(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    two = ["({} + {})", "({} - {})", "({}) * ({})", "({}) / ({})", "min({}, {})", "max({}, {})"]
    one = [
        "exp({})", "exp2({})", "log({})", "log2({})", "sqrt({})", "rsqrt({})", "tanh({})", "sigmoid({})", "sin({})",
        "erf({})", "abs({})", "-({})", "({}) ** 2", "({}) ** 3", "({}) ** -1", "sign({})", "({}) * 0.1",
        "exp(-abs({}))",
    ]  # fmt: skip
    return st.one_of(
        st.tuples(st.sampled_from(two), pair).map(lambda p: p[0].format(*p[1])),
        st.tuples(st.sampled_from(one), inner).map(lambda p: p[0].format(p[1])),
        st.tuples(inner, conditions, inner).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]} if {p[0]} > {p[1]} else {p[1]} - {p[0]})"),
    )


_SIGNS = st.sampled_from(["<", "<=", "==", "!=", ">", ">="])
_comparison = st.one_of(
    st.tuples(ints, _SIGNS, ints).map(" ".join), st.tuples(_FLOATS, _SIGNS, _FLOATS).map(" ".join), st.just("flag")
)
conditions = st.one_of(
    _comparison,
    st.tuples(_comparison, _comparison).map(lambda p: f"({p[0]} and {p[1]})"),
    st.tuples(_comparison, _comparison).map(lambda p: f"(not ({p[0]} or {p[1]}))"),
)
floats = st.recursive(st.one_of(_FLOATS, ints.map("float({})".format)), _grow_float, max_leaves=4)

_POINTS = 60


def _points(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random inputs inside the box. Sizes are the same at all points, so that tensors can be read."""
    rng = np.random.default_rng(seed)
    rows, columns = (int(x) for x in rng.integers(1, 9, 2))
    offsets = int(rng.integers(1, 5))

    def real(bound: float) -> Any:
        simple = rng.choice([0.0, 1.0, -1.0, 0.5, bound, -bound], _POINTS)
        drawn = np.exp2(rng.uniform(-9, math.log2(bound) if bound > 1 else 0, _POINTS)) * rng.choice(
            [-1.0, 1.0], _POINTS
        )
        return np.where(rng.random(_POINTS) < 0.3, simple, drawn).astype(np.float32)

    env = {
        "q": rng.integers(0, rows, _POINTS), "k": rng.integers(0, columns, _POINTS), "h": rng.integers(0, 2, _POINTS),
        "hkv": np.zeros(_POINTS, np.int64), "b": np.zeros(_POINTS, np.int64), "qk": real(BOX.qk), "scale": real(1.0),
        "Sq": rows, "Sk": columns, "Hq": 2, "Hkv": 1, "B": 1, "D": 8, "Dv": 8, "n_offsets": offsets,
    }  # fmt: skip
    params = {
        "c": np.abs(real(BOX.param)) + BOX.tiny,
        "slope": real(BOX.param),
        "n": rng.integers(0, 101, _POINTS),
        "table": rng.uniform(1, 4, (2, offsets)).astype(np.float32),
        "t": rng.uniform(2.0**-9, 4, (1, columns)).astype(np.float32),
        "flag": rng.random(_POINTS) < 0.5,
    }
    params["c"] = np.minimum(params["c"], BOX.param).astype(np.float32)
    return env, params


def _contains(found: Interval, value: float) -> bool:
    if math.isnan(value):
        return found.nan
    if math.isinf(value):
        return found.plus if value > 0 else found.minus or found.masked
    return found.low <= value <= found.high and (abs(value) >= found.away or found.zero)


@settings(max_examples=500)
@given(floats, st.lists(conditions, max_size=2), st.integers(0, 2**32 - 1))
def test_what_is_evaluated_lies_in_the_interval(text: str, facts: list[str], seed: int) -> None:
    """Every node of every drawn score is a case: some 4,000 expressions, at 60 points each."""
    mask = " and ".join(f"({f})" for f in facts if "qk" not in f) or "true"
    a = spec(f"score = {text}\nmask = {mask}\n")
    at = ranges(a, BOX, loads(a.score)).given(a.mask)
    env, params = _points(seed)
    holds = np.broadcast_to(evaluate(a.mask, env, params, np.float32), _POINTS)
    where = np.flatnonzero(holds & ~_near_zero(a, env, params))
    assert not (at.dead and len(where))
    tape = Tape((a.score,), env, params, np.float32)
    for node in nodes(a.score):
        if node.type is Type.BOOL:
            continue
        found = at.of(node)
        values = np.broadcast_to(tape.value(node), _POINTS)
        for n in where:
            value = float(values[n])
            assert _contains(found, value) or _undefined(found), (text, mask, printing.expression(node), value, found)


def _undefined(found: Interval) -> bool:
    """An int without a value has some value or other in NumPy."""
    return found.nan


def _near_zero(a: Attention, env: dict[str, Any], params: dict[str, Any]) -> Any:
    """Where a condition tells floats apart that differ by less than `tiny`, which the box takes not to happen."""
    close = np.zeros(_POINTS, np.bool_)
    for root in (a.score, a.mask):
        for node in nodes(root):
            if isinstance(node, Apply) and node.op in (Op.LT, Op.LE, Op.EQ, Op.NE) and node.args[0].type is Type.FLOAT:
                x, y = (evaluate(arg, env, params, np.float32) for arg in node.args)
                with np.errstate(invalid="ignore"):
                    gap = np.abs(x.astype(np.float64) - y.astype(np.float64))
                close |= np.broadcast_to((gap > 0) & ~(gap >= 2 * BOX.tiny), _POINTS)
                for side in (x, y):
                    close |= np.broadcast_to((side != 0) & (np.abs(side) < BOX.tiny), _POINTS)
    return close


@settings(max_examples=300)
@given(ints, st.lists(_comparison, max_size=3), st.integers(0, 2**32 - 1))
def test_ints_and_the_truth_of_conditions(text: str, facts: list[str], seed: int) -> None:
    a = spec(f"score = float({text})\nmask = {' and '.join(f'({f})' for f in facts if 'qk' not in f) or 'true'}\n")
    at = ranges(a, BOX).given(a.mask)
    env, params = _points(seed)
    holds = np.broadcast_to(evaluate(a.mask, env, params, np.float32), _POINTS) & ~_near_zero(a, env, params)
    question = build.apply(Op.LT, build.index("k"), build.index("q"))
    truth = at.truth(question)
    answers = np.broadcast_to(evaluate(question, env, params), _POINTS)[holds]
    assert truth.can_hold or not answers.any()
    assert truth.can_fail or answers.all()


# ---------------------------------------------------------------- the arithmetic itself


@pytest.mark.parametrize(
    ("found", "low", "high"),
    [
        (op.add(i.between(1, 2), i.between(-1, 5)), 0, 7),
        (op.multiply(i.between(-2, 3), i.between(-5, 7)), -15, 21),
        (op.floor_divide(i.between(-7, 7), i.between(2, 3)), -4, 3),
        (op.floor_mod(i.between(-7, 7), i.between(2, 5)), 0, 4),
        (op.absolute(i.between(-7, 3)), 0, 7),
        (op.power(i.between(-2, 3), i.point(2), ints=True), 0, 9),
        (op.power(i.between(-1, 1), i.point(65), ints=True), -1, 1),
        (op.power(i.point(-1), i.point(10**6), ints=True), 1, 1),
        (op.power(i.between(0, 1), i.between(70, 90), ints=True), 0, 1),
        (op.square(i.between(-3.0, 2.0)), 0, 9),
    ],
)
def test_arithmetic(found: Interval, low: float, high: float) -> None:
    assert (found.low, found.high) == pytest.approx((low, high))


def test_infinities_do_not_get_lost() -> None:
    below = Interval(math.inf, -math.inf, minus=True)
    above = Interval(math.inf, -math.inf, plus=True)
    assert op.add(below, above).nan
    assert op.multiply(i.between(0.0, 1.0), above).nan
    assert not op.multiply(i.between(0.5, 1.0), above).nan
    assert op.exponential(below, 2.0) == i.point(0.0)
    assert op.divide(i.between(1.0, 2.0), above) == i.point(0.0)
    assert op.divide(i.between(0.0, 2.0), i.between(0.0, 2.0)).nan
    assert op.exponential(i.point(200.0), math.e).plus
    assert not op.exponential(i.point(200.0), math.e).has_finite


def test_own_symbols_take_what_they_are_given() -> None:
    x = Symbol("mine", Type.FLOAT)
    at = Ranges(spec(), BOX).with_interval(x, i.between(1.0, 2.0))
    assert at.of(build.apply(Op.LOG, x)).finite
    assert not Ranges(spec(), BOX).of(build.apply(Op.LOG, x)).finite
    assert at.of(Scalar("c", Type.FLOAT)).low == BOX.tiny


@pytest.mark.parametrize(
    "mask",
    [
        "q - k < (16 if t[b, k] > 1.0 else 64)",
        "q - k < (16 if ids[k] > 0 else 64)",
        "0 <= q - k < (16 if ids[k] > q else 64)",
        "k <= q and q - k < (16 if q < 10 else 64)",
        "(q if w[h] >= q else k) < q - k",
        "(n if k <= ids[k] else q - k) <= q",
        "q - k < (4 if k < (8 if ids[k] > q else 2) else (16 if q < 10 else 64))",
        "min(q, 16 if k < 3 else 9) - k < max(4, q if ids[k] > k else 64)",
    ],
)
def test_facts_about_selects_are_bounded_in_few_evaluations(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fact about a select must not be used again, from its first depth on, in each branch of that select."""
    count = 0
    evaluated = Ranges._evaluate

    def counted(self: Ranges, e: Expr) -> Interval:
        nonlocal count
        count += 1
        return evaluated(self, e)

    monkeypatch.setattr(Ranges, "_evaluate", counted)
    a = spec(f"param ids: int[Sk]\nparam w: int[Hq]\nmask = {mask}\n")
    at = ranges(a, BOX, loads(a.mask)).given(a.mask)
    assert not at.dead
    assert at.of(a.score).finite
    assert count < 2_000, count
