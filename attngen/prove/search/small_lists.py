"""Lists of few tiles, for a counterexample.

Takes the plan's `Lists` or `Listed`, returns the sizes and the place at which they go wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from attngen.ir.nodes import Expr
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.turns import Listed

Found = Mapping[str, int]


def _value(e: Expr, names: Mapping[str, int]) -> int:
    from attngen.ir.evaluate import evaluate  # with NumPy, which is not loaded for what z3 shows

    return int(evaluate(e, names, {}))


def wrong_entry(lists: Lists) -> Found | None:
    """A part of a tile that is read where another one is written, or outside of the room for lists."""
    sizes = ("B", "Hq", "n_tiles", "parts")
    for given in product((1, 2, 3), repeat=4):
        names: dict[str, int] = dict(zip(sizes, given, strict=True))
        count = _value(lists.count, names)
        for at in product(*(range(n) for n in given)):
            found = {**names, **dict(zip(("batch", "head", "tile", "part"), at, strict=True))}
            found["place"] = _value(lists.place, found)
            found["row"] = _value(lists.row, found)
            written = {**names, "item": _value(lists.entry, found)}
            for step in lists.steps:
                written[step.name] = _value(step.value, written)
            whose = _value(lists.of_batch, written), _value(lists.of_head, written)
            if (
                any(written[name] != found[name] for name in ("tile", "part", "row", "place"))
                or not 0 <= found["place"] < count
                or (lists.by_batch and whose[0] != found["batch"])
                or (lists.by_head and whose[1] != found["head"])
            ):
                return found
    return None


def wrong_cell(listed: Listed) -> Found | None:
    """A tile whose cell is that of another tile, list or way, or outside of the room for three lists."""
    for n_walked in (1, 2, 3):
        seen: set[int] = set()
        for place, way, at in product(range(3), range(2), range(n_walked)):
            names = {"n_walked": n_walked, "place": place, "way": way, "at": at}
            cell = _value(listed.cell, names)
            if cell in seen or not 0 <= cell < 6 * n_walked:
                return names
            seen.add(cell)
    return None
