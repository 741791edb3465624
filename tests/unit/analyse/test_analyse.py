"""What the analyser makes of correct files, read back as text: names, types, consts, params, lets, defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngen.analyse import analyse
from attngen.errors import NOWHERE, Source, Span
from attngen.ir import build, printing, walk
from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Literal, Load, Op, Scalar, Storage, Symbol, Type
from attngen.syntax.parser import parse

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))


def analysed(statements: str, **overrides: bool | int | float) -> Attention:
    source = Source(f"attention a\n{statements}\n", "a.attn")
    return analyse(parse(source), source, overrides)


def score(expression: str, before: str = "") -> str:
    return printing.expression(analysed(f"{before}\nscore = {expression}").score)


def mask(expression: str, before: str = "") -> str:
    return printing.expression(analysed(f"{before}\nmask = {expression}").mask)


# ---------------------------------------------------------------- the whole


def test_defaults() -> None:
    a = analysed("")
    assert (a.name, a.consts, a.params, a.sizes, a.dropout, a.tile, a.assumes) == ("a", (), (), (), None, None, ())
    assert printing.expression(a.score) == "qk * scale"
    assert a.mask == build.TRUE
    assert a.normalizer.name == "softmax"
    assert a.normalizer.span == NOWHERE


def test_the_contract_s_own_example() -> None:
    source = Source(
        """# Sliding-window attention with ALiBi (Press et al., 2022) and a soft cap.
attention windowed_alibi

const window = 1024                   # compile-time; `-D window=512` overrides it
param slope: f32[Hq]                  # run-time tensor, one value per query head
param cap:   f32 where cap > 0        # run-time scalar, with a fact that the prover may use

let distance = q - k

score = softcap(qk * scale, cap) - slope[h] * distance
mask  = 0 <= distance < window

tile q = 128, k = 64
"""
    )
    assert printing.attention(analyse(parse(source), source, {"window": 512})) == (
        """attention windowed_alibi
const window = 512
param slope: f32[Hq]
param cap: f32 where 0.0 < cap
score = cap * tanh(qk * scale / cap) - slope[h] * float(q - k)
mask = 0 <= q - k and q - k < 512
normalizer softmax {
    weight(s) = exp(s)
    denominator = sum
    shift = max
    weight(s, m) = exp(s - m)
    rescale(m, n) = exp(m - n)
}
tile q = 128, k = 64
"""
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_are_closed_and_typed(path: Path) -> None:
    source = Source(path.read_text(encoding="utf-8"), path.name)
    a = analyse(parse(source), source)
    assert a.score.type is Type.FLOAT
    assert a.mask.type is Type.BOOL
    params = {p.name: p for p in a.params}
    expressions = [a.score, a.mask, *a.assumes, a.normalizer.weight]
    for node in (n for e in expressions for n in walk.nodes(e)):
        if isinstance(node, Load):
            listed = node.member is not None
            assert len(node.indices) == len(params[node.param].shape) - listed
            assert all(i.type is Type.INT for i in walk.children(node))
            assert node.type is (Type.BOOL if listed else params[node.param].type)
        elif isinstance(node, Scalar):
            assert params[node.param].is_scalar
        elif isinstance(node, Apply):
            assert node.type is build.result_type(node.op, node.args)
            if node.op not in (Op.SELECT, Op.POW):
                assert len({arg.type for arg in node.args}) == 1


def test_analysing_twice_gives_equal_attentions() -> None:
    text = "param t: f32[Hq, n] where t > 0\nlet d = q - k\nscore = qk + t[h, clamp(d, 0, 3)]\nmask = d < 3 or d > 9"
    assert analysed(text) == analysed(text)


def test_the_order_of_statements_matters_for_lets_only() -> None:
    """A const, a param, a normalizer's definition may stand behind its use."""
    text = """normalizer = mine(t = temperature)
score = qk * gain[h] + c
normalizer mine(t) {
    weight(s) = exp(s / t)
    denominator = sum
    shift = none
}
param gain: f32[Hq]
param temperature: f32
const c = 2"""
    a = analysed(text)
    assert printing.expression(a.score) == "qk * gain[h] + 2.0"
    assert printing.expression(a.normalizer.weight) == "exp(s / temperature)"


