"""Which item is which tile of which head, as formulas, for any number of tiles, batches, heads, and heads together.

Executes functions of `plan.index` in z3, for an item and for another; `obligations.questions` says how. Divisors are
unknowns, so each quotient is an unknown with its definition, q * c <= a < q * c + c. What follows of one step is asked
for before it is a premise of the next.

What is shown: of `side_by_side`, that every item is a tile of a head and no two are the same, so each tile has an item,
since there are as many; that of two tiles of a head the lower in the order has the lower item, and both are in one
group. Functions that call it are executed with that as all that is known of it. Of these, that every item is a tile of
a head of a batch, and no two are the same; where tiles add to dQ in order, also that all items of a head go one way.
"""

from __future__ import annotations

from attngen.ir.build import FALSE, TRUE
from attngen.ir.function import Called, Function
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import Contracts, Names, Questions, Run, remembered
from attngen.prove.search.small_items import wrong_item, wrong_neighbour, wrong_order, wrong_reader


def order_answer(side_by_side: Function, work: Work) -> Answer:
    """Whether each item is a tile of a head, no two are the same, and the items of a head rise with the order."""
    return remembered(
        side_by_side, work, lambda own: _order_answer(own, side_by_side, work), lambda: wrong_order(side_by_side)
    )


def _order_answer(context: SolverContext, f: Function, work: Work) -> Answer:
    asked = Questions(context, ("n_tiles", "heads", "together"), work)
    tiles, heads, together = (asked.sizes[n] for n in ("n_tiles", "heads", "together"))

    def item(name: str, shown: bool) -> Names:
        """What the steps bind for an item, each shown to be inside its bounds. `shown`: as it is of any other."""
        number, before = asked.fresh(f"item of {name}"), len(asked.quotients)
        asked.known += [number >= 0, number < tiles * heads]
        with asked.as_any(shown):
            run = asked.run(f, {**asked.sizes, "item": number}, name)
            found = dict(run.names)
            first, width, i = (found[n] for n in ("first", "width", "i"))
            asked.show(first >= 0, first < heads, width >= 1, width <= together, first + width <= heads)
            asked.show(i >= 0, i < tiles * width)
            found["group"] = asked.quotients[before][2] if asked.quotients[before:] else first
            start, found["order"], found["head"] = run.results
            asked.show(start == first, found["order"] >= 0, found["order"] < tiles)
            asked.show(first <= found["head"], found["head"] < first + width)
        return found

    one, other = item("one", shown=False), item("other", shown=True)
    asked.known.append(one["head"] == other["head"])
    reasons = _of_one_group(asked, one, other)
    asked.follows(context.implies(one["order"] == other["order"], one["item"] == other["item"]), *reasons)
    rising = asked.rising(one, other, "order", one["width"])
    asked.follows(context.implies(one["order"] < other["order"], one["item"] < other["item"]), *reasons, *rising)
    return asked.answer


def _of_one_group(asked: Questions, one: Names, other: Names) -> list[Term]:
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


def items_answer(f: Function, work: Work) -> Answer:
    """Whether each item is a tile of a head of a batch, and no two are the same."""

    def ask(context: SolverContext) -> Answer:
        asked = _Items(context, f, work)
        one, other = (asked.item(name, shown=name == "other") for name in ("one", "other"))
        for a, b in zip(one.results, other.results, strict=True):
            asked.known.append(a == b)
        asked.show(one.names["own item"] == other.names["own item"])
        return asked.answer

    return remembered(f, work, ask, lambda: wrong_item(f))


def keys_answer(f: Function, work: Work) -> Answer:
    """Whether each item is a tile of keys of a head and no two are the same, those of a head rise with the order, and
    all of them go one way. How a place in the order is a tile, `neighbour_answer` shows."""

    def ask(context: SolverContext) -> Answer:
        asked = _Items(context, f, work)
        one, other = (asked.item(name, shown=name == "other") for name in ("one", "other"))
        (tile, order, back, head), (_, later, way, same) = one.results, other.results
        asked.show(order >= 0, order < asked.sizes["n_tiles"], head >= 0, head < asked.heads)
        asked.show(tile >= 0, tile < asked.sizes["n_tiles"])
        item, next_item = (run.names["own item"] for run in (one, other))
        asked.known.append(head == same)
        asked.show(back == way, context.implies(order == later, item == next_item))
        asked.show(context.implies(order < later, item < next_item))
        return asked.answer

    return remembered(f, work, ask, lambda: wrong_item(f, ordered=True))


