"""Expressions as a search needs them: their loads, numbers and dangerous parts, the cases of a condition, and text.

Takes expressions, returns expressions and text; tries nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from attngen.ir import build, printing, walk
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Symbol, Type

Value = bool | int | float
_DEEP = -1e20
"""Stands for an -inf that the file wrote, where it matters whether an -inf was computed."""


def plain(leaf: Expr, x: Any) -> Value:
    match leaf.type:
        case Type.BOOL:
            return bool(x)
        case Type.INT:
            return int(x)
        case Type.FLOAT:
            return float(x)


def inner_first(roots: Iterable[Expr]) -> tuple[Load, ...]:
    found: dict[Load, None] = {}

    def visit(e: Expr) -> None:
        for load in walk.loads(e):
            if load not in found:
                for x in walk.children(load):
                    visit(x)
                found[load] = None

    for root in roots:
        visit(root)
    return tuple(found)


def without_loads(e: Expr, loads: Sequence[Load]) -> Expr:
    names: dict[Expr, Expr] = {load: Symbol(f"load {n}", load.type) for n, load in enumerate(loads)}
    return walk.substitute(e, names) if names else e


def with_loads_again(e: Expr, loads: Sequence[Load]) -> Expr:
    names: dict[Expr, Expr] = {Symbol(f"load {n}", load.type): load for n, load in enumerate(loads)}
    return walk.substitute(e, names) if names else e


def literals(roots: Iterable[Expr]) -> tuple[float, ...]:
    found = {float(n.value): None for r in roots for n in walk.nodes(r) if isinstance(n, Literal)}
    return tuple(found)


def deepened(e: Expr) -> Expr:
    return walk.substitute(e, {Literal(-math.inf, Type.FLOAT): build.real(_DEEP)})


def dangerous(e: Expr) -> tuple[Expr, ...]:
    """What must not be 0 or negative: divisors, and the arguments of log, log2, sqrt and rsqrt."""
    found: dict[Expr, None] = {}
    for node in walk.nodes(e):
        if isinstance(node, Apply):
            if node.op is Op.DIV:
                found[node.args[1]] = None
            elif node.op in (Op.LOG, Op.LOG2, Op.SQRT, Op.RSQRT) or node.op is Op.POW:
                found[node.args[0]] = None
    return tuple(found)


def restate(values: Iterable[tuple[Expr, Value]]) -> str:
    """`q = 1, k = 0, c = 0.0`."""
    return ", ".join(f"{printing.expression(leaf)} = {_text(value)}" for leaf, value in values)


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def disjuncts(e: Expr, most: int = 16) -> tuple[tuple[Expr, ...], ...]:
    """The cases of a condition: at least one of the conjunctions holds where it does. One case if they are too many."""
    cases = _cases(e)
    return cases if len(cases) <= most else ((e,),)


def _cases(e: Expr) -> tuple[tuple[Expr, ...], ...]:
    if isinstance(e, Apply) and e.op is Op.OR:
        return tuple(case for part in e.args for case in _cases(part))
    if isinstance(e, Apply) and e.op is Op.AND:
        found: tuple[tuple[Expr, ...], ...] = ((),)
        for part in e.args:
            found = tuple((*left, *right) for left in found for right in _cases(part))
            if len(found) > 64:
                return ((e,),)
        return found
    return ((e,),)
