"""The float64 oracle against formulas written by hand, and its gradients against differences and torch.

The specs are read by a small reader of this file's own, so that the front end's mistakes are not shared.
"""

from __future__ import annotations

import ast
import math
import os
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from attngen import reference
from attngen.errors import UsageError
from attngen.ir import build
from attngen.ir.attention import Attention, Normalizer, Param
from attngen.ir.nodes import Apply, Expr, Load, Op, Scalar, Storage, Symbol, Type
from attngen.ir.pieces import piece_of

# ---------------------------------------------------------------- specs by hand

INTS = ("b", "h", "hkv", "q", "k", "B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv")
BINARY = {
    ast.Add: Op.ADD,
    ast.Sub: Op.SUB,
    ast.Mult: Op.MUL,
    ast.Div: Op.DIV,
    ast.FloorDiv: Op.FLOORDIV,
    ast.Mod: Op.MOD,
}
COMPARE = {ast.Lt: Op.LT, ast.LtE: Op.LE, ast.Eq: Op.EQ, ast.NotEq: Op.NE}


class Reader:
    """Reads an expression in Python's syntax, which the language's follows, into raw IR."""

    def __init__(self, params: tuple[Param, ...], sizes: tuple[str, ...]):
        self.params, self.sizes = {p.name: p for p in params}, sizes

    def __call__(self, text: str, type: Type = Type.FLOAT) -> Expr:
        e = self.read(ast.parse(text, mode="eval").body)
        return build.to_float(e) if type is Type.FLOAT else e

    def alike(self, *args: Expr) -> tuple[Expr, ...]:
        return tuple(map(build.to_float, args)) if any(a.type is Type.FLOAT for a in args) else args

    def make(self, op: Op, *args: Expr) -> Expr:
        return Apply(op, args, build.result_type(op, args))

    def read(self, node: ast.expr) -> Expr:
        match node:
            case ast.Constant():
                return build.literal(node.value)
            case ast.Name(id):
                if id == "inf":
                    return build.real(math.inf)
                if id in self.params:
                    return Scalar(id, self.params[id].type)
                return Symbol(id, Type.INT if id in INTS or id in self.sizes else Type.FLOAT)
            case ast.Subscript(ast.Name(id), index):
                parts = index.elts if isinstance(index, ast.Tuple) else [index]
                return Load(id, tuple(map(self.read, parts)), self.params[id].type)
            case ast.BinOp(left, ast.Pow(), right):
                return self.make(Op.POW, self.read(left), self.read(right))
            case ast.BinOp(left, ast.Div(), right):
                return self.make(Op.DIV, build.to_float(self.read(left)), build.to_float(self.read(right)))
            case ast.BinOp(left, op, right):
                return self.make(BINARY[type(op)], *self.alike(self.read(left), self.read(right)))
            case ast.UnaryOp(op, arg):
                return self.make(Op.NEG if isinstance(op, ast.USub) else Op.NOT, self.read(arg))
            case ast.BoolOp(op, values):
                return self.make(Op.AND if isinstance(op, ast.And) else Op.OR, *map(self.read, values))
            case ast.Compare(left, ops, rights):
                sides = [self.read(left), *map(self.read, rights)]
                pairs = zip(sides, ops, sides[1:], strict=False)
                tests = [self.make(COMPARE[type(op)], *self.alike(a, b)) for a, op, b in pairs]
                return tests[0] if len(tests) == 1 else self.make(Op.AND, *tests)
            case ast.IfExp(condition, then, otherwise):
                return self.make(Op.SELECT, self.read(condition), *self.alike(self.read(then), self.read(otherwise)))
            case ast.Call(ast.Name(id), args):
                op, values = Op(id), tuple(map(self.read, args))
                if op in (Op.MIN, Op.MAX):
                    values = self.alike(*values)
                elif op not in (Op.TO_FLOAT, Op.TO_INT, Op.ABS):
                    values = tuple(map(build.to_float, values))
                return self.make(op, *values)
        raise AssertionError(ast.dump(node))


