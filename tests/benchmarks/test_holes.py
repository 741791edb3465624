"""Masks with holes: what is drawn, the formulas beside the specs, and what is printed. On the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import grouped  # noqa: E402
import holes  # noqa: E402
import rows_of_holes  # noqa: E402
import waits  # noqa: E402

import attngen  # noqa: E402

DRY = list(holes.dry_matrix())


def seen(cell: holes.Cell, seed: int = 0) -> torch.Tensor:
    """(B, Hq, N, N)"""
    made = holes.formula(cell, holes.params(cell, torch.Generator().manual_seed(seed)))
    assert made.allowed is not None
    b, h = torch.arange(cell.B)[:, None, None, None], torch.arange(cell.Hq)[:, None, None]
    at = torch.arange(cell.N)
    return made.allowed(b, h, at[:, None], at).expand(cell.B, cell.Hq, cell.N, cell.N)


def test_the_cells_keep_their_keys() -> None:
    keys = [c.key for c in holes.matrix()]
    assert sorted(keys) == [
        "blocks64x32:1x16384:32/8:128",
        "blocksx16:1x16384:32/8:128",
        "blocksx16:1x65536:32/8:128",
        "diffusion:2x8192:16/16:128",
        "imagex128x128x1x128:2x16384:16/16:64",
        "imagex128x128x8x16:2x16384:16/16:64",
        "listsx16:1x16384:32/8:128",
        "listsx16:1x65536:32/8:128",
        "natten128:4x16384:8/8:64",
        "natten64:4x4096:8/8:64",
        "rolloutsx1024x60x256:1x16384:32/8:128",
        "rolloutsx4096x16x768:1x16384:32/8:128",
        "rolloutsx8192x4x2048:1x16384:32/8:128",
        "spans_globalx4x256:2x8192:32/16:128",
        "spansx4x256:2x8192:32/16:128",
        "strided:2x8192:16/16:64",
        "treex2048x4x1024x4x640:1x16384:32/8:128",
        "videox8x48x80x2x8x8:1x30720:16/16:128",
    ]


def test_a_rollout_sees_the_prompt_and_itself() -> None:
    cell = holes.Cell("rollouts", (5, 3, 4), 2, 1, 1, 17, 16)
    found = seen(cell)
    branch = [0] * 5 + [1] * 4 + [2] * 4 + [3] * 4
    for q in range(17):
        for k in range(17):
            assert bool(found[1, 0, q, k]) == (k <= q and branch[k] in (0, branch[q]))


def test_a_token_of_a_tree_sees_its_branch_and_those_that_it_continues() -> None:
    cell = holes.Cell("tree", (3, 2, 2, 2, 2), 1, 1, 1, 15, 16)
    found = seen(cell)[0, 0]
    paths = [(), (), (), (0,), (1,), (0,), (1,), *[(0, 0), (0, 1), (1, 0), (1, 1)] * 2]
    for q, own in enumerate(paths):
        for k, other in enumerate(paths):
            assert bool(found[q, k]) == (k <= q and own[: len(other)] == other)


def test_neighbours_are_near_in_both_directions_of_the_image() -> None:
    cell = holes.Cell("image", (24, 32, 8, 16), 1, 1, 1, 768, 16)
    given = holes.params(cell, torch.Generator())
    places = list(zip(given["y"].tolist(), given["x"].tolist(), strict=True))
    assert sorted(places) == [(y, x) for y in range(24) for x in range(32)]
    assert {(y // 8, x // 16) for y, x in places[128:256]} == {(0, 1)}  # a tile of tokens is one of the image
    found = seen(cell)[0, 0]
    for q in (0, 200, 767):
        (y, x) = places[q]
        near = [abs(v - y) <= 8 and abs(u - x) <= 8 for v, u in places]
        assert found[q].tolist() == near


def test_each_block_of_queries_has_its_own_block_and_as_many_others() -> None:
    cell = holes.Cell("blocks", (3,), 1, 4, 2, 768, 16)
    given = holes.params(cell, torch.Generator().manual_seed(1))["chosen"]
    assert given.shape == (2, 6, 6) and given.sum(-1).tolist() == [[1, 2, 3, 3, 3, 3]] * 2
    assert bool(given.diagonal(dim1=1, dim2=2).all()) and not torch.equal(given[0], given[1])
    found = seen(cell, 1)[0]
    assert torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])  # two query heads share a list
    blocks = found[2].view(6, 128, 6, 128)
    assert torch.equal(blocks.any(-1).any(1), given[1])


@pytest.mark.parametrize("cell", DRY, ids=lambda c: c.mask)
def test_a_spec_and_its_formula_agree(cell: holes.Cell) -> None:
    given = holes.params(cell, torch.Generator().manual_seed(2))
    made = holes.formula(cell, given)
    function = attngen.compile(holes.SPECS[cell.mask].text, target="torch")
    inputs = grouped.draw(cell.shape, "cpu", torch.float32, 2)
    expected = grouped.truth(cell.shape, made, inputs, rows=48)
    worst = grouped.errors(cell.shape, inputs, expected, lambda q, k, v: function(q, k, v, **given), backward=True)
    assert set(worst) == {"out", "dq", "dk", "dv"} and max(worst.values()) < 1e-5
    assert grouped.pairs(cell.shape, made, "cpu", rows=48) == float(seen(cell, 2).sum()) / (cell.B * cell.Hq)


def timing(ms: float) -> dict[str, float]:
    return {"ms": ms, "tflops": 1 / ms}


def test_the_table_sets_times_beside_words_and_block_masks() -> None:
    ours = {"right": True, "errors": {"out": 0.0, "dq": 0.0}, "forward": timing(17.5), "backward": timing(56.0)}
    flex = {**ours, "block_mask_ms": 2.345, "forward": timing(1.14), "backward": timing(2.03)}
    flash = {"right": False, "errors": {"out": 0.0, "dq": "nan"}, "block_mask_ms": 2.3, "forward": timing(0.7)}
    full = {"failure": "OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 GiB.\nmore"}
    cells = [
        {"key": "image", "contenders": {"attngen": ours, "flex": flex, "flex-flash": flash}},
        {"key": "blocks", "contenders": {"attngen": ours, "flex": full, "flex-flash": {"unable": "not here"}}},
    ]
    head = {"machine": "M", "date": "d", "versions": {"torch": "2"}, "commit": "abc"}
    lines = holes.table({**head, "cells": cells}).splitlines()
    assert lines[1].split("  ")[0] == "image" and "17.5 / 56" in lines[1] and "0.7 / NaN" in lines[1]
    assert "1.14 / 2.03" in lines[1] and "2.35" in lines[1].split() and lines[1].endswith("x25.00 / x27.59")
    assert "failed / failed" in lines[2] and "n/a / n/a" in lines[2] and lines[2].endswith("– / –")
    assert lines[3:] == [
        "M, d, torch 2, attngen abc: ms forward / backward",
        "  image flex-flash: WRONG: relative errors out 0.0e+00, dq nan",
        "  blocks flex: FAILED: OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 GiB.",
        "  blocks flex-flash: not measured: not here",
    ]


def test_on_a_gpu_both_forms_take_part_and_the_absent_one_is_told() -> None:
    cell = DRY[0]
    made = holes.formula(cell, holes.params(cell, torch.Generator()))
    builds = grouped.flexes(cell.shape, made, "cuda")
    assert list(builds) == ["flex", "flex-flash"] and grouped.flexes(cell.shape, made, "cpu") == {}
    race = grouped.Race("x", cell.shape, made, grouped.draw(cell.shape, "cpu", torch.float32, 0), builds, 1.0)
    assert race.unable == {"flex-flash": "the package flash-attn-4 is not here"} and list(race.taking) == ["flex"]


def test_a_dry_run_is_right_and_names_its_commit(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}

    def run(*argv: str) -> str:
        command = [sys.executable, str(ROOT / "benchmarks/holes.py"), *argv]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("prepare", str(tmp_path))
    dry = ("run", "--kernels", str(tmp_path), "--device", "cpu", "--rep", "0", "--rounds", "1", "--only", "strided")
    output = tmp_path / "out" / "h.json"
    shown = run(*dry, "-o", str(output))
    found: dict[str, Any] = json.loads(output.read_text())
    (cell,) = found["cells"]
    assert cell["contenders"]["attngen"]["right"] and cell["contenders"]["attngen"]["backward"]["ms"] > 0
    assert cell["pairs"] == sum(q // 4 + 1 for q in range(64))
    assert set(found["kernels"]) == {*holes.SPECS, *rows_of_holes.SPECS}
    assert found["commit"] == (tmp_path / "commit.txt").read_text().strip() and "strided:1x64:2/2:16" in shown

    rows = (*dry[:-1], "rollouts", "--sequences")
    run(*rows, "-o", str(output.with_name("rows.json")))
    (cell,) = json.loads(output.with_name("rows.json").read_text())["cells"]
    assert [*cell["contenders"]] == ["attngen", "dense, rows", "packed", "lengths", "pieces"]
    assert all(made["right"] and made["backward"]["ms"] > 0 for made in cell["contenders"].values())


def test_processes_take_turns(tmp_path: Path) -> None:
    """Two cells are built at once; each is timed when both are ready, and one that comes to nothing is named."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    script = str(ROOT / "benchmarks/holes.py")
    subprocess.run([sys.executable, script, "prepare", str(tmp_path)], env=environment, check=True)
    output = tmp_path / "h.json"
    run = (sys.executable, script, "run", "--kernels", str(tmp_path), "--device", "cpu", "--rep", "0", "--rounds", "1")
    command = (*run, "--only", "strided", "rollouts", "--workers", "2", "-o", str(output))
    late = subprocess.run((*command, "--budget", "3"), env=environment, capture_output=True, text=True)
    assert late.returncode == 1 and "0 of 2 processes are ready" in late.stdout and not output.exists(), late.stdout
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 processes are ready" in done.stdout
    cells = json.loads(output.read_text())["cells"]
    assert [c["mask"] for c in cells] == ["rollouts", "strided"]
    assert all(c["contenders"]["attngen"]["right"] for c in cells)


