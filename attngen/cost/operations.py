"""What one pair costs beside the products: operations of the vector lanes, and of the special-function unit.

Takes a plan, returns counts for the forward pass and for one backward kernel. Every operation of the score and the mask
counts once a pair if it depends on the pair, and not at all if a head, a row or a column shares it (`plan.levels`).
A multiply-add is one operation. Exponentials, logarithms, roots, quotients and the like are special.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from attngen.ir.nodes import Apply, Expr, Load, Op
from attngen.ir.walk import nodes, reads
from attngen.plan import KernelPlan
from attngen.plan.kernel import Gather
from attngen.plan.levels import Level, level_of
from attngen.plan.score.weights import Form

PHILOX = 10 * 10
"""Philox4x32-10: ten rounds of two wide products (high and low word), four exclusive ors and two sums."""

_SPECIAL = {
    Op.EXP: 1, Op.EXP2: 1, Op.LOG: 1, Op.LOG2: 1, Op.SQRT: 1, Op.RSQRT: 1, Op.TANH: 1, Op.SIN: 1, Op.COS: 1,
    Op.DIV: 1, Op.SIGMOID: 2, Op.ERF: 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Count:
    vector: int = 0
    special: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.vector + other.vector, self.special + other.special)


@dataclass(frozen=True, slots=True)
class PairCost:
    """`every` pair; a pair in a tile that runs with the mask besides; a visited row of a tile; a row at the end."""

    every: Count
    masked: Count
    row: Count


def of_pairs(*expressions: Expr) -> Count:
    """The distinct operations in `expressions` that depend on the pair."""
    vector = special = 0
    for node in dict.fromkeys(n for e in expressions for n in nodes(e)):
        if isinstance(node, Apply) and (level_of(node) is Level.PAIR or reads(node, "s", "m")):
            if node.op in _SPECIAL:
                special += _SPECIAL[node.op]
            else:
                vector += len(node.args) - 1 if node.op in (Op.AND, Op.OR) else 1
        elif isinstance(node, Load) and level_of(node) is Level.PAIR:
            vector += 1
    return Count(vector, special)


def hopper_forward(plan: KernelPlan) -> PairCost:
    """Of the kernel of compute capability 9.0: a reference that lags behind the maximum is compared with a row's sum,
    not with each score, and moves too rarely to count; what a distance decides is computed once for a diagonal, and of
    a logit that rises from key to key a pair takes one multiply-add."""
    kernels = plan.hopper
    if kernels is None or not kernels.slack:
        return replace(forward(plan), masked=_mask_or_bit(plan))
    ramp = plan.ramp
    score = of_pairs(plan.pair_unit) if ramp is None else of_pairs(ramp.unit) + Count(vector=1)
    return PairCost(score + Count(vector=2, special=1), _mask_or_bit(plan), Count())


def forward(plan: KernelPlan) -> PairCost:
    w = plan.weights
    score = of_pairs(w.unit)
    match w.form:
        case Form.EXPONENTIAL:
            weight = Count(vector=3, special=1)  # maximum, multiply-add into the exponent, sum
        case Form.SHIFTED:
            weight = of_pairs(w.stream) + Count(vector=2)  # maximum, sum
        case Form.DIRECT:
            weight = of_pairs(w.stream) + Count(vector=1 if w.sums else 0)
    moves = Count() if w.form is Form.DIRECT else Count(vector=3, special=1)  # new maximum, its distance, the sum
    return PairCost(score + weight + _dropout(plan), _mask(plan), moves)


def backward(plan: KernelPlan, *gathers: Gather, hopper: bool = False) -> PairCost:
    """A kernel that makes the weights again, and from them dS; `gathers` are the params' sums that it keeps.
    `hopper`: it is one of compute capability 9.0."""
    w = plan.weights
    again = of_pairs(plan.pair_unit if hopper else w.unit, plan.d_pair) + Count(vector=1, special=1)
    if w.form is not Form.EXPONENTIAL:
        again = of_pairs(w.unit, w.stream, plan.d_pair, *([w.slope] if w.slope is not None else []))
    total = again + Count(vector=3)  # dP - delta, times P, times the derivative of the score
    for g in plan.gradients:
        if g.gather in gathers:
            total += of_pairs(*(e for e in (g.pair, g.weight) if e is not None)) + Count(vector=1)
    return PairCost(total + _dropout(plan), _mask_or_bit(plan) if hopper else _mask(plan), Count())


def _mask_or_bit(plan: KernelPlan) -> Count:
    """Of a bit that a map keeps: an `and`, a comparison, and the selection that any mask takes."""
    return Count(vector=3) if plan.map is not None and plan.map.as_bits else _mask(plan)


def _mask(plan: KernelPlan) -> Count:
    return of_pairs(plan.attention.mask) + Count(vector=1)


def _dropout(plan: KernelPlan) -> Count:
    return Count() if plan.attention.dropout is None else Count(vector=PHILOX + 2)


def pair_loads(plan: KernelPlan) -> tuple[Load, ...]:
    """The loads of params that every pair makes."""
    roots: Iterable[Expr] = (plan.weights.unit, plan.attention.mask)
    found = dict.fromkeys(n for e in roots for n in nodes(e) if isinstance(n, Load))
    return tuple(e for e in found if level_of(e) is Level.PAIR)
