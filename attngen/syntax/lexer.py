"""Text to tokens and comments. Takes a `Source` and the words and signs of the grammar, returns a `Scan`.

Ends of lines are tokens here; which of them end a statement is the matter of `lines`. Signs of other languages (`&&`,
`^`, `!`, `≤`) are reported and replaced by what they stand for, so that the rest of the line is still looked at; what
stands for nothing becomes a `BROKEN` token, behind which nothing on its line is reported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from attngen.errors import Diagnostic, Source, Span
from attngen.syntax.habits import INSTEAD

SIZE_LIMIT = 64 * 1024
"""Characters in a file. A spec is a page; the largest that this allows is scanned and parsed within a second."""
NAME_LIMIT = 100
NUMBER_LIMIT = 100
INT_LIMIT = 2**63
MISTAKE_LIMIT = 20
"""Mistakes reported at once."""


@dataclass(frozen=True, slots=True)
class Token:
    """`type` is a terminal of the grammar, or `BROKEN`, or `$END`."""

    type: str
    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Comment:
    """`text` from the `#` on, without trailing blanks."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the grammar says about tokens: its signs and reserved words, each with its terminal, and its numbers."""

    signs: Mapping[str, str]
    reserved: Mapping[str, str]
    number: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Scan:
    tokens: tuple[Token, ...]
    comments: tuple[Comment, ...]
    mistakes: tuple[Diagnostic, ...]


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LAST_WORD = re.compile(_WORD.pattern + r"\Z")

_BLANK, _NEWLINE, _COMMENT, _NUMBER, _NAME, _SIGN, _STRING = range(1, 8)
_TOKEN = re.compile(
    r"""([ \t]+)
    |(\r?\n)
    |(\#[^\n]*)
    |(\.?[0-9](?:[eE][+-](?=[0-9])|[A-Za-z0-9_.])*)
    |([A-Za-z_][A-Za-z0-9_]*)
    |(&&|\|\||<<|>>|===|!==|:=|->|=>|=<|<>|\*\*|//|<=|>=|==|!=|[-+*/%<>=:,()\[\]{}&|!^~;?\\≤≥≠×·⋅∗÷−–—∧∨¬∞π²³])
    |("[^"\n]*"?|'[^'\n]*'?|“[^”\n]*”?)""",
    re.VERBOSE,
)

# Characters that no editor shows as they are, and those that reorder or break a line on display: refused everywhere, in
# comments too, because the generated file quotes its spec.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")

# What people write who come from another language or a word processor: (the tokens meant, the fix).
_FOREIGN: dict[str, tuple[str, str]] = {
    "&&": ("and", "write `and`"),
    "∧": ("and", "write `and`"),
    "||": ("or", "write `or`"),
    "∨": ("or", "write `or`"),
    "!": ("not", "write `not`"),
    "¬": ("not", "write `not`"),
    "===": ("==", "write `==`"),
    "!==": ("!=", "write `!=`"),
    "<>": ("!=", "write `!=`"),
    "≠": ("!=", "write `!=`"),
    "=<": ("<=", "write `<=`"),
    "≤": ("<=", "write `<=`"),
    "=>": (">=", "write `>=`"),
    "≥": (">=", "write `>=`"),
    ":=": ("=", "write `=`"),
    "×": ("*", "write `*`"),
    "·": ("*", "write `*`"),
    "⋅": ("*", "write `*`"),
    "∗": ("*", "write `*`"),
    "÷": ("/", "write `/`"),
    "−": ("-", "write `-`"),
    "–": ("-", "write `-`"),
    "—": ("-", "write `-`"),
    "∞": ("inf", "write `inf`"),
    "π": ("pi", "write `pi`"),
    "True": ("true", "write `true`"),
    "False": ("false", "write `false`"),
}
_NO_MEANING: dict[str, str] = {
    "²": "write `** 2`",
    "³": "write `** 3`",
    ";": "start the next statement on a line of its own",
    "?": "write `A if C else B`",
    "\\": "leave it out: a statement goes on inside brackets, and after a binary operator or a comma",
    "->": "leave it out",
}


def scan(source: Source, vocabulary: Vocabulary) -> Scan:
    """The tokens and comments of a text, with what can't be read in it."""
    text = source.text
    if len(text) > SIZE_LIMIT:
        message = f"the file has {len(text):,} characters, and {SIZE_LIMIT:,} are allowed"
        fix = "a spec is a page of mathematics: keep data in params"
        # Only the beginning is quoted: the text may be one line of a gigabyte.
        beginning = Source(text[:100], source.name)
        return Scan((), (), (Diagnostic("file-size", message, Span(1, 1, 1, 2), fix, beginning),))
    return _Scanner(source, vocabulary).run()


