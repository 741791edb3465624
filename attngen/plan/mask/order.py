"""Which item is which tile of which head. Programs are items, or draw them from a queue.

`in_turn`: heads form groups of `together`, the last with those that are left; within a group, items go through the
first tile of each head, then the second of each. So K and V of a group stay in the cache, and the items of a head rise
with the place of a tile in the order. `one_by_one`: all tiles of a head, then those of the next.

Targets print these values; `prove.obligations.orders` shows that each tile of each head is one item, and no two
numbers of heads are of the same batch and head.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, apply, floordiv, index, integer, minimum, mul, sub
from attngen.ir.nodes import Expr, Op
from attngen.plan.mask.loops import Assigned

ITEM, N_TILES, HEADS, TOGETHER = (index(name) for name in ("item", "n_tiles", "heads", "together"))
FIRST, WIDTH, INSIDE, ORDER, TILE = (index(name) for name in ("first", "width", "i", "order", "tile"))
N_BATCHES, N_HEADS = index("n_batches"), index("n_heads")
PORTABLE_TOGETHER = 8
"""Heads that a portable kernel takes in turn."""


@dataclass(frozen=True, slots=True)
class Directed:
    """A value for tiles that are taken from the first to the last, and for those taken from the last to the first."""

    onwards: Expr
    backwards: Expr


@dataclass(frozen=True, slots=True)
class Order:
    """`steps` bind, from an `item`, the place `order` of a tile among those of its head; in turn, before it, the
    group's `first` head, its `width`, and the number `i` of the item within the group. `head` is counted over all
    batches. `tile` is the tile of that place.
    """

    steps: tuple[Assigned, ...]
    head: Expr
    tile: Directed


@dataclass(frozen=True, slots=True)
class Heads:
    """The `batch` and the `head` of the number `i` among the heads of all `n_batches`, each of which has `n_heads`."""

    batch: Expr
    head: Expr


_TILE = Directed(ORDER, sub(sub(N_TILES, integer(1)), ORDER))


def batch_by_batch() -> Heads:
    return Heads(floordiv(INSIDE, N_HEADS), apply(Op.MOD, INSIDE, N_HEADS))


def head_by_head() -> Heads:
    """All batches of a head, then those of the next: they find in the cache what they share."""
    return Heads(apply(Op.MOD, INSIDE, N_BATCHES), floordiv(INSIDE, N_BATCHES))


def in_turn() -> Order:
    return Order(
        steps=(
            Assigned("first", mul(floordiv(ITEM, mul(N_TILES, TOGETHER)), TOGETHER)),
            Assigned("width", minimum(sub(HEADS, FIRST), TOGETHER)),
            Assigned("i", sub(ITEM, mul(FIRST, N_TILES))),
            Assigned("order", floordiv(INSIDE, WIDTH)),
        ),
        head=add(FIRST, apply(Op.MOD, INSIDE, WIDTH)),
        tile=_TILE,
    )


def one_by_one() -> Order:
    return Order((Assigned("order", apply(Op.MOD, ITEM, N_TILES)),), floordiv(ITEM, N_TILES), _TILE)
