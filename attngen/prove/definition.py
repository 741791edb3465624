"""The attention as the spec defines it, in the names that the plan uses.

Takes the analysed attention and the plan, returns the former with its fresh sizes renamed as the plan renamed them (a
size called `n` would clash with a symbol of the kernels). Proofs compare this with what is planned.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.ir.attention import Attention
from attngen.ir.build import index
from attngen.ir.nodes import Expr
from attngen.ir.walk import substitute
from attngen.plan import KernelPlan


def definition(attention: Attention, plan: KernelPlan) -> Attention:
    """`attention`, its sizes under the plan's names, matched by their order."""
    names = {old: new for old, new in zip(attention.sizes, plan.attention.sizes, strict=True) if old != new}
    if not names:
        return attention
    values: dict[Expr, Expr] = {index(old): index(new) for old, new in names.items()}

    def moved(e: Expr) -> Expr:
        return substitute(e, values)

    def perhaps(e: Expr | None) -> Expr | None:
        return None if e is None else moved(e)

    n = attention.normalizer
    return replace(
        attention,
        params=tuple(replace(p, shape=tuple(map(moved, p.shape)), where=perhaps(p.where)) for p in attention.params),
        sizes=plan.attention.sizes,
        score=moved(attention.score),
        mask=moved(attention.mask),
        normalizer=replace(
            n,
            weight=moved(n.weight),
            extra=perhaps(n.extra),
            stream_weight=perhaps(n.stream_weight),
            rescale=perhaps(n.rescale),
        ),
        dropout=perhaps(attention.dropout),
        assumes=tuple(map(moved, attention.assumes)),
        origin=attention.origin.mapped(moved),
    )
