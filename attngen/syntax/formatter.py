"""The canonical form of a file: takes a `Source`, gives text with the same tree, the same comments, the same order.

Statements are printed from their tree (`printing`), so brackets that change nothing go. Only where a comment stands
inside a statement are its words kept as written, with the line breaks that the comments need. Several blank lines
become one. Formatting twice changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from attngen.errors import Diagnostic, InternalError, Source, Span, SpecError
from attngen.syntax import ast
from attngen.syntax.lexer import SIZE_LIMIT, Comment, Token
from attngen.syntax.parser import Parsed, read
from attngen.syntax.printing import INDENT, Chunk, Word, chunks, signed, wrap


def format_text(source: Source) -> str:
    """The canonical text of a file. Raises `SpecError` where it does not parse."""
    text = _Layout(read(source)).text()
    if len(text) > SIZE_LIMIT:
        message = f"formatted, the file would have {len(text):,} characters, and {SIZE_LIMIT:,} are allowed"
        raise SpecError([Diagnostic("file-size", message, Span(1, 1, 1, 2), "split it in two", source)])
    return text


@dataclass(frozen=True, slots=True)
class _Item:
    """A chunk and the tokens that it was written as."""

    chunk: Chunk
    tokens: tuple[Token, ...]

    @property
    def span(self) -> Span:
        return self.tokens[0].span.to(self.tokens[-1].span)


class _Layout:
    def __init__(self, parsed: Parsed):
        self.source = parsed.source.text.split("\n")
        self.items = [
            item
            for statement, line in zip(parsed.module.statements, parsed.lines, strict=True)
            for item in self._items(statement, line.tokens)
        ]
        self.comments = deque(parsed.comments)
        self.lines: list[str] = []
        self.row = 0  # the line of the source that was printed last
        self.in_block = False
        self.at_edge = True  # of the file or of a block: no blank line comes next

    def text(self) -> str:
        for number, item in enumerate(self.items):
            closes = item.chunk.words[0].type == "RBRACE"
            while self.comments and _starts(self.comments[0].span) < _starts(item.span):
                self._own_line(self.comments.popleft())
            self.at_edge |= closes
            self._blank(item.span.line)
            end = (item.span.end_line, item.span.end_column)
            inside: list[Comment] = []
            while self.comments and _starts(self.comments[0].span) < end:
                inside.append(self.comments.popleft())
            indent = INDENT if item.chunk.indented else ""
            self.lines += _commented(item.tokens, inside, indent) if inside else wrap(item.chunk.words, indent)
            self.row = item.span.end_line
            ends_line = number + 1 == len(self.items) or self.items[number + 1].span.line > self.row
            if ends_line and self.comments and self.comments[0].span.line == self.row:
                self.lines[-1] += f"  {self.comments.popleft().text}"
            self.at_edge = item.chunk.words[-1].type == "LBRACE"
            self.in_block = self.at_edge or (self.in_block and not closes)
        for comment in self.comments:
            self._own_line(comment)
        return "".join(line + "\n" for line in self.lines)

    def _own_line(self, comment: Comment) -> None:
        self._blank(comment.span.line)
        self.lines.append((INDENT if self.in_block else "") + comment.text)
        self.row = comment.span.line
        self.at_edge = False

    def _blank(self, row: int) -> None:
        """One blank line where the source has some before `row`."""
        if not self.at_edge and row > self.row + 1:
            self.lines.append("")

    def _items(self, statement: ast.Statement, tokens: Sequence[Token]) -> list[_Item]:
        """The chunks of a statement, each with its tokens."""
        groups: list[list[Token]] = [[]]
        for token in tokens:
            if token.type == "RBRACE":
                groups.append([])
            if token.type not in ("NEWLINE", "$END"):
                groups[-1].append(token)
            if token.type in ("NEWLINE", "LBRACE"):
                groups.append([])
        parts = chunks(statement, self._numeral)
        written = [tuple(group) for group in groups if group]
        if len(parts) != len(written):
            raise InternalError(f"a statement of {len(written)} lines is printed as {len(parts)}")
        return [_Item(chunk, group) for chunk, group in zip(parts, written, strict=True)]

    def _numeral(self, number: ast.Number) -> str:
        span = number.span
        return self.source[span.line - 1][span.column - 1 : span.end_column - 1]


def _starts(span: Span) -> tuple[int, int]:
    return span.line, span.column


def _commented(tokens: Sequence[Token], comments: Sequence[Comment], indent: str) -> list[str]:
    """The tokens as they are, with the comments between them, each at the end of the line that it ends."""
    words = signed(Word(token.type, token.text) for token in tokens)
    lines: list[str] = []
    begin = depth = 0
    for comment in comments:
        end = begin
        while _starts(tokens[end].span) < _starts(comment.span):
            end += 1
        if end > begin:
            lines += wrap(words[begin:end], indent, depth=depth, hang=begin > 0)
            depth += sum((w.type in ("LPAR", "LSQB")) - (w.type in ("RPAR", "RSQB")) for w in words[begin:end])
            begin = end
        if tokens[end - 1].span.end_line == comment.span.line:
            lines[-1] += f"  {comment.text}"
        else:
            lines.append(indent + INDENT + comment.text)
    return lines + wrap(words[begin:], indent, depth=depth, hang=True)
