"""Candidates compiled ahead, so that the card does not wait for the compiler: in processes that need no card.

Takes a generated file and the call that is timed; workers put candidates into its tables and launch it for a chip that
they only name (`aot.worker`), which leaves binaries in Triton's cache on disk, where the process that times finds them.
Should it not, it compiles for itself, and nothing is lost but time; so nothing that fails here is told.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from attngen.aot.compile import Request
from attngen.plan.tiles.hopper_trials import Rows
from attngen.tune.gpu import Candidate, Setting, Timer
from attngen.tune.tables import holding


@dataclass(frozen=True, slots=True)
class Job:
    """`request` has the one call that is timed; `row` and `rows` are what `tables.holding` asks for."""

    request: Request
    row: tuple[str, int, int]
    rows: Rows


class Compilers:
    """Processes that compile what is `begun`, in that order. `wait` returns once a candidate's binaries are there.

    They serve several jobs; what one has that another has, too, is found in the cache.
    """

    def __init__(self, workers: int):
        spawn = multiprocessing.get_context("spawn")  # a copy of this process would have its GPU, too
        self.pool = ProcessPoolExecutor(workers, spawn) if workers > 0 else None
        self.begun: dict[tuple[int, Candidate], Future[None]] = {}

    def begin(self, job: Job, candidates: Iterable[Candidate]) -> None:
        if self.pool is None:
            return
        for candidate in candidates:
            try:
                self.begun[id(job), candidate] = self.pool.submit(_compile, job, *candidate)
            except BrokenProcessPool:
                return

    def wait(self, job: Job, candidate: Candidate) -> None:
        begun = self.begun.pop((id(job), candidate), None)
        if begun is not None:
            begun.exception()  # what the compiler refuses here, it refuses where it is timed, with its reason

    def timer(self, job: Job, timer: Timer) -> Timer:
        """`timer`, once the candidate is compiled."""

        def timed(kernel: str, setting: Setting) -> float:
            self.wait(job, (kernel, setting))
            return timer(kernel, setting)

        return timed

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)


def workers() -> int:
    """One for each core but one, which times; at most 15, and none where there is one core alone."""
    return min(15, len(os.sched_getaffinity(0)) - 1)


# ---------------------------------------------------------------- in a worker

_MODULES: dict[str, Any] = {}
"""What a worker has loaded, by the text."""


def _compile(job: Job, kernel: str, setting: Setting) -> None:
    os.environ["TRITON_INTERPRET"] = "0"
    from attngen.aot.worker import forward, gradients, module_for, recorded_launches

    request = job.request
    if request.source not in _MODULES:
        _MODULES[request.source] = module_for(request)
    module = _MODULES[request.source]

    def call() -> None:
        out, _, leaves = forward(module, request, request.calls[0], learned=False)
        if kernel != "forward":
            gradients(out, leaves)

    with holding(module, job.row, job.rows, kernel, setting):
        recorded_launches(call)
