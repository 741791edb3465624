"""Normalizers: definitions checked line by line, and the one that a file uses with its arguments put in.

Takes `normalizer NAME(args) { … }` and `normalizer = NAME(arg = E, …)`, returns `ir.attention.Normalizer`. That the
streamed lines agree with the definition is for the prover.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attngen.analyse.constants import report_undefined
from attngen.analyse.expressions import Expressions
from attngen.analyse.prelude import prelude
from attngen.analyse.report import Report, nearest
from attngen.analyse.scope import NORMALIZER, Binding, Scope, Value
from attngen.errors import NOWHERE, Span
from attngen.ir import attention as ir
from attngen.ir.nodes import Expr, Literal, Symbol, Type
from attngen.syntax import ast

_DEFAULT = ast.UseNormalizer("softmax", None, name_span=NOWHERE, span=NOWHERE)

_SCORE, _OLD, _NEW = (Symbol(name, Type.FLOAT) for name in ("s", "m", "n"))


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a definition, each where it should be."""

    weight: ast.NormalizerLine
    denominator: ast.NormalizerLine
    shift: bool
    stream_weight: ast.NormalizerLine | None
    rescale: ast.NormalizerLine | None


class Normalizers:
    """The normalizers of one file."""

    def __init__(self, expressions: Expressions, report: Report) -> None:
        self._expressions = expressions
        self._report = report
        self._own: dict[str, tuple[ast.DefineNormalizer, Lines | None]] = {}
        self._used: tuple[ast.UseNormalizer, tuple[Binding, ...]] = _DEFAULT, ()

    # ------------------------------------------------------------ definitions

    def define(self, definition: ast.DefineNormalizer) -> None:
        """Checks a definition, whatever its arguments may be."""
        before = self._report.count
        lines = self._lines(definition)
        if lines is not None:
            unknown: dict[str, Binding] = {a.name: Value(None, "argument", a.span) for a in definition.args or ()}
            self._build(definition, lines, self._expressions.names.scope(NORMALIZER, unknown), definition.name_span)
        sound = self._report.count == before
        self._own.setdefault(definition.name, (definition, lines if sound else None))

    def _lines(self, definition: ast.DefineNormalizer) -> Lines | None:
        found: dict[str, ast.NormalizerLine] = {}
        for line in definition.lines:
            role = self._role(line)
            if role is None:
                continue
            if role in found:
                message = f"`{role}` is defined a second time (first on line {found[role].span.line})"
                self._report.error("duplicate", message, line.span, "keep one of the two")
                continue
            found[role] = line
        shift = self._shift(found.get("shift"))
        needed = {"weight(s)": "weight(s) = …", "denominator": "denominator = sum", "shift": "shift = max or none"}
        if shift:
            needed |= {"weight(s, m)": "weight(s, m) = …", "rescale(m, n)": "rescale(m, n) = …"}
        # A line that was written, however wrong, is not missing.
        written = {line.target for line in definition.lines if self._role(line, quiet=True) is None}
        missing = [form for role, form in needed.items() if role not in found and role.split("(")[0] not in written]
        for form in missing:
            message = f"the normalizer `{definition.name}` lacks a line"
            if form.startswith(("weight(s, m)", "rescale")):
                message += ", which `shift = max` needs"
            self._report.error("missing-line", message, definition.name_span, f"add {form}")
        if shift is None or "weight(s)" not in found or "denominator" not in found or (shift and missing):
            return None
        return Lines(
            found["weight(s)"], found["denominator"], shift, found.get("weight(s, m)"), found.get("rescale(m, n)")
        )

    def _role(self, line: ast.NormalizerLine, quiet: bool = False) -> str | None:
        """Which line of a definition this is; None where it is none."""
        count = None if line.args is None else len(line.args)
        match line.target, count:
            case "weight", 1:
                return "weight(s)"
            case "weight", 2:
                return "weight(s, m)"
            case "rescale", 2:
                return "rescale(m, n)"
            case ("denominator" | "shift") as target, None:
                return target
            case _:
                pass
        if not quiet:
            self._no_such_line(line)
        return None

    def _no_such_line(self, line: ast.NormalizerLine) -> None:
        forms = {
            "weight": "write weight(s) = …, or weight(s, m) = … for the stream",
            "rescale": "write rescale(m, n) = …",
            "denominator": "write denominator = sum",
            "shift": "write shift = max, or shift = none",
        }
        if line.target in forms:
            message = f"`{line.target}` does not have these arguments"
            self._report.error("arity", message, line.span, forms[line.target])
            return
        guess = nearest(line.target, forms)
        fix = f"did you mean {guess}?" if guess else f"the lines are {', '.join(forms)}"
        self._report.error("unknown-name", f"a normalizer has no line `{line.target}`", line.target_span, fix)

    def _shift(self, line: ast.NormalizerLine | None) -> bool | None:
        if line is None:
            return None
        if isinstance(line.value, ast.Name) and line.value.id in ("max", "none"):
            return line.value.id == "max"
        message = "`shift` is neither `max` nor `none`"
        self._report.error("normalizer", message, line.value.span, "write shift = max, or shift = none")
        return None

    # ------------------------------------------------------------ use

    def use(self, use: ast.UseNormalizer) -> None:
        """Takes note of `normalizer = …`, whose arguments read the names at this point of the file."""
        scope = self._expressions.names.scope(NORMALIZER)
        self._used = use, tuple(self._expressions.argument(given.value, scope) for given in use.args or ())

    def chosen(self) -> ir.Normalizer | None:
        """The normalizer of the file; its definition may stand anywhere."""
        use, values = self._used
        definitions = self._candidates(use)
        if not definitions:
            return None
        args = self._arguments(use, values, sorted({a.name for d, _ in definitions for a in d.args or ()}))
        if args is None:
            return None
        for definition, lines in definitions:
            if {a.name for a in definition.args or ()} == set(args):
                return None if lines is None else self._bind(use, definition, lines, args)
        formals = [a.name for a in definitions[0][0].args or ()]
        missing = ", ".join(f"`{name}`" for name in formals if name not in args)
        example = ", ".join(f"{name} = …" for name in formals)
        message = f"the normalizer `{use.name}` needs {missing}"
        self._report.error("missing-argument", message, use.name_span, f"write {use.name}({example})")
        return None

    def _arguments(
        self, use: ast.UseNormalizer, values: tuple[Binding, ...], known: list[str]
    ) -> dict[str, Binding] | None:
        """The arguments of a use by name, or None where one of them is wrong."""
        args: dict[str, Binding] = {}
        sound = True
        for given, binding in zip(use.args or (), values, strict=True):
            sound &= not (isinstance(binding, Value) and binding.expr is None)
            if given.name in args:
                message = f"the argument `{given.name}` is given twice"
                self._report.error("duplicate", message, given.name_span, "keep one of the two")
                sound = False
            elif given.name not in known:
                guess = nearest(given.name, known)
                takes = f"it takes {', '.join(known)}" if known else "it takes none"
                message = f"the normalizer `{use.name}` has no argument `{given.name}`"
                fix = f"did you mean {guess}?" if guess else takes
                self._report.error("unknown-argument", message, given.name_span, fix)
                sound = False
            args[given.name] = binding
        return args if sound else None

    def _candidates(self, use: ast.UseNormalizer) -> list[tuple[ast.DefineNormalizer, Lines | None]]:
        """The definitions of this name: one, but for the prelude's, which may differ by their arguments."""
        built_in = prelude().normalizers
        if use.name in built_in:
            return [(d, self._lines(d)) for d in built_in[use.name]]
        if use.name in self._own:
            return [self._own[use.name]]
        known = [*self._own, *built_in]
        guess = nearest(use.name, known)
        fix = f"did you mean {guess}?" if guess else f"there are {', '.join(known)}; or define it"
        message = f"there is no normalizer `{use.name}`"
        self._report.error("unknown-normalizer", message, use.name_span, fix)
        return []

    def _bind(
        self, use: ast.UseNormalizer, definition: ast.DefineNormalizer, lines: Lines, args: Mapping[str, Binding]
    ) -> ir.Normalizer | None:
        built_in = definition in prelude().normalizers.get(use.name, ())
        scope = Scope(
            NORMALIZER,
            prelude().names if built_in else self._expressions.names.own,
            args,
            call=use.span if args or built_in else None,
            callee=use.name,
            use=use.span if built_in else None,
        )
        return self._build(definition, lines, scope, use.span, use.name)

    # ------------------------------------------------------------ lines

    def _build(
        self, definition: ast.DefineNormalizer, lines: Lines, scope: Scope, span: Span, name: str | None = None
    ) -> ir.Normalizer | None:
        """The definition in a scope where its arguments stand for something; None where that can't be told."""
        weight = self._line(lines.weight, scope, _SCORE)
        sums, extra, sound = self._denominator(lines.denominator, scope)
        stream = None if lines.stream_weight is None else self._line(lines.stream_weight, scope, _SCORE, _OLD)
        rescale = None if lines.rescale is None else self._line(lines.rescale, scope, _OLD, _NEW)
        if weight is None or not sound or (lines.shift and (stream is None or rescale is None)):
            return None
        wrong = [report_undefined(e, span, self._report) for e in (weight, extra, stream, rescale) if e is not None]
        if any(wrong):
            return None
        if not lines.shift:
            # Without a reference point these lines say nothing.
            stream = rescale = None
        return ir.Normalizer(name or definition.name, weight, sums, extra, lines.shift, stream, rescale, span=span)

    def _line(self, line: ast.NormalizerLine, scope: Scope, *symbols: Symbol) -> Expr | None:
        formals: dict[str, Binding] = dict(scope.formals)
        for argument, symbol in zip(line.args or (), symbols, strict=True):
            formals[argument.name] = Value(symbol, "argument", argument.span)
        return self._expressions.real(line.value, _with(scope, formals), f"`{line.target}` must be")

    def _denominator(self, line: ast.NormalizerLine, scope: Scope) -> tuple[bool, Expr | None, bool]:
        """Whether the denominator has the sum in it, what is added to it, and whether all this can be told."""
        summed, rest = _split(line.value)
        if rest is not None and any(name.id == "sum" for name in _names(rest)):
            self._bad_denominator(line)
            return False, None, False
        if rest is None:
            return True, None, True
        extra = self._expressions.real(rest, scope, "`denominator` must be")
        if summed or extra is None:
            return summed, extra, extra is not None
        if isinstance(extra, Literal) and extra.value == 1:
            return False, None, True
        self._bad_denominator(line)
        return False, None, False

    def _bad_denominator(self, line: ast.NormalizerLine) -> None:
        message = "a denominator is `sum`, `sum + E`, or 1"
        self._report.error("normalizer", message, line.value.span, "write denominator = sum + …, or denominator = 1")


