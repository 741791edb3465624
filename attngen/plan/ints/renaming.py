"""Fresh sizes under names that clash with nothing.

A spec may call a size that a param binds anything: `n`, `q0`, `lambda`. Takes an attention and the names that are
taken, returns the same attention with those sizes renamed.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from dataclasses import replace

from attngen.ir.attention import Attention
from attngen.ir.build import index
from attngen.ir.nodes import Expr
from attngen.ir.walk import substitute

_RUNS = re.compile(r"(any|full)[0-9]?_(lo|hi)|part[0-9]{2}_(lo|hi)")  # see `plan.loops`
_PLANNER = frozenset({"s", "m", "n", "x", "ref", "q0", "q1", "k0", "k1", "distance", "by_distance"})


def planner_takes(name: str) -> bool:
    """Whether the planner has a symbol of its own of this name."""
    ours = name.startswith(("row_", "test")) or _RUNS.fullmatch(name) is not None
    return ours or name in _PLANNER or keyword.iskeyword(name)


def with_safe_sizes(attention: Attention, taken: Callable[[str], bool]) -> Attention:
    """`attention` itself if none of its sizes is taken, else with `_size` behind the names of those that are."""
    new: dict[str, str] = {}
    for size in attention.sizes:
        name = size
        while taken(name) or (name != size and name in (*attention.sizes, *new.values())):
            name += "_size"
        new[size] = name
    if all(old == name for old, name in new.items()):
        return attention
    values: dict[Expr, Expr] = {index(old): index(name) for old, name in new.items()}

    def moved(e: Expr) -> Expr:
        return substitute(e, values)

    def moved_or_none(e: Expr | None) -> Expr | None:
        return None if e is None else moved(e)

    n = attention.normalizer
    return replace(
        attention,
        params=tuple(
            replace(p, shape=tuple(map(moved, p.shape)), where=moved_or_none(p.where)) for p in attention.params
        ),
        sizes=tuple(new.values()),
        score=moved(attention.score),
        mask=moved(attention.mask),
        normalizer=replace(
            n,
            weight=moved(n.weight),
            extra=moved_or_none(n.extra),
            stream_weight=moved_or_none(n.stream_weight),
            rescale=moved_or_none(n.rescale),
        ),
        dropout=moved_or_none(attention.dropout),
        assumes=tuple(map(moved, attention.assumes)),
        origin=attention.origin.mapped(moved),
    )
