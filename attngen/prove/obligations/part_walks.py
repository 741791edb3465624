"""What the rows of one warpgroup walk, as formulas: whatever the ends of the runs are, theirs and their program's.

Executes functions of `plan.index` in z3; `obligations.questions` says how.
"""

from __future__ import annotations

from attngen.ir.build import FALSE, TRUE
from attngen.plan.index import Index
from attngen.plan.mask.loops import ZERO, Run
from attngen.plan.mask.walks import outside, own
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import Questions, remembered, results
from attngen.prove.obligations.tile_walks import Ends
from attngen.prove.search.small_parts import wrong_end


def limit_answer(index: Index, work: Work, *, of_parts: bool) -> Answer:
    """Whether ends that are brought to the limit leave each tile of the sequence in the runs that it is in, where some
    held row is inside its own sequence, and add no tile to any. `of_parts`: all held rows may be outside.
    """
    end_of_tiles, limited = index.of("end_of_tiles", OF_PARTS=of_parts), index.of("limited")

    def ask(context: SolverContext) -> Answer:
        asked = Questions(context, ("size", "tile", "held"), work)
        start, at, low, high = (asked.fresh(name) for name in ("start", "at", "low", "high"))
        size, tile = asked.sizes["size"], asked.sizes["tile"]
        asked.known += [start >= 0, at >= 0, low >= 0, low <= high]
        (stop,) = asked.run(end_of_tiles, {**asked.sizes, "start": start}, "all").results
        for _, _, quotient in list(asked.quotients):
            asked.rising({"n": at}, {"n": quotient}, "n", tile)
        first, is_row = at * tile, start < asked.sizes["held"] if of_parts else context.all_of([])
        asked.show(context.implies(context.all_of([is_row, first < size]), at < stop))
        asked.show(context.implies(at < stop, context.all_of([is_row, first < size])))
        begin, end = (results(context, limited, {"end": e, "stop": stop})[0] for e in (low, high))
        lies, stays = (context.all_of([a <= at, at < b]) for a, b in ((low, high), (begin, end)))
        asked.show(stays == context.all_of([lies, at < stop]))
        return asked.answer

    return remembered((end_of_tiles, limited), work, ask, lambda: wrong_end(end_of_tiles, limited))


def half_answer(context: SolverContext, index: Index, work: Work) -> Answer:
    """Whether a half takes, at its steps of a hull, the tiles of the hull that it meets; in either direction.

    Each tile of the hull has one step, and those of the half are all the hull's.
    """
    hull, mine = Run("first", "stop"), Run(own("first"), own("stop"))
    answer: Answer = Holds()
    for back, may_turn in ((FALSE, False), (FALSE, True), (TRUE, True)):
        if not isinstance(answer, Holds):
            break
        ends = Ends(context, (hull, mine))
        step, other = context.free("step"), context.free("other step")
        names = {**ends.names, "back": context.term(back, {})}
        begin, end = results(context, index.of("half_of_steps", BACKWARDS=may_turn), names)
        tile_of_step = index.of("tile_of_step", BACKWARDS=may_turn)
        at, elsewhere = (results(context, tile_of_step, {**names, "step": n})[0] for n in (step, other))
        n_steps = ends["stop"] - ends["first"]
        premises = [*ends.premises, step >= 0, step < n_steps]
        conclusion = [
            context.all_of([begin >= 0, begin <= end, end <= n_steps]),
            context.all_of([ends["first"] <= at, at < ends["stop"]]),
            context.implies(at == elsewhere, step == other),
            context.implies(ends.inside(at, (mine,)), context.all_of([begin <= step, step < end])),
        ]
        answer = context.ask_linear(premises, context.all_of(conclusion), work)
    return answer


def cut_answer(context: SolverContext, index: Index, unmasked: tuple[Run, ...], work: Work) -> Answer:
    """Whether no tile goes without the mask where the end of the sequence cuts the half."""
    ends = Ends(context, unmasked)
    at, first, half, size = context.free("at"), context.free("k0"), context.free("HALF"), context.integer("Sk")
    sizes = {"start": first, "rows": half, "size": size}
    found = {
        name: end if name == ZERO else results(context, index.of("unless_cut"), {**sizes, "end": end})[0]
        for name, end in ends.names.items()
    }
    masked = context.term(outside(unmasked), {**found, "at": at})
    inside = first + half <= size
    return context.ask_linear([*ends.premises, at >= 0], context.any_of([masked, inside]), work)
