"""Where the rows of sequences are, as formulas: the geometries of a plan, for any offsets and any number of sequences.

Five claims for each. `rows`: whatever the call says, no row outside the tensor is read or stored; and if it says where
sequences begin and end, a sequence has these rows and no others. `slots`: no two tiles have one slot, and every tile
has one. `list`: of two sequences one is listed before the other, the same one for all programs that ask, so each tile
has a place of its own. `pairs`: so it is where the tiles of two sequences alternate, and each comes behind those of its
sequence that it waits for. `copies`: what the copy engine reads and stores of a tile are the sequence's own rows, and
all of them. Divisors are put in, one tile size after the other.
"""

from __future__ import annotations

from collections.abc import Callable

from attngen.ir.attention import Attention
from attngen.ir.build import integer, literal
from attngen.ir.nodes import Expr
from attngen.ir.walk import substitute
from attngen.plan.kernel import KernelPlan
from attngen.plan.sides import BEGIN, NUMBER, POSITION, RUNS, TILE, TOTAL, Geometry, Listing, Side
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Fails, Holds, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict

TILES = (16, 32, 64, 128, 256)
"""Rows of a tile, in any table."""


def sequence_claims(bare: Attention, plan: KernelPlan, work: Work) -> list[Claim]:
    """`bare`: the attention without facts, which have no bearing."""
    claims: list[Claim] = []
    for g in plan.geometries:
        rows = "whatever offsets a call gives, a sequence's rows are inside the tensor, and are those that it names"
        slots = "each tile of each sequence has a slot, and no two have the same"
        name = g.kind.value
        claims.append(Claim(f"{name}, rows", rows, _verdict(_each(_rows, bare, g, work.part()))))
        claims.append(Claim(f"{name}, slots", slots, _verdict(_each(_slots, bare, g, work.part()))))
        order = "sequences are listed one after the other, so that each tile has a place of its own"
        claims.append(Claim(f"{name}, list", order, _verdict(_listed(SolverContext(bare), g.listing, work.part()))))
        pairs = "where tiles of two sequences alternate, each has a place of its own, behind its neighbour before it"
        claims.append(Claim(f"{name}, pairs", pairs, _verdict(_paired(SolverContext(bare), g.listing, work.part()))))
        copies = "a copy of a tile has the sequence's own rows, all of them and no others"
        claims.append(Claim(f"{name}, copies", copies, _verdict(_each(_copies, bare, g, work.part()))))
    return claims


def _each(ask: Callable[[Attention, Side, Work], Answer], bare: Attention, g: Geometry, work: Work) -> Answer:
    """Of queries and of keys, which mostly lie alike."""
    sides = (g.queries,) if g.queries == g.keys else (g.queries, g.keys)
    answers = [ask(bare, side, work) for side in sides]
    return next((answer for answer in answers if not isinstance(answer, Holds)), answers[0])


def _rows(bare: Attention, g: Side, work: Work) -> Answer:
    context = SolverContext(bare)
    names = {name: context.free(name) for name in ("start", "stop", "total")}
    start, stop, total = names.values()
    names["begin"] = begin = context.term(g.begin, names)
    first, size = context.term(g.first, names), context.term(g.size, names)
    inside = context.all_of(
        [
            *(begin >= 0, begin <= total, first >= 0, size >= 0),
            context.implies(total >= 1, first < total),
            context.implies(size >= 1, first + size <= total),
        ]
    )
    answer = context.ask_linear([total >= 0], inside, work)
    if not isinstance(answer, Holds):
        return answer
    if g.run is not None:
        answer = _in_runs(context, g, g.run, work)
        if not isinstance(answer, Holds):
            return answer
    kept = [start >= 0, start <= stop, stop <= total]
    own = context.all_of([size == stop - start, begin == start, context.implies(size >= 1, first == start)])
    return context.ask_linear(kept, own, work)


def _in_runs(context: SolverContext, g: Side, run: int, work: Work) -> Answer:
    """Whatever number a table has, the row is inside."""
    names = {e.id: context.free(e.id) for e in (NUMBER, POSITION, RUNS)}
    row, total = context.term(g.row(POSITION), names), context.free(TOTAL.id)
    fits = [names["position"] >= 0, names["runs"] >= 1, names["runs"] * run <= total]
    return context.ask(fits, context.all_of([row >= 0, row < total]), work)


def _slots(bare: Attention, g: Side, work: Work) -> Answer:
    """Of two sequences, the first tile of the later one is behind the last tile of the earlier; and a bound."""
    answer: Answer = Holds()
    for tile in TILES:
        context = SolverContext(bare)
        total, count, at = (context.free(name) for name in ("total", "n_sequences", "tile of a sequence"))
        one, other = (_Sequence(context, g, name, total, count, tile) for name in ("one", "other"))
        apart = [one.number < other.number, one.stop <= other.start] if g.packed else [one.number + 1 == other.number]
        walked = [total >= 1, count >= 1, at >= 0, at * tile < one.size, *one.known]
        bound = context.term(_with(g.slots, tile), {"total": total, "n_sequences": count})
        asked: list[tuple[list[Term], Term]] = [
            ([*walked, *other.known, *apart], one.slot + at < other.slot),
            (walked, context.all_of([one.slot + at >= 0, one.slot + at < bound])),
        ]
        if g.packed:  # a program looks for its sequence by halves
            asked.append(([*one.known, *other.known, *apart], one.slot < other.slot))
        for premises, conclusion in asked:
            answer = context.ask([*premises, one.number + 1 <= count], conclusion, work)
            if not isinstance(answer, Holds):
                return answer
    return answer


