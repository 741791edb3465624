"""The shares of a `HopperPlan`: edits of them, and brute force, the sums of dK of small groups.

`edited_shares` takes `Shares`, returns each with one edit. `wrong_shares` takes a plan (mutated or not), returns the
first mistake in words, or nothing. Each query head adds a power of two of its own to each tile of its head of keys, so
a sum tells who is in it. It shares no code with the prover.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product

from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.shares import Shares
from mutation.turns import off_by_one


def edited_shares(s: Shares) -> Iterator[tuple[str, Shares]]:
    for field in fields(s):
        for what, e in off_by_one(getattr(s, field.name)):
            yield f"{field.name}: {what}", replace(s, **{field.name: e})


def wrong_shares(plan: KernelPlan) -> str:
    assert plan.hopper is not None
    for group, span, heads, n_tiles in product((1, 2, 3, 4, 7), (1, 2, 3, 5, 8), (1, 2, 3), (1, 2)):
        found = _sums(plan.hopper.shares, group, span, heads, n_tiles)
        if found:
            return f"{found}; groups of {group} by {span}, {heads} heads of keys, {n_tiles} tiles"
    return ""


def _value(e: Expr, names: dict[str, int]) -> int:
    return int(evaluate(e, names, {}))


def _sums(shares: Shares, group: int, span: int, heads: int, n_tiles: int) -> str:
    """All items leave their parts, and then those of each tile are added."""
    names = {"group": group, "span": span, "n_tiles": n_tiles}
    names["shares"] = count = _value(shares.shares, names)
    if count < 1:
        return "no share"
    parts: dict[int, int] = {}
    for item in range(heads * count * n_tiles):
        at = {**names, "head": item // n_tiles, "tile": item % n_tiles}
        kv_head, at["share"] = _value(shares.kv_head, at), _value(shares.share, at)
        members = range(_value(shares.first, at), _value(shares.stop, at))
        if not members:
            return f"head {at['head']} walks nobody, and never ends"
        if not 0 <= kv_head < heads or members[0] < 0 or members[-1] >= group:
            return f"head {at['head']} walks members {members} of head {kv_head} of keys"
        part = _value(shares.part, at)
        if part in parts or not 0 <= part < heads * count * n_tiles:
            return f"tile {at['tile']} of head {at['head']} has place {part}"
        parts[part] = sum(1 << (kv_head * group + m) for m in members) << (at["tile"] * heads * group)
    for kv_head, tile in product(range(heads), range(n_tiles)):
        total = 0
        for share in range(count):
            head = _value(shares.head_of, {**names, "kv_head": kv_head, "share": share})
            total += parts.get(_value(shares.part, {**names, "head": head, "tile": tile}), 0)
        if total != (1 << group) - 1 << (kv_head * group + tile * heads * group):
            return f"tile {tile} of head {kv_head} of keys sums {total:b}"
    return ""
