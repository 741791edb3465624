"""What `cost` says of compute capability 9.0: the kernels of a generated file, their work counted by brute force."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

import attngen
from attngen import api, inputs
from attngen.cost.chips import chip
from attngen.cost.model import Cost, Line, cost
from attngen.cost.table import render
from attngen.errors import Source
from attngen.ir import walk
from attngen.ir.evaluate import evaluate
from attngen.terminal import console

EXAMPLES = Path(__file__).parents[3] / "examples"
N, HEADS = 500, 2
SIZES = {"B": 1, "Hq": HEADS, "Hkv": 1, "Sq": N, "Sk": N, "D": 128, "Dv": 128}


def look(text: str, dtype: str = "bf16", tile: tuple[int, int] | None = None, **sizes: int) -> Cost:
    plan = api.plan(api.analyse(Source(text)))
    settled = inputs.settle(plan.attention, SIZES | sizes)
    values = inputs.examples(plan.attention, settled, only=walk.params(plan.attention.mask))
    return cost(plan, chip("h200"), dtype, settled, values, tile)  # type: ignore[arg-type]


def ours(found: Cost) -> dict[str, Line]:
    return {line.kernel: line for line in found.lines if line.planned}


def allowed(text: str) -> np.ndarray:
    mask = api.analyse(Source(text)).mask
    env = {**SIZES, "b": 0, "h": 0, "hkv": 0, "q": np.arange(N)[:, None], "k": np.arange(N)[None, :]}
    return np.broadcast_to(evaluate(mask, env, {}), (N, N))


def tiles(pairs: np.ndarray, height: int, width: int) -> list[list[tuple[bool, int, int]]]:
    """For each tile of keys, each tile of queries: whether a pair is allowed; how many queries and keys it has."""
    parts = [
        [pairs[q : q + height, k : k + width] for q in range(0, N, height)] for k in range(0, pairs.shape[1], width)
    ]
    return [[(bool(p.any()), *p.shape) for p in column] for column in parts]


def between(column: list[tuple[bool, int, int]]) -> list[tuple[bool, int, int]]:
    met = [i for i, (some, *_) in enumerate(column) if some]
    return column[met[0] : met[-1] + 1] if met else []


MASKS = ["causal", "true", "causal and q - k < 150", "causal or k < 40", "abs(q - k) < 90"]


@pytest.mark.parametrize("mask", MASKS)
def test_products_of_the_tiles_that_each_warpgroup_takes(mask: str) -> None:
    text = f"attention a\nmask = {mask}\n"
    found, pairs = ours(look(text)), allowed(text)
    ahead, back = found["Hopper forward"], found["Hopper backward"]
    assert (ahead.tile, back.tile) == ((128, 128), (64, 128))
    parts = sum(h * w for column in tiles(pairs, 64, 128) for some, h, w in column if some)
    whole = sum(h * w for column in tiles(pairs, 128, 128) for some, h, w in column if some)
    share = api.plan(api.analyse(Source(text))).hopper.forward.share  # type: ignore[union-attr]
    assert (share is None) == (mask not in ("causal", "true"))
    assert ahead.matrix == 2 * HEADS * (128 + 128) * (whole if share is None else parts)
    # S, dP, dV and dK of each warpgroup's 64 keys, two of them with a row's terms beside; dQ of all 128.
    halves = sum(h * w for column in tiles(pairs, 64, 64) for _, h, w in between(column))
    walked = sum(h * w for column in tiles(pairs, 64, 128) for _, h, w in between(column))
    assert back.matrix == 2 * HEADS * (halves * (4 * 128 + 32) + walked * 128)
    assert ahead.count.special == HEADS * ((whole if share is None else parts) + 2 * N)  # and 1 / l, log l of a row
    assert back.count.special == HEADS * halves


@pytest.mark.parametrize("mask", MASKS)
def test_bytes_that_tiles_ask_the_cache_for(mask: str) -> None:
    text = f"attention a\nmask = {mask}\n"
    found, pairs = ours(look(text)), allowed(text)
    ahead, back = found["Hopper forward"], found["Hopper backward"]
    row = 128 * 2
    fetched = sum(w for column in tiles(pairs, 128, 128) for some, _, w in column if some)
    assert ahead.near is not None and back.near is not None
    assert ahead.near.read == HEADS * (N * row + fetched * 2 * row)
    assert ahead.main.written == HEADS * N * (row + 4)
    walked = sum(h for column in tiles(pairs, 64, 128) for _, h, _ in between(column))
    # Q, dO, sixteen terms of a row, and dQ's sums in float32, for each tile of queries; K, V, dK and dV once.
    assert back.near.read == N * 2 * row + HEADS * walked * (2 * row + 32 + 128 * 4)
    assert back.near.written == N * 2 * row + HEADS * walked * 128 * 4
    assert found["delta"].main.written == HEADS * N * 32
    assert (found["dQ's sums"].main.read, found["dQ's sums"].main.written) == (HEADS * N * 512, HEADS * N * row)


def test_large_heads_have_seven_products_in_two_kernels() -> None:
    text = "attention a\nmask = causal\n"
    found, pairs = ours(look(text, D=256, Dv=256)), allowed(text)
    assert list(found) == ["Hopper forward", "delta", "Hopper dK/dV", "Hopper dQ"]
    each = {
        size: sum(h * w for column in tiles(pairs, *size) for some, h, w in column if some)
        for size in ((64, 64), (128, 64))
    }
    assert found["Hopper dK/dV"].matrix == 2 * HEADS * each[64, 64] * 4 * 256
    assert found["Hopper dQ"].matrix == 2 * HEADS * each[128, 64] * 3 * 256
    assert found["delta"].main.written == HEADS * N * 4


KERNELS = {
    "Hopper forward": "_hopper_forward_kernel",
    "Hopper backward": "_hopper_backward_kernel",
    "Hopper dK/dV": "_hopper_dkdv_kernel",
    "Hopper dQ": "_hopper_dq_kernel",
}
FIRST = ("BQ", "BK")


@pytest.mark.parametrize(
    ("example", "dims"),
    [
        *(("causal", dims) for dims in ((64, 64), (128, 128), (192, 128), (64, 128), (256, 256), (36, 36))),
        ("sliding_window", (128, 128)),
        ("softcap", (64, 64)),
        ("dropout", (128, 128)),
        ("sigmoid", (256, 256)),
        ("documents", (128, 128)),
    ],
)
def test_the_kernels_are_those_of_the_generated_file(example: str, dims: tuple[int, int]) -> None:
    text = (EXAMPLES / f"{example}.attn").read_text()
    source = attngen.compile(text, arch="sm_90", head_dim=dims, dtype="bf16").source
    found = ours(look(text, D=dims[0], Dv=dims[1]))
    for kernel, function in KERNELS.items():
        assert (kernel in found) == (f"def {function}(" in source), kernel
    assert ("forward" in found) != ("Hopper forward" in found)
    assert ("dQ" in found) == ("dK/dV" in found) != bool({"Hopper backward", "Hopper dQ"} & {*found})


def test_portable_kernels_are_described_where_they_run() -> None:
    text = "attention a\nmask = causal\n"
    portable = ["forward", "delta", "dQ", "dK/dV"]
    assert list(ours(look(text, "fp32"))) == portable
    assert list(ours(look(text, tile=(64, 64)))) == portable
    plan = api.plan(api.analyse(Source(text)))
    assert list(ours(cost(plan, chip("a100"), "bf16", SIZES, {}))) == portable


def test_a_param_that_learns_elsewhere_is_named() -> None:
    text = "attention a\nparam slope: f32[Hq]\nscore = qk * scale + alibi(slope)\nmask = causal\n"
    said = io.StringIO()
    console(said).print(render(look(text)))
    assert "a call that wants the gradient of `slope` runs portable kernels backward" in said.getvalue()
    assert "gradient of" not in re.sub(r"\s+", " ", _told("attention a\nmask = causal\n"))


def _told(text: str) -> str:
    said = io.StringIO()
    console(said).print(render(look(text)))
    return said.getvalue()


def test_the_lagging_reference_takes_no_maximum() -> None:
    found = look("attention a\n", Sq=512, Sk=512)
    assert ours(found)["Hopper forward"].count.vector == HEADS * 512 * (2 * 512 + 128)  # and 1 / l times the sums
    biased = "attention a\nparam g: f32[Hq]\nscore = qk * scale - g[h] * log(1.0 + max(q - k, 0))\n"
    assert ours(look(biased))["Hopper forward"].count.special == HEADS * N * (N + 2)  # a logarithm for a diagonal
