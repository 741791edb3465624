"""The walks of a TPU's kernels are values of the plan, printed as they are, and each is proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mutation.tpu_walks import wrong_tpu
from property.kernels import analysed

from attngen import targets
from attngen.emit import Options
from attngen.ir.build import add, index, integer, mul, sub
from attngen.plan import KernelPlan, plan
from attngen.plan.kernel import with_loops
from attngen.plan.mask.loops import Assigned
from attngen.plan.mask.tpu_walks import TpuWalks
from attngen.plan.printing import plan_text
from attngen.prove.budget.work import Work
from attngen.prove.obligations.tpu_walks import tpu_walks
from attngen.prove.obligations.walk_claims import WalkClaims
from attngen.prove.verdict import Claim, Proved, Refuted
from attngen.targets import emit

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))
ONE = integer(1)
CLAIMS = 13


def planned(name: str) -> KernelPlan:
    path = next(p for p in EXAMPLES if p.stem == name)
    return plan(analysed(path.read_text(encoding="utf-8")))


def claims(found: KernelPlan, work: Work | None = None) -> list[Claim]:
    return list(tpu_walks(WalkClaims(found, work or Work())))


def refuted(found: KernelPlan) -> set[str]:
    return {c.subject for c in claims(found) if isinstance(c.verdict, Refuted)}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_walk_is_proved(path: Path) -> None:
    found = plan(analysed(path.read_text(encoding="utf-8")))
    assert len(claims(found)) == CLAIMS
    assert not [c for c in claims(found) if not isinstance(c.verdict, Proved)]
    assert not wrong_tpu(found)


def of(part: str, **changed: Callable[[Any], Any]) -> Callable[[TpuWalks], TpuWalks]:
    """An edit of one part, by its fields."""

    def edit(walks: TpuWalks) -> TpuWalks:
        given = getattr(walks, part)
        return replace(
            walks, **{part: replace(given, **{f: change(getattr(given, f)) for f, change in changed.items()})}
        )

    return edit


def passed_is(value: Callable[[Any], Any]) -> Callable[[TpuWalks], TpuWalks]:
    return of("numbering", steps=lambda s: (Assigned("passed", value(s[0].value)), s[1]))


MASKED = {"TPU walk of keys, masked", "TPU walk of queries, masked"}
UNMASKED = {"TPU walk of keys, unmasked", "TPU walk of queries, unmasked"}
GRIDS = {"TPU grid, keys", "TPU grid, queries"}


@pytest.mark.parametrize(
    ("subjects", "edit"),
    [
        (MASKED | UNMASKED | GRIDS, of("numbering", first=lambda e: add(e, ONE))),  # from the second tile on
        (MASKED | UNMASKED | GRIDS, of("numbering", length=lambda e: sub(e, ONE))),  # the last tile of a run is skipped
        (MASKED | GRIDS, passed_is(lambda e: add(e, ONE))),  # a later run begins late
        (MASKED | GRIDS, passed_is(lambda _: index("passed"))),  # the first run is never left
        ({"TPU walk of keys, masked", "TPU grid, keys"}, of("keys", masked=lambda runs: runs[:1])),
        ({"TPU walk of keys, unmasked", "TPU grid, keys"}, of("keys", unmasked=lambda runs: (*runs, *runs))),
        ({"TPU grid, steps"}, of("grid", number=lambda e: sub(e, ONE))),
        ({"TPU grid, steps"}, of("grid", brought=lambda e: sub(e, ONE))),
        ({"TPU grid, steps"}, of("grid", brought=lambda e: add(e, ONE))),
        ({"TPU grid, steps"}, of("grid", own=lambda e: add(e, ONE))),
        ({"TPU grid, steps"}, of("grid", needed=lambda e: sub(e, ONE))),
        ({"TPU grid, steps"}, of("grid", suffice=lambda e: sub(e, ONE))),
        ({"TPU rounds"}, of("rounds", rounds=lambda r: replace(r, up=True))),
        ({"TPU rounds"}, of("rounds", rest=lambda e: add(e, ONE))),
        ({"TPU rounds"}, of("rounds", step=lambda _: add(index("i"), index("j")))),
        ({"TPU loops"}, of("resident", looped=lambda e: add(e, ONE))),
        ({"TPU loops"}, of("resident", last=lambda e: sub(e, ONE))),
        ({"TPU tails"}, of("straight", rounds=lambda r: replace(r, bound=index("n_full")))),
        ({"TPU tails"}, of("straight", left=lambda e: sub(e, ONE))),
        ({"TPU tails"}, of("straight", unmasked=lambda _: index("i"))),
        ({"TPU tails"}, of("straight", masked=lambda e: mul(e, integer(2)))),
    ],
)
def test_a_wrong_walk_is_refuted(subjects: set[str], edit: Callable[[TpuWalks], TpuWalks]) -> None:
    found = planned("sliding_window")
    wrong = replace(found, tpu_walks=found.tpu_walks and edit(found.tpu_walks))
    assert wrong_tpu(wrong)
    assert refuted(wrong) and refuted(wrong) <= subjects


def test_a_run_that_goes_beyond_the_sequence_is_refuted() -> None:
    """The grid would end before the walk does."""
    found = planned("causal")
    beyond = Assigned("any_hi", add(index("any_hi"), ONE))
    loops = replace(found.key_loops, steps=(*found.key_loops.steps, beyond))
    assert refuted(with_loops(found, loops, found.query_loops)) == {"TPU grid, extent of keys"}
    late = replace(found.keys, any=(replace(found.keys.any[0], hi=add(index("Sk"), ONE)),))
    assert refuted(replace(found, keys=late)) == {"TPU grid, extent of keys"}


def test_numbers_of_tiles_that_hang_on_floats_are_not_counted_beforehand() -> None:
    """The host may round a bound otherwise than the kernel does: then the grid has a step for every tile."""
    text = "attention floats\nparam reach: f32\nmask = {} <= q and k <= q\n"
    counted, free = (
        emit(plan(analysed(text.format(e)), targets.named("pallas").limits()), "", Options(target="pallas"))
        for e in ("k - 5", "k - int(reach * 2.0)")
    )
    for source, known in ((counted, True), (free, False)):
        body = source.split("def _key_counts(")[1].split("\ndef ")[0]
        assert ("_total(full)" in body) == known and ("    return ()\n" in body) == (not known)


def test_kernels_print_the_plans_own_walks() -> None:
    found = planned("full_bias")
    walks = found.tpu_walks
    assert walks is not None
    odd = replace(
        walks,
        numbering=replace(walks.numbering, first=add(walks.numbering.first, integer(4321))),
        grid=replace(walks.grid, own=add(walks.grid.own, integer(4322))),
        rounds=replace(walks.rounds, rest=add(walks.rounds.rest, integer(4323))),
        resident=replace(walks.resident, last=add(walks.resident.last, integer(4324))),
        straight=replace(walks.straight, left=add(walks.straight.left, integer(4325))),
        queries=replace(walks.queries, unmasked=walks.keys.masked),
    )
    emitted = emit(replace(found, tpu_walks=odd), "", Options(target="pallas"))
    text = plan_text(replace(found, tpu_walks=odd))
    for line in (
        "start + step + 4321",
        "step - n_full + 4322",
        "rounds * unroll + 4323",
        "n_partial - 1 + 4324",
        "n_full - looped + 4325",
    ):
        assert line in emitted and line in text


def test_kernels_print_what_is_proved_of_data_tests() -> None:
    found = planned("documents")
    emitted = emit(found, "", Options(target="pallas"))
    for walked, tests in (("key", found.keys.tests), ("query", found.queries.tests)):
        for t in tests:
            body = emitted.split(f"def _{walked}_{t.name}(")[1].split("\ndef ")[0]
            assert t.sign == "=="
            assert "can = (there_least <= here_most) & (here_least <= there_most)" in body
            assert body.count("there_least == ") == 3


def test_values_that_are_the_same_for_every_spec_are_shown_once_and_paid_for_each_time() -> None:
    spent: list[int] = []
    for _ in range(2):
        work = Work()
        claims(planned("causal"), work)
        spent.append(work.spent)
    assert spent[0] == spent[1] > 0
