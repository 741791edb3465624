"""NumPy evaluation of IR expressions against Python's own arithmetic, and its reverse mode against differences."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from attngen.errors import UsageError
from attngen.ir import build
from attngen.ir.evaluate import Tape, as_array, evaluate
from attngen.ir.nodes import Apply, Expr, Load, Op, Scalar, Symbol, Type

X, Y = Symbol("x", Type.FLOAT), Symbol("y", Type.FLOAT)
N, M = Symbol("i", Type.INT), Symbol("j", Type.INT)
C, E = Symbol("c", Type.BOOL), Symbol("e", Type.BOOL)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def apply(op: Op, *args: Expr) -> Expr:
    """A raw node: `build.apply` would fold it."""
    return Apply(op, args, build.result_type(op, args))


UNARY = {
    Op.EXP: math.exp,
    Op.EXP2: lambda x: 2.0**x,
    Op.LOG: math.log,
    Op.LOG2: math.log2,
    Op.SQRT: math.sqrt,
    Op.RSQRT: lambda x: x**-0.5,
    Op.TANH: math.tanh,
    Op.SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
    Op.SIN: math.sin,
    Op.COS: math.cos,
    Op.ERF: math.erf,
    Op.NEG: lambda x: -x,
    Op.ABS: abs,
}
BINARY = {
    Op.ADD: lambda x, y: x + y,
    Op.SUB: lambda x, y: x - y,
    Op.MUL: lambda x, y: x * y,
    Op.DIV: lambda x, y: x / y,
    Op.MIN: min,
    Op.MAX: max,
}


@pytest.mark.parametrize("op", UNARY)
def test_float_functions_and_their_derivatives(op: Op):
    x = np.array([0.3, 1.7, 2.5])
    if op not in (Op.LOG, Op.LOG2, Op.SQRT, Op.RSQRT):
        x = np.concatenate([x, -x])
    e = apply(op, X)
    np.testing.assert_allclose(evaluate(e, {"x": x}, {}), [UNARY[op](v) for v in x], rtol=1e-14)
    ((found, _),) = [Tape((e,), {"x": x}, {}).pullback([(e, np.ones_like(x))])]
    step = 1e-6
    expected = [(UNARY[op](v + step) - UNARY[op](v - step)) / (2 * step) for v in x]
    np.testing.assert_allclose(found["x"], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("op", BINARY)
def test_binary_operations_and_their_derivatives(op: Op):
    x, y = np.array([0.3, -1.7, 2.5])[:, None], np.array([1.1, -0.4])[None]
    e = apply(op, X, Y)
    expected = [[BINARY[op](a, b) for b in y[0]] for a in x[:, 0]]
    np.testing.assert_allclose(evaluate(e, {"x": x, "y": y}, {}), expected, rtol=1e-15)
    cotangent = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.25]])
    found, _ = Tape((e,), {"x": x, "y": y}, {}).pullback([(e, cotangent)])
    step = 1e-6
    for name, array in (("x", x), ("y", y)):
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[place] += sign * step
                ends.append((evaluate(e, {"x": x, "y": y, name: moved}, {}) * cotangent).sum())
            assert found[name].shape == array.shape
            assert found[name][place] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-7)


def test_ints_floor_as_in_python_and_stay_ints():
    i, j = np.arange(-9, 10)[:, None], np.array([-4, -1, 1, 3])[None]
    for op, python in ((Op.FLOORDIV, lambda a, b: a // b), (Op.MOD, lambda a, b: a % b)):
        found = evaluate(apply(op, N, M), {"i": i, "j": j}, {})
        assert found.dtype == np.int64
        assert found.tolist() == [[python(a, b) for b in j[0].tolist()] for a in i[:, 0].tolist()]


def test_ints_without_a_value_give_zero_and_no_warning():
    i = np.array([5, -5, 0])
    assert evaluate(apply(Op.FLOORDIV, N, build.integer(0)), {"i": i}, {}).tolist() == [0, 0, 0]
    assert evaluate(apply(Op.MOD, N, build.integer(0)), {"i": i}, {}).tolist() == [0, 0, 0]
    assert evaluate(apply(Op.POW, build.integer(2), N), {"i": i}, {}).tolist() == [32, 0, 1]


def test_powers():
    x = np.array([-2.0, 0.0, 3.0])
    for n in (-2, 0, 1, 2, 3):
        e = apply(Op.POW, X, N)
        expected = [v**n if v or n >= 0 else math.inf for v in x]
        np.testing.assert_array_equal(evaluate(e, {"x": x, "i": n}, {}), expected)
    found, _ = Tape((e,), {"x": x, "i": 3}, {}).pullback([(e, np.ones(3))])
    np.testing.assert_array_equal(found["x"], 3 * x**2)
    found, _ = Tape((e,), {"x": x, "i": 0}, {}).pullback([(e, np.ones(3))])
    np.testing.assert_array_equal(found["x"], [0, 0, 0])


def test_conversions_round_as_the_language_says():
    x = np.array([-1.5, -0.2, 0.0, 0.7, 2.0])
    cases = {Op.TO_INT: math.trunc, Op.FLOOR: math.floor, Op.CEIL: math.ceil}
    for op, python in cases.items():
        found = evaluate(apply(op, X), {"x": x}, {})
        assert found.dtype == np.int64 and found.tolist() == [python(v) for v in x]
    assert evaluate(apply(Op.TO_INT, C), {"c": np.array([True, False])}, {}).tolist() == [1, 0]
    assert evaluate(apply(Op.TO_FLOAT, N), {"i": 3}, {}).dtype == np.float64
    assert evaluate(apply(Op.SIGN, N), {"i": np.array([-3, 0, 2])}, {}).tolist() == [-1, 0, 1]


def test_logic_takes_any_number_of_arguments_and_broadcasts():
    c, e = np.array([True, False])[:, None], np.array([True, False])[None]
    env = {"c": c, "e": e}
    assert evaluate(apply(Op.AND, C, E, build.TRUE), env, {}).tolist() == [[True, False], [False, False]]
    assert evaluate(apply(Op.OR, C, E, build.FALSE), env, {}).tolist() == [[True, True], [True, False]]
    assert evaluate(apply(Op.NOT, C), env, {}).tolist() == [[False], [True]]
    assert evaluate(apply(Op.NE, C, E), env, {}).tolist() == [[False, True], [True, False]]
    compared = {Op.LT: [True, False, False], Op.LE: [True, True, False], Op.EQ: [False, True, False]}
    for op, expected in compared.items():
        assert evaluate(apply(op, N, build.integer(2)), {"i": np.array([1, 2, 3])}, {}).tolist() == expected


def test_loads_read_zero_outside_the_tensor():
    table = np.arange(1.0, 7.0).reshape(2, 3)
    load = Load("t", (N, M), Type.FLOAT)
    i, j = np.arange(-1, 3)[:, None], np.arange(-1, 4)[None]
    found = evaluate(load, {"i": i, "j": j}, {"t": table})
    expected = [[table[a, b] if 0 <= a < 2 and 0 <= b < 3 else 0 for b in range(-1, 4)] for a in range(-1, 3)]
    np.testing.assert_array_equal(found, expected)
    flags = evaluate(Load("f", (N,), Type.BOOL), {"i": np.arange(-1, 3)}, {"f": np.array([True, True])})
    assert flags.tolist() == [False, True, True, False]
    empty = evaluate(Load("t", (N,), Type.INT), {"i": np.arange(3)}, {"t": np.zeros(0, np.int32)})
    assert empty.tolist() == [0, 0, 0] and empty.dtype == np.int64


def test_a_load_scatters_its_gradient_adding_where_elements_repeat():
    load = Load("t", (N,), Type.FLOAT)
    tape = Tape((load,), {"i": np.array([[0, 2, 2], [-1, 2, 3]])}, {"t": np.zeros(3)})
    _, params = tape.pullback([(load, np.array([[1.0, 2, 4], [8, 16, 32]]))])
    assert params["t"].tolist() == [1, 0, 22]


def test_a_param_read_in_several_places_collects_all_of_them():
    scalar, load = Scalar("a", Type.FLOAT), Load("t", (N,), Type.FLOAT)
    e = apply(Op.MUL, apply(Op.ADD, scalar, load), apply(Op.ADD, scalar, Load("t", (M,), Type.FLOAT)))
    env, params = {"i": np.array([0, 1]), "j": 1}, {"a": 3.0, "t": np.array([5.0, 7.0])}
    _, found = Tape((e,), env, params).pullback([(e, np.array([1.0, 10.0]))])
    # (a + t0)(a + t1) + 10 (a + t1)^2
    assert found["a"].shape == () and found["a"] == (8 + 10) + 10 * 2 * 10
    assert found["t"].tolist() == [10, 8 + 10 * 2 * 10]


def test_kinks():
    cases = {
        apply(Op.ABS, X): [-1, 0, 1],
        apply(Op.MIN, X, build.real(0.0)): [1, 1, 0],
        apply(Op.MAX, X, build.real(0.0)): [0, 1, 1],
        apply(Op.MIN, build.real(0.0), X): [1, 0, 0],
        apply(Op.SIGN, X): None,
        apply(Op.TO_FLOAT, apply(Op.FLOOR, X)): None,
    }
    for e, expected in cases.items():
        found, _ = Tape((e,), {"x": np.array([-1.0, 0.0, 1.0])}, {}).pullback([(e, np.ones(3))])
        assert (found["x"].tolist() if "x" in found else None) == expected


def test_the_branch_not_taken_passes_nothing_on_even_where_its_derivative_is_not_finite():
    e = apply(Op.SELECT, apply(Op.LT, build.real(0.0), X), apply(Op.LOG, X), apply(Op.MUL, X, build.real(2.0)))
    x = np.array([-1.0, 0.0, 4.0])
    np.testing.assert_array_equal(evaluate(e, {"x": x}, {}), [-2, 0, math.log(4)])
    found, _ = Tape((e,), {"x": x}, {}).pullback([(e, np.ones(3))])
    assert found["x"].tolist() == [2, 2, 0.25]


def test_a_zero_cotangent_stays_zero():
    e = apply(Op.SQRT, apply(Op.DIV, build.real(1.0), X))
    found, _ = Tape((e,), {"x": np.array([0.0, 1.0])}, {}).pullback([(e, np.array([0.0, 1.0]))])
    assert found["x"].tolist() == [0, -0.5]
    e = apply(Op.MAX, X, Y)
    found, _ = Tape((e,), {"x": np.array([1.0, 2.0]), "y": 1.5}, {}).pullback([(e, np.array([np.nan, 3.0]))])
    assert found["x"].tolist() == [0, 3] and np.isnan(found["y"])


def test_several_roots_share_their_nodes():
    shared = apply(Op.EXP, X)
    roots = (apply(Op.MUL, shared, X), shared)
    tape = Tape(roots, {"x": np.array(0.5)}, {})
    found, _ = tape.pullback([(roots[0], np.array(2.0)), (roots[1], np.array(3.0))])
    assert float(found["x"]) == pytest.approx(math.exp(0.5) * (2 * 1.5 + 3))


def test_depth_costs_no_recursion():
    e: Expr = X
    for _ in range(20_000):
        e = apply(Op.ADD, e, build.real(1.0))
    tape = Tape((e,), {"x": np.array(0.5)}, {})
    assert tape.value(e) == 20_000.5
    assert tape.pullback([(e, np.array(1.0))])[0]["x"] == 1.0


def test_what_is_missing_or_misshapen_is_named():
    with pytest.raises(UsageError, match="`x`"):
        evaluate(X, {}, {})
    with pytest.raises(UsageError, match="param `a` is missing"):
        evaluate(Scalar("a", Type.INT), {}, {})
    with pytest.raises(UsageError, match="param `t` has 1 dimensions where the spec indexes 2"):
        evaluate(Load("t", (N, M), Type.INT), {"i": 0, "j": 0}, {"t": np.zeros(3)})


def test_arrays_come_from_numbers_numpy_and_torch():
    torch = pytest.importorskip("torch")
    for value in (1.5, np.float32(1.5), np.array(1.5, np.float16), torch.tensor(1.5, dtype=torch.bfloat16)):
        found = as_array(value, Type.FLOAT)
        assert found.dtype == np.float64 and found == 1.5
    leaf = torch.ones(2, 3, requires_grad=True)
    assert as_array(leaf.t(), Type.FLOAT).shape == (3, 2)
    assert as_array(torch.tensor([1, 0], dtype=torch.int32), Type.BOOL).tolist() == [True, False]
    assert as_array(torch.tensor([7], dtype=torch.int8), Type.INT).dtype == np.int64
