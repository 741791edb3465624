"""Brute force for ranges and loops: the pairs that the planned loops count, beside those that the mask allows.

Takes a plan (mutated or not), walks its steps in plain integers for small sizes and tiles, gives the first mistake in
words, or None. Written from the meaning of the steps; shares no code with the prover, nor with the planner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.loops import ZERO, Assigned, Loops, Ordered, Rounded
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from mutation.draws import Drawn, draws

TILES = ((4, 4), (2, 8), (8, 2), (16, 16), (3, 5))


def wrong_walk(attention: Attention, plan: KernelPlan, *, count: int = 15, longest: int = 20, seed: int = 0) -> str:
    """Where some pair is lost, counted twice, or counted against the mask; empty if no trial shows any such thing."""
    for number, drawn in enumerate(draws(attention, count, longest=longest, seed=seed)):
        for b, h in drawn.heads[:2]:
            pairs = allowed(attention, drawn, b, h)
            for tile in (TILES[(number + h) % len(TILES)],):
                for ranges, loops in ((plan.keys, plan.key_loops), (plan.queries, plan.query_loops)):
                    problem = walk(plan, ranges, loops, drawn, b, h, tile, pairs)
                    if problem:
                        return f"{problem}; {dict(drawn.sizes)}, params {drawn.params}, b {b}, h {h}, tile {tile}"
    return ""


def allowed(attention: Attention, drawn: Drawn, b: int, h: int) -> np.ndarray:
    """bool [Sq, Sk]: the definition's mask."""
    sq, sk = drawn.sizes["Sq"], drawn.sizes["Sk"]
    env = drawn.env(b, h, q=np.arange(sq)[:, None], k=np.arange(sk)[None, :])
    return np.broadcast_to(evaluate(attention.mask, env, drawn.params), (sq, sk))


def walk(
    plan: KernelPlan,
    ranges: TileRanges,
    loops: Loops,
    drawn: Drawn,
    b: int,
    h: int,
    tile: tuple[int, int],
    pairs: np.ndarray,
) -> str:
    axis = ranges.axis
    grid = pairs if axis == "k" else pairs.T
    held_tile, walked_tile = tile if axis == "k" else tile[::-1]
    held_size, size = grid.shape
    names = ("q0", "q1") if axis == "k" else ("k0", "k1")
    firsts = np.arange(0, held_size, held_tile)
    lasts = np.minimum(firsts + held_tile, held_size) - 1
    env = drawn.env(b, h, scale=0.5, **dict(zip(names, (firsts, lasts), strict=True)))
    for test in ranges.tests:
        env.update(_answers(test, axis, env, drawn.params, firsts, held_size, size, walked_tile))
    tiles = len(firsts)
    any_, all_ = (_stretches(s, env, drawn.params, tiles) for s in (ranges.any, ranges.all))
    runs = _runs(loops, env, drawn.params, size, walked_tile, tiles)
    for number, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        rows = grid[first : last + 1]
        problem = _claims(axis, any_[number], all_[number], rows, first)
        if problem:
            return problem
        counted = np.zeros(rows.shape, np.int64)
        for start, stop, masked in runs[number]:
            for step in range(start, stop):
                low, high = step * walked_tile, (step + 1) * walked_tile
                at = f"axis {axis}, tile {first} … {last} with {low} … {high - 1}"
                if low < 0:
                    return f"a tile before the start is read: {at}"
                if high > size and not masked:
                    return f"a tile without the mask sticks out: {at}"
                counted[:, low:high] += rows[:, low:high] if masked else 1
        wrong = np.argwhere(counted != rows)
        if len(wrong):
            own, at_ = (int(x) for x in wrong[0])
            times, wanted = int(counted[own, at_]), int(rows[own, at_])
            return f"axis {axis}: pair ({first + own}, {at_}) is counted {times} times and not {wanted}"
    return ""


def _ints(e: Expr, env: Mapping[str, Any], params: Mapping[str, Any], tiles: int) -> list[int]:
    """An int of each held tile."""
    return np.broadcast_to(evaluate(e, env, params), (tiles,)).tolist()


Ends = list[tuple[int, int]]


def _stretches(
    segments: Sequence[Segment], env: Mapping[str, Any], params: Mapping[str, Any], tiles: int
) -> Sequence[Ends]:
    """Where each stretch begins and ends, for each held tile."""
    ends = [zip(*(_ints(e, env, params, tiles) for e in (s.lo, s.hi)), strict=True) for s in segments]
    return [list(own) for own in zip(*ends, strict=True)] if ends else [[] for _ in range(tiles)]


