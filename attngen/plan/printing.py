"""Stable text of a `KernelPlan`: what `attngen compile --emit plan` prints.

Takes the plan, returns every decision in it, expressions in the language's own notation. `lo … hi` is a stretch of
positions without `hi` itself. Leaves the attention to `ir.printing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import assert_never

from attngen.ir import build
from attngen.ir.attention import Origin
from attngen.ir.function import Assigned, Function
from attngen.ir.nodes import Expr, Symbol, Type
from attngen.ir.printing import expression, factor
from attngen.plan.footprint import loads_of
from attngen.plan.gpu_walks import GpuWalks
from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton, Dims, HopperPlan, Skeleton
from attngen.plan.ints.facts import Bounds, Facts
from attngen.plan.kernel import KernelPlan, LeafGradient
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.loops import Loops, Ordered, Rounded, Run, Step
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from attngen.plan.mask.shares import CACHED
from attngen.plan.mask.tpu_walks import TpuWalks
from attngen.plan.mask.turns import Cells
from attngen.plan.mask.walks import TwoWalks, Walk, outside
from attngen.plan.score.approximate import APPROXIMATIONS
from attngen.plan.score.weights import Form, Weights
from attngen.plan.sides import START, STOP, TOTAL, Geometry
from attngen.plan.split import Split
from attngen.plan.tiles.portable import KERNELS, Row, table

CHIP = "sm_90"
"""The chip whose tile sizes are shown; a generated file carries those of every chip."""


def plan_text(plan: KernelPlan) -> str:
    """The whole plan, one decision a line."""
    gpu = plan.gpu_walks
    sections = (
        ("facts", _facts(plan.facts)),
        (f"weights: {plan.weights.form.value}", [*_weights(plan.weights), *_dropout(plan)]),
        (
            "forward, dQ: the keys that the queries q0 … q1 meet",
            [*_ranges(plan.keys), *(_walked(plan.key_loops, gpu.keys) if gpu else ())],
        ),
        (
            "dK/dV: the queries that the keys k0 … k1 meet",
            [*_ranges(plan.queries), *(_walked(plan.query_loops, gpu.queries) if gpu else ())],
        ),
        ("asked of a key alone: rows of K and V that break it reach nothing", _kept(plan)),
        *((("forward, short queries: number `piece` of `pieces` of that walk", _split(gpu.split)),) if gpu else ()),
        ("d natural / d qk = factor * pair", _named(("factor", plan.d_factor), ("pair", plan.d_pair))),
        ("gradients", (line for g in plan.gradients for line in _gradient(g, plan.weights.form))),
        *((("order", _order(plan, gpu)),) if gpu else ()),
        *((("needs", (need.text for need in plan.needs)),) if plan.needs else ()),
        ("ints", _ints(plan)),
        *((("one for each diagonal of a tile", map(expression, plan.diagonals)),) if plan.diagonals else ()),
        *((("approximate in half precision", _approximate(plan)),) if plan.choices.approximate else ()),
        *(((f"tiles on {CHIP}", _tiles(plan)),) if gpu else ()),
        *((("kernels of compute capability 9.0", _hopper(plan.hopper)),) if plan.hopper is not None else ()),
        *((("sequences", _sequences(plan)),) if plan.geometries else ()),
        *((("kernels of a TPU", _tpu(plan.tpu_walks)),) if plan.tpu_walks is not None else ()),
    )
    lines = [f"plan {plan.attention.name}"]
    for title, content in sections:
        lines += ["", title, *(f"    {line}" for line in list(content) or ["none"])]
    return "\n".join(lines) + "\n"


def _sequences(plan: KernelPlan) -> Iterator[str]:
    for g in plan.geometries:
        yield from _geometry(g)
    if plan.packed_alias is not None:
        where = "" if plan.packed_alias.learns else ", where no param learns"
        yield f"a batch of one is computed as packed rows: head dims up to {plan.packed_alias.head_dims}{where}"


def _geometry(g: Geometry) -> Iterator[str]:
    yield f"{g.kind.value}, of {START.id}, {STOP.id} and {TOTAL.id}:"
    for owner, names in (
        (g.queries, ("begin", "first", "size", "slot", "slots")),
        (g.listing, ("before", "paired")),
        (g.queries, ("within",)),
    ):
        for name in names:
            yield f"    {name} = {expression(getattr(owner, name))}"


def _named(*parts: tuple[str, Expr | None]) -> Iterator[str]:
    """`name = expression` lines, aligned; those without an expression left out."""
    given = [(name, e) for name, e in parts if e is not None]
    width = max((len(name) for name, _ in given), default=0)
    for name, e in given:
        yield f"{name.ljust(width)} = {expression(e)}"


def _kept(plan: KernelPlan) -> Iterator[str]:
    if plan.keeps_key is not None:
        yield expression(plan.keeps_key)


def _ints(plan: KernelPlan) -> Iterator[str]:
    c = plan.choices
    yield f"sequences are shorter than 2**{c.longest_bits}"
    for e in c.wide:
        yield f"{c.ints.value}: {expression(e)}"
    for e in c.clipped:
        yield f"stays at the end of its dtype: {expression(e)}"
    for reach in c.reaches:
        yield f"-2**{reach.low} <= {reach.param} < 2**{reach.high}: the kernel {reach.why}"


def _approximate(plan: KernelPlan) -> Iterator[str]:
    for e in plan.choices.approximate:
        yield f"{APPROXIMATIONS[e.op].instruction}: {expression(e)}"


# ---------------------------------------------------------------- facts


def _facts(facts: Facts) -> Iterator[str]:
    for name in sorted({*facts.params, *facts.positive}):
        yield _bounds(name, facts.params.get(name, (None, None)), name in facts.positive)


def _bounds(name: str, bounds: Bounds, positive: bool) -> str:
    low, high = bounds
    parts: list[str] = []
    if low is not None and not (positive and low <= 0):
        parts.append(f"{low:.17g} <= ")
    elif positive:
        parts.append("0 < ")
    parts.append(name)
    if high is not None:
        parts.append(f" <= {high:.17g}")
    return "".join(parts)


# ---------------------------------------------------------------- weights


def _weights(w: Weights) -> Iterator[str]:
    match w.form:
        case Form.EXPONENTIAL:
            yield "weight = exp2(factor * (unit - m)), where m is the running maximum of unit"
            yield from _named(("factor", w.factor), ("unit", w.unit), ("natural", w.natural))
        case Form.SHIFTED:
            yield "weight = stream(s, m), where m is the running maximum of s"
            yield "rescale(m, n) = exp2(factor * (m - n))"
            yield from _named(("s", w.unit), ("stream", w.stream), ("slope", w.slope), ("factor", w.factor))
        case Form.DIRECT:
            yield "weight = stream(s), without a running maximum"
            yield from _named(("s", w.unit), ("stream", w.stream), ("slope", w.slope))
        case _:
            assert_never(w.form)
    total: Expr = Symbol("sum", Type.FLOAT) if w.sums else build.real(1.0)
    yield f"denominator = {expression(total if w.extra is None else build.add(total, w.extra))}"
    if w.log_extra is not None:
        yield f"the last summand enters as one more key of natural logit {expression(w.log_extra)}"


def _dropout(plan: KernelPlan) -> Iterator[str]:
    if plan.attention.dropout is not None:
        yield f"normalised, then kept with probability 1 - {expression(plan.attention.dropout)}, by Philox of the pair"
    if plan.attention.origin != Origin():
        yield f"a pair is counted as ({', '.join(map(expression, plan.attention.counter.values()))})"


# ---------------------------------------------------------------- ranges


def _ranges(ranges: TileRanges) -> Iterator[str]:
    for test in ranges.tests:
        yield _test(test, ranges.axis)
    yield from _segments("any", ranges.any)
    yield from _segments("all", ranges.all)


def _walked(loops: Loops, walks: TwoWalks) -> Iterator[str]:
    """The steps that make runs of tiles; and a walk of these, in which `at` is the tile of step `step`."""
    yield from _steps(loops.steps, "tile")
    for name, walk in (("without a mask", walks.unmasked), ("with the mask", walks.masked)):
        if walk.runs:
            yield f"{name}: n_steps = {expression(walk.n_steps)}"
            yield from (f"    {s.name} = {expression(s.value)}" for s in walk.at)


def _split(found: Split | None) -> Iterator[str]:
    """Tiles are numbered as they are walked, those without a mask first: `n_full` of `n_walked`."""
    if found is None:
        return
    yield f"a tile holds the rows of {'all heads that share keys' if found.packed else 'one head'}"
    yield from _steps((*found.counts, *found.steps), "pieces")
    for name, run in (("without a mask", found.full), ("with the mask", found.partial)):
        if run is not None:
            yield f"{name}: {expression(run[0])} … {expression(run[1])}"


def _segments(kind: str, segments: tuple[Segment, ...]) -> Iterator[str]:
    if not segments:
        yield f"{kind}: nothing"
    for s in segments:
        yield f"{kind}: {expression(s.lo)} … {expression(s.hi)}"


def _test(test: DataTest, axis: str) -> str:
    held, walked = ("queries", "keys") if axis == "k" else ("keys", "queries")
    whose = f"each tile of {walked} and of the tile of {held}"
    return f"{test.name}: {expression(test.row)} {test.sign} {expression(test.col)}, from the extremes of {whose}"


# ---------------------------------------------------------------- gradients, order, tiles


def _gradient(g: LeafGradient, form: Form) -> Iterator[str]:
    yield f"{expression(g.leaf)}: summed by {g.gather.value}"
    extra = "d extra" if form is Form.DIRECT else "d log extra"
    for line in _named(("d natural", g.pair), ("d weight", g.weight), (extra, g.extra)):
        yield f"    {line}"


def _order(plan: KernelPlan, walks: GpuWalks) -> Iterator[str]:
    yield f"tiles of queries: {'late ones first, heads in turn' if plan.longest_first else 'heads one by one'}"
    yield f"tiles of keys: {'early ones first, heads in turn' if plan.growing_keys else 'heads one by one'}"
    yield from _function(walks.index.of("side_by_side"))
    yield from _function(walks.index.of("head_after_head"))


def _function(f: Function) -> Iterator[str]:
    yield str(f)
    for step in f.body:
        if isinstance(step, Assigned):
            yield f"    {step.name} = {expression(step.value)}"
        else:
            yield f"    {', '.join(step.names)} = {step.function.name}({', '.join(map(expression, step.args))})"
    yield f"    return {', '.join(map(expression, f.results))}"


def _tiles(plan: KernelPlan) -> Iterator[str]:
    own = plan.attention.tile
    yield "tile auto" if own is None else f"tile q = {own[0]}, k = {own[1]}, smaller where the chip has no room"
    yield "(queries, keys, warps, stages) by bytes of an element and head dim"
    yield from _aligned(row for row in table(own, plan.burden, loads_of(plan)) if row.chip == CHIP)


def _aligned(rows: Iterable[Row]) -> Iterator[str]:
    cells = [["bytes", "head dim", *KERNELS]]
    for row in rows:
        tiles = (str(tuple(tile)) for tile in (row.forward, row.dkdv, row.dq))
        cells.append([str(row.itemsize), str(row.head_block), *tiles])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


# ---------------------------------------------------------------- compute capability 9.0


def _hopper(plan: HopperPlan) -> Iterator[str]:
    """A walk is of tiles: `at` is the one of step `step`. `own_…` are the ends that a warpgroup's own rows have."""
    if plan.forward is not None:
        f = plan.forward
        yield f"forward{', from the last tile of keys' if f.backwards else ''}"
        if plan.slack:
            below = f", a new one lies up to {plan.lead} below it" if plan.lead else ""
            yield f"    the reference may lag behind the maximum by {plan.slack} powers of two{below}"
        if f.ramp is not None:
            yield f"    logit = {expression(f.ramp.logit)}"
        if f.fetched is not None:
            place = ", ".join(map(expression, f.fetched.place))
            yield f"    tiles of `{expression(f.fetched.load)}` come with those of keys, from ({place}) on"
        if f.batches_inside:
            yield "    all batches of a head lie side by side"
        yield from _walk(f.walk, f.unmasked, f.lists)
        if f.share is not None:
            ends = [name for name, has in (("begin late", f.share.begins), ("end early", f.share.ends)) if has]
            yield f"    a warpgroup's own steps may {' and '.join(ends)}"
        yield from _rows(f.rows)
        yield from _rows(f.of_sequences, "packed sequences and lengths, ")
    if plan.backward is not None:
        b = plan.backward
        yield f"backward, one kernel{': products take lse and delta off' if b.row_terms else ''}"
        yield from (f"    {s.name} = {expression(s.value)}" for s in b.hull.steps)
        yield f"    masked: {expression(outside(b.unmasked))}"
        order = "each waits for the tile of keys before it" if b.lists is None else _lists(b.lists)
        yield f"    dQ is added in turn: {order}"
        yield from _cells(plan.cells, listed=b.lists is not None)
        if b.grouped.long is not None:
            yield "    size: the bytes of a head's rows of Q, dO and dQ"
        listed = "" if b.grouped.listed == b.grouped.heads else f"; {expression(b.grouped.listed)} of several sequences"
        yield f"    query heads that share keys: {expression(b.grouped.heads)} heads of items are wanted{listed}"
        yield f"    sequences of fewer than {b.grouped.few} tiles: whole groups, 2 heads in turn, if backwards"
        yield f"    tiles of two sequences alternate: {'always' if b.grouped.paired else 'of these alone'}"
        if b.grouped.whole:
            yield "    items of several members: each counts as so many heads in turn"
        if b.grouped.onwards:
            yield "    items of several members: onwards, as many heads in turn as are wanted"
        if b.grouped.long is not None:
            turns = "so many" if b.grouped.long == b.grouped.heads else expression(b.grouped.long)
            yield f"    heads with size > {CACHED}: onwards, {turns} in turn"
        yield from _elsewhere(b.elsewhere)
        yield from _rows(b.rows)
        yield from _rows(b.of_sequences, "packed sequences and lengths, ")
    if plan.apart is not None:
        for name, found in (("dK/dV", plan.apart.queries), ("dQ", plan.apart.keys)):
            yield f"backward, {name} by itself"
            yield from _walk(found.walk, found.unmasked, found.lists)
        yield from _elsewhere(plan.apart.elsewhere)
        yield from _rows(plan.apart.rows)


