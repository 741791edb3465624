"""The walks of the kernels of compute capability 9.0, as claims of `tile-ranges`.

Takes a plan, returns a claim for each walk that its `HopperPlan` holds: a walk takes each tile of its runs once; the
steps that a warpgroup skips take no tile that its own rows meet; ends brought to the end of the sequence lose no tile;
a hull covers every run, and a warpgroup takes what its own rows meet of it; a tile goes without the mask only where it
needs none; a tile of pairs that is fetched holds the elements that a score reads; what is read from a list was written
of the same tile; where each program waits for the one before it, the programs that add to a tile of dQ are consecutive,
else each waits for the last one before it that adds there; a program waits only for lower tickets; and each query head
is in one share of its group, whose sums are added once. That the runs themselves are right is what the claims about
loops say.
"""

from __future__ import annotations

from collections.abc import Iterator

from attngen.ir.function import Function
from attngen.ir.printing import expression
from attngen.plan.hopper import HopperApart, HopperBackward, HopperForward
from attngen.plan.index import Index
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.loops import Loops, Run
from attngen.plan.mask.turns import Cells
from attngen.plan.mask.walks import own
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.lists import entries_answer, listed_answer
from attngen.prove.obligations.orders import items_answer, keys_answer, neighbour_answer
from attngen.prove.obligations.part_walks import cut_answer, half_answer, limit_answer
from attngen.prove.obligations.portable_walks import ITEMS
from attngen.prove.obligations.shares import members_answer, parts_answer
from attngen.prove.obligations.tile_walks import (
    fetched_answer,
    hull_answer,
    share_answer,
    turns_answer,
    unmasked_answer,
)
from attngen.prove.obligations.turns import awaited_answer, cleared_answer
from attngen.prove.obligations.walk_claims import WalkClaims
from attngen.prove.verdict import TURNS, Claim


def hopper_walks(claims: WalkClaims) -> Iterator[Claim]:
    found = claims.plan.hopper
    if found is None:
        return
    if found.forward is not None:
        yield from _forward(claims, found.forward)
    if found.backward is not None:
        yield from _backward(claims, found.backward)
        yield from _turns(claims, found.backward, found.cells)
        yield from _shares(claims, _index(claims))
    if found.apart is not None:
        yield from _apart(claims, found.apart)


def _forward(claims: WalkClaims, forward: HopperForward) -> Iterator[Claim]:
    name, loops = "Hopper forward", forward.loops
    yield claims.walk(f"{name}, walk", f"{name}: the walk over keys", forward.walk, loops.runs)
    late, inside = claims.plan.longest_first, forward.batches_inside
    yield _items(claims, name, _index(claims).of("tile_of_item", LATE=late, BATCHES_INSIDE=inside))
    if forward.share is not None:
        sentence = f"{name}: the steps that a warpgroup skips take no tile that its own queries meet"
        answer = share_answer(claims.context(), _index(claims), forward.walk, forward.share, claims.work.part())
        yield claims.claim(f"{name}, share", sentence, answer)
    yield from _limit(claims, name, of_parts=True)
    yield _unmasked(claims, name, forward.unmasked, _own(loops))
    yield from _lists(claims, name, forward.lists)
    if forward.fetched is not None:
        text = expression(forward.fetched.load)
        sentence = f"{name}: the elements of a tile that is fetched are `{text}` of its queries and keys"
        answer = fetched_answer(SolverContext(claims.plan.attention), forward.fetched, claims.work.part())
        yield claims.claim(f"{name}, pairs", sentence, answer)


def _index(claims: WalkClaims) -> Index:
    assert claims.plan.gpu_walks is not None
    return claims.plan.gpu_walks.index


def _items(claims: WalkClaims, name: str, f: Function) -> Claim:
    return claims.claim(f"{name}, items", f"{name}: {ITEMS}", items_answer(f, claims.work.part()))


def _limit(claims: WalkClaims, name: str, *, of_parts: bool) -> Iterator[Claim]:
    if claims.plan.map is not None:
        return
    answer = limit_answer(_index(claims), claims.work.part(), of_parts=of_parts)
    sentence = f"{name}: ends of runs brought to the end of the sequence leave its tiles in the runs that they are in"
    yield claims.claim(f"{name}, end", sentence, answer)


