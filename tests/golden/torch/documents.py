"""documents: tiled attention in plain PyTorch, forward and backward.

Made by attngen from the specification below: edit that and compile again, or edit this file by hand.
It needs torch alone, and runs on any device that torch has. `documents` is differentiable.
"""

# The specification:
#
#     # Packed documents: several sequences share a row of the batch, and no token sees another document.
#     #
#     #   s_ij = q_i . k_j / sqrt(D),   j <= i  and  id_i = id_j
#     #
#     # Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021 (https://arxiv.org/abs/2107.02027).
#     attention documents
#
#     param ids: int[B, Sk]  # which document a token belongs to, in any order
#
#     mask = causal and same_document(ids)
#
#     assume Sq == Sk
#
# sha256 of its text: 7ed32c82cbffdaaeba08d7448fc276a2bb5ed74c0b25ed16f390a011adba49ba
# options: target=torch tile=256x256
# Proved: streaming, range-safety, empty-rows, locality, gradients, tile-ranges, index-bounds, integer-width.

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

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


def _element(x: Tensor, *index: Tensor | int) -> Tensor:
    """x[index], which is 0 outside the tensor."""
    at = torch.broadcast_tensors(*(torch.as_tensor(i, device=x.device) for i in index))
    inside = torch.ones_like(at[0], dtype=torch.bool)
    for i, size in zip(at, x.shape):
        inside = inside & (i >= 0) & (i < size)
    if 0 in x.shape:
        return torch.zeros_like(at[0], dtype=x.dtype)
    return torch.where(inside, x[tuple(i.clamp(0, size - 1) for i, size in zip(at, x.shape))], x.new_zeros(()))


