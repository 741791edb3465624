"""The plan of one attention variant: every choice that is the same for all targets.

Takes an `attention.Attention`, gives a frozen `KernelPlan`: the form of the weights, the tile ranges of each loop, the
derivative of the score, and how each float param's gradient is gathered. Targets print it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from attngen.ir.attention import Attention, Param
from attngen.ir.build import add, is_literal, mul, real
from attngen.ir.nodes import Expr, Load, Scalar, Symbol, Type
from attngen.ir.walk import loads, nodes, reads, substitute
from attngen.plan.chips import Burden
from attngen.plan.gpu_walks import GpuWalks, gpu_walks
from attngen.plan.hopper import HopperPlan
from attngen.plan.ints.choices import Choices, choices
from attngen.plan.ints.facts import Facts, enters_as_product, facts
from attngen.plan.ints.renaming import planner_takes, with_safe_sizes
from attngen.plan.levels import Level, is_dear, level_of
from attngen.plan.limits import Limits
from attngen.plan.mask.apart import apart
from attngen.plan.mask.holes import TileTest, map_of, sorted_apart
from attngen.plan.mask.key_mask import keeps_key
from attngen.plan.mask.loops import Loops, loops
from attngen.plan.mask.ranges import TileRanges, tile_ranges
from attngen.plan.mask.tpu_walks import TpuWalks, tpu_walks
from attngen.plan.needs import Need
from attngen.plan.numerics import WIDE, Numerics, numerics
from attngen.plan.packed_alias import PackedAlias
from attngen.plan.score.approximate import approximate
from attngen.plan.score.derivative import derivative
from attngen.plan.score.distance import diagonals, distance_index
from attngen.plan.score.ramp import Ramp
from attngen.plan.score.weights import Form, M, Weights, split_factor, weights
from attngen.plan.sides import Geometry


class Gather(StrEnum):
    """How the pairs' contributions to one leaf (a scalar, or a load) are summed, always in a fixed order.

    head: one number for each query tile, from the dQ kernel; summed over tiles, then over what the index leaves out.
    row: one number a query, from the dQ kernel. column: one number a key, from the dK/dV kernel.
    dense: the index is q and k themselves: a kernel writes each tile once, looping over what shares it (`Summed`).
    diagonal: the index depends on q - k (and b, h): a kernel sums along diagonals.
    scatter: any other index: integer atomics on a fixed-point grid, whose sum does not depend on their order.
    """

    HEAD = "head"
    ROW = "row"
    COLUMN = "column"
    DENSE = "dense"
    DIAGONAL = "diagonal"
    SCATTER = "scatter"


@dataclass(frozen=True, slots=True)
class LeafGradient:
    """The gradient of the loss in one leaf: the sum over pairs of `g * pair + g_weight * weight`, and of rows' `extra`.

    With G = dL / d natural: contributions are `G * pair` (exponential: natural = kappa * score; else score), plus, in
    the other forms, `(dp - delta) * weight` where `weight` is the normalised d w / d leaf at fixed score, plus
    `-delta * (E / denominator) * extra` a row, where `extra` = d log E / d leaf (E's own derivative in form `direct`,
    then without the factor E). None is zero.
    """

    param: str
    leaf: Scalar | Load
    gather: Gather
    pair: Expr | None
    weight: Expr | None
    extra: Expr | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan:
    attention: Attention
    facts: Facts
    weights: Weights
    keys: TileRanges  # the keys that a tile of queries meets: forward and dQ
    queries: TileRanges  # the queries that a tile of keys meets: dK/dV
    keeps_key: Expr | None  # what the mask asks of a key alone: rows of K and V that break it reach nothing
    key_loops: Loops  # the same in tiles, as the kernels walk them
    query_loops: Loops
    gpu_walks: GpuWalks | None  # how portable kernels of GPUs walk the tiles of those loops, where the target has some
    tpu_walks: TpuWalks | None  # and how those of a TPU do
    d_factor: Expr  # d natural / d qk = d_factor (per head) * d_pair
    d_pair: Expr
    gradients: tuple[LeafGradient, ...]
    longest_first: bool  # tiles of late queries meet more keys: start them first
    growing_keys: bool  # and the same for the tiles of keys, from the other end
    diagonals: tuple[Expr, ...]  # parts of the score that are one for all pairs along a diagonal of a tile
    choices: Choices  # guards, widths and divisions of single operations
    numerics: Numerics = WIDE  # the number formats of products
    hopper: HopperPlan | None = None  # the kernels of compute capability 9.0, where the target has some
    needs: tuple[Need, ...] = ()  # what every call checks of its sizes: with it all reads are inside
    geometries: tuple[Geometry, ...] = ()  # how sequences find their rows, where they are no whole rows of a batch
    map: TileTest | None = None  # by which kernels find tiles, in place of loops' ends
    packed_alias: PackedAlias | None = None  # which dense batches of one are computed as packed rows

    @property
    def ramp(self) -> Ramp | None:
        """The logit as the forward kernel of compute capability 9.0 evaluates it, where that is not factor * unit."""
        return None if self.hopper is None or self.hopper.forward is None else self.hopper.forward.ramp

    def mask(self, held: Level) -> Expr:
        """As kernels ask it that hold a tile of queries, ROW, or of keys, COLUMN."""
        mapped = self.map is not None and self.gpu_walks is not None
        return apart(self.attention.mask, held) if mapped else self.attention.mask

    @property
    def narrow(self) -> bool:
        """Whether q, k and v are 8-bit floats with factors (`ir.narrow`)."""
        return self.attention.value_scale is not None

    @property
    def sees_mean(self) -> str | None:
        """Why adding one number to q . k of all pairs of a query changes its result; None: it does not.

        It adds `scale` times that number to the logarithm of the denominator alone, where the logit is scale * q . k
        and what does not read q . k, and all weights are divided by their sum.
        """
        if self.weights.form is not Form.EXPONENTIAL or self.weights.extra is not None or not self.weights.sums:
            return f"the normalizer `{self.attention.normalizer.name}` is not softmax alone"
        linear = is_literal(self.d_pair, 1) and self.d_factor == Symbol("scale", Type.FLOAT)
        if not linear or not enters_as_product(self.attention):  # a step in q . k has a derivative of 0
            return "the score is not scale * q . k and terms without q . k"
        return None

    @property
    def burden(self) -> Burden:
        return self.burden_of(self.weights.unit)

    @property
    def pair_unit(self) -> Expr:
        """The weights' unit as kernels evaluate it that compute `diagonals` once for each of a tile's."""
        by_distance = Symbol("by_distance", Type.FLOAT)
        return substitute(self.weights.unit, dict.fromkeys(self.diagonals, by_distance))

    def burden_of(self, unit: Expr) -> Burden:
        a = self.attention
        if a.dropout is not None:
            return Burden.RANDOM
        pairs = [e for root in (unit, a.mask) for e in loads(root) if level_of(e) is Level.PAIR]
        if any(distance_index(e) is None or any(is_dear(i) for i in e.indices) for e in pairs):
            return Burden.PAIRS
        if self.keys.tests or self.queries.tests:
            return Burden.DATA
        plain = self.weights.form is Form.EXPONENTIAL and a.dropout is None and not reads(a.score, "q", "k")
        data = max((level_of(e) for e in loads(a.mask)), default=None)
        if not plain or (data is not None and data is not Level.HEAD):
            return Burden.SCORE
        return Burden.LIGHT if data is None else Burden.ENDS


def make_plan(attention: Attention, limits: Limits) -> KernelPlan:
    """The plan, but for `hopper`, `needs`, `geometries` and `packed_alias`, which others add.

    Raises SpecError where a normalizer's stream has a form that cannot be planned.
    """
    attention = with_safe_sizes(attention, lambda name: name in limits.reserved or planner_takes(name))
    known = facts(attention)
    form = weights(attention, known)
    keys, queries = (tile_ranges(attention.mask, axis, known) for axis in "kq")
    key_loops, query_loops = loops(keys), loops(queries)
    kept = keeps_key(attention.mask)
    d_factor, d_pair = split_factor(derivative(form.natural, Symbol("qk", Type.FLOAT)) or real(0.0))
    found = KernelPlan(
        attention=attention,
        facts=known,
        weights=form,
        keys=keys,
        queries=queries,
        keeps_key=kept,
        key_loops=key_loops,
        query_loops=query_loops,
        gpu_walks=gpu_walks(attention, form, key_loops, query_loops, kept) if limits.gpu else None,
        tpu_walks=tpu_walks(key_loops, query_loops) if limits.tpu else None,
        d_factor=d_factor,
        d_pair=d_pair,
        gradients=tuple(_leaf_gradients(attention, form)),
        longest_first=any(reads(s.hi, "q1") for s in keys.any) and not any(reads(s.lo, "q0") for s in keys.any),
        growing_keys=any(reads(s.lo, "k0") for s in queries.any) and not any(reads(s.hi, "k1") for s in queries.any),
        diagonals=diagonals(form.unit),
        choices=choices((), attention, known, limits.ints),
        numerics=numerics(attention, form, known),
        map=map_of(attention.mask, keys, known, of_pairs=not limits.gpu) if limits.maps else None,
    )
    chosen = choices(evaluated(found), attention, known, limits.ints)
    if limits.approximates:
        chosen = replace(chosen, approximate=approximate(numbers(found), decisions(found)))
    return replace(found, choices=chosen)


def with_loops(plan: KernelPlan, keys: Loops, queries: Loops) -> KernelPlan:
    """The plan with other loops, and with the walks of them that portable kernels and those of a TPU take."""
    of_gpu = plan.gpu_walks and gpu_walks(plan.attention, plan.weights, keys, queries, plan.keeps_key)
    of_tpu = plan.tpu_walks and tpu_walks(keys, queries)
    return replace(plan, key_loops=keys, query_loops=queries, gpu_walks=of_gpu, tpu_walks=of_tpu)


def by_lists(plan: KernelPlan, *, sequences: bool = False) -> KernelPlan:
    """The plan with the loops that portable kernels of GPUs take: over lists, where a map names the tiles."""
    if plan.map is None:
        return plan
    lists = plan.map.lists_of(sequences=sequences)
    keys, queries = (sorted_apart(axis, lists) for axis in "kq")
    untested = replace(plan, keys=replace(plan.keys, tests=()), queries=replace(plan.queries, tests=()))
    return with_loops(untested, keys, queries)


def evaluated(plan: KernelPlan) -> tuple[Expr, ...]:
    """Every expression that some kernel of the plan evaluates, loop bounds and data tests included."""
    found = [*_masks(plan), *numbers(plan), *(g.leaf for g in plan.gradients)]
    found += [*plan.attention.counter.values(), *(d for p in plan.attention.params for d in p.shape)]
    return (*found, *_bounds(plan))


def numbers(plan: KernelPlan) -> tuple[Expr, ...]:
    """Of what is evaluated, scores, weights and derivatives: floats that are added, multiplied and summed."""
    w = plan.weights
    found: list[Expr] = [w.unit, w.factor, w.natural, plan.d_factor, plan.d_pair]
    a = plan.attention
    given = [w.stream, w.rescale, w.slope, w.log_extra, w.extra, a.dropout, a.value_scale]
    given += [part for g in plan.gradients for part in (g.pair, g.weight, g.extra)]
    ramp = plan.ramp
    given += [] if ramp is None else [ramp.factor, ramp.unit, ramp.rise, ramp.row]
    return (*found, *(e for e in given if e is not None))


def decisions(plan: KernelPlan) -> tuple[Expr, ...]:
    """Of what is evaluated, the mask, loop bounds and data tests: what decides which pairs count."""
    return (*_masks(plan), *_bounds(plan))


def _masks(plan: KernelPlan) -> tuple[Expr, ...]:
    """As kernels ask it."""
    return tuple(dict.fromkeys((plan.mask(Level.ROW), plan.mask(Level.COLUMN))))


def _bounds(plan: KernelPlan) -> Iterator[Expr]:
    for ranges in (plan.keys, plan.queries):
        yield from (e for t in ranges.tests for e in (t.row, t.col))
        yield from (e for s in (*ranges.any, *ranges.all) for e in (s.lo, s.hi))


def _leaf_gradients(attention: Attention, form: Weights) -> list[LeafGradient]:
    found: list[LeafGradient] = []
    sources = [
        form.natural,
        form.stream,
        *([form.log_extra] if form.log_extra else []),
        *([form.extra] if form.extra else []),
    ]
    for param in attention.params:
        if not param.learns:
            continue
        leaves: dict[Scalar | Load, None] = {}
        for source in sources:
            for node in nodes(source):
                if isinstance(node, Scalar | Load) and node.param == param.name:
                    leaves[node] = None
        for leaf in leaves:
            found.append(_leaf_gradient(param, leaf, form))
    return [g for g in found if not (g.pair is None and g.weight is None and g.extra is None)]


def _leaf_gradient(param: Param, leaf: Scalar | Load, form: Weights) -> LeafGradient:
    pair = derivative(form.natural, leaf)
    weight: Expr | None = None
    if form.form is not Form.EXPONENTIAL:
        weight = derivative(form.stream, leaf)
        moved = derivative(form.kappa, leaf)
        if form.form is Form.SHIFTED and moved is not None:
            # w(s) exp(-kappa m) at fixed m: d w(s) alone is d stream + m * d kappa * stream.
            moving = mul(mul(M, moved), form.stream)
            weight = moving if weight is None else add(weight, moving)
    if form.form is Form.DIRECT:
        extra = None if form.extra is None else derivative(form.extra, leaf)
    else:
        extra = None if form.log_extra is None else derivative(form.log_extra, leaf)
    return LeafGradient(param.name, leaf, _gather(leaf), pair, weight, extra)


def _gather(leaf: Scalar | Load) -> Gather:
    if isinstance(leaf, Scalar):
        return Gather.HEAD
    match level_of(leaf):
        case Level.HEAD:
            return Gather.HEAD
        case Level.ROW:
            return Gather.ROW
        case Level.COLUMN:
            return Gather.COLUMN
        case Level.PAIR:
            pass
    plain = [i.id for i in leaf.indices if isinstance(i, Symbol)]
    if len(plain) == len(leaf.indices) == len(set(plain)) and {"q", "k"} <= set(plain) <= {"b", "h", "hkv", "q", "k"}:
        return Gather.DENSE
    if distance_index(leaf) is not None:
        return Gather.DIAGONAL
    return Gather.SCATTER
