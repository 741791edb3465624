"""The walks of the kernels of compute capability 9.0 are values of the plan, and each is proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from mutation.lists import wrong_lists
from mutation.shares import wrong_shares
from mutation.turns import wrong_items, wrong_turns
from property.kernels import analysed

from attngen.emit import Options
from attngen.ir.build import add, floordiv, index, integer, mul, sub
from attngen.ir.evaluate import evaluate
from attngen.plan import KernelPlan, plan
from attngen.plan.mask.loops import Assigned, Rounded
from attngen.plan.mask.order import Directed, Heads, Order, batch_by_batch, head_by_head
from attngen.plan.mask.parts import HullPart, Limit
from attngen.plan.mask.shares import Shares
from attngen.plan.mask.turns import Cells, Turns
from attngen.prove.budget.work import Work
from attngen.prove.fallback import weakened
from attngen.prove.obligations.hopper_walks import TURNS, hopper_walks
from attngen.prove.obligations.portable_walks import portable_walks
from attngen.prove.obligations.walk_claims import WalkClaims
from attngen.prove.search.small_items import wrong_head
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown
from attngen.targets import emit

LAST = sub(index("n_tiles"), integer(1))
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))


def planned(name: str) -> KernelPlan:
    path = next(p for p in EXAMPLES if p.stem == name)
    return plan(analysed(path.read_text(encoding="utf-8")))


def refuted(found: KernelPlan) -> set[str]:
    """Of the claims about items and Hopper's walks."""
    asked = WalkClaims(found, Work())
    claims = (*portable_walks(asked), *hopper_walks(asked))
    return {c.subject for c in claims if isinstance(c.verdict, Refuted)}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_walk_is_proved(path: Path) -> None:
    found = plan(analysed(path.read_text(encoding="utf-8")))
    claims = list(hopper_walks(WalkClaims(found, Work())))
    assert not [c for c in claims if not isinstance(c.verdict, Proved)]
    assert found.hopper is not None
    kernels = (found.hopper.forward, found.hopper.backward, found.hopper.apart)
    assert bool(claims) == any(k is not None for k in kernels)


def test_a_reversed_walk_that_ends_early_is_refuted() -> None:
    found = planned("causal")
    assert found.hopper is not None and found.hopper.forward is not None and found.hopper.forward.backwards
    forward = found.hopper.forward
    late = Assigned("at", add(forward.walk.at[0].value, integer(1)))
    wrong = replace(forward, walk=replace(forward.walk, at=(late,)))
    assert refuted(replace(found, hopper=replace(found.hopper, forward=wrong))) == {"Hopper forward, walk"}


def test_a_share_that_skips_a_tile_is_refuted() -> None:
    found = planned("causal")
    assert found.hopper is not None and found.hopper.forward is not None
    forward = found.hopper.forward
    assert forward.share.first is not None
    wrong = replace(forward, share=replace(forward.share, first=add(forward.share.first, integer(1))))
    assert refuted(replace(found, hopper=replace(found.hopper, forward=wrong))) == {"Hopper forward, share"}


def test_a_hull_that_lacks_its_last_run_is_refuted() -> None:
    found = planned("prefix_lm")
    assert found.hopper is not None and found.hopper.backward is not None
    backward = found.hopper.backward
    wrong = replace(backward, hull=replace(backward.hull, steps=(*backward.hull.steps[:-2], backward.hull.steps[-1])))
    assert refuted(replace(found, hopper=replace(found.hopper, backward=wrong))) == {"Hopper backward, hull"}


def moved(d: Directed, by: int) -> Directed:
    return Directed(add(d.onwards, integer(by)), add(d.backwards, integer(by)))


@pytest.mark.parametrize(
    "edit",
    [
        lambda part: replace(part, at=moved(part.at, 1)),
        lambda part: replace(part, begin=moved(part.begin, 1)),
        lambda part: replace(part, end=sub(part.end, integer(1))),
        lambda part: replace(part, bound=part.bound[1:]),
        lambda part: replace(part, begin=Directed(part.begin.backwards, part.begin.onwards)),
    ],
)
def test_a_half_of_the_keys_that_lacks_a_tile_is_refuted(edit: Callable[[HullPart], HullPart]) -> None:
    found = planned("sliding_window")
    assert found.hopper is not None and found.hopper.backward is not None
    wrong = replace(found.hopper.backward, part=edit(found.hopper.backward.part))
    assert refuted(replace(found, hopper=replace(found.hopper, backward=wrong))) == {"Hopper backward, part"}


