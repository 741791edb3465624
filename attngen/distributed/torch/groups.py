"""The process groups of context parallelism: along which heads, and along which keys and values are exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from attngen.distributed.plan.schedule import EXCHANGES, Exchange
from attngen.errors import UsageError


@dataclass(frozen=True, eq=False)
class Groups:
    """None stands for a group of one rank."""

    across: Any
    """Groups of a schedule: they exchange keys and values."""
    within: Any
    """Members of one of them: they exchange heads."""

    @property
    def group(self) -> int:
        return 0 if self.across is None else dist.get_rank(self.across)

    @property
    def member(self) -> int:
        return 0 if self.within is None else dist.get_rank(self.within)

    @property
    def heads(self) -> int:
        """Members of a group."""
        return 1 if self.within is None else dist.get_world_size(self.within)

    @property
    def ranks(self) -> int:
        return self.heads * (1 if self.across is None else dist.get_world_size(self.across))

    @property
    def rank(self) -> int:
        """The own number in layouts and schedules."""
        return self.group * self.heads + self.member

    @property
    def all(self) -> tuple[Any, ...]:
        """That of neighbouring ranks first."""
        return tuple(g for g in (self.within, self.across) if g is not None)

    def drawn_seed(self, device: Any) -> torch.Tensor:
        """What the first rank's generator draws, on all ranks: a call of all. Checkpoints restore the generator, so
        what is computed again draws the same."""
        seed = torch.randint(0, 2**62, (), dtype=torch.int64, device=device)
        for group in self.all:
            cast(Any, dist).broadcast(seed, dist.get_global_rank(group, 0), group=group)
        return seed


_BEGUN: set[str] = set()


def groups_of(group: Any, exchange: Exchange) -> Groups:
    """`group`: a process group, a mesh of one dimension, one of two (across, within), or None for all processes. A call
    of all ranks."""
    found = _groups_of(group, exchange)
    if found.across is not None and found.across.group_name not in _BEGUN:
        _BEGUN.add(found.across.group_name)
        if "nccl" in str(dist.get_backend(found.across)):
            # The first messages of a group of NCCL's must be of all its ranks, and not every rank sends rows.
            cast(Any, dist).all_reduce(torch.zeros(1, device="cuda"), group=found.across)
    return found


def _groups_of(group: Any, exchange: Exchange) -> Groups:
    if exchange not in EXCHANGES:
        raise UsageError(f"exchange {exchange!r} is not known; there are {', '.join(EXCHANGES)}")
    if isinstance(group, DeviceMesh):
        if group.ndim == 2:
            if exchange == "heads":
                raise UsageError("on a mesh of two dimensions heads are exchanged along the last: use ring or gather")
            return Groups(group.get_group(0), group.get_group(1))
        if group.ndim != 1:
            raise UsageError(f"the mesh has {group.ndim} dimensions: give a slice of one or two")
        group = group.get_group()
    group = dist.group.WORLD if group is None else group
    if not (group is None or isinstance(group, dist.ProcessGroup)):
        raise UsageError(f"group must be a process group or a DeviceMesh, not {group!r}")
    return Groups(None, group) if exchange == "heads" else Groups(group, None)
