"""Which batches and heads one program sums, where each pair has an element of its own in a param's gradient.

The grid of that kernel has an axis for batches and one for heads. Along an axis there are as many programs as the
gradient has elements: one if `all` read the same element, since the param's index leaves the axis out, or the call
passed the param with a size of 1 although the axis is longer. Each program adds up the batches and heads that read its
element, in order, and no program adds to another's.

Targets print these values; `prove.obligations.summed` shows that each batch and head is summed by the program of its
own element, for any sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, index, integer, mul, select
from attngen.ir.nodes import Expr, Symbol, Type

ALL = Symbol("all", Type.BOOL)
PROGRAM, COUNT = index("program"), index("count")
"""The number of a program along the axis, which has `count` batches or query heads."""
WHOLE, GROUP = index("whole"), index("group")
"""The elements along the axis unless all read one, and how many batches or query heads read each of these."""


@dataclass(frozen=True, slots=True)
class Summed:
    """Along one axis there are `programs`, each of which sums `first` … `stop` - 1."""

    programs: Expr
    first: Expr
    stop: Expr


def summed() -> Summed:
    return Summed(
        programs=select(ALL, integer(1), WHOLE),
        first=select(ALL, integer(0), mul(PROGRAM, GROUP)),
        stop=select(ALL, COUNT, mul(add(PROGRAM, integer(1)), GROUP)),
    )
