"""From reductions of the grammar to nodes. `Builder` has one method a rule of `grammar/attn.lark`, called bottom-up.

Expressions travel as `Part`s: the node, the text that it takes up with its brackets, and how deep it is, so that no
tree is ever built that a recursive pass could not walk. A mistake that only shows here raises `Refused`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attngen.errors import Diagnostic, Source, Span
from attngen.syntax import ast
from attngen.syntax.lexer import Token

DEPTH_LIMIT = 200
"""Levels of a syntax tree; a sum of n terms has n. Every pass may recurse on this, within Python's 1,000 frames."""
WIDTH_LIMIT = 100
"""Arguments of one call, indices of one tensor, links of one chain of comparisons."""

DTYPES = ("f32", "f16", "bf16", "int", "u8", "i8", "i16", "bool")
SCALAR_DTYPES = ("f32", "int", "bool")
_MEANT = {
    **dict.fromkeys(("float", "float32", "fp32", "single", "real", "f64", "float64", "double", "tf32"), "f32"),
    **dict.fromkeys(("half", "float16", "fp16"), "f16"),
    **dict.fromkeys(("bfloat16", "bfloat"), "bf16"),
    **dict.fromkeys(("i32", "i64", "int32", "int64", "integer", "long", "index"), "int"),
    "int8": "i8",
    "int16": "i16",
    "short": "i16",
    "uint8": "u8",
    "byte": "u8",
    **dict.fromkeys(("boolean", "b1", "i1", "pred"), "bool"),
}


class Refused(Exception):
    """A statement that the grammar takes and the language does not."""

    def __init__(self, diagnostic: Diagnostic):
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


@dataclass(frozen=True, slots=True)
class Part:
    node: ast.Expr
    span: Span  # brackets around the node included
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Listed:
    """What stands between brackets, and where they close."""

    parts: tuple[Part, ...]
    formals: tuple[ast.Argument, ...]
    keywords: tuple[ast.KeywordArgument, ...]
    span: Span


_Child = Token | Part | Listed | ast.NormalizerLine | ast.KeywordArgument | None


def _token(child: _Child) -> Token:
    assert isinstance(child, Token)
    return child


def _part(child: _Child) -> Part:
    assert isinstance(child, Part)
    return child


def _parts(children: list[_Child]) -> tuple[Part, ...]:
    return tuple(child for child in children if isinstance(child, Part))


def _joined(signs: list[Token]) -> Iterator[str]:
    """The operators of a chain; `not in` is one of two words."""
    for before, sign in zip([None, *signs], signs, strict=False):
        if sign.type != "NOT":
            yield "not in" if before is not None and before.type == "NOT" else sign.text


