"""Every mutant of the corpus: one mechanical edit of a normalizer's line, a plan's claim, or a step of a loop.

Takes specs, gives `Mutant`s in a stable order; none is picked by hand. `build` gives the spec and the plan that the
prover is asked about: in kind `normalizer` the file itself is wrong, in the others the file is right, the plan not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import pytest

from attngen.errors import SpecError
from attngen.ir.attention import Attention, Normalizer
from attngen.ir.build import add, apply, div, index, integer, mul, real
from attngen.ir.nodes import Apply, Expr, Load, Op, Type
from attngen.ir.printing import expression as text
from attngen.ir.walk import children, loads, nodes, rebuild, symbols
from attngen.plan import plan
from attngen.plan.index import read
from attngen.plan.kernel import Gather, KernelPlan, LeafGradient, evaluated, with_loops
from attngen.plan.levels import Binding, Level, Schedule, level_of
from attngen.plan.mask.loops import Assigned, Loops, Ordered, Rounded, Run, loops
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from attngen.plan.score.distance import by_distance
from attngen.plan.score.weights import LOG2E, Form, M, N
from attngen.plan.tiles.hopper import hopper_plan
from attngen.prove.obligations.reads import with_needs
from attngen.prove.verdict import Obligation
from mutation.corpus import Spec
from mutation.edits import edits, replaced
from mutation.functions import edited_texts
from mutation.lists import LISTED
from mutation.ramps import edited_ramps
from mutation.summed import SUMMED
from mutation.tpu_walks import run_edits, step_edits
from mutation.walk_mutants import hopper_edits, portable_edits

KINDS = (
    "normalizer", "ranges", "loops", "walks", "tpu", "tpu steps", "hopper", "functions",
    "derivatives", "loads", "widths",
    "hoisting", "folding", "ramps", "diagonals",
)  # fmt: skip

STREAM = (Obligation.STREAMING, Obligation.RANGE_SAFETY)


@dataclass(frozen=True)
class Mutant:
    kind: str
    spec: str
    what: str
    obligations: tuple[Obligation, ...]
    build: Callable[[], tuple[Attention, KernelPlan | None]]
    schedule: Callable[[Schedule], Schedule] | None = None

    key: Hashable = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.spec}: {self.what}"


def population(specs: Iterable[Spec]) -> dict[str, list[Mutant]]:
    """All mutants of these specs by kind, those that ask the prover the same question once."""
    found: dict[str, dict[Hashable, Mutant]] = {kind: {} for kind in KINDS}
    for spec in specs:
        for mutant in mutants(spec):
            found[mutant.kind].setdefault(mutant.key, mutant)
    return {kind: list(own.values()) for kind, own in found.items()}


def sample(found: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, drawn evenly over their specs."""
    random = Random(seed)
    by_spec: dict[str, list[Mutant]] = {}
    for mutant in found:
        by_spec.setdefault(mutant.spec, []).append(mutant)
    names = sorted(by_spec)
    random.shuffle(names)
    for own in by_spec.values():
        random.shuffle(own)
    chosen: list[Mutant] = []
    while len(chosen) < min(count, len(found)):
        for name in names:
            if by_spec[name] and len(chosen) < count:
                chosen.append(by_spec[name].pop())
    return chosen


def mutants(spec: Spec) -> Iterator[Mutant]:
    """All of one spec, by kind."""
    attention = spec.attention()
    of = _Mutants(spec.name, attention, with_needs(attention, plan(attention)))
    yield from of.normalizer()
    yield from of.ranges()
    yield from of.loops()
    yield from of.walks()
    yield from of.tpu()
    yield from of.hopper()
    yield from of.functions()
    yield from of.derivatives()
    yield from of.loads()
    yield from of.widths()
    yield from of.hoisting()
    yield from of.folding()
    yield from of.ramps()
    yield from of.diagonals()


def planned_anyhow(attention: Attention) -> KernelPlan | None:
    """The plan, or None where the stream lines have no form that can be planned: their laws are all there is."""
    try:
        return with_needs(attention, plan(attention))
    except SpecError:
        return None


