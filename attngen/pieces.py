"""Attention by pieces: partial results of stretches of a sequence, how they are merged, and their gradients.

Takes a `Kernel` and what its methods `partial`, `merge`, `finish`, `partial_backward` and `finish_backward` were
called with. A piece is a kernel of its own, of the spec that `ir.pieces` makes. Merging is the monoid that
the obligation `streaming` shows of the running sums. Tensors are PyTorch's, and `jax_pieces` has the same for JAX's
arrays; nothing waits for a device.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from attngen import chain, targets
from attngen.errors import UsageError
from attngen.ir.nodes import Symbol
from attngen.ir.pieces import Piece, piece_of
from attngen.part_sums import Arrays, Part, readable_term, uncounted
from attngen.piece_arguments import Checks, check_known, check_params

if TYPE_CHECKING:
    from attngen.emit import Options
    from attngen.ir.attention import Attention
    from attngen.plan import KernelPlan
    from attngen.prove.proof import Proof


class Kernel(Protocol):
    """What is asked of a kernel here."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> Attention: ...
    @property
    def plan(self) -> KernelPlan: ...
    @property
    def function(self) -> Any: ...
    def __call__(self, *operands: Any, **arguments: Any) -> Any: ...
    def varlen(self, *operands: Any, **arguments: Any) -> Any: ...
    def with_results(self, out: Any, lse: Any) -> AbstractContextManager[None]: ...
    def piece(self, *, each: bool = False, clipped: bool = False) -> tuple[Piece, Kernel]: ...
    def own_term(self) -> Callable[[Any, Mapping[str, Any], Any], Any]: ...


@dataclass(frozen=True, kw_only=True)
class Made:
    """A piece's attention, what is emitted of it, and the file."""

    piece: Piece
    plan: KernelPlan
    proof: Proof
    text: str
    source: str


def make(name: str, spec: Attention, text: str, options: Options, *, each: bool, clipped: bool = False) -> Made:
    """The piece of a spec, planned, proved and emitted like any other; `text` is the spec as written."""
    if not targets.named(options.target).pieces:
        able = targets.listed([target for target in targets.TARGETS.values() if target.pieces])
        raise UsageError(f"{name}: pieces are for kernels that were compiled for target {able}")
    piece = piece_of(spec, each=each, clipped=clipped)
    proof, emitted = chain.prove(piece.own, chain.plan(piece.own, options.target))
    if not proof.holds:
        doubtful = ", ".join(claim.subject for _, claim in (*proof.refuted, *proof.refused))
        raise UsageError(f"{name}: what a piece computes is not proved: {doubtful}")
    text = f"{text}\n# A piece of a longer sequence{', of each sequence another' if each else ''}.\n"
    return Made(
        piece=piece, plan=emitted, proof=proof, text=text, source=targets.emit(emitted, text, options, proof.summary())
    )


def checks(kernel: Kernel) -> Checks:
    import torch

    return Checks(
        name=kernel.name,
        kinds=(torch.Tensor,),
        noun="a torch.Tensor",
        is_float=lambda dtype: dtype.is_floating_point,
        is_float32=lambda dtype: dtype is torch.float32,
        packed=True,
        heads_inside=False,
        traced=torch.compiler.is_compiling(),
    )


