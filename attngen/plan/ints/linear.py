"""Sums taken apart and put together: linear forms of int expressions, and signed summands of any.

Takes expressions, returns terms with their factors or signs, and back. Used to solve comparisons, and to see that an
index stays inside its dim.
"""

from __future__ import annotations

from attngen.ir import build
from attngen.ir.build import add, integer, mul, sub
from attngen.ir.nodes import Apply, Expr, Literal, Op, Type


def linear(e: Expr) -> tuple[list[tuple[Expr, int]], int]:
    """An int expression as `sum of factor * term + constant`; equal terms are gathered, zero factors dropped."""
    factors: dict[Expr, int] = {}
    constant = 0

    def walk(e: Expr, factor: int) -> None:
        nonlocal constant
        if isinstance(e, Literal):
            constant += factor * int(e.value)
            return
        if isinstance(e, Apply):
            match e.op:
                case Op.ADD:
                    walk(e.args[0], factor)
                    walk(e.args[1], factor)
                    return
                case Op.SUB:
                    walk(e.args[0], factor)
                    walk(e.args[1], -factor)
                    return
                case Op.NEG:
                    walk(e.args[0], -factor)
                    return
                case Op.MUL if isinstance(e.args[0], Literal):
                    walk(e.args[1], factor * int(e.args[0].value))
                    return
                case Op.MUL if isinstance(e.args[1], Literal):
                    walk(e.args[0], factor * int(e.args[1].value))
                    return
                case _:
                    pass
        factors[e] = factors.get(e, 0) + factor

    walk(e, 1)
    return [(t, c) for t, c in factors.items() if c != 0], constant


def from_linear(terms: list[tuple[Expr, int]], constant: int) -> Expr:
    positive = [(t, c) for t, c in terms if c > 0]
    negative = [(t, -c) for t, c in terms if c < 0]
    total: Expr | None = None
    for term, factor in positive:
        part = mul(term, integer(factor))
        total = part if total is None else add(total, part)
    if total is None:
        total = integer(constant)
        constant = 0
    for term, factor in negative:
        total = sub(total, mul(term, integer(factor)))
    if constant:
        total = add(total, integer(constant)) if constant > 0 else sub(total, integer(-constant))
    return total


def additive(left: Expr, right: Expr) -> list[tuple[Expr, int]]:
    """`left - right` as signed summands; a literal is a summand like any other."""
    found: list[tuple[Expr, int]] = []

    def walk(e: Expr, sign: int) -> None:
        if isinstance(e, Apply) and e.op in (Op.ADD, Op.SUB):
            walk(e.args[0], sign)
            walk(e.args[1], sign if e.op is Op.ADD else -sign)
        elif isinstance(e, Apply) and e.op is Op.NEG:
            walk(e.args[0], -sign)
        else:
            found.append((e, sign))

    walk(left, 1)
    walk(right, -1)
    return found


def total(parts: list[tuple[Expr, int]], type: Type) -> Expr:
    total: Expr = build.real(0.0) if type is Type.FLOAT else integer(0)
    for term, sign in sorted(parts, key=lambda p: -p[1]):
        total = add(total, term) if sign > 0 else sub(total, term)
    return total
