"""Kernels of 8-bit floats on the card: beside float64 over what they stand for, and what is lost of 16 bits.

Run with `pytest tests/gpu -m gpu`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import attngen
from attngen import inputs, reference
from attngen.quantized import dequantized
from attngen.verify import eight_bits
from attngen.verify.comparison import Case, as_param

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.attn") if path.stem != "dropout")


def error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine.double() - theirs.double()).norm() / theirs.double().norm())


def launched(kernel: attngen.Kernel) -> set[str]:
    attention: Any = sys.modules[kernel.function.__module__]._attention  # pyright: ignore
    steps = [step for known in attention.ready.values() for launches in known.forward.values() for step in launches]
    return {step.kernel.__name__ for step in steps if hasattr(step, "kernel")}


def beside_the_definition(name: str, wanted: dict[str, int]) -> tuple[attngen.Kernel, float, float]:
    """The kernel, the relative error of out, and the greatest of the log-sum-exp."""
    kernel = attngen.compile(EXAMPLES / f"{name}.attn", dtype="fp8")
    exact = attngen.compile(EXAMPLES / f"{name}.attn", target="torch").spec
    sizes = inputs.settle(exact, wanted, fixed=("D", "Dv"))
    values = inputs.examples(exact, sizes)
    params = {p.name: as_param(p, values[p.name], Case("", "bf16", ()), "cuda") for p in exact.params}
    drawn = torch.Generator("cuda").manual_seed(1)
    q, k, v = (
        attngen.quantize(
            torch.randn(sizes["B"], sizes[h], sizes[s], sizes[d], generator=drawn, device="cuda"), heads=sizes["Hkv"]
        )
        for h, s, d in (("Hq", "Sq", "D"), ("Hkv", "Sk", "D"), ("Hkv", "Sk", "Dv"))
    )
    factors = {"q_descale": q.descale, "k_descale": k.descale, "v_descale": v.descale}
    with torch.no_grad():
        out, lse = kernel(q.values, k.values, v.values, **factors, **params, return_lse=True)
    right = reference.evaluate(exact, *(dequantized(x).double().cpu() for x in (q, k, v)), params=params)
    met = torch.from_numpy(right.lse).isfinite()
    apart = (lse.cpu().double() - torch.from_numpy(right.lse))[met].abs()
    return kernel, error(out.cpu(), torch.from_numpy(right.out)), float(apart.max()) if apart.numel() else 0.0


@pytest.mark.parametrize("name", NAMES)
def test_every_example(name: str) -> None:
    sizes = {"B": 1, "Hq": 4, "Hkv": 2, "Sq": 777, "Sk": 777, "D": 128, "Dv": 128}
    _, wrong, lse_wrong = beside_the_definition(name, sizes)
    assert wrong <= 0.04 and lse_wrong <= 2e-3


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (256, 256), (64, 128), (192, 128), (80, 48)], ids=str)
@pytest.mark.parametrize("rows", [(1, 4, 2, 300, 200), (2, 3, 1, 1029, 2193)], ids=str)
def test_shapes(dims: tuple[int, int], rows: tuple[int, ...]) -> None:
    sizes = dict(zip(("B", "Hq", "Hkv", "Sq", "Sk"), rows, strict=True), D=dims[0], Dv=dims[1])
    kernel, wrong, lse_wrong = beside_the_definition("causal", sizes)
    assert wrong <= 0.04 and lse_wrong <= 2e-3
    if torch.cuda.get_device_capability()[0] == 9:
        assert "_hopper_forward_kernel" in launched(kernel)


@pytest.mark.parametrize("name", ["causal", "alibi", "softcap"])
def test_what_is_lost_of_16_bits(name: str) -> None:
    """Beside float64 on the inputs before they are quantized: as FlashAttention 3's, 0.047 to 0.055."""
    for loss in eight_bits.losses(attngen.compile(EXAMPLES / f"{name}.attn"), "cuda"):
        errors = dict(loss.errors)
        print(name, loss.note, errors)
        assert errors["bf16"] <= 0.01 and errors["fp8"] <= 0.055, loss.note


def test_gradients_go_straight_through() -> None:
    attend = attngen.compile("attention a\nmask = causal\n")
    drawn = torch.Generator("cuda").manual_seed(3)
    q, k, v = (
        torch.randn(2, n, 600, 128, generator=drawn, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for n in (8, 2, 2)
    )
    cotangent = torch.randn(q.shape, generator=drawn, device="cuda", dtype=torch.bfloat16)
    eight = attend(attngen.quantize(q, heads=2), attngen.quantize(k), attngen.quantize(v))
    mine = torch.autograd.grad(eight, (q, k, v), cotangent)
    theirs = torch.autograd.grad(attend(q, k, v), (q, k, v), cotangent)
    for a, b in zip(mine, theirs, strict=True):
        assert error(a, b) <= 0.1


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_rows_that_the_mask_forbids_reach_nothing(dim: int) -> None:
    """They are NaN, and are cleared in shared memory, in slices of turned values."""
    attend = attngen.compile("attention kept\nparam valid: bool[B, Sk]\nmask = causal and valid[b, k]\n", dtype="fp8")
    drawn = torch.Generator("cuda").manual_seed(5)
    q, k, v = (torch.randn(2, n, 700, dim, generator=drawn, device="cuda").to(torch.float8_e4m3fn) for n in (4, 2, 2))
    valid = torch.ones(2, 700, dtype=torch.bool, device="cuda")
    valid[:, 5::7] = False
    with torch.no_grad():
        right = attend(q, k, v, valid=valid)
        for x in (k, v):
            x.view(torch.uint8).masked_fill_(~valid[:, None, :, None], 0x7F)
        assert torch.equal(attend(q, k, v, valid=valid), right)
    s = q.double() @ k.double().nan_to_num().repeat_interleave(2, 1).mT * dim**-0.5
    i = torch.arange(700, device="cuda")
    allowed = (i[:, None] >= i) & valid[:, None, None]
    truth = s.masked_fill(~allowed, -torch.inf).softmax(-1) @ v.double().nan_to_num().repeat_interleave(2, 1)
    assert error(right, truth) <= 0.04
