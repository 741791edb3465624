"""The shares of a group of query heads as formulas, for any group, any span, and any number of heads and of tiles.

Executes functions of `plan.index` in z3; `obligations.questions` says how. What is shown: each head of items visits
members of the group of a head of keys, at least one, for which a program would wait, and each member is visited by one
head of items. The sums of no two items are in one place, so each part is written once, and read once, with those of its
tile's other shares.
"""

from __future__ import annotations

from collections.abc import Callable

from attngen.ir.function import Function
from attngen.plan.index import Index
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import Lemmas, Questions, remembered
from attngen.prove.search.small_shares import wrong_alone, wrong_member, wrong_part


def members_answer(index: Index, work: Work) -> Answer:
    """Whether each member of a group is visited by exactly one head of items, and each of these visits one."""
    shared, alone = (index.of("members", SHARED=flag) for flag in (True, False))
    share_count, head_of_share = index.of("share_count"), index.of("head_of_share")

    def ask(context: SolverContext) -> Answer:
        asked = _Members(context, work, shared, share_count)
        one, other = (asked.fresh(name) for name in ("one head of items", "another head of items"))
        found = [asked.visited(one, "one"), asked.visited(other, "other", shown=True)]
        (batch, kv_head, start, end), (same_batch, same_head, begin, stop) = found
        asked.known += [batch == same_batch, kv_head == same_head]
        asked.show(asked.named["kv_head_2 of one"] == asked.named["kv_head_2 of other"])
        asked.rising({"n": asked.named["share of one"]}, {"n": asked.named["share of other"]}, "n", asked.span)
        member = asked.fresh("member")
        inside = [start <= member, member < end, begin <= member, member < stop]
        asked.show(context.implies(context.all_of(inside), one == other))
        if not isinstance(asked.answer, Holds):
            return asked.answer
        return _some_head(context, work, shared, share_count, head_of_share)

    key = ("members", shared, share_count, head_of_share)
    answer = remembered(key, work, ask, lambda: wrong_member(shared, share_count, head_of_share))
    if not isinstance(answer, Holds):
        return answer
    return remembered(alone, work, lambda context: _alone(context, work, alone), lambda: wrong_alone(alone))


def _some_head(
    context: SolverContext, work: Work, members: Function, share_count: Function, head_of_share: Function
) -> Answer:
    """Whether each member is visited by the head of items of the share whose number is its own by the span."""
    asked = _Members(context, work, members, share_count)
    kv_head, member, share = (asked.fresh(name) for name in ("head of keys", "member", "its share"))
    asked.known += [kv_head >= 0, kv_head < asked.n_kv, member >= 0, member < asked.group]
    asked.known += [share * asked.span <= member, member < share * asked.span + asked.span]
    for end in (context.number(0), asked.count):
        asked.rising({"n": share}, {"n": end}, "n", asked.span)
    asked.show(share >= 0, share < asked.count)
    given = {"kv_head": kv_head, "share": share, "shares": asked.count}
    (head,) = asked.run(head_of_share, given, "made").results
    for end in (context.number(0), asked.n_kv):
        asked.rising({"n": kv_head}, {"n": end}, "n", asked.count)
    asked.show(head >= 0, head < asked.n_kv * asked.count)
    batch, own, start, end = asked.visited(head, "own", shown=True)  # as of any head of items
    asked.rising({"n": asked.named["kv_head_2 of own"]}, {"n": kv_head}, "n", asked.count)
    asked.show(asked.named["kv_head_2 of own"] == kv_head, asked.named["share of own"] == share)
    asked.show(batch * asked.per_batch + own == kv_head, start <= member, member < end)
    return asked.answer


def _alone(context: SolverContext, work: Work, members: Function) -> Answer:
    """Whether an item of each head of keys visits all members of its group, where groups have one share."""
    asked = Questions(context, ("group", "Hkv", "batches"), work)
    group, per_batch, batches = (asked.sizes[name] for name in ("group", "Hkv", "batches"))
    head = asked.fresh("head")
    asked.known += [head >= 0, head < batches * per_batch]
    args = {"head": head, "Hq": group * per_batch, "Hkv": per_batch, "span": asked.fresh("span")}

    def its_group(found: Term) -> Term:
        asked.rising({"n": found}, {"n": group}, "n", per_batch)
        asked.show(found == group)
        return group

    batch, kv_head, start, end = asked.run(members, args, "item", lemmas={"group": its_group}).results
    for stop in (context.number(0), batches):
        asked.rising({"n": batch}, {"n": stop}, "n", per_batch)
    asked.show(batch >= 0, batch < batches, kv_head >= 0, kv_head < per_batch)
    asked.show(batch * per_batch + kv_head == head, start == 0, end == group)
    return asked.answer