def spec(
    score: str = "qk * scale",
    mask: str = "True",
    *,
    params: dict[str, str] | None = None,
    weight: str = "exp(s)",
    denominator: str = "sum",
    dropout: str | None = None,
) -> Attention:
    """An attention. `params` maps a name to `f32` or `f32[dims]`; `denominator` is `sum`, `1` or what joins the sum."""
    sizes: list[str] = []
    made: list[Param] = []
    for name, text in (params or {}).items():
        storage, _, dims = text.rstrip("]").partition("[")
        shape: list[Expr] = []
        for dim in filter(None, dims.replace(" ", "").split(",")):
            if not dim.isdigit() and dim not in INTS and dim not in sizes:
                sizes.append(dim)
            shape.append(build.integer(int(dim)) if dim.isdigit() else build.index(dim))
        made.append(Param(name, Storage(storage), tuple(shape)))
    read = Reader(tuple(made), tuple(sizes))
    normalizer = Normalizer(
        name="handmade",
        weight=read(weight),
        sums=denominator != "1",
        extra=None if denominator in ("sum", "1") else read(denominator),
        shift=False,
        stream_weight=None,
        rescale=None,
    )
    return Attention(
        name="handmade",
        consts=(),
        params=tuple(made),
        sizes=tuple(sizes),
        score=read(score),
        mask=read(mask, Type.BOOL),
        normalizer=normalizer,
        dropout=None if dropout is None else read(dropout),
        tile=None,
        assumes=(),
    )


# ---------------------------------------------------------------- formulas by hand


def inputs(B=2, Hq=2, Hkv=2, Sq=5, Sk=5, D=4, Dv=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(B, Hq, Sq, D)), rng.normal(size=(B, Hkv, Sk, D)), rng.normal(size=(B, Hkv, Sk, Dv))


