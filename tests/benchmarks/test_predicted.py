"""The page of predicted and measured times holds what the script prints, and its errors are those of its numbers."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import predicted  # noqa: E402
import report  # noqa: E402

PAGE = (ROOT / "benchmarks" / "predicted.md").read_text()
CHEAP = {
    "readme.json": ("causal:128:4096", "sliding_window:128:16384", "causal:256:16384"),
    "h200.json": ("full:64:16384", "documents:128:4096"),
    "holes.json": ("natten64:4x4096:8/8:64",),
}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in CHEAP.items() for key in keys])
def test_a_cell_s_line_is_in_the_page(name: str, key: str) -> None:
    result = report.read(ROOT / "benchmarks" / name)
    (cell,) = (c for c in result["cells"] if c["key"] == key)
    (line,) = list(predicted.table([predicted.row(cell)]))[2:]
    assert line in PAGE.partition(f"## {name}")[2].partition("\n## ")[0].splitlines()


def test_errors_and_means_follow_from_the_times() -> None:
    for name in predicted.FILES:
        lines = PAGE.partition(f"## {name}")[2].partition("\n## ")[0].splitlines()
        cells = [[x.strip() for x in line.split("|")[1:-1]] for line in lines if line.startswith("| ")][1:]
        assert [c[0] for c in cells] == [c["key"] for c in report.read(ROOT / "benchmarks" / name)["cells"]]
        means = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` | {len(cells)} |"))
        for first, shown in zip((1, 5), means.split("|")[3:5], strict=True):
            shares = [float(c[first]) / float(c[first + 1]) for c in cells]
            for c, share in zip(cells, shares, strict=True):
                assert float(c[first + 2].rstrip("%")) == pytest.approx(100 * (share - 1), abs=1.2)
            mean = math.exp(sum(map(math.log, shares)) / len(shares))
            assert float(shown.split()[0]) == pytest.approx(mean, abs=0.01)


def test_a_file_of_another_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "read", lambda path: {"machine": "NVIDIA H100 80GB HBM3", "cells": []})
    with pytest.raises(ValueError, match=r"readme\.json is of NVIDIA H100"):
        predicted.rows("readme.json")
