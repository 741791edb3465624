"""The prover can say no: wrong edits, made mechanically, are refuted, or brute force shows that they change nothing.

Each run takes a sample of every kind, drawn evenly over the specs, and prints its figures; `-m slow` takes all. The two
breaks of the text that the project was founded on are cases of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import exp, log

import pytest

from attngen.analyse import analyse
from attngen.errors import Source
from attngen.ir.build import real
from attngen.plan import plan
from attngen.prove.budget.work import Work
from attngen.prove.discharge import prove
from attngen.prove.obligations.range_safety import range_safety
from attngen.prove.obligations.reads import with_needs
from attngen.prove.obligations.streaming import streaming
from attngen.prove.verdict import Claim, Refuted
from attngen.syntax.parser import parse
from mutation.conftest import Counted
from mutation.corpus import Spec, corpus
from mutation.judge import Judged, Outcome, counts, judge
from mutation.mutants import KINDS, Mutant, planned_anyhow, population, sample

PER_KIND = {
    "normalizer": 12,
    "ranges": 20,
    "loops": 18,
    "walks": 36,
    "tpu": 20,
    "tpu steps": 20,
    "hopper": 36,
    "functions": 80,
    "derivatives": 24,
    "loads": 16,
    "widths": 10,
    "hoisting": 12,
    "folding": 16,
    "ramps": 30,
    "diagonals": 24,
}
SEED = int(os.environ.get("ATTNGEN_MUTANTS_SEED", "0"))


def explained(found: Judged) -> bool:
    """Unknown for a reason that is known: no plan rests on such a claim, as the fallback drops it.

    * the answers of a data test stand for themselves in the proof, so an edit that is harmless because of what the
      kernel finds in the data is not shown to be;
    * where the runs of a loop are out of order only for stretches that never come, they are not shown to be in order;
    * z3 knows nothing of log2, powers and the like, so whether an int made of one leaves 32 bits is open; and whether a
      quotient of a param times that param does takes it more work than it has;
    * an end that is not brought to the tiles of a tensor may lie inside all the same, by what a call says of params.
    """
    reasons = (
        "do not hold when evaluated",
        "small sizes show no mistake",
        "nothing bounds its powers and functions",
        "nothing brings it to the tiles of a tensor",
        "`(q1 + Sk - Sq) // c * c`: its proof needs more work than it may take",
    )
    return all(any(r in getattr(c.verdict, "reason", "") for r in reasons) for c in found.claims)


def settle(kind: str, mutants: Sequence[Mutant], counted: Counted) -> None:
    judged = [judge(m) for m in mutants]
    counted("mutants of the proved specs and plans", kind, counts(judged))
    missed = [str(j) for j in judged if j.outcome is Outcome.MISSED]
    assert not missed, "proved, though brute force breaks them:\n" + "\n".join(missed)
    unknown = [str(j) for j in judged if j.outcome is Outcome.UNKNOWN and (j.brute or not explained(j))]
    assert not unknown, "neither refuted nor proved:\n" + "\n".join(unknown)


@pytest.fixture(scope="module")
def every() -> Mapping[str, Sequence[Mutant]]:
    return population(corpus())


@pytest.fixture(scope="module")
def drawn(request: pytest.FixtureRequest) -> tuple[Mapping[str, Sequence[Mutant]], Mapping[str, int]]:
    """The mutants, and how many of each kind are tried. Where the suite itself is a sample, four of a few specs."""
    if not request.config.getoption("--budget"):
        return request.getfixturevalue("every"), PER_KIND
    specs = corpus()
    few = [spec for i, spec in enumerate(specs) if spec.name in ("causal", "documents", "full_bias") or i % 4 == 0]
    return population(few), dict.fromkeys(KINDS, 4)


def test_the_sample_is_large_enough() -> None:
    assert set(PER_KIND) == set(KINDS)
    assert sum(PER_KIND.values()) >= 120


@pytest.mark.whole(4)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample(kind: str, drawn: tuple[Mapping[str, Sequence[Mutant]], Mapping[str, int]], counted: Counted) -> None:
    mutants, counts = drawn
    chosen = sample(mutants[kind], counts[kind], SEED)
    assert len(chosen) == counts[kind]
    settle(kind, chosen, counted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all(kind: str, every: Mapping[str, Sequence[Mutant]], counted: Counted) -> None:
    settle(kind, every[kind], counted)


@pytest.mark.slow
@pytest.mark.parametrize("spec", corpus(), ids=lambda s: s.name)
def test_the_specs_themselves_are_proved(spec: Spec) -> None:
    """An edit's refutation says something only if the spec without it is proved."""
    attention = spec.attention()
    proof = prove(attention, with_needs(attention, plan(attention)))
    assert not proof.refuted
    assert not proof.unknown


# ---------------------------------------------------------------- the founding text's two breaks


def text(normalizer: str) -> str:
    return f"attention broken\n{normalizer}\nnormalizer = mine\nmask = causal\ntile q = 64, k = 64\n"


def refuted(claims: Sequence[Claim]) -> list[Claim]:
    return [c for c in claims if isinstance(c.verdict, Refuted)]


def test_no_running_maximum_overflows() -> None:
    """exp(s) itself: fp32 overflows past exp(88), fp16 past exp(11), in the second tile."""
    source = Source(
        text("normalizer mine {\n    weight(s) = exp(s)\n    denominator = sum\n    shift = none\n}"), "broken.attn"
    )
    attention = analyse(parse(source), source, {})
    found = refuted(range_safety(attention, plan(attention), Work()))
    assert found
    verdict = found[0].verdict
    assert isinstance(verdict, Refuted)
    values = dict(verdict.values)
    assert 88 < float(values["score"]) <= 128
    assert log(65504) - 1e-4 <= float(values["fp16 limit"]) <= log(65520)  # from there on rounding gives inf
    assert values["tile"] == 1
    lines = "\n".join(verdict.example)
    assert "tile 1" in lines
    assert "fp32" in lines
    assert "fp16" in lines
    assert "running maximum" in found[0].fix


def test_no_rescaling_is_finite_and_wrong() -> None:
    """The maximum moves and the sums do not: two tiles of one key show a finite, wrong share."""
    lines = "weight(s) = exp(s)\n    denominator = sum\n    shift = max\n    weight(s, m) = exp(s - m)"
    source = Source(text(f"normalizer mine {{\n    {lines}\n    rescale(m, n) = 1.0\n}}"), "broken.attn")
    attention = analyse(parse(source), source, {})
    assert attention.normalizer.rescale == real(1.0)
    planned = planned_anyhow(attention)
    assert planned is not None
    found = refuted(streaming(attention, planned, Work()))
    assert found
    verdict = next(c.verdict for c in found if c.subject == "homomorphism")
    assert isinstance(verdict, Refuted)
    values = {name: float(value) for name, value in verdict.values if isinstance(value, float)}
    scores = values["score 0"], values["score 1"]
    right = exp(scores[0]) / (exp(scores[0]) + exp(scores[1]))
    # Folded without rescaling: the first key keeps the weight exp(0) = 1 that it had when it was the maximum.
    top = max(scores)
    wrong = 1.0 / (1.0 + exp(scores[1] - top))
    assert values["defined"] == pytest.approx(right)
    assert values["streamed"] == pytest.approx(wrong)
    assert 0.1 < abs(wrong - right) < 0.6
    assert "rescale(m, n) = exp(m - n)" in next(c.fix for c in found if c.subject == "homomorphism")
