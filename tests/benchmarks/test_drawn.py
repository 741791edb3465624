"""Drawn cells: what is drawn, the formulas beside generated kernels, and what is printed. On the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import drawn  # noqa: E402
import grouped  # noqa: E402
from variants import VARIANTS  # noqa: E402

SHAPE = grouped.Shape(2, 4, 2, 40, 40, 16, 16)


def test_a_seed_draws_the_same_cells_and_another_seed_others() -> None:
    first, again, other = (list(drawn.drawn(seed, 40)) for seed in (7, 7, 8))
    assert first == again and first != other
    assert len({c.key for c in first}) == 40
    assert all(c.B * c.Sk <= 16384 and c.Hq % c.Hkv == 0 and c.Sq <= c.Sk for c in first)
    assert all(c.Sq == c.Sk for c in first if VARIANTS[c.variant].square)
    assert {c.dtype for c in first} == {"bf16", "fp16"} and len({c.variant for c in first}) > 8


def test_the_listed_cells_are_those_that_were_weak() -> None:
    cells = list(drawn.listed())
    assert len({c.key for c in cells}) == len(cells) == 8
    assert all(c.asked is not None for c in cells)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_formula_leaves_each_query_a_key_and_counts_its_pairs(name: str) -> None:
    variant = VARIANTS[name]
    consts = {c: values[0] for c, values in variant.choices.items()}
    params = variant.params(consts, SHAPE, torch.Generator().manual_seed(0))
    formula = variant.formula(consts, params, SHAPE)
    b, h = torch.arange(2)[:, None, None, None], torch.arange(4)[:, None, None]
    q, k = torch.arange(40)[:, None], torch.arange(40)
    if formula.allowed is not None:
        seen = formula.allowed(b, h, q, k).expand(2, 4, 40, 40)
        assert bool(seen.any(-1).all())
        assert grouped.pairs(SHAPE, formula, "cpu", rows=16) == float(seen.sum()) / 8
        assert formula.batches or torch.equal(seen[0], seen[1])
        assert formula.heads or torch.equal(seen[:, 0], seen[:, 3])
    if formula.score is not None:
        assert formula.score(torch.zeros(2, 4, 40, 40), b, h, q, k).shape == (2, 4, 40, 40)


def test_the_table_names_the_worst_five_and_what_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    def cell(key: str, forward: float, asked: tuple[float, float] | None) -> dict[str, Any]:
        times = {"attngen": 1.0, "flex": 1.0 / forward}
        records = {
            n: {"right": True, "forward": {"ms": 1 / t, "tflops": t}, "backward": {"ms": 1.0, "tflops": 1.0}}
            for n, t in times.items()
        }
        return {"key": key, "asked": asked, "contenders": records}

    cells = [cell(f"c{i}", 1 + i / 10, None) for i in range(7)] + [cell("weak", 1.1, (1.4, 1.0))]
    text = drawn.table({"machine": "m", "date": "d", "seed": 3, "cells": cells})
    assert "drawn, forward: mean 1.28, 2 of 7 below 1.2; the worst:" in text
    assert "  c4 x1.40" in text and "  c5 x1.50" not in text
    assert "listed: weak forward x1.10, asked 1.4  <" in text


def test_a_dry_run_is_right(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}

    def run(*argv: str) -> str:
        command = [sys.executable, str(ROOT / "benchmarks/drawn.py"), *argv]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "seed 5: 8 cells of 8 specs" in run("prepare", str(tmp_path), "--dry", "--seed", "5", "--cells", "0")
    dry = (
        "run",
        "--kernels",
        str(tmp_path),
        "--device",
        "cpu",
        "--rep",
        "0",
        "--rounds",
        "1",
        "--only",
        "pairs",
        "lengths",
    )
    run(*dry, "-o", str(tmp_path / "d.json"))
    found = json.loads((tmp_path / "d.json").read_text())
    assert found["seed"] == 5 and len(found["cells"]) == 2
    for cell in found["cells"]:
        assert cell["contenders"]["attngen"]["right"] and cell["contenders"]["attngen"]["backward"]["ms"] > 0
