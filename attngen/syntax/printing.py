"""Syntax tree to text, in the canonical form: one space around operators, no bracket that the tree does not need.

Gives a statement as `Chunk`s (a normalizer's block has one a line), a chunk as `Word`s, and joins words to lines of at
most 100 columns. Comments and blank lines are the matter of `formatter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from attngen.syntax import ast
from attngen.syntax.lines import BINARY

WIDTH = 100
INDENT = "    "

_OPERATOR = {
    "**": "POWER",
    "*": "STAR",
    "/": "SLASH",
    "//": "FLOOR_DIVIDE",
    "%": "PERCENT",
    "+": "PLUS",
    "-": "MINUS",
    "<<": "SHIFT_LEFT",
    ">>": "SHIFT_RIGHT",
    "&": "AMPERSAND",
    "^": "CARET",
    "|": "BAR",
    "<": "LT",
    "<=": "LE",
    ">": "GT",
    ">=": "GE",
    "==": "EQ",
    "!=": "NE",
    "and": "AND",
    "or": "OR",
}
_BINDING = {
    "or": 1,
    "and": 2,
    "|": 5,
    "^": 6,
    "&": 7,
    "<<": 8,
    ">>": 8,
    "+": 9,
    "-": 9,
    "*": 10,
    "/": 10,
    "//": 10,
    "%": 10,
    "**": 12,
}
_NOT, _COMPARE, _NEGATIVE, _PRIMARY = 3, 4, 11, 13

# How unwelcome a line break is behind a word of this type; where none is given, there is none.
_BREAK = {
    "COMMA": 0,
    "OR": 2,
    "AND": 3,
    "LT": 5,
    "LE": 5,
    "GT": 5,
    "GE": 5,
    "EQ": 5,
    "NE": 5,
    "IN": 5,
    "BAR": 5,
    "CARET": 5,
    "AMPERSAND": 5,
    "SHIFT_LEFT": 6,
    "SHIFT_RIGHT": 6,
    "PLUS": 6,
    "MINUS": 6,
    "STAR": 7,
    "SLASH": 7,
    "FLOOR_DIVIDE": 7,
    "PERCENT": 7,
    "POWER": 8,
    "LPAR": 9,
    "LSQB": 9,
}
_BREAK_BEFORE_CHOICE = 1

Numeral = Callable[[ast.Number], str]
"""How a number is written: the formatter keeps the text that it had."""


@dataclass(frozen=True, slots=True)
class Word:
    """A token to be printed: `type` as in the grammar."""

    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """What has a line of its own if it fits."""

    words: tuple[Word, ...]
    indented: bool = False


def unparse(module: ast.Module) -> str:
    """The canonical text of a tree, without comments: `parse` of it gives the tree again."""
    lines = [
        line
        for statement in module.statements
        for chunk in chunks(statement, plain_numeral)
        for line in wrap(chunk.words, INDENT if chunk.indented else "")
    ]
    return "".join(line + "\n" for line in lines)


def plain_numeral(number: ast.Number) -> str:
    return repr(number.value)


# ---------------------------------------------------------------- trees to words


def chunks(statement: ast.Statement, numeral: Numeral) -> list[Chunk]:
    """The lines of a statement."""
    printer = _Printer(numeral)
    if isinstance(statement, ast.DefineNormalizer):
        printer.word("normalizer").name(statement.name).formals(statement.args).add("LBRACE", "{")
        return [Chunk(printer.taken()), *(_line(line, numeral) for line in statement.lines), Chunk((_CLOSE,))]
    printer.statement(statement)
    return [Chunk(printer.taken())]


_CLOSE = Word("RBRACE", "}")


def _line(line: ast.NormalizerLine, numeral: Numeral) -> Chunk:
    words = _Printer(numeral).name(line.target).formals(line.args).equals(line.value).taken()
    return Chunk(words, indented=True)


class _Printer:
    def __init__(self, numeral: Numeral):
        self.numeral = numeral
        self.words: list[Word] = []

    def taken(self) -> tuple[Word, ...]:
        return tuple(self.words)

    def add(self, type: str, text: str) -> _Printer:
        self.words.append(Word(type, text))
        return self

    def word(self, text: str) -> _Printer:
        return self.add(text.upper(), text)

    def name(self, text: str) -> _Printer:
        return self.add("NAME", text)

    def equals(self, value: ast.Expr) -> _Printer:
        return self.add("EQUALS", "=").expression(value)

    def formals(self, args: tuple[ast.Argument, ...] | None) -> _Printer:
        if args is not None:
            self.add("LPAR", "(")
            for number, arg in enumerate(args):
                self.separator(number).name(arg.name)
            self.add("RPAR", ")")
        return self

    def operator(self, op: str) -> _Printer:
        """A comparison's; that of two words is one of each."""
        match op:
            case "in":
                return self.word("in")
            case "not in":
                return self.word("not").word("in")
            case _:
                return self.add(_OPERATOR[op], op)

    def separator(self, number: int) -> _Printer:
        return self.add("COMMA", ",") if number else self

    def statement(self, s: ast.Statement) -> None:
        match s:
            case ast.Attention():
                self.word("attention").name(s.name)
            case ast.Const():
                self.word("const").name(s.name).equals(s.value)
            case ast.Param():
                self.word("param").name(s.name).add("COLON", ":").name(s.dtype)
                if s.dims:
                    self.add("LSQB", "[").all(s.dims).add("RSQB", "]")
                if s.where is not None:
                    self.word("where").expression(s.where)
                if s.fixed:
                    self.word("fixed")
            case ast.Let():
                self.word("let").name(s.name).formals(s.args).equals(s.value)
            case ast.Score():
                self.word("score").equals(s.value)
            case ast.Mask():
                self.word("mask").equals(s.value)
            case ast.UseNormalizer():
                self.word("normalizer").add("EQUALS", "=").name(s.name)
                if s.args is not None:
                    self.add("LPAR", "(")
                    for number, arg in enumerate(s.args):
                        self.separator(number).name(arg.name).equals(arg.value)
                    self.add("RPAR", ")")
            case ast.DefineNormalizer():
                pass  # `chunks` has taken it
            case ast.Dropout():
                self.word("dropout").equals(s.value)
            case ast.Tile():
                self.word("tile")
                if s.q is None or s.k is None:
                    self.word("auto")
                else:
                    self.name("q").add("EQUALS", "=").add("NUMBER", str(s.q)).add("COMMA", ",")
                    self.name("k").add("EQUALS", "=").add("NUMBER", str(s.k))
            case ast.Assume():
                self.word("assume").expression(s.value)
            case _:
                assert_never(s)

    def all(self, parts: Iterable[ast.Expr]) -> _Printer:
        for number, part in enumerate(parts):
            self.separator(number).expression(part)
        return self

    def expression(self, e: ast.Expr, binding: int = 0) -> _Printer:
        """`e`, in brackets if it binds less than `binding`."""
        own = _binding(e)
        if own < binding:
            return self.add("LPAR", "(").expression(e).add("RPAR", ")")
        match e:
            case ast.Number():
                return self.add("NUMBER", self.numeral(e))
            case ast.Bool():
                return self.word("true" if e.value else "false")
            case ast.Name():
                return self.name(e.id)
            case ast.Call():
                return self.name(e.func).add("LPAR", "(").all(e.args).add("RPAR", ")")
            case ast.Index():
                return self.name(e.base).add("LSQB", "[").all(e.indices).add("RSQB", "]")
            case ast.Unary():
                return (self.word("not") if e.op == "not" else self.add("NEGATIVE", e.op)).expression(e.operand, own)
            case ast.Binary():
                # `**` leans to the right, and its exponent may be negative; all others lean to the left.
                left, right = (_PRIMARY, _NEGATIVE) if e.op == "**" else (own, own + 1)
                return self.expression(e.left, left).add(_OPERATOR[e.op], e.op).expression(e.right, right)
            case ast.Compare():
                self.expression(e.operands[0], own + 1)
                for op, operand in zip(e.ops, e.operands[1:], strict=True):
                    self.operator(op).expression(operand, own + 1)
                return self
            case ast.IfElse():
                self.expression(e.then, 1).word("if").expression(e.condition, 1)
                return self.word("else").expression(e.otherwise)
            case _:
                assert_never(e)


