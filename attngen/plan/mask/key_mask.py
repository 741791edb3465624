"""What the mask asks of a key alone: a length, a padding mask.

Takes a mask, returns the condition that every key of an allowed pair meets, whichever the query. A row of K or V that
breaks it may hold anything, NaN included (a cache row that was never written): it must not reach any result. A weight
of 0 does not suffice, since 0 * NaN is NaN, so kernels clear such rows where a tile holds some. Tiles in which every
pair is allowed hold none.
"""

from __future__ import annotations

from attngen.ir.build import TRUE, conjunction, disjunction
from attngen.ir.nodes import Apply, Expr, Literal, Op
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
        case _:
            return TRUE
