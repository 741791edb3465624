"""The turns in which programs add to dQ, with programs side by side on a model of the chip: no deadlock with any number
of resident programs, no race, and the same bits in every order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from hopper_model.cases import Change, case, text_of
from hopper_model.numbers import FaultError
from hopper_model.schedule import Schedule
from hopper_model.test_backward import BACKWARDS, WHOLE, gradients

DIMS = (128, 128)
ALL = 64
"""More programs than there are items: each takes one."""
SPECS: dict[str, tuple[str, tuple[int, int, int, int, int], Sequence[Change]]] = {
    "one group of heads": ("causal", (1, 2, 1, 130, 400), [WHOLE]),
    "groups from the last tile to the first": ("causal", (5, 1, 1, 130, 300), [BACKWARDS]),
    "tiles that data lists": ("documents", (5, 1, 1, 200, 200), [BACKWARDS]),
}


def dq(what: str, schedule: Schedule, changes: Sequence[Change] = ()) -> torch.Tensor:
    name, sizes, rows = SPECS[what]
    made = case(text_of(name), DIMS, sizes, torch.bfloat16, [*rows, *changes], schedule)
    d_out, right = made.draw("Hq", "Sq", "Dv"), made.truth()
    lse, out = torch.from_numpy(right.lse).float(), torch.from_numpy(right.out).to(torch.bfloat16)
    found = made.differentiated(d_out, torch.zeros_like(lse), (out, lse))
    assert "_hopper_backward_kernel" in made.launched
    return found[0]


@pytest.mark.parametrize("what", SPECS)
def test_every_order_gives_the_same_bits(what: str) -> None:
    """With one program, two, three or all at a time, in a grid of as many or of more."""
    numbers = [(1, 2), (2, 2), (2, 5), (3, 5), (1, ALL), (3, ALL), (ALL, ALL)]
    first, *others = (dq(what, Schedule(resident, seed, grid)) for seed, (resident, grid) in enumerate(numbers))
    assert all(torch.equal(first, other) for other in others)


TAKEN = 'gl.atomic_add(work.queue_ptr, 1, sem="relaxed")'
STATIC = [
    (f"item = {TAKEN} if gl.num_programs(0)", "item = item + gl.num_programs(0) if gl.num_programs(0)"),
    ('    item = gl.atomic_add(queue_ptr, 1, sem="relaxed")\n', "    item = gl.program_id(0)\n"),
]
OUT_OF_ORDER = {
    "tiles from the last in the order": [("order = i // width", "order = n_tiles - 1 - i // width")],
    "two tiles of a head the other way round": [
        ("order = i // width", "order = gl.where(i // width < 2, 1 - i // width, i // width)"),
    ],
    "each program has items of its own": STATIC,
}
"""A program may wait for one that has not begun."""


@pytest.mark.parametrize("what", OUT_OF_ORDER)
def test_a_wait_for_a_program_that_has_not_begun_is_a_deadlock(what: str) -> None:
    """With fewer resident programs than would have to wait for each other; with all of them it is none."""
    changes = OUT_OF_ORDER[what]
    with pytest.raises(FaultError, match=r"deadlock: .*_await_parts waits for part \d+ of dQ's tile \d+"):
        dq("one group of heads", Schedule(1, 0, 2), changes)
    assert torch.equal(dq("one group of heads", Schedule(ALL, 0, ALL), changes), dq("one group of heads", Schedule()))


AWAITED, PASSED = (
    "items.awaited_turn(order)",
    "sm90.note_parts(cells + at, items.passed_turn(order))",
)
AWAIT = f"sm90.await_parts(cells + at, {AWAITED})"
READY = "await_step(adding.ready, turn)"
ADDED, THERE = (
    "sm90.tell_step(adding.added, turn)",
    "barrier_sync(rings.ds.stored + place, rings.ds.threads, 4)",
)
TOLD = "sm90.await_step(adding.added, turn)"
FAULTS: dict[str, tuple[str, Sequence[Change]]] = {
    "waits for the turn before": ("deadlock|a race", [(AWAITED, "order - 1")]),
    "waits for its own part": ("deadlock", [(AWAITED, "order + 1")]),
    "waits for another head's turn": (
        "deadlock|a race",
        [(AWAIT, f"sm90.await_parts(work.added_ptr + at, {AWAITED})")],
    ),
    "waits for another tile's turn": (
        "deadlock|a race",
        [(AWAIT, AWAIT.replace("+ at", "+ gl.where(at + 1 < stop_before, at + 1, at)"))],
    ),
    "does not wait": ("a race", [(AWAIT, "pass")]),
    "adds before its turn has come": ("a race", [(READY, "pass")]),
    "passes the turn before it adds": ("a race", [(ADDED, "pass"), (THERE, f"{THERE}\n{4 * ' '}{ADDED}")]),
    "passes the turn without being told": ("a race", [(TOLD, "pass")]),
    "one tile keeps its turn": ("deadlock", [(PASSED, f"{PASSED} if order != 1 else None")]),
    "a tile keeps the turn of its last step": (
        "deadlock",
        [(f"(stop - first):\n                {TOLD}", f"(stop - first - 1):\n                {TOLD}")],
    ),
}
"""What the fault says, and what is changed."""


@pytest.mark.parametrize("what", FAULTS)
def test_faults_of_turns_are_seen(what: str) -> None:
    said, changes = FAULTS[what]
    with pytest.raises(FaultError, match=said):
        for seed in range(10):
            dq("one group of heads", Schedule(3, seed, 3), changes)


def test_the_last_tile_has_to_pass_its_turn() -> None:
    """Nobody waits for it, but by the turn the next kernel knows that there is a part."""
    changes = [(PASSED, f"{PASSED} if order + 1 < (call.Sk + config.BK - 1) // config.BK else None")]
    errors, _ = gradients(text_of("causal"), DIMS, (1, 2, 1, 130, 100), changes=changes)
    assert errors["q"] == 1
