"""From the IR to a `KernelPlan`: every choice that no target makes for itself.

`ranges` (which tiles a loop visits; on `segments` and `linear`), `weights` (how weights are streamed),
`derive` (derivatives), `schedule` (what is computed once a head, a row, a column), `kernel` (the whole),
`tiles` (tile sizes), `simulate` (the loops, in Python).
"""

from attngen.plan.ints.width import WideInts
from attngen.plan.kernel import KernelPlan, plan

__all__ = ["KernelPlan", "WideInts", "plan"]
