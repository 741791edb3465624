"""Shares of small groups, for a counterexample.

Takes functions of `plan.index`, returns the sizes and the place at which they go wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from attngen.ir.function import Function, results_of

LARGEST = 6
Found = Mapping[str, int | float | bool]


def wrong_member(members: Function, share_count: Function, head_of_share: Function) -> Found | None:
    """A head of items that visits nobody, or no member of a group; or a member that is not visited once."""
    for group, span, n_kv, batches in product(range(1, LARGEST), range(1, LARGEST), (1, 2, 3), (1, 2)):
        sized = {"group": group, "span": span, "Hkv": n_kv, "Hq": group * n_kv}
        (count,) = results_of(share_count, {"group": group, "span": span})
        seen: set[tuple[int, int, int]] = set()
        for kv_head, share in product(range(batches * n_kv), range(count)):
            (head,) = results_of(head_of_share, {"kv_head": kv_head, "share": share, "shares": count})
            batch, own, start, end = results_of(members, {p.id: {**sized, "head": head}[p.id] for p in members.params})
            found = {(batch, own, member) for member in range(start, end)}
            inside = 0 <= start < end <= group and batch * n_kv + own == kv_head and 0 <= own < n_kv
            if not inside or not seen.isdisjoint(found):
                return {**sized, "head": head, "start": start, "end": end}
            seen |= found
        if len(seen) < group * n_kv * batches:
            return sized
    return None


def wrong_alone(members: Function) -> Found | None:
    """A head of keys whose item does not visit its whole group."""
    for group, n_kv, batches in product(range(1, LARGEST), (1, 2, 3), (1, 2)):
        for head in range(batches * n_kv):
            args = {"head": head, "Hq": group * n_kv, "Hkv": n_kv, "span": 1}
            found = results_of(members, {p.id: args[p.id] for p in members.params})
            if found != (head // n_kv, head % n_kv, 0, group):
                return {**args, **{f"result {i}": x for i, x in enumerate(found)}}
    return None


def wrong_part(part_of: Function) -> Found | None:
    """A place that two items have, or that there is no room for."""
    for heads, n_tiles in product(range(1, LARGEST), repeat=2):
        taken: set[int] = set()
        for head, tile in product(range(heads), range(n_tiles)):
            (part,) = results_of(part_of, {"head": head, "tile": tile, "n_tiles": n_tiles})
            if part in taken or not 0 <= part < heads * n_tiles:
                return {"heads": heads, "n_tiles": n_tiles, "head": head, "tile": tile}
            taken.add(part)
    return None
