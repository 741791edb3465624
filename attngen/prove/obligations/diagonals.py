"""What kernels compute once for each diagonal of a tile has one value along it (`plan.score.distance`).

Takes the plan and the work that is allowed, returns claims of `tile-ranges`: the expression at
(q + distance, k + distance) is that at (q, k). A kernel computes it for the pairs at which the diagonals begin, which
are in the tile: what holds of every pair there, of bounds and of widths, holds of these.
"""

from __future__ import annotations

from collections.abc import Iterator

from attngen.ir.build import add, index
from attngen.ir.nodes import Expr
from attngen.ir.printing import expression as text
from attngen.ir.walk import loads, reads, substitute
from attngen.plan import KernelPlan
from attngen.plan.score.distance import DISTANCE
from attngen.prove.algebra.assumptions import assumptions
from attngen.prove.algebra.equality import equal
from attngen.prove.budget.work import Work
from attngen.prove.verdict import DIAGONALS, Claim, Refuted, Unknown, Verdict, flag


def _moved(e: Expr, by: Expr) -> Expr:
    return substitute(e, {index(i): add(index(i), by) for i in ("q", "k")})


def diagonals(plan: KernelPlan, work: Work) -> Iterator[Claim]:
    for e in plan.diagonals:
        sentence = f"all pairs that are as far apart have the same {text(e)}"
        yield Claim(DIAGONALS, sentence, _verdict(e, plan, work), span=plan.attention.score.span)


def _verdict(e: Expr, plan: KernelPlan, work: Work) -> Verdict:
    if reads(e, "qk", "x", "ref"):
        return flag(False, f"{text(e)} reads what each pair has of its own")
    known = assumptions(plan.attention)
    found = equal(_moved(e, DISTANCE), e, known, work.share())
    if isinstance(found, Unknown):  # there are numbers for B, and for places of elements
        for i in (e, *(i for load in loads(e) for i in load.indices)):
            other = equal(_moved(i, index("B")), i, known, work.share(), ("at (q + B, k + B)", "at (q, k)"))
            if isinstance(other, Refuted):
                return other
    return found
