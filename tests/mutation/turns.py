"""The order of items and the turns of a plan: edits of them, and brute force, a queue of few small heads that one
program takes alone.

`edited_orders` takes a plan, `edited_turns` takes `Turns`; they return each with one edit. `wrong_items` and
`wrong_turns` take a plan (mutated or not), return the first mistake in words, or nothing. Where one program takes all
tickets, to wait for a higher one is a deadlock. They share no code with the prover.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from attngen.ir.build import add, integer, sub
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.ir.printing import expression as text
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.loops import Assigned
from attngen.plan.mask.order import Order
from attngen.plan.mask.turns import Turns
from mutation.edits import Edit, edits


def off_by_one(e: Expr) -> Iterator[Edit]:
    yield from edits(e)
    yield f"{text(e)} + 1", add(e, integer(1))
    yield f"{text(e)} - 1", sub(e, integer(1))


def edited_orders(plan: KernelPlan) -> Iterator[tuple[str, KernelPlan]]:
    for name in ("in_turn", "one_by_one"):
        for what, order in _edited_order(getattr(plan.gpu_walks, name)):
            assert plan.gpu_walks is not None
            yield f"{name}, {what}", replace(plan, gpu_walks=replace(plan.gpu_walks, **{name: order}))


def _edited_order(o: Order) -> Iterator[tuple[str, Order]]:
    for n, s in enumerate(o.steps):
        for what, e in off_by_one(s.value):
            yield f"{s.name}: {what}", replace(o, steps=(*o.steps[:n], Assigned(s.name, e), *o.steps[n + 1 :]))
    for what, e in off_by_one(o.head):
        yield f"head: {what}", replace(o, head=e)
    for way in ("onwards", "backwards"):
        for what, e in off_by_one(getattr(o.tile, way)):
            yield f"tile {way}: {what}", replace(o, tile=replace(o.tile, **{way: e}))


def edited_turns(t: Turns) -> Iterator[tuple[str, Turns]]:
    for field in ("few", "awaited", "passed"):
        for what, e in off_by_one(getattr(t, field)):
            yield f"{field}: {what}", replace(t, **{field: e})
    for what, e in edits(t.back):
        yield f"back: {what}", replace(t, back=e)
    for way in ("onwards", "backwards"):
        for what, e in off_by_one(getattr(t.before, way)):
            yield f"before {way}: {what}", replace(t, before=replace(t.before, **{way: e}))


def wrong_turns(plan: KernelPlan) -> str:
    assert plan.hopper is not None and plan.gpu_walks is not None
    for n_tiles, heads, together, few, may in product((1, 2, 3, 5), (1, 2, 3, 7, 9), (1, 2, 3), (False, True), (0, 1)):
        found = _queue(plan.gpu_walks.in_turn, plan.hopper.turns, n_tiles, heads, together, few, bool(may))
        if found:
            return f"{found}; {n_tiles} tiles of {heads} heads, {together} together, few {few}, backwards {bool(may)}"
    return ""


def wrong_items(plan: KernelPlan) -> str:
    for name in ("in_turn", "one_by_one"):
        order: Order = getattr(plan.gpu_walks, name)
        for n_tiles, heads, together, way in product(
            (1, 2, 3, 5), (1, 2, 3, 7, 9), (1, 2, 3), ("onwards", "backwards")
        ):
            names, seen = {"n_tiles": n_tiles, "heads": heads, "together": together}, list[tuple[int, int]]()
            for item in range(n_tiles * heads):
                names["item"] = item
                for step in order.steps:
                    names[step.name] = _value(step.value, names)
                at = _value(order.head, names), _value(getattr(order.tile, way), names)
                earlier = [tile for head, tile in seen if head == at[0]]
                if earlier and (at[1] > earlier[-1]) != (way == "onwards"):
                    return f"{name}: item {item} is tile {at[1]} of head {at[0]}, which comes too late"
                seen.append(at)
            if sorted(seen) != list(product(range(heads), range(n_tiles))):
                return f"{name}: {n_tiles} tiles of {heads} heads, {together} together, {way}: {seen}"
    return ""


def _value(e: Expr, names: dict[str, int]) -> int:
    return int(evaluate(e, names, {}))


def _queue(order: Order, turns: Turns, n_tiles: int, heads: int, together: int, few: bool, may: bool) -> str:
    """All tickets in turn. A head has one tile of dQ, to which all of its tiles of keys add."""
    names = {"n_tiles": n_tiles, "heads": heads, "together": together}
    if few:
        names["together"] = _value(turns.few, names)
    cells, last = [0] * heads, [-1] * heads
    tiles: set[tuple[int, int]] = set()
    for item in range(n_tiles * heads):
        names["item"] = item
        for step in order.steps:
            names[step.name] = _value(step.value, names)
        head, back = _value(order.head, names), may and bool(_value(turns.back, names))
        way = "backwards" if back else "onwards"
        tile = _value(getattr(order.tile, way), names)
        if not (0 <= head < heads and 0 <= tile < n_tiles) or (head, tile) in tiles:
            return f"ticket {item} is tile {tile} of head {head}"
        tiles.add((head, tile))
        if names["order"] != 0:
            if cells[head] != _value(turns.awaited, names):
                return f"tile {tile} of head {head} waits for a turn that no lower ticket passes"
            if last[head] != _value(getattr(turns.before, way), {**names, "tile": tile}):
                return f"tile {tile} of head {head} comes after tile {last[head]}"
        elif last[head] >= 0:
            return f"tile {tile} of head {head} waits for nobody, and is not the first"
        cells[head], last[head] = _value(turns.passed, names), tile
        if cells[head] < 1:
            return f"tile {tile} of head {head} leaves the cell at {cells[head]}"
    return ""
