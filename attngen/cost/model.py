"""The whole: what a spec costs on a chip, kernel by kernel, and the roofline's time.

Takes a plan, a chip, a dtype, sizes and params; returns a `Cost`. A kernel's time is that of its busiest unit:
products, vector lanes, special functions, or a memory; it is a bound from below, not a prediction. What a loop walks
over comes from the main memory once if the nearest memory that cores share (the cache; without one a core's own) keeps
it for all heads that run at once, and for each visited tile if it does not. On compute capability 9.0 the kernels are
those of `hopper` where the plan has some, unless the caller gives a tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from attngen.cost import hopper, passes
from attngen.cost.chips import ITEMSIZE, Chip, Dtype, Figure, longest_dense
from attngen.cost.grids import Visits, visits
from attngen.cost.operations import Count, PairCost, backward, forward, hopper_forward, pair_loads
from attngen.cost.passes import Held, Loop, Moved, Order, Side
from attngen.cost.systolic import Cycles, Unit, fused, unfused
from attngen.errors import UsageError
from attngen.ir.attention import Param
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Storage
from attngen.plan import KernelPlan
from attngen.plan.footprint import loads_of
from attngen.plan.kernel import Gather
from attngen.plan.simulate import planned
from attngen.plan.tiles import tpu as tpu_tiles
from attngen.plan.tiles.portable import HEAD_BLOCKS, Tile, shared_bytes, table

_STORED = {
    Storage.F32: 4,
    Storage.F16: 2,
    Storage.BF16: 2,
    Storage.INT: 4,
    Storage.U8: 1,
    Storage.I8: 1,
    Storage.I16: 2,
    Storage.BOOL: 1,
}
_APART = (Gather.DENSE, Gather.DIAGONAL, Gather.SCATTER)


@dataclass(frozen=True, slots=True)
class Line:
    """One kernel. `order` is the loop order, or `dense`; `near` is the traffic between the cores and the cache, None
    where cores read the main memory themselves; `stays` names the memory in which the inner side stays.
    """

    direction: str
    kernel: str
    order: str
    planned: bool
    tile: tuple[int, int] | None
    matrix: int
    count: Count
    main: Moved
    near: Moved | None
    held: Held | None
    walked: int
    stays: str
    seconds: float
    bound: str

    @property
    def operations(self) -> int:
        return self.matrix + self.count.vector + self.count.special

    @property
    def intensity(self) -> float:
        """Operations for each byte of the main memory."""
        return self.operations / self.main.total


@dataclass(frozen=True, slots=True)
class Cost:
    name: str
    chip: Chip
    dtype: Dtype
    sizes: Mapping[str, int]
    skipped: float  # of the pairs, in the forward pass
    masked: float  # of the visited pairs, in tiles with the mask
    lines: tuple[Line, ...]
    dense_score: int  # bytes of one head's
    cycles: tuple[tuple[str, Cycles], ...]  # of one head on one array, where the chip has systolic arrays
    elsewhere: tuple[str, ...] = ()  # a call that wants the gradient of one of these params runs portable kernels

    def total(self, direction: str) -> float:
        """Seconds of attngen's kernels, one after the other."""
        return sum(line.seconds for line in self.lines if line.direction == direction and line.planned)

    def dense_home(self) -> str:
        """The nearest memory that holds one head's dense score."""
        for memory in (self.chip.scratch, *([self.chip.cache] if self.chip.cache else []), self.chip.main):
            if self.dense_score <= memory.size.value:
                return memory.name
        return "none"

    def dense_limits(self) -> dict[str, int]:
        """The longest n whose dense n x n score each memory holds."""
        memories = (self.chip.scratch, *([self.chip.cache] if self.chip.cache else []), self.chip.main)
        return {m.name: longest_dense(m, ITEMSIZE[self.dtype]) for m in memories}


def cost(
    plan: KernelPlan,
    chip: Chip,
    dtype: Dtype,
    sizes: Mapping[str, int],
    params: Mapping[str, Any],
    tile: tuple[int, int] | None = None,
) -> Cost:
    """`params` has a value for every param that the mask reads; `tile` overrides the tiles of all kernels."""
    return _Model(plan, chip, dtype, sizes, params, tile).cost()


