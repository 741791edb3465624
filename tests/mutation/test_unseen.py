"""Unseen files: right ones are proved with no unknown, wrong ones refused with a counterexample."""

from __future__ import annotations

import pytest

from attngen.analyse import analyse
from attngen.errors import Source
from attngen.plan import plan
from attngen.prove.discharge import prove
from attngen.prove.obligations.reads import with_needs
from attngen.prove.proof import Proof
from attngen.prove.verdict import Obligation, Refuted
from attngen.syntax.parser import parse
from mutation.unseen import RIGHT, WRONG


def proof(body: str) -> Proof:
    source = Source(f"attention unseen\n{body.strip()}\n", "unseen.attn")
    attention = analyse(parse(source), source, {})
    return prove(attention, with_needs(attention, plan(attention)))


@pytest.mark.parametrize("name", RIGHT)
def test_right_files_are_proved(name: str) -> None:
    found = proof(RIGHT[name])
    assert not found.refuted
    assert not found.unknown


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_refused_with_an_example(name: str) -> None:
    body, obligation = WRONG[name]
    refuted = [c for o, c in proof(body).refuted if o is obligation]
    assert refuted
    verdict = refuted[0].verdict
    assert isinstance(verdict, Refuted)
    assert verdict.example
    assert refuted[0].span.line > 0 or refuted[0].fix


def test_there_are_enough() -> None:
    assert len(RIGHT) >= 60
    assert len(WRONG) >= 60
    assert {o for _, o in WRONG.values()} == {Obligation.STREAMING, Obligation.RANGE_SAFETY}
