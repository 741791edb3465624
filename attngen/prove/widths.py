"""Obligation `integer-width`: no int that a kernel computes leaves its register, and no division rounds the wrong way.

Takes the plan's choices. For each sum, difference, product and power that the plan computes in 32 bits, and whose
operands are 32 bits wide, intervals or else z3 show that the value fits, for positions and sizes below 2**27 (the
launcher refuses longer sequences) and any 32-bit params that the `where`s allow; for the others, that 64 bits hold it.
Divisions that the plan does towards zero are shown to have no negative side. Offsets from a param's pointer are 64 bits
wide, but for an index that differs from pair to pair, whose product with its stride the launcher keeps below 2**31.
"""

from __future__ import annotations

from time import monotonic

from attngen.ir import printing
from attngen.ir.nodes import Apply, Expr, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import children, nodes
from attngen.plan.kernel import KernelPlan, evaluated
from attngen.prove.confirm import reads_functions
from attngen.prove.smt import Answer, Fails, Holds, Term, World
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict
from attngen.prove.whole_numbers import POSITIONS, ends, signed

LONGEST = 2**27
_ARITHMETIC = (Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS)
_LENGTHS = (27, 24, 20, 16)
"""Sequences shorter than 2 to these: tried in turn where 64 bits might not do."""


def integer_width(plan: KernelPlan, budget: float) -> tuple[Claim, ...]:
    deadline = monotonic() + budget
    operations = dict.fromkeys(
        node for e in evaluated(plan) for node in nodes(e) if isinstance(node, Apply) and node.type is Type.INT
    )
    wide = _wide(plan, operations)
    narrow = [e for e in operations if e.op in _ARITHMETIC and e not in wide]
    claims = [_narrow(plan, narrow, deadline)]
    claims += _wide_claims(plan, [e for e in operations if e.op in _ARITHMETIC and e in wide], deadline)
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


def _premises(world: World, e: Expr, longest: int) -> list[Term]:
    found: list[Term] = []
    for node in nodes(e):
        match node:
            case Symbol() if node.type is Type.INT:
                # Positions may hang over the end by a tile: at most 512, far less than a sequence may be.
                term = world.free(node.id)
                found += [term < longest, term > -longest if signed(node.id) else term >= 0]
                if node.id not in POSITIONS and not signed(node.id):
                    found.append(term >= 1)
            case Scalar() | Load() if node.type is Type.INT:
                term = world.term(node)
                found += [term < 2**31, term >= -(2**31)]
            case Apply(op=Op.TO_INT | Op.FLOOR | Op.CEIL) if node.args[0].type is Type.FLOAT and node is not e:
                # What a conversion gives is in a 32-bit register; that the float fits it is `range-safety`'s.
                term = world.term(node)
                found += [term < 2**31, term >= -(2**31)]
            case _:
                pass
    return found


def _fits(world: World, e: Apply, bits: int, longest: int, seconds: float) -> Answer:
    limit = 2 ** (bits - 1)
    found = ends(e, longest)
    if found is not None and -limit <= found[0] and found[1] < limit:
        return Holds()
    premises = _premises(world, e, longest)
    value = world.term(e)
    return world.ask(premises, world.all_of([value < limit, value >= -limit]), max(0.05, min(1.0, seconds)))


def _narrow(plan: KernelPlan, operations: list[Apply], deadline: float) -> Claim:
    sentence = f"each of {len(operations)} int operations in 32 bits stays inside, for sequences below 2**27"
    for e in operations:
        answer = _fits(World(plan.attention), e, 32, LONGEST, deadline - monotonic())
        if not isinstance(answer, Holds):
            return Claim("32 bits", sentence, _verdict(e, answer, "leaves 32 bits"), span=e.span)
    return Claim("32 bits", sentence, Proved("intervals, z3"))


def _wide_claims(plan: KernelPlan, operations: list[Apply], deadline: float) -> list[Claim]:
    """One claim for those that fit for every length that is launched, and one for each that needs shorter ones."""
    claims: list[Claim] = []
    fitting = 0
    for e in operations:
        claim = _shorter(plan, e, deadline)
        fitting += claim is None
        claims += [] if claim is None else [claim]
    if fitting:
        sentence = f"each of {fitting} int operations in 64 bits stays inside, for sequences below 2**27"
        claims.append(Claim("64 bits", sentence, Proved("intervals, z3")))
    return claims


def _shorter(plan: KernelPlan, e: Apply, deadline: float) -> Claim | None:
    """None where 64 bits always do."""
    text = printing.expression(e)
    answer: Answer = Holds()
    power = _LENGTHS[0]
    for power in _LENGTHS:
        answer = _fits(World(plan.attention), e, 64, 2**power, deadline - monotonic())
        if isinstance(answer, Holds):
            break
    if isinstance(answer, Holds) and power == _LENGTHS[0]:
        return None
    sentence = f"`{text}` stays inside 64 bits, for sequences below 2**{power}"
    note = "longer sequences may leave 64 bits" if isinstance(answer, Holds) else ""
    return Claim(text, sentence, _verdict(e, answer, "leaves 64 bits"), span=e.span, note=note)


def _divisions(plan: KernelPlan, operations: list[Apply], deadline: float) -> Claim:
    sentence = f"each of {len(operations)} divisions that are done towards zero has no negative side"
    for e in operations:
        world = World(plan.attention)
        premises = _premises(world, e, LONGEST)
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
