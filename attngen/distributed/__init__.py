"""One sequence over many chips: who holds which rows, what is computed where, and what is sent.

`layout` and `schedule` are values in plain Python. What runs them is imported when it is asked for: `context_parallel`
and its region need torch, `attngen.distributed.jax` needs JAX.
"""

from __future__ import annotations

from attngen.distributed.layout import Layout, balanced, contiguous, headtail
from attngen.distributed.schedule import Piece, Round, Schedule, Sequences, Transfer, row_work, schedule

__all__ = [
    "Layout",
    "Piece",
    "Round",
    "Schedule",
    "Sequences",
    "Transfer",
    "balanced",
    "contiguous",
    "headtail",
    "row_work",
    "schedule",
]
