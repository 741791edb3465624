"""No shape that fits the language may fail at launch for lack of shared memory.

The rule that sees to it, `plan.tiles.shared_bytes`, is a bound: it is held against what the compiler really allocates.
The whole matrix is `-m slow`.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest
from aot.chips import binaries, build, refused

import attngen
from attngen.aot.compile import TARGETS, compile_kernels
from attngen.plan.chips import SHARED_MEMORY
from attngen.plan.footprint import loads_of
from attngen.plan.tiles.portable import KERNELS, Tile, shared_bytes
from attngen.runtime.exported import host

DIMS = ((8, 8), (80, 80), (64, 64), (128, 128), (192, 128), (64, 256), (256, 256))

GATHERED_INDEX = """
attention gathered
param order: int[Sk]
param table: f32[64]
param allowed: bool[Sq, Sk]
param weight: bf16[Hq, Sq, Sk]
score = qk * scale * weight[h, q, k] + table[clamp(order[abs(q - k)], 0, 63)]
mask = allowed[q, k] and q >= k
"""

CONTENT = """
attention content
param table: f32[Hq, 16]
score = qk * scale + table[h, clamp(floor(qk * scale * 4) + 8, 0, 15)]
mask = causal
"""

SPECS = {name: name for name in ("causal", "t5_bias", "natten_2d", "sigmoid", "full_bias", "documents")}
SPECS["gathered"] = GATHERED_INDEX
SPECS["content"] = CONTENT

SAMPLE = {
    ("causal", "gfx942", (256, 256), "bf16", None),
    ("t5_bias", "sm_80", (192, 128), "bf16", (128, 128)),
    ("gathered", "sm_90", (128, 128), "bf16", None),
    ("content", "sm_90", (128, 128), "bf16", None),  # a load that waits for a product, which no pipeline takes
}


def matrix() -> list[object]:
    cases = {
        (name, chip, dims, dtype, tile)
        for name in SPECS
        for chip in TARGETS
        for dims in DIMS
        for dtype in ("bf16", "fp32")
        for tile in (None, (128, 128), (256, 256))
        if (dtype == "bf16" and tile != (256, 256)) or name in ("causal", "t5_bias")
    }
    return [
        pytest.param(*case, id="-".join(map(str, case)), marks=[] if case in SAMPLE else [pytest.mark.slow])
        for case in sorted(cases | SAMPLE, key=str)
    ]


@pytest.mark.parametrize(("name", "chip", "dims", "dtype", "tile"), matrix())
def test_no_launch_is_refused(
    name: str, chip: str, dims: tuple[int, int], dtype: str, tile: tuple[int, int] | None
) -> None:
    kernel = build(SPECS[name], tile)
    found = binaries(kernel, chip, dims, dtype)
    assert not refused(found, chip)
    itemsize = 4 if dtype == "fp32" else 2
    block = max(16, 1 << (max(dims) - 1).bit_length())
    tiles = tiles_in(kernel.source)[chip, itemsize, block]
    for which, numbers in zip(KERNELS, tiles, strict=True):
        bound = shared_bytes(which, Tile(*numbers), chip, itemsize, block, loads_of(kernel.plan))
        assert found[which].shared <= bound <= SHARED_MEMORY[chip] * 1024, which


TWO_BIASES = """
attention two_biases
const radius = 7
const offsets = 2 * radius + 1
param bias: f32[Hq, Sq, Sk]
param table: f32[Hq, offsets]
score = qk * scale + bias[h, q, k] + relative_bias(table, radius)
"""


def test_elements_that_pairs_share_compile_beside_those_of_each_pair() -> None:
    kernel = attngen.compile(TWO_BIASES, forward=True, head_dim=64, dtype="bf16")
    found = compile_kernels(kernel.source, kernel.spec, arch="sm_90", dtype="bf16", head_dim=(64, 64), kind="cubin")
    assert "hopper_forward" in {a.kernel for a in found}


def tiles_in(source: str) -> dict[tuple[str, int, int], tuple[tuple[int, int, int, int], ...]]:
    """The table of a generated file."""
    module = ast.parse(source)
    tables = [n.value for n in module.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "TILES"]
    assert len(tables) == 1
    found: Any = host.tiles_by_chip(ast.literal_eval(tables[0]))
    return found
