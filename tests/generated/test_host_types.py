"""The host code of generated files has no errors that a type checker sees."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import attngen

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HOST = "# ---------------------------------------------------------------- on the host"


def errors_of_host(path: Path) -> list[str]:
    """Pyright's errors, in its basic mode, below the kernels: what `triton.jit` compiles is no Python."""
    first = path.read_text(encoding="utf-8").split("\n").index(HOST)
    config = path.parent / "pyrightconfig.json"
    config.write_text(json.dumps({"typeCheckingMode": "basic", "include": [path.name]}), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(config), "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 1, done.stdout + done.stderr
    errors = [x for x in found["generalDiagnostics"] if x["severity"] == "error"]
    lines = {x["range"]["start"]["line"]: x["message"] for x in errors}
    return [f"{line + 1}: {message}" for line, message in lines.items() if line > first]


@pytest.mark.parametrize("name", ["causal", "documents"])
def test_host_code_has_no_type_errors(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(attngen.compile(EXAMPLES / f"{name}.attn").source, encoding="utf-8")
    assert errors_of_host(path) == []


def test_an_error_is_found(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(f"x: int = 'before'\n{HOST}\ny: int = 'after'\n", encoding="utf-8")
    (error,) = errors_of_host(path)
    assert error.startswith("3: ")
