"""Approximate instructions: their error is below the rounding of the dtype, and no decision depends on them.

Takes a plan, returns a claim for each function that the plan lets a chip approximate. The error bounds are the maker's;
`plan/score/approximate.py` names the sources and `tests/gpu` measures them on a card. They are premises. The claim is
that they are below the rounding of both half precisions, and that nothing compares, divides by, or makes a sign, an
int, a root or a logarithm of what they return.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from attngen.ir import printing
from attngen.ir.nodes import Apply, Expr, Literal, Op
from attngen.ir.walk import nodes
from attngen.plan.kernel import KernelPlan, decisions, numbers
from attngen.plan.score.approximate import APPROXIMATIONS, ROUNDING, Per
from attngen.prove.search.wording import span_of
from attngen.prove.verdict import Claim, Proved, Refuted, Verdict

_COMPARED = (Op.LT, Op.LE, Op.EQ, Op.NE)
_STEPS = (Op.SIGN, Op.FLOOR, Op.CEIL, Op.TO_INT)
_STEEP = (Op.LOG, Op.LOG2, Op.SQRT, Op.RSQRT)


def approximations(plan: KernelPlan) -> Iterator[Claim]:
    by_op: dict[Op, list[Apply]] = {}
    for e in plan.choices.approximate:
        by_op.setdefault(e.op, []).append(e)
    for op, uses in by_op.items():
        found = APPROXIMATIONS[op]
        size = f"2**{log2(found.error):g}" + ("" if found.per is Per.ONE else f" of {found.per}")
        finest = min(ROUNDING.values())
        sentence = f"{op.value} by {found.instruction} is off by at most {size}, no more than fp16 rounds"
        rounding = " and ".join(f"{dtype} rounds by 2**{log2(error):g}" for dtype, error in ROUNDING.items())
        note = (
            f"in half precision, on NVIDIA's chips, {op.value} of a pair is one instruction, {found.instruction}: "
            f"off by at most {size}, where {rounding} anyway; float32 takes the exact form"
        )
        verdict: Verdict
        turned = next((n for e in uses for n in _deciding(plan, e)), None)
        if turned is not None:
            lines = (f"`{printing.expression(turned)}` decides by it or is steep in it, and any error may upset that",)
            verdict = Refuted("structure", lines)
        elif found.error > finest:
            verdict = Refuted("numbers", (f"{found.error:g} > {finest:g}",))
        else:
            verdict = Proved(
                "numbers",
                (
                    f"{found.error:g} <= {finest:g}; {found.source}",
                    "no comparison or root reads it",
                ),
            )
        span = span_of(uses[0], plan.attention.score)
        yield Claim(f"approximate {op.value}", sentence, verdict, span=span, note=note)


def _deciding(plan: KernelPlan, e: Apply) -> Iterator[Expr]:
    """What depends on `e` and may be upset by any error of it: masks, bounds, tests, comparisons, signs, ints, roots,
    logarithms, quotients by it."""
    for root in decisions(plan):
        if e in nodes(root):
            yield root
    for root in numbers(plan):
        for node in nodes(root):
            if isinstance(node, Apply) and any(e in nodes(a) for a in _sensitive(node)):
                yield node


def _sensitive(e: Apply) -> tuple[Expr, ...]:
    """The arguments of which a small error need not be a small error of the result."""
    if e.op in (*_COMPARED, *_STEPS, *_STEEP):
        return e.args
    if e.op is Op.DIV:
        return e.args[1:]
    if e.op is Op.POW:
        exponent = e.args[1]
        return () if isinstance(exponent, Literal) and exponent.value >= 0 and exponent.value % 1 == 0 else e.args
    return ()
