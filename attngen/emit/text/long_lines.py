"""Breaks lines of generated source that are longer than 120 characters.

Takes a module's statements, returns the same program. Code is broken inside brackets, after a comma or before an
operator, as near to the outermost bracket as possible, and strings after a space; names that a tuple is unpacked to get
brackets where nothing else has some. Words of comments and docstrings move to the next line. The spec's own lines stay
as they are.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import textwrap
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from attngen.emit.text.units import Unit

WIDTH = 120
_WORDS = frozenset({"and", "or", "for", "if", "else"})
_OPERATORS = frozenset({"+", "-", "|", "&"})


class _Place(NamedTuple):
    """Where a line may be broken: the column, how deep inside brackets, whether this line has opened one of them.

    Inside a string: what closes its first part and opens the second.
    """

    column: int
    depth: int
    opened: bool
    closing: str = ""
    opening: str = ""


def without_long_lines(units: Iterable[Unit]) -> list[Unit]:
    found: list[Unit] = []
    for unit in units:
        if any(len(line) > WIDTH for line in unit.above):
            unit = unit.below(_prose("\n".join(unit.above)).split("\n"))
        if any(len(line) > WIDTH for line in unit.text.split("\n")):
            unit = unit.respaced(_short(unit.text))
        found.append(unit)
    return found


@functools.lru_cache(maxsize=1024)
def _short(source: str) -> str:
    lines = [_bracketed(line) if len(line) > WIDTH else line for line in _prose(source).split("\n")]
    found: list[str] = []
    for statement in _statements(lines):
        long = any(len(line) > WIDTH for line in statement)
        places = _places("\n".join(statement)) if long else {}
        for number, line in enumerate(statement, 1):
            found += _broken(line, places[number]) if len(line) > WIDTH else [line]
    return "\n".join(found)


_NO_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|#.*')


def _statements(lines: list[str]) -> Iterator[list[str]]:
    """The lines, together as long as a bracket is open. Lines of a docstring are each alone."""
    begun: list[str] = []
    depth = 0
    quoted = False
    for line in lines:
        begun.append(line)
        marks = line.count('"""')
        if not quoted and not marks:
            code = _NO_BRACKETS.sub("", line)
            depth += sum(map(code.count, "([{")) - sum(map(code.count, ")]}"))
        quoted ^= marks % 2 == 1
        if not depth:
            yield begun
            begun = []
    if begun:
        yield begun


def _bracketed(line: str) -> str:
    """The line with its value, and the tuple that it is unpacked to, in brackets, where they have none."""
    code = line.strip()
    if code.endswith(","):  # an argument of a call, which is no assignment
        return line
    try:
        body = ast.parse(code).body
    except SyntaxError:  # a part of a statement
        return line
    match body:
        case [ast.Return(value=value)] if value is not None:
            parts: tuple[ast.expr, ...] = (value,)
        case [ast.Assign(targets=[target], value=value)]:
            wide = len(line) - len(code) + (target.end_col_offset or 0) > WIDTH - 20
            bare = isinstance(value, ast.Name | ast.Attribute | ast.Constant)
            parts = (value, target) if wide or bare else (value,)
        case _:
            return line
    inside = [p for p in parts if isinstance(p, ast.Tuple | ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp)]
    encoded = code.encode()  # as columns are counted
    for node in inside:  # the last first
        begin, end = node.col_offset, node.end_col_offset
        naked = node.elts[0].col_offset == begin if isinstance(node, ast.Tuple) else encoded[begin - 1 : begin] != b"("
        if naked and end:
            encoded = encoded[:begin] + b"(" + encoded[begin:end] + b")" + encoded[end:]
    return line[: len(line) - len(line.lstrip())] + encoded.decode()


