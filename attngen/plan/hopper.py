"""The kernels of compute capability 9.0: how their warpgroups share the work, by head dims and by burden.

Takes what a kernel bears beside the products, gives tables by (head dim of Q and K, head dim of V), each rounded up to
64, 128 or 256: of `Skeleton`s for the forward kernel, of `BackwardSkeleton`s for the one that gives dQ, dK and dV.
Every entry compiles without spilling (`tests/aot`); among those that do, the fastest on an H200 stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from attngen.ir.build import real
from attngen.ir.nodes import Apply, Expr, Literal, Op, Symbol, Type
from attngen.ir.walk import loads, nodes, reads
from attngen.plan.kernel import Gather, KernelPlan
from attngen.plan.linear import linear
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


# ---------------------------------------------------------------- backward


@dataclass(frozen=True, slots=True)
class BackwardSkeleton:
    """Two warpgroups compute, 64 of the `keys` each, and walk tiles of `queries`, `stages` of which are in flight.

    S, dP, dV, dK and dQ are five products, where the portable kernels need seven. A program holds a tile of keys, so
    its part of dQ is added to that of the tiles before it, in their order: `together` heads take their tiles in turn,
    so that few tiles of a head wait for each other. held: keys and values stay in registers, where they fit, and the
    products read half as much of shared memory. `spare` are the registers of the warps that fetch and wait.
    """

    queries: int
    keys: int
    stages: int
    held: bool
    together: int
    spare: int

    @property
    def row(self) -> tuple[int | bool, ...]:
        return (self.queries, self.keys, self.stages, self.held, self.together, self.spare)


_BACKWARD = {
    (64, 64): BackwardSkeleton(64, 128, stages=3, held=True, together=16, spare=24),
    (128, 128): BackwardSkeleton(64, 128, stages=3, held=False, together=4, spare=24),
}


def backward_skeletons(plan: KernelPlan, own: tuple[int, int] | None) -> Mapping[tuple[int, int], BackwardSkeleton]:
    """Where dQ, dK and dV come from one kernel; elsewhere, and where the spec has its `own` tile, from portable ones.

    The weights are exponentials of scores that know no positions, and what multiplies q . k is one number for every
    pair: a thread has no room for a pair's derivative beside its weight until dP meets them, nor for terms of the
    score. Some tiles need no mask.
    """
    light = plan.burden is Burden.LIGHT and plan.weights.form is Form.EXPONENTIAL
    light = light and bool(plan.key_loops.full and plan.query_loops.full)
    plain = plan.d_pair == real(1.0) and all(
        isinstance(n, Literal | Apply) or n == Symbol("scale", Type.FLOAT) for n in nodes(plan.d_factor)
    )
    if own is not None or not light or not plain or not in_turn(plan):
        return {}
    if plan.growing_keys:  # tiles of keys get shorter: more heads share the cache, fewer programs wait
        return {dims: replace(s, together=16) for dims, s in _BACKWARD.items()}
    return _BACKWARD


def sums_beside(plan: KernelPlan) -> tuple[str, ...]:
    """The params whose gradients are sums that the portable dQ and dK/dV kernels keep: who wants one, calls those."""
    kept = (Gather.HEAD, Gather.ROW, Gather.COLUMN)
    return tuple(dict.fromkeys(g.param for g in plan.gradients if g.gather in kept))


def in_turn(plan: KernelPlan) -> bool:
    """Whether the tiles of keys that meet a tile of queries are consecutive: then each waits for the one before it.

    They are where the queries are one stretch whose ends never move back as keys move on.
    """
    if plan.queries.tests or len(plan.queries.any) != 1:
        return False
    stretch = plan.queries.any[0]
    return _rises(stretch.lo) and _rises(stretch.hi)


def _rises(e: Expr) -> bool:
    """Whether `e` is known never to fall as the tile of keys k0 … k1 moves on."""
    if not reads(e, "k0", "k1"):
        return True
    if isinstance(e, Apply) and e.op in (Op.MIN, Op.MAX):
        return all(_rises(a) for a in e.args)
    terms, _ = linear(e)
    if len(terms) == 1 and terms[0][0] == e:  # a symbol, or nothing that is known
        return not isinstance(e, Apply)
    return all(not reads(t, "k0", "k1") or (c > 0 and _rises(t)) for t, c in terms)
