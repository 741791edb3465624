"""The kernels of compute capability 9.0: how their warpgroups share the work, by head dims and by burden.

Takes what a kernel bears beside the products, returns tables by (head dim of Q and K, head dim of V), each rounded up
(`plan.hopper.rounded`): of `Skeleton`s for the forward kernel, of `BackwardSkeleton`s for the one that gives dQ, dK and
dV, of `ApartSkeleton`s for the two that do so where one cannot. Every entry compiles without spilling weights or sums
(`tests/aot`); among those that do, the fastest on an H200 stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from attngen.ir.build import integer
from attngen.ir.nodes import Apply, Expr, Literal, Op
from attngen.ir.walk import loads, params, reads
from attngen.plan.chips import Burden
from attngen.plan.hopper import (
    ApartSkeleton,
    BackwardSkeleton,
    Dims,
    DkdvSkeleton,
    DqSkeleton,
    HopperApart,
    HopperBackward,
    HopperForward,
    HopperPlan,
    ListedWalk,
    Schedule,
    Skeleton,
    lead_of,
)
from attngen.plan.kernel import Gather, KernelPlan
from attngen.plan.levels import Level, is_dear, is_dear_for_pairs, level_of
from attngen.plan.mask.holes import TileTest, named
from attngen.plan.mask.loops import Loops, Run
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from attngen.plan.mask.shares import SHORT, Wanted, alone, enough, few_in_turn, listed_alone, together
from attngen.plan.mask.turns import Cells
from attngen.plan.mask.walks import at_least_one, hull, own, share, walk
from attngen.plan.score.weights import Form
from attngen.plan.tiles.traits import QK, SQ, Traits, listed, own_stretches, traits

_Row = TypeVar("_Row", Skeleton, BackwardSkeleton, ApartSkeleton)
SLACK = 8
"""Weights are exponentials of scores less a reference. The forward kernel makes them with the one it has, and looks for
the maximum only where a thread's sum of a tile's weights passes 2**SLACK: almost no tile does, and sums are rarely
rescaled. Weights are at most 256, which fp16 holds."""


def _two(keys: int, **changes: Any) -> Skeleton:
    """Two warpgroups, each with its own products overlapped: for what needs registers."""
    plain = Skeleton(
        128, keys, 2, pipelined=True, registers=240, spare=24, together=1, schedule=Schedule.QUEUE, out_apart=True
    )
    return replace(plain, **changes)


def _three(keys: int, **changes: Any) -> Skeleton:
    """Three warpgroups that overlap each other's products, and read keys and values a third less often."""
    plain = Skeleton(
        192, keys, 2, pipelined=False, registers=160, spare=32, together=4, schedule=Schedule.QUEUE, out_apart=True
    )
    return replace(plain, **changes)


_MIDDLE = {dims: _two(128, ordered=True) for dims in ((64, 128), (128, 64), (128, 128))}
_WIDE = {dims: _two(64, ordered=True, schedule=Schedule.ONCE, out_apart=False) for dims in ((256, 128), (256, 256))}
_LATENT = {(192, 128): _two(128, ordered=True, out_apart=False)}
_PAIRS = {
    **{dims: _two(64, pipelined=False) for dims in ((32, 32), (64, 64), *_MIDDLE)},
    **{dims: replace(_WIDE[256, 256], pipelined=False, ordered=False) for dims in (*_LATENT, *_WIDE)},
}
_TESTED = {
    (64, 64): _three(64, ordered=True),
    **{dims: _two(64, stages=4) for dims in _MIDDLE},
    **{dims: replace(_WIDE[256, 128], ordered=False) for dims in (*_WIDE, (192, 128))},
}
"""Where data decides which tiles meet, an edge cuts many of them, so that small tiles waste less; and the data of 128
keys, in 64 bits or of two kinds, would not fit beside scores, sums and weights. Four stages leave no barriers for
turns."""
_MAPPED = {**_TESTED, (64, 64): _two(64, stages=4)}
"""Where a map of each head of keys names the tiles, whose mask kernels evaluate: two warpgroups meet fewer of them than
three."""
_BITS = {dims: _three(128, ordered=True) for dims in ((32, 32), (64, 64))}
"""Where the mask is read as bits. On an H200, three and two warpgroups of 128 keys at head dim 64: neighbours in tiles
461 and 413 us, row after row 687 and 744, every fourth key 617 and 679, NATTEN 533 and 561."""


