"""Which conditions a kernel tests before it reads an element of a param.

Takes a load, the params and the facts, gives an `Access`: for each axis whether the index is compared with 0 and with
the dim, or needs neither. An index that is a position of the dim's own axis is kept inside a ragged last tile instead.
What is not compared is a claim, which the prover checks: the index is in bounds wherever the kernel evaluates it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attngen.ir.attention import Param
from attngen.ir.build import integer, sub
from attngen.ir.nodes import Expr, Load, Symbol
from attngen.ir.walk import loads
from attngen.plan.facts import Facts
from attngen.plan.linear import from_linear, linear

_MATCHING = {("q", "Sq"), ("k", "Sk"), ("b", "B"), ("h", "Hq"), ("hkv", "Hkv")}
"""Indices that stay inside a dim of that size."""

_CLAMPED = {("q", "Sq"), ("k", "Sk")}
"""Of those, the ones that a ragged last tile would carry past the end."""


@dataclass(frozen=True, slots=True)
class AxisAccess:
    """`clamped`: the kernel reads position min(index, size - 1). `low`, `high`: it reads only where 0 <= index, and
    where index < size."""

    clamped: bool
    low: bool
    high: bool


@dataclass(frozen=True, slots=True)
class Access:
    load: Load
    axes: tuple[AxisAccess, ...]

    @property
    def guarded(self) -> bool:
        """Whether any condition is tested."""
        return any(a.low or a.high for a in self.axes)


def access(load: Load, param: Param, facts: Facts) -> Access:
    axes: list[AxisAccess] = []
    for i, size in zip(load.indices, param.shape, strict=True):
        pair = (i.id, size.id) if isinstance(i, Symbol) and isinstance(size, Symbol) else None
        if pair in _MATCHING:
            axes.append(AxisAccess(pair in _CLAMPED, low=False, high=False))
            continue
        room = from_linear(*linear(sub(sub(size, integer(1)), i)))
        axes.append(AxisAccess(False, not facts.is_nonnegative(i), not facts.is_nonnegative(room)))
    return Access(load, tuple(axes))


def accesses(expressions: Iterable[Expr], params: Iterable[Param], facts: Facts) -> tuple[Access, ...]:
    """One for each distinct load, in the order of first use."""
    by_name = {p.name: p for p in params}
    found = dict.fromkeys(e for root in expressions for e in loads(root))
    return tuple(access(e, by_name[e.param], facts) for e in found)
