"""Two sets of generated files in one process: what counts as a cell's speed, and a dry run on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import beside  # noqa: E402
import report  # noqa: E402
import saved  # noqa: E402


def cell(before: dict[str, float], now: dict[str, float]) -> dict[str, Any]:
    sides = {"before": before, "now": now}
    return {"key": "x", "contenders": {n: dict.fromkeys(report.DIRECTIONS, side) for n, side in sides.items()}}


def test_replays_of_a_graph_count_where_both_have_them() -> None:
    assert beside.speed_kept(cell({"ms": 2.0, "graph_ms": 3.0}, {"ms": 1.0, "graph_ms": 4.0}), "forward") == 0.75
    assert beside.speed_kept(cell({"ms": 2.0, "graph_ms": 3.0}, {"ms": 1.0}), "backward") == 2.0
    assert beside.speed_kept({"contenders": {"before": {}, "now": {}}}, "forward") is None


def test_the_kept_runs_show_their_means() -> None:
    for matrix, count in (("models", 96), ("packed", 20)):
        text = beside.table(report.read(ROOT / f"benchmarks/beside_{matrix}.json"))
        assert f"{count} cells" in text and "WRONG" not in text and "FAILED" not in text


@pytest.mark.parametrize("matrix", ["models", "packed"])
def test_a_dry_run_times_both(matrix: str, tmp_path: Path) -> None:
    spec = saved.Spec("attention causal\nmask = causal\n", geometry=("packed",) if matrix == "packed" else ())
    saved.prepare(tmp_path / "first", {"causal": spec})
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    command = [
        sys.executable, ROOT / "benchmarks/beside.py", "run", matrix, tmp_path / "first", tmp_path / "second",
        "--device", "cpu", "--rep", "0", "--rounds", "1", "-o", tmp_path / "b.json",
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "b.json").read_text())["cells"]
    for side in beside.SIDES:
        assert found["contenders"][side]["right"] and found["contenders"][side]["backward"]["ms"] > 0
