"""Work in a forked process: its text comes back whole, or nothing does, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from attngen import api
from attngen.cli import main as cli
from attngen.errors import Source
from attngen.runtime import forked

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of two cores and one thread: those that other tests have left hold nothing that is wanted."""
    if not hasattr(os, "fork"):
        pytest.skip("processes are not copied here")
    monkeypatch.setattr(forked, "_cores", lambda: 2)
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def no_child_left() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


@pytest.mark.usefixtures("alone")
def test_text_comes_back_from_another_process() -> None:
    long = "é" * 1_000_000  # more than a pipe holds
    with forked.begun(lambda: f"{os.getpid()} {long}") as written:
        text = written()
    assert text is not None
    process, _, rest = text.partition(" ")
    assert int(process) != os.getpid() and rest == long
    assert no_child_left()


@pytest.mark.usefixtures("alone")
def test_work_that_fails_gives_nothing() -> None:
    def work() -> str:
        raise ValueError("never mind")

    with forked.begun(work) as written:
        assert written() is None
    assert no_child_left()


@pytest.mark.usefixtures("alone")
def test_work_that_is_not_waited_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> str:
        time.sleep(600)
        return "late"

    ends: list[int] = []

    def noted(child: int, options: int) -> tuple[int, int]:
        process, status = waited(child, options)
        ends.append(status)
        return process, status

    waited = os.waitpid
    with monkeypatch.context() as patched:
        patched.setattr(os, "waitpid", noted)
        with pytest.raises(KeyError), forked.begun(work):
            raise KeyError("what the parent met")
    assert [os.WTERMSIG(status) for status in ends] == [signal.SIGKILL]
    assert no_child_left()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["fork", "pipe"])
def test_where_the_system_makes_no_copy_the_caller_does_the_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, name, refused)
    before = len(os.listdir("/dev/fd"))
    with forked.begun(lambda: "text") as written:
        assert written() is None
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("wrong", [False, True])
def test_a_copy_that_the_system_clears_away_is_no_mistake(wrong: bool, tmp_path: Path) -> None:
    """Daemons ignore SIGCHLD, and so do their children."""
    spec = tmp_path / "spec.attn"
    spec.write_text("attention a\n\nscore = log(qk)\n" if wrong else "attention a\n\nmask = causal\n")
    done = subprocess.run(
        [sys.executable, "-m", "attngen", "compile", str(spec), "-o", str(tmp_path / "a.py")],
        env={**os.environ, "ATTNGEN_CACHE": str(tmp_path / "cache")},
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        capture_output=True,
        text=True,
    )
    assert done.returncode == wrong and "Traceback" not in done.stderr
    assert (tmp_path / "a.py").exists() != wrong and ("can be" in done.stderr) == wrong


def test_no_copy_is_made_of_a_process_with_threads() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with forked.begun(lambda: "text") as written:
            assert written() is None
    finally:
        done.set()
        other.join()


DROPPED = (
    "attention subject\n\nparam born: int[B, Sk]\nparam seen: int[B, Sq]\nmask = min(born[b, k], 0) + q < seen[b, q]\n"
)
"""Ints of 32 bits may turn its data test, which is then not used: what was written in hope of all is not either."""


@pytest.mark.parametrize(
    ("text", "target"),
    [((EXAMPLES / "windowed_alibi.attn").read_text(encoding="utf-8"), "triton"), (DROPPED, "jax")],
    ids=["proved", "dropped"],
)
def test_file_is_the_same_with_and_without_a_copy(
    text: str, target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE", str(tmp_path))
    found = {fork: api.build(Source(text), api.options(target), fork=fork).source for fork in (False, True)}
    assert found[False] == found[True]
    assert ("Not proved, and not used" in found[True]) == (text == DROPPED)


@pytest.mark.usefixtures("alone")
def test_what_the_copy_wrote_is_what_is_delivered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE", str(tmp_path))
    here = os.getpid()
    monkeypatch.setattr("attngen.targets.emit", lambda *_: f"by the {'parent' if os.getpid() == here else 'copy'}\n")
    assert cli.main(["compile", str(EXAMPLES / "causal.attn")]) == 0
    assert capsys.readouterr().out == "by the copy\n"


@pytest.mark.usefixtures("alone")
def test_what_is_refuted_is_reported_as_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "wrong.attn"
    spec.write_text(
        "attention wrong\n\nnormalizer own {\n    weight(s)     = exp(s)\n    denominator   = sum\n"
        "    shift         = max\n    weight(s, m)  = exp(s - m)\n    rescale(m, n) = 1\n}\n\nnormalizer = own\n"
    )
    assert cli.main(["compile", str(spec), "-o", str(tmp_path / "out.py")]) == 1
    assert "error" in capsys.readouterr().err
    assert not (tmp_path / "out.py").exists()
    assert no_child_left()
