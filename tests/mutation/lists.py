"""Lists of tiles, and the turns that follow from them, by brute force.

`wrong_lists` takes the functions of lists as Python, and whose lists there are, returns the first mistake in words, or
nothing: few tiles are written one after the other and read again, and each set of tiles of keys that may meet a tile of
queries takes its turns. It shares no code with the prover.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from attngen.plan.mask.lists import Lists

LISTED = frozenset({
    "noted_tile", "note_cell", "comes_later", "end_of_notes", "last_chunk", "place_of_lane",
    "list_count", "list_of", "reader_of", "entry_of", "part_of_entry",
})  # fmt: skip
"""The functions that no other plan calls."""


def wrong_lists(f: dict[str, Any], lists: Lists) -> str:
    for sizes in product((1, 2, 3), repeat=4):
        found = _read(f, lists, *sizes)
        if found:
            return f"{found}; batches, heads, tiles, parts {sizes}"
    for n_tiles, back, (first, more) in product((1, 2, 3, 5), (False, True), ((0, 0), (2, 0), (1, 3))):
        found = _turns(f, back, n_tiles, first, first + n_tiles + more)
        if found:
            return f"{found}; {n_tiles} tiles of keys from {first} on, backwards: {back}"
    return _cells(f) or _searched(f)


def _read(f: dict[str, Any], lists: Lists, batches: int, heads: int, n_tiles: int, parts: int) -> str:
    """All items write whose they are; then each program reads its own."""
    flags = lists.by_batch, lists.by_head
    written: dict[int, tuple[int, ...]] = {}
    for item in range(f["list_count"](batches, heads, *flags) * n_tiles * parts):
        place, tile, part = f["part_of_entry"](item, n_tiles, parts)
        batch, head = f["reader_of"](place, heads, *flags)
        written[item] = (batch if lists.by_batch else 0, head if lists.by_head else 0, tile, part)
    for batch, head, tile, part in product(range(batches), range(heads), range(n_tiles), range(parts)):
        entry = f["entry_of"](f["list_of"](batch, head, heads, *flags), tile, n_tiles, part, parts)
        own = (batch if lists.by_batch else 0, head if lists.by_head else 0, tile, part)
        if written.get(entry) != own:
            return f"{own} reads {written.get(entry)}"
    return ""


def _turns(f: dict[str, Any], back: bool, n_tiles: int, first: int, n_slots: int) -> str:
    """Each set of tiles of keys meets one tile of queries."""
    noted = {o: f["noted_tile"](first + (n_tiles - 1 - o if back else o), n_slots, back) for o in range(n_tiles)}
    end = f["end_of_notes"](first, n_tiles, n_slots, back)
    for size in range(1, n_tiles + 1):
        for met in combinations(range(n_tiles), size):
            kept = max(0, *(noted[o] for o in met))
            for at, o in enumerate(met):
                waits = f["comes_later"](o, kept, end)
                if waits != (at > 0):
                    return f"of {met}, {o} waits: {waits}"
    return ""


def _cells(f: dict[str, Any]) -> str:
    """Another list's cells are beside a list's own."""
    for n_walked in (1, 2, 3):
        cells: dict[int, tuple[int, int, int]] = {}
        for place, back, at in product(range(3), range(2), range(n_walked)):
            cell = f["note_cell"](place, back, at, n_walked)
            if cell in cells or not 0 <= cell < 6 * n_walked:
                return f"cell {cell} of list {place}, way {back}, tile {at} of {n_walked}"
            cells[cell] = place, back, at
    return ""


def _searched(f: dict[str, Any]) -> str:
    """A warp finds the last earlier tile in the first chunk that has one."""
    for order in (1, 2, 31, 32, 33, 64, 65):
        start = f["last_chunk"](order)
        for wanted in {0, 1, 30, 31, 32, order - 1} & set(range(order)):
            found = None
            for chunk in range(start, -1, -1):
                places = [f["place_of_lane"](chunk, lane) for lane in range(32)]
                here = [o for o in places if o in {0, wanted}]
                if here:
                    found = max(here)
                    break
            if found != wanted:
                return f"order {order} finds {found}, not {wanted}"
    return ""