class Builder:
    """The callbacks of the parser; each gets the children of its rule."""

    def __init__(self) -> None:
        self.source = Source("")

    def _refuse(self, code: str, message: str, span: Span, fix: str) -> Refused:
        return Refused(Diagnostic(code, message, span, fix, self.source))

    def _made(self, node: ast.Expr, parts: tuple[Part, ...]) -> Part:
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > DEPTH_LIMIT:
            message = f"the expression is more than {DEPTH_LIMIT} levels deep here"
            raise self._refuse("nesting", message, node.span, "name its parts with `let`s")
        if len(parts) > WIDTH_LIMIT:
            message = f"{len(parts):,} parts in one call, index or comparison"
            raise self._refuse("nesting", message, node.span, f"{WIDTH_LIMIT} at most")
        return Part(node, node.span, depth)

    # ------------------------------------------------------------ expressions

    def name(self, children: list[_Child]) -> Part:
        token = _token(children[0])
        return Part(ast.Name(token.text, span=token.span), token.span)

    def number(self, children: list[_Child]) -> Part:
        token = _token(children[0])
        value = int(token.text) if token.text.isdigit() else float(token.text)
        return Part(ast.Number(value, span=token.span), token.span)

    def boolean(self, children: list[_Child]) -> Part:
        token = _token(children[0])
        return Part(ast.Bool(token.type == "TRUE", span=token.span), token.span)

    def group(self, children: list[_Child]) -> Part:
        inner = _part(children[1])
        return Part(inner.node, _token(children[0]).span.to(_token(children[2]).span), inner.depth)

    def arguments(self, children: list[_Child]) -> Listed:
        parts = _parts(children)
        return Listed(parts, (), (), parts[0].span.to(parts[-1].span))

    def call(self, children: list[_Child]) -> Part:
        name, inside, close = _token(children[0]), children[2], _token(children[3])
        parts = inside.parts if isinstance(inside, Listed) else ()
        span = name.span.to(close.span)
        return self._made(ast.Call(name.text, tuple(p.node for p in parts), func_span=name.span, span=span), parts)

    def index(self, children: list[_Child]) -> Part:
        name, inside, close = _token(children[0]), children[2], _token(children[3])
        assert isinstance(inside, Listed)
        nodes = tuple(p.node for p in inside.parts)
        node = ast.Index(name.text, nodes, base_span=name.span, span=name.span.to(close.span))
        return self._made(node, inside.parts)

    def unary(self, children: list[_Child]) -> Part:
        op, operand = _token(children[0]), _part(children[1])
        return self._made(ast.Unary(op.text, operand.node, span=op.span.to(operand.span)), (operand,))

    def binary(self, children: list[_Child]) -> Part:
        left, op, right = _part(children[0]), _token(children[1]), _part(children[2])
        node = ast.Binary(op.text, left.node, right.node, span=left.span.to(right.span))
        return self._made(node, (left, right))

    def compare(self, children: list[_Child]) -> Part:
        parts = _parts(children)
        signs = [child for child in children if isinstance(child, Token)]
        ops = tuple(_joined(signs))
        span = parts[0].span.to(parts[-1].span)
        if any(sign.type == "IN" for sign in signs):
            self._member(parts, signs, span)
        return self._made(ast.Compare(tuple(p.node for p in parts), ops, span=span), parts)

    def _member(self, parts: tuple[Part, ...], signs: list[Token], span: Span) -> None:
        """Refuses what `in` does not take: more comparisons beside it, and anything behind it but a list's name."""
        *others, behind = parts
        if len(others) > 1:
            message = "`in` stands in no chain of comparisons"
            raise self._refuse("chain", message, span, "put brackets around it, or join two conditions with `and`")
        if isinstance(behind.node, ast.Name | ast.Index) and behind.span == behind.node.span:
            return
        word = " ".join(sign.text for sign in signs)
        match behind.node:
            case ast.Name() | ast.Index():
                fix = "leave out the brackets around it"
            case ast.Number() | ast.Bool():
                fix = f"write `{'!=' if len(signs) > 1 else '=='}` to compare with one value"
            case _:
                fix = f"write `… {word} t[i]` with `param t: int[…]`, whose last axis is the list"
        message = f"`{word}` looks in a tensor param, and this is none"
        raise self._refuse("list", message, behind.span, fix)

    def if_else(self, children: list[_Child]) -> Part:
        then, condition, otherwise = _part(children[0]), _part(children[2]), _part(children[4])
        node = ast.IfElse(condition.node, then.node, otherwise.node, span=then.span.to(otherwise.span))
        return self._made(node, (then, condition, otherwise))

    # ------------------------------------------------------------ statements

    def attention(self, children: list[_Child]) -> ast.Attention:
        word, name = _token(children[0]), _token(children[1])
        return ast.Attention(name.text, name_span=name.span, span=word.span.to(name.span))

    def const(self, children: list[_Child]) -> ast.Const:
        word, name, value = _token(children[0]), _token(children[1]), _part(children[3])
        return ast.Const(name.text, value.node, name_span=name.span, span=word.span.to(value.span))

    def param(self, children: list[_Child]) -> ast.Param:
        word, name, dtype, dims, where = (*(_token(children[i]) for i in (0, 1, 3)), children[4], children[6])
        type_end = dims.span if isinstance(dims, Listed) else dtype.span
        fixed = children[7]
        end = where.span if isinstance(where, Part) else type_end
        if isinstance(fixed, Token):
            end = fixed.span
            if not dtype.text.startswith(("f", "b")) or dtype.text == "bool":
                message = f"`{name.text}` is no float, so it has no gradient anyway"
                raise self._refuse("fixed", message, fixed.span, "leave out `fixed`")
        allowed = DTYPES if isinstance(dims, Listed) else SCALAR_DTYPES
        if dtype.text not in allowed:
            kind = "a tensor" if isinstance(dims, Listed) else "a scalar"
            meant = dtype.text if dtype.text in DTYPES else _MEANT.get(dtype.text, "")
            wider = "f32" if meant in ("f16", "bf16") else "int"
            fix = f"write {meant if meant in allowed else wider}" if meant else f"one of {', '.join(allowed)}"
            message = f"{kind} can't have the type `{dtype.text}`; there are {', '.join(allowed)}"
            raise self._refuse("unknown-type", message, dtype.span, fix)
        return ast.Param(
            name.text,
            dtype.text,
            tuple(p.node for p in dims.parts if isinstance(p.node, ast.Name | ast.Number))
            if isinstance(dims, Listed)
            else (),
            where.node if isinstance(where, Part) else None,
            fixed=isinstance(fixed, Token),
            name_span=name.span,
            span=word.span.to(end),
        )

    def dims(self, children: list[_Child]) -> Listed:
        parts = _parts(children)
        for part in parts:
            if isinstance(part.node, ast.Number) and isinstance(part.node.value, float):
                raise self._refuse("dimension", "a dimension is a whole number", part.span, "write it without a point")
        return Listed(parts, (), (), _token(children[0]).span.to(_token(children[-1]).span))

    def let(self, children: list[_Child]) -> ast.Let:
        word, name, formals, value = _token(children[0]), _token(children[1]), children[2], _part(children[4])
        args = formals.formals if isinstance(formals, Listed) else None
        return ast.Let(name.text, args, value.node, name_span=name.span, span=word.span.to(value.span))

    def formals(self, children: list[_Child]) -> Listed:
        names = [child for child in children if isinstance(child, Token) and child.type == "NAME"]
        seen: set[str] = set()
        for name in names:
            if name.text in seen:
                message = f"the argument `{name.text}` stands here twice"
                raise self._refuse("duplicate", message, name.span, "give each argument its own name")
            seen.add(name.text)
        span = _token(children[0]).span.to(_token(children[-1]).span)
        return Listed((), tuple(ast.Argument(name.text, span=name.span) for name in names), (), span)

    def score(self, children: list[_Child]) -> ast.Score:
        word, value = _token(children[0]), _part(children[2])
        return ast.Score(value.node, span=word.span.to(value.span))

    def mask(self, children: list[_Child]) -> ast.Mask:
        word, value = _token(children[0]), _part(children[2])
        return ast.Mask(value.node, span=word.span.to(value.span))

    def use(self, children: list[_Child]) -> ast.UseNormalizer:
        word, name, keywords = _token(children[0]), _token(children[2]), children[3]
        args = keywords.keywords if isinstance(keywords, Listed) else None
        end = keywords.span if isinstance(keywords, Listed) else name.span
        return ast.UseNormalizer(name.text, args, name_span=name.span, span=word.span.to(end))

    def keywords(self, children: list[_Child]) -> Listed:
        found = tuple(child for child in children if isinstance(child, ast.KeywordArgument))
        return Listed((), (), found, _token(children[0]).span.to(_token(children[-1]).span))

    def keyword(self, children: list[_Child]) -> ast.KeywordArgument:
        name, value = _token(children[0]), _part(children[2])
        return ast.KeywordArgument(name.text, value.node, name_span=name.span, span=name.span.to(value.span))

    def definition(self, children: list[_Child]) -> ast.DefineNormalizer:
        word, name, formals, lines, close = children[0], _token(children[1]), children[2], children[4], children[5]
        assert isinstance(lines, tuple)
        return ast.DefineNormalizer(
            name.text,
            formals.formals if isinstance(formals, Listed) else None,
            lines,
            name_span=name.span,
            span=_token(word).span.to(_token(close).span),
        )

    def lines(self, children: list[_Child]) -> tuple[ast.NormalizerLine, ...]:
        return tuple(child for child in children if isinstance(child, ast.NormalizerLine))

    def line(self, children: list[_Child]) -> ast.NormalizerLine:
        target, formals, value = _token(children[0]), children[1], _part(children[3])
        args = formals.formals if isinstance(formals, Listed) else None
        span = target.span.to(value.span)
        return ast.NormalizerLine(target.text, args, value.node, target_span=target.span, span=span)

    def dropout(self, children: list[_Child]) -> ast.Dropout:
        word, value = _token(children[0]), _part(children[2])
        return ast.Dropout(value.node, span=word.span.to(value.span))

    def tile_auto(self, children: list[_Child]) -> ast.Tile:
        return ast.Tile(None, None, span=_token(children[0]).span.to(_token(children[1]).span))

    def tile(self, children: list[_Child]) -> ast.Tile:
        word, axis, size, second, second_size = (_token(children[i]) for i in (0, 1, 3, 5, 7))
        for name, wanted in ((axis, "q"), (second, "k")):
            if name.text != wanted:
                message = f"`{name.text}` where the tile size of `{wanted}` is expected"
                raise self._refuse("tile", message, name.span, "write `tile q = 128, k = 64`")
        for number in (size, second_size):
            if not number.text.isdigit():
                raise self._refuse("tile", "a tile size is a whole number", number.span, "write it without a point")
        return ast.Tile(int(size.text), int(second_size.text), span=word.span.to(second_size.span))

    def assume(self, children: list[_Child]) -> ast.Assume:
        word, value = _token(children[0]), _part(children[1])
        return ast.Assume(value.node, span=word.span.to(value.span))