def _places(source: str) -> dict[int, list[_Place]]:
    """By line, where code may be broken."""
    found: defaultdict[int, list[_Place]] = defaultdict(list)
    opened: list[int] = []  # the line of each open bracket
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        if token.type == tokenize.OP and token.string in "([{":
            opened.append(row)
        elif token.type == tokenize.OP and token.string in ")]}":
            opened.pop()
        elif opened:
            here = any(line == row for line in opened)
            if token.type == tokenize.OP and token.string == ",":
                found[row].append(_Place(column + 1, 3 * len(opened), here))
            elif token.type == tokenize.STRING and token.start[0] == token.end[0]:
                found[row] += _in_string(token.string, column, 3 * len(opened) + 2, here)
            elif token.string in _WORDS or (token.string in _OPERATORS and re.match(r"[\w)\]]", before[-1:])):
                found[row].append(_Place(column, 3 * len(opened) + 1, here))  # a comma of this bracket is better
        before = token.string
    return found


def _in_string(text: str, column: int, depth: int, opened: bool) -> list[_Place]:
    """The places after spaces, but not inside the braces of an f-string."""
    quote = text[-1]
    prefix = text[: text.index(quote)]
    found: list[_Place] = []
    braces = 0
    for i, c in enumerate(text[:-1]):
        braces += (c == "{") - (c == "}") if prefix == "f" else 0
        if c == " " and not braces:
            found.append(_Place(column + i + 1, depth, opened, quote, prefix + quote))
    return found


def _broken(line: str, places: list[_Place]) -> list[str]:
    """The line in pieces. What follows a break inside a bracket of this line is indented by four more columns."""
    start = len(line) - len(line.lstrip())
    pieces: list[str] = []
    rest = _Rest(" " * start, line[start:], start)
    while len(rest.line) > WIDTH:
        room = WIDTH - len(rest.line) + len(line)
        fitting = [p for p in places if rest.column < p.column <= room - len(p.closing)]
        if not fitting:
            break
        least = min(p.depth for p in fitting)
        place = max(p for p in fitting if p.depth == least)
        piece = rest.indent + rest.text[: place.column - rest.column]
        pieces.append(piece + place.closing if place.closing else piece.rstrip())
        indent = " " * (start + (4 if place.opened else 0))
        after = line[place.column :]
        blank = 0 if place.opening else len(after) - len(after.lstrip())
        rest = _Rest(indent + place.opening, after[blank:], place.column + blank)
    return [*pieces, rest.line]


class _Rest(NamedTuple):
    """What is not broken yet: its text, which begins at that column of the line, and what comes before it."""

    indent: str
    text: str
    column: int

    @property
    def line(self) -> str:
        return self.indent + self.text


# ---------------------------------------------------------------- comments and docstrings


def _prose(source: str) -> str:
    """The source whose comments and docstrings have short lines: what is too much for one begins the next."""
    lines = source.split("\n")
    inside = _docstring_lines(lines)
    found: list[str] = []
    carried = mark = ""
    for number, line in enumerate(lines, 1):
        comment = line.lstrip().startswith("#") and not line.startswith("#     ")
        text = line.strip().removeprefix("# ") if comment else line.strip()
        if carried:
            indent = " " * (len(found[-1]) - len(found[-1].lstrip()))
            joins = (comment if mark else number in inside) and text not in ("", "#", '"""')
            line = f"{indent}{mark}{carried} {text}" if joins else line
            if not joins:
                found.append(f"{indent}{mark}{carried}")
            carried = ""
        if len(line) > WIDTH and (comment or number in inside):
            mark = "# " if comment else ""
            closed = not comment and line.endswith('"""')
            indent = " " * (len(line) - len(line.lstrip()))
            line = line.removesuffix('"""') if closed else line
            *full, carried = textwrap.wrap(
                line, WIDTH, subsequent_indent=indent + mark, break_long_words=False, break_on_hyphens=False
            )
            found += full
            if closed or not full:
                found.append(carried)
            found += [f'{indent}"""'] if closed else []
            carried = "" if closed or not full else carried.strip().removeprefix(mark)
        else:
            found.append(line)
    return "\n".join(
        [*found, *([f"{found[-1][: len(found[-1]) - len(found[-1].lstrip())]}{mark}{carried}"] if carried else [])]
    )


def _docstring_lines(lines: list[str]) -> frozenset[int]:
    """Their numbers, from 1."""
    found: set[int] = set()
    quoted = False
    for number, line in enumerate(lines, 1):
        marks = line.count('"""')
        if quoted or line.lstrip().startswith('"""'):
            found.add(number)
            quoted ^= marks % 2 == 1
    return frozenset(found)
