"""What the kernels of compute capability 9.0 do: a value of the plan, which targets print and the prover checks.

`tiles.hopper` builds it. Each kernel has a table by (head dim of Q and K, head dim of V), each rounded up (`rounded`),
and the walks that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, NamedTuple, TypeVar

from attngen.ir.nodes import Expr, Load
from attngen.ir.walk import reads
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.loops import Loops, Run
from attngen.plan.mask.shares import Wanted
from attngen.plan.mask.turns import Cells
from attngen.plan.mask.walks import Hull, Share, Walk
from attngen.plan.score.ramp import Ramp
from attngen.plan.table import Cell, Row, require


class Schedule(StrEnum):
    """Which tiles of queries a program takes: one alone, or the next that nobody has taken, again and again."""

    ONCE = "once"
    QUEUE = "queue"


REGISTERS = 65536
"""Of a multiprocessor."""


def _require_counts(row: Row, stages: int, together: int, ahead: int, spare: int) -> None:
    require(stages >= 1, row, "one tile at least is in flight")
    require(together >= 1 and ahead >= 0, row, "one head at least takes its tiles in turn")
    require(spare % 8 == 0, row, "registers come in eights")


@dataclass(frozen=True, slots=True)
class Skeleton(Row):
    """A row of the forward kernel's table."""

    COLUMNS: ClassVar[Mapping[str, str]] = {
        "queries": "BQ",
        "keys": "BK",
        "stages": "STAGES",
        "pipelined": "PIPELINED",
        "ordered": "ORDERED",
        "registers": "REGISTERS",
        "spare": "SPARE",
        "together": "together",
        "ahead": "ahead",
        "schedule": "SCHEDULE",
        "out_apart": "OUT_APART",
    }

    queries: int
    """64 for each consumer warpgroup, of which there are two or three."""
    keys: int
    stages: int
    """Tiles of keys, and of values, in flight."""
    pipelined: bool
    """A warpgroup starts its next scores before it computes these weights. Otherwise the others fill the gaps."""
    registers: int
    """Of a consumer thread."""
    spare: int
    """Of a producer thread."""
    together: int
    """Heads whose tiles are taken in turn."""
    schedule: Schedule
    out_apart: bool
    """The output has its own shared memory, so the next queries can be loaded while it is stored."""
    ahead: int = 0
    """More heads are in turn if a head has fewer than `ahead` / `together` tiles."""
    ordered: bool = False
    """Warpgroups start their products in turn."""

    def __post_init__(self) -> None:
        require(self.queries in (128, 192), self, "two or three warpgroups have 64 queries each")
        require(self.keys in (64, 128), self, "tiles of keys have 64 or 128")
        _require_counts(self, self.stages, self.together, self.ahead, self.spare)
        ends = self.out_apart and self.schedule is Schedule.ONCE
        require(not ends, self, "no queries are loaded after those of a program that takes one tile")
        taken = 2 * self.queries * self.registers + 128 * self.spare
        require(taken <= REGISTERS, self, f"{taken} registers, and a multiprocessor has {REGISTERS}")
        require(self.registers % 8 == 0, self, "registers come in eights")


@dataclass(frozen=True, slots=True)
class BackwardSkeleton(Row):
    """Two warpgroups, half of the `keys` each, walk tiles of `queries`, `stages` of which are in flight, and make dV,
    dK and dS. A third makes dQ of that.

    S, dP, dV, dK and dQ are five products, where the portable kernels need seven. A program holds a tile of keys, so
    its part of dQ is added to that of the tiles before it, in their order: `together` heads take their tiles in turn,
    so that few tiles of a head wait for each other; more of them where a head has fewer than `ahead` / `together` tiles
    of keys. A warpgroup passes over tiles of queries that its half of the keys does not meet. Products read shared
    memory but for the weights of dV and the dS of dK, so tiles are wide where registers allow it. early: dO is awaited
    before the weights are made, else after. `spare` are the registers of the warps that fetch and wait. backwards:
    where there are heads enough, tiles of keys are taken from the last to the first.
    """

    queries: int
    keys: int
    stages: int
    early: bool
    together: int
    ahead: int
    spare: int
    backwards: bool = False
    COLUMNS: ClassVar[Mapping[str, str]] = {
        "queries": "BQ",
        "keys": "BK",
        "stages": "STAGES",
        "early": "EARLY",
        "together": "together",
        "ahead": "ahead",
        "spare": "SPARE",
        "backwards": "BACKWARDS",
    }

    def __post_init__(self) -> None:
        require(self.queries in (64, 128) and self.keys == 128, self, "two warpgroups have 64 keys each")
        _require_counts(self, self.stages, self.together, self.ahead, self.spare)


