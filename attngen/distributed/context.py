"""Context parallelism: one sequence's rows on many ranks, attention over all of them (torch.distributed).

    attend = context_parallel(kernel, group)
    here = attend.over(4096)                         # or cu_seqlens=[0, 100, 4096]: what every rank knows of a batch
    x = here.shard(tokens, dim=1)                    # the rows of this rank
    out = here(q, k, v, slope=slope)                 # q, k, v of these rows; differentiable

A kernel's pieces are computed where their queries lie, and merged; what is sent is decided by a `Schedule`. Pieces are
those of `Kernel.partial`; their order is fixed, and so are the bits. For target triton, without dropout.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from attngen.distributed.autograd import Attention, Call, Way
from attngen.distributed.layout import Layout, Ranges, balanced, contiguous, headtail, length
from attngen.distributed.messages import Heads, Link
from attngen.distributed.program import local, steps
from attngen.distributed.run import Run, check_packed, reads_rows
from attngen.distributed.schedule import EXCHANGES, Exchange, Masked, Schedule, Sequences, row_work, schedule
from attngen.errors import UsageError
from attngen.ir.axes import HEADS, cut_params
from attngen.ir.walk import params as read_params
from attngen.kernel import Kernel

LayoutName = Literal["auto", "contiguous", "headtail"]
_F = TypeVar("_F")
_dist = cast(Any, dist)
Offsets: TypeAlias = "Sequence[int] | Tensor"
_KEPT = 16
"""Placements that are kept, of the last batches."""


def _outside_of_graphs(function: _F) -> _F:
    """torch.compile breaks its graph here: messages are not traced."""
    return cast(Any, torch.compiler).disable(function)


def context_parallel(
    kernel: Kernel,
    group: dist.ProcessGroup | DeviceMesh | None = None,
    layout: LayoutName | Layout = "auto",
    exchange: Exchange = "ring",
    *,
    param_gradients: Literal["whole", "own"] = "whole",
) -> Attend:
    """Attention of `kernel` over sequences whose rows lie on the ranks of `group`.

    `layout` says who holds which rows: "auto" balances the mask's work and the rows, "contiguous" and "headtail" are
    what they say, and a `Layout` is your own. `exchange`: "ring" sends keys and values in rounds, each while the one
    before is computed; "gather" fetches what is needed at once; "heads" exchanges rows for heads (Ulysses). A mesh with
    two dimensions does both: heads are exchanged along its last, keys and values along its first.

    Learned params are the same on all ranks. Their gradient is the whole one on each of them; with "own" it is this
    rank's part, as that of any other weight of a model, for whoever adds gradients up over ranks (FSDP, DDP).
    """
    if exchange not in EXCHANGES:
        raise UsageError(f"exchange {exchange!r} is not known; there are {', '.join(EXCHANGES)}")
    if isinstance(layout, str) and layout not in ("auto", "contiguous", "headtail"):
        raise UsageError(f"layout {layout!r} is not known; there are auto, contiguous, headtail, or a Layout")
    if kernel.target != "triton":
        raise UsageError(f"{kernel.name}: on torch.distributed, kernels are for target triton, not for {kernel.target}")
    if kernel.spec.dropout is not None:
        raise UsageError(f"{kernel.name}: dropout is not supported on several ranks yet: leave it out of the spec")
    if param_gradients not in ("whole", "own"):
        raise UsageError(f"param_gradients {param_gradients!r} is not known; there are whole, own")
    across, within = _groups(group, exchange)
    if within is not None and cut_params(kernel.spec, HEADS) is None:
        raise UsageError(
            f"{kernel.name}: the spec reads a head's number other than to find a param's cell, so heads cannot be "
            "exchanged: use exchange='ring' or 'gather' on a mesh of one dimension"
        )
    return Attend(kernel, layout, exchange, across, within, param_gradients == "whole")


def _groups(group: Any, exchange: Exchange) -> tuple[Any, Any]:
    """The groups along which keys and values, and heads, are exchanged; None where there is one rank."""
    if isinstance(group, DeviceMesh):
        if group.ndim == 2:
            if exchange == "heads":
                raise UsageError("on a mesh of two dimensions heads are exchanged along the last: use ring or gather")
            return group.get_group(0), group.get_group(1)
        if group.ndim != 1:
            raise UsageError(f"the mesh has {group.ndim} dimensions: give a slice of one or two")
        group = group.get_group()
    group = dist.group.WORLD if group is None else group
    return (None, group) if exchange == "heads" else (group, None)


def _place(group: Any) -> tuple[int, int]:
    """The own number and how many ranks there are."""
    return (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))


@dataclass(frozen=True, eq=False)
class Attend:
    """See `context_parallel`. Called as `attend(q, k, v, Sq=…)`, or with `cu_seqlens`, it is `over(…)` and the call."""

    kernel: Kernel
    layout: LayoutName | Layout
    exchange: Exchange
    across: Any
    within: Any
    whole_gradients: bool
    _kept: OrderedDict[Any, Placed] = field(default_factory=OrderedDict[Any, Any])

    @property
    def ranks(self) -> int:
        return _place(self.across)[1] * _place(self.within)[1]

    @property
    def rank(self) -> int:
        """The own number in layouts and schedules."""
        return _place(self.across)[0] * _place(self.within)[1] + _place(self.within)[0]

    def over(
        self,
        Sq: int | None = None,
        *,
        Sk: int | None = None,
        cu_seqlens: Offsets | None = None,
        cu_seqlens_k: Offsets | None = None,
        **params: Any,
    ) -> Placed:
        """A batch's rows on their ranks. Every rank must say the same.

        `Sq` (and `Sk`, if it is another): rows of all ranks together. Packed: `cu_seqlens`, where sequences begin and
        the last one ends. `params`: what the mask reads, numbers and CPU tensors, for balance and to send less; calls
        take them from here. Nothing of this may wait for a device: it is what a data loader knows.
        """
        sequences = _sequences(Sq, Sk, cu_seqlens, cu_seqlens_k)
        known = {p.name for p in self.kernel.spec.params}
        for name, x in params.items():
            if name not in known:
                raise UsageError(f"{self.kernel.name}: no param {name!r}; there are {', '.join(known) or 'none'}")
            if isinstance(x, Tensor) and x.device.type != "cpu":
                raise UsageError(f"{name}: give it on the CPU, as a data loader has it, not on {x.device}")
        key = sequences, *((n, _fingerprint(x)) for n, x in sorted(params.items()))
        if key not in self._kept:
            self._kept[key] = self._placed(sequences, params)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _placed(self, sequences: Sequences, params: Mapping[str, Any]) -> Placed:
        if sequences.packed:
            check_packed(self.kernel)
        masked = Masked(params=params)
        q_layout = self._layout(sequences, masked)
        same = sequences.q == sequences.k
        return Placed(
            attend=self,
            params=dict(params),
            schedule=schedule(
                self.kernel,
                q_layout,
                sequences,
                self.exchange,
                k_layout=q_layout if same else contiguous(sequences.k[-1], self.ranks),
                heads=_place(self.within)[1],
                masked=masked,
            ),
        )

    def _layout(self, sequences: Sequences, masked: Masked) -> Layout:
        total, heads = sequences.q[-1], _place(self.within)[1]
        groups = self.ranks // heads
        if isinstance(self.layout, Layout):
            if (self.layout.ranks, self.layout.total) != (self.ranks, total):
                have = f"{self.layout.total} rows on {self.layout.ranks} ranks"
                raise UsageError(f"the layout has {have}, and there are {total} rows on {self.ranks} ranks")
            return self.layout
        if self.layout == "headtail":
            return headtail(total, groups).divided(heads)
        if self.layout == "contiguous" or groups == 1:
            return contiguous(total, self.ranks)
        return balanced(row_work(self.kernel, sequences, masked), groups, sequences.q).divided(heads)

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        Sq: int | None = None,
        Sk: int | None = None,
        cu_seqlens: Offsets | None = None,
        cu_seqlens_k: Offsets | None = None,
        **arguments: Any,
    ) -> Any:
        read = read_params(self.kernel.spec.mask)
        masking = {
            name: x
            for name, x in arguments.items()
            if name in read and not (isinstance(x, Tensor) and x.device.type != "cpu")
        }
        here = self.over(Sq, Sk=Sk, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, **masking)
        return here(q, k, v, **arguments)


def _sequences(Sq: int | None, Sk: int | None, cu: Offsets | None, cu_k: Offsets | None) -> Sequences:
    if (Sq is None) == (cu is None):
        raise UsageError("say how many rows all ranks have together: Sq=, or cu_seqlens= for packed sequences")
    if cu is None:
        if cu_k is not None:
            raise UsageError("cu_seqlens_k goes with cu_seqlens")
        assert Sq is not None
        return Sequences.dense(Sq, Sk)
    if Sk is not None:
        raise UsageError("Sk goes with Sq: packed sequences have cu_seqlens_k")
    return Sequences.of_offsets(_numbers("cu_seqlens", cu), None if cu_k is None else _numbers("cu_seqlens_k", cu_k))


def _numbers(name: str, x: Offsets) -> list[int]:
    if not isinstance(x, Tensor):
        return list(x)
    if x.device.type != "cpu":
        raise UsageError(f"{name}: give it on the CPU, as a data loader has it, not on {x.device}")
    return [int(n) for n in cast(Any, x).tolist()]


def _fingerprint(x: Any) -> Any:
    return (tuple(x.shape), x.contiguous().numpy().tobytes()) if isinstance(x, Tensor) else x


@dataclass(frozen=True, eq=False)
class Placed:
    """A batch whose rows lie on ranks, as `schedule` says. It cuts tensors, and is called like the kernel, on local
    rows."""

    attend: Attend
    schedule: Schedule
    params: dict[str, Any]
    """What calls get beside what they are given."""
    _on_device: dict[tuple[str, torch.device], Tensor] = field(default_factory=dict[Any, Any])

    @property
    def rank(self) -> int:
        return self.attend.rank

    def rows(self, *, keys: bool = False) -> Ranges:
        """The rows of this rank, as ranges of the whole."""
        return (self.schedule.k_layout if keys else self.schedule.q_layout).stretches[self.rank]

    def shard(self, x: Tensor, dim: int, *, keys: bool = False) -> Tensor:
        """This rank's rows of a tensor that has all of them along `dim`."""
        ends = self.schedule.sequences.k if keys else self.schedule.sequences.q
        if x.shape[dim] != ends[-1]:
            raise UsageError(f"dimension {dim} has {x.shape[dim]} rows, and the sequences have {ends[-1]}")
        parts = [x.narrow(dim, start, stop - start) for start, stop in self.rows(keys=keys)]
        return torch.cat(parts, dim) if parts else x.narrow(dim, 0, 0)

    def unshard(self, x: Tensor, dim: int, *, keys: bool = False) -> Tensor:
        """All rows, on every rank, of a tensor of which each rank has its own. Its gradient is that of the own rows, so
        all ranks must compute the same from it."""
        layout = self.schedule.k_layout if keys else self.schedule.q_layout
        self._check_rows("x", x, dim, layout)
        return cast(Any, _Unshard).apply(x, dim % x.ndim, layout, self)

    def positions(self, device: Any = None) -> Tensor:
        """The position of each of this rank's rows in its sequence (int64)."""
        ends = torch.tensor(self.schedule.sequences.q)
        rows = [torch.arange(start, stop) for start, stop in self.rows()]
        found = torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)
        return (found - ends[torch.searchsorted(ends, found, right=True) - 1]).to(device)

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        return_lse: bool = False,
        dropout_seed: Any = None,
        **params: Any,
    ) -> Any:
        """out of this rank's queries in q's dtype, and with `return_lse` lse. Tensors are as for `kernel`, or its
        `varlen`, with the rows of this rank alone.

        Params are whole on every rank, those with an element for each row too. `dropout_seed` has no effect.
        """
        return self._attend(q, k, v, scale, return_lse, params)

    @_outside_of_graphs
    def _attend(self, q: Tensor, k: Tensor, v: Tensor, scale: Any, return_lse: bool, given: Mapping[str, Any]) -> Any:
        packed = self.schedule.sequences.packed
        for name, x, layout in (
            ("q", q, self.schedule.q_layout), ("k", k, self.schedule.k_layout), ("v", v, self.schedule.k_layout),
        ):  # fmt: skip
            if x.ndim != (3 if packed else 4):
                kind = "3 dimensions (rows, heads, head dim)" if packed else "4 (batch, heads, rows, head dim)"
                raise UsageError(f"{name} must have {kind}, not shape {tuple(x.shape)}")
            self._check_rows(name, x, self.dim, layout)
        if isinstance(scale, Tensor):
            if scale.requires_grad:
                raise UsageError("scale must be a number on several ranks: multiply q by a scale that learns")
            scale = float(scale)
        kind = q.device.type
        if torch.is_autocast_enabled(kind):
            q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
        params = {**{n: self._moved(n, q.device) for n in self.params}, **given}
        tensors = {n: x for n, x in params.items() if isinstance(x, Tensor)}
        call = Call(self.way, scale, tuple(tensors), {n: x for n, x in params.items() if n not in tensors})
        out, lse = cast(Any, Attention).apply(call, q, k, v, *tensors.values())
        return (out, lse) if return_lse else out

    def _moved(self, name: str, device: torch.device) -> Any:
        x = self.params[name]
        if not isinstance(x, Tensor):
            return x
        if (name, device) not in self._on_device:
            self._on_device[name, device] = x.to(device)
        return self._on_device[name, device]

    def _check_rows(self, name: str, x: Tensor, dim: int, layout: Layout) -> None:
        rows = layout.rows(self.rank)
        if x.shape[dim] != rows:
            raise UsageError(
                f"{name} has {x.shape[dim]} rows, and rank {self.rank} has {rows} of {layout.total}: cut it with shard"
            )

    @cached_property
    def dim(self) -> int:
        """The dimension of rows."""
        return 0 if self.schedule.sequences.packed else 2

    @cached_property
    def way(self) -> Way:
        attend, sequences = self.attend, self.schedule.sequences
        group = _place(attend.across)[0]
        own = steps(self.schedule, group, together=sequences.packed and not reads_rows(attend.kernel))
        return Way(
            Run(attend.kernel, own, sequences, Link(attend.across, group, self.dim)),
            heads=(self._heads(self.schedule.q_layout), self._heads(self.schedule.k_layout))
            if _place(attend.within)[1] > 1
            else None,
            groups=tuple(g for g in (attend.across, attend.within) if g is not None and attend.whole_gradients),
        )

    def _heads(self, layout: Layout) -> Heads:
        (group, _), (member, count) = _place(self.attend.across), _place(self.attend.within)
        members = layout.stretches[group * count : (group + 1) * count]
        whole = layout.grouped(count).stretches[group]
        return Heads(
            self.attend.within,
            member,
            self.dim,
            rows=tuple(map(length, members)),
            order=tuple(r for part in whole for r in _found_in(members, part)),
            inverse=tuple(r for own in members for part in own for r in local(whole, (part,))),
        )


