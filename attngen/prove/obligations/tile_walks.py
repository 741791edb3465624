"""The steps of a kernel's loops as formulas: which tiles they walk, whatever the stretches' ends are.

Takes the plan's `Loops`, executes the steps in z3 and asks about one tile of the walked axis, of any size and at any
place. Rounding is described by what it says of that tile: for p = the tile's first position and w its width,

    tile < floor(x / w)  exactly if  p + w <= x,        tile < ceil(x / w)  exactly if  p < x,

and by its monotony; no division is left. The ends of the stretches are arbitrary ints, so what is shown holds for any
ranges with so many stretches. Likewise for pieces of the walk, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise, product
from typing import assert_never

from attngen.errors import InternalError
from attngen.ir.nodes import Apply, Expr, Literal, Op
from attngen.ir.walk import nodes, symbols
from attngen.plan.hopper import Fetched
from attngen.plan.index import Index
from attngen.plan.mask.loops import ZERO, Assigned, Loops, Ordered, Rounded, Run, Step
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from attngen.plan.mask.walks import BEYOND, Hull, Share, Walk, outside
from attngen.plan.split import Split
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import results


def loops_answer(
    context: SolverContext, ranges: TileRanges, loops: Loops, work: Work, tile_of: list[Term] | None = None
) -> Answer:
    """Whether each tile that meets `any` is walked, none twice or before the start, and without the mask inside `all`.

    That no stretch starts before 0 is a premise here. The stretches' ends are arbitrary, or, given what holds of the
    held tile in this context (`tile_of`), the planned ones.
    """
    size = context.free("size")
    executed = Executed(context, size, planned=tile_of is not None)
    first, width, end = executed.first, executed.width, executed.end
    premises = [*(tile_of or []), first >= 0, size >= 1, first < size, *executed.call(loops)]
    names, walked = executed.names, executed.walked

    def meets(s: Segment) -> Term:
        lo, hi = end(s.lo), end(s.hi)
        return context.all_of([lo < hi, lo < first + width, first < hi])

    def holds(s: Segment) -> Term:
        return context.all_of([end(s.lo) <= first, first + width <= end(s.hi)])

    premises += [end(s.lo) >= 0 for s in ranges.any]
    clamped = {s.bound for s in loops.steps if isinstance(s, Rounded) and s.clamped}
    premises += [end(e) <= size for e in clamped]
    premises += [context.implies(end(s.lo) < end(s.hi), end(s.lo) >= 0) for s in ranges.all]
    runs = (*loops.full, *loops.partial)
    full, visits = walked(loops.full), walked(runs)
    conclusion = context.all_of(
        [
            context.implies(context.any_of([meets(s) for s in ranges.any]), context.any_of(visits)),
            context.count(visits) <= 1,
            context.implies(context.any_of(full), context.any_of([holds(s) for s in ranges.all])),
            *(context.any_of([names[r.start] >= names[r.stop], names[r.start] >= 0]) for r in runs),
            *(names[r.start] <= names[r.stop] for r in runs),
        ]
    )
    if tile_of is not None:
        return context.ask(premises, conclusion, work)
    return context.ask_linear(premises, conclusion, work)


def extent_answer(context: SolverContext, ranges: TileRanges, loops: Loops, work: Work) -> Answer:
    """Whether no walked tile begins behind the sequence, given that no stretch ends behind it (`inside_answer`)."""
    size = context.free("size")
    executed = Executed(context, size, planned=False)
    premises = [executed.first >= size, size >= 0, *executed.call(loops)]
    premises += [executed.end(s.hi) <= size for s in (*ranges.any, *ranges.all)]
    visited = context.any_of(executed.walked((*loops.full, *loops.partial)))
    return context.ask_linear(premises, context.implies(visited, context.any_of([])), work)


def inside_answer(context: SolverContext, ranges: TileRanges, work: Work) -> Answer:
    """Whether no stretch ends behind the sequence."""
    size = context.integer("Sk" if ranges.axis == "k" else "Sq")
    return context.ask([], context.all_of([context.term(s.hi) <= size for s in (*ranges.any, *ranges.all)]), work)


class Executed:
    """The steps of loops, executed for one `tile` of the walked axis, which begins at position `first`."""

    def __init__(self, context: SolverContext, size: Term, *, planned: bool):
        """`size`: of the walked axis. `planned`: the stretches' ends are those of the plan; else they are arbitrary."""
        self.context, self.size, self.planned = context, size, planned
        self.tile, self.first, self.width = (context.free(name) for name in ("tile", "first", "width"))
        self.names: dict[str, Term] = {ZERO: context.number(0)}
        self._ends: dict[Expr, Term] = {}

    def end(self, bound: Expr) -> Term:
        if isinstance(bound, Literal):
            return self.context.number(int(bound.value))
        if bound not in self._ends:
            free = f"end {len(self._ends)}"
            self._ends[bound] = self.context.term(bound) if self.planned else self.context.free(free)
        return self._ends[bound]

    def run(self, steps: tuple[Step, ...]) -> list[Term]:
        """Binds the names; returns what rounding says of the tile."""
        context, names = self.context, self.names
        premises = [self.tile >= 0, self.width >= 1]
        rounded: list[tuple[bool, Term, Term]] = []
        for step in steps:
            match step:
                case Rounded():
                    at, number = self.end(step.bound), context.free(f"{step.name} rounded")
                    inside = self.first < at if step.up else self.first + self.width <= at
                    premises.append((self.tile < number) == inside)
                    premises.append(context.implies(at >= 0, number >= 0))
                    rounded.append((step.up, at, number))
                    names[step.name] = self._clamped(number, premises) if step.clamped else number
                case Assigned():
                    names[step.name] = context.term(step.value, names)
                case Ordered(a, b):
                    swap = names[b.start] < names[a.start]
                    for x, y in ((a.start, b.start), (a.stop, b.stop)):
                        one, other = names[x], names[y]
                        names[x], names[y] = context.choose(swap, other, one), context.choose(swap, one, other)
                case _:
                    assert_never(step)
        for (up_a, at_a, a), (up_b, at_b, b) in product(rounded, rounded):
            if (up_a, up_b) != (True, False):  # ceil(x) <= floor(y) does not follow from x <= y
                premises.append(context.implies(at_a <= at_b, a <= b))
        return premises

    def _clamped(self, number: Term, premises: list[Term]) -> Term:
        context, n_tiles = self.context, self.context.free("number of tiles")
        premises += [n_tiles >= 0, (self.tile < n_tiles) == (self.first < self.size)]
        number = context.choose(number < 0, context.number(0), number)
        return context.choose(number < n_tiles, number, n_tiles)

    def call(self, loops: Loops) -> list[Term]:
        """Executes the function, and binds what it returns; returns premises."""
        premises = self.run(loops.steps)
        self.names |= {name: self.context.term(e, self.names) for name, e in loops.returned.items()}
        return premises

    def walked(self, runs: tuple[Run, ...]) -> list[Term]:
        names, tile = self.names, self.tile
        return [self.context.all_of([names[r.start] <= tile, tile < names[r.stop]]) for r in runs]


