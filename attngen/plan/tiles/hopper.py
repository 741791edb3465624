"""The kernels of compute capability 9.0: how their warpgroups share the work, by head dims and by burden.

Takes what a kernel bears beside the products, returns tables by (head dim of Q and K, head dim of V), each rounded up
(`plan.hopper.rounded`): of `Skeleton`s for the forward kernel, of `BackwardSkeleton`s for the one that gives dQ, dK and
dV, of `ApartSkeleton`s for the two that do so where one cannot. Every entry compiles without spilling weights or sums
(`tests/aot`); among those that do, the fastest on an H200 stands here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from attngen.ir.build import integer, is_literal
from attngen.ir.nodes import Apply, Expr, Literal, Op, Symbol, Type
from attngen.ir.walk import loads, params, reads, substitute
from attngen.plan.chips import Burden
from attngen.plan.hopper import (
    ApartSkeleton,
    BackwardSkeleton,
    Dims,
    DkdvSkeleton,
    DqSkeleton,
    Fetched,
    HopperApart,
    HopperBackward,
    HopperForward,
    HopperPlan,
    ListedWalk,
    Schedule,
    Skeleton,
)
from attngen.plan.ints.linear import from_linear, linear
from attngen.plan.kernel import Gather, KernelPlan
from attngen.plan.levels import Level, is_dear, is_dear_for_pairs, level_of
from attngen.plan.mask.lists import Lists, lists
from attngen.plan.mask.loops import Loops, Run
from attngen.plan.mask.order import head_by_head
from attngen.plan.mask.parts import hull_part, limit
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from attngen.plan.mask.shares import SHORT, Wanted, alone, enough, few_in_turn, listed_alone, shares, together
from attngen.plan.mask.turns import turns
from attngen.plan.mask.walks import at_least_one, hull, own, share, walk
from attngen.plan.score.ramp import Ramp, ramp
from attngen.plan.score.weights import Form

_Row = TypeVar("_Row", Skeleton, BackwardSkeleton, ApartSkeleton)
SLACK = 8
"""Weights are exponentials of scores less a reference. The forward kernel makes them with the one it has, and looks for
the maximum only where a thread's sum of a tile's weights passes 2**SLACK: almost no tile does, and sums are rarely
rescaled. Weights are at most 256, which fp16 holds."""
SQ = Symbol("Sq", Type.INT)
B, H, HKV, Q, K = (Symbol(name, Type.INT) for name in ("b", "h", "hkv", "q", "k"))
QK, SCALE = Symbol("qk", Type.FLOAT), Symbol("scale", Type.FLOAT)


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


def hopper_plan(plan: KernelPlan, tile: tuple[int, int] | None, consecutive: bool = True) -> HopperPlan:
    """Every decision about these kernels. `tile` is the spec's own, or the user's in its place. Unless `consecutive`,
    it is listed who waits for whom, also where tiles seem to follow each other.
    """
    assert plan.gpu_walks is not None  # the portable kernels are beside these
    slack = _slack(plan)
    keys, queries = plan.key_loops, plan.query_loops
    backwards, fetched = _from_the_diagonal(plan), _fetched(plan)
    forward = HopperForward(
        rows=_rows(skeletons(plan, tile)),
        walk=at_least_one(walk(keys, backwards=backwards)),
        backwards=backwards,
        share=share(keys, backwards=backwards),
        limit=limit(keys, of_parts=True),
        unmasked=_own(keys),
        lists=listed(plan.keys) if plan.keys.tests else None,
        of_sequences=_changed(skeletons(plan, tile), skeletons(plan, tile, sequences=True)),
        ramp=_ramp(plan) if slack else None,
        fetched=fetched,
        heads=head_by_head() if fetched is not None and fetched.of_all_batches else plan.gpu_walks.heads,
    )
    backward = HopperBackward(
        rows=_rows(backward_skeletons(plan, tile)),
        hull=hull(queries),
        part=hull_part(_own(queries)),
        unmasked=_own(queries),
        lists=None if consecutive and in_turn(plan) else listed(plan.queries),
        row_terms=row_terms(plan),
        elsewhere=sums_beside(plan),
        grouped=grouped(plan),
        of_sequences=_changed(backward_skeletons(plan, tile), backward_skeletons(plan, tile, sequences=True)),
    )
    apart = HopperApart(
        rows=_rows(apart_skeletons(plan, tile)),
        queries=_apart_walk(queries, plan.queries),
        keys=_apart_walk(keys, plan.keys),
        elsewhere=sums_beside_dkdv(plan),
    )
    return HopperPlan(
        slack=slack,
        forward=forward if forward.rows else None,
        backward=backward if backward.rows and queries.names else None,
        apart=apart if apart.rows and queries.names and keys.names else None,
        turns=turns(),
        shares=shares(),
    )


def _apart_walk(loops: Loops, walked: TileRanges) -> ListedWalk:
    return ListedWalk(at_least_one(walk(loops)), limit(loops), loops.full, listed(walked) if walked.tests else None)


def _ramp(plan: KernelPlan) -> Ramp | None:
    return ramp(plan.weights, plan.attention.mask, plan.facts)


def _fetched(plan: KernelPlan) -> Fetched | None:
    """The only float of pairs that scores read, if its last two indices are the query and the key, and the others
    places of batches and heads. An instruction would read eight rows of it, and wait for them after the scores."""
    found = [e for e in dict.fromkeys(loads(plan.pair_unit)) if level_of(e) is Level.PAIR]
    if len(found) != 1 or found[0].type is not Type.FLOAT or plan.choices.access(found[0]).guarded:
        return None
    leading, last = found[0].indices[:-2], found[0].indices[-2:]
    simple = all(isinstance(i, Literal) or i in (B, H, HKV) for i in leading)
    if last != (Q, K) or not simple or len(leading) > 3:  # the copy engine knows five axes
        return None
    return Fetched(found[0], (*leading, Symbol("q0", Type.INT), Symbol("k0", Type.INT)))


def _rows(table: Mapping[tuple[int, int], _Row]) -> tuple[tuple[Dims, _Row], ...]:
    return tuple((Dims(*dims), row) for dims, row in table.items())


def _changed(
    dense: Mapping[tuple[int, int], _Row], other: Mapping[tuple[int, int], _Row]
) -> tuple[tuple[Dims, _Row], ...]:
    return _rows({dims: row for dims, row in other.items() if dense.get(dims) != row})


def _own(loops: Loops) -> tuple[Run, ...]:
    return tuple(Run(own(r.start), own(r.stop)) for r in loops.full)


def skeletons(
    plan: KernelPlan, own: tuple[int, int] | None, *, sequences: bool = False
) -> Mapping[tuple[int, int], Skeleton]:
    """What is faster than the portable kernel; `own` is the spec's tile, which is kept, or no row is left.

    On the H200 the portable kernel's many small programs are faster where the work a tile of keys is not in the
    products: with dropout; up to head dim 32, but for elements of pairs; up to head dim 128, weights without a shift
    and gathered biases by distance; at head dim 64, masks that are tested in every tile, and, where data does not
    decide, functions like tanh of each pair, scaled weights, and windows beside other stretches. With `sequences`,
    which are packed or have lengths, such functions are for these kernels, too, unless in a window: the portable kernel
    finds its rows by pointers there.
    """
    rows = dict(_fastest(plan, sequences=sequences and own is None))
    fetched = _fetched(plan)
    if fetched is not None and fetched.of_all_batches and (32, 32) in rows:  # eight batches, or heads
        rows |= {(32, 32): replace(rows[32, 32], together=8)}
    if plan.longest_first:  # the long tiles of some heads, then shorter ones
        ahead = 512 if plan.keys.tests else 256  # data may leave long ones for later
        rows = {dims: replace(s, together=8, ahead=ahead) for dims, s in rows.items()}
        if not plan.keys.tests:  # keys and values of four heads of 8,192 tokens are 34 MB, of the cache's 50
            few = {"together": 4, "ahead": 128, "schedule": Schedule.QUEUE}
            rows |= {dims: replace(rows[dims], **few) for dims in _WIDE if dims in rows}
        if _burden(plan) is Burden.ENDS and (64, 64) in rows:  # turns cost more than they give for so few tiles
            rows |= {(64, 64): replace(rows[64, 64], ahead=0, ordered=False)}
    elif _begins_late(plan):  # neighbours share few keys: many heads at a time cost the cache little
        rows = {dims: replace(s, together=32 if dims == (64, 64) else 8) for dims, s in rows.items()}
    if own is None:
        return rows
    queries, keys = own
    if queries != 128 or keys not in (64, 128):
        return {}
    narrow = {dims: s for dims, s in rows.items() if max(dims) <= 128 and s.keys >= keys}
    return {dims: _two(keys, pipelined=s.pipelined or s.queries == 192) for dims, s in narrow.items()}


def _slack(plan: KernelPlan) -> int:
    """0 where no forward kernel lets the reference lag."""
    return SLACK if plan.weights.form is Form.EXPONENTIAL and skeletons(plan, None) else 0


def _from_the_diagonal(plan: KernelPlan) -> bool:
    """Whether a tile's keys, if they are one stretch, are taken from the last to the first: where their end depends on
    the query. The tile that needs a mask is the one then that has to find a reference, and where near keys score best
    it stays there.
    """
    return _slack(plan) > 0 and any(reads(s.hi, "q1") for s in plan.keys.any)


def listed(walked: TileRanges) -> Lists:
    """Whether batches, and heads, may differ in which of these tiles a tile of the other axis meets."""
    found = [e for s in (*walked.any, *walked.all) for e in (s.lo, s.hi)]
    found += [e for t in walked.tests for e in (t.row, t.col)]
    return lists(any(reads(e, "b") for e in found), any(reads(e, "h", "hkv") for e in found))


def _fastest(plan: KernelPlan, *, sequences: bool) -> Mapping[tuple[int, int], Skeleton]:
    if plan.keys.tests and len(plan.keys.any) > 2:  # a list's ends, in registers of their own, are too many
        return {}
    if not (plan.key_loops.full or plan.key_loops.partial):  # no query has a key
        return {}
    pairs = any(level_of(e) is Level.PAIR for e in loads(plan.pair_unit))
    burden = _burden(plan)
    match burden:
        case Burden.RANDOM:
            return {}
        case Burden.PAIRS if pairs or not reads_bits(plan) or is_dear(plan.pair_unit):
            return _PAIRS
        case Burden.PAIRS:
            small = {dims: _three(128, ordered=True) for dims in ((32, 32), (64, 64))}
            return {**small, **_MIDDLE, **_LATENT, **_WIDE}
        case Burden.LIGHT | Burden.ENDS | Burden.SCORE | Burden.DATA:
            exponential, some_whole = plan.weights.form is Form.EXPONENTIAL, bool(plan.key_loops.full)
            if burden is Burden.DATA:
                return _TESTED if exponential and some_whole and not pairs else {}
            if not exponential:
                return {(192, 128): _PAIRS[192, 128], **_WIDE}
            if pairs:
                return {**_LATENT, **_WIDE}
            if not some_whole:
                return {**_MIDDLE, **_LATENT, **_WIDE}
            return {**_narrow(plan, sequences=sequences), **_MIDDLE, **_LATENT, **_WIDE}


def reads_bits(plan: KernelPlan) -> bool:
    """Whether the elements of pairs that a mask of exponential weights reads are bools that the kernels have as bits, a
    few words a thread, once tests of them tell which tiles need the mask."""
    found = {e for t in plan.keys.tests if t.of_pairs for side in (t.row, t.col) for e in loads(side)}
    named = [e for e in loads(plan.attention.mask) if level_of(e) is Level.PAIR]
    tested = bool(plan.key_loops.full and plan.query_loops.full)
    return tested and plan.weights.form is Form.EXPONENTIAL and bool(named) and found.issuperset(named)


def _narrow(plan: KernelPlan, *, sequences: bool) -> Mapping[tuple[int, int], Skeleton]:
    """At head dim 64, where what is done for a pair beside its products counts twice as much as at 128."""
    two, three = ({(64, 64): make(128, ordered=True)} for make in (_two, _three))
    if is_dear_for_pairs(plan.pair_unit) and not _begins_late(plan):
        return {(64, 64): _three(128)} if sequences else {}
    rising = _ramp(plan)
    unit = plan.pair_unit if rising is None else rising.unit
    if _burden(plan) not in (Burden.LIGHT, Burden.ENDS) and unit != QK:
        if is_dear_for_pairs(plan.pair_unit):
            return {}
        return {(32, 32): three[64, 64], **three} if plan.diagonals else two
    if is_dear(unit):
        return {}
    if not _begins_late(plan):  # sequences are short, and the code of small tiles is: a tenth faster at 1,024 tokens
        return {(64, 64): _three(64, ordered=True)} if rising is not None and sequences else three
    if len(plan.keys.any) > 1:
        return {}
    # Windows of any width: small tiles waste less of a short one, and three warpgroups cost a long one less.
    if _burden(plan) is Burden.ENDS:
        return {(64, 64): _three(64, stages=3)}
    return {(64, 64): _three(128)} if sequences else two


def _burden(plan: KernelPlan) -> Burden:
    """These kernels compute what a distance decides once for each diagonal of a tile."""
    return plan.burden_of(plan.pair_unit)


def _begins_late(plan: KernelPlan) -> bool:
    """Whether a tile of queries may meet no first key."""
    return any(not (isinstance(s.lo, Literal) and s.lo.value <= 0) for s in plan.keys.any)


# ---------------------------------------------------------------- backward


_BACKWARD = {
    (64, 64): BackwardSkeleton(128, 128, stages=3, early=False, together=4, ahead=512, spare=24),
    (128, 128): BackwardSkeleton(64, 128, stages=3, early=True, together=2, ahead=256, spare=24),
}


def backward_skeletons(
    plan: KernelPlan, own: tuple[int, int] | None, *, sequences: bool = False
) -> Mapping[tuple[int, int], BackwardSkeleton]:
    """Where dQ, dK and dV come from one kernel; elsewhere, and where the spec has its `own` tile, from portable ones.

    The weights are exponentials, some tiles need no mask unless a param names each pair, and a tile of keys meets one
    stretch of queries, or all, or several that begin together, which leave no gap. A param's element whose place is
    chosen by q . k leaves too few registers. With `sequences`, which are packed or have lengths, tiles have 64 queries:
    most sequences are short, and a tile beyond their ends is work for nothing.
    """
    heavy = plan.burden is Burden.RANDOM or plan.weights.form is not Form.EXPONENTIAL
    some_whole = plan.key_loops.full and plan.query_loops.full
    named = any(level_of(e) is Level.PAIR for e in loads(plan.attention.mask))
    if own is not None or heavy or not (some_whole or named):
        return {}
    if len(_own_stretches(plan.queries)) != 1 and not _begin_together(plan.queries):
        return {}
    if _heads_differ_in_keys(plan):
        return {}
    pairs = [e for e in loads(plan.pair_unit) if level_of(e) is Level.PAIR]
    if any(reads(i, "qk") for e in pairs for i in e.indices):
        return {}
    # What is held beside the weights, a factor for each pair or its param, takes the registers of half a tile.
    beside = pairs or plan.diagonals or (named and not reads_bits(plan)) or not isinstance(plan.d_pair, Literal)
    narrow = replace(_BACKWARD[64, 64], queries=64 if beside or sequences else 128)
    wide = _BACKWARD[128, 128]
    # Each tile of keys begins at other queries.
    if (plan.growing_keys and len(plan.queries.any) == 1) or _begin_together(plan.queries):
        room = narrow.queries == 64 or row_terms(plan)  # for the few registers that going backwards takes
        narrow = replace(narrow, backwards=True) if room else replace(narrow, together=64)
        wide = replace(wide, backwards=True, together=2 if len(plan.queries.any) == 1 else 16)
    elif not in_turn(plan):  # neighbours wait for each other from their start to their end
        narrow, wide = replace(narrow, together=64), replace(wide, together=64)
    elif plan.growing_keys:  # under a prefix many begin at the first queries, and wait for each other there
        narrow, wide = replace(narrow, together=64), replace(wide, together=16)
    return {(32, 32): narrow, (64, 64): narrow, (128, 128): wide}


def grouped(plan: KernelPlan) -> Wanted:
    """How many heads of items the backward kernel wants where query heads share keys.

    Enough items for 132 multiprocessors, at least; many times that where numbers of a call say which queries a key
    meets first, as in pieces of a longer sequence: some tiles of keys may meet few queries then. Where a tile of keys
    meets fewer queries than the one before it, programs that walk several members drift apart, until the queries of all
    members are live, more than the cache holds. They stay together where neighbours begin at the last queries at once,
    and wait for each other.
    """
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
    long = integer(2) if plan.growing_keys and in_turn(plan) else None
    return Wanted(heads, heads, onwards=False, long=long, whole=plan.queries.any == (Segment(integer(0), SQ),))


def _heads_differ_in_keys(plan: KernelPlan) -> bool:
    """Whether a key may be forbidden to one head alone: a program holds keys and values for all heads that share them,
    and clears the rows of forbidden ones once."""
    return plan.keeps_key is not None and reads(plan.keeps_key, "h")


def sums_beside(plan: KernelPlan) -> tuple[str, ...]:
    """The params whose gradients are sums that the portable dQ and dK/dV kernels keep: who wants one, calls those."""
    kept = (Gather.HEAD, Gather.ROW, Gather.COLUMN)
    return tuple(dict.fromkeys(g.param for g in plan.gradients if g.gather in kept))


def row_terms(plan: KernelPlan) -> bool:
    """Whether one more step of the products takes a row's log-sum-exp off its scores, and its delta off dP.

    A weight must be exp(scale * (q . k - lse / scale)). Scores with more terms may make infinite weights of queries
    that do not exist, whose terms are zero; and beside what such kernels hold, the factors of that step find no
    registers.
    """
    return plan.weights.unit == QK and plan.d_factor == SCALE and is_literal(plan.d_pair, 1.0)


def in_turn(plan: KernelPlan) -> bool:
    """Whether the tiles of keys that meet a tile of queries are consecutive: each waits for the one before it, else
    for whom a list names.

    Keys meet a tile of queries where a stretch begins before the tile's end, and ends behind its start. Where each end
    of a lone stretch never moves back as keys move on, or never moves on, either holds up to some key, or from some key
    on. The kernel walks the hull of several: its start never moves back where one stretch, up to the last query, does
    not, and the others are all queries as long as keys come early enough, and none from then on.
    """
    if plan.queries.tests:
        return False
    stretches = _own_stretches(plan.queries)
    if len(stretches) != 1:
        return False
    (found,) = stretches
    if len(plan.queries.any) == 1:
        ends = (*_parts(found.lo, Op.MAX), *_parts(found.hi, Op.MIN))
        return all(_moves(end, 1) or _moves(end, -1) for end in ends)
    return found.hi == SQ and _moves(found.lo, 1)


def _own_stretches(queries: TileRanges) -> tuple[Segment, ...]:
    """The stretches of queries but for those that early keys add; or the only one."""
    return queries.any if len(queries.any) == 1 else tuple(s for s in queries.any if not _leads(s))


def _begin_together(queries: TileRanges) -> bool:
    """Whether several stretches begin at the same query, which depends on the keys, where both sequences are as long;
    data may empty some. That leaves no gap between them, or one of the difference in length: a matter of time alone.
    """
    answers = {t.bound(name) for t in queries.tests for name in ("any_lo", "any_hi")}
    equal: dict[Expr, Expr] = {Symbol("Sk", Type.INT): SQ}

    def start(s: Segment) -> frozenset[Expr]:
        parts = (p for p in _parts(s.lo, Op.MAX) if p not in answers)
        return frozenset(from_linear(*linear(substitute(p, equal))) for p in parts)

    starts = {start(s) for s in queries.any}
    return len(queries.any) > 1 and len(starts) == 1 and any(reads(s.lo, "k0") for s in queries.any)


def _parts(e: Expr, op: Op) -> Iterator[Expr]:
    """The terms of which `e` is the largest, or the least: where it is before a place, all, or any, of them are."""
    if isinstance(e, Apply) and e.op is op:
        for a in e.args:
            yield from _parts(a, op)
    else:
        yield e


def _leads(stretch: Segment) -> bool:
    """Whether a stretch of queries is `all if early else nothing`, where no early keys come after others."""
    starts = isinstance(stretch.lo, Literal) and stretch.lo.value == 0
    match stretch.hi:
        case Apply(op=Op.MIN, args=(a, Apply(op=Op.SELECT, args=(_, b, _)) as early)):
            return starts and a == b == SQ and _moves(early, -1)
        case _:
            return False


def _moves(e: Expr, way: int) -> bool:
    """Whether `e` is known never to fall (`way` 1), or never to rise (-1), as the tile of keys k0 … k1 moves on."""
    if not reads(e, "k0", "k1"):
        return True
    match e:
        case Apply(op=Op.MIN | Op.MAX):
            return all(_moves(a, way) for a in e.args)
        case Apply(op=Op.SELECT, args=(Apply(op=Op.LT, args=(late, limit)), b, Literal(value=0))):
            return way == -1 and b == SQ and not reads(limit, "k0", "k1") and _moves(late, 1)
        case _:
            terms, _ = linear(e)
    if len(terms) == 1 and terms[0][0] == e:  # a symbol, or nothing that is known
        return way == 1 and isinstance(e, Symbol)
    return all(_moves(t, way if c > 0 else -way) for t, c in terms)


# ---------------------------------------------------------------- backward, dK/dV and dQ apart


# Above head dim 128 dK and dV of 64 keys, in float32, take half of the registers, and dQ's parts, summed over programs,
# would be 64 KiB for each 64 x 64 tile: more than the cache takes in the time of five products. So there are seven, in
# two kernels. Tiles of 64 x 256 in half precision are 32 KiB of the 227: K, V, two of Q and of dO beside the weights
# that are handed over; Q and dO of 128 queries, two of K and one of V.
_DKDV = DkdvSkeleton(64, 64, stages=2, ahead=1, together=1, spare=24)
_DQ = DqSkeleton(128, 64, key_stages=2, value_stages=1, together=1, spare=24)


def apart_skeletons(plan: KernelPlan, own: tuple[int, int] | None) -> Mapping[tuple[int, int], ApartSkeleton]:
    """Where dK and dV, and dQ, come from two kernels of warpgroups: any mask, since nothing is summed over programs.

    The weights are exponentials, and there is no dropout, whose bits both warpgroups would have to make.
    """
    if own is not None or plan.burden is Burden.RANDOM or plan.weights.form is not Form.EXPONENTIAL:
        return {}
    if _heads_differ_in_keys(plan):
        return {}
    unequal = ApartSkeleton(_DKDV, replace(_DQ, value_stages=2))
    return {(256, 256): ApartSkeleton(_DKDV, _DQ), **dict.fromkeys(((192, 128), (256, 128), (128, 256)), unequal)}


def sums_beside_dkdv(plan: KernelPlan) -> tuple[str, ...]:
    """The params whose gradients are sums of columns: the portable dK/dV kernel keeps them, since that of warpgroups
    has scores and dP in different ones."""
    return tuple(dict.fromkeys(g.param for g in plan.gradients if g.gather is Gather.COLUMN))
