# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""What calls are given: tensors, numbers, scales and seeds, checked and made what kernels take.

`refuse` raises an error with the attention's name before its message.
"""

from __future__ import annotations

import ctypes
import functools
import math
import numbers
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from .watched import hidden, readable

Refuse = Callable[[str], NoReturn]
UNREADABLE = "here, not a tensor: a call has to read it, and cannot where it is traced, captured, fake or batched"


@functools.cache
def warn_of_rounding(attention: str, name: str, level: int) -> None:
    """Warns once for each param."""
    warnings.warn(
        f"{attention}: {name} is float64, and is rounded to float32, which has 24 bits: give {name}.float() if they "
        "suffice, or subtract what all elements share before",
        stacklevel=level + 1,
    )


@functools.cache
def warn_of_order(attention: str, level: int) -> None:
    """Warns once of more heads than positions, as if q, k and v were (batch, length, heads, head dim)."""
    warnings.warn(
        f"{attention}: are there more heads than positions? q, k and v must be (batch, heads, length, head dim): "
        "transpose what is (batch, length, heads, head dim), as in q.transpose(1, 2)",
        stacklevel=level,
    )


def seems_turned(q: Tensor, k: Tensor, Sq: int, Sk: int, Hq: int, Hkv: int) -> bool:
    """Whether there are more heads than positions, as if q, k and v were (batch, length, heads, head dim)."""
    if not (1 < Sq < Hq and Sk < Hkv and all(x.stride(1) > x.stride(2) for x in (q, k))):
        return False
    return not torch.compiler.is_compiling()


def spread(
    refuse: Refuse, name: str, x: Tensor, shape: tuple[int, ...], dims: str, axes: Any, turned: bool = False
) -> Tensor:
    """`x` if it fits this shape, a size of 1 any. It is expanded along these axes, without a copy; along the others the
    kernels repeat it, and sum its gradient.
    """
    if any(have not in (1, want) for have, want in zip(x.shape, shape, strict=True)):
        asked = "are q, k and v (batch, length, heads, head dim)? They must be (batch, heads, length, head dim): "
        asked += "transpose them, as in q.transpose(1, 2); "
        refuse(f"{asked if turned else ''}{name} must have shape ({dims}) = {shape}, not {tuple(x.shape)}")
    if not axes:
        return x
    return x.expand([want if i in axes else have for i, (have, want) in enumerate(zip(x.shape, shape, strict=True))])


def stand_in(x: Tensor) -> Tensor:
    """A zero at every index, for a tensor without elements, which kernels may read although no pair counts."""
    return x if x.numel() else x.sum().to(x.dtype).expand((1,) * x.dim())


def single(refuse: Refuse, name: str, x: Any) -> Any:
    """A number as it is computed with: rounded to float32. Tracers keep a number as it is."""
    if isinstance(x, Tensor):
        return x.float()
    if torch.compiler.is_compiling():
        return x
    rounded = ctypes.c_float(x).value
    if abs(rounded) == math.inf != abs(x):
        refuse(f"{name} must fit in float32, not {x}")
    return rounded


def is_number(x: object) -> bool:
    """Whether it is a number, or a float tensor of no dimension."""
    if isinstance(x, Tensor):
        return x.dim() == 0 and x.is_floating_point()
    return isinstance(x, (int, float, numbers.Real)) and not isinstance(x, bool)


def is_int(n: object) -> bool:
    """Whether it is an int, a NumPy int, or a tensor that holds one."""
    if isinstance(n, Tensor):
        return n.dim() == 0 and not (n.is_floating_point() or n.is_complex() or n.dtype is torch.bool)
    return isinstance(n, (int, torch.SymInt, numbers.Integral)) and not isinstance(n, bool)


def is_bool(x: object) -> bool:
    """Whether it is a bool, one of NumPy's, or a tensor that holds one."""
    if isinstance(x, Tensor):
        return x.dim() == 0 and x.dtype is torch.bool
    return type(x).__name__ in ("bool", "bool_")


def whole_number(refuse: Refuse, name: str, n: Any, kind: str = "an int") -> Any:
    """The int or the bool that a tensor or a NumPy number holds."""
    if not readable(n):
        refuse(f"{name} must be {kind} {UNREADABLE}")
    return n if isinstance(n, torch.SymInt) else int(n)


def int_or_place(n: Any, device: torch.device) -> tuple[Any, Tensor | None]:
    """An int by value, or the tensor that kernels read it from, so that the host never waits for it."""
    if isinstance(n, Tensor):
        return 0, n.to(device=device, dtype=torch.int64 if n.dtype is torch.int64 else torch.int32)
    return n if isinstance(n, torch.SymInt) else int(n), None


def in_autocast(x: Any, kind: str) -> Any:
    """`x` in autocast's dtype, unless it is float64, as autocast does for scaled_dot_product_attention."""
    fits = isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64 and x.device.type == kind
    return x.to(torch.get_autocast_dtype(kind)) if fits else x


