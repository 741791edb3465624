"""Whether the mask allows a pair at all: expected of every spec, though a kernel without one is as right as any.

Takes the attention and its plan, whose mask is the one that kernels apply, and returns a claim in three values. Every
result of a mask that is refuted here is zero, and a comparison with the reference then says nothing about the spec.
"""

from __future__ import annotations

from attngen.ir.attention import Attention
from attngen.ir.build import TRUE, is_literal
from attngen.plan.kernel import KernelPlan
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Fails, Holds
from attngen.prove.integers.confirm import reads_functions
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict


def some_pair(attention: Attention, plan: KernelPlan, work: Work) -> Claim:
    """That some query may attend to some key, at some sizes from 1 on and some params that fulfil their facts."""
    mask = plan.attention.mask
    given = ", ".join(f"{name} = {value}" for name, value in attention.consts)
    nothing = Refuted(
        "z3", (f"it is false for every q and k, whatever the sizes and params{f', where {given}' if given else ''}",)
    )
    verdict: Verdict
    if mask == TRUE:
        verdict = Proved("structure")
    elif is_literal(mask, False):
        verdict = nothing
    else:
        context = SolverContext(plan.attention)
        answer = context.ask([context.term(mask)], context.any_of([]), work.part())
        match answer:
            case Holds():
                verdict = nothing
            case Fails():  # z3 takes functions for any functions: its pair need not be one
                verdict = Unknown("z3", "the mask reads functions") if reads_functions(mask) else Proved("z3")
            case _:
                verdict = Unknown("z3", answer.reason)
    return Claim(
        "mask, some pair",
        "the mask allows some pair of a query and a key",
        verdict,
        span=attention.mask.span if attention.mask.span.line else attention.score.span,
        fix="write a mask that holds for some q and k",
    )
