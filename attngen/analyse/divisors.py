"""The one fact that a spec need not state: an int param that divides is not 0.

Takes params and the expressions of a spec, returns the params, those that stand alone as a divisor of `//` or `%` and
have no `where` with `!= 0` as theirs. The generated function then refuses a 0 at the call, like any other `where`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from attngen.ir.attention import Param
from attngen.ir.build import apply, integer
from attngen.ir.nodes import Apply, Expr, Op, Scalar
from attngen.ir.walk import nodes


def with_divisors(params: tuple[Param, ...], expressions: Iterable[Expr]) -> tuple[Param, ...]:
    divisors = {
        node.args[1]
        for e in expressions
        for node in nodes(e)
        if isinstance(node, Apply) and node.op in (Op.FLOORDIV, Op.MOD) and isinstance(node.args[1], Scalar)
    }

    def stated(p: Param) -> Param:
        own = Scalar(p.name, p.type)
        if p.where is not None or own not in divisors:
            return p
        return replace(p, where=apply(Op.NE, own, integer(0)))

    return tuple(map(stated, params))
