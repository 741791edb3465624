"""Tile ranges of the prelude's masks and their like, written out."""

from __future__ import annotations

import pytest
from property.kernels import analysed

from attngen.ir import printing
from attngen.plan import plan
from attngen.plan.ints.facts import facts
from attngen.plan.mask.ranges import tile_ranges
from attngen.plan.mask.segments import MOST_SEGMENTS


def segments(mask: str, axis: str = "k", *params: str) -> tuple[list[str], list[str], int]:
    attention = analysed("\n".join(["attention subject", *params, f"mask = {mask}"]))
    found = tile_ranges(attention.mask, axis, facts(attention))

    def text(part: tuple) -> list[str]:
        return [f"{printing.expression(s.lo)} … {printing.expression(s.hi)}" for s in part]

    return text(found.any), text(found.all), len(found.tests)


CASES = {
    ("true", "k"): (["0 … Sk"], ["0 … Sk"], 0),
    ("causal", "k"): (["0 … min(Sk, q1 + Sk - Sq + 1)"], ["0 … min(Sk, q0 + Sk - Sq + 1)"], 0),
    ("causal", "q"): (["max(0, k0 + Sq - Sk) … Sq"], ["max(0, k1 + Sq - Sk) … Sq"], 0),
    ("sliding_window(64)", "k"): (
        ["max(0, q0 + Sk - Sq - 63) … min(Sk, q1 + Sk - Sq + 1)"],
        ["max(0, q1 + Sk - Sq - 63) … min(Sk, q0 + Sk - Sq + 1)"],
        0,
    ),
    ("sliding_window(64)", "q"): (
        ["max(0, k0 + Sq - Sk) … min(Sq, Sq + k1 - Sk + 63 + 1)"],
        ["max(0, k1 + Sq - Sk) … min(Sq, Sq + k0 - Sk + 63 + 1)"],
        0,
    ),
    ("prefix_lm(n)", "k", "param n: int"): (
        ["0 … min(Sk, q1 + Sk - Sq + 1)", "0 … min(Sk, n)"],
        ["0 … min(Sk, q0 + Sk - Sq + 1)", "0 … min(Sk, n)"],
        0,
    ),
    ("prefix_lm(n)", "q", "param n: int"): (
        ["max(0, k0 + Sq - Sk) … Sq", "0 … min(Sq, Sq if k0 - n < 0 else 0)"],
        ["max(0, k1 + Sq - Sk) … Sq", "0 … min(Sq, Sq if k1 - n < 0 else 0)"],
        0,
    ),
    # A window that a condition chooses: tight where the condition is the same all over the tile.
    ("q - k < (16 if q < 10 else 64)", "k"): (
        ["max(0, q0 - (16 if q1 - 10 < 0 else 64) + 1) … Sk"],
        ["max(0, q1 - (16 if q1 - 10 < 0 else 16 if q0 - 10 < 0 else 64) + 1) … Sk"],
        0,
    ),
    ("q - k < (16 if q < 10 else 64)", "q"): (
        ["0 … min(min(10, Sq), k1 + 15 + 1)", "10 … min(Sq, k1 + 63 + 1)"],
        ["0 … min(min(10, Sq), k0 + 15 + 1)", "10 … min(Sq, k0 + 63 + 1)"],
        0,
    ),
    ("q - k < (16 if k < 10 else 64)", "q"): (
        ["0 … min(Sq, k1 + (16 if k1 - 10 < 0 else 64))"],
        ["0 … min(Sq, k0 + (16 if k1 - 10 < 0 else 16 if k0 - 10 < 0 else 64))"],
        0,
    ),
    ("chunked(c)", "k", "param c: int where c >= 1"): (
        ["max(0, (q0 + Sk - Sq) // c * c) … min(min(Sk, q1 + Sk - Sq + 1), (q1 + Sk - Sq) // c * c + c)"],
        ["max(0, (q1 + Sk - Sq) // c * c) … min(min(Sk, q0 + Sk - Sq + 1), (q0 + Sk - Sq) // c * c + c)"],
        0,
    ),
    ("chunked(c)", "q", "param c: int where c >= 1"): (
        ["max(max(0, k0 + Sq - Sk), k0 // c * c + Sq - Sk) … min(Sq, Sq + k1 // c * c + c - Sk)"],
        ["max(max(0, k1 + Sq - Sk), k1 // c * c + Sq - Sk) … min(Sq, Sq + k0 // c * c + c - Sk)"],
        0,
    ),
    ("dilated(3)", "k"): (["0 … Sk"], [], 0),
    ("causal and dilated(3)", "k"): (["0 … min(Sk, q1 + Sk - Sq + 1)"], [], 0),
    ("same_document(ids)", "k", "param ids: int[B, Sk]"): (
        ["max(0, test0_any_lo) … min(Sk, test0_any_hi)"],
        ["max(0, test0_all_lo) … min(Sk, test0_all_hi)"],
        1,
    ),
    ("same_document(ids)", "q", "param ids: int[B, Sk]"): (
        ["max(0, test0_any_lo) … min(Sq, test0_any_hi)"],
        ["max(0, test0_all_lo) … min(Sq, test0_all_hi)"],
        1,
    ),
    ("k < lengths[b]", "k", "param lengths: int[B]"): (
        ["0 … min(Sk, lengths[b])"],
        ["0 … min(Sk, lengths[b])"],
        0,
    ),
    ("k < lengths[b]", "q", "param lengths: int[B]"): (
        ["0 … min(Sq, Sq if k0 - lengths[b] < 0 else 0)"],
        ["0 … min(Sq, Sq if k1 - lengths[b] < 0 else 0)"],
        0,
    ),
    ("not causal", "k"): (["max(0, q0 + Sk - Sq + 1) … Sk"], ["max(0, q1 + Sk - Sq + 1) … Sk"], 0),
    ("abs(q - k) <= 8", "k"): (["max(0, q0 - 8) … min(Sk, q1 + 8 + 1)"], ["max(0, q1 - 8) … min(Sk, q0 + 8 + 1)"], 0),
    ("abs(q - k) > 8", "k"): (
        ["0 … min(Sk, q1 - 9 + 1)", "max(0, q0 + 9) … Sk"],
        ["0 … min(Sk, q0 - 9 + 1)", "max(0, q1 + 9) … Sk"],
        0,
    ),
    ("q < 4", "k"): (["0 … min(Sk, Sk if q0 - 4 < 0 else 0)"], ["0 … min(Sk, Sk if q1 - 4 < 0 else 0)"], 0),
    ("q < 4", "q"): (["0 … min(4, Sq)"], ["0 … min(4, Sq)"], 0),
    ("h == 0", "k"): (["0 … min(Sk, Sk if h == 0 else 0)"], ["0 … min(Sk, Sk if h == 0 else 0)"], 0),
    ("2 * k <= 3 * q", "k"): (["0 … min(Sk, q1 * 3 // 2 + 1)"], ["0 … min(Sk, q0 * 3 // 2 + 1)"], 0),
    ("valid[b, k]", "k", "param valid: bool[B, Sk]"): (
        ["max(0, test0_any_lo) … min(Sk, test0_any_hi)"],
        ["max(0, test0_all_lo) … min(Sk, test0_all_hi)"],
        1,
    ),
    ("not valid[b, k]", "q", "param valid: bool[B, Sk]"): (
        ["max(0, test0_any_lo) … min(Sq, test0_any_hi)"],
        ["max(0, test0_all_lo) … min(Sq, test0_all_hi)"],
        1,
    ),
    ("k <= q if h == 0 else k >= q", "k"): (
        ["0 … min(min(Sk, Sk if h == 0 else 0), q1 + 1)", "max(0, q0) … min(Sk, Sk if h != 0 else 0)"],
        ["0 … min(min(Sk, Sk if h == 0 else 0), q0 + 1)", "max(0, q1) … min(Sk, Sk if h != 0 else 0)"],
        0,
    ),
    ("sliding_window(w) or k < 4", "k", "param w: int"): (
        ["max(0, q0 + Sk - Sq - w + 1) … min(Sk, q1 + Sk - Sq + 1)", "0 … min(4, Sk)"],
        ["max(0, q1 + Sk - Sq - w + 1) … min(Sk, q0 + Sk - Sq + 1)", "0 … min(4, Sk)"],
        0,
    ),
}


