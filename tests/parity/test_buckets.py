"""Buckets of distances, as T5 has them: kernels take the bucket that the formula names, also where rounding decides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import attngen

SPEC = """attention buckets
const exact = 2
const ratio = 10.0
const steps = 2
param table: f32[32, Hq]
param only: int  # each query sees this key alone, so its lse is the element that it reads
let offset = k - q
let d = abs(offset)
let far = exact + int(log(max(d, exact) / exact) / log(ratio) * steps)
let bucket = (16 if offset > 0 else 0) + (d if d < exact else min(far, 15))
score = qk + table[bucket, h]
mask = k == only
"""
ROWS = 210
RATIOS = [(2, 10.0, 2), (8, 12.5, 8), (3, 7.0, 5)]


def formula(only: int, exact: int, ratio: float, steps: int, xp: Any = np) -> Any:
    """The bucket of each query's offset to the key `only`, in float32, one operation after the other."""
    offset = only - xp.arange(ROWS)
    distance = xp.abs(offset)
    quotient = xp.maximum(distance, exact).astype(xp.float32) / xp.float32(exact)
    logarithms = xp.log(quotient) / xp.float32(math.log(ratio)) * xp.float32(steps)
    far = exact + logarithms.astype(xp.int32)
    return xp.where(offset > 0, 16, 0) + xp.where(distance < exact, distance, xp.minimum(far, 15))


def test_the_formula_meets_borders_exactly() -> None:
    """A ratio of 10 in two steps: 20 and 200 are the first distances of their buckets."""
    buckets = formula(0, *RATIOS[0])
    assert [int(buckets[d]) for d in (6, 7, 19, 20, 63, 64, 199, 200)] == [2, 3, 3, 4, 4, 5, 5, 6]


@pytest.mark.parametrize(("only", "sizes"), [*((0, r) for r in RATIOS), (ROWS - 1, RATIOS[0])])
@pytest.mark.parametrize("target", ["torch", "triton"])
def test_every_distance(target: str, only: int, sizes: tuple[int, float, int]) -> None:
    exact, ratio, steps = sizes
    kernel = attngen.compile(SPEC, target=target, exact=exact, ratio=ratio, steps=steps)
    zeros = torch.zeros(1, 1, ROWS, 16)
    table = torch.arange(32.0).reshape(32, 1).requires_grad_()
    _, lse = kernel(zeros, zeros, zeros, table=table, only=only, return_lse=True)
    lse.sum().backward()
    buckets = formula(only, exact, ratio, steps)
    assert np.rint(lse.detach().numpy()[0, 0]).tolist() == buckets.tolist()
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == np.bincount(buckets, minlength=32).tolist()


@pytest.mark.parametrize("target", ["jax", "pallas"])
def test_every_distance_under_xla(target: str) -> None:
    """XLA multiplies by the reciprocal of a constant, in the formula as in the kernel."""
    import jax
    import jax.numpy as jnp

    exact, ratio, steps = RATIOS[0]
    kernel = attngen.compile(SPEC, target=target, exact=exact, ratio=ratio, steps=steps)
    zeros = jnp.zeros((1, ROWS, 1, 16))

    def lse(table: Any) -> Any:
        return kernel(zeros, zeros, zeros, table=table, only=0, return_lse=True)[1].reshape(-1)

    table = jnp.arange(32.0).reshape(32, 1)
    buckets = np.asarray(jax.jit(lambda: formula(0, exact, ratio, steps, jnp))())
    assert np.rint(np.asarray(lse(table))).tolist() == buckets.tolist()
    gradient = jax.grad(lambda t: lse(t).sum())(table)
    assert np.asarray(gradient)[:, 0].tolist() == np.bincount(buckets, minlength=32).tolist()
