"""Obligation `integer-width`: no int that a kernel computes leaves its register, and no division rounds the wrong way.

Takes the plan's choices. For each sum, difference, product, power and quotient that the plan computes in 32 bits, and
whose operands are 32 bits wide, intervals or else z3 show that the value fits, for positions and sizes below the length
that the launcher refuses and any 32-bit params that the `where`s allow. For the others: that 64 bits hold it or, where
the target has none, that staying at the end of 32 bits changes no answer (`saturation`). Divisions that the plan does
towards zero are shown to have no negative side; what the others are printed as is bounded step by step (`divisions`).
So are the bounds of loops, rounded to tiles. What is computed for an index, and each division towards zero, rests only
on facts that every call checks (`ir.checked`), since an index that is wrong reads elsewhere. Offsets from a param's
pointer are 64 bits wide, but for an index that differs from pair to pair, whose product with its stride the launcher
keeps below 2**31.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from attngen.ir import printing
from attngen.ir.checked import checked
from attngen.ir.nodes import MOST_SHIFTED, Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import children, nodes, params, substitute
from attngen.plan.ints.clipping import clipped_at
from attngen.plan.ints.divisions import is_division, shift
from attngen.plan.ints.width import FARTHEST, LARGEST_TILE, WideInts
from attngen.plan.kernel import KernelPlan, evaluated
from attngen.plan.mask.loops import Rounded
from attngen.prove.budget.work import QUESTION, Work
from attngen.prove.integers.answers import Answer, Fails, Holds, Term
from attngen.prove.integers.confirm import reads_functions
from attngen.prove.integers.int_bounds import INT32, Ends, ends, known_ints
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.divisions import expansion_answer
from attngen.prove.obligations.saturation import StandIns, saturation
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict

_ARITHMETIC = (Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS, Op.POW, Op.FLOORDIV, Op.MOD)
MOST_EXPONENT = 62
"""Of 2, the highest power that 64 bits hold."""
_ROUNDING = "the bounds of loops, rounded up to a tile, stay inside, and the numbers of tiles fit 32 bits"
_BOUND = 16
"""Of an exponent, in a fix: of 2, this power is a long sequence."""


def integer_width(plan: KernelPlan, work: Work) -> tuple[Claim, ...]:
    relied_on = replace(plan, attention=checked(plan.attention))
    operations = dict.fromkeys(
        node for e in evaluated(plan) for node in nodes(e) if isinstance(node, Apply) and node.type is Type.INT
    )
    arithmetic = [e for e in operations if e.op in _ARITHMETIC and e not in plan.choices.clipped]
    powers = [e for e in arithmetic if e.op is Op.POW and not isinstance(e.args[1], Literal)]
    held = _params(plan, operations, work) | _exponents(plan, powers, work)
    wide = set[Expr]() if plan.choices.ints is WideInts.SATURATE else _wide(plan, operations)
    if plan.choices.ints is WideInts.SATURATE:
        inside = {**held, **dict.fromkeys(plan.choices.wide, INT32)}
        claims = [_stays(plan, [e for e in arithmetic if e not in inside], 32, work, inside)]
        claims += saturation(plan, work, held)
    else:
        claims = _in_registers(plan, arithmetic, wide, work, held)
        if relied_on.attention != plan.attention:
            of_indices = _of_indices(plan)
            own = [e for e in arithmetic if e in of_indices]
            known = _params(relied_on, own, work) | _exponents(relied_on, powers, work)
            found = _in_registers(relied_on, own, wide, work, known) if own else []
            claims += [
                replace(c, subject=f"{c.subject}, indices", sentence=f"for indices, {c.sentence}") for c in found
            ]
    plain = [e for e in operations if is_division(e) and e in plan.choices.plain_divisions]
    if plain:
        claims.append(_divisions(relied_on, plain, work))
    expanded = [e for e in operations if is_division(e) and e not in plain and shift(e) is None]
    if expanded:
        claims.append(_expansions(plan, expanded, wide, work))
    if plan.choices.clipped:
        claims.append(_clipped(plan, work))
    if plan.choices.ints is WideInts.BITS_64:  # else they are shifted, which is right for every int
        claims.append(_rounding(plan, wide, work, held))
    if plan.choices.ints is WideInts.BITS_64 and all(isinstance(c.verdict, Proved) for c in claims):
        claims += _far(plan, operations, work, held)
    return tuple(claims)


def _far(plan: KernelPlan, operations: Iterable[Apply], work: Work, held: Mapping[Expr, Ends]) -> list[Claim]:
    """An int of a call may have 64 bits, where a kernel then computes in 64, too: those that the call lets through."""
    far: dict[Expr, Ends] = {}
    for p in plan.attention.params:
        if p.is_scalar and p.type is Type.INT:
            reach = plan.choices.reach(p.name)
            low, high = held.get(Scalar(p.name, Type.INT), INT32)  # the call checks a `where`, too, which may say less
            least = -(2 ** (63 if reach is None else reach.low)) if low == INT32[0] else low
            most = 2 ** (63 if reach is None else reach.high) - 1 if high == INT32[1] else high
            far[Scalar(p.name, Type.INT)] = least, most
    own = [e for e in operations if any(far.get(n, INT32) != INT32 for n in nodes(e))]
    if not own:
        return []
    sentence = "ints of a call that need more than 32 bits, up to what it lets through, leave 64 bits nowhere"
    for e in own:
        found = ends(e, plan.choices.longest, {**held, **far})
        if found is not None and found[0] >= -(2**63) and found[1] < 2**63:
            continue
        context = SolverContext(plan.attention)
        premises = known_ints(context, e, plan.choices.longest, far)
        value = context.term(e)
        answer = context.ask(premises, context.all_of([value < 2**63, value >= -(2**63)]), work.part())
        if not isinstance(answer, Holds):
            return [Claim("ints of a call", sentence, _verdict(e, answer, "leaves 64 bits"), span=e.span)]
    return [Claim("ints of a call", sentence, Proved("intervals, z3"))]


def _of_indices(plan: KernelPlan) -> set[Expr]:
    """What is computed to find an element."""
    reads = (n for e in evaluated(plan) for n in nodes(e) if isinstance(n, Load))
    return {part for load in reads for index in load.indices for part in nodes(index)}


def _in_registers(
    plan: KernelPlan, operations: list[Apply], wide: set[Expr], work: Work, held: Mapping[Expr, Ends]
) -> list[Claim]:
    """Claims for 32 bits, and for 64 where an operation runs in them."""
    near, far = [e for e in operations if e not in wide], [e for e in operations if e in wide]
    claims = [_stays(plan, near, 32, work, held)]
    return [*claims, _stays(plan, far, 64, work, held)] if far else claims


def _wide(plan: KernelPlan, operations: dict[Apply, None]) -> set[Expr]:
    """The operations that run in 64 bits: those of the plan's choice, and what is computed from them."""
    found: set[Expr] = set(plan.choices.wide)

    def visit(e: Expr) -> bool:
        own = e in found or (isinstance(e, Apply) and e.type is Type.INT and any(visit(c) for c in children(e)))
        if own:
            found.add(e)
        return own

    for e in operations:
        visit(e)
    return found


