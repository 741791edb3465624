"""What a kernel's own loads add to its shared memory: params read for every pair, and for every row or column.

Takes a plan, returns `Loads` for the rule in `tiles`. The compiler keeps loads of a loop in flight in shared memory, as
it does with tiles of keys; and it moves addresses through it that are dear to compute twice.
"""

from __future__ import annotations

from attngen.ir.nodes import Load, Storage
from attngen.ir.walk import loads, reads
from attngen.plan.chips import Loads
from attngen.plan.kernel import Gather, KernelPlan, evaluated
from attngen.plan.levels import Level, is_dear, level_of

_BYTES = {
    Storage.F32: 4,
    Storage.F16: 2,
    Storage.BF16: 2,
    Storage.INT: 8,
    Storage.U8: 1,
    Storage.I8: 1,
    Storage.I16: 2,
    Storage.BOOL: 1,
}
"""Bytes of one element as declared; an int may come as int64."""


def loads_of(plan: KernelPlan) -> Loads:
    """The loads of all kernels together: a bound for each of them."""
    found = dict.fromkeys(e for root in evaluated(plan) for e in loads(root))
    pair = [e for e in found if level_of(e) is Level.PAIR]
    line = [e for e in found if level_of(e) in (Level.ROW, Level.COLUMN)]
    apart = {g.gather for g in plan.gradients} & {Gather.DENSE, Gather.DIAGONAL, Gather.SCATTER}
    return Loads(
        pair=sum(_width(plan, e) for e in pair),
        widest=max((_width(plan, e) for e in pair), default=0),
        addresses=any(is_dear(i) for e in pair for i in e.indices),
        chosen=any(reads(e, "qk") for e in pair),
        line=sum(_width(plan, e) for e in line),
        gathered=bool(apart),
    )


def _width(plan: KernelPlan, e: Load) -> int:
    return _BYTES[plan.attention.param(e.param).storage]
