"""Programs of generated files: the file's own function, called on shapes for a chip by name, forward or with gradients.

`request_for` takes a source and its attention, and gives what `compile` takes; `generated` makes the program of it, in
the worker. Params get example values, and those that are short or no floats keep them: loop bounds may depend on them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from attngen import inputs
from attngen.errors import UsageError
from attngen.ir.attention import Attention
from attngen.ir.nodes import Storage, Type
from attngen.runtime.loader import execute
from attngen.tpu.chips import chip as chip_named
from attngen.tpu.compile import Request
from attngen.tpu.worker import Program

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
    Storage.U8: "uint8",
    Storage.I8: "int8",
    Storage.I16: "int16",
    Storage.BOOL: "bool",
}
_SHORT = 1 << 16


def check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise UsageError(f"no dtype {dtype!r} on a TPU; there are {', '.join(DTYPES)}")


def request_for(
    source: str,
    attention: Attention,
    *,
    chip: str,
    dtype: str,
    sizes: Mapping[str, int],
    backward: bool = True,
    tiles: Tiles | None = None,
    schedule: bool = True,
    mosaic: bool = False,
) -> Request:
    """What to compile of a generated file. `sizes` are settled. Raises `UsageError` for what a TPU doesn't have."""
    check_dtype(dtype)
    values = inputs.examples(attention, sizes)
    arguments: dict[str, Any] = {
        "source": source,
        "name": attention.name,
        "chip": chip,
        "dtype": dtype,
        "sizes": dict(sizes),
        "params": tuple((p.name, p.storage, values[p.name]) for p in attention.params),
        "backward": backward,
        "seeded": attention.dropout is not None,
        "tiles": tiles,
    }
    entry = f"{__name__}:{generated.__name__}"
    return Request(entry, tuple(arguments.items()), chip_named(chip), schedule, mosaic)


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
