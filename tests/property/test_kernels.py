"""Whole kernels against the reference: drawn scores, masks and normalizers, in Triton's interpreter, on tiny shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings, strategies as st

from attngen.ir.nodes import Storage, Type
from property import grammar
from property.kernels import STORAGE, Sizes, compiled, errors, largest_score, leaf

QUIET = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes: each step compiles
)
TOLERANCE = 2e-5


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    Hkv, group = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 3)]))
    lengths = st.integers(1, 36)
    return Sizes(
        draw(st.integers(1, 2)), Hkv * group, Hkv, draw(lengths), draw(lengths), draw(st.sampled_from([5, 16])), 8
    )


def tensors(text: str, drawn: dict[str, Any]) -> dict[str, Any]:
    """The values of the params that the file has, as torch has them; floats require gradients."""
    found: dict[str, Any] = {}
    for p in compiled(text).attention.params:
        value = drawn[p.name]
        if p.type is Type.FLOAT:
            found[p.name] = torch.tensor(value, dtype=STORAGE[p.storage.value]).requires_grad_()
        else:
            found[p.name] = torch.tensor(value) if isinstance(value, np.ndarray) else value
    return found


def check(text: str, shape: Sizes, seed: int) -> None:
    r = np.random.default_rng(seed)
    B, Hq, Hkv, Sq, Sk, D, Dv = shape
    inputs = leaf(r, B, Hq, Sq, D), leaf(r, B, Hkv, Sk, D), leaf(r, B, Hkv, Sk, Dv)
    params = tensors(text, grammar.mask_values(shape._asdict(), seed))
    largest = largest_score(text, shape, params, inputs)
    assume(largest < 60)
    found = errors(text, shape, seed=seed, params=params, inputs=inputs)
    half = {f"d_{p.name}" for p in compiled(text).attention.params if p.storage in (Storage.F16, Storage.BF16)}
    allowed = TOLERANCE * max(1.0, largest / 8)
    wrong = {name: e for name, e in found.items() if not e <= (1e-2 if name in half else allowed)}
    values = {n: x for n, x in params.items() if not isinstance(x, torch.Tensor)}
    assert not wrong, f"{wrong}\n{text}{shape}, seed {seed}, {values}"


files = st.builds(
    lambda score, mask, normalizer: grammar.spec(f"score = {score}", f"mask = {mask}", normalizer),
    grammar.scores,
    st.one_of(st.just("true"), st.just("causal"), grammar.masks),
    grammar.normalizers,
)


@settings(QUIET, max_examples=8)
@given(files, sizes(), st.integers(0, 999))
def test_kernels_match_the_reference(text: str, shape: Sizes, seed: int) -> None:
    check(text, shape, seed)


@pytest.mark.slow
@settings(QUIET, max_examples=400)
@given(files, sizes(), st.integers(0, 999))
def test_kernels_match_the_reference_at_length(text: str, shape: Sizes, seed: int) -> None:
    check(text, shape, seed)


SINGULAR = {
    "a logarithm of keys": ("a: f32[Hq]", "a[h] * log(float(Sk - k))", "causal"),
    "a quotient of keys": ("a: f32[Hq]", "a[h] / float(Sk - k)", "causal and q - k < 12"),
    "a table by distance, of keys": ("t: f32[Hq, 40]", "t[h, q - k] * log(float(Sk - k))", "causal"),
    "a logarithm of queries": ("a: f32[Hq]", "a[h] * log(float(Sq - q))", "causal"),
    "a quotient of queries": ("a: f32", "a / float(Sq - q)", "true"),
    "a bias of a row": ("a: f32[Sq]", "a[q] * log(float(Sq - q))", "true"),
    "a bias of a key": ("a: f32[Sk]", "a[k] * log(float(Sq - q)) / float(Sk - k)", "causal"),
    "a table by distance, of queries": ("t: f32[Hq, 40]", "t[h, q - k] * log(float(Sq - q))", "causal"),
    "a table by data, of queries": (
        "t: f32[Hq, 40]\nparam n: int[B, Sq]", "t[h, n[b, q] + k] * log(float(Sq - q))", "true"
    ),
    "a bias of a pair": ("t: f32[Sq, Sk]", "t[q, k] / float(Sq - q)", "causal"),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGULAR)
def test_scores_that_have_no_value_beyond_the_tensor(name: str) -> None:
    """A gradient that is summed over rows takes nothing of padded rows from there."""
    param, term, mask = SINGULAR[name]
    text = f"attention singular\n\nparam {param}\nscore = qk * scale + {term}\nmask = {mask}\n"
    found = errors(text, Sizes(1, 2, 1, 21, 21, 16, 16))
    assert all(e <= 1e-4 for e in found.values()), found