@dataclass(frozen=True)
class _Mutants:
    name: str
    attention: Attention
    plan: KernelPlan

    def _made(
        self, kind: str, what: str, made: KernelPlan, *obligations: Obligation, schedule: object = None
    ) -> Mutant:
        moved = () if schedule is None else (what,)
        key = (kind, *_question(kind, self.attention, made), *moved)
        return Mutant(kind, self.name, what, obligations, lambda: (self.attention, made), schedule, key)  # type: ignore[arg-type]

    # ------------------------------------------------------------ (a) the normalizer's lines

    def normalizer(self) -> Iterator[Mutant]:
        n = self.attention.normalizer
        if n.name in ("softmax", "softmax1", "sigmoid") and self.name not in ("causal", "softmax1", "sigmoid", "sink"):
            return  # the built-in ones are edited once
        for what, edited in _normalizers(n):
            wrong = replace(self.attention, normalizer=edited)

            def build(wrong: Attention = wrong) -> tuple[Attention, KernelPlan | None]:
                return wrong, planned_anyhow(wrong)

            yield Mutant("normalizer", self.name, what, STREAM, build, key=(edited, wrong.params))

    # ------------------------------------------------------------ (b) ranges and loops

    def ranges(self) -> Iterator[Mutant]:
        for which in ("keys", "queries"):
            for what, edited in _ranges(getattr(self.plan, which)):
                made = replace(self.plan, **{which: edited})
                made = with_loops(made, loops(made.keys), loops(made.queries))
                made = replace(made, hopper=hopper_plan(made, made.attention.tile))
                yield self._made("ranges", f"{which}: {what}", made, Obligation.TILE_RANGES)

    def loops(self) -> Iterator[Mutant]:
        for field in ("key_loops", "query_loops"):
            for what, edited in _loops(getattr(self.plan, field)):
                made = replace(self.plan, **{field: edited})
                made = with_loops(made, made.key_loops, made.query_loops)
                made = replace(made, hopper=hopper_plan(made, made.attention.tile))
                yield self._made("loops", f"{field}: {what}", made, Obligation.TILE_RANGES)

    def walks(self) -> Iterator[Mutant]:
        for what, made in portable_edits(self.plan):
            yield self._made("walks", what, made, Obligation.TILE_RANGES)

    def tpu(self) -> Iterator[Mutant]:
        for what, made in run_edits(self.plan) if self.plan.map is None else ():  # else kernels walk places of lists
            yield self._made("tpu", what, made, Obligation.TILE_RANGES)
        if self.name == "causal":  # the same for all specs
            for what, made in step_edits(self.plan):
                yield self._made("tpu steps", what, made, Obligation.TILE_RANGES)

    def hopper(self) -> Iterator[Mutant]:
        for what, made in hopper_edits(self.plan):
            yield self._made("hopper", what, made, Obligation.TILE_RANGES)

    def functions(self) -> Iterator[Mutant]:
        """One edit of the text of functions that find items, heads and tiles: they are the same for all specs. Some are
        of plans alone in which data decides, or which have a gradient with an element for each pair."""
        walks, which = self.plan.gpu_walks, {"causal": None, "documents": LISTED, "full_bias": SUMMED}
        shown = Obligation.GRADIENTS if self.name == "full_bias" else Obligation.TILE_RANGES
        if self.name in which and walks is not None:
            for what, text in edited_texts(walks.index.text, which[self.name]):
                found = replace(self.plan, gpu_walks=replace(walks, index=read(text)))
                yield self._made("functions", what, found, shown)

    def ramps(self) -> Iterator[Mutant]:
        for what, made in edited_ramps(self.plan):
            yield self._made("ramps", what, made, Obligation.LOCALITY, *STREAM)

    def diagonals(self) -> Iterator[Mutant]:
        """A part of the score that differs along a diagonal is computed once for it."""
        for e in dict.fromkeys(nodes(self.plan.weights.unit)):
            if e.type is Type.FLOAT and level_of(e) is Level.PAIR and by_distance(e) is None:
                made = replace(self.plan, diagonals=(*self.plan.diagonals, e))
                yield self._made("diagonals", text(e), made, Obligation.TILE_RANGES)

    # ------------------------------------------------------------ (c) derivatives

    def derivatives(self) -> Iterator[Mutant]:
        def mutant(what: str, **changed: object) -> Mutant:
            return self._made("derivatives", what, replace(self.plan, **changed), Obligation.GRADIENTS)  # type: ignore[arg-type]

        for what, e in edits(self.plan.d_factor):
            yield mutant(f"d_factor: {what}", d_factor=e)
        for what, e in edits(self.plan.d_pair):
            yield mutant(f"d_pair: {what}", d_pair=e)
        given = self.plan.gradients
        for at, g in enumerate(given):
            for what, edited in [*_gradients(g, given), ("left out", None)]:
                kept = () if edited is None else (edited,)
                yield mutant(f"d {text(g.leaf)}: {what}", gradients=(*given[:at], *kept, *given[at + 1 :]))
            yield mutant(f"d {text(g.leaf)}: twice in the list", gradients=(*given, g))
        if self.plan.weights.slope is not None:
            for what, e in edits(self.plan.weights.slope):
                yield mutant(f"slope: {what}", weights=replace(self.plan.weights, slope=e))

    # ------------------------------------------------------------ (d) loads and widths

    def loads(self) -> Iterator[Mutant]:
        c = self.plan.choices
        for at, found in enumerate(c.accesses):
            for axis, own in enumerate(found.axes):
                for field in ("clamped", "low", "high"):
                    if not getattr(own, field):
                        continue
                    axes = (*found.axes[:axis], replace(own, **{field: False}), *found.axes[axis + 1 :])
                    edited = (*c.accesses[:at], replace(found, axes=axes), *c.accesses[at + 1 :])
                    what = f"{text(found.load)}: axis {axis} without `{field}`"
                    made = replace(self.plan, choices=replace(c, accesses=edited))
                    yield self._made("loads", what, made, Obligation.INDEX_BOUNDS)
        for at, corner in enumerate(c.corners):
            for field in ("rises_in_q", "rises_in_k"):
                other = replace(corner, **{field: not getattr(corner, field)})
                edited_corners = (*c.corners[:at], other, *c.corners[at + 1 :])
                made = replace(self.plan, choices=replace(c, corners=edited_corners))
                yield self._made("loads", f"{text(corner.load)}: {field} turned", made, Obligation.INDEX_BOUNDS)
        for what, mask in _load_edits(self.plan.attention.mask):
            made = replace(self.plan, attention=replace(self.plan.attention, mask=mask))
            yield self._made("loads", f"mask: {what}", made, Obligation.TILE_RANGES)
        for what, unit in _load_edits(self.plan.weights.unit):
            made = replace(self.plan, weights=replace(self.plan.weights, unit=unit))
            yield self._made("loads", f"logit: {what}", made, Obligation.STREAMING)

    def widths(self) -> Iterator[Mutant]:
        c = self.plan.choices
        for at, e in enumerate(c.wide):
            made = replace(self.plan, choices=replace(c, wide=(*c.wide[:at], *c.wide[at + 1 :])))
            yield self._made("widths", f"{text(e)} in 32 bits", made, Obligation.INTEGER_WIDTH)
        if c.wide:
            made = replace(self.plan, choices=replace(c, wide=()))
            yield self._made("widths", "everything in 32 bits", made, Obligation.INTEGER_WIDTH)
        divisions = dict.fromkeys(
            x for e in evaluated(self.plan) for x in nodes(e)
            if isinstance(x, Apply) and x.op in (Op.FLOORDIV, Op.MOD) and x not in c.plain_divisions
        )  # fmt: skip
        for e in divisions:
            made = replace(self.plan, choices=replace(c, plain_divisions=(*c.plain_divisions, e)))
            yield self._made("widths", f"{text(e)} towards zero", made, Obligation.INTEGER_WIDTH)

        for field in ("key_loops", "query_loops"):
            found = getattr(self.plan, field)
            for at, step in enumerate(found.steps):
                if isinstance(step, Rounded) and step.clamped:
                    steps = (*found.steps[:at], replace(step, clamped=False), *found.steps[at + 1 :])
                    made = replace(self.plan, **{field: replace(found, steps=steps)})
                    yield self._made("widths", f"{field}: {step.name} not clamped", made, Obligation.INTEGER_WIDTH)

    # ------------------------------------------------------------ (e) hoisting

    def hoisting(self) -> Iterator[Mutant]:
        for number, binding in enumerate(_bindings(self.attention, self.plan)):
            for level in Level:
                if level is not binding.level and binding.level is not Level.HEAD:
                    move = partial(_moved, number, level)
                    what = f"{text(binding.expr)} once a {level.name.lower()}"
                    yield self._made("hoisting", what, self.plan, Obligation.LOCALITY, schedule=move)

    # ------------------------------------------------------------ (f) folding to base 2

    def folding(self) -> Iterator[Mutant]:
        w = self.plan.weights

        def mutant(what: str, **changed: object) -> Mutant:
            made = replace(self.plan, weights=replace(w, **changed))  # type: ignore[arg-type]
            return self._made("folding", what, made, Obligation.LOCALITY, *STREAM)

        fields = ["factor", "natural", "kappa", "log_extra", "extra", "stream"]
        for field in fields:
            e = getattr(w, field)
            if e is None or (field == "natural" and w.form is not Form.EXPONENTIAL):
                continue
            if field == "stream" and w.form is Form.EXPONENTIAL:
                continue  # not evaluated
            if field == "extra" and w.form is not Form.DIRECT:
                continue  # likewise
            if field == "kappa" and w.form is Form.DIRECT:
                continue
            if field == "factor" and w.form is Form.DIRECT:
                continue
            for what, edited in edits(e):
                yield mutant(f"{field}: {what}", **{field: edited})
            if e.type is Type.FLOAT:
                yield mutant(f"{field}: without log2 e", **{field: div(e, real(LOG2E))})
                yield mutant(f"{field}: with log2 e once more", **{field: mul(e, real(LOG2E))})
        for what, edited in edits(w.unit):
            yield mutant(f"unit: {what}", unit=edited)
        yield mutant("unit: with log2 e once more", unit=mul(w.unit, real(LOG2E)))
        if w.log_extra is not None:
            yield mutant("log_extra left out", log_extra=None)
        if w.extra is not None and w.form is Form.DIRECT:
            yield mutant("extra left out", extra=None)
        yield mutant("the sum left out" if w.sums else "a sum put in", sums=not w.sums)


