"""The turns of dQ as formulas, for any number of tiles.

What is shown, beside what `orders` shows of tickets: a tile awaits the turn that the one before it in the order passes,
and cells begin at 0. By hand: programs take tickets one after the other, and finish
each before the next, so the lowest ticket that is not done belongs to a program that has begun, and waits for none. So
there is no deadlock with any number of programs.
"""

from __future__ import annotations

from collections.abc import Iterable

from attngen.plan.mask.turns import Cells, Turns
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Fails
from attngen.prove.integers.z3_door import SolverContext


def cleared_answer(context: SolverContext, cells: Cells, tiles: Iterable[int], *, listed: bool, work: Work) -> Answer:
    """Whether there is room for all ints in which a call counts, and they are cleared. `tiles`: queries of the tiles of
    dQ that there may be. A list notes two ways of each (`Listed.cell`)."""
    if min(tiles) < cells.least:
        return Fails({"queries of a tile": min(tiles)})
    if listed and cells.noted < 2:
        return Fails({"ways": 2, "noted": cells.noted})
    n_parts, programs = context.free("n_parts"), context.free("programs")
    most = max(-(-cells.rows // cells.least), 0 if listed else cells.most)  # a list is of no sequences
    premises = [n_parts >= 1, programs >= 1, n_parts <= most * programs]
    room = context.term(cells.room, {"n_parts": n_parts})
    counted = sum(cells.kinds(listed=listed).values()) * room
    conclusion = [room >= n_parts, room >= cells.queue, counted <= cells.cleared * programs]
    return context.ask_linear(premises, context.all_of(conclusion), work)


def awaited_answer(context: SolverContext, turns: Turns, work: Work) -> Answer:
    """Whether a tile that is not the first awaits the turn that the one before it passes, and no other's."""
    n_tiles, at, other = (context.free(name) for name in ("n_tiles", "order", "other order"))
    premises = [at >= 1, at < n_tiles, other >= 0, other < n_tiles]
    passed = context.term(turns.passed, {"order": other})
    awaited = context.term(turns.awaited, {"order": at})
    conclusion = [(passed == awaited) == (other == at - 1), passed >= 1]
    return context.ask_linear(premises, context.all_of(conclusion), work)