class _Scanner:
    def __init__(self, source: Source, vocabulary: Vocabulary):
        self.source = source
        self.vocabulary = vocabulary
        self.line = 1
        self.line_start = 0
        self.tokens: list[Token] = []
        self.comments: list[Comment] = []
        self.mistakes: list[Diagnostic] = []

    def run(self) -> Scan:
        text = self.source.text
        position = 0
        while position < len(text) and len(self.mistakes) < MISTAKE_LIMIT:
            match = _TOKEN.match(text, position)
            if match is None:
                position = self._strange(position)
                continue
            end = match.end()
            self._take(match.lastindex or 0, match.group(), self._span(position, end))
            position = end
            if match.lastindex == _NEWLINE:
                self.line += 1
                self.line_start = end
        return Scan(tuple(self.tokens), tuple(self.comments), tuple(self.mistakes))

    def _span(self, start: int, end: int) -> Span:
        return Span(self.line, start - self.line_start + 1, self.line, end - self.line_start + 1)

    def _take(self, kind: int, text: str, span: Span) -> None:
        if kind == _NAME:
            if text in _FOREIGN:
                self._foreign(text, span)
                return
            if len(text) > NAME_LIMIT:
                self._report("name-length", f"this name has {len(text):,} characters", span, f"{NAME_LIMIT} at most")
            self._add(self.vocabulary.reserved.get(text, "NAME"), text, span)
        elif kind == _SIGN:
            type = self.vocabulary.signs.get(text)
            if type is not None:
                self._add(type, text, span)
            elif text in _FOREIGN:
                self._foreign(text, span)
            else:
                what = f"`{text}` means nothing here"
                self._report("unexpected-character", what, span, _NO_MEANING[text])
                self._add("BROKEN", text, span)
        elif kind == _NUMBER:
            self._number(text, span)
        elif kind == _NEWLINE:
            self._add("NEWLINE", text, span)
        elif kind == _COMMENT:
            text = text.rstrip()
            for hidden in _HIDDEN.finditer(text):
                start = span.column + hidden.start()
                self._strange_character(hidden.group(), Span(span.line, start, span.line, start + 1))
                if len(self.mistakes) >= MISTAKE_LIMIT:
                    break
            self.comments.append(Comment(text, Span(span.line, span.column, span.line, span.column + len(text))))
        elif kind == _STRING:
            infinite = text.strip("\"'").lstrip("+-") in ("inf", "Infinity")
            fix = "write inf, which is a number of the language" if infinite else "leave the quotes out"
            self._report("unexpected-character", "the language has no strings", span, fix)
            self._add("NAME", "string", span)

    def _add(self, type: str, text: str, span: Span) -> None:
        self.tokens.append(Token(type, text, span))

    def _report(self, code: str, message: str, span: Span, fix: str) -> None:
        self.mistakes.append(Diagnostic(code, message, span, fix, self.source))

    def _foreign(self, text: str, span: Span) -> None:
        meant, fix = _FOREIGN[text]
        self._report("foreign-sign", f"`{text}` is not part of the language", span, fix)
        type = self.vocabulary.signs.get(meant) or self.vocabulary.reserved.get(meant, "NAME")
        self._add(type, meant, span)

    def _strange(self, start: int) -> int:
        """Report the characters at `start` that begin no token, one run of equal ones at a time; give their end."""
        text = self.source.text
        end = start + 1
        while end < len(text) and text[end] == text[start]:
            end += 1
        span = self._span(start, end)
        self._strange_character(text[start], span, start)
        self._add("BROKEN", text[start], span)
        return end

    def _strange_character(self, character: str, span: Span, start: int | None = None) -> None:
        if character == "\r":
            self._report("unexpected-character", "a carriage return without a line feed", span, "end lines with \\n")
        elif _HIDDEN.match(character):
            what = f"the invisible character U+{ord(character):04X} is not allowed, not in comments either"
            self._report("unexpected-character", what, span, "delete it")
        elif character.isalpha():
            fix = "names are made of the letters A to Z and a to z, digits and _"
            self._report("unexpected-character", f"`{character}` can't stand in a name", span, fix)
        else:
            fix = "delete it" if character != "." or start is None else self._part_fix(start)
            fix = "write `qk` for the product of the query's and the key's row" if character == "@" else fix
            self._report("unexpected-character", f"`{character}` is no sign of the language", span, fix)

    def _part_fix(self, dot: int) -> str:
        """What to write for a name of two parts, such as `torch.where`."""
        text = self.source.text
        module, name = _LAST_WORD.search(text, max(0, dot - NAME_LIMIT), dot), _WORD.match(text, dot + 1)
        if module is None or name is None:
            return "names have no parts: write exp, not math.exp"
        return f"names have no parts: write `{INSTEAD.get(name[0], name[0])}`, not {module[0]}.{name[0]}"

    def _number(self, text: str, span: Span) -> None:
        """A number, if the text is one and fits its type; where it doesn't, 1 stands for it."""
        fix = ""
        if len(text) > NUMBER_LIMIT:
            message, fix = f"a number of {len(text):,} characters", f"{NUMBER_LIMIT} at most"
        elif not self.vocabulary.number.fullmatch(text):
            self._report("number", f"`{text}` is no number", span, _number_fix(text))
            self._add("BROKEN", text, span)
            return
        elif text.isdigit():
            message = "the integer doesn't fit in 64 bits"
            if int(text) >= INT_LIMIT:
                fix = "write it as a float, with a point or an exponent"
        elif math.isinf(value := float(text)):
            message, fix = f"`{text}` is too large for a float", "write `inf` if infinity is meant"
        else:
            message = f"`{text}` is too small for a float: it rounds to 0"
            if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
                fix = "write 0.0"
        if fix:
            self._report("number", message, span, fix)
        self._add("NUMBER", "1" if fix else text, span)


def _number_fix(text: str) -> str:
    if re.fullmatch(r"[0-9_.]+", text) and "_" in text and text.count(".") < 2:
        return f"write {text.replace('_', '')}"
    if re.fullmatch(r"0+[1-9][0-9]*", text):
        return f"write {text.lstrip('0')}: numbers have no leading zeros"
    if re.fullmatch(r"0[xXbBoO][0-9a-fA-F]+", text):
        return "write it in decimal"
    glued = re.fullmatch(r"([0-9]+)([A-Za-z_][A-Za-z0-9_]*)", text)
    if glued and glued[2] not in ("e", "E", "f", "F", "L"):
        return f"write {glued[1]} * {glued[2]} for a product; a name begins with a letter or _"
    return "numbers look like 3, 0.5, 1e-6"
