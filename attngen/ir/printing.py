"""Stable text of the IR, in the language's own notation: what `--emit ir` prints and what messages quote."""

from __future__ import annotations

import math
from typing import assert_never

from attngen.ir.attention import Attention, Normalizer, Origin, Param
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type

# Binding strength, as language.md has it; a higher number binds closer.
_IF, _OR, _AND, _NOT, _COMPARE, _BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT, _SUM, _TERM, _UNARY, _POWER, _ATOM = range(14)

_INFIX = {
    Op.ADD: ("+", _SUM),
    Op.SUB: ("-", _SUM),
    Op.MUL: ("*", _TERM),
    Op.DIV: ("/", _TERM),
    Op.SHIFT_RIGHT: (">>", _SHIFT),
    Op.BIT_AND: ("&", _BIT_AND),
    Op.BIT_XOR: ("^", _BIT_XOR),
    Op.BIT_OR: ("|", _BIT_OR),
    Op.FLOORDIV: ("//", _TERM),
    Op.MOD: ("%", _TERM),
    Op.LT: ("<", _COMPARE),
    Op.LE: ("<=", _COMPARE),
    Op.EQ: ("==", _COMPARE),
    Op.NE: ("!=", _COMPARE),
}


def expression(e: Expr) -> str:
    """`e` as the language writes it."""
    return _expression(e)[0]


def factor(e: Expr) -> str:
    """`e` as it stands before `/`."""
    return _at(e, _TERM)


def _at(e: Expr, strength: int) -> str:
    text, own = _expression(e)
    return text if own >= strength else f"({text})"


def _expression(e: Expr) -> tuple[str, int]:
    match e:
        case Literal():
            return _literal(e)
        case Symbol():
            return e.id, _ATOM
        case Scalar():
            return e.param, _ATOM
        case Load():
            return _load(e)
        case Apply():
            return _apply(e)
        case _:
            assert_never(e)


def _load(e: Load, looks: str = "in") -> tuple[str, int]:
    element = f"{e.param}[{', '.join(map(expression, e.indices))}]" if e.indices else e.param
    return (element, _ATOM) if e.member is None else (f"{_at(e.member, _COMPARE + 1)} {looks} {element}", _COMPARE)


def _literal(e: Literal) -> tuple[str, int]:
    if e.type is Type.BOOL:
        return ("true" if e.value else "false"), _ATOM
    if isinstance(e.value, float) and math.isinf(e.value):
        return ("inf", _ATOM) if e.value > 0 else ("-inf", _UNARY)
    text = repr(e.value)  # with the sign of -0.0
    return text, (_UNARY if text.startswith("-") else _ATOM)


def _apply(e: Apply) -> tuple[str, int]:
    if e.op in _INFIX:
        sign, own = _INFIX[e.op]
        left = own + 1 if own == _COMPARE else own
        return f"{_at(e.args[0], left)} {sign} {_at(e.args[1], own + 1)}", own
    match e.op:
        case Op.POW:
            return f"{_at(e.args[0], _ATOM)} ** {_at(e.args[1], _UNARY)}", _POWER
        case Op.NEG:
            return f"-{_at(e.args[0], _UNARY)}", _UNARY
        case Op.NOT:
            if isinstance(e.args[0], Load) and e.args[0].member is not None:
                return _load(e.args[0], "not in")
            return f"not {_at(e.args[0], _NOT)}", _NOT
        case Op.AND:
            return " and ".join(_at(a, _NOT) for a in e.args), _AND
        case Op.OR:
            return " or ".join(_at(a, _AND) for a in e.args), _OR
        case Op.SELECT:
            condition, then, otherwise = e.args
            return f"{_at(then, _OR)} if {_at(condition, _OR)} else {_at(otherwise, _IF)}", _IF
        case _:
            return f"{e.op.value}({', '.join(map(expression, e.args))})", _ATOM


def _param(p: Param) -> str:
    dims = f"[{', '.join(map(expression, p.shape))}]" if p.shape else ""
    where = f" where {expression(p.where)}" if p.where is not None else ""
    return f"param {p.name}: {p.storage.value}{dims}{where}{' fixed' if p.fixed else ''}"


def normalizer(n: Normalizer) -> str:
    denominator = "1" if not n.sums else "sum" + (f" + {expression(n.extra)}" if n.extra is not None else "")
    lines = [f"weight(s) = {expression(n.weight)}", f"denominator = {denominator}"]
    lines.append(f"shift = {'max' if n.shift else 'none'}")
    if n.stream_weight is not None and n.rescale is not None:
        lines += [f"weight(s, m) = {expression(n.stream_weight)}", f"rescale(m, n) = {expression(n.rescale)}"]
    return "\n".join([f"normalizer {n.name} {{", *(f"    {line}" for line in lines), "}"])


def attention(a: Attention) -> str:
    """The whole of a spec, closed: every `let` and const put in, every default stated."""
    lines = [f"attention {a.name}"]
    lines += [f"const {name} = {str(value).lower() if isinstance(value, bool) else value}" for name, value in a.consts]
    lines += [_param(p) for p in a.params]
    lines += [f"assume {expression(fact)}" for fact in a.assumes]
    lines += [f"score = {expression(a.score)}", f"mask = {expression(a.mask)}", normalizer(a.normalizer)]
    if a.dropout is not None:
        counter = f", counted as ({', '.join(map(expression, a.counter.values()))})" if a.origin != Origin() else ""
        lines.append(f"dropout = {expression(a.dropout)}{counter}")
    if a.value_scale is not None:
        lines.append(f"result = {expression(a.value_scale)} * out")
    lines.append("tile auto" if a.tile is None else f"tile q = {a.tile[0]}, k = {a.tile[1]}")
    return "\n".join(lines) + "\n"
