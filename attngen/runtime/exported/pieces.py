# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch has few types, and private names.

"""A generated attention over pieces of longer sequences: partial results, how they are merged, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor

from .merging import PART, Arrays
from .places import PiecePlace, over_rows

MOST_PAIRS = 2**26  # so many are looked at one by one


def tensor_arrays(lse: Tensor) -> Arrays:
    """Packed rows have their heads inside: out is (T, H, D), lse (H, T)."""
    return Arrays(torch.exp, torch.where, torch.logaddexp, lse.dim() == 2)


def in_shape(x: Any, shape: Sequence[int]) -> Any:
    """`x` with dims of size 1 repeated; zeros if it has no elements."""
    if not isinstance(x, Tensor):
        return x  # the piece refuses it
    return x.expand(*shape) if x.numel() else x.new_zeros(shape)


def gradient_of(g: Tensor | None, x: Tensor) -> Tensor:
    """In float32; zeros where the result does not depend on `x`."""
    return x.new_zeros(x.shape).float() if g is None else g.float()


def learned_of(params: Mapping[str, Any]) -> dict[str, Tensor]:
    found = {n: x for n, x in params.items() if isinstance(x, Tensor) and x.requires_grad}
    return {n: x.detach().float().requires_grad_() for n, x in found.items()}


class Pieces:
    """The functions over pieces of an attention. `params` are all of the whole's, by name.

    `piece` computes a piece with the same numbers for all sequences; `each` and `packed` one with others for each.
    `finished(out, lse)`: a context in which they return these results in place of computing them. `numbers`: the params
    of a piece that say where it is; `read`: those of the whole that it reads. `rows`: of params with an element for
    each row, "Sq" or "Sk" by axis. `whole`: why a number of its place must be 0, by its index. `sums`: whether the
    normalizer divides. `draws`: whether weights are dropped. `own_term(lse, params, cu_seqlens_q)`: the logarithm of
    the denominator's own term, like `lse`; -inf for rows that no sequence has.
    """

    def __init__(
        self,
        refuse: Callable[[str], NoReturn],
        *,
        numbers: tuple[str, ...],
        piece: Callable[..., Any] | None = None,
        each: Callable[..., Any] | None = None,
        packed: Callable[..., Any] | None = None,
        finished: Callable[..., AbstractContextManager[None]] | None = None,
        read: tuple[str, ...] = (),
        rows: dict[str, tuple[str, ...]] | None = None,
        whole: dict[int, str] | None = None,
        sums: bool = True,
        draws: bool = False,
        own_term: Callable[..., Tensor | None] | None = None,
    ) -> None:
        self.refuse, self.piece, self.each, self.packed, self.given = refuse, piece, each, packed, finished
        self.numbers, self.read, self.rows, self.whole = numbers, read, rows or {}, whole or {}
        self.sums, self.draws, self.own_term = sums, draws, own_term

    # ---------------------------------------------------------------- checks

    def check_like(self, name: str, x: Any, shape: Sequence[int], why: str) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point() or tuple(x.shape) != tuple(shape):
            have = f"{tuple(x.shape)}, {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            self.refuse(f"{name} must be a tensor of floats {tuple(shape)}, {why}, not {have}")

    def check_part(self, out: Any, lse: Any, place: str = "") -> None:
        """A partial or a finished result."""
        if not isinstance(out, Tensor) or out.dim() not in (3, 4):
            self.refuse(
                f"out{place} must be a tensor (batch, heads, length, head dim), or packed (rows, heads, head dim)"
            )
        shape = out.shape[:-1] if out.dim() == 4 else out.shape[1::-1]
        self.check_like(f"lse{place}", lse, shape, f"out{place} without its head dim")
        if lse.dtype is not torch.float32:
            self.refuse(f"lse{place} must be float32, not {lse.dtype}")

    def check_ends(self, lse: Tensor, cu_seqlens_q: Any) -> None:
        """Where the sequences of finished packed rows are; None if each row belongs to one."""
        fits = isinstance(cu_seqlens_q, Tensor) and cu_seqlens_q.dim() == 1 and cu_seqlens_q.numel() and lse.dim() == 2
        if cu_seqlens_q is not None and (not fits or cu_seqlens_q.is_floating_point()):
            self.refuse(
                "cu_seqlens_q must be a tensor of ints (B + 1,), and goes with packed rows: out (Tq, Hq, Dv) and lse "
                "(Hq, Tq)"
            )

    def check_gradients(self, out: Any, lse: Any, d_out: Any, d_lse: Any) -> None:
        """A finished result, and gradients of it."""
        self.check_part(out, lse)
        self.check_like("d_out", d_out, out.shape, "like out")
        if d_lse is not None:
            self.check_like("d_lse", d_lse, lse.shape, "like lse")

    # ---------------------------------------------------------------- forward

    def function(self, place: PiecePlace) -> Callable[..., Any]:
        """The one that computes this piece."""
        found = self.packed if place.packed else self.each if place.each else self.piece
        if found is None:
            self.refuse(
                "packed pieces, and numbers for each sequence, need a file with the geometries packed and pieces, of a "
                "spec without params that have an element for each row"
            )
        return found

    def finished(self, place: PiecePlace, out: Tensor, lse: Tensor) -> AbstractContextManager[None]:
        """In this block, the function of this piece returns these results in place of computing them."""
        return nullcontext() if self.given is None else self.given(out, lse)

    def run(self, operands: Sequence[Any], place: PiecePlace, params: Mapping[str, Any], scale: Any) -> Any:
        """out and lse of a piece, from its own kernels."""
        for i, why in self.whole.items():
            if isinstance(place.numbers[i], Tensor) or place.numbers[i] != 0:
                self.refuse(why)
        if self.draws and place.dropout_seed is None:
            self.refuse("dropout_seed is missing: all pieces of a call draw from the same one")
        function, ends = self.function(place), place.cu_seqlens_q
        q_offset, k_offset, Sq, Sk, *counted = place.numbers
        given = {name: params[name] for name in self.read if name in params}
        given, lengths = over_rows(given, self.rows, {"Sq": Sq, "Sk": Sk}, self.refuse, in_shape)
        for name, x in zip(self.numbers, (q_offset, k_offset, *lengths.values(), *counted), strict=False):
            if place.each and not (isinstance(x, Tensor) and x.dim()):
                number: Any = x
                count = operands[0].shape[0] if ends is None else ends.numel() - 1
                x = torch.full((count,), number, dtype=torch.int32, device=operands[0].device)
            given[name] = x
        if ends is not None:
            given |= {"cu_seqlens_q": ends, "cu_seqlens_k": place.cu_seqlens_k}
        return function(*operands, **given, scale=scale, return_lse=True, dropout_seed=place.dropout_seed)

    def partial(self, operands: Sequence[Any], place: PiecePlace, params: Mapping[str, Any], scale: Any) -> PART:
        learns = any([isinstance(x, Tensor) and x.requires_grad for x in (*operands, *params.values())])
        if torch.is_grad_enabled() and learns:
            self.refuse(
                "partial is not differentiable by autograd: call it under torch.no_grad(), and partial_backward for "
                "the gradients"
            )
        out, lse = self.part(operands, place, params, scale)
        return out.float(), lse

    def part(self, operands: Sequence[Any], place: PiecePlace, params: Mapping[str, Any], scale: Any) -> PART:
        """`partial`, out as the kernel stores it, in the dtype of q."""
        with torch.no_grad():
            return self.run(operands, place, params, scale)

    def merge(self, parts: Any) -> PART:
        if not isinstance(parts, (list, tuple)) or any(
            [not isinstance(x, (list, tuple)) or len(x) != 2 for x in parts]
        ):
            self.refuse("parts must be a list of pairs (out, lse)")
        if not parts:
            self.refuse("merge needs at least one part (out, lse)")
        for i, (out, lse) in enumerate(parts):
            self.check_part(out, lse, f" of parts[{i}]")
            self.check_like(f"out of parts[{i}]", out, parts[0][0].shape, "as in parts[0]")
        return tensor_arrays(parts[0][1]).merged(parts, sums=self.sums)

    def finish(self, out: Tensor, lse: Tensor, params: Mapping[str, Any], cu_seqlens_q: Tensor | None) -> PART:
        self.check_part(out, lse)
        self.check_ends(lse, cu_seqlens_q)
        own = self.own_part(lse, params, cu_seqlens_q)
        return (out, lse) if own is None else tensor_arrays(lse).finished((out, lse), own.detach())

    def own_part(self, lse: Tensor, params: Mapping[str, Any], cu_seqlens_q: Tensor | None = None) -> Tensor | None:
        """The logarithm of the denominator's own term, like `lse`; None where there is none."""
        return None if self.own_term is None else self.own_term(lse, params, cu_seqlens_q)

    # ---------------------------------------------------------------- backward

    def partial_backward(
        self,
        operands: tuple[Any, Any, Any],
        results: tuple[Any, Any],
        cotangents: tuple[Any, Any],
        place: PiecePlace,
        params: Mapping[str, Any],
        scale: Any,
        accumulate: Any,
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """The backward pass of a piece, with out and lse of the whole in place of its own."""
        (q, _, v), (out, lse), (d_out, d_lse) = operands, results, cotangents
        for name, x in zip("qkv", operands, strict=True):
            if not isinstance(x, Tensor) or x.dim() != (4 if place.cu_seqlens_q is None else 3):
                self.refuse(
                    f"{name} must be a tensor (batch, heads, length, head dim), or with cu_seqlens_q (rows, heads, "
                    "head dim)"
                )
        self.check_like("out", out, (*q.shape[:-1], v.shape[-1]), "like q, with the head dim of v")
        self.check_gradients(out, lse, d_out, d_lse)
        if accumulate is not None:
            if not isinstance(accumulate, (list, tuple)) or len(accumulate) != 3:
                self.refuse("accumulate must be three tensors, for dq, dk and dv")
            for i, (total, x) in enumerate(zip(accumulate, operands, strict=True)):
                self.check_like(f"accumulate[{i}]", total, x.shape, f"like {'qkv'[i]}")
                if total.dtype is not torch.float32:
                    self.refuse(f"accumulate[{i}] must be float32, not {total.dtype}")
        found, gradients = self.slopes(operands, results, cotangents, place, params, scale)
        if accumulate is None:
            dq, dk, dv = [gradient_of(g, x) for g, x in zip(found, operands, strict=True)]
            return dq, dk, dv, gradients
        for total, g in zip(accumulate, found, strict=True):
            if g is not None:
                total.add_(g)
        return accumulate[0], accumulate[1], accumulate[2], gradients

    def slopes(
        self,
        operands: Sequence[Any],
        results: tuple[Any, Any],
        cotangents: tuple[Any, Any],
        place: PiecePlace,
        params: Mapping[str, Any],
        scale: Any,
    ) -> tuple[tuple[Tensor | None, ...], dict[str, Tensor]]:
        """Gradients of q, k and v as the kernel stores them (None: zeros), and those of params.

        With out and lse of the whole in place of the piece's own, weights exp(score - lse) and rowsum(d_out out) are
        those of the whole, and so is each dS. No forward kernel runs.
        """
        (out, lse), (d_out, d_lse) = results, cotangents
        leaves, learned = [x.detach().requires_grad_() for x in operands], learned_of(params)
        with torch.enable_grad(), self.finished(place, out, lse):
            own = self.run(leaves, place, {**params, **learned}, scale)
        given = (d_out.to(own[0].dtype), d_lse)
        outputs = own if self.sums and d_lse is not None else own[:1]
        found = torch.autograd.grad(outputs, [*leaves, *learned.values()], given[: len(outputs)], allow_unused=True)
        gradients = {n: gradient_of(g, x) for g, (n, x) in zip(found[3:], learned.items(), strict=True)}
        return found[:3], gradients

    def finish_backward(
        self, results: tuple[Any, Any], cotangents: tuple[Any, Any], params: Mapping[str, Any], cu_seqlens_q: Any
    ) -> dict[str, Tensor]:
        (out, lse), (d_out, d_lse) = results, cotangents
        self.check_gradients(out, lse, d_out, d_lse)
        self.check_ends(lse, cu_seqlens_q)
        learned = learned_of(params)
        with torch.enable_grad():
            own = self.own_part(lse, {**params, **learned}, cu_seqlens_q)
        if own is None or not own.requires_grad:
            return {n: gradient_of(None, x) for n, x in learned.items()}
        slope = tensor_arrays(lse).own_slope((d_out.float(), d_lse), (out.float(), lse), own.detach())
        slopes = torch.autograd.grad(own, [*learned.values()], slope, allow_unused=True)
        return {n: gradient_of(g, x) for g, (n, x) in zip(slopes, learned.items(), strict=True)}


class Visits:
    """Which pairs of stretches matter, on the host: nothing is known without the first two.

    `setting(Sq, Sk, params)`: sizes and params by name, as int tensors; None where they are not known.
    `allowed(queries, keys, size, params)`: the mask. `stretches(queries, size, params)`: by row, keys in which some
    pair may be allowed, and in which every pair is, from … to …, each; None where nothing is known of them.
    """

    def __init__(
        self,
        setting: Callable[..., Any] | None = None,
        allowed: Callable[..., Tensor] | None = None,
        stretches: Callable[..., tuple[Any, Any]] | None = None,
    ) -> None:
        self.setting, self.allowed, self.stretches = setting, allowed, stretches

    def counts(self, q_range: Any, k_range: Any, Sq: Any, Sk: Any, params: dict[str, Any]) -> tuple[Any, Any] | None:
        """By row of `q_range`, how many keys of `k_range` are certainly allowed, and how many may be; None if
        unknown."""
        found = None if self.setting is None else self.setting(Sq, Sk, params)
        if found is None or self.allowed is None:
            return None
        queries = torch.arange(*q_range).reshape(1, 1, -1, 1)
        many = queries.numel() * (k_range[1] - k_range[0]) > MOST_PAIRS
        if self.stretches is not None:
            some, every = self.stretches(queries, *found)
            least, most = covered(every, k_range), covered(some, k_range)
            if many or bool((least == most).all()):
                return least, most
        elif many:
            return None
        # The mask by its definition, some queries at a time.
        keys = torch.arange(*k_range).reshape(1, 1, 1, -1)
        parts = queries.split(max(1, 2**18 // keys.numel()), 2)
        inside = [self.allowed(x, keys, *found) & (x >= 0) & (keys >= 0) for x in parts]
        exact = torch.cat([x.sum(-1, keepdim=True) for x in inside], 2)
        return exact, exact

    def visits(self, q_range: Any, k_range: Any, Sq: Any, Sk: Any, params: dict[str, Any]) -> str:
        width = k_range[1] - k_range[0]
        if width <= 0 or q_range[1] <= q_range[0]:
            return "none"
        found = self.counts(q_range, k_range, Sq, Sk, params)
        if found is None:
            return "some"
        return "none" if not found[1].any() else "all" if bool((found[0] == width).all()) else "some"

    def work(self, q_range: Any, k_range: Any, Sq: Any, Sk: Any, params: dict[str, Any]) -> int:
        area = max(0, q_range[1] - q_range[0]) * max(0, k_range[1] - k_range[0])
        found = self.counts(q_range, k_range, Sq, Sk, params) if area else None
        if found is None:
            return area
        return int(found[1].expand(*found[1].shape[:2], q_range[1] - q_range[0], 1).sum(2).max())


def covered(ends: Any, k_range: Any) -> Tensor:
    """How many keys of the range are in some stretch, by row."""
    zero = torch.zeros((1, 1, 1, 1), dtype=torch.int64)
    ends = [torch.as_tensor(x).clamp(*k_range) + zero for own in ends for x in own] or [zero, zero]
    parts = torch.stack(torch.broadcast_tensors(*ends))
    lows, highs = parts[::2], torch.maximum(parts[::2], parts[1::2])
    order = lows.argsort(dim=0, stable=True)
    total, reach = torch.zeros_like(lows[0]), lows.amin(0)
    for low, high in zip(lows.gather(0, order), highs.gather(0, order), strict=True):
        total = total + (high - torch.maximum(low, reach)).clamp(min=0)
        reach = torch.maximum(reach, high)
    return total
