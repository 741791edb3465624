"""Drawn specs without hypothesis: what a GPU's machine, where there is none, draws from, too.

`spec` puts a file together with the params that its lines name, `mask_values` draws their values; `ATOMS` and `SCORES`
are what masks and scores for the kernels of one chip are made of.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

DECLARATIONS = {
    "c": "int where c >= 1",
    "w": "int",
    "flag": "bool",
    "span": "f32 where span > 0",
    "ids": "int[B, Sk]",
    "seg": "int[B, Sq]",
    "t": "f32[B, Sk]",
    "lengths": "int[B]",
    "window": "int[Hq]",
    "valid": "bool[B, Sk]",
    "alive": "bool[B, Sq]",
    "slope": "f32[Hq]",
    "gain": "f32[B, Hkv]",
    "row": "f32[B, Sq]",
    "col": "bf16[Hq, Sk]",
    "cap": "f32 where cap > 0.5",
    "bias": "f32",
    "named": "bool[B, Sq, Sk]",
    "picks": "int[B, 4]",
    "lists": "int[B, Hkv, 3, some]",
}


def spec(*lines: str) -> str:
    """A file of these lines, and of the params that they name."""
    body = "\n".join(lines)
    named = set(re.findall(r"[A-Za-z_]\w*", body))
    params = [f"param {name}: {type}" for name, type in DECLARATIONS.items() if name in named]
    return "\n".join(["attention drawn", *params, body]) + "\n"


def mask_values(sizes: dict[str, int], seed: int) -> dict[str, Any]:
    """NumPy values for every declared param; those that a file does not declare are to be left out by the caller."""
    r = np.random.default_rng(seed)
    B, Hq, Hkv, Sq, Sk = (sizes[n] for n in ("B", "Hq", "Hkv", "Sq", "Sk"))

    def runs(length: int) -> Any:
        found = r.integers(-1, 6, (B, length))
        return np.sort(found, -1) if r.random() < 0.7 else found

    steps = r.choice([0.0, 0.25, 0.5, 1.0], (B, Sk)).astype(np.float32)
    return {
        "c": int(r.integers(1, 12)),
        "w": int(r.integers(-3, 20)),
        "flag": bool(r.random() < 0.5),
        "span": float(r.choice([0.25, 1.0, 3.0, 8.0])),
        "ids": runs(Sk),
        "seg": runs(Sq),
        "t": np.cumsum(steps, -1).astype(np.float32) if r.random() < 0.7 else steps,
        "lengths": r.integers(0, Sk + 3, B),
        "window": r.integers(-1, 16, Hq),
        "valid": np.arange(Sk) < r.integers(0, Sk + 1, (B, 1)) if r.random() < 0.5 else r.random((B, Sk)) < 0.7,
        "alive": r.random((B, Sq)) < 0.7,
        "slope": r.uniform(0.1, 0.9, Hq).astype(np.float32),
        "gain": r.uniform(0.5, 1.5, (B, Hkv)).astype(np.float32),
        "row": r.uniform(-1, 1, (B, Sq)).astype(np.float32),
        "col": (r.integers(-64, 64, (Hq, Sk)) / 64).astype(np.float32),  # exact in bfloat16
        "cap": float(r.uniform(0.75, 3.0)),
        "bias": float(r.uniform(-1, 1)),
        "named": r.random((B, Sq, Sk)) < 0.1 if r.random() < 0.3 else _blocks(r, (B, Sq, Sk), (24, 40)),
        "picks": r.integers(-2, Sk + 2, (B, 4)),
        "lists": r.integers(-1, Sk // 5 + 2, (B, Hkv, 3, r.integers(0, 5))),
    }


def _blocks(r: np.random.Generator, shape: tuple[int, int, int], block: tuple[int, int]) -> Any:
    """Half of the blocks, which differ from batch to batch."""
    B, Sq, Sk = shape
    found = r.random((B, Sq // block[0] + 1, Sk // block[1] + 1)) < 0.5
    return found.repeat(block[0], 1).repeat(block[1], 2)[:, :Sq, :Sk]


ATOMS = [
    "k <= q", "k <= q + Sk - Sq", "k >= q", "k >= q + Sk - Sq", "q - k < 30", "q - k < 100", "k - q < 40",
    "q + Sk - Sq - k < 64", "abs(q - k) <= 70", "k < 70", "k >= 64", "q < 77", "q >= 50", "k < lengths[b]",
    "q + k < Sk", "q + k >= 90", "k < c", "q - k < window[h]", "k % 2 == 0", "(q - k) % 3 == 0", "q // 32 == k // 32",
    "ids[b, k] == 2", "seg[b, q] == ids[b, k]", "seg[b, q] >= ids[b, k]", "valid[b, k]", "alive[b, q]", "flag",
    "0 <= t[b, q] - t[b, k] < span", "t[b, q] <= t[b, k]", "col[h, q] <= col[h, k]", "named[b, q, k]", "h % 2 == 0",
    "true",
]  # fmt: skip
SCORES = [
    "qk * scale",
    "qk * scale + log(float(Sk - k)) / float(Sq - q)",  # without a value beyond the tensor
    "softcap(qk * scale, 20.0)",
    "qk * scale - 0.05 * abs(q - k)",
    "qk * scale + 4.0 * float(max(k - Sk, -1))",  # and very large there
]
