"""windowed_alibi: tiled attention in plain PyTorch, forward and backward.

Made by attngen from the specification below: change that and compile again, or own this file as it stands.
It needs torch alone, and runs on any device that torch has. `windowed_alibi` is differentiable.
"""

# The specification:
#
#     # Sliding-window attention with ALiBi (Press et al., 2022, https://arxiv.org/abs/2108.12409) and a soft cap
#     # (Gemma 2, 2024, https://arxiv.org/abs/2408.00118): three variants in one file, for no framework has the mixture.
#     #
#     #   s_ij = cap tanh(q_i . k_j / (cap sqrt(D))) - slope_h (i - j),   0 <= i - j < window
#     attention windowed_alibi
#
#     const window = 1024  # compile-time; `-D window=512` overrides it
#     param slope: f32[Hq]  # run-time tensor, one value per query head
#     param cap: f32 where cap > 0  # run-time scalar, with a fact that the prover may use
#
#     let distance = q - k
#
#     score = softcap(qk * scale, cap) - slope[h] * distance
#     mask = 0 <= distance < window
#
#     tile q = 128, k = 64
#
# sha256 of its text: b837719be1a7e8e7cf0de989159b215f0ba4a714f57286a3f08657114f97fbd5
# options: target=torch window=1024 tile=128x64
# Proved: streaming, range-safety, empty-rows, locality, gradients, tile-ranges, index-bounds, integer-width.

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor

# How many queries and how many keys are worked on at a time. Scores are never held for more than one such tile.
TILE_Q, TILE_K = 128, 64
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


def _float(x) -> Tensor:
    """An int or a bool as float32."""
    return x.float() if isinstance(x, Tensor) else torch.tensor(float(x))


# ---------------------------------------------------------------- which tiles meet


def _key_tiles(q0, q1, Sk):
    """The tiles of keys that the queries q0 … q1 meet, each with whether it needs the mask.

    `any` is where some pair is allowed, `full` where every pair is.
    """
    any_lo = max(max(0, q0 - 1023), 0) // TILE_K
    any_hi = (min(Sk, q1 + 1) + TILE_K - 1) // TILE_K
    any_hi = max(any_hi, any_lo)
    full_lo = (max(0, q1 - 1023) + TILE_K - 1) // TILE_K
    full_hi = max(min(Sk, q0 + 1), 0) // TILE_K
    full_hi = max(full_hi, full_lo)
    full_lo = min(max(full_lo, any_lo), any_hi)
    full_hi = min(max(full_hi, full_lo), any_hi)
    full = [*range(full_lo, full_hi)]
    partial = [*range(any_lo, full_lo), *range(full_hi, any_hi)]
    return [(tile, False) for tile in full] + [(tile, True) for tile in partial]


# ---------------------------------------------------------------- forward