@dataclass(frozen=True, slots=True)
class DkdvSkeleton(Row):
    """A program holds `keys` and walks tiles of `queries`, `stages` of which are in flight. One warpgroup makes the
    weights and dV, the other dS and dK; the first is at most `ahead` tiles of weights ahead of the second. `together`:
    heads whose tiles are taken in turn. `spare` are the registers of the warp that fetches.
    """

    queries: int
    keys: int
    stages: int
    ahead: int
    together: int
    spare: int
    COLUMNS: ClassVar[Mapping[str, str]] = {
        "queries": "BQ",
        "keys": "BK",
        "stages": "STAGES",
        "ahead": "AHEAD",
        "together": "together",
        "spare": "SPARE",
    }

    def __post_init__(self) -> None:
        require(self.queries == self.keys == 64, self, "a warpgroup holds 64 keys, and walks tiles of 64 queries")
        _require_counts(self, self.stages, self.together, self.ahead, self.spare)
        require(1 <= self.ahead <= self.stages, self, "a tile of weights is ahead at least, and of those in flight")


@dataclass(frozen=True, slots=True)
class DqSkeleton(Row):
    """Two warpgroups, half of the `queries` each, walk tiles of `keys`, of which `key_stages` are in flight, and
    `value_stages` of values. The rest as for `DkdvSkeleton`.
    """

    queries: int
    keys: int
    key_stages: int
    value_stages: int
    together: int
    spare: int
    COLUMNS: ClassVar[Mapping[str, str]] = {
        "queries": "BQ",
        "keys": "BK",
        "key_stages": "K_STAGES",
        "value_stages": "V_STAGES",
        "together": "together",
        "spare": "SPARE",
    }

    def __post_init__(self) -> None:
        require(self.queries == 128 and self.keys == 64, self, "two warpgroups have 64 queries each, and tiles 64 keys")
        _require_counts(self, min(self.key_stages, self.value_stages), self.together, 0, self.spare)


@dataclass(frozen=True, slots=True)
class ApartSkeleton:
    dkdv: DkdvSkeleton
    dq: DqSkeleton

    @property
    def row(self) -> tuple[tuple[Cell, ...], ...]:
        return (self.dkdv.row, self.dq.row)


