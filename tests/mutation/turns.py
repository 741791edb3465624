"""The turns of dQ by brute force: the parts of few tiles that are added in order.

`wrong_turns` takes the functions of turns as Python, returns the first mistake in words, or nothing. It shares no code
with the prover.
"""

from __future__ import annotations

from itertools import product
from typing import Any


def wrong_turns(f: dict[str, Any]) -> str:
    """The tiles of a head come in order, each of which meets the tiles of queries first … stop - 1. Each waits for its
    turn in a cell that is 0 at first, and passes another."""
    for first, stop in ((0, 0), (0, 3), (2, 3), (1, 4)):
        cells = [0] * 5
        for order, at in product(range(5), range(5)):
            waits = f["meets"](at, first, f["end_before"](order, first, stop))
            if waits != (order > 0 and first <= at < stop):
                return f"place {order} waits at {at}, of {first} to {stop}: {waits}"
            if waits and cells[at] != f["awaited_turn"](order):
                return f"place {order} waits for a turn that no earlier one passes"
            if first <= at < stop:
                before, cells[at] = cells[at], f["passed_turn"](order)
                if cells[at] < 1 or cells[at] == before:
                    return f"place {order} leaves the cell at {cells[at]}"
    for n_parts in range(1, 40):
        if not n_parts <= f["counters"](n_parts) <= 4 * n_parts or f["counters"](n_parts) < 3:
            return f"{n_parts} tiles of dQ have {f['counters'](n_parts)} cells"
    return ""
