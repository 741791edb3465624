"""Which tokens make up a statement. Takes a `Scan`'s tokens, returns one `Line` a statement, and reports brackets.

A statement ends with its line, but goes on inside `(` and `[` and after a binary operator or a comma. Inside the block
of a normalizer, `NEWLINE` tokens stay, one between two lines. A bracket that is never closed, or an operator with
nothing behind it, does not swallow the statements below: a line that can only be the start of one ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attngen.errors import Diagnostic, Source, Span
from attngen.syntax.lexer import MISTAKE_LIMIT, Token

NESTING_LIMIT = 100
"""Brackets inside each other."""

BINARY = frozenset(
    {"POWER", "STAR", "SLASH", "FLOOR_DIVIDE", "PERCENT", "PLUS", "MINUS"}
    | {"SHIFT_LEFT", "SHIFT_RIGHT", "AMPERSAND", "CARET", "BAR"}
    | {"LT", "LE", "GT", "GE", "EQ", "NE", "IN", "AND", "OR"}
)
_CONTINUING = BINARY | {"COMMA"}
_CLOSER = {"LPAR": "RPAR", "LSQB": "RSQB", "LBRACE": "RBRACE"}
_CLOSERS = frozenset(_CLOSER.values())
_SIGN = {"RPAR": ")", "RSQB": "]", "RBRACE": "}"}

# What follows the first word of a statement, where the two together can't be part of an expression.
_NAMING = frozenset({"attention", "const", "param", "let", "normalizer", "tile", "assume"})
_ASSIGNING = frozenset({"score", "mask", "normalizer", "dropout"})
_AHEAD = 8  # tokens of `rescale(m, n) =`, and more
_BLOCK = frozenset({"weight", "denominator", "shift", "rescale"})


@dataclass(frozen=True, slots=True)
class Line:
    """The tokens of one statement. A `BROKEN` token among them stands where a mistake was reported already."""

    tokens: tuple[Token, ...]

    @property
    def span(self) -> Span:
        return self.tokens[0].span.to(self.tokens[-1].span)


def split(tokens: Sequence[Token], source: Source) -> tuple[list[Line], list[Diagnostic]]:
    """The statements of a file, and the mistakes in its brackets."""
    splitter = _Splitter(source)
    for number, token in enumerate(tokens):
        if len(splitter.mistakes) >= MISTAKE_LIMIT:
            break
        if token.type == "NEWLINE":
            splitter.newline(tokens[number + 1 : number + 1 + _AHEAD])
        else:
            splitter.take(token)
    splitter.finish()
    return splitter.lines, splitter.mistakes


class _Splitter:
    def __init__(self, source: Source):
        self.source = source
        self.lines: list[Line] = []
        self.mistakes: list[Diagnostic] = []
        self.current: list[Token] = []
        self.open: list[Token] = []
        self.places: list[int] = []  # of the open brackets in `current`
        self.count = {"RPAR": 0, "RSQB": 0, "RBRACE": 0}  # open brackets by what closes them
        self.too_deep = False

    def take(self, token: Token) -> None:
        if token.type in _CLOSER:
            self.open.append(token)
            self.places.append(len(self.current))
            self.count[_CLOSER[token.type]] += 1
            if len(self.open) > NESTING_LIMIT:
                if not self.too_deep:
                    message = f"brackets are nested more than {NESTING_LIMIT} deep"
                    self._report("nesting", message, token, "name the inner part with a `let`")
                    self.places[-1] += 1
                    self.current.append(Token("BROKEN", token.text, token.span))
                self.too_deep = True
        elif token.type in _CLOSERS:
            if not self.count[token.type]:
                self._unmatched(token)
                return
            if _CLOSER[self.open[-1].type] != token.type:
                self._unclosed()
                while _CLOSER[self.open[-1].type] != token.type:
                    self._pop()
            self._pop()
        self.current.append(token)

    def newline(self, ahead: Sequence[Token]) -> None:
        """The end of a line, with some tokens behind it."""
        if not self.current or not ahead:
            return
        last = self.current[-1]
        in_block = bool(self.open) and self.open[0].type == "LBRACE"
        in_brackets = len(self.open) > in_block
        if ahead[0].type == "NEWLINE":
            # Nothing is decided at an empty line, unless nothing is open.
            if not self.open and last.type not in _CONTINUING:
                self._end()
        elif starts_statement(ahead, last if in_brackets else None):
            if self.open:
                self._unclosed()
            self._end()
        elif in_block:
            if in_brackets and _starts_block_line(ahead):
                self._unclosed()
                while len(self.open) > 1:
                    self._pop()
                in_brackets = False
            if not in_brackets and (last.type not in _CONTINUING or _starts_block_line(ahead)):
                self.current.append(Token("NEWLINE", "\n", last.span))
        elif not in_brackets and last.type not in _CONTINUING:
            self._end()

    def finish(self) -> None:
        if self.open:
            self._unclosed()
        self._end()

    def _end(self) -> None:
        if self.current:
            self.lines.append(Line(tuple(self.current)))
        self.current = []
        while self.open:
            self._pop()
        self.too_deep = False

    def _pop(self) -> None:
        self.count[_CLOSER[self.open.pop().type]] -= 1
        self.places.pop()

    def _unmatched(self, token: Token) -> None:
        """Report a closing bracket that none of its kind is open for; it is taken to close whatever is."""
        if self.mistakes and self.mistakes[-1].span.line == token.span.line:
            pass  # One mistake in the brackets of a line is enough.
        elif self.open:
            opener = self.open[-1]
            message = f"`{token.text}` can't close the `{opener.text}` at {opener.span.line}:{opener.span.column}"
            self._report("unmatched-bracket", message, token, f"write `{_SIGN[_CLOSER[opener.type]]}`")
            self._pop()
        else:
            message = f"`{token.text}` closes no bracket"
            self._report("unmatched-bracket", message, token, "delete it, or open the bracket")
        self.current.append(Token("BROKEN", token.text, token.span))

    def _unclosed(self) -> None:
        """Report the innermost open bracket, unless this statement's brackets were reported as too many."""
        opener = self.open[-1]
        if not self.too_deep:
            message = f"`{opener.text}` is never closed"
            self._report("unclosed-bracket", message, opener, f"add `{_SIGN[_CLOSER[opener.type]]}`")
        # What a bracket that never closes holds can't be judged; the lines of a block can.
        block = opener.type == "LBRACE" and self.current[0].text == "normalizer"
        place = len(self.current) if block else self.places[-1]
        self.current.insert(place, Token("BROKEN", opener.text, opener.span))

    def _report(self, code: str, message: str, token: Token, fix: str) -> None:
        self.mistakes.append(Diagnostic(code, message, token.span, fix, self.source))


def starts_statement(ahead: Sequence[Token], before: Token | None) -> bool:
    """Whether two tokens that start a line can only begin a statement. `before`: the token before, in brackets."""
    if len(ahead) < 2:
        return False
    word, next = ahead[:2]
    if word.text in _NAMING and next.type == "NAME":
        return True
    # Inside brackets `mask = …` may be an argument of a normalizer.
    argument = before is not None and before.type in ("LPAR", "COMMA")
    return word.text in _ASSIGNING and next.type == "EQUALS" and not argument


def _starts_block_line(ahead: Sequence[Token]) -> bool:
    """Whether the tokens at the start of a line can only begin a line of a normalizer: `weight(s, m) =`."""
    types = [token.type for token in ahead]
    if not ahead or ahead[0].text not in _BLOCK:
        return False
    if "EQUALS" not in types:
        return False
    formals = types[1 : types.index("EQUALS")]
    return not formals or (formals[0] == "LPAR" and formals[-1] == "RPAR" and {*formals[1:-1]} <= {"NAME", "COMMA"})
