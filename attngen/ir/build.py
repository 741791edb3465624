"""Smart constructors: the one way to make an `Apply`. They fold constants and apply identities that hold exactly.

Only identities that hold for every float, NaN and infinities included, or for every int, are used: `x + 0` (where the
sign of a zero may change), `x * 1`, `x - 0`, `not not c`, a select with a known condition; `x * 0` only for ints.
Argument types are the caller's duty: `analyse` checks what the user wrote, and the planner builds well-typed trees.
"""

from __future__ import annotations

import math
from typing import assert_never

from attngen.errors import NOWHERE, InternalError, Span
from attngen.ir.nodes import COMPARISONS, FLOAT_FUNCTIONS, Apply, Expr, Literal, Op, Symbol, Type

TRUE = Literal(True, Type.BOOL)
FALSE = Literal(False, Type.BOOL)


def integer(value: int) -> Literal:
    return Literal(value, Type.INT)


def real(value: float) -> Literal:
    return Literal(float(value), Type.FLOAT)


def literal(value: bool | int | float) -> Literal:
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return integer(value) if isinstance(value, int) else real(value)


def index(id: str) -> Symbol:
    """An int symbol: an index, a size, or one of the planner's own."""
    return Symbol(id, Type.INT)


def is_literal(e: Expr, value: float) -> bool:
    return isinstance(e, Literal) and e.type is not Type.BOOL and e.value == value


def result_type(op: Op, args: tuple[Expr, ...]) -> Type:
    """The type of `op` on well-typed `args`."""
    if op in COMPARISONS or op in (Op.NOT, Op.AND, Op.OR):
        return Type.BOOL
    if op in FLOAT_FUNCTIONS or op in (Op.TO_FLOAT, Op.DIV):
        return Type.FLOAT
    if op in (Op.TO_INT, Op.FLOOR, Op.CEIL, Op.FLOORDIV, Op.MOD):
        return Type.INT
    return args[1].type if op is Op.SELECT else args[0].type


def apply(op: Op, *args: Expr, span: Span = NOWHERE) -> Expr:
    """`op` on `args`, folded and simplified."""
    if op in (Op.AND, Op.OR):
        return _logic(op, args, span)
    simple = _identity(op, args)
    if simple is not None:
        return simple
    if all(isinstance(a, Literal) for a in args):
        folded = fold(op, tuple(a.value for a in args if isinstance(a, Literal)), args[0].type)
        if folded is not None:
            return Literal(folded, result_type(op, args), span=span)
    return Apply(op, args, result_type(op, args), span=span)


def _logic(op: Op, args: tuple[Expr, ...], span: Span) -> Expr:
    neutral, absorbing = (TRUE, FALSE) if op is Op.AND else (FALSE, TRUE)
    flat: dict[Expr, None] = {}
    for arg in args:
        parts = arg.args if isinstance(arg, Apply) and arg.op is op else (arg,)
        for part in parts:
            if part == absorbing:
                return absorbing
            if part != neutral:
                flat.setdefault(part)
    if not flat:
        return neutral
    return next(iter(flat)) if len(flat) == 1 else Apply(op, tuple(flat), Type.BOOL, span=span)


def _identity(op: Op, args: tuple[Expr, ...]) -> Expr | None:
    """The simpler expression that `op(args)` always equals, or None."""
    a, last = args[0], args[-1]
    b = args[1] if len(args) > 1 else None
    match op:
        case Op.ADD:
            if is_literal(a, 0) and b is not None:
                return b
            if b is not None and is_literal(b, 0):
                return a
        case Op.SUB:
            if b is not None and is_literal(b, 0):
                return a
            if a.type is Type.INT and a == b:
                return integer(0)
        case Op.MUL:
            assert b is not None
            if is_literal(a, 1):
                return b
            if is_literal(b, 1):
                return a
            if a.type is Type.INT and (is_literal(a, 0) or is_literal(b, 0)):
                return integer(0)
        case Op.SHIFT_RIGHT:
            if isinstance(b, Literal) and 0 <= b.value < 63:
                return apply(Op.FLOORDIV, a, integer(2 ** int(b.value)))
        case Op.DIV | Op.FLOORDIV | Op.POW:
            if b is not None and is_literal(b, 1):
                return a
            if op is Op.FLOORDIV and (a, b) == (index("h"), _GROUP):
                return index("hkv")
        case Op.NEG:
            if isinstance(a, Apply) and a.op is Op.NEG:
                return a.args[0]
        case Op.MIN | Op.MAX | Op.BIT_OR:
            if a == b:
                return a
        case Op.BIT_AND:
            assert b is not None
            if a == b:
                return a
            for kept, mask in ((a, b), (b, a)):
                if isinstance(mask, Literal) and _is_low_bits(int(mask.value)):  # the low bits are a remainder
                    return apply(Op.MOD, kept, integer(int(mask.value) + 1))
        case Op.NOT:
            return _negate(a)
        case Op.SELECT:
            assert b is not None
            if isinstance(a, Literal):
                return b if a.value else last
            if b == last:
                return b
        case Op.EQ | Op.LE:
            if a.type is not Type.FLOAT and a == b:
                return TRUE
        case Op.NE | Op.LT:
            if a.type is not Type.FLOAT and a == b:
                return FALSE
        case _:
            pass
    return None


