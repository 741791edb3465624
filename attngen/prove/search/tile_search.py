"""Tile ranges tried out in numbers: the search for a counterexample, and the check of one that a solver proposes.

Takes the plan and one direction, returns `Example`s: sizes, params and a pair for which a claim is false. Everything is
evaluated in NumPy from the mask and the plan's own values, so what is reported here is real, whatever a solver thinks.
Finding nothing proves nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import SIZES, Expr
from attngen.ir.walk import symbols
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.loops import ZERO, Assigned, Loops, Ordered, Rounded
from attngen.plan.mask.ranges import TileRanges
from attngen.prove.budget.work import Work
from attngen.prove.search.small_settings import Setting, settings

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_WIDTHS = (1, 2, 3, 5)
"""Widths of the walked tiles, for data tests."""
_SETTING, _STEP, _ANSWER, _PAIRS = 500, 6, 200, 200
"""Units for a setting, for a tile, and for the answer to a data test; pairs that are compared in one unit."""


@dataclass(frozen=True, slots=True)
class Example:
    """A claim is false here: `lines` say it to a reader, `values` hold the numbers."""

    lines: tuple[str, ...]
    values: tuple[tuple[str, int | float | bool | str], ...]


@dataclass(frozen=True, slots=True)
class Held:
    """Tiles that are held: first and last positions, one entry a tile."""

    first: Ints
    last: Ints


@dataclass
class TileSearch:
    """One direction of one plan."""

    attention: Attention
    mask: Expr
    ranges: TileRanges
    loops: Loops
    _named: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        used: set[str] = set(symbols(self.mask))
        for s in (*self.ranges.any, *self.ranges.all):
            used |= symbols(s.lo) | symbols(s.hi)
        self._named = frozenset(used & {*SIZES, *self.attention.sizes} | {"Sq", "Sk"})
        self.walked = self.ranges.axis
        self.held = "q" if self.walked == "k" else "k"

    # ------------------------------------------------------------ one pair

    def lost(self, setting: Setting, first: int, last: int, q: int, k: int) -> Example | None:
        """An example if the pair is allowed and no stretch of `any` holds it."""
        env = self.env(setting, q=q, k=k)
        at, own = (k, q) if self.walked == "k" else (q, k)
        if not (0 <= first <= own <= last) or not bool(evaluate(self.mask, env, setting.values)):
            return None
        env |= {f"{self.held}0": first, f"{self.held}1": last}
        found = [
            (int(evaluate(s.lo, env, setting.values)), int(evaluate(s.hi, env, setting.values)))
            for s in self.ranges.any
        ]
        if any(lo <= at < hi for lo, hi in found):
            return None
        return self._example(setting, first, last, q, k, found, allowed=True)

    def wrong(self, number: int, setting: Setting, first: int, last: int, q: int, k: int) -> Example | None:
        """An example if a stretch of `all` holds a pair that isn't allowed."""
        env = self.env(setting, q=q, k=k)
        at, own = (k, q) if self.walked == "k" else (q, k)
        size = setting.sizes["Sk" if self.walked == "k" else "Sq"]
        if not 0 <= first <= own <= last:
            return None
        if 0 <= at < size and bool(evaluate(self.mask, env, setting.values)):
            return None
        env |= {f"{self.held}0": first, f"{self.held}1": last}
        s = self.ranges.all[number]
        stretch = int(evaluate(s.lo, env, setting.values)), int(evaluate(s.hi, env, setting.values))
        if not stretch[0] <= at < stretch[1]:
            return None
        return self._example(setting, first, last, q, k, [stretch], allowed=False)

    def env(self, setting: Setting, **more: Any) -> dict[str, Any]:
        sizes = setting.sizes
        return {**sizes, "b": 0, "h": 0, "hkv": 0, "inf": np.inf, "scale": 1.0, **more}

    def _example(
        self, setting: Setting, first: int, last: int, q: int, k: int, found: list[tuple[int, int]], *, allowed: bool
    ) -> Example:
        held, walked = ("queries", "keys") if self.held == "q" else ("keys", "queries")
        stretches = ", ".join(f"{lo} … {hi - 1}" if lo < hi else "nothing" for lo, hi in found) or "nothing"
        at = k if self.walked == "k" else q
        size = setting.sizes["Sk" if self.walked == "k" else "Sq"]
        outside = not 0 <= at < size
        if allowed:
            end = f"the mask allows query {q} with key {k}, which is outside: the pair is lost"
        elif outside:
            end = f"position {at} is in it, and there are only {size} {walked}"
        else:
            end = f"the mask forbids query {q} with key {k}, which is inside: the pair would be counted"
        lines = (
            setting.text(self._named),
            f"tile of {held} {first} … {last}: {'any' if allowed else 'all'} holds the {walked} {stretches}",
            end,
        )
        values = [(name, value) for name, value in setting.sizes.items() if name in self._named]
        values += [(f"{self.held}0", first), (f"{self.held}1", last), ("q", q), ("k", k)]
        values += [(name, value) for name, value in setting.values.items() if not np.ndim(value)]
        return Example(lines, tuple(values))

    # ------------------------------------------------------------ search

    def search_ranges(self, number: int | None, work: Work) -> Example | None:
        """Tries small settings: pairs lost by `any` (number None), or wrongly inside the stretch `number` of `all`.

        What costs more than is left of `work` is left out.
        """
        for setting, held in self._trials():
            if not work.clock.left:
                return None
            price = self._price(setting, held)
            if price > work.left:
                continue
            work.charge(price)
            found = self._try(setting, held, number)
            if found is not None:
                return found
        return None

    def _price(self, setting: Setting, held: Held) -> int:
        """Units for all pairs of these tiles, and for the answers of data tests."""
        size = setting.sizes["Sk" if self.walked == "k" else "Sq"]
        pairs = int((held.last - held.first + 1).sum()) * size
        answers = len(held.first) * sum(-(-size // tile) for tile in _WIDTHS) * len(self.ranges.tests)
        return _SETTING + _STEP * len(held.first) + pairs // _PAIRS + _ANSWER * answers

    def _trials(self) -> Iterator[tuple[Setting, Held]]:
        for setting in settings(self.attention, self.mask):
            size = setting.sizes["Sq" if self.held == "q" else "Sk"]
            yield setting, _all_tiles(size) if size <= 16 else _some_tiles(size)

    def _grid(self, setting: Setting) -> Bools:
        """bool [held, walked]: the mask over all pairs."""
        sq, sk = setting.sizes["Sq"], setting.sizes["Sk"]
        env = self.env(setting, q=np.arange(sq)[:, None], k=np.arange(sk)[None, :])
        grid = np.broadcast_to(evaluate(self.mask, env, setting.values), (sq, sk))
        return grid if self.held == "q" else grid.T

    def _try(self, setting: Setting, held: Held, number: int | None) -> Example | None:
        grid = self._grid(setting)
        size = int(grid.shape[1])
        n = len(held.first)
        for tile in _WIDTHS if self.ranges.tests else (1,):
            env = self.env(setting, **{f"{self.held}0": held.first, f"{self.held}1": held.last})
            env |= self.answers(setting, held, size, tile)
            segments = self.ranges.any if number is None else self.ranges.all[number : number + 1]
            ends = [(self._bound(s.lo, env, setting, n), self._bound(s.hi, env, setting, n)) for s in segments]
            lost = number is None
            found = self._first_lost(grid, held, ends) if lost else self._first_wrong(grid, held, *ends[0])
            if found is not None:
                t, own, walked = found
                q, k = (own, walked) if self.held == "q" else (walked, own)
                stretches = [(int(lo[t]), int(hi[t])) for lo, hi in ends]
                tile_ends = int(held.first[t]), int(held.last[t])
                return self._example(setting, *tile_ends, q, k, stretches, allowed=number is None)
        return None

    def _bound(self, e: Expr, env: Mapping[str, Any], setting: Setting, n: int) -> Ints:
        """An end of a stretch, for each of n held tiles."""
        return np.broadcast_to(evaluate(e, env, setting.values), (n,)).astype(np.int64)

    def _first_lost(self, grid: Bools, held: Held, ends: list[tuple[Ints, Ints]]) -> tuple[int, int, int] | None:
        at: Ints = np.arange(int(grid.shape[1]), dtype=np.int64)
        for t in range(len(held.first)):
            lost: Bools = np.array(grid[held.first[t] : held.last[t] + 1], dtype=np.bool_)
            for lo, hi in ends:
                lost &= ~((lo[t] <= at) & (at < hi[t]))
            if lost.any():
                own, walked = np.argwhere(lost)[0]
                return t, int(held.first[t] + own), int(walked)
        return None

    def _first_wrong(self, grid: Bools, held: Held, lo: Ints, hi: Ints) -> tuple[int, int, int] | None:
        size = grid.shape[1]
        for t in range(len(held.first)):
            if lo[t] >= hi[t]:
                continue
            if lo[t] < 0 or hi[t] > size:
                return t, int(held.first[t]), int(lo[t] if lo[t] < 0 else size)
            rows = grid[held.first[t] : held.last[t] + 1, lo[t] : hi[t]]
            if not rows.all():
                own, walked = np.argwhere(~rows)[0]
                return t, int(held.first[t] + own), int(lo[t] + walked)
        return None

    # ------------------------------------------------------------ data tests, as the kernel answers them

    def answers(self, setting: Setting, held: Held, size: int, tile: int) -> dict[str, Ints]:
        found: dict[str, Ints] = {}
        for t in self.ranges.tests:
            rows = [
                self._answer(t, setting, int(a), int(b), size, tile) for a, b in zip(held.first, held.last, strict=True)
            ]
            for place, end in enumerate(("any_lo", "any_hi", "all_lo", "all_hi")):
                found[f"{t.name}_{end}"] = np.array([r[place] for r in rows], np.int64)
        return found

    def _answer(self, t: DataTest, setting: Setting, first: int, last: int, size: int, tile: int) -> tuple[int, ...]:
        own, other = (t.row, t.col) if self.walked == "k" else (t.col, t.row)
        here = _spread(own, self.env(setting, **{self.held: np.arange(first, last + 1)}), setting)
        can: list[int] = []
        must: list[int] = []
        for number, start in enumerate(range(0, size, tile)):
            positions = np.arange(start, min(start + tile, size))
            there = _spread(other, self.env(setting, **{self.walked: positions}), setting)
            names = {"here_least": here[0], "here_most": here[1], "there_least": there[0], "there_most": there[1]}
            if bool(evaluate(t.can(self.walked), names, {})):
                can.append(number)
            if bool(evaluate(t.must(self.walked), names, {})):
                must.append(number)
        gapless = bool(must) and must[-1] - must[0] + 1 == len(must)
        some = (can[0] * tile, (can[-1] + 1) * tile) if can else (0, 0)
        every = (must[0] * tile, (must[-1] + 1) * tile) if gapless else (0, 0)
        return (*some, *every)

    # ------------------------------------------------------------ loops

    def search_loops(self, work: Work) -> Example | None:
        """Walks small grids as the kernel would: is a tile lost, walked twice, or wrongly walked without the mask?"""
        for setting in settings(self.attention, self.mask):
            grid = self._grid(setting)
            size = grid.shape[1]
            for held_tile, tile in itertools.product((2, 3, 128), (2, 3, 64)):
                first = np.arange(0, int(grid.shape[0]), held_tile, dtype=np.int64)
                held = Held(first, np.minimum(first + held_tile, int(grid.shape[0])) - 1)
                if not work.clock.left:
                    return None
                steps = len(held.first) * -(-int(size) // tile)
                price = _SETTING + steps * (_STEP + _ANSWER * len(self.ranges.tests))
                if price > work.left:
                    continue
                work.charge(price)
                found = self._walk(setting, grid, held, size, tile)
                if found is not None:
                    return found
        return None

    def _runs(self, setting: Setting, env: Mapping[str, Any], n: int, size: int, tile: int) -> dict[str, Ints]:
        """The plan's steps, executed for n held tiles."""
        names: dict[str, Ints] = {ZERO: np.zeros(n, np.int64)}
        for step in self.loops.steps:
            match step:
                case Rounded():
                    at = self._bound(step.bound, env, setting, n)
                    numerator = at + tile - 1 if step.up else at
                    rounded = np.sign(numerator) * (np.abs(numerator) // tile)
                    names[step.name] = np.clip(rounded, 0, -(-size // tile)) if step.clamped else rounded
                case Assigned():
                    names[step.name] = np.broadcast_to(evaluate(step.value, names, {}), (n,)).astype(np.int64)
                case Ordered(a, b):
                    swap = names[b.start] < names[a.start]
                    for x, y in ((a.start, b.start), (a.stop, b.stop)):
                        names[x], names[y] = np.where(swap, names[y], names[x]), np.where(swap, names[x], names[y])
        returned = {name: evaluate(e, names, {}) for name, e in self.loops.returned.items()}
        return names | {name: np.broadcast_to(e, (n,)).astype(np.int64) for name, e in returned.items()}

    def _walk(self, setting: Setting, grid: Bools, held: Held, size: int, tile: int) -> Example | None:
        n = len(held.first)
        env = self.env(setting, **{f"{self.held}0": held.first, f"{self.held}1": held.last})
        env |= self.answers(setting, held, size, tile)
        names = self._runs(setting, env, n, size, tile)
        tiles = np.arange(-(-size // tile) + 2)

        def visits(runs: tuple[Any, ...]) -> Ints:
            total = np.zeros((n, len(tiles)), np.int64)
            for r in runs:
                total += (names[r.start][:, None] <= tiles) & (tiles < names[r.stop][:, None])
            return total

        full, masked = visits(self.loops.full), visits(self.loops.partial)
        runs = (*self.loops.full, *self.loops.partial)
        for t in range(n):
            early = [int(names[r.start][t]) for r in runs if names[r.start][t] < min(0, names[r.stop][t])]
            if early:
                return self._walked(setting, held, t, early[0], tile, "is walked, before the first position")
            rows = grid[held.first[t] : held.last[t] + 1]
            for number in tiles:
                columns = rows[:, number * tile : (number + 1) * tile]
                problem = _problem(columns, int(full[t, number]), int(masked[t, number]), tile)
                if problem:
                    return self._walked(setting, held, t, int(number), tile, problem)
        return None

    def _walked(self, setting: Setting, held: Held, t: int, number: int, tile: int, problem: str) -> Example:
        what, own = ("keys", "queries") if self.walked == "k" else ("queries", "keys")
        start, first, last = number * tile, int(held.first[t]), int(held.last[t])
        lines = (
            setting.text(self._named),
            f"tile of {own} {first} … {last}, tiles of {tile} {what}:",
            f"the tile of {what} {start} … {start + tile - 1} {problem}",
        )
        return Example(lines, (("tile", tile), (f"{self.held}0", first), (f"{self.walked}0", start)))


def _problem(columns: Bools, full: int, masked: int, tile: int) -> str:
    """What is wrong with walking a tile so many times without and with the mask; empty if nothing is."""
    needed = bool(columns.size and columns.any())
    if needed and full + masked == 0:
        return "is not walked, and a pair in it is allowed"
    if needed and full + masked > 1:
        return f"is walked {full + masked} times"
    if full and (columns.shape[1] < tile or not columns.all()):
        return "is walked without the mask, and not all of its pairs are allowed"
    return ""


def _spread(e: Expr, env: Mapping[str, Any], setting: Setting) -> tuple[Any, Any]:
    values = np.asarray(evaluate(e, env, setting.values))
    return values.min(), values.max()


def _all_tiles(size: int) -> Held:
    pairs = [(a, b) for a in range(size) for b in range(a, size)]
    return Held(np.array([a for a, _ in pairs]), np.array([b for _, b in pairs]))


def _some_tiles(size: int) -> Held:
    pairs = [(a, min(a + tile, size) - 1) for tile in (16, 128) for a in range(0, size, tile)]
    return Held(np.array([a for a, _ in pairs]), np.array([b for _, b in pairs]))
