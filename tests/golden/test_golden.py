"""The generated files of all examples and targets: a change of the emitter is reviewed here.

Five files are kept whole (`NAME.py`): of Triton's files their own parts, since the runtime is source. For each other
example a record (`NAME.new`) holds the SHA-256 of the whole file and the lines that occur in none of these, and in no
template, each group below the function that holds it; `one_file.new` one of a file with the runtime below its own part.
`pytest tests/golden --update-golden` writes all of them anew; the commit that moves one says why.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import attngen
from attngen import api
from attngen.emit.triton import placement
from attngen.errors import Source

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.attn"))
TARGETS = ("triton", "pallas", "torch", "jax")
WHOLE = {
    "triton": ("causal", "natten_2d"),
    "pallas": ("causal",),
    "torch": ("causal",),
    "jax": ("causal",),
}
ONE_FILE = "one_file.new"
"""Of causal attention: the own part, the runtime that it calls, the modules that it calls it by."""


@cache
def generated(target: str, name: str) -> str:
    return attngen.compile(ROOT / "examples" / f"{name}.attn", target=target).source


@cache
def own(target: str, name: str) -> str:
    """What goldens hold of a file."""
    if target != "triton":
        return generated(target, name)
    text = (ROOT / "examples" / f"{name}.attn").read_text(encoding="utf-8")
    return api.package(Source(text, name), api.options(target))[f"{name}.py"]


@cache
def known_lines(target: str) -> frozenset[str]:
    """Every line, without its indentation, of the files that are kept whole, and of templates, where it is reviewed."""
    templates = (path.read_text(encoding="utf-8") for path in (ROOT / "templates").rglob("*.j2"))
    texts = (*templates, *(own(target, name) for name in WHOLE[target]))
    return frozenset(line.strip() for text in texts for line in text.split("\n"))


def record(source: str, known: frozenset[str]) -> str:
    """The digest of a generated file, and its lines that are not known, below their functions' names."""
    holder = {
        line: node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = source.split("\n")
    text = [f"{hashlib.sha256(source.encode()).hexdigest()} ({len(lines) - 1} lines)"]
    last = ""
    for number, line in enumerate(lines, start=1):
        if line.strip() in known:
            continue
        where = holder.get(number, "module")
        if where != last:
            text.append(f"[{where}]")
            last = where
        text.append(line)
    return "\n".join(text) + "\n"


def golden(target: str, name: str) -> Path:
    return HERE / target / (f"{name}.py" if name in WHOLE[target] else f"{name}.new")


def held(path: Path, found: str, update_golden: bool) -> None:
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8", newline="\n")
    assert path.is_file(), "no golden file: run `pytest tests/golden --update-golden`"
    want = path.read_text(encoding="utf-8")
    if found != want:
        lines = difflib.unified_diff(want.splitlines(), found.splitlines(), "golden", "generated", lineterm="")
        pytest.fail("\n".join(list(lines)[:60]), pytrace=False)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_generated_file_is_the_golden_one(example: Path, target: str, update_golden: bool) -> None:
    name = example.stem
    found = own(target, name) if name in WHOLE[target] else record(own(target, name), known_lines(target))
    held(golden(target, name), found, update_golden)


def test_one_file_is_the_own_part_and_the_runtime(update_golden: bool) -> None:
    runtime = frozenset(line.strip() for text in placement.sources().values() for line in text.split("\n"))
    held(
        HERE / "triton" / ONE_FILE,
        record(generated("triton", "causal"), known_lines("triton") | runtime),
        update_golden,
    )


@pytest.mark.parametrize("target", TARGETS)
def test_no_golden_file_is_an_orphan(target: str) -> None:
    files = sorted(path.name for path in (HERE / target).iterdir() if path.name != "__pycache__")
    more = [ONE_FILE] if target == "triton" else []
    assert files == sorted([*more, *(golden(target, example.stem).name for example in EXAMPLES)])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_generated_file_is_whole(example: Path, target: str) -> None:
    """It parses, imports nothing of attngen, exports its function, and holds the spec that it came from."""
    text = generated(target, example.stem)
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


@pytest.mark.parametrize("target", TARGETS)
def test_generated_files_pass_the_linter(target: str, tmp_path: Path) -> None:
    """Our own rules, but for those that pyproject.toml names for generated files."""
    folder = tmp_path / "tests" / "golden" / target
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for example in EXAMPLES:
        (folder / f"{example.stem}.py").write_text(generated(target, example.stem), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", ["causal", "documents", "softcap"])
def test_files_with_sequences_have_no_dead_or_hidden_name(name: str, tmp_path: Path) -> None:
    text = (ROOT / "examples" / f"{name}.attn").read_text(encoding="utf-8")
    path = tmp_path / f"{name}.py"
    attngen.compile(text, target="triton", geometry=("dense", "lengths", "packed", "pieces")).save(path)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
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


def test_goldens_stay_as_short() -> None:
    files = [golden(target, example.stem) for target in TARGETS for example in EXAMPLES]
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in (*files, HERE / "triton" / ONE_FILE))
    assert lines <= 20_000, lines