def pair_seconds(
    plan: KernelPlan, chip: Chip, dtype: Dtype, sizes: Mapping[str, int], pairs: float
) -> tuple[float, float]:
    """What so many pairs of a head take forward and backward, without the mask and without memory: a bound from below
    for long stretches, whose K and V stay in a memory near the cores."""
    model, found = _Model(plan, chip, dtype, sizes, {}, None), {"forward": 0.0, "backward": 0.0}
    for loop in model.loops():
        if loop.planned:
            each = model.pair_cost(loop).every
            matrix, count = 2 * loop.products, Count(each.vector, each.special)
            found[loop.direction] += pairs * model.roofline(matrix, count, Moved(0, 0), Moved(0, 0))[0]
    return found["forward"], found["backward"]


def _kernel(loop: Loop) -> Literal["forward", "dkdv", "dq"]:
    """The kernel of the plan's tables that has this loop's tiles."""
    if loop.direction == "forward":
        return "forward"
    return "dkdv" if loop.order is Order.KEYS else "dq"


class _Model:
    def __init__(
        self,
        plan: KernelPlan,
        chip: Chip,
        dtype: Dtype,
        sizes: Mapping[str, int],
        params: Mapping[str, Any],
        tile: tuple[int, int] | None,
    ):
        if sizes["Hq"] % sizes["Hkv"]:
            raise UsageError(f"Hq = {sizes['Hq']} is no multiple of Hkv = {sizes['Hkv']}")
        self.chip, self.sizes, self.params = chip, sizes, params
        self.plan = plan
        self.dtype: Dtype = dtype
        self.itemsize = ITEMSIZE[dtype]
        self.own_tile = tile
        self.found: dict[tuple[str, tuple[int, int]], Visits] = {}
        own = chip.arch == "sm_90" and self.itemsize == hopper.HALF and tile is None
        self.own = hopper.own(plan, sizes["D"], sizes["Dv"]) if own else hopper.Own()

    # ------------------------------------------------------------ the parts

    def tile(self, loop: Loop) -> Tile:
        if loop.tile is not None:
            return Tile(*loop.tile, warps=4, stages=1)
        if self.own_tile is not None:
            return Tile(*self.own_tile, warps=4, stages=1)
        own = self.plan.attention.tile
        if self.chip.tpu is not None:
            on_tpu = tpu_tiles.table(own)[self.chip.tpu, self.itemsize]
            wide = on_tpu[("forward", "dkdv", "dq").index(_kernel(loop))]
            return Tile(wide.queries, wide.keys, warps=1, stages=2)
        rows = table(own, self.plan.burden, loads_of(self.plan))
        wanted = self.chip.arch, self.itemsize, self.head_block
        row = next(r for r in rows if (r.chip, r.itemsize, r.head_block) == wanted)
        match _kernel(loop):
            case "forward":
                return row.forward
            case "dkdv":
                return row.dkdv
            case "dq":
                return row.dq

    @property
    def head_block(self) -> int:
        return next((b for b in HEAD_BLOCKS if b >= max(self.sizes["D"], self.sizes["Dv"])), HEAD_BLOCKS[-1])

    def held(self, loop: Loop) -> Held:
        """On a GPU the plan knows what the compiled kernel takes of the shared memory."""
        tile = self.tile(loop)
        found = passes.held(loop, (tile.queries, tile.keys))
        if loop.scratch is not None:
            return replace(found, scratch=loop.scratch)
        if self.chip.arch is None:
            return found
        loads = loads_of(self.plan)
        shared = shared_bytes(_kernel(loop), tile, self.chip.arch, self.itemsize, self.head_block, loads)
        return replace(found, scratch=shared)

    def visits(self, loop: Loop, part: tuple[int, int] | None = None) -> Visits:
        """Of whole tiles, or of the parts that warpgroups take."""
        tile = self.tile(loop)
        axis, wanted = "k" if loop.order is Order.QUERIES else "q", part or (tile.queries, tile.keys)
        key = axis, wanted
        if key not in self.found:
            self.found[key] = visits(self.plan, self.sizes, self.params, wanted, axis)
        return self.found[key]

    def loops(self) -> list[Loop]:
        d, dv = self.sizes["D"], self.sizes["Dv"]
        found = list(passes.loops(d, dv, self.itemsize))
        dq = next(loop for loop in found if loop.kernel == "dQ")
        taken = {loop.direction for loop in self.own.loops}
        found = [*self.own.loops, *(loop for loop in found if not (loop.planned and loop.direction in taken))]
        given = tuple(s for s in dq.streams if not s.writes)
        for g in self.plan.gradients:  # gradients over pairs have kernels of their own
            if g.gather in _APART:
                found.append(Loop("backward", f"d {g.param}", Order.QUERIES, given, d + dv, True))
        return found

    def param_bytes(self, param: Param) -> int:
        env = {planned(self.plan, name): value for name, value in self.sizes.items()}
        cells = 1
        for dim in param.shape:
            cells *= int(evaluate(dim, env, {}))
        return cells * _STORED[param.storage]

    def param_reads(self, v: Visits) -> tuple[int, int]:
        """Bytes of params that pairs read: as the loop asks for them, and each element once."""
        asked = least = 0
        for load in pair_loads(self.plan):
            param = self.plan.attention.param(load.param)
            for_pairs = v.pairs * _STORED[param.storage]
            asked += for_pairs
            least += min(for_pairs, self.param_bytes(param))
        return asked, least

    def param_writes(self, loop: Loop) -> int:
        if not loop.kernel.startswith("d "):
            return 0
        name = loop.kernel.removeprefix("d ")
        twice = any(g.param == name and g.gather is Gather.SCATTER for g in self.plan.gradients)
        param = self.plan.attention.param(name)
        cells = self.param_bytes(param) // _STORED[param.storage]
        return cells * 8 * 2 if twice else cells * 4

    def pair_cost(self, loop: Loop) -> PairCost:
        match loop.kernel:
            case "Hopper forward":
                return hopper_forward(self.plan)
            case "forward":
                return forward(self.plan)
            case "Hopper backward" | "Hopper dK/dV":
                return backward(self.plan, hopper=True)
            case "Hopper dQ":
                return backward(self.plan, Gather.HEAD, Gather.ROW, hopper=True)
            case "dQ":
                return backward(self.plan, Gather.HEAD, Gather.ROW)
            case "dK/dV":
                return backward(self.plan, Gather.COLUMN)
            case "one kernel":
                return backward(self.plan, Gather.HEAD, Gather.ROW, Gather.COLUMN)
            case _:
                return backward(self.plan, *_APART)

    # ------------------------------------------------------------ lines

    def line(self, loop: Loop) -> Line:
        v, part = self.visits(loop), self.visits(loop, loop.part)
        each = self.pair_cost(loop)
        moves = loop.direction == "forward" and each.row != Count()
        sums = self.sizes["Dv"] if moves else 0  # rescaled when the maximum moves
        count = Count(
            part.pairs * each.every.vector
            + part.masked_pairs * each.masked.vector
            + part.walked_queries * (each.row.vector + sums),
            part.pairs * each.every.special
            + part.masked_pairs * each.masked.special
            + part.walked_queries * each.row.special,
        )
        if loop.direction == "forward":
            count += Count(v.queries * self.sizes["Dv"], 2 * v.queries)
        asked, least = self.param_reads(v)
        written = self.param_writes(loop)
        near = passes.loop_traffic(loop, v) + Moved(asked, written)
        walked = self.walked(loop, v)
        keeper = self.chip.cache or self.chip.scratch
        stays = walked <= keeper.size.value
        main = passes.least_traffic(loop, v) if stays else passes.loop_traffic(loop, v)
        main += Moved(least, written)
        matrix = 2 * (part.pairs * (loop.products - loop.of_tile) + v.pairs * loop.of_tile)
        seconds, bound = self.roofline(matrix, count, main, near)
        return Line(
            loop.direction,
            loop.kernel,
            loop.order,
            loop.planned,
            v.tile,
            matrix,
            count,
            main,
            near if self.chip.cache else None,
            self.held(loop),
            walked,
            keeper.name if stays else self.chip.main.name,
            seconds,
            bound,
        )

    def walked(self, loop: Loop, v: Visits) -> int:
        """Bytes of the inner sides of all heads that run at once (with a cache), or of one head (without)."""
        inner = Side.KEYS if passes.outer(loop) is Side.QUERIES else Side.QUERIES
        positions = self.sizes["Sk"] if inner is Side.KEYS else self.sizes["Sq"]
        one = passes.walked_bytes(loop, positions)
        if self.chip.cache is None:
            return one
        held_size = self.sizes["Sq"] if inner is Side.KEYS else self.sizes["Sk"]
        programs = -(-held_size // (v.tile[0] if inner is Side.KEYS else v.tile[1]))
        heads = min(v.heads, -(-self.chip.cores // programs))
        group = self.sizes["Hq"] // self.sizes["Hkv"]
        return one * (-(-heads // group) if inner is Side.KEYS else heads)

    def delta(self) -> Line:
        """delta = rowsum(dO * O), ahead of the other backward kernels."""
        width = self.sizes["Dv"]
        return self.of_rows("delta", 2 * width * self.itemsize, self.own.row_bytes, width)

    def of_rows(self, kernel: str, read: int, written: int, vector: int) -> Line:
        """A kernel of the backward pass that goes once through all rows of the queries: bytes and operations of one."""
        rows = self.sizes["B"] * self.sizes["Hq"] * self.sizes["Sq"]
        main, count = Moved(rows * read, rows * written), Count(rows * vector, 0)
        seconds, bound = self.roofline(0, count, main, main)
        return Line(
            "backward", kernel, Order.QUERIES, True, None, 0, count, main, main if self.chip.cache else None, None, 0,
            self.chip.main.name, seconds, bound,
        )  # fmt: skip

    def collect(self) -> tuple[Line, ...]:
        """dQ, out of the float32 sums that the programs of the backward kernel of compute capability 9.0 have added."""
        d = self.sizes["D"]
        return (self.of_rows("dQ's sums", d * passes.FLOAT, d * self.itemsize, d),) if self.own.parts else ()

    def dense(self, direction: str, v: Visits) -> Line:
        d, dv = self.sizes["D"], self.sizes["Dv"]
        inner = d + dv if direction == "forward" else 2 * d + 2 * dv
        each = forward(self.plan) if direction == "forward" else backward(self.plan, *Gather)
        count = Count(
            v.all_pairs * (each.every.vector + each.masked.vector),
            v.all_pairs * (each.every.special + each.masked.special),
        )
        main = passes.dense_traffic(direction, d, dv, self.itemsize, v)
        seconds, bound = self.roofline(2 * v.all_pairs * inner, count, main, main)
        return Line(
            direction, "unfused", "dense", False, None, 2 * v.all_pairs * inner, count, main,
            main if self.chip.cache else None, None, 0, self.chip.main.name, seconds, bound,
        )  # fmt: skip

    def roofline(self, matrix: int, count: Count, main: Moved, near: Moved) -> tuple[float, str]:
        """Seconds of the busiest unit, and its name."""
        chip = self.chip
        units: list[tuple[str, int, Figure | None]] = [
            ("products", matrix, chip.matrix_rate(self.dtype)),
            ("vector lanes", count.vector, chip.vector),
            ("special functions", count.special, chip.special),
            (chip.main.name, main.total, chip.main.rate),
        ]
        if chip.cache is not None:
            units.append((chip.cache.name, near.total, chip.cache.rate))
        if chip.special is None and chip.vector is not None:  # a special function takes a lane at the least
            units[1] = ("vector lanes", count.vector + count.special, chip.vector)
        times = [(work / rate.value, name) for name, work, rate in units if rate is not None]
        return max(times, key=lambda found: found[0])

    def systolic(self, v: Visits) -> tuple[tuple[str, Cycles], ...]:
        if self.chip.array is None:
            return ()
        unit = Unit(self.chip.array.rows, self.chip.array.columns)
        dims = self.sizes["D"], self.sizes["Dv"]
        tiled = fused(
            unit,
            tile=v.tile,
            visited=-(-v.tiles // v.heads),
            query_tiles=v.query_tiles // v.heads,
            queries=self.sizes["Sq"],
            head_dim=dims,
        )
        dense = unfused(unit, queries=self.sizes["Sq"], keys=self.sizes["Sk"], head_dim=dims)
        return (f"tiles of {v.tile[0]} x {v.tile[1]}", tiled), ("unfused", dense)

    def cost(self) -> Cost:
        loops = self.loops()
        first = self.visits(loops[0])
        lines = [self.line(loop) for loop in loops]
        ahead = [line for line in lines if line.direction == "forward"]
        back = [line for line in lines if line.direction == "backward"]
        kernels = [line for line in back if line.planned]
        others = [line for line in back if not line.planned]
        return Cost(
            self.plan.attention.name,
            self.chip,
            self.dtype,
            dict(self.sizes),
            first.skipped,
            first.masked_pairs / first.pairs if first.pairs else 0.0,
            (
                *ahead,
                self.dense("forward", first),
                self.delta(),
                *kernels,
                *self.collect(),
                *others,
                self.dense("backward", first),
            ),
            self.sizes["Sq"] * self.sizes["Sk"] * self.itemsize,
            self.systolic(first),
            self.own.elsewhere,
        )
