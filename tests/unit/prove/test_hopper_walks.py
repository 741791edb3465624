"""The walks of the kernels of compute capability 9.0 are values of the plan, and each is proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from mutation.functions import wrong_functions
from property.kernels import analysed

from attngen.emit import Options
from attngen.errors import InternalError
from attngen.ir.build import add, index, integer, sub
from attngen.ir.function import results_of
from attngen.plan import KernelPlan, plan
from attngen.plan.index import items, read
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.loops import Assigned
from attngen.plan.mask.turns import Cells
from attngen.prove.budget.work import Work
from attngen.prove.fallback import weakened
from attngen.prove.integers.answers import Holds
from attngen.prove.obligations.hopper_walks import hopper_walks
from attngen.prove.obligations.lists import entries_answer
from attngen.prove.obligations.portable_walks import portable_walks
from attngen.prove.obligations.walk_claims import WalkClaims
from attngen.prove.verdict import TURNS, Claim, Proved, Refuted, Unknown
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
    assert forward.share is not None
    wrong = replace(forward, share=replace(forward.share, backwards=False, ends=True))
    assert refuted(replace(found, hopper=replace(found.hopper, forward=wrong))) == {"Hopper forward, share"}


def test_a_hull_that_lacks_its_last_run_is_refuted() -> None:
    found = planned("prefix_lm")
    assert found.hopper is not None and found.hopper.backward is not None
    backward = found.hopper.backward
    wrong = replace(backward, hull=replace(backward.hull, steps=(*backward.hull.steps[:-2], backward.hull.steps[-1])))
    assert refuted(replace(found, hopper=replace(found.hopper, backward=wrong))) == {"Hopper backward, hull"}


FUNCTIONS = [
    ("items, side by side", "order = i // width", "order = n_tiles - 1 - i // width"),
    ("items, side by side", "order = i // width", "order = i"),
    ("items, side by side", "return first, order, first + i % width", "return first, order, first"),
    ("items, head after head", "return tl.program_id(0) % n_tiles,", "return tl.program_id(0),"),
    ("items, busy tiles first", "n_tiles - 1 - order if LATE", "n_tiles - order if LATE"),
    ("items, busy tiles first", "batch = i // n_heads", "batch = i % n_heads"),
    ("items, heads of keys", "head // (Hq // Hkv)", "head % Hkv"),
    ("items, heads of keys", "kv_head * group + member", "member * group + kv_head"),
    ("Hopper forward, items", "tile = n_tiles - 1 - order if LATE", "tile = 0 if LATE"),
    ("Hopper dK/dV, items", "head = i % n_heads", "head = i // n_heads"),
    ("Hopper dQ, items", "n_programs - 1 - program if LATE", "n_programs - 1 + program if LATE"),
    ("Hopper backward, items", "tl.where(heads < 4 * together, heads, together)", "heads - together"),
    ("Hopper backward, order", "tl.where(back, tile + 1, before)", "tile + 1"),
    ("Hopper backward, order", "tl.where(back, n_tiles - 1 - order, order)", "order"),
    ("Hopper backward, order", "before = tile - 1", "before = tile - 2"),
    ("Hopper backward, part", "tl.where(back, first + step, tile)", "first + step - 1"),
    ("Hopper backward, members", "end = tl.minimum(share * span + span, group)", "end = share * span + span"),
    ("Hopper backward, members", "(group + span - 1) // span", "group // span"),
    ("Hopper backward, members", "start = share * span", "start = share"),
    ("Hopper backward, members", "share = head % shares", "share = 0"),
    ("Hopper backward, members", "kv_head * shares + share", "kv_head + share"),
    ("Hopper backward, parts", "tl.cast(head, tl.int64) * n_tiles + tile", "tl.cast(head, tl.int64) + tile"),
    ("Hopper backward, turn", "    return order\n", "    return order + 1\n"),
    ("Hopper backward, turn", "return order + 1", "return order"),
    ("Hopper backward, turn", "tl.where(order > 0, stop, first)", "stop"),
    ("Hopper backward, turn", "(at >= first) & (at < stop)", "at < stop"),
    ("Hopper forward, share", "first = n_steps - stop", "first = n_steps - stop + 1"),
    (
        "Hopper forward, share",
        "first = tl.maximum(tl.minimum(first, n_steps - 1), 0)",
        "first = first + 0",
    ),
    ("Hopper forward, end", "tl.cast((size - 1) // tile, tl.int32) + 1", "tl.cast((size - 1) // tile, tl.int32)"),
    ("Hopper dQ, end", "tl.cast((size - 1) // tile, tl.int32) + 1", "tl.cast((size - 1) // tile, tl.int32) + 2"),
    ("Hopper dQ, end", "(size - 1) // tile", "size // tile"),
    ("Hopper dK/dV, end", "tl.minimum(end, stop)", "tl.maximum(end, stop)"),
    ("Hopper forward, end", "tl.where(start < held, stop, 0)", "stop"),
    ("Hopper backward, part", "begin = stop - own_stop", "begin = stop - own_stop + 1"),
    (
        "Hopper backward, part",
        "begin + own_stop - own_first",
        "begin + own_stop - own_first - 1",
    ),
    (
        "Hopper backward, part",
        "tl.minimum(tl.maximum(own_first, first), stop)",
        "own_first",
    ),
    ("Hopper backward, part", "tl.where(back, own_first - first, begin)", "own_first - first"),
    ("Hopper backward, end", "tl.where(size < start + rows, 0, end)", "end"),
    ("Hopper backward, cells", "(n_parts + 3) // 4 * 4", "(n_parts + 3) // 4 * 4 * 33"),
    ("Hopper backward, cells", "(n_parts + 3) // 4 * 4", "(n_parts + 3) // 4 * 4 - 4"),
]
"""What is refuted, and an edit of the text of the runtime's functions."""


