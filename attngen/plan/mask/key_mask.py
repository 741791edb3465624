"""What the mask asks of a key alone: a length, a padding mask.

Takes a mask, returns the condition that every key of an allowed pair meets, whichever the query. A row of K or V that
breaks it may hold anything, NaN included (a cache row that was never written): it must not reach any result. A weight
of 0 does not suffice, since 0 * NaN is NaN, so kernels clear such rows where a tile holds some. Tiles in which every
pair is allowed hold none.
"""

from __future__ import annotations

from attngen.ir.build import TRUE, apply, conjunction, disjunction
from attngen.ir.nodes import Apply, Expr, Literal, Op, Type
from attngen.ir.walk import reads


def keeps_key(mask: Expr) -> Expr | None:
    """The condition on the key alone that `mask` implies; None where there is none, or no key is ever allowed."""
    found = _implied(mask)
    return None if isinstance(found, Literal) else found


def _implied(e: Expr) -> Expr:
    """What `e` implies and no query enters. Each step is a rule of logic: a and b => a' and b', a or b => a' or b'."""
    if not reads(e, "q", "qk"):
        return e
    match e:
        case Apply(op=Op.AND):
            return conjunction(*(_implied(part) for part in e.args))
        case Apply(op=Op.OR):
            return disjunction(*(_implied(part) for part in e.args))
        case Apply(op=Op.SELECT, args=(condition, then, otherwise)):
            cases = (condition, then), (apply(Op.NOT, condition), otherwise)
            return disjunction(*(_implied(conjunction(*case)) for case in cases))
        case Apply(op=Op.LT | Op.LE, args=(a, b)) if a.type is Type.INT:
            return _ordered(e.op, a, b)
        case _:
            return TRUE


def _ordered(op: Op, a: Expr, b: Expr) -> Expr:
    """The same of a comparison of ints: a < min(b, c) is a < b and a < c, and so on."""
    match a, b:
        case Apply(op=Op.MIN | Op.MAX as extreme, args=parts), _:
            found = [_implied(apply(op, part, b)) for part in parts]
            return conjunction(*found) if extreme is Op.MAX else disjunction(*found)
        case _, Apply(op=Op.MIN | Op.MAX as extreme, args=parts):
            found = [_implied(apply(op, a, part)) for part in parts]
            return conjunction(*found) if extreme is Op.MIN else disjunction(*found)
        case _:
            return TRUE
