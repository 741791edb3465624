"""Training steps: attngen's kernels in tiny models of transformers, and what is printed. On the CPU."""

from __future__ import annotations

import importlib.util
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

import first_call  # noqa: E402
import saved  # noqa: E402
import step_models  # noqa: E402
import steps  # noqa: E402

needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="no transformers here")


def script(name: str, *argv: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *argv]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_transformers
@pytest.mark.parametrize("model", ["llama:1x40", "gemma2:1x40", "gpt_oss:1x40"])
def test_a_tiny_model_agrees_with_eager_attention(tmp_path: Path, model: str) -> None:
    family = model.split(":")[0]
    found = {n: s for n, s in step_models.specs(small=True).items() if n.startswith(family)}
    saved.prepare(tmp_path, found)
    answer = tmp_path / "answer.json"
    argv = ("child", "--model", model, "--kernels", str(tmp_path), "--device", "cpu", "--answer", str(answer))
    script("steps.py", *argv, "--first", "attngen")
    errors = json.loads(answer.read_text())["errors"]
    assert errors["loss"] < 1e-6 and errors["gradients"] < 1e-5


@needs_transformers
def test_a_race_of_a_tiny_model(tmp_path: Path) -> None:
    saved.prepare(tmp_path, {"llama": step_models.specs(small=True)["llama"]})
    answer = tmp_path / "answer.json"
    argv = ("child", "--model", "llama:1x40", "--kernels", str(tmp_path), "--device", "cpu", "--answer", str(answer))
    script("steps.py", *argv, "--rounds", "1", "--steps", "1", "--race", "sdpa", "attngen")
    found = json.loads(answer.read_text())
    assert found["attngen"]["apart"] < 1e-5 and found["sdpa"]["apart"] == 0
    assert all(r["step_ms"] >= r["backward_ms"] > 0 for r in found.values())


def test_the_windows_of_the_models_are_compiled_in() -> None:
    found = step_models.specs(small=False)
    assert "const window = 4096" in found["gemma2_window"].text and "const window = 128" in found["gpt_oss_window"].text
    assert "mask = causal" not in found["gemma2_window"].text


def test_gradients_apart() -> None:
    one = {"w": torch.tensor([3.0, 4.0])}
    assert step_models.distance(one, one) == 0
    assert step_models.distance({"w": torch.tensor([3.0, 4.5])}, one) == pytest.approx(0.1)
    assert step_models.distance({}, one) == float("inf")


def test_right_is_as_near_as_the_models_own_attention() -> None:
    model = next(m for m in step_models.MODELS if m.key == "llama:2x8192")

    def found(loss: float, gradients: float) -> dict[str, Any]:
        errors = {"loss": loss, "gradients": gradients}
        return {"sdpa": {"errors": {"loss": 1e-3, "gradients": 1e-2}}, "attngen": {"errors": errors}}

    assert steps.right(model, found(4e-3, 1.4e-2), "attngen")
    assert not steps.right(model, found(1e-3, 2e-2), "attngen")
    assert not steps.right(model, found(1e-3, float("nan")), "attngen")


def test_the_table_says_how_many_times_as_fast() -> None:
    def record(ms: float) -> dict[str, Any]:
        return {"right": True, "first_s": 1.0, "step_ms": ms, "forward_ms": ms / 3, "backward_ms": ms / 1.5}

    contenders = {
        "sdpa": record(110.0),
        "attngen": record(100.0),
        "flex_attention": {"failure": "out of memory"},
    }
    text = steps.table(
        {"machine": "m", "date": "d", "cells": [{"key": "llama:1x32768:eager", "contenders": contenders}]}
    )
    assert "llama:1x32768:eager over sdpa: x1.10, asked 1.09" in text and "<" not in text
    assert "out of memory" in text


def test_a_dry_run_of_first_calls(tmp_path: Path) -> None:
    script("first_call.py", "prepare", str(tmp_path), "--dry", "--only", "documents")
    script("first_call.py", "run", "--kernels", str(tmp_path), "--device", "cpu", "-o", str(tmp_path / "f.json"))
    (case,) = json.loads((tmp_path / "f.json").read_text())["cases"]
    assert case["empty"]["backward"] > 0 and case["cached"]["forward"] > 0
    assert first_call.line(case).startswith("documents, D = 16: empty ")
