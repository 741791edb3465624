"""Masks that read sizes beside data, or the scale; ints too far from 0; params named as functions of the module."""

from __future__ import annotations

import ast
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import attngen
from attngen.analyse.outline import _CALLED
from attngen.errors import SpecError, UsageError

TARGETS = ("torch", "triton", "jax")
QUERIES, KEYS, DIM = 5, 7, 16


def seen(target: str, text: str, **given: Any) -> list[list[int]]:
    """Which keys each query attends to: values are the rows of the unit matrix. q and k are zeros."""
    kernel = attngen.compile(text, target)
    q, k = torch.zeros(1, 2, QUERIES, DIM), torch.zeros(1, 2, KEYS, DIM)
    v = torch.eye(DIM)[:KEYS].expand(1, 2, KEYS, DIM).contiguous()
    if target == "jax":
        arrays = [jnp.asarray(x.transpose(1, 2).numpy()) for x in (q, k, v)]
        found = kernel(*arrays, **{n: jnp.asarray(x.numpy()) if torch.is_tensor(x) else x for n, x in given.items()})
        out = torch.from_numpy(np.array(found)).transpose(1, 2)
    else:
        out = kernel(q, k, v, **given)
    return [torch.nonzero(row[:KEYS]).flatten().tolist() for row in out[0, 0]]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", ["B", "Hq", "Hkv", "Sq", "D", "Dv"])
def test_data_beside_a_size(target: str, size: str) -> None:
    y = torch.arange(KEYS)[None] - 2
    number = {"B": 1, "Hq": 2, "Hkv": 2, "Sq": QUERIES, "D": DIM, "Dv": DIM}[size]
    text = f"attention sizes\nparam y: int[B, Sk]\nmask = y[b, k] * {size} >= 3\n"
    wanted = [i for i in range(KEYS) if (i - 2) * number >= 3]
    assert seen(target, text, y=y) == [wanted] * QUERIES
    rows = f"attention sizes\nparam x: int[B, Sq]\nmask = x[b, q] >= k * {size}\n"
    wanted_rows = [[k for k in range(KEYS) if q >= k * number] for q in range(QUERIES)]
    assert seen(target, rows, x=torch.arange(QUERIES)[None]) == wanted_rows


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("normalizer", ["softmax", "sigmoid"])
@pytest.mark.parametrize("scale", [0.25, -0.25, 0.0])
def test_a_mask_that_reads_the_scale(target: str, normalizer: str, scale: float) -> None:
    text = f"attention scaled\nmask = k * scale < 1\nnormalizer = {normalizer}\n"
    wanted = [i for i in range(KEYS) if i * scale < 1]
    assert seen(target, text, scale=scale) == [wanted] * QUERIES


@pytest.mark.parametrize("target", ["torch", "triton"])
@pytest.mark.parametrize(
    ("mask", "bits", "why"),
    [
        ("k < n + q", 62, "adds to it"),
        ("k >= q - n", 62, "adds to it"),
        ("k <= n * n", 31, "multiplies it"),
        ("k <= n + m", 31, "adds it to another"),
        ("k <= abs(n)", 62, "turns its sign"),
    ],
)
def test_ints_that_64_bits_do_not_hold_are_refused(target: str, mask: str, bits: int, why: str) -> None:
    text = f"attention wide\nparam n: int\nparam m: int\nmask = {mask}\n"
    for n in (2**bits, -(2**bits) - 1, 2**63 - 1):
        message = rf"n must be between -2\*\*{bits} and 2\*\*{bits} - 1, since the kernel {why}, not {n}"
        with pytest.raises(UsageError, match=message):
            seen(target, text, n=n, m=0)
    assert seen(target, text, n=2**bits - 1, m=0) == [list(range(KEYS))] * QUERIES
    assert seen(target, "attention far\nparam n: int\nmask = k < n\n", n=2**63 - 1) == [list(range(KEYS))] * QUERIES


@pytest.mark.parametrize("target", ["torch", "triton", "jax", "pallas"])
def test_no_param_hides_what_the_function_calls(target: str) -> None:
    text = (
        "attention a\nparam n: int where n > 0\nparam w: f32[Hq] where w > 0\nmask = k < n\nscore = qk * scale * w[h]"
    )
    more: dict[str, Any] = {"geometry": ("dense", "packed", "lengths")} if target == "triton" else {}
    source = attngen.compile(text, target, **more).source
    public = [
        f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef) and f.name in ("a", "a_varlen", "a_lengths")
    ]
    assert len(public) == (3 if target == "triton" else 1)
    called = {n.id for f in public for n in ast.walk(f) if isinstance(n, ast.Name) and n.id.startswith("_")}
    assert called and called <= _CALLED, called - _CALLED
    for name in sorted(called):
        with pytest.raises(SpecError, match=rf"the generated function calls `{name}`"):
            attngen.compile(f"attention a\nparam {name}: f32[Hq]\nscore = qk * scale + {name}[h]\n", target)
