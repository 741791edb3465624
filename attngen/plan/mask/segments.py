"""Unions of stretches of positions: what `and` and `or` do to tile ranges.

Takes segments with symbolic ends, returns segments. `any` may only grow where it is simplified, `all` only shrink.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir import build
from attngen.ir.build import integer
from attngen.ir.nodes import Apply, Expr, Literal, Op

MOST_SEGMENTS = 4
"""`any` keeps up to this many disjoint stretches (then joins them into their hull); `all` drops the surplus."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions `lo … hi - 1`; empty where `lo >= hi`."""

    lo: Expr
    hi: Expr


@dataclass(frozen=True, slots=True)
class Pair:
    """The two unions of stretches that a condition has."""

    any: tuple[Segment, ...]
    all: tuple[Segment, ...]


def both(a: Pair | None, b: Pair | None) -> Pair | None:
    return None if a is None or b is None else meet(a, b)


def either(a: Pair | None, b: Pair | None) -> Pair | None:
    return None if a is None or b is None else join(a, b)


def meet(a: Pair, b: Pair) -> Pair:
    return Pair(_widen(_products(a.any, b.any)), _products(a.all, b.all)[:MOST_SEGMENTS])


def join(a: Pair, b: Pair) -> Pair:
    return Pair(_widen(_distinct(a.any + b.any)), _distinct(a.all + b.all)[:MOST_SEGMENTS])


def _products(a: tuple[Segment, ...], b: tuple[Segment, ...]) -> tuple[Segment, ...]:
    return _distinct(tuple(Segment(larger(x.lo, y.lo), smaller(x.hi, y.hi)) for x in a for y in b))


def _distinct(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    return tuple(dict.fromkeys(s for s in segments if not _empty(s)))


def _empty(s: Segment) -> bool:
    return isinstance(s.lo, Literal) and isinstance(s.hi, Literal) and s.lo.value >= s.hi.value


def _widen(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """At most four stretches: beyond that, their hull (an empty stretch can only widen it)."""
    if len(segments) <= MOST_SEGMENTS:
        return segments
    low, high = segments[0].lo, segments[0].hi
    for s in segments[1:]:
        low, high = smaller(low, s.lo), larger(high, s.hi)
    return (Segment(low, high),)


def smaller(a: Expr, b: Expr) -> Expr:
    """min, with repetitions among the operands dropped."""
    return _lattice(Op.MIN, a, b)


def larger(a: Expr, b: Expr) -> Expr:
    """max, with repetitions among the operands dropped."""
    return _lattice(Op.MAX, a, b)


def _lattice(op: Op, a: Expr, b: Expr) -> Expr:
    parts = list(dict.fromkeys([*_operands(op, a), *_operands(op, b)]))
    fixed = [p for p in parts if isinstance(p, Literal)]
    found: Expr | None = None
    if fixed:
        values = [int(p.value) for p in fixed]
        found = integer(min(values) if op is Op.MIN else max(values))
    for part in parts:
        if not isinstance(part, Literal):
            found = part if found is None else build.apply(op, found, part)
    assert found is not None
    return found


def _operands(op: Op, e: Expr) -> list[Expr]:
    if isinstance(e, Apply) and e.op is op:
        return [p for a in e.args for p in _operands(op, a)]
    return [e]
