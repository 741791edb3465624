"""How a table lies in scalar memory after a copy: 32-bit words, narrow elements packed by rows of a tile.

Takes a `Table`, returns its words by their place. The layouts are the compiler's own: vectors in rows of 128 lanes,
matrices in tiles of up to 8 rows by 128 lanes, 4 / 2 / 1 elements of 8 / 16 / 32 bits to a word.
"""

from __future__ import annotations

from collections.abc import Mapping

from attngen.tpu.compile import Table
from attngen.tpu.scalar import signed

_LANES = 128


def words(table: Table) -> Mapping[int, int]:
    """Signed words by their offset."""
    packing = 32 // table.bits
    mask = (1 << table.bits) - 1
    found: dict[int, int] = {}
    for place, part, value in _vector(table, packing) if len(table.shape) <= 1 else _matrix(table, packing):
        found[place] = found.get(place, 0) | (value & mask) << (table.bits * part)
    return {place: signed(word) for place, word in found.items()}


def _vector(table: Table, packing: int) -> list[tuple[int, int, int]]:
    """(word, part of it, value) of every element: 128 lanes a word row, the next 128 elements in the next part."""
    run = _LANES * packing
    return [(i // run * _LANES + i % _LANES, i % run // _LANES, value) for i, value in enumerate(table.values)]


def _matrix(table: Table, packing: int) -> list[tuple[int, int, int]]:
    rows, columns = table.shape[-2:]
    height = _tile_rows(rows, packing)
    tile_rows, tile_columns = -(-rows // height), -(-columns // _LANES)
    tile_words = height * _LANES // packing
    found: list[tuple[int, int, int]] = []
    for i, value in enumerate(table.values):
        matrix, row, column = i // (rows * columns), i // columns % rows, i % columns
        tile = (matrix * tile_rows + row // height) * tile_columns + column // _LANES
        inside = row % height // packing * _LANES + column % _LANES
        found.append((tile * tile_words + inside, row % packing, value))
    return found


def _tile_rows(rows: int, packing: int) -> int:
    """Words of 32 bits lie in tiles as small as the rows need; packed ones always in eight rows."""
    if packing > 1 or rows > 4:
        return 8
    return 4 if rows > 2 else rows
