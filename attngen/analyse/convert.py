"""Types: what each operation needs, int to float, and what to write instead.

Takes typed operands with the text that they came from, returns expressions with the conversions put in, or None after
reporting why there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attngen.analyse.limits import MAX_DEPTH, MAX_NODES, Budget
from attngen.analyse.prelude import prelude
from attngen.analyse.report import Report, Text
from attngen.analyse.scope import Scope, Tensor
from attngen.errors import Span
from attngen.ir import build, walk
from attngen.ir.nodes import Expr, Load, Op, Type
from attngen.syntax import ast

_WORDS = {Type.BOOL: "a bool", Type.INT: "an int", Type.FLOAT: "a float"}


@dataclass(frozen=True, slots=True)
class Operand:
    """An expression and the text that it came from."""

    expr: Expr
    node: ast.Expr

    @property
    def type(self) -> Type:
        return self.expr.type


class Converter:
    """Builds well-typed expressions within the limits."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.budget = Budget()
        self._said_too_large = False
        self._blamed: set[Span] = set()

    # ------------------------------------------------------------ reporting

    def error(self, scope: Scope, code: str, message: str, span: Span, fix: str = "", at_call: str = "") -> None:
        """Reports at `span`; inside the body of a function once, at the call whose arguments led here.

        `at_call` is the fix there, if one is known.
        """
        if scope.call is None:
            self.report.error(code, message, span, fix)
        elif scope.call not in self._blamed:
            self._blamed.add(scope.call)
            inside = f", or {fix} in it" if fix.startswith("write ") and scope.use is None else ""
            outside = at_call or "give it other arguments"
            self.report.error(code, f"in `{scope.callee}`: {message}", scope.call, f"{outside}{inside}")

    def text(self, scope: Scope) -> Text:
        """The text that the expressions of this scope were written in."""
        return self.report.text if scope.use is None else prelude().text

    def too_large(self, scope: Scope, span: Span, message: str, fix: str) -> None:
        # One such mistake makes many: the first says it all.
        if not self._said_too_large:
            self._said_too_large = True
            self.report.error("too-large", message, scope.call or span, fix)

    # ------------------------------------------------------------ building

    def apply(self, scope: Scope, op: Op, args: tuple[Expr, ...], span: Span) -> Expr | None:
        """`build.apply`, unless the result would be too large."""
        if not self._fits(scope, args, span):
            return None
        self.budget.apply(op, args)
        if self.out_of_budget(scope, span):
            return None
        return build.apply(op, *args, span=scope.use or span)

    def load(
        self, scope: Scope, tensor: Tensor, indices: tuple[Expr, ...], span: Span, member: Expr | None = None
    ) -> Expr | None:
        """An element of a tensor param, or whether a list of one has a `member`, unless its parts are too large."""
        if not self._fits(scope, (*indices, *([] if member is None else [member])), span):
            return None
        type = tensor.type if member is None else Type.BOOL
        return Load(tensor.name, indices, type, member=member, span=scope.use or span)

    def _fits(self, scope: Scope, args: tuple[Expr, ...], span: Span) -> bool:
        measures = [self.budget.measure(a) for a in args]
        if 1 + sum(n for n, _ in measures) > MAX_NODES:
            message = f"with its lets put in, this expression has more than {MAX_NODES:,} terms"
            self.too_large(scope, span, message, "each use of a let is a copy of it: use fewer")
            return False
        if 1 + max(d for _, d in measures) > MAX_DEPTH:
            message = f"with its lets put in, this expression is nested more than {MAX_DEPTH} deep"
            self.too_large(scope, span, message, "write a shorter chain, or bracket it into halves")
            return False
        return True

    def out_of_budget(self, scope: Scope, span: Span) -> bool:
        if self.budget.exhausted:
            self.too_large(scope, span, "the file is too large to analyse", "write fewer or smaller lets")
        return self.budget.exhausted

    def to_float(self, scope: Scope, e: Expr, span: Span) -> Expr | None:
        return e if e.type is Type.FLOAT else self.apply(scope, Op.TO_FLOAT, (e,), span)

    # ------------------------------------------------------------ what is needed

    def number(self, scope: Scope, x: Operand, needs: str) -> Expr | None:
        """`x`, an int or a float. `needs` says who needs it: "`+` needs"."""
        if x.type is not Type.BOOL:
            return x.expr
        text = self.text(scope).quote(x.node)
        message = f"{_name(text)} is a bool, and {needs} a number"
        self.error(scope, "type", message, x.node.span, f"write float({text}) or int({text})")
        return None

    def real(self, scope: Scope, x: Operand, needs: str) -> Expr | None:
        """`x` as a float."""
        e = self.number(scope, x, needs)
        return None if e is None else self.to_float(scope, e, x.node.span)

    def integer(self, scope: Scope, x: Operand, needs: str, fix: str = "") -> Expr | None:
        if x.type is Type.INT:
            return x.expr
        text = self.text(scope).quote(x.node)
        mend = f"write int({text})" + ("" if x.type is Type.BOOL else f" or floor({text})")
        if isinstance(x.node, ast.Binary) and x.node.op == "/":
            mend = f"write `//` for the whole part of a quotient of ints, or {mend.removeprefix('write ')}"
        message = f"{_name(text)} is {_WORDS[x.type]}, and {needs} an int"
        self.error(scope, "type", message, x.node.span, fix or mend)
        return None

    def boolean(self, scope: Scope, x: Operand, needs: str) -> Expr | None:
        if x.type is Type.BOOL:
            return x.expr
        text = self.text(scope)
        message = f"{_name(text.quote(x.node))} is {_WORDS[x.type]}, and {needs} a bool"
        # A comparison binds closer than `if`, and looser than all else that gives a number.
        written = text.operand(x.node) if isinstance(x.node, ast.IfElse) else text.quote(x.node)
        fix = f"write {written} != 0"
        if x.type is Type.FLOAT and walk.loads(x.expr) and needs != "`not` needs":
            additive = f"where 0 keeps a pair and -inf drops it, write {written} == 0, or add it to the score"
            fix = f"{additive}; where 1 keeps and 0 drops, {fix}"
        self.error(scope, "type", message, x.node.span, fix)
        return None

    def numbers(self, scope: Scope, xs: Sequence[Operand], needs: str) -> list[Expr] | None:
        """All of `xs` as numbers of one type: floats where any is a float."""
        checked = [self.number(scope, x, needs) for x in xs]
        sound = [e for e in checked if e is not None]
        if len(sound) < len(xs):
            return None
        if all(e.type is Type.INT for e in sound):
            return sound
        floats = [self.to_float(scope, e, x.node.span) for e, x in zip(sound, xs, strict=True)]
        converted = [e for e in floats if e is not None]
        return converted if len(converted) == len(xs) else None

    def alike(self, scope: Scope, xs: Sequence[Operand], needs: str) -> list[Expr] | None:
        """All of `xs` in one type: all bools, or numbers as in `numbers`."""
        if all(x.type is Type.BOOL for x in xs):
            return [x.expr for x in xs]
        return self.numbers(scope, xs, needs)


def _name(text: str) -> str:
    return "this" if text == "…" else f"`{text}`"