def _claims(axis: str, any_: Ends, all_: Ends, rows: np.ndarray, first: int) -> str:
    """What the stretches say, pair by pair: none allowed outside `any`, none forbidden inside `all`."""
    covered = np.zeros(rows.shape[1], bool)
    for low, high in any_:
        covered[max(low, 0) : max(high, 0)] = True
    if (rows & ~covered).any():
        own, at = (int(x) for x in np.argwhere(rows & ~covered)[0])
        return f"axis {axis}: pair ({first + own}, {at}) is outside `any`"
    for low, high in all_:
        if low < high and (low < 0 or high > rows.shape[1]):
            return f"axis {axis}: `all` holds {low} … {high - 1} of {rows.shape[1]}"
        if low < high and not rows[:, low:high].all():
            return f"axis {axis}: `all` holds {low} … {high - 1}, and some pair of tile {first} is not allowed"
    return ""


def _runs(
    loops: Loops, env: Mapping[str, Any], params: Mapping[str, Any], size: int, tile: int, tiles: int
) -> list[list[tuple[int, int, bool]]]:
    """The runs of each held tile."""
    names: dict[str, np.ndarray] = {ZERO: np.zeros(tiles, np.int64)}
    for step in loops.steps:
        match step:
            case Rounded():
                more = tile - 1 if step.up else 0
                bounds = _ints(step.bound, env, params, tiles)
                rounded = np.array([int((bound + more) / tile) for bound in bounds])  # towards 0, as C divides
                names[step.name] = np.clip(rounded, 0, -(-size // tile)) if step.clamped else rounded
            case Assigned():
                names[step.name] = np.array(_ints(step.value, names, {}, tiles))
            case Ordered(a, b):
                turned = names[b.start] < names[a.start]
                for x, y in ((a.start, b.start), (a.stop, b.stop)):
                    here, there = names[x], names[y]
                    names[x], names[y] = np.where(turned, there, here), np.where(turned, here, there)
    names |= {name: np.array(_ints(e, names, {}, tiles)) for name, e in loops.returned.items()}
    found: list[list[tuple[int, int, bool]]] = [[] for _ in range(tiles)]
    for run, masked in [*((r, False) for r in loops.full), *((r, True) for r in loops.partial)]:
        for own, start, stop in zip(found, names[run.start].tolist(), names[run.stop].tolist(), strict=True):
            own.append((start, stop, masked))
    return found


def _answers(
    test: DataTest, axis: str, env: Mapping[str, Any], params: Mapping[str, Any], firsts: np.ndarray, held_size: int,
    size: int, tile: int,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Of each held tile."""
    held_name, walked_name = ("q", "k") if axis == "k" else ("k", "q")
    held, walked = (test.row, test.col) if axis == "k" else (test.col, test.row)
    here = _values(held, env, params, held_name, held_size)
    there = _values(walked, env, params, walked_name, size)
    starts = np.arange(0, size, tile)
    extremes = {
        "here_least": np.minimum.reduceat(here, firsts)[:, None],
        "here_most": np.maximum.reduceat(here, firsts)[:, None],
        "there_least": np.minimum.reduceat(there, starts)[None, :],
        "there_most": np.maximum.reduceat(there, starts)[None, :],
    }
    shape = (len(firsts), len(starts))
    can, must = (np.broadcast_to(evaluate(e, extremes, {}), shape) for e in (test.can(axis), test.must(axis)))
    found = {f"{test.name}_{end}": np.zeros(len(firsts), np.int64) for end in ("any_lo", "any_hi", "all_lo", "all_hi")}
    for number, (can_, must_) in enumerate(zip(can, must, strict=True)):
        some, every = np.flatnonzero(can_), np.flatnonzero(must_)
        solid = len(every) > 0 and every[-1] - every[0] + 1 == len(every)
        for which, tiles in (("any", some), ("all", every if solid else every[:0])):
            if len(tiles):
                found[f"{test.name}_{which}_lo"][number] = tiles[0] * tile
                found[f"{test.name}_{which}_hi"][number] = (tiles[-1] + 1) * tile
    return found


def _values(e: Expr, env: Mapping[str, Any], params: Mapping[str, Any], name: str, size: int) -> np.ndarray:
    return np.broadcast_to(evaluate(e, {**env, name: np.arange(size)}, params), (size,))
