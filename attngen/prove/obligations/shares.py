"""The shares of a group of query heads as formulas, for any group, any span, and any number of heads and of tiles.

Executes the plan's `Shares` in z3; `obligations.questions` says how. What is shown: each member of a group is in one
share and in no other, and no share is empty, for which a program would wait. Each head of an item is a share of a head
of keys, and each share of one is a head of items. The sums of no two items are in one place, so each part is written
once, and read once, with those of its tile's other shares.
"""

from __future__ import annotations

from attngen.plan.mask.shares import Shares
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import Names, Questions, remembered
from attngen.prove.search.small_shares import wrong_member, wrong_part


def members_answer(context: SolverContext, shares: Shares, work: Work) -> Answer:
    """Whether each member of a group is in exactly one share, and each share has a member."""

    def ask() -> Answer:
        asked = Questions(context, ("group", "span"), work)
        group, span = (asked.sizes[name] for name in ("group", "span"))
        count = asked.value(shares.shares, asked.sizes)
        asked.show(count >= 1, group <= count * span, count * span < group + span)

        def share(name: str, *known: Term) -> tuple[Term, Term, Term]:
            """A share that is `known` to be one, its first member and the one behind its last."""
            one = context.free(name)
            asked.known += [one >= 0, one < count, *known]
            names = {**asked.sizes, "share": one}
            return one, asked.value(shares.first, names), asked.value(shares.stop, names)

        one, first, stop = share("share")
        asked.rising({"n": one}, {"n": count}, "n", span)
        asked.show(first >= 0, first < stop, stop <= group)
        other, theirs, end = share("other share")
        asked.rising({"n": one}, {"n": other}, "n", span)
        member = context.free("member")
        asked.known += [member >= 0, member < group]
        inside = [first <= member, member < stop, theirs <= member, member < end]
        asked.show(context.implies(context.all_of(inside), one == other))
        if not isinstance(asked.answer, Holds):
            return asked.answer
        return _some_share(context, shares, work)

    return remembered(("members", shares), work, ask, lambda: wrong_member(shares))


def _some_share(context: SolverContext, shares: Shares, work: Work) -> Answer:
    """Whether each member is in the share whose number is its own by the span."""
    asked = Questions(context, ("group", "span"), work)
    group, span = (asked.sizes[name] for name in ("group", "span"))
    count = asked.value(shares.shares, asked.sizes)
    asked.show(group <= count * span)
    member, share = context.free("member"), context.free("share")
    asked.known += [member >= 0, member < group, share * span <= member, member < share * span + span]
    asked.rising({"n": share}, {"n": context.number(0)}, "n", span)
    asked.rising({"n": share}, {"n": count}, "n", span)
    names: Names = {**asked.sizes, "share": share}
    asked.show(share >= 0, share < count)
    asked.show(asked.value(shares.first, names) <= member, member < asked.value(shares.stop, names))
    return asked.answer


def parts_answer(context: SolverContext, shares: Shares, work: Work) -> Answer:
    """Whether heads of items are the shares of heads of keys, one for one, and each tile of each has a place of its
    own."""

    def ask() -> Answer:
        asked = Questions(context, ("heads", "shares"), work)
        heads, count = asked.sizes["heads"], asked.sizes["shares"]
        head = context.free("head")
        asked.known += [head >= 0, head < heads * count]
        names: Names = {**asked.sizes, "head": head}
        kv_head, share = asked.value(shares.kv_head, names), asked.value(shares.share, names)
        asked.rising({"n": kv_head}, {"n": context.number(0)}, "n", count)
        asked.rising({"n": kv_head}, {"n": heads}, "n", count)
        asked.show(share >= 0, share < count, kv_head >= 0, kv_head < heads)
        asked.show(asked.value(shares.head_of, {**asked.sizes, "kv_head": kv_head, "share": share}) == head)
        other, theirs = context.free("other head of keys"), context.free("other share")
        asked.known += [other >= 0, other < heads, theirs >= 0, theirs < count]
        made = asked.value(shares.head_of, {**asked.sizes, "kv_head": other, "share": theirs})
        asked.rising({"n": kv_head}, {"n": other}, "n", count)
        same = context.all_of([kv_head == other, share == theirs])
        asked.show(context.implies(made == head, same))
        asked.rising({"n": other}, {"n": heads}, "n", count)
        asked.show(context.implies(other == 0, made == theirs), made >= 0, made < heads * count)
        if not isinstance(asked.answer, Holds):
            return asked.answer
        return _places(context, shares, work)

    return remembered(("parts", shares), work, ask, lambda: wrong_part(shares))


def _places(context: SolverContext, shares: Shares, work: Work) -> Answer:
    """Whether no two tiles of heads of items have one place, and there are no more places than tiles."""
    asked = Questions(context, ("heads", "n_tiles"), work)
    heads, n_tiles = (asked.sizes[name] for name in ("heads", "n_tiles"))

    def item(name: str) -> tuple[Term, Term, Term]:
        head, tile = context.free(f"{name} head"), context.free(f"{name} tile")
        asked.known += [head >= 0, head < heads, tile >= 0, tile < n_tiles]
        return head, tile, asked.value(shares.part, {**asked.sizes, "head": head, "tile": tile})

    head, tile, part = item("one")
    other, theirs, place = item("other")
    asked.rising({"n": head}, {"n": other}, "n", n_tiles)
    asked.rising({"n": head}, {"n": heads}, "n", n_tiles)
    asked.show(context.implies(part == place, context.all_of([head == other, tile == theirs])))
    asked.rising({"n": head}, {"n": context.number(0)}, "n", n_tiles)
    asked.show(part >= 0, part < heads * n_tiles)
    return asked.answer
