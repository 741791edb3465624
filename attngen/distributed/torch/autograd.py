"""The attention of one rank as one function of autograd.

Takes what stays the same from call to call (`Way`), local q, k and v, and params; heads are exchanged here, before and
after the steps of `run`. Saves what the rank's group has of q, k and v for the rank's own heads, their finished
results, and the keys and values that arrived last. Derivatives of gradients are not computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from attngen.distributed.torch.messages import Heads, add_picked, picked
from attngen.distributed.torch.run import Drawn, Run, backward, forward, head_dims, sized
from attngen.errors import UsageError

_dist = cast(Any, dist)


@dataclass(frozen=True, eq=False)
class Way:
    """How a batch's rows are attended to. `heads`: how heads of queries and of keys are exchanged, if they are.
    `groups`: over which the gradients of params are added up, if they are."""

    run: Run
    heads: tuple[Heads, Heads] | None
    groups: tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """What of a call is no tensor. `names` are those of the params that are tensors."""

    way: Way
    scale: float | None
    drawn: Drawn
    names: tuple[str, ...]
    others: Mapping[str, Any]


def _slopes(ctx: Any, *cotangents: Any) -> Any:
    d_out, d_lse = cotangents
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    call, split = ctx.call, ctx.split
    kept = {source: [tensors.pop(0), tensors.pop(0)] for source in ctx.kept}
    if d_out is None and d_lse is None:
        return (None,) * (4 + len(tensors))
    with torch.autocast(q.device.type, enabled=False):
        d_out = torch.zeros(split.local(out), dtype=q.dtype, device=q.device) if d_out is None else d_out
        d_out, d_lse = split.gathered_slopes(d_out, d_lse)
        learned = {n for n, asked in zip(call.names, ctx.needs_input_grad[4:], strict=True) if asked}
        params = {**call.others, **dict(zip(call.names, tensors, strict=True))}
        own = {n: x.detach().requires_grad_() if n in learned else x for n, x in split.params(params).items()}
        dq, dk, dv, found = backward(
            call.way.run, (q, k, v), (d_out, d_lse), (out, lse), kept, call.scale, own, split.drawn(call.drawn),
            exact=split.k_heads is not None,
        )  # fmt: skip
        dq, dk, dv = split.rows(dq), split.key_rows(dk, k.dtype), split.key_rows(dv, v.dtype)
        slopes = split.whole_slopes({n: params[n] for n in learned}, found)
        if slopes:
            _add_over_ranks(call.way.groups, slopes)
    given = (slopes[n].to(params[n].dtype) if n in slopes else None for n in call.names)
    return None, dq, dk, dv, *given


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        call: Call = given[0]
        q, k, v, *tensors = given[1:]
        with torch.autocast(q.device.type, enabled=False):
            split = _Split(call.way, q, k)
            params = {**call.others, **dict(zip(call.names, tensors, strict=True))}
            q, k, v = split.gathered(q, k, v)
            exact = any(ctx.needs_input_grad[4:])  # a sum over all pairs needs what rounding takes from out
            drawn = split.drawn(call.drawn)
            out, lse, kept = forward(call.way.run, q, k, v, call.scale, split.params(params), drawn, exact=exact)
            ctx.call, ctx.split, ctx.kept = call, split, tuple(kept)
            ctx.save_for_backward(q, k, v, out, lse, *(x for own in kept.values() for x in own), *tensors)
            ctx.set_materialize_grads(False)
            out, lse = split.rows(out.to(q.dtype)), split.rows_of_lse(lse)
            return out, lse.view_as(lse)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        with torch.no_grad():
            found = _slopes(ctx, *cotangents)
        if not torch.is_grad_enabled():
            return found
        anchor = torch.zeros((), requires_grad=True)
        return tuple(None if g is None else cast(Any, _Once).apply(g, anchor) for g in found)


class _Once(torch.autograd.Function):
    """Gradients that are asked for with `create_graph=True`: they can be used, and their derivative is refused."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        return given[0].view_as(given[0])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise UsageError("context_parallel: a second derivative is not computed")