def _extremes(values, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The least and the greatest value of each tile of n keys: (batch, head, tiles), 1 where they do not vary."""
    values = _four_axes(values, device).expand(-1, -1, 1, n)
    if n == 0:
        return values[:, :, 0], values[:, :, 0]
    parts = values.split(TILE_K, 3)
    return tuple(torch.stack([extreme(part, (-2, -1)) for part in parts], -1) for extreme in (torch.amin, torch.amax))


def _four_axes(x, device: torch.device) -> Tensor:
    """A number or a tensor as (batch, head, query, key), 1 where it does not vary."""
    x = torch.as_tensor(x, device=device)
    return x[(None,) * (4 - x.dim())]


def _matching_tiles(here, low: Tensor, high: Tensor, test: str) -> tuple[int, int, int, int]:
    """Where a test between this tile's values and those of each tile of keys (low … high) can hold, and where it must.

    Gives positions any_lo, any_hi (the hull of the tiles where it can hold for some head) and all_lo, all_hi (a run of
    tiles in which it holds for every pair of every head; empty where those tiles are not consecutive).
    """
    here = _four_axes(here, low.device)
    least, most = here.amin((-2, -1))[..., None], here.amax((-2, -1))[..., None]
    if here.is_floating_point():
        # Test and mask round differently: the test is a little wider, and never skips what the mask allows.
        least = least * torch.where(least > 0.0, 0.999999, 1.000001)
        most = most * torch.where(most > 0.0, 1.000001, 0.999999)
    if test == "==":
        can, must = (low <= most) & (least <= high), (low == high) & (low == least) & (low == most)
    else:
        can, must = least <= high, most <= low
    some = can.flatten(0, -2).any(0).nonzero().flatten().tolist()
    every = must.flatten(0, -2).all(0).nonzero().flatten().tolist()
    any_lo, any_hi = (some[0], some[-1] + 1) if some else (0, 0)
    together = bool(every) and every[-1] - every[0] + 1 == len(every)
    all_lo, all_hi = (every[0], every[-1] + 1) if together else (0, 0)
    return any_lo * TILE_K, any_hi * TILE_K, all_lo * TILE_K, all_hi * TILE_K


# ---------------------------------------------------------------- which tiles meet


def _key_tiles(q0, q1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi, Sq, Sk):
    """The tiles of keys that the queries q0 … q1 meet, each with whether it needs the mask.

    `any` is where some pair is allowed, `full` where every pair is.
    """
    any_lo = max(max(0, test0_any_lo), 0) // TILE_K
    any_hi = (min(min(Sk, q1 + Sk - Sq + 1), test0_any_hi) + TILE_K - 1) // TILE_K
    any_hi = max(any_hi, any_lo)
    full_lo = (max(0, test0_all_lo) + TILE_K - 1) // TILE_K
    full_hi = max(min(min(Sk, q0 + Sk - Sq + 1), test0_all_hi), 0) // TILE_K
    full_hi = max(full_hi, full_lo)
    full_lo = min(max(full_lo, any_lo), any_hi)
    full_hi = min(max(full_hi, full_lo), any_hi)
    full = [*range(full_lo, full_hi)]
    partial = [*range(any_lo, full_lo), *range(full_hi, any_hi)]
    return [(tile, False) for tile in full] + [(tile, True) for tile in partial]


def _key_test0(q, Sk, ids) -> tuple[Tensor, Tensor]:
    """The least and greatest value of `ids[b, k]` in each tile of keys."""
    k0, k1 = 0, Sk - 1
    return _extremes(ids[:, None, None, k0 : k1 + 1].long(), Sk, q.device)


# ---------------------------------------------------------------- forward


def _forward(q, k, v, ids, scale):
    """out (B, Hq, Sq, Dv) and lse (B, Hq, Sq) in float32."""
    B, Hq, Sq, _D = q.shape
    Hkv, Sk, Dv = v.shape[1:]
    ids = ids.expand(B, Sk)
    batch = torch.arange(B, device=q.device)[:, None, None, None]
    out = torch.zeros((B, Hq, Sq, Dv), dtype=torch.float32, device=q.device)
    lse = torch.full((B, Hq, Sq), -math.inf, dtype=torch.float32, device=q.device)
    if q.numel() == 0:
        return out, lse
    logit_scale = scale * 1.4426950408889634
    key_test0_least, key_test0_most = _key_test0(q, Sk, ids)
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_idx = torch.arange(q0, q1 + 1, device=q.device)[:, None]
        q_tile = _tile(q, q0, q1, Hkv)
        row_term = q_idx + Sk - Sq
        row_term_2 = _element(ids, batch, q_idx).long()
        test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi = _matching_tiles(row_term_2, key_test0_least, key_test0_most, "==")
        acc = torch.zeros((B, Hq, q1 - q0 + 1, Dv), dtype=torch.float32, device=q.device)
        row_max = torch.full((B, Hq, q1 - q0 + 1, 1), -math.inf, dtype=torch.float32, device=q.device)
        row_sum = torch.zeros((B, Hq, q1 - q0 + 1, 1), dtype=torch.float32, device=q.device)
        for tile, masked in _key_tiles(q0, q1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi, Sq, Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            k_idx = torch.arange(k0, k1 + 1, device=q.device)
            qk = _per_head(q_tile @ _tile(k, k0, k1, Hkv).mT, Hq)
            x = qk
            if masked:
                col_term = ids[:, None, None, k0 : k1 + 1].long()
                x = _where((k_idx <= row_term) & (row_term_2 == col_term), x, -math.inf)
            new_max = torch.maximum(row_max, x.amax(-1, keepdim=True))
            shift = torch.where(new_max == -math.inf, 0.0, new_max)  # rows without a key so far
            rescale = torch.exp2((row_max - shift) * logit_scale)
            weight = torch.exp2((x - shift) * logit_scale)
            row_sum = row_sum * rescale + weight.sum(-1, keepdim=True)
            acc = acc * rescale
            row_max = new_max
            acc = acc + _per_head(_per_kv_head(weight, Hkv) @ _tile(v, k0, k1, Hkv), Hq)

        total = row_max * logit_scale
        empty = row_max == -math.inf
        row_sum = torch.where(empty, 1.0, row_sum)
        out[:, :, q0 : q1 + 1] = acc / row_sum
        lse[:, :, q0 : q1 + 1] = torch.where(empty, -math.inf, (total + torch.log2(row_sum)) * LN2)[..., 0]
    return out, lse


# ---------------------------------------------------------------- backward


def _backward(d_out, d_lse, q, k, v, ids, out, lse, scale):
    """The gradients of q, k, v. Weights are computed again, tile by tile."""
    B, Hq, Sq, _D = q.shape
    Hkv, Sk, _Dv = v.shape[1:]
    ids = ids.expand(B, Sk)
    batch = torch.arange(B, device=q.device)[:, None, None, None]
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (q, k, v))
    if q.numel() == 0:
        return dq, dk, dv
    d_out = d_out.float()
    row_lses = torch.where(lse == -math.inf, math.inf, lse * LOG2E)[..., None]
    deltas = (d_out * out).sum(-1, keepdim=True) - d_lse[..., None]
    logit_scale = scale * 1.4426950408889634
    key_test0_least, key_test0_most = _key_test0(q, Sk, ids)
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_idx = torch.arange(q0, q1 + 1, device=q.device)[:, None]
        q_tile, d_out_tile = _tile(q, q0, q1, Hkv), _tile(d_out, q0, q1, Hkv)
        row_lse = row_lses[:, :, q0 : q1 + 1]
        delta = deltas[:, :, q0 : q1 + 1]
        row_term = q_idx + Sk - Sq
        row_term_2 = _element(ids, batch, q_idx).long()
        test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi = _matching_tiles(row_term_2, key_test0_least, key_test0_most, "==")
        dq_tile = torch.zeros_like(q_tile)
        q_scaled = _per_kv_head(_per_head(q_tile, Hq) * scale, Hkv)
        for tile, masked in _key_tiles(q0, q1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi, Sq, Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            k_idx = torch.arange(k0, k1 + 1, device=q.device)
            k_tile = _tile(k, k0, k1, Hkv)
            qk = _per_head(q_tile @ k_tile.mT, Hq)
            dp = _per_head(d_out_tile @ _tile(v, k0, k1, Hkv).mT, Hq)
            p = torch.exp2(qk * logit_scale - row_lse)
            if masked:
                col_term = ids[:, None, None, k0 : k1 + 1].long()
                allowed = (k_idx <= row_term) & (row_term_2 == col_term)
                p = _where(allowed, p, 0.0)
            dv[:, :, k0 : k1 + 1] += _per_kv_head(p, Hkv).mT @ d_out_tile
            dp = dp - delta
            g = p * dp
            ds = g
            ds = _per_kv_head(ds, Hkv)
            dq_tile += ds @ k_tile
            dk[:, :, k0 : k1 + 1] += ds.mT @ q_scaled
        dq[:, :, q0 : q1 + 1] = _per_head(dq_tile, Hq) * scale
    return dq, dk, dv


# ---------------------------------------------------------------- the function


class _OneByOne(torch.autograd.Function):
    """A function that `torch.func.vmap` calls once for each element of the batch."""

    @classmethod
    def vmap(cls, info, in_dims, *inputs):
        def slices(i):
            return [x if not isinstance(x, Tensor) or d is None else x.select(d, i) for x, d in zip(inputs, in_dims)]

        results = zip(*(cls.apply(*slices(i)) for i in range(info.batch_size)))
        stacked = tuple(None if found[0] is None else torch.stack(found) for found in results)
        return stacked, tuple(None if x is None else 0 for x in stacked)


class _Attention(_OneByOne):
    @staticmethod
    def forward(q, k, v, ids, scale):
        out, lse = _forward(q, k, v, ids, scale)
        exact = out.new_empty(0) if q.dtype is torch.float32 else out  # which cannot be two of the results
        return out.to(q.dtype), lse, exact

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, ids, scale = inputs
        out, lse, exact = output
        ctx.mark_non_differentiable(exact)
        out = out if q.dtype is torch.float32 else exact
        ctx.save_for_backward(q, k, v, ids, out, lse)
        ctx.scale = scale

    @staticmethod
    def backward(ctx, d_out, d_lse, *_):
        q, k, v, ids, out, lse = ctx.saved_tensors
        dq, dk, dv = (_Gradients.apply if torch.is_grad_enabled() else _backward)(
            d_out, d_lse, q, k, v, ids, out, lse, ctx.scale,
        )
        dq, dk, dv = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
        return dq, dk, dv, None, None


class _Gradients(_OneByOne):
    """The backward pass where somebody may want a second derivative."""

    @staticmethod
    def forward(*inputs):
        return _backward(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *gradients):
        _refuse("a second derivative is not computed")


_Refusal = ValueError  # an `attngen.Kernel` puts its own kind of ValueError here


def _refuse(message: str) -> NoReturn:
    raise _Refusal(f"documents: {message}")


_FUNCTORCH: Any = getattr(torch._C, "_functorch", None)
_FAKE: Any = getattr(getattr(torch, "_subclasses", None), "FakeTensor", ())
_HAS_PRIVATE_NAMES = all(  # else every call goes through the operator
    hasattr(owner, name)
    for owner, names in (
        (torch._C, "_is_tracing _len_torch_dispatch_stack"),
        (_FUNCTORCH, "peek_interpreter_stack is_functorch_wrapped_tensor is_batchedtensor get_unwrapped"),
        (getattr(torch, "_VF", None), "_unpack_dual"), (forward_ad, "_current_level"), (Tensor, "_is_zerotensor"),
    )
    for name in names.split()
)


def _hidden(x: Tensor) -> bool:
    """Whether the host cannot read a tensor's value: it is traced, captured, fake, on `meta`, or many under vmap."""
    if torch.compiler.is_compiling() or x.is_meta or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True
    while _HAS_PRIVATE_NAMES and _FUNCTORCH.is_functorch_wrapped_tensor(x):
        if _FUNCTORCH.is_batchedtensor(x):
            return True
        x = _FUNCTORCH.get_unwrapped(x)
    return isinstance(x, _FAKE)


def _may_have_tangent(x: Tensor) -> bool:
    """Whether `x` has a tangent, or may: none is seen beneath a second transform, nor while torch.compile traces."""
    if torch.compiler.is_compiling():
        return _HAS_PRIVATE_NAMES
    if not _HAS_PRIVATE_NAMES:
        return forward_ad.unpack_dual(x).tangent is not None
    wrapped = _FUNCTORCH.is_functorch_wrapped_tensor
    beneath = wrapped(x) and (_FUNCTORCH.is_batchedtensor(x) or wrapped(_FUNCTORCH.get_unwrapped(x)))
    return beneath or torch._VF._unpack_dual(x, level=forward_ad._current_level)[1] is not None


def _refuse_tangents(*arguments) -> None:
    """Refuses forward-mode derivatives, which a call would drop silently."""
    if _HAS_PRIVATE_NAMES and forward_ad._current_level < 0:
        return
    if any(isinstance(x, Tensor) and _may_have_tangent(x) for x in arguments):
        _refuse("forward-mode derivatives (jvp, jacfwd, hessian) are not computed: use backward()")


def _check(q, k, v, ids, scale, whole=False):
    """One clear message for what does not fit, before anything is computed. Returns the tensors; `whole`: with all sizes of
    1 repeated.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            _refuse(f"{name} must be a torch.Tensor, not {type(x).__name__}")
        if x.dim() != 4:
            _refuse(f"{name} must have 4 dimensions (batch, heads, length, head dim), not shape {tuple(x.shape)}")
        if x.layout is not torch.strided:
            _refuse(f"{name} must be a strided tensor, not {x.layout}")
        if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            _refuse(f"{name} must be float16, bfloat16 or float32, not {x.dtype}")
        if x.dtype != q.dtype:
            _refuse(f"{name} must have q's dtype {q.dtype}, not {x.dtype}")
        if x.device != q.device:
            _refuse(f"{name} must be on q's device {q.device}, not {x.device}")
    B, Hq, Sq, D = q.shape
    k, v = (x.expand(B, -1, -1, -1) if x.shape[0] == 1 != B else x for x in (k, v))
    Hkv, Sk, Dv = v.shape[1:]
    if k.shape != (B, Hkv, Sk, D):
        _refuse(f"k must have q's batch and head dim, and v's heads and length, {(B, Hkv, Sk, D)}, not {tuple(k.shape)}")
    if v.shape[0] != B:
        _refuse(f"v must have q's batch {B}, not {v.shape[0]}")
    if Hq % Hkv if Hkv else Hq:
        _refuse(f"q's {Hq} heads must be a multiple of the {Hkv} heads of k and v: their axis is 1")
    if D == 0 or Dv == 0:
        _refuse(f"head dims must be 1 at the least, not {D} and {Dv}")
    if max(Sq, Sk) >= 2**27:
        _refuse(f"sequences must be shorter than 2**27 = {2**27}, not {max(Sq, Sk)}")
    turned = "are q, k and v (batch, length, heads, head dim)? They must be (batch, heads, length, head dim): transpose them, as in q.transpose(1, 2); " if 1 < Sq < Hq and Sk < Hkv and all(x.stride(1) > x.stride(2) for x in (q, k)) and not torch.compiler.is_compiling() else ""
    if not isinstance(ids, Tensor):
        _refuse(f"ids must be a torch.Tensor, not {type(ids).__name__}")
    if ids.dtype not in (torch.int32, torch.int64,):
        _refuse(f"ids must be int32 or int64, not {ids.dtype}")
    if ids.device != q.device:
        _refuse(f"ids must be on q's device {q.device}, not {ids.device}")
    if ids.dim() != 2:
        _refuse(f"ids must have 2 dimensions (B, Sk), not shape {tuple(ids.shape)}")
    if tuple(ids.shape) != (B, Sk,):
        ids = _spread("ids", ids, (B, Sk,), "B, Sk", range(2) if whole else (), turned)
    if not (Sq == Sk):
        _refuse(f"the specification assumes Sq == Sk; here Sk = {Sk}, Sq = {Sq}")
    _refuse_tangents(q, k, v, ids, scale)
    return q, k, v, ids


def _scale_number(scale) -> float:
    """A scale that is no finite float and no tensor, as a float: an int, or a NumPy number."""
    try:
        if not isinstance(scale, str | bytes | bool) and abs(float(scale)) < torch.inf:
            return float(scale)
    except (TypeError, ValueError, OverflowError):
        pass
    _refuse(f"scale must be a finite number, not {scale!r}")


def _spread(name: str, x: Tensor, shape: tuple[int, ...], dims: str, axes: tuple[int, ...] | range, turned: str) -> Tensor:
    """`x` if it fits this shape, a size of 1 any. It is expanded along these axes, without a copy; along the others the
    kernels repeat it, and sum its gradient.
    """
    if any(have not in (1, want) for have, want in zip(x.shape, shape, strict=True)):
        _refuse(f"{turned}{name} must have shape ({dims}) = {shape}, not {tuple(x.shape)}")
    return x.expand([want if i in axes else have for i, (have, want) in enumerate(zip(x.shape, shape))]) if axes else x


def _in_autocast(x: Any, kind: str) -> Any:
    """`x` in autocast's dtype, unless it is float64, as autocast does for scaled_dot_product_attention."""
    fits = isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64 and x.device.type == kind
    return x.to(torch.get_autocast_dtype(kind)) if fits else x


def _scaled(q: Tensor, scale: Tensor) -> tuple[Tensor, float]:
    """q and the number that multiplies q . k. Where the scale learns, or cannot be read, it is divided by that number, and
    the quotient goes into q, with its gradient.
    """
    if scale.numel() != 1:
        _refuse(f"scale must be one number, not a tensor of shape {tuple(scale.shape)}")
    learns = scale.requires_grad and torch.is_grad_enabled()
    hidden = _hidden(scale)
    if not (learns or hidden):
        return q, float(scale)
    number = 1.0 if hidden else float(scale.detach()) or 1.0
    return (q.float() * (scale.reshape(()).to(q.device) / number)).to(q.dtype), number


def documents(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    ids: Tensor,
    scale: float | Tensor | None = None,
    return_lse: bool = False,
    dropout_seed: int | Tensor | None = None,
    check: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention `documents`, tile by tile, differentiable in every float argument.

    q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), with any strides, all float16, bfloat16 or float32.
    ids (B, Sk): int32 or int64.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given. A tensor may require a gradient.
    dropout_seed is accepted for the sake of a common signature, and has no effect.
    check is accepted for the sake of a common signature: here every call checks all facts.

    Returns out (B, Hq, Sq, Dv) in q's dtype, and with return_lse also the log-sum-exp (B, Hq, Sq), natural, float32.
    A query that may attend to no key has a zero row in the result and zero gradients in q, k and v. Raises ValueError if an argument does not fit.
    """
    return _call(q, k, v, ids, scale, return_lse, dropout_seed)


def _call(q, k, v, ids, scale, return_lse, dropout_seed):
    if isinstance(q, Tensor) and not q.is_meta and torch.is_autocast_enabled(q.device.type):
        q, k, v = (_in_autocast(x, q.device.type) for x in (q, k, v))
        with torch.autocast(q.device.type, enabled=False):  # products here are in float32
            return _call(q, k, v, ids, scale, return_lse, dropout_seed)
    if scale is None:
        try:
            scale = q.shape[-1] ** -0.5
        except (AttributeError, IndexError, ZeroDivisionError):
            scale = 1.0  # `_check` refuses this call
    elif not isinstance(scale, Tensor) and (type(scale) is not float or not abs(scale) < torch.inf):
        scale = _scale_number(scale)
    q, k, v, ids = _check(q, k, v, ids, scale)
    if isinstance(scale, Tensor):
        q, scale = _scaled(q, scale)
    if scale <= 0.0:
        # A positive scale is folded into the exponent; its sign, or its being zero, goes into q.
        q, scale = (-q, -scale) if scale < 0.0 else (q * 0.0, 1.0)
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg="documents: values of tensors say which tiles meet, and the host reads them; with fullgraph=True, compile the spec for target triton")
    out, lse, *_ = _Attention.apply(q, k, v, ids, float(scale))
    return (out, lse) if return_lse else out


__all__ = ["documents"]