def _binding(e: ast.Expr) -> int:
    match e:
        case ast.IfElse():
            return 0
        case ast.Binary():
            return _BINDING[e.op]
        case ast.Unary():
            return _NOT if e.op == "not" else _NEGATIVE
        case ast.Compare():
            return _COMPARE
        case _:
            return _PRIMARY


# ---------------------------------------------------------------- words to lines


_VALUE_ENDS = frozenset({"NAME", "NUMBER", "TRUE", "FALSE", "RPAR", "RSQB"})


def signed(words: Iterable[Word]) -> list[Word]:
    """The words with each `-` in front of a single operand marked as such: its type becomes `NEGATIVE`."""
    result: list[Word] = []
    for word in words:
        unary = word.type in ("MINUS", "TILDE") and not (result and result[-1].type in _VALUE_ENDS)
        result.append(Word("NEGATIVE", word.text) if unary else word)
    return result


def _space(left: Word, right: Word) -> bool:
    """Whether a space stands between two words."""
    if left.type in ("LPAR", "LSQB", "NEGATIVE") or right.type in ("RPAR", "RSQB", "COMMA", "COLON"):
        return False
    return not (left.type == "NAME" and right.type in ("LPAR", "LSQB"))


def wrap(words: Sequence[Word], indent: str, *, width: int = WIDTH, depth: int = 0, hang: bool = False) -> list[str]:
    """The words as lines, broken only where a statement goes on: in brackets, behind operators and commas.

    Of the places where a line that is too long may end, the last of those outermost in the tree is taken. `depth` is
    the number of brackets open before the words; with `hang`, the first line too is a continuation.
    """
    lines: list[str] = []
    begin = 0
    text = indent + (INDENT if hang else "")
    best: tuple[tuple[int, int], int, int] | None = None  # (how unwelcome, end in `text`, index of the next word)
    number = 0
    while number < len(words):
        word = words[number]
        space = " " if number > begin and _space(words[number - 1], word) else ""
        if best is not None and len(text) + len(space) + len(word.text) > width:
            _, end, begin = best
            lines.append(text[:end])
            text = indent + INDENT
            depth = _depth(words, begin, depth, number)
            number, best = begin, None
            continue
        cost = _cost(words, number, depth)
        if word.type in ("IF", "ELSE") and depth and number > begin and not (best and best[0] < (depth, 1)):
            best = ((depth, _BREAK_BEFORE_CHOICE), len(text), number)
        text += space + word.text
        number += 1
        depth += (word.type in ("LPAR", "LSQB")) - (word.type in ("RPAR", "RSQB"))
        if cost is not None and number < len(words) and not (best and best[0] < cost):
            best = (cost, len(text), number)
    lines.append(text)
    return lines


def _cost(words: Sequence[Word], number: int, depth: int) -> tuple[int, int] | None:
    """How unwelcome a break behind a word is, at this depth of brackets; None where it is not allowed."""
    type = words[number].type
    if type not in _BREAK or (type not in BINARY and type not in ("COMMA", "LPAR", "LSQB")):
        return None
    return (depth + (type in ("LPAR", "LSQB")), _BREAK[type])


def _depth(words: Sequence[Word], begin: int, depth: int, number: int) -> int:
    """The depth before the word at `begin`, from that before the word at `number`."""
    for word in words[begin:number]:
        depth -= (word.type in ("LPAR", "LSQB")) - (word.type in ("RPAR", "RSQB"))
    return depth
