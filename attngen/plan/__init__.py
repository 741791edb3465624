"""From the IR to a `KernelPlan`: every choice that no target makes for itself.

`mask/` says which tiles a loop visits, `score/` how weights are streamed and derived, `ints/` which operations need
guards and how wide they are, `levels` what is computed once a head, a row or a column, `kernel` the whole, `passes`
what each pass evaluates, `tiles/` tile sizes, and `hopper` the kernels of compute capability 9.0.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.ir.attention import Attention
from attngen.plan.geometry import GEOMETRIES
from attngen.plan.ints.width import WideInts
from attngen.plan.kernel import KernelPlan, make_plan
from attngen.plan.tiles.hopper import hopper_plan

__all__ = ["KernelPlan", "WideInts", "plan"]


def plan(
    attention: Attention,
    reserved: frozenset[str] = frozenset(),
    ints: WideInts = WideInts.BITS_64,
    approximates: bool = False,
    hopper: bool = True,
) -> KernelPlan:
    """The whole plan; `kernel.portable` describes the arguments. Raises SpecError where a normalizer has no plan.

    `hopper`: with the kernels of compute capability 9.0, those that read bools of pairs ahead, and the geometries of
    sequences, which the same target has.
    """
    found = make_plan(attention, reserved, ints, approximates, reads_pairs=hopper)
    if not hopper:
        return found
    return replace(found, hopper=hopper_plan(found, found.attention.tile), geometries=GEOMETRIES)
