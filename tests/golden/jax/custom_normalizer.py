"""custom_normalizer: tiled attention in plain JAX, forward and backward.

Made by attngen from the specification below: edit that and compile again, or edit this file by hand.
It needs jax alone, and runs on any device that JAX has. `custom_normalizer` is differentiable, and works under jit, grad and vmap.
"""

# The specification:
#
#     # A normalizer of one's own: softmax with a learned temperature for each head, and a learned escape.
#     #
#     #   w_ij = exp(s_ij / t_h) / (exp(escape_h / t_h) + sum_j exp(s_ij / t_h)),   j <= i
#     #
#     # Lee, Lee & Song, "Vision Transformer for Small-Size Datasets", 2021 (https://arxiv.org/abs/2112.13492)
#     # (the temperature); Xiao et al., 2023 (https://arxiv.org/abs/2309.17453) (the escape).
#     # The first two lines define the result, the others how it is streamed: that the two agree is for attngen to show.
#     attention custom_normalizer
#
#     param temperature: f32[Hq] where temperature > 0
#     param escape: f32[Hq]
#
#     normalizer tempered(t, e) {
#         weight(s) = exp(s / t)
#         denominator = sum + exp(e / t)
#         shift = max
#         weight(s, m) = exp((s - m) / t)
#         rescale(m, n) = exp((m - n) / t)
#     }
#
#     mask = causal
#
#     normalizer = tempered(t = temperature[h], e = escape[h])
#
# sha256 of its text: 4d68754d3c003150a08bf09d788eaceb1ceb57b26881207c44da7942b3fb18d6
# options: target=jax precision=ieee tile=256x256
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
    Sq = size.Sq
    Sk = size.Sk
    any_hi = _up(_min(Sk, q1 + Sk - Sq + 1), TILE_K)
    any_hi = _max(any_hi, 0)
    full_hi = _down(_min(Sk, q0 + Sk - Sq + 1), TILE_K)
    full_hi = _max(full_hi, 0)
    full_hi = _min(_max(full_hi, 0), any_hi)
    return [(0, full_hi)], [(full_hi, any_hi)]


def _query_tiles(k0, k1, size):
    """Runs of tiles that the keys k0 … k1 meet: those in which every pair is allowed, then those that need the mask."""
    Sq = size.Sq
    Sk = size.Sk
    any_lo = _down(_max(0, k0 + Sq - Sk), TILE_Q)
    any_hi = _up(Sq, TILE_Q)
    any_hi = _max(any_hi, any_lo)
    full_lo = _up(_max(0, k1 + Sq - Sk), TILE_Q)
    full_hi = _down(Sq, TILE_Q)
    full_hi = _max(full_hi, full_lo)
    full_lo = _min(_max(full_lo, any_lo), any_hi)
    full_hi = _min(_max(full_hi, full_lo), any_hi)
    return [(full_lo, full_hi)], [(any_lo, full_lo), (full_hi, any_hi)]


# ---------------------------------------------------------------- forward


def _forward(size, q, k, v, floats, data):
    """out (B, Sq, Hq, Dv) and lse (B, Hq, Sq) in float32."""
    B = size.B
    Hq = size.Hq
    Hkv = size.Hkv
    Sq = size.Sq
    Sk = size.Sk
    Dv = size.Dv
    temperature_h = floats["temperature_h"]
    escape_h = floats["escape_h"]
    scale = data["scale"]
    q, k, v = _heads_first(q, TILE_Q), _heads_first(k, TILE_K), _heads_first(v, TILE_K)
    head_term = temperature_h
    head_term_2 = scale * (1.0 / head_term * 1.4426950408889634)
    head_term_3 = escape_h / head_term * 1.4426950408889634

    def tile(number):
        q0 = number * TILE_Q
        q1 = jnp.minimum(q0 + TILE_Q, Sq) - 1
        q_idx = (q0 + jnp.arange(TILE_Q)).reshape(1, 1, -1, 1)
        q_tile = _per_kv_head(_rows(q, q0), Hkv)
        row_term = q_idx + Sk - Sq

        def attend(at, state, masked):
            acc, row_max, row_sum = state
            k0 = at * TILE_K
            k_idx = (k0 + jnp.arange(TILE_K)).reshape(1, 1, 1, -1)
            qk = _per_head(_by_transposed(q_tile, _keys(k, k0)), Hq)
            x = qk * head_term_2
            if masked:
                x = jnp.where((k_idx < Sk) & (k_idx <= row_term), x, -jnp.inf)
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
        # The denominator's extra term is one more key without a value.
        extra = head_term_3
        merged = jnp.maximum(total, extra)
        shift = jnp.where(merged == -jnp.inf, 0.0, merged)
        rescale = jnp.exp2(total - shift)
        row_sum = row_sum * rescale + jnp.exp2(extra - shift)
        acc = acc * rescale
        total = merged
        empty = total == -jnp.inf
        row_sum = jnp.where(empty, 1.0, row_sum)
        return acc / row_sum, jnp.where(empty, -jnp.inf, (total + jnp.log2(row_sum)) * LN2)[..., 0]

    out, lse = _each(tile, _up(Sq, TILE_Q))
    return _heads_inside(_in_place(out, 2, Sq), Sq), _in_place(lse, 2, Sq)


