"""The walks of the portable kernels, as claims of `tile-ranges`.

Takes a plan, returns a claim for each walk of each direction: it takes each tile of its runs once, and no other. That
the runs themselves are right is what the claims about loops say.
"""

from __future__ import annotations

from collections.abc import Iterator

from attngen.prove.obligations.walk_claims import WalkClaims
from attngen.prove.verdict import Claim


def portable_walks(claims: WalkClaims) -> Iterator[Claim]:
    plan = claims.plan
    for kernels, walked, loops, walks in (
        ("forward and dQ", "keys", plan.key_loops, plan.key_walks),
        ("dK/dV", "queries", plan.query_loops, plan.query_walks),
    ):
        for name, mask, walk, runs in (
            ("unmasked", "without", walks.unmasked, loops.full),
            ("masked", "with", walks.masked, loops.partial),
        ):
            sentence = f"{kernels}: the walk over {walked} {mask} the mask"
            yield claims.walk(f"walk of {walked}, {name}", sentence, walk, runs)
