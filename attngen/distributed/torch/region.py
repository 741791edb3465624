"""Context parallelism for models that one cannot edit: a region in which attngen's adapters attend over all ranks.

    with context_parallel_region(group, 4096) as region:
        tokens, positions = region.shard(tokens, 1), region.positions()
        loss = model(tokens, position_ids=positions[None]).loss
        loss.backward()

One layout holds for all layers, whatever their kernels. The adapters of `attngen.integrations` look here.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from attngen.distributed.plan.layout import Layout
from attngen.distributed.plan.schedule import Exchange, Sequences
from attngen.distributed.torch.context import (
    LayoutName,
    Offsets,
    Placed,
    context_parallel,
    laid_out,
    outside_of_graphs,
    sequences_of,
)
from attngen.distributed.torch.current import REGIONS
from attngen.distributed.torch.groups import groups_of
from attngen.distributed.torch.rows import Rows
from attngen.errors import UsageError
from attngen.kernel import Kernel

Gradients = Literal["whole", "own"]


class Region:
    """A batch whose rows lie on ranks. Called with a kernel, and q, k and v of this rank's rows."""

    def __init__(self, group: Any, exchange: Exchange, sequences: Sequences, rows: Rows, gradients: Gradients) -> None:
        self.group, self.sequences, self.rows = group, sequences, rows
        self.exchange: Exchange = exchange
        self.param_gradients: Gradients = gradients
        self._placed: dict[int, tuple[Kernel, Placed]] = {}
        self._checked: Tensor | None = None
        """Positions that passed: all layers of a model get the same."""

    def shard(self, x: Tensor, dim: int) -> Tensor:
        """This rank's rows of a tensor that has all of them along `dim`."""
        return self.rows.shard(x, dim)

    def unshard(self, x: Tensor, dim: int) -> Tensor:
        """All rows, on every rank: see `Placed.unshard`."""
        return self.rows.unshard(x, dim)

    def positions(self, device: Any = None) -> Tensor:
        """The position of each of this rank's rows in its sequence (int64)."""
        return self.rows.positions(device)

    @outside_of_graphs
    def check_positions(self, given: Any) -> None:
        """Refuses positions that count this rank's rows from 0, as a model makes them that is given none. Raises
        `UsageError`."""
        if not isinstance(given, Tensor) or given.ndim > 2 or self._checked is given:
            return
        rows = torch.arange(given.shape[-1], device=given.device)
        own = self.positions(given.device)
        wrong = own.shape == rows.shape and not torch.equal(own, rows) and bool((given == rows).all())
        found = torch.tensor([wrong], dtype=torch.int32, device=given.device)
        for group in self.rows.groups:  # on a rank with the first rows both are right; all refuse, or none
            cast(Any, dist).all_reduce(found, dist.ReduceOp.MAX, group)
        if found.item():
            raise UsageError(
                "position_ids count this rank's rows from 0: pass position_ids=region.positions()[None] to the model, "
                "else each rank rotates its rows as if they were the first"
            )
        self._checked = given

    @outside_of_graphs
    def __call__(self, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Any:
        if id(kernel) not in self._placed:
            attend = context_parallel(
                kernel, self.group, self.rows.layout, self.exchange, param_gradients=self.param_gradients
            )
            s = self.sequences
            self._placed[id(kernel)] = kernel, attend.over(cu_seqlens=s.q) if s.packed else attend.over(s.q[-1])
        return self._placed[id(kernel)][1](q, k, v, **arguments)


@contextmanager
def context_parallel_region(
    group: dist.ProcessGroup | DeviceMesh | None = None,
    Sq: int | None = None,
    *,
    cu_seqlens: Offsets | None = None,
    layout: LayoutName | Layout = "auto",
    exchange: Exchange = "ring",
    param_gradients: Gradients = "whole",
) -> Generator[Region]:
    """A region for one batch: `Sq` rows of all ranks together, or packed sequences. Inside it, attngen's adapters take
    the rows of this rank. A backward pass that computes checkpoints again belongs inside.

    "auto" balances a causal mask. See `context_parallel` for the rest.
    """
    sequences, groups = sequences_of(Sq, None, cu_seqlens, None), groups_of(group, exchange)
    made = laid_out(layout, sequences, groups, lambda: _causal_work(sequences))
    rows = Rows(made, groups.rank, sequences.q, groups.all)
    region = Region(group, exchange, sequences, rows, param_gradients)
    REGIONS.append(region)
    try:
        yield region
    finally:
        REGIONS.remove(region)


def _causal_work(sequences: Sequences) -> Any:
    return np.concatenate([np.arange(sequences.sizes(b)[0]) + 1.0 for b in range(sequences.count)])
