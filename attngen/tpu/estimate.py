"""What a compiled program would cost: cycles, use of each unit, spills, bytes, against the chip's limits.

Takes what libtpu made (`Compiled`), returns an `Estimate`. Pallas kernels count; XLA's own fusions around them are
listed apart, since their copies are not scheduled as simply. Nothing here is a TPU's time: `CAVEATS` says why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attngen.tpu.bundles import Bundle, Usage, parse, parse_usage
from attngen.tpu.chips import Chip
from attngen.tpu.compile import Compiled, Scheduled
from attngen.tpu.simulate import Run, simulate

CAVEATS = (
    "An estimate from the compiler's schedule, not a TPU's time: only ratios count.",
    "The clock is derived from published peaks; the latency of a copy, 0.55 us, is fitted on v5e.",
    "Not modelled: VMEM bank conflicts, throttling, branches on loaded data, the cost of a kernel's launch.",
    "The study behind the method found it 5 % off on average, 15 % at worst, against 12 published timings (v5e, 7x).",
)

_SHOWN = 0.004
"""Share of a kernel's cycles from which a block is worth a line."""


@dataclass(frozen=True, slots=True)
class Units:
    """Use of each unit as a share of what it could do in the kernel's cycles."""

    matrix: float
    cross_lane: float
    vector: float
    transcendental: float
    load: float
    store: float


@dataclass(frozen=True, slots=True)
class Loop:
    """A stretch of bundles that runs as a whole: a loop's body, as a rule."""

    start: int
    bundles: int
    trips: int
    share: float
    """Of the kernel's issued cycles."""
    matrix_cycles: float
    """Cycles in which the matrix units would be done with one trip."""
    spills: int
    fills: int


@dataclass(frozen=True, slots=True)
class KernelEstimate:
    """One run of one kernel. Where it runs on several cores, cycles and units are those of the slowest."""

    name: str
    """As the compiled program has it."""
    function: str
    """The Python function of a Pallas kernel, "" for what XLA made."""
    bundles: int
    cycles: float
    waiting: float
    """Cycles of these that wait for a copy."""
    units: Units
    loops: tuple[Loop, ...]
    spills: int
    fills: int
    """Registers stored and loaded again for want of registers, over the whole run."""
    vmem: int | None
    hbm_bytes: int
    doubts: tuple[str, ...]
    """What the simulation did not understand of this kernel; empty as a rule."""

    @property
    def is_pallas(self) -> bool:
        return bool(self.function)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A compiled program. `seconds` and `hbm_bytes` are of its Pallas kernels, run one after the other."""

    chip: Chip
    kernels: tuple[KernelEstimate, ...]
    temporary_bytes: int
    """HBM that the program needs beside its arguments and results."""

    @property
    def pallas(self) -> tuple[KernelEstimate, ...]:
        return tuple(k for k in self.kernels if k.is_pallas)

    @property
    def cycles(self) -> float:
        return sum(k.cycles for k in self.pallas)

    @property
    def seconds(self) -> float:
        return self.cycles / self.chip.clock

    @property
    def around_cycles(self) -> float:
        """Of XLA's own fusions beside the kernels: trust the order, not the size."""
        return sum(k.cycles for k in self.kernels if not k.is_pallas)

    @property
    def hbm_bytes(self) -> int:
        return sum(k.hbm_bytes for k in self.pallas)

    @property
    def memory_seconds(self) -> float:
        """What the kernels' bytes take at the chip's full bandwidth."""
        return self.hbm_bytes / self.chip.bandwidth

    @property
    def matrix_seconds(self) -> float:
        """What the kernels' products take where the matrix units never wait."""
        return sum(k.units.matrix * k.cycles for k in self.pallas) / self.chip.clock

    @property
    def scheduled_roofline_seconds(self) -> float:
        """The least time for the products and the bytes that are scheduled, of each kernel by itself."""
        clock, bandwidth = self.chip.clock, self.chip.bandwidth
        return sum(max(k.units.matrix * k.cycles / clock, k.hbm_bytes / bandwidth) for k in self.pallas)


def estimate(compiled: Compiled) -> Estimate:
    """Execute every kernel's schedule once, on each core."""
    kernels = tuple(_kernel(scheduled, compiled.chip) for scheduled in compiled.kernels)
    return Estimate(compiled.chip, kernels, compiled.temporary_bytes)


