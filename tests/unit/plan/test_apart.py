"""Comparisons with their sides apart (`plan.mask.apart`): the same pairs. Sums that stay at the end of a tensor's dtype
(`plan.ints.clipping`): the same comparisons, of the least and greatest ints too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from mutation.edits import edits
from property.kernels import analysed

import attngen
from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Apply, Expr, Op
from attngen.ir.walk import nodes, substitute
from attngen.plan import plan
from attngen.plan.ints.clipping import clipped, clipped_at
from attngen.plan.levels import Level, level_of
from attngen.plan.mask.apart import apart, separations
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Holds
from attngen.prove.obligations import tile_tests
from attngen.prove.obligations.integer_width import integer_width
from attngen.prove.obligations.tile_tests import apart_answer
from attngen.prove.verdict import Proved

COMPARISONS = [
    "abs(x[q] - x[k]) <= 2", "abs(x[k] - x[q]) < 2", "3 <= abs(x[q] - x[k])", "1 < abs(x[k] - y[q])",
    "x[q] - x[k] <= 2", "x[k] - x[q] < 2", "-1 <= x[q] - y[k]", "2 < x[k] - x[q]", "x[q] - x[k] == 1",
    "x[k] - x[q] != 2", "not (abs(x[q] - x[k]) <= 1 and y[q] == y[k])", "abs(q // 3 - k // 3) <= 1",
    "abs(x[q] - x[k]) <= -1", "abs(x[q] * y[q] - x[k]) <= 2 or k <= q",
]  # fmt: skip
S = 24


def attention_of(mask: str) -> Attention:
    params = "".join(f"param {name}: int[Sk]\n" for name in "xy" if f"{name}[" in mask)
    return analysed(f"attention made\n{params}mask = {mask}\nassume Sq == Sk\n")


def pairs(attention: Attention, mask: Expr) -> np.ndarray:
    generator = np.random.default_rng(0)
    params: dict[str, Any] = {p.name: generator.integers(-3, 4, S) for p in attention.params}
    at = {"q": np.arange(S)[:, None], "k": np.arange(S)[None, :], "Sq": S, "Sk": S}
    return np.broadcast_to(evaluate(mask, at, params), (S, S))


@pytest.mark.parametrize("held", [Level.ROW, Level.COLUMN])
@pytest.mark.parametrize("mask", COMPARISONS)
def test_the_same_pairs_are_allowed(mask: str, held: Level) -> None:
    attention = attention_of(mask)
    found = apart(attention.mask, held)
    assert found != attention.mask
    assert (pairs(attention, found) == pairs(attention, attention.mask)).all()
    assert isinstance(apart_answer(attention.mask, Work()), Holds)
    sums = (n for n in nodes(found) if isinstance(n, Apply) and n.op in (Op.ADD, Op.SUB))
    assert all(level_of(n) is held for n in sums)


@pytest.mark.parametrize(
    "mask", ["k <= q", "x[q] == x[k]", "x[q] <= x[k]", "abs(x[q] - x[k]) == 2", "x[q] - x[k] < y[q]"]
)
def test_other_comparisons_stay(mask: str) -> None:
    attention = attention_of(mask)
    assert apart(attention.mask, Level.ROW) is attention.mask


def test_edits_of_what_is_apart_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = attention_of("abs(q - k) <= 2").mask
    (right,) = separations(mask, Level.ROW)
    wrong = [e for _, e in edits(right.apart) if e != right.apart]
    assert len(wrong) >= 6
    for e in wrong:
        monkeypatch.setattr(tile_tests, "separations", lambda *_, e=e: (replace(right, apart=e),))
        assert not isinstance(apart_answer(mask, Work()), Holds), e


def test_who_is_clipped() -> None:
    def of(mask: str) -> tuple[str, ...]:
        return tuple(e.op.name for e in plan(attention_of(mask)).choices.clipped)

    assert of("abs(x[q] - x[k]) <= 2") == ("SUB", "ADD", "SUB", "ADD")
    assert of("abs(x[q] - y[k]) <= 2") == ()  # whose dtypes may differ
    assert of("3 <= abs(x[q] - x[k])") == ()  # x[k] <= x[q] - 3 holds at the least int, were it clipped
    found = apart(attention_of("abs(x[q] - x[k]) <= 2").mask, Level.ROW)
    below = next(e for e in clipped([found]) if e.op is Op.SUB)
    assert below not in clipped([found, Apply(Op.ABS, (below,), below.type)])  # which is read elsewhere, too


def test_clipping_the_wrong_way_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(attention_of("abs(x[q] - x[k]) <= 2"))

    def told() -> list[bool]:
        claims = integer_width(made, Work())
        return [isinstance(c.verdict, Proved) for c in claims if c.subject == "ends of dtypes"]

    assert told() == [True]

    def turned(e: Apply, bits: int) -> Expr:
        op = Op.ADD if e.op is Op.SUB else Op.SUB
        return substitute(clipped_at(e, bits), {e.args[1]: Apply(op, e.args, e.type)})

    monkeypatch.setattr("attngen.prove.obligations.integer_width.clipped_at", turned)
    assert told() == [False]


@pytest.mark.skipif(torch.cuda.is_available(), reason="by Triton's interpreter; tests/gpu has the card's")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ends_of_dtypes(dtype: torch.dtype) -> None:
    kernel = attngen.compile("attention near\nparam x: int[Sk]\nmask = abs(x[q] - x[k]) <= 8\nassume Sq == Sk\n")
    least, most = -(2**31), 2**31 - 1
    x = torch.tensor([least, least + 3, least + 8, least + 9, most, most - 8, most - 9, 0, 5] * 4, dtype=dtype)
    q, k, v = (torch.randn(1, 2, len(x), 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
    near = (x[:, None].long() - x.long()).abs() <= 8
    expected = torch.softmax((q @ k.mT / 4).masked_fill(~near, -torch.inf), -1) @ v
    torch.testing.assert_close(kernel(q, k, v, x=x), expected, rtol=1e-4, atol=1e-5)