def _walk(walk: Walk, unmasked: tuple[Run, ...], lists: Lists | None) -> Iterator[str]:
    yield f"    n_steps = {expression(walk.n_steps)}"
    yield from (f"    {s.name} = {expression(s.value)}" for s in walk.at)
    yield f"    masked: {expression(outside(unmasked))}"
    if lists is not None:
        yield f"    its ends are {_lists(lists)}"


def _cells(cells: Cells, *, listed: bool) -> Iterator[str]:
    counted = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in cells.kinds(listed=listed).items())
    yield f"        counts: {counted}"
    yield f"        a program that prepares {cells.rows} rows clears {cells.cleared} ints"
    if not listed:
        yield f"        sequences: if tiles of {cells.least} queries are at most {cells.most} times those programs"


def _lists(lists: Lists) -> str:
    by = [name for name, apart in (("batch", lists.by_batch), ("head", lists.by_head)) if apart]
    return f"listed by a kernel, {'for each ' + ' and '.join(by) if by else 'once'}"


def _elsewhere(params: tuple[str, ...]) -> Iterator[str]:
    if params:
        yield f"    the portable kernels run for the gradients of {', '.join(params)}"


def _rows(rows: Iterable[tuple[Dims, Skeleton | BackwardSkeleton | ApartSkeleton]], whose: str = "") -> Iterator[str]:
    for dims, row in rows:
        parts = (("dkdv ", row.dkdv), ("dq ", row.dq)) if isinstance(row, ApartSkeleton) else (("", row),)
        for name, part in parts:
            values = ", ".join(f"{f.name} {getattr(part, f.name)}" for f in fields(part))
            yield f"    {whose}head dims {dims.qk}, {dims.v}: {name}{values}"


