"""The tables of a generated file as text that a person can edit: `runtime/exported/tables.py` reads them.

Takes rows of tables, returns lines whose columns stand below each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from attngen.emit.options import Options
from attngen.plan.footprint import loads_of
from attngen.plan.kernel import KernelPlan
from attngen.plan.table import Cell, Table
from attngen.plan.tiles.portable import registers, table

Lines = tuple[str, ...]
TileRow: TypeAlias = tuple[tuple[str, int, int], tuple[tuple[int, ...], ...]]
"""(chip, bytes of an element, head dim rounded up), and the tiles of the forward, dK/dV and dQ kernels."""


def tile_rows(plan: KernelPlan, options: Options) -> list[TileRow]:
    """The rows of tile sizes: the planner's, what was timed in the place of some, and no chip, dtype or head dim that
    the file is not for."""
    rows = {
        (r.chip, r.itemsize, r.head_block): tuple(tuple(t) for t in (r.forward, r.dkdv, r.dq))
        for r in table(plan.attention.tile, plan.burden, loads_of(plan), plan.numerics)
    }
    for t in options.tuned_gpu:
        key = t.chip, t.itemsize, t.head_block
        tiles = zip((t.forward, t.dkdv, t.dq), rows[key], strict=True)
        rows[key] = tuple(tuned or planned for tuned, planned in tiles)
    block = None if options.head_dim is None else max(16, 1 << (max(options.head_dim) - 1).bit_length())
    return [(key, row) for key, row in rows.items() if options.holds(key[0], key[1]) and block in (None, key[2])]


def register_limits(plan: KernelPlan, rows: list[TileRow]) -> dict[tuple[int, ...], int]:
    """The limits of registers for the head dims that the file is for, on chips where they count."""
    blocks = {block for (chip, itemsize, block), _ in rows if itemsize == 2 and chip in ("sm_90", "sm_100")}
    return {key: limit for key, limit in registers(plan.burden).items() if key[0] in blocks}


def tile_lines(rows: list[TileRow]) -> Lines:
    """Each distinct row once, for the chips, bytes of an element and head dims that it is for."""
    found: dict[tuple[tuple[int, ...], ...], dict[tuple[str, int], list[int]]] = {}
    for (chip, itemsize, head_block), row in rows:
        found.setdefault(row, {}).setdefault((chip, itemsize), []).append(head_block)
    cells: list[tuple[str, ...]] = [("chips", "bytes", "head dims", "forward", "dK, dV", "dQ")]
    for row, dims in found.items():
        chips: dict[tuple[int, tuple[int, ...]], list[str]] = {}
        for (chip, itemsize), blocks in dims.items():
            chips.setdefault((itemsize, tuple(blocks)), []).append(chip)
        for (size, blocks), names in chips.items():
            cells.append((" ".join(names), f"{size}", _words(blocks), *map(_words, row)))
    return _aligned(cells)


def share_lines(shares: Iterable[tuple[tuple[str, int], tuple[int, ...]]]) -> Lines:
    """Rows of short queries by chip and bytes of an element, each distinct one once."""
    found: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for (chip, itemsize), row in shares:
        found.setdefault((itemsize, row), []).append(chip)
    rows = [(" ".join(chips), f"{size}", _words(row)) for (size, row), chips in found.items()]
    return _aligned([("chips", "bytes", "rows, keys, elements, warps, stages, programs"), *rows])


def row_lines(tables: tuple[Table, ...]) -> Lines:
    """Rows by head dims; those of several tables, which have the same keys, beside each other."""
    columns = [list(t.kind.COLUMNS.values()) for t in tables]
    rows = [[_words(key) for key, _ in tables[0].cells]]
    head = ["head dims"]
    for table_columns, t in zip(columns, tables, strict=True):
        texts = [[_word(x) for x in cells] for _, cells in t.cells]
        widths = [
            max(len(x) for x in (name, *column)) for name, column in zip(table_columns, _turned(texts), strict=True)
        ]
        head.append(_spaced(table_columns, widths))
        rows.append([_spaced(row, widths) for row in texts])
    return _aligned([tuple(head), *(tuple(row) for row in _turned(rows))])


def _turned(rows: list[list[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _spaced(words: Iterable[str], widths: Iterable[int]) -> str:
    return " ".join(word.ljust(width) for word, width in zip(words, widths, strict=True)).rstrip()


def _words(cells: Iterable[Cell]) -> str:
    return " ".join(map(_word, cells))


def _word(x: Cell) -> str:
    return ("no", "yes")[x] if isinstance(x, bool) else str(x)


def _aligned(rows: list[tuple[str, ...]]) -> Lines:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple(
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