def _question(kind: str, attention: Attention, made: KernelPlan) -> tuple[Hashable, ...]:
    """What the prover is asked: mutants with the same answer for the same reason are one."""
    match kind:
        case "ranges":
            return made.attention.mask, made.keys, made.queries, attention.params, attention.assumes
        case "loops":
            return _shape(made.keys, made.key_loops), _shape(made.queries, made.query_loops)
        case "walks":
            assert made.gpu_walks is not None
            return made.gpu_walks.keys, made.gpu_walks.queries, made.gpu_walks.split
        case "tpu" | "tpu steps":
            return made.tpu_walks, made.key_loops.runs, made.query_loops.runs
        case "functions":
            assert made.gpu_walks is not None
            return (made.gpu_walks.index.functions,)
        case "hopper":
            return made.hopper, made.queries
        case "diagonals":
            return made.diagonals, attention.params, attention.assumes
        case "ramps":
            return made.ramp, attention.mask, attention.score, attention.params, attention.assumes
        case "loads" | "widths":
            clamps = [
                s.clamped for own in (made.key_loops, made.query_loops) for s in own.steps if isinstance(s, Rounded)
            ]
            return (
                tuple(clamps),
                attention.mask,
                attention.score,
                attention.params,
                made.choices,
                made.attention.mask,
                made.weights,
            )
        case _:
            derived = made.d_factor, made.d_pair, made.gradients
            return attention.score, attention.normalizer, attention.params, attention.assumes, made.weights, *derived