def _listed(context: SolverContext, g: Listing, work: Work) -> Answer:
    """A strict total order of sequences: the sum of the tiles of those before is then a place of one's own."""
    number = {name: context.free(f"number of {name}") for name in "abc"}
    tiles = {name: context.free(f"tiles of {name}") for name in "abc"}

    def before(one: str, other: str) -> Term:
        names = {"sequence": number[one], "tiles": tiles[one], "own": number[other], "own_tiles": tiles[other]}
        return context.term(g.before, names)

    def neither(*terms: Term) -> Term:
        return context.all_of(context.implies(x, context.term(literal(False))) for x in terms)

    apart = [number["a"] < number["b"]]
    one = context.any_of([before("a", "b"), before("b", "a")])
    both = context.all_of([before("a", "b"), before("b", "a")])
    asked: list[tuple[list[Term], Term]] = [
        ([number["a"] == number["b"], tiles["a"] == tiles["b"]], neither(before("a", "b"))),
        (apart, context.all_of([one, neither(both)])),
        ([before("a", "b"), before("b", "c")], before("a", "c")),
    ]
    answer: Answer = Holds()
    for premises, conclusion in asked:
        answer = context.ask_linear(premises, conclusion, work)
        if not isinstance(answer, Holds):
            return answer
    return answer


def _paired(context: SolverContext, g: Listing, work: Work) -> Answer:
    """Two sequences that follow each other in the list, `longer` tiles and `shorter`; the last one may be alone. The
    list is in the order of their tiles, so that `least` and `most` are those of the neighbours.
    """
    names = ("earlier", "pairs before", "longer", "shorter", "at", "later", "other")
    earlier, pairs, longer, shorter, at, later, other = (context.free(name) for name in names)

    def place(order: Term, *, first: bool) -> Term:
        of_first = {"earlier": earlier, "rank": 2 * pairs, "least": context.free("least"), "most": shorter}
        of_second = {"earlier": earlier + longer, "rank": 2 * pairs + 1, "least": longer, "most": context.free("most")}
        return context.term(g.paired, {**(of_first if first else of_second), "order": order})

    one, two = place(at, first=True), place(other, first=False)
    free = {name: context.free(name) for name in ("sequence", "tiles", "own", "own_tiles")}
    known = [earlier >= 0, pairs >= 0, shorter >= 0, shorter <= longer, at >= 0, at < longer]
    both = [*known, other >= 0, other < shorter]
    apart = context.implies(one == two, context.term(literal(False)))
    asked: list[tuple[list[Term], Term]] = [
        ([context.term(g.before, free)], free["tiles"] >= free["own_tiles"]),
        (known, context.all_of([one >= earlier, one < earlier + longer + shorter])),
        (both, context.all_of([two >= earlier, two < earlier + longer + shorter, apart])),
        ([*known, at < later, later < longer], one < place(later, first=True)),
        ([*both, at < other], place(at, first=False) < two),
    ]
    answer: Answer = Holds()
    for premises, conclusion in asked:
        answer = context.ask(premises, conclusion, work)
        if not isinstance(answer, Holds):
            return answer
    return answer


def _copies(bare: Attention, g: Side, work: Work) -> Answer:
    context = SolverContext(bare)
    names = {name: context.free(name) for name in ("size", "start")}
    size, start = names.values()
    within = context.term(g.within, names)
    some = context.implies(start < size, start + within == size)
    none = context.implies(start >= size, within == 0)
    return context.ask_linear([size >= 0, start >= 0], context.all_of([some, none, within >= 0]), work)


def _with(e: Expr, tile: int) -> Expr:
    return substitute(e, {TILE: integer(tile)})


class _Sequence:
    """A sequence as the call describes it, under its promise that offsets do not fall and stay inside."""

    def __init__(self, context: SolverContext, g: Side, name: str, total: Term, count: Term, tile: int):
        self.number, self.start, self.stop = (context.free(f"{name} {what}") for what in ("number", "start", "stop"))
        names = {"start": self.start, "stop": self.stop, "total": total, "sequence": self.number}
        names[BEGIN.id] = context.term(g.begin, names)
        self.size = context.term(g.size, names)
        self.slot = context.term(_with(g.slot, tile), names)
        self.known = [
            self.number >= 0,
            self.number < count,
            self.start >= 0,
            self.start <= self.stop,
            self.stop <= total,
        ]


def _verdict(answer: Answer) -> Verdict:
    match answer:
        case Holds():
            return Proved("z3")
        case Fails():
            return Refuted("z3", (f"not at {answer.text()}",), tuple(answer.values.items()))
        case _:
            return Unknown("z3", answer.reason)
