"""Looks for concrete inputs at which something goes wrong in float32, and makes them as simple as it can.

Takes an attention, an expression, conditions that the inputs must fulfil (the mask, say), and what counts as wrong;
returns a `Witness`: a value for every index, size, param and element that is read. Finding none says nothing. What is
tried comes from `samples`. NumPy is loaded with this module: it is imported where a claim is in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal as Kind

import numpy as np

from attngen.ir import build, walk
from attngen.ir.attention import Attention
from attngen.ir.evaluate import Array
from attngen.ir.nodes import SIZES, Apply, Expr, Load, Op, Scalar, Symbol, Type
from attngen.prove.intervals.ingredients import dangerous, deepened, inner_first, literals, plain, with_loads_again
from attngen.prove.intervals.input_boxes import Box
from attngen.prove.search.samples import Sampler, Samples, one
from attngen.prove.search.witness import Witness, facts_of

Wrong = Kind["not finite", "true", "too large for fp16"]

HALF_OVERFLOWS = 65520.0
"""From here on rounding to fp16 gives inf."""


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
            samples = problem.sampler.draw()
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
        self.box, self.scale_positive = search.box, search.scale_positive
        self.target = target
        self.wrong: Wrong = wrong
        self.deep = deepened(target)
        self.loads = inner_first((target, *conditions))
        self.conditions = (*conditions, *facts_of(a))
        self.sampler = Sampler(
            a,
            search.box,
            search.rng,
            scale_positive=search.scale_positive,
            loads=self.loads,
            literals=literals((*self.conditions, target, *(p.where for p in a.params if p.where is not None))),
        )

    # ------------------------------------------------------------ judging

    def valid(self, samples: Samples) -> Array:
        n = len(next(iter(samples.leaves.values())))
        valid = np.ones(n, np.bool_)
        for condition in self.conditions:
            valid &= self.sampler.value(condition, samples, n)
        for load in self.loads:
            where = self.attention.param(load.param).where
            if where is not None and load.member is None:
                inside = self._inside(load, samples, n)
                put = walk.substitute(where, {Scalar(load.param, load.type): load})
                valid &= self.sampler.value(put, samples, n) | ~inside
        for p in self.attention.params:
            if p.type is Type.FLOAT:  # what a `where` keeps from 0 is not taken to be tiny
                for leaf, values in samples.leaves.items():
                    if isinstance(leaf, Scalar | Load) and leaf.param == p.name:
                        valid &= (values == 0) | (np.abs(values) >= self.box.tiny)
        return valid

    def _inside(self, load: Load, samples: Samples, n: int) -> Array:
        inside = np.ones(n, np.bool_)
        for x, dim in self.attention.param(load.param).axes(load):
            where = self.sampler.value(x, samples, n)
            inside &= (where >= 0) & (where < self.sampler.value(dim, samples, n))
        return inside

    def bad(self, samples: Samples) -> Array:
        n = len(next(iter(samples.leaves.values())))
        value = self.sampler.value(self.target, samples, n)
        return self.valid(samples) & self._wrong(value, samples, n)

    def _wrong(self, value: Array, samples: Samples, n: int) -> Array:
        match self.wrong:
            case "true":
                return value.astype(np.bool_)
            case "too large for fp16":
                return np.abs(value) >= HALF_OVERFLOWS
            case "not finite":
                deep = self.sampler.value(self.deep, samples, n)
                written = (value == -np.inf) & np.isfinite(deep)
                return ~np.isfinite(value) & ~written

    # ------------------------------------------------------------ simplifying

    def cost(self, samples: Samples) -> Array:
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

    def simplified(self, sample: Samples) -> Samples:
        """Leaf by leaf, the simplest number at which it still goes wrong."""
        for _ in range(2):
            for leaf in self._read():
                if isinstance(leaf, Symbol) and (
                    leaf.id in SIZES or leaf.id in (*self.attention.sizes, "b", "h", "hkv")
                ):
                    continue
                now = sample.leaves[leaf][0]
                choices = self._simple(leaf, now, sample)
                many = Samples({x: np.repeat(v, len(choices)) for x, v in sample.leaves.items()})
                many.leaves[leaf] = choices
                many = self.sampler.with_loads(many, fresh=False)
                good = np.where(self.bad(many), self.cost(many), np.inf)
                sample = many.only(int(np.argmin(good)))
        return sample

    def _simple(self, leaf: Expr, now: Any, sample: Samples) -> Array:
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

    def roots(self, samples: Samples) -> Samples | None:
        """Samples that hit 0 in a divisor or under a logarithm, found by halving between two signs."""
        n = len(next(iter(samples.leaves.values())))
        valid = self.valid(samples)
        found: list[Samples] = []
        for part in dangerous(self.target):
            value = self.sampler.value(part, samples, n)
            ups, downs = np.flatnonzero(valid & (value > 0)), np.flatnonzero(valid & (value < 0))
            leaves = [x for x in dict.fromkeys(walk.nodes(part)) if x in samples.leaves and x.type is Type.FLOAT]
            for up, down in zip(ups[:8], downs[:8], strict=False):
                for leaf in leaves:
                    hit = self._halve(part, leaf, samples.only(int(up)), samples.leaves[leaf][down])
                    if hit is not None:
                        found.append(hit)
        if not found:
            return None
        return Samples({leaf: np.concatenate([p.leaves[leaf] for p in found]) for leaf in found[0].leaves})

    def _halve(self, part: Expr, leaf: Expr, sample: Samples, other: Any) -> Samples | None:
        here, there = np.float32(sample.leaves[leaf][0]), np.float32(other)

        def at(x: Any) -> tuple[Samples, float]:
            moved = Samples({**sample.leaves, leaf: np.array([x], np.float64)})
            return moved, float(self.sampler.value(part, moved, 1)[0])

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

    def witness(self, sample: Samples) -> Witness:
        tape, flat = self.sampler.tape((self.target,), sample)
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
