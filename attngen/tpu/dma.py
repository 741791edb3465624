"""Copies between memories, in time. One queue a core: a copy leaves when the one before has left, and lands later.

Takes starts, waits and adjustments of semaphores, in order; returns how long each wait takes and how many bytes moved.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_LOCAL_LATENCY = 100.0
_LOCAL_SPEED = 4.0
"""A copy inside the chip, in cycles, and how many times faster than HBM it moves."""


@dataclass(slots=True)
class Copies:
    """The copy engine of one core. Times are in cycles."""

    bytes_per_cycle: float
    latency: float
    granule: int
    """Bytes; copies and semaphores count in granules."""
    hbm_bytes: int = 0
    count: int = 0
    unmatched: int = 0
    """Waits for copies that were never started: something was not understood."""
    _free: float = 0.0
    _landing: dict[int, deque[tuple[float, int]]] = field(default_factory=dict[int, "deque[tuple[float, int]]"])
    _level: dict[int, int] = field(default_factory=dict[int, int])

    def start(self, now: float, granules: int, semaphore: int, *, through_hbm: bool) -> None:
        size = granules * self.granule
        if through_hbm:
            self.hbm_bytes += size
            self.count += 1
            self._free = max(self._free, now) + size / self.bytes_per_cycle
            lands = self._free + self.latency
        else:
            lands = now + size / (_LOCAL_SPEED * self.bytes_per_cycle) + _LOCAL_LATENCY
        self._landing.setdefault(semaphore, deque()).append((lands, granules))

    def wait(self, now: float, granules: int, semaphore: int) -> float:
        """When `granules` have landed: `now`, or later."""
        queue = self._landing.get(semaphore, deque())
        level = self._level.get(semaphore, 0)
        if level < granules and not queue:
            self.unmatched += 1
        while level < granules and queue:
            lands, landed = queue.popleft()
            level += landed
            now = max(now, lands)
        self._level[semaphore] = level
        return now

    def add(self, semaphore: int, granules: int) -> None:
        """What landed is taken off the semaphore after a wait: a negative number, as a rule."""
        self._level[semaphore] = self._level.get(semaphore, 0) + granules
