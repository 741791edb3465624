"""The forward kernel of compute capability 9.0: how its warpgroups share the work, by head dims and by burden.

Takes what the kernel bears beside the products, gives a table by (head dim of Q and K, head dim of V), each rounded up
to 64, 128 or 256, of `Skeleton`s. Every entry compiles without spilling (`tests/aot`); among those that do, the
fastest on an H200 stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from attngen.plan.tiles import Burden

HEAD_BLOCKS = (64, 128, 256)


class Schedule(StrEnum):
    """Which tiles of queries a program takes: one alone; every so many-th; or the next that nobody has taken."""

    ONCE = "once"
    STRIDE = "stride"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Skeleton:
    """`queries` are 64 for each warpgroup that computes: two or three. `stages` tiles of keys, and of values, are in
    flight. pipelined: a warpgroup starts its next scores before it weighs these; else the others fill the gaps.
    `registers` of a thread that computes, `spare` of the warp that fetches. `together`: heads whose tiles are taken
    in turn. out_apart: results have room of their own, so the next queries come while they are stored.
    """

    queries: int
    keys: int
    stages: int
    pipelined: bool
    registers: int
    spare: int
    together: int
    schedule: Schedule
    out_apart: bool

    @property
    def row(self) -> tuple[int | bool | str, ...]:
        fields = (self.queries, self.keys, self.stages, self.pipelined, self.registers, self.spare, self.together)
        return (*fields, self.schedule.value, self.out_apart)


def _two(keys: int, stages: int, *, together: int = 2, pipelined: bool = True, schedule: Schedule = Schedule.QUEUE, out_apart: bool = True) -> Skeleton:
    return Skeleton(128, keys, stages, pipelined, 240, 24, together, schedule, out_apart)


def _three(keys: int, stages: int, *, together: int = 4, pipelined: bool = False, schedule: Schedule = Schedule.QUEUE, out_apart: bool = True) -> Skeleton:
    return Skeleton(192, keys, stages, pipelined, 160, 32, together, schedule, out_apart)


_PLAIN: Mapping[tuple[int, int], Skeleton] = {
    (64, 64): _three(128, 2, pipelined=True),
    (64, 128): _two(128, 2),
    (128, 64): _two(128, 2),
    (128, 128): _three(128, 2),
    (256, 128): _two(64, 2, out_apart=False),
    (256, 256): _two(64, 2, out_apart=False),
}
_LOADED = {**_PLAIN, (64, 64): _two(128, 2), (128, 128): _two(128, 2)}


def skeletons(burden: Burden) -> Mapping[tuple[int, int], Skeleton]:
    match burden:
        case Burden.LIGHT | Burden.DATA:
            return _PLAIN
        case Burden.SCORE | Burden.PAIRS | Burden.RANDOM:
            return _LOADED
