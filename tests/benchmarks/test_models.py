"""The matrix of models' shapes: what is counted, and a dry run that is continued, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import models  # noqa: E402


def test_operations_are_those_of_the_products() -> None:
    dense = models.Cell("full", 2, 4, 2, 8, 16, 32)
    assert dense.flops("forward") == 2 * 2 * 4 * 8 * 8 * (16 + 32)
    assert dense.flops("backward") == 2 * 2 * 4 * 8 * 8 * (3 * 16 + 2 * 32)
    same = models.Cell("full", 1, 1, 1, 8, 64, 64)
    assert same.flops("backward") == 2.5 * same.flops("forward")
    causal = models.Cell("causal", 1, 1, 1, 8, 64, 64)
    assert causal.flops("forward") == same.flops("forward") * (8 * 9 / 2) / 64


def test_every_cell_has_its_own_key_and_as_many_tokens() -> None:
    cells = list(models.matrix())
    assert len({c.key for c in cells}) == len(cells) == 96
    assert {c.B * c.N for c in cells} == {16384}


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
