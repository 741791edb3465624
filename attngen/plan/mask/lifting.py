"""Conditions lifted out of comparisons: `q - k < (16 if c else 64)` is `(q - k < 16) if c else (q - k < 64)`.

Takes a comparison of ints, returns the two that a condition on the walked axis chooses between. Only for planning: the
kernels compute what the file says.
"""

from __future__ import annotations

from attngen.ir import build
from attngen.ir.nodes import Apply, Expr, Op, Type
from attngen.ir.walk import nodes, reads, transform

MOST_CONDITIONS = 3
"""A comparison of more distinct conditions is left whole: each one doubles its cases."""


def lifted(c: Apply, axis: str) -> Expr | None:
    """`c` as a select of two comparisons; None where no condition on `axis` chooses an int in it, or too many do."""
    conditions = dict.fromkeys(
        n.args[0] for n in nodes(c) if isinstance(n, Apply) and n.op is Op.SELECT and n.type is Type.INT
    )
    own = [condition for condition in conditions if reads(condition, axis)]
    if not own or len(conditions) > MOST_CONDITIONS:
        return None
    return build.select(own[0], _chosen(c, own[0], 1), _chosen(c, own[0], 2))


def _chosen(c: Expr, condition: Expr, branch: int) -> Expr:
    """`c` where each select on `condition` takes one branch."""

    def choose(e: Expr) -> Expr | None:
        if isinstance(e, Apply) and e.op is Op.SELECT and e.args[0] == condition:
            return _chosen(e.args[branch], condition, branch)
        return None

    return transform(c, choose)
