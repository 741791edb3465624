"""Items of small sizes, for a counterexample to the order in which tiles are taken.

Takes the plan's `Order`, returns the sizes and the item at which it goes wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from attngen.ir.nodes import Expr
from attngen.plan.mask.order import Heads, Order

LARGEST = 5


def wrong_item(order: Order) -> Mapping[str, int | float | bool] | None:
    """An item that is no tile of a head, or one that another has, or one that comes before a tile that is earlier in
    its head's order."""
    from attngen.ir.evaluate import evaluate  # with NumPy, which is not loaded for what z3 shows

    def value(e: Expr, names: Mapping[str, int]) -> int:
        return int(evaluate(e, names, {}))

    sizes = range(1, LARGEST)
    for n_tiles, heads, together in product(sizes, sizes, sizes):
        named = {"n_tiles": n_tiles, "heads": heads, "together": together}
        for way in (order.tile.onwards, order.tile.backwards):
            tiles = [value(way, {**named, "order": at}) for at in range(n_tiles)]
            if sorted(tiles) != list(range(n_tiles)):
                return {**named, "tile": next((t for t in tiles if not 0 <= t < n_tiles or tiles.count(t) > 1), -1)}
        taken: dict[int, int] = {}
        for item in range(n_tiles * heads):
            names = {**named, "item": item}
            for step in order.steps:
                names[step.name] = value(step.value, names)
            head, at = value(order.head, names), names["order"]
            if not 0 <= head < heads or at != taken.get(head, 0):
                return {**names, "head": head}
            taken[head] = at + 1
        if set(taken.values()) != {n_tiles}:
            return named
    return None


def wrong_head(heads: Heads) -> Mapping[str, int | float | bool] | None:
    """A number of a head that is no batch and head, or the same as another's."""
    from attngen.ir.evaluate import evaluate

    for n_batches, n_heads in product(range(1, LARGEST), repeat=2):
        seen: set[tuple[int, int]] = set()
        for i in range(n_batches * n_heads):
            names = {"n_batches": n_batches, "n_heads": n_heads, "i": i}
            batch, head = (int(evaluate(e, names, {})) for e in (heads.batch, heads.head))
            if (batch, head) in seen or not (0 <= batch < n_batches and 0 <= head < n_heads):
                return {**names, "batch": batch, "head": head}
            seen.add((batch, head))
    return None
