"""The order of tickets and the turns of dQ as formulas, for any number of tiles, of heads, and of heads together.

Executes the plan's `Turns` in z3 for a ticket and for another. Divisors are unknowns, so each quotient is an unknown
with its definition, q * c <= a < q * c + c. What follows of one step is asked for before it is a premise of the next.

What is shown: every ticket is a tile of a head, and no two are the same, so each tile has a ticket, since there are as
many. Of two tiles of a head, the lower in the order has the lower ticket. A tile awaits the turn that the one before it
in the order passes. By hand: programs take tickets one after the other, and finish each before the next, so the lowest
ticket that is not done belongs to a program that has begun, and waits for none. So there is no deadlock with any number
of programs.
"""

from __future__ import annotations

from attngen.plan.mask.turns import Turns
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Fails, Holds, Open, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import Names, Questions
from attngen.prove.search.small_tickets import wrong_ticket

_SHOWN: dict[Turns, int] = {}
"""Orders that are shown, and the units that it took: nothing of a spec bears on them, and each proof pays for them."""


def order_answer(context: SolverContext, turns: Turns, work: Work) -> Answer:
    """Whether each ticket is a tile of a head, no two are the same, and the tickets of a head rise with the order.

    Where z3 does not show a step, small sizes are tried: a step can fail without harm.
    """
    if _SHOWN.get(turns, work.left + 1) <= work.left:
        work.charge(_SHOWN[turns])
        return Holds()
    spent = work.spent
    asked = _Tickets(context, turns, work)
    few = asked.value(turns.few, asked.sizes) >= 1
    asked.follows(few, *asked.known, kept=False)
    one = asked.ticket("one")
    other = asked.ticket("other", shown=True)
    together, width = asked.sizes["together"], one["width"]
    same = one["head"] == other["head"]
    asked.known.append(same)
    ends = [x for t in (one, other) for x in (t["first"] <= t["head"], t["head"] < t["first"] + together)]
    groups = [t["first"] == t["group"] * together for t in (one, other)]
    asked.follows(one["first"] == other["first"], *ends, *groups, same, *asked.rising(one, other, "group", together))
    ways = asked.value(turns.back, one) == asked.value(turns.back, other)
    asked.follows(ways, one["first"] == other["first"], kept=False)
    asked.show(width == other["width"])
    apart = one["item"] - one["i"] == other["item"] - other["i"]
    rest = one["i"] - one["order"] * width == other["i"] - other["order"] * width
    asked.show(apart, rest)
    asked.follows(context.implies(one["order"] == other["order"], one["item"] == other["item"]), apart, rest)
    ends = [x for t in (one, other) for x in (t["order"] * width <= t["i"], t["i"] < t["order"] * width + width)]
    rising = asked.rising(one, other, "order", width)
    asked.follows(context.implies(one["order"] < other["order"], one["item"] < other["item"]), apart, *ends, *rising)
    if isinstance(asked.answer, Holds):
        _SHOWN[turns] = work.spent - spent
        return asked.answer
    found = wrong_ticket(turns)
    return Open("z3 does not show it, and small sizes show no mistake") if found is None else Fails(found)


def awaited_answer(context: SolverContext, turns: Turns, work: Work) -> Answer:
    """Whether each place in the order is a tile; and whether a tile that is not the first awaits the turn that the one
    before it passes, and no other's, and takes that one for the tile before it, whichever way its group goes."""
    n_tiles, order, other = (context.free(name) for name in ("n_tiles", "order", "other order"))
    premises = [order >= 1, order < n_tiles, other >= 0, other < n_tiles]
    names = {"n_tiles": n_tiles, "order": order}
    earlier = {"n_tiles": n_tiles, "order": order - 1}
    passed = context.term(turns.passed, {"order": other})
    inside: list[Term] = []
    conclusion = [(passed == context.term(turns.awaited, names)) == (other == order - 1), passed >= 1]
    for tile, before in (
        (turns.tile.onwards, turns.before.onwards),
        (turns.tile.backwards, turns.before.backwards),
    ):
        before_it = context.term(before, {**names, "tile": context.term(tile, names)})
        conclusion.append(before_it == context.term(tile, earlier))
        at = context.term(tile, {"n_tiles": n_tiles, "order": other})
        inside += [at >= 0, at < n_tiles]
    answer = context.ask_linear([other >= 0, other < n_tiles], context.all_of(inside), work)
    return context.ask_linear(premises, context.all_of(conclusion), work) if isinstance(answer, Holds) else answer


class _Tickets(Questions):
    """Questions about tickets."""

    def __init__(self, context: SolverContext, turns: Turns, work: Work):
        super().__init__(context, ("n_tiles", "heads", "together"), work)
        self.turns = turns

    def ticket(self, name: str, shown: bool = False) -> Names:
        """What the steps bind for a ticket, each shown to be inside its bounds. `shown`: as it is of any other."""
        self.shown = shown
        item = self.context.free(f"item of {name}")
        tiles, heads, together = (self.sizes[n] for n in ("n_tiles", "heads", "together"))
        found = {**self.sizes, "item": item}
        first_quotient = len(self.quotients)
        self.known += [item >= 0, item < tiles * heads]
        for step in self.turns.steps:
            bound = self.context.free(f"{step.name} of {name}")
            self.known.append(bound == self.value(step.value, found))
            found[step.name] = bound
        first, width, i, order = (found[n] for n in ("first", "width", "i", "order"))
        self.show(first >= 0, first < heads, width >= 1, width <= together, first + width <= heads)
        self.show(i >= 0, i < tiles * width, order >= 0, order < tiles)
        found["group"] = self.quotients[first_quotient][2] if self.quotients[first_quotient:] else first
        found["head"] = self.context.free(f"head of {name}")
        self.known.append(found["head"] == self.value(self.turns.head, found))
        self.show(first <= found["head"], found["head"] < first + width)
        self.shown = False
        return found
