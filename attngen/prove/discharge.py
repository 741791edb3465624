"""All obligations of one plan, discharged.

Takes the attention, the plan that is to be emitted and a budget, returns a `Proof`. Each obligation has a module of its
own and the same work to spend, whatever the others spent; what it cannot settle with it is Unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from attngen.errors import NOWHERE
from attngen.ir.attention import Attention
from attngen.plan.kernel import KernelPlan
from attngen.prove.budget.work import Budget, Clock, Work
from attngen.prove.obligations.empty_rows import empty_rows
from attngen.prove.obligations.gradients import gradients
from attngen.prove.obligations.index_bounds import index_bounds
from attngen.prove.obligations.integer_width import integer_width
from attngen.prove.obligations.locality import locality
from attngen.prove.obligations.range_safety import range_safety
from attngen.prove.obligations.streaming import streaming
from attngen.prove.obligations.tile_ranges import tile_ranges
from attngen.prove.proof import Proof
from attngen.prove.search.emptiness import some_pair
from attngen.prove.verdict import Claim, Obligation, Shown, Unknown

_Prover = Callable[[Attention, KernelPlan, Work], tuple[Claim, ...]]

PROVERS: tuple[tuple[Obligation, _Prover], ...] = (
    (Obligation.STREAMING, streaming),
    (Obligation.RANGE_SAFETY, range_safety),
    (Obligation.EMPTY_ROWS, empty_rows),
    (Obligation.LOCALITY, lambda attention, plan, _: locality(attention, plan)),
    (Obligation.GRADIENTS, gradients),
    (Obligation.TILE_RANGES, tile_ranges),
    (Obligation.INDEX_BOUNDS, index_bounds),
    (Obligation.INTEGER_WIDTH, lambda _, plan, work: integer_width(plan, work)),
)


def _placed(claim: Claim, attention: Attention) -> Claim:
    """An unsettled claim points to a statement that is written: a score or a mask may be the language's own."""
    if claim.span != NOWHERE or not isinstance(claim.verdict, Unknown):
        return claim
    written = (
        attention.score.span,
        attention.mask.span,
        attention.normalizer.span,
        *(p.span for p in attention.params),
    )
    return replace(claim, span=next((span for span in written if span != NOWHERE), NOWHERE))


def prove(attention: Attention, plan: KernelPlan, budget: Budget | None = None) -> Proof:
    """Discharges every obligation. `attention` is the spec as analysed, `plan` what is to be emitted."""
    budget = budget or Budget()
    clock = Clock(budget.timeout)
    shown: list[Shown] = []
    for obligation, prover in PROVERS:
        start = monotonic()
        work = Work(budget, clock)
        claims = tuple(_placed(c, attention) for c in prover(attention, plan, work))
        shown.append(Shown(obligation, claims, monotonic() - start, work.spent))
    needs = tuple(need.text for need in plan.needs)
    return Proof(attention.name, tuple(shown), needs=needs, expected=(some_pair(attention, plan, Work(budget, clock)),))
