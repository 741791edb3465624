"""Times several contenders in turns, A B C, then C B A, and so on, so that a card that throttles slows all alike.

Takes contenders and what of each is timed; returns the milliseconds of every run, the median of a CUDA graph's replays,
and who failed. Whoever fails drops out of the race and of no other's; only where the device is lost with it does the
race end.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from attngen.bench import clock, replay

torch: Any = importlib.import_module("torch")
_triton_errors: Any = importlib.import_module("triton.errors")

_TritonError: type[Exception] = _triton_errors.TritonError
_APART = {"cutlass.base_dsl.common": "DSLBaseError", "torch._dynamo.exc": "FailOnRecompileLimitHit"}
"""Errors of peers that derive from `Exception` alone, by the module that defines them."""

Attend = Callable[[Any, Any, Any], Any]


def mistakes() -> tuple[type[Exception], ...]:
    """What a contender may raise without ending the run: errors of torch, Triton, the argument checks, a package that
    lacks something, and CUTLASS's compiler. A module that is not loaded has raised nothing."""
    apart = tuple(getattr(sys.modules[module], name) for module, name in _APART.items() if module in sys.modules)
    return (RuntimeError, ValueError, TypeError, AssertionError, ImportError, _TritonError, *apart)


def nothing() -> None:
    """The watch of a contender that can't fall back, and what nobody waits for."""


@dataclass(frozen=True, slots=True)
class Contender:
    """`attend(q, k, v)` under `scope()`. `watch` raises where a call so far took another path than the one meant.
    `refusals` are the errors by which it says, at its first calls, that it cannot compute this; `backward` whether it
    has a backward pass.
    """

    name: str
    attend: Attend
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    lse: Attend | None = None
    block_mask_ms: float | None = None
    watch: Callable[[], None] = nothing
    refusals: tuple[type[Exception], ...] = ()
    backward: bool = True


@dataclass(frozen=True, slots=True)
class Turns:
    """How long each is timed: `rep_ms` in all, in so many turns. `begin` is called before, once all are checked."""

    device: str
    rounds: int
    warmup_ms: float
    rep_ms: float
    begin: Callable[[], None] = nothing


@dataclass(frozen=True, slots=True)
class Outcome:
    """By contender: milliseconds of every run; the median of its call's replays as a CUDA graph, or why there is none;
    failures."""

    samples: dict[str, list[float]]
    graph_ms: dict[str, float]
    no_graph: dict[str, str]
    failures: dict[str, str]


class DeviceLostError(RuntimeError):
    """The device's context is gone (an illegal access, say): nothing more can be measured in this process."""


def failure(who: str, error: Exception, device: str) -> str:
    """The message alone. Raises DeviceLostError where the device went with it."""
    if device == "cuda":
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            raise DeviceLostError(f"after {who}: {lost}") from error
    return f"{type(error).__name__}: {error}"


def graph(made: Contender, qkv: tuple[Any, Any, Any], grad_out: Any, direction: str) -> Callable[[], object]:
    """What is timed: the forward as in training, or the backward alone, over a graph that is kept.

    Of leaves of its own, since a leaf's node of that graph keeps the stream that it was made on, and a CUDA graph must
    not wait for another.
    """
    if direction == "forward":
        return lambda: made.attend(*qkv)
    leaves = tuple(x.detach().requires_grad_() for x in qkv)
    out = made.attend(*leaves)
    return lambda: torch.autograd.grad(out, leaves, grad_out, retain_graph=True)


def race(
    ready: Mapping[str, Contender],
    work: Callable[[Contender], Callable[[], object]],
    turns: Turns,
    failed: Callable[[str, Exception], str],
) -> Outcome:
    """Times everyone; `failed` words the failures. Who fails drops out."""
    works: dict[str, Callable[[], object]] = {}
    samples: dict[str, list[float]] = {name: [] for name in ready}
    failures: dict[str, str] = {}
    for turn in range(turns.rounds):
        for name in list(ready)[:: 1 if turn % 2 == 0 else -1]:
            if name in failures:
                continue
            made = ready[name]
            try:
                with made.scope():
                    if name not in works:
                        works[name] = work(made)
                    samples[name] += _sample(works[name], turns)
                made.watch()
            except mistakes() as error:
                failures[name] = failed(name, error)
    for name in failures:
        works.pop(name, None)
    return Outcome(samples, *_replayed(ready, works, work, turns, failed), failures)


def _replayed(
    ready: Mapping[str, Contender],
    works: Mapping[str, Callable[[], object]],
    work: Callable[[Contender], Callable[[], object]],
    turns: Turns,
    failed: Callable[[str, Exception], str],
) -> tuple[dict[str, float], dict[str, str]]:
    """Medians of those who came through and whose call a CUDA graph can hold, in turns, too; why others lack one."""
    replays: dict[str, Callable[[], object]] = {}
    samples: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for turn in range(turns.rounds if turns.device == "cuda" else 0):
        for name in list(works)[:: 1 if turn % 2 == 0 else -1]:
            if name in missing:
                continue
            made = ready[name]
            try:
                if name not in replays:
                    with made.scope():
                        replays[name] = replay.recorded(functools.partial(work, made))
                    made.watch()
                samples[name] = samples.get(name, []) + _sample(replays[name], turns)
            except mistakes() as error:
                missing[name] = failed(f"{name} as a CUDA graph", error)
    return {name: clock.summary(found).ms for name, found in samples.items() if name not in missing}, missing


def _sample(work: Callable[[], object], turns: Turns) -> list[float]:
    """Milliseconds of the runs of one turn."""
    return clock.sample(work, device=turns.device, warmup_ms=turns.warmup_ms, rep_ms=turns.rep_ms / turns.rounds)
