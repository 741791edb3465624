"""The logit that rises from key to key, as the forward kernel of compute capability 9.0 evaluates it (`ramp.Ramp`).

Takes the plan, what is known of its params and the work that is allowed, returns claims of `streaming`. Where the mask
allows one sign of a distance alone, the kernel evaluates no absolute value: z3 shows which sign that is, from one
condition of the mask at a time. sympy shows that what is left equals the logit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attngen.ir.build import mul, neg
from attngen.ir.nodes import Apply, Expr, Op
from attngen.ir.walk import nodes, params, reads, substitute
from attngen.plan.kernel import KernelPlan
from attngen.prove.algebra.assumptions import Assumptions
from attngen.prove.algebra.equality import equal, sign_of
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Holds
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.verdict import Claim


def ramps(plan: KernelPlan, assumptions: Assumptions, work: Work) -> Iterator[Claim]:
    ramp = plan.ramp
    if ramp is None:
        return
    span = plan.attention.score.span
    sentence = "where the mask allows a pair, the Hopper kernel's factor unit + rise (k - k0) + row is its logit"
    yield Claim("rising logit", sentence, equal(ramp.logit, _logit(plan, work), assumptions, work.share()), span=span)
    sentence = "the factor of what does not rise from key to key is positive, so -inf stays -inf"
    positive = sign_of(ramp.factor, assumptions, zero=False, work=work.share())
    yield Claim("rising logit, factor", sentence, positive, span=span)


def _logit(plan: KernelPlan, work: Work) -> Expr:
    """factor * unit, with the side that each distance has under the mask."""
    w, mask = plan.weights, plan.attention.mask
    conditions = mask.args if isinstance(mask, Apply) and mask.op is Op.AND else (mask,)
    context = SolverContext(replace(plan.attention, params=(), assumes=()))  # no fact bears on positions
    plain = [c for c in conditions if not params(c)]

    def never_negative(e: Expr) -> bool:
        wanted = context.term(e) >= 0
        return any(isinstance(context.ask([context.term(c)], wanted, work.part()), Holds) for c in plain)

    sides: dict[Expr, Expr] = {}
    for node in nodes(w.unit):
        if isinstance(node, Apply) and node.op is Op.ABS and _of_positions(node):
            found = [side for side in (node.args[0], neg(node.args[0])) if never_negative(side)]
            sides |= {node: found[0]} if found else {}
    return mul(w.factor, substitute(w.unit, sides))


def _of_positions(e: Expr) -> bool:
    return reads(e, "k") and not reads(e, "qk") and not params(e)
