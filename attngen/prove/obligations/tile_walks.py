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
from attngen.plan.mask.loops import ZERO, Assigned, Loops, Ordered, Rounded, Run
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from attngen.plan.mask.walks import BEYOND, Hull, Share, Walk, outside
from attngen.plan.split import Split
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import World


def loops_answer(
    world: World, ranges: TileRanges, loops: Loops, work: Work, tile_of: list[Term] | None = None
) -> Answer:
    """Whether each tile that meets `any` is walked, none twice or before the start, and without the mask inside `all`.

    That no stretch starts before 0 is a premise here. The stretches' ends are arbitrary, or, given what holds of the
    held tile in this world (`tile_of`), the planned ones.
    """
    executed = _Executed(world, planned=tile_of is not None)
    first, width, size, end = executed.first, executed.width, world.free("size"), executed.end
    premises = [*(tile_of or []), first >= 0, size >= 1, first < size, *executed.run(loops)]
    names, walked = executed.names, executed.walked

    def meets(s: Segment) -> Term:
        lo, hi = end(s.lo), end(s.hi)
        return world.all_of([lo < hi, lo < first + width, first < hi])

    def holds(s: Segment) -> Term:
        return world.all_of([end(s.lo) <= first, first + width <= end(s.hi)])

    premises += [end(s.lo) >= 0 for s in ranges.any]
    premises += [world.implies(end(s.lo) < end(s.hi), end(s.lo) >= 0) for s in ranges.all]
    runs = (*loops.full, *loops.partial)
    full, visits = walked(loops.full), walked(runs)
    conclusion = world.all_of(
        [
            world.implies(world.any_of([meets(s) for s in ranges.any]), world.any_of(visits)),
            world.count(visits) <= 1,
            world.implies(world.any_of(full), world.any_of([holds(s) for s in ranges.all])),
            *(world.any_of([names[r.start] >= names[r.stop], names[r.start] >= 0]) for r in runs),
            *(names[r.start] <= names[r.stop] for r in runs),
        ]
    )
    if tile_of is not None:
        return world.ask(premises, conclusion, work)
    return world.ask_linear(premises, conclusion, work)


def extent_answer(world: World, ranges: TileRanges, loops: Loops, work: Work) -> Answer:
    """Whether no walked tile begins behind the sequence, given that no stretch ends behind it (`inside_answer`)."""
    executed = _Executed(world, planned=False)
    size = world.free("size")
    premises = [executed.first >= size, size >= 0, *executed.run(loops)]
    premises += [executed.end(s.hi) <= size for s in (*ranges.any, *ranges.all)]
    visited = world.any_of(executed.walked((*loops.full, *loops.partial)))
    return world.ask_linear(premises, world.implies(visited, world.any_of([])), work)


def inside_answer(world: World, ranges: TileRanges, work: Work) -> Answer:
    """Whether no stretch ends behind the sequence."""
    size = world.integer("Sk" if ranges.axis == "k" else "Sq")
    return world.ask([], world.all_of([world.term(s.hi) <= size for s in (*ranges.any, *ranges.all)]), work)


