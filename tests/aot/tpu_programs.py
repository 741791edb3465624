"""A Pallas kernel small enough to know everything about it, as a program for `attngen.tpu`."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngen.tpu.worker import Program

ROWS, LANES = 256, 128


def row_tiles(counts: tuple[int, ...], vmem: int = 16 << 20) -> Program:
    """Doubles tile i of the rows `counts[i]` times, one after the other: the counts are a table in scalar memory."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(counts_ref: Any, x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

        def double(_: Any, carry: Any) -> Any:
            out_ref[...] = out_ref[...] * 2.0
            return carry

        lax.fori_loop(0, counts_ref[pl.program_id(0)], double, None)

    rows = pl.BlockSpec((ROWS, LANES), lambda i, counts: (i, 0))
    shape = jax.ShapeDtypeStruct((len(counts) * ROWS, LANES), jnp.float32)

    def apply(counts: Any, x: Any) -> Any:
        # `+ 0`: the table that the kernel reads is computed from the argument.
        return pl.pallas_call(
            kernel,
            out_shape=shape,
            grid_spec=pltpu.PrefetchScalarGridSpec(1, (counts.size,), in_specs=[rows], out_specs=rows),
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem),
        )(counts + 0, x)

    return Program(apply, (np.array(counts, np.int32), shape))


def where() -> Program:
    """Rows with zeros where a tensor of bools says so."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(kept_ref: Any, x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.where(kept_ref[...], x_ref[...], 0.0)

    kept, x = (jax.ShapeDtypeStruct((ROWS, LANES), dtype) for dtype in (jnp.bool_, jnp.float32))
    return Program(
        lambda kept, x: pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(kept, x), (kept, x)
    )


def unsupported() -> Program:
    """A gather by computed rows, which Mosaic has no instruction for."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x_ref: Any, i_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...].reshape(-1)[i_ref[...]]

    x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    i = jax.ShapeDtypeStruct((64, 128), jnp.int32)
    return Program(lambda x, i: pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, i), (x, i))