# ---------------------------------------------------------------- forward


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a piece is: each number an int, or an int32 tensor with one for each sequence. `h_offset` and `b_offset`:
    heads and sequences of the whole before the piece's; dropout counts them, and draws from `dropout_seed`."""

    q_offset: Any
    k_offset: Any
    Sq: Any
    Sk: Any
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    h_offset: Any = 0
    b_offset: Any = 0
    dropout_seed: Any = None
    clipped: bool = False
    """Whether there are rows before the sequence, or behind it, which are left out (in JAX)."""

    @property
    def numbers(self) -> tuple[Any, ...]:
        """In the order of `Piece.numbers`; without dropout that has the first four."""
        return self.q_offset, self.k_offset, self.Sq, self.Sk, self.h_offset, self.b_offset

    def check(self, checks: Checks, operands: Sequence[Any], spec: Attention, params: Mapping[str, Any]) -> None:
        """Raises `UsageError` for an argument that does not fit."""
        ends = ("cu_seqlens_q", "cu_seqlens_k")
        numbers = ("q_offset", "k_offset", "Sq", "Sk", "h_offset", "b_offset")
        found = ({name: getattr(self, name) for name in names} for names in (numbers, ends))
        checks.check_piece(operands, *found)
        for name, why in uncounted(spec).items():
            if getattr(getattr(self, name), "ndim", 0) or getattr(self, name) != 0:
                raise checks.refuse(why)
        if self.cu_seqlens_q is None and not checks.traced and all(isinstance(n, int) for n in (self.Sq, self.Sk)):
            checks.check_facts(spec, {**checks.sizes(operands), "Sq": self.Sq, "Sk": self.Sk}, params)

    def with_rows(self, spec: Attention) -> Place:
        """For params with an element for each row, a sequence without rows counts as one with a row, of which its
        pieces have none: zeros stand in for the params."""
        sizes = {d.id for p in spec.params for d in p.shape if isinstance(d, Symbol)}
        return replace(self, **{n: 1 for n in ("Sq", "Sk") if n in sizes and _is_zero(getattr(self, n))})

    @property
    def each(self) -> bool:
        return any(getattr(x, "ndim", 0) for x in self.numbers)


def partial(kernel: Kernel, operands: Sequence[Any], place: Place, scale: Any, params: Mapping[str, Any]) -> Part:
    import torch

    if torch.is_grad_enabled() and any(_learns(x) for x in (*operands, *params.values())):
        raise UsageError(
            f"{kernel.name}: partial is not differentiable by autograd: call it under torch.no_grad(), and "
            "partial_backward for the gradients"
        )
    out, lse = part(kernel, operands, place, scale, params)
    return out.float(), lse


def part(kernel: Kernel, operands: Sequence[Any], place: Place, scale: Any, params: Mapping[str, Any]) -> Part:
    """`partial`, out as the kernel stores it, in the dtype of q."""
    import torch

    with torch.no_grad():
        return _run(kernel, operands, place, scale, params)


def _leaves(params: Mapping[str, Any]) -> dict[str, Any]:
    """Those that learn, in float32, so that their gradients are."""
    return {n: x.detach().float().requires_grad_() for n, x in params.items() if _learns(x)}


def _learns(x: Any) -> bool:
    return bool(getattr(x, "requires_grad", False))


def _run(
    kernel: Kernel,
    operands: Sequence[Any],
    place: Place,
    scale: Any,
    params: Mapping[str, Any],
    results: Part | None = None,
) -> Part:
    """`results`: out and lse where they are known, and only gradients are wanted."""
    checked_params(kernel, params)
    piece, own_kernel = kernel.piece(each=place.each)
    own = {p.name for p in piece.own.params}
    given = {name: value for name, value in over_rows(kernel, params, place, _expanded).items() if name in own}
    place = place.with_rows(kernel.spec)
    check_seed(kernel, place.dropout_seed)
    count = operands[0].shape[0] if place.cu_seqlens_q is None else place.cu_seqlens_q.numel() - 1
    given |= {
        n: _number(x, count, operands[0].device, each=place.each)
        for n, x in zip(piece.numbers, place.numbers, strict=False)
    }
    function = own_kernel
    if place.cu_seqlens_q is not None:
        function = own_kernel.varlen
        given |= {"cu_seqlens_q": place.cu_seqlens_q, "cu_seqlens_k": place.cu_seqlens_k}
    with nullcontext() if results is None else own_kernel.with_results(*results):
        return function(*operands, **given, scale=scale, return_lse=True, dropout_seed=place.dropout_seed)


def check_seed(kernel: Kernel, seed: Any) -> None:
    """Raises `UsageError` where dropout has nothing to draw from: pieces that draw their own would not be one whole."""
    if kernel.spec.dropout is not None and seed is None:
        raise UsageError(f"{kernel.name}: dropout_seed is missing: all pieces of a call draw from the same one")


def checked_params(kernel: Kernel, params: Mapping[str, Any]) -> None:
    """Raises `UsageError` for a param that the kernel does not have."""
    check_known(kernel.name, kernel.spec.params, params)


