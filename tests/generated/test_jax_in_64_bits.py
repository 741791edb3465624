"""Files that import JAX compute in 32 bits, also where jax_enable_x64 is set.

Scalars and traced ints become the nearest of 32 bits; elements that can be looked at are refused beyond.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attngen

SPEC = """
attention bounded
param n: int[B]
param w: int
param slope: f32[Hq]
score = qk * scale + slope[h] * float(k)
mask = causal and k < n[b] and q - k <= w
"""
GREATEST = 2**31 - 1


@pytest.fixture(scope="module", params=["jax", "pallas"])
def kernel(request: Any) -> attngen.Kernel:
    return attngen.compile(SPEC, target=request.param, tile=(16, 128))


def arrays() -> tuple[np.ndarray, ...]:
    numbers = np.random.default_rng(0)
    return tuple(numbers.normal(size=(2, 40, heads, 16)).astype(np.float32) for heads in (4, 2, 2))


@pytest.mark.parametrize(
    "w", [2**40, np.int64(2**40), np.uint32(2**32 - 1), np.int8(100)], ids=lambda w: type(w).__name__
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_wide_ints_are_the_nearest(kernel: attngen.Kernel, w: Any, dtype: Any) -> None:
    q, k, v = arrays()
    slope = np.linspace(-0.1, 0.1, 4).astype(np.float32)
    want = kernel(q, k, v, n=np.array([GREATEST, 7], np.int32), w=GREATEST, slope=slope)
    n = np.array([GREATEST, 7], dtype)
    assert (kernel(q, k, v, n=n, w=w, slope=slope) == want).all()


def test_calls_and_gradients_in_64_bits(kernel: attngen.Kernel) -> None:
    q, k, v = arrays()
    slope = np.linspace(-0.1, 0.1, 4).astype(np.float32)

    def loss(n: Any, w: Any) -> Any:
        return lambda q, k, v, slope: (kernel(q, k, v, n=n, w=w, slope=slope) ** 2).sum()

    places = (0, 1, 2, 3)
    want = jax.grad(loss(np.array([GREATEST, 7], np.int32), GREATEST), places)(q, k, v, slope)
    with jax.enable_x64(True):
        n, w = jnp.asarray([2**40, 7]), jnp.asarray(2**40)
        assert n.dtype == w.dtype == jnp.int64
        plain = jax.grad(loss(n.clip(max=GREATEST), w), places)(q, k, v, slope)
        compiled = jax.jit(lambda n, w, *given: jax.grad(loss(n, w), places)(*given))(n, w, q, k, v, slope)
        mapped = jax.vmap(lambda q: kernel(q, k, v, n=n.clip(max=GREATEST), w=3, slope=slope))(jnp.stack([q, q]))
    assert mapped.dtype == jnp.float32 and (mapped[0] == mapped[1]).all()
    for found in (plain, compiled):
        for a, b in zip(found, want, strict=True):
            assert a.dtype == b.dtype == jnp.float32 and jnp.abs(a - b).max() < 1e-5 * (1 + jnp.abs(b).max())
