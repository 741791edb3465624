"""Which query heads an item of the backward kernel of compute capability 9.0 walks, as text for the host.

Takes the plan's `Wanted`, and the function of shares; returns lines of the launcher.
"""

from __future__ import annotations

import re

from attngen.emit.torch_shared.expressions import python
from attngen.ir.function import Function
from attngen.ir.nodes import Expr, Symbol
from attngen.ir.walk import nodes
from attngen.plan.mask.shares import CACHED, LIVE, PARTS, SHORT, Wanted

_LIMITS = {SHORT: "SHORT_ROWS", CACHED: "CACHED_ROWS", LIVE: "LIVE_ROWS", PARTS: "MOST_SUMS"}
"""What the host calls the plan's limits, which are in bytes."""
_MEANINGS = {
    SHORT: "bytes of a head's rows of Q, dO and dQ: fewer are read quickly from anywhere",
    CACHED: "likewise: more have left the cache when the next item begins",
    LIVE: "likewise, of all heads side by side: at most",
    PARTS: "bytes of a call's partial sums where each query head has items of its own: at most",
}
LIMITS = tuple(f"{name} = {limit // 2**20} * 2**20  # {_MEANINGS[limit]}" for limit, name in _LIMITS.items())
"""Lines that bind them."""


def host_lines(shares: Function, wanted: Wanted, *, sequences: bool = False) -> tuple[str, ...]:
    """Lines that bind `heads`, how many heads of keys have tiles of their own; `wanted`, `span` and `shares`; and in
    which order items are taken, `together` and `backwards`. Sequences have `each` tiles of keys in the mean; of those
    that are `short` many are walked at a time, so that heads can stay together; of `paired` ones tiles alternate."""
    tiles = "each" if sequences else "n_tiles"
    heads = wanted.listed if sequences else wanted.heads
    when, in_turn = ("span > 1",) * wanted.onwards, "wanted"
    size: tuple[str, ...] = ()
    if wanted.long is not None:
        when, in_turn = (*when, f"size > {_LIMITS[CACHED]}"), in_turn if wanted.onwards else _host(wanted.long)
        rows = "each * BK" if sequences else "Sq"
        size = (f"size = {rows} * (6 * D + 2 * Dv)  # bytes of a head's rows of Q, dO and dQ",)
    items = f"({tiles} * span)" if wanted.whole and not sequences else tiles
    order = f"max(row.together, row.ahead // {items}), row.BACKWARDS"
    if sequences and wanted.paired:  # sequences are unlike, and the mean says little of the longest
        order = "row.together, row.BACKWARDS"
    if sequences and wanted.listed_turn is not None:
        in_turn = _host(wanted.listed_turn)
    if when:
        order = f"({in_turn}, False) if {' or '.join(when)} else ({order})"
    short = f"short = row.BACKWARDS and Hq > Hkv and each < {wanted.few}"
    return (
        *(("each = max(1, n_tiles // B)", short) if sequences else ()),
        *size,
        f"heads, group = {'Hkv' if sequences else 'B * Hkv'}, Hq // Hkv",
        f"wanted = {_host(heads)}",
        f"span = {'group if short else ' if sequences else ''}host.equal_share(group, heads, wanted)",
        f"shares = {_host(shares.results[0])}",
        f"together, backwards = {order}",
        *(
            (f"paired = {wanted.paired or 'short'}", "if short:", "    together, backwards = 2, True")
            if sequences
            else ()
        ),
    )


def _host(e: Expr) -> str:
    text = python(e, {s.id: s.id for s in nodes(e) if isinstance(s, Symbol)})
    return re.sub(r"\b\d+\b", lambda number: _LIMITS.get(int(number[0]), number[0]), text)
