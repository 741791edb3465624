"""What depends on numbers of the call alone: floats compared with each other, functions of the scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attngen

MASKS = [
    "k < q and x < 3",
    "x < 3",
    "k < q or y[h] > 3",
    "y[h] < z[b] or k <= q",
    "sqrt(abs(x)) < 0.5 or k <= q",
    "(k <= q) if x < 1 else (k >= q)",
    "not (x < 3) or k <= q",
    "k <= q + floor(scale * 4)",
    "log(scale) < 0.0 and k <= q + ceil(scale * 2)",
]
SCORES = [
    "qk * scale ** 2",
    "qk * scale + (1.0 if x < 3 and k > q else 2.0)",
    *(f"qk * scale + {f}(scale) * float(q - k)" for f in ("tanh", "exp", "exp2", "sigmoid", "cos", "erf")),
    "qk * scale - (q - k) * 2.0 ** -n",
    "qk * scale * 2.0 ** (D % 5)",
    "qk * scale * max(x, 0.5) * (1.0 if h == 0 else 0.25)",
    "softcap(qk * scale, 30.0 if h % 2 == 0 else 50.0)",
]


@pytest.mark.filterwarnings("ignore::attngen.SpecWarning")
@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.parametrize("line", [*(f"mask = {m}" for m in MASKS), *(f"score = {s}" for s in SCORES)])
def test_numbers_of_a_call(line: str, target: str) -> None:
    declared = "param x: f32\nparam y: f32[Hq]\nparam z: f32[B]\nparam n: int where 0 <= n < 8\n"
    kernel = attngen.compile(f"attention subject\n{declared}{line}\n", target=target)
    q, k, v = torch.randn(3, 1, 2, 9, 16, generator=torch.Generator().manual_seed(0))
    given = {"x": 1.0, "y": torch.tensor([1.0, 4.0]), "z": torch.tensor([2.0]), "n": 2}
    out = kernel(q, k, v, **given)
    plain = {n: np.asarray(x) if isinstance(x, torch.Tensor) else x for n, x in given.items()}
    wanted = kernel.reference(*(x.numpy() for x in (q, k, v)), **plain)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["triton", "torch", "jax"])
def test_a_bool_of_numpy_is_a_bool(target: str) -> None:
    kernel = attngen.compile("attention chosen\nparam f: bool\nmask = k <= q or f\n", target=target)
    x = torch.randn(1, 1, 9, 16, generator=torch.Generator().manual_seed(0))
    operand = x.transpose(1, 2).numpy() if target == "jax" else x
    for f in (True, False):
        found, wanted = (np.asarray(kernel(operand, operand, operand, f=g)) for g in (np.bool_(f), f))
        np.testing.assert_array_equal(found, wanted)
