"""Packed sequences: lengths, specs, the two ways of attngen's side, and what is printed. On the CPU."""

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

import packed  # noqa: E402
import packed_cells as cells  # noqa: E402
import saved  # noqa: E402

from attngen.bench.race import Contender  # noqa: E402

VARLEN = """
import torch

def causal(q, k, v, **_):
    raise AssertionError("the packed function is there")

def causal_varlen(q, k, v, *, cu_seqlens_q, max_seqlen_q=None):
    assert max_seqlen_q == (cu_seqlens_q[1:] - cu_seqlens_q[:-1]).max()
    outs = []
    for start, stop in zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_q[1:].tolist()):
        x, y, z = (t[start:stop].transpose(0, 1)[None].float() for t in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(x, y, z, is_causal=True, enable_gqa=True)
        outs.append(out[0].transpose(0, 1).to(q.dtype))
    return torch.cat(outs)
"""


def test_lengths_are_uneven_and_fill_the_tokens() -> None:
    for cell in cells.matrix():
        found = cells.lengths(cell, 0)
        assert len(found) == cell.sequences and sum(found) == cell.tokens and min(found) > 0
        assert len(set(found)) > cell.sequences // 2 and found != cells.lengths(cell, 1)


def test_a_windows_pairs() -> None:
    assert cells.pairs("causal", 5, 2) == 15
    assert cells.pairs("sliding_window", 5, 2) == 9
    assert cells.pairs("sliding_window", 5, 8) == 15


def test_every_spec_has_its_documents() -> None:
    found = cells.specs(cells.DRY_WINDOW)
    assert set(found) == {*cells.VARIANTS, *(f"{v}_documents" for v in cells.VARIANTS)}
    text = found["sliding_window_documents"].text
    assert "mask = (sliding_window(window)) and same_document(ids)" in text and "param ids: int[B, Sk]" in text


def test_the_packed_function_is_taken_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "causal.py").write_text(VARLEN)
    (tmp_path / "manifest.json").write_text(json.dumps({"causal": {"function": "causal"}}))
    inputs = cells.inputs_of(cells.Cell("causal", *cells.DRY_SHAPE), "cpu", 0, cells.DRY_WINDOW)
    made = cells.attngen(inputs, saved.Files.at(tmp_path))
    assert made.name == "varlen"
    worst = cells.errors(inputs, cells.truth(inputs), made, backward=True)
    assert set(worst) == {"out", "dq", "dk", "dv"} and max(worst.values()) < 2e-3
    shifted = made.attend(*inputs.qkv).roll(1, 0)
    wrong = Contender("wrong", lambda *_: shifted)
    assert cells.errors(inputs, cells.truth(inputs), wrong, backward=False)["out"] > 0.5
    hole = torch.zeros_like(inputs.d_out)
    hole[3] = torch.nan
    torn = Contender("torn", lambda *_: made.attend(*inputs.qkv) + hole)
    assert cells.errors(inputs, cells.truth(inputs), torn, backward=False)["out"] == float("inf")


def test_the_table_compares_with_the_better_peer_and_with_plain_causal() -> None:
    def cell(variant: str, speeds: dict[str, tuple[float, float]]) -> dict[str, Any]:
        records = {
            n: {"right": True, "forward": {"tflops": f}, "backward": {"tflops": b}} for n, (f, b) in speeds.items()
        }
        return {"key": f"{variant}:8/2:4/2:16", "variant": variant, "contenders": records}

    plain = cell("causal", {"attngen": (10.0, 10.0), "fa4": (8.0, 20.0), "fa3": (20.0, 1.0)})
    capped = cell("softcap", {"attngen": (7.0, 9.0)})
    text = packed.table({"machine": "m", "date": "d", "seed": 0, "cells": [plain, capped]})
    assert "over the better peer: causal:8/2:4/2:16 0.50 / 0.50" in text
    assert "of plain causal: softcap:8/2:4/2:16 0.70 / 0.90, asked 0.75 / 0.85  <" in text


@pytest.mark.parametrize("variant", ["sliding_window", "sink"])
def test_a_dry_run_is_right(tmp_path: Path, variant: str) -> None:
    names = (variant, f"{variant}_documents")
    saved.prepare(tmp_path, {n: cells.specs(cells.DRY_WINDOW)[n] for n in names})
    command = [sys.executable, str(ROOT / "benchmarks/packed.py"), "run", "--kernels", str(tmp_path), "--device", "cpu"]
    command += ["--rep", "0", "--rounds", "1", "--only", variant, "-o", str(tmp_path / "p.json")]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "p.json").read_text())["cells"]
    assert found["contenders"]["attngen"]["right"] and found["contenders"]["attngen"]["backward"]["ms"] > 0
