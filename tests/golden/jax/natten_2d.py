"""natten_2d: tiled attention in plain JAX, forward and backward.

Made by attngen from the specification below: edit that and compile again, or edit this file by hand.
It needs jax alone, and runs on any device that JAX has. `natten_2d` is differentiable, and works under jit, grad and vmap.
"""

# The specification:
#
#     # Neighbourhood attention on an image, with a relative position bias: each pixel sees the (2 radius + 1)^2 pixels
#     # around it; at the image's border the neighbourhood is moved inwards, not cut off.
#     #
#     #   s_ij = q_i . k_j / sqrt(D) + bias[h, y_j - y_i, x_j - x_i],
#     #          |y_j - c(y_i)| <= radius  and  |x_j - c(x_i)| <= radius
#     #   c(y) = clip(y, radius, height - 1 - radius),   and alike for x
#     #
#     # Hassani et al., "Neighborhood Attention Transformer", CVPR 2023 (https://arxiv.org/abs/2204.07143).
#     attention natten_2d
#
#     const width = 32  # pixels of an image's row; position p is pixel (p // width, p % width)
#     const radius = 3
#     const reach = 4 * radius + 1  # offsets run from -2 radius to 2 radius
#
#     param bias: f32[Hq, reach, reach]
#
#     let height = Sk // width
#     let y_q = q // width
#     let x_q = q % width
#     let y_k = k // width
#     let x_k = k % width
#     let centre(p, extent) = clamp(p, radius, extent - 1 - radius)
#
#     score = qk * scale + bias[h, y_k - y_q + 2 * radius, x_k - x_q + 2 * radius]
#     mask = abs(y_k - centre(y_q, height)) <= radius and abs(x_k - centre(x_q, width)) <= radius
#
#     assume Sq == Sk
#     assume Sk % width == 0
#     assume Sk >= (2 * radius + 1) * width
#
# sha256 of its text: 98c803b1cfe06078f8abea09888157442e3937fb72916c6f71ccc5cbee96f8be
# options: target=jax precision=ieee width=32 radius=3 reach=13 tile=256x256
# Proved: streaming, range-safety, empty-rows, locality, gradients, tile-ranges, index-bounds, integer-width.

from __future__ import annotations

import functools
import warnings
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax import lax

# How many queries and how many keys are worked on at a time. Scores are never held for more than this many of both.
TILE_Q, TILE_K = 256, 256
# How many outer tiles go together under vmap: their loops stop at the last end among them. One at a time wastes nothing,
# which suits a CPU; an accelerator wants more to do at once.
TOGETHER = {"cpu": 1, "gpu": 8, "tpu": 8}
PRECISION = lax.Precision.HIGHEST  # of float32 products
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


class Size(NamedTuple):
    """The sizes of a call, known while it is traced."""

    B: int
    Hq: int
    Hkv: int
    Sq: int
    Sk: int
    D: int
    Dv: int


# ---------------------------------------------------------------- helpers


def _in_32_bits(function):
    """What JAX computes in 32 bits, also where jax_enable_x64 is set."""
    @functools.wraps(function)
    def narrow(*given, **named):
        with jax.enable_x64(False):
            return function(*given, **named)

    return narrow


def _min(a, b):
    return min(a, b) if isinstance(a, int | float) and isinstance(b, int | float) else jnp.minimum(a, b)


def _max(a, b):
    return max(a, b) if isinstance(a, int | float) and isinstance(b, int | float) else jnp.maximum(a, b)


def _down(x, tile):
    """A position in tiles, rounded down; before the first tile is in it."""
    return _max(x, 0) // tile


def _up(x, tile):
    """A position in tiles, rounded up."""
    return x // tile + (x % tile + tile - 1) // tile


def _heads_first(x, tile):
    """(B, S, H, D) as (B, H, S, D) in float32, with zeros up to a whole number of tiles."""
    return _padded(jnp.swapaxes(x, 1, 2).astype(jnp.float32), 2, tile)


def _heads_inside(x, length):
    """The reverse of `_heads_first`, but for the dtype."""
    return jnp.swapaxes(x[:, :, :length], 1, 2)


