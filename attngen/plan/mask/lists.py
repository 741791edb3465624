"""Where a kernel writes down what tests of data say of tiles, and where other kernels read it.

A list has an entry for each of `parts` parts of each tile: the tile as a whole, and the rows of each warpgroup, for
example. Batches and heads that no test tells apart share a list. An item of the kernel that lists is one entry.

Targets print these values; `prove.obligations.lists` shows that what is read of a tile was written of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, apply, floordiv, index, integer, mul
from attngen.ir.nodes import Expr, Op
from attngen.plan.mask.loops import Assigned
from attngen.plan.mask.order import ITEM, N_TILES, TILE

PLACE, ROW, PART, PARTS, BATCH, HEAD = (index(n) for n in ("place", "row", "part", "parts", "batch", "head"))
_B, _HQ = index("B"), index("Hq")
HALVES = 3
"""Parts of a tile of keys in the backward pass: the whole tile, and the half of each of two warpgroups."""


@dataclass(frozen=True, slots=True)
class Lists:
    """`by_batch`, `by_head`: whether lists of different batches, or heads, may differ. `count`: how many there are.

    `place` is the number of the list that a batch and a head read; `of_batch` and `of_head` are those for which the
    list `place` is written. The entries of a tile are those of its `row`, and `entry` is that of a part. `steps` bind,
    from an `item`, whose entry it is.
    """

    by_batch: bool
    by_head: bool
    count: Expr
    place: Expr
    of_batch: Expr
    of_head: Expr
    row: Expr
    entry: Expr
    steps: tuple[Assigned, ...]


def lists(by_batch: bool, by_head: bool) -> Lists:
    zero = integer(0)
    match by_batch, by_head:
        case True, True:
            whose = mul(_B, _HQ), add(mul(BATCH, _HQ), HEAD), floordiv(PLACE, _HQ), apply(Op.MOD, PLACE, _HQ)
        case True, False:
            whose = _B, BATCH, PLACE, zero
        case False, True:
            whose = _HQ, HEAD, zero, PLACE
        case _:
            whose = integer(1), zero, zero, zero
    steps = (
        Assigned("row", floordiv(ITEM, PARTS)),
        Assigned("part", apply(Op.MOD, ITEM, PARTS)),
        Assigned("tile", apply(Op.MOD, ROW, N_TILES)),
        Assigned("place", floordiv(ROW, N_TILES)),
    )
    row, entry = add(mul(PLACE, N_TILES), TILE), add(mul(ROW, PARTS), PART)
    return Lists(by_batch, by_head, *whose, row, entry, steps)
