"""The chips that libtpu compiles for, and the figures that an estimate needs. Gives `CHIPS`; decides nothing.

Bandwidth is the published one. The clock is the published bf16 peak divided by the matrix units' operations per cycle,
as the compiler's own reservations give them. All of it is derived: none was measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.errors import UsageError


@dataclass(frozen=True, slots=True)
class Chip:
    """One generation. Figures are of one core, except `cores`, the TensorCores that one compiled program runs on."""

    name: str
    topology: str
    """libtpu's name for the smallest slice."""
    cores: int
    clock: float
    """Hz."""
    hbm_bandwidth: float
    """Bytes a second."""
    matrix_units: int
    matrix_side: int
    rows_per_cycle: int
    """Rows of bf16 that one matrix unit takes a cycle."""
    cross_lane_cycles: int
    """How long a cross-lane unit (XLU) is taken by one operation."""
    cross_lane_units: int
    branch_delay: int
    """Bundles after a branch that run before it takes effect."""
    granule: int
    """Bytes that a copy counts in."""

    @property
    def peak(self) -> float:
        """bf16 operations a second of the whole chip, two for a multiply-add."""
        return 2.0 * self.cores * self.matrix_units * self.matrix_side**2 * self.rows_per_cycle * self.clock

    @property
    def bandwidth(self) -> float:
        """Bytes a second of the whole chip."""
        return self.cores * self.hbm_bandwidth


MIB = 1 << 20
DMA_LATENCY = 0.55e-6
"""Seconds from the last byte's departure to the flag. Fitted on five published timings of v5e."""


def _small(name: str, topology: str, *, cores: int, clock: float, bandwidth: float, delay: int, granule: int) -> Chip:
    """v4 and v5: four matrix units of 128 x 128."""
    return Chip(name, topology, cores, clock, bandwidth, 4, 128, 1, 9, 3, delay, granule)


def _large(name: str, topology: str, *, clock: float, bandwidth: float, delay: int) -> Chip:
    """v6e and 7x: two matrix units of 256 x 256 that take two rows a cycle."""
    return Chip(name, topology, 1, clock, bandwidth, 2, 256, 2, 4, 2, delay, 32)


CHIPS = {
    chip.name: chip
    for chip in (
        _small("v4", "v4:2x2x1", cores=1, clock=1.05e9, bandwidth=1.23e12 / 2, delay=1, granule=512),
        _small("v5e", "v5e:2x2", cores=1, clock=1.5e9, bandwidth=8.2e11, delay=4, granule=32),
        _small("v5p", "v5p:2x2x1", cores=2, clock=1.75e9, bandwidth=2.46e12 / 2, delay=4, granule=32),
        _large("v6e", "v6e:2x2", clock=1.75e9, bandwidth=1.64e12, delay=4),
        _large("7x", "tpu7x:2x2x1", clock=2.2e9, bandwidth=7.4e12 / 2, delay=6),
    )
}


def chip(name: str) -> Chip:
    if name not in CHIPS:
        raise UsageError(f"no TPU {name!r}; there are {', '.join(CHIPS)}")
    return CHIPS[name]