class Ends:
    """Arbitrary ends of runs, of which `loops_answer` shows that they are in order and not before 0."""

    def __init__(self, context: SolverContext, runs: Iterable[Run]):
        self.context = context
        self.names: dict[str, Term] = {ZERO: context.number(0)}
        self.premises: list[Term] = []
        for run in dict.fromkeys(runs):
            start, stop = self[run.start], self[run.stop]
            self.premises += [start >= 0, start <= stop]

    def __getitem__(self, name: str) -> Term:
        if name not in self.names:
            self.names[name] = self.context.free(name)
        return self.names[name]

    def inside(self, at: Term, runs: Iterable[Run]) -> Term:
        context = self.context
        return context.any_of([context.all_of([self[r.start] <= at, at < self[r.stop]]) for r in runs])

    def after(self, steps: tuple[Assigned, ...], **names: Term) -> dict[str, Term]:
        """What the names are once the steps have run."""
        found = {**self.names, **names}
        for step in steps:
            for name in sorted(symbols(step.value) - found.keys()):
                found[name] = self[name]
            found[step.name] = self.context.term(step.value, found)
        return found

    def value(self, e: Expr, **names: Term) -> Term:
        return self.after((Assigned("value", e),), **names)["value"]


def walk_answer(context: SolverContext, walk: Walk, runs: tuple[Run, ...], work: Work) -> Answer:
    """Whether each tile of the runs has a step, and there are as many steps as tiles, or the `least` of the walk.

    So no step takes another tile, and no two take the same, since the runs have no tile in common (`loops_answer`).
    Where there are more steps than tiles, each takes a tile that is not before the first.
    """
    ends = Ends(context, runs)
    tile, step, tiles = context.free("tile"), context.free("step"), context.number(0)
    n_steps = ends.value(walk.n_steps)
    at = ends.after(walk.at, step=step, n_steps=n_steps).get("at", context.free("at"))
    for run in runs:
        tiles = tiles + ends[run.stop] - ends[run.start]
    least = context.number(walk.least)
    answer = context.ask_linear(ends.premises, n_steps == context.choose(tiles < least, least, tiles), work)
    if walk.least and isinstance(answer, Holds):
        answer = context.ask_linear([*ends.premises, step >= 0, step < n_steps], at >= 0, work)
    inverse = dict(zip(walk.runs, walk.inverse, strict=True))
    for run in runs:
        if not isinstance(answer, Holds):
            break
        taken = [ends.inside(tile, (run,))]
        if run in inverse:
            taken.append(step == ends.value(inverse[run], at=tile, n_steps=n_steps))
        conclusion = context.all_of([step >= 0, step < n_steps, at == tile])
        answer = context.ask_linear([*ends.premises, *taken], conclusion, work)
    return answer