def hopper_plan(plan: KernelPlan, tile: tuple[int, int] | None, consecutive: bool = True) -> HopperPlan:
    """Every decision about these kernels. `tile` is the spec's own, or the user's in its place. Unless `consecutive`,
    it is listed who waits for whom, also where tiles seem to follow each other.
    """
    assert plan.gpu_walks is not None  # the portable kernels are beside these
    found = traits(plan)
    dense, fetched = skeletons(found, tile), found.fetched
    slack = SLACK if plan.weights.form is Form.EXPONENTIAL and skeletons(found, None) else 0
    backwards = slack > 0 and _from_the_diagonal(plan)
    test = plan.map
    keys, queries = (named("k"), named("q")) if test else (plan.key_loops, plan.query_loops)
    forward = HopperForward(
        rows=_rows(dense),
        loops=keys,
        walk=at_least_one(walk(keys, backwards=backwards)),
        backwards=backwards,
        share=share(keys, backwards=backwards),
        unmasked=_own(keys),
        lists=test.lists if test else listed(plan.keys) if plan.keys.tests else None,
        of_sequences=_changed(dense, skeletons(found, tile, sequences=True)),
        ramp=found.ramp if slack else None,
        fetched=fetched,
        batches_inside=fetched is not None and fetched.of_all_batches,
    )
    whole = backward_skeletons(found, tile)
    backward = HopperBackward(
        rows=_rows(whole),
        hull=hull(queries),
        unmasked=_own(queries),
        lists=test.lists if test else None if consecutive and found.in_turn else listed(plan.queries),
        row_terms=found.row_terms,
        elsewhere=sums_beside(plan),
        grouped=grouped(found),
        of_sequences=_changed(whole, backward_skeletons(found, tile, sequences=True)),
    )
    apart = HopperApart(
        rows=_rows(apart_skeletons(found, tile)),
        queries=_apart_walk(queries, plan.queries, test),
        keys=_apart_walk(keys, plan.keys, test),
        elsewhere=sums_beside_dkdv(plan),
    )
    narrow = slack > 0 and plan.narrow
    return HopperPlan(
        slack=slack,
        lead=max((lead_of(slack, s.keys) for s in dense.values()), default=0) if narrow else 0,
        forward=forward if forward.rows else None,
        backward=backward if backward.rows and queries.names else None,
        apart=apart if apart.rows and queries.names and keys.names else None,
        cells=Cells(),
    )


def _apart_walk(loops: Loops, walked: TileRanges, test: TileTest | None) -> ListedWalk:
    lists = test.lists if test else listed(walked) if walked.tests else None
    return ListedWalk(loops, at_least_one(walk(loops)), loops.full, lists)


def _rows(table: Mapping[tuple[int, int], _Row]) -> tuple[tuple[Dims, _Row], ...]:
    return tuple((Dims(*dims), row) for dims, row in table.items())


def _changed(
    dense: Mapping[tuple[int, int], _Row], other: Mapping[tuple[int, int], _Row]
) -> tuple[tuple[Dims, _Row], ...]:
    return _rows({dims: row for dims, row in other.items() if dense.get(dims) != row})


def _own(loops: Loops) -> tuple[Run, ...]:
    return tuple(Run(own(r.start), own(r.stop)) for r in loops.full)