def _with(scope: Scope, formals: Mapping[str, Binding]) -> Scope:
    return Scope(scope.place, scope.names, formals, scope.call, scope.callee, scope.use)


def _split(e: ast.Expr) -> tuple[bool, ast.Expr | None]:
    """Whether `e` is a sum with the name `sum` in it, once, and what else is in that sum."""
    if isinstance(e, ast.Name) and e.id == "sum":
        return True, None
    if isinstance(e, ast.Binary) and e.op in ("+", "-"):
        summed, rest = _split(e.left)
        if summed and rest is None:
            return True, e.right if e.op == "+" else ast.Unary("-", e.right, span=e.right.span)
        if summed and rest is not None:
            return True, ast.Binary(e.op, rest, e.right, span=e.span)
        if e.op == "+":
            summed, rest = _split(e.right)
            if summed:
                return True, e.left if rest is None else ast.Binary("+", e.left, rest, span=e.span)
    return False, e


def _names(e: ast.Expr) -> Iterator[ast.Name]:
    stack: list[ast.Expr] = [e]
    while stack:
        match stack.pop():
            case ast.Name() as name:
                yield name
            case ast.Call(args=parts) | ast.Index(indices=parts) | ast.Compare(operands=parts):
                stack += parts
            case ast.Unary(operand=operand):
                stack.append(operand)
            case ast.Binary(left=left, right=right):
                stack += (left, right)
            case ast.IfElse(condition=c, then=a, otherwise=b):
                stack += (c, a, b)
            case ast.Number() | ast.Bool():
                pass