@pytest.mark.parametrize("key", CASES, ids=" | ".join)
def test_segments(key: tuple[str, ...]) -> None:
    mask, axis, *params = key
    assert segments(mask, axis, *params) == CASES[key]


@pytest.mark.parametrize(
    ("param", "mask"),
    [
        ("seen: bool[Sq, Sk]", "seen[q, k]"),
        ("seen: bool[Sq, Sk]", "not seen[q, k]"),
        ("seen: bool[Sq, Sk]", "seen[q, max(k - 1, 0)]"),
        ("seen: bool[n]", "seen[q - k]"),
    ],
)
def test_elements_of_pairs_make_no_data_tests(param: str, mask: str) -> None:
    planned = plan(analysed(f"attention subject\nparam {param}\nmask = {mask}"))
    assert not planned.keys.tests and not planned.queries.tests and planned.map is not None


def test_nothing_is_never_visited() -> None:
    assert segments("false") == ([], [], 0)
    assert segments("q < q") == ([], [], 0)


def test_what_cannot_be_solved_is_visited_and_masked() -> None:
    for mask in ("k % 2 == 0", "sin(q * k) > 0", "q * k < 30", "k ** 2 <= q"):
        some, every, tests = segments(mask)
        assert some == ["0 … Sk"] and every == [] and tests in (0, 1), mask


def test_at_most_four_stretches() -> None:
    mask = " or ".join(f"k == q + {10 * i}" for i in range(MOST_SEGMENTS + 2))
    some, _, _ = segments(mask)
    assert len(some) < MOST_SEGMENTS  # their hull, and what came after it
    some, _, _ = segments(" or ".join(f"k == q + {10 * i}" for i in range(MOST_SEGMENTS)))
    assert len(some) == MOST_SEGMENTS


def test_scores_and_infinities_make_no_data_tests() -> None:
    attention = analysed(
        "attention subject\nparam r: f32[B, Sq]\nparam c: f32[B, Sk]\n"
        "score = qk if q % 3 != 0 else r[b, q] + c[b, k] if q < k else -inf\nnormalizer = sigmoid"
    )
    planned = plan(attention)
    assert planned.keys.tests == planned.queries.tests == ()
    assert segments("-inf < r[b, q] + c[b, k]", "k", "param r: f32[B, Sq]", "param c: f32[B, Sk]")[2] == 0