def skeletons(t: Traits, own: tuple[int, int] | None, *, sequences: bool = False) -> Mapping[tuple[int, int], Skeleton]:
    """What is faster than the portable kernel; `own` is the spec's tile, which is kept, or no row is left.

    On the H200 the portable kernel's many small programs are faster where the work a tile of keys is not in the
    products: with dropout; up to head dim 32, but for elements of pairs; up to head dim 128, weights without a shift
    and gathered biases by distance; at head dim 64, masks that are tested in every tile, and, where data does not
    decide, functions like tanh of each pair, scaled weights, and windows beside other stretches. With `sequences`,
    which are packed or have lengths, such functions are for these kernels, too, unless in a window: the portable kernel
    finds its rows by pointers there.
    """
    plan = t.plan
    rows = dict(_fastest(t, sequences=sequences and own is None))
    if plan.narrow:
        rows = dict(_of_eight_bits(rows))
    fetched = t.fetched
    if fetched is not None and fetched.of_all_batches and (32, 32) in rows:  # eight batches, or heads
        rows |= {(32, 32): replace(rows[32, 32], together=8)}
    if plan.longest_first:  # the long tiles of some heads, then shorter ones
        ahead = 512 if plan.keys.tests else 256  # data may leave long ones for later
        rows = {dims: replace(s, together=8, ahead=ahead) for dims, s in rows.items()}
        if not plan.keys.tests:  # keys and values of four heads of 8,192 tokens are 34 MB, of the cache's 50
            few = {"together": 4, "ahead": 128, "schedule": Schedule.QUEUE}
            rows |= {dims: replace(rows[dims], **few) for dims in _WIDE if dims in rows}
        if t.burden is Burden.ENDS and (64, 64) in rows:  # turns cost more than they give for so few tiles
            rows |= {(64, 64): replace(rows[64, 64], ahead=0, ordered=False)}
    elif t.begins_late:  # neighbours share few keys: many heads at a time cost the cache little
        rows = {dims: replace(s, together=32 if dims == (64, 64) else 8) for dims, s in rows.items()}
    if own is None:
        return rows
    queries, keys = own
    if queries != 128 or keys not in (64, 128):
        return {}
    narrow = {dims: s for dims, s in rows.items() if max(dims) <= 128 and s.keys >= keys}
    return {dims: _two(keys, pipelined=s.pipelined or s.queries == 192) for dims, s in narrow.items()}


def _of_eight_bits(rows: Mapping[tuple[int, int], Skeleton]) -> Mapping[tuple[int, int], Skeleton]:
    """The rows for 8-bit floats. Tiles of half the bytes leave room for results beside them, and for a third stage,
    where sixteen hardware barriers suffice: two warpgroups have room for three stages, three for two."""
    found: dict[tuple[int, int], Skeleton] = {}
    for dims, s in rows.items():
        wide = min(dims) == 256
        stages = 3 if s.queries == 128 and not wide else 2
        keys = 128 if wide else s.keys
        found[dims] = replace(s, keys=keys, stages=stages, out_apart=True, schedule=Schedule.QUEUE)
    return found


def _from_the_diagonal(plan: KernelPlan) -> bool:
    """Whether a tile's keys, if they are one stretch, are taken from the last to the first: where their end depends on
    the query. The tile that needs a mask is the one then that has to find a reference, and where near keys score best
    it stays there.
    """
    return any(reads(s.hi, "q1") for s in plan.keys.any)


def _fastest(t: Traits, *, sequences: bool) -> Mapping[tuple[int, int], Skeleton]:
    plan = t.plan
    if (
        plan.keys.tests and not plan.map and len(plan.keys.any) > 2
    ):  # a list's ends, in registers of their own, are too many
        return {}
    if not (plan.key_loops.full or plan.key_loops.partial):  # no query has a key
        return {}
    exponential = plan.weights.form is Form.EXPONENTIAL
    match t.burden:
        case Burden.RANDOM:
            return {}
        case _ if t.reads_bits and exponential and not t.pairs and not is_dear(plan.pair_unit):
            return {**_BITS, **_MIDDLE, **_LATENT, **_WIDE}
        case Burden.PAIRS if plan.map and exponential and not t.pairs:
            return {**_MAPPED, **_MIDDLE} if _of_large_blocks(plan.attention.mask) else _MAPPED
        case Burden.PAIRS:
            return _PAIRS
        case Burden.LIGHT | Burden.ENDS | Burden.SCORE | Burden.DATA:
            some_whole = bool(plan.key_loops.full or plan.map)
            if t.burden is Burden.DATA or (plan.map and loads(plan.attention.mask)):
                return (_MAPPED if plan.map else _TESTED) if exponential and some_whole and not t.pairs else {}
            if not exponential:
                return {(192, 128): _PAIRS[192, 128], **_WIDE}
            if t.pairs:
                return {**_LATENT, **_WIDE}
            if not some_whole:
                return {**_MIDDLE, **_LATENT, **_WIDE}
            return {**_narrow(t, sequences=sequences), **_MIDDLE, **_LATENT, **_WIDE}


