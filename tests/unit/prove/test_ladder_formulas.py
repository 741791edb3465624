"""Expressions as mathematics: the terminal's line, read back as arithmetic, has the expression's own value.

Brackets, signs, cancelled factors, named constants and tidied bounds are all in what is read back.
"""

from __future__ import annotations

import math
import operator
import re

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from attngen.explain.bounds import in_order, stretch
from attngen.explain.formulas import Writer, definitions
from attngen.explain.notation import interval, prose
from attngen.ir import build
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.plan.mask.segments import Segment

FLOATS = {"a": 1.75, "bee": -0.625, "c_d": 2.5}
INTS = {"q": 9, "k": 4, "Sq": 12, "Sk": 15}
FAR = build.index("q")
for _ in range(3):  # 9**27 leaves 64 bits
    FAR = build.apply(Op.POW, FAR, build.integer(3))
LOG2E = 1.0 / math.log(2.0)
NAMES = {"q": "i", "k": "j", "Sq": "S_q", "Sk": "S_k"}

float_leaves: st.SearchStrategy[Expr] = st.one_of(
    st.sampled_from([Scalar(name, Type.FLOAT) for name in FLOATS]),
    st.sampled_from(
        [0.0, 1.0, 2.0, 0.5, -3.0, 1.0 / math.log(2.0), 50.0 / math.log(2.0), math.log(2.0), math.pi, 1e-9]
    ).map(build.real),
)
int_leaves: st.SearchStrategy[Expr] = st.one_of(
    st.sampled_from([build.index(name) for name in INTS]), st.integers(-5, 40).map(build.integer)
)


def compound(own: st.SearchStrategy[Expr], ints: bool) -> st.SearchStrategy[Expr]:
    binary = [Op.ADD, Op.SUB, Op.MUL, Op.MIN, Op.MAX, *([Op.FLOORDIV, Op.MOD] if ints else [Op.DIV])]
    unary = [Op.NEG, Op.ABS, *([] if ints else [Op.TANH, Op.SIGMOID, Op.EXP, Op.EXP2, Op.SQRT, Op.LOG, Op.SIN])]
    compare = st.tuples(st.sampled_from([Op.LT, Op.LE]), own, own).map(lambda x: build.apply(*x))
    return st.one_of(
        st.tuples(st.sampled_from(binary), own, own).map(lambda x: build.apply(*x)),
        st.tuples(st.sampled_from(unary), own).map(lambda x: build.apply(*x)),
        st.tuples(own, st.integers(2, 3).map(build.integer)).map(lambda x: build.apply(Op.POW, *x)),
        st.tuples(compare, own, own).map(lambda x: build.apply(Op.SELECT, *x)),
    )


int_expressions = st.recursive(int_leaves, lambda own: compound(own, True), max_leaves=12)
float_expressions = st.recursive(
    st.one_of(float_leaves, int_expressions.map(build.to_float)), lambda own: compound(own, False), max_leaves=10
)

DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def read(text: str) -> float:
    """The value of a line of the terminal's mathematics."""
    while raised := re.search(r"(tanh|sin|σ|ln)([⁰¹²³⁴-⁹]+)\(", text):  # tanh²(x) is tanh(x)²
        end, depth = raised.end(), 1
        while depth:
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        text = f"{text[: raised.start(2)]}{text[raised.end(2) : end]}{raised[2]}{text[end:]}"
    for symbol, value in (
        ("log₂ e", "LOG2E"), ("ln 2", "LN2"), ("⌊", "floor("), ("⌋", ")"), ("−", "-"), ("·", "*"),
        (" mod ", " % "), ("≤", "<="), ("≥", ">="), (", else", " else"), ("√(", "sqrt("), ("σ(", "sigmoid("),
        ("π", "pi"), ("^(", "**("), ("∞", "inf"),
    ):  # fmt: skip
        text = text.replace(symbol, value)
    text = re.sub("[⁻⁰¹²³⁴-⁹]+", lambda x: f"**({x[0].translate(DIGITS)})", text)
    text = re.sub(r"√(\w+)", r"sqrt(\1)", text)
    # A bar opens where a value may stand, and closes behind one.
    python = ""
    for c in text:
        opens = not python.strip() or python.rstrip()[-1] in "(+-*/%<=,"
        python += ("abs(" if opens or python.rstrip().endswith((" if", " else")) else ")") if c == "|" else c
    names = {
        "LOG2E": LOG2E, "LN2": math.log(2.0), "pi": math.pi, "inf": math.inf, "floor": math.floor,
        "sqrt": math.sqrt, "exp": math.exp, "tanh": math.tanh, "sin": math.sin, "ln": math.log, "min": min, "max": max,
        "abs": abs, "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)), "clip": lambda x, lo, hi: min(max(x, lo), hi),
        "‘a’": FLOATS["a"],
    }  # fmt: skip
    python = python.replace("‘a’", "(1.75)")
    return eval(python, {"__builtins__": {}}, {**names, **FLOATS, **{NAMES[n]: v for n, v in INTS.items()}})


