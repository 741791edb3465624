"""Work that a copy of this process does beside it, on another core: for commands, where starting to prove takes long.

Takes a function that returns text, gives one that waits for it. What the copy did is never missed: where there is no
copy, or it came to nothing, the caller does the work itself, and meets the mistake itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator
from typing import NoReturn


@contextlib.contextmanager
def begun(work: Callable[[], str]) -> Generator[Callable[[], str | None]]:
    """Within the block `work` goes on in a forked process; what is given waits for its text, or gives None.

    A forked process lacks the other threads of its parent, and what they hold locked stays so: none is made then. Where
    the parent is killed by a signal that it cannot see, the copy ends its work, and gives it to nobody.
    """
    reader, writer, child = _copy(work) if _cores() > 1 and threading.active_count() == 1 else (-1, -1, -1)
    if child < 0:
        yield lambda: None
        return
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.close(writer)
        with open(reader, "rb") as pipe:
            yield lambda: _received(pipe.read())
    finally:  # it has nothing left to do, whether it was waited for or not; where SIGCHLD is ignored, nobody is left
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _cores() -> int:
    """The processors that this process may use, or one where it cannot be copied."""
    if not hasattr(os, "fork"):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _copy(work: Callable[[], str]) -> tuple[int, int, int]:
    """The ends of a pipe, and the process that writes to it: -1 where the system makes none. Ctrl-C is held back until
    the parent is ready to end the copy, which takes none itself."""
    try:
        reader, writer = os.pipe()
    except OSError:
        return -1, -1, -1
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        child = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.close(reader)
        os.close(writer)
        return -1, -1, -1
    if child == 0:
        _run(work, reader, writer)
    return reader, writer, child


_END = b"\0"
"""Comes after the text: one that breaks off lacks it."""


def _received(data: bytes) -> str | None:
    return data.removesuffix(_END).decode() if data.endswith(_END) else None


def _run(work: Callable[[], str], reader: int, writer: int) -> NoReturn:
    """The forked process from begin to end: its parent's files, handlers and clean-up are none of its business."""
    try:
        os.close(reader)
        data = work().encode() + _END
        with open(writer, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)
