"""What the extremes of two tiles say of a mask (`plan.mask.holes`), beside every pair; and edits of it, which the
prover refuses wherever pairs contradict them."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from mutation.edits import edits, replaced
from property.drawn import ATOMS, mask_values, spec
from property.kernels import analysed

from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.plan.ints.facts import facts
from attngen.plan.mask.holes import TileTest, tile_test
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Holds
from attngen.prove.obligations.tile_tests import mixed_answer, test_answer as answer_of

SIZES = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 37, "Sk": 43, "D": 16, "Dv": 16}
WHOLE = [
    a
    for a in ATOMS
    if not any(name in a for name in ("t[b", "col[", "named["))  # floats have none; bools of pairs have words
]
MORE = [
    "abs(ids[b, q] - ids[b, k]) <= 1", "(q - k) % 4 == 0", "(q + 2 * k) // 8 % 3 == 1", "-(ids[b, k]) < q - 9",
    "max(q, 7) < min(k, 30)", "(ids[b, k] if q < 9 else k) < 5", "k // 5 in lists[b, hkv, q // 20]",
    "not (ids[b, q] == ids[b, k] and k % 2 == 0)", "abs(q // 8 - k // 8) <= 1 and abs(q % 8 - k % 8) <= 2",
]  # fmt: skip
LOADS = {"ids[b, q]": "min(q, Sk - 1)"}


def attention_of(mask: str) -> Attention:
    return analysed(spec(f"mask = {mask.replace('ids[b, q]', 'ids[b, min(q, Sk - 1)]')}"))


def draw(attention: Attention, seed: int) -> dict[str, Any]:
    known = {p.name for p in attention.params}
    return {n: x for n, x in mask_values(SIZES, seed).items() if n in known}


def wrong(attention: Attention, test: TileTest, params: dict[str, Any], tiles: tuple[int, int]) -> str:
    """The first pair of tiles of which the test says what a pair of theirs contradicts; empty if there is none."""
    q, k = np.arange(SIZES["Sq"]), np.arange(SIZES["Sk"])
    sizes = {**SIZES, **{n: int(np.shape(params["lists"])[-1]) for n in attention.sizes}}
    for b, h in ((0, 0), (1, 3)):
        env: dict[str, Any] = {**sizes, "b": b, "h": h, "hkv": h // 2, "q": q[:, None], "k": k[None, :]}
        mask = np.broadcast_to(evaluate(attention.mask, env, params), (q.size, k.size))
        values = {p.name: np.broadcast_to(evaluate(p.value, env, params), mask.shape) for p in test.parts}
        for q0 in range(0, q.size, tiles[0]):
            for k0 in range(0, k.size, tiles[1]):
                there = np.s_[q0 : q0 + tiles[0], k0 : k0 + tiles[1]]
                ends = {f"{n}_least": x[there].min() for n, x in values.items()}
                ends |= {f"{n}_most": x[there].max() for n, x in values.items()}
                can, must, mixed = (
                    bool(evaluate(e, {**env, "q": q0, "k": k0, **ends}, params))
                    for e in (test.can, test.must, test.mixed)
                )
                some, every = mask[there].any(), mask[there].all()
                if (some and not can) or (must and not every) or (mixed and (every or not some)):
                    return f"queries from {q0}, keys from {k0}, batch {b}, head {h}: {can}, {must}, {mixed}"
    return ""


def found_test(attention: Attention) -> TileTest:
    found = tile_test(attention.mask, facts(attention))
    assert found is not None
    return found


def proved(attention: Attention, test: TileTest) -> bool:
    return all(isinstance(answer(attention, test, Work()), Holds) for answer in (answer_of, mixed_answer))


PAIRS = [
    f"({a}) {word} ({b})" for (a, b), word in zip(combinations([*WHOLE, *MORE], 2), ("and", "or") * 999, strict=False)
]


@pytest.mark.parametrize("mask", [*WHOLE, *MORE])
def test_no_pair_contradicts_the_extremes(mask: str) -> None:
    attention = attention_of(mask)
    for seed in range(3):
        for tiles in ((8, 8), (5, 16), (16, 3)):
            assert not wrong(attention, found_test(attention), draw(attention, seed), tiles)


@pytest.mark.parametrize("part", range(8))
def test_no_pair_contradicts_joined_masks(part: int, pytestconfig: pytest.Config) -> None:
    for number, mask in enumerate(PAIRS[part::8][: max(4, pytestconfig.getoption("draws") // 8)]):
        attention = attention_of(mask)
        assert not wrong(attention, found_test(attention), draw(attention, number), (8, 8)), mask


@pytest.mark.parametrize("mask", MORE)
def test_it_is_proved(mask: str) -> None:
    attention = attention_of(mask)
    assert proved(attention, found_test(attention))


EDITED = [
    "abs(ids[b, q] - ids[b, k]) <= 1", "(q - k) % 4 == 0", "ids[b, q] <= ids[b, k]",
    "ids[b, q] <= ids[b, k] and k <= q", "ids[b, q] == ids[b, k] or q < k",
]  # fmt: skip


@pytest.mark.parametrize("mask", EDITED)
def test_edits_that_pairs_contradict_are_not_proved(mask: str) -> None:
    attention = attention_of(mask)
    test = found_test(attention)
    pairs = tuple((f"test{i}_least", f"test{i}_most") for i in range(len(test.parts)))
    seen = 0

    def edited(e: Expr) -> list[Expr]:
        return [x for _, x in edits(e)] + [x for _, x in replaced(e, pairs)]

    def some(found: list[Expr]) -> list[Expr]:
        return found[:: max(1, len(found) // 20)]

    params = draw(attention, 0)
    changes = (
        *(replace(test, can=e) for e in some(edited(test.can))),
        *(replace(test, must=e) for e in some(edited(test.must))),
        *(replace(test, mixed=e) for e in some(edited(test.mixed))),
    )
    for changed in changes:
        if wrong(attention, changed, params, (8, 8)) or wrong(attention, changed, params, (2, 11)):
            seen += 1
            assert not proved(attention, changed)
    assert seen >= 3
