"""What a mask asks of the position that a kernel walks, as one bound from each side.

A mask is tested for every pair of a tile. `k <= q`, `q - k < 1024` and `k < Sk` are three comparisons of a pair; with
`k <= min(q, Sk - 1)` and `k >= q - 1023`, whose right sides a row has once, they are two; and with the number of keys
between these one, of k's distance from the first as a number without a sign.
Takes a mask and the axis that is walked, returns a `Bounded`, which allows the same pairs inside the tensor.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from attngen.ir.build import add, apply, conjunction, index, integer, maximum, minimum, sub
from attngen.ir.nodes import Apply, Expr, Op, Symbol, Type
from attngen.ir.walk import named
from attngen.plan.ints.linear import from_linear, linear

_MOST_TERMS, _MOST_CONSTANT = 4, 2**28
"""Positions and sizes are below 2**27 (width.py): a sum of so many and such a constant, and the difference of two, fit
32 bits."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """The walked position is at least `least` and at most `most`, where they are not None, and `rest` is true. `most`
    ends inside the tensor for held positions inside it. For those beyond nothing is said: kernels that sum over these
    leave them out.
    """

    walked: Expr
    least: Expr | None
    most: Expr | None
    rest: Expr

    @property
    def mask(self) -> Expr:
        bounds = [apply(Op.LE, self.walked, self.most)] if self.most is not None else []
        if self.least is not None:
            bounds.append(apply(Op.LE, self.least, self.walked))
        return conjunction(*bounds, self.rest)

    @property
    def count(self) -> Expr:
        """How many positions lie between both bounds."""
        assert self.least is not None and self.most is not None
        count = add(sub(self.most, self.least), integer(1))
        terms, constant = linear(count)
        return named(maximum(count, integer(0)), "n_allowed") if terms else integer(max(constant, 0))


def bounded(mask: Expr, axis: str) -> Bounded:
    """The mask with its comparisons of `axis` ("q" or "k") with sums of positions and sizes gathered."""
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
        return Bounded(walked, None, None, mask)
    last = sub(index("Sk" if axis == "k" else "Sq"), integer(1))
    if above and not any(_ends_inside(bound, last, "q" if axis == "k" else "k") for bound in above):
        above.append(last)
    most = functools.reduce(minimum, above) if above else None
    least = named(functools.reduce(maximum, below), "least_allowed") if below else None
    return Bounded(walked, least, most, conjunction(*rest))


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
