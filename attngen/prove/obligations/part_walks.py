"""What the rows of one warpgroup walk, as formulas: whatever the ends of the runs are, theirs and their program's.

Executes the plan's `Limit` and `HullPart` in z3, as `tile_walks` does walks.
"""

from __future__ import annotations

from attngen.ir.build import FALSE, TRUE
from attngen.plan.index import Index
from attngen.plan.mask.loops import Rounded, Run
from attngen.plan.mask.order import Directed
from attngen.plan.mask.parts import HullPart, Limit
from attngen.plan.mask.walks import outside, own
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import results
from attngen.prove.obligations.tile_walks import Ends, Executed


def limit_answer(context: SolverContext, limit: Limit, axis: str, runs: tuple[Run, ...], work: Work) -> Answer:
    """Whether ends that are brought to the limit leave each tile of the sequence in the runs that it is in, where some
    held row is inside its own sequence, and add no tile to any.
    """
    start, held, walked = ("q0", "Sq", "Sk") if axis == "k" else ("k0", "Sk", "Sq")
    size = context.integer(walked)
    executed, ends = Executed(context, size, planned=True), Ends(context, runs)
    tile, first = executed.tile, executed.first
    premises = [*ends.premises, size >= 1, first >= 0, *executed.run(limit.steps)]
    for step in limit.steps:
        if isinstance(step, Rounded) and not step.up:  # what rounding down says of the tile that it cuts, too
            premises.append((tile <= executed.names[step.name]) == (first <= executed.end(step.bound)))
    before = {**executed.names, **{name: ends[name] for run in runs for name in (run.start, run.stop)}}
    after = {**before, **{s.name: context.term(s.value, before) for s in limit.ends}}
    is_row = context.integer(start) < context.integer(held)

    def inside(names: dict[str, Term], run: Run) -> Term:
        return context.all_of([names[run.start] <= tile, tile < names[run.stop]])

    conclusion: list[Term] = []
    for run in runs:
        lies, stays = inside(before, run), inside(after, run)
        conclusion.append(context.implies(context.all_of([is_row, first < size, lies]), stays))
        conclusion.append(context.implies(stays, context.all_of([lies, first < size])))
    return context.ask_linear(premises, context.all_of(conclusion), work)


def hull_part_answer(context: SolverContext, part: HullPart, index: Index, work: Work) -> Answer:
    """Whether a half takes, at its steps of a hull, the tiles of the hull that it meets; in either direction.

    Each tile of the hull has one step, and those of the half are all the hull's.
    """
    hull, mine = Run("first", "stop"), Run(own("first"), own("stop"))
    answer: Answer = Holds()
    for way, may_turn in (("onwards", False), ("onwards", True), ("backwards", True)):
        if not isinstance(answer, Holds):
            break
        tile_of_step = index.of("tile_of_step", BACKWARDS=may_turn)
        ends = Ends(context, (hull, mine))
        bound = ends.after(part.bound)
        begin = _value(context, bound, part.begin, way)
        end = context.term(part.end, {**bound, "begin": begin})
        step, other = context.free("step"), context.free("other step")
        back = context.term(TRUE if way == "backwards" else FALSE, {})
        at, elsewhere = (results(context, tile_of_step, {**bound, "step": n, "back": back})[0] for n in (step, other))
        n_steps = bound["stop"] - bound["first"]
        taken = context.all_of([step >= 0, step < n_steps])
        premises = [*ends.premises, taken]
        conclusion = [
            context.all_of([begin >= 0, begin <= end, end <= n_steps]),
            context.all_of([bound["first"] <= at, at < bound["stop"]]),
            context.implies(at == elsewhere, step == other),
            context.implies(ends.inside(at, (mine,)), context.all_of([begin <= step, step < end])),
        ]
        answer = context.ask_linear(premises, context.all_of(conclusion), work)
    return answer


def _value(context: SolverContext, names: dict[str, Term], value: Directed, way: str) -> Term:
    return context.term(getattr(value, way), names)


def cut_answer(context: SolverContext, part: HullPart, unmasked: tuple[Run, ...], work: Work) -> Answer:
    """Whether no tile goes without the mask where the end of the sequence cuts the half."""
    ends = Ends(context, unmasked)
    at, first, half, size = context.free("at"), context.free("k0"), context.free("HALF"), context.integer("Sk")
    found = ends.after(part.cut, k0=first, HALF=half)
    masked = context.term(outside(unmasked), {**found, "at": at})
    inside = first + half <= size
    return context.ask_linear([*ends.premises, at >= 0], context.any_of([masked, inside]), work)
