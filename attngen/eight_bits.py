"""A kernel's calls with 8-bit floats: their own kernel, made at the first such call, and gradients of what they stand
for.

Takes a `Kernel` and the operands of a call, `Quantized` or tensors; needs torch. The forward pass multiplies 8-bit
floats. The backward pass is the kernel's own, in bfloat16, at the numbers that were multiplied: with the rotation and
without the mean, so that the forward pass' lse is theirs. Its gradients go to the tensors that were quantized, as if
rounding were not there (straight through).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# PyTorch has few types.

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch import Tensor

from attngen import chain, targets
from attngen.errors import Source, SpecError, UsageError
from attngen.ir.narrow import DESCALES, narrowed
from attngen.plan.numerics import beyond_narrow
from attngen.quantized import Quantized, dequantized, turned
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
    def sees_mean(self) -> str | None: ...
    def with_results(self, out: Any, lse: Any) -> AbstractContextManager[None]: ...


_NAMES = ("q", "k", "v")


def kernel_of(kernel: Kernel) -> Any:
    """The `Kernel` of 8-bit floats of a spec, compiled and proved. Raises `UsageError` where there is none."""
    if kernel.made is None or not targets.named(kernel.target).for_chips:
        raise UsageError(f"{kernel.name}: 8-bit floats are for kernels that were compiled for target triton")
    text, options = kernel.made
    why = beyond_narrow(options.arch, options.head_dim, options.tile)
    if why is not None:
        raise UsageError(f"{kernel.name}: {why}, or give it tensors of 16 bits")
    try:
        spec = narrowed(kernel.spec)
        planned = chain.plan(spec, kernel.target)
    except SpecError as error:
        raise error.quoting(Source(text)) from None
    proof, emitted = chain.prove(spec, planned)
    if not proof.holds:
        doubtful = ", ".join(claim.subject for _, claim in (*proof.refuted, *proof.refused))
        raise UsageError(f"{kernel.name}: what the kernel of 8-bit floats computes is not proved: {doubtful}")
    own = replace(options, dtype=NARROW, forward=True, geometry=("dense",), tuned_gpu=())
    source = targets.emit(emitted, text, own, proof.summary())
    made: Any = type(kernel)
    return made(chain.callable_spec(spec, emitted), emitted, source, kernel.target, proof, (text, own))


def called(kernel: Kernel, operands: tuple[Any, ...], arguments: Mapping[str, Any]) -> Any:
    """The kernel's call with `Quantized` q, k and v."""
    twice = [name for name in _NAMES[: len(operands)] if name in arguments]
    if len(operands) > len(_NAMES) or twice:
        what = f"{twice[0]} twice" if twice else f"{len(operands)} tensors"
        raise UsageError(f"{kernel.name}: takes q, k and v and then named arguments, not {what}")
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
        _refuse_gradients(kernel)
        sources = (q.source, k.source, v.source, *learned.values())
        apply: Any = _StraightThrough.apply
        out, lse = apply(kernel, (q, k, v), given, tuple(learned), *sources)
    else:
        out, lse = _forward(kernel, q, k, v, given)
        lse = lse if k.mean is None else lse + _of_mean(_multiplied(q), k, given)
    return (out, lse) if lse_wanted else out


def _refuse_gradients(kernel: Kernel) -> None:
    """Raises `UsageError` where the kernel has no backward pass in bfloat16."""
    options = None if kernel.made is None else kernel.made[1]
    if options is not None and (options.forward or options.dtype not in (None, "bf16")):
        had = "forward=True" if options.forward else f'dtype="{options.dtype}"'
        raise UsageError(
            f"{kernel.name}: gradients of 8-bit floats need a kernel with a backward pass in bfloat16: "
            f"compile it without {had}, or call it under torch.no_grad()"
        )


def _refuse(kernel: Kernel, q: Quantized, k: Quantized, v: Quantized) -> None:
    """Raises `UsageError` where what they stand for is not what the kernel computes with."""
    if q.rotated != k.rotated or v.rotated:
        raise UsageError(f"{kernel.name}: rotate q and k, or neither, and not v")
    if q.mean is not None or v.mean is not None:
        raise UsageError(f"{kernel.name}: smooth is for k alone")
    if k.mean is None:
        return
    if kernel.spec.value_scale is not None:
        raise UsageError(f'{kernel.name}: keys are smooth for kernels that were compiled without dtype="fp8"')
    seen = kernel.sees_mean()
    if seen is not None:
        raise UsageError(f"{kernel.name}: k must not be smooth, since {seen}: leave out smooth=True")


def _forward(kernel: Kernel, q: Quantized, k: Quantized, v: Quantized, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """out and lse of the numbers that are multiplied."""
    factors = dict(zip(DESCALES, (x.descale for x in (q, k, v)), strict=True))
    return kernel.eight_bits()(q.values, k.values, v.values, **factors, **given, return_lse=True)


def _multiplied(x: Quantized) -> Tensor:
    """The numbers that the kernel multiplies, in float32: rotated ones, and without the mean."""
    return dequantized(x._replace(mean=None, rotated=False))


def _of_mean(q: Tensor, k: Quantized, given: Mapping[str, Any]) -> Tensor:
    """What the keys' mean adds to lse (B, Hq, Sq): scale q . mean, with the q that is multiplied."""
    mean: Any = k.mean
    scale = given.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return scale * (q.float() * mean.repeat_interleave(q.shape[1] // mean.shape[1], 1)).sum(-1)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Any, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        kernel, (q, k, v), arguments, names, *sources = given
        with torch.no_grad():
            out, lse = _forward(kernel, q, k, v, arguments)
        ctx.kernel, ctx.tensors, ctx.arguments, ctx.names = kernel, (q, k, v), arguments, names
        ctx.save_for_backward(out, lse, *sources)
        return out, lse if k.mean is None else lse + _of_mean(_multiplied(q), k, arguments)

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        out, lse, *sources = ctx.saved_tensors
        needed = ctx.needs_input_grad[4:]
        inner = (*(_multiplied(x).to(torch.bfloat16) for x in ctx.tensors), *(x.detach() for x in sources[3:]))
        wanted = [x.requires_grad_(n) for x, n in zip(inner, needed, strict=True)]
        q, k, v, *params = wanted
        given = {**ctx.arguments, **dict(zip(ctx.names, params, strict=True))}
        kept = {name: x for name, x in given.items() if name != "out_dtype"}
        with torch.enable_grad(), ctx.kernel.with_results(out.float(), lse):
            results = ctx.kernel(q, k, v, **kept, return_lse=True)
            keys = ctx.tensors[1]
            if keys.mean is not None:
                results = results[0], results[1] + _of_mean(q, keys, given)
        learned = [x for x in wanted if x.requires_grad]
        found = torch.autograd.grad(results, learned, (d_out.to(results[0].dtype), d_lse), allow_unused=True)
        gradients: Any = iter(found)
        each: list[Any] = [next(gradients) if n else None for n in needed]
        for i, x in enumerate(ctx.tensors):
            if x.rotated and each[i] is not None:
                each[i] = turned(each[i].float())
        cast: list[Any] = [None if g is None else g.to(x.dtype) for g, x in zip(each, sources, strict=True)]
        if torch.is_grad_enabled():  # else autograd would take them for constants
            first: Any = _First.apply
            cast = [None if g is None else first(g, ctx.kernel.name, d_out, d_lse, *sources) for g in cast]
        return None, None, None, None, *cast


class _First(torch.autograd.Function):
    """A gradient, as a function of what it was computed from that has no derivative itself."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, name: str, *given: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise UsageError(f"{ctx.name}: a second derivative is not computed")
