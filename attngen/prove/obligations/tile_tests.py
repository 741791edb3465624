"""What the extremes of two tiles say of their pairs, as formulas: `plan.mask.holes`.

Takes a mask and its `TileTest`. A part of the mask is any number between its extremes, whatever it is made of; so what
is shown holds for all data, and for every pair of every two tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from attngen.ir.attention import Attention
from attngen.ir.build import apply, index, integer
from attngen.ir.nodes import Expr, Op, Symbol, Type
from attngen.ir.walk import substitute
from attngen.plan.levels import Level
from attngen.plan.mask.apart import separations
from attngen.plan.mask.holes import TileTest
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Term
from attngen.prove.integers.z3_door import SolverContext


def test_answer(attention: Attention, test: TileTest, work: Work) -> Answer:
    """Whether the mask holds only where the test can, and everywhere where it must."""
    context = SolverContext(attention)
    at: dict[str, Term] = {}
    known: list[Term] = []
    for part in test.parts:
        least, most = (at.setdefault(s.id, context.unknown(s.id, s.type)) for s in part.bounds if isinstance(s, Symbol))
        value = at[part.name] = context.unknown(part.name, Type.INT)
        known += [least <= value, value <= most]
        if part.flag is not None:
            known += [least >= 0, most <= 1]
    mask = context.term(substitute(attention.mask, dict(_stand_ins(test))), at)
    can, must = context.term(test.can, at), context.term(test.must, at)
    return context.ask(known, context.all_of([context.implies(mask, can), context.implies(must, mask)]), work)


def _stand_ins(test: TileTest) -> Iterator[tuple[Expr, Expr]]:
    """What each part of the mask is called, and the bool that it is the number of."""
    for part in test.parts:
        own = Symbol(part.name, Type.INT)
        if part.flag is not None:
            yield part.flag, apply(Op.EQ, own, integer(1))
        yield part.value, own


def mixed_answer(attention: Attention, test: TileTest, work: Work) -> Answer:
    """Whether some pair is allowed, and another is not, wherever the test says so for certain. In each tile some
    position has the least value of a part, and some the greatest: pairs of such positions are looked at."""
    context = SolverContext(attention)
    mask = substitute(attention.mask, dict(_stand_ins(test)))
    ends = {s.id: context.unknown(s.id, s.type) for p in test.parts for s in p.bounds if isinstance(s, Symbol)}
    known = [ends[f"{p.name}_{end}"] >= 0 for p in test.parts if p.flag is not None for end in ("least", "most")]
    known += [ends[f"{p.name}_most"] <= 1 for p in test.parts if p.flag is not None]

    def positions(of_keys: bool) -> list[dict[str, Term]]:
        """Those of a tile at which a part is at an end."""
        own = [p.name for p in test.parts if p.of_keys is of_keys]
        found: list[dict[str, Term]] = []
        for at_end, end in itertools.product(own, ("least", "most")):
            at = {name: context.unknown(f"{name} at {at_end} {end}", Type.INT) for name in own}
            at[at_end] = ends[f"{at_end}_{end}"]
            known.extend(
                t for name in own for t in (ends[f"{name}_least"] <= at[name], at[name] <= ends[f"{name}_most"])
            )
            found.append(at)
        return found or [{}]

    pairs = [context.term(mask, {**ends, **q, **k}) for q in positions(False) for k in positions(True)]
    alike = context.any_of([context.all_of(pairs), context.all_of(p == context.any_of([]) for p in pairs)])
    return context.ask([*known, context.term(test.mixed, ends)], alike == context.any_of([]), work)


def apart_answer(mask: Expr, work: Work) -> Answer:
    """Whether each comparison that kernels ask with its sides apart is the one of the file, whatever the sides are."""
    context = SolverContext()
    own, other = index("own"), index("other")
    same: list[Term] = []
    for held in (Level.ROW, Level.COLUMN):
        for s in separations(mask, held):
            names: dict[Expr, Expr] = {s.held: own, s.other: other}
            same.append(context.term(substitute(s.comparison, names)) == context.term(substitute(s.apart, names)))
    return context.ask([], context.all_of(same), work)
