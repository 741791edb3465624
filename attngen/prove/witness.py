"""Looks for concrete inputs at which something goes wrong in float32, and makes them as simple as it can.

Takes an attention, an expression, conditions that the inputs must fulfil (the mask, say), and what counts as wrong;
gives a `Witness`: a value for every index, size, param and element that is read. Finding none says nothing. Thousands
of inputs are tried at once: simple numbers, the numbers of the file and their neighbours, powers of two.
Elements of one tensor with the same index have the same value, and outside a tensor the value is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from typing import Literal as Kind

import numpy as np

from attngen import inputs
from attngen.errors import UsageError
from attngen.ir import build, printing, walk
from attngen.ir.attention import Attention
from attngen.ir.evaluate import Array, Tape, evaluate
from attngen.ir.nodes import SIZES, Apply, Expr, Load, Op, Scalar, Storage, Symbol, Type
from attngen.prove.boxes import Box
from attngen.prove.leaves import (
    Value,
    dangerous,
    deepened,
    inner_first,
    literals,
    one,
    plain,
    with_loads_again,
    without_loads,
)

Wrong = Kind["not finite", "true", "too large for fp16"]

_SHAPES = ((1, 1), (2, 2), (2, 3), (3, 2), (4, 4), (1, 5), (8, 8), (40, 40), (100, 300), (1000, 1000), (100000, 100000))
_PER_SHAPE = 800
HALF_OVERFLOWS = 65520.0
"""From here on rounding to fp16 gives inf."""


@dataclass(frozen=True, slots=True)
class Witness:
    """`values`: what each leaf is (symbols, scalars, loads). `node`: the innermost expression that goes wrong."""

    values: tuple[tuple[Expr, Value], ...]
    node: Expr
    operands: tuple[float, ...]
    result: float

    def at(self, e: Expr) -> float:
        """The value of `e` at these inputs, in float64; the symbols that it reads must be among them."""
        put = {leaf: build.literal(value) for leaf, value in self.values}
        with np.errstate(all="ignore"):
            return one(evaluate(walk.substitute(e, put), {}, {}))

    def moved(self, positions: Mapping[Expr, int], a: Attention) -> Witness | None:
        """The same inputs with other positions and sizes; None where the elements that are read do not go with them."""
        values: dict[Expr, Value] = {**dict(self.values), **positions}
        there = replace(self, values=tuple(values.items()))
        elements: dict[tuple[str, tuple[float, ...]], Value] = {}
        for leaf, value in self.values:
            if isinstance(leaf, Load):
                at = tuple(there.at(index) for index in leaf.indices)
                if elements.setdefault((leaf.param, at), value) != value:
                    return None
                for index, new, dim in zip(leaf.indices, at, a.param(leaf.param).shape, strict=True):
                    if new != self.at(index) and not 0 <= new < int(values.get(dim, 0)):
                        return None
        return there

    def named(self) -> tuple[tuple[str, Value], ...]:
        return tuple((printing.expression(leaf), value) for leaf, value in self.values)


def facts_of(a: Attention) -> tuple[Expr, ...]:
    """What holds of every call, whatever its tensors are."""
    facts = [p.where for p in a.params if p.is_scalar and p.where is not None]
    return (*facts, *(f for f in a.assumes if not walk.reads(f, "b", "h", "hkv", "q", "k") and not walk.loads(f)))


class _Samples:
    """Values for every leaf, many at once: arrays of one length."""

    def __init__(self, leaves: Mapping[Expr, Array]):
        self.leaves = dict(leaves)

    @property
    def env(self) -> dict[str, Any]:
        return {leaf.id: values for leaf, values in self.leaves.items() if isinstance(leaf, Symbol)}

    @property
    def params(self) -> dict[str, Any]:
        return {leaf.param: values for leaf, values in self.leaves.items() if isinstance(leaf, Scalar)}

    def only(self, at: int) -> _Samples:
        return _Samples({leaf: values[at : at + 1] for leaf, values in self.leaves.items()})


class Search:
    """The search for one attention; `box` bounds what is tried."""

    def __init__(self, attention: Attention, box: Box, *, scale_positive: bool, seed: int = 0):
        self.attention = attention
        self.box = box
        self.scale_positive = scale_positive
        self.rng = np.random.default_rng(seed)

    def find(self, target: Expr, conditions: Sequence[Expr], wrong: Wrong = "not finite") -> Witness | None:
        """Inputs that fulfil the conditions and every `where` and `assume`, and at which `target` goes wrong."""
        problem = _Problem(self, target, conditions, wrong)
        with np.errstate(all="ignore"):
            samples = problem.draw()
            if samples is None:
                return None
            bad = problem.bad(samples)
            if not bad.any():
                samples = problem.roots(samples)
                if samples is None:
                    return None
                bad = problem.bad(samples)
                if not bad.any():
                    return None
            cost = np.where(bad, problem.cost(samples), np.inf)
            best = problem.simplified(samples.only(int(np.argmin(cost))))
            return problem.witness(best)


class _Problem:
    def __init__(self, search: Search, target: Expr, conditions: Sequence[Expr], wrong: Wrong):
        a = self.attention = search.attention
        self.box, self.rng, self.scale_positive = search.box, search.rng, search.scale_positive
        self.target = target
        self.wrong: Wrong = wrong
        self.deep = deepened(target)
        self.loads = inner_first((target, *conditions))
        self.conditions = (*conditions, *facts_of(a))
        self.literals = literals((*self.conditions, target, *(p.where for p in a.params if p.where is not None)))

    # ------------------------------------------------------------ drawing

    def draw(self) -> _Samples | None:
        parts = [part for part in map(self._draw_shape, self._shapes()) if part is not None]
        if not parts:
            return None
        return _Samples({leaf: np.concatenate([p.leaves[leaf] for p in parts]) for leaf in parts[0].leaves})

    def _shapes(self) -> list[dict[str, int]]:
        found: list[dict[str, int]] = []
        for rows, columns in _SHAPES:
            wanted = {"B": 1, "Hq": 2, "Hkv": 1, "Sq": rows, "Sk": columns, "D": 4, "Dv": 4}
            try:
                sizes = inputs.settle(self.attention, wanted)
            except UsageError:
                continue
            if sizes not in found:
                found.append(sizes)
        return found

    def _draw_shape(self, sizes: Mapping[str, int]) -> _Samples | None:
        n, rng = _PER_SHAPE, self.rng
        leaves: dict[Expr, Array] = {build.index(s): np.full(n, v, np.int64) for s, v in sizes.items()}
        leaves[build.index("b")] = rng.integers(0, sizes["B"], n)
        h = leaves[build.index("h")] = rng.integers(0, sizes["Hq"], n)
        leaves[build.index("hkv")] = h // max(sizes["Hq"] // sizes["Hkv"], 1)
        q = leaves[build.index("q")] = self._positions(sizes["Sq"], n)
        near = np.clip(q + rng.integers(-3, 4, n), 0, sizes["Sk"] - 1)
        far = self._positions(sizes["Sk"], n)
        leaves[build.index("k")] = np.where(rng.random(n) < 0.4, near, far)
        box = self.box
        leaves[Symbol("qk", Type.FLOAT)] = self._floats(box.qk, n)
        scale = self._floats(box.scale, n)
        leaves[Symbol("scale", Type.FLOAT)] = np.maximum(np.abs(scale), box.tiny) if self.scale_positive else scale
        for name in ("s", "m", "n"):
            leaves[Symbol(name, Type.FLOAT)] = self._floats(box.score, n)
        for p in self.attention.params:
            if p.is_scalar:
                leaves[Scalar(p.name, p.type)] = self._numbers(p.storage, n)
        return self._with_loads(_Samples(leaves))

    def _positions(self, size: int, n: int) -> Array:
        spread = self.rng.integers(0, size, n)
        ends = self.rng.choice(np.array([0, 1, 2, size - 1, size - 2]), n)
        return np.where(self.rng.random(n) < 0.4, np.clip(ends, 0, size - 1), spread)

    def _numbers(self, storage: Storage, n: int) -> Array:
        match storage.type:
            case Type.BOOL:
                return self.rng.random(n) < 0.5
            case Type.INT:
                near = [int(x) + d for x in self.literals if abs(x) < 2**31 for d in (-1, 0, 1)]
                simple = np.array([0, 1, -1, 2, 3, 4, 5, 8, 16, -2, -8, *near], np.int64)
                return np.where(self.rng.random(n) < 0.7, self.rng.choice(simple, n), self.rng.integers(-4, 40, n))
            case Type.FLOAT:
                return inputs.round_to(storage, self._floats(self.box.param, n))

    def _floats(self, bound: float, n: int) -> Array:
        near = [x * d for x in self.literals if math.isfinite(x) for d in (-1.0, 1.0, 1 - 2.0**-23, 1 + 2.0**-23)]
        simple = [0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.25, 0.75, 10.0, -10.0, 90.0, -90.0, 100.0, -100.0, 1000.0]
        values = np.array([x for x in (*simple, *near, -bound, bound, self.box.tiny) if abs(x) <= bound] or [0.0])
        powers = np.exp2(self.rng.uniform(-10, math.log2(max(bound, 2.0)), n)) * self.rng.choice([-1.0, 1.0], n)
        drawn = np.where(self.rng.random(n) < 0.6, self.rng.choice(values, n), np.clip(powers, -bound, bound))
        return drawn.astype(np.float32).astype(np.float64) + 0.0  # no -0

    def _with_loads(self, samples: _Samples, *, fresh: bool = True) -> _Samples:
        """`samples` with an array for each load, those inside indices first."""
        n = len(next(iter(samples.leaves.values())))
        indices: dict[str, list[tuple[list[Array], Array]]] = {}
        for load in self.loads:
            param = self.attention.param(load.param)
            at = [self._value(x, samples, n) for x in load.indices]
            own = self._numbers(param.storage, n) if fresh else samples.leaves[load]
            inside = np.ones(n, np.bool_)
            for where, dim in zip(at, param.shape, strict=True):
                inside &= (where >= 0) & (where < self._value(dim, samples, n))
            own = np.where(inside, own, np.zeros((), own.dtype))
            for other, values in indices.setdefault(load.param, []):
                same = np.logical_and.reduce([a == b for a, b in zip(at, other, strict=True)])
                own = np.where(same, values, own)
            indices[load.param].append((at, own))
            samples.leaves[load] = own
        return samples

    # ------------------------------------------------------------ judging

    def _tape(self, roots: Sequence[Expr], samples: _Samples) -> tuple[Tape, list[Expr]]:
        flat = [without_loads(root, self.loads) for root in roots]
        env = {
            **samples.env,
            **{f"load {i}": samples.leaves[e] for i, e in enumerate(self.loads) if e in samples.leaves},
        }
        return Tape(flat, env, samples.params, np.float32), flat

    def _value(self, e: Expr, samples: _Samples, n: int) -> Array:
        tape, flat = self._tape((e,), samples)
        return np.broadcast_to(tape.value(flat[0]), (n,))

    def valid(self, samples: _Samples) -> Array:
        n = len(next(iter(samples.leaves.values())))
        valid = np.ones(n, np.bool_)
        for condition in self.conditions:
            valid &= self._value(condition, samples, n)
        for load in self.loads:
            where = self.attention.param(load.param).where
            if where is not None:
                inside = self._inside(load, samples, n)
                put = walk.substitute(where, {Scalar(load.param, load.type): load})
                valid &= self._value(put, samples, n) | ~inside
        for p in self.attention.params:
            if p.type is Type.FLOAT:  # what a `where` keeps from 0 is not taken to be tiny
                for leaf, values in samples.leaves.items():
                    if isinstance(leaf, Scalar | Load) and leaf.param == p.name:
                        valid &= (values == 0) | (np.abs(values) >= self.box.tiny)
        return valid

    def _inside(self, load: Load, samples: _Samples, n: int) -> Array:
        inside = np.ones(n, np.bool_)
        for x, dim in zip(load.indices, self.attention.param(load.param).shape, strict=True):
            where = self._value(x, samples, n)
            inside &= (where >= 0) & (where < self._value(dim, samples, n))
        return inside

    def bad(self, samples: _Samples) -> Array:
        n = len(next(iter(samples.leaves.values())))
        value = self._value(self.target, samples, n)
        return self.valid(samples) & self._wrong(value, samples, n)

    def _wrong(self, value: Array, samples: _Samples, n: int) -> Array:
        match self.wrong:
            case "true":
                return value.astype(np.bool_)
            case "too large for fp16":
                return np.abs(value) >= HALF_OVERFLOWS
            case "not finite":
                deep = self._value(self.deep, samples, n)
                written = (value == -np.inf) & np.isfinite(deep)
                return ~np.isfinite(value) & ~written

    # ------------------------------------------------------------ simplifying

    def cost(self, samples: _Samples) -> Array:
        """How hard the values are to read."""
        total: Any = 0.0
        for leaf in self._read():
            values = samples.leaves[leaf]
            if values.dtype == np.bool_:
                total = total + 0.25 * values
                continue
            size = np.abs(values.astype(np.float64) - (leaf == Symbol("scale", Type.FLOAT)))  # 1 is simplest there
            uneven = np.where(values * 8 == np.round(values * 8), 0.0, 8.0)
            total = total + np.log2(1 + size) + uneven + 0.5 * (values < 0)
        return np.asarray(total) + np.zeros(len(next(iter(samples.leaves.values()))))

    def _read(self) -> tuple[Expr, ...]:
        """The leaves that the target and the conditions read."""
        found: dict[Expr, None] = {}
        for root in (self.target, *self.conditions):
            for node in walk.nodes(root):
                if isinstance(node, Symbol | Scalar | Load):
                    found[node] = None
        for axis, sizes in (("q", "Sq"), ("k", "Sk"), ("h", "Hq"), ("hkv", "Hkv")):
            if build.index(axis) in found:
                found.setdefault(build.index(sizes))
        return tuple(found)

    def simplified(self, sample: _Samples) -> _Samples:
        """Leaf by leaf, the simplest number at which it still goes wrong."""
        for _ in range(2):
            for leaf in self._read():
                if isinstance(leaf, Symbol) and (
                    leaf.id in SIZES or leaf.id in (*self.attention.sizes, "b", "h", "hkv")
                ):
                    continue
                now = sample.leaves[leaf][0]
                choices = self._simple(leaf, now, sample)
                many = _Samples({x: np.repeat(v, len(choices)) for x, v in sample.leaves.items()})
                many.leaves[leaf] = choices
                many = self._with_loads(many, fresh=False)
                good = np.where(self.bad(many), self.cost(many), np.inf)
                sample = many.only(int(np.argmin(good)))
        return sample

    def _simple(self, leaf: Expr, now: Any, sample: _Samples) -> Array:
        if leaf.type is Type.BOOL:
            return np.array([now, False, True])
        if leaf.type is Type.INT:
            top = 2**31
            if isinstance(leaf, Symbol):
                top = int(sample.leaves[build.index("Sq" if leaf.id == "q" else "Sk")][0])
            return np.array([now, *(x for x in (0, 1, 2, 3, 4, 5, 8, now - 1, now // 2) if 0 <= x < top)], np.int64)
        bound = self.box.qk if leaf == Symbol("qk", Type.FLOAT) else self.box.param
        simple = (
            0.0,
            1.0,
            -1.0,
            0.5,
            2.0,
            -2.0,
            10.0,
            -10.0,
            20.0,
            50.0,
            89.0,
            90.0,
            -90.0,
            100.0,
            128.0,
            200.0,
            1000.0,
        )
        numbers = [float(now), float(round(now)), *(x for x in simple if abs(x) <= bound)]
        if leaf == Symbol("scale", Type.FLOAT):
            numbers = [x for x in numbers if abs(x) <= self.box.scale and (x > 0 or not self.scale_positive)]
        return np.array(numbers or [float(now)]).astype(np.float32).astype(np.float64)

    # ------------------------------------------------------------ roots

    def roots(self, samples: _Samples) -> _Samples | None:
        """Samples that hit 0 in a divisor or under a logarithm, found by halving between two signs."""
        n = len(next(iter(samples.leaves.values())))
        valid = self.valid(samples)
        found: list[_Samples] = []
        for part in dangerous(self.target):
            value = self._value(part, samples, n)
            ups, downs = np.flatnonzero(valid & (value > 0)), np.flatnonzero(valid & (value < 0))
            leaves = [x for x in dict.fromkeys(walk.nodes(part)) if x in samples.leaves and x.type is Type.FLOAT]
            for up, down in zip(ups[:8], downs[:8], strict=False):
                for leaf in leaves:
                    hit = self._halve(part, leaf, samples.only(int(up)), samples.leaves[leaf][down])
                    if hit is not None:
                        found.append(hit)
        if not found:
            return None
        return _Samples({leaf: np.concatenate([p.leaves[leaf] for p in found]) for leaf in found[0].leaves})

    def _halve(self, part: Expr, leaf: Expr, sample: _Samples, other: Any) -> _Samples | None:
        here, there = np.float32(sample.leaves[leaf][0]), np.float32(other)

        def at(x: Any) -> tuple[_Samples, float]:
            moved = _Samples({**sample.leaves, leaf: np.array([x], np.float64)})
            return moved, float(self._value(part, moved, 1)[0])

        if not (at(here)[1] > 0 > at(there)[1]):
            return None
        for _ in range(80):
            middle = np.float32((here + there) / 2)
            moved, value = at(middle)
            if value == 0:
                return moved
            if middle in (here, there):
                return None
            here, there = (middle, there) if value > 0 else (here, middle)
        return None

    # ------------------------------------------------------------ the result

    def witness(self, sample: _Samples) -> Witness:
        tape, flat = self._tape((self.target,), sample)
        node = flat[0]

        def bad(e: Expr) -> bool:
            return not np.isfinite(tape.value(e)).all()

        while self.wrong == "not finite" and isinstance(node, Apply):
            if node.op is Op.SELECT:
                node = node.args[1] if bool(one(tape.value(node.args[0]))) else node.args[2]
                continue
            inner = next((a for a in node.args if a.type is Type.FLOAT and bad(a) and isinstance(a, Apply)), None)
            if inner is None:
                break
            node = inner
        operands = tuple(one(tape.value(a)) for a in walk.children(node))
        value = one(tape.value(node))
        read = tuple((leaf, plain(leaf, sample.leaves[leaf][0])) for leaf in self._read())
        return Witness(read, with_loads_again(node, self.loads), operands, value)