def _padded(x, axis, tile, value=0):
    """`x` with more of the value behind an axis, up to a whole number of tiles."""
    return jnp.pad(x, [(0, -x.shape[axis] % tile if i == axis else 0) for i in range(x.ndim)], constant_values=value)


def _rows(x, q0):
    """The queries of a tile: of q, or of what varies with the query."""
    return lax.dynamic_slice_in_dim(x, q0, TILE_Q, 2)


def _keys(x, k0):
    """The keys of a tile, of k and v."""
    return lax.dynamic_slice_in_dim(x, k0, TILE_K, 2)


def _columns(x, k0):
    """The keys of a tile, of what varies with the key and is laid across."""
    return lax.dynamic_slice_in_dim(x, k0, TILE_K, 3)


def _added(total, x, start, axis):
    """`total` with `x` added from `start` on."""
    part = lax.dynamic_slice_in_dim(total, start, x.shape[axis], axis)
    return lax.dynamic_update_slice_in_dim(total, part + x, start, axis)


def _per_head(x, Hq):
    """(B, Hkv, heads * rows, columns) as (B, Hq, rows, columns)."""
    return x.reshape(x.shape[0], Hq, -1, x.shape[3])


def _per_kv_head(x, Hkv):
    """(B, Hq, rows, columns) as (B, Hkv, heads * rows, columns): heads that share keys are put below each other."""
    return x.reshape(x.shape[0], Hkv, -1, x.shape[3])


def _product(a, b):
    """a @ b."""
    return jnp.einsum("bhij,bhjk->bhik", a, b, precision=PRECISION)


def _by_transposed(a, b):
    """a @ b.T."""
    return jnp.einsum("bhij,bhkj->bhik", a, b, precision=PRECISION)


def _transposed_by(a, b):
    """a.T @ b."""
    return jnp.einsum("bhji,bhjk->bhik", a, b, precision=PRECISION)


def _each(tile, n):
    """What tile(0) … tile(n - 1) give, stacked; some of them at a time, under vmap."""
    together = TOGETHER.get(jax.default_backend(), 8)
    return lax.map(tile, jnp.arange(n), batch_size=min(together, n) if together > 1 else None)


def _walk(full, partial, state, visit, held):
    """Folds visit(at, state, masked) over the tiles of the runs, each a loop that stops at the run's end. What the tile
    that is held varies with, inside `shard_map`, so does the state.
    """
    _, state = _alike(held, state)
    for runs, masked in ((full, False), (partial, True)):
        for start, stop in runs:
            state = lax.fori_loop(start, stop, functools.partial(visit, masked=masked), state)
    return state


