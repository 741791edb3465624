"""What claims about the walks of any target's kernels share: one plan, and each question asked once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from attngen.ir.attention import Attention
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.loops import Run
from attngen.plan.mask.walks import Walk
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Fails, Holds
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.tile_walks import walk_answer
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict

LISTS = "what is read from a list of a tile, for a batch and a head, was written for these"
Question = tuple[Walk, tuple[Run, ...]]


@dataclass(frozen=True)
class WalkClaims:
    """A claim is asked of `plan`, each for a part of `work`. Kernels often take the same walk: its answer is kept."""

    plan: KernelPlan
    work: Work
    answers: dict[Question, Answer] = field(default_factory=dict[Question, Answer])

    @cached_property
    def bare(self) -> Attention:
        """No fact bears on walks of any runs."""
        return replace(self.plan.attention, params=(), assumes=())

    def context(self) -> SolverContext:
        return SolverContext(self.bare)

    def claim(self, subject: str, sentence: str, answer: Answer) -> Claim:
        return Claim(subject, sentence, verdict_of(answer), span=self.plan.attention.mask.span)

    def walk(self, subject: str, sentence: str, walk: Walk, runs: tuple[Run, ...]) -> Claim:
        """The claim that the walk takes each tile of the runs once, and no other."""
        if (walk, runs) not in self.answers:
            self.answers[walk, runs] = walk_answer(self.context(), walk, runs, self.work.part())
        return self.claim(subject, f"{sentence} takes each tile of its runs once", self.answers[walk, runs])


def verdict_of(answer: Answer) -> Verdict:
    match answer:
        case Holds():
            return Proved("z3")
        case Fails():
            return Refuted("z3", (f"not so at {answer.text()}",), tuple(answer.values.items()))
        case _:
            return Unknown("z3", answer.reason)
