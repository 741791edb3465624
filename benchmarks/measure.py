"""Measures one cell: every contender built and checked, then those that are right timed turn about.

Takes a cell, the variants' constants, the generated kernels and the options; gives the cell's record for the JSON.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cells
import check
import peers
import report
from cells import Cell, Inputs, Settings
from peers import Contender, Kernels
from report import say

from attngen.bench import cell as calling, clock
from attngen.bench.cell import Build
from attngen.bench.race import DeviceLostError, Turns, failure, graph

__all__ = ["DeviceLostError", "Options", "measure"]


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


def failed(cell: Cell, options: Options, name: str, error: Exception) -> str:
    """A failure as the record keeps it: the message alone. Raises DeviceLostError where the device went with it."""
    say(f"{cell.key} {name} FAILED\n{''.join(traceback.format_exception(error))}")
    return failure(f"{cell.key}, {name}", error, options.device)


def checked(
    options: Options, seen: Inputs, truth: Mapping[tuple[int, int], check.Dense], name: str, made: Contender
) -> report.Result:
    """Its errors, and the seconds that its first calls and the check take."""
    worst: dict[str, float] = {}

    def first() -> None:
        worst.update(check.errors(seen, truth, made.attend, backward=options.backward, lse=made.lse))

    return {"first_call_s": round(clock.once(first, options.device), 3), "errors": worst}


def builds(cell: Cell, inputs: Inputs, settings: Settings, kernels: Kernels, options: Options) -> dict[str, Build]:
    """attngen, and those peers that have the variant, and are here."""
    taking = [n for n in options.peers if peers.applies(n, cell) and not peers.unable(n, cell, device=options.device)]
    given = {"device": options.device, "flex_mode": options.flex_mode}
    return {
        n: functools.partial(peers.contender, n, cell, inputs, settings, kernels, **given) for n in ("attngen", *taking)
    }


def first_calls(cell: Cell, settings: Settings, kernels: Kernels, options: Options) -> None:
    """Fills the compilers' caches with a cell's kernels."""
    inputs = cells.make_inputs(cell, settings, device=options.device, seed=options.seed)
    told = functools.partial(failed, cell, options)
    calling.first_calls(builds(cell, inputs, settings, kernels, options), inputs.qkv, inputs.grad_out, told)


def measure(cell: Cell, settings: Settings, kernels: Kernels, options: Options) -> dict[str, Any]:
    """One cell's record: everything checked first, then everything timed turn about, forward, then backward alone."""
    share = cells.fraction(cell, settings)
    inputs = cells.make_inputs(cell, settings, device=options.device, seed=options.seed)
    seen = check.check_inputs(cell, inputs)
    told = functools.partial(failed, cell, options)
    checking = functools.partial(checked, options, seen, check.truth(cell, settings, seen))
    ready, records = calling.settle(builds(cell, inputs, settings, kernels, options), checking, told)
    del checking
    absent = {n: peers.unable(n, cell, device=options.device) for n in options.peers if peers.applies(n, cell)}
    records |= {name: {"unable": why} for name, why in absent.items() if why}
    calling.timed(
        ready,
        records,
        lambda direction, made: graph(made, inputs.qkv, inputs.grad_out, direction),
        lambda direction: cell.forward_flops(share) if direction == "forward" else cell.backward_flops(share),
        report.DIRECTIONS[: 2 if options.backward else 1],
        Turns(options.device, options.rounds, options.warmup_ms, options.rep_ms),
        told,
    )
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
