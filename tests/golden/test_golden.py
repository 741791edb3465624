"""The generated files, one for each example and target, whole: what a change of the emitter changes is read here.

`pytest tests/golden --update-golden` writes them anew; the commit that moves one says why.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attngen

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.attn"))
TARGETS = ("triton", "pallas", "torch", "jax")


def golden(target: str, name: str) -> Path:
    return HERE / target / f"{name}.py"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_generated_file_is_the_golden_one(example: Path, target: str, update_golden: bool) -> None:
    source = attngen.compile(example, target=target).source
    path = golden(target, example.stem)
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(source, encoding="utf-8", newline="\n")
    assert path.is_file(), "no golden file: run `pytest tests/golden --update-golden`"
    want = path.read_text(encoding="utf-8")
    if source != want:
        lines = difflib.unified_diff(want.splitlines(), source.splitlines(), "golden", "generated", lineterm="")
        pytest.fail("\n".join(list(lines)[:60]), pytrace=False)


@pytest.mark.parametrize("target", TARGETS)
def test_no_golden_file_is_an_orphan(target: str) -> None:
    files = sorted(path.name for path in (HERE / target).iterdir() if path.name != "__pycache__")
    assert files == [f"{example.stem}.py" for example in EXAMPLES]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_golden_file_is_whole(example: Path, target: str) -> None:
    """It parses, imports nothing of attngen, exports its function, and holds the spec that it came from."""
    text = golden(target, example.stem).read_text(encoding="utf-8")
    tree = ast.parse(text)
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not {name for name in imported if name.split(".")[0] == "attngen"}
    exports = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    assert len(exports) == 1 and example.stem in ast.literal_eval(exports[0].value)
    spec = example.read_text(encoding="utf-8")
    assert all(f"#     {line}".rstrip() in text.split("\n") for line in spec.strip("\n").split("\n"))
    assert hashlib.sha256(spec.encode()).hexdigest() in text


def test_golden_files_pass_the_linter() -> None:
    # Our own rules, but for those that pyproject.toml names for generated files.
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", *(str(HERE / target) for target in TARGETS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stdout


def test_generated_bytes_do_not_depend_on_the_process(tmp_path: Path) -> None:
    """Another working folder, another name of the file, another order of hashing: the same bytes."""
    copy = tmp_path / "elsewhere.attn"
    example = ROOT / "examples" / "windowed_alibi.attn"
    copy.write_bytes(example.read_bytes())
    program = "import attngen, sys; sys.stdout.write(attngen.compile(sys.argv[1]).source)"
    found: set[bytes] = set()
    for seed, path in (("1", copy), ("2", example)):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-c", program, str(path)]
        found.add(subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True).stdout)
    assert len(found) == 1
