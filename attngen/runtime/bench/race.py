"""Times several contenders in turns, A B C, then C B A, and so on, so that a card that throttles slows all alike.

Takes contenders and what of each is timed; gives the milliseconds of every run, those of the kernels alone, and who
failed. Whoever fails drops out of the race and of no other's; only where the device is lost with it does the race end.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from attngen.runtime.bench import clock, kernels

torch: Any = importlib.import_module("torch")
_triton_errors: Any = importlib.import_module("triton.errors")

_TritonError: type[Exception] = _triton_errors.TritonError
MISTAKES = (RuntimeError, ValueError, TypeError, AssertionError, _TritonError)
"""What a contender may raise without ending the run: torch's, Triton's and the argument checks' errors."""

Attend = Callable[[Any, Any, Any], Any]


def nothing() -> None:
    """The watch of a contender that can't fall back."""


@dataclass(frozen=True, slots=True)
class Contender:
    """`attend(q, k, v)` under `scope()`. `watch` raises where a call so far took another path than the one meant."""

    name: str
    attend: Attend
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    lse: Attend | None = None
    block_mask_ms: float | None = None
    watch: Callable[[], None] = nothing


@dataclass(frozen=True, slots=True)
class Turns:
    """How long each is timed: `rep_ms` in all, in so many turns."""

    device: str
    rounds: int
    warmup_ms: float
    rep_ms: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """By contender: milliseconds of every run; those of one call's kernels, where a profile has them; failures."""

    samples: dict[str, list[float]]
    kernel_ms: dict[str, float]
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
    """What is timed: the forward as in training, or the backward alone, over a graph that is kept."""
    if direction == "forward":
        return lambda: made.attend(*qkv)
    out = made.attend(*qkv)
    return lambda: torch.autograd.grad(out, qkv, grad_out, retain_graph=True)


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
                    samples[name] += clock.sample(
                        works[name],
                        device=turns.device,
                        warmup_ms=turns.warmup_ms,
                        rep_ms=turns.rep_ms / turns.rounds,
                    )
                made.watch()
            except MISTAKES as error:
                failures[name] = failed(name, error)
    for name in failures:
        works.pop(name, None)
    return Outcome(samples, _kernel_ms(ready, works, samples, turns.device, failed), failures)


def _kernel_ms(
    ready: Mapping[str, Contender],
    works: Mapping[str, Callable[[], object]],
    samples: Mapping[str, list[float]],
    device: str,
    failed: Callable[[str, Exception], str],
) -> dict[str, float]:
    """The kernels' own time of those who came through, warm as they are; nothing where the profile fails."""

    def scoped(name: str) -> Callable[[], object]:
        def work() -> None:
            with ready[name].scope():
                works[name]()

        return work

    if device != "cuda" or not works:
        return {}
    slowest = max(clock.summary(samples[name]).ms for name in works)
    try:
        return kernels.profiled({name: scoped(name) for name in works}, kernels.calls_of(slowest))
    except MISTAKES as error:
        failed("the profile of " + ", ".join(works), error)
        return {}
