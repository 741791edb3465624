"""Takes the exponential out of an expression: `split(e)` returns (factor, exponent) with e = factor * exp(exponent).

Exact in real arithmetic, whatever `e` is; in floats it is what lets the oracle evaluate a normalizer's definition, such
as exp(s) with s = 1e4, as written: products add exponents, sums are brought to the larger exponent, logarithms undo
exponentials. Where `e` holds no exponential on its outside, the exponent is 0.
"""

from __future__ import annotations

import math

from attngen.ir import build, walk
from attngen.ir.nodes import Apply, Expr, Op, Type

_ZERO = build.real(0.0)
_ONE = build.real(1.0)
_LN2 = build.real(math.log(2.0))
_HALF = build.real(0.5)


def split(e: Expr) -> tuple[Expr, Expr]:
    """(factor, exponent), both float expressions over what `e` reads, with e = factor * exp(exponent)."""
    return _split(e, {})


_Memo = dict[int, tuple[Expr, Expr]]


def _split(e: Expr, memo: _Memo) -> tuple[Expr, Expr]:
    found = memo.get(id(e))
    if found is None:
        found = memo[id(e)] = _split_apply(e, memo) if isinstance(e, Apply) and e.type is Type.FLOAT else (e, _ZERO)
    return found


def _plain(e: Expr, memo: _Memo) -> Expr:
    """`e` in one piece again, the exponentials inside it treated with care."""
    factor, exponent = _split(e, memo)
    return factor if exponent == _ZERO else build.mul(factor, build.apply(Op.EXP, exponent))


def _split_apply(e: Apply, memo: _Memo) -> tuple[Expr, Expr]:
    a, x = _split(e.args[0], memo)
    match e.op:
        case Op.EXP:
            return _ONE, _plain(e.args[0], memo)
        case Op.EXP2:
            return _ONE, build.mul(_plain(e.args[0], memo), _LN2)
        case Op.LOG:
            return build.add(build.apply(Op.LOG, a), x), _ZERO
        case Op.LOG2:
            return build.add(build.apply(Op.LOG2, a), build.div(x, _LN2)), _ZERO
        case Op.SQRT:
            return build.apply(Op.SQRT, a), _times(x, _HALF)
        case Op.RSQRT:
            return build.apply(Op.RSQRT, a), build.neg(_times(x, _HALF))
        case Op.NEG | Op.ABS:
            return build.apply(e.op, a), x
        case Op.POW:
            return build.apply(Op.POW, a, e.args[1]), _times(x, build.to_float(e.args[1]))
        case Op.MUL:
            b, y = _split(e.args[1], memo)
            return build.mul(a, b), build.add(x, y)
        case Op.DIV:
            b, y = _split(e.args[1], memo)
            return build.div(a, b), build.sub(x, y)
        case Op.SELECT:
            (b, y), (c, z) = _split(e.args[1], memo), _split(e.args[2], memo)
            return build.select(a, b, c), build.select(a, y, z)
        case Op.ADD | Op.SUB | Op.MIN | Op.MAX:
            b, y = _split(e.args[1], memo)
            if x == y:
                return build.apply(e.op, a, b), x
            top = build.maximum(x, y)
            return build.apply(e.op, _rescaled(a, x, top), _rescaled(b, y, top)), top
        case _:
            return walk.rebuild(e, tuple(_plain(c, memo) for c in e.args)), _ZERO


def _times(exponent: Expr, by: Expr) -> Expr:
    return _ZERO if exponent == _ZERO else build.mul(exponent, by)


def _rescaled(factor: Expr, exponent: Expr, top: Expr) -> Expr:
    return build.mul(factor, build.apply(Op.EXP, build.sub(exponent, top)))
