"""Drawn masks by the kernels of compute capability 9.0, on the model of the chip, against the definition.

Examples have the masks that people write; a kernel can be right for all of them and wrong for one with a single bound.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings, strategies as st
from property.drawn import ATOMS, SCORES, spec

import attngen
from attngen.runtime.loader import execute
from hopper_model.test_backward import gradients
from hopper_model.test_forward import forward

QUIET = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes: each step compiles
)
TOLERANCE = 1.5e-2

atoms = st.sampled_from(ATOMS)
atoms = st.one_of(atoms, atoms, atoms.map("not ({})".format))
words = st.sampled_from([" and ", " or "])
pairs = st.tuples(atoms, words, atoms).map(lambda x: f"({x[0]}{x[1]}{x[2]})")
masks = st.one_of(atoms, pairs, pairs, st.tuples(pairs, words, st.one_of(atoms, pairs)).map("".join))
scores = st.sampled_from(SCORES)
shapes = st.builds(
    lambda batches, heads, rows, columns: (batches, *heads, rows, columns),
    st.integers(1, 2),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2)]),
    st.sampled_from([33, 40, 64, 100, 130, 150, 200, 260]),
    st.sampled_from([1, 33, 64, 70, 128, 150, 200, 256, 300]),
)
drawn = given(masks, scores, st.sampled_from([64, 128, 256]), shapes)


def served(mask: str, score: str, dim: int, tables: tuple[str, ...]) -> str:
    """The spec, where the chip's own kernels run it at all: the model has no others."""
    text = spec(f"score = {score}", f"mask = {mask}")
    try:
        source = attngen.compile(text).source
    except attngen.Refuted as refuted:
        assume("error[index-bounds]" not in str(refuted))  # a query's element is read where there are fewer keys
        raise
    module: Any = execute(source, "drawn")
    found = [module.rows_by_dims(getattr(module, table)) for table in tables if hasattr(module, table)]
    assume(any((dim, dim) in rows for rows in found))
    return text


def check_backward(mask: str, score: str, dim: int, sizes: tuple[int, int, int, int, int]) -> None:
    text = served(mask, score, dim, ("HOPPER_BACKWARD", "HOPPER_APART"))
    errors, _ = gradients(text, (dim, dim), sizes)
    assert all(e <= TOLERANCE for e in errors.values()), (errors, text)


def check_forward(mask: str, score: str, dim: int, sizes: tuple[int, int, int, int, int]) -> None:
    assume(sizes[3] > 128 or sizes[4] < 128)  # fewer queries and more keys may be split, portably
    text = served(mask, score, dim, ("HOPPER",))
    error, _ = forward(text, (dim, dim), sizes)
    assert error <= TOLERANCE, (error, text)


@settings(QUIET, max_examples=6)
@drawn
def test_gradients(mask: str, score: str, dim: int, sizes: tuple[int, int, int, int, int]) -> None:
    check_backward(mask, score, dim, sizes)


@settings(QUIET, max_examples=6)
@drawn
def test_results(mask: str, score: str, dim: int, sizes: tuple[int, int, int, int, int]) -> None:
    check_forward(mask, score, dim, sizes)


@pytest.mark.slow
@settings(QUIET, max_examples=300)
@drawn
def test_gradients_at_length(mask: str, score: str, dim: int, sizes: tuple[int, int, int, int, int]) -> None:
    check_backward(mask, score, dim, sizes)


@pytest.mark.slow
@settings(QUIET, max_examples=300)
@drawn
def test_results_at_length(mask: str, score: str, dim: int, sizes: tuple[int, int, int, int, int]) -> None:
    check_forward(mask, score, dim, sizes)
