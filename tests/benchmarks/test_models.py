"""The matrix of models' shapes: what is counted, and a dry run that is continued, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import grouped  # noqa: E402
import models  # noqa: E402


def test_operations_are_those_of_the_products() -> None:
    def operations(cell: models.Cell, direction: str) -> float:
        return cell.shape.flops(direction, cell.pairs)

    dense = models.Cell("full", 2, 4, 2, 8, 16, 32)
    assert operations(dense, "forward") == 2 * 2 * 4 * 8 * 8 * (16 + 32)
    assert operations(dense, "backward") == 2 * 2 * 4 * 8 * 8 * (3 * 16 + 2 * 32)
    same = models.Cell("full", 1, 1, 1, 8, 64, 64)
    assert operations(same, "backward") == 2.5 * operations(same, "forward")
    causal = models.Cell("causal", 1, 1, 1, 8, 64, 64)
    assert operations(causal, "forward") == operations(same, "forward") * (8 * 9 / 2) / 64
    assert causal.pairs == grouped.pairs(causal.shape, causal.formula, "cpu")


def test_every_cell_has_its_own_key_and_as_many_tokens() -> None:
    cells = list(models.matrix())
    assert len({c.key for c in cells}) == len(cells) == 96
    assert {c.B * c.N for c in cells} == {16384}


def record(speeds: dict[str, tuple[float, float]]) -> dict[str, Any]:
    return {
        name: {"right": True, "forward": {"tflops": forward}, "backward": {"tflops": backward}}
        for name, (forward, backward) in speeds.items()
    }


def test_the_summary_takes_the_better_peer_and_names_the_least() -> None:
    found = [
        ("causal:2x8192:32/8:128", 8, {"attngen": (6.0, 5.0), "fa4": (3.0, 4.0), "fa3": (5.0, 1.0)}),
        ("causal:1x16384:32/8:128", 8, {"attngen": (3.0, 2.0), "fa4": (4.0, 4.0), "fa3": (2.0, 1.0)}),
        ("causal:2x8192:16/16:128", 16, {"attngen": (4.0, 1.0), "fa4": (4.0, 2.0)}),
    ]
    cells = [
        {"key": k, "mask": "causal", "Hq": 16 if n == 16 else 32, "Hkv": n, "contenders": record(speeds)}
        for k, n, speeds in found
    ]
    lines = models.summary({"cells": cells}, least=1)
    mean = (6 / 5 * 3 / 4 * 1) ** (1 / 3)
    assert lines[0].startswith("forward over the better") and f"mean {mean:.3f}, 1 of 3 cells" in lines[0]
    assert lines[1] == "  causal:1x16384:32/8:128 x0.750"
    assert f"mean {(5 / 4 * 2 / 4) ** 0.5:.3f}, 1 of 2 cells" in lines[2]  # grouped heads alone


def test_only_takes_prefixes_and_stars() -> None:
    def keys(*only: str) -> list[str]:
        args = models.parser().parse_args(["run", "--kernels", "x", "--only", *only])
        return [c.key for c in models.chosen(args)]

    assert keys("causal:2x8192:32/8") == ["causal:2x8192:32/8:128"]
    assert len(keys("causal:*:32/8:128")) == 6 and len(keys("*:16/16:192/128")) == 12


def test_a_dry_run_is_right_and_a_second_one_continues_it(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}

    def run(*argv: str) -> str:
        command = [sys.executable, str(ROOT / "benchmarks/models.py"), *argv]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("prepare", str(tmp_path))
    dry = ("run", "--kernels", str(tmp_path), "--device", "cpu", "--rep", "0", "--rounds", "1", "-o")
    run(*dry, str(tmp_path / "m.json"))
    first = json.loads((tmp_path / "m.json").read_text())
    (cell,) = first["cells"]
    assert cell["contenders"]["attngen"]["right"] and cell["contenders"]["attngen"]["backward"]["ms"] > 0
    run(*dry, str(tmp_path / "m.json"))
    assert json.loads((tmp_path / "m.json").read_text())["cells"] == first["cells"]
