"""The region of context parallelism that is open. Adapters look here; without a region nothing more is imported."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from attngen.distributed.plan.schedule import Sequences
from attngen.kernel import Kernel


class OpenRegion(Protocol):
    """What adapters use of a region, which they call with the rows of this rank."""

    @property
    def sequences(self) -> Sequences: ...

    def check_positions(self, given: Any) -> None: ...

    def __call__(self, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Any: ...


REGIONS: list[OpenRegion] = []
"""The innermost last. Of the process, not of a thread: autograd computes checkpoints again in threads of its own."""


def current_region() -> OpenRegion | None:
    """The innermost region, where there is one."""
    return REGIONS[-1] if REGIONS else None
