"""A factor that q . k is always multiplied by, moved into q before the product.

Takes the expressions that one kernel evaluates for a pair, returns the factor, common to a head, and the expressions
over the product that has it inside. Saves a multiplication for every pair where the hardware has no fused one.
"""

from __future__ import annotations

from collections.abc import Mapping

from attngen.ir.nodes import Apply, Expr, Op, Symbol, Type
from attngen.ir.walk import nodes, reads, substitute
from attngen.plan.score.weights import per_head

QK = Symbol("qk", Type.FLOAT)
_KINKS = frozenset(
    {Op.MIN, Op.MAX, Op.ABS, Op.SIGN, Op.SELECT, Op.FLOOR, Op.CEIL, Op.TO_INT, Op.LT, Op.LE, Op.EQ, Op.NE}
)


def folded(results: Mapping[str, Expr]) -> tuple[Expr | None, dict[str, Expr]]:
    """`(factor, results)`: `qk` in these stands for the product with the factor inside. None where none is common.

    Nor where something jumps or bends with the score: q times the factor is rounded to q's dtype, and half precision
    would put scores near the kink on its other side.
    """
    if any(_bends(node) for root in results.values() for node in nodes(root)):
        return None, dict(results)
    factors: dict[Expr, None] = {}
    products: dict[Expr, Expr] = {}
    for root in results.values():
        for node in nodes(root):
            if isinstance(node, Apply) and node.op is Op.MUL and QK in node.args:
                other = node.args[1] if node.args[0] == QK else node.args[0]
                if per_head(other):
                    factors[other] = None
                    products[node] = QK
    if len(factors) != 1:
        return None, dict(results)
    mark = Symbol("scaled_qk", Type.FLOAT)
    moved = {name: substitute(e, dict.fromkeys(products, mark)) for name, e in results.items()}
    if any(node == QK for e in moved.values() for node in nodes(e)):
        return None, dict(results)
    return next(iter(factors)), {name: substitute(e, {mark: QK}) for name, e in moved.items()}


def _bends(e: Expr) -> bool:
    return isinstance(e, Apply) and e.op in _KINKS and reads(e, "qk", "x")
