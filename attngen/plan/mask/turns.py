"""In which order programs take the tiles of keys of all heads, and whose turn it is to add to dQ.

A queue hands out tickets, `item`. Heads form groups of `together`, the last with those that are left; within a group,
tickets go through the first tile of each head, then the second of each. So the tickets of a head rise with the place of
a tile in the order, by the `width` of its group. Each tile of dQ has a cell that holds a turn: a program waits until it
holds `awaited`, adds its part, and writes `passed`.

Each program takes a ticket when it starts and waits only for lower tickets, so there is no deadlock. Targets print
these values; `prove.obligations.turns` shows what they claim.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, apply, floordiv, index, integer, minimum, mul, sub
from attngen.ir.nodes import Expr, Op
from attngen.plan.mask.loops import Assigned

ITEM, N_TILES, HEADS, TOGETHER = (index(name) for name in ("item", "n_tiles", "heads", "together"))
FIRST, WIDTH, INSIDE, ORDER, TILE = (index(name) for name in ("first", "width", "i", "order", "tile"))


@dataclass(frozen=True, slots=True)
class Directed:
    """A value for tiles that are taken from the first to the last, and for those taken from the last to the first."""

    onwards: Expr
    backwards: Expr


@dataclass(frozen=True, slots=True)
class Turns:
    """`steps` bind, from a ticket `item`, the group's `first` head, its `width`, the ticket `i` within the group, and
    the place `order` of the tile among those of its head. `few` is `together` where all heads go on together when there
    are few. A group goes `back`wards, where the row of the table says so at all. `head` and `tile` are what is taken;
    `before`, over `tile`, is the tile whose turn is before.
    """

    few: Expr
    steps: tuple[Assigned, ...]
    back: Expr
    head: Expr
    tile: Directed
    before: Directed
    awaited: Expr
    passed: Expr


def turns() -> Turns:
    """The order of the backward kernel, whatever the sizes are."""
    one = integer(1)
    return Turns(
        few=apply(Op.SELECT, apply(Op.LT, HEADS, mul(integer(4), TOGETHER)), HEADS, TOGETHER),
        steps=(
            Assigned("first", mul(floordiv(ITEM, mul(N_TILES, TOGETHER)), TOGETHER)),
            Assigned("width", minimum(sub(HEADS, FIRST), TOGETHER)),
            Assigned("i", sub(ITEM, mul(FIRST, N_TILES))),
            Assigned("order", floordiv(INSIDE, WIDTH)),
        ),
        back=apply(Op.LT, add(FIRST, TOGETHER), HEADS),
        head=add(FIRST, apply(Op.MOD, INSIDE, WIDTH)),
        tile=Directed(ORDER, sub(sub(N_TILES, one), ORDER)),
        before=Directed(sub(TILE, one), add(TILE, one)),
        awaited=ORDER,
        passed=add(ORDER, one),
    )
