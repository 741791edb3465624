"""Every statement and operator, with the text that each node's span covers."""

from __future__ import annotations

import dataclasses

import pytest

from attngen import resources
from attngen.errors import NOWHERE, Source, Span, SpecError
from attngen.syntax import ast
from attngen.syntax.parser import RESERVED, parse


def statements(text: str) -> tuple[ast.Statement, ...]:
    return parse(Source(text)).statements


def statement(text: str) -> ast.Statement:
    (only,) = statements(text)
    return only


def expression(text: str) -> ast.Expr:
    score = statement(f"score = {text}")
    assert isinstance(score, ast.Score)
    return score.value


def sexp(e: ast.Expr) -> str:
    """The tree with all its brackets."""
    match e:
        case ast.Number() | ast.Bool():
            return str(e.value)
        case ast.Name():
            return e.id
        case ast.Call():
            return f"{e.func}({', '.join(map(sexp, e.args))})"
        case ast.Index():
            return f"{e.base}[{', '.join(map(sexp, e.indices))}]"
        case ast.Unary():
            return f"({e.op} {sexp(e.operand)})"
        case ast.Binary():
            return f"({sexp(e.left)} {e.op} {sexp(e.right)})"
        case ast.Compare():
            words = [sexp(e.operands[0])]
            for op, operand in zip(e.ops, e.operands[1:], strict=True):
                words += [op, sexp(operand)]
            return f"({' '.join(words)})"
        case ast.IfElse():
            return f"({sexp(e.then)} if {sexp(e.condition)} else {sexp(e.otherwise)})"


def covered(text: str, span: Span) -> str:
    """The text under a span, line ends included."""
    lines = text.split("\n")[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return "\n".join(lines)


def nodes(node: object) -> list[object]:
    """A node and all below it."""
    found: list[object] = []
    stack = [node]
    while stack:
        top = stack.pop()
        if isinstance(top, tuple):
            stack += top
        elif dataclasses.is_dataclass(top) and not isinstance(top, Span):
            found.append(top)
            stack += [getattr(top, field.name) for field in dataclasses.fields(top)]
    return found


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a + b - c", "((a + b) - c)"),
        ("a - (b - c)", "(a - (b - c))"),
        ("a + b * c", "(a + (b * c))"),
        ("a * b / c // d % e", "((((a * b) / c) // d) % e)"),
        ("-x**2", "(- (x ** 2))"),
        ("(-x)**2", "((- x) ** 2)"),
        ("2 ** -1", "(2 ** (- 1))"),
        ("2 ** 3 ** 2", "(2 ** (3 ** 2))"),
        ("-x ** -y ** 2", "(- (x ** (- (y ** 2))))"),
        ("-a * b", "((- a) * b)"),
        ("a * -b", "(a * (- b))"),
        ("a - -b", "(a - (- b))"),
        ("--a", "(- (- a))"),
        ("-t[i]", "(- t[i])"),
        ("a < b", "(a < b)"),
        ("0 <= q - k < 8", "(0 <= (q - k) < 8)"),
        ("a == b != c > d >= e <= f", "(a == b != c > d >= e <= f)"),
        ("(a < b) < c", "((a < b) < c)"),
        ("not a == b", "(not (a == b))"),
        ("not not a", "(not (not a))"),
        ("not a and b", "((not a) and b)"),
        ("a or b and c or d", "((a or (b and c)) or d)"),
        ("a and (b and c)", "(a and (b and c))"),
        ("a if b else c", "(a if b else c)"),
        ("a if b else c if d else e", "(a if b else (c if d else e))"),
        ("(a if b else c) if d else e", "((a if b else c) if d else e)"),
        ("a or b if c and d else not e", "((a or b) if (c and d) else (not e))"),
        ("f()", "f()"),
        ("f(a, b + 1)", "f(a, (b + 1))"),
        ("t[h, -1]", "t[h, (- 1)]"),
        ("f(t[g(x)])", "f(t[g(x)])"),
        ("f(a if b else c)", "f((a if b else c))"),
        ("true and false", "(True and False)"),
        ("truex + iffy + android", "((truex + iffy) + android)"),
    ],
)
def test_precedence(text: str, tree: str) -> None:
    assert sexp(expression(text)) == tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("0.5", 0.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1e-6", 1e-6),
        ("2.5E+2", 250.0),
        (".5e1", 5.0),
        ("0e5", 0.0),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("5e-324", 5e-324),
    ],
)
def test_numbers(text: str, value: float) -> None:
    number = expression(text)
    assert isinstance(number, ast.Number)
    assert number.value == value and type(number.value) is type(value)


S = NOWHERE
A, B = ast.Name("a", span=S), ast.Name("b", span=S)


