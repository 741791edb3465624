"""attngen's TPU kernels and the hand-written ones beside them, as programs for `attngen.tpu`, in bf16.

All take heads before positions, as the hand-written ones do; attngen's get a transposed view, which XLA drops.

`flash` is JAX's Pallas flash attention, `splash` JAX's Splash attention, `tokamax` the tuned Splash of tokamax. Each
function takes the shape, the mask and tile sizes, and gives a `Program`: forward, or forward and backward. Runs in the
process that loads libtpu; imports what it needs there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from tpu_cells import branches

from attngen.tpu.programs import generated
from attngen.tpu.worker import Program

WINDOW = 1024
"""`local` lets a query see itself and as many keys before it."""


def _program(attend: Callable[..., Any], shape: tuple[int, ...], backward: bool) -> Program:
    import jax
    import jax.numpy as jnp

    def both(q: Any, k: Any, v: Any, d_out: Any) -> Any:
        out, pullback = jax.vjp(attend, q, k, v)
        return out, pullback(d_out)

    operand = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    return Program(both, (operand,) * 4) if backward else Program(attend, (operand,) * 3)


def attngen(**arguments: Any) -> Program:
    """What `programs.generated` gives, with the heads before the positions."""
    import jax
    import jax.numpy as jnp

    program = generated(**arguments)
    count = 4 if arguments["backward"] else 3

    def swapped(x: Any) -> Any:
        return jnp.swapaxes(x, 1, 2) if x.ndim == 4 else x

    def attend(*operands: Any) -> Any:
        result = program.function(*map(swapped, operands[:count]), *operands[count:])
        if not arguments["backward"]:
            return swapped(result)
        out, gradients = result
        return swapped(out), (*map(swapped, gradients[:3]), *gradients[3:])

    shapes = [
        jax.ShapeDtypeStruct((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype)
        for x in program.arguments[:count]
    ]
    return Program(attend, (*shapes, *program.arguments[count:]))


def flash(heads: int, length: int, head_dim: int, mask: str, backward: bool, tile: tuple[int, int, int]) -> Program:
    """`tile` is (query rows, key rows fetched, key rows computed at a time); backward kernels take the same."""
    from jax.experimental.pallas.ops.tpu import flash_attention as module

    rows, fetched, columns = tile
    sizes = module.BlockSizes(
        block_b=1,
        block_q=rows,
        block_k_major=fetched,
        block_k=columns,
        block_q_major_dkv=rows,
        block_k_major_dkv=fetched,
        block_k_dkv=columns,
        block_q_dkv=rows,
        block_k_major_dq=fetched,
        block_k_dq=columns,
        block_q_dq=rows,
    )

    def attend(q: Any, k: Any, v: Any) -> Any:
        return module.flash_attention(q, k, v, causal=mask == "causal", sm_scale=1.0, block_sizes=sizes)

    return _program(attend, (1, heads, length, head_dim), backward)


def splash(heads: int, length: int, head_dim: int, mask: str, backward: bool, tile: tuple[int, int, int]) -> Program:
    """dQ is computed in the dK/dV kernel, part by part; XLA sums the parts afterwards."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as module,
        splash_attention_mask as masks,
    )

    rows, fetched, columns = tile
    sizes = module.BlockSizes(
        block_q=rows,
        block_kv=fetched,
        block_kv_compute=columns,
        block_q_dkv=rows,
        block_kv_dkv=fetched,
        block_kv_dkv_compute=columns,
        use_fused_bwd_kernel=True,
    )
    attend = module.make_splash_mha(
        mask=masks.MultiHeadMask([_splash_mask(masks, mask, length)] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
    )
    return _program(lambda q, k, v: attend(q, k, v), (heads, length, head_dim), backward)


def tokamax(heads: int, length: int, head_dim: int, mask: str, backward: bool, tile: tuple[int, int, int]) -> Program:
    """Needs `pip install tokamax`."""
    room = "tokamax._src.ops.experimental.tpu.splash_attention"
    module: Any = importlib.import_module(f"{room}.splash_attention_kernel")
    masks: Any = importlib.import_module(f"{room}.splash_attention_mask")

    rows, fetched, columns = tile
    config = module.SplashConfig(
        block_q=rows,
        block_kv=fetched,
        block_kv_compute=columns,
        block_q_dkv=rows,
        block_kv_dkv=fetched,
        block_kv_dkv_compute=columns,
    )
    attend = module.make_splash_mha_single_device(_splash_mask(masks, mask, length), config=config)
    return _program(lambda q, k, v: attend(q, k, v), (heads, length, head_dim), backward)


def _splash_mask(masks: Any, mask: str, length: int) -> Any:
    match mask:
        case "full":
            return masks.FullMask((length, length))
        case "causal":
            return masks.CausalMask((length, length))
        case "local":
            return masks.LocalMask((length, length), (WINDOW, 0), 0)
        case "rollouts":
            own, at = branches(length), np.arange(length)
            return masks.NumpyMask((at[:, None] >= at) & ((own == 0) | (own[:, None] == own)))
        case _:
            raise ValueError(f"no mask {mask!r}")
