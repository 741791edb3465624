"""Context parallelism: one sequence's rows on many ranks, attention over all of them (torch.distributed).

    attend = context_parallel(kernel, group)
    here = attend.over(4096)                         # or cu_seqlens=[0, 100, 4096]: what every rank knows of a batch
    x = here.shard(tokens, dim=1)                    # the rows of this rank
    out = here(q, k, v, slope=slope)                 # q, k, v of these rows; differentiable

A kernel's pieces are computed where their queries lie, and merged; what is sent is decided by a `Schedule`. Pieces are
those of `Kernel.partial`; their order is fixed, and so are the bits. For target triton.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from attngen import targets
from attngen.distributed.plan.layout import Layout, Ranges, contiguous, length
from attngen.distributed.plan.program import fewer_together, local, steps
from attngen.distributed.plan.schedule import (
    LAYOUTS,
    Exchange,
    LayoutName,
    Masked,
    Schedule,
    Sequences,
    check_given,
    check_operands,
    check_packed,
    named_layout,
    row_work,
    same_as_said,
    schedule,
)
from attngen.distributed.torch.autograd import Attention, Call, Way
from attngen.distributed.torch.groups import Groups, groups_of
from attngen.distributed.torch.messages import Heads, Link
from attngen.distributed.torch.rows import Rows
from attngen.distributed.torch.run import Drawn, Run
from attngen.distributed.torch.tensors import on_own_parts
from attngen.emit.torch_shared.leaves import unsummed
from attngen.errors import UsageError
from attngen.ir.axes import HEADS, cut_params, reads_rows
from attngen.ir.walk import params as read_params
from attngen.kernel import Kernel

_F = TypeVar("_F")
_dist = cast(Any, dist)
Offsets: TypeAlias = "Sequence[int] | Tensor"
_KEPT = 16
"""Placements that are kept, of the last batches."""


def outside_of_graphs(function: _F) -> _F:
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
    if not isinstance(cast(object, kernel), Kernel):
        raise UsageError(f"kernel must be what attngen.compile returns, not {type(kernel).__name__}")
    if not isinstance(layout, Layout) and layout not in LAYOUTS:
        raise UsageError(f"layout {layout!r} is not known; there are {', '.join(LAYOUTS)}, or a Layout")
    if not targets.named(kernel.target).operators:
        raise UsageError(f"{kernel.name}: on torch.distributed, kernels are for target triton, not for {kernel.target}")
    if param_gradients not in ("whole", "own"):
        raise UsageError(f"param_gradients {param_gradients!r} is not known; there are whole, own")
    groups = groups_of(group, exchange)
    if groups.heads > 1 and cut_params(kernel.spec, HEADS) is None:
        raise UsageError(
            f"{kernel.name}: the spec reads a head's number other than to find a param's cell, so heads cannot be "
            "exchanged: use exchange='ring' or 'gather' on a mesh of one dimension"
        )
    return Attend(kernel, layout, exchange, groups, whole_gradients=param_gradients == "whole")


class Attend:
    """See `context_parallel`. Called as `attend(q, k, v, Sq=…)`, or with `cu_seqlens`, it is `over(…)` and the call.

    No dataclass, nor is `Placed`: FSDP would look for tensors in its fields when a module is called with it.
    """

    def __init__(
        self,
        kernel: Kernel,
        layout: LayoutName | Layout,
        exchange: Exchange,
        groups: Groups,
        *,
        whole_gradients: bool,
    ) -> None:
        self.kernel, self.groups, self.whole_gradients = kernel, groups, whole_gradients
        self.layout: LayoutName | Layout = layout
        self.exchange: Exchange = exchange
        self._kept: OrderedDict[Any, Placed] = OrderedDict()

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
        sequences = sequences_of(Sq, Sk, cu_seqlens, cu_seqlens_k)
        params = {n: cast(Any, torch).from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in params.items()}
        check_given(self.kernel.spec, sequences, params)
        for name, x in params.items():
            if isinstance(x, Tensor) and x.device.type != "cpu":
                raise UsageError(f"{name}: give it on the CPU, as a data loader has it, not on {x.device}")
            if isinstance(x, Tensor) and x.requires_grad:
                raise UsageError(f"{name}: give over(…) its values, {name}.detach(), and itself to the call")
        key = sequences, *((n, _fingerprint(x)) for n, x in sorted(params.items()))
        if key not in self._kept:
            own = {n: x.clone() if isinstance(x, Tensor) else x for n, x in params.items()}  # theirs may change
            self._kept[key] = self._placed(sequences, own)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _placed(self, sequences: Sequences, params: Mapping[str, Any]) -> Placed:
        if sequences.packed:
            check_packed(self.kernel.spec)
        masked = Masked(params=params)
        q_layout = laid_out(self.layout, sequences, self.groups, lambda: row_work(self.kernel, sequences, masked))
        same = sequences.q == sequences.k
        return Placed(
            attend=self,
            params=params,
            schedule=schedule(
                self.kernel,
                q_layout,
                sequences,
                self.exchange,
                k_layout=q_layout if same else contiguous(sequences.k[-1], self.groups.ranks),
                heads=self.groups.heads,
                masked=masked,
            ),
        )

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
            name: x.detach() if isinstance(x, Tensor) else x
            for name, x in arguments.items()
            if name in read and not (isinstance(x, Tensor) and x.device.type != "cpu")
        }
        here = self.over(Sq, Sk=Sk, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, **masking)
        return here(q, k, v, **arguments)


def laid_out(layout: LayoutName | Layout, sequences: Sequences, groups: Groups, work: Callable[[], Any]) -> Layout:
    """The layout of a batch's queries. Members of a group have its rows together; `work` gives that of each row."""
    total, ranks = sequences.q[-1], groups.ranks
    if isinstance(layout, Layout):
        if (layout.ranks, layout.total) != (ranks, total):
            have = f"{layout.total} rows on {layout.ranks} ranks"
            raise UsageError(f"the layout has {have}, and there are {total} rows on {ranks} ranks")
        return layout
    return named_layout(layout, sequences, ranks, work, heads=groups.heads)


