"""The ints in which programs count, and by which they add to dQ in turn.

The functions of turns are `plan.index`; `prove.obligations.turns` and `lists` show what they claim.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cells:
    """The ints in which the kernels of a call count. Each kind has `counters` of `plan.index` ints, a function of the
    number of tiles of dQ: a queue, of which kernels use `queue` ints; a turn for each tile; and, for a list, `noted`
    times as many for what is noted of each.

    All ints are 0 at first. The kernel that prepares rows clears them: it has a program for each `rows` queries of a
    head, and a program clears `cleared` ints. A tile of dQ has at least `least` queries, so a dense call has no more
    tiles than programs. Sequences begin anywhere: they take the kernel that counts only where tiles of `least` queries
    are at most `most` times as many as programs.
    """

    rows: int = 32
    cleared: int = 128
    least: int = 64
    most: int = 30
    queue: int = 3
    noted: int = 2

    def kinds(self, *, listed: bool) -> dict[str, int]:
        """What they count, and how often each has so many ints."""
        return {"queue": 1, "added": 1, **({"met": self.noted} if listed else {})}
