"""Rows exchanged for heads inside `shard_map` (Ulysses): each rank gets all rows of its own share of the heads.

Takes a rank's arrays, (B, S, H, D), and params; returns those of all rows and some heads, and the way back. Where there
are fewer heads of keys than ranks, each is given to as many ranks as share it. All of it is differentiable as it is:
JAX sums the gradients of a head that several ranks have, and of params.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from attngen.errors import UsageError
from attngen.ir.axes import HEADS, cut_params
from attngen.ir.nodes import Symbol
from attngen.kernel import Kernel

jnp: Any = importlib.import_module("jax.numpy")
lax: Any = importlib.import_module("jax.lax")


def check(kernel: Kernel) -> None:
    """Raises `UsageError` for a spec whose heads cannot be told apart from their number."""
    if cut_params(kernel.spec, HEADS) is None:
        raise UsageError(
            f"{kernel.name}: the spec reads a head's number other than to find a param's cell, so heads cannot be "
            "exchanged: use exchange='ring' or 'gather' along one axis"
        )


def exchanged(
    kernel: Kernel, axis: str, operands: tuple[Any, Any, Any], params: Mapping[str, Any]
) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
    """q, k and v of all rows and some heads, and these heads' params."""
    q, k, v = operands
    ranks, heads, kv_heads = lax.axis_size(axis), q.shape[2], k.shape[2]
    if heads % ranks:
        raise UsageError(f"{heads} heads are not the same number on each of {ranks} devices along {axis!r}: use a ring")
    copies = next(c for c in range(1, heads + 1) if kv_heads * c % ranks == 0 and (heads // kv_heads) % c == 0)
    k, v = (jnp.repeat(x, copies, 2) if copies > 1 else x for x in (k, v))
    moved = (lax.all_to_all(x, axis, split_axis=2, concat_axis=1, tiled=True) for x in (q, k, v))
    own = dict(params)
    for name, dim in (cut_params(kernel.spec, HEADS) or {}).items():
        if name in own and own[name].shape[dim] != 1:  # one is for all heads
            size = kernel.spec.param(name).shape[dim]
            of_keys = isinstance(size, Symbol) and size.id == "Hkv"
            x = jnp.repeat(own[name], copies, dim) if of_keys and copies > 1 else own[name]
            here = x.shape[dim] // ranks
            own[name] = lax.dynamic_slice_in_dim(x, lax.axis_index(axis) * here, here, dim)
    q, k, v = moved
    return (q, k, v), own


def returned(axis: str, out: Any, lse: Any) -> tuple[Any, Any]:
    """All heads of the own rows."""
    return (
        lax.all_to_all(out, axis, split_axis=1, concat_axis=2, tiled=True),
        lax.all_to_all(lse, axis, split_axis=2, concat_axis=1, tiled=True),
    )