def _shape(ranges: TileRanges, found: Loops) -> Hashable:
    """The loops with their bounds by number: what is shown of them holds for any bounds."""
    numbers: dict[Expr, int] = {}
    steps: list[Hashable] = []
    for s in (*ranges.any, *ranges.all):
        numbers.setdefault(s.lo, len(numbers))
        numbers.setdefault(s.hi, len(numbers))
    for step in found.steps:
        if isinstance(step, Rounded):
            steps.append((step.name, step.up, numbers.setdefault(step.bound, len(numbers))))
        else:
            steps.append(step)
    return len(ranges.any), len(ranges.all), tuple(steps), found.full, found.partial, found.names, found.results


# ---------------------------------------------------------------- edits of a kind


_READ = {"weight": {"s"}, "extra": set[str](), "stream_weight": {"s", "m"}, "rescale": {"m", "n"}}


def _normalizers(n: Normalizer) -> Iterator[tuple[str, Normalizer]]:
    for field in ("weight", "extra", "stream_weight", "rescale"):
        e = getattr(n, field)
        if e is not None:
            for what, edited in edits(e):
                if {"s", "m", "n"} & symbols(edited) <= _READ[field]:  # the language takes nothing else
                    yield f"{field}: {what}", replace(n, **{field: edited})
    if n.shift:
        # The two breaks of the founding text: no running maximum, and a maximum without rescaling.
        yield "no running maximum", replace(n, shift=False, stream_weight=None, rescale=None)
        yield "no rescaling", replace(n, rescale=real(1.0))
        assert n.rescale is not None
        yield "rescale: m and n exchanged", replace(n, rescale=_exchanged(n.rescale))
    yield "the sum " + ("dropped" if n.sums else "added"), replace(n, sums=not n.sums, extra=None)
    if n.extra is not None:
        yield "extra dropped", replace(n, extra=real(0.0))
    elif n.sums:
        yield "an extra term of 1", replace(n, extra=real(1.0))


