"""Orders of items as formulas, for any number of tiles, of heads, and of heads together.

Executes the plan's `Order` in z3 for an item and for another. Divisors are unknowns, so each quotient is an unknown
with its definition, q * c <= a < q * c + c. What follows of one step is asked for before it is a premise of the next.

What is shown: every item is a tile of a head, and no two are the same, so each tile has an item, since there are as
many. Of two tiles of a head, the lower in the order has the lower item, and both are in one group. Each number of
a head stands for one batch and one head, and no two numbers stand for the same.
"""

from __future__ import annotations

from attngen.plan.mask.order import Heads, Order
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import Names, Questions, remembered
from attngen.prove.search.small_items import wrong_head, wrong_item


def order_answer(context: SolverContext, order: Order, work: Work) -> Answer:
    """Whether each item is a tile of a head, no two are the same, and the items of a head rise with the order."""
    return remembered(order, work, lambda: _order_answer(context, order, work), lambda: wrong_item(order))


def _order_answer(context: SolverContext, order: Order, work: Work) -> Answer:
    asked = _Items(context, order, work)
    one = asked.item("one")
    other = asked.item("other", shown=True)
    same = one["head"] == other["head"]
    asked.known.append(same)
    reasons = _of_one_group(asked, one, other) if "width" in one else asked.known
    asked.follows(context.implies(one["order"] == other["order"], one["item"] == other["item"]), *reasons)
    rising = asked.rising(one, other, "order", one["width"]) if "width" in one else []
    asked.follows(context.implies(one["order"] < other["order"], one["item"] < other["item"]), *reasons, *rising)
    return _tile_answer(context, order, work) if isinstance(asked.answer, Holds) else asked.answer


def _of_one_group(asked: _Items, one: Names, other: Names) -> list[Term]:
    """Shows that two items of a head belong to one group; returns what holds of their places within it."""
    together, width = asked.sizes["together"], one["width"]
    ends = [x for t in (one, other) for x in (t["first"] <= t["head"], t["head"] < t["first"] + together)]
    groups = [t["first"] == t["group"] * together for t in (one, other)]
    rising = asked.rising(one, other, "group", together)
    asked.follows(one["first"] == other["first"], *ends, *groups, one["head"] == other["head"], *rising)
    asked.show(width == other["width"])
    apart = one["item"] - one["i"] == other["item"] - other["i"]
    rest = one["i"] - one["order"] * width == other["i"] - other["order"] * width
    asked.show(apart, rest)
    inside = [x for t in (one, other) for x in (t["order"] * width <= t["i"], t["i"] < t["order"] * width + width)]
    return [apart, rest, *inside]


def _tile_answer(context: SolverContext, order: Order, work: Work) -> Answer:
    """Whether each place is a tile, and no two are the same, whichever way they are taken."""
    n_tiles, one, other = (context.free(name) for name in ("n_tiles", "order", "other order"))
    conclusion: list[Term] = []
    for way in (order.tile.onwards, order.tile.backwards):
        tile, another = (context.term(way, {"n_tiles": n_tiles, "order": at}) for at in (one, other))
        conclusion += [tile >= 0, tile < n_tiles, context.implies(tile == another, one == other)]
    inside = [x for at in (one, other) for x in (at >= 0, at < n_tiles)]
    return context.ask_linear(inside, context.all_of(conclusion), work)


def heads_answer(context: SolverContext, heads: Heads, work: Work) -> Answer:
    """Whether each number is a batch and a head, and no two are the same."""

    def ask() -> Answer:
        asked = Questions(context, ("n_batches", "n_heads"), work)
        both: list[Names] = []
        for name in ("one", "other"):
            found: Names = {**asked.sizes, "i": context.free(f"i of {name}")}
            asked.known += [found["i"] >= 0, found["i"] < asked.sizes["n_batches"] * asked.sizes["n_heads"]]
            for part, value in (("batch", heads.batch), ("head", heads.head)):
                found[part] = asked.value(value, found)
                asked.show(
                    found[part] >= 0, found[part] < asked.sizes[f"n_{'batches' if part == 'batch' else 'heads'}"]
                )
            both.append(found)
        one, other = both
        same = context.all_of([one[name] == other[name] for name in ("batch", "head")])
        asked.show(context.implies(same, one["i"] == other["i"]))
        return asked.answer

    return remembered(heads, work, ask, lambda: wrong_head(heads))


class _Items(Questions):
    """Questions about items."""

    def __init__(self, context: SolverContext, order: Order, work: Work):
        super().__init__(context, ("n_tiles", "heads", "together"), work)
        self.order = order

    def item(self, name: str, shown: bool = False) -> Names:
        """What the steps bind for an item, each shown to be inside its bounds. `shown`: as it is of any other."""
        self.shown = shown
        item = self.context.free(f"item of {name}")
        tiles, heads, together = (self.sizes[n] for n in ("n_tiles", "heads", "together"))
        found = {**self.sizes, "item": item}
        first_quotient = len(self.quotients)
        self.known += [item >= 0, item < tiles * heads]
        for step in self.order.steps:
            bound = self.context.free(f"{step.name} of {name}")
            self.known.append(bound == self.value(step.value, found))
            found[step.name] = bound
        if "width" in found:
            first, width, i = (found[n] for n in ("first", "width", "i"))
            self.show(first >= 0, first < heads, width >= 1, width <= together, first + width <= heads)
            self.show(i >= 0, i < tiles * width)
            found["group"] = self.quotients[first_quotient][2] if self.quotients[first_quotient:] else first
        self.show(found["order"] >= 0, found["order"] < tiles)
        found["head"] = self.context.free(f"head of {name}")
        self.known.append(found["head"] == self.value(self.order.head, found))
        if "width" in found:
            self.show(found["first"] <= found["head"], found["head"] < found["first"] + found["width"])
        else:
            self.show(found["head"] >= 0, found["head"] < heads)
        self.shown = False
        return found