def neighbour_answer(tile_in_order: Function, before: Function, work: Work) -> Answer:
    """Whether places in the order are tiles, no two the same, whichever way it goes, and the tile before one is that of
    the place before its own. `before` goes the ways that its flag allows."""

    def ask(context: SolverContext) -> Answer:
        asked = Questions(context, ("n_tiles",), work)
        n_tiles = asked.sizes["n_tiles"]
        one, other = asked.fresh("order"), asked.fresh("other order")
        asked.known += [x for at in (one, other) for x in (at >= 0, at < n_tiles)]
        for back in (FALSE, TRUE) if dict(before.flags)["BACKWARDS"] else (FALSE,):
            way: Names = {**asked.sizes, "back": context.term(back, {})}
            tile, next_tile, last = (
                asked.run(tile_in_order, {**way, "order": at}, f"{back.value} {i}").results[0]
                for i, at in enumerate((one, other, one - 1))
            )
            asked.show(tile >= 0, tile < n_tiles, context.implies(tile == next_tile, one == other))
            (earlier,) = asked.run(before, {**way, "tile": tile}, f"before {back.value}").results
            asked.show(earlier >= 0, earlier < n_tiles, context.implies(one >= 1, earlier == last))
        return asked.answer

    key = (tile_in_order, before)
    return remembered(key, work, ask, lambda: wrong_neighbour(tile_in_order, before))


def readers_answer(kv_head_of: Function, query_head: Function, work: Work) -> Answer:
    """Whether a query head reads a head of keys that there is, and each member of the group of a head of keys is a
    query head that reads it."""

    def ask(context: SolverContext) -> Answer:
        asked = Questions(context, ("group", "Hkv"), work)
        group, n_kv = asked.sizes["group"], asked.sizes["Hkv"]
        n_heads = group * n_kv

        def read(head: Term, name: str) -> Term:
            before = len(asked.quotients)
            (found,) = asked.run(kv_head_of, {"head": head, "Hq": n_heads, "Hkv": n_kv}, name).results
            for a, _, q in asked.quotients[before:]:
                if a.eq(n_heads):  # the group, as the function finds it
                    asked.rising({"n": q}, {"n": group}, "n", n_kv)
                    asked.show(q == group)
            return found

        head, own, member = (asked.fresh(name) for name in ("head", "own head of keys", "member"))
        asked.known += [head >= 0, head < n_heads, own >= 0, own < n_kv, member >= 0, member < group]
        kv_head = read(head, "one")
        for number in (kv_head, own):
            for end in (context.number(0), n_kv):
                asked.rising({"n": number}, {"n": end}, "n", group)
        asked.show(kv_head >= 0, kv_head < n_kv)
        (made,) = asked.run(query_head, {"kv_head": own, "member": member, "group": group}, "made").results
        asked.show(made >= 0, made < n_heads)
        back = read(made, "back")
        asked.rising({"n": back}, {"n": own}, "n", group)
        asked.show(back == own)
        return asked.answer

    return remembered((kv_head_of, query_head), work, ask, lambda: wrong_reader(kv_head_of, query_head))


