"""What the extremes of two tiles say of their pairs, as formulas: `plan.mask.holes`.

Takes a mask and its `TileTest`. A part of the mask is any number between its extremes, whatever it is made of; so what
is shown holds for all data, and for every pair of every two tiles.
"""

from __future__ import annotations

from attngen.ir.attention import Attention
from attngen.ir.build import apply, integer
from attngen.ir.nodes import Expr, Op, Symbol
from attngen.ir.walk import substitute
from attngen.plan.mask.holes import TileTest
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Term
from attngen.prove.integers.z3_door import SolverContext


def test_answer(attention: Attention, test: TileTest, work: Work) -> Answer:
    """Whether the mask holds only where the test can, and everywhere where it must."""
    context = SolverContext(attention)
    values: dict[Expr, Expr] = {}
    at: dict[str, Term] = {}
    known: list[Term] = []
    for part in test.parts:
        own = Symbol(part.name, part.value.type)
        least, most = (at.setdefault(s.id, context.unknown(s.id, s.type)) for s in part.bounds if isinstance(s, Symbol))
        value = at[part.name] = context.unknown(part.name, own.type)
        known += [least <= value, value <= most]
        if part.flag is not None:
            values[part.flag] = apply(Op.EQ, own, integer(1))
            known += [least >= 0, most <= 1]
        values[part.value] = own
    mask = context.term(substitute(attention.mask, values), at)
    can, must = context.term(test.can, at), context.term(test.must, at)
    return context.ask(known, context.all_of([context.implies(mask, can), context.implies(must, mask)]), work)
