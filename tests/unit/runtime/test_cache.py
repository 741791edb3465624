"""Generated files on disk: keyed by content, whole or absent, whoever writes them."""

from __future__ import annotations

import inspect
import linecache
import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attngen import cache
from attngen.runtime import loader

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNGEN_CACHE", str(tmp_path))
    return tmp_path


def test_the_same_text_is_stored_once(folder: Path) -> None:
    first, again, other = cache.stored("a = 1\n", "x"), cache.stored("a = 1\n", "x"), cache.stored("a = 2\n", "x")
    assert first is not None and other is not None
    assert first == again != other
    assert first.read_text() == "a = 1\n" and first.is_relative_to(folder)
    assert sorted(p.name for p in first.parent.iterdir()) == sorted([first.name, other.name])


def test_a_damaged_file_is_written_anew() -> None:
    path = cache.stored("a = 1\n", "x")
    assert path is not None
    path.write_text("a = ")
    assert cache.stored("a = 1\n", "x") == path and path.read_text() == "a = 1\n"


WRITER = """
import sys
from attngen import cache
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


def test_folders_and_files_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "new" / "cache"
    monkeypatch.setenv("ATTNGEN_CACHE", str(place))
    path = cache.stored("a = 1\n", "x")
    cache.remember("proofs", "key", "text")
    assert path is not None
    made = [place.parent, place, place / "generated", place / "proofs", path, place / "proofs" / "key"]
    assert [oct(p.stat().st_mode & 0o777) for p in made] == ["0o700"] * 4 + ["0o600"] * 2


def linked(place: Path) -> None:
    target = place.parent / "elsewhere"
    target.mkdir(0o700)
    place.symlink_to(target)


def shared(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def of_another_user(place: Path) -> None:
    place.mkdir(0o700)
    os.chown(place, 12345, 12345)


def a_file(place: Path) -> None:
    place.write_text("no folder")


@pytest.mark.parametrize("inner", ["", "proofs"])
@pytest.mark.parametrize("spoil", [linked, shared, of_another_user, a_file])
def test_a_folder_that_others_may_fill_is_not_used(
    inner: str, spoil: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spoil is of_another_user and os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    place = tmp_path / "cache"
    monkeypatch.setenv("ATTNGEN_CACHE", str(place))
    if inner:
        place.mkdir(0o700)
    spoil(place / inner)
    if spoil is not a_file:
        planted = place / inner if inner else place / "proofs"
        planted.mkdir(exist_ok=True)
        (planted / "key").write_text("planted")
    before = sorted(tmp_path.rglob("*"))
    assert cache.remembered("proofs", "key") is None
    cache.remember("proofs", "key", "own")
    assert cache.remembered("proofs", "key") is None
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_others_may_write_or_that_is_a_link_is_not_read(folder: Path) -> None:
    cache.remember("proofs", "open", "text")
    (folder / "proofs" / "open").chmod(0o666)
    (folder / "secret").write_text("of another program")
    (folder / "proofs" / "link").symlink_to(folder / "secret")
    assert cache.remembered("proofs", "open") is cache.remembered("proofs", "link") is None
    cache.remember("proofs", "link", "own")
    assert cache.remembered("proofs", "link") == "own"
    assert (folder / "secret").read_text() == "of another program"


@pytest.mark.parametrize("place", ["/dev/null", "/dev/null/inside", "/proc/none", "x" * 300])
def test_where_nothing_can_be_kept_nothing_is_found(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE", place)
    assert cache.stored("a = 1\n", "x") is None
    cache.remember("proofs", "key", "text")
    assert cache.remembered("proofs", "key") is None


def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert cache.stored("a = 1\n", "x") is None
    assert list((folder / "generated").iterdir()) == []


def test_a_kept_text_that_is_no_text_is_not_found(folder: Path) -> None:
    cache.remember("proofs", "key", "text")
    (folder / "proofs" / "key").write_bytes(b"\xff\xfe\x00")
    assert cache.remembered("proofs", "key") is None


def test_many_processes_at_once(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ATTNGEN_CACHE": str(folder)}
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(n)], env=environment) for n in range(4)]
    assert [p.wait() for p in running] == [0, 0, 0, 0]
    assert [p.suffix for p in (folder / "generated").iterdir()] in ([], [".py"])


def test_execute_gives_a_module_that_knows_its_file() -> None:
    module = loader.execute("def f():\n    return __name__\n", "thing")
    assert module.f().startswith("attngen_generated.thing_") and sys.modules[module.f()] is module
    assert module.__file__ is not None and Path(module.__file__).read_text().startswith("def f")


def test_bytecode_is_neither_read_nor_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    source = "VALUE = 'own'\n"
    path = cache.stored(source, "thing")
    assert path is not None
    planted = folder / "planted.py"
    planted.write_text("VALUE = 'not'\n")
    os.utime(planted, (path.stat().st_atime, path.stat().st_mtime))
    bytecode = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(str(planted), str(bytecode), str(path))
    assert loader.execute(source, "thing").VALUE == "own"
    bytecode.unlink()
    assert loader.execute(source, "thing").VALUE == "own"
    assert list(bytecode.parent.iterdir()) == []


@pytest.mark.parametrize("place", ["", "/dev/null"])
def test_a_function_shows_the_text_that_was_executed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if place:
        monkeypatch.setenv("ATTNGEN_CACHE", place)
    module = loader.execute("def f():\n    return 1\n", "thing")
    if not place:
        Path(module.__file__ or "").write_text("def f():\n    return 2\n")
        linecache.checkcache()
    assert (module.f(), inspect.getsource(module.f)) == (1, "def f():\n    return 1\n")


def test_load_executes_a_source_once() -> None:
    source = "calls = []\n"
    module = loader.load(source, "thing")
    module.calls.append(1)
    assert loader.load(source, "thing").calls == [1]
    assert loader.load(source + "\n", "thing").calls == []