def lead_of(slack: int, keys: int) -> int:
    """Weights of 2**lead, of a quarter of a tile's keys, add up to 2**slack: so many has a thread of each row."""
    return slack - (keys // 4).bit_length() + 1


class Dims(NamedTuple):
    """Head dims, rounded up: of Q and K, and of V."""

    qk: int
    v: int


def rounded(head_dim: tuple[int, int]) -> Dims:
    """To a power of two, 64 at least unless both are at most 32, or to 192 beside values of 128, as models with latent
    attention have them."""
    if max(head_dim) <= 32:
        return Dims(32, 32)
    dims = Dims(*(max(64, 1 << (d - 1).bit_length()) for d in head_dim))
    return Dims(192, 128) if head_dim[0] <= 192 and dims == (256, 128) else dims


@dataclass(frozen=True, slots=True)
class Fetched:
    """A param with an element for each pair, whose tiles are copied by TMA if its layout allows it and shared memory
    suffices. A tile begins at the element `place` of the tensor, where q0 and k0 are its first query and key; its
    queries and keys are the tensor's last two axes."""

    load: Load
    place: tuple[Expr, ...]

    @property
    def of_all_batches(self) -> bool:
        """Whether all batches read the same elements: one after the other they find them in the cache."""
        return not reads(self.load, "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperForward:
    """`walk` numbers the tiles of keys of `loops`, backwards from the last where `backwards`; a warpgroup's own queries
    meet a tile at the steps of `share` alone. A tile outside of the runs `unmasked`, which are those of a warpgroup's
    own queries, needs the mask. All ends of runs are `limited`.
    `of_sequences`: rows that packed sequences and lengths take in the place of these. `ramp`: the logit as this kernel
    evaluates it, where that is not factor * unit. `fetched`: elements of pairs that come with the tiles of keys.
    `batches_inside`: all batches of a head lie side by side.
    """

    rows: tuple[tuple[Dims, Skeleton], ...]
    loops: Loops
    walk: Walk
    backwards: bool
    share: Share | None
    unmasked: tuple[Run, ...]
    lists: Lists | None
    of_sequences: tuple[tuple[Dims, Skeleton], ...]
    ramp: Ramp | None
    fetched: Fetched | None
    batches_inside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperBackward:
    """One kernel for dQ, dK and dV. A program walks `hull`, the tiles of queries that its keys meet and those between
    them, and a warpgroup takes `half_of_steps`; a tile outside of the runs `unmasked`, which are those of a
    warpgroup's half of the keys, needs the mask.

    lists: who waits for whom is listed, where tiles of keys that meet one tile of queries are not consecutive; None:
    each waits for the one before it. row_terms: products take a row's log-sum-exp off its scores, and its delta off dP.
    `elsewhere`: the params for whose gradients the portable kernels run. `grouped`: how many heads of items there are
    where query heads share keys. `of_sequences`: as for the forward kernel.
    """

    rows: tuple[tuple[Dims, BackwardSkeleton], ...]
    hull: Hull
    unmasked: tuple[Run, ...]
    lists: Lists | None
    row_terms: bool
    elsewhere: tuple[str, ...]
    grouped: Wanted
    of_sequences: tuple[tuple[Dims, BackwardSkeleton], ...]


@dataclass(frozen=True, slots=True)
class ListedWalk:
    """A walk, whose ends are `limited`, which of its tiles need no mask, and whose lists name its ends where tests of
    data decide."""

    loops: Loops
    walk: Walk
    unmasked: tuple[Run, ...]
    lists: Lists | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperApart:
    """One kernel for dK and dV, which walks `queries`, and one for dQ, which walks `keys`."""

    rows: tuple[tuple[Dims, ApartSkeleton], ...]
    queries: ListedWalk
    keys: ListedWalk
    elsewhere: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperPlan:
    """`slack`: by how many powers of two the forward kernel's reference may lag behind the maximum; 0: it does not.
    `lead`: by how many a new reference lies below the maximum, at most: 8-bit floats lose digits of small weights, so
    these begin as high as a tile of equal scores allows (`lead_of`). `cells`: the ints in which programs count."""

    slack: int
    lead: int
    forward: HopperForward | None
    backward: HopperBackward | None
    apart: HopperApart | None
    cells: Cells

    def for_head_dim(self, head_dim: tuple[int, int]) -> HopperPlan:
        """The kernels that tensors of this head dim, of Q and K, and of V, can use."""
        qk, v = head_dim
        dims = rounded(head_dim)
        forward, backward, apart = self.forward, self.backward, self.apart
        if v % 8:  # the copy engine writes rows of 16 bytes
            forward = backward = apart = None
        if qk % 8:
            backward = apart = None
        return replace(
            self,
            forward=forward
            and replace(forward, rows=_row_of(forward.rows, dims), of_sequences=_row_of(forward.of_sequences, dims)),
            backward=backward
            and replace(backward, rows=_row_of(backward.rows, dims), of_sequences=_row_of(backward.of_sequences, dims)),
            apart=apart and replace(apart, rows=_row_of(apart.rows, dims)),
        )


_Row = TypeVar("_Row")


def _row_of(rows: tuple[tuple[Dims, _Row], ...], dims: Dims) -> tuple[tuple[Dims, _Row], ...]:
    return tuple(row for row in rows if row[0] == dims)