def value(e: Expr) -> float:
    return float(evaluate(e, INTS, FLOATS))


def divides_by_zero(e: Expr) -> bool:
    """Whether an int is divided by 0 somewhere, which has no value in mathematics."""
    if isinstance(e, Apply):
        if e.op in (Op.FLOORDIV, Op.MOD, Op.DIV) and value(e.args[1]) == 0:
            return True
        return any(divides_by_zero(a) for a in e.args)
    return False


@settings(max_examples=250)
@given(float_expressions)
@example(build.maximum(Scalar("a", Type.FLOAT), build.to_float(FAR)))
@example(build.neg(build.sub(Scalar("a", Type.FLOAT), build.neg(Scalar("bee", Type.FLOAT)))))
@example(build.div(build.div(Scalar("a", Type.FLOAT), Scalar("bee", Type.FLOAT)), Scalar("bee", Type.FLOAT)))
def test_a_float_expression_reads_back(e: Expr) -> None:
    assume(not divides_by_zero(e) and not wraps_around(e))
    want = value(e)
    assume(math.isfinite(want) and abs(want) < 1e12)
    try:
        found = read(Writer()(e).text)
    except (OverflowError, ValueError, ZeroDivisionError):
        assume(False)  # an intermediate value leaves the reals or the floats
        raise
    assert found == pytest.approx(want, rel=1e-6, abs=1e-6 * max(1.0, magnitude(e))), Writer()(e).text


def magnitude(e: Expr) -> float:
    """The largest value inside: what rounding is relative to where terms cancel."""
    own = abs(value(e)) if e.type is not Type.BOOL else 0.0
    inner = max((magnitude(a) for a in e.args), default=0.0) if isinstance(e, Apply) else 0.0
    return max(own if math.isfinite(own) else 0.0, inner)


def wraps_around(e: Expr) -> bool:
    """Whether an int inside leaves 64 bits, in which `value` computes and mathematics does not."""
    if not isinstance(e, Apply):
        return False
    if any(wraps_around(a) for a in e.args):
        return True
    exact = {Op.POW: pow, Op.MUL: operator.mul, Op.ADD: operator.add, Op.SUB: operator.sub}.get(e.op)
    return e.type is Type.INT and exact is not None and abs(exact(*(int(value(x)) for x in e.args))) >= 2**63


@settings(max_examples=250)
@given(int_expressions)
@example(build.apply(Op.POW, build.integer(2**24), build.integer(3)))
def test_an_int_expression_reads_back_tidied_or_not(e: Expr) -> None:
    assume(not divides_by_zero(e) and not wraps_around(e))
    tidied = in_order(e)
    assume(abs(value(e)) < 1e12)
    assert value(tidied) == value(e)
    assert read(Writer()(e).text) == value(e)
    assert read(Writer()(tidied).text) == value(e)


def q(name: str) -> Symbol:
    return build.index(name)


