"""Edits of the logit that rises from key to key (`plan.Ramp`), and what brute force shows of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attngen.ir.attention import Attention
from attngen.ir.build import floordiv, integer, mul, real
from attngen.ir.nodes import Expr, Symbol, Type
from attngen.ir.walk import substitute
from attngen.plan.kernel import KernelPlan
from mutation.edits import edits
from mutation.machine import wrong_numbers

_K, _K0 = Symbol("k", Type.INT), Symbol("k0", Type.INT)


def edited_ramps(plan: KernelPlan) -> Iterator[tuple[str, KernelPlan]]:
    """One edit of one part."""
    hopper, ramp = plan.hopper, plan.ramp
    if hopper is None or hopper.forward is None or ramp is None:
        return
    for field in ("factor", "unit", "rise", "row"):
        for what, e in edits(getattr(ramp, field)):
            made = replace(hopper.forward, ramp=replace(ramp, **{field: e}))
            yield f"{field}: {what}", replace(plan, hopper=replace(hopper, forward=made))


def wrong_ramp(attention: Attention, plan: KernelPlan) -> str:
    """What a plan computes wrongly whose logit is the rising one, in tiles of four keys."""
    assert plan.ramp is not None
    first: dict[Expr, Expr] = {_K0: mul(floordiv(_K, integer(4)), integer(4))}
    logit = substitute(plan.ramp.logit, first)
    return wrong_numbers(attention, replace(plan, weights=replace(plan.weights, unit=logit, factor=real(1.0))))