def _exchanged(e: Expr) -> Expr:
    if e in (M, N):
        return N if e == M else M
    return rebuild(e, tuple(_exchanged(c) for c in children(e)))


def _ranges(r: TileRanges) -> Iterator[tuple[str, TileRanges]]:
    for field in ("any", "all"):
        segments: tuple[Segment, ...] = getattr(r, field)
        for at, s in enumerate(segments):
            for what, edited in _segments(s):
                changed = (*segments[:at], edited, *segments[at + 1 :])
                yield f"{field} {at}: {what}", replace(r, **{field: changed})
            yield f"{field} {at} dropped", replace(r, **{field: (*segments[:at], *segments[at + 1 :])})
            yield f"{field} {at} twice", replace(r, **{field: (*segments, s)})
    yield "any for all", replace(r, all=r.any)
    if r.all:
        yield "all for any", replace(r, any=r.all)
        yield "any and all exchanged", replace(r, any=r.all, all=r.any)


def _segments(s: Segment) -> Iterator[tuple[str, Segment]]:
    yield "lo and hi exchanged", Segment(s.hi, s.lo)
    for field in ("lo", "hi"):
        for what, edited in _bounds(getattr(s, field)):
            yield f"{field}: {what}", replace(s, **{field: edited})


def _bounds(e: Expr) -> Iterator[tuple[str, Expr]]:
    """Off by an element, off by a tile, and one symbol or operation exchanged somewhere."""
    for offset in (1, -1, 64, -64):
        yield f"{'+' if offset > 0 else '-'} {abs(offset)}", add(e, integer(offset))
    seen = {e}
    for what, edited in _inside(e):
        if edited not in seen:
            seen.add(edited)
            yield what, edited


def _inside(e: Expr) -> Iterator[tuple[str, Expr]]:
    yield from replaced(e)
    if isinstance(e, Apply):
        if e.op in (Op.MIN, Op.MAX):
            yield f"{e.op.value} turned in {text(e)}", apply(Op.MAX if e.op is Op.MIN else Op.MIN, *e.args)
            yield f"{text(e.args[1])} dropped from {text(e)}", e.args[0]
            yield f"{text(e.args[0])} dropped from {text(e)}", e.args[1]
        if e.op in (Op.ADD, Op.SUB):
            yield f"sign in {text(e)}", apply(Op.SUB if e.op is Op.ADD else Op.ADD, *e.args)
    parts = children(e)
    for at, part in enumerate(parts):
        for what, edited in _inside(part):
            yield what, rebuild(e, (*parts[:at], edited, *parts[at + 1 :]))


