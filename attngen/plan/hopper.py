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

from attngen.ir.nodes import Literal
from attngen.ir.walk import loads
from attngen.plan.kernel import KernelPlan
from attngen.plan.schedule import Level, is_dear, level_of
from attngen.plan.tiles import Burden
from attngen.plan.weights import Form

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
        128, keys, 2, pipelined=True, registers=240, spare=24, together=1, schedule=Schedule.QUEUE, out_apart=True
    )
    return replace(plain, **changes)


def _three(keys: int, **changes: Any) -> Skeleton:
    """Three warpgroups that overlap each other's products, and read keys and values a third less often."""
    plain = Skeleton(
        192, keys, 2, pipelined=False, registers=160, spare=32, together=4, schedule=Schedule.QUEUE, out_apart=True
    )
    return replace(plain, **changes)


_NARROW = {(64, 64): _three(128)}
_MIDDLE = {dims: _two(128) for dims in ((64, 128), (128, 64), (128, 128))}
_WIDE = {dims: _two(64, schedule=Schedule.ONCE, out_apart=False) for dims in ((256, 128), (256, 256))}
_PAIRS = {dims: _two(64, pipelined=False) for dims in ((64, 64), *_MIDDLE)}


def skeletons(plan: KernelPlan, own: tuple[int, int] | None) -> Mapping[tuple[int, int], Skeleton]:
    """What is faster than the portable kernel; `own` is the spec's tile, which is kept, or no row is left.

    On the H200 the portable kernel's many small programs are faster where the work a tile of keys is not in the
    products: dropout, weights without a shift, masks that are tested in every tile, gathered biases by distance, and,
    at head dim 64, tanh and windows, too. So they are where data decides which tiles meet, for tiles are smaller.
    """
    rows = dict(_fastest(plan))
    if plan.longest_first:  # the long tiles of eight heads, then shorter ones
        rows = {dims: replace(s, together=8) for dims, s in rows.items()}
    if own is None:
        return rows
    queries, keys = own
    if queries != 128 or keys not in (64, 128):
        return {}
    narrow = {dims: s for dims, s in rows.items() if max(dims) <= 128 and s.keys >= keys}
    return {dims: _two(keys, pipelined=s.pipelined or s.queries == 192) for dims, s in narrow.items()}


def _fastest(plan: KernelPlan) -> Mapping[tuple[int, int], Skeleton]:
    if plan.keys.tests:
        return {}
    pairs = any(level_of(e) is Level.PAIR for e in loads(plan.weights.unit))
    match plan.burden:
        case Burden.RANDOM | Burden.DATA:
            return {}
        case Burden.PAIRS:
            return _PAIRS
        case Burden.LIGHT | Burden.SCORE:
            if plan.weights.form is not Form.EXPONENTIAL or pairs or not plan.key_loops.full:
                return {}
            bounded = any(not (isinstance(s.lo, Literal) and s.lo.value <= 0) for s in plan.keys.any)
            light = plan.burden is Burden.LIGHT and not is_dear(plan.weights.unit) and not bounded
            return {**(_NARROW if light else {}), **_MIDDLE, **_WIDE}
