"""Measures one cell: every contender built and checked, then those that are right timed turn about.

Takes a cell, the variants' constants, the generated kernels and the options; gives the cell's record for the JSON.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import cells
import check
import peers
import report
from cells import Cell, Inputs, Settings
from peers import Contender, Kernels
from report import say

from attngen.bench import clock
from attngen.bench.race import MISTAKES, DeviceLostError, Turns, failure, graph, race

__all__ = ["MISTAKES", "DeviceLostError", "Options", "measure"]


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
    return failure(f"{cell.key}, {name}", error, options.device)


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
        turns = Turns(options.device, options.rounds, options.warmup_ms, options.rep_ms)
        outcome = race(
            ready,
            lambda made: graph(made, inputs.qkv, inputs.grad_out, direction),  # noqa: B023
            turns,
            lambda name, error: failed(name, cell, error, options),
        )
        for name, text in outcome.failures.items():
            records[name]["failure"] = text
            del ready[name]
        for name in ready:
            timing = clock.summary(outcome.samples[name])
            records[name][direction] = timing.record(flops, outcome.graph_ms.get(name))
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
