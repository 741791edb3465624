"""Where a target has no 64-bit ints: that an int which stays at the end of 32 bits changes no answer.

Takes the plan's choice of operations that saturate, returns a claim for each place where such an int meets the rest of
the kernel: a comparison, an index, a loop's bound, a conversion to float. Each is the same as with whole numbers of any
size, for every input that the `where`s allow. An operation that saturates gives its value, or the end of 32 bits that
is nearest to it (`templates/jax_shared/arithmetic.py.j2`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from attngen.errors import NOWHERE, Span, UsageError
from attngen.ir import printing
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import children, nodes, rebuild, transform
from attngen.plan.kernel import KernelPlan, evaluated
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Fails, Holds, Term
from attngen.prove.integers.confirm import evaluated_at, reads_functions
from attngen.prove.integers.int_bounds import INT32, Ends, ends, known_ints
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict

_TRIALS = 20_000
_SIZES = ("B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv")
_LOW, _HIGH = INT32
_BEYOND = 2**30
"""Past every sequence: where a bound lies here or there beyond it does not matter."""

_COMPARISONS = (Op.LT, Op.LE, Op.EQ, Op.NE)
_OTHER_TARGET = "or compile for a target with 64-bit ints (triton, torch)"
_OF_PARAMS = f"bound the int params by a `where`, {_OTHER_TARGET}"
_OF_POSITIONS = (
    f"take remainders before products, (q % n) * …, or products of floats, float(q - k) ** 3, {_OTHER_TARGET}"
)


class _Use(Enum):
    VALUE = "has one value"
    BOUND = "is a loop's bound: below 0 and beyond every sequence are one"
    TEST = "decides about tiles"


@dataclass(frozen=True, slots=True)
class _Observer:
    """A place where an int is put to use."""

    e: Expr
    use: _Use


class StandIns:
    """A symbol for each operation that may saturate.

    `steps` say what each stands for, in an order in which they can be computed. With `opaque`, products of two unknowns
    that saturate are symbols too, of which only the bounds are known.
    """

    def __init__(self, plan: KernelPlan, *, opaque: bool = False):
        self.steps: list[tuple[Symbol, Expr]] = []
        self._wide = frozenset(plan.choices.wide)
        self._longest = plan.choices.longest
        self._opaque = opaque
        self._held: dict[Expr, Symbol] = {}
        self._products: dict[Expr, Symbol] = {}

    def in_place_of(self, e: Expr) -> Expr:
        """`e` as the kernel computes it."""
        return transform(e, self._stand_in)

    def exact(self, e: Expr) -> Expr:
        """`e` in whole numbers of any size."""
        return transform(e, self._product)

    def known(self, context: SolverContext) -> list[Term]:
        """What holds of the symbols."""
        found: list[Term] = []
        for symbol, value in self.steps:
            x, held = context.term(value), context.free(symbol.id)
            found += [
                context.implies(context.all_of([x <= _HIGH, x >= _LOW]), held == x),
                context.implies(x > _HIGH, held == _HIGH),
                context.implies(x < _LOW, held == _LOW),
            ]
        for e, symbol in self._products.items():
            reach = ends(e, self._longest)
            if reach is not None:
                term = context.free(symbol.id)
                found += [term >= reach[0], term <= reach[1]]
        return found

    def _stand_in(self, e: Expr) -> Expr | None:
        if _is_far(e):
            assert isinstance(e, Literal)
            return replace(e, value=max(_LOW, min(_HIGH, e.value)))
        if e not in self._wide:
            return None
        found = self._held.get(e)
        if found is None:
            value = self._product(e) or rebuild(e, tuple(self.in_place_of(c) for c in children(e)))
            found = self._held[e] = Symbol(f"saturated {len(self._held)}", Type.INT)
            self.steps.append((found, value))
        return found

    def _product(self, e: Expr) -> Symbol | None:
        """The symbol of a product whose factors are exact."""
        if not (self._opaque and isinstance(e, Apply) and e.op in (Op.MUL, Op.POW) and e in self._wide):
            return None
        if any(n in self._wide for c in children(e) for n in nodes(c)):
            return None
        return self._products.setdefault(e, Symbol(f"product {len(self._products)}", Type.INT))


def saturation(plan: KernelPlan, work: Work, known: Mapping[Expr, Ends]) -> list[Claim]:
    """A claim for all values, and one for each tile range, without which a plan can do. `known`: ends of int params."""

    def left(observers: Iterable[_Observer]) -> list[_Observer]:
        return [o for o in dict.fromkeys(observers) if not _all_fit(_far(o.e, plan), plan, known)]

    found: list[Claim] = []
    values = left(_values(plan))
    if values:
        count = f"each of {len(values)} uses" if len(values) > 1 else "the use"
        found.append(_claim(plan, "saturation", f"{count} of ints that stay", values, work))
    for subject, bounds in _bounds(plan):
        there = left(bounds)
        if there:
            found.append(_claim(plan, subject, "a range of tiles by ints that stay", there, work))
    return found


def _claim(plan: KernelPlan, subject: str, uses: str, observers: Sequence[_Observer], work: Work) -> Claim:
    sentence = f"{uses} at the end of 32 bits is as with whole numbers of any size"
    ints = [p for p in plan.attention.params if p.type is Type.INT]
    for o in observers:
        answer = _same(plan, o, work)
        if not isinstance(answer, Holds):
            verdict = _verdict(plan, o.e, answer)
            if o.use is not _Use.VALUE and isinstance(verdict, Refuted):
                verdict = Unknown(
                    verdict.by, "; ".join(verdict.example)
                )  # not the file is wrong: the range is not used
            return Claim(subject, sentence, verdict, span=_span(o.e), fix=_OF_PARAMS if ints else _OF_POSITIONS)
    return Claim(subject, sentence, Proved("z3"))


def _values(plan: KernelPlan) -> Iterator[_Observer]:
    for root in evaluated(plan):
        for node in nodes(root):
            if isinstance(node, Load):
                yield _Observer(node, _Use.VALUE)
            elif isinstance(node, Apply) and any(a.type is Type.INT for a in node.args):
                if node.op in _COMPARISONS:
                    yield _Observer(node, _Use.VALUE)
                elif node.op is Op.TO_FLOAT:
                    yield _Observer(node.args[0], _Use.VALUE)


def _bounds(plan: KernelPlan) -> Iterator[tuple[str, list[_Observer]]]:
    """By the subjects under which `fallback` gives ranges up."""
    for name, ranges in (("keys", plan.keys), ("queries", plan.queries)):
        yield f"{name}, any", [_Observer(e, _Use.BOUND) for s in ranges.any for e in (s.lo, s.hi)]
        many = len(ranges.all) > 1
        for number, s in enumerate(ranges.all, 1):
            yield f"{name}, all" + (f" {number}" if many else ""), [_Observer(e, _Use.BOUND) for e in (s.lo, s.hi)]
        for t in ranges.tests:
            if t.row.type is Type.INT:
                test = Apply(Op(t.sign), (t.row, t.col), Type.BOOL)
                yield f"{name}, {t.name}", [_Observer(test, _Use.TEST)]


def _far(e: Expr, plan: KernelPlan) -> list[Expr]:
    """What in it may saturate."""
    found = set(plan.choices.wide)
    return [n for n in nodes(e) if n in found or _is_far(n)]


def _is_far(e: Expr) -> bool:
    return isinstance(e, Literal) and e.type is Type.INT and not _LOW <= e.value <= _HIGH


def _all_fit(operations: Sequence[Expr], plan: KernelPlan, known: Mapping[Expr, Ends]) -> bool:
    reach = [ends(e, plan.choices.longest, known) for e in operations]
    return all(r is not None and r[0] >= _LOW and r[1] <= _HIGH for r in reach)


def _same(plan: KernelPlan, o: _Observer, work: Work) -> Answer:
    """Products by their bounds alone, which is enough for most; then numbers; then products as they are."""
    found = _asked(plan, o, work, opaque=True)
    if isinstance(found, Holds):
        return found
    tried = _tried(plan, o)
    return _asked(plan, o, work, opaque=False) if tried is None else tried


def _asked(plan: KernelPlan, o: _Observer, work: Work, *, opaque: bool) -> Answer:
    context = SolverContext(plan.attention)
    stand_ins = StandIns(plan, opaque=opaque)
    known = known_ints(context, o.e, plan.choices.longest)
    by_name = {p.name: p for p in plan.attention.params}
    for load in (n for n in nodes(o.e) if isinstance(n, Load)):
        context.show(load)
        for dim in by_name[load.param].shape:
            known += known_ints(context, dim, plan.choices.longest)
    exact, held = context.term(stand_ins.exact(o.e)), context.term(stand_ins.in_place_of(o.e))
    same = [exact == held]
    if o.use is _Use.BOUND:
        same += [context.all_of([x >= _BEYOND for x in (exact, held)]), context.all_of([x <= 0 for x in (exact, held)])]
    return context.ask([*known, *stand_ins.known(context)], context.any_of(same), work.part())


def _tried(plan: KernelPlan, o: _Observer) -> Fails | None:
    """Values at which the two differ, found by trying many: products of unknowns are hard for z3."""
    import numpy as np  # not loaded for what z3 shows

    from attngen.ir.evaluate import evaluate

    reach = [ends(n, plan.choices.longest) for n in _far(o.e, plan)]
    if any(r is None or max(map(abs, r)) >= 2**62 for r in reach) or any(isinstance(n, Load) for n in nodes(o.e)):
        return None
    env, params = _samples(plan)
    stand_ins = StandIns(plan)
    held_expression = stand_ins.in_place_of(o.e)
    try:
        exact = evaluate(o.e, env, params)
        for symbol, value in stand_ins.steps:
            x = evaluate(value, env, params)
            env = {**env, symbol.id: np.clip(x, _LOW, _HIGH)}
        held = evaluate(held_expression, env, params)
    except UsageError:
        return None
    differ = exact != held
    if o.use is _Use.BOUND:
        differ &= ~(((exact >= _BEYOND) & (held >= _BEYOND)) | ((exact <= 0) & (held <= 0)))
    for fact in (*plan.attention.assumes, *(p.where for p in plan.attention.params if p.where and p.is_scalar)):
        differ &= evaluate(fact, env, params)
    if not differ.any():
        return None
    at = int(np.argmax(np.broadcast_to(differ, (_TRIALS,))))
    read = [n.id for n in nodes(o.e) if isinstance(n, Symbol)] + [n.param for n in nodes(o.e) if isinstance(n, Scalar)]
    values = {**env, **params}
    return Fails({name: values[name][at].item() for name in dict.fromkeys(read)})


def _samples(plan: KernelPlan) -> tuple[dict[str, Any], dict[str, Any]]:
    """Positions, sizes and scalar params, many of each: small ones, those at the ends, and any."""
    import numpy as np

    random = np.random.default_rng(1)
    longest = plan.choices.longest

    def ints(pool: Sequence[int], low: int, high: int) -> Any:
        kept = [x for x in pool if low <= x < high]
        return np.where(random.random(_TRIALS) < 0.7, random.choice(kept, _TRIALS), random.integers(low, high, _TRIALS))

    lengths = (1, 2, 8, 100, 4096, 50_000, longest - 1)
    env: dict[str, Any] = {name: ints(lengths, 1, longest) for name in (*_SIZES, *plan.attention.sizes)}
    for position, size in (("q", "Sq"), ("k", "Sk"), ("b", "B"), ("h", "Hq"), ("hkv", "Hkv")):
        env[position] = np.minimum(ints((0, 1, 2, 7, 99, longest - 1), 0, longest), env[size] - 1)
    for axis, size in (("q", "Sq"), ("k", "Sk")):
        env[f"{axis}0"] = env[axis]
        env[f"{axis}1"] = np.minimum(env[axis] + 63, env[size] - 1)
    env |= {name: random.standard_normal(_TRIALS) for name in ("qk", "scale")}
    pool = [sign * x for x in (0, 1, 2, 7, 1000, 2**16, 46341, 2**30, _HIGH - 2047, _HIGH) for sign in (1, -1)]
    params = {
        p.name: random.standard_normal(_TRIALS)
        if p.type is Type.FLOAT
        else random.random(_TRIALS) < 0.5
        if p.type is Type.BOOL
        else ints(pool, _LOW, 2**31)
        for p in plan.attention.params
        if p.is_scalar
    }
    return env, params


def _span(e: Expr) -> Span:
    return next((n.span for n in nodes(e) if n.span != NOWHERE), NOWHERE)


def _verdict(plan: KernelPlan, e: Expr, answer: Answer) -> Verdict:
    text = printing.expression(e)
    match answer:
        case Holds():
            return Proved("z3")
        case Fails() if reads_functions(e):
            return Unknown("z3", f"`{text}`: nothing bounds its powers and functions")
        case Fails():
            values = {n: x for n, x in answer.values.items() if not n.startswith("saturated ")}
            at = Fails(values).text()
            inner = [*reversed(_far(e, plan))]
            known = [(n, evaluated_at(answer, n)) for n in inner]
            far = next((n for n, x in known if x is not None and not _LOW <= x <= _HIGH), inner[0])
            what = f"`{printing.expression(far)}` leaves 32 bits, all that this target's ints have"
            lines = (f"at {at}", f"{what}, and `{text}` differs")
            return Refuted("z3", lines, tuple(values.items()))
        case _:
            return Unknown("z3", f"`{text}`: {answer.reason}")