def joined_answer(context: SolverContext, joined: Walk, first: Walk, then: Walk, work: Work) -> Answer:
    """Whether `joined` takes the tiles that `first` takes, step by step, and after them those of `then`."""
    ends = Ends(context, joined.runs)
    step = context.free("step")
    passed, left = ends.value(first.n_steps), ends.value(then.n_steps)

    def at(walk: Walk, number: Term) -> Term:
        return ends.after(walk.at, step=number).get("at", context.free("at"))

    same = [
        context.implies(context.all_of([step >= 0, step < passed]), at(joined, step) == at(first, step)),
        context.implies(
            context.all_of([step >= passed, step < passed + left]), at(joined, step) == at(then, step - passed)
        ),
    ]
    return context.ask_linear(ends.premises, context.all_of(same), work)


def share_answer(context: SolverContext, index: Index, walk: Walk, share: Share, work: Work) -> Answer:
    """Whether the steps outside of `share` take no tile that a part of the held tile meets, and the share is in order,
    and inside the walk."""
    ends = Ends(context, walk.runs)
    step = context.free("step")
    n_steps = ends.value(walk.n_steps)
    at = ends.after(walk.at, step=step, n_steps=n_steps)["at"]
    mine = ends.inside(at, (share.own,))
    names = {"start": ends[share.stretch.start], "own_start": ends[share.own.start], "own_stop": ends[share.own.stop]}
    own_steps = index.of("own_steps", BACKWARDS=share.backwards)
    first, stop = results(context, own_steps, {**names, "n_steps": n_steps})
    first, stop = first if share.begins else context.number(0), stop if share.ends else n_steps
    ordered = [first >= 0, first < stop, stop <= n_steps]
    premises = [*ends.premises, step >= 0, step < n_steps]
    taken = context.implies(mine, context.all_of([first <= step, step < stop]))
    return context.ask_linear(premises, context.all_of([*ordered, taken]), work)


