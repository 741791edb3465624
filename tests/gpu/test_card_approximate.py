"""The errors of approximate instructions, on the card: the premises of `prove/obligations/approximation.py`."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import attngen
from attngen.ir.nodes import Op
from attngen.plan.score.approximate import APPROXIMATIONS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

ALL = "attention waves\nscore = qk * scale + tanh(qk) + sin(float(q - k)) + cos(float(q - k))\n"
EXACT = {Op.TANH: torch.tanh, Op.SIN: torch.sin, Op.COS: torch.cos}


@triton.jit
def _apply(x_ptr, y_ptr, function: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y_ptr + at, function(tl.load(x_ptr + at), True))


@pytest.mark.parametrize("reach", [4.0, 100.0, 2.0**17, 2.0**22])
@pytest.mark.parametrize("op", list(APPROXIMATIONS), ids=lambda op: op.value)
def test_the_error_is_below_the_stated_one(op: Op, reach: float) -> None:
    helper: Any = getattr(sys.modules[attngen.compile(ALL).function.__module__], f"_{op.value}")
    x = torch.linspace(-reach, reach, 1 << 20, device="cuda", dtype=torch.float32)
    y = torch.empty_like(x)
    _apply[(len(x) // 1024,)](x, y, helper, 1024)
    wanted = EXACT[op](x.double())
    off = (y.double() - wanted).abs()
    stated = APPROXIMATIONS[op]
    allowed = stated.error if stated.absolute else stated.error * wanted.abs() + 2.0**-126
    assert (off <= allowed).all(), off.max().item()
    assert y.abs().max() <= 1
