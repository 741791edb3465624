"""z3's values, put into an expression and evaluated: it knows nothing of functions such as log, and invents theirs."""

from __future__ import annotations

import math

from attngen.errors import UsageError
from attngen.ir.nodes import FLOAT_FUNCTIONS, Apply, Expr, Load, Op, Symbol
from attngen.ir.walk import nodes, transform
from attngen.prove.integers.answers import Fails, element_name


def reads_functions(e: Expr) -> bool:
    """Whether `e` holds an operation of which z3 knows nothing."""
    return any(isinstance(n, Apply) and n.op in FLOAT_FUNCTIONS | {Op.POW} for n in nodes(e))


def evaluated_at(answer: Fails, e: Expr) -> int | None:
    """The value of an int expression at z3's values; None where these do not say all that it reads."""
    if any(element_name(n) not in answer.values for n in nodes(e) if isinstance(n, Load)):
        return None
    from attngen.ir.evaluate import evaluate  # with NumPy, which is not loaded for what z3 shows

    at = {**answer.values, "inf": math.inf}
    try:
        return int(evaluate(transform(e, _element), at, at))
    except UsageError:
        return None


def _element(e: Expr) -> Expr | None:
    return Symbol(element_name(e), e.type) if isinstance(e, Load) else None