def test_keys_behind_the_end_that_go_without_the_mask_are_refuted() -> None:
    found = planned("sliding_window")
    assert found.hopper is not None and found.hopper.backward is not None
    part = found.hopper.backward.part
    wrong = replace(found.hopper.backward, part=replace(part, cut=part.cut[:1]))
    assert refuted(replace(found, hopper=replace(found.hopper, backward=wrong))) == {"Hopper backward, end"}


@pytest.mark.parametrize("name", ["causal", "sliding_window", "documents", "prefix_lm"])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_limit_that_is_off_by_a_tile_is_refuted(name: str, off: int) -> None:
    found = planned(name)
    assert found.hopper is not None
    forward, apart = found.hopper.forward, found.hopper.apart
    assert forward is not None and apart is not None

    def wrong(limit: Limit) -> Limit:
        return replace(limit, steps=(*limit.steps, Assigned("stop", add(index("stop"), integer(off)))))

    changed = replace(forward, limit=wrong(forward.limit))
    assert refuted(replace(found, hopper=replace(found.hopper, forward=changed))) == {"Hopper forward, end"}
    keys = replace(apart, keys=replace(apart.keys, limit=wrong(apart.keys.limit)))
    assert refuted(replace(found, hopper=replace(found.hopper, apart=keys))) == {"Hopper dQ, end"}


@pytest.mark.parametrize("edit", [lambda r: replace(r, up=True), lambda r: replace(r, bound=sub(r.bound, integer(1)))])
def test_a_last_tile_that_is_rounded_wrongly_is_refuted(edit: Callable[[Rounded], Rounded]) -> None:
    """The claim may not take the last tile's rounding for granted: it has to follow from the bound that is there."""
    found = planned("causal")
    assert found.hopper is not None and found.hopper.apart is not None
    apart = found.hopper.apart
    last, *more = apart.keys.limit.steps
    assert isinstance(last, Rounded)
    wrong = replace(apart.keys, limit=replace(apart.keys.limit, steps=(edit(last), *more)))
    assert refuted(replace(found, hopper=replace(found.hopper, apart=replace(apart, keys=wrong)))) == {"Hopper dQ, end"}


@pytest.mark.parametrize(
    ("what", "edit"),
    [
        ("groups", lambda t: replace(t, few=integer(0))),
        ("turn", lambda t: replace(t, awaited=t.passed)),
        ("turn", lambda t: replace(t, passed=t.awaited)),
        ("turn", lambda t: replace(t, before=replace(t.before, backwards=t.before.onwards))),
    ],
)
def test_a_program_that_waits_for_a_higher_ticket_is_refuted(what: str, edit: Callable[[Turns], Turns]) -> None:
    found = planned("causal")
    assert found.hopper is not None
    wrong = replace(found, hopper=replace(found.hopper, turns=edit(found.hopper.turns)))
    assert wrong_turns(wrong) and not wrong_turns(found)
    assert refuted(wrong) == {f"Hopper backward, {what}"}


@pytest.mark.parametrize(
    "edit",
    [
        lambda o: replace(o, steps=(*o.steps[:-1], Assigned("order", sub(LAST, o.steps[-1].value)))),
        lambda o: replace(o, steps=(*o.steps[:-1], Assigned("order", index("i")))),
        lambda o: replace(o, head=index("first")),
        lambda o: replace(o, tile=replace(o.tile, backwards=integer(0))),
    ],
)
def test_an_item_that_is_taken_twice_or_too_early_is_refuted(edit: Callable[[Order], Order]) -> None:
    found = planned("causal")
    assert found.gpu_walks is not None
    wrong = replace(found, gpu_walks=replace(found.gpu_walks, in_turn=edit(found.gpu_walks.in_turn)))
    assert wrong_items(wrong) and not wrong_items(found)
    assert "items, in turn" in refuted(wrong)


