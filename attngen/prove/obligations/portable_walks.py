"""The walks of the portable kernels, as claims of `tile-ranges`.

Takes a plan, returns a claim for each walk of each direction, if it has some: it takes each tile of its runs once, and
no other; and one that what is cut into pieces is what both walks over keys take. That the runs themselves are right is
what the claims about loops say, and that each tile is in one piece is a claim beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from attngen.ir.build import FALSE
from attngen.plan.gpu_walks import GpuWalks
from attngen.plan.kernel import KernelPlan, by_lists
from attngen.prove.obligations.lists import entries_answer
from attngen.prove.obligations.orders import items_answer, order_answer, readers_answer
from attngen.prove.obligations.tile_tests import apart_answer, mixed_answer
from attngen.prove.obligations.tile_walks import counts_answer
from attngen.prove.obligations.walk_claims import LISTS, WalkClaims
from attngen.prove.verdict import MAP, Claim

ITEMS = "each item is a tile of a head of a batch, and no two are the same"


def portable_walks(claims: WalkClaims) -> Iterator[Claim]:
    plan, own = claims.plan, claims.plan.gpu_walks
    if own is None:
        return
    index = own.index
    sentence = "heads side by side: each tile of each head is one item, and the items of a head rise with the order"
    answer = order_answer(index.of("side_by_side"), claims.work.part())
    yield claims.claim("items, side by side", sentence, answer)
    for f in (
        *(index.of("busy_tiles_first", LATE=late) for late in (False, True)),
        index.of("head_after_head"),
    ):
        answer = items_answer(f, claims.work.part())
        yield claims.claim(f"items, {f.name.replace('_', ' ')}", f"`{f}`: {ITEMS}", answer)
    answer = readers_answer(index.of("kv_head_of"), index.of("query_head"), claims.work.part())
    yield claims.claim("items, heads of keys", "each query head reads the head of keys whose group it is in", answer)
    yield from _walks(claims, plan, own)
    if plan.map is not None:
        if plan.map.mixed != FALSE:
            sentence = "where the extremes of two tiles say that it holds for some pairs and not for others, so it is"
            yield claims.claim(f"{MAP}, mixed", sentence, mixed_answer(plan.attention, plan.map, claims.work))
        sentence = "comparisons whose sides are apart hold for the same pairs"
        yield claims.claim("mask, apart", sentence, apart_answer(plan.attention.mask, claims.work))
        if plan.geometries:
            own = plan.map.lists_of(sequences=True)
            yield claims.claim("lists, map of sequences", LISTS, entries_answer(own, index, claims.work))
        mapped = by_lists(plan)
        assert mapped.gpu_walks is not None
        yield from _walks(claims, mapped, mapped.gpu_walks, " of a list")


def _walks(claims: WalkClaims, plan: KernelPlan, own: GpuWalks, of: str = "") -> Iterator[Claim]:
    """`of`: what the walked tiles are of, if not of all."""
    for kernels, walked, loops, walks in (
        ("forward and dQ", "keys", plan.key_loops, own.keys),
        ("dK/dV", "queries", plan.query_loops, own.queries),
    ):
        for name, mask, walk, runs in (
            ("unmasked", "without", walks.unmasked, loops.full),
            ("masked", "with", walks.masked, loops.partial),
        ):
            sentence = f"{kernels}: the walk over {walked}{of} {mask} the mask"
            yield claims.walk(f"walk of {walked}{of}, {name}", sentence, walk, runs)
    if own.split is not None:
        sentence = f"forward, short queries: as many tiles{of} are cut into pieces as the two walks over keys have"
        answer = counts_answer(claims.context(), own.split, plan.key_loops, claims.work.part())
        yield claims.claim(f"walk of keys{of}, pieces", sentence, answer)
