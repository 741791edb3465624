"""The page for those who come from FlexAttention: each spec there is what is read of the function above it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import attngen
from attngen.cli.main import main
from attngen.flex.spec import read

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-flexattention.md"
VARIANTS = re.findall(r"^### (.*?)\n\n```python\n(.*?)```\n\n```attn\n(.*?)```", PAGE.read_text(), re.M | re.S)


@pytest.mark.parametrize(("code", "text"), [pytest.param(*rest, id=title) for title, *rest in VARIANTS])
def test_a_spec_is_read_of_the_function_above(code: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "functions.py"  # in a file, where names of variables are found
    path.write_text(code)
    named: dict[str, Any] = {}
    exec(compile("import math\nimport torch\n", "imports", "exec"), named)
    exec(compile(code, str(path), "exec"), named)
    name = text.split()[1]
    assert read(named.get("score_mod"), named.get("mask_mod"), name, {}).text == text
    assert attngen.compile(text).spec.name == name


def test_there_are_twelve() -> None:
    assert len(VARIANTS) == 12


def test_the_model_trains_and_its_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The section "Train, then keep the file", as a reader would run it."""
    section = PAGE.read_text().partition("## Train, then keep the file")[2].partition("\n## ")[0]
    code = re.findall(r"```python\n(.*?)```", section, re.S)[0]
    path = tmp_path / "model.py"
    path.write_text(code)
    monkeypatch.chdir(tmp_path)
    losses: list[float] = []
    exec(compile(code, str(path), "exec"), {"__name__": "model", "print": losses.append})
    assert losses[0] > losses[1] > losses[2]
    text = (tmp_path / "mine.attn").read_text()
    assert "param table: f32[Hq, 65]" in text and "const reach = 32" in text and "q - k < 48" in text
    assert main(["compile", "mine.attn", "-o", "mine.py"]) == 0
    assert main(["compile", "mine.attn", "--check", "mine.py"]) == 0
    call = re.findall(r'python -c "(.*?)"', section)[0]
    done = subprocess.run(
        [sys.executable, "-c", call], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "torch.Size([1, 4, 64, 16])", done.stderr
    without = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", call], env=without, capture_output=True, text=True)
    assert "q is on the CPU" in done.stderr and "set TRITON_INTERPRET=1" in done.stderr
