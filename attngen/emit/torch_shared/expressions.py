"""Prints IR expressions for the host: plain Python on numbers (`where` checks), or torch on index tensors.

Takes an expression and the names of its leaves, returns text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attngen.emit.text.precedence import Text, atom, infix
from attngen.errors import InternalError
from attngen.ir.nodes import SIZES, Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import children

_INFIX = {
    Op.ADD: ("+", 5), Op.SUB: ("-", 5), Op.MUL: ("*", 6), Op.DIV: ("/", 6), Op.FLOORDIV: ("//", 6), Op.MOD: ("%", 6),
    Op.BIT_AND: ("&", 4), Op.BIT_XOR: ("^", 3), Op.BIT_OR: ("|", 2),
    Op.LT: ("<", 1), Op.LE: ("<=", 1), Op.EQ: ("==", 1), Op.NE: ("!=", 1),
}  # fmt: skip
_PYTHON = {
    Op.ABS: "abs({})", Op.MIN: "min({}, {})", Op.MAX: "max({}, {})", Op.EXP: "math.exp({})", Op.EXP2: "2.0 ** ({})",
    Op.LOG: "math.log({})", Op.LOG2: "math.log2({})", Op.SQRT: "math.sqrt({})", Op.RSQRT: "1.0 / math.sqrt({})",
    Op.TANH: "math.tanh({})", Op.SIGMOID: "1.0 / (1.0 + math.exp(-({})))", Op.SIN: "math.sin({})",
    Op.COS: "math.cos({})", Op.ERF: "math.erf({})", Op.TO_FLOAT: "float({})", Op.TO_INT: "int({})",
    Op.SHIFT_RIGHT: "(({}) >> ({}))",
    Op.FLOOR: "math.floor({})", Op.CEIL: "math.ceil({})", Op.NOT: "not ({})", Op.NEG: "-({})",
    Op.SIGN: "(({0}) > 0) - (({0}) < 0)", Op.POW: "({}) ** ({})",
}  # fmt: skip
_TORCH = {
    Op.ABS: "abs({})", Op.MIN: "torch.minimum({}, {})", Op.MAX: "torch.maximum({}, {})", Op.EXP: "torch.exp({})",
    Op.EXP2: "torch.exp2({})", Op.LOG: "torch.log({})", Op.LOG2: "torch.log2({})", Op.SQRT: "torch.sqrt({})",
    Op.RSQRT: "torch.rsqrt({})", Op.TANH: "torch.tanh({})", Op.SIGMOID: "torch.sigmoid({})", Op.SIN: "torch.sin({})",
    Op.COS: "torch.cos({})", Op.ERF: "torch.erf({})", Op.TO_FLOAT: "({}).float()", Op.TO_INT: "({}).trunc().long()",
    Op.SHIFT_RIGHT: "(({}) >> ({}))",
    Op.FLOOR: "torch.floor({}).long()", Op.CEIL: "torch.ceil({}).long()", Op.NOT: "~({})", Op.NEG: "-({})",
    Op.SELECT: "torch.where({}, {}, {})", Op.SIGN: "torch.sign({})", Op.POW: "({}) ** ({})",
}  # fmt: skip


_WIDE = {Type.INT: ".long()", Type.FLOAT: ".float()", Type.BOOL: ""}
"""Elements are stored as the caller has them: in 8 bits a product would wrap, and index a tensor as a mask."""


def python(e: Expr, names: Mapping[str, str]) -> str:
    """`e` over Python numbers; `names` gives each symbol and scalar."""
    return _print(e, names, tensors=False)[0]


def torch(e: Expr, names: Mapping[str, str]) -> str:
    """`e` over broadcasting torch tensors; literals that stand alone become tensors by `names["like"]`, and
    `names["element"]` reads an element, `_element` if there is none, and `names["listed"]` looks in a list.
    """
    return _print(e, names, tensors=True)[0]


def _print(e: Expr, names: Mapping[str, str], *, tensors: bool) -> Text:
    match e:
        case Literal():
            if isinstance(e.value, float) and not math.isfinite(e.value):
                return atom(f'float("{e.value}")')
            return repr(e.value), (9 if e.value >= 0 else 7)
        case Symbol():
            return atom(names[e.id])
        case Scalar():
            return atom(names[e.param])
        case Load():
            if not tensors:
                raise InternalError("a load in a check of scalars")
            place = ", ".join(_print(i, names, tensors=True)[0] for i in children(e))
            if e.member is not None:
                return atom(f"{names.get('listed', '_listed')}({names[e.param]}, {place})")
            return atom(f"{names.get('element', '_element')}({names[e.param]}, {place}){_WIDE[e.type]}")
        case Apply():
            return _apply(e, names, tensors=tensors)


def _on_device(e: Expr, text: str, device: str) -> str:
    """A number is filled in there: a CUDA graph allows no copy from the host."""
    number = isinstance(e, Literal) or (isinstance(e, Symbol) and e.id in SIZES)
    return f"torch.full((), {text}, device={device})" if number else f"torch.as_tensor({text}, device={device})"


def _apply(e: Apply, names: Mapping[str, str], *, tensors: bool) -> Text:
    args = [_print(a, names, tensors=tensors) for a in e.args]
    if e.op in _INFIX:
        sign, strength = _INFIX[e.op]
        return infix(sign, strength, args[0], args[1], chain=strength == 1)
    if e.op in (Op.AND, Op.OR):
        sign = {Op.AND: "&", Op.OR: "|"}[e.op] if tensors else e.op.value
        return f" {sign} ".join(f"({t})" if tensors or strength < 1 else t for t, strength in args), 0
    if e.op is Op.SELECT and not tensors:
        condition, first = (f"({t})" if strength < 0 else t for t, strength in args[:2])
        return f"{first} if {condition} else {args[2][0]}", -1
    texts = [a[0] for a in args]
    if tensors and e.op in (Op.MIN, Op.MAX, Op.SELECT):
        first = 1 if e.op is Op.SELECT else 0
        values = zip(e.args[first:], texts[first:], strict=True)
        texts = texts[:first] + [_on_device(value, text, names["device"]) for value, text in values]
    if e.op is Op.TO_INT and e.args[0].type is Type.BOOL and tensors:
        return atom(f"({texts[0]}).long()")
    text = (_TORCH if tensors else _PYTHON)[e.op].format(*texts)
    plain = e.op in (Op.NEG, Op.SELECT, Op.SIGN, Op.POW, Op.NOT, Op.RSQRT, Op.EXP2, Op.SIGMOID)
    return atom(f"({text})") if plain else atom(text)
