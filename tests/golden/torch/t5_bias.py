"""t5_bias: tiled attention in plain PyTorch, forward and backward.

Made by attngen from the specification below: change that and compile again, or own this file as it stands.
It needs torch alone, and runs on any device that torch has. `t5_bias` is differentiable.
"""

# The specification:
#
#     # T5's relative position bias: offsets fall into buckets, one by one while they are small, then logarithmically.
#     #
#     #   s_ij = q_i . k_j + table[bucket(j - i), h]
#     #   bucket(r) = side(r) + |r|                                                   where |r| < 8
#     #               side(r) + min(15, 8 + floor(8 log(|r| / 8) / log(128 / 8)))     elsewhere
#     #   side(r)   = 16 where r > 0, else 0
#     #
#     # Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
#     # JMLR 2020 (https://arxiv.org/abs/1910.10683), section 2.1. T5 does not divide by sqrt(D).
#     attention t5_bias
#
#     const buckets = 32  # both directions together
#     const furthest = 128  # from here on all offsets share the last bucket
#     const half = buckets // 2
#     const exact = half // 2
#
#     param table: f32[buckets, Hq]  # laid out as T5's checkpoints have it
#
#     let offset = k - (q + Sk - Sq)
#     let distance = abs(offset)
#
#     # Base 2, because the borders of buckets that are integers are powers of two, where log2 is exact.
#     let far = exact + int(log2(max(distance, exact) / exact) / log2(furthest / exact) * (half - exact))
#     let near = distance < exact
#
#     let bucket = (half if offset > 0 else 0) + (distance if near else min(far, half - 1))
#
#     score = qk + table[bucket, h]
#
# sha256 of its text: 01fbf8c77ffa8d1934482ea778059cedb7fbdd2144732189963948eb8aa244a9
# options: target=torch buckets=32 furthest=128 half=16 exact=8 tile=256x256
# Proved: streaming, range-safety, empty-rows, locality, gradients, tile-ranges, index-bounds, integer-width.

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor

# How many queries and how many keys are worked on at a time. Scores are never held for more than one such tile.
TILE_Q, TILE_K = 256, 256
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


# ---------------------------------------------------------------- helpers


def _tile(x: Tensor, first: int, last: int, Hkv: int) -> Tensor:
    """Rows first … last in float32, the heads that share keys put below each other: (B, Hkv, heads * rows, columns)."""
    return x[:, :, first : last + 1].float().reshape(x.shape[0], Hkv, -1, x.shape[3])


def _per_head(x: Tensor, Hq: int) -> Tensor:
    """(B, Hkv, heads * rows, columns) as (B, Hq, rows, columns)."""
    return x.view(x.shape[0], Hq, -1, x.shape[3])


def _per_kv_head(x: Tensor, Hkv: int) -> Tensor:
    """The inverse of `_per_head`."""
    return x.reshape(x.shape[0], Hkv, -1, x.shape[3])


def _where(condition, a, b):
    """a where the condition holds, else b; each a tensor or a number."""
    if isinstance(condition, Tensor):
        return torch.where(condition, a, b)
    return a if condition else b


def _tensors(*values) -> list[Tensor]:
    """Numbers among tensors as tensors of their dtype."""
    like = next(x for x in values if isinstance(x, Tensor))
    return [x if isinstance(x, Tensor) else torch.tensor(x, dtype=like.dtype, device=like.device) for x in values]


def _min(a, b):
    return torch.minimum(*_tensors(a, b)) if isinstance(a, Tensor) or isinstance(b, Tensor) else min(a, b)


def _max(a, b):
    return torch.maximum(*_tensors(a, b)) if isinstance(a, Tensor) or isinstance(b, Tensor) else max(a, b)


def _float(x) -> Tensor:
    """An int or a bool as float32."""
    return x.float() if isinstance(x, Tensor) else torch.tensor(float(x))


def _int(x):
    """A bool as 0 or 1; a float without its fraction."""
    return x.long() if isinstance(x, Tensor) else int(x)


def _element(x: Tensor, *index: Tensor | int) -> Tensor:
    """x[index], which is 0 outside the tensor."""
    at = torch.broadcast_tensors(*(torch.as_tensor(i, device=x.device) for i in index))
    inside = torch.ones_like(at[0], dtype=torch.bool)
    for i, size in zip(at, x.shape):
        inside = inside & (i >= 0) & (i < size)
    if 0 in x.shape:
        return torch.zeros_like(at[0], dtype=x.dtype)
    return torch.where(inside, x[tuple(i.clamp(0, size - 1) for i, size in zip(at, x.shape))], x.new_zeros(()))


