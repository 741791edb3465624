"""Lists as formulas, for any number of tiles, of their parts, of batches and of heads.

Executes functions of `plan.index` in z3; `obligations.questions` says how. What is shown: the entry that is read of a
part of a tile, for a batch and a head, was written of that part of that tile, for a batch and a head whose lists are
the same, and lies in the room for lists. Of the tiles of keys that meet a tile of queries, the first waits for none,
and each other one awaits the turn that the last earlier one passes. No two lists, ways or tiles share a cell, and all
cells lie in the room for them.
"""

from __future__ import annotations

from attngen.ir.build import FALSE, TRUE
from attngen.ir.nodes import Type
from attngen.plan.index import Index
from attngen.plan.mask.lists import Lists
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import Lemmas, Names, Questions, remembered, results
from attngen.prove.search.small_lists import wrong_cell, wrong_entry, wrong_list

LANES = 32
"""Places of a chunk."""


def entries_answer(lists: Lists, index: Index, work: Work) -> Answer:
    """Whether what is read of a tile was written of it."""
    whose = tuple(lists.function(index, name) for name in ("list_count", "list_of", "reader_of"))
    count, place, reader = whose

    def ask(context: SolverContext) -> Answer:
        asked = Questions(context, ("B", "Hq"), work)
        batch, head = asked.fresh("batch"), asked.fresh("head")
        asked.known += [batch >= 0, batch < asked.sizes["B"], head >= 0, head < asked.sizes["Hq"]]
        asked.rising({"n": batch}, {"n": asked.sizes["B"]}, "n", asked.sizes["Hq"])
        (own,) = asked.run(place, {**asked.sizes, "batch": batch, "head": head}, "read").results
        asked.show(own >= 0, own < asked.run(count, asked.sizes, "all").results[0])
        found = asked.run(reader, {**asked.sizes, "place": own}, "written").results
        for apart, one, other in ((lists.by_batch, batch, found[0]), (lists.by_head, head, found[1])):
            asked.show(*([one == other] if apart else [other == 0]))
        return asked.answer

    answer = remembered(whose, work, ask, lambda: wrong_list(lists, *whose))
    return _written(index, work) if isinstance(answer, Holds) else answer


def _written(index: Index, work: Work) -> Answer:
    """Whether the item that has the entry of a part of a tile of a list is of that part, tile and list."""
    both = index.of("entry_of"), index.of("part_of_entry")

    def ask(context: SolverContext) -> Answer:
        asked = Questions(context, ("n_tiles", "parts"), work)
        own: Names = {**asked.sizes, **{name: asked.fresh(name) for name in ("place", "tile", "part")}}
        asked.known += [own["place"] >= 0]
        for name, size in (("tile", "n_tiles"), ("part", "parts")):
            asked.known += [own[name] >= 0, own[name] < own[size]]
        entry = asked.run(both[0], own, "read")

        def same_row(row: Term) -> Term:
            theirs = entry.names.get("row", row)
            asked.show(row == theirs)
            return theirs

        lemmas: Lemmas = {"row": same_row}
        found = asked.run(both[1], {**asked.sizes, "item": entry.results[0]}, "written", lemmas=lemmas).results
        asked.show(*(a == own[name] for a, name in zip(found, ("place", "tile", "part"), strict=True)))
        return asked.answer

    return remembered(both, work, ask, lambda: wrong_entry(*both))


