"""Items of small sizes, for a counterexample to the functions by which kernels find tiles and heads.

Takes functions of `plan.index`, returns the sizes and the item at which they go wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, product

from attngen.ir.function import Function, arrays_of, results_of

LARGEST = 5
Found = Mapping[str, int | float | bool]


def _called(f: Function, names: Mapping[str, int]) -> tuple[int, ...]:
    return results_of(f, {p.id: names[p.id] for p in f.params})


def _rows(f: Function, cases: Sequence[Mapping[str, int]]) -> list[tuple[int, ...]]:
    """What it returns for each case: all at once."""
    import numpy as np  # which no proof needs

    given = {p.id: np.array([case[p.id] for case in cases], dtype=np.int64) for p in f.params}
    columns = [np.broadcast_to(x, len(cases)).tolist() for x in arrays_of(f, given)]
    return list(zip(*columns, strict=True))


def wrong_order(side_by_side: Function) -> Found | None:
    """An item that is no tile of a head, or one that another has, or one that comes before a tile that is earlier in
    its head's order; or two of a head in different groups."""
    sizes = range(1, LARGEST)
    every = [
        {"n_tiles": n_tiles, "heads": heads, "together": together}
        for n_tiles, heads, together in product(sizes, sizes, sizes)
    ]
    cases = [{**sized, "item": item} for sized in every for item in range(sized["n_tiles"] * sized["heads"])]
    found = iter(zip(cases, _rows(side_by_side, cases), strict=True))
    for sized in every:
        taken: dict[int, int] = {}
        groups: dict[int, int] = {}
        for names, (first, order, head) in islice(found, sized["n_tiles"] * sized["heads"]):
            near = first <= head < first + sized["together"]
            inside = 0 <= head < sized["heads"] and near and order == taken.get(head, 0)
            if not inside or groups.setdefault(head, first) != first:
                return {**names, "first": first, "order": order, "head": head}
            taken[head] = order + 1
        if set(taken.values()) != {sized["n_tiles"]}:
            return sized
    return None


def wrong_item(f: Function, *, ordered: bool = False) -> Found | None:
    """An item that is no tile of a head of a batch, or the same as another. `ordered`: the function returns a tile, its
    place in the order, the way, and a head of all batches; items of a head go one way, and rise with the order."""
    cases: list[dict[str, int]] = []
    for n_tiles, n_batches, n_heads, together in product(range(1, LARGEST), repeat=4):
        sized = {"n_tiles": n_tiles, "n_batches": n_batches, "n_heads": n_heads, "together": together}
        n_items = n_tiles * n_batches * n_heads
        counts = dict.fromkeys(("n_items", "n_programs", "programs"), n_items)
        cases += [{**sized, **counts, "item": item, "program": item} for item in range(n_items)]
    seen: set[tuple[int, ...]] = set()
    ways: dict[int, int] = {}
    for names, results in zip(cases, _rows(f, cases), strict=True):
        n_tiles, n_batches, n_heads = (names[size] for size in ("n_tiles", "n_batches", "n_heads"))
        if names["item"] == 0:  # the first of other sizes
            seen, ways = set(), {}
        if ordered:
            tile, order, back, head = results
            own, most = (order, head), (n_tiles, n_batches * n_heads)
            late = ways.setdefault(head, back) != back or order != sum(h == head for _, h in seen)
            wrong = late or not 0 <= tile < n_tiles
        else:
            own, most, wrong = results, (n_tiles, n_batches, n_heads), False
        if wrong or own in seen or not all(0 <= x < size for x, size in zip(own, most, strict=True)):
            return {**names, **{f"result {i}": x for i, x in enumerate(own)}}
        seen.add(own)
    return None


def wrong_neighbour(tile_in_order: Function, before: Function) -> Found | None:
    """A place in the order whose tile is none, or another's; or whose tile before it is another."""
    ways = (0, 1) if dict(before.flags)["BACKWARDS"] else (0,)
    for n_tiles, back in product(range(1, LARGEST), ways):
        sized = {"n_tiles": n_tiles, "back": back}
        tiles = [_called(tile_in_order, {**sized, "order": at})[0] for at in range(n_tiles)]
        if sorted(tiles) != list(range(n_tiles)):
            return sized
        for order, tile in enumerate(tiles):
            (earlier,) = _called(before, {**sized, "tile": tile})
            if not 0 <= earlier < n_tiles or (order and earlier != tiles[order - 1]):
                return {**sized, "tile": tile, "before": earlier}
    return None


def wrong_reader(kv_head_of: Function, query_head: Function) -> Found | None:
    """A query head that reads a head of keys that is not its own."""
    for group, n_kv in product(range(1, LARGEST), repeat=2):
        sized = {"group": group, "Hkv": n_kv, "Hq": group * n_kv}
        for kv_head, member in product(range(n_kv), range(group)):
            (head,) = _called(query_head, {**sized, "kv_head": kv_head, "member": member})
            if head != kv_head * group + member or _called(kv_head_of, {**sized, "head": head}) != (kv_head,):
                return {**sized, "kv_head": kv_head, "member": member, "head": head}
    return None