def _backward(claims: WalkClaims, backward: HopperBackward) -> Iterator[Claim]:
    name, plan = "Hopper backward", claims.plan
    answer = hull_answer(claims.context(), backward.hull, claims.work.part())
    yield claims.claim(f"{name}, hull", f"{name}: the walk over queries covers every run", answer)
    answer = half_answer(claims.context(), _index(claims), claims.work.part())
    sentence = f"{name}: a warpgroup takes each tile of the walk that its own keys meet, and passes over the others"
    yield claims.claim(f"{name}, part", sentence, answer)
    answer = cut_answer(claims.context(), _index(claims), backward.unmasked, claims.work.part())
    sentence = f"{name}: keys that the end of the sequence cuts meet no tile without the mask"
    yield claims.claim(f"{name}, end", sentence, answer)
    yield _unmasked(claims, name, backward.unmasked, _own(plan.query_loops))
    yield from _lists(claims, name, backward.lists)
    if backward.lists is None:
        sentence = f"{name}: the tiles of keys that meet a tile of queries are consecutive"
        yield claims.claim(
            TURNS, sentence, turns_answer(SolverContext(plan.attention), plan.queries, claims.work.part())
        )


def _apart(claims: WalkClaims, apart: HopperApart) -> Iterator[Claim]:
    for name, walked, found in (("Hopper dK/dV", "queries", apart.queries), ("Hopper dQ", "keys", apart.keys)):
        late = walked == "keys" and claims.plan.longest_first
        yield _items(claims, name, _index(claims).of("tile_of_program", LATE=late))
        yield claims.walk(f"{name}, walk", f"{name}: the walk over {walked}", found.walk, found.loops.runs)
        yield from _limit(claims, name, of_parts=False)
        yield _unmasked(claims, name, found.unmasked, found.loops.full)
        yield from _lists(claims, name, found.lists)


def _unmasked(claims: WalkClaims, name: str, unmasked: tuple[Run, ...], full: tuple[Run, ...]) -> Claim:
    answer = unmasked_answer(claims.context(), unmasked, full, claims.work.part())
    return claims.claim(f"{name}, mask", f"{name}: a tile without the mask lies in a run that needs none", answer)


def _lists(claims: WalkClaims, name: str, lists: Lists | None) -> Iterator[Claim]:
    if lists is not None:
        sentence = f"{name}: what is read from a list of a tile, for a batch and a head, was written for these"
        answer = entries_answer(lists, _index(claims), claims.work)
        yield claims.claim(f"{name}, lists", sentence, answer)


def _turns(claims: WalkClaims, backward: HopperBackward, cells: Cells) -> Iterator[Claim]:
    index = _index(claims)
    tile_in_order = index.of("tile_in_order")
    for back in (False, True):
        f = index.of("tile_of_keys", BACKWARDS=back)
        sentence = f"Hopper backward, `{f}`: each item is a tile of a head, no two are the same, and those of a head "
        sentence += "rise with the order, and go one way"
        yield claims.claim("Hopper backward, items", sentence, keys_answer(f, claims.work.part()))
        before = index.of("tile_before", BACKWARDS=back)
        sentence = f"Hopper backward, `{before}`: the tile of the place before a tile's own in the order"
        answer = neighbour_answer(tile_in_order, before, claims.work.part())
        yield claims.claim("Hopper backward, order", sentence, answer)
    if backward.lists is None:
        sentence = "Hopper backward: a tile of keys awaits the turn that the one before it in the order passes"
        answer = awaited_answer(claims.context(), index, claims.work)
    else:
        sentence = (
            "Hopper backward: a tile of keys awaits the turn that the last earlier one which meets the queries passes"
        )
        answer = listed_answer(claims.context(), index, claims.work)
    yield claims.claim("Hopper backward, turn", sentence, answer)
    sentence = "Hopper backward: each cell in which a call counts is cleared before"
    tiles = [row.queries for _, row in (*backward.rows, *backward.of_sequences)]
    listed = backward.lists is not None
    answer = cleared_answer(claims.context(), cells, index, tiles, listed=listed, work=claims.work)
    yield claims.claim("Hopper backward, cells", sentence, answer)


def _shares(claims: WalkClaims, index: Index) -> Iterator[Claim]:
    sentence = "Hopper backward: one head of items visits each query head that shares keys, and each of them visits one"
    answer = members_answer(index, claims.work.part())
    yield claims.claim("Hopper backward, members", sentence, answer)
    sentence = "Hopper backward: the sums of each tile of keys of each share are written in one place, and added once"
    answer = parts_answer(index.of("part_of"), claims.work.part())
    yield claims.claim("Hopper backward, parts", sentence, answer)


def _own(loops: Loops) -> tuple[Run, ...]:
    return tuple(Run(own(r.start), own(r.stop)) for r in loops.full)