def products(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, q.shape[1] // k.shape[1], axis=1))


def attend(score: np.ndarray, allowed: Any, v: np.ndarray, extra: Any = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Softmax attention in its plainest form, for scores of ordinary size; `extra` joins the denominator."""
    weights = np.exp(score) * allowed
    denominator = weights.sum(-1) + extra
    out = np.einsum("bhqk,bhkd->bhqd", weights / denominator[..., None], np.repeat(v, score.shape[1] // v.shape[1], 1))
    return out, np.log(denominator)


def agree(result: reference.Result, expected: tuple[np.ndarray, np.ndarray], rtol: float = 1e-12) -> None:
    out, lse = expected
    assert result.out.dtype == result.lse.dtype == np.float64
    assert result.out.shape == out.shape and result.lse.shape == lse.shape
    np.testing.assert_allclose(result.out, out, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(result.lse, lse, rtol=rtol, atol=rtol)


ROW, COLUMN = np.arange(5)[:, None], np.arange(5)[None]


def test_plain_softmax():
    q, k, v = inputs()
    agree(reference.evaluate(spec(), q, k, v), attend(products(q, k) / 2, True, v))


def test_scale_may_be_given():
    q, k, v = inputs()
    agree(reference.evaluate(spec(), q, k, v, scale=0.3), attend(products(q, k) * 0.3, True, v))


def test_causal():
    q, k, v = inputs()
    agree(reference.evaluate(spec(mask="k <= q"), q, k, v), attend(products(q, k) / 2, COLUMN <= ROW, v))


def test_causal_with_fewer_queries_than_keys_aligns_the_last():
    q, k, v = inputs(Sq=3, Sk=7)
    allowed = np.tril(np.ones((3, 7)), 4)
    agree(reference.evaluate(spec(mask="k <= q + Sk - Sq"), q, k, v), attend(products(q, k) / 2, allowed, v))


def test_alibi():
    q, k, v = inputs(Hq=4, Hkv=4)
    slope = 2.0 ** -np.arange(1, 5)
    alibi = spec("qk * scale - slope[h] * abs(q - k)", "k <= q", params={"slope": "f32[Hq]"})
    expected = attend(products(q, k) / 2 - slope[:, None, None] * abs(ROW - COLUMN), COLUMN <= ROW, v)
    agree(reference.evaluate(alibi, q, k, v, params={"slope": slope}), expected)


def test_softcap_in_a_window():
    q, k, v = inputs()
    gemma = spec("cap * tanh(qk * scale / cap)", "0 <= q - k and q - k < w", params={"cap": "f32", "w": "int"})
    allowed = (ROW - COLUMN >= 0) & (ROW - COLUMN < 3)
    expected = attend(1.5 * np.tanh(products(q, k) / 2 / 1.5), allowed, v)
    agree(reference.evaluate(gemma, q, k, v, params={"cap": 1.5, "w": 3}), expected)


def test_sigmoid_has_no_denominator_and_an_lse_of_zero():
    q, k, v = inputs()
    score = "qk * scale - log(float(Sk))"
    result = reference.evaluate(spec(score, "k <= q", weight="sigmoid(s)", denominator="1"), q, k, v)
    weights = 1 / (1 + np.exp(-(products(q, k) / 2 - np.log(5)))) * (COLUMN <= ROW)
    agree(result, (np.einsum("bhqk,bhkd->bhqd", weights, v), np.zeros((2, 2, 5))))


def test_sink_by_head():
    q, k, v = inputs()
    sink = np.array([0.7, -1.3])
    gpt = spec(mask="k <= q", params={"sink": "f32[Hq]"}, denominator="exp(sink[h])")
    expected = attend(products(q, k) / 2, COLUMN <= ROW, v, np.exp(sink)[:, None])
    agree(reference.evaluate(gpt, q, k, v, params={"sink": sink}), expected)


def test_softmax1():
    q, k, v = inputs()
    agree(reference.evaluate(spec(denominator="1.0 + 0.0"), q, k, v), attend(products(q, k) / 2, True, v, 1.0))


def test_documents():
    q, k, v = inputs()
    ids = np.array([[0, 0, 1, 1, 1], [3, 3, 3, 3, 4]], np.int32)
    packed = spec(mask="ids[b, q] == ids[b, k] and k <= q", params={"ids": "int[B, Sk]"})
    allowed = (ids[:, None, :, None] == ids[:, None, None, :]) & (COLUMN <= ROW)
    agree(reference.evaluate(packed, q, k, v, params={"ids": ids}), attend(products(q, k) / 2, allowed, v))


def test_grouped_heads_other_value_dim_and_the_kv_head_index():
    q, k, v = inputs(Hq=6, Hkv=2, Sq=3, Sk=7, D=5, Dv=2)
    bias = np.array([[0.1, -0.4], [0.9, 0.2]])
    mla = spec("qk * scale + bias[b, hkv]", params={"bias": "f32[B, Hkv]"})
    expected = attend(products(q, k) / 5**0.5 + np.repeat(bias, 3, axis=1)[:, :, None, None], True, v)
    agree(reference.evaluate(mla, q, k, v, params={"bias": bias}), expected)


def test_a_table_with_a_size_of_its_own():
    q, k, v = inputs()
    table = np.random.default_rng(1).normal(size=(2, 7))
    swin = spec("qk * scale + t[h, min(max(q - k, -n // 2), n // 2) + n // 2]", params={"t": "f32[Hq, n]"})
    place = np.clip(ROW - COLUMN, -4, 3) + 3
    expected = attend(products(q, k) / 2 + np.where(place >= 0, table[:, np.maximum(place, 0)], 0), True, v)
    agree(reference.evaluate(swin, q, k, v, params={"t": table}), expected)


def test_queries_without_a_key_have_zero_rows():
    q, k, v = inputs(Sq=6, Sk=3)
    for denominator, alone in (("sum", -np.inf), ("exp(s0)", 0.5), ("1", 0.0)):
        cross = spec(mask="k <= q + Sk - Sq", params={"s0": "f32"}, denominator=denominator)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = reference.evaluate(cross, q, k, v, params={"s0": 0.5})
            found = reference.gradients(cross, q, k, v, np.ones((2, 2, 6, 4)), np.ones((2, 2, 6)), params={"s0": 0.5})
        assert (result.out[:, :, :3] == 0).all() and (result.lse[:, :, :3] == alone).all()
        assert np.isfinite(result.lse[:, :, 3:]).all() and (result.out[:, :, 3:] != 0).all()
        assert (found.q[:, :, :3] == 0).all() and np.isfinite(found.q).all()
        nothing = spec(mask="k < -1", params={"s0": "f32"}, denominator=denominator)
        none = reference.gradients(nothing, q, k, v, np.ones((2, 2, 6, 4)), np.ones((2, 2, 6)), params={"s0": 0.5})
        for gradient in (none.q, none.k, none.v):
            assert (gradient == 0).all()
        assert none.params["s0"] == (24 if denominator == "exp(s0)" else 0)  # of as many rows, each 1


def test_a_row_whose_denominator_is_zero_is_a_zero_row():
    q, k, v = inputs()
    relu = spec("qk * scale if 0 < q else -1.0", weight="max(s, 0.0) ** 2")
    result = reference.evaluate(relu, q, k, v)
    assert (result.out[:, :, 0] == 0).all() and (result.lse[:, :, 0] == -np.inf).all()
    weights = np.maximum(products(q, k) / 2, 0)[:, :, 1:] ** 2
    expected = weights @ v / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(result.out[:, :, 1:], expected, rtol=1e-12)
    found = reference.gradients(relu, q, k, v, np.ones(q.shape), np.ones((2, 2, 5)))
    assert (found.q[:, :, 0] == 0).all() and np.isfinite(found.q).all() and (found.q[:, :, 1:] != 0).any()


def test_empty_sequences():
    for Sq, Sk in ((0, 5), (5, 0)):
        q, k, v = inputs(Sq=Sq, Sk=Sk)
        result = reference.evaluate(spec(), q, k, v)
        assert result.out.shape == (2, 2, Sq, 4) and (result.out == 0).all() and (result.lse == -np.inf).all()
        found = reference.gradients(spec(), q, k, v, np.ones((2, 2, Sq, 4)))
        assert found.q.shape == q.shape and found.k.shape == k.shape and (found.k == 0).all()


def test_a_score_of_minus_infinity_masks_its_pair():
    q, k, v = inputs(Sq=5, Sk=5)
    written = spec("qk * scale if k < q else -inf")
    masked = spec(mask="k < q")
    d_out, d_lse = np.random.default_rng(4).normal(size=q.shape), np.ones((2, 2, 5))
    expected = reference.evaluate(masked, q, k, v)
    agree(reference.evaluate(written, q, k, v), (expected.out, expected.lse))
    forms = (("s * s + 1", "sum", -np.inf), ("exp(s)", "exp(0.3)", 0.3), ("sigmoid(s)", "1", 0.0))
    for weight, denominator, alone in forms:
        one, two = (
            reference.evaluate(spec(*lines, weight=weight, denominator=denominator), q, k, v)
            for lines in (("qk * scale if k < q else -inf",), ("qk * scale", "k < q"))
        )
        agree(one, (two.out, two.lse))
        assert (one.lse[:, :, 0] == alone).all() and np.isfinite(one.lse[:, :, 1:]).all()
    one, two = (reference.gradients(a, q, k, v, d_out, d_lse) for a in (written, masked))
    for name in ("q", "k", "v"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-12, atol=1e-13)


def test_masked_pairs_add_nothing_even_where_score_and_derivative_are_not_finite():
    q, k, v = inputs()
    wild = "qk * scale + {} * t[k]"
    params = {"t": np.random.default_rng(2).normal(size=5)}
    # sqrt of a negative, log of zero and below, an overflowing exponential: all on masked pairs only.
    score = wild.format("(log(float(q - k)) + sqrt(float(q - k)) + exp(1000.0 * (k - q)))")
    tame = wild.format("(log(float(max(q - k, 1))) + sqrt(float(max(q - k, 1))) + exp(-1000.0 * max(q - k, 1)))")
    specs = [spec(s, "k < q", params={"t": "f32[Sk]"}) for s in (score, tame)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, two = (reference.evaluate(a, q, k, v, params=params) for a in specs)
        d_out = np.ones(q.shape)
        found, expected = (reference.gradients(a, q, k, v, d_out, params=params) for a in specs)
    agree(one, (two.out, two.lse))
    for a, b in ((found.q, expected.q), (found.k, expected.k), (found.v, expected.v)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found.params["t"], expected.params["t"], rtol=1e-12, atol=1e-13)


# ---------------------------------------------------------------- scores beyond exp's reach


@pytest.mark.parametrize("sign", [1, -1])
def test_softmax_and_its_like_at_scores_of_ten_thousand(sign: int):
    _, _, v = inputs(B=1, Hq=1, Hkv=1, Sq=1, Sk=3)
    q, k = np.full((1, 1, 1, 1), 100.0), sign * np.array([100.0, 100.01, 99.99]).reshape(1, 1, 3, 1)
    s = sign * np.array([1e4, 1e4 + 1, 1e4 - 1])
    weights = np.exp(s - s.max())
    share, lse = weights / weights.sum(), s.max() + np.log(weights.sum())
    base2, third = np.exp2(s - s.max()), np.exp((s - s.max()) / 3)
    with_sink = np.append(s, 9999.0)
    shifted = np.exp(with_sink - with_sink.max())
    sunk = shifted[:3] / shifted.sum()
    cases = [
        (spec(), share, lse),
        (spec(weight="exp2(s)"), base2 / base2.sum(), s.max() * math.log(2) + np.log(base2.sum())),
        (spec(weight="exp(s / 3.0)"), third / third.sum(), s.max() / 3 + np.log(third.sum())),
        (spec(denominator="1.0 + 0.0"), share if sign > 0 else 0 * share, lse if sign > 0 else 0.0),
        (spec(denominator="exp(9999.0)"), sunk, with_sink.max() + np.log(shifted.sum())),
    ]
    for attention, expected, expected_lse in cases:
        result = reference.evaluate(attention, q, k, v, scale=1.0)
        np.testing.assert_allclose(result.out[0, 0, 0], expected @ v[0, 0], rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(result.lse[0, 0, 0], expected_lse, rtol=1e-9)
        found = reference.gradients(attention, q, k, v, np.ones((1, 1, 1, 4)), np.ones((1, 1, 1)), scale=1.0)
        assert all(np.isfinite(g).all() for g in (found.q, found.k, found.v))
        np.testing.assert_allclose(found.v[0, 0], expected[:, None] * np.ones(4), rtol=1e-9, atol=1e-300)


def test_custom_weights_at_large_scores():
    _, _, v = inputs(B=1, Hq=1, Hkv=1, Sq=1, Sk=3)
    q, s = np.full((1, 1, 1, 1), 100.0), np.array([1e4, -1e4, 5e3])
    k = (s / 100).reshape(1, 1, 3, 1)
    softplus = np.array([1e4, 0.0, 5e3])
    for weight, expected in (
        ("log(1.0 + exp(s))", softplus),
        ("s * s + 1", s * s + 1),
        ("max(s, 0.0) ** 2", np.maximum(s, 0) ** 2),
        ("exp(s) / (1.0 + exp(s))", np.array([1.0, 0, 1])),
    ):
        result = reference.evaluate(spec(weight=weight), q, k, v, scale=1.0)
        np.testing.assert_allclose(result.out[0, 0, 0], expected @ v[0, 0] / expected.sum(), rtol=1e-12)
        np.testing.assert_allclose(result.lse[0, 0, 0], np.log(expected.sum()), rtol=1e-12)
        found = reference.gradients(spec(weight=weight), q, k, v, np.ones((1, 1, 1, 4)), scale=1.0)
        assert np.isfinite(found.q).all() and np.isfinite(found.k).all()


def test_a_vanishing_factor_on_the_largest_exponent_hides_no_other_pair():
    _, _, v = inputs(B=1, Hq=1, Hkv=1, Sq=1, Sk=3)
    k = np.array([1000.0, -1.0, -2.0]).reshape(1, 1, 3, 1)
    weights = np.array([0.0, math.exp(-1), 2 * math.exp(-2)])
    result = reference.evaluate(spec(weight="max(-s, 0.0) * exp(s)"), np.ones((1, 1, 1, 1)), k, v, scale=1.0)
    np.testing.assert_allclose(result.out[0, 0, 0], weights @ v[0, 0] / weights.sum(), rtol=1e-12)
    np.testing.assert_allclose(result.lse, math.log(weights.sum()), rtol=1e-12)
    nothing = spec(denominator="z * exp(900.0)", params={"z": "f32"})
    expected = reference.evaluate(spec(), np.ones((1, 1, 1, 1)), k / 1e3, v)
    found = reference.evaluate(nothing, np.ones((1, 1, 1, 1)), k / 1e3, v, params={"z": 0.0})
    agree(found, (expected.out, expected.lse))
    empty = spec(mask="k < 0", denominator="z * exp(900.0)", params={"z": "f32"})
    one = np.ones((1, 1, 1, 1))
    assert reference.gradients(empty, one, k, v, np.ones((1, 1, 1, 4)), one[0], params={"z": 0.0}).params["z"] == 0


# ---------------------------------------------------------------- gradients

SLOPE, TABLE = np.array([0.5, -0.3]), np.linspace(-1, 1, 10).reshape(2, 5)
VARIANTS: dict[str, tuple[Attention, dict[str, Any]]] = {
    "softmax": (spec(), {}),
    "causal": (spec(mask="k <= q + Sk - Sq"), {}),
    "alibi": (spec("qk * scale - slope[h] * abs(q - k)", "k <= q + 1", params={"slope": "f32[Hq]"}), {"slope": SLOPE}),
    "softcap": (spec("cap * tanh(qk * scale / cap)", params={"cap": "f32"}), {"cap": 0.7}),
    "table": (
        spec("qk * scale + t[h, q - k + 2] * u", "k < 3", params={"t": "f32[Hq, n]", "u": "f32", "off": "f32"}),
        {"t": TABLE, "u": 1.3, "off": 0.1},
    ),
    "sigmoid": (
        spec("qk * scale + c", weight="sigmoid(s)", denominator="1", params={"c": "f32"}),
        {"c": -0.4},
    ),
    "sink": (spec(mask="k <= q", params={"sink": "f32[Hq]"}, denominator="exp(sink[h])"), {"sink": SLOPE}),
    "softmax1": (spec(denominator="1.0 + 0.0"), {}),
    "temperature": (spec(weight="exp(s / t)", params={"t": "f32"}), {"t": 0.8}),
    "temperature, sink": (
        spec(weight="exp(s / t)", denominator="2.0 * t + exp(a[h] * t)", params={"t": "f32", "a": "f32[Hq]"}),
        {"t": 0.8, "a": SLOPE},
    ),
    "squared relu": (
        spec(mask="k <= q + 1", weight="max(s, 0.0) ** 2", denominator="eps", params={"eps": "f32"}),
        {"eps": 0.2},
    ),
    "softplus": (spec(weight="log(1.0 + exp(c * s))", params={"c": "f32"}), {"c": 1.4}),
    "polynomial": (spec(mask="k != q", weight="s * s + c", params={"c": "f32"}), {"c": 1.0}),
    "base 2": (spec(weight="exp2(s)", mask="k <= q"), {}),
    "dropout": (spec("qk * scale * u", "k <= q + 1", dropout="0.4", params={"u": "f32"}), {"u": 1.1}),
    "nothing of q and k": (spec("w[q, k]", params={"w": "f32[Sq, Sk]"}), {"w": np.linspace(-1, 2, 12).reshape(3, 4)}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_the_limits_of_differences(name: str):
    attention, params = VARIANTS[name]
    q, k, v = inputs(B=1, Hq=2, Hkv=1, Sq=3, Sk=4, D=2, Dv=3, seed=5)
    rng = np.random.default_rng(6)
    d_out, d_lse = rng.normal(size=(1, 2, 3, 3)), rng.normal(size=(1, 2, 3))
    everything = {"q": q, "k": k, "v": v} | {name: np.asarray(p) for name, p in params.items()}

    def loss(values: dict[str, np.ndarray]) -> float:
        at = {name: p for name, p in values.items() if name not in ("q", "k", "v")}
        result = reference.evaluate(
            attention, values["q"], values["k"], values["v"], params=at, scale=0.6, dropout_seed=11
        )
        lse = np.where(np.isfinite(result.lse), result.lse, 0)
        return float((result.out * d_out).sum() + (lse * d_lse).sum())

    found = reference.gradients(attention, q, k, v, d_out, d_lse, params=params, scale=0.6, dropout_seed=11)
    assert list(found.params) == list(params)
    step = 1e-6
    for name, array in everything.items():
        gradient = getattr(found, name) if name in ("q", "k", "v") else found.params[name]
        assert gradient.shape == array.shape and gradient.dtype == np.float64
        for place in np.ndindex(array.shape):
            ends: list[float] = []
            for sign in (1, -1):
                moved = array.astype(np.float64)
                moved[place] += sign * step
                ends.append(loss(everything | {name: moved}))
            assert gradient[place] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8), (name, place)


def test_of_an_empty_row_only_the_cotangent_of_lse_counts_and_goes_to_the_extra_term():
    q, k, v = inputs()
    attention = spec(mask="k < q", params={"a": "f32"}, denominator="exp(a)")
    d_out, d_lse = np.ones(q.shape), np.ones((2, 2, 5))
    expected = reference.gradients(attention, q, k, v, d_out, d_lse, params={"a": 0.5})
    d_out[:, :, 0], d_lse[:, :, 0] = np.nan, 3.0
    found = reference.gradients(attention, q, k, v, d_out, d_lse, params={"a": 0.5})
    for name in ("q", "k", "v"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert found.params["a"] == pytest.approx(expected.params["a"] + 4 * 2.0) != 0  # of four such rows, 2 more each


def test_gradients_agree_with_torch_on_grouped_causal_attention():
    torch = pytest.importorskip("torch")
    q, k, v = inputs(B=2, Hq=4, Hkv=2, Sq=6, Sk=6, D=8, Dv=5)
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
    d_out = np.random.default_rng(3).normal(size=tuple(out.shape))
    out.backward(torch.tensor(d_out))
    found = reference.gradients(spec(mask="k <= q"), q, k, v, d_out)
    np.testing.assert_allclose(reference.evaluate(spec(mask="k <= q"), q, k, v).out, out.detach(), rtol=1e-10)
    for gradient, leaf in zip((found.q, found.k, found.v), leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- dropout


def test_philox_gives_the_published_words():
    # The known answers of Random123's kat_vectors for philox4x32, 10 rounds.
    ones = 0xFFFFFFFF
    vectors = [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, ones << 32 | ones, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0 << 32 | 0xA4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    for counter, key, words in vectors:
        assert tuple(int(w) for w in reference.philox(counter, key)) == words


TRITON_PROGRAM = """
import torch, triton, triton.language as tl

@triton.jit
def draw(out, seed, q, h, b, N: tl.constexpr):
    k = tl.arange(0, N)
    word, _, _, _ = tl.philox(seed, k, q + tl.zeros_like(k), h + tl.zeros_like(k), b + tl.zeros_like(k))
    tl.store(out + k, word.to(tl.int64))

for seed, q, h, b in ((0, 0, 0, 0), (12345, 7, 3, 1), (2**40 + 17, 1000, 15, 2), (2**62 - 1, 5, 1, 0), (-1, 2, 2, 2)):
    out = torch.zeros(16, dtype=torch.int64)
    draw[(1,)](out, seed, q, h, b, 16)
    print(seed, q, h, b, *out.tolist())
"""


def test_philox_gives_the_words_of_triton(tmp_path: Any):
    pytest.importorskip("triton")
    program = tmp_path / "draw.py"
    program.write_text(TRITON_PROGRAM)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    run = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 5
    for line in lines:
        seed, q, h, b, *words = map(int, line.split())
        assert reference.philox((np.arange(16), q, h, b), seed)[0].tolist() == words


def test_dropout_drops_by_threshold_after_normalising_and_leaves_lse():
    q, k, v = inputs(Sq=40, Sk=30)
    attention, seed = spec(dropout="p", params={"p": "f32"}), 2**40 + 17
    result = reference.evaluate(attention, q, k, v, params={"p": 0.3}, dropout_seed=seed)
    p = float(np.float32(0.3))
    keep = np.empty((2, 2, 40, 30))
    for b, h, row in np.ndindex(2, 2, 40):
        keep[b, h, row] = reference.philox((np.arange(30), row, h, b), seed)[0] >= int(p * 2**32)
    score = products(q, k) / 2
    share = np.exp(score) / np.exp(score).sum(-1, keepdims=True)
    agree(result, ((share * keep / (1 - p)) @ v, np.log(np.exp(score).sum(-1))))
    assert abs(keep.mean() - 0.7) < 0.03


def test_a_piece_drops_what_the_whole_drops():
    q, k, v = inputs(Sq=40, Sk=30)
    attention, seed = spec(dropout="0.3"), 2**40 + 17
    whole = reference.evaluate(attention, q, k, v, dropout_seed=seed).out
    piece = piece_of(attention, each=False)
    place = dict(zip(piece.numbers, (25, 0, 40, 30, 1, 1), strict=True))
    own = [x[1:, 1:, first:] for x, first in ((q, 25), (k, 0), (v, 0))]
    np.testing.assert_allclose(
        reference.evaluate(piece.own, *own, params=place, dropout_seed=seed).out, whole[1:, 1:, 25:], rtol=1e-12
    )
    place = dict(zip(piece.numbers, (24, 0, 40, 30, 1, 1), strict=True))
    other = reference.evaluate(piece.own, *own, params=place, dropout_seed=seed).out
    assert np.abs(other - whole[1:, 1:, 25:]).max() > 0.1


def test_no_seed_or_no_probability_means_no_dropout():
    q, k, v = inputs()
    plain = reference.evaluate(spec(), q, k, v)
    for attention, seed in ((spec(dropout="0.5"), None), (spec(dropout="0.0"), 3), (spec(), 3)):
        np.testing.assert_array_equal(reference.evaluate(attention, q, k, v, dropout_seed=seed).out, plain.out)


# ---------------------------------------------------------------- arguments


def test_torch_tensors_of_half_precision_are_read_as_they_are():
    torch = pytest.importorskip("torch")
    half = [torch.tensor(x).to(torch.bfloat16) for x in inputs()]
    full = [x.double().numpy() for x in half]
    alibi = spec("qk * scale - slope * abs(q - k)", params={"slope": "f32"})
    slope = torch.tensor(0.25, requires_grad=True)
    found = reference.evaluate(alibi, *half, params={"slope": slope})
    np.testing.assert_array_equal(found.out, reference.evaluate(alibi, *full, params={"slope": 0.25}).out)
    gradients = reference.gradients(alibi, *half, half[0], params={"slope": slope})
    assert gradients.params["slope"].shape == () and gradients.params["slope"] != 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((2, 5, 4))}, "q has 3 dimensions"),
        ({"k": np.zeros((2, 2, 5, 3))}, "k has shape"),
        ({"v": np.zeros((2, 2, 6, 4))}, "v has shape"),
        ({"q": np.zeros((2, 3, 5, 4))}, "3 heads, which is not a multiple of the 2"),
        ({"params": {}}, "needs param `t`, `u`"),
        ({"params": {"t": np.zeros((2, 3)), "u": np.zeros(3), "w": 1}}, "has no param `w`"),
        ({"params": {"t": np.zeros((2, 3)), "u": np.zeros(4)}}, r"`u` has shape \(4,\); expected \(3,\)"),
        ({"params": {"t": np.zeros((3, 3)), "u": np.zeros(3)}}, r"`t` has shape \(3, 3\); expected \(2, 3\)"),
        ({"params": {"t": np.zeros(3), "u": np.zeros(3)}}, "`t` has 1 dimensions; expected 2"),
        ({"d_out": np.zeros((2, 2, 5, 5))}, "d_out has shape"),
        ({"d_lse": np.zeros((2, 2, 5, 1))}, "d_lse has shape"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str):
    q, k, v = inputs()
    given = {"q": q, "k": k, "v": v, "d_out": q, "params": {"t": np.zeros((2, 3)), "u": np.zeros(3)}} | change
    attention = spec("qk + t[h, k] + u[k]", params={"t": "f32[Hq, n]", "u": "f32[n]"})
    with pytest.raises(UsageError, match=message):
        reference.gradients(attention, **given)
