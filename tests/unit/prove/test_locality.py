"""Locality: what a pair's logit reads, and at which level its parts are computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from property.kernels import analysed

from attngen.ir.attention import Attention, Origin
from attngen.ir.build import add, apply, index, mul, neg, real
from attngen.ir.nodes import Expr, Load, Op, Symbol, Type
from attngen.plan import KernelPlan, plan
from attngen.plan.levels import Binding, Level, Schedule, schedule
from attngen.prove.obligations.locality import locality
from attngen.prove.verdict import Claim, Proved, Refuted

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))
TEXT = """attention subject
param slope: f32[Hq]
param row: f32[B, Sq]
param bias: f32[n, m]
param p: f32 where 0 <= p < 1
score = softcap(qk * scale, 30) + slope[h] * exp(row[b, q]) * log(1 + k) + bias[q, k]
normalizer = softmax(sink = slope[h])
dropout = p
"""
SHIFTED = """attention subject
param slope: f32[Hq]
normalizer own(a) {
    weight(s) = (1 + (a * s) ** 2) * exp(s)
    denominator = sum
    shift = max
    weight(s, m) = (1 + (a * s) ** 2) * exp(s - m)
    rescale(m, n) = exp(m - n)
}
normalizer = own(a = slope[h])
"""


def planned(text: str) -> tuple[Attention, KernelPlan]:
    attention = analysed(text)
    return attention, plan(attention)


def refuted(claims: tuple[Claim, ...]) -> dict[str, Refuted]:
    assert all(isinstance(c.verdict, Proved | Refuted) for c in claims)
    return {c.subject: c.verdict for c in claims if isinstance(c.verdict, Refuted)}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_is_proved(path: Path) -> None:
    assert not refuted(locality(*planned(path.read_text())))


@pytest.mark.parametrize("text", [TEXT, SHIFTED], ids=["exponential", "shifted"])
def test_sizes_may_be_renamed(text: str) -> None:
    claims = locality(*planned(text))
    assert not refuted(claims)
    assert ("dropout" in {c.subject for c in claims}) == ("dropout" in text)


def flt(name: str) -> Symbol:
    return Symbol(name, Type.FLOAT)


WEIGHTS: dict[str, tuple[str, str, Expr]] = {
    "the logit reads the maximum": ("unit", "logit", add(flt("qk"), flt("m"))),
    "the logit reads another reference": ("unit", "logit", mul(flt("qk"), flt("n"))),
    "the logit reads a row's sum": ("unit", "logit", apply(Op.DIV, flt("qk"), flt("row_sum"))),
    "the logit reads the key's tile": ("unit", "logit", add(flt("qk"), apply(Op.TO_FLOAT, index("k0")))),
    "a factor of the row": ("factor", "factor", Load("row", (index("b"), index("q")), Type.FLOAT)),
    "a factor of the pair": ("factor", "factor", flt("qk")),
    "kappa of the column": ("kappa", "factor", apply(Op.TO_FLOAT, index("k"))),
    "a weight of the position": ("stream", "weight", mul(flt("s"), apply(Op.TO_FLOAT, index("q")))),
    "a weight of another reference": ("stream", "weight", mul(flt("s"), flt("n"))),
    "an extra term of the row": ("log_extra", "extra term", apply(Op.TO_FLOAT, index("q"))),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_a_part_may_not_read(name: str) -> None:
    field, subject, wrong = WEIGHTS[name]
    attention, p = planned(TEXT)
    found = refuted(locality(attention, replace(p, weights=replace(p.weights, **{field: wrong}))))
    assert subject in found
    assert "reads" in found[subject].example[0]


def test_the_derivatives_factor_is_one_a_head() -> None:
    attention, p = planned(TEXT)
    assert list(refuted(locality(attention, replace(p, d_factor=flt("qk"))))) == ["factor"]


@pytest.mark.parametrize("part", ["score", "dropout", "params", "normalizer", "origin"])
def test_a_plan_of_another_attention_is_refuted(part: str) -> None:
    attention, p = planned(TEXT)
    n = p.attention.normalizer
    wrong = {
        "score": mul(flt("qk"), real(2.0)),
        "dropout": real(0.5),
        "params": p.attention.params[1:],
        "normalizer": replace(n, weight=apply(Op.EXP2, flt("s"))),
        "origin": Origin(q=index("Sk")),
    }[part]
    mutant = replace(p, attention=replace(p.attention, **{part: wrong}))
    assert "the plan's attention" in refuted(locality(attention, mutant))


@pytest.mark.parametrize("of", ["k", "q", "h", "b"])
def test_what_dropout_counts_from_is_the_same_for_all_pairs(of: str) -> None:
    attention, p = planned(TEXT)
    for wrong in (neg(index("k")), index("q"), index("h")):
        origin = Origin(**{of: wrong})
        mutant = replace(p, attention=replace(p.attention, origin=origin))
        found = refuted(locality(replace(attention, origin=origin), mutant))
        assert list(found) == ["dropout's counter"]
        assert "reads" in found["dropout's counter"].example[0]


def test_a_mask_that_reads_the_maximum_is_refuted() -> None:
    attention, p = planned(TEXT)
    mutant = replace(p, attention=replace(p.attention, mask=apply(Op.LT, flt("m"), flt("qk"))))
    assert list(refuted(locality(attention, mutant))) == ["mask"]


@pytest.mark.parametrize(
    ("level", "read"),
    [(Level.HEAD, "q"), (Level.HEAD, "k"), (Level.HEAD, "qk"), (Level.ROW, "k"), (Level.COLUMN, "q"), (Level.ROW, "x")],
)
def test_a_binding_above_its_level_is_refuted(level: Level, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the planner hoisted what it must not."""
    symbol = index(read) if read in ("q", "k") else flt(read)
    hoisted = Binding("term", mul(add(symbol, symbol), symbol), level)

    def wrong(results: dict[str, Expr]) -> Schedule:
        found = schedule(results)
        return Schedule((*found.bindings, hoisted), found.results)

    monkeypatch.setattr("attngen.prove.obligations.locality.schedule", wrong)
    found = refuted(locality(*planned(TEXT)))
    assert list(found) == ["levels"]
    assert read in found["levels"].example[0]


CUT = "attention subject\nparam n: int[B]\nmask = (causal and k < n[b]) or (k < 4 and k < n[b] and q > 7)\n"


def test_cleared_keys_are_those_that_the_mask_forbids() -> None:
    claim = next(c for c in locality(*planned(CUT)) if c.subject == "cleared keys")
    assert isinstance(claim.verdict, Proved)


@pytest.mark.parametrize("wrong", ["k < 4", "k < n[b] and k < 4", "q < k"])
def test_a_key_that_some_query_reads_may_not_be_cleared(wrong: str) -> None:
    attention, p = planned(CUT)
    _, other = planned(f"attention subject\nparam n: int[B]\nmask = {wrong}\n")
    assert set(refuted(locality(attention, replace(p, keeps_key=other.attention.mask)))) == {"cleared keys"}