def test_waits_are_counted() -> None:
    """Two tiles of keys that meet three tiles of queries: the second is one latency behind the first at each."""
    both = numpy.ones((2, 3), bool)
    alone, behind = waits.BESIDE + 3, waits.LATENCY + waits.BESIDE + 3
    assert waits.waited([both], 1, iter([(0, 0, False)])) == pytest.approx(waits.PROGRAMS * alone / alone)
    found = waits.waited([both], 1, waits.in_order([both], 1, "onwards"))
    assert found == pytest.approx(waits.PROGRAMS * behind / (2 * alone))
    against = waits.waited([both], 1, iter([(0, 0, False), (1, 0, True)]))  # it begins where the first one ends
    assert against == pytest.approx(waits.PROGRAMS * (behind + 2) / (2 * alone))
    shorter = numpy.array([[True, False], [True, True]])
    orders = {name: list(waits.in_order([shorter] * 2, 1, name)) for name in ("onwards", "backwards", "longest first")}
    assert orders["onwards"] == [(0, 0, False), (1, 0, False), (0, 1, False), (1, 1, False)]
    assert orders["backwards"] == [(1, 0, True), (0, 0, True), (0, 1, False), (1, 1, False)]
    assert orders["longest first"] == [(1, 0, False), (0, 0, False), (1, 1, False), (0, 1, False)]


def test_tiles_that_wait_are_those_of_the_mask() -> None:
    for cell in (c for c in DRY if c.mask in ("blocks", "blocks64")):
        pairs = seen(cell)[:, :: cell.Hq // cell.Hkv].reshape(-1, cell.N // 64, 64, cell.N // waits.KEYS, waits.KEYS)
        assert numpy.array_equal(waits.tiles_met(cell, 64), pairs.any(4).any(2).transpose(1, 2).numpy())
