"""full_bias: tiled attention in plain PyTorch, forward and backward.

Made by attngen from the specification below: change that and compile again, or own this file as it stands.
It needs torch alone, and runs on any device that torch has. `full_bias` is differentiable.
"""

# The specification:
#
#     # A learned bias for every head, query and key: any position scheme at all, at the cost of reading it.
#     #
#     #   s_ij = q_i . k_j / sqrt(D) + bias[h, i, j]
#     #
#     # Liu et al., "Swin Transformer", ICCV 2021 (https://arxiv.org/abs/2103.14030), equation 4, with B itself learned;
#     # Jumper et al., "Highly accurate protein structure prediction with AlphaFold", Nature 2021 (the pair bias).
#     attention full_bias
#
#     param bias: f32[Hq, Sq, Sk]
#
#     score = qk * scale + bias[h, q, k]
#
# sha256 of its text: 2d4c989fede025532ea85ba9abd826ba7e9d923598629ee77a923af54a374111
# options: target=torch tile=256x256
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


def _forward(q, k, v, bias, scale):
    """out (B, Hq, Sq, Dv) and lse (B, Hq, Sq) in float32."""
    B, Hq, Sq, D = q.shape
    Hkv, Sk, Dv = v.shape[1:]
    out = torch.zeros((B, Hq, Sq, Dv), dtype=torch.float32, device=q.device)
    lse = torch.full((B, Hq, Sq), -math.inf, dtype=torch.float32, device=q.device)
    if q.numel() == 0 or k.numel() == 0:
        return out, lse
    head_term = scale * 1.4426950408889634
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_tile = _tile(q, q0, q1, Hkv)
        acc = torch.zeros((B, Hq, q1 - q0 + 1, Dv), dtype=torch.float32, device=q.device)
        row_max = torch.full((B, Hq, q1 - q0 + 1, 1), -math.inf, dtype=torch.float32, device=q.device)
        row_sum = torch.zeros((B, Hq, q1 - q0 + 1, 1), dtype=torch.float32, device=q.device)
        for tile in _key_tiles(Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            qk = _per_head(q_tile @ _tile(k, k0, k1, Hkv).mT, Hq)
            x = qk * head_term + bias[None, :, q0 : q1 + 1, k0 : k1 + 1] * 1.4426950408889634
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


def _backward(d_out, d_lse, q, k, v, bias, out, lse, scale, needed):
    """The gradients of q, k, v and of the float params, None where not needed. Weights are computed again, tile by tile."""
    B, Hq, Sq, D = q.shape
    Hkv, Sk, Dv = v.shape[1:]
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (q, k, v))
    total_bias = torch.zeros_like(bias, dtype=torch.float32)
    if q.numel() == 0 or k.numel() == 0:
        return dq, dk, dv, total_bias
    d_out = d_out.float()
    row_lses = torch.where(lse == -math.inf, math.inf, lse * LOG2E)[..., None]
    deltas = (d_out * out).sum(-1, keepdim=True) - d_lse[..., None]
    head_term = scale * 1.4426950408889634
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_tile, d_out_tile = _tile(q, q0, q1, Hkv), _tile(d_out, q0, q1, Hkv)
        row_lse = row_lses[:, :, q0 : q1 + 1]
        delta = deltas[:, :, q0 : q1 + 1]
        dq_tile = torch.zeros_like(q_tile)
        q_scaled = _per_kv_head(_per_head(q_tile, Hq) * scale, Hkv)
        for tile in _key_tiles(Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            k_tile = _tile(k, k0, k1, Hkv)
            qk = _per_head(q_tile @ k_tile.mT, Hq)
            dp = _per_head(d_out_tile @ _tile(v, k0, k1, Hkv).mT, Hq)
            p = torch.exp2(qk * head_term + bias[None, :, q0 : q1 + 1, k0 : k1 + 1] * 1.4426950408889634 - row_lse)
            dv[:, :, k0 : k1 + 1] += _per_kv_head(p, Hkv).mT @ d_out_tile
            dp = dp - delta
            g = p * dp
            if needed[0]:
                contribution = g
                total_bias[:, q0 : q1 + 1, k0 : k1 + 1] += contribution.sum((0,))
            ds = g
            ds = _per_kv_head(ds, Hkv)
            dq_tile += ds @ k_tile
            dk[:, :, k0 : k1 + 1] += ds.mT @ q_scaled
        dq[:, :, q0 : q1 + 1] = _per_head(dq_tile, Hq) * scale
    return dq, dk, dv, total_bias


# ---------------------------------------------------------------- the function


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, scale):
        out, lse = _forward(q, k, v, bias, scale)
        ctx.save_for_backward(q, k, v, bias, out, lse)
        ctx.scale = scale
        return out.to(q.dtype), lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        q, k, v, bias, out, lse = ctx.saved_tensors
        needed = [ctx.needs_input_grad[3]]
        dq, dk, dv, total_bias = _backward(
            d_out, d_lse, q, k, v, bias, out, lse, ctx.scale, needed,
        )
        dq, dk, dv = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
        total_bias = total_bias.to(bias.dtype) if needed[0] else None
        return dq, dk, dv, total_bias, None


def _refuse(message: str) -> NoReturn:
    raise ValueError(f"full_bias: {message}")


def _check(q, k, v, bias, scale):
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
    if not isinstance(bias, Tensor):
        _refuse(f"bias must be a torch.Tensor, not {type(bias).__name__}")
    if bias.dtype not in (torch.float32,):
        _refuse(f"bias must be float32, not {bias.dtype}")
    if bias.device != q.device:
        _refuse(f"bias must be on q's device {q.device}, not {bias.device}")
    if bias.dim() != 3:
        _refuse(f"bias must have 3 dimensions (Hq, Sq, Sk), not shape {tuple(bias.shape)}")
    if tuple(bias.shape) != (Hq, Sq, Sk,):
        _refuse(f"bias must have shape (Hq, Sq, Sk) = {(Hq, Sq, Sk,)}, not {tuple(bias.shape)}")


def full_bias(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor,
    scale: float | None = None,
    return_lse: bool = False,
    dropout_seed: int | Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention `full_bias`, tile by tile, differentiable in every float argument.

    q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), with any strides, all float16, bfloat16 or float32.
    bias (Hq, Sq, Sk): float32.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given.
    dropout_seed is accepted for the sake of a common signature, and has no effect.

    Gives out (B, Hq, Sq, Dv) in q's dtype, and with return_lse also the log-sum-exp (B, Hq, Sq), natural, float32.
    A query that may attend to no key gives a zero row, -inf, and zero gradients. Raises ValueError on what does not fit.
    """
    return _call(q, k, v, bias, scale, return_lse, dropout_seed)


def _call(q, k, v, bias, scale, return_lse, dropout_seed):
    if scale is None:
        scale = q.shape[-1] ** -0.5
    _check(q, k, v, bias, scale)
    if scale <= 0.0:
        # A positive scale is folded into the exponent; its sign, or its being zero, goes into q.
        q, scale = (-q, -scale) if scale < 0.0 else (q * 0.0, 1.0)
    out, lse = _Attention.apply(q, k, v, bias, float(scale))
    return (out, lse) if return_lse else out


__all__ = ["full_bias"]
