"""Consts evaluated, and the types and dims of params.

Takes the outline of a file and the values of `-D`, returns the consts, and the params without their facts. Everything
that the file defines becomes a name here; lets become readable when `analyse` comes to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attngen.analyse.constants import constant
from attngen.analyse.expressions import Expressions
from attngen.analyse.outline import Outline, kind
from attngen.analyse.report import Report, nearest
from attngen.analyse.scope import CONST, Later, Tensor, Value, describe
from attngen.errors import UsageError
from attngen.ir import attention as ir, build
from attngen.ir.nodes import Expr, Literal, Scalar, Storage
from attngen.syntax import ast

Const = bool | int | float


def declare_names(o: Outline, expressions: Expressions) -> None:
    """Every name of the file is known from the start; what it stands for comes later."""
    own = expressions.names.own
    for name, statement in o.named.items():
        own[name] = Later(kind(statement), statement.name_span)
    for name, span in o.fresh.items():
        own[name] = Value(build.index(name), "size", span)


# ---------------------------------------------------------------- consts


def consts(
    o: Outline, expressions: Expressions, report: Report, overrides: Mapping[str, Const]
) -> tuple[tuple[str, Const], ...]:
    """The consts in the order of the file, with the values of `-D` put in."""
    _check_overrides(o, overrides)
    found: list[tuple[str, Const]] = []
    for statement in o.statements:
        if not isinstance(statement, ast.Const):
            continue
        stands = o.named.get(statement.name) is statement
        if stands:
            span = statement.name_span
            expressions.names.own[statement.name] = Later("const", span, being_defined=True)
        e = expressions.check(statement.value, expressions.names.scope(CONST))
        literal = None if e is None else constant(e, statement.value, report)
        if not stands:
            continue
        if literal is not None and statement.name in overrides:
            literal = build.literal(_override(statement.name, literal.value, overrides[statement.name]))
        expressions.names.own[statement.name] = Value(literal, "const", statement.name_span)
        if literal is not None:
            found.append((statement.name, literal.value))
    return tuple(found)


def _check_overrides(o: Outline, overrides: Mapping[str, Const]) -> None:
    names = [name for name, statement in o.named.items() if isinstance(statement, ast.Const)]
    for name in overrides:
        if name in names:
            continue
        if isinstance(o.named.get(name), ast.Param):
            raise UsageError(f"`{name}` is a param, not a const: give it at each call, kernel(q, k, v, {name}=…)")
        guess = nearest(name, names)
        there = f"the consts are {', '.join(names)}" if names else "the file has no consts"
        raise UsageError(
            f"there is no const `{name}` to set: " + (f"did you mean {guess}? {there}" if guess else there)
        )


def _override(name: str, value: Const, new: Const) -> Const:
    """`new`, in the type of the const's own value; an int may stand for a float."""
    words = {bool: "a bool", int: "an int", float: "a float"}
    if type(new) is int and not -build.LIMIT <= new < build.LIMIT:
        raise UsageError(f"the const `{name}` does not fit in 64 bits")
    if type(value) is float and type(new) is int:
        if float(new) != new:
            raise UsageError(f"the const `{name}` is a float, and no float is exactly {new}: write {float(new)!r}")
        return float(new)
    if type(new) is not type(value):
        raise UsageError(f"the const `{name}` is {words[type(value)]}, and {new!r} is {words[type(new)]}")
    if isinstance(new, float) and math.isnan(new):
        raise UsageError(f"the const `{name}` can't be NaN")
    return new


# ---------------------------------------------------------------- params


def params(o: Outline, expressions: Expressions, report: Report) -> tuple[ir.Param, ...]:
    """The params in the order of the file, without their facts."""
    found: list[ir.Param] = []
    for statement in o.statements:
        if not isinstance(statement, ast.Param):
            continue
        dims = [_dim(dim, expressions, report) for dim in statement.dims]
        if o.named.get(statement.name) is not statement:
            continue
        storage = Storage(statement.dtype)
        shape = tuple(d for d in dims if d is not None)
        span = statement.name_span
        binding = (
            Tensor(statement.name, storage.type, shape, span)
            if dims
            else Value(Scalar(statement.name, storage.type), "scalar param", span)
        )
        # A tensor with a wrong dim still has its rank.
        if len(shape) < len(dims):
            binding = Tensor(statement.name, storage.type, tuple(d or build.index("") for d in dims), span)
        expressions.names.own[statement.name] = binding
        found.append(ir.Param(statement.name, storage, shape, fixed=statement.fixed, span=statement.span))
    return tuple(found)


def _dim(dim: ast.Name | ast.Number, expressions: Expressions, report: Report) -> Expr | None:
    if isinstance(dim, ast.Number):
        return _positive(build.literal(dim.value), dim, report)
    binding = expressions.names.own[dim.id]  # what nothing else defines is a size by now
    match binding:
        case Value(expr=None):
            return None
        case Value(kind="size", expr=e):
            return e
        case Value(kind="const", expr=Literal() as literal):
            return _positive(literal, dim, report)
        case _:
            size = {"b": "B", "h": "Hq", "hkv": "Hkv", "q": "Sq", "k": "Sk"}.get(dim.id)
            what = describe(dim.id, binding)
            fix = f"write {size}" if size else "use a size, a const, an integer, or a new name"
            report.error("dimension", f"{what}, and can't be a dim", dim.span, fix)
            return None


def _positive(value: Literal, dim: ast.Name | ast.Number, report: Report) -> Expr | None:
    name = f"`{dim.id}`" if isinstance(dim, ast.Name) else "this"
    if not isinstance(value.value, int) or isinstance(value.value, bool):
        word = "a bool" if isinstance(value.value, bool) else "a float"
        report.error("dimension", f"{name} is {word}, and a dim must be an int", dim.span, "use an int const")
        return None
    if value.value < 1:
        message = f"{name} is {value.value}, and a dim must be 1 or more"
        report.error("dimension", message, dim.span, "use a positive int")
        return None
    return build.integer(value.value)
