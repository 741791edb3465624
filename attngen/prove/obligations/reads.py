"""Reads that lie outside their tensor for a pair that the mask allows: mistakes, or a question of sizes.

Takes an attention, asks z3 about each element that the score, the mask and the normalizer read: is it inside its
tensor for every allowed pair? If not, does a comparison of sizes make it so? Then the call checks that comparison:
`with_needs` puts it into the plan. Else the file is refused with a pair in numbers. An index that is made of data, of
elements or of floats, is left: there the language has 0. Kernels compare an index with the edge in any case; see
`bounds`.

What lies outside is taken to be anything here, not 0, so that a mask cannot excuse itself by what it reads there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from attngen.ir import build, printing
from attngen.ir.attention import Attention
from attngen.ir.build import conjunction
from attngen.ir.nodes import SIZES, Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.papers import IN_PAPERS
from attngen.ir.walk import children, nodes, symbols
from attngen.plan.kernel import KernelPlan
from attngen.plan.needs import LENGTHS, candidates, joined, need
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Fails, Holds, Open, element_name
from attngen.prove.integers.confirm import evaluated_at
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict

_QUESTION = 300_000
"""Units for one question, at effort 1."""
_SHORT = (4, 32)
"""Sequences of a counterexample are no longer than the first of these that is enough."""
_FIX = "forbid such pairs in the mask, clamp the index, or write `t[…] if … else …`"


@dataclass(frozen=True, slots=True)
class Read:
    """An index of a load, the dim that it must stay below, and what holds wherever its value counts."""

    load: Load
    index: Expr
    dim: Expr
    conditions: tuple[Expr, ...]

    @property
    def from_data(self) -> bool:
        return any(isinstance(n, Load) or _is_made_of_a_float(n) for n in nodes(self.index))

    @property
    def surely_inside(self) -> bool:
        """By what the language says of an index: no solver is asked."""
        if isinstance(self.index, Literal) and isinstance(self.dim, Literal):
            return 0 <= self.index.value < self.dim.value
        return isinstance(self.index, Symbol) and self.dim == build.index(LENGTHS.get(self.index.id, ""))


def with_needs(attention: Attention, plan: KernelPlan) -> KernelPlan:
    """The plan with the comparisons of sizes that its calls check. What no comparison mends is left to `read_claims`.

    `attention` is the file's own; its plan may have other names for sizes.
    """
    work = Work()
    found: list[Expr] = []
    for read in _reads(attention):
        if not (read.surely_inside or isinstance(_ask(attention, read, found, work), Holds) or read.from_data):
            found += _needed(attention, read, found, work)
    renamed = dict(zip(attention.sizes, plan.attention.sizes, strict=True))
    return replace(plan, needs=tuple(need(e, renamed) for e in joined(_least(attention, found, work))))


def _least(attention: Attention, needs: list[Expr], work: Work) -> list[Expr]:
    """Without those that follow from the others."""
    for one in tuple(needs) if len(needs) > 1 else ():
        others = [n for n in needs if n != one]
        if isinstance(_follows(attention, others, one, work), Holds):
            needs = others
    return needs


def read_claims(attention: Attention, plan: KernelPlan, work: Work) -> tuple[Claim, ...]:
    """A claim for each load, given what the calls check. `attention` is the file's own."""
    by_load: dict[Load, list[Read]] = {}
    for read in _reads(attention):
        by_load.setdefault(read.load, []).append(read)
    needs = tuple(n.own for n in plan.needs)
    return tuple(_claim(attention, load, reads, needs, work) for load, reads in by_load.items())


def _claim(attention: Attention, load: Load, reads: list[Read], needs: tuple[Expr, ...], work: Work) -> Claim:
    text = printing.expression(load)
    by: dict[str, None] = {}
    for read in reads:
        if read.surely_inside:
            by["structure"] = None
            continue
        answer = _ask(attention, read, needs, work)
        if isinstance(answer, Holds):
            by["z3"] = None
        elif read.from_data:
            by["from data: 0 outside"] = None
        else:
            sentence = f"`{text}` is inside `{load.param}` for every pair that the mask allows"
            verdict, fix = _wrong(attention, read, needs, answer, work)
            fault = f"`{text}` is outside `{load.param}` for a pair that the mask allows"
            fault = fault if isinstance(verdict, Refuted) else ""
            return Claim(f"read of `{text}`", sentence, verdict, span=load.span, fix=fix, fault=fault)
    if "from data: 0 outside" in by:
        sentence = f"`{text}` is 0 outside `{load.param}`: its index comes from data"
    else:
        given = _given(needs if "z3" in by else ())
        sentence = f"`{text}` is inside `{load.param}` for every pair that the mask allows{given}"
    return Claim(f"read of `{text}`", sentence, Proved("; ".join(by)), span=load.span, note=_meant(reads))


