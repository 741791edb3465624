"""A budget of seconds for a solver that has no timeout of its own.

sympy may think for as long as it likes. `limited(seconds)` runs a block under a watchdog that raises `OutOfTime` in the
block's own thread; what the block was about is then Unknown, never a hang. Works in any thread, not only the main one.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Generator
from contextlib import contextmanager


class OutOfTime(BaseException):
    """The block outran its budget. No Exception: what is raised inside sympy must not be caught there."""


@contextmanager
def limited(seconds: float) -> Generator[None, None, None]:
    """Raises `OutOfTime` inside the block once `seconds` have passed. Blocks nest: the earlier deadline comes first."""
    if seconds <= 0:
        raise OutOfTime
    thread = threading.get_ident()
    lock = threading.Lock()
    state = {"over": False, "fired": False}

    def fire() -> None:
        with lock:
            if not state["over"]:
                state["fired"] = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(OutOfTime))

    watchdog = threading.Timer(seconds, fire)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        with lock:
            state["over"] = True
        watchdog.cancel()
        if state["fired"]:
            # The exception may still be on its way when the block ends by itself: take it here.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
