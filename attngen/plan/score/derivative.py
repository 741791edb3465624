"""Symbolic derivatives of scores and weights.

Takes an expression and a float leaf (a symbol, a scalar param, or one load), returns the partial derivative as an
expression; None stands for an exact zero. At kinks: abs takes sign(x) (0 at 0); min and max give the gradient to the
first argument where it is chosen or equal; floor, ceil, int, sign and comparisons have derivative zero.
"""

from __future__ import annotations

import math
from typing import assert_never

from attngen.ir import build
from attngen.ir.build import add, apply, div, mul, neg, real, select, sub
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import nodes


def derivative(e: Expr, leaf: Expr) -> Expr | None:
    """d e / d leaf. Shared subtrees are derived once."""
    memo: dict[int, Expr | None] = {}
    holders = {id(n) for n in nodes(e) if n == leaf}

    def walk(e: Expr) -> Expr | None:
        if id(e) in holders:
            return build.real(1.0)
        if isinstance(e, Literal | Symbol | Scalar | Load) or e.type is not Type.FLOAT or e.op is Op.TO_FLOAT:
            return None
        if id(e) not in memo:
            memo[id(e)] = _chain(e, [walk(a) for a in e.args])
        return memo[id(e)]

    return walk(e)


def _plus(a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return a if b is None else b
    return add(a, b)


def _times(a: Expr | None, factor: Expr) -> Expr | None:
    """a * factor, with a sign moved outwards so that it can join a sum."""
    if a is None:
        return None
    if isinstance(factor, Apply) and factor.op is Op.NEG:
        return neg(mul(a, factor.args[0]))
    if build.is_literal(factor, -1):
        return neg(a)
    return mul(a, factor)


def _chain(e: Apply, d: list[Expr | None]) -> Expr | None:
    if all(x is None for x in d):
        return None
    a = e.args[0]
    b = e.args[1] if len(e.args) > 1 else a
    da = d[0]
    db = d[1] if len(d) > 1 else None
    match e.op:
        case Op.ADD:
            return _plus(da, db)
        case Op.SUB:
            if db is None:
                return da
            return neg(db) if da is None else sub(da, db)
        case Op.NEG:
            return None if da is None else neg(da)
        case Op.MUL:
            return _plus(_times(da, b), _times(db, a))
        case Op.DIV:
            first = None if da is None else div(da, b)
            second = None if db is None else neg(div(mul(db, e), b))  # -a db / b**2 = -(a / b) db / b
            return _plus(first, second)
        case Op.POW:
            if da is None:
                return None
            if isinstance(b, Literal):
                lower = integer_power(a, int(b.value) - 1)
                return _times(da, mul(real(float(b.value)), lower))
            less = apply(Op.POW, a, sub(b, build.integer(1)))
            return _times(da, mul(apply(Op.TO_FLOAT, b), less))
        case Op.ABS:
            return _times(da, apply(Op.SIGN, a))
        case Op.MIN | Op.MAX:
            first = apply(Op.LE, a, b) if e.op is Op.MIN else apply(Op.LE, b, a)
            return select(first, da or real(0.0), db or real(0.0))
        case Op.SELECT:
            return select(a, d[1] or real(0.0), d[2] or real(0.0))
        case Op.EXP:
            return _times(da, e)
        case Op.EXP2:
            return _times(da, mul(real(math.log(2.0)), e))
        case Op.LOG:
            return None if da is None else div(da, a)
        case Op.LOG2:
            return None if da is None else div(mul(da, real(1.0 / math.log(2.0))), a)
        case Op.SQRT:
            return None if da is None else div(mul(real(0.5), da), e)
        case Op.RSQRT:
            return _times(da, mul(real(-0.5), div(e, a)))
        case Op.TANH:
            return _times(da, sub(real(1.0), mul(e, e)))
        case Op.SIGMOID:
            return _times(da, mul(e, sub(real(1.0), e)))
        case Op.SIN:
            return _times(da, apply(Op.COS, a))
        case Op.COS:
            return _times(da, neg(apply(Op.SIN, a)))
        case Op.ERF:
            return _times(da, mul(real(2.0 / math.sqrt(math.pi)), apply(Op.EXP, neg(mul(a, a)))))
        case Op.SIGN:
            return None
        case (
            Op.FLOORDIV
            | Op.MOD
            | Op.SHIFT_RIGHT
            | Op.BIT_AND
            | Op.BIT_OR
            | Op.BIT_XOR
            | Op.LT
            | Op.LE
            | Op.EQ
            | Op.NE
            | Op.NOT
            | Op.AND
            | Op.OR
            | Op.TO_FLOAT
            | Op.TO_INT
            | Op.FLOOR
            | Op.CEIL
        ):
            return None
        case _:
            assert_never(e.op)


def integer_power(a: Expr, n: int) -> Expr:
    """a ** n for a constant n."""
    return real(1.0) if n == 0 else apply(Op.POW, a, build.integer(n))
