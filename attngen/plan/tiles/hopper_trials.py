"""Which rows of the tables of compute capability 9.0 are worth a trial on a card, and how to go on from their times.

Takes the rows that `plan.hopper` gives a spec for two head dims, gives a first round of rows, each the spec's own with
one thing changed, and, of the first round's times, a second one that puts together what was faster apart. All fit the
chip: its shared memory, its barriers and its registers. Timing is the business of `tune.gpu`.

In numbers, for head dims up to 64, 128, 192 and 256: the first round has at most 20, 16, 14 and 11 rows of the forward
kernel; 7 of the backward kernel; above head dim 128 no more than 5 and 8 of dK/dV and dQ, where they have a kernel
each. The second has at most five of the forward kernel and three of each other. All combinations would be some
hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import assert_never

from attngen.plan.chips import SHARED_MEMORY
from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton, DkdvSkeleton, DqSkeleton, Schedule, Skeleton, rounded
from attngen.plan.kernel import KernelPlan
from attngen.plan.tiles.hopper import apart_skeletons, backward_skeletons, skeletons
from attngen.plan.tiles.traits import traits

Row = Skeleton | BackwardSkeleton | DkdvSkeleton | DqSkeleton
KINDS: Mapping[str, type[Row]] = {
    "forward": Skeleton,
    "backward": BackwardSkeleton,
    "dkdv": DkdvSkeleton,
    "dq": DqSkeleton,
}
"""The kernels that have rows. `backward` gives dQ, dK and dV; where there is none, `dkdv` and `dq` do."""

ROOM = SHARED_MEMORY["sm_90"] * 1024
SCRATCH = 1024
"""Of it for barriers, notes, and what the compiler takes to bring a row's values from one layout to another."""
BARRIERS, TRITON_BARRIERS = 16, 6
BESIDE = 64
"""Registers that a thread of the forward kernel needs beside scores, weights and sums."""
GAIN = 0.99
"""Of the time of the spec's own row: what takes no less than this is noise."""

_FORWARD_HEADS = ((1, 0), (4, 0), (8, 256))
_BACKWARD_HEADS = ((2, 256), (4, 512), (16, 512), (64, 0))
_AXES: Mapping[type[Row], tuple[frozenset[str], ...]] = {
    Skeleton: (
        frozenset({"queries", "keys", "stages", "pipelined", "registers", "spare"}),
        frozenset({"ordered"}),
        frozenset({"schedule", "out_apart"}),
        frozenset({"together", "ahead"}),
    ),
    BackwardSkeleton: (
        frozenset({"stages"}),
        frozenset({"early"}),
        frozenset({"together", "ahead", "backwards"}),
    ),
    DkdvSkeleton: (frozenset({"stages"}), frozenset({"ahead"}), frozenset({"together"})),
    DqSkeleton: (frozenset({"key_stages", "value_stages"}), frozenset({"together"})),
}
"""What is one change: two that share none of these can be put together."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one spec at `dims`, the head dims of Q, K and of V, rounded up; none where a portable kernel runs.
    `terms`: see `row_terms`.
    """

    dims: tuple[int, int] = (64, 64)
    forward: Skeleton | None = None
    backward: BackwardSkeleton | None = None
    apart: ApartSkeleton | None = None
    terms: bool = False

    @property
    def by_kernel(self) -> dict[str, Row]:
        found: dict[str, Row | None] = {"forward": self.forward, "backward": self.backward}
        if self.apart is not None:
            found |= {"dkdv": self.apart.dkdv, "dq": self.apart.dq}
        return {kernel: row for kernel, row in found.items() if row is not None}

    @property
    def own_backward(self) -> bool:
        return self.backward is not None or self.apart is not None