class _Items(Questions):
    """Questions about the items of a function, of which there are as many as tiles of all heads of all batches."""

    def __init__(self, context: SolverContext, f: Function, work: Work):
        super().__init__(context, ("n_tiles", "n_batches", "n_heads", "together"), work)
        self.f = f
        n_tiles, n_batches, n_heads = (self.sizes[name] for name in ("n_tiles", "n_batches", "n_heads"))
        self.heads = n_batches * n_heads
        self.n_items = n_tiles * self.heads
        self.known.append(self.heads >= 1)
        self.calls: list[tuple[Term, list[Term]]] = []
        for callee in _called(f):
            if callee.name in _CONTRACTS and isinstance(self.answer, Holds):
                self.answer = _CONTRACTS[callee.name](callee, work)

    def item(self, name: str, *, shown: bool) -> Run:
        """What the function returns for an item, whose numbers are shown to be inside their bounds. `shown`: as those
        of any other are."""
        item = self.fresh(f"item of {name}")
        self.known += [item >= 0, item < self.n_items]
        counts = dict.fromkeys(("n_items", "n_programs", "programs"), self.n_items)
        args = {**self.sizes, **counts, **dict.fromkeys(("item", "program"), item)}

        contracts: Contracts = {
            "side_by_side": lambda _, given: self.placed(given, name),
            "tile_of_item": lambda _, given: self.found(given, name),
        }
        with self.as_any(shown):
            run = self.run(self.f, args, name, contracts)
            if len(run.results) == 3:
                self.inside(run)
        run.names["own item"] = item
        return run

    def found(self, given: Names, name: str) -> list[Term]:
        """What is known of the tile, the batch and the head of an item."""
        item, sizes = given["item"], [self.sizes[size] for size in ("n_tiles", "n_batches", "n_heads")]
        self.show(given["n_tiles"] == sizes[0], given["n_heads"] == sizes[2], given["together"] >= 1)
        self.show(given["n_items"] == self.n_items, item >= 0, item < self.n_items)
        found = [self.fresh(f"{what} of {name}") for what in ("tile", "batch", "head")]
        self.known += [x for at, size in zip(found, sizes, strict=True) for x in (at >= 0, at < size)]
        for other, theirs in self.calls:
            same = self.context.all_of([a == b for a, b in zip(found, theirs, strict=True)])
            self.known.append(self.context.implies(same, item == other))
        self.calls.append((item, found))
        return found

    def placed(self, given: Names, name: str) -> list[Term]:
        """What is known of an item's group, its place in the order, and its head."""
        item, heads = given["item"], given["heads"]
        self.rising({"n": heads}, {"n": self.heads}, "n", self.sizes["n_tiles"])
        self.show(given["n_tiles"] == self.sizes["n_tiles"], heads == self.heads, given["together"] >= 1)
        self.show(item >= 0, item < self.n_items)
        first, order, head = found = [self.fresh(f"{what} of {name}") for what in ("first", "order", "head")]
        self.known += [order >= 0, order < self.sizes["n_tiles"], head >= 0, head < self.heads]
        self.known += [first >= 0, first <= head, head < first + given["together"]]
        for other, (their_first, their_order, their_head) in self.calls:
            same = head == their_head
            self.known.append(self.context.implies(same, first == their_first))
            for mine, theirs, earlier in ((order, their_order, item < other), (their_order, order, other < item)):
                self.known.append(self.context.implies(self.context.all_of([same, mine < theirs]), earlier))
            equal = self.context.all_of([same, order == their_order])
            self.known.append(self.context.implies(equal, item == other))
        self.calls.append((item, found))
        return found

    def inside(self, run: Run) -> None:
        """Shows that what it returns is a tile, a batch and a head."""
        n_tiles, n_batches, n_heads = (self.sizes[name] for name in ("n_tiles", "n_batches", "n_heads"))
        ends = [(n_tiles, self.heads), (n_tiles * n_heads, n_batches), (n_heads, n_batches), (n_batches, n_heads)]
        for a, c, q in list(self.quotients):
            for divisor, end in ends:
                if c.eq(divisor):
                    self.rising({"n": q}, {"n": self.context.number(0)}, "n", c)
                    self.rising({"n": q}, {"n": end}, "n", c)
                    if a.eq(self.n_items):
                        self.show(q == end)
                        ends.append((q, n_heads))
        tile, batch, head = run.results
        self.show(tile >= 0, tile < n_tiles, batch >= 0, batch < n_batches, head >= 0, head < n_heads)


_CONTRACTS = {"side_by_side": order_answer, "tile_of_item": items_answer}
"""Functions of which others know what is shown of them."""


def _called(f: Function) -> list[Function]:
    """The functions that it calls, and those that they call."""
    own = [s.function for s in f.body if isinstance(s, Called)]
    return [*own, *(g for function in own for g in _called(function))]
