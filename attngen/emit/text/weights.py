"""The form of the weights, as the templates of every target need it."""

from __future__ import annotations

from dataclasses import dataclass

from attngen.plan.kernel import KernelPlan
from attngen.plan.score.weights import Form


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightView:
    """`saves_rest`: the forward pass of a GPU saves what out loses in rounding, that of a TPU out before it is rounded,
    for the gradients of params."""

    exponential: bool
    shift: bool
    sums: bool
    saves_den: bool
    saves_rest: bool


def weight_view(plan: KernelPlan, *, forward: bool = False) -> WeightView:
    """`forward`: nothing is saved for a backward pass."""
    w = plan.weights
    direct = w.form is Form.DIRECT
    return WeightView(
        exponential=w.form is Form.EXPONENTIAL,
        shift=not direct,
        sums=w.sums,
        saves_den=direct and w.sums and not forward,
        saves_rest=w.sums and bool(plan.gradients),
    )
