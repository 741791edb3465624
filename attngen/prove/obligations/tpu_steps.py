"""The steps that a TPU's kernel takes, as formulas: by the grid, in rounds, and where numbers of tiles are known.

Executes the plan's values in z3. Numbers of tiles and the size of a round, `unroll`, are arbitrary; the number of
rounds is an unknown with its definition, r * u <= a < r * u + u. Where z3 does not show a step that has such a product
in it, small numbers are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from attngen.ir.nodes import Expr
from attngen.plan.mask.loops import Rounded
from attngen.plan.mask.tpu_walks import Grid, Resident, Rounds, Straight
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Fails, Holds, Term
from attngen.prove.integers.z3_door import World
from attngen.prove.search.small_rounds import wrong_rounds, wrong_tails


def grid_answer(world: World, grid: Grid, work: Work) -> Answer:
    """Whether the grid has as many steps as a held tile has tiles, and at least one; where their numbers are not known,
    as many as the tensor has, since each of these is walked once at most.

    Whether each step that has a tile is of one kind, as the step of that kind's walk which the numbering gives it, and
    brings this tile; whether a later step is of no kind, and brings the last tile again; and whether what is brought
    lies in the tensor, unchanged if it did so before.
    """
    names = _free(world, "n_full", "n_partial", "n_tiles", "step", "at")
    n_full, n_partial, n_tiles, step, at = names.values()
    zero, one, total = world.number(0), world.number(1), n_full + n_partial
    needed, suffice, number, brought, unmasked, masked, own = (
        world.term(e, names)
        for e in (grid.needed, grid.suffice, grid.number, grid.brought, grid.unmasked, grid.masked, grid.own)
    )
    conclusion = [
        world.implies(step < total, number == step),
        world.implies(world.all_of([total > zero, step >= total]), number == total - one),
        unmasked == (step < n_full),
        masked == world.all_of([step >= n_full, step < total]),
        world.implies(masked, own == step - n_full),
        needed >= total,
        needed >= one,
        suffice >= n_tiles,
        brought >= zero,
        brought < n_tiles,
        world.implies(world.all_of([at >= zero, at < n_tiles]), brought == at),
    ]
    premises = [n_full >= zero, n_partial >= zero, n_tiles >= one, step >= zero]
    return world.ask_linear(premises, world.all_of(conclusion), work)


def resident_answer(world: World, resident: Resident, work: Work) -> Answer:
    """Whether the steps of the loop and the last one are those of all masked tiles, each once, and whether there is a
    last one exactly if there is a tile."""
    n_partial = world.free("n_partial")
    zero, names = world.number(0), {"n_partial": n_partial}
    looped, some, none, last = (
        world.term(e, names) for e in (resident.looped, resident.some, resident.none, resident.last)
    )
    conclusion = [
        some == (n_partial > zero),
        none == (n_partial == zero),
        world.implies(some, world.all_of([looped == n_partial - 1, last >= looped, last < n_partial])),
        world.implies(none, looped <= zero),
    ]
    return world.ask_linear([n_partial >= zero], world.all_of(conclusion), work)


def pairs_answer(world: World, pairs: Expr, work: Work) -> Answer:
    """Whether the tile `at` is taken exactly if it is one of lo … hi - 1."""
    names = _free(world, "at", "lo", "hi")
    at, lo, hi = names.values()
    inside = world.all_of([lo <= at, at < hi])
    return world.ask_linear([], world.term(pairs, names) == inside, work)


def rounds_answer(world: World, rounds: Rounds, work: Work) -> Answer:
    """Whether the rounds take the steps below `rest`, each once, and `rest` is no more than `count`. With one step to a
    round, whether they take all steps, which are none where `count` is below 0.

    The steps of r rounds are distinct, not below 0, and below r * unroll, which is how many they are: so each is taken.
    """
    names = _free(world, "count", "unroll", "rounds")
    count, unroll, r = names.values()
    i, other_i, j, other_j = _free(world, "i", "other i", "j", "other j").values()
    step, other = (world.term(rounds.step, {**names, "i": a, "j": b}) for a, b in ((i, j), (other_i, other_j)))
    inside = [i >= 0, i < r, j >= 0, j < unroll, other_i >= 0, other_i < r, other_j >= 0, other_j < unroll]
    lemmas = [_rising(world, a, b, unroll) for a, b in ((i, r), (i, other_i), (other_i, i))]
    rest, steps = world.term(rounds.rest, names), r * unroll
    alone = {**names, "unroll": world.number(1)}
    first = world.term(rounds.step, {**alone, "i": i, "j": world.number(0)})

    def answers() -> Iterator[Answer]:
        for lemma in lemmas:
            yield world.ask_core([unroll >= 1], lemma, work)
        sizes = [count >= 0, unroll >= 1, *_defined(world, rounds.rounds, names)]
        yield world.ask_core(sizes, world.all_of([r >= 0, rest == steps, rest <= count]), work)
        yield world.ask_core([*inside, *lemmas], world.all_of([step >= 0, step < steps]), work)
        yield world.ask_core([*inside, *lemmas, step == other], world.all_of([i == other_i, j == other_j]), work)
        sizes = _defined(world, rounds.rounds, alone)
        yield world.ask_linear(sizes, world.all_of([r == count, first == i]), work)

    return _settled(answers(), lambda: wrong_rounds(rounds))


def straight_answer(world: World, straight: Straight, work: Work) -> Answer:
    """Whether the loop takes the first `looped` unmasked tiles, and what comes after it the others and all masked ones,
    each once; and whether that is something, where there is any tile."""
    names = _free(world, "n_full", "n_partial", "unroll", "rounds")
    n_full, n_partial, unroll, r = names.values()
    zero, looped = world.number(0), world.free("looped")
    counted = {**names, "looped": looped}
    left = world.term(straight.left, counted)
    i, other = world.free("i"), world.free("other i")

    def each_once(e: Expr, count: Term, start: Term) -> tuple[list[Term], Term]:
        """`count` places take that many tiles from `start` on."""
        a, b = (world.term(e, {**counted, "i": place}) for place in (i, other))
        inside = [i >= zero, i < count, other >= zero, other < count, count >= zero]
        return inside, world.all_of([a >= start, a < start + count, world.implies(a == b, i == other)])

    def answers() -> Iterator[Answer]:
        sizes = [n_full >= 0, n_partial >= 0, unroll >= 1, *_defined(world, straight.rounds, names)]
        sizes.append(looped == world.term(straight.looped, names))
        some = world.implies(n_full + n_partial > zero, left + n_partial > zero)
        ends = [looped >= zero, looped <= n_full, looped == r * unroll, left == n_full - looped, some]
        yield world.ask_core(sizes, world.all_of(ends), work)
        for e, count, start in ((straight.unmasked, n_full - looped, looped), (straight.masked, n_partial, zero)):
            inside, conclusion = each_once(e, count, start)
            yield world.ask_linear(inside, conclusion, work)

    return _settled(answers(), lambda: wrong_tails(straight))


def _free(world: World, *names: str) -> dict[str, Term]:
    return {name: world.free(name) for name in names}


def _rising(world: World, a: Term, b: Term, factor: Term) -> Term:
    """What products with a factor of at least 1 keep of an order."""
    return world.implies(a < b, a * factor + factor <= b * factor)


def _defined(world: World, rounded: Rounded, names: Mapping[str, Term]) -> list[Term]:
    """What `rounds` is: the bound by `unroll`, rounded."""
    bound, unroll = world.term(rounded.bound, names), names["unroll"]
    times = names["rounds"] * unroll
    return [bound <= times, times < bound + unroll] if rounded.up else [times <= bound, bound < times + unroll]


def _settled(answers: Iterator[Answer], search: Callable[[], Mapping[str, int | float | bool] | None]) -> Answer:
    """Whether all hold. Small numbers are tried where z3 leaves a step open, and where it finds values for a step that
    are those of no whole walk."""
    for answer in answers:
        if not isinstance(answer, Holds):
            found = search()
            return answer if found is None else Fails(found)
    return Holds()
