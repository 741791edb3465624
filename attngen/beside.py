"""Work that a copy of this process does beside it, on another core: for commands, where starting to prove takes long.

Takes a function that gives text, gives one that waits for it. What the copy did is never missed: where there is no
copy, or it came to nothing, the caller does the work itself, and meets the mistake itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from typing import NoReturn


@contextlib.contextmanager
def begun(work: Callable[[], str]) -> Generator[Callable[[], str | None]]:
    """Within the block `work` goes on in a forked process; what is given waits for its text, or gives None.

    A forked process lacks the other threads of its parent, and what they hold locked stays so: none is made then.
    """
    if sys.platform == "win32" or (os.cpu_count() or 1) < 2 or threading.active_count() > 1:
        yield lambda: None
        return
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run(work, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        try:
            yield lambda: _received(pipe.read())
        finally:
            os.kill(child, signal.SIGKILL)  # it has nothing left to do, whether it was waited for or not
            os.waitpid(child, 0)


_END = b"\0"
"""Comes after the text: one that breaks off lacks it."""


def _received(data: bytes) -> str | None:
    return data.removesuffix(_END).decode() if data.endswith(_END) else None


def _run(work: Callable[[], str], writer: int) -> NoReturn:
    """The forked process from begin to end: its parent's files, handlers and clean-up are none of its business."""
    try:
        data = work().encode() + _END
        with open(writer, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)
