"""The answers of tests of data over arrays, as text: the runtime's functions, printed for PyTorch and JAX.

Takes what the extremes are called, here and there; returns the texts of `can` and `must` by test.
"""

from __future__ import annotations

from collections.abc import Mapping

from attngen.errors import InternalError
from attngen.ir.build import TRUE, index
from attngen.ir.function import inlined
from attngen.ir.nodes import Apply, Expr, Op, Symbol, Type
from attngen.ir.walk import substitute
from attngen.plan.index import tests

_TESTS = {"equal": 0, "at_most": 1, "at_least": 2, "below": 3, "above": 4}
"""Of what is here, to what is there."""
_SIGNS = {Op.LT: "<", Op.LE: "<=", Op.EQ: "=="}


def answers(least: str, most: str, low: str, high: str) -> Mapping[str, tuple[str, str]]:
    """`least` … `most` are the extremes here, `low` … `high` those there."""
    names: dict[Expr, str] = {index("least"): least, index("most"): most, index("low"): low, index("high"): high}

    def text(name: str, test: int) -> str:
        (found,) = inlined(tests().of(name, TEST=test))
        return _text(substitute(found, {Symbol("there", Type.BOOL): TRUE}), names)

    return {kind: (text("can_hold", test), text("must_hold", test)) for kind, test in _TESTS.items()}


def _text(e: Expr, names: Mapping[Expr, str]) -> str:
    if e in names:
        return names[e]
    if isinstance(e, Apply) and e.op is Op.AND:
        return " & ".join(f"({_text(a, names)})" for a in e.args)
    if isinstance(e, Apply) and e.op in _SIGNS:
        return f" {_SIGNS[e.op]} ".join(_text(a, names) for a in e.args)
    raise InternalError(f"a test of data is no comparison of extremes: {e}")