class _Executed:
    """The steps of loops, executed for one `tile` of the walked axis, which begins at position `first`."""

    def __init__(self, world: World, *, planned: bool):
        """`planned`: the stretches' ends are those of the plan; else they are arbitrary."""
        self.world, self.planned = world, planned
        self.tile, self.first, self.width = (world.free(name) for name in ("tile", "first", "width"))
        self.names: dict[str, Term] = {ZERO: world.number(0)}
        self._ends: dict[Expr, Term] = {}

    def end(self, bound: Expr) -> Term:
        if isinstance(bound, Literal):
            return self.world.number(int(bound.value))
        if bound not in self._ends:
            free = f"end {len(self._ends)}"
            self._ends[bound] = self.world.term(bound) if self.planned else self.world.free(free)
        return self._ends[bound]

    def run(self, loops: Loops) -> list[Term]:
        """Binds the names; returns what rounding says of the tile."""
        world, names = self.world, self.names
        premises = [self.tile >= 0, self.width >= 1]
        rounded: list[tuple[bool, Term, Term]] = []
        for step in loops.steps:
            match step:
                case Rounded():
                    at, number = self.end(step.bound), world.free(f"{step.name} rounded")
                    inside = self.first < at if step.up else self.first + self.width <= at
                    premises.append((self.tile < number) == inside)
                    premises.append(world.implies(at >= 0, number >= 0))
                    rounded.append((step.up, at, number))
                    names[step.name] = number
                case Assigned():
                    names[step.name] = world.term(step.value, names)
                case Ordered(a, b):
                    swap = names[b.start] < names[a.start]
                    for x, y in ((a.start, b.start), (a.stop, b.stop)):
                        one, other = names[x], names[y]
                        names[x], names[y] = world.choose(swap, other, one), world.choose(swap, one, other)
                case _:
                    assert_never(step)
        for (up_a, at_a, a), (up_b, at_b, b) in product(rounded, rounded):
            if (up_a, up_b) != (True, False):  # ceil(x) <= floor(y) does not follow from x <= y
                premises.append(world.implies(at_a <= at_b, a <= b))
        return premises

    def walked(self, runs: tuple[Run, ...]) -> list[Term]:
        names, tile = self.names, self.tile
        return [self.world.all_of([names[r.start] <= tile, tile < names[r.stop]]) for r in runs]


class _Ends:
    """Arbitrary ends of runs, of which `loops_answer` shows that they are in order and not before 0."""

    def __init__(self, world: World, runs: Iterable[Run]):
        self.world = world
        self.names: dict[str, Term] = {ZERO: world.number(0)}
        self.premises: list[Term] = []
        for run in dict.fromkeys(runs):
            start, stop = self[run.start], self[run.stop]
            self.premises += [start >= 0, start <= stop]

    def __getitem__(self, name: str) -> Term:
        if name not in self.names:
            self.names[name] = self.world.free(name)
        return self.names[name]

    def inside(self, at: Term, runs: Iterable[Run]) -> Term:
        world = self.world
        return world.any_of([world.all_of([self[r.start] <= at, at < self[r.stop]]) for r in runs])

    def after(self, steps: tuple[Assigned, ...], **names: Term) -> dict[str, Term]:
        """What the names are once the steps have run."""
        found = {**self.names, **names}
        for step in steps:
            for name in sorted(symbols(step.value) - found.keys()):
                found[name] = self[name]
            found[step.name] = self.world.term(step.value, found)
        return found

    def value(self, e: Expr, **names: Term) -> Term:
        return self.after((Assigned("value", e),), **names)["value"]


def walk_answer(world: World, walk: Walk, runs: tuple[Run, ...], work: Work) -> Answer:
    """Whether each tile of the runs has a step, and there are as many steps as tiles.

    So no step takes another tile, and no two take the same, since the runs have no tile in common (`loops_answer`).
    """
    ends = _Ends(world, runs)
    tile, step, tiles = world.free("tile"), world.free("step"), world.number(0)
    n_steps = ends.value(walk.n_steps)
    at = ends.after(walk.at, step=step, n_steps=n_steps).get("at", world.free("at"))
    for run in runs:
        tiles = tiles + ends[run.stop] - ends[run.start]
    answer = world.ask_linear(ends.premises, n_steps == tiles, work)
    inverse = dict(zip(walk.runs, walk.inverse, strict=True))
    for run in runs:
        if not isinstance(answer, Holds):
            break
        taken = [ends.inside(tile, (run,))]
        if run in inverse:
            taken.append(step == ends.value(inverse[run], at=tile, n_steps=n_steps))
        conclusion = world.all_of([step >= 0, step < n_steps, at == tile])
        answer = world.ask_linear([*ends.premises, *taken], conclusion, work)
    return answer


