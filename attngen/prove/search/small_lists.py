"""Lists of few tiles, for a counterexample.

Takes the functions of lists, returns the sizes and the place at which they go wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from attngen.ir.function import Function, results_of
from attngen.plan.mask.lists import Lists

Found = Mapping[str, int]


def wrong_list(lists: Lists, count: Function, place: Function, reader: Function) -> Found | None:
    """A batch and a head that read a list of others, or outside of the room for lists."""
    for n_batches, n_heads in product((1, 2, 3), repeat=2):
        for batch, head in product(range(n_batches), range(n_heads)):
            names = {"B": n_batches, "Hq": n_heads, "batch": batch, "head": head}
            (names["place"],) = results_of(place, names)
            found = results_of(reader, names)
            wanted = (batch if lists.by_batch else 0, head if lists.by_head else 0)
            if found != wanted or not 0 <= names["place"] < results_of(count, names)[0]:
                return names
    return None


def wrong_entry(entry: Function, part_of_entry: Function) -> Found | None:
    """A part of a tile whose entry is that of another one."""
    for n_tiles, parts in product((1, 2, 3), repeat=2):
        for own in product(range(3), range(n_tiles), range(parts)):
            names = {"n_tiles": n_tiles, "parts": parts, **dict(zip(("place", "tile", "part"), own, strict=True))}
            (names["item"],) = results_of(entry, names)
            if results_of(part_of_entry, names) != own:
                return names
    return None


def wrong_cell(cell: Function) -> Found | None:
    """A tile whose cell is that of another tile, list or way, or outside of the room for three lists."""
    for n_walked in (1, 2, 3):
        seen: set[int] = set()
        for place, back, at in product(range(3), range(2), range(n_walked)):
            names = {"n_walked": n_walked, "place": place, "back": back, "at": at}
            (found,) = results_of(cell, names)
            if found in seen or not 0 <= found < 6 * n_walked:
                return names
            seen.add(found)
    return None
