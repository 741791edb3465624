"""The forward kernel of compute capability 9.0, beside the portable one: what `templates/gluon/` reads.

Takes the plan, the forward kernel's code and the loops' ranges, as the Triton emitter has them, gives a `GluonView`.
The expressions are Triton's own text, which Gluon takes as it is; Gluon adds layouts, shared memory and barriers.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.params import ParamView
from attngen.emit.tile_code import RangeView, numbering, total
from attngen.plan.hopper import skeletons
from attngen.plan.kernel import KernelPlan
from attngen.plan.loops import ZERO, Run


@dataclass(frozen=True, slots=True)
class GluonView:
    """The lines `at` bind the tile of `step`, of which there are `n_steps`. `masked` says whether this warpgroup's own
    queries need a mask there, by the bounds `own_results`.
    """

    arguments: tuple[str, ...]
    unspecialized: list[str]
    longest_first: bool
    at: tuple[str, ...]
    n_steps: str
    full: tuple[Run, ...]
    own_results: tuple[str, ...]
    masked: str
    table: tuple[tuple[tuple[int, int], tuple[int | bool | str, ...]], ...]


def gluon_view(
    plan: KernelPlan,
    keys: RangeView,
    params: tuple[ParamView, ...],
    arguments: tuple[str, ...],
    sizes: tuple[str, ...],
    tile: tuple[int, int] | None,
) -> GluonView | None:
    """None where no query has a key, so that there is nothing to be fast at, and where no row has the spec's tile."""
    table = skeletons(plan, tile)
    if not table or not (keys.partial or keys.full):
        return None
    unspecialized = ["n_work", *sizes]
    for p in params:
        unspecialized += p.strides[:-1] if p.by_pointer else [p.name]

    def own(name: str) -> str:
        return name if name == ZERO else f"own_{name}"

    outside = [
        f"at >= {own(r.stop)}" if r.start == ZERO else f"(at < {own(r.start)}) | (at >= {own(r.stop)})"
        for r in keys.full
    ]
    masked = outside[0] if len(outside) == 1 else " & ".join(f"({text})" for text in outside) or "True"
    return GluonView(
        arguments,
        unspecialized,
        plan.longest_first,
        *_walk(keys),
        keys.full,
        tuple(own(name) for name in keys.results),
        masked,
        tuple((key, skeleton.row) for key, skeleton in table.items()),
    )


def _walk(keys: RangeView) -> tuple[tuple[str, ...], str]:
    """How a step's tile is found, and how many there are. One stretch needs no case."""
    runs = (*keys.partial, *keys.full)
    names = ("any_lo", "any_hi")
    if len(keys.full) <= 1 and all(r.start in (*names, ZERO) or r.stop in names for r in keys.partial):
        if "any_lo" in keys.results:
            return ("at = any_lo + step",), "any_hi - any_lo"
        return ("at = step",), "any_hi"
    return numbering(runs, "at"), total(runs)
