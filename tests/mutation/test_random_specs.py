"""Random specs: no proof that brute force breaks, no refutation of what is right, and few unknowns.

The families are masks of the language's affine, `//`, `%` and boolean parts; masks with data besides; scores;
normalizers, half of them wrong; loads at computed indices. Each run draws over 2,000, in parts, and prints the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st
from property import grammar

from attngen.prove.verdict import Obligation
from mutation import random_specs
from mutation.conftest import Counted
from mutation.random_specs import Tally, text_of

SEED = 20261121
PART = 100


class Family(NamedTuple):
    drawn: st.SearchStrategy[str]
    lines: Callable[[str], Sequence[str]]
    obligations: Sequence[Obligation]
    parts: int
    """Of `PART` specs each."""


def as_mask(text: str) -> list[str]:
    return [f"mask = {text}"]


def as_score(text: str) -> list[str]:
    return [f"score = {text}"]


FAMILIES: Mapping[str, Family] = {
    "affine, //, %": Family(random_specs.plain_masks, as_mask, (Obligation.TILE_RANGES, Obligation.INTEGER_WIDTH), 8),
    "masks with data": Family(
        grammar.masks, as_mask, (Obligation.TILE_RANGES, Obligation.INTEGER_WIDTH, Obligation.INDEX_BOUNDS), 3
    ),
    "conditional windows": Family(
        grammar.conditional_masks,
        as_mask,
        (Obligation.TILE_RANGES, Obligation.INTEGER_WIDTH, Obligation.INDEX_BOUNDS, Obligation.RANGE_SAFETY),
        2,
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
        4,
    ),
    "normalizers": Family(
        random_specs.normalizers(),
        lambda text: [text],
        (Obligation.STREAMING, Obligation.RANGE_SAFETY, Obligation.GRADIENTS, Obligation.EMPTY_ROWS),
        3,
    ),
    "loads": Family(random_specs.indexed(), str.splitlines, (Obligation.INDEX_BOUNDS, Obligation.INTEGER_WIDTH), 3),
}
MOST_UNKNOWN = {"affine, //, %": 0.03, "conditional windows": 0.05}


def draw(tally: Tally, name: str, part: int) -> None:
    family = FAMILIES[name]

    @seed(SEED + part)
    @settings(
        max_examples=PART,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(family.drawn)
    def one(text: str) -> None:
        tally.add(name, text_of(*family.lines(text)), family.obligations)

    one()


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, f in FAMILIES.items() for part in range(f.parts)])
def test_random_specs(name: str, part: int, counted: Counted) -> None:
    tally = Tally()
    draw(tally, name, part)
    counts = tally.counts[name]
    counted("random specs", name, {v: counts[v] for v in ("proved", "refuted", "unknown", "no spec")})
    assert not tally.wrong, "\n\n".join(tally.wrong)
    assert counts["unknown"] <= MOST_UNKNOWN.get(name, 1.0) * PART, "\n\n".join(tally.unknown)


def test_there_are_over_2000() -> None:
    assert sum(f.parts for f in FAMILIES.values()) * PART > 2000
