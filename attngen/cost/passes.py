"""The loops: what each holds, what it walks over, what it multiplies. Both loop orders, forward and backward.

Takes head dims and the bytes of an element, returns `Loop`s. The order decides the traffic: what belongs to the outer
tile is moved once, what belongs to the inner one is moved for every pair of tiles that meet, and a result of the inner
side is read and written each time:

    queries outside   Q, O once; K, V for every visited tile
    keys outside      K, V once; Q for every visited tile, and O, m, l read and written for every visited tile

The portable backward pass has a kernel for each order, so that no sum leaves the chip: dQ with queries outside, dK/dV
with keys outside, at the price of two products more. The single-kernel forms stand beside it; of these, the one with
keys outside is what compute capability 9.0 has up to head dim 128 (`hopper`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from attngen.cost.grids import Visits

FLOAT = 4  # bytes of a running sum, a maximum, a log-sum-exp


class Order(StrEnum):
    QUERIES = "queries outside"
    KEYS = "keys outside"


class Side(StrEnum):
    QUERIES = "queries"
    KEYS = "keys"


@dataclass(frozen=True, slots=True)
class Stream:
    """A tensor with one row of `row_bytes` for each position of its side. `held_bytes`: of a row on the chip."""

    name: str
    side: Side
    row_bytes: int
    reads: bool
    writes: bool
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Loop:
    """One kernel. `products` is the sum of the inner dimensions of its products: operations are twice that a pair.

    A kernel of one chip has its own `tile` and knows its `scratch`, in bytes. Where warpgroups share a tile, each takes
    a `part`, and passes over those that the mask leaves empty; what `of_tile` counts of the products is made of whole
    tiles even so. `hull`: tiles between the first and the last of a row are walked, too.
    """

    direction: str
    kernel: str
    order: Order
    streams: tuple[Stream, ...]
    products: int
    planned: bool  # whether a call runs it
    tile: tuple[int, int] | None = None
    part: tuple[int, int] | None = None
    of_tile: int = 0
    scratch: int | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes from a memory and back to it."""

    read: int
    written: int

    @property
    def total(self) -> int:
        return self.read + self.written

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.read + other.read, self.written + other.written)


def loops(d: int, dv: int, itemsize: int) -> tuple[Loop, ...]:
    """Every form, forward and backward."""
    q = Stream("Q", Side.QUERIES, d * itemsize, True, False)
    k = Stream("K", Side.KEYS, d * itemsize, True, False)
    v = Stream("V", Side.KEYS, dv * itemsize, True, False)
    out = Stream("O", Side.QUERIES, dv * itemsize, False, True, dv * FLOAT)
    lse = Stream("lse", Side.QUERIES, FLOAT, False, True, 2 * FLOAT)
    sums = (
        Stream("O", Side.QUERIES, dv * FLOAT, True, True),
        Stream("m", Side.QUERIES, FLOAT, True, True),
        Stream("l", Side.QUERIES, FLOAT, True, True),
    )
    d_out = Stream("dO", Side.QUERIES, dv * itemsize, True, False)
    rows = (replace(lse, reads=True, writes=False), Stream("delta", Side.QUERIES, FLOAT, True, False))
    dq = Stream("dQ", Side.QUERIES, d * itemsize, False, True, d * FLOAT)
    dk = Stream("dK", Side.KEYS, d * itemsize, False, True, d * FLOAT)
    dv_ = Stream("dV", Side.KEYS, dv * itemsize, False, True, dv * FLOAT)
    to_add = {s.name: replace(s, row_bytes=s.held_bytes, reads=True, held_bytes=0) for s in (dq, dk, dv_)}
    given = (q, k, v, d_out, *rows)
    return (
        Loop("forward", "forward", Order.QUERIES, (q, k, v, out, lse), d + dv, True),
        Loop("forward", "forward", Order.KEYS, (q, k, v, *sums), d + dv, False),
        Loop("backward", "dQ", Order.QUERIES, (*given, dq), 2 * d + dv, True),
        Loop("backward", "dK/dV", Order.KEYS, (*given, dk, dv_), 2 * d + 2 * dv, True),
        Loop("backward", "one kernel", Order.QUERIES, (*given, dq, to_add["dK"], to_add["dV"]), 3 * d + 2 * dv, False),
        Loop("backward", "one kernel", Order.KEYS, (*given, dk, dv_, to_add["dQ"]), 3 * d + 2 * dv, False),
    )


def outer(loop: Loop) -> Side:
    return Side.QUERIES if loop.order is Order.QUERIES else Side.KEYS


def loop_traffic(loop: Loop, v: Visits) -> Moved:
    """Bytes between the cores' own memories and the next one: every tile is fetched when the loop comes to it."""
    total = Moved(0, 0)
    for s in loop.streams:
        if s.side is Side.QUERIES:
            rows = v.queries if outer(loop) is Side.QUERIES else v.walked_queries
        else:
            rows = v.keys * v.kv_heads // v.heads if outer(loop) is Side.KEYS else v.walked_keys
        total += Moved(rows * s.row_bytes * s.reads, rows * s.row_bytes * s.writes)
    return total


def least_traffic(loop: Loop, v: Visits) -> Moved:
    """Bytes where every row comes once and goes once, because what the loop walks over stays on the chip."""
    total = Moved(0, 0)
    for s in loop.streams:
        seen = v.seen_queries if s.side is Side.QUERIES else v.seen_keys
        whole = v.queries if s.side is Side.QUERIES else v.keys * v.kv_heads // v.heads
        only_read = s.reads and not s.writes
        total += Moved(seen * s.row_bytes * only_read, whole * s.row_bytes * s.writes)
    return total


def walked_bytes(loop: Loop, positions: int) -> int:
    """What must stay near for `least_traffic`: the inner side of one head, `positions` long."""
    return sum(s.row_bytes * positions for s in loop.streams if s.side is not outer(loop))


@dataclass(frozen=True, slots=True)
class Held:
    """What one core keeps for one pair of tiles, in bytes."""

    registers: int  # the score tile and the running sums
    scratch: int  # the outer tile's operands, and the inner tile twice: one in use, one on its way


def held(loop: Loop, tile: tuple[int, int]) -> Held:
    rows = {Side.QUERIES: tile[0], Side.KEYS: tile[1]}
    score = tile[0] * tile[1] * FLOAT * (1 if loop.direction == "forward" else 2)
    sums = sum(rows[s.side] * s.held_bytes for s in loop.streams if s.side is outer(loop))
    operands = sum(rows[s.side] * s.row_bytes for s in loop.streams if s.side is outer(loop) and s.reads)
    inner = sum(rows[s.side] * s.row_bytes for s in loop.streams if s.side is not outer(loop))
    return Held(score + sums, operands + 2 * inner)


def dense_traffic(direction: str, d: int, dv: int, itemsize: int, v: Visits) -> Moved:
    """Bytes where scores and weights are tensors of their own, unfused, nothing skipped.

    Forward: S written, read by the softmax, P written, read by the product with V. Backward, with P kept: P read for
    dV; dP written; P and dP read, dS written; dS read for dQ and for dK.
    """
    queries, keys = v.queries, v.keys * v.kv_heads // v.heads
    square = v.all_pairs * itemsize
    if direction == "forward":
        return Moved(
            2 * square + (queries * d + keys * (d + dv)) * itemsize,
            2 * square + queries * dv * itemsize,
        )
    return Moved(
        5 * square + (queries * (d + 2 * dv) + keys * (d + dv)) * itemsize,
        2 * square + (queries * d + keys * (d + dv)) * itemsize,
    )