class _Members(Questions):
    """Questions about heads of items, of which each head of keys of each batch has as many as shares."""

    def __init__(self, context: SolverContext, work: Work, members: Function, share_count: Function):
        super().__init__(context, ("group", "span", "Hkv", "batches"), work)
        self.members = members
        self.group, self.span, self.per_batch, self.batches = self.sizes.values()
        self.n_kv = self.batches * self.per_batch
        self.known.append(self.n_kv >= 1)
        self.named: dict[str, Term] = {}
        (self.count,) = self.run(share_count, {"group": self.group, "span": self.span}, "count").results
        self.show(self.count >= 1, self.group <= self.count * self.span)
        self.show(self.count * self.span < self.group + self.span)

    def visited(self, head: Term, name: str, *, shown: bool = False) -> list[Term]:
        """The batch and the head of keys that a head of items has, and the members that it visits: at least one.
        `shown`: as of any other."""
        zero = self.context.number(0)
        self.known += [head >= 0, head < self.n_kv * self.count]

        def is_size(size: Term, factor: Term) -> Callable[[Term], Term]:
            def shown(found: Term) -> Term:
                self.rising({"n": found}, {"n": size}, "n", factor)
                self.show(found == size)
                return size

            return shown

        def kv_head(found: Term) -> Term:
            for end in (zero, self.n_kv):
                self.rising({"n": found}, {"n": end}, "n", self.count)
            self.show(self.context.all_of([found >= 0, found < self.n_kv]))
            return found

        def share(found: Term) -> Term:
            self.show(self.context.all_of([found >= 0, found < self.count]))
            self.rising({"n": found}, {"n": self.count}, "n", self.span)
            self.rising({"n": found}, {"n": zero}, "n", self.span)
            return found

        lemmas: Lemmas = {
            "group": is_size(self.group, self.per_batch),
            "shares": is_size(self.count, self.span),
            "kv_head_2": kv_head,
            "share": share,
        }
        args = {"head": head, "Hq": self.group * self.per_batch, "Hkv": self.per_batch, "span": self.span}
        with self.as_any(shown):
            run = self.run(self.members, args, name, lemmas=lemmas)
            batch, kv, start, end = run.results
            for stop in (zero, self.batches):
                self.rising({"n": batch}, {"n": stop}, "n", self.per_batch)
            self.show(self.context.all_of([batch >= 0, batch < self.batches, kv >= 0, kv < self.per_batch]))
            self.show(self.context.all_of([start >= 0, start < end, end <= self.group]))
        self.named |= {f"{what} of {name}": run.names[what] for what in ("kv_head_2", "share")}
        return run.results


def parts_answer(part_of: Function, work: Work) -> Answer:
    """Whether no two tiles of heads of items have one place, and there are no more places than tiles."""

    def ask(context: SolverContext) -> Answer:
        asked = Questions(context, ("heads", "n_tiles"), work)
        heads, n_tiles = (asked.sizes[name] for name in ("heads", "n_tiles"))

        def item(name: str) -> tuple[Term, Term, Term]:
            head, tile = asked.fresh(f"{name} head"), asked.fresh(f"{name} tile")
            asked.known += [head >= 0, head < heads, tile >= 0, tile < n_tiles]
            return head, tile, asked.run(part_of, {**asked.sizes, "head": head, "tile": tile}, name).results[0]

        head, tile, part = item("one")
        other, theirs, place = item("other")
        asked.rising({"n": head}, {"n": other}, "n", n_tiles)
        asked.rising({"n": head}, {"n": heads}, "n", n_tiles)
        asked.show(context.implies(part == place, context.all_of([head == other, tile == theirs])))
        asked.rising({"n": head}, {"n": context.number(0)}, "n", n_tiles)
        asked.show(part >= 0, part < heads * n_tiles)
        return asked.answer

    return remembered(part_of, work, ask, lambda: wrong_part(part_of))