def _stays(plan: KernelPlan, operations: list[Apply], bits: int, work: Work, held: Mapping[Expr, Ends]) -> Claim:
    """`held` are subexpressions of which more is known than their parts say."""
    below = f"2**{plan.choices.longest_bits}"
    sentence = f"each of {len(operations)} int operations in {bits} bits stays inside, for sequences below {below}"
    for e in operations:
        answer = _fits(plan, e, bits, work, held)
        if not isinstance(answer, Holds):
            verdict = _verdict(e, answer, f"leaves {bits} bits")
            return Claim(f"{bits} bits", sentence, verdict, span=e.span, fix=_bound(plan, e))
    return Claim(f"{bits} bits", sentence, Proved("intervals, z3"))


def _fits(plan: KernelPlan, e: Apply, bits: int, work: Work, held: Mapping[Expr, Ends]) -> Answer:
    limit = 2 ** (bits - 1)
    if is_division(e):
        return _quotient_fits(plan, e, limit, work, held)
    found = ends(e, plan.choices.longest, held)
    if found is not None and -limit <= found[0] and found[1] < limit:
        return Holds()
    context = SolverContext(plan.attention)
    stand_ins = StandIns(plan)
    stored = stand_ins.in_place_of(e) if plan.choices.ints is WideInts.SATURATE else e
    premises = [*known_ints(context, stored, plan.choices.longest), *stand_ins.known(context)]
    value = context.term(stored)
    return context.ask(premises, context.all_of([value < limit, value >= -limit]), work.part())


