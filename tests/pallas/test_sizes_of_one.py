"""What a call repeats: params' dims of size 1, and keys and values of one batch row. Results, gradients, refusals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attngen
from attngen.errors import UsageError

SPEC = """attention repeated

param bias: f32[B, Hq, Sq, Sk]
param slope: f32[Hq]
param ids: int[B, Sk] where ids >= 0
param table: f32[Hq, N]

score = qk * scale + bias[b, h, q, k] * slope[h] + table[h, min(ids[b, k], 3)]
mask = causal and ids[b, k] < 3
assume N >= 4
"""
SHAPES = {"bias": (2, 4, 24, 24), "slope": (4,), "table": (4, 5)}


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("target", ["jax", "pallas"])
def test_dims_of_size_one_are_repeated(target: str) -> None:
    function = attngen.compile(SPEC, target=target)
    q, k, v = draw(2, 24, 4, 16), draw(1, 24, 2, 16), draw(1, 24, 2, 16)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 4, (1, 24)))
    one = {"bias": draw(1, 4, 1, 24), "slope": draw(1), "table": draw(1, 5)}

    def repeated(k: jax.Array, v: jax.Array, params: dict[str, jax.Array]) -> jax.Array:
        return (function(q, k, v, **params, ids=ids) ** 2).sum()

    def whole(k: jax.Array, v: jax.Array, params: dict[str, jax.Array]) -> jax.Array:
        k, v = (jnp.repeat(x, 2, 0) for x in (k, v))
        params = {name: jnp.broadcast_to(x, SHAPES[name]) for name, x in params.items()}
        return (function(q, k, v, **params, ids=jnp.repeat(ids, 2, 0)) ** 2).sum()

    found = jax.value_and_grad(repeated, (0, 1, 2))(k, v, one)
    wanted = jax.value_and_grad(whole, (0, 1, 2))(k, v, one)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-4)
    function(q, k, v, **one, ids=ids, check=True)


@pytest.mark.parametrize("target", ["jax", "pallas"])
def test_other_sizes_are_refused(target: str) -> None:
    function = attngen.compile(SPEC, target=target)
    q = draw(2, 24, 4, 16)
    given = {"bias": draw(1, 1, 1, 1), "slope": draw(1), "table": draw(1, 5), "ids": jnp.zeros((1, 24), jnp.int32)}
    with pytest.raises(UsageError, match=r"ids must have shape \(B, Sk\) = \(2, 24\), not \(1, 23\)"):
        function(q, q, q, **{**given, "ids": jnp.zeros((1, 23), jnp.int32)})
    with pytest.raises(UsageError, match=r"bias must have shape .* not \(3, 1, 1, 1\)"):
        function(q, q, q, **{**given, "bias": draw(3, 1, 1, 1)})
    with pytest.raises(UsageError, match=r"v must have q's batch 2 \(or 1\), not 3"):
        function(q, q, draw(3, 24, 4, 16), **given)
