"""The last resort for a solver that has no limit of its own: a block that ends after so many seconds.

What sympy is asked is bounded by its size (`work`), yet a single call may take long. `limited(seconds)` runs a block
under a watchdog that raises `OutOfTime` in the block's own thread; the claim of the block is then Unknown, and never a
hang. Works in any thread, not only the main one.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager


class OutOfTime(BaseException):
    """The seconds have passed. No Exception: what is raised inside sympy must not be caught there."""

    reason = "the clock ended its proof before its work was done; `attngen check --timeout S` allows more seconds"


@contextmanager
def limited(seconds: float) -> Generator[None, None, None]:
    """Raises `OutOfTime` inside the block once `seconds` have passed. Blocks nest: the earlier deadline comes first."""
    if seconds <= 0:
        raise OutOfTime

    class Mine(OutOfTime):
        """Tells this block's exception from those of the blocks around it."""

    thread = threading.get_ident()
    lock = threading.Lock()
    over = fired = finished = False

    def fire() -> None:
        nonlocal fired
        with lock:
            if not over:
                fired = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Mine))

    watchdog = threading.Timer(seconds, fire)
    watchdog.daemon = True
    watchdog.start()
    try:
        try:
            yield
            finished = True
        finally:
            with lock:
                over = True
            watchdog.cancel()
            if fired and not isinstance(sys.exception(), Mine):
                # It is still on its way, and arrives here. Taking it back instead would leave the interpreter's flag
                # for pending work set: everything runs slower then, and Python 3.11 hangs under a profiler.
                for _ in range(8):
                    time.sleep(0)
    except Mine:
        if not finished:
            raise
