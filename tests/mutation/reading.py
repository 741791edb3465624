"""Brute force for what a printer is told of single operations: guards of loads, widths of ints, levels, the mask.

Takes a spec and a plan, evaluates indices, ints and bindings at positions, sizes and params of every size that may
come, gives the first mistake in words, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import children, loads, nodes
from attngen.plan.kernel import KernelPlan, evaluated
from attngen.plan.schedule import Level, Schedule
from mutation.draws import Drawn, draws
from mutation.walks import allowed

OVERHANG = 16
_SIZE = {"q": "Sq", "k": "Sk"}


def wrong_read(attention: Attention, plan: KernelPlan) -> str:
    """An element outside its tensor that a kernel reads without comparing the index; a corner that is none."""
    needed = dict.fromkeys(load for e in evaluated(plan) for load in loads(e))
    for drawn in draws(plan.attention, 12, longest=12):
        for b, h in drawn.heads:
            for load in needed:
                problem = _read(plan, load, drawn, b, h)
                if problem:
                    return f"{problem}; {dict(drawn.sizes)}, params {drawn.params}"
            problem = _corners(plan, drawn, b, h)
            if problem:
                return f"{problem}; {dict(drawn.sizes)}"
    return ""


def _read(plan: KernelPlan, load: Load, drawn: Drawn, b: int, h: int) -> str:
    access = plan.choices.access(load)
    past = {s: np.arange(drawn.sizes[size] + OVERHANG) for s, size in _SIZE.items()}
    env = drawn.env(b, h, q=past["q"][:, None], k=past["k"][None, :], scale=0.5)
    for axis, (index, own, dim) in enumerate(
        zip(load.indices, access.axes, plan.attention.param(load.param).shape, strict=True)
    ):
        at = evaluate(index, env, drawn.params)
        if own.clamped and isinstance(index, Symbol) and index.id in _SIZE:
            at = np.minimum(at, drawn.sizes[_SIZE[index.id]] - 1)
        size = int(evaluate(dim, drawn.sizes, {}))
        if not own.low and (at < 0).any():
            return f"index {axis} of {load.param} comes to {int(at.min())}"
        if not own.high and (at >= size).any():
            return f"index {axis} of {load.param} comes to {int(at.max())}, and its size is {size}"
    return ""


def _corners(plan: KernelPlan, drawn: Drawn, b: int, h: int) -> str:
    sq, sk = drawn.sizes["Sq"], drawn.sizes["Sk"]
    env = drawn.env(b, h, q=np.arange(sq)[:, None], k=np.arange(sk)[None, :])
    for corner in plan.choices.corners:
        at = np.broadcast_to(evaluate(corner.load.indices[corner.axis], env, drawn.params), (sq, sk))
        for q0 in range(0, sq, 3):
            for k0 in range(0, sk, 3):
                part = at[q0 : q0 + 3, k0 : k0 + 3]
                rows, columns = (0, -1)[:: 1 if corner.rises_in_q else -1], (0, -1)[:: 1 if corner.rises_in_k else -1]
                least, most = part[rows[0], columns[0]], part[rows[1], columns[1]]
                if least != part.min() or most != part.max():
                    return f"the extremes of {corner.load.param}'s index are not at the corners of a tile"
    return ""


def wrong_mask(attention: Attention, plan: KernelPlan) -> str:
    """A pair that the plan's mask and the file's treat differently."""
    for drawn in draws(attention, 12, longest=12):
        for b, h in drawn.heads:
            if not np.array_equal(allowed(attention, drawn, b, h), allowed(plan.attention, drawn, b, h)):
                return f"the masks differ; {dict(drawn.sizes)}, params {drawn.params}"
    return ""


# ---------------------------------------------------------------- widths

_VALUES = (2**31 - 1, -(2**31), 0, 1, -1, 7, 2**30)


def wrong_width(attention: Attention, plan: KernelPlan, seed: int = 0) -> str:
    """An int in 32 bits that leaves them, or a division towards zero with a negative side, for some inputs."""
    operations = dict.fromkeys(
        x for e in evaluated(plan) for x in nodes(e) if isinstance(x, Apply) and x.type is Type.INT
    )
    wide: dict[Expr, bool] = {}
    random = np.random.default_rng(seed)
    for e in operations:
        leaves = dict.fromkeys(x for x in nodes(e) if isinstance(x, Symbol | Scalar | Load))
        if not all(x.type is Type.INT for x in leaves):
            continue
        for _ in range(60):
            values = {x: _leaf(attention, x, plan.choices.longest, random) for x in leaves}
            if None in values.values():
                continue
            if e in plan.choices.plain_divisions:
                a, c = (_exact(x, values) for x in e.args)
                if a is not None and c is not None and c != 0 and int(a / c) != a // c and abs(a) < 2**50:
                    return f"{a} // {c} is done towards zero"
            value = _exact(e, values)
            narrow = not _is_wide(e, plan, wide)
            if value is not None and narrow and e.op in (Op.ADD, Op.SUB, Op.MUL) and not -(2**31) <= value < 2**31:
                inner = [_exact(x, values) for x in e.args]
                if all(x is not None and -(2**31) <= x < 2**31 for x in inner):
                    return f"an int in 32 bits comes to {value}"
    return ""


def _is_wide(e: Expr, plan: KernelPlan, memo: dict[Expr, bool]) -> bool:
    if e not in memo:
        own = isinstance(e, Apply) and e.type is Type.INT
        memo[e] = own and (e in plan.choices.wide or any(_is_wide(c, plan, memo) for c in children(e)))
    return memo[e]


def _leaf(attention: Attention, leaf: Expr, longest: int, random: np.random.Generator) -> int | None:
    if isinstance(leaf, Symbol):
        least = 1 if leaf.id[:1].isupper() else 0
        return int(random.choice((least, 1, longest - 1, min(12345, longest - 1), longest - 100)))
    assert isinstance(leaf, Scalar | Load)
    value = int(random.choice(_VALUES))
    where = attention.param(leaf.param).where
    if where is not None and not bool(np.all(evaluate(where, {}, {leaf.param: value}))):
        return None
    return value


def _exact(e: Expr, values: Mapping[Expr, int | None]) -> int | None:
    """An int expression in whole numbers of any size; None where it has an operation that is left out here."""
    if e in values:
        return values[e]
    if isinstance(e, Literal):
        return int(e.value)
    if not isinstance(e, Apply):
        return None
    parts = [_exact(a, values) for a in e.args if a.type is Type.INT]
    if None in parts or len(parts) != len(e.args):
        return None
    known = [p for p in parts if p is not None]
    table: dict[Op, Callable[..., int]] = {
        Op.ADD: lambda a, b: a + b,
        Op.SUB: lambda a, b: a - b,
        Op.MUL: lambda a, b: a * b,
        Op.NEG: lambda a: -a,
        Op.ABS: abs,
        Op.MIN: min,
        Op.MAX: max,
    }
    if e.op in (Op.FLOORDIV, Op.MOD):
        if known[1] == 0:
            return None
        return known[0] // known[1] if e.op is Op.FLOORDIV else known[0] % known[1]
    return table[e.op](*known) if e.op in table else None


# ---------------------------------------------------------------- levels


def wrong_level(attention: Attention, plan: KernelPlan, move: Callable[[Schedule], Schedule]) -> str:
    """A binding whose value differs inside the row, column or head for which it is computed once."""
    from attngen.prove import locality

    found: list[str] = []
    original = locality.schedule

    def look(results: Any) -> Schedule:
        moved = move(original(results))
        for binding in moved.bindings:
            found.extend(_varies(attention, binding.expr, binding.level))
        return moved

    locality.schedule = look  # type: ignore[assignment]
    try:
        locality.locality(attention, plan, 5.0)
    finally:
        locality.schedule = original  # type: ignore[assignment]
    return found[0] if found else ""


def _varies(attention: Attention, e: Expr, level: Level) -> list[str]:
    if level is Level.PAIR:
        return []
    for drawn in draws(attention, 6, longest=9, seed=3):
        sq, sk = max(drawn.sizes["Sq"], 1), max(drawn.sizes["Sk"], 1)
        random = np.random.default_rng(1)
        pair = {name: random.normal(size=(sq, sk)) for name in ("qk", "x", "ref")}
        env = drawn.env(0, 0, q=np.arange(sq)[:, None], k=np.arange(sk)[None, :], scale=0.5, **pair)
        value = np.broadcast_to(evaluate(e, env, drawn.params), (sq, sk))
        first = value[:1, :1] if level is Level.HEAD else value[:, :1] if level is Level.ROW else value[:1, :]
        if not np.array_equal(value, np.broadcast_to(first, value.shape), equal_nan=value.dtype.kind == "f"):
            return [f"a value that is computed once a {level.name.lower()} differs inside it"]
    return []
