"""Brute force for ranges and loops: the pairs that the planned loops count, beside those that the mask allows.

Takes a plan (mutated or not), walks its steps in plain integers for small sizes and tiles, gives the first mistake in
words, or None. Written from the meaning of the steps; shares no code with the prover, nor with the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.plan.data_tests import DataTest
from attngen.plan.kernel import KernelPlan
from attngen.plan.loops import ZERO, Assigned, Loops, Ordered, Rounded
from attngen.plan.ranges import TileRanges
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
    for first in range(0, held_size, held_tile):
        last = min(first + held_tile, held_size) - 1
        env = drawn.env(b, h, scale=0.5, **dict(zip(names, (first, last), strict=True)))
        for test in ranges.tests:
            env.update(_answers(test, axis, env, drawn.params, first, last, size, walked_tile))
        rows = grid[first : last + 1]
        problem = _claims(ranges, env, drawn.params, rows, first)
        if problem:
            return problem
        counted = np.zeros(rows.shape, np.int64)
        for start, stop, masked in _runs(loops, env, drawn.params, walked_tile):
            for number in range(start, stop):
                low, high = number * walked_tile, (number + 1) * walked_tile
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


def _claims(ranges: TileRanges, env: Mapping[str, Any], params: Mapping[str, Any], rows: np.ndarray, first: int) -> str:
    """What the stretches say, pair by pair: none allowed outside `any`, none forbidden inside `all`."""
    covered = np.zeros(rows.shape[1], bool)
    for s in ranges.any:
        low, high = int(evaluate(s.lo, env, params)), int(evaluate(s.hi, env, params))
        covered[max(low, 0) : max(high, 0)] = True
    if (rows & ~covered).any():
        own, at = (int(x) for x in np.argwhere(rows & ~covered)[0])
        return f"axis {ranges.axis}: pair ({first + own}, {at}) is outside `any`"
    for s in ranges.all:
        low, high = int(evaluate(s.lo, env, params)), int(evaluate(s.hi, env, params))
        if low < high and (low < 0 or high > rows.shape[1]):
            return f"axis {ranges.axis}: `all` holds {low} … {high - 1} of {rows.shape[1]}"
        if low < high and not rows[:, low:high].all():
            return f"axis {ranges.axis}: `all` holds {low} … {high - 1}, and some pair of tile {first} is not allowed"
    return ""


def _runs(loops: Loops, env: Mapping[str, Any], params: Mapping[str, Any], tile: int) -> list[tuple[int, int, bool]]:
    names: dict[str, int] = {ZERO: 0}
    for step in loops.steps:
        match step:
            case Rounded():
                bound = int(evaluate(step.bound, env, params))
                names[step.name] = int((bound + (tile - 1 if step.up else 0)) / tile)  # towards 0, as C divides
            case Assigned():
                names[step.name] = int(evaluate(step.value, names, {}))
            case Ordered(a, b):
                if names[b.start] < names[a.start]:
                    for x, y in ((a.start, b.start), (a.stop, b.stop)):
                        names[x], names[y] = names[y], names[x]
    full = [(names[r.start], names[r.stop], False) for r in loops.full]
    return full + [(names[r.start], names[r.stop], True) for r in loops.partial]


def _answers(
    test: DataTest, axis: str, env: Mapping[str, Any], params: Mapping[str, Any], first: int, last: int, size: int,
    tile: int,
) -> dict[str, int]:  # fmt: skip
    held_name, walked_name = ("q", "k") if axis == "k" else ("k", "q")
    held, walked = (test.row, test.col) if axis == "k" else (test.col, test.row)
    here = _values(held, env, params, held_name, np.arange(first, last + 1))
    there = _values(walked, env, params, walked_name, np.arange(size))
    can: list[int] = []
    must: list[int] = []
    for number, start in enumerate(range(0, size, tile)):
        part = there[start : start + tile]
        extremes = {"here_least": here.min(), "here_most": here.max()}
        extremes |= {"there_least": part.min(), "there_most": part.max()}
        if evaluate(test.can(axis), extremes, {}):
            can.append(number)
        if evaluate(test.must(axis), extremes, {}):
            must.append(number)
    solid = bool(must) and must == list(range(must[0], must[-1] + 1))
    return {
        f"{test.name}_any_lo": can[0] * tile if can else 0,
        f"{test.name}_any_hi": (can[-1] + 1) * tile if can else 0,
        f"{test.name}_all_lo": must[0] * tile if solid else 0,
        f"{test.name}_all_hi": (must[-1] + 1) * tile if solid else 0,
    }


def _values(e: Expr, env: Mapping[str, Any], params: Mapping[str, Any], name: str, at: np.ndarray) -> np.ndarray:
    return np.broadcast_to(evaluate(e, {**env, name: at}, params), at.shape)
