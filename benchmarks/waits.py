"""Counts how long the tiles of keys of Hopper's backward kernel wait for each other: steps of 132 programs, on a CPU.

    python benchmarks/waits.py --only blocks rollouts          # in several orders
    python benchmarks/waits.py --only blocks --span 2 --together 16

Parts are added to a tile of dQ in the order of the tiles of keys that meet it, so that results have the same bits each
time. A program takes one item after another: a tile of keys, and `span` query heads that share them. A step, which is
one tile of queries, takes 1; it ends `LATENCY` after the step whose part comes before its own, at the soonest; an item
takes `BESIDE` steps more. `together` heads lie side by side. What is printed is the time over that of the same steps
spread evenly: 1.00 is the best there is. Tiles are found by brute force, from the formulas in `hole_masks.py`.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import holes
from hole_masks import Cell

if TYPE_CHECKING:
    import numpy as np

PROGRAMS, KEYS = 132, 128
LATENCY, BESIDE = 0.6, 3.0


def tiles_met(cell: Cell, queries: int) -> list[np.ndarray[Any, Any]]:
    """Which tiles of queries, of so many each, a tile of keys meets: a (keys, queries) table for each KV head of each
    batch."""
    import torch

    given = holes.params(cell, torch.Generator().manual_seed(0))
    made = holes.formula(cell, given)
    assert made.allowed is not None
    k = torch.arange(cell.N)
    found: list[np.ndarray[Any, Any]] = []
    for b, kv_head in product(range(cell.B), range(cell.Hkv)):
        if not (made.batches or made.heads) and found:  # all heads have one mask
            found.append(found[0])
            continue
        h, rows = torch.tensor(kv_head * (cell.Hq // cell.Hkv)), []
        for first in range(0, cell.N, queries):
            q = torch.arange(first, min(first + queries, cell.N))[:, None]
            pairs = torch.broadcast_to(made.allowed(torch.tensor(b), h, q, k), (len(q), cell.N))
            rows.append(pairs.any(0).reshape(-1, KEYS).any(1))
        found.append(torch.stack(rows, 1).numpy())
    return found


Item = tuple[int, int, bool]
"""A tile of keys, a head, and whether it walks from the first queries to the last."""


def waited(met: Sequence[np.ndarray[Any, Any]], members: int, items: Iterator[Item]) -> float:
    """The time over that without waits, of items that walk so many members each."""
    import numpy as np

    free, ended = [0.0] * PROGRAMS, 0.0
    passed = np.zeros((len(met), members, met[0].shape[1]))  # when the last part of a tile of dQ was added
    steps = count = 0
    for tile, head, back in items:
        at = heapq.heappop(free) + BESIDE / 2
        walk = np.nonzero(met[head][tile])[0][:: 1 if back else -1]
        for turns in passed[head]:
            for q in walk:
                at = turns[q] = max(at + 1, turns[q] + LATENCY)
        heapq.heappush(free, at + BESIDE / 2)
        ended, steps, count = max(ended, at + BESIDE / 2), steps + len(walk) * members, count + 1
    return ended * PROGRAMS / (steps + BESIDE * count)


def in_order(met: Sequence[np.ndarray[Any, Any]], together: int, order: str) -> Iterator[Item]:
    """`onwards` begins with the first tile of keys, `backwards`, but for the last heads, with the last one.

    `longest first` begins with that which meets most queries.
    """
    longest = [sorted(range(len(m)), key=lambda t, m=m: -int(m[t].sum())) for m in met]
    for first in range(0, len(met), together):
        back = order == "backwards" and first + together < len(met)
        for place in range(len(met[0])):
            for head in range(first, min(first + together, len(met))):
                tile = longest[head][place] if order == "longest first" else len(met[0]) - 1 - place if back else place
                yield tile, head, back


def main(argv: list[str]) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", nargs="+", default=[""], metavar="KEY", help="cells of holes.py whose keys start so")
    p.add_argument("--span", nargs="+", type=int, default=[1, 2, 4], help="query heads of an item (%(default)s)")
    p.add_argument("--together", nargs="+", type=int, default=[2, 16, 64], help="heads side by side (%(default)s)")
    p.add_argument("--queries", type=int, default=64, help="queries of a tile: 64 at D = 128, else 128 (%(default)s)")
    args = p.parse_args(argv)
    for cell in (c for c in holes.matrix() if c.key.startswith(tuple(args.only))):
        group = cell.Hq // cell.Hkv
        met = tiles_met(cell, args.queries)
        for span in (s for s in args.span if group % s == 0):
            heads = [m for m in met for _ in range(group // span)]
            for together in args.together:
                orders = ("onwards", "backwards", "longest first")
                said = (f"{o} {waited(heads, span, in_order(heads, together, o)):.2f}" for o in orders)
                print(f"{cell.key} span {span} together {together}: {', '.join(said)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
