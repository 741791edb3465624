"""Masks with holes between tiles, by the kernels of compute capability 9.0 on the model of the chip, against the
definition. `tests/generated/test_map.py` says which tiles are walked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopper_model.test_backward import gradients
from hopper_model.test_forward import forward

S = 512
RNG = np.random.default_rng(0)


def tree() -> dict[str, Any]:
    """A prompt of 200 tokens, and branches behind it, all shuffled by blocks of 16."""
    first = np.concatenate([np.zeros(200), *(np.full(39, 1 + i) for i in range(8))])[:S].astype(np.int64)
    last = np.where(first == 0, 100, first + 1)
    order = np.arange(S).reshape(-1, 16)[RNG.permutation(S // 16)].reshape(-1)
    return {"first": np.stack([first, first[order]]), "last": np.stack([last, last[order]])}


def image() -> dict[str, Any]:
    at = np.arange(S)
    return {"x": at // 32 % 16 * 4 + at % 4, "y": at // 512 * 8 + at % 32 // 4}


_MASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "tree": (
        "param first: int[B, Sk]\nparam last: int[B, Sk]\n"
        "mask = causal and first[b, k] <= first[b, q] < last[b, k]\nassume Sq == Sk\n",
        tree(),
    ),
    "image": (
        "param x: int[Sk]\nparam y: int[Sk]\nmask = abs(x[q] - x[k]) <= 3 and abs(y[q] - y[k]) <= 3\nassume Sq == Sk\n",
        image(),
    ),
    "fourth": ("mask = causal and (q - k) % 4 == 0\n", {}),
    "window in two dimensions": ("mask = abs(q // 64 - k // 64) <= 2 and abs(q % 64 - k % 64) <= 9\n", {}),
    "blocks": (
        "param chosen: bool[Hkv, 8, 8]\nmask = causal and chosen[hkv, q // 64, k // 64]\n"
        "assume Sq == Sk\nassume Sk <= 512\n",
        {"chosen": RNG.random((2, 8, 8)) < 0.3},
    ),
    "lists": (
        "param chosen: int[Hkv, 8, 3]\nmask = causal and k // 64 in chosen[hkv, q // 64]\n"
        "assume Sq == Sk\nassume Sk <= 512\n",
        {"chosen": RNG.integers(-1, 8, (2, 8, 3))},
    ),
    "either": (
        "param ids: int[B, Sk]\nmask = (ids[b, q] == ids[b, k]) or (q - k) % 256 == 0\nassume Sq == Sk\n",
        {"ids": RNG.integers(0, 3, (2, S // 64)).repeat(64, -1)},
    ),
    "nothing": (
        "param ids: int[B, Sk]\nmask = ids[b, q] < ids[b, k]\nassume Sq == Sk\n",
        {"ids": np.zeros((2, S), np.int64)},
    ),
}
MASKS = {name: (f"attention holes\n\n{text}", params) for name, (text, params) in _MASKS.items()}
SIZES = (2, 4, 2, S, S)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("name", MASKS)
def test_results(name: str, dim: int) -> None:
    text, params = MASKS[name]
    error, _ = forward(text, (dim, dim), SIZES, **params)
    assert error < 1.5e-2


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("name", MASKS)
def test_gradients(name: str, dim: int) -> None:
    text, params = MASKS[name]
    errors, _ = gradients(text, (dim, dim), SIZES, **params)
    assert all(e < 1.5e-2 for e in errors.values()), errors
