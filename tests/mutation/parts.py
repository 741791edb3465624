"""What the rows of one warpgroup walk, by brute force: each walk is taken for all small ends.

`wrong_parts` takes the functions of parts as Python, returns the first mistake in words, or nothing. It shares no code
with the prover.
"""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from typing import Any


def wrong_parts(f: dict[str, Any], *, share: bool | None = None) -> str:
    """`share`: whether the walk of which warpgroups skip steps goes backwards; None, if they skip none."""
    return _end(f) or ("" if share is None else _steps(f, back=share)) or _half(f) or _cut(f)


def _end(f: dict[str, Any]) -> str:
    """Tiles of a sequence that leave a run, and those outside of it that stay in one."""
    for of_parts, size, tile, start, held in product((False, True), (1, 2, 4, 5), (1, 2, 3), (0, 1, 2), (1, 2)):
        stop = f["end_of_tiles"](size, tile, start, held, of_parts)
        inside = {at for at in range(8) if at * tile < size and (start < held or not of_parts)}
        for low, high in combinations_with_replacement(range(8), 2):
            stay = set(range(f["limited"](low, stop), f["limited"](high, stop)))
            if stay != inside & set(range(low, high)):
                return f"{low} … {high - 1} become {stay}: {size} rows by {tile}, {start} of {held}"
    return ""


def _steps(f: dict[str, Any], *, back: bool) -> str:
    """Whether a share takes all steps at which its own tiles come, and one at least."""
    for start, n_steps, (low, high) in product((0, 1, 3), (1, 2, 4), combinations_with_replacement(range(8), 2)):
        first, stop = f["own_steps"](start, n_steps, low, high, back)
        tiles = [start + n_steps - 1 - step if back else start + step for step in range(n_steps)]
        if not 0 <= first < stop <= n_steps or {t for t in tiles if low <= t < high} - set(tiles[first:stop]):
            return f"of {tiles}, steps {first} to {stop} are those of {low} … {high - 1}"
    return ""


def _half(f: dict[str, Any]) -> str:
    """What a half takes of a hull, in either direction, beside the tiles of its own."""
    places = tuple(combinations_with_replacement(range(5), 2))
    for (first, stop), (low, high), (back, turns) in product(places, places, ((0, 0), (0, 1), (1, 1))):
        begin, end = f["half_of_steps"](first, stop, low, high, back, turns)
        tiles = list(range(first, stop)) if back else list(reversed(range(first, stop)))
        mine = {t for t in tiles if low <= t < high}
        if not 0 <= begin <= end <= len(tiles) or mine - set(tiles[begin:end]):
            return f"of {tiles}, steps {begin} to {end} are those of {low} … {high - 1}"
    return ""


def _cut(f: dict[str, Any]) -> str:
    """Whether a half that the end cuts goes without the mask somewhere."""
    for start, rows, size, low, high in product((0, 2), (1, 2), (1, 2, 3, 4), (0, 1), (1, 2, 3)):
        ends = [f["unless_cut"](end, start, rows, size) for end in (low, high)]
        if start + rows > size and ends[0] < ends[1]:
            return f"rows {start} … {start + rows - 1} of {size} have tiles {ends} without the mask"
    return ""