def over_rows(
    kernel: Kernel, params: Mapping[str, Any], place: Place, broadcast_to: Callable[[Any, Sequence[int]], Any]
) -> dict[str, Any]:
    """The params, of which one element for all rows of a sequence is repeated. Raises `UsageError` where nobody knows
    here how often. Zeros stand in for a param of a sequence without rows, whose pieces read none. `broadcast_to` is
    that of the arrays' library."""
    lengths = {"Sq": place.Sq, "Sk": place.Sk}
    found = dict(params)
    for p in kernel.spec.params:
        own: tuple[int, ...] = tuple(getattr(params.get(p.name), "shape", ()))
        wanted: list[Any] = list(own)
        for i, d in enumerate(p.shape if len(wanted) == len(p.shape) else ()):  # else the piece refuses it
            if not (isinstance(d, Symbol) and d.id in lengths):
                continue
            length = lengths[d.id]
            if wanted[i] == 0 and _is_zero(length):
                wanted[i] = 1
            elif wanted[i] == 1:
                if not isinstance(length, numbers.Integral):
                    mend = f"give {d.id} as an int, or {p.name} whole"
                    raise UsageError(f"{kernel.name}: {p.name} has one element for all of {d.id}: {mend}")
                wanted[i] = max(1, int(length))
        if tuple(wanted) != own:
            found[p.name] = broadcast_to(params[p.name], wanted)
    return found


def _is_zero(n: Any) -> bool:
    return isinstance(n, numbers.Integral) and n == 0


def _expanded(x: Any, shape: Sequence[int]) -> Any:
    if not hasattr(x, "expand"):
        return x  # the piece refuses it
    return x.expand(*shape) if x.numel() else x.new_zeros(shape)


def required(kernel: Kernel, name: str, params: Mapping[str, Any], why: str) -> Any:
    """A param's value. Raises `UsageError` where it is missing."""
    if name not in params:
        raise UsageError(f"{kernel.name}: {name} is missing: {why}")
    return params[name]


def _number(x: Any, count: int, device: Any, *, each: bool) -> Any:
    import torch

    if not each:
        return x
    return x if getattr(x, "ndim", 0) else torch.full((count,), x, dtype=torch.int32, device=device)


def merge(kernel: Kernel, parts: Sequence[Part]) -> Part:
    return _arrays(parts[0][1]).merged(parts, sums=kernel.spec.normalizer.sums)


def _arrays(lse: Any) -> Arrays:
    """Packed rows have their heads inside: out is (Tq, Hq, Dv), lse (Hq, Tq)."""
    import torch

    return Arrays(torch.exp, torch.where, torch.logaddexp, lse.ndim == 2)


def finish(kernel: Kernel, part: Part, params: Mapping[str, Any], cu_seqlens_q: Any = None) -> Part:
    own = own_part(kernel, part[1], params, cu_seqlens_q)
    return part if own is None else _arrays(part[1]).finished(part, own.detach())


def own_part(kernel: Kernel, lse: Any, params: Mapping[str, Any], cu_seqlens_q: Any = None) -> Any:
    """The logarithm of the denominator's own term, like `lse`; None where there is none. Packed rows before
    `cu_seqlens_q[0]`, and from `cu_seqlens_q[-1]` on, have none: they belong to no sequence."""
    return kernel.own_term()(lse, params, cu_seqlens_q)


def own_term_of(name: str, spec: Attention, plan: KernelPlan) -> Callable[[Any, Mapping[str, Any], Any], Any]:
    """The function that evaluates the denominator's own term, of the lines that a generated file has for it."""
    import torch

    from attngen.emit.torch_shared.calls import PLAIN
    from attngen.emit.torch_shared.own_term import own_lines
    from attngen.runtime.exported.arguments import list_holds

    def refuse(message: str) -> None:
        raise UsageError(f"{name}: {message}")

    term = readable_term(name, plan.weights)
    lines = ("return None",) if term is None else own_lines(spec, term, refuse="_refuse", calls=PLAIN)
    found: dict[str, Any] = {"torch": torch, "_refuse": refuse, "_element": _element, "_listed": list_holds}
    exec("\n    ".join(("def own_term(lse, params, cu_seqlens_q):", *lines)), found)
    return found["own_term"]


