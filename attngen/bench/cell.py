"""One cell of a benchmark: every contender built, compiled and checked, then those that are right timed turn about.

Takes functions that build contenders, that check one and that word an error; returns the contenders' records, plain
values for the JSON. What a contender computes, and what it is compared with, is the caller's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attngen.bench import clock, contenders, verdict
from attngen.bench.race import Contender, Turns, mistakes, race

torch: Any = importlib.import_module("torch")

Record = dict[str, Any]
Build = Callable[[], Contender]
Check = Callable[[str, Contender], Record]
"""By name and contender: `errors` by result, and what else its record is to hold."""
Failed = Callable[[str, Exception], str]
"""Words an error. Raises DeviceLostError where the device went with it."""


def settle(builds: Mapping[str, Build], check: Check, failed: Failed) -> tuple[dict[str, Contender], dict[str, Record]]:
    """The contenders that have something right to be timed, and all records."""
    contenders.afresh(builds)
    ready: dict[str, Contender] = {}
    records: dict[str, Record] = {}
    for name, build in builds.items():
        refusals: tuple[type[Exception], ...] = ()
        try:
            made = build()
            refusals = made.refusals
            with made.scope():
                record = check(name, made)
            made.watch()
        except mistakes() as error:
            refused = isinstance(error, refusals) and not isinstance(error, torch.OutOfMemoryError)
            records[name] = {"unable" if refused else "failure": failed(name, error)}
            continue
        records[name] = {"right": verdict.right(record["errors"]), **record}
        if made.block_mask_ms is not None:
            records[name]["block_mask_ms"] = made.block_mask_ms
        if verdict.right(record["errors"], "forward"):
            ready[name] = made
    return ready, records


def first_calls(builds: Mapping[str, Build], qkv: tuple[Any, Any, Any], grad_out: Any, failed: Failed) -> None:
    """Calls everyone once, forward and backward, so that the compilers' caches on disk hold all kernels."""
    contenders.afresh(builds)
    for name, build in builds.items():
        try:
            made = build()
            with made.scope():
                out = made.attend(*qkv)
                if made.backward:
                    torch.autograd.grad(out, qkv, grad_out)
        except mistakes() as error:
            failed(name, error)


def timed(
    ready: dict[str, Contender],
    records: Mapping[str, Record],
    work: Callable[[str, Contender], Callable[[], object]],
    flops: Callable[[str], float],
    directions: Sequence[str],
    turns: Turns,
    failed: Failed,
) -> None:
    """Adds each direction's times to the records of those who are right in it. `work(direction, contender)` is what is
    timed, `flops(direction)` what it is worth. Who fails leaves `ready`."""
    turns.begin()
    for direction in directions:
        taking = {
            name: made
            for name, made in ready.items()
            if verdict.right(records[name]["errors"], direction) and (direction == "forward" or made.backward)
        }
        outcome = race(taking, lambda made: work(direction, made), turns, failed)  # noqa: B023
        for name in taking:
            if name in outcome.failures:
                records[name]["failure"] = outcome.failures[name]
                del ready[name]
                continue
            if name in outcome.no_graph:
                records[name]["no_graph"] = outcome.no_graph[name]
            timing = clock.summary(outcome.samples[name])
            records[name][direction] = timing.record(flops(direction), outcome.graph_ms.get(name))