def joined_answer(world: World, joined: Walk, first: Walk, then: Walk, work: Work) -> Answer:
    """Whether `joined` takes the tiles that `first` takes, step by step, and after them those of `then`."""
    ends = _Ends(world, joined.runs)
    step = world.free("step")
    passed, left = ends.value(first.n_steps), ends.value(then.n_steps)

    def at(walk: Walk, number: Term) -> Term:
        return ends.after(walk.at, step=number).get("at", world.free("at"))

    same = [
        world.implies(world.all_of([step >= 0, step < passed]), at(joined, step) == at(first, step)),
        world.implies(
            world.all_of([step >= passed, step < passed + left]), at(joined, step) == at(then, step - passed)
        ),
    ]
    return world.ask_linear(ends.premises, world.all_of(same), work)


def share_answer(world: World, walk: Walk, share: Share, stretch: Run, work: Work) -> Answer:
    """Whether the steps outside of `share` take no tile that a part of the held tile meets: none of `stretch`."""
    ends = _Ends(world, walk.runs)
    step = world.free("step")
    n_steps = ends.value(walk.n_steps)
    at = ends.after(walk.at, step=step, n_steps=n_steps)["at"]
    mine = [world.all_of([ends[stretch.start] <= at, at < ends[stretch.stop]])]
    first = [] if share.first is None else [ends.value(share.first, n_steps=n_steps) <= step]
    stop = [] if share.stop is None else [step < ends.value(share.stop, n_steps=n_steps)]
    premises = [*ends.premises, step >= 0, step < n_steps, *mine]
    return world.ask_linear(premises, world.all_of([*first, *stop]), work)


def hull_answer(world: World, hull: Hull, work: Work) -> Answer:
    """Whether each tile of the runs lies between the hull's ends, and these are in order and not before 0."""
    ends = _Ends(world, hull.runs)
    found = ends.after(hull.steps)
    tile = world.free("tile")
    premises = [*ends.premises, *(ends[r.stop] <= BEYOND for r in hull.runs)]
    inside = world.implies(ends.inside(tile, hull.runs), world.all_of([found["first"] <= tile, tile < found["stop"]]))
    conclusion = world.all_of([inside, found["first"] >= 0, found["first"] <= found["stop"]])
    return world.ask_linear(premises, conclusion, work)


def unmasked_answer(world: World, unmasked: tuple[Run, ...], full: tuple[Run, ...], work: Work) -> Answer:
    """Whether a tile that goes without the mask lies in a run that needs none."""
    ends = _Ends(world, full)
    at = world.free("at")
    masked = ends.value(outside(unmasked), at=at)
    return world.ask_linear([*ends.premises, at >= 0], world.any_of([masked, ends.inside(at, full)]), work)


def turns_answer(world: World, ranges: TileRanges, work: Work) -> Answer:
    """Whether the tiles that meet a given tile of the other axis are consecutive.

    They are if neither end of what a tile meets moves back from one tile to a later one. Of several stretches that is
    asked of all that are not empty, and no tile between two that meet some may meet none.
    """
    places = [(world.free(f"first {n}"), world.free(f"last {n}")) for n in range(3)]
    size = world.integer("Sk" if ranges.axis == "q" else "Sq")
    premises: list[Term] = [places[0][0] >= 0, places[2][1] < size]
    premises += [a <= b for a, b in places]
    premises += [before[1] < after[0] for before, after in pairwise(places)]
    held = "k" if ranges.axis == "q" else "q"
    zero = world.number(0)

    def ends(place: tuple[Term, Term]) -> tuple[Term, Term, Term]:
        at = {f"{held}0": place[0], f"{held}1": place[1]}
        for t in ranges.tests:  # each tile has answers of its own, of which nothing is known
            for name in ("any_lo", "any_hi", "all_lo", "all_hi"):
                at[t.bound(name).id] = world.free(f"{name} of {t.name} at {place[0]}")
        stretches = [(world.term(s.lo, at), world.term(s.hi, at)) for s in ranges.any]
        if len(stretches) == 1:
            return *stretches[0], world.all_of([])
        first, stop = world.number(BEYOND), zero
        for lo, hi in stretches:
            first = world.choose(world.all_of([lo < hi, lo < first]), lo, first)
            stop = world.choose(world.all_of([lo < hi, stop < hi]), hi, stop)
        return first, stop, world.any_of([lo < hi for lo, hi in stretches])

    (a, a_stop, a_some), (b, b_stop, b_some), (_, _, c_some) = (ends(place) for place in places)
    ordered = world.implies(world.all_of([a_some, b_some]), world.all_of([a <= b, a_stop <= b_stop]))
    conclusion = world.all_of([ordered, world.implies(world.all_of([a_some, c_some]), b_some)])
    return world.ask(premises, conclusion, work)


