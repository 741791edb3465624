"""The walks of the portable kernels are values of the plan, printed as they are, and each is proved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from property.kernels import analysed

from attngen.emit import Options
from attngen.ir.build import add, integer
from attngen.plan import KernelPlan, plan
from attngen.plan.gpu_walks import GpuWalks
from attngen.plan.mask.loops import Assigned
from attngen.plan.mask.walks import TwoWalks, Walk
from attngen.plan.printing import plan_text
from attngen.prove.budget.work import Work
from attngen.prove.obligations.portable_walks import portable_walks
from attngen.prove.obligations.walk_claims import WalkClaims
from attngen.prove.verdict import Claim, Proved, Refuted
from attngen.targets import emit

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))


def planned(name: str) -> KernelPlan:
    path = next(p for p in EXAMPLES if p.stem == name)
    return plan(analysed(path.read_text(encoding="utf-8")))


def claims(found: KernelPlan) -> list[Claim]:
    return list(portable_walks(WalkClaims(found, Work())))


def refuted(found: KernelPlan) -> set[str]:
    return {c.subject for c in claims(found) if isinstance(c.verdict, Refuted)}


def walks(found: KernelPlan) -> GpuWalks:
    assert found.gpu_walks is not None
    return found.gpu_walks


def with_masked(found: KernelPlan, walk: Walk) -> KernelPlan:
    own = walks(found)
    return replace(found, gpu_walks=replace(own, keys=TwoWalks(own.keys.unmasked, walk)))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_walk_is_proved(path: Path) -> None:
    found = claims(plan(analysed(path.read_text(encoding="utf-8"))))
    assert len(found) >= 4
    assert not [c for c in found if not isinstance(c.verdict, Proved)]


def test_a_second_run_that_begins_late_is_refuted() -> None:
    found = planned("sliding_window")
    walk = walks(found).keys.masked
    first, second = walk.at
    late = Assigned("at", add(second.value, integer(1)))
    assert refuted(with_masked(found, replace(walk, at=(first, late)))) == {"walk of keys, masked"}


def test_a_walk_that_ends_early_is_refuted() -> None:
    found = planned("prefix_lm")
    walk = walks(found).keys.masked
    short = replace(walk, n_steps=add(walk.n_steps, integer(-1)))
    assert refuted(with_masked(found, short)) == {"walk of keys, masked"}


def test_a_right_walk_of_other_runs_is_refuted() -> None:
    found = planned("sliding_window")
    assert refuted(with_masked(found, walks(found).keys.unmasked)) == {"walk of keys, masked"}


def test_kernels_print_the_plans_own_walk() -> None:
    found = planned("sliding_window")
    walk = walks(found).keys.masked
    odd = replace(walk, at=(Assigned("at", add(walk.at[0].value, integer(4321))), *walk.at[1:]))
    emitted, text = emit(with_masked(found, odd), "", Options()), plan_text(with_masked(found, odd))
    assert emitted.count("at = any_lo + step + 4321") == 3  # forward, short queries, dQ
    assert "at = any_lo + step + 4321" in text


def test_pieces_of_fewer_tiles_than_the_walks_have_are_refuted() -> None:
    found = planned("causal")
    own = walks(found)
    assert own.split is not None
    full, walked = own.split.counts
    short = Assigned("n_walked", add(walked.value, integer(-1)))
    assert refuted(replace(found, gpu_walks=replace(own, split=replace(own.split, counts=(full, short))))) == {
        "walk of keys, pieces"
    }