def args(*names: str) -> tuple[ast.Argument, ...]:
    return tuple(ast.Argument(name, span=S) for name in names)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("attention alibi", ast.Attention("alibi", name_span=S, span=S)),
        ("const w = a", ast.Const("w", A, name_span=S, span=S)),
        ("param x: f32", ast.Param("x", "f32", (), None, name_span=S, span=S)),
        ("param x: int where a", ast.Param("x", "int", (), A, name_span=S, span=S)),
        (
            "param x: bf16[a, 3] where b",
            ast.Param("x", "bf16", (A, ast.Number(3, span=S)), B, name_span=S, span=S),
        ),
        ("let f = a", ast.Let("f", None, A, name_span=S, span=S)),
        ("let f(x) = a", ast.Let("f", args("x"), A, name_span=S, span=S)),
        ("let f(x, y) = a", ast.Let("f", args("x", "y"), A, name_span=S, span=S)),
        ("score = a", ast.Score(A, span=S)),
        ("mask = a", ast.Mask(A, span=S)),
        ("normalizer = softmax", ast.UseNormalizer("softmax", None, name_span=S, span=S)),
        ("normalizer = softmax()", ast.UseNormalizer("softmax", (), name_span=S, span=S)),
        (
            "normalizer = n(x = a, mask = b)",
            ast.UseNormalizer(
                "n",
                (ast.KeywordArgument("x", A, name_span=S, span=S), ast.KeywordArgument("mask", B, name_span=S, span=S)),
                name_span=S,
                span=S,
            ),
        ),
        (
            "normalizer n(x) {\n\n  weight(s, m) = a # c\n\n  shift = b\n}",
            ast.DefineNormalizer(
                "n",
                args("x"),
                (
                    ast.NormalizerLine("weight", args("s", "m"), A, target_span=S, span=S),
                    ast.NormalizerLine("shift", None, B, target_span=S, span=S),
                ),
                name_span=S,
                span=S,
            ),
        ),
        ("normalizer n {}", ast.DefineNormalizer("n", None, (), name_span=S, span=S)),
        ("dropout = a", ast.Dropout(A, span=S)),
        ("tile q = 128, k = 64", ast.Tile(128, 64, span=S)),
        ("tile auto", ast.Tile(None, None, span=S)),
        ("assume a", ast.Assume(A, span=S)),
        ("assume (a)", ast.Assume(A, span=S)),
    ],
)
def test_statements(text: str, tree: ast.Statement) -> None:
    found = statement(text)
    assert found == tree
    assert covered(text, found.span) == text


@pytest.mark.parametrize("dtype", ["f32", "int", "bool"])
def test_scalar_types(dtype: str) -> None:
    found = statement(f"param x: {dtype}")
    assert isinstance(found, ast.Param) and found.dtype == dtype


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int", "bool"])
def test_tensor_types(dtype: str) -> None:
    text = f"param x: {dtype}[Hq, 3]"
    found = statement(text)
    assert isinstance(found, ast.Param) and found.dtype == dtype


def test_spans_of_expressions() -> None:
    text = "score = (a + b) * -f(x, t[i, 2]) ** 3 if not (p < q <= r) else true"
    found = {(type(n).__name__, covered(text, n.span)) for n in nodes(statement(text))}  # type: ignore[attr-defined]
    assert found == {
        ("Score", text),
        ("IfElse", "(a + b) * -f(x, t[i, 2]) ** 3 if not (p < q <= r) else true"),
        ("Binary", "(a + b) * -f(x, t[i, 2]) ** 3"),
        ("Binary", "a + b"),
        ("Unary", "-f(x, t[i, 2]) ** 3"),
        ("Binary", "f(x, t[i, 2]) ** 3"),
        ("Call", "f(x, t[i, 2])"),
        ("Index", "t[i, 2]"),
        ("Unary", "not (p < q <= r)"),
        ("Compare", "p < q <= r"),
        ("Bool", "true"),
        *(("Number", digit) for digit in "23"),
        *(("Name", name) for name in "abxipqr"),
    }


def test_spans_of_names() -> None:
    text = "let  f ( x,  yy ) = g(t[x])"
    let = statement(text)
    assert isinstance(let, ast.Let) and let.args is not None and isinstance(let.value, ast.Call)
    (index,) = let.value.args
    assert isinstance(index, ast.Index)
    assert covered(text, let.name_span) == "f"
    assert [covered(text, arg.span) for arg in let.args] == ["x", "yy"]
    assert let.args[1].span == Span(1, 14, 1, 16)
    assert covered(text, let.value.func_span) == "g"
    assert covered(text, index.base_span) == "t"


def test_spans_over_lines() -> None:
    text = "mask = a and  # why\n    (b or\n  c)"
    mask = statement(text)
    assert isinstance(mask, ast.Mask)
    assert mask.value.span == Span(1, 8, 3, 5)
    assert mask.span == Span(1, 1, 3, 5)


def test_spans_in_a_block() -> None:
    text = "normalizer n(x) {\n    weight(s) = exp(s)\n\tshift = max\n}"
    n = statement(text)
    assert isinstance(n, ast.DefineNormalizer)
    assert n.span == Span(1, 1, 4, 2)
    assert [line.span for line in n.lines] == [Span(2, 5, 2, 23), Span(3, 2, 3, 13)]
    assert [covered(text, line.target_span) for line in n.lines] == ["weight", "shift"]