def scale_number(refuse: Refuse, scale: Any) -> float:
    """A scale that is no finite float and no tensor, as a float: an int, or a NumPy number."""
    try:
        if not isinstance(scale, str | bytes | bool) and abs(float(scale)) < torch.inf:
            return float(scale)
    except (TypeError, ValueError, OverflowError):
        pass
    refuse(f"scale must be a finite number, not {scale!r}")


def scaled(refuse: Refuse, q: Tensor, scale: Tensor, use: str) -> tuple[Tensor, float]:
    """q and the number that multiplies q . k. `use`: what the score reads of the scale: `factor`, `qk * scale` alone;
    `none`, nothing; `otherwise`, more.

    A factor that learns, or that the host cannot read, is divided by that number, and the quotient goes into q, with
    its gradient.
    """
    if scale.numel() != 1:
        refuse(f"scale must be one number, not a tensor of shape {tuple(scale.shape)}")
    learns, unread = scale.requires_grad and torch.is_grad_enabled(), hidden(scale)
    if use == "factor":
        if not (learns or unread):
            return q, float(scale)
        number = 1.0 if unread else float(scale.detach()) or 1.0
        return (q.float() * (scale.reshape(()).to(q.device) / number)).to(q.dtype), number
    if learns and use == "otherwise":
        refuse(
            "scale has a gradient only in scores that read it as `qk * scale` alone: declare `param temperature: f32`, "
            "and write it in place of scale"
        )
    if unread:
        refuse(f"scale must be a number {UNREADABLE}")
    return q, float(scale)


def seed_tensor(refuse: Refuse, seed: Any, device: torch.device) -> Tensor:
    """The seed as an int64 tensor of no dimension."""
    if seed is None:
        return torch.randint(0, 2**62, (), dtype=torch.int64, device=device)
    if isinstance(seed, Tensor):
        if seed.numel() != 1 or seed.is_floating_point() or seed.is_complex() or seed.dtype is torch.bool:
            refuse(f"dropout_seed must be one int, not a tensor of shape {tuple(seed.shape)} and {seed.dtype}")
        return seed.to(torch.int64).reshape(())
    whole = is_int(seed) or (hasattr(seed, "__index__") and not isinstance(seed, bool))
    if not (whole and -(2**63) <= seed < 2**63):
        refuse(f"dropout_seed must be an int of 64 bits or a tensor, not {seed!r}")
    number: Any = seed if isinstance(seed, torch.SymInt) else int(seed)
    return torch.full((), number, dtype=torch.int64, device=device)


def first_broken(holds: Tensor, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The first place where a fact does not hold."""
    wrong = torch.nonzero(~torch.broadcast_to(holds, shape))
    return tuple(wrong[0].tolist()) if len(wrong) else None


def on_device(i: Any, x: Tensor) -> Tensor:
    """An index where `x` is. A number is filled in there: a CUDA graph allows no copy from the host."""
    return i if isinstance(i, Tensor) else torch.full((), i, device=x.device)


def element_at(x: Tensor, *index: Any) -> Tensor:
    """x[index], or 0 outside the tensor."""
    at = torch.broadcast_tensors(*(on_device(i, x) for i in index))
    if 0 in x.shape:
        return torch.zeros_like(at[0], dtype=x.dtype)
    inside = torch.ones_like(at[0], dtype=torch.bool)
    for i, size in zip(at, x.shape, strict=True):
        inside = inside & (i >= 0) & (i < size)
    cells = tuple(i.clamp(0, size - 1) for i, size in zip(at, x.shape, strict=True))
    return torch.where(inside, x[cells], x.new_zeros(()))


def list_holds(x: Tensor, *place: Any) -> Tensor:
    """Whether the list x[index] has the member; `place` is the index, then the member. None has one below 0, and
    outside the tensor there is no list.
    """
    *index, member = (on_device(i, x) for i in place)
    inside = member >= 0
    for i, size in zip(index, x.shape, strict=False):
        inside = inside & (i >= 0) & (i < size)
    if 0 in x.shape:
        return torch.zeros_like(inside)
    lists = x[tuple(i.clamp(0, size - 1) for i, size in zip(index, x.shape, strict=False))]
    return inside & (lists == member[..., None]).any(-1)


def gathered(values: Tensor, inside: Tensor, index: tuple[Any, ...], shape: torch.Size) -> Tensor:
    """The sums of the values with the same index into this shape, where a size of 1 takes any index. They are added as
    integers, so that the order changes no bit.
    """
    flat, size = torch.zeros((), dtype=torch.int64, device=values.device), shape.numel()
    for i, n in zip(index, shape, strict=True):
        flat = flat * n + (i if n > 1 else 0)
    inside, flat = inside.expand(values.shape), flat.expand(values.shape)
    values = torch.where(inside, values, 0.0).double()
    _, exponent = torch.frexp(values.abs().amax().clamp(min=1e-300))
    bits = exponent - (62 - values.numel().bit_length())
    unit = torch.ldexp(torch.ones((), dtype=torch.float64, device=values.device), bits)
    cells = torch.zeros(size + 1, dtype=torch.int64, device=values.device)
    cells.index_add_(0, torch.where(inside, flat, size).flatten(), torch.round(values / unit).long().flatten())
    return (cells[:size].double() * unit).float().view(shape)