def _quotient_fits(plan: KernelPlan, e: Apply, limit: int, work: Work, held: Mapping[Expr, Ends]) -> Answer:
    """Whether the divisor fits, and the quotient: it does unless the least int is divided by -1."""
    number, divisor = (ends(a, plan.choices.longest, held) for a in e.args)
    if number is not None and divisor is not None and divisor[0] >= -limit and divisor[1] < limit:
        no_opposite = number[0] > -limit or divisor[0] > -1 or divisor[1] < -1
        if no_opposite:
            return Holds()
    context = SolverContext(plan.attention)
    stand_ins = StandIns(plan)
    stored = [stand_ins.in_place_of(a) if plan.choices.ints is WideInts.SATURATE else a for a in e.args]
    premises = [t for a in stored for t in known_ints(context, a, plan.choices.longest)] + stand_ins.known(context)
    a, c = (context.term(x) for x in stored)
    conclusion = context.all_of([c >= -limit, c < limit, context.any_of([a > -limit, c < -1, c > -1])])
    return context.ask(premises, conclusion, work.part())


def _expansions(plan: KernelPlan, operations: list[Apply], wide: set[Expr], work: Work) -> Claim:
    """Of what these divisions are printed as."""
    count = f"each step of {len(operations)} divisions" if len(operations) > 1 else "each step of the division"
    sentence = f"{count} that rounds down stays in its register, and the last is the quotient or the remainder"
    context = SolverContext(replace(plan.attention, params=(), assumes=()))  # no fact bears on it
    for (op, bits), e in {(e.op, 64 if e in wide else 32): e for e in operations}.items():
        answer = expansion_answer(context, op, bits, work.part(2 * QUESTION))
        if not isinstance(answer, Holds):
            what = f"is printed with a step that leaves {bits} bits, or that does not round down"
            return Claim("divisions", sentence, _verdict(e, answer, what), span=e.span)
    return Claim("divisions", sentence, Proved("z3"))


def _clipped(plan: KernelPlan, work: Work) -> Claim:
    """Of the comparisons in which they stand, for elements of 32 bits and of 64."""
    count = len(plan.choices.clipped)
    sentence = f"{count} sums that stay at the end of their dtype compare with elements as the sums themselves do"
    own, other = (Symbol(name, Type.INT) for name in ("own", "other"))
    for e in dict.fromkeys(n for root in evaluated(plan) for n in nodes(root)):
        for bound in (c for c in children(e) if isinstance(c, Apply) and c in plan.choices.clipped):
            names = {bound.args[0]: own, **{a: other for a in children(e) if a is not bound}}
            for bits in (32, 64):
                context = SolverContext()
                kept = substitute(clipped_at(bound, bits), names)
                exact = context.term(substitute(e, names))
                inside = [t for s in (own, other) for t in _inside(context.term(s), bits)]
                same = context.term(substitute(substitute(e, {bound: kept}), names)) == exact
                answer = context.ask(inside, context.all_of([same, *_inside(context.term(kept), bits)]), work.part())
                if not isinstance(answer, Holds):
                    return Claim("ends of dtypes", sentence, _verdict(e, answer, "differs"), span=e.span)
    return Claim("ends of dtypes", sentence, Proved("z3"))


def _inside(value: Term, bits: int) -> list[Term]:
    return [value >= -(2 ** (bits - 1)), value < 2 ** (bits - 1)]


def _rounding(plan: KernelPlan, wide: set[Expr], work: Work, held: Mapping[Expr, Ends]) -> Claim:
    """A bound is rounded up to a tile in its own width, and becomes a number of tiles in 32 bits. One that params
    decide does so whatever they hold, since it is brought to the tiles that there are.
    """
    steps = [s for loops in (plan.key_loops, plan.query_loops) for s in loops.steps if isinstance(s, Rounded)]
    for s in steps:
        if params(s.bound) and not s.clamped:
            reason = f"`{printing.expression(s.bound)}`: nothing brings it to the tiles of a tensor, whatever it reads"
            return Claim("bounds of loops", _ROUNDING, Unknown("structure", reason), span=plan.attention.mask.span)
    for e in dict.fromkeys(s.bound for s in steps):
        low, high = (-FARTHEST, FARTHEST) if e in wide else (-(2**31), 2**31 - LARGEST_TILE)
        found = ends(e, plan.choices.longest, held)
        if found is not None and found[0] >= low and found[1] <= high:
            continue
        context = SolverContext(plan.attention)
        premises = known_ints(context, e, plan.choices.longest)
        value = context.term(e)
        fits = context.all_of([value >= low, value <= high])
        answer = context.ask(premises, fits, work.part())
        if not isinstance(answer, Holds):
            verdict = _verdict(e, answer, "leaves 32 bits in tiles")
            return Claim("bounds of loops", _ROUNDING, verdict, span=plan.attention.mask.span)
    return Claim("bounds of loops", _ROUNDING, Proved("intervals, z3"))


