"""Where each part of an expression is computed: once a head, once a row, once a column, or for every pair.

Takes named results (expressions over q, k, qk, …), returns a `Schedule`: bindings in an order that can be evaluated,
each at the lowest level that its inputs allow. Repeated subexpressions are bound once; a part that depends on the row
alone is bound at the row even if it is used once, because the pair that uses it is evaluated for every key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from attngen.ir.nodes import FLOAT_FUNCTIONS, Apply, Expr, Literal, Load, Op, Scalar, Symbol
from attngen.ir.walk import children, nodes


class Level(IntEnum):
    """Ordered: a binding may use its own level and HEAD; PAIR may use all."""

    HEAD = 0
    ROW = 1
    COLUMN = 2
    PAIR = 3


@dataclass(frozen=True, slots=True)
class Binding:
    """`name` is a hint; the emitter makes it unique. `expr` is printed with earlier bindings put in by equality."""

    name: str
    expr: Expr
    level: Level


@dataclass(frozen=True, slots=True)
class Schedule:
    bindings: tuple[Binding, ...]
    results: tuple[tuple[str, Expr], ...]

    def at(self, level: Level) -> tuple[Binding, ...]:
        return tuple(b for b in self.bindings if b.level is level)


_PAIR_SYMBOLS = {"qk", "x", "ref", "by_distance"}


def level_of(e: Expr, memo: dict[int, Level] | None = None) -> Level:
    """The level at which `e` can be computed. A symbol `row_…` is the emitter's own, of a row."""
    memo = {} if memo is None else memo
    found = memo.get(id(e))
    if found is not None:
        return found
    if isinstance(e, Symbol):
        if e.id in _PAIR_SYMBOLS:
            found = Level.PAIR
        elif e.id == "q" or e.id.startswith("row_"):
            found = Level.ROW
        elif e.id in ("k", "k0"):
            found = Level.COLUMN
        else:
            found = Level.HEAD
    else:
        found = Level.HEAD
        for child in children(e):
            own = level_of(child, memo)
            found = Level.PAIR if {own, found} == {Level.ROW, Level.COLUMN} else max(found, own)
    memo[id(e)] = found
    return found


_NAMES = {Level.HEAD: "head_term", Level.ROW: "row_term", Level.COLUMN: "col_term", Level.PAIR: "term"}


def schedule(results: Mapping[str, Expr], given: Collection[Expr] = ()) -> Schedule:
    """Bindings for `results`, in dependency order. Results themselves are bound only if another result uses them.
    `given`: what has a name already.
    """
    levels: dict[int, Level] = {}
    uses: dict[Expr, int] = {}
    parents: dict[Expr, set[Level]] = {}
    seen: set[Expr] = set(given)

    def count(e: Expr) -> None:
        for child in children(e):
            uses[child] = uses.get(child, 0) + 1
            parents.setdefault(child, set()).add(level_of(e, levels))
            if child not in seen:
                seen.add(child)
                count(child)

    for e in results.values():
        uses[e] = uses.get(e, 0) + 1
        parents.setdefault(e, set()).add(Level.PAIR)
        if e not in seen:
            seen.add(e)
            count(e)

    bindings: list[Binding] = []
    bound: set[Expr] = set(given)

    def visit(e: Expr) -> None:
        if e in bound:
            return
        for child in children(e):
            visit(child)
        own = level_of(e, levels)
        hoisted = own is not Level.PAIR and any(p is not own for p in parents[e])
        if _worth(e) and (hoisted or uses[e] > 1):
            bound.add(e)
            bindings.append(Binding(e.name or _NAMES[own], e, own))

    for e in results.values():
        visit(e)
    return Schedule(tuple(bindings), tuple(results.items()))


def _worth(e: Expr) -> bool:
    """Whether a name is worth it: leaves, and conversions of leaves, are as short as their names."""
    if isinstance(e, Literal | Symbol | Scalar):
        return False
    if isinstance(e, Load):
        return True
    if e.op is Op.NEG:
        return not isinstance(e.args[0], Literal | Symbol | Scalar)
    return True


def is_dear(e: Expr) -> bool:
    """Whether computing `e` twice costs more than moving its value to where it is needed again."""
    return any(isinstance(n, Load) or _is_slow(n) for n in nodes(e))


def is_dear_for_pairs(e: Expr) -> bool:
    """Whether each pair computes something for `e` that takes more than an instruction or two."""
    return any(_is_slow(n) and level_of(n) is Level.PAIR for n in nodes(e))


def _is_slow(e: Expr) -> bool:
    return isinstance(e, Apply) and e.op in FLOAT_FUNCTIONS | {Op.DIV, Op.POW}
