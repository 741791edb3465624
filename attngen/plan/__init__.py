"""From the IR to a `KernelPlan`: every choice that no target makes for itself.

`mask/` says which tiles a loop visits, `score/` how weights are streamed and derived, `ints/` which operations need
guards and how wide they are, `levels` what is computed once a head, a row or a column, `kernel` the whole, `passes`
what each pass evaluates, `tiles/` tile sizes, and `hopper` the kernels of compute capability 9.0.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.ir.attention import Attention
from attngen.plan.kernel import KernelPlan, make_plan
from attngen.plan.limits import ALL, Limits
from attngen.plan.packed_alias import packed_alias
from attngen.plan.sides import GEOMETRIES
from attngen.plan.tiles.hopper import hopper_plan

__all__ = ["KernelPlan", "Limits", "plan"]


def plan(attention: Attention, limits: Limits = ALL) -> KernelPlan:
    """The whole plan, within the limits of a target. Raises SpecError where a normalizer has no plan."""
    found = make_plan(attention, limits)
    if not limits.gpu:
        return found
    return replace(
        found,
        hopper=hopper_plan(found, found.attention.tile),
        geometries=GEOMETRIES,
        packed_alias=packed_alias(found.attention, found.keys),
    )
