"""From an attention to a plan and its proof: the middle of the chain, which needs no text.

Takes a closed, typed attention; returns the plan for a target, and the proof with the plan that may be emitted.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from attngen import targets
from attngen.ir.attention import Attention

if TYPE_CHECKING:
    from attngen.plan import KernelPlan
    from attngen.prove.budget.work import Budget
    from attngen.prove.proof import Proof


def plan(attention: Attention, target: str = targets.DEFAULT) -> KernelPlan:
    """Every choice that is the same for all kernels of a target."""
    from attngen.plan import plan as plan_attention
    from attngen.prove.obligations.reads import with_needs

    return with_needs(attention, plan_attention(attention, targets.named(target).limits()))


def callable_spec(spec: Attention, planned: KernelPlan) -> Attention:
    """The spec with what every call checks of its sizes among the `assume`s, for those who choose sizes."""
    return replace(spec, assumes=(*spec.assumes, *(need.own for need in planned.needs)))


def prove(spec: Attention, planned: KernelPlan, budget: Budget | None = None) -> tuple[Proof, KernelPlan]:
    """Every obligation of this plan, and the plan without the tile ranges that are not proved.

    What `budget` does not suffice for is unknown. A proof without unknowns is kept on disk, by content.
    """
    from attngen import cache
    from attngen.prove.budget.work import Budget
    from attngen.prove.record import Damaged, key, read, to_json
    from attngen.prove.verdict import Obligation

    budget = budget or Budget()
    name = key(spec, planned, budget.effort)
    kept = cache.remembered("proofs", name)
    if kept is not None:
        with suppress(Damaged):
            return read(kept), planned
    from attngen.prove.discharge import prove as prove_plan
    from attngen.prove.fallback import weakened

    proof = prove_plan(spec, planned, budget)
    if not proof.unknown:
        cache.remember("proofs", name, json.dumps(to_json(proof)))
        return proof, planned
    doubtful = [c for o in (Obligation.TILE_RANGES, Obligation.INTEGER_WIDTH) for c in proof.of(o).unknown]
    emitted, dropped = weakened(planned, doubtful)
    proof = replace(proof, dropped=dropped)
    if dropped:
        # What is emitted is another plan, which is shown, too: it lacks nothing but what the first one lacks besides.
        again = prove_plan(spec, emitted, budget)
        if proof.refused and not (again.refuted or again.unknown):
            # The work went on what was dropped, and none was left for the rest.
            return replace(again, dropped=dropped), emitted
        lacking = {(o, c.subject) for o, c in proof.refused}
        if again.refuted or any((o, c.subject) not in lacking for o, c in again.unknown):
            return again, emitted
    return proof, emitted
