"""Runs a Pallas kernel on the parity suite's inputs: torch tensors in, the same numbers out, by way of JAX.

Pallas modules have JAX's order of axes, (batch, length, heads, head dim); the suite has torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from parity.compare import Numbers, cotangents
from parity.variants import Inputs
from torch import Tensor


def array(x: object) -> object:
    """A tensor as an array, its dtype kept; anything else as it is."""
    if not isinstance(x, Tensor):
        return x
    x = x.detach().cpu().contiguous()
    if x.dtype == torch.bfloat16:
        return jnp.asarray(x.float().numpy()).astype(jnp.bfloat16)
    if x.dtype == torch.int64:
        return jnp.asarray(x.to(torch.int32).numpy())
    return jnp.asarray(x.numpy())


def tensor(x: jax.Array) -> Tensor:
    return torch.from_numpy(np.array(x.astype(jnp.float32), dtype=np.float64))


def by_pallas(kernel: Callable[..., Any], given: Inputs, with_lse: bool) -> Numbers:
    leaves = {n: array(x.transpose(1, 2)) for n, x in (("q", given.q), ("k", given.k), ("v", given.v))}
    params = {n: array(p) for n, p in given.params.items()}
    leaves |= {n: params.pop(n) for n in given.floats()}
    options = {"scale": given.scale} if given.scale is not None else {}
    if given.dropout_seed is not None:
        options["dropout_seed"] = given.dropout_seed

    def run(leaves):  # type: ignore[no-untyped-def]
        return kernel(**leaves, **params, **options, return_lse=True)

    (out, lse), pullback = jax.vjp(jax.jit(run), leaves)
    assert out.dtype == leaves["q"].dtype and lse.dtype == jnp.float32  # type: ignore[attr-defined]
    d_out, d_lse = cotangents(tensor(out).transpose(1, 2), tensor(lse), with_lse)
    d_out = jnp.asarray(d_out.transpose(1, 2).float().numpy()).astype(out.dtype)
    (gradients,) = pullback((d_out, jnp.asarray(d_lse.float().numpy())))
    found = {"out": tensor(out).transpose(1, 2), "lse": tensor(lse)}
    for name, gradient in gradients.items():
        found[f"d_{name}"] = tensor(gradient).transpose(1, 2) if name in "qkv" else tensor(gradient)
    return Numbers(found)