def _forward(q, k, v, slope, cap, scale):
    """out (B, Hq, Sq, Dv) and lse (B, Hq, Sq) in float32."""
    B, Hq, Sq, D = q.shape
    Hkv, Sk, Dv = v.shape[1:]
    out = torch.zeros((B, Hq, Sq, Dv), dtype=torch.float32, device=q.device)
    lse = torch.full((B, Hq, Sq), -math.inf, dtype=torch.float32, device=q.device)
    if q.numel() == 0 or k.numel() == 0:
        return out, lse
    head_term = scale / cap
    head_term_2 = cap * 1.4426950408889634
    head_term_3 = slope[None, :, None, None] * 1.4426950408889634
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_idx = torch.arange(q0, q1 + 1, device=q.device)[:, None]
        q_tile = _tile(q, q0, q1, Hkv)
        row_term = _float(q_idx) * head_term_3
        acc = torch.zeros((B, Hq, q1 - q0 + 1, Dv), dtype=torch.float32, device=q.device)
        row_max = torch.full((B, Hq, q1 - q0 + 1, 1), -math.inf, dtype=torch.float32, device=q.device)
        row_sum = torch.zeros((B, Hq, q1 - q0 + 1, 1), dtype=torch.float32, device=q.device)
        for tile, masked in _key_tiles(q0, q1, Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            k_idx = torch.arange(k0, k1 + 1, device=q.device)
            qk = _per_head(q_tile @ _tile(k, k0, k1, Hkv).mT, Hq)
            col_term = _float(k_idx) * head_term_3
            x = torch.tanh(qk * head_term) * head_term_2 - (row_term - col_term)
            if masked:
                distance = q_idx - k_idx
                x = _where((0 <= distance) & (distance < 1024), x, -math.inf)
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


def _backward(d_out, d_lse, q, k, v, slope, cap, out, lse, scale, needed):
    """The gradients of q, k, v and of the float params, None where not needed. Weights are computed again, tile by tile."""
    B, Hq, Sq, D = q.shape
    Hkv, Sk, Dv = v.shape[1:]
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (q, k, v))
    total_slope = torch.zeros_like(slope, dtype=torch.float32)
    total_cap = torch.zeros_like(cap, dtype=torch.float32)
    if q.numel() == 0 or k.numel() == 0:
        return dq, dk, dv, total_slope, total_cap
    d_out = d_out.float()
    row_lses = torch.where(lse == -math.inf, math.inf, lse * LOG2E)[..., None]
    deltas = (d_out * out).sum(-1, keepdim=True) - d_lse[..., None]
    sum_slope = torch.zeros((B, Hq), dtype=torch.float32, device=q.device)
    sum_cap = torch.zeros((B, Hq), dtype=torch.float32, device=q.device)
    head_term = scale / cap
    head_term_2 = cap * 1.4426950408889634
    head_term_3 = slope[None, :, None, None] * 1.4426950408889634
    head_term_4 = -(head_term / cap)
    head_term_5 = head_term * cap
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_idx = torch.arange(q0, q1 + 1, device=q.device)[:, None]
        q_tile, d_out_tile = _tile(q, q0, q1, Hkv), _tile(d_out, q0, q1, Hkv)
        row_lse = row_lses[:, :, q0 : q1 + 1]
        delta = deltas[:, :, q0 : q1 + 1]
        row_term = _float(q_idx)
        row_term_2 = row_term * head_term_3
        dq_tile = torch.zeros_like(q_tile)
        q_scaled = _per_kv_head(_per_head(q_tile, Hq) * head_term_5, Hkv)
        for tile, masked in _key_tiles(q0, q1, Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            k_idx = torch.arange(k0, k1 + 1, device=q.device)
            k_tile = _tile(k, k0, k1, Hkv)
            qk = _per_head(q_tile @ k_tile.mT, Hq)
            dp = _per_head(d_out_tile @ _tile(v, k0, k1, Hkv).mT, Hq)
            term = torch.tanh(qk * head_term)
            term_2 = 1.0 - term * term
            col_term = _float(k_idx)
            col_term_2 = col_term * head_term_3
            p = torch.exp2(term * head_term_2 - (row_term_2 - col_term_2) - row_lse)
            if masked:
                distance = q_idx - k_idx
                allowed = (0 <= distance) & (distance < 1024)
                p = _where(allowed, p, 0.0)
            dv[:, :, k0 : k1 + 1] += _per_kv_head(p, Hkv).mT @ d_out_tile
            dp = dp - delta
            g = p * dp
            if needed[0]:
                contribution = g * (-(row_term - col_term))
                if masked:
                    contribution = _where(allowed, contribution, 0.0)
                sum_slope += contribution.sum((-2, -1))
            if needed[1]:
                contribution = g * (head_term_4 * qk * term_2 * cap + term)
                if masked:
                    contribution = _where(allowed, contribution, 0.0)
                sum_cap += contribution.sum((-2, -1))
            ds = g * term_2
            if masked:
                ds = _where(allowed, ds, 0.0)  # the derivative may be infinite where the mask forbids
            ds = _per_kv_head(ds, Hkv)
            dq_tile += ds @ k_tile
            dk[:, :, k0 : k1 + 1] += ds.mT @ q_scaled
        dq[:, :, q0 : q1 + 1] = _per_head(dq_tile, Hq) * head_term_5
    if needed[0]:
        total_slope += sum_slope.sum((0,))
    if needed[1]:
        total_cap += sum_cap.sum()
    return dq, dk, dv, total_slope, total_cap


# ---------------------------------------------------------------- the function


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, slope, cap, scale):
        out, lse = _forward(q, k, v, slope, cap, scale)
        ctx.save_for_backward(q, k, v, slope, cap, out, lse)
        ctx.scale = scale
        return out.to(q.dtype), lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        q, k, v, slope, cap, out, lse = ctx.saved_tensors
        needed = [ctx.needs_input_grad[3], ctx.needs_input_grad[4]]
        dq, dk, dv, total_slope, total_cap = _backward(
            d_out, d_lse, q, k, v, slope, cap, out, lse, ctx.scale, needed,
        )
        dq, dk, dv = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
        total_slope = total_slope.to(slope.dtype) if needed[0] else None
        total_cap = total_cap.to(cap.dtype) if needed[1] else None
        return dq, dk, dv, total_slope, total_cap, None


