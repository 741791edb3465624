"""Reads a function of the runtime's text into the value that the prover executes.

Takes the text of a module of `runtime/exported`, the name of a function, and values of its flags, which are its
constants that decide; returns a `Function`. It knows the few forms that such functions have, and raises InternalError
at any other: what the prover cannot execute, it must not pass over.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from attngen.errors import InternalError
from attngen.ir.build import (
    FALSE,
    TRUE,
    add,
    apply,
    conjunction,
    disjunction,
    floordiv,
    index,
    integer,
    maximum,
    minimum,
    mul,
    neg,
    select,
    sub,
)
from attngen.ir.function import Assigned, Called, Function
from attngen.ir.nodes import Expr, Op, Symbol, Type
from attngen.ir.walk import nodes


def _both(a: Expr, b: Expr) -> Expr:
    return conjunction(a, b) if a.type is Type.BOOL else apply(Op.BIT_AND, a, b)


_OPERATORS: Mapping[type[ast.AST], Callable[[Expr, Expr], Expr]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv, ast.BitAnd: _both, ast.BitOr: disjunction,
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.AST], Op] = {ast.Lt: Op.LT, ast.LtE: Op.LE, ast.Eq: Op.EQ, ast.NotEq: Op.NE}
_EXCHANGED: Mapping[type[ast.AST], Op] = {ast.Gt: Op.LT, ast.GtE: Op.LE}
_PROGRAM = {"program_id": "program", "num_programs": "programs"}
"""What a program knows of itself, along the first axis of its grid."""


def constants(text: str) -> dict[str, tuple[str, ...]]:
    """The functions of a module by name, and the flags of each: its params that are constants."""
    found = _functions(text).items()
    return {name: tuple(a.arg for a in n.args.args if a.annotation is not None) for name, n in found}


@cache
def _functions(text: str) -> Mapping[str, ast.FunctionDef]:
    return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}


@cache
def lifted(text: str, name: str, flags: tuple[tuple[str, int], ...] = ()) -> Function:
    """The function as it is for these flags."""
    found = _functions(text)
    if name not in found:
        raise InternalError(f"the runtime has no function {name}")
    return _Lift(text, found[name], dict(flags)).function()


class _Lift:
    """`names`: the expressions that the function's names stand for at this point."""

    def __init__(self, text: str, node: ast.FunctionDef, flags: Mapping[str, int]):
        self.text, self.node, self.flags = text, node, flags
        self.params = [a.arg for a in node.args.args if a.arg not in flags]
        self.names: dict[str, Expr] = {name: index(name) for name in self.params}
        self.conditions = {n.id for n in _conditions(node) if isinstance(n, ast.Name)}
        self.names |= {name: Symbol(name, Type.BOOL) for name in self.conditions if name in self.names}
        self.bound = set(self.params)
        self.body: list[Assigned | Called] = []

    def function(self) -> Function:
        results: tuple[Expr, ...] = ()
        for statement in self.node.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
                results = tuple(map(self.value, values))
            else:
                self.step(statement)
        if not results or not isinstance(self.node.body[-1], ast.Return):
            raise self.unknown(self.node)
        read = {n for e in (*results, *self.values()) for n in nodes(e) if isinstance(n, Symbol)}
        known = tuple(index(name) for name in _PROGRAM.values() if index(name) in read and name not in self.bound)
        params = tuple(Symbol(name, Type.BOOL if name in self.conditions else Type.INT) for name in self.params)
        return Function(self.node.name, tuple(self.flags.items()), (*params, *known), tuple(self.body), results)

    def values(self) -> list[Expr]:
        return [e for s in self.body for e in ([s.value] if isinstance(s, Assigned) else s.args)]

    def step(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.bind(name, self.value(value))
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Call(func=ast.Name()) as call):
                self.call([t.id for t in targets if isinstance(t, ast.Name)], call)
            case ast.If(test=test, body=body, orelse=otherwise):
                for inner in body if self.decided(test) else otherwise:
                    self.step(inner)
            case _:
                raise self.unknown(statement)

    def bind(self, name: str, value: Expr) -> None:
        own = self.fresh(name)
        self.body.append(Assigned(own, value))
        self.names[name] = Symbol(own, value.type)

    def fresh(self, name: str) -> str:
        """The name, or another one where the function binds it again."""
        own = next(n for n in (name, *(f"{name}_{i}" for i in range(2, 99))) if n not in self.bound)
        self.bound.add(own)
        return own

    def call(self, names: list[str], call: ast.Call) -> None:
        function, args = self.called(call)
        own = tuple(map(self.fresh, names))
        self.body.append(Called(own, function, args))
        self.names |= {n: Symbol(o, e.type) for n, o, e in zip(names, own, function.results, strict=True)}

    def called(self, call: ast.Call) -> tuple[Function, tuple[Expr, ...]]:
        if not isinstance(call.func, ast.Name) or call.keywords:
            raise self.unknown(call)
        other = _functions(self.text).get(call.func.id)
        if other is None:
            raise self.unknown(call)
        flags: dict[str, int] = {}
        args: list[Expr] = []
        for a, node in zip(other.args.args, call.args, strict=True):
            if a.annotation is not None:
                flags[a.arg] = self.decided(node)
            else:
                args.append(self.value(node))
        function = lifted(self.text, other.name, tuple(flags.items()))
        args += function.params[len(args) :]  # what a program knows of itself
        return function, tuple(args)

    def decided(self, node: ast.expr) -> int:
        """A constant, or a condition that the flags decide."""
        match node:
            case ast.Name(id=name) if name in self.flags:
                return self.flags[name]
            case ast.Constant(value=int() as value):
                return value
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return self.decided(left) == self.decided(right)
            case _:
                raise self.unknown(node)

    def value(self, node: ast.expr) -> Expr:
        match node:
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Constant(value=bool() as value):
                return TRUE if value else FALSE
            case ast.Constant(value=int() as value):
                return integer(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return neg(self.value(operand))
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                return self.value(body if self.decided(test) else otherwise)
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                return apply(Op.MOD, self.value(left), self.value(right))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                return apply(_COMPARISONS[type(op)], self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _EXCHANGED:
                return apply(_EXCHANGED[type(op)], self.value(right), self.value(left))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr=function), args=args):
                return self.operation(node, function, args)
            case ast.Call():
                function, args = self.called(node)
                (result,) = function.results
                own = self.fresh(function.name)
                self.body.append(Called((own,), function, args))
                return Symbol(own, result.type)
            case _:
                raise self.unknown(node)

    def operation(self, node: ast.expr, name: str, args: list[ast.expr]) -> Expr:
        match name, args:
            case (("program_id" | "num_programs"), [ast.Constant(value=0)]):
                return index(_PROGRAM[name])
            case "cast", [value, _]:
                return self.value(value)
            case "minimum", [a, b]:
                return minimum(self.value(a), self.value(b))
            case "maximum", [a, b]:
                return maximum(self.value(a), self.value(b))
            case "where", [condition, a, b]:
                return select(self.value(condition), self.value(a), self.value(b))
            case "cdiv", [a, b]:
                divisor = self.value(b)
                return floordiv(sub(add(self.value(a), divisor), integer(1)), divisor)
            case _:
                raise self.unknown(node)

    def unknown(self, node: ast.AST) -> InternalError:
        return InternalError(f"{self.node.name} of the runtime cannot be executed: {ast.unparse(node)[:80]}")


def _conditions(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """The values by which the function chooses."""
    for n in ast.walk(function):
        match n:
            case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right) if not isinstance(
                right, ast.Constant
            ):
                yield from (left, right)
            case ast.Call(func=ast.Attribute(attr="where"), args=[condition, *_]):
                yield condition
            case _:
                pass
