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


@functools.cache
def rows_by_dims(text: str) -> dict[tuple[Any, ...], Any]:
    """A table whose columns have names, by the words of its first cell. A row is a tuple with these names, or where a
    table has more than two columns of cells, a tuple of such tuples."""
    lines = lines_of(text)
    if not lines:
        return {}
    records = [namedtuple(f"Row{i}", names) for i, names in enumerate(lines[0][1:])]  # type: ignore[misc]
    found: dict[tuple[Any, ...], Any] = {}
    for key, *cells in lines[1:]:
        rows = tuple(record(*map(cell_of, cell)) for record, cell in zip(records, cells, strict=True))
        found[tuple(cell_of(x) for x in key)] = rows[0] if len(rows) == 1 else rows
    return found
