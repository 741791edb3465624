"""The region of context parallelism that is open. Adapters look here; without a region nothing more is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngen.distributed.torch.region import Region

REGIONS: list[Region] = []
"""The innermost last. Of the process, not of a thread: autograd computes checkpoints again in threads of its own."""


def current_region() -> Region | None:
    """The innermost region, where there is one."""
    return REGIONS[-1] if REGIONS else None
