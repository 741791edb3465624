"""The functions of docs/coming-from-flexattention.md, measured: what is captured, and a dry run on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import from_flex  # noqa: E402


def test_every_function_has_captured_tensors_of_the_sizes_that_are_measured() -> None:
    for cell in from_flex.dry_matrix():
        given = from_flex.captured(cell, torch.Generator().manual_seed(0))
        own = from_flex.functions(cell, given)
        assert own.score_mod is not None or own.mask_mod is not None
        made = from_flex.formula(own)
        at = torch.arange(cell.N)
        b, h = torch.zeros((), dtype=torch.long), torch.arange(cell.Hq)[:, None, None]
        if made.allowed is not None:
            assert made.allowed(b, h, at[:, None], at).shape == (cell.Hq, cell.N, cell.N)


def test_a_dry_run_is_right(tmp_path: Path) -> None:
    def run(*argv: str) -> str:
        command = [sys.executable, str(ROOT / "benchmarks/from_flex.py"), *argv]
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("prepare", str(tmp_path))
    output = tmp_path / "out" / "f.json"
    dry = ("--device", "cpu", "--rep", "0", "--rounds", "1", "--only", "documents", "blocks")
    shown = run("run", "--kernels", str(tmp_path), *dry, "-o", str(output))
    cells = json.loads(output.read_text())["cells"]
    assert [c["key"] for c in cells] == ["documents", "blocks_chosen_for_each_query"]
    assert all(c["contenders"]["attngen"]["right"] for c in cells) and "documents" in shown