# ---------------------------------------------------------------- consts


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1024", 1024),
        ("-3", -3),
        ("7 // 2 + 7 % 4 * 2", 9),
        ("-7 // 2", -4),
        ("2 ** 10", 1024),
        ("2.0 ** -2", 0.25),
        ("6 / 3", 2.0),
        ("1 / 4", 0.25),
        ("int(2.7) + floor(-2.5) + ceil(2.5) + int(true)", 3),
        ("float(3)", 3.0),
        ("min(3, 1, 2) + max(1, 2.5)", 3.5),
        ("clamp(9, 0, 4)", 4),
        ("abs(-3) + sign(-2)", 2),
        ("sqrt(16) + log2(8)", 7.0),
        ("inf", float("inf")),
        ("-inf", -float("inf")),
        ("pi * 0 + 1", 1.0),
        ("3 > 2 and not false", True),
        ("1 if true else 2", 1),
        ("1 if true else 2.0", 1.0),
        ("true == false", False),
        ("true != false", True),
        ("1 == 1.0", True),
        ("1 // 0 if false else 5", 5),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_consts(expression: str, value: float) -> None:
    (found,) = analysed(f"const c = {expression}").consts
    assert found == ("c", value)
    assert type(found[1]) is type(value)


def test_consts_read_earlier_consts_and_overrides() -> None:
    text = "const a = 4\nconst c = a * 2\nconst d = c > 10\nconst e = 0.5"
    assert analysed(text).consts == (("a", 4), ("c", 8), ("d", False), ("e", 0.5))
    assert analysed(text, a=6, e=3).consts == (("a", 6), ("c", 12), ("d", True), ("e", 3.0))
    assert type(analysed(text, e=3).consts[3][1]) is float
    assert analysed(text, d=True).consts[2] == ("d", True)


def test_consts_are_put_in() -> None:
    assert mask("q - k < w", "const w = 3") == "q - k < 3"
    assert score("qk * w", "const w = 3") == "qk * 3.0"


# ---------------------------------------------------------------- params


def test_params_types_and_dims() -> None:
    a = analysed(
        """const c = 2
param t: f16[B, Hq, n, c, 5]
param u: int[n, m, Sk, Dv]
param x: f32
param i: int
param g: bool
param y: bf16[D]
param z: bool[Hkv]"""
    )
    assert a.sizes == ("n", "m")
    shapes = {p.name: tuple(printing.expression(d) for d in p.shape) for p in a.params}
    assert shapes["t"] == ("B", "Hq", "n", "2", "5")
    assert shapes["u"] == ("n", "m", "Sk", "Dv")
    assert shapes["x"] == ()
    assert a.param("t").storage is Storage.F16
    assert [p.type for p in a.params] == [
        *(Type.FLOAT, Type.INT, Type.FLOAT, Type.INT, Type.BOOL, Type.FLOAT, Type.BOOL),
    ]  # fmt: skip
    assert all(d.type is Type.INT for p in a.params for d in p.shape)


def test_a_fresh_dim_is_an_int_that_expressions_can_read() -> None:
    a = analysed("param t: f32[n]\nscore = qk + t[min(q, n - 1)]\nassume n > Sq")
    assert printing.expression(a.score) == "qk + t[min(q, n - 1)]"
    assert Symbol("n", Type.INT) in set(walk.nodes(a.score))
    assert [printing.expression(e) for e in a.assumes] == ["Sq < n"]


def test_loads_have_the_element_s_type() -> None:
    a = analysed(
        "param i: int[B, Sk]\nparam g: bool[Hq]\nparam t: f16[Hq]\n"
        "score = qk + t[h] + i[b, k]\nmask = g[h] or i[b, q] > 2"
    )
    assert printing.expression(a.score) == "qk + t[h] + float(i[b, k])"
    assert printing.expression(a.mask) == "g[h] or 2 < i[b, q]"