def _found_in(members: Sequence[Ranges], part: tuple[int, int]) -> list[tuple[int, int]]:
    """Where rows of the whole lie in the members' tensors one after the other, in the order of the rows."""
    found: list[tuple[int, tuple[int, int]]] = []
    before = 0
    for own in members:
        for low, high in own:
            start, stop = max(low, part[0]), min(high, part[1])
            if start < stop:
                found.append((start, (before + start - low, before + stop - low)))
            before += high - low
    return [r for _, r in sorted(found)]


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        x, dim, layout, placed = given
        ctx.dim, ctx.rows, ctx.attend = dim, layout.stretches[placed.rank], placed.attend
        most = max(layout.rows(r) for r in range(layout.ranks))
        shape = list(x.shape)
        shape[dim] = most - shape[dim]
        parts = [torch.cat([x, x.new_zeros(shape)], dim).contiguous()]
        for group in (placed.attend.within, placed.attend.across):
            if group is not None:
                count = dist.get_world_size(group)
                found = [torch.empty_like(parts[0]) for _ in range(count * len(parts))]
                for i, part in enumerate(parts):
                    _dist.all_gather(found[i :: len(parts)], part, group=group)
                parts = found
        stretches = [
            (start, parts[r].narrow(dim, a, b - a))
            for r, own in enumerate(layout.stretches)
            for start, stop in own
            for a, b in local(own, ((start, stop),))
        ]
        return torch.cat([part for _, part in sorted(stretches, key=lambda s: s[0])], dim) if stretches else x

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (g,) = slopes
        parts = [g.narrow(ctx.dim, start, stop - start) for start, stop in ctx.rows]
        return torch.cat(parts, ctx.dim) if parts else g.narrow(ctx.dim, 0, 0), None, None, None