def _kernel(scheduled: Scheduled, chip: Chip) -> KernelEstimate:
    bundles = parse(scheduled.bundles)
    usage = parse_usage(scheduled.utilization)
    runs = [simulate(bundles, chip, scheduled.operands, core) for core in range(chip.cores)]
    slowest = max(runs, key=lambda run: run.cycles)
    totals = _totals(usage, slowest)
    return KernelEstimate(
        name=scheduled.name,
        function=scheduled.function,
        bundles=len(bundles),
        cycles=slowest.cycles,
        waiting=slowest.waiting,
        units=_units(bundles, usage, slowest, chip),
        loops=_loops(bundles, usage, slowest, chip),
        spills=totals.get("VSTORE:SPILL", 0),
        fills=totals.get("VLOAD:FILL", 0),
        vmem=scheduled.vmem,
        hbm_bytes=sum(run.hbm_bytes for run in runs),
        doubts=_doubts(runs),
    )


def _doubts(runs: Sequence[Run]) -> tuple[str, ...]:
    branches = max(run.unknown_branches for run in runs)
    waits = max(run.unmatched_waits for run in runs)
    said: list[str] = []
    if branches:
        said.append(f"{branches} branches on values that are not known, taken as not taken")
    if waits:
        said.append(f"{waits} copies or waits that are not understood, taken as free")
    return tuple(said)


# ---------------------------------------------------------------- units


def _totals(usage: Usage, run: Run) -> dict[str, int]:
    """Slots taken of each unit over the whole run."""
    totals = dict.fromkeys(usage.units, 0)
    for block in run.blocks:
        for row in usage.rows[block.start : block.stop]:
            for unit, slots in zip(usage.units, row, strict=True):
                totals[unit] += slots * block.trips
    return totals


_NARROW = re.compile(r"bf16|[sf]8|x8")
_WIDE_ROWS, _NARROW_ROWS = 8, 16
"""Rows that one matrix operation takes: a register holds 8 rows of 32 bits, or 16 of 16."""


def _matrix_rows(bundle: Bundle) -> int:
    return sum(
        _NARROW_ROWS if _NARROW.search(name) else _WIDE_ROWS for name in bundle.vector if name.startswith("vmatmul")
    )


def _cross_lane(bundle: Bundle) -> int:
    return sum(".xlu" in name and not name.startswith("vpop") for name in bundle.vector)


def _matrix_cycles(bundles: Sequence[Bundle], chip: Chip) -> float:
    return sum(map(_matrix_rows, bundles)) / (chip.rows_per_cycle * chip.matrix_units)


def _units(bundles: Sequence[Bundle], usage: Usage, run: Run, chip: Chip) -> Units:
    cycles = max(run.cycles, 1.0)
    totals = _totals(usage, run)
    capacity = dict(zip(usage.units, usage.capacity, strict=True))

    def share(unit: str) -> float:
        return totals[unit] / (capacity[unit] * cycles) if unit in totals else 0.0

    matrix = sum(_matrix_cycles(bundles[b.start : b.stop], chip) * b.trips for b in run.blocks)
    crossings = sum(sum(map(_cross_lane, bundles[b.start : b.stop])) * b.trips for b in run.blocks)
    return Units(
        matrix=matrix / cycles,
        cross_lane=crossings * chip.cross_lane_cycles / (chip.cross_lane_units * cycles),
        vector=share("VALU"),
        transcendental=share("EUP"),
        load=share("VLOAD"),
        store=share("VSTORE"),
    )


def _loops(bundles: Sequence[Bundle], usage: Usage, run: Run, chip: Chip) -> tuple[Loop, ...]:
    spill, fill = (usage.units.index(u) if u in usage.units else None for u in ("VSTORE:SPILL", "VLOAD:FILL"))
    found: list[Loop] = []
    for block in run.blocks:
        share = block.bundles * block.trips / max(run.busy, 1)
        if share < _SHOWN:
            continue
        rows = usage.rows[block.start : block.stop]
        found.append(
            Loop(
                start=block.start,
                bundles=block.bundles,
                trips=block.trips,
                share=share,
                matrix_cycles=_matrix_cycles(bundles[block.start : block.stop], chip),
                spills=sum(row[spill] for row in rows) if spill is not None else 0,
                fills=sum(row[fill] for row in rows) if fill is not None else 0,
            )
        )
    return tuple(found)
