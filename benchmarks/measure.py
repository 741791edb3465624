"""Measures one cell: every contender built and checked, then those that are right timed turn about.

Takes a cell, the variants' constants, the generated kernels and the options; gives the cell's record for the JSON.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cells
import check
import clock
import peers
import report
import torch
from cells import Cell, Inputs, Settings
from peers import Contender, Kernels
from report import say
from triton.errors import TritonError

MISTAKES = (RuntimeError, ValueError, TypeError, AssertionError, TritonError)
"""What a contender may raise without ending the run: torch's, Triton's and the argument checks' errors."""


class DeviceLostError(RuntimeError):
    """The device's context is gone (an illegal access, say): nothing more can be measured in this process."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure, the same for every cell."""

    device: str
    backward: bool
    rounds: int
    warmup_ms: float
    rep_ms: float
    seed: int
    peers: tuple[str, ...]
    flex_mode: str | None


def failed(name: str, cell: Cell, error: Exception, options: Options) -> str:
    """A failure as the record keeps it: the message alone. Raises DeviceLostError where the device went with it."""
    say(f"{cell.key} {name} FAILED\n{''.join(traceback.format_exception(error))}")
    if options.device == "cuda":
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            raise DeviceLostError(f"after {cell.key}, {name}: {lost}") from error
    return f"{type(error).__name__}: {error}"


def settle(
    name: str,
    cell: Cell,
    inputs: Inputs,
    settings: Settings,
    kernels: Kernels | None,
    truth: dict[tuple[int, int], check.Dense],
    options: Options,
) -> tuple[Contender | None, dict[str, Any]]:
    """Builds, compiles and checks one contender: it, or None where it mustn't be timed, and its part of the record."""
    worst: dict[str, float] = {}
    try:
        made = peers.contender(
            name, cell, inputs, settings, kernels, device=options.device, flex_mode=options.flex_mode
        )
        seen = check.check_inputs(cell, inputs)

        def first() -> None:
            with made.scope():
                worst.update(check.errors(seen, truth, made.attend, backward=options.backward, lse=made.lse))

        seconds = clock.once(first, options.device)
        made.watch()
    except MISTAKES as error:
        return None, {"failure": failed(name, cell, error, options)}
    ok = check.right(worst)
    record: dict[str, Any] = {"right": ok, "errors": worst, "first_call_s": round(seconds, 3)}
    if made.block_mask_ms is not None:
        record["block_mask_ms"] = made.block_mask_ms
    if not ok:
        say(f"{cell.key} {name} WRONG: {worst}")
    return (made if ok else None), record


def graph(made: Contender, inputs: Inputs, direction: str) -> Callable[[], object]:
    """What is timed: the forward as in training, or the backward alone, over a graph that is kept."""
    if direction == "forward":
        return lambda: made.attend(*inputs.qkv)
    out = made.attend(*inputs.qkv)
    return lambda: torch.autograd.grad(out, inputs.qkv, inputs.grad_out, retain_graph=True)


def race(
    ready: dict[str, Contender], cell: Cell, inputs: Inputs, direction: str, options: Options
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Milliseconds of every run by contender, and the failures; who fails drops out.

    In turns, A B C, then C B A, and so on, so that a card that throttles slows all alike.
    """
    works: dict[str, Callable[[], object]] = {}
    samples: dict[str, list[float]] = {name: [] for name in ready}
    failures: dict[str, str] = {}
    for turn in range(options.rounds):
        for name in list(ready) if turn % 2 == 0 else list(reversed(ready)):
            if name in failures:
                continue
            made = ready[name]
            try:
                with made.scope():
                    if name not in works:
                        works[name] = graph(made, inputs, direction)
                    samples[name] += clock.sample(
                        works[name],
                        device=options.device,
                        warmup_ms=options.warmup_ms,
                        rep_ms=options.rep_ms / options.rounds,
                    )
                made.watch()
            except MISTAKES as error:
                failures[name] = failed(name, cell, error, options)
    return samples, failures


def measure(cell: Cell, settings: Settings, kernels: Kernels | None, options: Options) -> dict[str, Any]:
    """One cell's record: everything checked first, then everything timed turn about, forward, then backward alone."""
    share = cells.fraction(cell, settings)
    inputs = cells.make_inputs(cell, settings, device=options.device, seed=options.seed)
    truth = check.truth(cell, settings, check.check_inputs(cell, inputs))
    records: dict[str, dict[str, Any]] = {}
    ready: dict[str, Contender] = {}
    for name in ("attngen", *options.peers):
        if peers.applies(name, cell, device=options.device):
            made, records[name] = settle(name, cell, inputs, settings, kernels, truth, options)
            if made is not None:
                ready[name] = made
    del truth
    for direction in report.DIRECTIONS[: 2 if options.backward else 1]:
        flops = cell.forward_flops(share) if direction == "forward" else cell.backward_flops(share)
        samples, failures = race(ready, cell, inputs, direction, options)
        for name, text in failures.items():
            records[name]["failure"] = text
            del ready[name]
        for name in ready:
            records[name][direction] = clock.summary(samples[name]).record(flops)
    return {
        "key": cell.key,
        "variant": cell.variant,
        "D": cell.D,
        "N": cell.N,
        "B": cell.B,
        "H": cell.H,
        "fraction": share,
        "target": cells.target(cell),
        "contenders": records,
    }