def sequences_of(Sq: int | None, Sk: int | None, cu: Offsets | None, cu_k: Offsets | None) -> Sequences:
    """What callers say of a batch's rows."""
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
        return cast(Any, x)  # `Sequences` refuses what is no sequence of ints
    if x.ndim != 1 or x.is_floating_point():
        raise UsageError(f"{name} must be a sequence of ints, not a tensor of shape {tuple(x.shape)} and {x.dtype}")
    if x.device.type != "cpu":
        raise UsageError(f"{name}: give it on the CPU, as a data loader has it, not on {x.device}")
    return [int(n) for n in cast(Any, x).tolist()]


def _fingerprint(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return x.dtype, tuple(x.shape), x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Placed:
    """A batch whose rows lie on ranks, as `schedule` says. It cuts tensors, and is called like the kernel, on local
    rows; `params` are what calls get beside what they are given."""

    def __init__(self, attend: Attend, schedule: Schedule, params: Mapping[str, Any]) -> None:
        self.attend, self.schedule, self.params = attend, schedule, dict(params)
        self._on_device: dict[tuple[str, torch.device], Tensor] = {}
        self._compared: dict[str, tuple[weakref.ref[Tensor], int]] = {}

    def rows(self, *, keys: bool = False) -> Rows:
        """The rows of this rank, of queries or of keys."""
        s, groups = self.schedule, self.attend.groups
        layout, ends = (s.k_layout, s.sequences.k) if keys else (s.q_layout, s.sequences.q)
        return Rows(layout, groups.rank, ends, groups.all)

    def shard(self, x: Tensor, dim: int, *, keys: bool = False) -> Tensor:
        """This rank's rows of a tensor that has all of them along `dim`."""
        return self.rows(keys=keys).shard(x, dim)

    def unshard(self, x: Tensor, dim: int, *, keys: bool = False) -> Tensor:
        """All rows, on every rank, of a tensor of which each rank has its own. Its gradient is that of the own rows, so
        all ranks must compute the same from it."""
        return self.rows(keys=keys).unshard(x, dim)

    def positions(self, device: Any = None) -> Tensor:
        """The position of each of this rank's rows in its sequence (int64)."""
        return self.rows().positions(device)

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
        `varlen`, with the rows of this rank alone; DTensors may be cut along batches and heads.

        Params are whole on every rank, those with an element for each row too. Dropout drops what one process drops
        with `dropout_seed`, the same on every rank; without it, the first rank's generator draws one for all.
        """
        return self._attend(q, k, v, scale, return_lse, dropout_seed, params)

    @outside_of_graphs
    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: Any, return_lse: bool, seed: Any, given: Mapping[str, Any]
    ) -> Any:
        if seed is None and self.attend.kernel.spec.dropout is not None:
            seed = self.attend.groups.drawn_seed(q.device)
        packed = self.schedule.sequences.packed
        for name, x in (("q", q), ("k", k), ("v", v)):
            if not isinstance(cast(object, x), Tensor):
                raise UsageError(f"{name} must be a torch.Tensor, not {type(x).__name__}")
            if x.ndim != (3 if packed else 4):
                kind = "3 dimensions (rows, heads, head dim)" if packed else "4 (batch, heads, rows, head dim)"
                raise UsageError(f"{name} must have {kind}, not shape {tuple(x.shape)}")
            self.rows(keys=name != "q").check(name, x, self.dim)
        if isinstance(scale, Tensor):
            if scale.requires_grad:
                raise UsageError("scale must be a number on several ranks: multiply q by a scale that learns")
            scale = float(scale)
        kind = q.device.type
        if torch.is_autocast_enabled(kind):
            q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
        check_operands(q, k, v, 1)
        self._check_same(given)
        params = {**{n: self._as(n, q) for n in self.params if n not in given}, **given}
        check_given(self.attend.kernel.spec, self.schedule.sequences, params)
        if packed:
            self._check_unsummed(params)

        def attended(
            q: Tensor, k: Tensor, v: Tensor, params: Mapping[str, Any], before: tuple[int, int]
        ) -> tuple[Tensor, Tensor]:
            tensors = {n: x for n, x in params.items() if isinstance(x, Tensor)}
            learns = any(x.requires_grad for x in tensors.values())
            alias = self._packed if self._lies_as_packed(q, v, learns=learns) else None
            drawn = Drawn(seed, heads=before[1], sequences=before[0])
            way = (alias or self).way
            call = Call(way, scale, drawn, tuple(tensors), {n: x for n, x in params.items() if n not in tensors})
            if alias is not None:
                q, k, v = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))
            out, lse = cast(Any, Attention).apply(call, q, k, v, *tensors.values())
            return (out, lse) if alias is None else (out.transpose(0, 1).unsqueeze(0), lse.unsqueeze(0))

        out, lse = on_own_parts(self.attend.kernel, attended, (q, k, v), params)
        return (out, lse) if return_lse else out

    def _check_same(self, given: Mapping[str, Any]) -> None:
        """See `same_as_said`. Each tensor is compared once, which waits for its device; one that is cut is not."""
        for name in self.params.keys() & given.keys():
            x = given[name]
            if isinstance(x, DTensor):
                if not all(place.is_replicate() for place in x.placements):
                    continue
                x = cast(Tensor, cast(Any, x).to_local())
            version = x._version if isinstance(x, Tensor) and not x.is_inference() else 0
            seen = self._compared.get(name)
            if seen is None or seen[0]() is not x or seen[1] != version:
                if not self._is_same_there(name, x):
                    same_as_said(self.attend.kernel.spec, self.params, {name: x})
                self._compared |= {name: (weakref.ref(x), version)} if isinstance(x, Tensor) else {}

    def _is_same_there(self, name: str, x: Any) -> bool:
        """Whether a tensor on a GPU has the elements that `over` was given, by a comparison there."""
        said = self.params[name]
        if not isinstance(x, Tensor) or x.is_cpu or not isinstance(said, Tensor) or x.shape != said.shape:
            return False
        return torch.equal(x.detach().to(said.dtype), self._moved(name, x.device))

    def _check_unsummed(self, params: Mapping[str, Any]) -> None:
        """Refuses on every rank, whatever rows it has: else those that have none would wait for the others."""
        kernel = self.attend.kernel
        for name in unsummed(kernel.plan) if torch.is_grad_enabled() else ():
            if getattr(params.get(name), "requires_grad", False):
                raise UsageError(
                    f"{kernel.name}: the gradient of {name} is summed over pairs or chosen cells, which is done for "
                    f"dense tensors only: pass {name}.detach(), or declare it `fixed`"
                )

    def _as(self, name: str, q: Tensor) -> Any:
        """What `over` was given, where `q` is, and a DTensor if that is one."""
        x = self._moved(name, q.device)
        if not isinstance(x, Tensor) or not x.ndim or not isinstance(q, DTensor):
            return x
        mesh = q.device_mesh
        return cast(Any, DTensor).from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)

    def _moved(self, name: str, device: torch.device) -> Any:
        x = self.params[name]
        if not isinstance(x, Tensor):
            return x
        if (name, device) not in self._on_device:
            self._on_device[name, device] = x.to(device)
        return self._on_device[name, device]

    @cached_property
    def dim(self) -> int:
        """The dimension of rows."""
        return 0 if self.schedule.sequences.packed else 2

    @cached_property
    def way(self) -> Way:
        attend, sequences, groups = self.attend, self.schedule.sequences, self.attend.groups
        own = steps(self.schedule, groups.group, together=sequences.packed and not reads_rows(attend.kernel.spec))
        return Way(
            Run(attend.kernel, own, sequences, Link(groups.across, groups.group, self.dim)),
            heads=None
            if groups.heads == 1
            else (self._heads(self.schedule.q_layout), self._heads(self.schedule.k_layout)),
            groups=groups.all if attend.whole_gradients else (),
        )

    def _lies_as_packed(self, q: Tensor, v: Tensor, *, learns: bool) -> bool:
        """Whether a batch of one sequence has its heads inside its rows, as in packed tensors, and the plan has it
        computed as packed rows. Results then lie as q does."""
        alias = self.attend.kernel.plan.packed_alias
        lies = q.shape[0] == 1 and q.stride(1) < q.stride(2)
        return lies and alias is not None and alias.serves(q.shape[-1], v.shape[-1], learns=learns)

    @cached_property
    def _packed(self) -> Placed | None:
        """The batch's rows as those of packed sequences, where several pieces then make one call.

        Ranks may choose differently: rows travel alike. Heads do not, so where they are exchanged none does it."""
        sequences = self.schedule.sequences
        if sequences.packed or self.attend.groups.heads > 1 or not fewer_together(self.schedule):
            return None
        return Placed(self.attend, replace(self.schedule, sequences=replace(sequences, packed=True)), self.params)

    def _heads(self, layout: Layout) -> Heads:
        groups = self.attend.groups
        members = layout.stretches[groups.group * groups.heads : (groups.group + 1) * groups.heads]
        whole = layout.grouped(groups.heads).stretches[groups.group]
        return Heads(
            groups.within,
            groups.member,
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
