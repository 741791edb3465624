"""Worker processes under a watchdog: a task that hangs or crashes costs its worker, not the run.

Takes tasks and the making of a handler, which each worker does once from a setup value; gives a reply for each task, in
order. A worker holds one task at a time. Knows nothing of what the tasks do.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

Status = Literal["ok", "failed", "hung", "crashed", "skipped"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a task. `value` is the handler's, or a message; after a `fatal` one the worker is replaced."""

    status: Status
    value: Any = None
    fatal: bool = False


Handler = Callable[[Any], Reply]


def serve(connection: Connection, make: Callable[[Any], Handler], setup: Any) -> None:
    """A worker's life: tasks in, replies out, until the pipe closes or a reply says that the process is spoilt."""
    handle = make(setup)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        reply = handle(task)
        connection.send(reply)
        if reply.fatal:
            return


class Worker:
    """One process and the parent's end of its pipe."""

    def __init__(self, make: Callable[[Any], Handler], setup: Any):
        context = multiprocessing.get_context("spawn")  # a forked child can't use the parent's CUDA context
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, make, setup), daemon=True)
        self.process.start()
        theirs.close()
        self.since = 0.0
        self.index = -1

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


class Pool:
    """Up to `count` workers, kept between calls; a task over `limit` seconds is a hang."""

    def __init__(self, make: Callable[[Any], Handler], setup: Any, *, count: int, limit: float):
        self.make, self.setup, self.count, self.limit = make, setup, count, limit
        self.idle: list[Worker] = []

    def map(self, tasks: Sequence[Any], *, deadline: float = float("inf"), count: int | None = None) -> list[Reply]:
        """A reply for each task. Past `deadline` (on time.monotonic's clock) no task is started: they are `skipped`."""
        replies: list[Reply] = [Reply("skipped")] * len(tasks)
        waiting = deque(range(len(tasks)))
        busy: list[Worker] = []
        while waiting or busy:
            if time.monotonic() > deadline:
                waiting.clear()
            while waiting and len(busy) < (count or self.count):
                worker = self.idle.pop() if self.idle else Worker(self.make, self.setup)
                worker.index, worker.since = waiting.popleft(), time.monotonic()
                worker.connection.send(tasks[worker.index])
                busy.append(worker)
            ready = wait([w.connection for w in busy], timeout=0.5)
            for worker in list(busy):
                reply = self._reply(worker, worker.connection in ready)
                if reply is not None:
                    busy.remove(worker)
                    replies[worker.index] = reply
                    if reply.fatal:
                        worker.end()
                    else:
                        self.idle.append(worker)
        return replies

    def _reply(self, worker: Worker, ready: bool) -> Reply | None:
        """The worker's answer, a verdict on its silence, or None for more time."""
        if ready:
            try:
                return worker.connection.recv()
            except EOFError:
                worker.process.join(5)
                return Reply("crashed", f"exit status {worker.process.exitcode}", fatal=True)
        if time.monotonic() - worker.since > self.limit:
            return Reply("hung", f"over {self.limit:.0f} s", fatal=True)
        return None

    def close(self) -> None:
        for worker in self.idle:
            worker.end()
        self.idle.clear()
