"""The turns of dQ as formulas, for any number of tiles.

Executes functions of `plan.index` in z3. What is shown, beside what `orders` shows of tickets: a tile awaits the turn
that the one before it in the order passes, at the tiles of queries that this one meets, and cells begin at 0. By hand:
programs take tickets one after the other, and finish each before the next, so the lowest ticket that is not done
belongs to a program that has begun, and waits for none. So there is no deadlock with any number of programs.
"""

from __future__ import annotations

from collections.abc import Iterable

from attngen.plan.index import Index
from attngen.plan.mask.turns import Cells
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Fails
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import results


def cleared_answer(
    context: SolverContext, cells: Cells, index: Index, tiles: Iterable[int], *, listed: bool, work: Work
) -> Answer:
    """Whether there is room for all ints in which a call counts, and they are cleared. `tiles`: queries of the tiles of
    dQ that there may be. A list notes two ways of each (`note_cell`)."""
    if min(tiles) < cells.least:
        return Fails({"queries of a tile": min(tiles)})
    if listed and cells.noted < 2:
        return Fails({"ways": 2, "noted": cells.noted})
    n_parts, programs = context.free("n_parts"), context.free("programs")
    most = max(-(-cells.rows // cells.least), 0 if listed else cells.most)  # a list is of no sequences
    premises = [n_parts >= 1, programs >= 1, n_parts <= most * programs]
    (room,) = results(context, index.of("counters"), {"n_parts": n_parts})
    counted = sum(cells.kinds(listed=listed).values()) * room
    conclusion = [room >= n_parts, room >= cells.queue, counted <= cells.cleared * programs]
    return context.ask_linear(premises, context.all_of(conclusion), work)


def awaited_answer(context: SolverContext, index: Index, work: Work) -> Answer:
    """Whether a tile waits where one comes before it in the order and meets the same queries, and then awaits the turn
    that this one passes, and no other's."""
    n_tiles, order, other = (context.free(name) for name in ("n_tiles", "order", "other order"))
    at, first, stop = (context.free(name) for name in ("at", "first", "stop"))
    premises = [order >= 0, order < n_tiles, other >= 0, other < n_tiles, first <= stop]
    (passed,) = results(context, index.of("passed_turn"), {"order": other})
    (awaited,) = results(context, index.of("awaited_turn"), {"order": order})
    (end,) = results(context, index.of("end_before"), {"order": order, "first": first, "stop": stop})
    (waits,) = results(context, index.of("meets"), {"at": at, "first": first, "stop": end})
    conclusion = [
        waits == context.all_of([order >= 1, first <= at, at < stop]),
        context.implies(order >= 1, (passed == awaited) == (other == order - 1)),
        passed >= 1,
    ]
    return context.ask_linear(premises, context.all_of(conclusion), work)