# ---------------------------------------------------------------- backward


def _backward_by_rows(size, q, k, v, d_out, row_lses, deltas, floats, data):
    """dQ, and the gradients of operands that do not vary with the key alone."""
    B = size.B
    Hq = size.Hq
    Hkv = size.Hkv
    Sq = size.Sq
    Sk = size.Sk
    temperature_h = floats["temperature_h"]
    escape_h = floats["escape_h"]
    scale = data["scale"]
    head_term = temperature_h
    head_term_2 = 1.0 / head_term
    head_term_3 = scale * (head_term_2 * 1.4426950408889634)
    head_term_4 = -(head_term_2 / head_term)
    head_term_5 = scale * head_term_2
    head_term_6 = escape_h / head_term
    head_term_7 = -(head_term_6 / head_term)
    head_term_8 = head_term_6 * 1.4426950408889634

    def tile(number):
        q0 = number * TILE_Q
        q1 = jnp.minimum(q0 + TILE_Q, Sq) - 1
        q_idx = (q0 + jnp.arange(TILE_Q)).reshape(1, 1, -1, 1)
        q_tile, d_out_tile = _per_kv_head(_rows(q, q0), Hkv), _per_kv_head(_rows(d_out, q0), Hkv)
        row_lse = _rows(row_lses, q0)
        delta = _rows(deltas, q0)
        row_term = q_idx + Sk - Sq

        def visit(at, state, masked):
            dq, sum_temperature_h, sum_escape_h = state
            k0 = at * TILE_K
            k_idx = (k0 + jnp.arange(TILE_K)).reshape(1, 1, 1, -1)
            k_tile = _keys(k, k0)
            qk = _per_head(_by_transposed(q_tile, k_tile), Hq)
            dp = _per_head(_by_transposed(d_out_tile, _keys(v, k0)), Hq)
            p = jnp.exp2(qk * head_term_3 - row_lse)
            if masked:
                allowed = (k_idx < Sk) & (k_idx <= row_term)
                p = jnp.where(allowed, p, 0.0)
            dp = dp - delta
            g = p * dp
            ds = g
            ds = _per_kv_head(ds, Hkv)
            contribution = g * (head_term_4 * (qk * scale))
            if masked:
                contribution = jnp.where(allowed, contribution, 0.0)
            sum_temperature_h = sum_temperature_h + jnp.where(q_idx < Sq, contribution, 0.0).sum((2, 3), keepdims=True)
            dq = dq + _product(ds, k_tile)
            return dq, sum_temperature_h, sum_escape_h

        dq = jnp.zeros_like(q_tile)
        sum_temperature_h = jnp.zeros((B, Hq, 1, 1))
        sum_escape_h = jnp.zeros((B, Hq, 1, 1))
        full, partial = _key_tiles(q0, q1, size)
        dq, sum_temperature_h, sum_escape_h = _walk(full, partial, (dq, sum_temperature_h, sum_escape_h), visit, q_tile)
        sum_temperature_h = sum_temperature_h + (-delta * jnp.exp2(head_term_8 - row_lse) * head_term_7).sum((2, 3), keepdims=True)
        sum_escape_h = sum_escape_h + (-delta * jnp.exp2(head_term_8 - row_lse) * head_term_2).sum((2, 3), keepdims=True)
        return _per_head(dq, Hq) * head_term_5, sum_temperature_h, sum_escape_h

    dq, *found = _each(tile, _up(Sq, TILE_Q))
    gradients = {}
    gradients["temperature_h"] = _reduced(found[0].sum(0), floats["temperature_h"])
    gradients["escape_h"] = _reduced(found[1].sum(0), floats["escape_h"])
    return _heads_inside(_in_place(dq, 2, Sq), Sq), gradients


