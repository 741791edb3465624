"""The walks of a TPU's kernels, as claims of `tile-ranges`.

Takes a plan, returns claims about its `TpuWalks`, if it has some: the walk that a kernel makes of its runs takes each
tile once; the grid brings the tile that a step takes; and a loop in rounds, one that keeps a masked tile for the end,
and one whose numbers of tiles are known take each step once. That the runs themselves are right is what the claims
about loops say, or, where runs are of places in lists, those about the map.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

from attngen.ir.checked import without_facts
from attngen.plan.kernel import KernelPlan, by_lists
from attngen.plan.mask.tpu_walks import TpuWalks
from attngen.plan.mask.walks import unrolled
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.tile_walks import extent_answer, inside_answer, joined_answer
from attngen.prove.obligations.tpu_steps import (
    grid_answer,
    pairs_answer,
    resident_answer,
    rounds_answer,
    straight_answer,
)
from attngen.prove.obligations.walk_claims import WalkClaims
from attngen.prove.verdict import Claim

_Value = TypeVar("_Value", bound=Hashable)
_SHOWN: dict[Hashable, int] = {}
"""Values that are shown, and the units that it took: nothing of a spec bears on them, and each proof pays for them."""


def tpu_walks(claims: WalkClaims) -> Iterator[Claim]:
    plan = by_lists(claims.plan)
    walks = plan.tpu_walks
    if walks is None:
        return
    yield from _walks_of_runs(claims, plan, walks)

    def claim(
        subject: str, sentence: str, value: _Value, ask: Callable[[SolverContext, _Value, Work], Answer]
    ) -> Claim:
        """The claim about a value that is the same for every spec."""
        work = claims.work
        if _SHOWN.get(value, work.left + 1) <= work.left:
            work.charge(_SHOWN[value])
            return claims.claim(subject, sentence, Holds())
        spent = work.spent
        answer = ask(claims.context(), value, work.part())
        if isinstance(answer, Holds):
            _SHOWN[value] = work.spent - spent
        return claims.claim(subject, sentence, answer)

    sentence = "TPU: each step of the grid takes the next tile, with or without the mask, and brings one that exists"
    yield claim("TPU grid, steps", sentence, walks.grid, grid_answer)
    yield claim("TPU rounds", "TPU: a loop in rounds takes each of its steps once", walks.rounds, rounds_answer)
    sentence = "TPU: each tile that needs the mask is walked in a loop, or as the last one after it"
    yield claim("TPU loops", sentence, walks.resident, resident_answer)
    sentence = "TPU: where the numbers of tiles are known, each tile is walked once, in a loop or after it"
    yield claim("TPU tails", sentence, walks.straight, straight_answer)
    sentence = "TPU: a tile of a gradient for each pair is summed exactly where a run has it"
    yield claim("TPU pairs", sentence, walks.pairs, pairs_answer)


def _walks_of_runs(claims: WalkClaims, plan: KernelPlan, walks: TpuWalks) -> Iterator[Claim]:
    context, planned = claims.context(), SolverContext(without_facts(plan.attention))
    for walked, runs, ranges, loops in (
        ("keys", walks.keys, plan.keys, plan.key_loops),
        ("queries", walks.queries, plan.queries, plan.query_loops),
    ):
        unmasked, masked = (unrolled(walks.numbering, own) for own in (runs.unmasked, runs.masked))
        for name, mask, walk, own in (
            ("unmasked", "without", unmasked, loops.full),
            ("masked", "with", masked, loops.partial),
        ):
            sentence = f"TPU: the walk over {walked} {mask} the mask"
            yield claims.walk(f"TPU walk of {walked}, {name}", sentence, walk, own)
        brought = unrolled(walks.numbering, (*runs.unmasked, *runs.masked))
        sentence = f"TPU: the tile of {walked} that the grid brings is the one that the step takes"
        answer = joined_answer(context, brought, unmasked, masked, claims.work.part())
        yield claims.claim(f"TPU grid, {walked}", sentence, answer)
        if plan.map is not None:  # a list has no more places than there are tiles
            continue
        sentence = f"TPU: no walked tile of {walked} begins behind the sequence, so the grid has a step for each"
        answer = inside_answer(planned, ranges, claims.work.part())
        if isinstance(answer, Holds):
            answer = extent_answer(context, ranges, loops, claims.work.part())
        yield claims.claim(f"TPU grid, extent of {walked}", sentence, answer)
