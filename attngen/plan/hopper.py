"""The forward kernel of compute capability 9.0: how its warpgroups share the work, by head dims and by burden.

Takes what the kernel bears beside the products, gives a table by (head dim of Q and K, head dim of V), each rounded up
to 64, 128 or 256, of `Skeleton`s. Every entry compiles without spilling (`tests/aot`); among those that do, the
fastest on an H200 stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

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


def _two(keys: int, **changes: Any) -> Skeleton:
    """Two warpgroups, each with its own products overlapped: for what needs registers."""
    plain = Skeleton(
        128, keys, 2, pipelined=True, registers=240, spare=24, together=2, schedule=Schedule.QUEUE, out_apart=True
    )
    return replace(plain, **changes)


def _three(keys: int, **changes: Any) -> Skeleton:
    """Three warpgroups that overlap each other's products, and read keys and values a third less often."""
    plain = Skeleton(
        192, keys, 2, pipelined=False, registers=160, spare=32, together=4, schedule=Schedule.QUEUE, out_apart=True
    )
    return replace(plain, **changes)


_WIDE = _two(64, schedule=Schedule.ONCE, out_apart=False)
_PLAIN: Mapping[tuple[int, int], Skeleton] = {
    (64, 64): _three(128),
    (64, 128): _two(128),
    (128, 64): _two(128),
    (128, 128): _two(128),
    (256, 128): _WIDE,
    (256, 256): _WIDE,
}
_LOADED: Mapping[tuple[int, int], Skeleton] = {
    (64, 64): _two(64, pipelined=False),
    (64, 128): _two(64, pipelined=False),
    (128, 64): _two(64, pipelined=False),
    (128, 128): _two(64, pipelined=False),
}


def skeletons(burden: Burden, own: tuple[int, int] | None = None) -> Mapping[tuple[int, int], Skeleton]:
    """`own` is the tile that the spec asks for: where two warpgroups fit it they have it, else no row is left."""
    match burden:
        case Burden.LIGHT | Burden.SCORE | Burden.DATA:
            found = _PLAIN
        case Burden.PAIRS | Burden.RANDOM:
            found = _LOADED
    if own is None:
        return found
    queries, keys = own
    if queries != 128 or keys not in (64, 128):
        return {}
    narrow = {dims: s for dims, s in found.items() if max(dims) <= 128 and s.keys >= keys}
    return {dims: _two(keys, pipelined=s.pipelined or s.queries == 192) for dims, s in narrow.items()}