def _backward_by_columns(size, q, k, v, d_out, row_lses, deltas, floats, data):
    """dK, dV, and the gradients of operands that vary with the key."""
    Hq = size.Hq
    Hkv = size.Hkv
    Sq = size.Sq
    Sk = size.Sk
    temperature_h = floats["temperature_h"]
    scale = data["scale"]
    head_term = 1.0 / temperature_h
    head_term_2 = scale * (head_term * 1.4426950408889634)
    head_term_3 = scale * head_term

    def tile(number):
        k0 = number * TILE_K
        k1 = jnp.minimum(k0 + TILE_K, Sk) - 1
        k_idx = (k0 + jnp.arange(TILE_K)).reshape(1, 1, 1, -1)
        k_tile, v_tile = _keys(k, k0), _keys(v, k0)

        def visit(at, state, masked):
            dk, dv = state
            q0 = at * TILE_Q
            q_idx = (q0 + jnp.arange(TILE_Q)).reshape(1, 1, -1, 1)
            q_tile, d_out_tile = _per_kv_head(_rows(q, q0), Hkv), _per_kv_head(_rows(d_out, q0), Hkv)
            row_lse = _rows(row_lses, q0)
            delta = _rows(deltas, q0)
            qk = _per_head(_by_transposed(q_tile, k_tile), Hq)
            dp = _per_head(_by_transposed(d_out_tile, v_tile), Hq)
            p = jnp.exp2(qk * head_term_2 - row_lse)
            if masked:
                row_term = q_idx + Sk - Sq
                allowed = (q_idx < Sq) & (k_idx <= row_term)
                p = jnp.where(allowed, p, 0.0)
            dropped = p
            dp = dp - delta
            g = p * dp
            ds = g
            ds = _per_kv_head(ds, Hkv)
            q_tile = _per_kv_head(_per_head(q_tile, Hq) * head_term_3, Hkv)
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


def _by_axes(x, axes, lengths):
    """A param whose indices are positions, on four axes; it is zero outside itself."""
    for axis, length in enumerate(lengths):
        x = lax.slice_in_dim(x, 0, min(length, x.shape[axis]), axis=axis)
        x = jnp.pad(x, [(0, length - x.shape[axis] if a == axis else 0) for a in range(x.ndim)])
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    return jnp.expand_dims(jnp.transpose(x, order), tuple(a for a in range(4) if a not in axes))


_Refusal = ValueError  # an `attngen.Kernel` puts its own kind of ValueError here
_CALLER = 5  # the stack level of warnings; an `attngen.Kernel` adds 2


def _refuse(message) -> NoReturn:
    raise _Refusal(f"custom_normalizer: {message}")


def _readable(x):
    """Whether a value can be looked at: not while it is traced."""
    return not isinstance(x, jax.core.Tracer)


def _note_rounding(name, x):
    """Warns of a float64 param."""
    if x.dtype == jnp.float64:
        _warn_of_rounding(name)


@functools.cache
def _warn_of_rounding(name):
    """Warns once for each param."""
    warnings.warn(f"custom_normalizer: {name} is float64, and is rounded to float32, which has 24 bits: give {name}.astype('float32') if they suffice, or subtract what all elements share before", stacklevel=_CALLER + 1)


def _check(q, k, v, temperature, escape, scale):
    """One clear message for what does not fit, before anything is computed."""
    for name, x in (("q", q), ("k", k), ("v", v), ("temperature", temperature), ("escape", escape), ("scale", scale)):
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
    if not (hasattr(temperature, "shape") and hasattr(temperature, "dtype")):
        _refuse(f"temperature must be an array, not {type(temperature).__name__}")
    if temperature.dtype not in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float64,):
        _refuse(f"temperature must be float32 or float16 or bfloat16 or float64, not {temperature.dtype}")
    if len(temperature.shape) != 1:
        _refuse(f"temperature must have 1 dimension (Hq), not shape {tuple(temperature.shape)}")
    _note_rounding("temperature", temperature)
    if not all(n[0] in (1, n[1]) for n in zip(temperature.shape, (Hq,), strict=True)):
        _refuse(f"{turned}temperature must have shape (Hq) = {(Hq,)}, not {tuple(temperature.shape)}")
    if not (hasattr(escape, "shape") and hasattr(escape, "dtype")):
        _refuse(f"escape must be an array, not {type(escape).__name__}")
    if escape.dtype not in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float64,):
        _refuse(f"escape must be float32 or float16 or bfloat16 or float64, not {escape.dtype}")
    if len(escape.shape) != 1:
        _refuse(f"escape must have 1 dimension (Hq), not shape {tuple(escape.shape)}")
    _note_rounding("escape", escape)
    if not all(n[0] in (1, n[1]) for n in zip(escape.shape, (Hq,), strict=True)):
        _refuse(f"{turned}escape must have shape (Hq) = {(Hq,)}, not {tuple(escape.shape)}")
    return Size(B, Hq, Hkv, Sq, Sk, D, Dv)


