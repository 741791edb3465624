# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""Tables of tile sizes, which a generated file has as text that a person can edit."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any

Cell = int | bool | str


def cell_of(text: str) -> Cell:
    """`yes`, `no`, an int, or a word."""
    if text in ("yes", "no"):
        return text == "yes"
    return int(text) if text.lstrip("-").isdigit() else text


def lines_of(text: str) -> list[list[list[str]]]:
    """The words of each cell of a table's lines."""
    lines = [line for line in text.strip().split("\n") if line.strip()]
    return [[cell.split() for cell in line.split("|")] for line in lines]


@functools.cache
def tiles_by_chip(text: str) -> dict[tuple[str, int, int], tuple[tuple[int, ...], ...]]:
    """A table with the columns chips | bytes | head dims | tiles … by (chip, bytes of an element, head dim)."""
    found: dict[tuple[str, int, int], tuple[tuple[int, ...], ...]] = {}
    for chips, sizes, head_dims, *tiles in lines_of(text)[1:]:
        row = tuple(tuple(map(int, tile)) for tile in tiles)
        for chip_name in chips:
            for size in sizes:
                for head_dim in head_dims:
                    found[chip_name, int(size), int(head_dim)] = row
    return found


@functools.cache
def shares_by_chip(text: str) -> dict[tuple[str, int], tuple[int, ...]]:
    """A table with the columns chips | bytes | cells, by (chip, bytes of an element)."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    for chips, sizes, cells in lines_of(text)[1:]:
        found |= {(chip_name, int(size)): tuple(map(int, cells)) for chip_name in chips for size in sizes}
    return found


class Rows(dict[tuple[Any, ...], Any]):
    """Rows by the words of their first cell. `records` make a row of cells."""

    records: tuple[Any, ...] = ()

    def row(self, *cells: Any) -> Any:
        """One of the only record, or where there are more, a tuple of them."""
        rows = tuple(record(*cell) for record, cell in zip(self.records, cells, strict=True))
        return rows[0] if len(rows) == 1 else rows


@functools.cache
def rows_by_dims(text: str) -> Rows:
    """A table whose columns have names."""
    found = Rows()
    head, *lines = lines_of(text)
    found.records = tuple(namedtuple("Row", names) for names in head[1:])  # type: ignore[misc]
    for key, *cells in lines:
        found[tuple(cell_of(x) for x in key)] = found.row(*([cell_of(x) for x in cell] for cell in cells))
    return found
