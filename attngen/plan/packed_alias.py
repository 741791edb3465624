"""Whether a dense batch of one sequence is computed as packed rows.

Where heads lie inside rows, such a batch and a packed tensor of one sequence are the same memory. Kernels of packed
sequences compute several pieces of it in one call. Takes the attention and its tile ranges; returns a `PackedAlias`, or
None where the two differ, or packed kernels are slower. `distributed` asks it which kernels compute a rank's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.attention import Attention
from attngen.ir.axes import has_one_batch, reads_rows
from attngen.plan.mask.ranges import TileRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedAlias:
    """For which tensors packed kernels are as fast. `head_dims`: up to this head dim of Q, K and V. `learns`: also if
    some param has a gradient."""

    head_dims: int
    learns: bool

    def serves(self, *head_dims: int, learns: bool) -> bool:
        return max(head_dims) <= self.head_dims and (self.learns or not learns)


def packed_alias(attention: Attention, keys: TileRanges) -> PackedAlias | None:
    """None: packed tensors have no such params, or packed kernels are slower (tests of data; dropout)."""
    if reads_rows(attention) or not has_one_batch(attention):
        return None
    if keys.tests or attention.dropout is not None:
        return None
    return PackedAlias(head_dims=128, learns=False)
