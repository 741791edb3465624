# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""What PyTorch's compilers, tracers and transforms do to tensors: its private names stand here and nowhere else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

FUNCTORCH: Any = getattr(torch._C, "_functorch", None)
FAKE: Any = getattr(getattr(torch, "_subclasses", None), "FakeTensor", ())
PLAIN = (Tensor, torch.nn.Parameter)
# Asked first, since a device's type is a string that PyTorch makes anew each time.
any_autocast: Any = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
HAS_PRIVATE_NAMES = all(  # else every call goes through the operator
    hasattr(owner, name)
    for owner, names in (
        (torch._C, "_is_tracing _len_torch_dispatch_stack"),
        (FUNCTORCH, "peek_interpreter_stack is_functorch_wrapped_tensor is_batchedtensor get_unwrapped"),
        (getattr(torch, "_VF", None), "_unpack_dual"),
        (forward_ad, "_current_level"),
        (Tensor, "_is_zerotensor"),
    )
    for name in names.split()
)


def hidden(x: Tensor) -> bool:
    """Whether the host cannot read a tensor's value: it is traced, captured, fake, on `meta`, or many under vmap."""
    if torch.compiler.is_compiling() or x.is_meta or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True
    while HAS_PRIVATE_NAMES and FUNCTORCH.is_functorch_wrapped_tensor(x):
        if FUNCTORCH.is_batchedtensor(x):
            return True
        x = FUNCTORCH.get_unwrapped(x)
    return isinstance(x, FAKE)


def readable(x: object) -> bool:
    """Whether the host can read a scalar."""
    return not (isinstance(x, Tensor) and hidden(x))


def unwatched(*tensors: Tensor) -> bool:
    """Whether a call may skip the operator: no compiler, tracer, transform or tensor subclass is active."""
    if torch.compiler.is_compiling() or not HAS_PRIVATE_NAMES:
        return False
    if torch._C._is_tracing() or torch._C._len_torch_dispatch_stack():
        return False
    if forward_ad._current_level >= 0 or FUNCTORCH.peek_interpreter_stack() is not None:
        return False
    for x in tensors:
        if type(x) not in PLAIN or x.layout is not torch.strided or x.is_neg() or x._is_zerotensor():
            return False
    return True


def is_transformed() -> bool:
    """Whether a transform of `torch.func` is active."""
    compiling = torch.compiler.is_compiling()
    return HAS_PRIVATE_NAMES and not compiling and FUNCTORCH.peek_interpreter_stack() is not None


def may_have_tangent(x: Tensor) -> bool:
    """Whether `x` has a tangent, or may: none is seen beneath a second transform, nor while torch.compile traces."""
    if torch.compiler.is_compiling():
        return HAS_PRIVATE_NAMES
    if not HAS_PRIVATE_NAMES:
        return forward_ad.unpack_dual(x).tangent is not None
    wrapped = FUNCTORCH.is_functorch_wrapped_tensor
    beneath = wrapped(x) and (FUNCTORCH.is_batchedtensor(x) or wrapped(FUNCTORCH.get_unwrapped(x)))
    private: Any = getattr(torch, "_VF")  # noqa: B009
    return beneath or private._unpack_dual(x, level=forward_ad._current_level)[1] is not None


def has_tangents(*arguments: object) -> bool:
    """Whether forward-mode derivatives of some argument are wanted, which a call would drop silently."""
    if HAS_PRIVATE_NAMES and forward_ad._current_level < 0:
        return False
    return any(isinstance(x, Tensor) and may_have_tangent(x) for x in arguments)