@pytest.mark.parametrize(("what", "text", "edit"), FUNCTIONS)
def test_a_function_that_finds_another_item_is_refuted(what: str, text: str, edit: str) -> None:
    found = planned("causal")
    assert found.gpu_walks is not None
    right = found.gpu_walks.index
    assert text in right.text
    wrong = read(right.text.replace(text, edit))
    assert wrong_functions(wrong.text, share=True) and not wrong_functions(right.text, share=True)
    assert what in refuted(replace(found, gpu_walks=replace(found.gpu_walks, index=wrong)))


def test_a_file_calls_no_other_functions_than_were_proved() -> None:
    found = planned("causal")
    assert found.gpu_walks is not None
    other = read(found.gpu_walks.index.text.replace("share = head % shares", "share = 0"))
    with pytest.raises(InternalError, match="other functions"):
        emit(replace(found, gpu_walks=replace(found.gpu_walks, index=other)), "", Options())


def test_programs_that_are_not_consecutive_need_a_list() -> None:
    found = planned("documents")
    assert found.hopper is not None and found.hopper.backward is not None
    assert found.hopper.backward.lists is not None
    wrong = replace(found.hopper.backward, lists=None)
    assert refuted(replace(found, hopper=replace(found.hopper, backward=wrong))) == {TURNS}


OF_LISTS = [
    ("lists", "return row * parts + part", "return row"),
    ("lists", "place = batch if BY_BATCH else 0", "place = 0"),
    ("lists", "batch = place // Hq if BY_HEAD else place", "batch = 0"),
    ("lists", "item % parts", "0"),
    ("turn", "return order + 1", "return 1"),
    ("turn", "return n_tiles - noted < order", "return noted < order"),
    ("turn", "tile + 1 if BACKWARDS", "tile if BACKWARDS"),
    ("turn", "tl.where(back, 1, 0)", "1"),
    ("turn", "(order + 31) // 32 - 1", "0"),
    ("turn", "chunk * 32 + lane", "lane"),
]


@pytest.mark.parametrize(("what", "text", "edit"), OF_LISTS)
def test_a_function_of_lists_that_finds_another_tile_is_refuted(what: str, text: str, edit: str) -> None:
    found = planned("documents")
    assert found.gpu_walks is not None and found.hopper is not None and found.hopper.backward is not None
    right, lists = found.gpu_walks.index, found.hopper.backward.lists
    assert text in right.text
    wrong = read(right.text.replace(text, edit))
    if edit != "return 1":  # without lists it is wrong, too
        assert wrong_functions(wrong.text, lists=lists) and not wrong_functions(right.text, lists=lists)
    assert f"Hopper backward, {what}" in refuted(replace(found, gpu_walks=replace(found.gpu_walks, index=wrong)))


