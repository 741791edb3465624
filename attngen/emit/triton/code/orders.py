"""Values that depend on which way tiles are taken, as text for kernels."""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.triton.code.expressions import Printer
from attngen.plan.mask.order import Directed


@dataclass(frozen=True, slots=True)
class DirectedView:
    onwards: str
    backwards: str


def directed_view(d: Directed, printer: Printer) -> DirectedView:
    return DirectedView(printer.text(d.onwards), printer.text(d.backwards))
