"""Masks that hold however a chip rounds, and masks that may: of each formula, whatever its varying comparisons say."""

from __future__ import annotations

from itertools import product

import pytest

from attngen.ir import build
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Apply, Expr, Op, Scalar, Type
from attngen.ir.rounded import bounds, varies
from attngen.ir.walk import nodes, substitute

X, Y = (Scalar(name, Type.FLOAT) for name in "xy")
A, B = (Scalar(name, Type.BOOL) for name in "ab")


def test_what_every_chip_computes_alike() -> None:
    product = build.mul(X, Y)
    for exact in (X, build.add(X, Y), product, build.apply(Op.ABS, build.sub(X, Y)), build.apply(Op.MAX, product, Y)):
        assert not varies(exact)
    for free in (build.add(product, X), build.sub(X, build.apply(Op.NEG, product)), build.apply(Op.DIV, X, Y)):
        assert varies(free)
    assert varies(build.apply(Op.TO_INT, build.apply(Op.EXP, X)))


V, W = (build.apply(Op.LT, build.apply(op, X), Y) for op in (Op.EXP, Op.LOG))
"""Comparisons that may turn out either way."""


@pytest.mark.parametrize(
    "mask",
    [
        V,
        build.apply(Op.AND, A, V),
        build.apply(Op.OR, A, build.apply(Op.NOT, V)),
        build.apply(Op.SELECT, V, A, B),
        build.apply(Op.SELECT, A, V, build.apply(Op.NOT, W)),
        build.apply(Op.EQ, V, A),
        build.apply(Op.NE, build.apply(Op.AND, V, A), W),
        build.apply(Op.NOT, build.apply(Op.OR, build.apply(Op.AND, V, B), build.apply(Op.AND, W, A))),
    ],
)
def test_bounds_are_those_of_all_ways_to_round(mask: Expr) -> None:
    certain, possible = bounds(mask)
    assert not any(isinstance(n, Apply) and n.op in (Op.EXP, Op.LOG) for e in (certain, possible) for n in nodes(e))
    for a, b in product((False, True), repeat=2):
        ways = {
            bool(evaluate(substitute(mask, {V: build.literal(v), W: build.literal(w)}), {}, {"a": a, "b": b}))
            for v, w in product((False, True), repeat=2)
        }
        least, most = (bool(evaluate(e, {}, {"a": a, "b": b})) for e in (certain, possible))
        assert least <= min(ways) and max(ways) <= most
        assert (least, most) == (min(ways), max(ways)) or mask.op in (Op.EQ, Op.NE)  # where V stands twice
