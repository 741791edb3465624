"""natten_2d: tiled attention in plain PyTorch, forward and backward.

Made by attngen from the specification below: edit that and compile again, or edit this file by hand.
It needs torch alone, and runs on any device that torch has. `natten_2d` is differentiable.
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
# options: target=torch width=32 radius=3 reach=13 tile=256x256
# Proved: streaming, range-safety, empty-rows, locality, gradients, tile-ranges, index-bounds, integer-width.

from __future__ import annotations

import functools
import math
import warnings
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


def _tensors(*values) -> list[Tensor]:
    """Numbers among tensors as tensors of their dtype."""
    like = next(x for x in values if isinstance(x, Tensor))
    return [x if isinstance(x, Tensor) else torch.tensor(x, dtype=like.dtype, device=like.device) for x in values]


def _min(a, b):
    return torch.minimum(*_tensors(a, b)) if isinstance(a, Tensor) or isinstance(b, Tensor) else min(a, b)


def _max(a, b):
    return torch.maximum(*_tensors(a, b)) if isinstance(a, Tensor) or isinstance(b, Tensor) else max(a, b)


def _element(x: Tensor, *index: Tensor | int) -> Tensor:
    """x[index], which is 0 outside the tensor."""
    at = torch.broadcast_tensors(*(torch.as_tensor(i, device=x.device) for i in index))
    inside = torch.ones_like(at[0], dtype=torch.bool)
    for i, size in zip(at, x.shape):
        inside = inside & (i >= 0) & (i < size)
    if 0 in x.shape:
        return torch.zeros_like(at[0], dtype=x.dtype)
    return torch.where(inside, x[tuple(i.clamp(0, size - 1) for i, size in zip(at, x.shape))], x.new_zeros(()))


def _gathered(values: Tensor, inside: Tensor, index: tuple[Tensor | int, ...], shape: torch.Size) -> Tensor:
    """The sums of the values with the same index into this shape, where a size of 1 takes any index. They are added as
    integers, so that the order changes no bit.
    """
    flat, size = torch.zeros((), dtype=torch.int64, device=values.device), shape.numel()
    for i, n in zip(index, shape):
        flat = flat * n + (i if n > 1 else 0)
    inside, flat = inside.expand(values.shape), flat.expand(values.shape)
    values = torch.where(inside, values, 0.0).double()
    least = values.new_full((1,), 1e-300)  # where there is no value, or none but zeros
    _, exponent = torch.frexp(torch.cat((values.abs().flatten(), least)).amax())
    unit = torch.ldexp(torch.ones((), dtype=torch.float64, device=values.device), exponent - (62 - values.numel().bit_length()))
    cells = torch.zeros(size + 1, dtype=torch.int64, device=values.device)
    cells.index_add_(0, torch.where(inside, flat, size).flatten(), torch.round(values / unit).long().flatten())
    return (cells[:size].double() * unit).float().view(shape)


# ---------------------------------------------------------------- which tiles meet


def _key_tiles(q0, q1, Sk):
    """The tiles of keys that the queries q0 … q1 meet, each with whether it needs the mask.

    `any` is where some pair is allowed, `full` where every pair is.
    """
    any_lo = max(max(0, min(max(q0 // 32, 3), Sk // 32 - 1 - 3) * 32 - 96), 0) // TILE_K
    any_hi = (min(Sk, min(max(q1 // 32, 3), Sk // 32 - 1 - 3) * 32 + 127 + 1) + TILE_K - 1) // TILE_K
    any_hi = max(any_hi, any_lo)
    partial = [*range(any_lo, any_hi)]
    return [(tile, True) for tile in partial]


# ---------------------------------------------------------------- forward


def _forward(q, k, v, bias, scale):
    """out (B, Hq, Sq, Dv) and lse (B, Hq, Sq) in float32."""
    B, Hq, Sq, _D = q.shape
    Hkv, Sk, Dv = v.shape[1:]
    bias = bias.expand(Hq, 13, 13)
    head = torch.arange(Hq, device=q.device)[:, None, None]
    out = torch.zeros((B, Hq, Sq, Dv), dtype=torch.float32, device=q.device)
    lse = torch.full((B, Hq, Sq), -math.inf, dtype=torch.float32, device=q.device)
    if q.numel() == 0:
        return out, lse
    head_term = scale * 1.4426950408889634
    head_term_2 = Sk // 32 - 1 - 3
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_idx = torch.arange(q0, q1 + 1, device=q.device)[:, None]
        q_tile = _tile(q, q0, q1, Hkv)
        y_q = q_idx // 32
        x_q = q_idx % 32
        centre = _min(_max(y_q, 3), head_term_2)
        centre_2 = _min(_max(x_q, 3), 28)
        acc = torch.zeros((B, Hq, q1 - q0 + 1, Dv), dtype=torch.float32, device=q.device)
        row_max = torch.full((B, Hq, q1 - q0 + 1, 1), -math.inf, dtype=torch.float32, device=q.device)
        row_sum = torch.zeros((B, Hq, q1 - q0 + 1, 1), dtype=torch.float32, device=q.device)
        for tile, masked in _key_tiles(q0, q1, Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            k_idx = torch.arange(k0, k1 + 1, device=q.device)
            qk = _per_head(q_tile @ _tile(k, k0, k1, Hkv).mT, Hq)
            y_k = k_idx // 32
            x_k = k_idx % 32
            x = qk * head_term + _element(bias, head, k_idx // 32 - q_idx // 32 + 6, k_idx % 32 - q_idx % 32 + 6).float() * 1.4426950408889634
            if masked:
                x = _where((abs(y_k - centre) <= 3) & (abs(x_k - centre_2) <= 3), x, -math.inf)
            new_max = torch.maximum(row_max, x.amax(-1, keepdim=True))
            shift = torch.where(new_max == -math.inf, 0.0, new_max)  # rows without a key so far
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
    total_bias = torch.zeros_like(bias, dtype=torch.float32)
    _B, Hq, Sq, _D = q.shape
    Hkv, Sk, _Dv = v.shape[1:]
    bias = bias.expand(Hq, 13, 13)
    head = torch.arange(Hq, device=q.device)[:, None, None]
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (q, k, v))
    if q.numel() == 0:
        return dq, dk, dv, total_bias
    d_out = d_out.float()
    row_lses = torch.where(lse == -math.inf, math.inf, lse * LOG2E)[..., None]
    deltas = (d_out * out).sum(-1, keepdim=True) - d_lse[..., None]
    head_term = scale * 1.4426950408889634
    head_term_2 = Sk // 32 - 1 - 3
    for q0 in range(0, Sq, TILE_Q):
        q1 = min(q0 + TILE_Q, Sq) - 1
        q_idx = torch.arange(q0, q1 + 1, device=q.device)[:, None]
        q_tile, d_out_tile = _tile(q, q0, q1, Hkv), _tile(d_out, q0, q1, Hkv)
        row_lse = row_lses[:, :, q0 : q1 + 1]
        delta = deltas[:, :, q0 : q1 + 1]
        y_q = q_idx // 32
        x_q = q_idx % 32
        centre = _min(_max(y_q, 3), head_term_2)
        centre_2 = _min(_max(x_q, 3), 28)
        dq_tile = torch.zeros_like(q_tile)
        q_scaled = _per_kv_head(_per_head(q_tile, Hq) * scale, Hkv)
        for tile, masked in _key_tiles(q0, q1, Sk):
            k0 = tile * TILE_K
            k1 = min(k0 + TILE_K, Sk) - 1
            k_idx = torch.arange(k0, k1 + 1, device=q.device)
            k_tile = _tile(k, k0, k1, Hkv)
            qk = _per_head(q_tile @ k_tile.mT, Hq)
            dp = _per_head(d_out_tile @ _tile(v, k0, k1, Hkv).mT, Hq)
            y_k = k_idx // 32
            x_k = k_idx % 32
            p = torch.exp2(qk * head_term + _element(bias, head, k_idx // 32 - q_idx // 32 + 6, k_idx % 32 - q_idx % 32 + 6).float() * 1.4426950408889634 - row_lse)
            if masked:
                allowed = (abs(y_k - centre) <= 3) & (abs(x_k - centre_2) <= 3)
                p = _where(allowed, p, 0.0)
            dv[:, :, k0 : k1 + 1] += _per_kv_head(p, Hkv).mT @ d_out_tile
            dp = dp - delta
            g = p * dp
            if needed[0]:
                contribution = g
                if masked:
                    contribution = _where(allowed, contribution, 0.0)
                inside = (head >= 0) & (head < Hq) & (k_idx // 32 - q_idx // 32 + 6 >= 0) & (k_idx // 32 - q_idx // 32 + 6 < 13) & (k_idx % 32 - q_idx % 32 + 6 >= 0) & (k_idx % 32 - q_idx % 32 + 6 < 13)
                total_bias += _gathered(contribution, inside, (head, k_idx // 32 - q_idx // 32 + 6, k_idx % 32 - q_idx % 32 + 6,), total_bias.shape)
            ds = g
            ds = _per_kv_head(ds, Hkv)
            dq_tile += ds @ k_tile
            dk[:, :, k0 : k1 + 1] += ds.mT @ q_scaled
        dq[:, :, q0 : q1 + 1] = _per_head(dq_tile, Hq) * scale
    return dq, dk, dv, total_bias


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
    def forward(q, k, v, bias, scale):
        out, lse = _forward(q, k, v, bias, scale)
        exact = out.new_empty(0) if q.dtype is torch.float32 else out  # which cannot be two of the results
        return out.to(q.dtype), lse, exact

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, bias, scale = inputs
        out, lse, exact = output
        ctx.mark_non_differentiable(exact)
        out = out if q.dtype is torch.float32 else exact
        ctx.save_for_backward(q, k, v, bias, out, lse)
        ctx.scale = scale

    @staticmethod
    def backward(ctx, d_out, d_lse, *_):
        q, k, v, bias, out, lse = ctx.saved_tensors
        # While torch.compile traces torch.func.grad, PyTorch does not say rightly which gradients are asked for.
        traced = torch.compiler.is_compiling()
        needed = [traced or ctx.needs_input_grad[3]]
        dq, dk, dv, total_bias = (_Gradients.apply if torch.is_grad_enabled() else _backward)(
            d_out, d_lse, q, k, v, bias, out, lse, ctx.scale, needed,
        )
        dq, dk, dv = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
        total_bias = total_bias.to(bias.dtype) if needed[0] else None
        return dq, dk, dv, total_bias, None


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
_CALLER = 5  # the stack level of warnings; an `attngen.Kernel` adds 2


def _refuse(message: str) -> NoReturn:
    raise _Refusal(f"natten_2d: {message}")


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


def _check(q, k, v, bias, scale, whole=False):
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
    if not isinstance(bias, Tensor):
        _refuse(f"bias must be a torch.Tensor, not {type(bias).__name__}")
    if bias.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64,):
        _refuse(f"bias must be float32 or float16 or bfloat16 or float64, not {bias.dtype}")
    if bias.device != q.device:
        _refuse(f"bias must be on q's device {q.device}, not {bias.device}")
    if bias.dim() != 3:
        _refuse(f"bias must have 3 dimensions (Hq, 13, 13), not shape {tuple(bias.shape)}")
    _note_rounding("bias", bias)
    if tuple(bias.shape) != (Hq, 13, 13,):
        bias = _spread("bias", bias, (Hq, 13, 13,), "Hq, 13, 13", range(3) if whole else (), turned)
    if not (Sq == Sk):
        _refuse(f"the specification assumes Sq == Sk; here Sk = {Sk}, Sq = {Sq}")
    if not (Sk % 32 == 0):
        _refuse(f"the specification assumes Sk % 32 == 0; here Sk = {Sk}")
    if not (224 <= Sk):
        _refuse(f"the specification assumes 224 <= Sk; here Sk = {Sk}")
    _refuse_tangents(q, k, v, bias, scale)
    return q, k, v, bias


def _note_rounding(name: str, x: Tensor) -> None:
    """Warns of a float64 param."""
    if x.dtype is torch.float64 and not torch.compiler.is_compiling():
        _warn_of_rounding(name)


@functools.cache
def _warn_of_rounding(name: str) -> None:
    """Warns once for each param."""
    warnings.warn(f"natten_2d: {name} is float64, and is rounded to float32, which has 24 bits: give {name}.float() if they suffice, or subtract what all elements share before", stacklevel=_CALLER + 1)


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


def natten_2d(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor,
    scale: float | Tensor | None = None,
    return_lse: bool = False,
    dropout_seed: int | Tensor | None = None,
    check: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention `natten_2d`, tile by tile, differentiable in every float argument.

    q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), with any strides, all float16, bfloat16 or float32.
    bias (Hq, 13, 13): float32 or float16 or bfloat16 or float64.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given. A tensor may require a gradient.
    dropout_seed is accepted for the sake of a common signature, and has no effect.
    check is accepted for the sake of a common signature: here every call checks all facts.

    Returns out (B, Hq, Sq, Dv) in q's dtype, and with return_lse also the log-sum-exp (B, Hq, Sq), natural, float32.
    A query that may attend to no key has a zero row in the result and zero gradients in q, k and v. Raises ValueError if an argument does not fit.
    """
    return _call(q, k, v, bias, scale, return_lse, dropout_seed)


def _call(q, k, v, bias, scale, return_lse, dropout_seed):
    if isinstance(q, Tensor) and not q.is_meta and torch.is_autocast_enabled(q.device.type):
        q, k, v = (_in_autocast(x, q.device.type) for x in (q, k, v))
        with torch.autocast(q.device.type, enabled=False):  # products here are in float32
            return _call(q, k, v, bias, scale, return_lse, dropout_seed)
    if scale is None:
        try:
            scale = q.shape[-1] ** -0.5
        except (AttributeError, IndexError, ZeroDivisionError):
            scale = 1.0  # `_check` refuses this call
    elif not isinstance(scale, Tensor) and (type(scale) is not float or not abs(scale) < torch.inf):
        scale = _scale_number(scale)
    q, k, v, bias = _check(q, k, v, bias, scale)
    if isinstance(scale, Tensor):
        q, scale = _scaled(q, scale)
    if scale <= 0.0:
        # A positive scale is folded into the exponent; its sign, or its being zero, goes into q.
        q, scale = (-q, -scale) if scale < 0.0 else (q * 0.0, 1.0)
    out, lse, *_ = _Attention.apply(q, k, v, bias, float(scale))
    return (out, lse) if return_lse else out


__all__ = ["natten_2d"]
