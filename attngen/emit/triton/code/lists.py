"""Lists of tiles as text, for the kernels that write them and for those that read them, and for the host.

Takes the plan's `Lists`, returns a `ListView`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.torch_shared.expressions import python
from attngen.ir.function import Function, inlined
from attngen.ir.walk import symbols
from attngen.plan.index import items
from attngen.plan.mask.lists import Lists


@dataclass(frozen=True, slots=True)
class ListView:
    """`by_batch`, `by_head`: the constants of functions of lists, `flags` as text. `times`: the number of lists, as a
    factor of their length. `head`, `heads`: whose lists there are, and how many such heads."""

    by_batch: bool
    by_head: bool
    times: str
    head: str = "head"
    heads: str = "Hq"

    @property
    def flags(self) -> str:
        return f"{self.by_batch}, {self.by_head}"

    @property
    def others(self) -> str:
        """Binds the other head of a reader: the head of its keys, or the first query head that reads them."""
        if self.head == "head":
            return "kv_head = items.kv_head_of(head, Hq, Hkv)"
        return "head = items.query_head(kv_head, 0, Hq // Hkv)"


def list_view(lists: Lists | None) -> ListView | None:
    if lists is None:
        return None
    count = host_text(lists.function(items(), "list_count"))
    found = ListView(lists.by_batch, lists.by_head, "" if count == "1" else f" * {count}")
    return (
        replace(found, times=found.times.replace("Hq", "Hkv"), head="kv_head", heads="Hkv") if lists.shared else found
    )


def host_text(function: Function) -> str:
    """What a function of one result returns, as the host writes it."""
    (result,) = inlined(function)
    return python(result, {name: name for name in symbols(result)})