def rows_of(plan: KernelPlan, own: tuple[int, int] | None, head_dims: tuple[int, int]) -> Rows:
    """What the generated file's tables have for these head dims; `own` is the spec's tile."""
    dims, found = rounded(head_dims), traits(plan)
    return Rows(
        dims,
        skeletons(found, own).get(dims),
        backward_skeletons(found, own).get(dims),
        apart_skeletons(found, own).get(dims),
        found.row_terms,
    )


# ---------------------------------------------------------------- what fits


def fits(row: Row, dims: tuple[int, int], terms: bool = False) -> bool:
    """Whether the chip has room for a row at head dims rounded to `dims`."""
    if shared_bytes(row, dims, terms) + SCRATCH > ROOM or barriers(row) > BARRIERS:
        return False
    match row:
        case Skeleton():
            held = row.keys // 2 + (row.keys // 4 if row.pipelined else 0) + dims[1] // 2
            return held + BESIDE <= row.registers
        case BackwardSkeleton():  # dQ is made in pieces of 64 x 64, one or two
            return (row.queries, dims) in ((64, (64, 64)), (128, (64, 64)), (64, (128, 128)))
        case DkdvSkeleton() | DqSkeleton():
            return True
        case _:
            assert_never(row)


def barriers(row: Row) -> int:
    """How many of a program's sixteen barriers the kernel takes, as the templates number and assert them."""
    match row:
        case Skeleton():  # a place of keys and one of values is free, one of queries; and whose turn it is
            parts = row.queries // 64
            return TRITON_BARRIERS + 2 * row.stages + parts + (parts if row.ordered else 0)
        case BackwardSkeleton():  # one warpgroup more; dS is stored, of two tiles; the next item is read
            return TRITON_BARRIERS + 1 + 2 + 1 + row.stages
        case DkdvSkeleton():
            return TRITON_BARRIERS + 2 * row.stages + 2 * row.ahead
        case DqSkeleton():
            return TRITON_BARRIERS + row.key_stages + row.value_stages
        case _:
            assert_never(row)


def shared_bytes(row: Row, dims: tuple[int, int], terms: bool = False) -> int:
    """What the kernel asks for at two bytes an element, as the templates allocate it, less `SCRATCH`. `terms`: whether
    rows have some (`row_terms`).
    """
    d, dv = 1 << (dims[0] - 1).bit_length(), dims[1]
    both = 2 * (d + dv)
    match row:
        case Skeleton():  # keys alone come in parts where their columns are no power of two
            place = 2 * (d if row.out_apart else max(d, dv)) + (2 * dv if row.out_apart else 0)
            return row.queries * place + 2 * row.stages * row.keys * (dims[0] + dv)
        case BackwardSkeleton():
            # K, V and dK, which has no room of its own where it has 128 columns, beside terms; dS of two tiles.
            held = row.keys * (both + (0 if terms and d == 128 else 2 * d))
            walked = row.stages * row.queries * (both + (32 if terms else 8))
            return held + walked + 4 * row.keys * row.queries
        case DkdvSkeleton():
            held, walked = row.keys * 4 * max(d, dv), row.stages * row.queries * (both + 8)
            return held + walked + row.ahead * row.keys * row.queries * 2
        case DqSkeleton():
            return row.queries * both + 2 * row.keys * (row.key_stages * d + row.value_stages * dv)
        case _:
            assert_never(row)


# ---------------------------------------------------------------- the first round


def first_round(rows: Rows) -> list[tuple[str, Row]]:
    """Kernel and row: each kernel's own first, then those with one thing changed that fit."""
    found: list[tuple[str, Row]] = []
    for kernel, row in rows.by_kernel.items():
        tried = (r for r in _changed(row, rows) if fits(r, rows.dims, rows.terms))
        found += [(kernel, r) for r in dict.fromkeys((row, *tried))]
    return found


