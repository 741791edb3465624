"""Programs of generated files, as `compile` takes them: the file's own function, called on shapes for a chip by name.

Runs in the worker. Takes the source, sizes and param values; gives a `Program`, forward or with every gradient. Params
that are ints or bools keep their values, since loop bounds may depend on them; so do short float ones.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from attngen.ir.nodes import Storage, Type
from attngen.runtime.loader import execute
from attngen.runtime.tpu.worker import Program

TileOf: TypeAlias = tuple[int, int, int]
"""(queries, keys, full tiles at a time)."""
Tiles: TypeAlias = tuple[TileOf, TileOf, TileOf]
"""Of the forward, dK/dV and dQ kernels."""

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
_STORAGES = {
    Storage.F32: "float32",
    Storage.F16: "float16",
    Storage.BF16: "bfloat16",
    Storage.INT: "int32",
    Storage.BOOL: "bool",
}
_SHORT = 1 << 16


def generated(
    source: str,
    name: str,
    chip: str,
    dtype: str,
    sizes: Mapping[str, int],
    params: Sequence[tuple[str, Storage, Any]],
    backward: bool,
    seeded: bool,
    tiles: Tiles | None,
) -> Program:
    """`params` are (name, storage, value); scalars are Python numbers. `tiles` None: those of the file."""
    jax: Any = importlib.import_module("jax")
    jnp: Any = importlib.import_module("jax.numpy")
    module: Any = execute(source, name)
    module.INTERPRET, module.CHIP = False, chip
    held = jnp.dtype(DTYPES[dtype])
    if tiles is not None:
        module.TILES[chip, held.itemsize] = tiles
    function = getattr(module, name)
    scalars = {p: value for p, _, value in params if isinstance(value, bool | int | float)}
    tensors = [(p, storage, np.asarray(value)) for p, storage, value in params if p not in scalars]
    names = [p for p, _, _ in tensors]
    seed = {"dropout_seed": 0} if seeded else {}

    def attend(q: Any, k: Any, v: Any, *values: Any) -> Any:
        return function(q, k, v, **scalars, **dict(zip(names, values, strict=True)), **seed)

    learnt = [i for i, (_, storage, _) in enumerate(tensors) if storage.type is Type.FLOAT]

    def both(d_out: Any, q: Any, k: Any, v: Any, *values: Any) -> Any:
        def of_floats(q: Any, k: Any, v: Any, *floats: Any) -> Any:
            given = list(values)
            for i, x in zip(learnt, floats, strict=True):
                given[i] = x
            return attend(q, k, v, *given)

        out, pullback = jax.vjp(of_floats, q, k, v, *(values[i] for i in learnt))
        return out, pullback(d_out)

    def shape(length: str, heads: str, dim: str) -> Any:
        return jax.ShapeDtypeStruct((sizes["B"], sizes[length], sizes[heads], sizes[dim]), held)

    def operand(storage: Storage, value: Any) -> Any:
        if storage.type is Type.FLOAT and value.size > _SHORT:
            return jax.ShapeDtypeStruct(value.shape, jnp.dtype(_STORAGES[storage]))
        return np.asarray(value).astype(jnp.dtype(_STORAGES[storage]))

    operands = tuple(operand(storage, value) for _, storage, value in tensors)
    inputs = shape("Sq", "Hq", "D"), shape("Sk", "Hkv", "D"), shape("Sk", "Hkv", "Dv")
    if backward:
        return Program(both, (shape("Sq", "Hq", "Dv"), *inputs, *operands))
    return Program(attend, (*inputs, *operands))