def test_stretches() -> None:
    write = Writer()
    half = build.select(
        build.apply(Op.LT, build.sub(q("q0"), build.integer(16)), build.integer(0)), q("Sk"), build.integer(0)
    )
    segment = Segment(build.integer(0), build.minimum(q("Sk"), half))
    assert stretch(write, segment, q("Sk")).text == "[0, S_k) if i₀ < 16"
    low = build.maximum(build.integer(0), q("k0"))
    high = build.add(build.add(q("k1"), build.integer(1023)), build.integer(1))
    assert stretch(write, Segment(low, build.minimum(q("Sq"), high)), q("Sq")).text == "[j₀, min(S_q, j₁ + 1024))"
    assert interval(write(q("q0")), write(q("q1"))).tex == r"\left[ i_0, \ i_1 \right)"


def test_numbers_as_the_user_wrote_them() -> None:
    def text(value: float) -> str:
        return Writer()(build.real(value)).text

    assert text(1.4426950408889634) == "log₂ e"
    assert text(72.13475204444816) == "50 · log₂ e"
    assert text(-0.6931471805599453) == "−ln 2"
    assert [text(x) for x in (50.0, 0.125, 1e-9, 2.5e-7, -3.0, math.inf)] == [
        "50",
        "0.125",
        "10⁻⁹",
        "2.5 · 10⁻⁷",
        "−3",
        "∞",
    ]


def test_repeated_and_cancelled_factors() -> None:
    cap, x = Scalar("cap", Type.FLOAT), build.apply(Op.TANH, Symbol("qk", Type.FLOAT))
    assert Writer()(build.mul(build.div(Symbol("scale", Type.FLOAT), cap), cap)).text == "scale"
    assert Writer()(build.sub(build.real(1.0), build.mul(x, x))).tex == r"1 - \tanh^{2}\left( q_i \cdot k_j \right)"
    assert Writer()(build.div(build.div(x, cap), cap)).text == "tanh(q_i·k_j) / cap²"


def test_comparisons_chain_only_where_the_middle_is_the_same() -> None:
    distance, window = build.sub(q("q"), q("k")), build.integer(8)
    inside = build.conjunction(build.apply(Op.LE, build.integer(0), distance), build.apply(Op.LT, distance, window))
    assert Writer()(inside).text == "0 ≤ i − j < 8"
    apart = build.conjunction(build.apply(Op.LE, build.integer(0), distance), build.apply(Op.LT, q("q"), window))
    assert Writer()(apart).text == "i − j ≥ 0 and i < 8"


def test_elements_of_tensors() -> None:
    bias = Load("my_bias", (q("h"), q("q"), q("k")), Type.FLOAT)
    assert Writer()(bias).text == "my_bias[h, i, j]"
    assert Writer()(bias).tex == r"\mathrm{my\_bias_{\mathit{h, i, j}}}"
    moved = Load("table", (build.add(q("q"), build.integer(1)),), Type.FLOAT)
    assert Writer()(moved).tex == r"\mathrm{table}\left[ i + 1 \right]"


def test_a_name_that_stands_for_two_expressions_is_no_definition() -> None:
    def named(e: Expr, name: str) -> Expr:
        assert isinstance(e, Apply)
        return Apply(e.op, e.args, e.type, name=name)

    once = named(build.add(q("q"), build.integer(1)), "once")
    twice = (named(build.add(q(x), build.integer(2)), "twice") for x in ("q", "k"))
    whole = build.mul(once, build.mul(*twice))
    assert definitions(whole) == {"once": once}
    assert definitions(once) == {}


def test_prose_fills_its_holes() -> None:
    i = Writer()(q("q"))
    assert prose("from {a} to {a}.", a=i) == ("from ", i, " to ", i, ".")


def test_bools() -> None:
    flag = Literal(True, Type.BOOL)
    assert Writer()(flag).text == "true"
    same = build.apply(Op.EQ, q("q"), q("k"))
    assert Writer()(build.apply(Op.TO_FLOAT, same)).text == "[i = j]"
    either = build.disjunction(
        same, build.conjunction(build.apply(Op.LT, q("q"), q("k")), build.apply(Op.NE, q("k"), q("b")))
    )
    assert Writer()(either).text == "i = j or i < j and j ≠ b"
    assert (
        Writer()(build.conjunction(either, build.apply(Op.LT, q("b"), q("B")))).text
        == "(i = j or i < j and j ≠ b) and b < B"
    )