def _meant(reads: list[Read]) -> str:
    """The language's size, where a tensor has one of its own that papers write for it: `f32[H]`, read at `h`."""
    for read in reads:
        if isinstance(read.index, Symbol) and isinstance(read.dim, Symbol) and read.dim.id in IN_PAPERS:
            size, param = LENGTHS.get(read.index.id, read.dim.id), read.load.param
            if size != read.dim.id:
                return f"`{read.dim.id}` is a size of `{param}` alone, which may exceed {size}: did you mean {size}?"
    return ""


def _given(needs: Iterable[Expr]) -> str:
    text = " and ".join(map(printing.expression, needs))
    return f", given {text}" if text else ""


# ---------------------------------------------------------------- which elements are read, and when


def _reads(attention: Attention) -> tuple[Read, ...]:
    n, mask = attention.normalizer, (attention.mask,)
    roots = [(attention.score, mask), (attention.mask, mask)]
    roots += [(e, mask) for e in (n.weight, n.stream_weight, n.rescale) if e is not None]
    roots += [(e, ()) for e in (n.extra, attention.dropout, *attention.counter.values()) if e is not None]
    found: dict[Read, None] = {}
    seen: set[tuple[int, tuple[Expr, ...]]] = set()
    for root, conditions in roots:
        for load, under in _loads(root, conditions, seen):
            if load.member is not None:
                continue  # outside its tensor a list is empty
            for index, dim in attention.param(load.param).axes(load):
                found[Read(load, index, dim, under)] = None
    return tuple(found)


def _loads(
    e: Expr, conditions: tuple[Expr, ...], seen: set[tuple[int, tuple[Expr, ...]]]
) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
    """Each load with what holds wherever its value counts. Of `and` and `or` the order is of no account."""
    if not any(isinstance(n, Load) for n in nodes(e)) or (id(e), conditions) in seen:
        return
    seen.add((id(e), conditions))
    match e:
        case Apply(op=Op.SELECT, args=(condition, yes, no)):
            yield from _loads(condition, conditions, seen)
            yield from _loads(yes, (*conditions, condition), seen)
            yield from _loads(no, (*conditions, build.apply(Op.NOT, condition)), seen)
        case Apply(op=Op.AND | Op.OR, args=args):
            for i, a in enumerate(args):
                others = [o if e.op is Op.AND else build.apply(Op.NOT, o) for o in (*args[:i], *args[i + 1 :])]
                yield from _loads(a, (*conditions, *(o for o in others if o not in conditions)), seen)
        case _:
            if isinstance(e, Load):
                yield e, conditions
            for child in children(e):
                yield from _loads(child, conditions, seen)


def _is_made_of_a_float(e: Expr) -> bool:
    return isinstance(e, Apply) and e.op in (Op.TO_INT, Op.FLOOR, Op.CEIL) and e.args[0].type is Type.FLOAT


# ---------------------------------------------------------------- questions


def _ask(
    attention: Attention,
    read: Read,
    needs: Iterable[Expr],
    work: Work,
    longest: int | None = None,
    *,
    never: bool = False,
) -> Answer:
    """Whether the index is inside for every allowed pair; with `never`, whether no pair is allowed at all."""
    from attngen.prove.integers.z3_door import SolverContext

    context = SolverContext(attention, zeros=False)
    premises = [context.term(c) for c in (*read.conditions, *needs)]
    premises += [context.integer(size) <= longest for size in ("Sq", "Sk")] if longest else []
    at = context.term(read.index)
    inside = context.all_of([at >= 0, at < context.term(read.dim)])
    return context.ask(premises, context.any_of([]) if never else inside, work.part(_QUESTION))


def _follows(attention: Attention, premises: list[Expr], conclusion: Expr, work: Work) -> Answer:
    from attngen.prove.integers.z3_door import SolverContext

    context = SolverContext(attention)
    return context.ask([context.term(p) for p in premises], context.term(conclusion), work.part(_QUESTION))


