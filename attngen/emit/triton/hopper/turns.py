"""The turns of dQ, as text for the kernels of compute capability 9.0.

Takes the plan's `Order` and `Turns`, returns a `TurnsView`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.triton.code.expressions import Printer
from attngen.emit.triton.code.orders import DirectedView, directed_view
from attngen.plan.mask.order import ORDER, Order
from attngen.plan.mask.turns import Turns


@dataclass(frozen=True, slots=True)
class TurnsView:
    """The fields of `Turns`. `their_tile` and `their_turn` are those of the place that is called `others`."""

    few: str
    back: str
    before: DirectedView
    awaited: str
    passed: str
    their_tile: DirectedView
    their_turn: str


def turns_view(order: Order, turns: Turns, printer: Printer) -> TurnsView:
    theirs = replace(printer, names={**printer.names, ORDER: "others"})
    return TurnsView(
        few=printer.text(turns.few),
        back=printer.text(turns.back),
        before=directed_view(turns.before, printer),
        awaited=printer.text(turns.awaited),
        passed=printer.text(turns.passed),
        their_tile=directed_view(order.tile, theirs),
        their_turn=theirs.text(turns.passed),
    )