def listed_answer(context: SolverContext, index: Index, work: Work) -> Answer:
    """Whether the first tile of keys that meets some queries is known as such, and each other one awaits the turn that
    the last earlier one passes."""
    n_tiles, order, other = (context.free(name) for name in ("n_tiles", "order", "other order"))
    first, n_slots = context.free("first"), context.free("n_slots")  # of a sequence; a batch row's tiles are all
    premises = [order >= 0, order < n_tiles, other >= 0, other < n_tiles, first >= 0, first + n_tiles <= n_slots]
    conclusion: list[Term] = []

    def value(name: str, args: Names, **flags: int) -> Term:
        return results(context, index.of(name, **flags), {"n_tiles": n_tiles, **args})[0]

    for back in (FALSE, TRUE):
        way = context.term(back, {})
        tiles = [first + value("tile_in_order", {"order": at, "back": way}) for at in (order, other)]
        noted = ({"tile": tile, "n_tiles": n_slots} for tile in tiles)
        own, theirs = (value("noted_tile", args, BACKWARDS=back is TRUE) for args in noted)
        end = value("end_of_notes", {"first": first, "n_slots": n_slots, "back": way})
        later = value("comes_later", {"order": order, "noted": theirs, "n_tiles": end})
        conclusion += [own >= 1, (own < theirs) == (other < order), later == (other < order)]
        alone = value("end_of_notes", {"first": context.number(0), "n_slots": n_tiles, "back": way})
        conclusion.append(alone == n_tiles)
    passed, before = (value("passed_turn", {"order": at}) for at in (order, other))
    none = value("comes_later", {"order": order, "noted": context.number(0)})
    conclusion += [none == context.any_of([]), passed >= 1, (before < passed) == (other < order)]
    run: Names = {name: context.free(name) for name in ("at", "first", "stop")}
    conclusion.append(value("meets", run) == context.all_of([run["first"] <= run["at"], run["at"] < run["stop"]]))
    conclusion += _searched(context, index, order, other, premises)
    answer = context.ask_linear(premises, context.all_of(conclusion), work)
    return _cells(index, work) if isinstance(answer, Holds) else answer


def _searched(context: SolverContext, index: Index, order: Term, other: Term, premises: list[Term]) -> list[Term]:
    """That an earlier place is a lane of a chunk, no later than the first, and later chunks hold earlier places."""
    quotient, lane, chunk, low = (context.free(n) for n in ("their chunk", "lane", "chunk", "low"))
    start, a_lane = context.free("first chunk"), context.free("another lane")
    premises += [quotient * LANES <= other, other < quotient * LANES + LANES, low < chunk]
    premises += [x for n in (lane, a_lane) for x in (n >= 0, n < LANES)]
    place = index.of("place_of_lane")
    looks = ((quotient, other - quotient * LANES), (chunk, lane), (low, a_lane))
    where, later, earlier = (results(context, place, {"chunk": c, "lane": n})[0] for c, n in looks)
    premises.append(start == results(context, index.of("last_chunk"), {"order": order})[0])
    return [where == other, earlier < later, context.implies(other < order, quotient <= start)]


def _cells(index: Index, work: Work) -> Answer:
    """Whether no two lists, ways or tiles share a cell, and all cells lie in the room for two ways of each list."""
    cell = index.of("note_cell")

    def ask(context: SolverContext) -> Answer:
        asked = Questions(context, ("n_walked", "places"), work)
        size, places = asked.sizes["n_walked"], asked.sizes["places"]
        both: list[Names] = []
        for name in ("one", "other"):
            at, place = (asked.fresh(f"{what} of {name}") for what in ("at", "place"))
            back = asked.fresh(f"way of {name}", Type.BOOL)
            asked.known += [at >= 0, at < size, place >= 0, place < places]
            number = 2 * place + context.choose(back, context.number(1), context.number(0))
            both.append({**asked.sizes, "at": at, "back": back, "place": place, "list": number})
        one, other = both
        asked.rising(one, other, "list", size)
        cells = [asked.run(cell, names, f"{n}").results[0] for n, names in enumerate(both)]
        same = context.all_of([one[name] == other[name] for name in ("place", "back", "at")])
        asked.rising(one, {"list": 2 * places}, "list", size)
        asked.show(context.implies(cells[0] == cells[1], same), cells[0] >= 0, cells[0] < 2 * places * size)
        return asked.answer

    return remembered(cell, work, ask, lambda: wrong_cell(cell))
