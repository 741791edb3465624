"""Ends of few tiles, for a counterexample.

Takes the functions that bring ends to that of a sequence, returns the sizes at which they go wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from attngen.ir.function import Function, results_of


def wrong_end(end_of_tiles: Function, limited: Function) -> Mapping[str, int] | None:
    """A run whose tiles are not those that begin inside the sequence, or rows past their end that have some."""
    of_parts = dict(end_of_tiles.flags)["OF_PARTS"]
    for size, tile, start, held, low in product((1, 2, 3, 4), (1, 2, 3), (0, 1, 2), (1, 2), (0, 1, 2)):
        names = {"size": size, "tile": tile, "start": start, "held": held}
        (stop,) = results_of(end_of_tiles, names)
        for high in range(low, 6):
            ends = [results_of(limited, {"end": end, "stop": stop})[0] for end in (low, high)]
            wanted = {at for at in range(low, high) if at * tile < size and (start < held or not of_parts)}
            if set(range(*ends)) != wanted:
                return {**names, "low": low, "high": high}
    return None
