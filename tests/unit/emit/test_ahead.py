"""Elements of keys that only the mask reads, which the Hopper forward kernel asks for before the scores."""

from __future__ import annotations

import pytest

from attngen import api
from attngen.aot import compile as aot
from attngen.errors import Source

NEAR = "param x: int[Sk]\nmask = abs(x[q] - x[k]) <= 8\n"
SPECS = {
    "alone": (NEAR, True),
    "bools": ("param x: bool[B, Sk]\nmask = causal and (q - k) % 4 == 0 and (x[b, k] or q - k < 9)\n", True),
    "small ints": ("param x: u8[Sk]\nmask = causal and (q - k) % 4 == 0 and x[k] < x[q]\n", True),
    "the score reads the key's element by the same position": (
        f"param w: f32[Sk]\nscore = qk * scale + w[k]\n{NEAR}", False,
    ),
    "the score reads the element by which the mask finds its own": (
        "param w: f32[n]\nparam x: int[Sk]\nparam t: int[m]\nscore = qk * scale + w[x[k]]\n"
        "mask = causal and t[x[k]] <= t[x[q]] + 2\n", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_the_kernel_compiles_whatever_the_score_reads(name: str) -> None:
    text, ahead = SPECS[name]
    kernel = api.build(Source(f"attention made\n{text}assume Sq == Sk\n"), api.options("triton"), {})
    assert ("def _columns(" in kernel.source) is ahead
    found = aot.compile_kernels(kernel.source, kernel.spec, arch="sm_90", dtype="bf16", head_dim=(64, 64), kind="ttgir")
    assert "hopper_forward" in {a.kernel for a in found}
