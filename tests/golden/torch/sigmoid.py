"""sigmoid: tiled attention in plain PyTorch, forward and backward.

Made by attngen from the specification below: edit that and compile again, or edit this file by hand.
It needs torch alone, and runs on any device that torch has. `sigmoid` is differentiable.
"""

# The specification:
#
#     # Sigmoid attention: every pair is weighed for itself, and rows need no sum.
#     #
#     #   out_i = sum_j sigmoid(q_i . k_j / sqrt(D) - log(Sk)) v_j
#     #
#     # Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", ICLR 2025
#     # (https://arxiv.org/abs/2409.04431): the bias -log(n) keeps a row's weight near one at the start of training.
#     attention sigmoid
#
#     score = qk * scale - log(Sk)
#
#     normalizer = sigmoid
#
# sha256 of its text: 9c4e6b348b353f604eb673d7e0624388587de44183b215c0e0ffeed1c22e4998
# options: target=torch tile=256x256
# Proved: streaming, range-safety, empty-rows, locality, gradients, tile-ranges, index-bounds, integer-width.

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

# How many queries and how many keys are worked on at a time. Scores are never held for more than one such tile.
TILE_Q, TILE_K = 256, 256


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


def _float(x) -> Tensor:
    """An int or a bool as float32."""
    return x.float() if isinstance(x, Tensor) else torch.tensor(float(x))


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


def _forward(q, k, v, scale):
    """out (B, Hq, Sq, Dv) and lse (B, Hq, Sq) in float32."""
    B, Hq, Sq, _D = q.shape
    Hkv, Sk, Dv = v.shape[1:]
    out = torch.zeros((B, Hq, Sq, Dv), dtype=torch.float32, device=q.device)
    lse = torch.full((B, Hq, Sq), 0.0, dtype=torch.float32, device=q.device)
    if q.numel() == 0:
        return out, lse
    head_term = torch.log(torch.as_tensor(_float(Sk)))
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_tile = _tile(q, q0, q1, Hkv)
        acc = torch.zeros((B, Hq, q1 - q0 + 1, Dv), dtype=torch.float32, device=q.device)
        for tile in _key_tiles(Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            qk = _per_head(q_tile @ _tile(k, k0, k1, Hkv).mT, Hq)
            x = qk * scale - head_term
            weight = torch.sigmoid(x)
            acc = acc + _per_head(_per_kv_head(weight, Hkv) @ _tile(v, k0, k1, Hkv), Hq)

        out[:, :, q0 : q1 + 1] = acc
    return out, lse


# ---------------------------------------------------------------- backward


def _backward(d_out, d_lse, q, k, v, out, lse, scale):
    """The gradients of q, k, v. Weights are computed again, tile by tile."""
    _B, Hq, Sq, _D = q.shape
    Hkv, Sk, _Dv = v.shape[1:]
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (q, k, v))
    if q.numel() == 0:
        return dq, dk, dv
    d_out = d_out.float()
    head_term = torch.log(torch.as_tensor(_float(Sk)))
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_tile, d_out_tile = _tile(q, q0, q1, Hkv), _tile(d_out, q0, q1, Hkv)
        dq_tile = torch.zeros_like(q_tile)
        q_scaled = _per_kv_head(_per_head(q_tile, Hq) * scale, Hkv)
        for tile in _key_tiles(Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            k_tile = _tile(k, k0, k1, Hkv)
            qk = _per_head(q_tile @ k_tile.mT, Hq)
            dp = _per_head(d_out_tile @ _tile(v, k0, k1, Hkv).mT, Hq)
            x = qk * scale - head_term
            term = torch.sigmoid(x)
            p = term
            slope_p = term * (1.0 - term)
            dv[:, :, k0 : k1 + 1] += _per_kv_head(p, Hkv).mT @ d_out_tile
            g = slope_p * dp
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
    def forward(q, k, v, scale):
        out, lse = _forward(q, k, v, scale)
        exact = out.new_empty(0) if q.dtype is torch.float32 else out  # which cannot be two of the results
        return out.to(q.dtype), lse, exact

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, scale = inputs
        out, lse, exact = output
        ctx.mark_non_differentiable(exact)
        out = out if q.dtype is torch.float32 else exact
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale = scale

    @staticmethod
    def backward(ctx, d_out, d_lse, *_):
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = (_Gradients.apply if torch.is_grad_enabled() else _backward)(
            d_out, d_lse, q, k, v, out, lse, ctx.scale,
        )
        dq, dk, dv = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
        return dq, dk, dv, None


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
    raise _Refusal(f"sigmoid: {message}")


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


def _check(q, k, v, scale, whole=False):
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
    _refuse_tangents(q, k, v, scale)
    return q, k, v


def _scale_number(scale) -> float:
    """A scale that is no finite float and no tensor, as a float: an int, or a NumPy number."""
    try:
        if not isinstance(scale, str | bytes | bool) and abs(float(scale)) < torch.inf:
            return float(scale)
    except (TypeError, ValueError, OverflowError):
        pass
    _refuse(f"scale must be a finite number, not {scale!r}")


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


def sigmoid(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | Tensor | None = None,
    return_lse: bool = False,
    dropout_seed: int | Tensor | None = None,
    check: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention `sigmoid`, tile by tile, differentiable in every float argument.

    q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), with any strides, all float16, bfloat16 or float32.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given. A tensor may require a gradient.
    dropout_seed is accepted for the sake of a common signature, and has no effect.
    check is accepted for the sake of a common signature: here every call checks all facts.

    Returns out (B, Hq, Sq, Dv) in q's dtype, and with return_lse also the log-sum-exp (B, Hq, Sq), natural, float32.
    A query that may attend to no key has a zero row in the result and zero gradients in q, k and v. Raises ValueError if an argument does not fit.
    """
    return _call(q, k, v, scale, return_lse, dropout_seed)


def _call(q, k, v, scale, return_lse, dropout_seed):
    if isinstance(q, Tensor) and not q.is_meta and torch.is_autocast_enabled(q.device.type):
        q, k, v = (_in_autocast(x, q.device.type) for x in (q, k, v))
        with torch.autocast(q.device.type, enabled=False):  # products here are in float32
            return _call(q, k, v, scale, return_lse, dropout_seed)
    if scale is None:
        try:
            scale = q.shape[-1] ** -0.5
        except (AttributeError, IndexError, ZeroDivisionError):
            scale = 1.0  # `_check` refuses this call
    elif not isinstance(scale, Tensor) and (type(scale) is not float or not abs(scale) < torch.inf):
        scale = _scale_number(scale)
    q, k, v = _check(q, k, v, scale)
    if isinstance(scale, Tensor):
        q, scale = _scaled(q, scale)
    if scale <= 0.0:
        # A positive scale is folded into the exponent; its sign, or its being zero, goes into q.
        q, scale = (-q, -scale) if scale < 0.0 else (q * 0.0, 1.0)
    out, lse, *_ = _Attention.apply(q, k, v, float(scale))
    return (out, lse) if return_lse else out


__all__ = ["sigmoid"]