def _along_diagonals(x: Tensor) -> Tensor:
    """The sums of a tile's values that have the same q - k, which rises from that of the last key and the first query."""
    rows, columns = x.shape[-2:]
    skewed = torch.nn.functional.pad(x.flip(-1), (0, rows)).flatten(-2)[..., :-rows]
    return skewed.unflatten(-1, (rows, rows + columns - 1)).sum(-2)


def _gathered(values: Tensor, inside: Tensor, flat: Tensor, size: int) -> Tensor:
    """The sum of the values that share a cell of `flat`. Summed as integers, so the order cannot change the bits."""
    inside, flat = inside.expand(values.shape), flat.expand(values.shape)
    values = torch.where(inside, values, 0.0).double()
    _, exponent = torch.frexp(values.abs().amax().clamp(min=1e-300))
    unit = torch.ldexp(torch.ones((), dtype=torch.float64, device=values.device), exponent - (62 - values.numel().bit_length()))
    cells = torch.zeros(size, dtype=torch.int64, device=values.device)
    cells.index_add_(0, torch.where(inside, flat, 0).flatten(), torch.round(values / unit).long().flatten())
    return (cells.double() * unit).float()


# ---------------------------------------------------------------- which tiles meet


def _key_tiles(Sk):
    """The tiles of keys that the queries q0 … q1 meet.

    `any` is where some pair is allowed, `full` where every pair is.
    """
    any_hi = (Sk + TILE_K - 1) // TILE_K
    any_hi = max(any_hi, 0)
    full_hi = max(Sk, 0) // TILE_K
    full_hi = max(full_hi, 0)
    full_hi = min(max(full_hi, 0), any_hi)
    full = [*range(full_hi)]
    partial = [*range(full_hi, any_hi)]
    return full + partial


# ---------------------------------------------------------------- forward