def _of_large_blocks(mask: Expr) -> bool:
    """Whether the mask reads data of blocks alone, each as large as a tile: then most tiles that it leaves need no
    mask, and large tiles are faster: 733 us for 799 on an H200, 16 of 128 blocks of keys for each block of queries.
    """

    def large(e: Expr) -> bool:
        return level_of(e) is Level.HEAD or (
            isinstance(e, Apply) and e.op is Op.FLOORDIV and isinstance(e.args[1], Literal) and e.args[1].value >= 128
        )

    return all(large(i) for e in loads(mask) for i in (*e.indices, *((e.member,) if e.member else ())))


def _narrow(t: Traits, *, sequences: bool) -> Mapping[tuple[int, int], Skeleton]:
    """At head dim 64, where what is done for a pair beside its products counts twice as much as at 128."""
    plan = t.plan
    two, three = ({(64, 64): make(128, ordered=True)} for make in (_two, _three))
    if is_dear_for_pairs(plan.pair_unit) and not t.begins_late:
        return {(64, 64): _three(128)} if sequences else {}
    unit = plan.pair_unit if t.ramp is None else t.ramp.unit
    if t.burden not in (Burden.LIGHT, Burden.ENDS) and unit != QK:
        if is_dear_for_pairs(plan.pair_unit):
            return {}
        return {(32, 32): three[64, 64], **three} if plan.diagonals else two
    if is_dear(unit):
        return {}
    if not t.begins_late:  # sequences are short, and the code of small tiles is: a tenth faster at 1,024 tokens
        return {(64, 64): _three(64, ordered=True)} if t.ramp is not None and sequences else three
    if len(plan.keys.any) > 1:
        return {}
    # Windows of any width: small tiles waste less of a short one, and three warpgroups cost a long one less.
    if t.burden is Burden.ENDS:
        return {(64, 64): _three(64, stages=3)}
    return {(64, 64): _three(128)} if sequences else two


# ---------------------------------------------------------------- backward


_BACKWARD = {
    (64, 64): BackwardSkeleton(128, 128, stages=3, early=False, together=4, ahead=512, spare=24),
    (128, 128): BackwardSkeleton(64, 128, stages=3, early=True, together=2, ahead=256, spare=24),
}


def backward_skeletons(
    t: Traits, own: tuple[int, int] | None, *, sequences: bool = False
) -> Mapping[tuple[int, int], BackwardSkeleton]:
    """Where dQ, dK and dV come from one kernel; elsewhere, and where the spec has its `own` tile, from portable ones.

    The weights are exponentials, some tiles need no mask unless a param names each pair, and a tile of keys meets one
    stretch of queries, or all, or several that begin together, which leave no gap. A param's element whose place is
    chosen by q . k leaves too few registers. With `sequences`, which are packed or have lengths, tiles have 64 queries:
    most sequences are short, and a tile beyond their ends is work for nothing.
    """
    plan = t.plan
    heavy = t.burden is Burden.RANDOM or plan.weights.form is not Form.EXPONENTIAL
    some_whole = plan.map or (plan.key_loops.full and plan.query_loops.full)
    if own is not None or heavy or not (some_whole or t.named):
        return {}
    if not plan.map and len(own_stretches(plan.queries)) != 1 and not t.begin_together:
        return {}
    if t.heads_differ_in_keys:
        return {}
    if any(reads(i, "qk") for e in t.pairs for i in e.indices):
        return {}
    # What is held beside the weights, a factor for each pair or its param, takes the registers of half a tile.
    beside = (
        t.pairs
        or plan.diagonals
        or ((t.named or plan.map) and not t.reads_bits)
        or not isinstance(plan.d_pair, Literal)
    )
    narrow = replace(_BACKWARD[64, 64], queries=64 if beside or sequences else 128)
    wide = _BACKWARD[128, 128]
    # Each tile of keys begins at other queries.
    if (plan.growing_keys and len(plan.queries.any) == 1) or t.begin_together:
        room = narrow.queries == 64 or t.row_terms  # for the few registers that going backwards takes
        narrow = replace(narrow, backwards=True) if room else replace(narrow, together=64)
        wide = replace(wide, backwards=True, together=2 if len(plan.queries.any) == 1 else 16)
    elif not t.in_turn:  # neighbours wait for each other from their start to their end
        narrow, wide = replace(narrow, together=64), replace(wide, together=64)
    elif plan.growing_keys:  # under a prefix many begin at the first queries, and wait for each other there
        narrow, wide = replace(narrow, together=64), replace(wide, together=16)
    return {(32, 32): narrow, (64, 64): narrow, (128, 128): wide}


