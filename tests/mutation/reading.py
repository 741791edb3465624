"""Brute force for what a printer is told of single operations: guards of loads, widths of ints, levels, the mask.

Takes a spec and a plan, evaluates indices, ints and bindings at positions, sizes and params of every size that may
come, gives the first mistake in words, or None.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attngen.ir.attention import Attention
from attngen.ir.checked import checked
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import INDICES, SIZES, Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.printing import expression
from attngen.ir.walk import children, loads, nodes
from attngen.plan.kernel import KernelPlan, evaluated
from attngen.plan.levels import Level, Schedule
from attngen.prove.verdict import Claim, Refuted
from mutation.draws import Drawn, draws
from mutation.walks import allowed

OVERHANG = 16
_SIZE = {"q": "Sq", "k": "Sk"}


def wrong_read(attention: Attention, plan: KernelPlan) -> str:
    """An element outside its tensor that a kernel reads without comparing the index; a corner that is none.

    Elements are drawn against their facts, too: no guard rests on those.
    """
    needed = dict.fromkeys(load for e in evaluated(plan) for load in loads(e))
    for drawn in draws(checked(plan.attention), 12, longest=12):
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


def read_outside(attention: Attention, claims: Sequence[Claim]) -> str:
    """The first refuted read whose counterexample, evaluated here, is allowed and outside the tensor."""
    for claim in claims:
        if not (claim.subject.startswith("read of") and isinstance(claim.verdict, Refuted)):
            continue
        unread = {**dict.fromkeys(INDICES, 0), **dict.fromkeys(SIZES, 1), "inf": np.inf}
        values = {**unread, **dict(claim.verdict.values)}
        roots = (attention.score, attention.mask)
        (load,) = {n for e in roots for n in loads(e) if claim.subject == f"read of `{expression(n)}`"}
        if not loads(attention.mask) and not evaluate(attention.mask, values, values):
            continue
        for index, dim in zip(load.indices, attention.param(load.param).shape, strict=True):
            if not loads(index) and not 0 <= evaluate(index, values, values) < evaluate(dim, values, values):
                return f"{claim.subject} at {values}"
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
_TRIALS = 60


def wrong_width(attention: Attention, plan: KernelPlan, seed: int = 0) -> str:
    """An int in 32 bits that leaves them, or a division towards zero with a negative side, for some inputs."""
    operations = dict.fromkeys(
        x for e in evaluated(plan) for x in nodes(e) if isinstance(x, Apply) and x.type is Type.INT
    )
    wide: dict[Expr, bool] = {}
    may_be: dict[Expr, Sequence[int | None]] = {}
    random = np.random.default_rng(seed)
    for e in operations:
        leaves = list(dict.fromkeys(x for x in nodes(e) if isinstance(x, Symbol | Scalar | Load)))
        if not all(x.type is Type.INT for x in leaves):
            continue
        may_be |= {x: _leaf(attention, x, plan.choices.longest) for x in leaves if x not in may_be}
        choices = [may_be[x] for x in leaves]
        most = np.array([len(c) for c in choices] * _TRIALS, np.int64)
        picks = random.integers(0, most).reshape(_TRIALS, len(choices))
        drawn = [[c[i] for c, i in zip(choices, row, strict=True)] for row in picks.tolist()]
        trials = [row for row in drawn if None not in row]
        exact = _Exact(len(trials), {x: [row[i] for row in trials] for i, x in enumerate(leaves)})
        if e in plan.choices.plain_divisions:
            for a, c in zip(*(exact(x) for x in e.args), strict=True):
                if a is not None and c is not None and c != 0 and int(a / c) != a // c and abs(a) < 2**50:
                    return f"{a} // {c} is done towards zero"
        if e.op in (Op.ADD, Op.SUB, Op.MUL) and not _is_wide(e, plan, wide):
            for value, *inner in zip(*(exact(x) for x in (e, *e.args)), strict=True):
                if value is not None and not _fits(value) and all(x is not None and _fits(x) for x in inner):
                    return f"an int in 32 bits comes to {value}"
    return ""


def _fits(value: int) -> bool:
    return -(2**31) <= value < 2**31


def _is_wide(e: Expr, plan: KernelPlan, memo: dict[Expr, bool]) -> bool:
    if e not in memo:
        own = isinstance(e, Apply) and e.type is Type.INT
        memo[e] = own and (e in plan.choices.wide or any(_is_wide(c, plan, memo) for c in children(e)))
    return memo[e]


def _leaf(attention: Attention, leaf: Expr, longest: int) -> Sequence[int | None]:
    """What a leaf may be; None for what its fact forbids."""
    if isinstance(leaf, Symbol):
        least = 1 if leaf.id[:1].isupper() else 0
        return (least, 1, longest - 1, min(12345, longest - 1), longest - 100)
    assert isinstance(leaf, Scalar | Load)
    where = attention.param(leaf.param).where
    if where is None:
        return _VALUES
    return [v if bool(np.all(evaluate(where, {}, {leaf.param: v}))) else None for v in _VALUES]


_INT_OPERATIONS: Mapping[Op, Callable[..., int | None]] = {
    Op.ADD: operator.add,
    Op.SUB: operator.sub,
    Op.MUL: operator.mul,
    Op.NEG: operator.neg,
    Op.ABS: abs,
    Op.MIN: min,
    Op.MAX: max,
    Op.FLOORDIV: lambda a, c: a // c if c else None,
    Op.MOD: lambda a, c: a % c if c else None,
}


class _Exact:
    """Int expressions in whole numbers of any size, for each of some values of their leaves; None where there is an
    operation that is left out here. A node is evaluated once, however often the graph shares it."""

    def __init__(self, count: int, leaves: Mapping[Expr, list[int | None]]):
        self._count = count
        self._leaves = leaves
        self._known: dict[int, list[int | None]] = {}

    def __call__(self, e: Expr) -> list[int | None]:
        if id(e) not in self._known:
            self._known[id(e)] = self._evaluated(e)
        return self._known[id(e)]

    def _evaluated(self, e: Expr) -> list[int | None]:
        match e:
            case Literal():
                return [int(e.value)] * self._count
            case Apply() if e.op in _INT_OPERATIONS and all(a.type is Type.INT for a in e.args):
                f = _INT_OPERATIONS[e.op]
                return [None if None in parts else f(*parts) for parts in zip(*map(self, e.args), strict=True)]
            case Apply():
                return [None] * self._count
            case _:
                return self._leaves[e]


# ---------------------------------------------------------------- levels


def wrong_level(attention: Attention, plan: KernelPlan, move: Callable[[Schedule], Schedule]) -> str:
    """A binding whose value differs inside the row, column or head for which it is computed once."""
    from attngen.prove.obligations import locality

    found: list[str] = []
    original = locality.schedule

    def look(results: Any) -> Schedule:
        moved = move(original(results))
        for binding in moved.bindings:
            found.extend(_varies(attention, binding.expr, binding.level))
        return moved

    locality.schedule = look  # type: ignore[assignment]
    try:
        locality.locality(attention, plan)
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
