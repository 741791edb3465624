"""One sequence over many chips: who holds which rows, what is computed where, and what is sent.

Layouts and schedules are values in plain Python (`distributed/plan`). What runs them is imported when it is asked for:
`context_parallel` and its region need torch, `attngen.distributed.jax` needs JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngen.distributed.plan.layout import Layout, balanced, contiguous, headtail
from attngen.distributed.plan.schedule import Piece, Round, Schedule, Sequences, Transfer, row_work, schedule

if TYPE_CHECKING:
    from attngen.distributed.torch.context import context_parallel
    from attngen.distributed.torch.region import context_parallel_region

__all__ = [
    "Layout",
    "Piece",
    "Round",
    "Schedule",
    "Sequences",
    "Transfer",
    "balanced",
    "context_parallel",
    "context_parallel_region",
    "contiguous",
    "headtail",
    "row_work",
    "schedule",
]


def __getattr__(name: str) -> object:
    if name == "context_parallel":
        from attngen.distributed.torch.context import context_parallel

        return context_parallel
    if name == "context_parallel_region":
        from attngen.distributed.torch.region import context_parallel_region

        return context_parallel_region
    raise AttributeError(f"module 'attngen.distributed' has no attribute {name!r}")
