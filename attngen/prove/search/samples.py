"""Inputs drawn by the thousand: values for everything that an expression reads, in arrays of one length.

Takes an attention, bounds, and the loads and literals that matter, returns `Samples`: simple numbers, the numbers of
the file and their neighbours, powers of two. Elements of one tensor with the same index have the same value, and
outside a tensor the value is 0. What is looked for among them is the business of `search`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attngen import inputs
from attngen.errors import UsageError
from attngen.ir import build, walk
from attngen.ir.attention import Attention
from attngen.ir.evaluate import Array, Tape, evaluate
from attngen.ir.nodes import Expr, Load, Scalar, Storage, Symbol, Type
from attngen.prove.intervals.ingredients import without_loads
from attngen.prove.intervals.input_boxes import Box

_SHAPES = ((1, 1), (2, 2), (2, 3), (3, 2), (4, 4), (1, 5), (8, 8), (40, 40), (100, 300), (1000, 1000), (100000, 100000))
_TILE = 64
_PER_SHAPE = 800


def one(x: Array) -> float:
    return float(np.asarray(x).reshape(-1)[0])


def value_of(e: Expr) -> float:
    """The value of an expression without symbols, in float64."""
    with np.errstate(all="ignore"):
        return one(evaluate(e, {}, {}))


class Samples:
    """Values for every leaf, many at once: arrays of one length."""

    def __init__(self, leaves: Mapping[Expr, Array]):
        self.leaves = dict(leaves)

    @property
    def env(self) -> dict[str, Any]:
        return {leaf.id: values for leaf, values in self.leaves.items() if isinstance(leaf, Symbol)}

    @property
    def params(self) -> dict[str, Any]:
        return {leaf.param: values for leaf, values in self.leaves.items() if isinstance(leaf, Scalar)}

    def only(self, at: int) -> Samples:
        return Samples({leaf: values[at : at + 1] for leaf, values in self.leaves.items()})


class Sampler:
    """Draws for one attention. `loads`: those that are read, the ones inside indices first; `literals`: numbers that
    may matter."""

    def __init__(
        self,
        attention: Attention,
        box: Box,
        rng: np.random.Generator,
        *,
        scale_positive: bool,
        loads: Sequence[Load],
        literals: Sequence[float],
    ):
        self.attention = attention
        self.box, self.rng, self.scale_positive = box, rng, scale_positive
        self.loads, self.literals = loads, literals

    def draw(self) -> Samples | None:
        parts = [part for part in map(self._draw_shape, self._shapes()) if part is not None]
        if not parts:
            return None
        return Samples({leaf: np.concatenate([p.leaves[leaf] for p in parts]) for leaf in parts[0].leaves})

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

    def _draw_shape(self, sizes: Mapping[str, int]) -> Samples | None:
        n, rng = _PER_SHAPE, self.rng
        leaves: dict[Expr, Array] = {build.index(s): np.full(n, v, np.int64) for s, v in sizes.items()}
        leaves[build.index("b")] = rng.integers(0, sizes["B"], n)
        h = leaves[build.index("h")] = rng.integers(0, sizes["Hq"], n)
        leaves[build.index("hkv")] = h // max(sizes["Hq"] // sizes["Hkv"], 1)
        q = leaves[build.index("q")] = self._positions(sizes["Sq"], n)
        near = np.clip(q + rng.integers(-3, 4, n), 0, sizes["Sk"] - 1)
        far = self._positions(sizes["Sk"], n)
        k = leaves[build.index("k")] = np.where(rng.random(n) < 0.4, near, far)
        for axis, at in (("q", q), ("k", k)):  # the first and the last of a tile
            leaves[build.index(f"{axis}0")] = at // _TILE * _TILE
            leaves[build.index(f"{axis}1")] = at // _TILE * _TILE + _TILE - 1
        box = self.box
        leaves[Symbol("qk", Type.FLOAT)] = self._floats(box.qk, n)
        scale = self._floats(box.scale, n)
        leaves[Symbol("scale", Type.FLOAT)] = np.maximum(np.abs(scale), box.tiny) if self.scale_positive else scale
        for name in ("s", "m", "n"):
            leaves[Symbol(name, Type.FLOAT)] = self._floats(box.score, n)
        for p in self.attention.params:
            if p.is_scalar:
                leaves[Scalar(p.name, p.type)] = self._numbers(p.storage, n)
        return self.with_loads(Samples(leaves))

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
                drawn = np.where(self.rng.random(n) < 0.7, self.rng.choice(simple, n), self.rng.integers(-4, 40, n))
                return inputs.round_to(storage, drawn)
            case Type.FLOAT:
                return inputs.round_to(storage, self._floats(self.box.param, n))

    def _floats(self, bound: float, n: int) -> Array:
        near = [x * d for x in self.literals if math.isfinite(x) for d in (-1.0, 1.0, 1 - 2.0**-23, 1 + 2.0**-23)]
        simple = [0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.25, 0.75, 10.0, -10.0, 90.0, -90.0, 100.0, -100.0, 1000.0]
        values = np.array([x for x in (*simple, *near, -bound, bound, self.box.tiny) if abs(x) <= bound] or [0.0])
        powers = np.exp2(self.rng.uniform(-10, math.log2(max(bound, 2.0)), n)) * self.rng.choice([-1.0, 1.0], n)
        drawn = np.where(self.rng.random(n) < 0.6, self.rng.choice(values, n), np.clip(powers, -bound, bound))
        return drawn.astype(np.float32).astype(np.float64) + 0.0  # no -0

    def with_loads(self, samples: Samples, *, fresh: bool = True) -> Samples:
        """`samples` with an array for each load, those inside indices first."""
        n = len(next(iter(samples.leaves.values())))
        indices: dict[tuple[str, bool], list[tuple[list[Array], Array]]] = {}
        for load in self.loads:
            param = self.attention.param(load.param)
            at = [self.value(x, samples, n) for x in walk.children(load)]
            listed = load.member is not None
            own = self._numbers(Storage.BOOL if listed else param.storage, n) if fresh else samples.leaves[load]
            inside = np.ones(n, np.bool_)
            for where, (_, dim) in zip(at, param.axes(load), strict=False):
                inside &= (where >= 0) & (where < self.value(dim, samples, n))
            own = np.where(inside, own, np.zeros((), own.dtype))
            for other, values in indices.setdefault((load.param, listed), []):
                same = np.logical_and.reduce([a == b for a, b in zip(at, other, strict=True)])
                own = np.where(same, values, own)
            indices[load.param, listed].append((at, own))
            samples.leaves[load] = own
        return samples

    # ------------------------------------------------------------ evaluating

    def tape(self, roots: Sequence[Expr], samples: Samples) -> tuple[Tape, list[Expr]]:
        flat = [without_loads(root, self.loads) for root in roots]
        env = {
            **samples.env,
            **{f"load {i}": samples.leaves[e] for i, e in enumerate(self.loads) if e in samples.leaves},
        }
        return Tape(flat, env, samples.params, np.float32), flat

    def value(self, e: Expr, samples: Samples, n: int) -> Array:
        tape, flat = self.tape((e,), samples)
        return np.broadcast_to(tape.value(flat[0]), (n,))
