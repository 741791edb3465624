"""Comparisons of the walked position, gathered: the same pairs, fewer comparisons."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from attngen.ir.build import TRUE, add, apply, conjunction, disjunction, index, integer, minimum, mul, sub
from attngen.ir.nodes import Apply, Expr, Literal, Op, Symbol
from attngen.plan.mask.pair_bound import Bounded, bounded

Q, K, SQ, SK = (index(name) for name in ("q", "k", "Sq", "Sk"))
PLACE = sub(add(Q, SK), SQ)


def value(e: Expr, at: dict[str, int]) -> int:
    match e:
        case Literal():
            return int(e.value)
        case Symbol():
            return at[e.id]
        case Apply():
            a = [value(x, at) for x in e.args]
            match e.op:
                case Op.ADD:
                    return a[0] + a[1]
                case Op.SUB:
                    return a[0] - a[1]
                case Op.MUL:
                    return a[0] * a[1]
                case Op.NEG:
                    return -a[0]
                case Op.MIN:
                    return min(a)
                case Op.MAX:
                    return max(a)
                case Op.LE:
                    return int(a[0] <= a[1])
                case Op.LT:
                    return int(a[0] < a[1])
                case Op.EQ:
                    return int(a[0] == a[1])
                case Op.AND:
                    return int(all(a))
                case Op.OR:
                    return int(any(a))
    raise AssertionError(e)


def comparisons(e: Expr) -> int:
    if not isinstance(e, Apply):
        return 0
    return (e.op in (Op.LE, Op.LT, Op.EQ)) + sum(comparisons(a) for a in e.args)


def among(found: Bounded, position: int, at: dict[str, int]) -> int:
    """The mask as kernels test it: where it is bounded from both sides, by one comparison of 32 bits without a sign."""
    if found.least is None or found.most is None:
        return value(found.mask, at)
    least, count = value(found.least, at), value(found.count, at)
    assert 0 <= count < 2**31
    return int((position - least) % 2**32 < count and value(found.rest, at))


CAUSAL = apply(Op.LE, K, PLACE)
NEAR = apply(Op.LT, sub(PLACE, K), integer(3))
MASKS = {
    "causal": (CAUSAL, 1, True),
    "window": (conjunction(CAUSAL, NEAR), 2, True),
    "band": (conjunction(NEAR, apply(Op.LT, sub(K, PLACE), integer(3))), 2, True),
    "far": (conjunction(NEAR, apply(Op.LE, sub(Q, integer(9)), K)), 1, False),
    "near": (NEAR, 1, False),
    "two ends": (conjunction(CAUSAL, apply(Op.LT, K, sub(SQ, integer(2)))), 1, True),
    "an equality beside": (conjunction(CAUSAL, apply(Op.EQ, K, Q)), 2, True),
    "a union": (disjunction(CAUSAL, NEAR), 2, False),
    "no sum": (apply(Op.LE, mul(K, K), Q), 1, False),
    "twice": (apply(Op.LE, mul(integer(2), K), Q), 1, False),
    "a large constant": (apply(Op.LE, K, add(Q, integer(2**31))), 1, False),
    "everything": (TRUE, 0, False),
}


@pytest.mark.parametrize("axis", ["q", "k"])
@pytest.mark.parametrize("name", MASKS)
def test_the_same_pairs(name: str, axis: str) -> None:
    mask, _, _ = MASKS[name]
    found = bounded(mask, axis)
    ends = found.most is not None
    for sq, sk in ((5, 5), (3, 7), (7, 3), (1, 1)):
        held, walked = (sq, sk + 4) if axis == "k" else (sk, sq + 4)
        for i in range(held):
            for j in range(walked):
                q, k = (i, j) if axis == "k" else (j, i)
                at = {"q": q, "k": k, "Sq": sq, "Sk": sk}
                inside = j < (sk if axis == "k" else sq)
                assert value(found.mask, at) == (value(mask, at) and (inside or not ends)), (at, found)
                assert among(found, j, at) == value(found.mask, at)


@pytest.mark.parametrize("name", MASKS)
def test_few_comparisons(name: str) -> None:
    mask, count, ends = MASKS[name]
    found = bounded(mask, "k")
    assert (comparisons(found.mask), found.most is not None) == (count, ends)


def test_no_bound_of_the_sequence_beside_one_that_lies_inside() -> None:
    """What causal scores compute anyway is enough."""
    assert bounded(CAUSAL, "k") == Bounded(K, None, PLACE, TRUE)
    later = apply(Op.LE, K, add(PLACE, integer(1)))
    assert bounded(later, "k").most == minimum(add(PLACE, integer(1)), sub(SK, integer(1)))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([Op.LE, Op.LT]),
            st.permutations([(Q, 1), (SQ, -1), (SK, 1)]),
            st.integers(-6, 6),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_any_comparisons(conditions: list[tuple[Op, list[tuple[Expr, int]], int, bool]], sq: int, sk: int) -> None:
    parts: list[Expr] = []
    for op, terms, constant, above in conditions:
        total: Expr = integer(constant)
        for term, sign in terms:
            total = add(total, term) if sign > 0 else sub(total, term)
        parts.append(apply(op, K, total) if above else apply(op, total, K))
    mask = conjunction(*parts)
    found = bounded(mask, "k")
    ends = found.most is not None
    for q in range(sq):
        for k in range(sk + 3):
            at = {"q": q, "k": k, "Sq": sq, "Sk": sk}
            assert value(found.mask, at) == (value(mask, at) and (k < sk or not ends))
            assert among(found, k, at) == value(found.mask, at)


LARGEST = 2**27 - 1
TERMS = st.lists(st.tuples(st.sampled_from([Q, SQ, SK]), st.booleans()), min_size=1, max_size=4)
CONSTANTS = st.sampled_from([-(2**28), -5, 0, 2**28 - 1, 2**28])


@given(TERMS, CONSTANTS, TERMS, CONSTANTS, st.sampled_from([1, LARGEST]), st.sampled_from([1, LARGEST]), st.data())
def test_the_largest_sizes_fit_32_bits(
    above: list[tuple[Expr, bool]],
    high: int,
    below: list[tuple[Expr, bool]],
    low: int,
    sq: int,
    sk: int,
    data: st.DataObject,
) -> None:
    bounds: list[Expr] = []
    for terms, constant in ((above, high), (below, low)):
        total: Expr = integer(constant)
        for term, plus in terms:
            total = add(total, term) if plus else sub(total, term)
        bounds.append(total)
    mask = conjunction(apply(Op.LE, K, bounds[0]), apply(Op.LE, bounds[1], K))
    found = bounded(mask, "k")
    q = data.draw(st.sampled_from([0, sq // 2, sq - 1]))
    at = {"q": q, "Sq": sq, "Sk": sk}
    edges = {min(max(value(b, at) + step, 0), sk + 127) for b in bounds for step in (-1, 0, 1)}
    for k in {0, sk - 1, sk, *edges}:
        at["k"] = k
        wanted = value(mask, at) and (k < sk or found.most is None)
        assert among(found, k, at) == wanted
        if found.least is not None:
            assert abs(k - value(found.least, at)) < 2**31
