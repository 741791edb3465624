"""Where a kernel writes down what tests of data say of tiles, and where other kernels read it.

The functions of lists are `plan.index`; `prove.obligations.lists` shows that what is read of a tile was written of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.function import Function
from attngen.plan.index import Index


@dataclass(frozen=True, slots=True)
class Lists:
    """Whether lists of different batches, or heads, may differ; `shared`: those of query heads that share keys do not,
    so heads are those of keys."""

    by_batch: bool
    by_head: bool
    shared: bool = False

    def function(self, index: Index, name: str) -> Function:
        """The function of that name, for such lists."""
        return index.of(name, BY_BATCH=self.by_batch, BY_HEAD=self.by_head)
