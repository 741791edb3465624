"""Whose turn it is to add to dQ.

A queue hands out tickets, the items of an `Order`. Each tile of dQ has a cell that holds a turn: a program waits until
it holds `awaited`, adds its part, and writes `passed`.

Each program takes a ticket when it starts and waits only for lower tickets, so there is no deadlock. Targets print
these values; `prove.obligations.turns` shows what they claim.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, apply, integer, mul, sub
from attngen.ir.nodes import Expr, Op
from attngen.plan.mask.order import FIRST, HEADS, ORDER, TILE, TOGETHER, Directed


@dataclass(frozen=True, slots=True)
class Turns:
    """`few` is `together` where all heads go on together when there are few. A group goes `back`wards, where the row of
    the table says so at all. `before`, over `tile`, is the tile whose turn is before.
    """

    few: Expr
    back: Expr
    before: Directed
    awaited: Expr
    passed: Expr


def turns() -> Turns:
    """The turns of the backward kernel, whatever the sizes are."""
    one = integer(1)
    return Turns(
        few=apply(Op.SELECT, apply(Op.LT, HEADS, mul(integer(4), TOGETHER)), HEADS, TOGETHER),
        back=apply(Op.LT, add(FIRST, TOGETHER), HEADS),
        before=Directed(sub(TILE, one), add(TILE, one)),
        awaited=ORDER,
        passed=add(ORDER, one),
    )
