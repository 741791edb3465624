"""Generated files on disk: keyed by content, whole or absent, whoever writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attngen.runtime import cache, loader

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNGEN_CACHE", str(tmp_path))
    return tmp_path


def test_the_same_text_is_stored_once(folder: Path) -> None:
    first, again, other = cache.stored("a = 1\n", "x"), cache.stored("a = 1\n", "x"), cache.stored("a = 2\n", "x")
    assert first == again != other
    assert first.read_text() == "a = 1\n" and first.is_relative_to(folder)
    assert sorted(p.name for p in first.parent.iterdir()) == sorted([first.name, other.name])


def test_a_damaged_file_is_written_anew() -> None:
    path = cache.stored("a = 1\n", "x")
    path.write_text("a = ")
    assert cache.stored("a = 1\n", "x") == path and path.read_text() == "a = 1\n"


WRITER = """
import sys
from attngen.runtime import cache
text = "a = 1\\n" * 20000
for _ in range(50):
    path = cache.stored(text, "x")
    try:
        assert path.read_text() == text
        if int(sys.argv[1]) % 2:
            path.unlink()
    except FileNotFoundError:  # another process was faster
        pass
"""


def test_many_processes_at_once(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ATTNGEN_CACHE": str(folder)}
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(n)], env=environment) for n in range(4)]
    assert [p.wait() for p in running] == [0, 0, 0, 0]
    assert [p.suffix for p in (folder / "generated").iterdir()] in ([], [".py"])


def test_execute_gives_a_module_that_knows_its_file() -> None:
    module = loader.execute("def f():\n    return __name__\n", "thing")
    assert module.f().startswith("attngen_generated.thing_") and sys.modules[module.f()] is module
    assert module.__file__ is not None and Path(module.__file__).read_text().startswith("def f")


def test_load_executes_a_source_once() -> None:
    source = "calls = []\n"
    module = loader.load(source, "thing")
    module.calls.append(1)
    assert loader.load(source, "thing").calls == [1]
    assert loader.load(source + "\n", "thing").calls == []
