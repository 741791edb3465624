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
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.search.small_rounds import wrong_rounds, wrong_tails


def grid_answer(context: SolverContext, grid: Grid, work: Work) -> Answer:
    """Whether the grid has as many steps as a held tile has tiles, and at least one; where their numbers are not known,
    as many as the tensor has, since each of these is walked once at most.

    Whether each step that has a tile is of one kind, as the step of that kind's walk which the numbering gives it, and
    brings this tile; whether a later step is of no kind, and brings the last tile again; and whether what is brought
    lies in the tensor, unchanged if it did so before.
    """
    names = _free(context, "n_full", "n_partial", "n_tiles", "step", "at")
    n_full, n_partial, n_tiles, step, at = names.values()
    zero, one, total = context.number(0), context.number(1), n_full + n_partial
    needed, suffice, number, brought, unmasked, masked, own = (
        context.term(e, names)
        for e in (grid.needed, grid.suffice, grid.number, grid.brought, grid.unmasked, grid.masked, grid.own)
    )
    conclusion = [
        context.implies(step < total, number == step),
        context.implies(context.all_of([total > zero, step >= total]), number == total - one),
        unmasked == (step < n_full),
        masked == context.all_of([step >= n_full, step < total]),
        context.implies(masked, own == step - n_full),
        needed >= total,
        needed >= one,
        suffice >= n_tiles,
        brought >= zero,
        brought < n_tiles,
        context.implies(context.all_of([at >= zero, at < n_tiles]), brought == at),
    ]
    premises = [n_full >= zero, n_partial >= zero, n_tiles >= one, step >= zero]
    return context.ask_linear(premises, context.all_of(conclusion), work)


def resident_answer(context: SolverContext, resident: Resident, work: Work) -> Answer:
    """Whether the steps of the loop and the last one are those of all masked tiles, each once, and whether there is a
    last one exactly if there is a tile."""
    n_partial = context.free("n_partial")
    zero, names = context.number(0), {"n_partial": n_partial}
    looped, some, none, last = (
        context.term(e, names) for e in (resident.looped, resident.some, resident.none, resident.last)
    )
    conclusion = [
        some == (n_partial > zero),
        none == (n_partial == zero),
        context.implies(some, context.all_of([looped == n_partial - 1, last >= looped, last < n_partial])),
        context.implies(none, looped <= zero),
    ]
    return context.ask_linear([n_partial >= zero], context.all_of(conclusion), work)


def pairs_answer(context: SolverContext, pairs: Expr, work: Work) -> Answer:
    """Whether the tile `at` is taken exactly if it is one of lo … hi - 1."""
    names = _free(context, "at", "lo", "hi")
    at, lo, hi = names.values()
    inside = context.all_of([lo <= at, at < hi])
    return context.ask_linear([], context.term(pairs, names) == inside, work)


def rounds_answer(context: SolverContext, rounds: Rounds, work: Work) -> Answer:
    """Whether the rounds take the steps below `rest`, each once, and `rest` is no more than `count`. With one step to a
    round, whether they take all steps, which are none where `count` is below 0.

    The steps of r rounds are distinct, not below 0, and below r * unroll, which is how many they are: so each is taken.
    """
    names = _free(context, "count", "unroll", "rounds")
    count, unroll, r = names.values()
    i, other_i, j, other_j = _free(context, "i", "other i", "j", "other j").values()
    step, other = (context.term(rounds.step, {**names, "i": a, "j": b}) for a, b in ((i, j), (other_i, other_j)))
    inside = [i >= 0, i < r, j >= 0, j < unroll, other_i >= 0, other_i < r, other_j >= 0, other_j < unroll]
    lemmas = [_rising(context, a, b, unroll) for a, b in ((i, r), (i, other_i), (other_i, i))]
    rest, steps = context.term(rounds.rest, names), r * unroll
    alone = {**names, "unroll": context.number(1)}
    first = context.term(rounds.step, {**alone, "i": i, "j": context.number(0)})

    def answers() -> Iterator[Answer]:
        for lemma in lemmas:
            yield context.ask_core([unroll >= 1], lemma, work)
        sizes = [count >= 0, unroll >= 1, *_defined(context, rounds.rounds, names)]
        yield context.ask_core(sizes, context.all_of([r >= 0, rest == steps, rest <= count]), work)
        yield context.ask_core([*inside, *lemmas], context.all_of([step >= 0, step < steps]), work)
        yield context.ask_core([*inside, *lemmas, step == other], context.all_of([i == other_i, j == other_j]), work)
        sizes = _defined(context, rounds.rounds, alone)
        yield context.ask_linear(sizes, context.all_of([r == count, first == i]), work)

    return _settled(answers(), lambda: wrong_rounds(rounds))


def straight_answer(context: SolverContext, straight: Straight, work: Work) -> Answer:
    """Whether the loop takes the first `looped` unmasked tiles, and what comes after it the others and all masked ones,
    each once; and whether that is something, where there is any tile."""
    names = _free(context, "n_full", "n_partial", "unroll", "rounds")
    n_full, n_partial, unroll, r = names.values()
    zero, looped = context.number(0), context.free("looped")
    counted = {**names, "looped": looped}
    left = context.term(straight.left, counted)
    i, other = context.free("i"), context.free("other i")

    def each_once(e: Expr, count: Term, start: Term) -> tuple[list[Term], Term]:
        """`count` places take that many tiles from `start` on."""
        a, b = (context.term(e, {**counted, "i": place}) for place in (i, other))
        inside = [i >= zero, i < count, other >= zero, other < count, count >= zero]
        return inside, context.all_of([a >= start, a < start + count, context.implies(a == b, i == other)])

    def answers() -> Iterator[Answer]:
        sizes = [n_full >= 0, n_partial >= 0, unroll >= 1, *_defined(context, straight.rounds, names)]
        sizes.append(looped == context.term(straight.looped, names))
        some = context.implies(n_full + n_partial > zero, left + n_partial > zero)
        ends = [looped >= zero, looped <= n_full, looped == r * unroll, left == n_full - looped, some]
        yield context.ask_core(sizes, context.all_of(ends), work)
        for e, count, start in ((straight.unmasked, n_full - looped, looped), (straight.masked, n_partial, zero)):
            inside, conclusion = each_once(e, count, start)
            yield context.ask_linear(inside, conclusion, work)

    return _settled(answers(), lambda: wrong_tails(straight))


def _free(context: SolverContext, *names: str) -> dict[str, Term]:
    return {name: context.free(name) for name in names}


def _rising(context: SolverContext, a: Term, b: Term, factor: Term) -> Term:
    """What products with a factor of at least 1 keep of an order."""
    return context.implies(a < b, a * factor + factor <= b * factor)


def _defined(context: SolverContext, rounded: Rounded, names: Mapping[str, Term]) -> list[Term]:
    """What `rounds` is: the bound by `unroll`, rounded."""
    bound, unroll = context.term(rounded.bound, names), names["unroll"]
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
