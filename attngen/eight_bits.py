"""A kernel's calls with 8-bit floats: their own kernel, made at the first such call, and gradients of what they stand
for.

Takes a `Kernel` and the operands of a call, `Quantized` or tensors; needs torch. The forward pass multiplies 8-bit
floats. The backward pass is the kernel's own, in bfloat16, at the numbers that they stand for, and its gradients go to
the tensors that were quantized, as if rounding were not there (straight through).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# PyTorch has few types.

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from attngen import chain, targets
from attngen.errors import UsageError
from attngen.ir.narrow import DESCALES, narrowed
from attngen.quantized import Quantized, dequantized
from attngen.vocabulary import NARROW

if TYPE_CHECKING:
    from attngen.emit import Options
    from attngen.ir.attention import Attention
    from attngen.plan import KernelPlan


class Kernel(Protocol):
    """As much of `attngen.Kernel` as is read here."""

    @property
    def spec(self) -> Attention: ...
    @property
    def plan(self) -> KernelPlan: ...
    @property
    def target(self) -> str: ...
    @property
    def made(self) -> tuple[str, Options] | None: ...
    @property
    def name(self) -> str: ...
    @property
    def function(self) -> Any: ...
    def __call__(self, *operands: Any, **arguments: Any) -> Any: ...
    def eight_bits(self) -> Any: ...
    def with_results(self, out: Any, lse: Any) -> AbstractContextManager[None]: ...


_NAMES = ("q", "k", "v")


def kernel_of(kernel: Kernel) -> Any:
    """The `Kernel` of 8-bit floats of a spec, compiled and proved. Raises `UsageError` where there is none."""
    if kernel.made is None or not targets.named(kernel.target).for_chips:
        raise UsageError(f"{kernel.name}: 8-bit floats are for kernels that were compiled for target triton")
    text, options = kernel.made
    spec = narrowed(kernel.spec)
    proof, emitted = chain.prove(spec, chain.plan(spec, kernel.target))
    if not proof.holds:
        doubtful = ", ".join(claim.subject for _, claim in (*proof.refuted, *proof.refused))
        raise UsageError(f"{kernel.name}: what the kernel of 8-bit floats computes is not proved: {doubtful}")
    own = replace(options, dtype=NARROW, forward=True, geometry=("dense",), tuned_gpu=())
    source = targets.emit(emitted, text, own, proof.summary())
    made: Any = type(kernel)
    return made(chain.callable_spec(spec, emitted), emitted, source, kernel.target, proof, (text, own))


def called(kernel: Kernel, operands: tuple[Any, ...], arguments: Mapping[str, Any]) -> Any:
    """The kernel's call with `Quantized` q, k and v."""
    given = {**dict(zip(_NAMES, operands, strict=False)), **arguments}
    for name in _NAMES:
        if not isinstance(given.get(name), Quantized):
            raise UsageError(f"{kernel.name}: {name} must be what attngen.quantize returns, as the others are")
    q, k, v = (given.pop(name) for name in _NAMES)
    clash = next((name for name in DESCALES if name in given), None)
    if clash is not None:
        raise UsageError(f"{kernel.name}: {clash} is part of what attngen.quantize returns")
    _refuse(kernel, q, k, v)
    lse_wanted = given.pop("return_lse", False)
    learned = {name: x for name, x in given.items() if isinstance(x, Tensor) and x.requires_grad}
    if torch.is_grad_enabled() and (learned or any(x.source.requires_grad for x in (q, k, v))):
        sources = (q.source, k.source, v.source, *learned.values())
        apply: Any = _StraightThrough.apply
        out, lse = apply(kernel, (q, k, v), given, tuple(learned), *sources)
    else:
        out, lse = _forward(kernel, q, k, v, given)
    return (out, lse) if lse_wanted else out


def _refuse(kernel: Kernel, q: Quantized, k: Quantized, v: Quantized) -> None:
    """Raises `UsageError` where what they stand for is not what the kernel computes with."""
    if q.rotated != k.rotated or v.rotated:
        raise UsageError(f"{kernel.name}: rotate q and k, or neither, and not v")
    if q.mean is not None or v.mean is not None:
        raise UsageError(f"{kernel.name}: smooth is for k alone")
    seen = None if k.mean is None else kernel.plan.sees_mean
    if seen is not None:
        raise UsageError(f"{kernel.name}: k must not be smooth, since {seen}: leave out smooth=True")


def _forward(kernel: Kernel, q: Quantized, k: Quantized, v: Quantized, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """out and lse of the 8-bit floats, the mean of keys put back."""
    own = kernel.eight_bits()
    factors = dict(zip(DESCALES, (x.descale for x in (q, k, v)), strict=True))
    values = [x.values for x in (q, k, v)]
    out, lse = own(*values, **factors, **given, return_lse=True)
    if k.mean is not None:
        group = q.values.shape[1] // k.mean.shape[1]
        exact = dequantized(q._replace(rotated=False))
        scale = given.get("scale")
        scale = exact.shape[-1] ** -0.5 if scale is None else scale
        lse = lse + scale * (exact * k.mean.repeat_interleave(group, 1)).sum(-1)
    return out, lse


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Any, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        kernel, (q, k, v), arguments, names, *sources = given
        with torch.no_grad():
            out, lse = _forward(kernel, q, k, v, arguments)
        ctx.kernel, ctx.tensors, ctx.arguments, ctx.names = kernel, (q, k, v), arguments, names
        ctx.save_for_backward(out, lse, *sources)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        out, lse, *sources = ctx.saved_tensors
        exact = [dequantized(x).to(torch.bfloat16).requires_grad_() for x in ctx.tensors]
        params = [x.detach().requires_grad_() for x in sources[3:]]
        given = {**ctx.arguments, **dict(zip(ctx.names, params, strict=True)), "return_lse": True}
        given.pop("out_dtype", None)
        with torch.enable_grad(), ctx.kernel.with_results(out.float(), lse):
            results = ctx.kernel(*exact, **given)
        wanted = [*exact, *params]
        found = torch.autograd.grad(results, wanted, (d_out.to(results[0].dtype), d_lse), allow_unused=True)
        gradients: list[Any] = [*found]
        cast = [None if g is None else g.to(x.dtype) for g, x in zip(gradients, sources, strict=True)]
        return None, None, None, None, *cast
