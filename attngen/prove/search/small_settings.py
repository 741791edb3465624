"""Small sizes and params that a spec's `where`s and `assume`s allow: what a search for counterexamples tries.

Takes the attention, returns `Setting`s, the plainest first and always the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attngen.ir.attention import Attention, Param
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr, Literal, Type
from attngen.ir.walk import nodes, params

LENGTHS = ((1, 1), (2, 3), (4, 4), (5, 3), (3, 8), (7, 7), (9, 9), (6, 13), (13, 6), (16, 16))
INTS = (1, 2, 3, 4, 7, 0, -1, -3, 12, 64)
FLOATS = (0.5, 1.0, 2.5, 0.0, -1.5, 8.0)
LARGEST = 2100
"""Longest sequence that is tried."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes and params, as a call would give them."""

    sizes: Mapping[str, int]
    values: Mapping[str, Any]

    def text(self, shown: frozenset[str]) -> str:
        parts = [f"{name} = {value}" for name, value in self.sizes.items() if name in shown]
        for name, value in self.values.items():
            array = np.asarray(value)
            parts.append(f"{name} = {_array_text(array) if array.ndim else value}")
        return ", ".join(parts)


def settings(attention: Attention, mask: Expr) -> Iterator[Setting]:
    """Small sizes and values that the `where`s and `assume`s allow, the plainest first; always the same ones."""
    own = _read(attention, (mask, *attention.assumes))
    for lengths in _lengths(attention, mask):
        for seed in range(6):
            made = _setting(attention, own, lengths, seed)
            if made is not None:
                yield made
            if not own:
                break


def _read(attention: Attention, expressions: tuple[Expr, ...]) -> list[Param]:
    """The params that these read, and those that their `where`s read."""
    needed: set[str] = set()
    waiting = [name for e in expressions for name in params(e)]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            where = attention.param(name).where
            waiting += params(where) if where is not None else ()
    return [p for p in attention.params if p.name in needed]


def _lengths(attention: Attention, mask: Expr) -> list[tuple[int, int]]:
    near: dict[tuple[int, int], None] = dict.fromkeys(LENGTHS)
    for e in (mask, *attention.assumes):
        for node in nodes(e):
            if isinstance(node, Literal) and node.type is Type.INT and 4 < abs(node.value) < LARGEST - 70:
                c = abs(int(node.value))
                near |= dict.fromkeys([(c, c), (c + 1, c + 1), (c + 67, c + 67), (c + 5, c + 40)])
                if 3 * c < 200:
                    near |= dict.fromkeys([(3 * c, 3 * c), (2 * c + 1, 3 * c)])
    return list(near)


def _setting(attention: Attention, own: list[Param], lengths: tuple[int, int], seed: int) -> Setting | None:
    random = np.random.default_rng(seed)
    sizes = {"B": 1, "Hq": 2, "Hkv": 1, "Sq": lengths[0], "Sk": lengths[1], "D": 64, "Dv": 64}
    for name in attention.sizes:
        sizes[name] = (max(lengths), 3, 1, 8, max(lengths), 5)[seed]
    values: dict[str, Any] = {}
    for p in own:
        made = _values(p, sizes, values, random, seed, max(lengths))
        if made is None:
            return None
        values[p.name] = made
    env = {**sizes, "b": 0, "h": 0, "hkv": 0, "inf": np.inf, "scale": 1.0}
    # A `where` that reads a later param was left open.
    facts = (*attention.assumes, *(p.where for p in own if p.where is not None))
    if all(bool(np.all(evaluate(fact, env, values))) for fact in facts):
        return Setting(sizes, values)
    return None


def _values(
    p: Param,
    sizes: Mapping[str, int],
    known: Mapping[str, Any],
    random: np.random.Generator,
    seed: int,
    longest: int,
) -> Any:
    """A value or an array under the param's `where`, as far as the known params tell; None where none will do."""
    shape = tuple(int(evaluate(d, sizes, {})) for d in p.shape)
    pool: list[Any] = {
        Type.BOOL: [True, False],
        Type.INT: [*INTS, longest // 2, longest],
        Type.FLOAT: [*FLOATS, longest / 2],
    }[p.type]
    if p.where is not None and set(params(p.where)) <= {p.name, *known}:
        pool = [v for v in pool if bool(np.all(evaluate(p.where, sizes, {**known, p.name: v})))]
    if not pool:
        return None
    if not shape:
        return pool[seed % len(pool)]
    if p.type is Type.INT and seed % 2 == 0:
        few = pool[: 2 + seed // 2]
        drawn = random.choice(few, shape)
        return np.sort(drawn, axis=-1) if seed % 4 == 0 else drawn
    return random.choice(pool, shape)


def _array_text(array: npt.NDArray[Any]) -> str:
    text = np.array2string(array.squeeze(), separator=", ", threshold=24).replace("\n", "")
    return " ".join(text.split())
