"""The map's kernels of a generated file, in Triton's interpreter: what they list is what pairs say, for each tile."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import attngen
from attngen.ir.evaluate import evaluate
from attngen.plan.host_map import FULL, SKIPPED
from attngen.plan.simulate import visited

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are called beneath the file's host code")

SIZES = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 200, "Sk": 200, "D": 16, "Dv": 16}
TILES = (64, 32)
RNG = np.random.default_rng(0)
AT = np.arange(200)

MASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "tree": (
        "param first: int[B, Sk]\nparam last: int[B, Sk]\n"
        "mask = causal and first[b, k] <= first[b, q] < last[b, k]\nassume Sq == Sk\n",
        {
            "first": np.stack([np.where(AT < 64, 0, 1 + (AT - 64) // 32), RNG.integers(0, 4, 200)]),
            "last": np.stack([np.where(AT < 64, 9, 2 + (AT - 64) // 32), RNG.integers(1, 6, 200)]),
        },
    ),
    "coordinates": (
        "param x: int[Sk]\nparam y: int[Sk]\nmask = abs(x[q] - x[k]) <= 3 and abs(y[q] - y[k]) <= 1\nassume Sq == Sk\n",
        {"x": AT % 16, "y": AT // 16},
    ),
    "blocks": (
        "param chosen: bool[Hkv, 4, 7]\nmask = causal and chosen[hkv, q // 64, k // 32]\n"
        "assume Sq == Sk\nassume Sk <= 224\n",
        {"chosen": RNG.random((2, 4, 7)) < 0.5},
    ),
    "lists": (
        "param chosen: int[B, 4, 2]\nmask = k // 32 in chosen[b, q // 64] or (q - k) % 150 == 0\n"
        "assume Sq == Sk\nassume Sk <= 224\n",
        {"chosen": RNG.integers(-1, 7, (2, 4, 2))},
    ),
    "what extremes leave open": (
        "param x: int[Sk]\nparam y: int[Sk]\nmask = x[q] == y[k] or (q - k) % 190 == 9\nassume Sq == Sk\n",
        {"x": AT % 2 * 9, "y": AT // 32 % 5 * 3},
    ),
    "heads": (
        "param reach: int[Hq]\nmask = (q - k) % 40 == 3 and q - k < reach[h]\nassume Sq == Sk\n",
        {"reach": np.array([200, 64, 33, 1])},
    ),
}


def lists(
    module: ModuleType,
    kernel: attngen.Kernel,
    walked: str,
    params: dict[str, Any],
    tiles: tuple[int, int],
    *,
    apart: bool,
) -> list[list[tuple[int, int]]]:
    """What is listed for each row: tiles, and whether they need no mask. `apart`: those that need none first, as
    portable kernels walk them."""
    assert kernel.plan.map is not None
    whose = kernel.plan.map.lists
    n_lists = (SIZES["B"] if whose.by_batch else 1) * (SIZES["Hkv" if whose.shared else "Hq"] if whose.by_head else 1)
    counts = [-(-SIZES[size] // tile) for size, tile in zip(("Sq", "Sk"), tiles, strict=True)]
    n_held, n_walked = counts if walked == "keys" else counts[::-1]
    groups = (n_walked + 31) // 32 * (8 if kernel.plan.map.as_bits else 1)
    given: dict[str, Any] = {**SIZES, "scale": 0.25, "n_held": n_held, "n_walked": n_walked, "met_ptr": None}
    given |= {"BQ": tiles[0], "BK": tiles[1], "ROWS": tiles[0], "CUT": apart}
    ends = 2 * len(kernel.plan.map.parts)
    for name, count in (("q_ends", counts[0] * ends), ("k_ends", counts[1] * ends)):
        given[f"{name}_ptr"] = torch.zeros(n_lists * count, dtype=torch.int64)
    for name, count in (("map", n_held * n_walked), ("walks", 2 * n_held), ("tiles", n_held * n_walked)):
        dtype = torch.int8 if name == "map" else torch.int32
        given[f"{name}_ptr"] = torch.full((n_lists * count,), -1, dtype=dtype)
    given["firsts_ptr"], given["n_slots"] = None, n_held
    given["bits_ptr"], given["WORDS"] = None, tiles[0] * tiles[1] // 32
    for name, value in params.items():
        tensor = torch.from_numpy(np.asarray(value)).contiguous()
        taken = next(
            n for n in module._extremes_kernel.arg_names if n.removesuffix("_2_ptr").removesuffix("_ptr") == name
        )
        given[taken] = tensor
        given |= {f"{taken.removesuffix('_ptr')}_stride_{axis}": n for axis, n in enumerate(tensor.stride())}
        given |= dict(zip(kernel.spec.sizes, tensor.shape[1:], strict=False))
    grids = ((module._extremes_kernel, sum(counts)), (getattr(module, f"_map_{walked}_kernel"), n_held * groups))
    listed = module._sort_tiles_kernel if apart else getattr(module, f"_list_{walked}_kernel")
    for made, programs in (*grids, (listed, n_held)):
        made[(n_lists * programs,)](**{n: given[n] for n in made.arg_names})
    found = given["tiles_ptr"].view(n_lists * n_held, n_walked).tolist()
    if apart:
        walks = given["walks_ptr"].view(n_lists * n_held, 2).tolist()
        return [
            [(at, int(i < whole)) for i, at in enumerate(row[:count])]
            for row, (whole, count) in zip(found, walks, strict=True)
        ]
    return [
        [(entry >> 1, entry & 1) for entry in row[:count]]
        for row, count in zip(found, given["walks_ptr"][: n_lists * n_held].tolist(), strict=True)
    ]


def right(
    kernel: attngen.Kernel, walked: str, params: dict[str, Any], tiles: tuple[int, int], *, apart: bool
) -> list[list[tuple[int, int]]]:
    """The same by every pair, for the first batch and head of those that share a list."""
    assert kernel.plan.map is not None
    whose = kernel.plan.map.lists
    b, h = np.arange(2)[:, None, None, None], np.arange(4)[:, None, None]
    env: dict[str, Any] = {**SIZES, "b": b, "h": h, "hkv": h // 2, "q": AT[:, None], "k": AT[None, :]}
    mask = np.broadcast_to(evaluate(kernel.plan.attention.mask, env, params), (2, 4, 200, 200))
    heads = range(0, 4, 2) if whose.shared else range(4)
    rows: list[list[tuple[int, int]]] = []
    for batch in range(2) if whose.by_batch else [0]:
        for head in heads if whose.by_head else [0]:
            seen = mask[batch, head] if walked == "keys" else mask[batch, head].T
            held, tile = tiles if walked == "keys" else tiles[::-1]
            for q0 in range(0, 200, held):
                row = [(k0 // tile, seen[q0 : q0 + held, k0 : k0 + tile]) for k0 in range(0, 200, tile)]
                whole = [
                    (k, int(x.all() and x.shape[1] == tile and (apart or len(x) == held))) for k, x in row if x.any()
                ]
                rows.append(sorted(whole, key=lambda entry: -entry[1]) if apart else whole)
    return rows


NARROW = {"keys": (64, 4), "queries": (4, 32)}
"""Tiles of so few that a row of the map has two words."""


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("walked", ["keys", "queries"])
@pytest.mark.parametrize("name", MASKS)
def test_tiles_that_hold_a_pair_are_listed_and_no_others(name: str, walked: str, narrow: bool, apart: bool) -> None:
    text, params = MASKS[name]
    kernel = attngen.compile(f"attention holes\n\n{text}")
    assert kernel.function is not None
    tiles = NARROW[walked] if narrow else TILES
    found = lists(sys.modules[kernel.function.__module__], kernel, walked, params, tiles, apart=apart)
    expected = right(kernel, walked, params, tiles, apart=apart)
    assert found == expected
    n_walked = -(-200 // tiles[walked == "keys"])
    assert n_walked > 32 or not narrow
    assert any(len(row) < n_walked for row in expected)


@pytest.mark.parametrize("axis", ["k", "q"])
@pytest.mark.parametrize("name", MASKS)
def test_pictures_and_counts_have_the_same_tiles(name: str, axis: str) -> None:
    """`attngen show` and `attngen cost` ask for these."""
    text, params = MASKS[name]
    kernel = attngen.compile(f"attention holes\n\n{text}")
    assert kernel.plan.map is not None
    whose = kernel.plan.map.lists
    heads = range(0, 4, 2) if whose.shared else range(4)
    found: list[list[tuple[int, int]]] = []
    for b in range(2) if whose.by_batch else [0]:
        for h in heads if whose.by_head else [0]:
            grid = visited(kernel.plan, SIZES, params, tile=TILES, axis=axis, b=b, h=h)
            for row in grid if axis == "k" else grid.T:
                met = [(int(at), int(row[at] == FULL)) for at in np.flatnonzero(row != SKIPPED)]
                found.append(sorted(met, key=lambda entry: -entry[1]))
    assert found == right(kernel, "keys" if axis == "k" else "queries", params, TILES, apart=True)


@pytest.mark.parametrize(("Sq", "Sk"), [(40, 570), (570, 40)])
def test_a_gradient_with_an_element_for_each_pair_asks_the_map_beyond_its_first_word(Sq: int, Sk: int) -> None:
    """Tiles of 16 x 16, of which a row, or a column, has 36."""
    generator = torch.Generator().manual_seed(0)
    text = "param bias: f32[Sq, Sk]\nscore = qk * scale + bias[q, k]\nmask = (q - k) // 16 % 7 == 3\n"
    kernel = attngen.compile(f"attention holes\n\n{text}", tile=(16, 16))
    assert kernel.plan.map is not None
    q, k, v = (torch.randn(1, 1, size, 16, generator=generator) for size in (Sq, Sk, Sk))
    bias = torch.randn(Sq, Sk, generator=generator, requires_grad=True)
    (found,) = torch.autograd.grad(kernel(q, k, v, bias=bias).square().sum(), bias)
    allowed = (torch.arange(Sq)[:, None] - torch.arange(Sk)).div(16, rounding_mode="floor") % 7 == 3
    out = torch.softmax((q @ k.mT / 4 + bias).masked_fill(~allowed, float("-inf")), -1).nan_to_num() @ v
    (wanted,) = torch.autograd.grad(out.square().sum(), bias)
    torch.testing.assert_close(found, wanted.nan_to_num(), rtol=1e-3, atol=1e-4)
