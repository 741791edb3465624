"""A budget of work for the claims of one obligation, and the clock that ends a proof as a last resort.

Work is counted, not timed, so that a verdict is the same on every machine. One unit is one resource step of z3's
default solver, about a microsecond; everything else that a proof does has its price in these units. A claim that needs
more than its part is Unknown, and says so; so is one that the clock ends.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

from attngen.prove.budget.watchdog import limited

OBLIGATION = 10_000_000
"""Units for the claims of one obligation, at effort 1."""
QUESTION = 1_000_000
"""Units for one question to a solver, at effort 1."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the user allows: `effort`, a multiple of the default work, and `timeout`, the seconds of the last resort."""

    effort: float = 1.0
    timeout: float = 600.0


def out_of_work(effort: float) -> str:
    """What a reader is told, who gave this effort."""
    more = (
        "`effort=4` allows four times the default"
        if effort < 4
        else f"`effort={4 * effort:g}` allows four times as much"
    )
    return f"its proof needs more work than it may take; {more}"


class OutOfWork(Exception):
    """The next step costs more than is left."""

    def __init__(self, effort: float = 1.0):
        super().__init__()
        self.reason = out_of_work(effort)


class Clock:
    """The seconds that are left since it was made."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


class Work:
    """The units that are left for some claims. What is spent of a part is spent of the whole."""

    def __init__(self, budget: Budget | None = None, clock: Clock | None = None):
        """`clock` is shared by all obligations of a proof; without, it starts here."""
        budget = budget or Budget()
        self.effort = budget.effort
        self.clock = clock or Clock(budget.timeout)
        self.left = int(OBLIGATION * budget.effort)
        self.spent = 0
        self._whole: Work | None = None

    def part(self, units: int = QUESTION) -> Work:
        """At most `units` times the effort, and no more than is left."""
        return self._part(int(units * self.effort))

    def share(self, fraction: float = 1 / 3) -> Work:
        """A fraction of what is left, so that something is left for the other claims."""
        return self._part(int(self.left * fraction))

    def _part(self, units: int) -> Work:
        part = Work(Budget(self.effort), self.clock)
        part.left = min(units, self.left)
        part._whole = self
        return part

    def spend(self, units: int) -> None:
        """Pays for a step before it is taken. Raises `OutOfWork`, and takes nothing, where too little is left."""
        if units > self.left:
            raise OutOfWork(self.effort)
        self.charge(units)

    def charge(self, units: int) -> None:
        """Pays for a step after it was taken."""
        self.left = max(0, self.left - units)
        self.spent += units
        if self._whole is not None:
            self._whole.charge(units)

    def watched(self) -> AbstractContextManager[None]:
        """A block that the clock ends with `OutOfTime`."""
        return limited(self.clock.left)
