"""What a mask asks of the position that a kernel walks, as one bound from each side.

A mask is tested for every pair of a tile. `k <= q`, `q - k < 1024` and `k < Sk` are three comparisons of a pair; with
`k <= min(q, Sk - 1)` and `k >= q - 1023`, whose right sides a row has once, they are two.
Takes a mask and the axis that is walked, gives a mask that allows the same pairs inside the tensor.
"""

from __future__ import annotations

from attngen.ir.build import add, apply, conjunction, index, integer, maximum, minimum, sub
from attngen.ir.nodes import Apply, Expr, Op, Symbol, Type
from attngen.plan.linear import from_linear, linear

_MOST_TERMS, _MOST_CONSTANT = 4, 2**30
"""Positions and sizes are below 2**27 (width.py): a sum of so many, and such a constant, fits 32 bits."""


def bounded(mask: Expr, axis: str) -> tuple[Expr, bool]:
    """The mask with its comparisons of `axis` ("q" or "k") with sums of positions and sizes gathered, and whether the
    end of the sequence is now among them: where another bound from above is. What it allows for held positions beyond
    the tensor is not said: kernels that sum over these leave them out.
    """
    walked = index(axis)
    above: list[Expr] = []
    below: list[Expr] = []
    rest: list[Expr] = []
    for condition in mask.args if isinstance(mask, Apply) and mask.op is Op.AND else (mask,):
        bound = _bound(condition, walked)
        if bound is None:
            rest.append(condition)
        else:
            (above if bound[1] else below).append(bound[0])
    if not above and len(below) < 2:
        return mask, False
    gathered: list[Expr] = []
    if above:
        last = sub(index("Sk" if axis == "k" else "Sq"), integer(1))
        most = above[0]
        for bound in above[1:]:
            most = minimum(most, bound)
        if not any(_ends_inside(bound, last, "q" if axis == "k" else "k") for bound in above):
            most = minimum(most, last)
        gathered.append(apply(Op.LE, walked, most))
    if below:
        least = below[0]
        for bound in below[1:]:
            least = maximum(least, bound)
        gathered.append(apply(Op.LE, least, walked))
    return conjunction(*gathered, *rest), bool(above)


def _ends_inside(bound: Expr, last: Expr, held: str) -> bool:
    """Whether `bound` is at most `last` for every position of the held axis inside the tensor."""
    size = index("Sq" if held == "q" else "Sk")
    terms, constant = linear(sub(bound, last))
    factors = dict(terms)
    if factors.pop(index(held), 0) != 1:
        return False
    beyond = dict(linear(add(size, from_linear(list(factors.items()), 0)))[0])
    return not beyond and constant - 1 <= 0


def _bound(condition: Expr, walked: Expr) -> tuple[Expr, bool] | None:
    """The greatest value of `walked` that a comparison allows, and True, or the least, and False."""
    if not (isinstance(condition, Apply) and condition.op in (Op.LE, Op.LT) and condition.args[0].type is Type.INT):
        return None
    difference = sub(*condition.args)  # at most 0
    terms, constant = linear(add(difference, integer(1)) if condition.op is Op.LT else difference)
    factors = dict(terms)
    factor = factors.pop(walked, 0)
    plain = all(isinstance(t, Symbol) and abs(c) == 1 for t, c in factors.items())
    if abs(factor) != 1 or not plain or len(factors) > _MOST_TERMS or abs(constant) > _MOST_CONSTANT:
        return None
    return from_linear([(t, -factor * c) for t, c in factors.items()], -factor * constant), factor > 0
