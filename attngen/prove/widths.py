"""Obligation `integer-width`: no int that a kernel computes leaves its register, and no division rounds the wrong way.

Takes the plan's choices. For each sum, difference, product and power that the plan computes in 32 bits, and whose
operands are 32 bits wide, intervals or else z3 show that the value fits, for positions and sizes below the length that
the launcher refuses and any 32-bit params that the `where`s allow. For the others: that 64 bits hold it or, where the
target has none, that staying at the end of 32 bits changes no answer (`saturation`). Divisions that the plan does
towards zero are shown to have no negative side. Offsets from a param's pointer are 64 bits wide, but for an index that
differs from pair to pair, whose product with its stride the launcher keeps below 2**31.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from attngen.ir import printing
from attngen.ir.nodes import Apply, Expr, Literal, Op, Type
from attngen.ir.walk import children, nodes
from attngen.plan.kernel import KernelPlan, evaluated
from attngen.plan.width import WideInts
from attngen.prove.confirm import reads_functions
from attngen.prove.saturation import CEILING, StandIns, saturation
from attngen.prove.smt import Answer, Fails, Holds, World
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict
from attngen.prove.whole_numbers import Ends, ends, known_ints

_ARITHMETIC = (Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS, Op.POW)
_SMALL = (1, 2, 3, 4, 6, 8, 16, 31, 62)
"""Bounds of an exponent that are tried."""


def integer_width(plan: KernelPlan, budget: float) -> tuple[Claim, ...]:
    deadline = monotonic() + budget
    operations = dict.fromkeys(
        node for e in evaluated(plan) for node in nodes(e) if isinstance(node, Apply) and node.type is Type.INT
    )
    arithmetic = [e for e in operations if e.op in _ARITHMETIC]
    powers = [e for e in arithmetic if e.op is Op.POW and not isinstance(e.args[1], Literal)]
    held = _exponents(plan, powers, deadline)
    if plan.choices.ints is WideInts.SATURATE:
        held |= dict.fromkeys(plan.choices.wide, (-CEILING, CEILING))
        claims = [_stays(plan, [e for e in arithmetic if e not in held], 32, deadline, held)]
        claims += saturation(plan, deadline)
    else:
        wide = _wide(plan, operations)
        claims = [_stays(plan, [e for e in arithmetic if e not in wide], 32, deadline, held)]
        far = [e for e in arithmetic if e in wide]
        claims += [_stays(plan, far, 64, deadline, held)] if far else []
    divisions = [e for e in operations if e.op in (Op.FLOORDIV, Op.MOD) and e in plan.choices.plain_divisions]
    if divisions:
        claims.append(_divisions(plan, divisions, deadline))
    return tuple(claims)


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


def _stays(plan: KernelPlan, operations: list[Apply], bits: int, deadline: float, held: Mapping[Expr, Ends]) -> Claim:
    """`held` are subexpressions of which more is known than their parts say."""
    below = f"2**{plan.choices.longest_bits}"
    sentence = f"each of {len(operations)} int operations in {bits} bits stays inside, for sequences below {below}"
    for e in operations:
        answer = _fits(plan, e, bits, deadline, held)
        if not isinstance(answer, Holds):
            return Claim(f"{bits} bits", sentence, _verdict(e, answer, f"leaves {bits} bits"), span=e.span)
    return Claim(f"{bits} bits", sentence, Proved("intervals, z3"))


def _fits(plan: KernelPlan, e: Apply, bits: int, deadline: float, held: Mapping[Expr, Ends]) -> Answer:
    limit = 2 ** (bits - 1)
    found = ends(e, plan.choices.longest, held)
    if found is not None and -limit <= found[0] and found[1] < limit:
        return Holds()
    world = World(plan.attention)
    stand_ins = StandIns(plan)
    stored = stand_ins.in_place_of(e) if plan.choices.ints is WideInts.SATURATE else e
    premises = [*known_ints(world, stored, plan.choices.longest), *stand_ins.known(world)]
    value = world.term(stored)
    seconds = max(0.05, min(1.0, deadline - monotonic()))
    return world.ask(premises, world.all_of([value < limit, value >= -limit]), seconds)


def _exponents(plan: KernelPlan, powers: list[Apply], deadline: float) -> dict[Expr, Ends]:
    """Run-time exponents that the file keeps small. (A negative one is refused as `range-safety`'s.)"""
    found: dict[Expr, Ends] = {}
    for e in powers:
        for most in _SMALL:
            world = World(plan.attention)
            premises = known_ints(world, e.args[1], plan.choices.longest)
            seconds = max(0.05, min(0.5, deadline - monotonic()))
            if isinstance(world.ask(premises, world.term(e.args[1]) <= most, seconds), Holds):
                found[e.args[1]] = (0, most)
                break
    return found


def _divisions(plan: KernelPlan, operations: list[Apply], deadline: float) -> Claim:
    sentence = f"each of {len(operations)} divisions that are done towards zero has no negative side"
    for e in operations:
        world = World(plan.attention)
        premises = known_ints(world, e, plan.choices.longest)
        a, c = (world.term(x) for x in e.args)
        answer = world.ask(premises, world.all_of([a >= 0, c > 0]), max(0.05, min(1.0, deadline - monotonic())))
        if not isinstance(answer, Holds):
            return Claim("divisions", sentence, _verdict(e, answer, "is done towards zero"), span=e.span)
    return Claim("divisions", sentence, Proved("z3"))


def _verdict(e: Apply, answer: Answer, what: str) -> Verdict:
    text = printing.expression(e)
    match answer:
        case Holds():
            return Proved("z3")
        case Fails() if reads_functions(e):
            return Unknown("z3", f"`{text}`: how large its functions are is not known to it")
        case Fails():
            return Refuted("z3", (f"at {answer.text()}", f"`{text}` {what}"), tuple(answer.values.items()))
        case _:
            return Unknown("z3", f"`{text}`: {answer.reason}")