def _loops(found: Loops) -> Iterator[tuple[str, Loops]]:
    steps = found.steps
    for at, step in enumerate(steps):
        before, after = steps[:at], steps[at + 1 :]
        match step:
            case Rounded():
                yield (
                    f"{step.name} rounded the other way",
                    replace(found, steps=(*before, replace(step, up=not step.up), *after)),
                )
                for way in (1, -1):
                    off = Assigned(step.name, add(index(step.name), integer(way)))
                    yield f"{step.name} off by a tile ({way})", replace(found, steps=(*before, step, off, *after))
            case Assigned(value=Apply(op=Op.MIN | Op.MAX) as value):
                turned = apply(Op.MAX if value.op is Op.MIN else Op.MIN, *value.args)
                yield (
                    f"{step.name}: {value.op.value} turned",
                    replace(found, steps=(*before, replace(step, value=turned), *after)),
                )
                for what, edited in _inside(value):
                    yield f"{step.name}: {what}", replace(found, steps=(*before, replace(step, value=edited), *after))
                if _bound_before(step.name, before):
                    yield f"{step.name}: step dropped", replace(found, steps=(*before, *after))
            case Assigned():
                pass
            case Ordered(a, b):
                yield f"order of {a.start} and {b.start} dropped", replace(found, steps=(*before, *after))
                yield f"order of {a.start} and {b.start} turned", replace(found, steps=(*before, Ordered(b, a), *after))
    for at, name in enumerate(found.names):
        for what, e in (*edits(index(name)), *((f"{n} for it", index(n)) for n in found.names if n != name)):
            yield f"returned {name}: {what}", replace(found, results=(*found.results[:at], e, *found.results[at + 1 :]))
    for field, other in (("full", "partial"), ("partial", "full")):
        runs: tuple[Run, ...] = getattr(found, field)
        for at, run in enumerate(runs):
            rest = (*runs[:at], *runs[at + 1 :])
            yield f"{field} run {run.start} dropped", replace(found, **{field: rest})
            yield f"{field} run {run.start} twice", replace(found, **{field: (*runs, run)})
            yield (
                f"{field} run {run.start}: start and stop exchanged",
                replace(found, **{field: (*rest, Run(run.stop, run.start))}),
            )
            yield (
                f"{field} run {run.start} made {other}",
                replace(found, **{field: rest, other: (*getattr(found, other), run)}),
            )
    if found.full:
        yield "full and partial exchanged", replace(found, full=found.partial, partial=found.full)


def _bound_before(name: str, steps: tuple[object, ...]) -> bool:
    return any(isinstance(s, Rounded | Assigned) and s.name == name for s in steps)


def _gradients(g: LeafGradient, others: tuple[LeafGradient, ...]) -> Iterator[tuple[str, LeafGradient]]:
    for field in ("pair", "weight", "extra"):
        e = getattr(g, field)
        if e is None:
            continue
        for what, edited in edits(e):
            yield f"{field}: {what}", replace(g, **{field: edited})
        yield f"{field} left out", replace(g, **{field: None})
        for other in others:
            wrong = getattr(other, field)
            if wrong is not None and wrong != e:
                yield f"{field} of {text(other.leaf)}", replace(g, **{field: wrong})
    for gather in Gather:
        if gather is not g.gather:
            yield f"gathered by {gather.value}", replace(g, gather=gather)


def _load_edits(e: Expr) -> Iterator[tuple[str, Expr]]:
    """One index of one load changed, everywhere that load stands."""
    for load in dict.fromkeys(loads(e)):
        for at, i in enumerate(load.indices):
            for what, edited in (("+ 1", add(i, integer(1))), ("- 1", add(i, integer(-1))), *replaced(i)):
                other = replace(load, indices=(*load.indices[:at], edited, *load.indices[at + 1 :]))
                yield f"index {at} of {text(load)}: {what}", _put(e, load, other)


def _put(e: Expr, old: Load, new: Load) -> Expr:
    return new if e == old else rebuild(e, tuple(_put(c, old, new) for c in children(e)))


def _bindings(attention: Attention, planned: KernelPlan) -> tuple[Binding, ...]:
    """What the prover's own schedule of this plan binds."""
    from attngen.prove.obligations import locality

    seen: list[Schedule] = []
    real_schedule = locality.schedule

    def spy(results: object) -> Schedule:
        seen.append(real_schedule(results))  # type: ignore[arg-type]
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locality, "schedule", spy)
        locality.locality(attention, planned)
    return tuple(b for s in seen for b in s.bindings)


def _moved(number: int, level: Level, found: Schedule) -> Schedule:
    bindings = found.bindings
    if number >= len(bindings):
        return found
    moved = replace(bindings[number], level=level)
    return replace(found, bindings=(*bindings[:number], moved, *bindings[number + 1 :]))
