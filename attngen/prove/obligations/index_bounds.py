"""Obligation `index-bounds`: every element that a kernel reads is there.

Takes the plan's accesses, asks z3: wherever a kernel evaluates a load, an index that it does not compare with 0 is not
negative, and one that it does not compare with the dim is below it. A tile of queries or keys may hang over the end of
its sequence, and no mask keeps the overhang from being read, so positions run past Sq and Sk here, except where the
kernel clamps them. Only facts that every call checks are relied on (`ir.checked`), so none about elements. Where a
kernel reads one element for a whole tile because its index is the same at two corners, those are shown to be extreme.
Rows of q, k and v are compared with the length, but for the walked tiles without a mask, which lie inside it.

An int that is made of a float may be any: z3's reals know no rounding, no infinities and no NaN, and what these become
is the chip's choice. A claim holds whatever the floats are.
"""

from __future__ import annotations

from functools import partial

from attngen.ir import printing
from attngen.ir.attention import Attention
from attngen.ir.checked import checked, without_facts
from attngen.ir.nodes import Apply, Expr, Load, Op, Symbol, Type
from attngen.ir.walk import loads, nodes, substitute
from attngen.plan.ints.guards import Access, AxisAccess, Corner
from attngen.plan.kernel import KernelPlan, evaluated
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Fails, Holds, Term
from attngen.prove.integers.confirm import evaluated_at, reads_functions
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.reads import read_claims
from attngen.prove.obligations.sequences import sequence_claims
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown

_POSITIONS = {"q": "Sq", "k": "Sk"}


def index_bounds(attention: Attention, plan: KernelPlan, work: Work) -> tuple[Claim, ...]:
    """Claims for each distinct load of the plan; `attention` is the file's own, as analysed."""
    known = {a.load: a for a in plan.choices.accesses}
    needed = dict.fromkeys(load for e in evaluated(plan) for load in loads(e))
    claims = {load: _claim(plan, load, known.get(load), work) for load in needed}
    rows = _rows(plan, work)
    corners = [_corner_claim(plan, c, work) for c in plan.choices.corners]
    sequences = sequence_claims(without_facts(plan.attention), plan, work)
    return (rows, *claims.values(), *corners, *read_claims(attention, plan, work), *sequences)


def _rows(plan: KernelPlan, work: Work) -> Claim:
    """Where a tile is walked without the mask, its rows are not compared with the length either."""
    sentence = "rows of q, k and v that are read without a comparison lie inside the sequence"
    for ranges, size, ends in ((plan.keys, "Sk", ("q0", "q1")), (plan.queries, "Sq", ("k0", "k1"))):
        for s in ranges.all:
            context = SolverContext(without_facts(plan.attention))
            at, first, last = context.free("position"), *(context.free(end) for end in ends)
            answers = [context.free(t.bound(f"all_{end}").id) for t in ranges.tests for end in ("lo", "hi")]
            premises = [first >= 0, first <= last, *(a >= 0 for a in answers)]
            premises += [context.term(s.lo) <= at, at < context.term(s.hi)]
            inside = context.all_of([at >= 0, at < context.integer(size)])
            answer = context.ask(premises, inside, work.part())
            if isinstance(answer, Fails):
                example = (f"at {answer.text()}", f"position {answer.values['position']} is outside 0 … {size} - 1")
                return Claim("q, k, v", sentence, Refuted("z3", example, tuple(answer.values.items())))
            if not isinstance(answer, Holds):
                return Claim("q, k, v", sentence, Unknown("z3", answer.reason))
    return Claim("q, k, v", sentence, Proved("z3"))


def _claim(plan: KernelPlan, load: Load, access: Access | None, work: Work) -> Claim:
    text = printing.expression(load)
    what = "element" if load.member is None else "list"
    sentence = f"every {what} that `{text}` reads is inside `{load.param}`"
    if access is None or len(access.axes) != len(load.indices):
        unknown = Unknown("structure", "the plan does not say how this load is guarded")
        return Claim(text, sentence, unknown, span=load.span)
    methods: list[str] = []
    for tested, (index, dim) in zip(access.axes, plan.attention.param(load.param).axes(load), strict=True):
        if tested.low and tested.high:
            methods.append("compared in the kernel")
            continue
        answer = _inside(SolverContext(checked(plan.attention)), _of_any_floats(index), tested, dim, work)
        if isinstance(answer, Fails) and _reads_floats(index):
            # Any int would do. Is it one that some floats give?
            answer = _inside(SolverContext(checked(plan.attention)), index, tested, dim, work)
            if not isinstance(answer, Fails) or not _confirmed(answer, index, tested, dim):
                reason = "nothing bounds the ints that are made of floats, and none was found that leaves the param"
                return Claim(text, sentence, Unknown("z3", reason), span=load.span)
        if isinstance(answer, Fails) and not _confirmed(answer, index, tested, dim):
            reason = "it knows nothing of the functions in the index, and its values do not hold when evaluated"
            return Claim(text, sentence, Unknown("z3", reason), span=load.span)
        if isinstance(answer, Fails):
            own = ", ".join(f"{name} = {value}" for name, value in _shown(answer, load, dim))
            what = f"`{printing.expression(index)}` is outside 0 … {printing.expression(dim)} - 1"
            example = (f"at {own}", f"{what}, and the kernel reads it")
            return Claim(text, sentence, Refuted("z3", example, tuple(answer.values.items())), span=load.span)
        if not isinstance(answer, Holds):
            return Claim(text, sentence, Unknown("z3", answer.reason), span=load.span)
        methods.append("z3, clamped" if tested.clamped else "z3")
    return Claim(text, sentence, Proved("; ".join(dict.fromkeys(methods)) or "structure"), span=load.span)