def test_where_facts() -> None:
    a = analysed(
        """const most = 9
let bound = Sk + most
param n: int where 0 <= n <= bound
param cap: f32 where cap > 0 and n > 2
param ids: int[B, Sk] where 0 <= ids < n
param on: bool where on
param any: f32 where 2 > 1"""
    )
    facts = {p.name: None if p.where is None else printing.expression(p.where) for p in a.params}
    assert facts == {
        "n": "0 <= n and n <= Sk + 9",
        "cap": "0.0 < cap and 2 < n",
        "ids": "0 <= ids and ids < n",
        "on": "on",
        "any": None,
    }
    ids = a.param("ids").where
    assert ids is not None
    assert Scalar("ids", Type.INT) in set(walk.nodes(ids))


def test_assumes() -> None:
    text = "param lengths: int[B]\nassume Sq == Sk\nassume lengths[b] <= Sk and Hq % 2 == 0\nassume 1 < 2"
    a = analysed(text)
    assert [printing.expression(e) for e in a.assumes] == ["Sq == Sk", "lengths[b] <= Sk and Hq % 2 == 0"]


# ---------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("q", "float(q)"),
        ("qk + q", "qk + float(q)"),
        ("q / k", "float(q) / float(k)"),
        ("exp(q)", "exp(float(q))"),
        ("q - k * 2 ** 3", "float(q - k * 8)"),
        ("qk ** 2", "qk ** 2"),
        ("-qk ** 2", "-qk ** 2"),
        ("(-qk) ** 2", "(-qk) ** 2"),
        ("qk ** -q", "qk ** -q"),
        ("2 ** q", "float(2 ** q)"),
        ("(-2) ** q", "float((-2) ** q)"),
        ("(-0.0) ** q", "(-0.0) ** q"),
        ("q // 2 % 3", "float(q // 2 % 3)"),
        ("abs(q - k)", "float(abs(q - k))"),
        ("abs(qk)", "abs(qk)"),
        ("sign(k - q) + sign(qk)", "float(sign(k - q)) + sign(qk)"),
        ("min(q, k)", "float(min(q, k))"),
        ("min(q, k, qk)", "min(min(float(q), float(k)), qk)"),
        ("max(q, 3, k)", "float(max(max(q, 3), k))"),
        ("clamp(q, 0, k)", "float(min(max(q, 0), k))"),
        ("clamp(q, -1.5, 2)", "min(max(float(q), -1.5), 2.0)"),
        ("floor(q) + ceil(k)", "float(q + k)"),
        ("floor(qk / 2) + ceil(qk)", "float(floor(qk / 2.0) + ceil(qk))"),
        ("int(qk) + int(q)", "float(int(qk) + q)"),
        ("int(q < k)", "float(int(q < k))"),
        ("float(q < k)", "float(q < k)"),
        ("float(qk)", "qk"),
        ("qk if q < k else 0", "qk if q < k else 0.0"),
        ("q if q < k else k", "float(q if q < k else k)"),
        ("q if q < k else scale", "float(q) if q < k else scale"),
        ("-inf", "-inf"),
        ("pi", "3.141592653589793"),
        ("hkv", "float(hkv)"),
        ("B + Hq + Hkv + Sq + Sk + D + Dv", "float(B + Hq + Hkv + Sq + Sk + D + Dv)"),
        ("exp2(qk) + log(qk) + log2(qk) + sqrt(qk)", "exp2(qk) + log(qk) + log2(qk) + sqrt(qk)"),
        ("rsqrt(qk) + tanh(qk) + sigmoid(qk)", "rsqrt(qk) + tanh(qk) + sigmoid(qk)"),
        ("sin(qk) + cos(qk) + erf(qk)", "sin(qk) + cos(qk) + erf(qk)"),
        ("(qk if q < k else 1) + (2 if k < q else qk)", "(qk if q < k else 1.0) + (2.0 if k < q else qk)"),
    ],
)
def test_numbers(written: str, built: str) -> None:
    assert score(written) == built


