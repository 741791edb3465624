"""Where the analyser puts mistakes, and how it quotes the text in a fix.

Takes mistakes one by one, returns a `SpecError` that holds them all. Knows nothing of names and types.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from attngen.errors import Diagnostic, Source, Span, SpecError
from attngen.syntax import ast

MAX_DIAGNOSTICS = 50
"""More than anyone reads; a hostile file makes no more work than this."""

_INTEGER = re.compile(r"[0-9]+")
_QUOTED = 48
"""Longer stretches of text are not quoted in a fix."""


class Text:
    """A source, split into lines once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._lines = source.text.split("\n")

    def quote(self, e: ast.Expr) -> str:
        """What was written for `e`, or `…` where that is too long, spans lines, or half a pair of brackets."""
        span = e.span
        if span.line != span.end_line or not 1 <= span.line <= len(self._lines):
            return "…"
        text = self._lines[span.line - 1][span.column - 1 : span.end_column - 1].strip()
        return text if 0 < len(text) <= _QUOTED and _balanced(text) else "…"

    def operand(self, e: ast.Expr) -> str:
        """As `quote`, in brackets where `e` is more than a name, a number, a call or an index."""
        text = self.quote(e)
        whole = isinstance(e, ast.Name | ast.Number | ast.Bool | ast.Call | ast.Index) or text == "…"
        return text if whole else f"({text})"

    def integers(self, span: Span) -> list[Span]:
        """The stretches within `span` that are integers, comments left out."""
        found: list[Span] = []
        for number in range(span.line, span.end_line + 1):
            line = self._lines[number - 1]
            code = line[: line.find("#")] if "#" in line else line
            first = span.column - 1 if number == span.line else 0
            last = span.end_column - 1 if number == span.end_line else len(code)
            found += [Span(number, m.start() + 1, number, m.end() + 1) for m in _INTEGER.finditer(code, first, last)]
        return found


def _balanced(text: str) -> bool:
    depth = 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if depth < 0:
            return False
    return depth == 0


class Report:
    """Collects mistakes. A mistake that was reported poisons its expression, so that it is reported once."""

    def __init__(self, source: Source) -> None:
        self.text = Text(source)
        self._found: dict[Diagnostic, None] = {}

    @property
    def count(self) -> int:
        return len(self._found)

    @property
    def full(self) -> bool:
        return len(self._found) >= MAX_DIAGNOSTICS

    def error(self, code: str, message: str, span: Span, fix: str = "") -> None:
        if not self.full:
            self._found[Diagnostic(code, message, span, fix, self.text.source)] = None

    def check(self) -> None:
        """Raises what was found, if anything was."""
        if self._found:
            raise SpecError(self._found)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The known word that `word` was most likely meant to be."""
    # A hostile file has thousands of names: only those of about the same length are compared, and few of them.
    close = [w for w in words if abs(len(w) - len(word)) <= 3][:400]
    lower = {w.lower(): w for w in reversed(close)}
    found = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    return lower[found[0]] if found else None


def free_name(name: str, taken: Iterable[str]) -> str:
    """A name like `name` that nothing has yet, for a fix."""
    used = set(taken)
    candidate, number = f"my_{name}", 2
    while candidate in used:
        candidate, number = f"{name}_{number}", number + 1
    return candidate


def plural(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")
