"""Query heads that share keys, divided among items of the backward kernel, on a model of the chip: right for any span,
and the same bits in every order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from hopper_model.cases import Change, case, text_of
from hopper_model.numbers import FaultError
from hopper_model.schedule import Schedule
from hopper_model.test_backward import SQUARE, gradients, slow

FULL = "attention full\n"
CHOSEN = "span = host.equal_share(group, heads, wanted)"
DIMS = (128, 128)


def spanning(span: int) -> Change:
    return CHOSEN, f"span = {span}"


@pytest.mark.parametrize(
    "by",
    [(2, 1), (4, 1), (4, 2), slow((4, 4)), (8, 3), slow((8, 4)), slow((8, 8)), slow((32, 1)), (32, 8), slow((32, 32))],
    ids=str,
)
def test_a_group_of_any_size_by_any_span(by: tuple[int, int]) -> None:
    """Also where the last item has fewer members than the others. Lengths end inside of tiles."""
    members, span = by
    queries = 130 if members < 32 else 65
    errors, launched = gradients(text_of("causal"), DIMS, (1, members, 1, queries, 200), changes=[spanning(span)])
    assert {"_hopper_backward_kernel", "_collect_kernel"} <= set(launched)
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize(
    "name",
    ["full", "sliding_window", "documents", "alibi", *map(slow, ("prefix_lm", "sink", "softcap", "relative_bias"))],
)
@pytest.mark.parametrize("span", [slow(1), 2, slow(4)])
def test_masks_and_scores(name: str, span: int) -> None:
    """Whichever order items have, whoever reads log-sum-exps, and where lists say who waits for whom."""
    text = FULL if name == "full" else text_of(name)
    sizes = (2, 8, 2, 200, 200) if name in SQUARE else (2, 8, 2, 130, 200)
    errors, launched = gradients(text, DIMS, sizes, changes=[spanning(span)])
    assert "_hopper_backward_kernel" in launched
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize("dims", [(64, 64), slow((72, 128)), slow((128, 104)), slow((72, 64))], ids=str)
def test_head_dims(dims: tuple[int, int]) -> None:
    errors, launched = gradients(text_of("causal"), dims, (2, 4, 1, 200, 300), torch.float16, changes=[spanning(2)])
    assert ("_hopper_backward_kernel" in launched) == (dims != (72, 64))
    assert all(e <= 1e-3 for e in errors.values()), errors


def test_keys_that_nobody_sees_have_parts_of_zeros() -> None:
    errors, _ = gradients(text_of("sliding_window"), DIMS, (1, 4, 1, 100, 700), changes=[spanning(1)])
    assert all(e <= 8e-3 for e in errors.values()), errors


def found(span: int, schedule: Schedule, changes: Sequence[Change] = ()) -> tuple[torch.Tensor, ...]:
    made = case(text_of("causal"), DIMS, (1, 4, 1, 130, 300), torch.bfloat16, [spanning(span), *changes], schedule)
    d_out, right = made.draw("Hq", "Sq", "Dv"), made.truth()
    lse, out = torch.from_numpy(right.lse).float(), torch.from_numpy(right.out).to(torch.bfloat16)
    return made.differentiated(d_out, torch.zeros_like(lse), (out, lse))


@pytest.mark.parametrize("span", [1, 2, slow(4)])
def test_every_order_gives_the_same_bits(span: int) -> None:
    schedules = [Schedule(resident, seed, grid) for seed, (resident, grid) in enumerate([(1, 2), (3, 5), (64, 64)])]
    first, *others = (found(span, schedule) for schedule in schedules)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


FAULTS: dict[str, tuple[str, Change]] = {
    "two items leave their sums in one place": ("a race", ("part_of(item_head, tile", "part_of(item_head // 2, tile")),
    "values are fetched for the group's first member": (
        "deadlock",
        ("(member == start) & (step", "(member == 0) & (step"),
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_faults_of_shares_are_seen(what: str) -> None:
    said, change = FAULTS[what]
    with pytest.raises(FaultError, match=said):
        for seed in range(10):
            found(2, Schedule(3, seed, 3), [change])


def test_a_call_chooses_how_many_members_an_item_has() -> None:
    """All of them where there are heads of keys enough; else a divisor of the group, so that items are alike."""
    span = case(FULL, DIMS, (1, 1, 1, 8, 8), torch.bfloat16).module.equal_share
    assert [span(4, heads, 32) for heads in (64, 32, 31, 16, 15, 8, 1)] == [4, 4, 2, 2, 1, 1, 1]
    assert [span(7, heads, 16) for heads in (16, 15, 1)] == [7, 1, 1]
    assert span(12, 8, 32) == 3 and span(32, 2, 32) == 2 and span(1, 1, 32) == 1 and span(4, 1, 1) == 4