@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("k <= q", "k <= q"),
        ("q >= k", "k <= q"),
        ("q > k", "k < q"),
        ("0 <= q - k < 8", "0 <= q - k and q - k < 8"),
        ("q == k or q != 3", "q == k or q != 3"),
        ("q > k == 3 != b", "k < q and k == 3 and 3 != b"),
        ("q < 2.5", "float(q) < 2.5"),
        ("0 < q < 2.5", "0 < q and float(q) < 2.5"),
        ("(q < k) == (k < h)", "(q < k) == (k < h)"),
        ("(q < k) != true", "(q < k) != true"),
        ("not q < k", "k <= q"),
        ("not (q < k and k < 3)", "k <= q or 3 <= k"),
        ("not scale < 1", "not scale < 1.0"),
        ("q < 1 and q < 2 and q < 3", "q < 1 and q < 2 and q < 3"),
        ("q < 1 and (q < 2 or q < 3) and q < 4", "q < 1 and (q < 2 or q < 3) and q < 4"),
        ("q < 1 or q < 2 and q < 3", "q < 1 or q < 2 and q < 3"),
        ("q < k if h < 2 else true", "q < k if h < 2 else true"),
        ("q < k if true else k < 3", "q < k"),
        ("true", "true"),
        ("false", "false"),
        ("0 < 1", "true"),
    ],
)
def test_conditions(written: str, built: str) -> None:
    assert mask(written) == built


# ---------------------------------------------------------------- the prelude


@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("causal", "k <= q + Sk - Sq"),
        ("sliding_window(5)", "k <= q + Sk - Sq and q + Sk - Sq - k < 5"),
        ("prefix_lm(n)", "k <= q + Sk - Sq or k < n"),
        ("chunked(16)", "k <= q + Sk - Sq and (q + Sk - Sq) // 16 == k // 16"),
        ("chunked(n)", "k <= q + Sk - Sq and (q + Sk - Sq) // n == k // n"),
        ("dilated(2)", "(q + Sk - Sq - k) % 2 == 0"),
        ("same_document(ids)", "ids[b, q] == ids[b, k]"),
        ("causal and same_document(ids)", "k <= q + Sk - Sq and ids[b, q] == ids[b, k]"),
        ("not causal", "q + Sk - Sq < k"),
    ],
)
def test_prelude_masks(written: str, built: str) -> None:
    assert mask(written, "param n: int\nparam ids: int[B, Sk]") == built


@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("softcap(qk, 50)", "50.0 * tanh(qk / 50.0)"),
        ("softcap(q, 2)", "2.0 * tanh(float(q) / 2.0)"),
        ("alibi(slope)", "-slope[h] * float(abs(q + Sk - Sq - k))"),
        ("relative_bias(table, 3)", "table[h, min(max(q + Sk - Sq - k, -3), 3) + 3]"),
        ("relative_bias(table, n)", "table[h, min(max(q + Sk - Sq - k, -n), n) + n]"),
    ],
)
def test_prelude_scores(written: str, built: str) -> None:
    assert score(written, "param n: int\nparam slope: f32[Hq]\nparam table: f32[Hq, reach]") == built


def test_the_prelude_reads_its_own_names() -> None:
    """The `c` and `x` of `softcap`, and the `n` of `prefix_lm`, are not the file's."""
    assert score("softcap(x, c)", "const c = 5\nlet x = qk + 1") == "5.0 * tanh((qk + 1.0) / 5.0)"
    assert mask("prefix_lm(w) and n > 1", "const n = 5\nconst w = 2") == "k <= q + Sk - Sq or k < 2"


def test_the_attention_and_normalizers_may_be_called_like_the_prelude_s_functions() -> None:
    source = Source(
        "attention alibi\nparam slope: f32[Hq]\nnormalizer causal {\nweight(s) = s\ndenominator = 1\nshift = none\n}\n"
        "score = qk + alibi(slope)\nmask = causal\nnormalizer = causal\n"
    )
    a = analyse(parse(source), source)
    assert (a.name, a.normalizer.name) == ("alibi", "causal")


# ---------------------------------------------------------------- lets


def test_lets_are_expanded_and_give_their_names() -> None:
    a = analysed("let distance = q - k\nlet near = distance < 3\nmask = near and 0 <= distance\nscore = qk - distance")
    assert printing.expression(a.mask) == "q - k < 3 and 0 <= q - k"
    names = {n.name for e in (a.score, a.mask) for n in walk.nodes(e)}
    assert names == {None, "distance", "near"}
    # One node, shared by its uses.
    assert len({id(n) for n in walk.nodes(a.mask) if n.name == "distance"}) == 1


