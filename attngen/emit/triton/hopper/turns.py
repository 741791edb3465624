"""The turns of dQ, as text for the kernels of compute capability 9.0.

Takes the plan's `Turns`, returns a `TurnsView`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.triton.code.expressions import Printer
from attngen.emit.triton.code.orders import DirectedView, directed_view, plainly
from attngen.ir.build import integer
from attngen.ir.nodes import Expr
from attngen.ir.walk import substitute
from attngen.plan.mask.order import ORDER, Directed
from attngen.plan.mask.turns import LANE, LANES, WAY, Turns

_LANES = f"gl.arange(0, {LANES}, layout=gl.BlockedLayout([1], [{LANES}], [1], [0]))"


@dataclass(frozen=True, slots=True)
class TurnsView:
    """The fields of `Turns` and `Listed`. `others` are the places of a chunk's lanes; `their_turn` is theirs.
    `own_cell` is that of the way in which a program goes, `cells` are those of both ways.
    """

    awaited: str
    passed: str
    their_turn: str
    noted: DirectedView
    cells: DirectedView
    own_cell: str
    first: str
    chunk: str
    others: str


def turns_view(turns: Turns, printer: Printer) -> TurnsView:
    def named(*names: tuple[Expr, str]) -> Printer:
        return replace(printer, names={**printer.names, **dict(names)})

    theirs, listed = named((ORDER, "others")), turns.listed
    cells = Directed(*(substitute(listed.cell, {WAY: integer(way)}) for way in (0, 1)))
    return TurnsView(
        awaited=printer.text(turns.awaited),
        passed=printer.text(turns.passed),
        their_turn=theirs.text(turns.passed),
        noted=directed_view(listed.noted, printer),
        cells=directed_view(cells, printer),
        own_cell=named((WAY, "gl.where(back, 1, 0)")).text(listed.cell),
        first=printer.text(listed.first),
        chunk=plainly(printer, listed.chunk).text(listed.chunk),
        others=named((LANE, _LANES)).text(listed.other),
    )
