"""Values that depend on which way tiles are taken, as text for kernels, and divisions of ints that are not negative."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.triton.code.expressions import Printer
from attngen.ir.nodes import Apply, Expr, Op
from attngen.ir.walk import nodes
from attngen.plan.mask.order import Directed


@dataclass(frozen=True, slots=True)
class DirectedView:
    onwards: str
    backwards: str


def directed_view(d: Directed, printer: Printer) -> DirectedView:
    return DirectedView(printer.text(d.onwards), printer.text(d.backwards))


def plainly(printer: Printer, *values: Expr) -> Printer:
    """The printer for values whose ints are not negative: their divisions need no helper."""
    divisions = {e for v in values for e in nodes(v) if isinstance(e, Apply) and e.op in (Op.FLOORDIV, Op.MOD)}
    return replace(printer, choices=replace(printer.choices, plain_divisions=frozenset(divisions)))
