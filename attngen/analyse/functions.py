"""The functions of the language: how many arguments each takes, of what types, and what it becomes.

Takes checked operands, returns an expression, or None after reporting why there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from attngen.analyse.convert import Converter, Operand
from attngen.analyse.report import plural
from attngen.analyse.scope import Scope
from attngen.errors import Span
from attngen.ir.nodes import Expr, Op, Type


def arity_fits(name: str, count: int) -> bool:
    if name in ("min", "max"):
        return count >= 2
    return count == (3 if name == "clamp" else 1)


def arity_message(name: str, count: int) -> str:
    if name in ("min", "max"):
        return f"`{name}` takes 2 arguments or more, not {count}"
    return f"`{name}` takes {plural(3 if name == 'clamp' else 1, 'argument')}, not {count}"


def call(c: Converter, scope: Scope, name: str, args: Sequence[Operand], span: Span) -> Expr | None:
    """`name(args)`, where the number of arguments is right and each was checked."""
    needs = f"`{name}` needs"
    x = args[0]
    match name:
        case "float":
            return x.expr if x.type is Type.FLOAT else c.apply(scope, Op.TO_FLOAT, (x.expr,), span)
        case "int":
            return x.expr if x.type is Type.INT else c.apply(scope, Op.TO_INT, (x.expr,), span)
        case "floor" | "ceil":
            e = c.number(scope, x, needs)
            if e is None or e.type is Type.INT:
                return e
            return c.apply(scope, Op(name), (e,), span)
        case "abs" | "sign":
            e = c.number(scope, x, needs)
            return None if e is None else c.apply(scope, Op(name), (e,), span)
        case "min" | "max":
            numbers = c.numbers(scope, args, needs)
            return None if numbers is None else _fold_left(c, scope, Op(name), numbers, span)
        case "clamp":
            numbers = c.numbers(scope, args, needs)
            if numbers is None:
                return None
            low = c.apply(scope, Op.MAX, (numbers[0], numbers[1]), span)
            return None if low is None else c.apply(scope, Op.MIN, (low, numbers[2]), span)
        case _:
            e = c.real(scope, x, needs)
            return None if e is None else c.apply(scope, Op(name), (e,), span)


def _fold_left(c: Converter, scope: Scope, op: Op, args: Sequence[Expr], span: Span) -> Expr | None:
    result: Expr | None = args[0]
    for arg in args[1:]:
        if result is None:
            return None
        result = c.apply(scope, op, (result, arg), span)
    return result
