"""What a plan gives up where a tile range is not proved: those tiles are visited, and masked.

Takes a plan and the claims about its tile ranges, returns a plan that uses none of the unknown ones, and says in words
what was dropped. `any` becomes everything, a stretch of `all` is left out: both always hold.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from attngen.ir.build import index, integer
from attngen.ir.walk import symbols
from attngen.plan.kernel import KernelPlan, with_loops
from attngen.plan.mask.loops import loops
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from attngen.plan.tiles.hopper import hopper_plan
from attngen.prove.verdict import DIAGONALS, MAP, TURNS, Claim


def weakened(plan: KernelPlan, unknown: Collection[Claim]) -> tuple[KernelPlan, tuple[str, ...]]:
    """The plan without the ranges that these claims leave open; the plan itself if there is nothing to drop."""
    dropped: list[str] = []
    subjects = {c.subject for c in unknown}
    keys = _without(plan.keys, "keys", subjects, dropped)
    queries = _without(plan.queries, "queries", subjects, dropped)
    if DIAGONALS in subjects:
        plan = replace(plan, diagonals=())
        dropped.append("that pairs as far apart have one bias (each computes its own)")
    own = plan.hopper
    turns = TURNS in subjects and own is not None and own.backward is not None
    if not (dropped or turns or MAP in subjects):
        return plan, ()
    found = with_loops(replace(plan, keys=keys, queries=queries), loops(keys), loops(queries))
    consecutive = TURNS not in subjects
    if not consecutive:
        dropped.append("that tiles of keys take turns in their order (a list says who waits for whom)")
    if MAP in subjects:
        found = replace(found, map=None)
        dropped.append("a map of the tiles that hold a pair (those between the first and the last are walked)")
    if found.hopper is not None:
        found = replace(found, hopper=hopper_plan(found, found.attention.tile, consecutive))
    return found, tuple(dropped)


def _without(ranges: TileRanges, name: str, subjects: set[str], dropped: list[str]) -> TileRanges:
    mistrusted = {t.name for t in ranges.tests if f"{name}, {t.name}" in subjects}
    everything = (Segment(integer(0), index("Sk" if ranges.axis == "k" else "Sq")),)

    def doubtful(s: Segment) -> bool:
        read = symbols(s.lo) | symbols(s.hi)
        return any(r.startswith(f"{test}_") for r in read for test in mistrusted)

    some, every = ranges.any, ranges.all
    if f"{name}, loops" in subjects:
        some, every = everything, ()
        dropped.append(f"which tiles of {name} to walk (all are visited, and masked)")
        return replace(ranges, any=some, all=every, tests=())
    if f"{name}, any" in subjects or any(doubtful(s) for s in some):
        some = everything
        dropped.append(f"which tiles of {name} to skip (none is)")
    many = len(every) > 1
    kept = tuple(
        s
        for number, s in enumerate(every, 1)
        if f"{name}, all" + (f" {number}" if many else "") not in subjects and not doubtful(s)
    )
    if kept != every:
        dropped.append(f"which tiles of {name} need no mask ({'fewer do' if kept else 'all are masked'})")
    read = frozenset[str]().union(*(symbols(s.lo) | symbols(s.hi) for s in (*some, *kept)))
    tests = tuple(t for t in ranges.tests if any(r.startswith(f"{t.name}_") for r in read))
    return replace(ranges, any=some, all=kept, tests=tests)