def grouped(t: Traits) -> Wanted:
    """How many heads of items the backward kernel wants where query heads share keys.

    Enough items for 132 multiprocessors, at least; many times that where numbers of a call say which queries a key
    meets first, as in pieces of a longer sequence: some tiles of keys may meet few queries then. Where a tile of keys
    meets fewer queries than the one before it, programs that walk several members drift apart, until the queries of all
    members are live, more than the cache holds. They stay together where neighbours begin at the last queries at once,
    and wait for each other.
    """
    plan = t.plan
    moved = any(params(run.lo) for run in plan.queries.any)
    if plan.growing_keys and len(plan.queries.any) == 1:
        if plan.queries.tests or plan.queries.any[0].hi != SQ:  # a tile meets few queries, however many there are
            return Wanted(integer(16), integer(8), onwards=True)
        # All tiles of a piece may meet all queries.
        dense = together(SHORT // 2) if moved else alone(together(SHORT))
        if moved:
            return Wanted(dense, listed_alone(), onwards=True, long=dense, paired=True, listed_turn=few_in_turn())
        return Wanted(dense, together(None), onwards=True, long=dense, paired=True)
    heads = enough(1024 if moved else 128, least=1, most=64)
    long = integer(2) if plan.growing_keys and t.in_turn else None
    return Wanted(heads, heads, onwards=False, long=long, whole=plan.queries.any == (Segment(integer(0), SQ),))


def sums_beside(plan: KernelPlan) -> tuple[str, ...]:
    """The params whose gradients are sums that the portable dQ and dK/dV kernels keep: who wants one, calls those."""
    kept = (Gather.HEAD, Gather.ROW, Gather.COLUMN)
    return tuple(dict.fromkeys(g.param for g in plan.gradients if g.gather in kept))


# ---------------------------------------------------------------- backward, dK/dV and dQ apart


# Above head dim 128 dK and dV of 64 keys, in float32, take half of the registers, and dQ's parts, summed over programs,
# would be 64 KiB for each 64 x 64 tile: more than the cache takes in the time of five products. So there are seven, in
# two kernels. Tiles of 64 x 256 in half precision are 32 KiB of the 227: K, V, two of Q and of dO beside the weights
# that are handed over; Q and dO of 128 queries, two of K and one of V.
_DKDV = DkdvSkeleton(64, 64, stages=2, ahead=1, together=1, spare=24)
_DQ = DqSkeleton(128, 64, key_stages=2, value_stages=1, together=1, spare=24)


def apart_skeletons(t: Traits, own: tuple[int, int] | None) -> Mapping[tuple[int, int], ApartSkeleton]:
    """Where dK and dV, and dQ, come from two kernels of warpgroups: any mask, since nothing is summed over programs.

    The weights are exponentials, and there is no dropout, whose bits both warpgroups would have to make.
    """
    plan = t.plan
    if own is not None or t.burden is Burden.RANDOM or plan.weights.form is not Form.EXPONENTIAL:
        return {}
    if t.heads_differ_in_keys:
        return {}
    unequal = ApartSkeleton(_DKDV, replace(_DQ, value_stages=2))
    return {(256, 256): ApartSkeleton(_DKDV, _DQ), **dict.fromkeys(((192, 128), (256, 128), (128, 256)), unequal)}


def sums_beside_dkdv(plan: KernelPlan) -> tuple[str, ...]:
    """The params whose gradients are sums of columns: the portable dK/dV kernel keeps them, since that of warpgroups
    has scores and dP in different ones."""
    return tuple(dict.fromkeys(g.param for g in plan.gradients if g.gather is Gather.COLUMN))
