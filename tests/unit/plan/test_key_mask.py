"""The condition on the key alone that a mask implies."""

from __future__ import annotations

import pytest
from property.kernels import analysed

from attngen.ir.printing import expression
from attngen.plan import plan
from attngen.plan.printing import plan_text

PARAMS = "param n: int[B]\nparam keep: bool[Hq, Sk]\nparam ids: int[B, Sk]\nparam on: bool\n"


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ("k < n[b]", "k < n[b]"),
        ("causal and k < n[b]", "k < n[b]"),
        ("k < 100 and keep[h, k] and sliding_window(8)", "k < 100 and keep[h, k]"),
        ("same_document(ids) and 0 <= ids[b, k]", "0 <= ids[b, k]"),
        ("(causal and k < n[b]) or (k < 4 and q > 7)", "k < n[b] or k < 4"),
        ("not (k >= n[b] or q < k)", "k < n[b]"),
        ("on and causal", "on"),
        ("causal if keep[h, k] else false", "keep[h, k]"),
        ("keep[h, k] if causal else false", "keep[h, k]"),
        ("(keep[h, k] and q < 9) if k > q else (keep[h, k] and causal)", "keep[h, k]"),
        ("k < n[b] if q < 20 else k < n[b] - 1", "k < n[b] or k < n[b] - 1"),
        ("k < min(n[b], q + 1)", "k < n[b]"),
        ("k <= min(q, n[b] - 1)", "k <= n[b] - 1"),
        ("max(k, q) < n[b]", "k < n[b]"),
        ("max(k, q) < min(n[b], q + 9)", "k < n[b]"),
        ("min(k, q) < n[b]", None),
        ("k < max(n[b], q)", None),
        ("not (k >= min(n[b], q))", "k < n[b]"),
        ("causal", None),
        ("k < n[b] or causal", None),
        ("k + q < n[b]", None),
        ("true", None),
        ("false", None),
    ],
)
def test_what_a_mask_asks_of_a_key(mask: str, found: str | None) -> None:
    kept = plan(analysed(f"attention subject\n{PARAMS}mask = {mask}\n")).keeps_key
    assert (None if kept is None else expression(kept)) == found


def test_the_plan_prints_it() -> None:
    made = plan(analysed(f"attention subject\n{PARAMS}mask = causal and k < n[b]\n"))
    assert "asked of a key alone: rows of K and V that break it reach nothing\n    k < n[b]\n" in plan_text(made)


def test_heads_that_differ_in_it_keep_their_rows_apart() -> None:
    made = plan(analysed(f"attention subject\n{PARAMS}mask = keep[h, k]\n"))
    assert made.gpu_walks is not None
    assert made.gpu_walks.split is not None and not made.gpu_walks.split.packed
