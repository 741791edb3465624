"""Bounds of int expressions, in whole numbers: interval arithmetic, enough for most questions about widths, and what
z3 is told of the same leaves for the others.

Takes an expression, the length that sequences stay below, and the ends of subexpressions that are known otherwise;
returns its least and greatest value, or None where an operation has no rule here. Each operand is taken by itself, so
the bounds are wide where operands go together.
"""

from __future__ import annotations

from collections.abc import Mapping

from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import nodes
from attngen.prove.integers.answers import Term
from attngen.prove.integers.z3_door import SolverContext

Ends = tuple[int, int]

MOST_POWER = 64
"""Of 2, this power leaves 64 bits."""

INT32: Ends = (-(2**31), 2**31 - 1)
POSITIONS = ("q", "k", "b", "h", "hkv", "q0", "q1", "k0", "k1")


def signed(name: str) -> bool:
    """Symbols that may be negative: answers of data tests, and the difference of two positions."""
    return name.startswith("test") or name == "distance"


def ends(e: Expr, longest: int, known: Mapping[Expr, Ends] | None = None) -> Ends | None:
    """Positions and sizes are below `longest`; params, and floats that become ints, are ints of 32 bits."""
    if known is not None and e in known:
        return known[e]
    match e:
        case Literal():
            return (int(e.value), int(e.value)) if e.type is Type.INT else None
        case Symbol():
            if e.type is not Type.INT:
                return None
            low = 1 - longest if signed(e.id) else 0 if e.id in POSITIONS else 1
            return low, longest - 1
        case Scalar() | Load():
            return INT32 if e.type is Type.INT else None
        case Apply(op=Op.TO_INT | Op.FLOOR | Op.CEIL):
            return (0, 1) if e.args[0].type is Type.BOOL else INT32
        case Apply(op=Op.SELECT):
            a, b = (ends(x, longest, known) for x in e.args[1:])
            return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
        case Apply():
            found = [ends(a, longest, known) for a in e.args]
            return None if None in found else _combined(e, [x for x in found if x is not None])


def _combined(e: Apply, known: list[Ends]) -> Ends | None:
    a = known[0]
    b = known[-1]
    match e.op:
        case Op.ADD:
            return a[0] + b[0], a[1] + b[1]
        case Op.SUB:
            return a[0] - b[1], a[1] - b[0]
        case Op.MUL:
            products = [x * y for x in a for y in b]
            return min(products), max(products)
        case Op.NEG:
            return -a[1], -a[0]
        case Op.ABS:
            return max(a[0], -a[1], 0), max(-a[0], a[1])
        case Op.SIGN:
            return -1, 1
        case Op.MIN:
            return min(a[0], b[0]), min(a[1], b[1])
        case Op.MAX:
            return max(a[0], b[0]), max(a[1], b[1])
        case Op.FLOORDIV:
            if b[0] > 0:
                return min(a[0] // b[0], a[0] // b[1]), max(a[1] // b[0], a[1] // b[1])
            largest = max(-a[0], a[1])  # |floor(a / c)| <= |a| where |c| >= 1
            return -largest, largest
        case Op.MOD:
            most = max(b[1] - 1, 0)
            return min(b[0] + 1, 0), min(most, a[1]) if a[0] >= 0 < b[0] else most
        case Op.SHIFT_RIGHT:
            shifts = (max(b[0], 0), min(max(b[1], 0), 63))
            shifted = [x >> n for x in a for n in shifts]
            return min(shifted), max(shifted)
        case Op.BIT_AND | Op.BIT_OR | Op.BIT_XOR:
            bits = max(x.bit_length() for x in (*a, *b))  # of the two's complement, without its sign
            low = 0 if a[0] >= 0 and b[0] >= 0 else -(2**bits)
            return low, min(a[1], b[1]) if e.op is Op.BIT_AND and low == 0 else 2**bits - 1
        case Op.POW if 0 <= b[1] <= MOST_POWER:  # a negative power is refused as range-safety's
            powers = [x**n for x in a for n in {max(b[0], 0), max(b[1] - 1, b[0], 0), b[1]}]
            return min(0, 1, *powers), max(0, 1, *powers)
        case _:
            return None


def known_ints(context: SolverContext, e: Expr, longest: int, held: Mapping[Expr, Ends] | None = None) -> list[Term]:
    """What holds of the ints that `e` reads; to be asked for before any term of `e` is. Params are ints of 32 bits, if
    they are not among `held`."""
    found: list[Term] = []
    for node in nodes(e):
        match node:
            case Symbol() if node.type is Type.INT:
                # Positions may hang over the end by a tile: at most 512, far less than a sequence may be.
                term = context.free(node.id)
                found += [term < longest, term > -longest if signed(node.id) else term >= 0]
                if node.id not in POSITIONS and not signed(node.id):
                    found.append(term >= 1)
            case Scalar() | Load() if node.type is Type.INT:
                found += _between(context.term(node), (held or {}).get(node, INT32))
            case Apply(op=Op.TO_INT | Op.FLOOR | Op.CEIL) if node.args[0].type is Type.FLOAT and node is not e:
                # What a conversion gives is in a 32-bit register; that the float fits it is `range-safety`'s.
                found += _between(context.term(node), INT32)
            case _:
                pass
    return found


def _between(term: Term, ends: Ends) -> list[Term]:
    return [term <= ends[1], term >= ends[0]]
