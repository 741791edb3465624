"""The rows of one rank: cutting tensors to them, and putting tensors together again (torch.distributed)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from attngen.distributed.plan.layout import Layout, Ranges, common, length
from attngen.distributed.plan.program import local
from attngen.distributed.plan.schedule import check_dim
from attngen.errors import UsageError

_dist = cast(Any, dist)


@dataclass(frozen=True, eq=False)
class Rows:
    """`ends`: where sequences begin and the last one ends. `groups`: process groups, the one of neighbouring ranks
    first."""

    layout: Layout
    rank: int
    ends: tuple[int, ...]
    groups: tuple[Any, ...]

    @property
    def held(self) -> Ranges:
        return self.layout.stretches[self.rank]

    def shard(self, x: Tensor, dim: int) -> Tensor:
        _check_dim(x, dim)
        if x.shape[dim] != self.layout.total:
            raise UsageError(
                f"dimension {dim} has {x.shape[dim]} rows, and all ranks have {self.layout.total} together"
            )
        return _cut(x, dim, self.held)

    def unshard(self, x: Tensor, dim: int) -> Tensor:
        _check_dim(x, dim)
        self.check("x", x, dim)
        return cast(Any, _Unshard).apply(x, dim % x.ndim, self)

    def positions(self, device: Any = None) -> Tensor:
        ends = torch.tensor(self.ends)
        rows = _cut(torch.arange(self.layout.total), 0, self.held)
        return (rows - ends[torch.searchsorted(ends, rows, right=True) - 1]).to(device)

    def check(self, name: str, x: Tensor, dim: int) -> None:
        rows = length(self.held)
        if x.shape[dim] != rows:
            held = f"rank {self.rank} has {rows} of {self.layout.total}"
            raise UsageError(f"{name} has {x.shape[dim]} rows, and {held}: cut it with shard")


def _check_dim(x: Any, dim: Any) -> None:
    if not isinstance(x, Tensor):
        raise UsageError(f"x must be a torch.Tensor, not {type(x).__name__}")
    check_dim(x, dim, "tensor")


def _cut(x: Tensor, dim: int, ranges: Ranges) -> Tensor:
    parts = [x.narrow(dim, start, stop - start) for start, stop in ranges]
    return torch.cat(parts, dim) if parts else x.narrow(dim, 0, 0)


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        x, dim, rows = given
        layout: Layout = rows.layout
        ctx.dim, ctx.held = dim, rows.held
        shape = list(x.shape)
        shape[dim] = max(layout.rows(r) for r in range(layout.ranks)) - shape[dim]
        parts = [torch.cat([x, x.new_zeros(shape)], dim).contiguous()]
        for group in rows.groups:
            found = [[torch.empty_like(part) for _ in range(dist.get_world_size(group))] for part in parts]
            for own, part in zip(found, parts, strict=True):
                _dist.all_gather(own, part, group=group)
            parts = [part for of_member in zip(*found, strict=True) for part in of_member]
        whole = [
            parts[rank].narrow(dim, a, b - a)
            for start, stop, rank in layout.holders()
            for a, b in local(layout.stretches[rank], common(layout.stretches[rank], ((start, stop),)))
        ]
        return torch.cat(whole, dim) if whole else x.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        return _cut(slopes[0], ctx.dim, ctx.held), None, None