def hull_answer(context: SolverContext, hull: Hull, work: Work) -> Answer:
    """Whether each tile of the runs lies between the hull's ends, and these are in order and not before 0."""
    ends = Ends(context, hull.runs)
    found = ends.after(hull.steps)
    tile = context.free("tile")
    premises = [*ends.premises, *(ends[r.stop] <= BEYOND for r in hull.runs)]
    inside = context.implies(
        ends.inside(tile, hull.runs), context.all_of([found["first"] <= tile, tile < found["stop"]])
    )
    conclusion = context.all_of([inside, found["first"] >= 0, found["first"] <= found["stop"]])
    return context.ask_linear(premises, conclusion, work)


def unmasked_answer(context: SolverContext, unmasked: tuple[Run, ...], full: tuple[Run, ...], work: Work) -> Answer:
    """Whether a tile that goes without the mask lies in a run that needs none."""
    ends = Ends(context, full)
    at = context.free("at")
    masked = ends.value(outside(unmasked), at=at)
    return context.ask_linear([*ends.premises, at >= 0], context.any_of([masked, ends.inside(at, full)]), work)


def fetched_answer(context: SolverContext, fetched: Fetched, work: Work) -> Answer:
    """Whether element (i, j) of a fetched tile is the one that query i and key j of the tile read."""
    q0, k0, i, j = (context.free(name) for name in ("q0", "k0", "i", "j"))
    at = {"q0": q0, "k0": k0, "q": q0 + i, "k": k0 + j}
    *leading, row, column = (
        context.term(index, at) - context.term(first, at)
        for index, first in zip(fetched.load.indices, fetched.place, strict=True)
    )
    conclusion = context.all_of([*(x == 0 for x in leading), row == i, column == j])
    return context.ask_linear([x >= 0 for x in (q0, k0, i, j)], conclusion, work)


def turns_answer(context: SolverContext, ranges: TileRanges, work: Work) -> Answer:
    """Whether the tiles that meet a given tile of the other axis are consecutive.

    Of one stretch: if a tile of any width at any place meets two held tiles, it meets each between them. Of several:
    neither end of the hull of those that are not empty moves back from one held tile to a later one, and none between
    two that meet some meets none.
    """
    places = [(context.free(f"first {n}"), context.free(f"last {n}")) for n in range(3)]
    size = context.integer("Sk" if ranges.axis == "q" else "Sq")
    premises: list[Term] = [places[0][0] >= 0, places[2][1] < size]
    premises += [a <= b for a, b in places]
    premises += [before[1] < after[0] for before, after in pairwise(places)]
    held = "k" if ranges.axis == "q" else "q"

    def stretches(place: tuple[Term, Term]) -> list[tuple[Term, Term]]:
        at = {f"{held}0": place[0], f"{held}1": place[1]}
        for t in ranges.tests:  # each tile has answers of its own, of which nothing is known
            for name in ("any_lo", "any_hi", "all_lo", "all_hi"):
                at[t.bound(name).id] = context.free(f"{name} of {t.name} at {place[0]}")
        return [(context.term(s.lo, at), context.term(s.hi, at)) for s in ranges.any]

    found = [stretches(place) for place in places]
    if len(ranges.any) == 1:
        first, width = context.free("first"), context.free("width")
        met = [context.all_of([lo < first + width, first < hi]) for ((lo, hi),) in found]
        between = context.implies(context.all_of([met[0], met[2]]), met[1])
        return context.ask([*premises, first >= 0, width >= 1], between, work)

    def hull(stretches: list[tuple[Term, Term]]) -> tuple[Term, Term, Term]:
        first, stop = context.number(BEYOND), context.number(0)
        for lo, hi in stretches:
            first = context.choose(context.all_of([lo < hi, lo < first]), lo, first)
            stop = context.choose(context.all_of([lo < hi, stop < hi]), hi, stop)
        return first, stop, context.any_of([lo < hi for lo, hi in stretches])

    (a, a_stop, a_some), (b, b_stop, b_some), (_, _, c_some) = (hull(s) for s in found)
    ordered = context.implies(context.all_of([a_some, b_some]), context.all_of([a <= b, a_stop <= b_stop]))
    conclusion = context.all_of([ordered, context.implies(context.all_of([a_some, c_some]), b_some)])
    return context.ask(premises, conclusion, work)