def _check_facts(size, temperature, escape):
    """The facts that no call checks unless it is asked to."""
    if not all(_readable(x) for x in (temperature,)):
        _refuse("check=True needs concrete values: leave it out under jax.jit and other transforms")
    at = _broken(0.0 < jnp.asarray(temperature), temperature.shape)
    if at is not None:
        _refuse(f"temperature[{', '.join(map(str, at))}] is {temperature[at].item()}, and must satisfy 0.0 < temperature")


def _broken(holds, shape):
    """The first place where a fact does not hold."""
    wrong = jnp.argwhere(jnp.logical_not(jnp.broadcast_to(holds, shape)))
    return tuple(map(int, wrong[0])) if len(wrong) else None


def custom_normalizer(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    temperature: jax.Array,
    escape: jax.Array,
    scale: float | jax.Array | None = None,
    return_lse: bool = False,
    dropout_seed: int | jax.Array | None = None,
    check: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention `custom_normalizer`, tile by tile, differentiable in every float argument.

    q (B, Sq, Hq, D), k (B, Sk, Hkv, D), v (B, Sk, Hkv, Dv), all float16, bfloat16 or float32.
    temperature (Hq): float32 or float16 or bfloat16 or float64, where 0.0 < temperature.
    escape (Hq): float32 or float16 or bfloat16 or float64.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given. An array may learn.
    dropout_seed is accepted for the sake of a common signature, and has no effect.
    check looks at every element that a fact is about, which needs concrete values: not under jax.jit.

    Gives out (B, Sq, Hq, Dv) in q's dtype, and with return_lse also the log-sum-exp (B, Hq, Sq), natural, float32.
    A query that may attend to no key has a zero row in the result and zero gradients in q, k and v. Raises ValueError if an argument does not fit.
    """
    if check:
        _check_facts(_check(q, k, v, temperature, escape, scale), temperature, escape)
    return _call(q, k, v, temperature, escape, scale, return_lse, dropout_seed)


def _call(q, k, v, temperature, escape, scale, return_lse, dropout_seed, attend=_attend):
    """`attend` is the differentiated core; attngen has another one for pieces of a longer sequence."""
    if scale is None:
        scale = q.shape[-1] ** -0.5 if hasattr(q, "shape") and len(q.shape) and q.shape[-1] else 1.0
    size = _check(q, k, v, temperature, escape, scale)
    q, k, v = jnp.asarray(q), *(jnp.broadcast_to(x, (size.B, *x.shape[1:])) for x in (k, v))
    temperature = jnp.asarray(temperature)
    temperature = jnp.broadcast_to(temperature, (size.Hq,))
    escape = jnp.asarray(escape)
    escape = jnp.broadcast_to(escape, (size.Hq,))
    if not isinstance(scale, int | float) or scale <= 0:
        # A positive scale is folded into the exponent; its sign, or its being zero, goes into q, and with it its gradient.
        scale = jnp.asarray(scale, jnp.float32)
        number = lax.stop_gradient(jnp.where(scale == 0.0, 1.0, jnp.abs(scale)))
        q, scale = (q.astype(jnp.float32) * (scale / number)).astype(q.dtype), number
    scale = jnp.asarray(scale, jnp.float32)
    compute = functools.partial(_computed, attend, size, return_lse)
    return _on_mesh(compute, return_lse, q, k, v, temperature, escape, scale)


@_in_32_bits
def _computed(attend, size, return_lse, spread, q, k, v, temperature, escape, scale):
    """The result, once the arguments are checked and converted. Each param is brought to the arrays that are read of it."""
    B = size.B
    Hq = size.Hq
    Sq = size.Sq
    Sk = size.Sk
    Dv = size.Dv
    temperature_h = _by_axes(temperature, (1,), (Hq,))
    escape_h = _by_axes(escape, (1,), (Hq,))
    floats = {"temperature_h": temperature_h.astype(jnp.float32), "escape_h": escape_h.astype(jnp.float32), }
    data = {"scale": scale.reshape(1, 1, 1, 1), }
    q, k, v, floats, data = _alike(q, k, v, floats, data)
    if 0 in (B, Hq, Sq, Sk):
        out, lse = jnp.zeros((B, Sq, Hq, Dv), q.dtype), jnp.broadcast_to(jnp.asarray(escape_h / temperature_h, jnp.float32), (B, Hq, Sq, 1))[..., 0]
    else:
        out, lse = attend(size, q, k, v, floats, data)
    return (out, lse) if return_lse else out


__all__ = ["custom_normalizer"]
