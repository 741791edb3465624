"""What depends on a query and a key through their distance alone, as biases by relative position do.

Takes expressions, returns them as functions of `DISTANCE`. All pairs of a tile that lie along one of its diagonals are
as far apart, so what is dear to compute of a distance is computed once for each diagonal (`diagonals`), not for each
pair.
"""

from __future__ import annotations

from typing import TypeAlias

from attngen.ir import build
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import loads, reads
from attngen.plan.ints.linear import from_linear, linear
from attngen.plan.levels import Level, is_dear_for_pairs, level_of

DISTANCE = Symbol("distance", Type.INT)
"""q - k, in a function of the distance."""


Memo: TypeAlias = dict[Expr, Expr | None]


def distance_index(leaf: Load) -> tuple[Expr, ...] | None:
    """The indices as functions of `distance` = q - k, and of the head; None where they depend on q and k otherwise,
    q . k among them: it differs from pair to pair whatever else the index reads."""
    if leaf.member is not None or any(loads(i) or reads(i, "qk") for i in leaf.indices):
        return None
    found: list[Expr] = []
    for i in leaf.indices:
        moved = _shifted(i)
        if moved is None:
            return None
        found.append(moved if reads(i, "q", "k") else i)
    return tuple(found)


def by_distance(e: Expr, memo: Memo | None = None) -> Expr | None:
    """`e` as a function of `distance` = q - k, and of the head; None where it depends on q and k otherwise.

    `memo`: what is known already, to be shared by calls for parts of one expression.
    """
    memo = {} if memo is None else memo
    if e not in memo:
        memo[e] = _by_distance(e, memo)
    return memo[e]


def _by_distance(e: Expr, memo: Memo) -> Expr | None:
    if not loads(e):
        return None if reads(e, "qk", "x", "ref") else _shifted(e)
    match e:
        case Load():
            indices = distance_index(e)
            return None if indices is None else Load(e.param, indices, e.type)
        case Apply():
            parts = [by_distance(a, memo) for a in e.args]
            found = [part for part in parts if part is not None]
            return build.apply(e.op, *found) if len(found) == len(parts) else None
        case _:
            return None


def diagonals(*expressions: Expr) -> tuple[Expr, ...]:
    """The largest parts of these that depend on a pair by its distance alone, where they read a param by it, or take
    more than an instruction or two."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    memo: Memo = {}

    def visit(e: Expr) -> None:
        if e in seen or level_of(e) is not Level.PAIR:
            return
        seen.add(e)
        if _is_worth_it(e) and by_distance(e, memo) is not None:
            found[e] = None
        elif isinstance(e, Apply):
            for child in e.args:
                visit(child)

    for e in expressions:
        visit(e)
    return tuple(found)


def _is_worth_it(e: Expr) -> bool:
    return is_dear_for_pairs(e) or any(level_of(n) is Level.PAIR for n in loads(e))


def _whole_numbers(e: Expr) -> Expr | None:
    """A sum or difference of ints that has been brought to floats term by term (`converted_early`), in ints again."""
    if not (isinstance(e, Apply) and e.type is Type.FLOAT and e.op in (Op.ADD, Op.SUB)):
        return None
    terms = [a.args[0] for a in e.args if isinstance(a, Apply) and a.op is Op.TO_FLOAT and a.args[0].type is Type.INT]
    return build.apply(e.op, *terms) if len(terms) == len(e.args) else None


def _shifted(e: Expr) -> Expr | None:
    """`e` with q - k written as `distance`, if q and k enter through their difference alone."""
    if not reads(e, "q", "k"):
        return e
    if isinstance(e, Symbol | Literal | Scalar | Load):
        return None
    if e.type is Type.INT:
        terms, constant = linear(e)
        if len(terms) > 1 or (terms and terms[0][0] != e):
            q, k = Symbol("q", Type.INT), Symbol("k", Type.INT)
            by_term = dict(terms)
            factor = by_term.pop(q, 0)
            if factor + by_term.pop(k, 0) != 0:
                return None
            rest: list[tuple[Expr, int]] = [(DISTANCE, factor)] if factor else []
            for term, c in by_term.items():
                inner = _shifted(term)
                if inner is None:
                    return None
                rest.append((inner, c))
            return from_linear(rest, constant)
    whole = _whole_numbers(e)
    if whole is not None:
        inner = _shifted(whole)
        return None if inner is None else build.apply(Op.TO_FLOAT, inner)
    parts: list[Expr] = []
    for a in e.args:
        inner = _shifted(a)
        if inner is None:
            return None
        parts.append(inner)
    return build.apply(e.op, *parts)