def term_shapes(kernel: Kernel, given: Mapping[str, Any], lse: Any) -> dict[str, tuple[int, ...]]:
    """Of the tensors that the denominator's own term reads. Raises `UsageError` where one does not fit."""
    sizes = {"Hq": lse.shape[-2], **({"B": lse.shape[0]} if lse.ndim == 3 else {})}
    return check_params(kernel.spec, given, sizes)


def _element(x: Any, *index: Any) -> Any:
    """x[index], which is 0 outside the tensor."""
    import torch

    at: Any = cast(Any, torch).broadcast_tensors(*(torch.as_tensor(i, device=x.device) for i in index))
    ends: list[tuple[Any, int]] = list(zip(at, x.shape, strict=True))
    inside: Any = functools.reduce(torch.logical_and, ((i >= 0) & (i < size) for i, size in ends))
    return torch.where(inside, x[tuple(i.clamp(0, max(size - 1, 0)) for i, size in ends)], x.new_zeros(()))


# ---------------------------------------------------------------- backward


def partial_backward(
    kernel: Kernel,
    operands: Sequence[Any],
    cotangents: tuple[Any, Any],
    results: Part,
    place: Place,
    scale: Any,
    params: Mapping[str, Any],
    accumulate: tuple[Any, Any, Any] | None,
) -> tuple[Any, Any, Any, dict[str, Any]]:
    found, gradients = slopes(kernel, operands, cotangents, results, place, scale, params)
    if accumulate is None:
        dq, dk, dv = (_of(g, x) for g, x in zip(found, operands, strict=True))
        return dq, dk, dv, gradients
    for total, g in zip(accumulate, found, strict=True):
        if g is not None:
            total.add_(g)
    return *accumulate, gradients


def slopes(
    kernel: Kernel,
    operands: Sequence[Any],
    cotangents: tuple[Any, Any],
    results: Part,
    place: Place,
    scale: Any,
    params: Mapping[str, Any],
) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
    """Gradients of q, k and v as the kernel stores them (None: zeros), and those of params.

    The backward pass of the piece, with out and lse of the whole in place of its own: then weights exp(score - lse)
    and rowsum(d_out out) are those of the whole, and so is each dS. No forward kernel runs.
    """
    import torch

    d_out, d_lse = cotangents
    leaves: list[Any] = [x.detach().requires_grad_() for x in operands]
    learned: dict[str, Any] = _leaves(params)
    with torch.enable_grad():
        own = _run(kernel, leaves, place, scale, {**params, **learned}, results)
    given = (d_out.to(own[0].dtype), d_lse)
    outputs = own if kernel.spec.normalizer.sums and d_lse is not None else own[:1]
    wanted = [*leaves, *learned.values()]
    found: Any = torch.autograd.grad(outputs, wanted, given[: len(outputs)], allow_unused=True)
    gradients = {n: _of(g, x) for g, (n, x) in zip(found[3:], learned.items(), strict=True)}
    return (found[0], found[1], found[2]), gradients


def finish_backward(
    kernel: Kernel,
    cotangents: tuple[Any, Any],
    results: Part,
    params: Mapping[str, Any],
    cu_seqlens_q: Any = None,
) -> dict[str, Any]:
    import torch

    d_out, d_lse = cotangents
    out, lse = results
    learned: dict[str, Any] = _leaves(params)
    with torch.enable_grad():
        own = own_part(kernel, lse, {**params, **learned}, cu_seqlens_q)
    if own is None or not own.requires_grad:
        return {n: torch.zeros_like(x, dtype=torch.float32) for n, x in learned.items()}
    slope = _arrays(lse).own_slope((d_out.float(), d_lse), (out.float(), lse), own.detach())
    found: Any = torch.autograd.grad(own, [*learned.values()], slope, allow_unused=True)
    return {n: _of(g, x) for g, (n, x) in zip(found, learned.items(), strict=True)}


def _of(gradient: Any, x: Any) -> Any:
    """A gradient in float32; zeros where the result does not depend on `x`."""
    return x.new_zeros(x.shape).float() if gradient is None else gradient.float()
