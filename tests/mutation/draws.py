"""Sizes and params that a spec's facts allow, drawn at random from a seed. Uses none of the prover's own search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngen.ir.attention import Attention, Param
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Type


@dataclass(frozen=True)
class Drawn:
    sizes: Mapping[str, int]
    params: Mapping[str, Any]

    def env(self, b: int = 0, h: int = 0, **more: Any) -> dict[str, Any]:
        group = self.sizes["Hq"] // self.sizes["Hkv"]
        return {**self.sizes, "b": b, "h": h, "hkv": h // group, "inf": np.inf, **more}

    @property
    def heads(self) -> list[tuple[int, int]]:
        return [(b, h) for b in range(self.sizes["B"]) for h in range(self.sizes["Hq"])]


def draws(attention: Attention, count: int, *, longest: int = 20, seed: int = 0) -> Iterator[Drawn]:
    """`count` of them, or fewer where the facts are seldom met."""
    random = np.random.default_rng(seed)
    found = 0
    for attempt in range(60 * count):
        if found == count:
            return
        drawn = _draw(attention, random, longest, attempt)
        if drawn is not None:
            found += 1
            yield drawn


def _draw(attention: Attention, random: np.random.Generator, longest: int, attempt: int) -> Drawn | None:
    sq, sk = (int(n) for n in random.integers(1, longest + 1, 2))
    if attempt % 3 == 0:
        sq = sk
    if attempt % 4 == 1:
        sq = sk = 4 * int(random.integers(3, 6))
    hkv, group = int(random.integers(1, 3)), int(random.integers(1, 3))
    sizes = {"B": 1 + attempt % 2, "Hq": hkv * group, "Hkv": hkv, "Sq": sq, "Sk": sk, "D": 4, "Dv": 3}
    sizes |= {name: int(random.integers(1, longest)) for name in attention.sizes}
    params: dict[str, Any] = {}
    for p in attention.params:
        value = _value(p, sizes, random, longest)
        if value is None:
            return None
        params[p.name] = value
    drawn = Drawn(sizes, params)
    if all(bool(np.all(evaluate(fact, drawn.env(scale=0.5), params))) for fact in attention.assumes):
        return drawn
    return None


def _value(p: Param, sizes: Mapping[str, int], random: np.random.Generator, longest: int) -> Any:
    shape = tuple(int(evaluate(d, sizes, {})) for d in p.shape)
    found = _allowed(p, shape, sizes, random, longest)
    if found is None or shape:
        return found
    return found.item()


def _allowed(p: Param, shape: tuple[int, ...], sizes: Mapping[str, int], random: Any, longest: int) -> Any:
    """Every element afresh until its fact holds."""
    found = _drawn(p, shape, random, longest)
    if p.where is None:
        return found
    for _ in range(40):
        holds = np.broadcast_to(evaluate(p.where, sizes, {p.name: found}), shape)
        if holds.all():
            return found
        found = np.where(holds, found, _drawn(p, shape, random, longest))
    return None


def _drawn(p: Param, shape: tuple[int, ...], random: np.random.Generator, longest: int) -> Any:
    match p.type:
        case Type.BOOL:
            kept = random.random(shape) < random.choice([0.3, 0.8])
            return np.asarray(kept)
        case Type.INT:
            if random.random() < 0.5 and shape:
                return np.sort(random.integers(0, 4, shape), -1)
            return np.asarray(random.integers(-3, random.choice([4, longest + 2]), shape))
        case Type.FLOAT:
            if p.name in ("t", "times") and shape:
                return np.cumsum(random.choice([0.0, 0.25, 0.5], shape), -1)
            return np.asarray(random.choice([-1.5, -0.75, -0.25, 0.125, 0.5, 0.875, 1.25, 2.5], shape))