def test_a_tile_after_which_no_tile_waits_is_refuted() -> None:
    found = planned("causal")
    assert found.gpu_walks is not None
    order = found.gpu_walks.in_turn
    last = replace(order, tile=replace(order.tile, backwards=index("order")))
    wrong = replace(found, gpu_walks=replace(found.gpu_walks, in_turn=last))
    assert wrong_turns(wrong) and refuted(wrong) == {"Hopper backward, turn"}


@pytest.mark.parametrize(
    ("what", "edit"),
    [
        ("members", lambda s: replace(s, stop=add(s.first, index("span")))),
        ("members", lambda s: replace(s, shares=add(s.shares, integer(1)))),
        ("members", lambda s: replace(s, first=index("share"))),
        ("parts", lambda s: replace(s, share=integer(0))),
        ("parts", lambda s: replace(s, part=index("head"))),
        ("parts", lambda s: replace(s, head_of=add(index("kv_head"), index("share")))),
    ],
)
def test_a_query_head_that_is_summed_twice_or_never_is_refuted(what: str, edit: Callable[[Shares], Shares]) -> None:
    found = planned("causal")
    assert found.hopper is not None
    wrong = replace(found, hopper=replace(found.hopper, shares=edit(found.hopper.shares)))
    assert wrong_shares(wrong) and not wrong_shares(found)
    assert refuted(wrong) == {f"Hopper backward, {what}"}


def test_programs_that_are_not_consecutive_need_a_list() -> None:
    found = planned("documents")
    assert found.hopper is not None and found.hopper.backward is not None
    assert found.hopper.backward.lists is not None
    wrong = replace(found.hopper.backward, lists=None)
    assert refuted(replace(found, hopper=replace(found.hopper, backward=wrong))) == {TURNS}


@pytest.mark.parametrize(
    "edit",
    [
        lambda found: replace(found, lists=replace(found.lists, entry=index("row"))),
        lambda found: replace(found, lists=replace(found.lists, place=integer(0))),
        lambda found: replace(found, lists=replace(found.lists, of_batch=integer(0))),
    ],
)
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_a_list_that_is_read_of_another_tile_is_refuted(name: str, edit: Callable[[Any], Any]) -> None:
    found = planned("documents")
    assert found.hopper is not None
    wrong = replace(found, hopper=replace(found.hopper, **{name: edit(getattr(found.hopper, name))}))
    assert refuted(wrong) == {f"Hopper {name}, lists"}
    assert name == "forward" or wrong_lists(wrong)


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: replace(t, passed=integer(1)),
        lambda t: replace(t, listed=replace(t.listed, first=index("noted"))),
        lambda t: replace(t, listed=replace(t.listed, noted=replace(t.listed.noted, backwards=index("tile")))),
        lambda t: replace(t, listed=replace(t.listed, cell=add(index("n_walked"), index("at")))),
        lambda t: replace(t, listed=replace(t.listed, chunk=integer(0))),
        lambda t: replace(t, listed=replace(t.listed, other=index("lane"))),
    ],
)
def test_a_listed_turn_that_another_tile_passes_is_refuted(edit: Callable[[Turns], Turns]) -> None:
    found = planned("documents")
    assert found.hopper is not None
    wrong = replace(found, hopper=replace(found.hopper, turns=edit(found.hopper.turns)))
    assert wrong_lists(wrong) and not wrong_lists(found)
    assert refuted(wrong) == {"Hopper backward, turn"}


@pytest.mark.parametrize(
    "wrong",
    [
        Heads(floordiv(index("i"), index("n_batches")), head_by_head().head),
        Heads(batch_by_batch().batch, head_by_head().head),
        Heads(integer(0), index("i")),
        replace(batch_by_batch(), head=sub(index("n_heads"), batch_by_batch().head)),
    ],
)
def test_two_numbers_for_one_head_are_refuted(wrong: Heads) -> None:
    assert wrong_head(wrong) and not wrong_head(batch_by_batch()) and not wrong_head(head_by_head())
    found = planned("full_bias")
    assert found.hopper is not None and found.hopper.forward is not None
    assert found.hopper.forward.heads == head_by_head()
    assert found.gpu_walks is not None
    assert refuted(replace(found, gpu_walks=replace(found.gpu_walks, heads=wrong))) == {"items, heads"}
    hopper = replace(found.hopper, forward=replace(found.hopper.forward, heads=wrong))
    assert refuted(replace(found, hopper=hopper)) == {"Hopper forward, heads"}