def test_let_functions() -> None:
    before = "let twice(x) = x + x\nlet both(x, y) = twice(x) * twice(y)\nparam t: f32[Hq]\nlet at(p, i) = p[i]"
    assert score("both(qk, q)", before) == "(qk + qk) * float(q + q)"
    assert score("at(t, h)", before) == "t[h]"
    a = analysed(f"{before}\nscore = both(qk, 3)")
    assert a.score.name == "both"
    assert [n.name for n in walk.nodes(a.score) if n.name == "twice"] == ["twice"]


def test_a_tensor_is_passed_on_by_name() -> None:
    before = "param t: f32[Hq]\nlet at(p) = p[h]\nlet more(r) = at(r) + alibi(r)"
    assert score("more(t)", before) == "t[h] + -t[h] * float(abs(q + Sk - Sq - k))"


def test_arguments_stand_before_the_names_of_the_file() -> None:
    before = "const c = 5\nlet f(c) = c + 1\nlet g(q, k) = q - k"
    assert score("f(qk) + c", before) == "qk + 1.0 + 5.0"
    assert score("g(k, q)", before) == "float(k - q)"


def test_lets_may_read_qk_where_the_score_uses_them() -> None:
    assert score("logit + 1", "let logit = qk * scale") == "qk * scale + 1.0"


def test_a_let_s_argument_takes_any_type() -> None:
    before = "let pick(c, x, y) = x if c else y"
    assert score("pick(causal, qk, 0)", before) == "qk if k <= q + Sk - Sq else 0.0"
    assert mask("pick(q < 3, true, causal)", before) == "true if q < 3 else k <= q + Sk - Sq"


# ---------------------------------------------------------------- dropout, tiles


@pytest.mark.parametrize(
    ("written", "built"),
    [("0.1", "0.1"), ("0", "0.0"), ("p", "p"), ("p * rate", "p * 0.5"), ("0.3 if on else 0", "0.3 if on else 0.0")],
)
def test_dropout(written: str, built: str) -> None:
    a = analysed(f"const rate = 0.5\nparam p: f32\nparam on: bool\ndropout = {written}")
    assert a.dropout is not None
    assert a.dropout.type is Type.FLOAT
    assert printing.expression(a.dropout) == built


def test_tile() -> None:
    assert analysed("tile q = 16, k = 512").tile == (16, 512)
    assert analysed("tile auto").tile is None


# ---------------------------------------------------------------- spans


def test_nodes_point_at_what_was_written() -> None:
    a = analysed("param t: f32[Hq]\nlet d = q - k\nscore = qk + t[h] * d")
    load = next(n for n in walk.nodes(a.score) if isinstance(n, Load))
    assert load.span == Span(4, 14, 4, 18)
    difference = next(n for n in walk.nodes(a.score) if n.name == "d")
    assert difference.span == Span(3, 9, 3, 14)
    assert a.param("t").span == Span(2, 1, 2, 17)


def test_nodes_of_the_prelude_point_at_its_use() -> None:
    a = analysed("param t: f32[Hq]\nlet f(x) = x + alibi(t)\nscore = f(qk)\nmask = q > 3 and causal")
    spans = {n.span for n in walk.nodes(a.score) if isinstance(n, Load)}
    assert spans == {Span(3, 16, 3, 24)}
    assert isinstance(a.mask, Apply)
    assert a.mask.args[1].span == Span(5, 18, 5, 24)


def test_literals_stay_literals() -> None:
    a = analysed("let w = 3\nmask = q < w")
    assert isinstance(a.mask, Apply)
    assert a.mask.args[1] == Literal(3, Type.INT)


# ---------------------------------------------------------------- text and IR


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_printed_expressions_mean_the_same_when_read_again(path: Path) -> None:
    source = Source(path.read_text(encoding="utf-8"), path.name)
    a = analyse(parse(source), source)
    params = [line for line in printing.attention(a).splitlines() if line.startswith("param ")]
    again = analysed(
        "\n".join([*params, f"score = {printing.expression(a.score)}", f"mask = {printing.expression(a.mask)}"])
    )
    assert (again.score, again.mask, again.params) == (a.score, a.mask, a.params)
