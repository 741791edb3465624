"""Which item is which tile of which head, as text for kernels.

Takes the plan's `Order`s, returns an `OrdersView`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.triton.code.expressions import Printer
from attngen.ir.nodes import Apply, Expr, Op
from attngen.ir.walk import nodes
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.order import ITEM, N_TILES, PORTABLE_TOGETHER, Directed, Heads, Order


@dataclass(frozen=True, slots=True)
class DirectedView:
    onwards: str
    backwards: str


@dataclass(frozen=True, slots=True)
class OrdersView:
    """Heads in turn: `steps` bind the place `order` of an item's tile in its head's order, `head` is counted over all
    batches. `apart_order`, `apart_head`: those of the program `pid`, where heads come one by one. `tile`: of a place;
    `own_tile`: of a place in a sequence of `own_tiles`. `heads`: the batch and the head of a number. `together`: the
    heads of a portable kernel that are in turn.
    """

    steps: tuple[str, ...]
    head: str
    apart_order: str
    apart_head: str
    tile: DirectedView
    own_tile: DirectedView
    heads: str
    together: int


def directed_view(d: Directed, printer: Printer) -> DirectedView:
    return DirectedView(printer.text(d.onwards), printer.text(d.backwards))


def plainly(printer: Printer, *values: Expr) -> Printer:
    """The printer for values whose ints are not negative: their divisions need no helper."""
    divisions = {e for v in values for e in nodes(v) if isinstance(e, Apply) and e.op in (Op.FLOORDIV, Op.MOD)}
    return replace(printer, choices=replace(printer.choices, plain_divisions=frozenset(divisions)))


def heads_text(heads: Heads, printer: Printer) -> str:
    """The batch and the head of the number `i` among the heads of all batches."""
    plain = plainly(printer, heads.batch, heads.head)
    return f"{plain.text(heads.batch)}, {plain.text(heads.head)}"


def orders_view(plan: KernelPlan, printer: Printer) -> OrdersView:
    def plain(order: Order) -> Printer:
        return plainly(printer, order.head, *(s.value for s in order.steps))

    assert plan.gpu_walks is not None
    turns, apart = plan.gpu_walks.in_turn, plan.gpu_walks.one_by_one
    by_program = plain(apart)
    by_program = replace(by_program, names={**by_program.names, ITEM: "pid"})
    (place,) = apart.steps
    return OrdersView(
        tuple(f"{s.name} = {plain(turns).text(s.value)}" for s in turns.steps),
        plain(turns).text(turns.head),
        by_program.text(place.value),
        by_program.text(apart.head),
        directed_view(turns.tile, printer),
        directed_view(turns.tile, replace(printer, names={**printer.names, N_TILES: "own_tiles"})),
        heads_text(plan.gpu_walks.heads, printer),
        PORTABLE_TOGETHER,
    )