@pytest.mark.parametrize("sign", ["+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "and", "or"])
def test_a_statement_goes_on_behind_every_binary_operator(sign: str) -> None:
    (split,) = statements(f"score = a {sign} # more\n\n    # to come\n    b\n")
    assert split == statement(f"score = a {sign} b")


def test_a_statement_goes_on_in_brackets_and_behind_commas() -> None:
    assert statements("score = (a\n+ b\n)\nmask = t[\nh\n]\ntile q = 32,\n  k = 16\nlet f(a,\n  b) = a") == statements(
        "score = a + b\nmask = t[h]\ntile q = 32, k = 16\nlet f(a, b) = a"
    )
    block = "normalizer n {\n weight(s) = exp(\n s\n )\n denominator = sum +\n 1\n}"
    assert statement(block) == statement("normalizer n {\nweight(s) = exp(s)\ndenominator = sum + 1\n}")


def test_line_ends_tabs_and_byte_order_mark() -> None:
    plain = "attention a\nscore = qk\nmask = k <= q\n"
    for text in (
        plain.replace("\n", "\r\n"),
        "\ufeff" + plain,
        plain.replace(" ", "\t"),
        plain.rstrip(),
        "\n\n" + plain,
    ):
        assert parse(Source(text)) == parse(Source(plain))
    crlf = statements(plain.replace("\n", "\r\n"))
    assert [s.span for s in crlf] == [s.span for s in statements(plain)]
    assert statements("\ufeffattention a")[0].span == Span(1, 1, 1, 12)


def test_empty_files() -> None:
    for text in ("", "\n", "# nothing", "   \n\t# a\n"):
        assert statements(text) == ()


WORDS = [
    *(
        "attention",
        "const",
        "param",
        "let",
        "score",
        "mask",
        "normalizer",
        "dropout",
        "tile",
        "assume",
        "where",
        "auto",
    ),
    *("q", "k", "int", "f32", "sum", "weight", "shift", "denominator", "rescale"),
]


@pytest.mark.parametrize("word", WORDS)
def test_words_of_statements_are_names_elsewhere(word: str) -> None:
    text = (
        f"attention {word}\nparam {word}: f32[{word}] where {word} > 0\n"
        f"let {word}({word}) = {word}[{word}] + {word}({word})\n"
        f"score = {word}\nmask = {word} <\n  {word} or ({word}\n)\nnormalizer {word}({word}) {{ {word} = {word} }}\n"
        f"normalizer = {word}({word} = {word})\nassume {word}\ndropout = {word}"
    )
    kinds = " ".join(type(s).__name__ for s in statements(text))
    assert kinds == "Attention Param Let Score Mask DefineNormalizer UseNormalizer Assume Dropout"


@pytest.mark.parametrize("word", RESERVED)
def test_reserved_words_are_no_names(word: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(Source(f"let {word} = 1"))
    assert [(d.code, d.span.column) for d in caught.value.diagnostics] == [("missing-name", 5)]


def test_prelude() -> None:
    module = parse(Source(resources.read("grammar/prelude.attn"), "prelude.attn"))
    lets = {s.name: len(s.args or ()) for s in module.statements if isinstance(s, ast.Let)}
    assert lets == {
        "distance": 0,
        "causal": 0,
        "sliding_window": 1,
        "tan": 1,
        "logsigmoid": 1,
        "softplus": 1,
        "prefix_lm": 1,
        "chunked": 1,
        "dilated": 1,
        "same_document": 1,
        "softcap": 2,
        "alibi": 1,
        "relative_bias": 2,
    }
    normalizers = {s.name: s for s in module.statements if isinstance(s, ast.DefineNormalizer)}
    assert list(normalizers) == ["softmax", "softmax__sink", "softmax1", "sigmoid"]
    assert [line.target for line in normalizers["sigmoid"].lines] == ["weight", "denominator", "shift"]
    assert len(module.statements) == len(lets) + len(normalizers)


def test_the_page_of_the_language() -> None:
    """The example on top of docs/language.md, word by word."""
    module = parse(
        Source(
            """
# Sliding-window attention with ALiBi (Press et al., 2022) and a soft cap.
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
    )
    kinds = " ".join(type(s).__name__ for s in module.statements)
    assert kinds == "Attention Const Param Param Let Score Mask Tile"
    score = module.statements[5]
    assert isinstance(score, ast.Score)
    assert sexp(score.value) == "(softcap((qk * scale), cap) - (slope[h] * distance))"


def test_depth_within_the_limits_is_parsed() -> None:
    assert sexp(expression("(" * 100 + "a" + ")" * 100)) == "a"
    deep = expression("+".join("a" * 200))
    depth = 0
    while isinstance(deep, ast.Binary):
        deep, depth = deep.left, depth + 1
    assert depth == 199
