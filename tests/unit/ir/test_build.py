"""`build.apply` folds and simplifies without changing a value: against an evaluator that knows neither."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings, strategies as st

from attngen.ir import build, printing
from attngen.ir.nodes import COMPARISONS, FLOAT_FUNCTIONS, Apply, Expr, Literal, Op, Symbol, Type

Value = bool | int | float

INT, FLOAT, BOOL = Type.INT, Type.FLOAT, Type.BOOL


# ---------------------------------------------------------------- a naive evaluator


def total(f: Callable[[], float]) -> float:
    """Float arithmetic as hardware does it: infinities and NaN instead of exceptions."""
    try:
        return f()
    except (ValueError, ZeroDivisionError):
        return math.nan
    except OverflowError:
        return math.inf


def divide(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    return a / b


def whole(f: Callable[[float], int], a: float) -> int:
    return f(a) if math.isfinite(a) else 0


def logarithm(f: Callable[[float], float], a: float) -> float:
    return -math.inf if a == 0 else total(lambda: f(a))


FLOATS: Mapping[Op, Callable[[float], float]] = {
    Op.EXP: lambda a: total(lambda: math.exp(a)),
    Op.EXP2: lambda a: total(lambda: 2.0**a),
    Op.LOG: lambda a: logarithm(math.log, a),
    Op.LOG2: lambda a: logarithm(math.log2, a),
    Op.SQRT: lambda a: total(lambda: math.sqrt(a)),
    Op.RSQRT: lambda a: math.inf if a == 0 else total(lambda: 1.0 / math.sqrt(a)),
    Op.TANH: lambda a: math.tanh(a),
    Op.SIGMOID: lambda a: 1.0 / (1.0 + math.exp(-a)) if a >= 0 else math.exp(a) / (1.0 + math.exp(a)),
    Op.SIN: lambda a: total(lambda: math.sin(a)),
    Op.COS: lambda a: total(lambda: math.cos(a)),
    Op.ERF: lambda a: math.erf(a),
}


def smaller(a: float, b: float) -> float:
    return math.nan if a != a or b != b else min(a, b)


def larger(a: float, b: float) -> float:
    return math.nan if a != a or b != b else max(a, b)


def operate(op: Op, v: list, type: Type) -> Value:
    """One operation, spelled out. The sign of a zero is dropped throughout: folding may change it."""
    if op in FLOATS:
        return FLOATS[op](v[0])
    a, b = v[0], v[-1]
    match op:
        case Op.ADD:
            return a + b
        case Op.SUB:
            return a - b
        case Op.MUL:
            return a * b
        case Op.DIV:
            return divide(a, b)
        case Op.FLOORDIV:
            return a // b if b else 0
        case Op.MOD:
            return a % b if b else 0
        case Op.POW if type is INT:
            return a ** min(b, 6) if b >= 0 else 0
        case Op.POW:
            if a == 0 and b < 0:
                return math.inf
            return total(lambda: a**b)
        case Op.NEG:
            return -a
        case Op.ABS:
            return abs(a)
        case Op.SIGN:
            sign = (a > 0) - (a < 0)
            return sign if type is INT else float(sign) if a == a else a
        case Op.MIN:
            return smaller(a, b) if type is FLOAT else min(a, b)
        case Op.MAX:
            return larger(a, b) if type is FLOAT else max(a, b)
        case Op.LT:
            return a < b
        case Op.LE:
            return a <= b
        case Op.EQ:
            return a == b
        case Op.NE:
            return a != b
        case Op.NOT:
            return not a
        case Op.AND:
            return all(v)
        case Op.OR:
            return any(v)
        case Op.SELECT:
            return v[1] if v[0] else v[2]
        case Op.TO_FLOAT:
            return total(lambda: float(a))
        case Op.TO_INT:
            return whole(math.trunc, a)
        case Op.FLOOR:
            return whole(math.floor, a)
        case Op.CEIL:
            return whole(math.ceil, a)
        case _:
            raise AssertionError(op)


def evaluate(e: Expr, env: Mapping[str, Value]) -> Value:
    match e:
        case Literal():
            value: Value = e.value
        case Symbol():
            value = env[e.id]
        case Apply():
            value = operate(e.op, [evaluate(a, env) for a in e.args], e.type)
        case _:
            raise AssertionError(e)
    return value + 0.0 if isinstance(value, float) else value


def same(a: Value, b: Value) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b))


# ---------------------------------------------------------------- random trees

NAMES = {INT: ("q", "k", "Sk"), FLOAT: ("qk", "scale"), BOOL: ("p", "r")}

numbers = st.one_of(
    st.sampled_from([0, 1, -1, 2, 3, 7]), st.integers(-40, 40), st.sampled_from([2**31, 2**62, -(2**63), 2**63 - 1])
)
reals = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0, math.inf, -math.inf, 1e300]),
    st.floats(-8, 8, allow_nan=False).map(lambda x: round(x, 3) + 0.0),
)
VALUES = {INT: numbers, FLOAT: reals, BOOL: st.booleans()}


def leaf(type: Type) -> st.SearchStrategy[Expr]:
    return st.one_of(
        VALUES[type].map(build.literal),
        st.sampled_from(NAMES[type]).map(lambda name: Symbol(name, type)),
    )


SIGNATURES: dict[Type, list[tuple[Op, tuple[Type, ...]]]] = {
    BOOL: [
        *((op, (t, t)) for op in (Op.LT, Op.LE) for t in (INT, FLOAT)),
        *((op, (t, t)) for op in (Op.EQ, Op.NE) for t in (INT, FLOAT, BOOL)),
        *((op, (BOOL,) * n) for op in (Op.AND, Op.OR) for n in (2, 3)),
        (Op.NOT, (BOOL,)),
        (Op.SELECT, (BOOL, BOOL, BOOL)),
    ],
    INT: [
        *((op, (INT, INT)) for op in (Op.ADD, Op.SUB, Op.MUL, Op.MIN, Op.MAX, Op.FLOORDIV, Op.MOD, Op.POW)),
        *((op, (INT,)) for op in (Op.NEG, Op.ABS, Op.SIGN)),
        *((op, (FLOAT,)) for op in (Op.FLOOR, Op.CEIL, Op.TO_INT)),
        (Op.TO_INT, (BOOL,)),
        (Op.SELECT, (BOOL, INT, INT)),
    ],
    FLOAT: [
        *((op, (FLOAT, FLOAT)) for op in (Op.ADD, Op.SUB, Op.MUL, Op.MIN, Op.MAX, Op.DIV)),
        *((op, (FLOAT,)) for op in (Op.NEG, Op.ABS, Op.SIGN, *sorted(FLOAT_FUNCTIONS))),
        *((Op.TO_FLOAT, (t,)) for t in (INT, BOOL)),
        (Op.POW, (FLOAT, INT)),
        (Op.SELECT, (BOOL, FLOAT, FLOAT)),
    ],
}
OPERATIONS = [(op, args, type) for type, signatures in SIGNATURES.items() for op, args in signatures]


@functools.cache
def tree(type: Type, depth: int) -> st.SearchStrategy[Expr]:
    """Well-typed trees of raw nodes, unfolded."""
    if depth == 0:
        return leaf(type)
    return st.one_of(leaf(type), *(node(op, args, type, depth) for op, args in SIGNATURES[type]))


def node(op: Op, args: tuple[Type, ...], type: Type, depth: int) -> st.SearchStrategy[Expr]:
    """`op` on trees, or, to meet the identities, on one tree twice."""
    parts = [tree(t, depth - 1) for t in args]
    if op is Op.POW:
        parts[1] = st.integers(0, 6).map(build.integer)
    apart = st.tuples(*parts)
    if len(args) >= 2 and args[-1] is args[-2] and op is not Op.POW:
        apart = st.one_of(apart, st.tuples(*parts[:-1]).map(lambda given: (*given, given[-1])))
    return apart.map(lambda given: Apply(op, given, type))


def rebuilt(e: Expr) -> Expr:
    """The same tree through the smart constructors."""
    return build.apply(e.op, *(rebuilt(a) for a in e.args)) if isinstance(e, Apply) else e


# No literal is NaN, but a variable can be.
GIVEN = {**VALUES, FLOAT: st.one_of(reals, st.just(math.nan))}
environments = st.fixed_dictionaries({name: GIVEN[t] for t, names in NAMES.items() for name in names})


@pytest.mark.parametrize(("op", "args", "type"), OPERATIONS, ids=lambda x: getattr(x, "name", None))
def test_apply_agrees_with_a_naive_evaluator(op: Op, args: tuple[Type, ...], type: Type) -> None:
    @settings(max_examples=300 if op is Op.NOT else 60, database=None)
    @given(node(op, args, type, 2), st.lists(environments, min_size=4, max_size=4))
    def agrees(e: Expr, envs: list[dict[str, Value]]) -> None:
        built = rebuilt(e)
        assert built.type is e.type
        assert rebuilt(built) == built
        for env in envs:
            message = f"{printing.expression(e)} became {printing.expression(built)}"
            assert same(evaluate(e, env), evaluate(built, env)), message

    agrees()


# ---------------------------------------------------------------- by hand

q, k = build.index("q"), build.index("k")
x, y = Symbol("x", FLOAT), Symbol("y", FLOAT)
c, d = Symbol("c", BOOL), Symbol("d", BOOL)
zero, one = build.integer(0), build.integer(1)


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        (Op.ADD, (q, zero), q),
        (Op.ADD, (build.real(0), x), x),
        (Op.SUB, (q, q), zero),
        (Op.MUL, (zero, q), zero),
        (Op.MUL, (x, build.real(1)), x),
        (Op.DIV, (x, build.real(1)), x),
        (Op.POW, (x, one), x),
        (Op.NEG, (build.apply(Op.NEG, x),), x),
        (Op.MIN, (x, x), x),
        (Op.LT, (q, q), build.FALSE),
        (Op.LE, (q, q), build.TRUE),
        (Op.NOT, (build.apply(Op.LT, q, k),), build.apply(Op.LE, k, q)),
        (Op.NOT, (build.apply(Op.NOT, c),), c),
        (Op.AND, (c, build.TRUE, c), c),
        (Op.AND, (c, build.FALSE), build.FALSE),
        (Op.OR, (c, build.TRUE), build.TRUE),
        (Op.OR, (build.FALSE, build.FALSE), build.FALSE),
        (Op.SELECT, (build.TRUE, x, y), x),
        (Op.SELECT, (c, x, x), x),
        (Op.POW, (one, build.integer(100)), one),
        (Op.SIGN, (build.real(-0.0),), build.real(0)),
        (Op.SIGN, (build.integer(-3),), build.integer(-1)),
        (Op.FLOORDIV, (build.integer(-7), build.integer(2)), build.integer(-4)),
        (Op.MOD, (build.integer(-7), build.integer(2)), one),
        (Op.TO_INT, (build.real(-1.5),), build.integer(-1)),
        (Op.FLOOR, (build.real(-1.5),), build.integer(-2)),
        (Op.TO_INT, (build.TRUE,), one),
        (Op.TO_FLOAT, (build.TRUE,), build.real(1)),
    ],
)
def test_simplified(op: Op, args: tuple[Expr, ...], expected: Expr) -> None:
    assert build.apply(op, *args) == expected


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (Op.MUL, (x, build.real(0))),  # x may be infinite
        (Op.SUB, (x, x)),
        (Op.DIV, (x, x)),
        (Op.EQ, (x, x)),  # x may be NaN
        (Op.LE, (x, x)),
        (Op.NOT, (build.apply(Op.LT, x, y),)),  # not `y <= x`: NaN
        (Op.FLOORDIV, (one, zero)),
        (Op.MOD, (one, zero)),
        (Op.ADD, (build.integer(2**63 - 1), one)),
        (Op.POW, (build.integer(2), build.integer(63))),
        (Op.POW, (build.integer(2), build.integer(-1))),
        (Op.NEG, (build.integer(-(2**63)),)),
        (Op.SUB, (build.real(math.inf), build.real(math.inf))),  # NaN has no text
        (Op.MUL, (build.real(math.inf), build.real(0))),
        (Op.TO_INT, (build.real(math.inf),)),
        (Op.EXP, (build.real(1e4),)),
        (Op.LOG, (build.real(0),)),
        (Op.POW, (build.real(0), build.integer(-1))),
    ],
)
def test_left_as_it_is(op: Op, args: tuple[Expr, ...]) -> None:
    built = build.apply(op, *args)
    assert isinstance(built, Apply)
    assert (built.op, built.args) == (op, args)


def test_logic_is_flat_and_keeps_its_order() -> None:
    inner = build.apply(Op.AND, c, d)
    p = Symbol("p", BOOL)
    assert build.apply(Op.AND, p, inner, c) == Apply(Op.AND, (p, c, d), BOOL)
    assert build.apply(Op.NOT, inner) == build.apply(Op.OR, build.apply(Op.NOT, c), build.apply(Op.NOT, d))


def test_types() -> None:
    for op in COMPARISONS:
        assert build.apply(op, x, y).type is BOOL
    assert build.apply(Op.TO_INT, x).type is INT
    assert build.apply(Op.SELECT, c, q, k).type is INT
    assert build.apply(Op.POW, x, q).type is FLOAT


def test_spans_stay_outside_equality_and_literals_know_their_type() -> None:
    assert build.integer(1) != build.real(1) != build.TRUE
    assert build.real(0.0) != build.real(-0.0)
    assert len({build.integer(1), build.real(1), build.TRUE, build.integer(1)}) == 3


def test_many_conjuncts_are_joined_in_linear_time() -> None:
    parts = [build.apply(Op.NE, k, build.integer(i)) for i in range(6000)]
    joined = build.apply(Op.AND, *parts, *parts)
    assert isinstance(joined, Apply)
    assert len(joined.args) == 6000
