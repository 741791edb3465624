"""Pieces of a walk: the claim is proved of what is planned, and of no mutant that brute force finds wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from mutation.edits import edits

from attngen.analyse import analyse
from attngen.errors import Source
from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.plan import KernelPlan, plan
from attngen.plan.mask.loops import Assigned, Rounded
from attngen.plan.split import Split
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Fails, Holds
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.tile_ranges import tile_ranges
from attngen.prove.obligations.tile_walks import pieces_answer
from attngen.prove.verdict import Proved, Refuted
from attngen.syntax.parser import parse

BOTH, MASKED = "mask = causal", "mask = (q * k) % 3 == 0"


def given(body: str) -> tuple[Attention, KernelPlan, Split]:
    source = Source(f"attention subject\n{body}\n")
    attention = analyse(parse(source), source, {})
    made = plan(attention)
    assert made.gpu_walks is not None and made.gpu_walks.split is not None
    return attention, made, made.gpu_walks.split


def mutants(split: Split) -> Iterator[tuple[str, Split]]:
    """One edit of a step or of a loop's end."""
    for at, step in enumerate(split.steps):
        if isinstance(step, Rounded):
            yield (
                "rounded down",
                replace(split, steps=(*split.steps[:at], replace(step, up=False), *split.steps[at + 1 :])),
            )
        if isinstance(step, Assigned):
            for what, value in edits(step.value):
                yield (
                    what,
                    replace(split, steps=(*split.steps[:at], replace(step, value=value), *split.steps[at + 1 :])),
                )
    for name in ("full", "partial"):
        run = getattr(split, name)
        for at in (0, 1) if run else ():
            for what, end in edits(run[at]):
                yield f"{name}: {what}", replace(split, **{name: (end, run[1]) if at == 0 else (run[0], end)})


def value(e: Expr, env: Mapping[str, int]) -> int:
    return int(evaluate(e, dict(env), {}))


def is_right(split: Split) -> bool:
    """Whether every tile of small walks is counted once, in its own loop, by pieces one after the other."""
    for walked in range(10):
        fulls = {0} if split.full is None else {walked} if split.partial is None else set(range(walked + 1))
        for full in fulls:
            for pieces in (1, 2, 3, 4, 7, 12):
                visits: list[int] = []
                for piece in range(pieces):
                    env = {"n_full": full, "n_walked": walked, "piece": piece, "pieces": pieces}
                    for step in split.steps:
                        if isinstance(step, Rounded):
                            env[step.name] = (
                                -(-value(step.bound, env) // pieces) if step.up else value(step.bound, env) // pieces
                            )
                        elif isinstance(step, Assigned):
                            env[step.name] = value(step.value, env)
                    own: list[int] = []
                    for run, first, stop in ((split.full, 0, full), (split.partial, full, walked)):
                        if run is not None:
                            numbers = [first + n for n in range(value(run[0], env), value(run[1], env))]
                            if any(not first <= n < stop for n in numbers):
                                return False
                            own += numbers
                    if own != list(range(env["first"], env["stop"])):
                        return False
                    visits += own
                if visits != list(range(walked)):
                    return False
    return True


@pytest.mark.parametrize("body", [BOTH, MASKED, "assume Sq * Sk == 65536 and Hq * Sq == 1024"])
def test_planned_pieces_are_proved(body: str) -> None:
    attention, made, split = given(body)
    assert is_right(split)
    claims = [c for c in tile_ranges(attention, made, Work()) if c.subject == "keys, pieces"]
    assert len(claims) == (1 if made.map is None else 2)  # of tiles, and of a list's places
    assert all(isinstance(c.verdict, Proved) for c in claims)


@pytest.mark.parametrize("body", [BOTH, MASKED])
def test_no_wrong_mutant_is_proved(body: str) -> None:
    attention, _, split = given(body)
    refuted = proved = 0
    for what, mutant in mutants(split):
        answer = pieces_answer(SolverContext(attention), mutant, Work().part())
        if isinstance(answer, Holds):
            assert is_right(mutant), what
            proved += 1
        refuted += isinstance(answer, Fails) and not is_right(mutant)
    assert refuted >= 20
    assert proved < refuted / 4


def test_a_wrong_plan_is_refuted_by_the_obligation() -> None:
    attention, made, split = given(BOTH)
    turned = replace(split, partial=split.partial and split.partial[::-1])
    assert made.gpu_walks is not None
    wrong = replace(made, gpu_walks=replace(made.gpu_walks, split=turned))
    (claim,) = [c for c in tile_ranges(attention, wrong, Work()) if c.subject == "keys, pieces"]
    assert isinstance(claim.verdict, Refuted)