class _Split:
    """How a call's heads are shared out among the members of a group, and back: nothing, where there is one member."""

    def __init__(self, way: Way, q: Tensor, k: Tensor) -> None:
        self.packed = way.run.sequences.packed
        self.q_heads, self.k_heads = way.heads or (None, None)
        self.kernel = way.run.kernel
        self.shapes = q.shape, k.shape
        self.of_q: list[list[int]] = []
        self.of_k: list[list[int]] = []
        if self.q_heads is not None:
            self.of_q, self.of_k = shared_heads(q.shape[1], k.shape[1], self.q_heads.count)

    def gathered(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.q_heads is None or self.k_heads is None:
            return q, k, v
        own = self.k_heads.gathered
        return self.q_heads.gathered(q, self.of_q), own(k, self.of_k), own(v, self.of_k)

    def gathered_slopes(self, d_out: Tensor, d_lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.q_heads is None:
            return d_out, d_lse
        slopes = None if d_lse is None else self._of_rows(self.q_heads.gathered(self._by_rows(d_lse), self.of_q))
        return self.q_heads.gathered(d_out, self.of_q), slopes

    def rows(self, x: Tensor) -> Tensor:
        """All heads of the own rows of queries, from the own heads of the group's."""
        return x if self.q_heads is None else torch.cat(self.q_heads.scattered(x, self.of_q), 1)

    def rows_of_lse(self, lse: Tensor) -> Tensor:
        return lse if self.q_heads is None else self._of_rows(self.rows(self._by_rows(lse)))

    def key_rows(self, g: Tensor, dtype: torch.dtype) -> Tensor:
        """The same of K or V: members that share a head add up, in their order and in float32."""
        if self.k_heads is None:
            return g.to(dtype)
        once = len({h for own in self.of_k for h in own}) == sum(map(len, self.of_k))
        parts = self.k_heads.scattered(g.to(dtype) if once else g, self.of_k)
        if once:
            return torch.cat(parts, 1)
        shape = list(parts[0].shape)
        shape[1] = self.shapes[1][1]
        total = parts[0].new_zeros(shape)
        for heads, part in zip(self.of_k, parts, strict=True):
            for i, head in enumerate(heads):
                total.select(1, head).add_(part.select(1, i))
        return total.to(dtype)

    def local(self, out: Tensor) -> tuple[int, ...]:
        return *self.shapes[0][:-1], out.shape[-1]

    def params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Params of the own heads."""
        return {n: picked(x, *own) if (own := self._cut(n, x)) else x for n, x in params.items()}

    def drawn(self, whole: Drawn) -> Drawn:
        """What the own heads' dropout draws from."""
        if self.q_heads is None:
            return whole
        return replace(whole, heads=whole.heads + self.of_q[self.q_heads.member][0])

    def whole_slopes(self, params: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of whole params: zeros beside the own heads."""
        slopes: dict[str, Tensor] = {}
        for name, x in params.items():
            own = self._cut(name, x)
            slopes[name] = found[name] if own is None else torch.zeros_like(x, dtype=torch.float32)
            if own is not None:
                add_picked(slopes[name], *own, found[name])
        return slopes

    def _cut(self, name: str, x: Any) -> tuple[int, list[int]] | None:
        """Along which dimension a param is cut, and the own heads. One element for all heads is not."""
        if self.q_heads is None:
            return None
        cut = head_dims(self.kernel, packed=self.packed) or {}
        if name not in cut or x.shape[cut[name]] == 1:
            return None
        of = self.of_k if "Hkv" in sized(self.kernel, name) else self.of_q
        return cut[name], of[self.q_heads.member]

    def _by_rows(self, lse: Tensor) -> Tensor:
        """(H, T) as (T, H, 1), (B, H, S) as (B, H, S, 1)."""
        return (lse.transpose(0, 1) if lse.ndim == 2 else lse).unsqueeze(-1)

    def _of_rows(self, x: Tensor) -> Tensor:
        x = x.squeeze(-1)
        return x.transpose(0, 1).contiguous() if x.ndim == 2 else x


def shared_heads(Hq: int, Hkv: int, members: int) -> tuple[list[list[int]], list[list[int]]]:
    """Which heads of q, and of k and v, each member computes: equal shares of those of q. Heads of k are repeated where
    that gives each the same number of heads of q."""
    if Hq % members:
        raise UsageError(f"{Hq} heads cannot be shared out equally among {members} ranks: use exchange='ring'")
    own, together = Hq // members, Hq // Hkv
    unit = gcd(own, together)
    of_q = [list(range(m * own, (m + 1) * own)) for m in range(members)]
    return of_q, [[h // together for h in heads[::unit]] for heads in of_q]


def _add_over_ranks(groups: tuple[Any, ...], slopes: dict[str, Tensor]) -> None:
    """Each becomes its sum over all ranks: one message for all of them."""
    flat: Any = torch.cat([slopes[n].reshape(-1) for n in sorted(slopes)])
    for group in groups:
        _dist.all_reduce(flat, group=group)
    for n, x in zip(sorted(slopes), flat.split([slopes[n].numel() for n in sorted(slopes)]), strict=True):
        slopes[n] = x.view(slopes[n].shape)