@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("by_head", [False, True])
def test_an_entry_is_read_of_the_tile_of_which_it_was_written(by_batch: bool, by_head: bool) -> None:
    lists, right = Lists(by_batch, by_head), items()
    assert isinstance(entries_answer(lists, right, Work()), Holds)
    edits = (("place * Hq + head", "place * Hq"),) if by_head else ()
    edits += (("head = place % Hq", "head = place // Hq"),) if by_batch and by_head else ()
    edits += (("place = batch if", "place = head if"),) if by_batch else ()
    for text, edit in edits:
        assert text in right.text
        assert not isinstance(entries_answer(lists, read(right.text.replace(text, edit)), Work()), Holds)


def test_batches_that_share_elements_lie_side_by_side() -> None:
    found = planned("full_bias")
    assert found.hopper is not None and found.hopper.forward is not None
    assert found.hopper.forward.batches_inside and found.gpu_walks is not None
    index = found.gpu_walks.index
    wrong = read(index.text.replace("n_batches = n_items // (n_tiles * n_heads)", "n_batches = n_heads"))
    assert wrong_functions(wrong.text)
    assert refuted(replace(found, gpu_walks=replace(found.gpu_walks, index=wrong))) == {"Hopper forward, items"}


@pytest.mark.parametrize("name", ["causal", "documents"])
@pytest.mark.parametrize(
    "edit",
    [
        lambda c: replace(c, cleared=2),
        lambda c: replace(c, queue=5),
    ],
)
def test_a_cell_that_is_not_cleared_is_refuted(name: str, edit: Callable[[Cells], Cells]) -> None:
    found = planned(name)
    assert found.hopper is not None
    hopper = replace(found.hopper, cells=edit(found.hopper.cells))
    wrong = replace(found, hopper=hopper)
    assert uncleared(wrong) and not uncleared(found)
    assert refuted(wrong) == {"Hopper backward, cells"}


def test_tiles_of_many_sequences_may_have_more_cells_than_are_cleared() -> None:
    found = planned("causal")
    assert found.hopper is not None
    cells = found.hopper.cells
    for edited in (replace(cells, most=65), replace(cells, least=256)):
        hopper = replace(found.hopper, cells=edited)
        assert refuted(replace(found, hopper=hopper)) == {"Hopper backward, cells"}


def test_two_ways_need_two_rooms() -> None:
    found = planned("documents")
    assert found.hopper is not None
    hopper = replace(found.hopper, cells=replace(found.hopper.cells, noted=1))
    assert refuted(replace(found, hopper=hopper)) == {"Hopper backward, cells"}


@pytest.mark.parametrize("packed", [True, False])
def test_cells_of_sequences_are_cleared(packed: bool) -> None:
    found = planned("causal")
    assert found.hopper is not None
    cells = found.hopper.cells

    def slots(tile: int) -> int:
        return total // tile + count if packed else count * -(-total // tile)

    taken = 0
    for total, count, heads in product((1, 32, 33, 500, 9000), (1, 2, 40, 900), (1, 3)):
        batches = 1 if packed else count
        programs = -(-total // cells.rows) * batches
        if slots(cells.least) <= cells.most * programs:
            taken += 1
            (room,) = results_of(items().of("counters"), {"n_parts": slots(64) * heads})
            assert room * sum(cells.kinds(listed=False).values()) <= cells.cleared * programs * heads
    assert taken > 10


def uncleared(plan: KernelPlan) -> dict[str, int] | None:
    """Sizes of a dense call some of whose cells are not cleared, or lie outside of their room, by counting."""
    assert plan.hopper is not None and plan.hopper.backward is not None
    cells, listed = plan.hopper.cells, plan.hopper.backward.lists is not None
    tiles = {row.queries for _, row in plan.hopper.backward.rows}
    for tile, queries, heads in product(tiles, (1, 63, 64, 65, 4096), (1, 2, 7)):
        n_parts, programs = -(-queries // tile) * heads, -(-queries // cells.rows) * heads
        (room,) = results_of(items().of("counters"), {"n_parts": n_parts})
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
