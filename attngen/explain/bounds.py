"""The plan's bounds as intervals: int expressions with their sums in order, and segments as half-open intervals.

Takes the bounds of a segment, returns `Math`. `in_order` changes how an expression reads, never its value.
"""

from __future__ import annotations

from collections.abc import Sequence

from attngen.explain import notation as n
from attngen.explain.formulas import Writer
from attngen.explain.notation import Math
from attngen.ir import build
from attngen.ir.nodes import COMPARISONS, Apply, Expr, Op, Symbol, Type
from attngen.ir.walk import transform
from attngen.plan.ints.linear import linear
from attngen.plan.mask.segments import Segment


def in_order(e: Expr) -> Expr:
    """An int expression with its sums in order: terms added, then terms taken away, then the number."""
    memo: dict[int, Expr] = {}

    def ordered(node: Expr) -> Expr | None:
        if not isinstance(node, Apply):
            return None
        parts = tuple(transform(a, ordered, memo) for a in node.args)
        if node.op in COMPARISONS and parts[0].type is Type.INT:
            return _sides(node.op, build.sub(parts[0], parts[1]))
        done = build.apply(node.op, *parts)
        if node.type is Type.INT and node.op in (Op.ADD, Op.SUB, Op.NEG):
            return _gathered(*linear(done))
        return _bare_extreme(done)

    return transform(e, ordered, memo)


def _gathered(terms: Sequence[tuple[Expr, int]], constant: int) -> Expr:
    found: Expr | None = None
    for term, factor in sorted(terms, key=lambda t: t[1] < 0):
        part = build.mul(build.integer(abs(factor)), term)
        if found is None:
            found = part if factor > 0 else build.neg(part)
        else:
            found = build.add(found, part) if factor > 0 else build.sub(found, part)
    if found is None:
        return build.integer(constant)
    return build.add(found, build.integer(constant)) if constant >= 0 else build.sub(found, build.integer(-constant))


def _sides(op: Op, difference: Expr) -> Expr:
    """`difference op 0`, with what is taken away moved to the other side."""
    terms, constant = linear(difference)
    left = _gathered([(t, c) for t, c in terms if c > 0], max(constant, 0))
    right = _gathered([(t, -c) for t, c in terms if c < 0], max(-constant, 0))
    return build.apply(op, left, right)


def _bare_extreme(e: Expr) -> Expr:
    """max(0, j0) is j0: a position is never negative."""
    if isinstance(e, Apply) and e.op is Op.MAX:
        for zero, position in (e.args, e.args[::-1]):
            if build.is_literal(zero, 0) and isinstance(position, Symbol) and position.id in ("q0", "q1", "k0", "k1"):
                return position
    return e


def stretch(writer: Writer, s: Segment, size: Symbol) -> Math:
    """A segment as a half-open interval; one that a condition may empty says so."""
    conditions: list[Expr] = []
    bounds: dict[Expr, None] = {}

    def walk(e: Expr) -> None:
        if isinstance(e, Apply) and e.op is Op.MIN:
            for a in e.args:
                walk(a)
        elif isinstance(e, Apply) and e.op is Op.SELECT and build.is_literal(e.args[2], 0):
            conditions.append(e.args[0])
            walk(e.args[1])
        else:
            bounds.setdefault(e)

    walk(in_order(s.hi))
    high: Expr | None = None
    for bound in bounds or {size: None}:
        high = bound if high is None else build.minimum(high, bound)
    assert high is not None
    found = n.interval(writer(in_order(s.lo)), writer(high))
    if not conditions:
        return found
    condition = writer(build.conjunction(*conditions))
    return Math(rf"{found.tex} \ \text{{if}} \ {condition.tex}", f"{found.text} if {condition.text}", n.NOT, n.NOT)
