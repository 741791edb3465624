"""What kernels read beside q, k and v: the elements of params, by the shape of what a program needs of them.

Takes an attention and the expressions of its kernels, returns `Operand`s: one for each load that stands in no other
load's index, and one for each scalar param. A target without cheap gathers (a TPU has none) prepares each operand
outside the kernel, as numbers, vectors or tiles, and gives its gradient back in the same shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from attngen.ir.nodes import Apply, Expr, Literal, Load, Scalar, Symbol
from attngen.ir.walk import reads
from attngen.plan.kernel import KernelPlan
from attngen.plan.levels import Level, level_of
from attngen.plan.score.distance import distance_index


class Extent(StrEnum):
    """Which positions an operand varies with; it may vary with the batch and the head beside.

    head: with none. row: with the query. column: with the key. distance: with q - k. pair: with both, in any way.
    """

    HEAD = "head"
    ROW = "row"
    COLUMN = "column"
    DISTANCE = "distance"
    PAIR = "pair"


@dataclass(frozen=True, slots=True)
class Operand:
    expr: Scalar | Load
    extent: Extent
    per_batch: bool
    per_head: bool


def operands(plan: KernelPlan) -> tuple[Operand, ...]:
    """Every operand of every kernel, in the order of the params, then of first use."""
    found: dict[Scalar | Load, None] = {}
    for root in expressions(plan):
        for e in outermost(root):
            found.setdefault(e)
    order = {p.name: i for i, p in enumerate(plan.attention.params)}
    return tuple(operand(e) for e in sorted(found, key=lambda e: order[e.param]))


def operand(e: Scalar | Load) -> Operand:
    return Operand(e, extent_of(e), reads(e, "b", "qk"), reads(e, "h", "hkv", "qk"))


def extent_of(e: Scalar | Load) -> Extent:
    match level_of(e):
        case Level.HEAD:
            return Extent.HEAD
        case Level.ROW:
            return Extent.ROW
        case Level.COLUMN:
            return Extent.COLUMN
        case Level.PAIR:
            return Extent.DISTANCE if isinstance(e, Load) and distance_index(e) is not None else Extent.PAIR


def outermost(e: Expr) -> tuple[Scalar | Load, ...]:
    """The scalars and loads of `e` that stand in no load's index, in order of first use."""
    return tuple(n for n in outside_of_indices((e,)) if isinstance(n, Scalar | Load))


def outside_of_indices(roots: Iterable[Expr]) -> dict[Expr, None]:
    """Every node that stands in no load's index, in order of first use."""
    found: dict[Expr, None] = {}

    def walk(e: Expr) -> None:
        if e in found:
            return
        found[e] = None
        match e:
            case Literal() | Symbol() | Scalar() | Load():
                pass
            case Apply():
                for a in e.args:
                    walk(a)

    for root in roots:
        walk(root)
    return found


def expressions(plan: KernelPlan) -> Iterable[Expr]:
    """Whatever some kernel evaluates: for a pair, a row, a column or a head."""
    a, w = plan.attention, plan.weights
    given = [w.stream, w.rescale, w.slope, w.log_extra, w.extra, a.dropout]
    given += [part for g in plan.gradients for part in (g.pair, g.weight, g.extra)]
    always = [w.unit, w.factor, w.natural, w.kappa, a.mask, plan.d_factor, plan.d_pair]
    return [*always, *(e for e in given if e is not None), *a.counter.values()]
