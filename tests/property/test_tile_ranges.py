"""Planned tile ranges against brute force over all pairs, for masks drawn from the grammar."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, event, given, settings, strategies as st

from attngen.ir.evaluate import evaluate
from attngen.plan import KernelPlan, plan
from attngen.plan.host_map import FULL, SKIPPED
from attngen.plan.mask.holes import tile_test
from attngen.plan.simulate import classify, visited
from attngen.plan.tiles.traits import in_turn
from property import grammar
from property.kernels import analysed

QUIET = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@st.composite
def shapes(draw: st.DrawFn) -> tuple[dict[str, int], tuple[int, int]]:
    Hkv, group = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    lengths = st.integers(1, 40)
    sizes = {"B": 2, "Hq": Hkv * group, "Hkv": Hkv, "Sq": draw(lengths), "Sk": draw(lengths), "D": 16, "Dv": 16}
    tile = st.sampled_from([4, 8, 16])
    return sizes, (draw(tile), draw(tile))


def allowed(planned: KernelPlan, sizes: dict[str, int], params: dict[str, Any], b: int, h: int) -> np.ndarray:
    env: dict[str, Any] = dict(sizes, b=b, h=h, hkv=h // (sizes["Hq"] // sizes["Hkv"]))
    env |= {"q": np.arange(sizes["Sq"])[:, None], "k": np.arange(sizes["Sk"])[None, :]}
    return np.broadcast_to(evaluate(planned.attention.mask, env, params), (sizes["Sq"], sizes["Sk"]))


def tiles(pairs: np.ndarray, tile: tuple[int, int]) -> list[list[np.ndarray]]:
    return [
        [pairs[q : q + tile[0], k : k + tile[1]] for k in range(0, pairs.shape[1], tile[1])]
        for q in range(0, pairs.shape[0], tile[0])
    ]


def check_sound(text: str, sizes: dict[str, int], tile: tuple[int, int], seed: int) -> None:
    planned = plan(analysed(text))
    drawn = grammar.mask_values(sizes, seed)
    params = {p.name: drawn[p.name] for p in planned.attention.params}
    b, h = seed % sizes["B"], seed % sizes["Hq"]
    pairs = allowed(planned, sizes, params, b, h)
    for axis in ("k", "q"):
        grid = classify(planned, sizes, params, tile=tile, axis=axis, b=b, h=h)
        if axis == "q" and in_turn(planned):
            for i, row in enumerate(grid != SKIPPED):
                met = np.flatnonzero(row)
                at = f"query tile {i} of\n{text}\nparams {params}"
                assert met.size == 0 or met[-1] - met[0] + 1 == met.size, f"tiles of keys are left out between: {at}"
        for i, line in enumerate(tiles(pairs, tile)):
            for j, part in enumerate(line):
                at = f"axis {axis}, query tile {i}, key tile {j} of\n{text}\nparams {params}"
                assert grid[i, j] != SKIPPED or not part.any(), f"a skipped tile holds an allowed pair: {at}"
                assert grid[i, j] != FULL or part.all(), f"a full tile holds a forbidden pair: {at}"
                # What runs without a mask loads without a check: it lies inside the walked axis.
                ragged = part.shape[1] < tile[1] if axis == "k" else part.shape[0] < tile[0]
                assert grid[i, j] != FULL or not ragged, f"a full tile sticks out: {at}"


@settings(QUIET)
@given(grammar.masks, shapes(), st.integers(0, 999))
def test_ranges_are_sound(mask: str, shape: tuple[dict[str, int], tuple[int, int]], seed: int) -> None:
    check_sound(grammar.spec(f"mask = {mask}"), *shape, seed)


@settings(QUIET)
@given(grammar.conditional_masks, shapes(), st.integers(0, 999))
def test_ranges_of_conditional_windows_are_sound(
    mask: str, shape: tuple[dict[str, int], tuple[int, int]], seed: int
) -> None:
    check_sound(grammar.spec(f"mask = {mask}"), *shape, seed)


@st.composite
def exact_masks(draw: st.DrawFn) -> str:
    """Half-lines with any coefficients, and bands of some width along the diagonal: the ranges lose nothing on them."""
    offset = st.integers(-20, 30)
    if draw(st.booleans()):
        a, c = draw(st.integers(1, 4)), draw(st.integers(-4, 4))
        sign = draw(st.sampled_from(["<", "<=", ">", ">="]))
        return f"{a} * k {sign} ({c}) * q + ({draw(offset)})"
    low = draw(offset)
    high = low + draw(st.integers(1, 20))
    distance = draw(st.sampled_from(["q - k", "q + Sk - Sq - k", "k - q"]))
    return f"({low}) <= {distance} < ({high})"


@settings(QUIET)
@given(exact_masks(), shapes())
def test_affine_ranges_are_exact(mask: str, shape: tuple[dict[str, int], tuple[int, int]]) -> None:
    sizes, tile = shape
    planned = plan(analysed(f"attention drawn\nmask = {mask}\n"))
    pairs = allowed(planned, sizes, {}, 0, 0)
    for axis in ("k", "q"):
        grid = classify(planned, sizes, {}, tile=tile, axis=axis)
        for i, line in enumerate(tiles(pairs, tile)):
            for j, part in enumerate(line):
                at = f"axis {axis}, query tile {i}, key tile {j} of {mask}"
                assert (grid[i, j] != SKIPPED) == part.any(), f"visited though empty, or skipped: {at}"
                whole = part.shape[1] == tile[1] if axis == "k" else part.shape[0] == tile[0]
                assert (grid[i, j] == FULL) == (part.all() and whole), f"full and masked, or the reverse: {at}"
                event(f"tile {grid[i, j]}")


@settings(QUIET)
@given(grammar.masks, shapes(), st.integers(0, 999))
def test_maps_are_exact(mask: str, shape: tuple[dict[str, int], tuple[int, int]], seed: int) -> None:
    """Of every mask that has a test, be it one that has no map: the tiles that hold a pair, and those that need no
    mask."""
    (sizes, tile), text = shape, grammar.spec(f"mask = {mask}")
    planned = plan(analysed(text))
    planned = replace(planned, map=tile_test(planned.attention.mask, planned.facts))
    if planned.map is None:
        event("no test")
        return
    drawn = grammar.mask_values(sizes, seed)
    params = {p.name: drawn[p.name] for p in planned.attention.params}
    b, h = seed % sizes["B"], seed % sizes["Hq"]
    pairs = allowed(planned, sizes, params, b, h)
    for axis in ("k", "q"):
        grid = visited(planned, sizes, params, tile=tile, axis=axis, b=b, h=h)
        for i, line in enumerate(tiles(pairs, tile)):
            for j, part in enumerate(line):
                at = f"axis {axis}, query tile {i}, key tile {j} of\n{text}\nparams {params}"
                assert (grid[i, j] != SKIPPED) == part.any(), f"named though empty, or left out: {at}"
                whole = part.shape[1] == tile[1] if axis == "k" else part.shape[0] == tile[0]
                assert (grid[i, j] == FULL) == (part.all() and whole), f"full and masked, or the reverse: {at}"
                event(f"tile {grid[i, j]}")
