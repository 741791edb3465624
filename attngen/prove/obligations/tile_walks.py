"""The steps of a kernel's loops as formulas: which tiles they walk, whatever the stretches' ends are.

Takes the plan's `Loops`, executes the steps in z3 and asks about one tile of the walked axis, of any size and at any
place. Rounding is described by what it says of that tile: for p = the tile's first position and w its width,

    tile < floor(x / w)  exactly if  p + w <= x,        tile < ceil(x / w)  exactly if  p < x,

and by its monotony; no division is left. The ends of the stretches are arbitrary ints, so what is shown holds for any
ranges with so many stretches. Likewise for pieces of the walk, whatever their number.
"""

from __future__ import annotations

from itertools import product
from typing import assert_never

from attngen.errors import InternalError
from attngen.ir.nodes import Apply, Expr, Literal, Op
from attngen.ir.walk import nodes
from attngen.plan.mask.loops import ZERO, Assigned, Loops, Ordered, Rounded, Run
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from attngen.plan.split import Split
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import World


def loops_answer(
    world: World, ranges: TileRanges, loops: Loops, seconds: float, tile_of: list[Term] | None = None
) -> Answer:
    """Whether each tile that meets `any` is walked, none twice or before the start, and without the mask inside `all`.

    That no stretch starts before 0 is a premise here. The stretches' ends are arbitrary, or, given what holds of the
    held tile in this world (`tile_of`), the planned ones.
    """
    tile, first, width, size = (world.free(name) for name in ("tile", "first", "width", "size"))
    premises = [*(tile_of or []), tile >= 0, first >= 0, width >= 1, size >= 1, first < size]
    ends: dict[Expr, Term] = {}

    def end(bound: Expr) -> Term:
        if isinstance(bound, Literal):
            return world.number(int(bound.value))
        if bound not in ends:
            ends[bound] = world.term(bound) if tile_of is not None else world.free(f"end {len(ends)}")
        return ends[bound]

    names: dict[str, Term] = {ZERO: world.number(0)}
    rounded: list[tuple[bool, Term, Term]] = []
    for step in loops.steps:
        match step:
            case Rounded():
                at, number = end(step.bound), world.free(f"{step.name} rounded")
                premises.append((tile < number) == (first < at if step.up else first + width <= at))
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

    def walked(runs: tuple[Run, ...]) -> list[Term]:
        return [world.all_of([names[r.start] <= tile, tile < names[r.stop]]) for r in runs]

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
        ]
    )
    if tile_of is not None:
        return world.ask(premises, conclusion, seconds)
    return world.ask_linear(premises, conclusion, seconds)


def starts_answer(world: World, ranges: TileRanges, premises: list[Term], seconds: float) -> Answer:
    """Whether each stretch of `any` starts at 0 or later, for a tile of which the premises hold."""
    return world.ask(premises, world.all_of([world.term(s.lo) >= 0 for s in ranges.any]), seconds)


def pieces_answer(world: World, split: Split, seconds: float) -> Answer:
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
        answer = world.ask_core(premises, question, seconds)
        if not isinstance(answer, Holds):
            break
    return answer
