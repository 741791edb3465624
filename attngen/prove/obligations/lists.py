"""Lists as formulas, for any number of tiles, of their parts, of batches and of heads.

Executes the plan's `Lists` and `Listed` in z3; `obligations.questions` says how. What is shown: the entry that is read
of a part of a tile, for a batch and a head, was written of that part of that tile, for a batch and a head whose lists
are the same, and lies in the room for lists. Of the tiles of keys that meet a tile of queries, the first waits for
none, and each other one awaits the turn that the last earlier one passes. No two lists, ways or tiles share a cell, and
all cells lie in the room for them.
"""

from __future__ import annotations

from attngen.ir.build import FALSE, TRUE
from attngen.ir.function import Function
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.turns import LANES, Listed, Turns
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import Names, Questions, remembered, results
from attngen.prove.search.small_lists import wrong_cell, wrong_entry


def entries_answer(context: SolverContext, lists: Lists, work: Work) -> Answer:
    """Whether what is read of a tile was written of it."""

    def ask() -> Answer:
        asked = Questions(context, ("n_tiles", "parts", "B", "Hq"), work)
        found: Names = {**asked.sizes}
        for name, size in (("tile", "n_tiles"), ("part", "parts"), ("batch", "B"), ("head", "Hq")):
            found[name] = context.free(name)
            asked.known += [found[name] >= 0, found[name] < asked.sizes[size]]
        place, count = asked.value(lists.place, found), asked.value(lists.count, found)
        asked.rising({"n": found["batch"]}, {"n": asked.sizes["B"]}, "n", asked.sizes["Hq"])
        asked.show(place >= 0, place < count)
        for apart, name, e in ((lists.by_batch, "batch", lists.of_batch), (lists.by_head, "head", lists.of_head)):
            if apart:
                asked.show(asked.value(e, {**found, "place": place}) == found[name])
        if not isinstance(asked.answer, Holds):
            return asked.answer
        return _written(context, lists, work)

    return remembered(lists, work, ask, lambda: wrong_entry(lists))


def _written(context: SolverContext, lists: Lists, work: Work) -> Answer:
    """Whether the item that has the entry of a part of a tile of a list is of that part, tile and list."""
    asked = Questions(context, ("n_tiles", "parts"), work)
    found: Names = {**asked.sizes, **{name: context.free(name) for name in ("place", "tile", "part", "row", "item")}}
    asked.known += [found["place"] >= 0]
    for name, size in (("tile", "n_tiles"), ("part", "parts")):
        asked.known += [found[name] >= 0, found[name] < asked.sizes[size]]
    names: Names = {**asked.sizes, "item": found["item"]}
    for value, name, steps in ((lists.entry, "item", ("row", "part")), (lists.row, "row", ("tile", "place"))):
        asked.known.append(found[name] == asked.value(value, found))
        for step in lists.steps:
            if step.name in steps:
                asked.show(asked.value(step.value, names) == found[step.name])
                names[step.name] = found[step.name]
    return asked.answer


def listed_answer(context: SolverContext, tile_in_order: Function, turns: Turns, work: Work) -> Answer:
    """Whether the first tile of keys that meets some queries is known as such, and each other one awaits the turn that
    the last earlier one passes."""
    listed = turns.listed
    n_tiles, at, other, noted, more = (context.free(n) for n in ("n_tiles", "order", "other order", "noted", "more"))
    premises = [at >= 0, at < n_tiles, other >= 0, other < n_tiles, noted >= 0, more > noted]
    names: Names = {"n_tiles": n_tiles}
    conclusion: list[Term] = []
    for way in ("onwards", "backwards"):
        back = context.term(TRUE if way == "backwards" else FALSE, {})
        tile = results(context, tile_in_order, {**names, "order": at, "back": back})[0]
        own = context.term(getattr(listed.noted, way), {**names, "tile": tile})
        conclusion += [own >= 1, context.term(listed.first, {**names, "noted": own}) == at]
    first, earlier = (context.term(listed.first, {**names, "noted": n}) for n in (noted, more))
    none = context.term(listed.first, {**names, "noted": context.number(0)})
    passed, theirs = (context.term(turns.passed, {"order": o}) for o in (at, other))
    conclusion += [earlier < first, none >= n_tiles, passed >= 1, (theirs < passed) == (other < at)]
    conclusion += _searched(context, listed, at, other, premises)
    answer = context.ask_linear(premises, context.all_of(conclusion), work)
    return _cells(context, listed, work) if isinstance(answer, Holds) else answer


def _searched(context: SolverContext, listed: Listed, at: Term, other: Term, premises: list[Term]) -> list[Term]:
    """That an earlier place is a lane of a chunk, no later than the first, and later chunks hold earlier places."""
    quotient, lane, chunk, low = (context.free(n) for n in ("their chunk", "lane", "chunk", "low"))
    start, a_lane = context.free("first chunk"), context.free("another lane")
    premises += [quotient * LANES <= other, other < quotient * LANES + LANES, low < chunk]
    premises += [x for n in (lane, a_lane) for x in (n >= 0, n < LANES)]
    where = context.term(listed.other, {"chunk": quotient, "lane": other - quotient * LANES})
    later, earlier = (context.term(listed.other, {"chunk": c, "lane": n}) for c, n in ((chunk, lane), (low, a_lane)))
    premises.append(start == context.term(listed.chunk, {"order": at}))
    return [where == other, earlier < later, context.implies(other < at, quotient <= start)]


def _cells(context: SolverContext, listed: Listed, work: Work) -> Answer:
    """Whether no two lists, ways or tiles share a cell, and all cells lie in the room for two ways of each list."""

    def ask() -> Answer:
        asked = Questions(context, ("n_walked", "places"), work)
        size, places = asked.sizes["n_walked"], asked.sizes["places"]
        both: list[Names] = []
        for name in ("one", "other"):
            at, way, place = (context.free(f"{what} of {name}") for what in ("at", "way", "place"))
            asked.known += [at >= 0, at < size, way >= 0, way <= 1, place >= 0, place < places]
            both.append({**asked.sizes, "at": at, "way": way, "place": place, "list": 2 * place + way})
        one, other = both
        asked.rising(one, other, "list", size)
        cells = [asked.value(listed.cell, names) for names in both]
        same = context.all_of([one[name] == other[name] for name in ("place", "way", "at")])
        asked.rising(one, {"list": 2 * places}, "list", size)
        asked.show(context.implies(cells[0] == cells[1], same), cells[0] >= 0, cells[0] < 2 * places * size)
        return asked.answer

    return remembered(listed, work, ask, lambda: wrong_cell(listed))
