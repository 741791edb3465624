"""What decides which kernels of compute capability 9.0 a plan has, and which rows of their tables: asked once a plan.

Takes a plan without these kernels, returns its `Traits`. `tiles.hopper` makes the tables of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attngen.ir.build import is_literal
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Symbol, Type
from attngen.ir.walk import loads, reads, substitute
from attngen.plan.chips import Burden
from attngen.plan.hopper import Fetched
from attngen.plan.ints.linear import from_linear, linear
from attngen.plan.kernel import KernelPlan
from attngen.plan.levels import Level, level_of
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from attngen.plan.score.ramp import Ramp, ramp

SQ = Symbol("Sq", Type.INT)
B, H, HKV, Q, K = (Symbol(name, Type.INT) for name in ("b", "h", "hkv", "q", "k"))
QK, SCALE = Symbol("qk", Type.FLOAT), Symbol("scale", Type.FLOAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """`plan`: whose they are. `burden`: what a pair costs beside the products, if what a distance decides is computed
    once for each diagonal of a tile. `pairs`: elements of pairs that the score reads. `named`: whether the mask reads
    some. `begins_late`: whether a tile of queries may meet no first key. The others: see the functions here."""

    plan: KernelPlan
    burden: Burden
    ramp: Ramp | None
    fetched: Fetched | None
    pairs: tuple[Load, ...]
    named: bool
    begins_late: bool
    heads_differ_in_keys: bool
    reads_bits: bool
    row_terms: bool
    in_turn: bool
    begin_together: bool


def traits(plan: KernelPlan) -> Traits:
    unit = plan.pair_unit
    pairs = tuple(e for e in loads(unit) if level_of(e) is Level.PAIR)
    return Traits(
        plan=plan,
        burden=plan.burden_of(unit),
        ramp=ramp(plan.weights, plan.attention.mask, plan.facts),
        fetched=_fetched(plan, pairs),
        pairs=pairs,
        named=any(level_of(e) is Level.PAIR for e in loads(plan.attention.mask)),
        begins_late=any(not (isinstance(s.lo, Literal) and s.lo.value <= 0) for s in plan.keys.any),
        heads_differ_in_keys=_heads_differ_in_keys(plan),
        reads_bits=reads_bits(plan),
        row_terms=row_terms(plan),
        in_turn=in_turn(plan),
        begin_together=begin_together(plan.queries),
    )


def _fetched(plan: KernelPlan, pairs: tuple[Load, ...]) -> Fetched | None:
    """The only float of pairs that scores read, if its last two indices are the query and the key, and the others
    places of batches and heads. An instruction would read eight rows of it, and wait for them after the scores."""
    found = list(dict.fromkeys(pairs))
    if len(found) != 1 or found[0].type is not Type.FLOAT or plan.choices.access(found[0]).guarded:
        return None
    leading, last = found[0].indices[:-2], found[0].indices[-2:]
    simple = all(isinstance(i, Literal) or i in (B, H, HKV) for i in leading)
    if last != (Q, K) or not simple or len(leading) > 3:  # the copy engine knows five axes
        return None
    return Fetched(found[0], (*leading, Symbol("q0", Type.INT), Symbol("k0", Type.INT)))


def listed(walked: TileRanges) -> Lists:
    """Whether batches, and heads, may differ in which of these tiles a tile of the other axis meets."""
    found = [e for s in (*walked.any, *walked.all) for e in (s.lo, s.hi)]
    found += [e for t in walked.tests for e in (t.row, t.col)]
    return Lists(any(reads(e, "b") for e in found), any(reads(e, "h", "hkv") for e in found))


def reads_bits(plan: KernelPlan) -> bool:
    """Whether kernels have the mask as bits, a few words a thread, and no other part of it."""
    return plan.map is not None and plan.map.as_bits


def _heads_differ_in_keys(plan: KernelPlan) -> bool:
    """Whether a key may be forbidden to one head alone: a program holds keys and values for all heads that share them,
    and clears the rows of forbidden ones once."""
    return plan.keeps_key is not None and reads(plan.keeps_key, "h")


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
    stretches = own_stretches(plan.queries)
    if len(stretches) != 1:
        return False
    (found,) = stretches
    if len(plan.queries.any) == 1:
        ends = (*_parts(found.lo, Op.MAX), *_parts(found.hi, Op.MIN))
        return all(_moves(end, 1) or _moves(end, -1) for end in ends)
    return found.hi == SQ and _moves(found.lo, 1)


def own_stretches(queries: TileRanges) -> tuple[Segment, ...]:
    """The stretches of queries but for those that early keys add; or the only one."""
    return queries.any if len(queries.any) == 1 else tuple(s for s in queries.any if not _leads(s))


def begin_together(queries: TileRanges) -> bool:
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