def _forward(q, k, v, table, scale):
    """out (B, Hq, Sq, Dv) and lse (B, Hq, Sq) in float32."""
    B, Hq, Sq, D = q.shape
    Hkv, Sk, Dv = v.shape[1:]
    head = torch.arange(Hq, device=q.device)[:, None, None]
    out = torch.zeros((B, Hq, Sq, Dv), dtype=torch.float32, device=q.device)
    lse = torch.full((B, Hq, Sq), -math.inf, dtype=torch.float32, device=q.device)
    if q.numel() == 0 or k.numel() == 0:
        return out, lse
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_idx = torch.arange(q0, q1 + 1, device=q.device)[:, None]
        q_tile = _tile(q, q0, q1, Hkv)
        acc = torch.zeros((B, Hq, q1 - q0 + 1, Dv), dtype=torch.float32, device=q.device)
        row_max = torch.full((B, Hq, q1 - q0 + 1, 1), -math.inf, dtype=torch.float32, device=q.device)
        row_sum = torch.zeros((B, Hq, q1 - q0 + 1, 1), dtype=torch.float32, device=q.device)
        for tile in _key_tiles(Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            k_idx = torch.arange(k0, k1 + 1, device=q.device)
            qk = _per_head(q_tile @ _tile(k, k0, k1, Hkv).mT, Hq)
            x = qk * 1.4426950408889634 + _element(table, _where(0 < k_idx - (q_idx + Sk - Sq), 16, 0) + _where(abs(k_idx - (q_idx + Sk - Sq)) < 8, abs(k_idx - (q_idx + Sk - Sq)), _min(8 + _int(torch.log2(_max(abs(_float(k_idx) - _float(q_idx + Sk - Sq)), 8.0) * 0.125) * 2.0), 15)), head) * 1.4426950408889634
            new_max = torch.maximum(row_max, x.amax(-1, keepdim=True))
            shift = torch.where(new_max == -math.inf, 0.0, new_max)  # rows that have met no key yet
            rescale = torch.exp2(row_max - shift)
            weight = torch.exp2(x - shift)
            row_sum = row_sum * rescale + weight.sum(-1, keepdim=True)
            acc = acc * rescale
            row_max = new_max
            acc = acc + _per_head(_per_kv_head(weight, Hkv) @ _tile(v, k0, k1, Hkv), Hq)

        total = row_max
        empty = row_max == -math.inf
        row_sum = torch.where(empty, 1.0, row_sum)
        out[:, :, q0 : q1 + 1] = acc / row_sum
        lse[:, :, q0 : q1 + 1] = torch.where(empty, -math.inf, (total + torch.log2(row_sum)) * LN2)[..., 0]
    return out, lse


# ---------------------------------------------------------------- backward


def _backward(d_out, d_lse, q, k, v, table, out, lse, scale, needed):
    """The gradients of q, k, v and of the float params, None where not needed. Weights are computed again, tile by tile."""
    B, Hq, Sq, D = q.shape
    Hkv, Sk, Dv = v.shape[1:]
    head = torch.arange(Hq, device=q.device)[:, None, None]
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (q, k, v))
    total_table = torch.zeros_like(table, dtype=torch.float32)
    if q.numel() == 0 or k.numel() == 0:
        return dq, dk, dv, total_table
    d_out = d_out.float()
    row_lses = torch.where(lse == -math.inf, math.inf, lse * LOG2E)[..., None]
    deltas = (d_out * out).sum(-1, keepdim=True) - d_lse[..., None]
    sum_table = torch.zeros((B, Hq, Sq + Sk - 1), dtype=torch.float32, device=q.device)
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_idx = torch.arange(q0, q1 + 1, device=q.device)[:, None]
        q_tile, d_out_tile = _tile(q, q0, q1, Hkv), _tile(d_out, q0, q1, Hkv)
        row_lse = row_lses[:, :, q0 : q1 + 1]
        delta = deltas[:, :, q0 : q1 + 1]
        dq_tile = torch.zeros_like(q_tile)
        for tile in _key_tiles(Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            k_idx = torch.arange(k0, k1 + 1, device=q.device)
            k_tile = _tile(k, k0, k1, Hkv)
            qk = _per_head(q_tile @ k_tile.mT, Hq)
            dp = _per_head(d_out_tile @ _tile(v, k0, k1, Hkv).mT, Hq)
            p = torch.exp2(qk * 1.4426950408889634 + _element(table, _where(0 < k_idx - (q_idx + Sk - Sq), 16, 0) + _where(abs(k_idx - (q_idx + Sk - Sq)) < 8, abs(k_idx - (q_idx + Sk - Sq)), _min(8 + _int(torch.log2(_max(abs(_float(k_idx) - _float(q_idx + Sk - Sq)), 8.0) * 0.125) * 2.0), 15)), head) * 1.4426950408889634 - row_lse)
            dv[:, :, k0 : k1 + 1] += _per_kv_head(p, Hkv).mT @ d_out_tile
            dp = dp - delta
            g = p * dp
            if needed[0]:
                contribution = g
                sum_table[:, :, q0 - k1 + Sk - 1 : q1 - k0 + Sk] += _along_diagonals(contribution)
            ds = g
            ds = _per_kv_head(ds, Hkv)
            dq_tile += ds @ k_tile
            dk[:, :, k0 : k1 + 1] += ds.mT @ q_tile
        dq[:, :, q0 : q1 + 1] = _per_head(dq_tile, Hq)
    if needed[0]:
        distances = torch.arange(Sq + Sk - 1, device=q.device) - (Sk - 1)
        at_h = torch.arange(Hq, device=q.device)[:, None]
        at_distance = distances
        exists = torch.as_tensor(((torch.where(0 < Sq - at_distance - Sk, torch.as_tensor(16, device=q.device), torch.as_tensor(0, device=q.device))) + (torch.where(abs(Sq - at_distance - Sk) < 8, torch.as_tensor(abs(Sq - at_distance - Sk), device=q.device), torch.as_tensor(torch.minimum(torch.as_tensor((torch.log2(torch.maximum(torch.as_tensor(abs((Sq - at_distance - Sk).float()), device=q.device), torch.as_tensor(8.0, device=q.device)) * 0.125) * 2.0).trunc().long() + 8, device=q.device), torch.as_tensor(15, device=q.device)), device=q.device))) >= 0) & ((torch.where(0 < Sq - at_distance - Sk, torch.as_tensor(16, device=q.device), torch.as_tensor(0, device=q.device))) + (torch.where(abs(Sq - at_distance - Sk) < 8, torch.as_tensor(abs(Sq - at_distance - Sk), device=q.device), torch.as_tensor(torch.minimum(torch.as_tensor((torch.log2(torch.maximum(torch.as_tensor(abs((Sq - at_distance - Sk).float()), device=q.device), torch.as_tensor(8.0, device=q.device)) * 0.125) * 2.0).trunc().long() + 8, device=q.device), torch.as_tensor(15, device=q.device)), device=q.device))) < 32) & (at_h >= 0) & (at_h < Hq), device=q.device)
        cell = torch.as_tensor(((torch.where(0 < Sq - at_distance - Sk, torch.as_tensor(16, device=q.device), torch.as_tensor(0, device=q.device))) + (torch.where(abs(Sq - at_distance - Sk) < 8, torch.as_tensor(abs(Sq - at_distance - Sk), device=q.device), torch.as_tensor(torch.minimum(torch.as_tensor((torch.log2(torch.maximum(torch.as_tensor(abs((Sq - at_distance - Sk).float()), device=q.device), torch.as_tensor(8.0, device=q.device)) * 0.125) * 2.0).trunc().long() + 8, device=q.device), torch.as_tensor(15, device=q.device)), device=q.device)))) * Hq + at_h, device=q.device)
        total_table += _gathered(sum_table, exists, cell, total_table.numel()).view(total_table.shape)
    return dq, dk, dv, total_table


# ---------------------------------------------------------------- the function


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, table, scale):
        out, lse = _forward(q, k, v, table, scale)
        ctx.save_for_backward(q, k, v, table, out, lse)
        ctx.scale = scale
        return out.to(q.dtype), lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        q, k, v, table, out, lse = ctx.saved_tensors
        needed = [ctx.needs_input_grad[3]]
        dq, dk, dv, total_table = _backward(
            d_out, d_lse, q, k, v, table, out, lse, ctx.scale, needed,
        )
        dq, dk, dv = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
        total_table = total_table.to(table.dtype) if needed[0] else None
        return dq, dk, dv, total_table, None