# ---------------------------------------------------------------- TPU


def _tpu(walks: TpuWalks) -> Iterator[str]:
    """Of `n_full` tiles that need no mask, and `n_partial` that do."""
    for name, runs in (("keys", walks.keys), ("queries", walks.queries)):
        for kind, own in (("without a mask", runs.unmasked), ("with the mask", runs.masked)):
            yield f"{name} {kind}: {', '.join(f'{r.start} … {r.stop}' for r in own) or 'none'}"
    first, grid, rounds, straight = walks.numbering.first, walks.grid, walks.rounds, walks.straight
    yield "one list of runs lo … hi, numbered through from the first one's start"
    yield from _indented(("a run's tiles", walks.numbering.length), ("at", first))
    yield "for each run after it, from its start"
    yield from _indented(*((s.name, s.value) for s in walks.numbering.steps))
    yield "the grid brings, of the unmasked tiles and then the masked ones"
    yield from _indented(("steps, each has", grid.needed), ("or all", grid.suffice))
    yield from _indented(("number", grid.number), ("where `at` lies", grid.brought))
    yield from _indented(("unmasked", grid.unmasked), ("masked", grid.masked), ("as its step", grid.own))
    yield "a loop of `count` steps, `unroll` of them, j = 0 …, in each round i"
    yield f"    {_rounded(rounds.rounds, 'unroll')}"
    yield from _indented(("step", rounds.step), ("one by one from", rounds.rest))
    yield "masked tiles in vector memory: a loop, and the last one"
    resident = walks.resident
    yield from _indented(("looped", resident.looped), ("last", resident.last))
    yield from _indented(("the last one if", resident.some), ("no tile if", resident.none))
    yield "where n_full and n_partial are known: unmasked tiles in a loop, then all that are left, by number i"
    yield f"    {_rounded(straight.rounds, 'unroll')}"
    yield from _indented(("looped", straight.looped), ("left", straight.left))
    yield from _indented(("unmasked step", straight.unmasked), ("masked step", straight.masked))
    yield "a gradient for each pair: its tile is summed if, for some run"
    yield f"    {expression(walks.pairs)}"


def _indented(*parts: tuple[str, Expr]) -> Iterator[str]:
    yield from (f"    {line}" for line in _named(*parts))


def _steps(steps: tuple[Step, ...], unit: str) -> Iterator[str]:
    for step in steps:
        match step:
            case Rounded():
                yield _rounded(step, unit)
            case Assigned():
                yield f"{step.name} = {expression(step.value)}"
            case Ordered():
                yield f"{step.first.start}, {step.second.start} in order"
            case _:
                assert_never(step)


def _rounded(step: Rounded, unit: str) -> str:
    clamped = ", brought to the tiles that there are" if step.clamped else ""
    way = "up" if step.up else "down"
    return f"{step.name} = {factor(step.bound)} / {unit}, rounded {way}{clamped}"
