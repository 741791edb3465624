"""A table of a kernel: which columns its rows have, in which order, and what a generated file calls them.

A row is a dataclass with `COLUMNS`, from which it is printed, narrowed and tuned. A row checks itself when it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias, get_type_hints

Cell: TypeAlias = int | bool | str
Key: TypeAlias = tuple[int | str, ...]


class Row:
    """`COLUMNS`: the file's name of each field, in the order of the table. Names in capitals are constants of the
    kernel; the others are for the launcher."""

    __slots__ = ()
    COLUMNS: ClassVar[Mapping[str, str]]

    @property
    def row(self) -> tuple[Cell, ...]:
        """The cells, as a file has them."""
        return tuple(str(x) if isinstance(x, str) else x for x in (getattr(self, field) for field in self.COLUMNS))

    @classmethod
    def read(cls, cells: Sequence[str]) -> Self:
        """The row with these cells, as texts; a bool is 0 or 1. Raises ValueError where no kernel has it."""
        if len(cells) != len(cls.COLUMNS):
            raise ValueError(f"{len(cells)} columns, and a row of {cls.__name__} has {len(cls.COLUMNS)}")
        kinds = get_type_hints(cls)
        return cls(**{name: _cell(kinds[name], text) for name, text in zip(cls.COLUMNS, cells, strict=True)})


def _cell(kind: Any, text: str) -> Any:
    if kind is bool and text not in ("0", "1"):
        raise ValueError(f"{text} is neither 0 nor 1")
    return text == "1" if kind is bool else kind(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`rows`: by head dims, and for whom."""

    kernel: str
    kind: type[Row]
    rows: tuple[tuple[Key, Row], ...]

    @property
    def columns(self) -> str:
        return " ".join(self.kind.COLUMNS.values())

    @property
    def cells(self) -> tuple[tuple[Key, tuple[Cell, ...]], ...]:
        return tuple((key, row.row) for key, row in self.rows)

    @property
    def constants(self) -> dict[str, Cell]:
        """Those of the kernel that all rows have in common."""
        names = [name if name.isupper() else "" for name in self.kind.COLUMNS.values()]
        first, *others = (dict(zip(names, cells, strict=True)) for _, cells in self.cells)
        return {name: x for name, x in first.items() if name and all(other[name] == x for other in others)}


def keyed(rows: Iterable[tuple[Iterable[int | str], Any]]) -> tuple[tuple[Key, Any], ...]:
    return tuple((tuple(key), row) for key, row in rows)


def require(possible: bool, row: object, why: str) -> None:
    """Raises ValueError for a row that no kernel has."""
    if not possible:
        raise ValueError(f"{row}: {why}")
