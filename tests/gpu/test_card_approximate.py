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
from attngen.plan.score.approximate import APPROXIMATIONS, Per

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

ALL = """attention waves
let gap = float(abs(q - k))
score = qk * scale + tanh(qk) + sin(gap) + cos(gap) + tanh(log(1.5 + gap)) + log2(2.5 + gap)
"""
EXACT = {Op.TANH: torch.tanh, Op.SIN: torch.sin, Op.COS: torch.cos, Op.LOG: torch.log, Op.LOG2: torch.log2}


@triton.jit
def _apply(x_ptr, y_ptr, function: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y_ptr + at, function(tl.load(x_ptr + at), True))


@pytest.mark.parametrize("reach", [4.0, 100.0, 2.0**17, 2.0**22])
@pytest.mark.parametrize("op", list(APPROXIMATIONS), ids=lambda op: op.value)
def test_the_error_is_below_the_stated_one(op: Op, reach: float) -> None:
    stated = APPROXIMATIONS[op]
    helper: Any = getattr(sys.modules[attngen.compile(ALL).function.__module__].rows, op.value)
    least = 2.0**-149 if stated.per is Per.LARGER else -reach  # logarithms are of what is positive
    x = torch.linspace(least, reach, 1 << 20, device="cuda", dtype=torch.float32)
    y = torch.empty_like(x)
    _apply[(len(x) // 1024,)](x, y, helper, 1024)
    wanted = EXACT[op](x.double())
    off = (y.double() - wanted).abs()
    size = {Per.VALUE: wanted.abs(), Per.ONE: 1.0, Per.LARGER: wanted.abs().clamp(min=1.0)}[stated.per]
    assert (off <= stated.error * size + 2.0**-126).all(), off.max().item()
    assert y.abs().max() <= 1 or stated.per is Per.LARGER
