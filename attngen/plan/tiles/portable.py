"""Tile sizes: a table of what measured best, and the rule that keeps every entry inside a chip's shared memory.

Takes a chip, the bytes of an element, the head dim rounded up to a power of two, the spec's own tile and what its
kernels load, returns `(queries, keys, warps, stages)` for each kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attngen.plan.chips import SHARED_MEMORY, Burden, Loads
from attngen.plan.numerics import WIDE, Numerics, least_keys

HEAD_BLOCKS = (16, 32, 64, 128, 256)
KERNELS = ("forward", "dkdv", "dq")


@dataclass(frozen=True, slots=True)
class Tile:
    queries: int
    keys: int
    warps: int
    stages: int

    def __iter__(self):
        return iter((self.queries, self.keys, self.warps, self.stages))

    @property
    def usable(self) -> bool:
        """Whether some kernel may have it, whatever the chip."""
        sizes = all(16 <= n <= 512 and n & (n - 1) == 0 for n in (self.queries, self.keys))
        return sizes and self.warps in (1, 2, 4, 8, 16) and 1 <= self.stages <= 8


@dataclass(frozen=True, slots=True)
class Row:
    chip: str
    itemsize: int
    head_block: int
    forward: Tile
    dkdv: Tile
    dq: Tile


# (bytes of an element, head block) -> forward, dkdv, dq, before they are made to fit. Half precision on sm_90 was
# measured on an H200; elsewhere it is the largest tiles whose main loops spill no register (`tests/aot`), and float32
# without tensor cores likewise.
_FLOAT32 = {
    (4, 16): (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    (4, 32): (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    (4, 64): (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    (4, 128): (Tile(32, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 32, 8, 1)),
    (4, 256): (Tile(32, 16, 8, 1), Tile(16, 32, 8, 1), Tile(32, 16, 8, 1)),
}
_SM_80 = {
    **_FLOAT32,
    (2, 16): (Tile(128, 64, 4, 3), Tile(64, 64, 4, 1), Tile(128, 64, 8, 2)),
    (2, 32): (Tile(128, 64, 4, 3), Tile(64, 64, 4, 1), Tile(128, 64, 8, 2)),
    (2, 64): (Tile(128, 64, 8, 3), Tile(32, 64, 8, 2), Tile(128, 64, 8, 3)),
    (2, 128): (Tile(128, 32, 8, 3), Tile(64, 64, 8, 1), Tile(128, 32, 8, 2)),
    (2, 256): (Tile(64, 64, 8, 2), Tile(32, 32, 8, 1), Tile(64, 32, 8, 2)),
}
_SM_90 = {
    **_FLOAT32,
    (2, 16): (Tile(128, 64, 4, 3), Tile(64, 64, 4, 2), Tile(128, 64, 4, 3)),
    (2, 32): (Tile(128, 64, 4, 3), Tile(64, 64, 4, 2), Tile(128, 64, 4, 3)),
    (2, 64): (Tile(64, 128, 4, 2), Tile(64, 64, 4, 2), Tile(128, 64, 8, 3)),
    (2, 128): (Tile(64, 128, 4, 1), Tile(64, 64, 4, 2), Tile(128, 64, 8, 3)),
    (2, 256): (Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 64, 4, 2)),
}
_SM_100 = {
    **_FLOAT32,
    (2, 16): (Tile(128, 64, 8, 3), Tile(64, 64, 4, 1), Tile(128, 64, 8, 2)),
    (2, 32): (Tile(128, 64, 8, 3), Tile(64, 64, 4, 1), Tile(128, 64, 8, 2)),
    (2, 64): (Tile(128, 64, 8, 3), Tile(64, 64, 8, 1), Tile(64, 64, 8, 2)),
    (2, 128): (Tile(128, 64, 4, 2), Tile(64, 64, 8, 1), Tile(64, 64, 8, 2)),
    (2, 256): (Tile(128, 64, 8, 1), Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
}
_GFX942 = {
    (2, 16): (Tile(128, 64, 4, 2), Tile(64, 64, 4, 1), Tile(128, 64, 4, 2)),
    (2, 32): (Tile(128, 64, 4, 2), Tile(64, 64, 4, 1), Tile(128, 64, 4, 2)),
    (2, 64): (Tile(128, 64, 4, 2), Tile(64, 64, 4, 1), Tile(64, 64, 4, 2)),
    (2, 128): (Tile(128, 64, 4, 1), Tile(32, 64, 4, 1), Tile(64, 64, 4, 1)),
    (2, 256): (Tile(64, 64, 4, 1), Tile(16, 64, 8, 1), Tile(32, 32, 4, 1)),
    (4, 16): (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    (4, 32): (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    (4, 64): (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    (4, 128): (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    (4, 256): (Tile(32, 16, 4, 1), Tile(16, 32, 4, 1), Tile(32, 16, 4, 1)),
}
# Few, large programs: the interpreter's cost is the operation.
_CPU = {(itemsize, block): (Tile(64, 64, 4, 1),) * 3 for itemsize in (2, 4) for block in HEAD_BLOCKS}
_BEST: Mapping[str, Mapping[tuple[int, int], tuple[Tile, ...]]] = {
    "sm_80": _SM_80, "sm_86": _SM_80, "sm_90": _SM_90, "sm_100": _SM_100, "gfx942": _GFX942, "cpu": _CPU,
}  # fmt: skip

PORTABLE = (256, 256)
"""Queries and keys of a tile of the portable targets, for all heads at a time."""


def registers(burden: Burden) -> dict[tuple[int, int, int, int, int], int]:
    """Registers of a thread by (head block, forward tile) where tiles come by the copy engine: three or four programs
    share a multiprocessor and hide each other's waits, which is faster than stages. With more registers, one less would
    fit; data tests do not leave their scores enough in the share of four."""
    return {(128, 64, 128, 4, 1): 168, (128, 64, 64, 4, 1): 168 if burden is Burden.DATA else 128}


NO_LOADS = Loads()


def shared_bytes(kernel: str, tile: Tile, chip: str, itemsize: int, head_block: int, loads: Loads = NO_LOADS) -> int:
    """An upper bound of the shared memory that the compiled kernel takes: tiles held, tiles in flight, scratch.

    Written down from what the compiler allocates, and held against it by the tests in `tests/aot`.
    """
    held_rows, walked_rows = (tile.keys, tile.queries) if kernel == "dkdv" else (tile.queries, tile.keys)
    area = tile.queries * tile.keys
    stages = max(tile.stages, 1)
    in_flight = stages - 1
    row = head_block * itemsize
    held = held_rows * row * (1 if kernel == "forward" else 2)
    walked = walked_rows * row * 2
    lines = (tile.queries + tile.keys) * (8 + loads.line) * stages + 2048
    pairs = area * (loads.pair * in_flight + (8 if loads.addresses else loads.widest))
    if chip == "gfx942":  # tiles go through shared memory to registers, one at a time; only what is in flight stays
        return in_flight * walked + max(held_rows * row, walked_rows * row, area * 4) + lines
    total = held + lines + pairs
    if chip in ("sm_80", "sm_86"):
        total += max(in_flight, 1) * walked
        total += walked // 2 if kernel == "dkdv" and in_flight == 0 else 0  # dO, and Q in two layouts
    else:
        total += stages * walked
        if chip == "sm_100" and in_flight:  # a copy for the product that reads the tile transposed
            total += {"forward": 0, "dq": walked // 2, "dkdv": walked}[kernel]
    if chip in ("sm_80", "sm_86") or itemsize == 4 or held_rows < 64:  # weights go from accumulators to operands
        total += area * itemsize * (2 if kernel == "dkdv" else 1)
    if kernel == "dq" and loads.gathered:
        total = max(total, held + max(walked + pairs + area * itemsize, area * 8) + lines)
    return total


def fitted(kernel: str, tile: Tile, chip: str, itemsize: int, head_block: int, loads: Loads = NO_LOADS) -> Tile:
    """`tile` with fewer stages, then fewer walked rows, then fewer held rows, until it fits the chip."""
    room = SHARED_MEMORY[chip] * 1024
    walked, held = ("queries", "keys") if kernel == "dkdv" else ("keys", "queries")
    least = {"queries": 16, "keys": least_keys(itemsize)}
    while shared_bytes(kernel, tile, chip, itemsize, head_block, loads) > room:
        if tile.stages > 1:
            tile = replace(tile, stages=tile.stages - 1)
        elif getattr(tile, walked) > least[walked] and getattr(tile, walked) * 2 > getattr(tile, held):
            tile = replace(tile, **{walked: getattr(tile, walked) // 2})
        elif getattr(tile, held) > least[held]:
            tile = replace(tile, **{held: getattr(tile, held) // 2})
        elif getattr(tile, walked) > least[walked]:
            tile = replace(tile, **{walked: getattr(tile, walked) // 2})
        else:
            break
    return tile


def best(chip: str, itemsize: int, head_block: int, burden: Burden, gathered: bool = False) -> tuple[Tile, ...]:
    """Forward, dK/dV and dQ, before they are made to fit. `gathered`: see `Loads`."""
    forward, dkdv, dq = _BEST[chip][max(itemsize, 2), head_block]  # tiles of 8 bits are those of 16
    if itemsize == 4 or head_block not in (64, 128):
        return forward, dkdv, dq
    wide = head_block == 128
    match chip, burden:
        case "sm_90", Burden.RANDOM:
            return Tile(128, 32, 8, 2), Tile(32, 64, 8, 2) if wide else Tile(64, 64, 8, 2), Tile(64, 64, 8, 2)
        case "sm_90", Burden.PAIRS:
            return Tile(128, 64, 8, 2), Tile(16, 64, 4, 1) if wide else Tile(32, 64, 4, 1), Tile(64, 64, 8, 2)
        case "sm_90", Burden.ENDS | Burden.SCORE if wide:
            return Tile(64, 64, 4, 1), Tile(32, 64, 4, 2), dq
        case "sm_90", Burden.DATA if wide:
            return Tile(64, 64, 4, 1), dkdv, Tile(64, 64, 4, 2)
        case "sm_80" | "sm_86", _ if gathered and not wide:
            return forward, dkdv, Tile(64, 32, 8, 2)
        case "sm_80" | "sm_86", Burden.PAIRS if not wide:
            return forward, dkdv, Tile(64, 64, 8, 2)
        case "sm_100", Burden.ENDS | Burden.SCORE if wide:
            return forward, Tile(64, 64, 4, 1), dq
        case "sm_100", Burden.RANDOM:
            return Tile(128, 64, 8, 1), dkdv, dq
        case "sm_100", Burden.PAIRS:
            return Tile(128, 64, 8, 2), dkdv, dq
        case _:
            return forward, dkdv, dq


def asked(kernel: str, own: tuple[int, int], chip: str, itemsize: int, head_block: int) -> Tile:
    """The spec's own tile for the forward or the dQ kernel, with warps and stages to go with it; smaller where no
    number of warps could hold a thread's share of scores and sums in registers.
    """
    tile = Tile(*own, warps=4, stages=1)
    if chip == "cpu":
        return tile
    amd = chip == "gfx942"  # 64 threads a warp; with eight warps a thread would have half the registers
    most = 128 if amd else 28 if itemsize == 4 else 96
    a_pair = 2 if kernel == "dq" else 1

    def share() -> int:
        return tile.queries * (a_pair * tile.keys + head_block) // (tile.warps * (64 if amd else 32))

    if not amd:
        tile = replace(tile, warps=8 if share() > most * 2 // 3 else 4, stages=1 if itemsize == 4 else 2)
    least = least_keys(itemsize)
    while share() > most and (tile.queries > 16 or tile.keys > least):
        narrower = tile.keys > least and tile.keys * 4 > tile.queries
        tile = replace(tile, keys=tile.keys // 2) if narrower else replace(tile, queries=tile.queries // 2)
    return tile


def table(
    own: tuple[int, int] | None,
    burden: Burden = Burden.LIGHT,
    loads: Loads = NO_LOADS,
    numerics: Numerics = WIDE,
) -> tuple[Row, ...]:
    """Every row that a generated file carries. `own` is the spec's tile, which the forward and dQ kernels keep; so does
    dK/dV in the interpreter, where no register has to be thought of.
    """
    rows: list[Row] = []
    for chip in SHARED_MEMORY:
        for itemsize in numerics.on(chip):
            for head_block in HEAD_BLOCKS:
                tiles = best(chip, itemsize, head_block, burden, loads.gathered)
                if own is not None:
                    forward, dq = (asked(k, own, chip, itemsize, head_block) for k in ("forward", "dq"))
                    tiles = (forward, dq if chip == "cpu" else tiles[1], dq)
                if loads.chosen:  # between a product and the load that waits for it Triton 3.6 can't put stages
                    tiles = tuple(replace(t, stages=1) for t in tiles)
                kernels = [fitted(k, t, chip, itemsize, head_block, loads) for k, t in zip(KERNELS, tiles, strict=True)]
                rows.append(Row(chip, itemsize, head_block, *kernels))
    return tuple(rows)
