"""Which conditions a kernel tests before it reads an element of a param.

Takes a load, the params and the facts, returns an `Access`: for each axis whether the index is compared with 0 and with
the dim, or needs neither. An index that is a position of the dim's own axis is kept inside a ragged last tile instead.
What is not compared is a claim, which the prover checks: the index is in bounds wherever the kernel evaluates it. So is
a `Corner`: at which corners of a tile an index is least and greatest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attngen.ir.attention import Param
from attngen.ir.build import integer, sub
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Symbol
from attngen.ir.walk import loads, reads
from attngen.plan.ints.facts import Facts
from attngen.plan.ints.linear import from_linear, linear
from attngen.plan.levels import Level, level_of

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


@dataclass(frozen=True, slots=True)
class Corner:
    """The one index of a load that differs from pair to pair, and which way it goes: it never falls with q (and k)
    where it `rises`, and never rises where it does not. Its extremes in a tile are therefore at two corners."""

    load: Load
    axis: int
    rises_in_q: bool
    rises_in_k: bool


def access(load: Load, param: Param, facts: Facts) -> Access:
    axes: list[AxisAccess] = []
    for i, size in param.axes(load):
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


def corner(load: Load) -> Corner | None:
    """None where no index, or more than one, differs from pair to pair, or where it goes both ways or reads q . k."""
    if load.member is not None:
        return None
    levels = [level_of(i) for i in load.indices]
    pairs = [axis for axis, level in enumerate(levels) if level is Level.PAIR]
    if len(pairs) != 1 or any(level not in (Level.PAIR, Level.HEAD) for level in levels):
        return None
    if reads(load.indices[pairs[0]], "qk"):  # no corner of a tile has its extreme
        return None
    rises = [slope(load.indices[pairs[0]], s) for s in ("q", "k")]
    return None if None in rises else Corner(load, pairs[0], rises[0] == 1, rises[1] == 1)


def slope(e: Expr, symbol: str) -> int | None:
    """1 where `e` never falls as the int symbol grows, -1 where it never rises, 0 without it, None where unknown."""
    if not reads(e, symbol):
        return 0
    if isinstance(e, Symbol):
        return 1
    if not isinstance(e, Apply):
        return None
    slopes = [slope(a, symbol) for a in e.args]
    match e.op:
        case Op.ADD | Op.MIN | Op.MAX:
            pass
        case Op.SUB:
            slopes[1] = None if slopes[1] is None else -slopes[1]
        case Op.NEG:
            slopes = [None if slopes[0] is None else -slopes[0]]
        case Op.FLOORDIV if isinstance(e.args[1], Literal) and e.args[1].value > 0:
            pass
        case _:
            return None
    if None in slopes or {1, -1} <= set(slopes):
        return None
    return 1 if 1 in slopes else -1