def _in_place(x, axis, length):
    """Stacked tiles (n, …) put behind each other along an axis of what is left, and cut to its length."""
    x = jnp.moveaxis(x, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return lax.slice_in_dim(x, 0, length, axis=axis)


def _reduced(x, like):
    """Sums over the batches and heads that share an operand."""
    missing = tuple(axis for axis in (0, 1) if like.shape[axis] == 1)
    x = x.sum(missing, keepdims=True) if missing else x
    if like.shape[1] != x.shape[1]:  # an operand of the key heads
        x = x.reshape(x.shape[0], like.shape[1], -1, *x.shape[2:]).sum(2)
    return x


def _sorted_runs(a_lo, a_hi, b_lo, b_hi):
    """Two runs of tiles, the one that starts first in front."""
    swap = b_lo < a_lo
    return _min(a_lo, b_lo), jnp.where(swap, b_hi, a_hi), _max(a_lo, b_lo), jnp.where(swap, a_hi, b_hi)


def _axes(*arrays):
    """The axes of a mesh over which arrays vary, inside `shard_map`."""
    types = [jax.typeof(x) for x in jax.tree.leaves(arrays)]
    return frozenset().union(*(t.manual_axis_type.varying for t in types))


def _alike(*arrays):
    """The arrays, each varying wherever one of them does; JAX then sums their gradients over those axes."""
    axes = _axes(*arrays)

    def moved(x):
        missing = tuple(sorted(axes - _axes(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(moved, arrays)


def _on_mesh(compute, return_lse, q, *arguments):
    """compute(spread, q, *arguments). On a mesh with explicit axes JAX asks for the result's sharding: that of q over batch,
    length and heads. `spread` names the axes of batches and heads; it is None elsewhere.
    """
    place = jax.typeof(q).sharding
    if place.mesh.manual_axes:
        compute = jax.jit(compute, static_argnums=0)  # inside `shard_map` no array has a value, not even while nothing is traced
    axes = place.mesh.explicit_axes
    if not axes:
        return compute(None, q, *arguments)
    batch, length, heads, _ = place.spec
    specs = jax.P(batch, length, heads, None), jax.P(batch, heads, length)
    out, lse = (jax.sharding.NamedSharding(place.mesh, spec) for spec in specs)
    inner = functools.partial(compute, (batch, heads))
    return jax.sharding.auto_axes(inner, axes=axes, out_sharding=(out, lse) if return_lse else out)(q, *arguments)


# ---------------------------------------------------------------- which tiles meet


def _key_tiles(q0, q1, size):
    """Runs of tiles that the queries q0 … q1 meet: those in which every pair is allowed, then those that need the mask."""
    Sk = size.Sk
    any_lo = _down(_max(0, _min(_max((q0 >> 5), 3), (Sk >> 5) - 1 - 3) * 32 - 96), TILE_K)
    any_hi = _up(_min(Sk, _min(_max((q1 >> 5), 3), (Sk >> 5) - 1 - 3) * 32 + 127 + 1), TILE_K)
    any_hi = _max(any_hi, any_lo)
    return [], [(any_lo, any_hi)]


def _query_tiles(k0, k1, size):
    """Runs of tiles that the keys k0 … k1 meet: those in which every pair is allowed, then those that need the mask."""
    Sq = size.Sq
    Sk = size.Sk
    any0_lo = _down(_max(0, (k0 >> 5) * 32 - 96), TILE_Q)
    any0_hi = _up(_min(_min(_min(Sq, jnp.where((k0 >> 5) - (Sk >> 5) + 1 <= 0, Sq, 0)), (k1 >> 5) * 32 + 127 + 1), jnp.where(0 - (k1 >> 5) <= 0, Sq, 0)), TILE_Q)
    any0_hi = _max(any0_hi, any0_lo)
    any1_lo = _down(_max(0, (k0 >> 5) * 32 - 96), TILE_Q)
    any1_hi = _up(_min(_min(Sq, jnp.where((k0 >> 5) - (Sk >> 5) + 1 <= 0, Sq, 0)), jnp.where((Sk >> 5) - (k1 >> 5) - 7 <= 0, Sq, 0)), TILE_Q)
    any1_hi = _max(any1_hi, any1_lo)
    any2_lo = _down(0, TILE_Q)
    any2_hi = _up(_min(_min(_min(_min(Sq, jnp.where((k0 >> 5) - 6 <= 0, Sq, 0)), jnp.where((k0 >> 5) - (Sk >> 5) + 1 <= 0, Sq, 0)), (k1 >> 5) * 32 + 127 + 1), jnp.where(0 - (k1 >> 5) <= 0, Sq, 0)), TILE_Q)
    any2_hi = _max(any2_hi, any2_lo)
    any3_lo = _down(0, TILE_Q)
    any3_hi = _up(_min(_min(_min(Sq, jnp.where((k0 >> 5) - 6 <= 0, Sq, 0)), jnp.where((k0 >> 5) - (Sk >> 5) + 1 <= 0, Sq, 0)), jnp.where((Sk >> 5) - (k1 >> 5) - 7 <= 0, Sq, 0)), TILE_Q)
    any3_hi = _max(any3_hi, any3_lo)
    any0_lo, any0_hi, any1_lo, any1_hi = _sorted_runs(any0_lo, any0_hi, any1_lo, any1_hi)
    any1_lo, any1_hi, any2_lo, any2_hi = _sorted_runs(any1_lo, any1_hi, any2_lo, any2_hi)
    any2_lo, any2_hi, any3_lo, any3_hi = _sorted_runs(any2_lo, any2_hi, any3_lo, any3_hi)
    any0_lo, any0_hi, any1_lo, any1_hi = _sorted_runs(any0_lo, any0_hi, any1_lo, any1_hi)
    any1_lo, any1_hi, any2_lo, any2_hi = _sorted_runs(any1_lo, any1_hi, any2_lo, any2_hi)
    any0_lo, any0_hi, any1_lo, any1_hi = _sorted_runs(any0_lo, any0_hi, any1_lo, any1_hi)
    any1_lo = _max(any1_lo, any0_hi)
    any1_hi = _max(any1_hi, any1_lo)
    any2_lo = _max(any2_lo, any1_hi)
    any2_hi = _max(any2_hi, any2_lo)
    any3_lo = _max(any3_lo, any2_hi)
    any3_hi = _max(any3_hi, any3_lo)
    return [], [(any0_lo, any0_hi), (any1_lo, any1_hi), (any2_lo, any2_hi), (any3_lo, any3_hi)]


# ---------------------------------------------------------------- forward


def _forward(size, q, k, v, floats, data):
    """out (B, Sq, Hq, Dv) and lse (B, Hq, Sq) in float32."""
    B = size.B
    Hq = size.Hq
    Hkv = size.Hkv
    Sq = size.Sq
    Sk = size.Sk
    Dv = size.Dv
    bias_hqk = floats["bias_hqk"]
    scale = data["scale"]
    bias_hqk = _padded(bias_hqk, 2, TILE_Q)
    bias_hqk = _padded(bias_hqk, 3, TILE_K)
    q, k, v = _heads_first(q, TILE_Q), _heads_first(k, TILE_K), _heads_first(v, TILE_K)
    head_term = scale * 1.4426950408889634
    head_term_2 = (Sk >> 5) - 1 - 3

    def tile(number):
        q0 = number * TILE_Q
        q1 = jnp.minimum(q0 + TILE_Q, Sq) - 1
        q_idx = (q0 + jnp.arange(TILE_Q)).reshape(1, 1, -1, 1)
        q_tile = _per_kv_head(_rows(q, q0), Hkv)
        y_q = (q_idx >> 5)
        x_q = (q_idx & 31)
        centre = _min(_max(y_q, 3), head_term_2)
        centre_2 = _min(_max(x_q, 3), 28)

        def attend(at, state, masked):
            acc, row_max, row_sum = state
            k0 = at * TILE_K
            k_idx = (k0 + jnp.arange(TILE_K)).reshape(1, 1, 1, -1)
            qk = _per_head(_by_transposed(q_tile, _keys(k, k0)), Hq)
            y_k = (k_idx >> 5)
            x_k = (k_idx & 31)
            x = qk * head_term + _columns(_rows(bias_hqk, q0), k0) * 1.4426950408889634
            if masked:
                x = jnp.where((k_idx < Sk) & ((jnp.abs(y_k - centre) <= 3) & (jnp.abs(x_k - centre_2) <= 3)), x, -jnp.inf)
            new_max = jnp.maximum(row_max, x.max(-1, keepdims=True))
            shift = jnp.where(new_max == -jnp.inf, 0.0, new_max)  # rows without a key so far
            rescale = jnp.exp2(row_max - shift)
            weight = jnp.exp2(x - shift)
            row_sum = row_sum * rescale + weight.sum(-1, keepdims=True)
            acc = acc * rescale
            row_max = new_max
            acc = acc + _per_head(_product(_per_kv_head(weight, Hkv), _keys(v, k0)), Hq)
            return acc, row_max, row_sum

        acc = jnp.zeros((B, Hq, TILE_Q, Dv))
        row_max = jnp.full((B, Hq, TILE_Q, 1), -jnp.inf)
        row_sum = jnp.zeros((B, Hq, TILE_Q, 1))
        full, partial = _key_tiles(q0, q1, size)
        acc, row_max, row_sum = _walk(full, partial, (acc, row_max, row_sum), attend, q_tile)
        total = row_max
        empty = row_max == -jnp.inf
        row_sum = jnp.where(empty, 1.0, row_sum)
        return acc / row_sum, jnp.where(empty, -jnp.inf, (total + jnp.log2(row_sum)) * LN2)[..., 0]

    out, lse = _each(tile, _up(Sq, TILE_Q))
    return _heads_inside(_in_place(out, 2, Sq), Sq), _in_place(lse, 2, Sq)


# ---------------------------------------------------------------- backward


def _backward_by_rows(size, q, k, v, d_out, row_lses, deltas, floats, data):
    """dQ, and the gradients of operands that do not vary with the key alone."""
    Hq = size.Hq
    Hkv = size.Hkv
    Sq = size.Sq
    Sk = size.Sk
    bias_hqk = floats["bias_hqk"]
    scale = data["scale"]
    bias_hqk = _padded(bias_hqk, 2, TILE_Q)
    bias_hqk = _padded(bias_hqk, 3, TILE_K)
    head_term = scale * 1.4426950408889634
    head_term_2 = (Sk >> 5) - 1 - 3

    def tile(number):
        q0 = number * TILE_Q
        q1 = jnp.minimum(q0 + TILE_Q, Sq) - 1
        q_idx = (q0 + jnp.arange(TILE_Q)).reshape(1, 1, -1, 1)
        q_tile, d_out_tile = _per_kv_head(_rows(q, q0), Hkv), _per_kv_head(_rows(d_out, q0), Hkv)
        row_lse = _rows(row_lses, q0)
        delta = _rows(deltas, q0)
        y_q = (q_idx >> 5)
        x_q = (q_idx & 31)
        centre = _min(_max(y_q, 3), head_term_2)
        centre_2 = _min(_max(x_q, 3), 28)

        def visit(at, state, masked):
            dq, sum_bias_hqk = state
            k0 = at * TILE_K
            k_idx = (k0 + jnp.arange(TILE_K)).reshape(1, 1, 1, -1)
            k_tile = _keys(k, k0)
            qk = _per_head(_by_transposed(q_tile, k_tile), Hq)
            dp = _per_head(_by_transposed(d_out_tile, _keys(v, k0)), Hq)
            y_k = (k_idx >> 5)
            x_k = (k_idx & 31)
            p = jnp.exp2(qk * head_term + _columns(_rows(bias_hqk, q0), k0) * 1.4426950408889634 - row_lse)
            if masked:
                allowed = (k_idx < Sk) & ((jnp.abs(y_k - centre) <= 3) & (jnp.abs(x_k - centre_2) <= 3))
                p = jnp.where(allowed, p, 0.0)
            dp = dp - delta
            g = p * dp
            ds = g
            ds = _per_kv_head(ds, Hkv)
            contribution = g
            if masked:
                contribution = jnp.where(allowed, contribution, 0.0)
            sum_bias_hqk = _added(sum_bias_hqk, _reduced(contribution, floats["bias_hqk"]), k0, 3)
            dq = dq + _product(ds, k_tile)
            return dq, sum_bias_hqk

        dq = jnp.zeros_like(q_tile)
        sum_bias_hqk = jnp.zeros((*floats["bias_hqk"].shape[:2], TILE_Q, _up(Sk, TILE_K) * TILE_K))
        full, partial = _key_tiles(q0, q1, size)
        dq, sum_bias_hqk = _walk(full, partial, (dq, sum_bias_hqk), visit, q_tile)
        return _per_head(dq, Hq) * scale, sum_bias_hqk

    dq, *found = _each(tile, _up(Sq, TILE_Q))
    gradients = {}
    gradients["bias_hqk"] = _reduced(_in_place(found[0], 2, Sq)[..., :Sk], floats["bias_hqk"])
    return _heads_inside(_in_place(dq, 2, Sq), Sq), gradients


def _backward_by_columns(size, q, k, v, d_out, row_lses, deltas, floats, data):
    """dK, dV, and the gradients of operands that vary with the key."""
    Hq = size.Hq
    Hkv = size.Hkv
    Sq = size.Sq
    Sk = size.Sk
    bias_hqk = floats["bias_hqk"]
    scale = data["scale"]
    bias_hqk = _padded(bias_hqk, 2, TILE_Q)
    bias_hqk = _padded(bias_hqk, 3, TILE_K)
    head_term = scale * 1.4426950408889634
    head_term_2 = (Sk >> 5) - 1 - 3

    def tile(number):
        k0 = number * TILE_K
        k1 = jnp.minimum(k0 + TILE_K, Sk) - 1
        k_idx = (k0 + jnp.arange(TILE_K)).reshape(1, 1, 1, -1)
        k_tile, v_tile = _keys(k, k0), _keys(v, k0)
        y_k = (k_idx >> 5)
        x_k = (k_idx & 31)

        def visit(at, state, masked):
            dk, dv = state
            q0 = at * TILE_Q
            q_idx = (q0 + jnp.arange(TILE_Q)).reshape(1, 1, -1, 1)
            q_tile, d_out_tile = _per_kv_head(_rows(q, q0), Hkv), _per_kv_head(_rows(d_out, q0), Hkv)
            row_lse = _rows(row_lses, q0)
            delta = _rows(deltas, q0)
            qk = _per_head(_by_transposed(q_tile, k_tile), Hq)
            dp = _per_head(_by_transposed(d_out_tile, v_tile), Hq)
            y_q = (q_idx >> 5)
            x_q = (q_idx & 31)
            p = jnp.exp2(qk * head_term + _columns(_rows(bias_hqk, q0), k0) * 1.4426950408889634 - row_lse)
            if masked:
                centre = _min(_max(y_q, 3), head_term_2)
                centre_2 = _min(_max(x_q, 3), 28)
                allowed = (q_idx < Sq) & ((jnp.abs(y_k - centre) <= 3) & (jnp.abs(x_k - centre_2) <= 3))
                p = jnp.where(allowed, p, 0.0)
            dropped = p
            dp = dp - delta
            g = p * dp
            ds = g
            ds = _per_kv_head(ds, Hkv)
            q_tile = _per_kv_head(_per_head(q_tile, Hq) * scale, Hkv)
            dk = dk + _transposed_by(ds, q_tile)
            dv = dv + _transposed_by(_per_kv_head(dropped, Hkv), d_out_tile)
            return dk, dv

        dk, dv = jnp.zeros_like(k_tile), jnp.zeros_like(v_tile)
        full, partial = _query_tiles(k0, k1, size)
        return _walk(full, partial, (dk, dv), visit, k_tile)

    dk, dv, *_found = _each(tile, _up(Sk, TILE_K))
    gradients = {}
    return *(_heads_inside(_in_place(x, 2, Sk), Sk) for x in (dk, dv)), gradients


# ---------------------------------------------------------------- the function


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(size, q, k, v, floats, data):
    out, lse = _forward(size, q, k, v, floats, data)
    return out.astype(q.dtype), lse


@_in_32_bits
def _attend_forward(size, q, k, v, floats, data):
    out, lse = _forward(size, q, k, v, floats, data)
    return (out.astype(q.dtype), lse), (q, k, v, floats, data, out, lse)


@_in_32_bits
def _attend_backward(size, saved, cotangents):
    q, k, v, floats, data, out, lse = saved
    d_out, d_lse = cotangents
    d_out = d_out.astype(jnp.float32)
    row_lses = _padded(jnp.where(lse == -jnp.inf, jnp.inf, lse * LOG2E), 2, TILE_Q, jnp.inf)[..., None]
    deltas = _padded(jnp.einsum("bqhd,bqhd->bhq", d_out, out, precision=lax.Precision.HIGHEST) - d_lse, 2, TILE_Q)[..., None]
    arguments = (
        size, _heads_first(q, TILE_Q), _heads_first(k, TILE_K), _heads_first(v, TILE_K), _heads_first(d_out, TILE_Q), row_lses, deltas, floats, data
    )
    gradients = {name: _alike(x, jnp.zeros_like(x))[1] for name, x in floats.items()}
    dq, more = _backward_by_rows(*arguments)
    gradients.update(more)
    dk, dv, more = _backward_by_columns(*arguments)
    gradients.update(more)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), gradients, None


_attend.defvjp(_attend_forward, _attend_backward)


def _element(x, *index):
    """x[index], which is 0 outside the param."""
    index = jnp.broadcast_arrays(*(jnp.asarray(i, jnp.int32) for i in index))
    if 0 in x.shape:
        return jnp.zeros(index[0].shape, x.dtype)
    inside = functools.reduce(jnp.logical_and, ((i >= 0) & (i < n) for i, n in zip(index, x.shape, strict=True)))
    at = tuple(jnp.clip(i, 0, n - 1) for i, n in zip(index, x.shape, strict=True))
    return jnp.where(inside, x[at], jnp.zeros((), x.dtype))


_Refusal = ValueError  # an `attngen.Kernel` puts its own kind of ValueError here
_CALLER = 5  # the stack level of warnings; an `attngen.Kernel` adds 2


def _refuse(message) -> NoReturn:
    raise _Refusal(f"natten_2d: {message}")


def _note_rounding(name, x):
    """Warns of a float64 param."""
    if x.dtype == jnp.float64:
        _warn_of_rounding(name)


@functools.cache
def _warn_of_rounding(name):
    """Warns once for each param."""
    warnings.warn(f"natten_2d: {name} is float64, and is rounded to float32, which has 24 bits: give {name}.astype('float32') if they suffice, or subtract what all elements share before", stacklevel=_CALLER + 1)


def _check(q, k, v, bias, scale):
    """One clear message for what does not fit, before anything is computed."""
    for name, x in (("q", q), ("k", k), ("v", v), ("bias", bias), ("scale", scale)):
        if type(x).__module__ == "torch":
            _refuse(f"{name} is a tensor of PyTorch, and must be an array of JAX, as jax.numpy.from_dlpack({name}) is; or compile the specification with target='triton'")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            _refuse(f"{name} must be an array, not {type(x).__name__}")
        if len(x.shape) != 4:
            _refuse(f"{name} must have 4 dimensions (batch, length, heads, head dim), not shape {tuple(x.shape)}")
        if x.dtype not in (jnp.float16, jnp.bfloat16, jnp.float32):
            _refuse(f"{name} must be float16, bfloat16 or float32, not {x.dtype}")
        if x.dtype != q.dtype:
            _refuse(f"{name} must have q's dtype {q.dtype}, not {x.dtype}")
        if not all(isinstance(n, int) for n in x.shape[1:]):
            _refuse(f"{name} has shape {tuple(x.shape)}: only the batch may be symbolic; export one function for each length")
    B, Sq, Hq, D = q.shape
    _, Sk, Hkv, Dv = v.shape
    if tuple(k.shape[1:]) != (Sk, Hkv, D) or k.shape[0] not in (1, B):
        _refuse(f"k must have q's batch and head dim, and v's heads and length, {(B, Sk, Hkv, D)}, not {tuple(k.shape)}")
    if v.shape[0] not in (1, B):
        _refuse(f"v must have q's batch {B} (or 1), not {v.shape[0]}")
    if Hq % Hkv if Hkv else Hq:
        _refuse(f"q's {Hq} heads must be a multiple of the {Hkv} heads of k and v: their axis is 2")
    if D == 0 or Dv == 0:
        _refuse(f"head dims must be 1 at the least, not {D} and {Dv}")
    if max(Sq, Sk) >= 2**27:
        _refuse(f"sequences must be shorter than 2**27 = {2**27}, not {max(Sq, Sk)}")
    if isinstance(scale, int | float) and not abs(scale) < jnp.inf:
        _refuse(f"scale must be a finite number, not {scale!r}")
    if isinstance(scale, bool) or not (scale is None or isinstance(scale, int | float) or getattr(scale, "ndim", None) == 0):
        _refuse(f"scale must be one number, not {f'an array of shape {scale.shape}' if hasattr(scale, 'shape') else repr(scale)}")
    turned = "are q, k and v (batch, heads, length, head dim)? They must be (batch, length, heads, head dim): exchange the two, as in q.swapaxes(1, 2); " if 1 < Sq < Hq and Sk < Hkv else ""
    if not (hasattr(bias, "shape") and hasattr(bias, "dtype")):
        _refuse(f"bias must be an array, not {type(bias).__name__}")
    if bias.dtype not in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float64,):
        _refuse(f"bias must be float32 or float16 or bfloat16 or float64, not {bias.dtype}")
    if len(bias.shape) != 3:
        _refuse(f"bias must have 3 dimensions (Hq, 13, 13), not shape {tuple(bias.shape)}")
    _note_rounding("bias", bias)
    if not all(n[0] in (1, n[1]) for n in zip(bias.shape, (Hq, 13, 13,), strict=True)):
        _refuse(f"{turned}bias must have shape (Hq, 13, 13) = {(Hq, 13, 13,)}, not {tuple(bias.shape)}")
    if not (Sq == Sk):
        _refuse(f"the specification assumes Sq == Sk; here Sk = {Sk}, Sq = {Sq}")
    if not (Sk % 32 == 0):
        _refuse(f"the specification assumes Sk % 32 == 0; here Sk = {Sk}")
    if not (224 <= Sk):
        _refuse(f"the specification assumes 224 <= Sk; here Sk = {Sk}")
    return Size(B, Hq, Hkv, Sq, Sk, D, Dv)


def natten_2d(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    bias: jax.Array,
    scale: float | jax.Array | None = None,
    return_lse: bool = False,
    dropout_seed: int | jax.Array | None = None,
    check: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention `natten_2d`, tile by tile, differentiable in every float argument.

    q (B, Sq, Hq, D), k (B, Sk, Hkv, D), v (B, Sk, Hkv, Dv), all float16, bfloat16 or float32.
    bias (Hq, 13, 13): float32 or float16 or bfloat16 or float64.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given. An array may learn.
    dropout_seed is accepted for the sake of a common signature, and has no effect.
    check is accepted for the sake of a common signature: here every call checks all facts.

    Gives out (B, Sq, Hq, Dv) in q's dtype, and with return_lse also the log-sum-exp (B, Hq, Sq), natural, float32.
    A query that may attend to no key has a zero row in the result and zero gradients in q, k and v. Raises ValueError if an argument does not fit.
    """
    return _call(q, k, v, bias, scale, return_lse, dropout_seed)


def _call(q, k, v, bias, scale, return_lse, dropout_seed, attend=_attend):
    """`attend` is the differentiated core; attngen has another one for pieces of a longer sequence."""
    if scale is None:
        scale = q.shape[-1] ** -0.5 if hasattr(q, "shape") and len(q.shape) and q.shape[-1] else 1.0
    size = _check(q, k, v, bias, scale)
    q, k, v = jnp.asarray(q), *(jnp.broadcast_to(x, (size.B, *x.shape[1:])) for x in (k, v))
    bias = jnp.asarray(bias)
    bias = jnp.broadcast_to(bias, (size.Hq, 13, 13,))
    if not isinstance(scale, int | float) or scale <= 0:
        # A positive scale is folded into the exponent; its sign, or its being zero, goes into q, and with it its gradient.
        scale = jnp.asarray(scale, jnp.float32)
        number = lax.stop_gradient(jnp.where(scale == 0.0, 1.0, jnp.abs(scale)))
        q, scale = (q.astype(jnp.float32) * (scale / number)).astype(q.dtype), number
    scale = jnp.asarray(scale, jnp.float32)
    compute = functools.partial(_computed, attend, size, return_lse)
    return _on_mesh(compute, return_lse, q, k, v, bias, scale)


@_in_32_bits
def _computed(attend, size, return_lse, spread, q, k, v, bias, scale):
    """The result, once the arguments are checked and converted. Each param is brought to the arrays that are read of it."""
    B = size.B
    Hq = size.Hq
    Sq = size.Sq
    Sk = size.Sk
    Dv = size.Dv
    at_h = jnp.arange(Hq).reshape(1, -1, 1, 1)
    at_q = jnp.arange(Sq).reshape(1, 1, -1, 1)
    at_k = jnp.arange(Sk).reshape(1, 1, 1, -1)
    bias_hqk = _element(bias, at_h, (at_k >> 5) - (at_q >> 5) + 6, (at_k & 31) - (at_q & 31) + 6)
    floats = {"bias_hqk": bias_hqk.astype(jnp.float32), }
    data = {"scale": scale.reshape(1, 1, 1, 1), }
    q, k, v, floats, data = _alike(q, k, v, floats, data)
    if 0 in (B, Hq, Sq, Sk):
        out, lse = jnp.zeros((B, Sq, Hq, Dv), q.dtype), jnp.broadcast_to(jnp.asarray(-jnp.inf, jnp.float32), (B, Hq, Sq, 1))[..., 0]
    else:
        out, lse = attend(size, q, k, v, floats, data)
    return (out, lse) if return_lse else out


__all__ = ["natten_2d"]