def _params(plan: KernelPlan, operations: Iterable[Apply], work: Work) -> dict[Expr, Ends]:
    """Int params and elements, as far as the `where`s bound them."""
    found: dict[Expr, Ends] = {}
    for e in dict.fromkeys(n for o in operations for n in nodes(o) if isinstance(n, Scalar | Load)):
        if e.type is not Type.INT or not _has_facts(plan, e.param):
            continue
        low, high = INT32
        planned = plan.facts.params.get(e.param, (None, None))  # shown like any other bound
        least, most = (int(x) if x is not None and INT32[0] < x < INT32[1] else None for x in planned)
        for bound in (*(() if least is None else (least,)), 1, 0, -(2**30)):
            if low == INT32[0] and isinstance(_says(plan, e, lambda x, least=bound: x >= least, work), Holds):
                low = bound
        for bound in (*(() if most is None else (most,)), 2**30):
            if high == INT32[1] and isinstance(_says(plan, e, lambda x, most=bound: x <= most, work), Holds):
                high = bound
        found[e] = (low, high)
    return found


def _has_facts(plan: KernelPlan, name: str) -> bool:
    attention = plan.attention
    return attention.param(name).where is not None or any(name in params(fact) for fact in attention.assumes)


def _says(plan: KernelPlan, e: Expr, conclusion: Callable[[Term], Term], work: Work) -> Answer:
    """Whether it follows from the `where`s."""
    context = SolverContext(plan.attention)
    premises = known_ints(context, e, plan.choices.longest)
    return context.ask(premises, conclusion(context.term(e)), work.part(QUESTION // 2))


def _exponents(plan: KernelPlan, powers: list[Apply], work: Work) -> dict[Expr, Ends]:
    """Run-time exponents that the file keeps from 0 to something small: the least bound that it shows."""
    found: dict[Expr, Ends] = {}
    for n in dict.fromkeys(e.args[1] for e in powers):

        def holds(most: int, n: Expr = n) -> bool:
            return isinstance(_says(plan, n, lambda x: x <= most, work), Holds)

        if holds(MOST_EXPONENT) and isinstance(_says(plan, n, lambda x: x >= 0, work), Holds):
            found[n] = (0, bisect_left(range(MOST_EXPONENT), True, key=holds))
    return found


def _bound(plan: KernelPlan, e: Apply) -> str:
    """How to bound an operation that holds a power of a number, or of a param of which nothing is said."""
    unsaid = {p.name for p in plan.attention.params if p.where is None}
    for power in nodes(e):
        match power:
            case Apply(op=Op.POW, args=(Literal() as base, exponent)) if not isinstance(exponent, Literal):
                number, n = printing.expression(base), printing.expression(exponent)
                number = f"({number})" if number.startswith("-") else number
                return f"bound the exponent: {number} ** min({n}, {_BOUND})"
            case Apply(op=Op.POW, args=(Scalar() as base, _), type=Type.INT) if base.param in unsaid:
                return f"bound the base where it is declared: `where 0 <= {base.param} <= 100`"
            case _:
                pass
    return ""


def _divisions(plan: KernelPlan, operations: list[Apply], work: Work) -> Claim:
    sentence = f"each of {len(operations)} divisions that are done towards zero has no negative side"
    for e in operations:
        context = SolverContext(plan.attention)
        premises = known_ints(context, e, plan.choices.longest)
        # A shift by anything else has no value: `range-safety` is about it.
        shifts = (x.args[1] for x in nodes(e) if isinstance(x, Apply) and x.op is Op.SHIFT_RIGHT)
        premises += [context.all_of([n >= 0, n <= MOST_SHIFTED]) for n in map(context.term, shifts)]
        a, c = (context.term(x) for x in e.args)
        answer = context.ask(premises, context.all_of([a >= 0, c > 0]), work.part())
        if not isinstance(answer, Holds):
            return Claim("divisions", sentence, _verdict(e, answer, "is done towards zero"), span=e.span)
    return Claim("divisions", sentence, Proved("z3"))


def _verdict(e: Expr, answer: Answer, what: str) -> Verdict:
    text = printing.expression(e)
    match answer:
        case Holds():
            return Proved("z3")
        case Fails() if reads_functions(e):
            return Unknown("z3", f"`{text}`: nothing bounds its powers and functions")
        case Fails():
            return Refuted("z3", (f"at {answer.text()}", f"`{text}` {what}"), tuple(answer.values.items()))
        case _:
            return Unknown("z3", f"`{text}`: {answer.reason}")
