"""Constant expressions that have no value: division by zero, ints beyond 64 bits, log(0) in a const.

Takes built expressions. `build.apply` folds what has a value and leaves the rest as it stands, so what is left over
is what is wrong. Looked for once an expression is whole, since `q // w if w > 0 else 0` is fine where w is 0.
"""

from __future__ import annotations

from attngen.analyse.report import Report
from attngen.errors import Span
from attngen.ir import printing, walk
from attngen.ir.nodes import Apply, Expr, Literal, Op, Type
from attngen.syntax import ast


def constant(e: Expr, written: ast.Expr, report: Report) -> Literal | None:
    """The value of a const, or None after reporting why it has none."""
    if isinstance(e, Literal):
        return e
    if not report_undefined(e, written.span, report):
        _report_float(e, written.span, report)
    return None


def report_undefined(e: Expr, otherwise: Span, report: Report) -> bool:
    """Reports each int in `e` that has no value; `otherwise` is where the whole stands. Says whether there was one."""
    found = False
    for node in walk.nodes(e):
        problem = _problem(node)
        if problem is not None:
            code, message, fix = problem
            report.error(code, message, node.span if node.span.line else otherwise, fix)
            found = True
    return found


def _problem(e: Expr) -> tuple[str, str, str] | None:
    if not isinstance(e, Apply) or e.type is not Type.INT or e.op is Op.SELECT:
        return None
    last = e.args[-1]
    divisor = last.value if isinstance(last, Literal) else None
    if e.op in (Op.FLOORDIV, Op.MOD) and divisor == 0:
        return "division-by-zero", f"`{e.op.value}` divides by zero", "the divisor must not be 0"
    if e.op is Op.POW and divisor is not None and divisor < 0:
        return "undefined", "an int to a negative power is no int", "write float(…) around the base"
    if all(isinstance(a, Literal) for a in e.args):
        return "int-range", "this int does not fit in 64 bits", "use floats here, or smaller numbers"
    return None


def _report_float(e: Expr, otherwise: Span, report: Report) -> None:
    """Reports the innermost float without a value."""
    for node in walk.nodes(e):
        if isinstance(node, Apply) and all(isinstance(a, Literal) for a in node.args):
            message = f"`{printing.expression(node)}` has no value that a float can hold"
            fix = "write inf for infinity, or mend the formula"
            report.error("undefined", message, node.span if node.span.line else otherwise, fix)
