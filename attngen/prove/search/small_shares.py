"""Shares of small groups, for a counterexample.

Takes the plan's `Shares`, returns the sizes and the place at which they go wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from attngen.ir.nodes import Expr
from attngen.plan.mask.shares import Shares

LARGEST = 6
Found = Mapping[str, int | float | bool]


def _value(e: Expr, names: Mapping[str, int]) -> int:
    from attngen.ir.evaluate import evaluate  # with NumPy, which is not loaded for what z3 shows

    return int(evaluate(e, names, {}))


def wrong_member(shares: Shares) -> Found | None:
    """A share without members, or a member that is in no share, in two, or in none of its group."""
    for group, span in product(range(1, LARGEST), repeat=2):
        names = {"group": group, "span": span}
        seen: set[int] = set()
        for share in range(_value(shares.shares, names)):
            at = {**names, "share": share}
            members = range(_value(shares.first, at), _value(shares.stop, at))
            if not members or not seen.isdisjoint(members) or not 0 <= members[0] <= members[-1] < group:
                return at
            seen.update(members)
        if len(seen) < group:
            return names
    return None


def wrong_part(shares: Shares) -> Found | None:
    """A head of items that is no share of a head of keys; one that another is, too; a place that two items have, or
    that there is no room for."""
    sizes = range(1, LARGEST - 1)
    for heads, count, n_tiles in product(sizes, repeat=3):
        names = {"heads": heads, "shares": count, "n_tiles": n_tiles}
        taken: set[int] = set()
        for head in range(heads * count):
            at = {**names, "head": head}
            kv_head, share = _value(shares.kv_head, at), _value(shares.share, at)
            own = {**names, "kv_head": kv_head, "share": share}
            if not (0 <= kv_head < heads and 0 <= share < count) or _value(shares.head_of, own) != head:
                return {**at, **own}
            for tile in range(n_tiles):
                part = _value(shares.part, {**at, "tile": tile})
                if part in taken or not 0 <= part < heads * count * n_tiles:
                    return {**at, "tile": tile}
                taken.add(part)
    return None
