"""What a tuning process does: sets a generated file's tiles, then runs, times or checks it.

Takes tasks, gives pool replies. A configuration that the card or the compiler refuses is a `failed` reply; a device
error spoils the process, and the reply says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cells import Cell, Inputs
from pool import Reply

Tile = tuple[int, int, int, int]
Tiles = tuple[Tile, Tile, Tile]
"""(BQ, BK, num_warps, num_stages) of the forward, the dK/dV and the dQ kernel, as the generated file has them."""


@dataclass(frozen=True, slots=True)
class Setup:
    kernels: Path
    device: str
    seed: int


@dataclass(frozen=True, slots=True)
class Task:
    """`tiles` None leaves the file's own. A run slower than `cutoff_ms` isn't repeated."""

    kind: Literal["tiles", "run", "time", "check", "breakdown"]
    cell: Cell
    tiles: Tiles | None = None
    direction: str = "forward"
    rep_ms: float = 20.0
    cutoff_ms: float = float("inf")


def head_block(D: int) -> int:
    """The head dim as the kernels pad it: the next power of two, at least 16."""
    return max(16, 1 << (D - 1).bit_length())


class Bench:
    """The handler. Keeps the inputs of the cells that it has seen, and the tiles that each file came with."""

    def __init__(self, setup: Setup):
        if setup.device == "cpu":
            os.environ.setdefault("TRITON_INTERPRET", "1")
        from peers import Kernels

        self.setup = setup
        self.kernels = Kernels.at(setup.kernels)
        self.inputs: dict[str, Inputs] = {}
        self.own: dict[tuple[str, int], dict[Any, Tiles]] = {}

    def __call__(self, task: Task) -> Reply:
        import torch
        from measure import MISTAKES

        try:
            return Reply("ok", self.work(task))
        except MISTAKES as error:
            text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        if self.setup.device == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                return Reply("failed", text, fatal=True)
        return Reply("failed", text)

    def own_tiles(self, cell: Cell) -> dict[Any, Tiles]:
        """The file's entries of `TILES` for this head dim and two-byte elements, of every chip, as they came."""
        if (cell.variant, cell.D) not in self.own:
            table = self.kernels.module(cell.variant).TILES
            found = {key: value for key, value in table.items() if key[1:] == (2, head_block(cell.D))}
            if not found:
                raise ValueError(f"{cell.variant}.py has no TILES for 2 bytes and D = {cell.D}, only {list(table)}")
            self.own[cell.variant, cell.D] = found
        return self.own[cell.variant, cell.D]

    def entry(self, cell: Cell) -> tuple[Any, Tiles]:
        """The key and the tiles that calls on this machine take."""
        import torch

        chip = self.kernels.module(cell.variant)._chip(torch.device(self.setup.device))
        key = (chip, 2, head_block(cell.D))
        return key, self.own_tiles(cell)[key]

    def work(self, task: Task) -> Any:
        import check
        from cells import make_inputs
        from peers import generated

        from attngen.runtime.bench import clock
        from attngen.runtime.bench.race import graph

        cell, device, settings = task.cell, self.setup.device, self.kernels.settings
        if task.kind == "tiles":
            return self.entry(cell)
        module = self.kernels.module(cell.variant)
        for key, tiles in self.own_tiles(cell).items():
            module.TILES[key] = task.tiles or tiles
        module._READY.clear()
        if cell.key not in self.inputs:
            self.inputs[cell.key] = make_inputs(cell, settings, device=device, seed=self.setup.seed)
        inputs = self.inputs[cell.key]
        made = generated(cell, inputs, self.kernels)
        if task.kind == "check":
            seen = check.check_inputs(cell, inputs)
            return check.errors(seen, check.truth(cell, settings, seen), made.attend, backward=True, lse=made.lse)
        work = graph(made, inputs.qkv, inputs.grad_out, task.direction)
        clock.once(work, device)
        if task.kind == "run":
            return None
        if task.kind == "breakdown":
            return breakdown(work, device)
        first = 1e3 * clock.once(work, device)
        if first > task.cutoff_ms:
            return clock.Timing(first, first, first, 1)
        return clock.summary(clock.sample(work, device=device, warmup_ms=5.0, rep_ms=task.rep_ms))


def breakdown(work: Any, device: str, runs: int = 5) -> dict[str, float]:
    """Milliseconds of each device kernel in one call of `work`, by name; empty where no profiler answers."""
    if device != "cuda":
        return {}
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(runs):
            work()
        torch.cuda.synchronize()
    spent: dict[str, float] = {}
    for event in seen.events() or []:
        if str(event.device_type).endswith("CUDA"):
            spent[event.name] = spent.get(event.name, 0.0) + event.time_range.elapsed_us() / 1e3 / runs
    return spent
