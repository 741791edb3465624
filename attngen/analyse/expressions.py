"""Expressions: names resolved, types checked, lets put in.

Takes the syntax tree of an expression and the scope it stands in, returns IR, or None after reporting what is wrong
with it. An expression that is wrong is not looked into again, so each mistake is reported once. What each function of
the language does is in `functions`, conversions in `convert`, the names themselves in `names`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from attngen.analyse import functions
from attngen.analyse.convert import Converter, Operand
from attngen.analyse.names import Names
from attngen.analyse.prelude import prelude
from attngen.analyse.report import Report, plural
from attngen.analyse.scope import Binding, Builtin, Function, Scope, Tensor, Value, describe, indices_of
from attngen.errors import NOWHERE, Span
from attngen.ir import build, printing, walk
from attngen.ir.nodes import Expr, Literal, Op, Type
from attngen.syntax import ast

MAX_NESTING = 150
"""Levels of syntax, calls of lets included: each costs Python three frames."""

_ARITHMETIC = {
    "+": Op.ADD,
    "-": Op.SUB,
    "*": Op.MUL,
    "/": Op.DIV,
    "//": Op.FLOORDIV,
    "%": Op.MOD,
    "**": Op.POW,
    # `a << n` is `a * 2**n`.
    "<<": Op.MUL,
    ">>": Op.SHIFT_RIGHT,
    "&": Op.BIT_AND,
    "^": Op.BIT_XOR,
    "|": Op.BIT_OR,
}
_BITS = {"&": "and", "|": "or", "^": "!="}
"""Operators on bits, each with what means the same of bools."""
_MOST_SHIFTED = 62
# `a > b` is `b < a`.
_COMPARE = {"<": (Op.LT, False), "<=": (Op.LE, False), ">": (Op.LT, True), ">=": (Op.LE, True)}
_EQUAL = {"==": Op.EQ, "!=": Op.NE}
_MEMBER = ("in", "not in")

Indices = tuple[Expr, ...]


def _placed(x: Expr | None, e: ast.Expr, scope: Scope) -> Expr | None:
    """A whole line that came out as a number or a name has its place from the text: messages point there."""
    return x if x is None or x.span != NOWHERE else replace(x, span=scope.use or e.span)


class Expressions:
    """The checker of one file's expressions."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.convert = Converter(report)
        self.names = Names(self.convert)

    # ------------------------------------------------------------ what a statement needs

    def real(self, e: ast.Expr, scope: Scope, needs: str) -> Expr | None:
        """`e` as a float; an int is converted."""
        x = self.operand(e, scope)
        return None if x is None else _placed(self.convert.real(scope, x, needs), e, scope)

    def boolean(self, e: ast.Expr, scope: Scope, needs: str) -> Expr | None:
        x = self.operand(e, scope)
        return None if x is None else _placed(self.convert.boolean(scope, x, needs), e, scope)

    def operand(self, e: ast.Expr, scope: Scope, depth: int = 0) -> Operand | None:
        expr = self.check(e, scope, depth)
        return None if expr is None else Operand(expr, e)

    # ------------------------------------------------------------ the walk

    def check(self, e: ast.Expr, scope: Scope, depth: int = 0) -> Expr | None:
        self.convert.budget.check()
        if self.convert.out_of_budget(scope, e.span):
            return None
        if depth > MAX_NESTING:
            message = f"this expression is nested more than {MAX_NESTING} deep"
            self.convert.too_large(scope, e.span, message, "give the inner part a name with let")
            return None
        match e:
            case ast.Number():
                return self._number(e, scope)
            case ast.Bool():
                return build.literal(e.value)
            case ast.Name():
                return self._name(e, scope, depth)
            case ast.Call():
                return self._call(e, scope, depth)
            case ast.Index():
                return self._index(e, scope, depth)
            case ast.Unary():
                return self._unary(e, scope, depth)
            case ast.Binary():
                return self._logic(e, scope, depth) if e.op in ("and", "or") else self._arithmetic(e, scope, depth)
            case ast.Compare():
                return self._compare(e, scope, depth)
            case ast.IfElse():
                return self._if_else(e, scope, depth)
            case _:
                assert_never(e)

    def _number(self, e: ast.Number, scope: Scope) -> Expr | None:
        if isinstance(e.value, int) and e.value >= build.LIMIT:
            self.convert.error(scope, "int-range", "this int does not fit in 64 bits", e.span, "write a float")
            return None
        if isinstance(e.value, float) and e.value == float("inf"):
            self.convert.error(scope, "float-range", "this number is too large for a float", e.span, "write inf")
            return None
        return build.literal(e.value)

    def _name(self, e: ast.Name, scope: Scope, depth: int) -> Expr | None:
        binding = self.names.find(e, scope)
        if isinstance(binding, Function):
            return self._expand(binding, {}, e.span, scope, depth)
        return binding.expr if isinstance(binding, Value) else None

    # ------------------------------------------------------------ operators

    def _unary(self, e: ast.Unary, scope: Scope, depth: int) -> Expr | None:
        x = self.operand(e.operand, scope, depth + 1)
        if x is None:
            return None
        if e.op == "not":
            inner = self.convert.boolean(scope, x, "`not` needs")
            return None if inner is None else self.convert.apply(scope, Op.NOT, (inner,), e.span)
        if e.op == "~":
            bits = self._bits(e.op, x, "not", scope)
            less = None if bits is None else self.convert.apply(scope, Op.NEG, (bits,), e.span)
            return None if less is None else self.convert.apply(scope, Op.SUB, (less, build.integer(1)), e.span)
        inner = self.convert.number(scope, x, "`-` needs")
        return None if inner is None else self.convert.apply(scope, Op.NEG, (inner,), e.span)

    def _arithmetic(self, e: ast.Binary, scope: Scope, depth: int) -> Expr | None:
        # A chain leans to the left and may be long: it is walked in a loop.
        chain: list[ast.Binary] = []
        left: ast.Expr = e
        while isinstance(left, ast.Binary) and left.op in _ARITHMETIC:
            chain.append(left)
            left = left.left
        value = self.check(left, scope, depth + 1)
        for node in reversed(chain):
            right = self.operand(node.right, scope, depth + 1)
            if value is not None and right is not None:
                value = self._binary(node, Operand(value, node.left), right, scope)
            else:
                value = None
        return value

    def _binary(self, e: ast.Binary, x: Operand, y: Operand, scope: Scope) -> Expr | None:
        op = _ARITHMETIC[e.op]
        needs = f"`{e.op}` needs"
        args: list[Expr] | None
        match e.op:
            case "**":
                base = self.convert.number(scope, x, needs)
                exponent = self.convert.integer(scope, y, "the exponent of `**` must be", self._power_fix(e, y, scope))
                args = None if base is None or exponent is None else [base, exponent]
            case "//" | "%":
                args = self._whole(e, x, y, scope)
            case "&" | "|" | "^":
                left = self._bits(e.op, x, _BITS[e.op], scope)
                right = None if left is None else self._bits(e.op, y, _BITS[e.op], scope)
                args = None if left is None or right is None else [left, right]
            case "<<" | ">>":
                args = self._shifted(e, x, y, scope)
            case "/":
                args = self.convert.numbers(scope, (x, y), needs)
                if args is not None:
                    converted = [self.convert.to_float(scope, a, e.span) for a in args]
                    args = [a for a in converted if a is not None]
            case _:
                args = self.convert.numbers(scope, (x, y), needs)
        return self.convert.apply(scope, op, tuple(args), e.span) if args is not None and len(args) == 2 else None

    def _power_fix(self, e: ast.Binary, exponent: Operand, scope: Scope) -> str:
        if exponent.type is not Type.FLOAT:
            return ""
        text = self.convert.text(scope)
        return f"write exp({text.operand(e.right)} * log({text.quote(e.left)}))"

    def _bits(self, op: str, x: Operand, logic: str, scope: Scope) -> Expr | None:
        """`x` as an int whose bits `op` takes; `logic` is the word that takes bools."""
        if x.type is Type.BOOL:
            text = self.convert.text(scope).quote(x.node)
            message = f"`{text}` is a bool, and `{op}` takes the bits of ints"
            self.convert.error(scope, "type", message, x.node.span, f"write `{logic}`")
            return None
        fix = "write `**` for a power" if op == "^" and x.type is Type.FLOAT else ""
        return self.convert.integer(scope, x, f"`{op}` takes the bits of", fix)

    def _shifted(self, e: ast.Binary, x: Operand, y: Operand, scope: Scope) -> list[Expr] | None:
        """The int that is shifted, and by how much; for `<<` the power of two that multiplies it."""
        value = self.convert.integer(scope, x, f"`{e.op}` shifts")
        count = self.convert.integer(scope, y, f"`{e.op}` shifts by")
        if value is None or count is None:
            return None
        if isinstance(count, Literal) and not 0 <= count.value <= _MOST_SHIFTED:
            message = f"`{e.op}` shifts by {count.value}"
            self.convert.error(scope, "shift", message, e.right.span, f"shift by 0 to {_MOST_SHIFTED}")
            return None
        if e.op == ">>":
            return [value, count]
        power = self.convert.apply(scope, Op.POW, (build.integer(2), count), e.right.span)
        return None if power is None else [value, power]

    def _whole(self, e: ast.Binary, x: Operand, y: Operand, scope: Scope) -> list[Expr] | None:
        """The arguments of `//` and `%`, which take ints only."""
        args = self.convert.numbers(scope, (x, y), f"`{e.op}` needs")
        if args is None or args[0].type is Type.INT:
            return args
        text = self.convert.text(scope)
        a, b = text.operand(e.left), text.operand(e.right)
        fix = f"write floor({a} / {b})" if e.op == "//" else f"write {a} - {b} * floor({a} / {b})"
        which, written = ("left", e.left) if x.type is Type.FLOAT else ("right", e.right)
        message = f"`{e.op}` takes ints only, and its {which} side is a float"
        self.convert.error(scope, "type", message, written.span, fix)
        return None

    def _logic(self, e: ast.Binary, scope: Scope, depth: int) -> Expr | None:
        parts: list[ast.Expr] = []
        left: ast.Expr = e
        while isinstance(left, ast.Binary) and left.op == e.op:
            parts.append(left.right)
            left = left.left
        parts.append(left)
        args: list[Expr] = []
        for part in reversed(parts):
            x = self.operand(part, scope, depth + 1)
            arg = None if x is None else self.convert.boolean(scope, x, f"`{e.op}` needs")
            if arg is not None:
                args.append(arg)
        if len(args) < len(parts):
            return None
        return self.convert.apply(scope, Op.AND if e.op == "and" else Op.OR, tuple(args), e.span)

    def _compare(self, e: ast.Compare, scope: Scope, depth: int) -> Expr | None:
        if e.ops[0] in _MEMBER:
            return self._member(e, scope, depth)
        xs = [self.operand(o, scope, depth + 1) for o in e.operands]
        pairs: list[Expr] = []
        for op, x, y in zip(e.ops, xs, xs[1:], strict=False):
            if x is not None and y is not None:
                pair = self._pair(op, x, y, e.span if len(e.ops) == 1 else x.node.span.to(y.node.span), scope)
                if pair is not None:
                    pairs.append(pair)
        if len(pairs) < len(e.ops):
            return None
        return pairs[0] if len(pairs) == 1 else self.convert.apply(scope, Op.AND, tuple(pairs), e.span)

    def _pair(self, op: str, x: Operand, y: Operand, span: Span, scope: Scope) -> Expr | None:
        if op in _EQUAL:
            args = self.convert.alike(scope, (x, y), f"`{op}` with a number on one side needs")
            return None if args is None else self.convert.apply(scope, _EQUAL[op], tuple(args), span)
        args = self.convert.numbers(scope, (x, y), f"`{op}` needs")
        if args is None:
            return None
        direct, swapped = _COMPARE[op]
        return self.convert.apply(scope, direct, (args[1], args[0]) if swapped else (args[0], args[1]), span)

    def _member(self, e: ast.Compare, scope: Scope, depth: int) -> Expr | None:
        """`E in t[i, …]`, or its contrary."""
        value, behind = e.operands
        x = self.operand(value, scope, depth + 1)
        element = None if x is None else self.convert.integer(scope, x, f"`{e.ops[0]}` looks for")
        if isinstance(behind, ast.Name):
            behind = ast.Index(behind.id, (), base_span=behind.span, span=behind.span)
        assert isinstance(behind, ast.Index)  # as the parser has seen to
        found = self._list(e, behind, scope, depth)
        if element is None or found is None:
            return None
        member = self.convert.load(scope, *found, e.span, element)
        return self.convert.apply(scope, Op.NOT, (member,), e.span) if member and e.ops[0] == "not in" else member

    def _list(self, e: ast.Compare, behind: ast.Index, scope: Scope, depth: int) -> tuple[Tensor, Indices] | None:
        """The tensor that `in` looks in, and the list's indices."""
        op = e.ops[0]
        binding = self.names.find(behind, scope, "int")
        xs = [self.operand(i, scope, depth + 1) for i in behind.indices]
        if not isinstance(binding, Tensor):
            if binding is not None and not (isinstance(binding, Value) and binding.expr is None):
                message = f"{describe(behind.base, binding)}, and `{op}` looks in a tensor param"
                text = self.convert.text(scope).operand(e.operands[0])
                equal = f"{text} {'==' if op == 'in' else '!='} {behind.base}"
                fix = f"write {equal}" if isinstance(binding, Value) else "pass the list as a param"
                self.convert.error(scope, "not-a-tensor", message, behind.span, fix)
            return None
        if binding.type is not Type.INT:
            what = "floats" if binding.type is Type.FLOAT else "bools"
            message = f"`{behind.base}` holds {what}, and `{op}` looks for an int in a list of ints"
            dims = ", ".join(printing.expression(d) for d in binding.shape)
            fix = f"write `param {binding.name}: int[{dims}]`"
            if binding.type is Type.BOOL:
                fix = f"read the bool: {behind.base}[{indices_of(binding.shape)}]; or {fix}"
            self.convert.error(scope, "type", message, behind.span, fix)
            return None
        leading = binding.shape[:-1]
        if len(behind.indices) != len(leading):
            dims, wanted = plural(len(binding.shape), "dimension"), len(leading) or "none"
            message = f"`{behind.base}` has {dims}, indexed with {len(behind.indices)}: `{op}` needs {wanted}"
            text = self.convert.text(scope)
            written = indices_of(leading, (text.quote(i) for i in behind.indices))
            found = f"{behind.base}[{written}]" if leading else behind.base
            fix = f"write {text.operand(e.operands[0])} {op} {found}: the last axis is the list"
            self.convert.error(scope, "rank", message, behind.span, fix)
            return None
        ints = self._indices(behind.base, xs, scope)
        return None if ints is None else (binding, ints)

    def _if_else(self, e: ast.IfElse, scope: Scope, depth: int) -> Expr | None:
        condition = self.operand(e.condition, scope, depth + 1)
        then = self.operand(e.then, scope, depth + 1)
        otherwise = self.operand(e.otherwise, scope, depth + 1)
        test = None if condition is None else self.convert.boolean(scope, condition, "the condition of `if` must be")
        if then is None or otherwise is None:
            return None
        branches = self.convert.alike(scope, (then, otherwise), "the other branch of `if` makes it")
        if test is None or branches is None:
            return None
        return self.convert.apply(scope, Op.SELECT, (test, *branches), e.span)

    # ------------------------------------------------------------ calls and indices

    def _call(self, e: ast.Call, scope: Scope, depth: int) -> Expr | None:
        binding = self.names.find(e, scope)
        match binding:
            case Builtin():
                xs = [self.operand(a, scope, depth + 1) for a in e.args]
                if not functions.arity_fits(e.func, len(e.args)):
                    message = functions.arity_message(e.func, len(e.args))
                    self.convert.error(scope, "arity", message, e.span, f"write {binding.signature}")
                    return None
                sound = [x for x in xs if x is not None]
                return functions.call(self.convert, scope, e.func, sound, e.span) if len(sound) == len(xs) else None
            case Function() if binding.let.args is not None:
                args = [self.argument(a, scope, depth + 1) for a in e.args]
                formals = binding.let.args
                if len(args) != len(formals):
                    message = f"`{e.func}` takes {plural(len(formals), 'argument')}, not {len(args)}"
                    self.convert.error(scope, "arity", message, e.span, f"write {binding.signature}")
                    return None
                bound = {formal.name: arg for formal, arg in zip(formals, args, strict=True)}
                return self._expand(binding, bound, e.span, scope, depth)
            case None:
                for a in e.args:
                    self.argument(a, scope, depth + 1)
                return None
            case Value(expr=None):
                return None
            case _:
                fix = self._called_fix(e, binding)
                self.convert.error(scope, "not-a-function", f"{describe(e.func, binding)}, no function", e.span, fix)
                return None

    def _called_fix(self, e: ast.Call, binding: Binding) -> str:
        if isinstance(binding, Tensor):
            return f"write {e.func}[{indices_of(binding.shape)}]"
        return f"write {e.func}" if not e.args else f"write {e.func} alone, or {e.func} * (…) for a product"

    def argument(self, e: ast.Expr, scope: Scope, depth: int = 0) -> Binding:
        """What an argument stands for: a tensor param, which is passed by name, or an expression."""
        if isinstance(e, ast.Name):
            binding = scope.find(e.id)
            if isinstance(binding, Tensor):
                readable = self.names.readable_tensor(e.id, e.span, scope)
                return binding if readable else Value(None, "argument")
        return Value(self.check(e, scope, depth), "argument", e.span)

    def _expand(self, f: Function, args: dict[str, Binding], span: Span, scope: Scope, depth: int) -> Expr | None:
        """The body of a function with its arguments put in."""
        if not f.sound or any(isinstance(a, Value) and a.expr is None for a in args.values()):
            return None
        inner = Scope(
            place=scope.place,
            names=prelude().names if f.prelude else self.names.own,
            formals=args,
            call=scope.call or span,
            callee=scope.callee or f.signature,
            use=(scope.use or span) if f.prelude else scope.use,
        )
        value = self.check(f.let.value, inner, depth + 1)
        return None if value is None else walk.named(value, f.let.name)

    def _index(self, e: ast.Index, scope: Scope, depth: int) -> Expr | None:
        binding = self.names.find(e, scope)
        xs = [self.operand(i, scope, depth + 1) for i in e.indices]
        if not isinstance(binding, Tensor):
            if binding is not None and not (isinstance(binding, Value) and binding.expr is None):
                fix = f"write {binding.signature}" if isinstance(binding, Function | Builtin) else f"write {e.base}"
                if e.base in ("q", "k") and isinstance(binding, Value) and binding.kind == "index":
                    fix = f"write {e.base} for the position, or qk for the product of the query's and the key's row"
                message = f"{describe(e.base, binding)}, and only a tensor param can be indexed"
                if isinstance(binding, Value) and binding.kind == "argument":
                    message = f"`{e.base}` is indexed, so it must be the name of a tensor param"
                self.convert.error(scope, "not-a-tensor", message, e.span, fix)
            return None
        ints = self._indices(e.base, xs, scope)
        if len(e.indices) != len(binding.shape):
            message = f"`{e.base}` has {plural(len(binding.shape), 'dimension')}, indexed with {len(e.indices)}"
            written = (self.convert.text(scope).quote(i) for i in e.indices)
            self.convert.error(scope, "rank", message, e.span, f"write {e.base}[{indices_of(binding.shape, written)}]")
            return None
        if ints is None or not self._within(e, binding, scope):
            return None
        return self.convert.load(scope, binding, ints, e.span)

    def _indices(self, base: str, xs: Sequence[Operand | None], scope: Scope) -> Indices | None:
        needs = f"an index of `{base}` must be"
        ints = [None if x is None else self.convert.integer(scope, x, needs) for x in xs]
        indices = tuple(i for i in ints if i is not None)
        return indices if len(indices) == len(ints) else None

    def _within(self, e: ast.Index, tensor: Tensor, scope: Scope) -> bool:
        """Whether the indices written as plain numbers lie inside; those that come from consts may be guarded."""
        sound = True
        for node, dim in zip(e.indices, tensor.shape, strict=True):
            if isinstance(node, ast.Unary) and isinstance(node.operand, ast.Number):
                message = f"`{e.base}` has nothing below index 0: a negative index does not count from the end"
                self.convert.error(scope, "out-of-bounds", message, node.span, "write an index from 0 on")
                sound = False
            elif isinstance(node, ast.Number) and isinstance(dim, Literal) and node.value >= dim.value:
                message = f"this dimension of `{e.base}` ends at index {int(dim.value) - 1}"
                self.convert.error(scope, "out-of-bounds", message, node.span, f"write an index below {dim.value}")
                sound = False
        return sound
