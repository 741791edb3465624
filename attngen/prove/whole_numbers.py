"""Bounds of int expressions by interval arithmetic in whole numbers: enough for most questions about widths.

Takes an expression and the length that sequences stay below, gives its least and greatest value, or None where an
operation has no rule here. Each operand is taken by itself, so the bounds are wide where operands go together.
"""

from __future__ import annotations

from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type

Ends = tuple[int, int]

INT32: Ends = (-(2**31), 2**31 - 1)
POSITIONS = ("q", "k", "b", "h", "hkv", "q0", "q1", "k0", "k1")


def signed(name: str) -> bool:
    """Symbols that may be negative: answers of data tests, and the difference of two positions."""
    return name.startswith("test") or name == "distance"


def ends(e: Expr, longest: int) -> Ends | None:
    """Positions and sizes are below `longest`; params, and floats that become ints, are ints of 32 bits."""
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
            a, b = (ends(x, longest) for x in e.args[1:])
            return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
        case Apply():
            known = [ends(a, longest) for a in e.args]
            return None if None in known else _combined(e, [x for x in known if x is not None])


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
            return min(b[0] + 1, 0), max(b[1] - 1, 0)
        case Op.POW if isinstance(e.args[1], Literal) and 0 <= e.args[1].value <= 8:
            powers = [x ** int(e.args[1].value) for x in a]
            return (min(0, *powers), max(0, *powers)) if a[0] < 0 < a[1] else (min(powers), max(powers))
        case _:
            return None