def _changed(row: Row, rows: Rows) -> Iterator[Row]:
    match row:
        case Skeleton():
            yield from _shapes(row, rows.dims)
            turned = replace(row, ordered=not row.ordered)  # turns may take the barriers of the last stage
            yield turned if barriers(turned) <= BARRIERS else replace(turned, stages=row.stages - 1)
            for schedule, apart in ((Schedule.QUEUE, True), (Schedule.QUEUE, False), (Schedule.ONCE, False)):
                yield replace(row, schedule=schedule, out_apart=apart)
            for together, ahead in _FORWARD_HEADS:
                yield replace(row, together=together, ahead=ahead)
        case BackwardSkeleton():
            for stages in (2, 3):
                yield replace(row, stages=stages)
            yield replace(row, early=not row.early)
            for together, ahead in _BACKWARD_HEADS:
                yield replace(row, together=together, ahead=ahead, backwards=False)
        case DkdvSkeleton():
            for stages in (2, 3):
                yield replace(row, stages=stages)
            for ahead in (1, 2):
                yield replace(row, ahead=ahead)
            for together in (1, 4, 16):
                yield replace(row, together=together)
        case DqSkeleton():
            for stages in (1, 2, 3):
                for value_stages in (1, 2):
                    yield replace(row, key_stages=stages, value_stages=value_stages)
            for together in (1, 4, 16):
                yield replace(row, together=together)
        case _:
            assert_never(row)


def _shapes(row: Skeleton, dims: tuple[int, int]) -> Iterator[Skeleton]:
    """Two or three warpgroups, tiles of 64 or 128 keys, pipelined or not, since one decides which of the others fit;
    each with two stages, and with as many as there is room for, if need be where results have none of their own.
    """
    for queries, registers, spare in ((128, 240, 24), (192, 160, 32)):
        for keys in (128, 64):
            for pipelined in (True, False):
                shape = replace(
                    row, queries=queries, keys=keys, pipelined=pipelined, registers=registers, spare=spare, stages=2
                )
                roomy = replace(shape, out_apart=False)
                most = max((n for n in (2, 3, 4) if fits(replace(roomy, stages=n), dims)), default=2)
                for stages in dict.fromkeys((2, most)):
                    found = replace(shape, stages=stages)
                    yield found if fits(found, dims) else replace(roomy, stages=stages)


# ---------------------------------------------------------------- the second round


def second_round(rows: Rows, times: Callable[[str], Mapping[Row, float]]) -> list[tuple[str, Row]]:
    """Kernel and row: what beat a kernel's own row put together, the fastest change with each other one, and all from
    the fastest on. `times`: milliseconds of a kernel's rows that ran; the same times give the same rows.
    """
    found: list[tuple[str, Row]] = []
    for kernel, row in rows.by_kernel.items():
        first = {r for k, r in first_round(rows) if k == kernel}
        known = {r: ms for r, ms in times(kernel).items() if r in first}
        won = _winners(row, known)
        joined: list[Row] = []
        for i in range(1, len(won)):
            joined += [_joined(row, (won[0], won[i])), _joined(row, won[: i + 1])]
        found += [(kernel, r) for r in dict.fromkeys(joined) if fits(r, rows.dims, rows.terms) and r not in first]
    return found


def _winners(own: Row, times: Mapping[Row, float]) -> tuple[Row, ...]:
    """The fastest first; of those that change the same thing the fastest alone."""
    least = GAIN * times.get(own, float("inf"))
    won: list[Row] = []
    changed: set[frozenset[str]] = set()
    for row, ms in sorted(times.items(), key=lambda item: item[1]):
        axes = {axis for axis in _AXES[type(own)] if axis & _differences(own, row).keys()}
        if ms < least and axes and not axes & changed:
            won.append(row)
            changed |= axes
    return tuple(won)


def _joined(own: Row, rows: tuple[Row, ...]) -> Row:
    joined = own
    for row in rows:
        joined = replace(joined, **_differences(own, row))
    return joined


def _differences(own: Row, row: Row) -> dict[str, object]:
    return {f.name: getattr(row, f.name) for f in fields(own) if getattr(row, f.name) != getattr(own, f.name)}
