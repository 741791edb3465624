"""The lists of a `HopperPlan`, and the turns that follow from them: edits of them, and brute force.

`edited_lists` takes a `HopperPlan` whose backward kernel has lists, returns each with one edit. `wrong_lists` takes a
plan (mutated or not), returns the first mistake in words, or nothing: few tiles are written one after the other and
read again, and each set of tiles of keys that may meet a tile of queries takes its turns. It shares no code with the
prover.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import combinations, product

from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.plan.hopper import HopperPlan
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.order import Directed
from mutation.turns import off_by_one


def edited_lists(plan: HopperPlan) -> Iterator[tuple[str, HopperPlan]]:
    assert plan.backward is not None and plan.backward.lists is not None
    for what, lists in _edited(plan.backward.lists):
        yield f"lists, {what}", replace(plan, backward=replace(plan.backward, lists=lists))
    listed = plan.turns.listed
    for field in fields(listed):
        value = getattr(listed, field.name)
        for way in ("onwards", "backwards") if isinstance(value, Directed) else ("",):
            for what, e in off_by_one(getattr(value, way) if way else value):
                made = replace(listed, **{field.name: replace(value, **{way: e}) if way else e})
                yield f"turns, {field.name} {way}: {what}", replace(plan, turns=replace(plan.turns, listed=made))


def _edited(lists: Lists) -> Iterator[tuple[str, Lists]]:
    for name in ("count", "place", "of_batch", "row", "entry"):
        for what, e in off_by_one(getattr(lists, name)):
            yield f"{name}: {what}", replace(lists, **{name: e})
    for n, s in enumerate(lists.steps):
        for what, e in off_by_one(s.value):
            steps = (*lists.steps[:n], replace(s, value=e), *lists.steps[n + 1 :])
            yield f"{s.name}: {what}", replace(lists, steps=steps)


def _value(e: Expr, names: dict[str, int]) -> int:
    return int(evaluate(e, names, {}))


def wrong_lists(plan: KernelPlan) -> str:
    assert plan.hopper is not None and plan.hopper.backward is not None and plan.hopper.backward.lists is not None
    lists = plan.hopper.backward.lists
    for sizes in product((1, 2, 3), repeat=4):
        found = _read(lists, *sizes)
        if found:
            return f"{found}; batches, heads, tiles, parts {sizes}"
    for n_tiles, n_walked in product((1, 2, 3, 5), (1, 2, 3)):
        for way in ("onwards", "backwards"):
            found = _turns(plan, way, n_tiles, n_walked)
            if found:
                return f"{found}; {n_tiles} tiles of keys, {n_walked} of queries, {way}"
    return _searched(plan.hopper)


def _read(lists: Lists, batches: int, heads: int, n_tiles: int, parts: int) -> str:
    """All items write whose they are; then each program reads its own."""
    names = {"B": batches, "Hq": heads, "n_tiles": n_tiles, "parts": parts}
    room = _value(lists.count, names) * n_tiles * parts
    written: dict[int, tuple[int, ...]] = {}
    for item in range(room):
        at = {**names, "item": item}
        for step in lists.steps:
            at[step.name] = _value(step.value, at)
        whose = _value(lists.of_batch, at) if lists.by_batch else 0, _value(lists.of_head, at) if lists.by_head else 0
        written[item] = (*whose, at["tile"], at["part"])
    for batch, head, tile, part in product(range(batches), range(heads), range(n_tiles), range(parts)):
        at = {**names, "batch": batch, "head": head, "tile": tile, "part": part}
        at["place"] = _value(lists.place, at)
        at["row"] = _value(lists.row, at)
        own = (batch if lists.by_batch else 0, head if lists.by_head else 0, tile, part)
        if written.get(_value(lists.entry, at)) != own:
            return f"{own} reads {written.get(_value(lists.entry, at))}"
    return ""


def _turns(plan: KernelPlan, way: str, n_tiles: int, n_walked: int) -> str:
    """Each set of tiles of keys meets one tile of queries; another list's cells are beside it."""
    assert plan.hopper is not None
    turns, listed = plan.hopper.turns, plan.hopper.turns.listed
    names = {"n_tiles": n_tiles, "n_walked": n_walked}
    cells: dict[int, tuple[int, int, int]] = {}
    for place, side, at in product(range(3), range(2), range(n_walked)):
        cell = _value(listed.cell, {**names, "place": place, "way": side, "at": at})
        if cell in cells or not 0 <= cell < 6 * n_walked:
            return f"cell {cell} of list {place}, way {side}, tile {at}"
        cells[cell] = place, side, at
    tiles = {o: n_tiles - 1 - o if way == "backwards" else o for o in range(n_tiles)}
    noted = {o: _value(getattr(listed.noted, way), {**names, "tile": tile}) for o, tile in tiles.items()}
    for size in range(1, n_tiles + 1):
        for met in combinations(range(n_tiles), size):
            kept = max(0, *(noted[o] for o in met))
            for at, o in enumerate(met):
                waits = _value(listed.first, {**names, "noted": kept}) < o
                if waits != (at > 0):
                    return f"of {met}, {o} waits: {waits}"
                passed = [0, *(_value(turns.passed, {"order": other}) for other in met[:at])]
                if waits and max(passed[:-1]) >= passed[-1]:
                    return f"of {met}, {o} awaits a turn that an earlier tile passes, too: {passed}"
    return ""


def _searched(plan: HopperPlan) -> str:
    """A warp finds the last earlier tile in the first chunk that has one."""
    listed = plan.turns.listed
    for order in (1, 2, 31, 32, 33, 64, 65):
        start = _value(listed.chunk, {"order": order})
        for wanted in {0, 1, 30, 31, 32, order - 1} & set(range(order)):
            found = None
            for chunk in range(start, -1, -1):
                places = [_value(listed.other, {"chunk": chunk, "lane": lane}) for lane in range(32)]
                here = [o for o in places if o in {0, wanted}]
                if here:
                    found = max(here)
                    break
            if found != wanted:
                return f"order {order} finds {found}, not {wanted}"
    return ""
