"""Random specs: no proof that brute force breaks, no refutation of what is right, and few unknowns.

The families are masks of the language's affine, `//`, `%` and boolean parts; masks with data besides; scores;
normalizers, half of them wrong; loads at computed indices. Each run draws a few of each and prints the figures;
`-m slow` draws over 2,000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from property import grammar

from attngen.prove.verdict import Obligation
from mutation import random_specs
from mutation.random_specs import Tally, text_of

SEED = 20261121


class Family(NamedTuple):
    drawn: st.SearchStrategy[str]
    lines: Callable[[str], Sequence[str]]
    obligations: Sequence[Obligation]
    few: int
    many: int


def as_mask(text: str) -> list[str]:
    return [f"mask = {text}"]


def as_score(text: str) -> list[str]:
    return [f"score = {text}"]


FAMILIES: Mapping[str, Family] = {
    "affine, //, %": Family(
        random_specs.plain_masks, as_mask, (Obligation.TILE_RANGES, Obligation.INTEGER_WIDTH), 20, 800
    ),
    "masks with data": Family(
        grammar.masks, as_mask, (Obligation.TILE_RANGES, Obligation.INTEGER_WIDTH, Obligation.INDEX_BOUNDS), 10, 300
    ),
    "scores": Family(
        random_specs.scores,
        as_score,
        (
            Obligation.STREAMING,
            Obligation.RANGE_SAFETY,
            Obligation.GRADIENTS,
            Obligation.INDEX_BOUNDS,
            Obligation.LOCALITY,
        ),
        20,
        400,
    ),
    "normalizers": Family(
        random_specs.normalizers(),
        lambda text: [text],
        (Obligation.STREAMING, Obligation.RANGE_SAFETY, Obligation.GRADIENTS, Obligation.EMPTY_ROWS),
        20,
        300,
    ),
    "loads": Family(
        random_specs.indexed(), str.splitlines, (Obligation.INDEX_BOUNDS, Obligation.INTEGER_WIDTH), 15, 300
    ),
}
MOST_UNKNOWN = {"affine, //, %": 0.03}


def draw(tally: Tally, name: str, count: int) -> None:
    family = FAMILIES[name]

    @seed(SEED)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(family.drawn)
    def one(text: str) -> None:
        tally.add(name, text_of(*family.lines(text)), family.obligations)

    one()


def settle(tally: Tally, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{tally.figures()}")
    assert not tally.wrong, "\n\n".join(tally.wrong)
    for name, most in MOST_UNKNOWN.items():
        if name in tally.counts:
            own = tally.counts[name]
            drawn = own["proved"] + own["refuted"] + own["unknown"]
            assert own["unknown"] <= most * drawn, "\n\n".join(tally.unknown)


def test_a_few_of_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    for name, family in FAMILIES.items():
        draw(tally, name, family.few)
    settle(tally, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_many(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    draw(tally, name, FAMILIES[name].many)
    settle(tally, capsys)
