"""A statement of a generated module while a pass takes out of it what nothing reads.

Holds what stands in it, less what is dropped so far, and the changes of its text, which are made at the end, once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from attngen.emit.text.units import Look, Unit, look

Between: TypeAlias = ast.FunctionDef | ast.Call | ast.Tuple | ast.Constant


class _Change(NamedTuple):
    """What stands from `begin` to `end`, in bytes, anew: text, or expressions that stay."""

    begin: int
    end: int
    kept: str | list[ast.expr]


class Part:
    """`found`: what stands in the statement, less what is dropped."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.found: Look = look(unit.node)
        self._gone: set[int] = set()
        self._changes: list[_Change] = []
        self._data = b""
        self._starts: list[int] = []

    def marked(self) -> Iterator[Any]:
        return (node for node in self.found.marked if not self.is_gone(node))

    def is_gone(self, node: ast.AST) -> bool:
        """Of a call, a tuple, an assignment or a loop: whether it stands in what is dropped."""
        return id(node) in self._gone

    def forget(self, node: ast.AST) -> Look:
        """Counts what stands below `node` no more; gives it."""
        inside = look(node)
        self.found.reads.subtract(inside.reads)
        self.found.fields.subtract(inside.fields)
        self._gone.update(map(id, inside.marked))
        return inside

    def drop(self, statement: ast.stmt) -> None:
        """Takes the lines of a statement out."""
        self.forget(statement)
        starts = self._lines()
        self._changes.append(_Change(starts[statement.lineno - 1], starts[statement.end_lineno or 0], ""))

    def insert(self, name: ast.Name, text: str) -> None:
        """In front of a name."""
        place, _ = self._place(name)
        self._changes.append(_Change(place, place, text))

    def put(self, node: Between, kept: str | list[ast.expr]) -> None:
        """Between the brackets, or the quotes, of `node`."""
        self._changes.append(_Change(*self._between(node), kept))

    def edited(self) -> Unit:
        """The statement as it is then."""
        found = {"reads": self.found.reads, "fields": self.found.fields}
        if not self._changes:
            vars(self.unit).update(found)
            return self.unit
        self._changes.sort(key=lambda change: change[:2])
        text = self._text(0, len(self._data), 0).rstrip("\n")
        return self.unit.edited(text, **found)

    # ------------------------------------------------------------ text

    def _lines(self) -> list[int]:
        """Where each line begins, and the one after the last."""
        if not self._starts:
            self._data = self.unit.text.encode()  # as columns are counted
            self._starts = [0]
            for line in self._data.split(b"\n"):
                self._starts.append(self._starts[-1] + len(line) + 1)
        return self._starts

    def _text(self, first: int, last: int, number: int) -> str:
        """From `first` to `last`, with the changes in it, of which none comes before that of this number."""
        found: list[str] = []
        for i in range(number, len(self._changes)):
            begin, end, kept = self._changes[i]
            if begin >= last:
                break
            if begin >= first:  # else inside of one that is done
                found.append(self._data[first:begin].decode())
                found.append(kept if isinstance(kept, str) else self._arguments(begin, kept, i + 1))
                first = end
        return "".join(found) + self._data[first:last].decode()

    def _arguments(self, begin: int, kept: list[ast.expr], number: int) -> str:
        texts = [" ".join(x.strip() for x in self._text(*self._place(e), number).split("\n")) for e in kept]
        tuple_of_one = len(kept) == 1 and self._data[begin - 3 : begin] == b", ("
        return ", ".join(texts) + ("," if tuple_of_one else "")

    def _place(self, node: ast.FunctionDef | ast.expr) -> tuple[int, int]:
        starts = self._lines()
        first = starts[node.lineno - 1] + node.col_offset
        return first, starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _between(self, node: Between) -> tuple[int, int]:
        first, last = self._place(node)
        match node:
            case ast.FunctionDef():
                opening = self._data.index(b"(", first)
                return opening + 1, self._data.index(b"):\n", opening)
            case ast.Call(func=func):
                return self._data.index(b"(", self._place(func)[1]) + 1, last - 1
            case _:
                return first + 1, last - 1