@pytest.mark.parametrize("name", ["causal", "documents"])
@pytest.mark.parametrize(
    "edit",
    [
        lambda c: replace(c, cleared=2),
        lambda c: replace(c, queue=5),
        lambda c: replace(c, room=mul(c.room, integer(33))),
        lambda c: replace(c, room=sub(c.room, integer(4))),
    ],
)
def test_a_cell_that_is_not_cleared_is_refuted(name: str, edit: Callable[[Cells], Cells]) -> None:
    found = planned(name)
    assert found.hopper is not None
    turns = found.hopper.turns
    hopper = replace(found.hopper, turns=replace(turns, cells=edit(turns.cells)))
    wrong = replace(found, hopper=hopper)
    assert uncleared(wrong) and not uncleared(found)
    assert refuted(wrong) == {"Hopper backward, cells"}


def test_tiles_of_many_sequences_may_have_more_cells_than_are_cleared() -> None:
    found = planned("causal")
    assert found.hopper is not None
    turns = found.hopper.turns
    for edited in (replace(turns.cells, most=65), replace(turns.cells, least=256)):
        hopper = replace(found.hopper, turns=replace(turns, cells=edited))
        assert refuted(replace(found, hopper=hopper)) == {"Hopper backward, cells"}


def test_two_ways_need_two_rooms() -> None:
    found = planned("documents")
    assert found.hopper is not None
    turns = found.hopper.turns
    hopper = replace(found.hopper, turns=replace(turns, cells=replace(turns.cells, noted=1)))
    assert refuted(replace(found, hopper=hopper)) == {"Hopper backward, cells"}


@pytest.mark.parametrize("packed", [True, False])
def test_cells_of_sequences_are_cleared(packed: bool) -> None:
    found = planned("causal")
    assert found.hopper is not None
    cells = found.hopper.turns.cells

    def slots(tile: int) -> int:
        return total // tile + count if packed else count * -(-total // tile)

    taken = 0
    for total, count, heads in product((1, 32, 33, 500, 9000), (1, 2, 40, 900), (1, 3)):
        batches = 1 if packed else count
        programs = -(-total // cells.rows) * batches
        if slots(cells.least) <= cells.most * programs:
            taken += 1
            room = int(evaluate(cells.room, {"n_parts": slots(64) * heads}, {}))
            assert room * sum(cells.kinds(listed=False).values()) <= cells.cleared * programs * heads
    assert taken > 10


def uncleared(plan: KernelPlan) -> dict[str, int] | None:
    """Sizes of a dense call some of whose cells are not cleared, or lie outside of their room, by counting."""
    assert plan.hopper is not None and plan.hopper.backward is not None
    cells, listed = plan.hopper.turns.cells, plan.hopper.backward.lists is not None
    tiles = {row.queries for _, row in plan.hopper.backward.rows}
    for tile, queries, heads in product(tiles, (1, 63, 64, 65, 4096), (1, 2, 7)):
        n_parts, programs = -(-queries // tile) * heads, -(-queries // cells.rows) * heads
        room = int(evaluate(cells.room, {"n_parts": n_parts}, {}))
        counted = room * sum(cells.kinds(listed=listed).values())
        if room < max(n_parts, cells.queue) or counted > programs * cells.cleared:
            return {"tile": tile, "queries": queries, "heads": heads}
    return None


def test_where_turns_are_not_proved_a_list_says_who_waits() -> None:
    found = planned("causal")
    claim = Claim(TURNS, "consecutive", Unknown("z3", "no answer"))
    emitted, dropped = weakened(found, [claim])
    assert emitted.hopper is not None and emitted.hopper.backward is not None
    assert emitted.hopper.backward.lists is not None and "list" in dropped[0]
    assert (emitted.keys, emitted.queries) == (found.keys, found.queries)
    assert "walks_ptr" in emit(emitted, "", Options()) and "walks_ptr" not in emit(found, "", Options())
