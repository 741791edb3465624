"""What a name in an expression stands for, and whether it may be read there.

Takes a name and the scope it stands in, returns its binding, or None after reporting why it has none. Holds the names
of the file, which grow as its statements are analysed.
"""

from __future__ import annotations

from attngen.analyse.convert import Converter
from attngen.analyse.prelude import prelude
from attngen.analyse.report import nearest
from attngen.analyse.scope import (
    CONST,
    LET,
    SCORE,
    Binding,
    Builtin,
    Function,
    Later,
    Place,
    Scope,
    Tensor,
    Value,
    indices_of,
)
from attngen.errors import Span
from attngen.ir.nodes import Load, Scalar
from attngen.ir.papers import IN_PAPERS
from attngen.syntax import ast
from attngen.syntax.habits import INSTEAD, many_pairs_fix


class Names:
    """The names of one file."""

    def __init__(self, convert: Converter) -> None:
        self._convert = convert
        self.own: dict[str, Binding] = dict(prelude().names)

    def scope(self, place: Place, formals: dict[str, Binding] | None = None) -> Scope:
        """The names at this point of the file."""
        return Scope(place, self.own, formals or {})

    def find(self, e: ast.Name | ast.Call | ast.Index, scope: Scope, holds: str = "f32") -> Binding | None:
        """What the name of `e` stands for: read, called or indexed, as `e` does it. `holds`: what a tensor would."""
        match e:
            case ast.Name():
                name, span = e.id, e.span
            case ast.Call():
                name, span = e.func, e.func_span
            case ast.Index():
                name, span = e.base, e.base_span
        binding = scope.find(name)
        match binding:
            case None:
                self._unknown(e, name, span, scope, holds)
                return None
            case Later():
                self._later(name, binding, span, scope)
                return None
            case Value():
                return binding if self._readable_value(name, binding, span, scope) else None
            case Tensor():
                if isinstance(e, ast.Name):
                    indices = indices_of(binding.shape)
                    message = f"`{name}` is a tensor param: only its elements can be read"
                    at_call = (
                        f"pass {binding.name}[{indices}] instead of {binding.name}" if name in scope.formals else ""
                    )
                    self._convert.error(scope, "needs-index", message, span, f"write {name}[{indices}]", at_call)
                    return None
                return binding if self.readable_tensor(name, span, scope) else None
            case Builtin() | Function():
                takes_arguments = isinstance(binding, Builtin) or binding.let.args is not None
                if isinstance(e, ast.Name) and takes_arguments:
                    message = f"`{name}` is a function, and stands here without its arguments"
                    self._convert.error(scope, "needs-call", message, span, f"write {binding.signature}")
                    return None
                return binding

    # ------------------------------------------------------------ what a place may read

    def readable_tensor(self, name: str, span: Span, scope: Scope) -> bool:
        # An argument was checked where it was passed.
        if scope.place.tensors or name in scope.formals:
            return True
        self._barred(name, name, span, scope)
        return False

    def _readable_value(self, name: str, value: Value, span: Span, scope: Scope) -> bool:
        place = scope.place
        if value.expr is None or place in (LET, SCORE) or name in scope.formals:
            return True
        if value.kind == "let" and not place.lets:
            self._barred(name, name, span, scope)
            return False
        self._convert.budget.scan(value.expr)
        found = place.bars(value.expr)
        if found is None:
            return True
        self._barred(name, found.param if isinstance(found, Load | Scalar) else found.id, span, scope)
        return False

    def _barred(self, name: str, read: str, span: Span, scope: Scope) -> None:
        place = scope.place
        through = "" if name == read else f", which `{name}` does"
        message = f"{place.what} can't read `{read}`{through}"
        self._convert.error(scope, "not-here", message, span, f"it may read {place.may}")

    # ------------------------------------------------------------ names without a meaning

    def _later(self, name: str, binding: Later, span: Span, scope: Scope) -> None:
        where = f"line {binding.span.line}"
        if binding.being_defined:
            message = f"`{name}` is defined by itself: there is no recursion"
            self._convert.error(scope, "recursion", message, span, "write the value without it")
        elif scope.place is CONST and binding.kind != "const":
            message = f"a const can't read `{name}`, a {binding.kind} ({where})"
            self._convert.error(scope, "not-here", message, span, f"it may read {CONST.may}")
        else:
            message = f"`{name}` is used before its {binding.kind} ({where})"
            self._convert.error(scope, "order", message, span, f"move the {binding.kind} above this line")

    def _unknown(self, e: ast.Name | ast.Call | ast.Index, name: str, span: Span, scope: Scope, holds: str) -> None:
        if self._convert.report.full:
            return
        known = {**scope.names, **scope.formals}
        alike = [n for n, b in known.items() if _fits(e, b)]
        guess = nearest(name, alike) or nearest(name, known)
        match e:
            case ast.Name():
                fix = "define it with const, param or let"
            case ast.Call():
                fix = f"define it with let {name}(…) = …"
            case ast.Index():
                fix = f"declare it with param {name}: {holds}[…]"
        if name == "score" and scope.place.what == "`mask`":
            fix = "a mask reads no scores: write it with q, k, b, h and params, or let the score be -inf there"
        elif isinstance(e, ast.Call) and many_pairs_fix(name):
            fix = many_pairs_fix(name)
        elif name in INSTEAD:
            fix = f"write `{INSTEAD[name]}`"
        elif name in ("mask", "normalizer", "dropout", "tile"):
            fix = f"`{name}` is a statement, not a value: name the value with let"
        elif isinstance(e, ast.Name) and name in IN_PAPERS:
            fix = f"did you mean {IN_PAPERS[name]}?"
        elif guess:
            fix = f"did you mean {guess}?"
        self._convert.error(scope, "unknown-name", f"`{name}` is not defined", span, fix)


def _fits(e: ast.Name | ast.Call | ast.Index, binding: Binding) -> bool:
    """Whether a name so bound can be used as `e` uses it."""
    match e:
        case ast.Call():
            return isinstance(binding, Builtin) or (isinstance(binding, Function) and binding.let.args is not None)
        case ast.Index():
            return isinstance(binding, Tensor)
        case ast.Name():
            return isinstance(binding, Value) or (isinstance(binding, Function) and binding.let.args is None)