def _refuse(message: str) -> NoReturn:
    raise ValueError(f"t5_bias: {message}")


def _check(q, k, v, table, scale):
    """One clear message for what does not fit, before anything is computed."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            _refuse(f"{name} must be a torch.Tensor, not {type(x).__name__}")
        if x.dim() != 4:
            _refuse(f"{name} must have 4 dimensions (batch, heads, length, head dim), not shape {tuple(x.shape)}")
        if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            _refuse(f"{name} must be float16, bfloat16 or float32, not {x.dtype}")
        if x.dtype != q.dtype:
            _refuse(f"{name} must have q's dtype {q.dtype}, not {x.dtype}")
        if x.device != q.device:
            _refuse(f"{name} must be on q's device {q.device}, not {x.device}")
    B, Hq, Sq, D = q.shape
    Hkv, Sk, Dv = v.shape[1:]
    if k.shape != (B, Hkv, Sk, D):
        _refuse(f"k must have q's batch and head dim, and v's heads and length, {(B, Hkv, Sk, D)}, not {tuple(k.shape)}")
    if v.shape[0] != B:
        _refuse(f"v must have q's batch {B}, not {v.shape[0]}")
    if Hkv == 0 or Hq % Hkv:
        _refuse(f"q's {Hq} heads must be a multiple of the {Hkv} heads of k and v")
    if D == 0 or Dv == 0:
        _refuse(f"head dims must be 1 at the least, not {D} and {Dv}")
    if max(Sq, Sk) >= 2**27:
        _refuse(f"sequences must be shorter than 2**27 = {2**27}, not {max(Sq, Sk)}")
    if not isinstance(table, Tensor):
        _refuse(f"table must be a torch.Tensor, not {type(table).__name__}")
    if table.dtype not in (torch.float32,):
        _refuse(f"table must be float32, not {table.dtype}")
    if table.device != q.device:
        _refuse(f"table must be on q's device {q.device}, not {table.device}")
    if table.dim() != 2:
        _refuse(f"table must have 2 dimensions (32, Hq), not shape {tuple(table.shape)}")
    if tuple(table.shape) != (32, Hq,):
        _refuse(f"table must have shape (32, Hq) = {(32, Hq,)}, not {tuple(table.shape)}")


def t5_bias(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    table: Tensor,
    scale: float | None = None,
    return_lse: bool = False,
    dropout_seed: int | Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention `t5_bias`, tile by tile, differentiable in every float argument.

    q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), with any strides, all float16, bfloat16 or float32.
    table (32, Hq): float32.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given.
    dropout_seed is accepted for the sake of a common signature, and has no effect.

    Gives out (B, Hq, Sq, Dv) in q's dtype, and with return_lse also the log-sum-exp (B, Hq, Sq), natural, float32.
    A query that may attend to no key gives a zero row, -inf, and zero gradients. Raises ValueError on what does not fit.
    """
    return _call(q, k, v, table, scale, return_lse, dropout_seed)


def _call(q, k, v, table, scale, return_lse, dropout_seed):
    if scale is None:
        scale = q.shape[-1] ** -0.5
    _check(q, k, v, table, scale)
    out, lse = _Attention.apply(q, k, v, table, float(scale))
    return (out, lse) if return_lse else out


__all__ = ["t5_bias"]
