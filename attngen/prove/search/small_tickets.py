"""Tickets of small sizes, for a counterexample to the order in which tiles are taken.

Takes the plan's `Turns`, returns the sizes and the ticket at which it goes wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from attngen.ir.nodes import Expr
from attngen.plan.mask.turns import Turns

LARGEST = 5


def wrong_ticket(turns: Turns) -> Mapping[str, int | float | bool] | None:
    """A ticket that is no tile of a head, or one that another has, or one that comes before a tile that is earlier in
    its head's order; or one whose group goes another way than the head's other tiles."""
    from attngen.ir.evaluate import evaluate  # with NumPy, which is not loaded for what z3 shows

    def value(e: Expr, names: Mapping[str, int]) -> int:
        return int(evaluate(e, names, {}))

    sizes = range(1, LARGEST)
    for n_tiles, heads, given in product(sizes, sizes, sizes):
        named = {"n_tiles": n_tiles, "heads": heads, "together": given}
        for together in (given, value(turns.few, named)):
            taken: dict[int, int] = {}
            ways: dict[int, int] = {}
            for item in range(n_tiles * heads):
                names = {**named, "together": together, "item": item}
                for step in turns.steps:
                    names[step.name] = value(step.value, names)
                head, order, back = value(turns.head, names), names["order"], value(turns.back, names)
                if not 0 <= head < heads or order != taken.get(head, 0) or ways.setdefault(head, back) != back:
                    return {**names, "head": head}
                taken[head] = order + 1
            if set(taken.values()) != {n_tiles}:
                return {**named, "together": together}
    return None
