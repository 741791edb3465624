"""The forward kernel of chips with wide matrix units: keys down, queries across, tiles in pieces.

The interpreter runs it where it is told to; it must give what the definition says, for every example that has it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from parity import variants
from parity.jax_side import array, tensor
from parity.variants import EXAMPLE_VARIANTS, SMALL, Variant

import attngen
from attngen import Kernel, reference
from attngen.runtime.loader import execute

pytestmark = pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning")
WITHOUT = ("sigmoid", "dropout")
"""Weights that are no exponentials of a difference, or that are drawn."""
FORMS = ("straight", "rolled", "streamed")


def kernel(variant: Variant) -> Kernel:
    return attngen.compile(variant.text, "pallas", tile=(32, 32), consts=variant.settings(False))


def module(compiled: Kernel, form: str, piece: int = 16, ahead: int = 2) -> ModuleType:
    """The generated module, made to take its kernel for wide matrix units, four pieces to a tile."""
    made = execute(compiled.source, compiled.name)
    configured = made._configured

    def crossed(*arguments: Any) -> Any:
        config = configured(*arguments)
        assert bool(config.forward.steps) == (form == "streamed")
        return config._replace(forward=config.forward._replace(across=True))

    made._configured, made.PIECE, made.AHEAD = crossed, piece, ahead
    if form == "rolled":
        made.STRAIGHT = 0
    if form == "streamed":
        made.VMEM = {**made.VMEM, "cpu": 0}
    return made


def runs() -> list[object]:
    """Each example in each form, shapes in turn; the sample has one form of each."""
    found: list[object] = []
    crossed = [v for v in EXAMPLE_VARIANTS if v.name not in WITHOUT]
    for i, variant in enumerate(crossed):
        for j, form in enumerate(FORMS):
            case = SMALL[(i + 4 * j) % len(SMALL)]
            marks = [] if j == i % len(FORMS) else [pytest.mark.slow]
            found.append(pytest.param(variant, case, form, id=f"{variant.name}-{case.name}-{form}", marks=marks))
    return found


@pytest.mark.parametrize(("variant", "case", "form"), runs())
def test_keys_down_and_queries_across_give_the_definition(variant: Variant, case: variants.Case, form: str) -> None:
    given = variants.inputs(variant, variant.suited(case), torch.float32, "cpu")
    compiled = kernel(variant)
    attend = getattr(module(compiled, form), compiled.name)
    operands = {n: array(x.transpose(1, 2)) for n, x in (("q", given.q), ("k", given.k), ("v", given.v))}
    got = attend(**operands, **{n: array(p) for n, p in given.params.items()}, scale=given.scale)
    exact = variants.in_float64(given)
    want, _ = variants.by_formula(variant, exact, variant.settings(False))
    np.testing.assert_allclose(tensor(got).transpose(1, 2), want.detach(), rtol=2e-5, atol=2e-5)
    params = {n: p.double().numpy() if isinstance(p, torch.Tensor) else p for n, p in given.params.items()}
    arrays = [x.double().numpy() for x in (given.q, given.k, given.v)]
    oracle = reference.evaluate(compiled.spec, *arrays, params=params, scale=given.scale)
    np.testing.assert_allclose(tensor(got).transpose(1, 2), oracle.out, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", [v.name for v in EXAMPLE_VARIANTS])
def test_which_variants_have_it(name: str) -> None:
    (variant,) = (v for v in EXAMPLE_VARIANTS if v.name == name)
    assert ("_forward_across" in kernel(variant).source) == (name not in WITHOUT)


@pytest.mark.parametrize("ahead", [0, 1, 5])
@pytest.mark.parametrize("piece", [16, 64])
def test_pieces_of_any_size_and_number_in_flight_give_the_same(piece: int, ahead: int) -> None:
    (variant,) = (v for v in EXAMPLE_VARIANTS if v.name == "windowed_alibi")
    (case,) = (c for c in SMALL if c.name == "long")
    given = variants.inputs(variant, case, torch.float32, "cpu")
    operands = {n: array(x.transpose(1, 2)) for n, x in (("q", given.q), ("k", given.k), ("v", given.v))}
    operands |= {n: array(p) for n, p in given.params.items()}
    compiled = kernel(variant)
    usual = getattr(execute(compiled.source, compiled.name), compiled.name)(**operands)
    got = getattr(module(compiled, "straight", piece, ahead), compiled.name)(**operands)
    np.testing.assert_allclose(got, usual, rtol=2e-5, atol=2e-5)
    assert not jnp.array_equal(got, usual)
