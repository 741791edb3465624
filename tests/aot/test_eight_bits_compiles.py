"""Kernels of 8-bit floats through the real compiler: they fit the chip, and their loops keep to registers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aot.chips import EXAMPLES, binaries, refused

import attngen


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


CASES = [
    ("causal", "sm_90", (128, 128)),
    slow("causal", "sm_90", (64, 64)),
    slow("causal", "sm_90", (256, 256)),
    slow("causal", "sm_90", (192, 128)),
    slow("alibi", "sm_90", (128, 128)),
    slow("softcap", "sm_90", (128, 128)),
    slow("rollouts", "sm_90", (128, 128)),
    slow("causal", "sm_100", (128, 128)),
]


@pytest.mark.parametrize(("name", "chip", "dims"), CASES)
def test_it_fits_and_keeps_to_registers(name: str, chip: str, dims: tuple[int, int]) -> None:
    kernel = attngen.compile(EXAMPLES / f"{name}.attn", dtype="fp8")
    found = binaries(kernel, chip, dims, dtype="fp8", kind="ptx")
    assert not refused(found, chip) and "forward" in found
    assert ("hopper_forward" in found) == ("turn_values" in found) == (chip == "sm_90")
    for a in found.values():
        assert a.loop_spills == 0, a.kernel


def test_products_are_of_8_bits_and_no_weight_moves_between_threads() -> None:
    """A shuffle of weights for each tile would cost as much as their product."""
    kernel = attngen.compile(EXAMPLES / "causal.attn", dtype="fp8")
    text = binaries(kernel, "sm_90", (128, 128), dtype="fp8", kind="ptx")["hopper_forward"].data
    assert isinstance(text, str)
    products = set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+)", text))
    assert products == {"m64n128k32.f32.e4m3.e4m3"}
    assert "cvt.rn.satfinite.e4m3x2.f32" in text and "prmt.b32" not in text
