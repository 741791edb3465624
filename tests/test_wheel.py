"""The wheel holds everything: it is built, unpacked elsewhere, and compiles a spec outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("attngen-*-py3-none-any.whl")
    return built


def test_wheel_has_the_grammar_every_template_and_the_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        p.relative_to(ROOT) for folder in ("grammar", "templates", "examples") for p in (ROOT / folder).rglob("*")
    }
    shipped = {f"attngen/_data/{path}" for path in wanted if (ROOT / path).is_file()}
    assert {"attngen/_data/grammar/attn.lark", "attngen/_data/grammar/prelude.attn"} < shipped <= names
    assert "attngen/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests") or "__pycache__" in name for name in names)


def test_compiles_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    (tmp_path / "a.attn").write_text("attention a\nmask = sliding_window(24)\n")
    env = {**os.environ, "PYTHONPATH": str(site)}

    def run(*argv: str) -> str:
        done = subprocess.run([sys.executable, *argv], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "import attngen.resources as r; print(r.__file__); print(r.root())")
    assert where.splitlines() == [str(site / "attngen" / "resources.py"), str(site / "attngen" / "_data")]
    printed = run("-m", "attngen", "compile", "a.attn")
    compile(printed, "a.py", "exec")
    assert "def a(" in printed
    listed = run("-m", "attngen", "examples")
    assert {line.split()[0] for line in listed.splitlines()} == {p.stem for p in (ROOT / "examples").glob("*.attn")}
    run("-m", "attngen", "examples", "alibi", "-o", "alibi.attn")
    assert (tmp_path / "alibi.attn").read_text() == (ROOT / "examples/alibi.attn").read_text()
    assert run("-c", "import attngen; print(attngen.__version__)").strip() == version("attngen")
