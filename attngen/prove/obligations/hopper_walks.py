"""The walks of the kernels of compute capability 9.0, as claims of `tile-ranges`.

Takes a plan, returns a claim for each walk that its `HopperPlan` holds: a walk takes each tile of its runs once; the
steps that a warpgroup skips take no tile that its own rows meet; a hull covers every run; a tile goes without the mask
only where it needs none; and where each program waits for the one before it, the programs that add to a tile of dQ are
consecutive. That the runs themselves are right is what the claims about loops say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attngen.errors import Span
from attngen.plan.hopper import HopperApart, HopperBackward, HopperForward
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.loops import Loops, Run
from attngen.plan.mask.walks import one_stretch, own
from attngen.prove.integers.answers import Answer, Fails, Holds
from attngen.prove.integers.z3_door import World
from attngen.prove.obligations.tile_walks import (
    hull_answer,
    share_answer,
    turns_answer,
    unmasked_answer,
    walk_answer,
)
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict

TURNS = "queries, turns"
"""A claim that a plan can do without: then it is listed who waits for whom."""


def hopper_walks(plan: KernelPlan, seconds: float) -> tuple[Claim, ...]:
    if plan.hopper is None:
        return ()
    claims = _Claims(plan, seconds)
    found: list[Claim] = []
    if plan.hopper.forward is not None:
        found += claims.forward(plan.hopper.forward)
    if plan.hopper.backward is not None:
        found += claims.backward(plan.hopper.backward)
    if plan.hopper.apart is not None:
        found += claims.apart(plan.hopper.apart)
    return tuple(found)


def verdict(answer: Answer) -> Verdict:
    match answer:
        case Holds():
            return Proved("z3")
        case Fails():
            return Refuted("z3", (f"not so at {answer.text()}",), tuple(answer.values.items()))
        case _:
            return Unknown("z3", answer.reason)


class _Claims:
    def __init__(self, plan: KernelPlan, seconds: float):
        self.plan, self.seconds = plan, seconds
        self.span: Span = plan.attention.mask.span
        self.bare = replace(plan.attention, params=(), assumes=())  # no fact bears on walks of any runs

    def claim(self, subject: str, sentence: str, answer: Answer) -> Claim:
        return Claim(subject, sentence, verdict(answer), span=self.span)

    def world(self) -> World:
        return World(self.bare)

    def forward(self, forward: HopperForward) -> Iterator[Claim]:
        name, loops = "Hopper forward", self.plan.key_loops
        answer = walk_answer(self.world(), forward.walk, self.seconds)
        yield self.claim(f"{name}, walk", f"{name}: the walk over keys takes each tile of its runs once", answer)
        stretch = one_stretch(loops)
        if (forward.share.first, forward.share.stop) != (None, None):
            sentence = f"{name}: the steps that a warpgroup skips take no tile that its own queries meet"
            mine = (
                Run(own(stretch.start), own(stretch.stop)) if stretch is not None else Run("own_any_lo", "own_any_hi")
            )
            answer = share_answer(self.world(), forward.walk, forward.share, mine, self.seconds)
            yield self.claim(f"{name}, share", sentence, answer)
        yield self.unmasked(name, forward.unmasked, _own(loops))

    def backward(self, backward: HopperBackward) -> Iterator[Claim]:
        name, plan = "Hopper backward", self.plan
        answer = hull_answer(self.world(), backward.hull, self.seconds)
        yield self.claim(f"{name}, hull", f"{name}: the walk over queries covers every run", answer)
        yield self.unmasked(name, backward.unmasked, _own(plan.query_loops))
        if backward.lists is None:
            sentence = f"{name}: the tiles of keys that meet a tile of queries are consecutive"
            yield self.claim(TURNS, sentence, turns_answer(World(plan.attention), plan.queries, self.seconds))

    def apart(self, apart: HopperApart) -> Iterator[Claim]:
        for name, walked, found, loops in (
            ("Hopper dK/dV", "queries", apart.queries, self.plan.query_loops),
            ("Hopper dQ", "keys", apart.keys, self.plan.key_loops),
        ):
            answer = walk_answer(self.world(), found.walk, self.seconds)
            yield self.claim(
                f"{name}, walk", f"{name}: the walk over {walked} takes each tile of its runs once", answer
            )
            yield self.unmasked(name, found.unmasked, loops.full)

    def unmasked(self, name: str, unmasked: tuple[Run, ...], full: tuple[Run, ...]) -> Claim:
        answer = unmasked_answer(self.world(), unmasked, full, self.seconds)
        return self.claim(f"{name}, mask", f"{name}: a tile without the mask lies in a run that needs none", answer)


def _own(loops: Loops) -> tuple[Run, ...]:
    return tuple(Run(own(r.start), own(r.stop)) for r in loops.full)