def starts_answer(world: World, ranges: TileRanges, premises: list[Term], work: Work) -> Answer:
    """Whether each stretch of `any` starts at 0 or later, for a tile of which the premises hold."""
    return world.ask(premises, world.all_of([world.term(s.lo) >= 0 for s in ranges.any]), work)


def counts_answer(world: World, split: Split, loops: Loops, work: Work) -> Answer:
    """Whether `n_full` is the number of tiles that need no mask, and `n_walked` that of all."""
    ends = _Ends(world, loops.runs)
    found = ends.after(split.counts)

    def tiles(runs: tuple[Run, ...]) -> Term:
        return sum((ends[r.stop] - ends[r.start] for r in runs), world.number(0))

    counted = [found["n_full"] == tiles(loops.full), found["n_walked"] == tiles(loops.runs)]
    return world.ask_linear(ends.premises, world.all_of(counted), work)


def pieces_answer(world: World, split: Split, work: Work) -> Answer:
    """Whether each tile of the walk is in one piece, and there in the loop that it belongs to; and whether no product
    leaves what tiles and pieces are together.

    Pieces follow each other: the first starts at 0, each next where its forerunner stops, the last stops at the end.
    """
    names = ("n_full", "n_walked", "piece", "pieces", "tile")
    full, walked, piece, pieces, tile = (world.free(name) for name in names)
    zero, one = world.number(0), world.number(1)
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
                    bound, rounded = world.term(step.bound, found), world.free(f"{step.name} rounded")
                    times = rounded * pieces
                    held = (
                        [bound <= times, times < bound + pieces]
                        if step.up
                        else [times <= bound, bound < times + pieces]
                    )
                    premises.extend(held)
                    found[step.name] = rounded
                case Assigned():
                    found[step.name] = world.term(step.value, found)
                    several = [e for e in nodes(step.value) if isinstance(e, Apply) and e.op is Op.MUL]
                    products.extend(world.term(e, found) for e in several)
                case Ordered():
                    raise InternalError("pieces are in order")
                case _:
                    assert_never(step)
        return found

    start, here, after, last = (at_piece(number) for number in (zero, piece, piece + one, pieces - one))

    def inside(run: tuple[Expr, Expr] | None, at: Term) -> Term:
        if run is None:
            return world.any_of([])
        return world.all_of([world.term(run[0], here) <= at, at < world.term(run[1], here)])

    unmasked, masked = inside(split.full, tile), inside(split.partial, tile - full)
    mine = world.all_of([here["first"] <= tile, tile < here["stop"]])
    questions = (
        world.all_of([start["first"] == zero, last["stop"] == walked, here["stop"] == after["first"]]),
        world.all_of([here["first"] <= here["stop"], here["first"] >= zero]),
        mine == world.any_of([unmasked, masked]),
        world.all_of([world.implies(unmasked, tile < full), world.implies(masked, full <= tile)]),
        world.all_of([p < walked + pieces for p in products]),
    )
    answer: Answer = Holds()
    for question in questions:
        answer = world.ask_core(premises, question, work)
        if not isinstance(answer, Holds):
            break
    return answer