def _is_low_bits(mask: int) -> bool:
    """Whether `mask` is 1, 3, 7, …, with its successor inside an int."""
    return 0 < mask < LIMIT // 2 and mask & (mask + 1) == 0


def _negate(a: Expr) -> Expr | None:
    """`not a` without the `not`, where that is exact (a float comparison is not the negation of its opposite: NaN)."""
    if not isinstance(a, Apply):
        return None
    if a.op is Op.NOT:
        return a.args[0]
    if a.op in COMPARISONS and (a.args[0].type is not Type.FLOAT):
        x, y = a.args
        match a.op:
            case Op.LT:
                return apply(Op.LE, y, x)
            case Op.LE:
                return apply(Op.LT, y, x)
            case Op.EQ:
                return apply(Op.NE, x, y)
            case _:
                return apply(Op.EQ, x, y)
    if a.op is Op.AND:
        return apply(Op.OR, *(apply(Op.NOT, x) for x in a.args))
    if a.op is Op.OR:
        return apply(Op.AND, *(apply(Op.NOT, x) for x in a.args))
    return None


LIMIT = 2**63
"""Ints are 64 bits wide at most; a fold that leaves them is not done, and the analyser reports the literal."""


def fold(op: Op, v: tuple[bool | int | float, ...], type: Type) -> bool | int | float | None:
    """`op` on constant arguments of the given type in float64 or exact ints; None where the result is undefined."""
    try:
        value = _fold(op, v, type)
    except (ZeroDivisionError, OverflowError, ValueError):
        return None
    if isinstance(value, int) and not -LIMIT <= value < LIMIT:
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


_GROUP = Apply(Op.FLOORDIV, (Symbol("Hq", Type.INT), Symbol("Hkv", Type.INT)), Type.INT)
"""How many query heads share one of keys."""


def _fold(op: Op, v: tuple[bool | int | float, ...], type: Type) -> bool | int | float | None:
    a = v[0]
    b = v[1] if len(v) > 1 else 0
    match op:
        case Op.ADD:
            return a + b
        case Op.SUB:
            return a - b
        case Op.MUL:
            return a * b
        case Op.DIV:
            return a / b
        case Op.FLOORDIV:
            return a // b
        case Op.MOD:
            return a % b
        case Op.SHIFT_RIGHT:
            return int(a) >> int(b)
        case Op.BIT_AND:
            return int(a) & int(b)
        case Op.BIT_OR:
            return int(a) | int(b)
        case Op.BIT_XOR:
            return int(a) ^ int(b)
        case Op.POW:
            if type is Type.INT and (b < 0 or (b > 64 and abs(a) > 1)):
                return None
            return a**b
        case Op.NEG:
            return -a
        case Op.ABS:
            return abs(a)
        case Op.SIGN:
            sign = (a > 0) - (a < 0)
            return float(sign) if type is Type.FLOAT else sign
        case Op.MIN:
            return min(a, b)
        case Op.MAX:
            return max(a, b)
        case Op.LT:
            return a < b
        case Op.LE:
            return a <= b
        case Op.EQ:
            return a == b
        case Op.NE:
            return a != b
        case Op.NOT:
            return not a
        case Op.EXP:
            return math.exp(a)
        case Op.EXP2:
            return 2.0**a
        case Op.LOG:
            return math.log(a)
        case Op.LOG2:
            return math.log2(a)
        case Op.SQRT:
            return math.sqrt(a)
        case Op.RSQRT:
            return 1.0 / math.sqrt(a)
        case Op.TANH:
            return math.tanh(a)
        case Op.SIGMOID:
            return 1.0 / (1.0 + math.exp(-a)) if a >= 0 else math.exp(a) / (1.0 + math.exp(a))
        case Op.SIN:
            return math.sin(a)
        case Op.COS:
            return math.cos(a)
        case Op.ERF:
            return math.erf(a)
        case Op.TO_FLOAT:
            return float(a)
        case Op.TO_INT:
            return math.trunc(a)
        case Op.FLOOR:
            return math.floor(a)
        case Op.CEIL:
            return math.ceil(a)
        case Op.AND | Op.OR | Op.SELECT:
            raise InternalError(f"{op} is folded elsewhere")
        case _:
            assert_never(op)


# ---------------------------------------------------------------- shorthands, for passes


def add(a: Expr, b: Expr) -> Expr:
    return apply(Op.ADD, a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return apply(Op.SUB, a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return apply(Op.MUL, a, b)


def div(a: Expr, b: Expr) -> Expr:
    return apply(Op.DIV, a, b)


def neg(a: Expr) -> Expr:
    return apply(Op.NEG, a)


def floordiv(a: Expr, b: Expr) -> Expr:
    return apply(Op.FLOORDIV, a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    return apply(Op.MIN, a, b)


def maximum(a: Expr, b: Expr) -> Expr:
    return apply(Op.MAX, a, b)


def select(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    return apply(Op.SELECT, condition, then, otherwise)


def to_float(a: Expr) -> Expr:
    return a if a.type is Type.FLOAT else apply(Op.TO_FLOAT, a)


def conjunction(*args: Expr) -> Expr:
    return apply(Op.AND, *args) if args else TRUE


def disjunction(*args: Expr) -> Expr:
    return apply(Op.OR, *args) if args else FALSE