def starts_answer(context: SolverContext, ranges: TileRanges, premises: list[Term], work: Work) -> Answer:
    """Whether each stretch of `any` starts at 0 or later, for a tile of which the premises hold."""
    return context.ask(premises, context.all_of([context.term(s.lo) >= 0 for s in ranges.any]), work)


def counts_answer(context: SolverContext, split: Split, loops: Loops, work: Work) -> Answer:
    """Whether `n_full` is the number of tiles that need no mask, and `n_walked` that of all."""
    ends = Ends(context, loops.runs)
    found = ends.after(split.counts)

    def tiles(runs: tuple[Run, ...]) -> Term:
        return sum((ends[r.stop] - ends[r.start] for r in runs), context.number(0))

    counted = [found["n_full"] == tiles(loops.full), found["n_walked"] == tiles(loops.runs)]
    return context.ask_linear(ends.premises, context.all_of(counted), work)


def pieces_answer(context: SolverContext, split: Split, work: Work) -> Answer:
    """Whether each tile of the walk is in one piece, and there in the loop that it belongs to; and whether no product
    leaves what tiles and pieces are together.

    Pieces follow each other: the first starts at 0, each next where its forerunner stops, the last stops at the end.
    """
    names = ("n_full", "n_walked", "piece", "pieces", "tile")
    full, walked, piece, pieces, tile = (context.free(name) for name in names)
    zero, one = context.number(0), context.number(1)
    premises = [zero <= full, full <= walked, zero <= piece, piece < pieces]
    if split.full is None:
        premises.append(full == zero)
    if split.partial is None:
        premises.append(full == walked)
    products: list[Term] = []

    def at_piece(number: Term) -> dict[str, Term]:
        found = {"n_full": full, "n_walked": walked, "piece": number, "pieces": pieces}
        for step in split.steps:
            match step:
                case Rounded():
                    bound, rounded = context.term(step.bound, found), context.free(f"{step.name} rounded")
                    times = rounded * pieces
                    held = (
                        [bound <= times, times < bound + pieces]
                        if step.up
                        else [times <= bound, bound < times + pieces]
                    )
                    premises.extend(held)
                    found[step.name] = rounded
                case Assigned():
                    found[step.name] = context.term(step.value, found)
                    several = [e for e in nodes(step.value) if isinstance(e, Apply) and e.op is Op.MUL]
                    products.extend(context.term(e, found) for e in several)
                case Ordered():
                    raise InternalError("pieces are in order")
                case _:
                    assert_never(step)
        return found

    start, here, after, last = (at_piece(number) for number in (zero, piece, piece + one, pieces - one))

    def inside(run: tuple[Expr, Expr] | None, at: Term) -> Term:
        if run is None:
            return context.any_of([])
        return context.all_of([context.term(run[0], here) <= at, at < context.term(run[1], here)])

    unmasked, masked = inside(split.full, tile), inside(split.partial, tile - full)
    mine = context.all_of([here["first"] <= tile, tile < here["stop"]])
    questions = (
        context.all_of([start["first"] == zero, last["stop"] == walked, here["stop"] == after["first"]]),
        context.all_of([here["first"] <= here["stop"], here["first"] >= zero]),
        mine == context.any_of([unmasked, masked]),
        context.all_of([context.implies(unmasked, tile < full), context.implies(masked, full <= tile)]),
        context.all_of([p < walked + pieces for p in products]),
    )
    answer: Answer = Holds()
    for question in questions:
        answer = context.ask_core(premises, question, work)
        if not isinstance(answer, Holds):
            break
    return answer
