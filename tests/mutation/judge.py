"""What the prover says of a mutant, beside what brute force shows of it.

Takes a `Mutant`, gives an `Outcome`: refuted (brute force sees the mistake too, or the prover's numbers are evaluated
here and hold), equivalent (proved, and brute force finds nothing), conservative (refuted by an argument about all plans
or inputs of a kind, where brute force finds nothing), unknown, or missed: proved, and brute force breaks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import pytest

from attngen.ir.attention import Attention
from attngen.plan.kernel import KernelPlan
from attngen.prove.budget.work import Work
from attngen.prove.discharge import PROVERS
from attngen.prove.obligations import locality
from attngen.prove.obligations.streaming import laws
from attngen.prove.verdict import Claim, Obligation, Proved, Refuted, Unknown
from mutation import reading
from mutation.functions import wrong_functions
from mutation.machine import wrong_numbers, wrong_stream
from mutation.mutants import Mutant
from mutation.ramps import wrong_ramp
from mutation.taken_walks import wrong_hopper, wrong_portable
from mutation.tpu_walks import wrong_tpu
from mutation.walks import wrong_walk

_PROVERS = dict(PROVERS)


class Outcome(StrEnum):
    REFUTED = "refuted"
    EQUIVALENT = "equivalent"
    CONSERVATIVE = "conservative"
    UNKNOWN = "unknown"
    MISSED = "missed"


@dataclass(frozen=True)
class Judged:
    mutant: Mutant
    outcome: Outcome
    claims: tuple[Claim, ...]
    brute: str

    def __str__(self) -> str:
        lines = [f"{self.outcome.value}: {self.mutant}"]
        for claim in self.claims:
            match claim.verdict:
                case Refuted(example=example):
                    lines.append(f"    refuted, {claim.subject}: {' | '.join(example)[:300]}")
                case Unknown(reason=reason):
                    lines.append(f"    unknown, {claim.subject}: {reason[:200]}")
                case Proved():
                    pass
        return "\n".join([*lines, f"    brute force: {self.brute or 'nothing'}"[:400]])


def judge(mutant: Mutant) -> Judged:
    attention, plan = mutant.build()
    claims = prove(mutant, attention, plan)
    brute = broken(mutant, attention, plan)
    refuted = [c for c in claims if isinstance(c.verdict, Refuted)]
    unknown = [c for c in claims if isinstance(c.verdict, Unknown)]
    if refuted:
        outcome = Outcome.REFUTED if brute else Outcome.CONSERVATIVE
    elif unknown:
        outcome = Outcome.UNKNOWN
    else:
        outcome = Outcome.MISSED if brute else Outcome.EQUIVALENT
    return Judged(mutant, outcome, tuple(refuted or unknown), brute)


def prove(mutant: Mutant, attention: Attention, plan: KernelPlan | None) -> list[Claim]:
    """The mutant's own obligations; the others only where these let it pass and brute force does not."""
    if plan is None:
        return list(laws(attention, Work()))
    with pytest.MonkeyPatch.context() as patch:
        if mutant.schedule is not None:
            edited, original = mutant.schedule, locality.schedule
            patch.setattr(locality, "schedule", lambda results: edited(original(results)))
        return [c for o in mutant.obligations for c in _PROVERS[o](attention, plan, Work())]


def broken(mutant: Mutant, attention: Attention, plan: KernelPlan | None) -> str:
    """What brute force shows of the mutant; empty for nothing."""
    if mutant.kind == "normalizer":
        found = wrong_stream(attention)
        return found or (wrong_numbers(attention, plan) if plan is not None else "")
    assert plan is not None
    match mutant.kind:
        case "ranges" | "loops":
            small = wrong_walk(attention, plan)
            return small or wrong_walk(attention, plan, count=3, longest=150, seed=1)
        case "walks":
            return wrong_portable(plan)
        case "tpu" | "tpu steps":
            return wrong_tpu(plan)
        case "hopper":
            return wrong_hopper(attention, plan)
        case "functions":
            assert plan.gpu_walks is not None and plan.hopper is not None and plan.hopper.forward is not None
            f, lists = plan.hopper.forward, plan.hopper.backward and plan.hopper.backward.lists
            share = f.share and f.share.backwards
            return wrong_functions(plan.gpu_walks.index.text, inside=f.batches_inside, lists=lists, share=share)
        case "ramps":
            return wrong_ramp(attention, plan)
        case "derivatives" | "folding" | "diagonals":
            return wrong_numbers(attention, plan)
        case "loads" if Obligation.INDEX_BOUNDS in mutant.obligations:
            return reading.wrong_read(attention, plan)
        case "loads" if Obligation.TILE_RANGES in mutant.obligations:
            return reading.wrong_mask(attention, plan)
        case "loads":
            return wrong_numbers(attention, plan)
        case "widths":
            return reading.wrong_width(attention, plan)
        case "hoisting":
            assert mutant.schedule is not None
            return reading.wrong_level(attention, plan, mutant.schedule)
        case _:
            raise AssertionError(mutant.kind)


def counts(judged: Iterable[Judged]) -> dict[str, int]:
    """How many came to what."""
    found = Counter(j.outcome for j in judged)
    return {o.value: found[o] for o in Outcome}