def _reads_floats(index: Expr) -> bool:
    return any(_is_made_of_a_float(n) for n in nodes(index))


def _is_made_of_a_float(e: Expr) -> bool:
    return isinstance(e, Apply) and e.op in (Op.TO_INT, Op.FLOOR, Op.CEIL) and e.args[0].type is Type.FLOAT


def _of_any_floats(index: Expr) -> Expr:
    """The index with an unknown int for each one that is made of a float."""
    made = dict.fromkeys(n for n in nodes(index) if _is_made_of_a_float(n))
    return substitute(index, {n: Symbol(f"whole {number}", Type.INT) for number, n in enumerate(made)})


def _confirmed(answer: Fails, index: Expr, tested: AxisAccess, dim: Expr) -> bool:
    """Whether z3's values are real, as far as that can be told."""
    value, size = evaluated_at(answer, index), evaluated_at(answer, dim)
    if value is None or size is None:
        return not reads_functions(index)
    return (value < 0 and not tested.low) or (value >= size and not tested.high)


def _corner_claim(plan: KernelPlan, corner: Corner, work: Work) -> Claim:
    """Where both corners of a tile read one element, the kernel reads it once for all pairs."""
    index = corner.load.indices[corner.axis]
    text = printing.expression(index)
    sentence = f"in a tile, `{text}` is least and greatest at the corners where the kernel looks"
    context = SolverContext(checked(plan.attention))
    at = {name: context.integer(name) for name in _POSITIONS}
    ends = {end: context.free(end) for end in ("q0", "q1", "k0", "k1")}
    premises = [p for s in _POSITIONS for p in (ends[f"{s}0"] >= 0, ends[f"{s}0"] <= at[s], at[s] <= ends[f"{s}1"])]
    rises = {"q": corner.rises_in_q, "k": corner.rises_in_k}
    value = context.term(index, at)
    least, most = (
        context.term(index, {s: ends[f"{s}{int(rises[s] == highest)}"] for s in _POSITIONS})
        for highest in (False, True)
    )
    answer = context.ask(premises, context.all_of([least <= value, value <= most]), work.part())
    claim = partial(Claim, f"corners of `{text}`", sentence, span=corner.load.span)
    match answer:
        case Holds():
            return claim(Proved("z3"))
        case Fails():
            return claim(Refuted("z3", (f"not at {answer.text()}",), tuple(answer.values.items())))
        case _:
            return claim(Unknown("z3", answer.reason))


def _inside(context: SolverContext, index: Expr, tested: AxisAccess, dim: Expr, work: Work) -> Answer:
    size = context.term(dim)
    at = _overhanging(context)
    premises = [p for name, p in _ranges(context) if name in at]
    if tested.clamped and isinstance(index, Symbol) and index.id in _POSITIONS:
        last = context.integer(_POSITIONS[index.id]) - 1
        position = at[index.id]
        value = context.choose(position <= last, position, last)
    else:
        value = context.term(index, at)
    wanted = [*([] if tested.low else [value >= 0]), *([] if tested.high else [value < size])]
    return context.ask(premises, context.all_of(wanted), work.part())


def _overhanging(context: SolverContext) -> dict[str, Term]:
    return {name: context.free(name) for name in _POSITIONS}


def _ranges(context: SolverContext) -> list[tuple[str, Term]]:
    """Positions start at 0; a last tile may carry them past the end, as far as it likes."""
    return [(name, context.free(name) >= 0) for name in _POSITIONS]


def _shown(answer: Fails, load: Load, dim: Expr) -> list[tuple[str, int | float | bool]]:
    return [(name, value) for name, value in answer.values.items() if not name.startswith(("quotient", "multiple"))]
