"""Text to tree to text to tree, on trees drawn from the whole syntax, and on texts with comments strewn in."""

from __future__ import annotations

import re

from hypothesis import given, settings, strategies as st

from attngen.errors import NOWHERE as S, Source
from attngen.syntax import ast
from attngen.syntax.formatter import format_text
from attngen.syntax.parser import RESERVED, parse
from attngen.syntax.printing import unparse

WORDS = ["q", "k", "qk", "mask", "let", "where", "score", "weight", "tile", "normalizer", "e1", "_", "auto", "shift"]
NAMES = st.sampled_from(WORDS) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).filter(
    lambda name: name not in (*RESERVED, "True", "False")
)
INTEGERS = st.integers(0, 2**63 - 1)
FLOATS = st.floats(0.0, allow_nan=False, allow_infinity=False).map(abs)
NUMBERS = st.builds(ast.Number, st.integers(0, 9) | INTEGERS | FLOATS, span=st.just(S))
LEAVES = NUMBERS | st.builds(ast.Bool, st.booleans(), span=st.just(S)) | st.builds(ast.Name, NAMES, span=st.just(S))
BINARY = ["**", "*", "/", "//", "%", "+", "-", "and", "or"]
COMPARISONS = ["<", "<=", ">", ">=", "==", "!="]


def tuples(parts: st.SearchStrategy, least: int, most: int = 3) -> st.SearchStrategy:
    return st.lists(parts, min_size=least, max_size=most).map(tuple)


def grown(parts: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    chains = st.integers(1, 3).flatmap(
        lambda n: st.builds(
            ast.Compare, tuples(parts, n + 1, n + 1), tuples(st.sampled_from(COMPARISONS), n, n), span=st.just(S)
        )
    )
    return st.one_of(
        st.builds(ast.Call, NAMES, tuples(parts, 0), func_span=st.just(S), span=st.just(S)),
        st.builds(ast.Index, NAMES, tuples(parts, 1), base_span=st.just(S), span=st.just(S)),
        st.builds(ast.Unary, st.sampled_from(["-", "not"]), parts, span=st.just(S)),
        st.builds(ast.Binary, st.sampled_from(BINARY), parts, parts, span=st.just(S)),
        chains,
        st.builds(ast.IfElse, parts, parts, parts, span=st.just(S)),
    )


EXPRESSIONS = st.recursive(LEAVES, grown, max_leaves=25)
FORMALS = st.none() | st.lists(
    st.builds(ast.Argument, NAMES, span=st.just(S)), min_size=1, max_size=3, unique_by=lambda a: a.name
).map(tuple)
DIMS = tuples(st.builds(ast.Name, NAMES, span=st.just(S)) | st.builds(ast.Number, INTEGERS, span=st.just(S)), 1)
SPANS = {"name_span": st.just(S), "span": st.just(S)}
WHERE = st.none() | EXPRESSIONS
KEYWORDS = st.none() | tuples(st.builds(ast.KeywordArgument, NAMES, EXPRESSIONS, **SPANS), 0)
TARGETS = st.sampled_from(["weight", "denominator", "shift", "rescale"])
LINES = tuples(
    st.builds(ast.NormalizerLine, TARGETS, FORMALS, EXPRESSIONS, target_span=st.just(S), span=st.just(S)), 0, 4
)
SIZES = st.sampled_from([2**i for i in range(12)])
STATEMENTS = st.one_of(
    st.builds(ast.Attention, NAMES, **SPANS),
    st.builds(ast.Const, NAMES, EXPRESSIONS, **SPANS),
    st.builds(ast.Param, NAMES, st.sampled_from(["f32", "int", "bool"]), st.just(()), WHERE, **SPANS),
    st.builds(ast.Param, NAMES, st.sampled_from(["f32", "f16", "bf16"]), DIMS, WHERE, **SPANS),
    st.builds(ast.Let, NAMES, FORMALS, EXPRESSIONS, **SPANS),
    st.builds(ast.Score, EXPRESSIONS, span=st.just(S)),
    st.builds(ast.Mask, EXPRESSIONS, span=st.just(S)),
    st.builds(ast.UseNormalizer, NAMES, KEYWORDS, **SPANS),
    st.builds(ast.DefineNormalizer, NAMES, FORMALS, LINES, **SPANS),
    st.builds(ast.Dropout, EXPRESSIONS, span=st.just(S)),
    st.builds(ast.Tile, SIZES, SIZES, span=st.just(S)) | st.just(ast.Tile(None, None, span=S)),
    st.builds(ast.Assume, EXPRESSIONS, span=st.just(S)),
)
MODULES = st.builds(ast.Module, tuples(STATEMENTS, 0, 6))
QUICK = settings(max_examples=150)


@given(MODULES)
@QUICK
def test_tree_to_text_to_tree(module: ast.Module) -> None:
    text = unparse(module)
    assert parse(Source(text)) == module
    assert format_text(Source(text)) == text


def breakable(text: str) -> list[int]:
    """Where a line of canonical text may end: in brackets, behind an operator or a comma, at its end."""
    places: list[int] = []
    depth = 0
    for match in re.finditer(r"[A-Za-z0-9_.]+(?:(?<=[0-9.]e)[+-][0-9]+)?|\*\*|//|[<>=!]=|\S|\n", text):
        depth += (match.group() in "([") - (match.group() in ")]")
        operator = re.fullmatch(r"\*\*|//|[<>=!]=|[-+*/%<>,]|and|or|\n", match.group())
        if operator or depth:
            places.append(match.end() - (match.group() == "\n"))
    return places


@given(MODULES, st.data())
@QUICK
def test_comments_and_line_ends_anywhere(module: ast.Module, data: st.DataObject) -> None:
    """Comments strewn into a text all stay, in their order; the tree stays, and formatting twice changes nothing."""
    text = unparse(module)
    places = breakable(text)
    if not places:
        return
    chosen = sorted(data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=5, unique=True)), reverse=True)
    for number, place in enumerate(chosen):
        ends_line = text[place : place + 1] == "\n"
        blanks = "\n" * data.draw(st.integers(0, 3))
        text = f"{text[:place]} #{number}{'' if ends_line else chr(10)}{blanks}{text[place:]}"
    once = format_text(Source(text))
    assert parse(Source(once)) == module
    assert format_text(Source(once)) == once
    assert [int(found) for found in re.findall(r"#(\d+)", once)] == list(reversed(range(len(chosen))))
    assert "\n\n\n" not in once
