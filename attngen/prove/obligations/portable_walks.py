"""The walks of the portable kernels, as claims of `tile-ranges`.

Takes a plan, returns a claim for each walk of each direction, if it has some: it takes each tile of its runs once, and
no other; and one that what is cut into pieces is what both walks over keys take. That the runs themselves are right is
what the claims about loops say, and that each tile is in one piece is a claim beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from attngen.prove.obligations.orders import heads_answer, order_answer
from attngen.prove.obligations.tile_walks import counts_answer
from attngen.prove.obligations.walk_claims import WalkClaims
from attngen.prove.verdict import Claim

HEADS = "each number among the heads of all batches is a batch and a head, and no two are the same"


def portable_walks(claims: WalkClaims) -> Iterator[Claim]:
    plan, own = claims.plan, claims.plan.gpu_walks
    if own is None:
        return
    for name, order in (("in turn", own.in_turn), ("one by one", own.one_by_one)):
        sentence = f"heads {name}: each tile of each head is one item, and the items of a head rise with the order"
        yield claims.claim(f"items, {name}", sentence, order_answer(claims.context(), order, claims.work))
    yield claims.claim("items, heads", HEADS, heads_answer(claims.context(), own.heads, claims.work))
    for kernels, walked, loops, walks in (
        ("forward and dQ", "keys", plan.key_loops, own.keys),
        ("dK/dV", "queries", plan.query_loops, own.queries),
    ):
        for name, mask, walk, runs in (
            ("unmasked", "without", walks.unmasked, loops.full),
            ("masked", "with", walks.masked, loops.partial),
        ):
            sentence = f"{kernels}: the walk over {walked} {mask} the mask"
            yield claims.walk(f"walk of {walked}, {name}", sentence, walk, runs)
    if own.split is not None:
        sentence = "forward, short queries: as many tiles are cut into pieces as the two walks over keys have"
        answer = counts_answer(claims.context(), own.split, plan.key_loops, claims.work.part())
        yield claims.claim("walk of keys, pieces", sentence, answer)
