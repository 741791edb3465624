"""What the planner has to know of a target."""

from __future__ import annotations

from dataclasses import dataclass

from attngen.plan.ints.width import WideInts


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`reserved`: the target's own names; sizes that a spec calls so get others in the plan. `ints`: how wide its ints
    are. `approximates`: half-precision kernels may use the approximate functions of `plan.score.approximate`.

    `gpu`: its kernels are programs that walk tiles, the portable ones and those of compute capability 9.0: they read
    bools of pairs ahead, and find the rows of sequences. `tpu`: its kernels walk a TPU's grid. `maps`: they walk lists
    of tiles, if a mask has holes. A plan has, and the prover proves, only the walks that the target's kernels take.
    """

    reserved: frozenset[str] = frozenset()
    ints: WideInts = WideInts.BITS_64
    approximates: bool = False
    gpu: bool = False
    tpu: bool = False
    maps: bool = False


ALL = Limits(gpu=True, tpu=True, maps=True)
"""Of no target: the plan has every walk."""