def _refuse(message: str) -> NoReturn:
    raise ValueError(f"windowed_alibi: {message}")


def _readable(x: object) -> bool:
    """Whether a scalar's value can be looked at: a tensor's cannot while torch.compile traces."""
    return not isinstance(x, Tensor) or not torch.compiler.is_compiling()


def _check(q, k, v, slope, cap, scale):
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
    if not isinstance(slope, Tensor):
        _refuse(f"slope must be a torch.Tensor, not {type(slope).__name__}")
    if slope.dtype not in (torch.float32,):
        _refuse(f"slope must be float32, not {slope.dtype}")
    if slope.device != q.device:
        _refuse(f"slope must be on q's device {q.device}, not {slope.device}")
    if slope.dim() != 1:
        _refuse(f"slope must have 1 dimension (Hq), not shape {tuple(slope.shape)}")
    if tuple(slope.shape) != (Hq,):
        _refuse(f"slope must have shape (Hq) = {(Hq,)}, not {tuple(slope.shape)}")
    if not ((isinstance(cap, (int, float)) and not isinstance(cap, bool)) or (isinstance(cap, Tensor) and cap.dim() == 0 and cap.is_floating_point())):
        _refuse(f"cap must be a number or a 0-dimensional float tensor, not {type(cap).__name__}")
    if _readable(cap) and not (0.0 < cap):
        _refuse(f"cap must satisfy 0.0 < cap, not {cap}")


def windowed_alibi(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    slope: Tensor,
    cap: float | Tensor,
    scale: float | None = None,
    return_lse: bool = False,
    dropout_seed: int | Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention `windowed_alibi`, tile by tile, differentiable in every float argument.

    q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), with any strides, all float16, bfloat16 or float32.
    slope (Hq): float32.
    cap: a number or 0-dimensional tensor, where 0.0 < cap.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given.
    dropout_seed is accepted for the sake of a common signature, and has no effect.

    Gives out (B, Hq, Sq, Dv) in q's dtype, and with return_lse also the log-sum-exp (B, Hq, Sq), natural, float32.
    A query that may attend to no key gives a zero row, -inf, and zero gradients. Raises ValueError on what does not fit.
    """
    return _call(q, k, v, slope, cap, scale, return_lse, dropout_seed)


def _call(q, k, v, slope, cap, scale, return_lse, dropout_seed):
    if scale is None:
        scale = q.shape[-1] ** -0.5
    _check(q, k, v, slope, cap, scale)
    if isinstance(cap, Tensor):
        cap = cap.to(device=q.device, dtype=torch.float32)
    else:
        cap = torch.full((), cap, dtype=torch.float32, device=q.device)
    if scale <= 0.0:
        # A positive scale is folded into the exponent; its sign, or its being zero, goes into q.
        q, scale = (-q, -scale) if scale < 0.0 else (q * 0.0, 1.0)
    out, lse = _Attention.apply(q, k, v, slope, cap, float(scale))
    return (out, lse) if return_lse else out


__all__ = ["windowed_alibi"]
