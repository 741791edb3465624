"""The forward kernel of compute capability 9.0 for 8-bit floats, on the model of the chip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from hopper_model.cases import RISING, Change, case, relative, text_of
from hopper_model.schedule import USUAL

E4M3 = torch.float8_e4m3fn


def slow(value: Any) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


def forward(
    text: str,
    dims: tuple[int, int],
    sizes: tuple[int, int, int, int, int],
    changes: Sequence[Change] = (),
) -> tuple[float, float]:
    """Errors against the definition over what the 8-bit floats stand for: of out, relative, and of the log-sum-exp, the
    greatest."""
    made = case(text, dims, sizes, E4M3, changes, USUAL)
    out, lse = getattr(made.module, made.kernel.name)(made.q, made.k, made.v, return_lse=True, **made.given)
    assert out.dtype is torch.bfloat16 and made.launched[-1] == "_hopper_forward_kernel"
    assert "turn_values_kernel" in made.launched
    right = made.truth()
    met = np.isfinite(right.lse)
    assert np.array_equal(lse.numpy()[~met], right.lse[~met])
    return relative(out.float(), right.out), float(np.abs(lse.double().numpy()[met] - right.lse[met]).max(initial=0.0))


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (256, 256), (64, 128), (192, 128), (80, 48)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 4, 2, 300, 200), slow((2, 3, 1, 129, 193))], ids=str)
def test_shapes(dims: tuple[int, int], sizes: tuple[int, int, int, int, int]) -> None:
    error, lse_error = forward(text_of("causal"), dims, sizes)
    assert error <= 0.03 and lse_error <= 1e-3


SPECS = ["alibi", "documents", "rollouts"]
"""A score of positions, lists of data, a map of tiles."""
MORE = ["softcap", "sliding_window", "sink", "natten_2d", "softmax1", "mla"]


@pytest.mark.parametrize("name", [*SPECS, *map(slow, MORE)])
def test_examples(name: str) -> None:
    square = "assume Sq == Sk" in text_of(name)
    error, lse_error = forward(text_of(name), (128, 128), (1, 4, 2, 260, 260) if square else (1, 4, 2, 200, 333))
    assert error <= 0.03 and lse_error <= 1e-3


@pytest.mark.parametrize("name", RISING)
def test_logits_that_rise_from_key_to_key(name: str) -> None:
    error, lse_error = forward(RISING[name], (128, 128), (1, 4, 2, 200, 200 if "Sq == Sk" in RISING[name] else 333))
    assert error <= 0.03 and lse_error <= 1e-3


POSITIVE = (
    "attention positive\nscore = qk * scale\nmask = causal\n"
    "normalizer bounded {\nweight(s) = sigmoid(s)\ndenominator = sum + 1\nshift = none\n}\nnormalizer = bounded\n"
)


def test_weights_without_a_maximum() -> None:
    error, _ = forward(POSITIVE, (192, 128), (1, 4, 2, 200, 333))
    assert error <= 0.03


ORDERS = {
    "keys of a pair": ("[4, 0, 2, 1, 3]", "[4, 0, 2, 3, 1]"),
    "pairs of a thread": ("[4, 0, 2, 1, 3]", "[4, 0, 1, 2, 3]"),
    "pairs of a word": (".permute((0, 1, 2, 4, 3))", ".permute((0, 1, 2, 3, 4))"),
    "a byte of a word": ("byte_of(words, 3)", "byte_of(words, 2)"),
    "half of the pairs": (".permute((0, 1, 3, 2)).split()[0]", ".permute((0, 1, 3, 2)).split()[1]"),
}


@pytest.mark.parametrize("wrong", ORDERS)
def test_a_wrong_order_of_weights_or_values_is_seen(wrong: str) -> None:
    error, _ = forward(text_of("causal"), (128, 128), (1, 2, 1, 130, 190), [ORDERS[wrong]])
    assert not error <= 0.04


KEPT = "attention kept\nparam valid: bool[B, Sk]\nmask = causal and valid[b, k]\n"


@pytest.mark.parametrize("dims", [(128, 128), slow((64, 64)), slow((256, 256))], ids=str)
@pytest.mark.parametrize("order", ["its own", "that of keys"])
def test_rows_that_the_mask_forbids_reach_nothing(dims: tuple[int, int], order: str) -> None:
    """They are NaN. Values are cleared where they stand: with their places taken for keys, others would be."""
    changes = (
        [] if order == "its own" else [("return (place & -16) | ((place & 2) << 2)", "return place\n    return (0)")]
    )
    valid = np.ones((1, 300), bool)
    valid[0, 5::7] = False
    made = case(KEPT, dims, (1, 2, 1, 300, 300), E4M3, changes, USUAL, valid=valid)
    k, v = made.k.clone(), made.v.clone()
    for x in (k, v):
        x.view(torch.uint8)[:, :, torch.from_numpy(~valid[0])] = 0x7F
    out = getattr(made.module, made.kernel.name)(made.q, k, v, **made.given)
    error = relative(out.float(), made.truth().out)
    assert made.launched[-1] == "_hopper_forward_kernel"
    assert error <= 0.03 if order == "its own" else not error <= 0.03
