"""The forward kernel of compute capability 9.0 for 8-bit floats, on the model of the chip."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hopper_model.cases import Change, case, relative, text_of
from hopper_model.schedule import USUAL

E4M3 = torch.float8_e4m3fn


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
@pytest.mark.parametrize("sizes", [(1, 4, 2, 300, 200), (2, 3, 1, 129, 193)], ids=str)
def test_shapes(dims: tuple[int, int], sizes: tuple[int, int, int, int, int]) -> None:
    error, lse_error = forward(text_of("causal"), dims, sizes)
    assert error <= 0.03 and lse_error <= 1e-3