def _needed(attention: Attention, read: Read, known: list[Expr], work: Work) -> tuple[Expr, ...]:
    """The first candidate, or pair of them, with which every allowed pair reads inside, and some pair is allowed.

    Two sizes are compared first where that suffices without a known limit of one: `Sq <= 12` keeps `Sk <= Sq` below 16
    as well, but `Sk <= 16` is what is meant.
    """
    sizes = {*SIZES, *attention.sizes}
    tried = [c for c in candidates(read.index, read.dim) if symbols(c) <= sizes and c not in known]
    # Where z3 is at a loss without a comparison, it is not asked about each two of them.
    most = 2 if isinstance(_ask(attention, read, known, work), Fails) else 1
    more = [x for n in range(1, most + 1) for x in combinations(tried, n)]
    plain = [c for c in known if len(symbols(c)) > 1]
    ways = [(x, plain if any(len(symbols(c)) > 1 for c in x) else known) for x in more]
    ways += [(x, known) for x, given in ways if given != known]
    for x, given in ways:
        if isinstance(_ask(attention, read, [*given, *x], work), Holds):
            possible = _ask(attention, read, [*known, *x], work, never=True)
            if not isinstance(possible, Holds):
                return x
    return ()


# ---------------------------------------------------------------- what is wrong, in numbers


def _wrong(
    attention: Attention, read: Read, needs: tuple[Expr, ...], answer: Answer, work: Work
) -> tuple[Verdict, str]:
    """The counterexample, and the fix."""
    if not isinstance(answer, Fails):
        reason = "no comparison of sizes was found that keeps it inside, and no pair that reads outside"
        return Unknown("z3", f"{reason}: {answer.reason}" if isinstance(answer, Open) else reason), _FIX
    for longest in (*_SHORT, None):
        found = _ask(attention, read, needs, work, longest) if longest else answer
        if isinstance(found, Fails) and _confirmed(found, read, needs):
            at, size = evaluated_at(found, read.index), evaluated_at(found, read.dim)
            shown = _shown(found, read)
            last = "" if isinstance(read.dim, Literal) else f"{printing.expression(read.dim)} - 1 = "
            what = f"`{printing.expression(read.index)}` is {at}, outside 0 … {last}{(size or 0) - 1}"
            fix = _assumption(attention, read, needs, work) or _FIX
            return Refuted("z3", (f"at {shown}", what), tuple(found.values.items())), fix
    return Unknown("z3", "z3 knows too little of the functions in the mask to find a pair that reads outside"), _FIX


def _assumption(attention: Attention, read: Read, needs: tuple[Expr, ...], work: Work) -> str:
    """An `assume` about an int param in the index that keeps it inside, tried before it is proposed."""
    tried: list[Expr] = []
    match read.index:
        case Apply(op=Op.FLOORDIV, args=(Symbol(id=position), Scalar() as rows)) if position in LENGTHS:
            tried.append(build.apply(Op.LE, build.index(LENGTHS[position]), build.mul(read.dim, rows)))
        case _:
            pass
    scalars = [n for n in nodes(read.index) if isinstance(n, Scalar) and n.type is Type.INT]
    own = list(dict.fromkeys(scalars))
    tried += [build.apply(op, n, read.dim) for n in own for op in (Op.LE, Op.LT)]
    least = [build.apply(Op.LE, build.integer(bound), n) for n in own for bound in (0, 1)]
    for facts in (*((fact,) for fact in tried), *((fact, low) for fact in tried for low in least)):
        given = replace(read, conditions=(*read.conditions, *facts))
        inside = isinstance(_ask(attention, given, needs, work), Holds)
        if inside and not isinstance(_ask(attention, given, needs, work, never=True), Holds):
            return f"add `assume {printing.expression(conjunction(*facts))}`"
    return ""


def _shown(found: Fails, read: Read) -> str:
    """What the index, its dim and the conditions read."""
    names: list[str] = []
    for e in (read.index, read.dim, *read.conditions):
        for n in nodes(e):
            match n:
                case Symbol() if n.id in found.values:
                    names += [n.id, *([LENGTHS[n.id]] if n.id in LENGTHS else [])]
                case Scalar():
                    names.append(n.param)
                case Load():
                    names.append(element_name(n))
                case _:
                    pass
    given = dict.fromkeys(name for name in names if name in found.values)
    ordered = sorted(given, key=lambda name: name not in (*SIZES, *LENGTHS.values()))
    return ", ".join(f"{name} = {found.values[name]}" for name in ordered)


def _confirmed(found: Fails, read: Read, needs: tuple[Expr, ...]) -> bool:
    """Whether z3's values, put in and evaluated, are allowed and lie outside: it invents the functions it lacks."""
    at, size = evaluated_at(found, read.index), evaluated_at(found, read.dim)
    if at is None or size is None or 0 <= at < size:
        return False
    return bool(evaluated_at(found, conjunction(*read.conditions, *needs)))
