"""A root is rounded correctly on the chip, as on the host: an int made of one would be off by one at a square."""

from __future__ import annotations

from aot.chips import binaries

from attngen import api
from attngen.errors import Source

SPEC = "attention a\n\nparam table: f32[40]\nscore = qk * scale + table[min(int(sqrt(abs(q - k))), 39)]\n"


def test_no_kernel_takes_an_approximate_root() -> None:
    found = binaries(api.build(Source(SPEC), api.options("triton"), {}), "sm_90", (16, 16), kind="ptx")
    texts = [str(artifact.data) for artifact in found.values()]
    assert any("sqrt.rn" in text for text in texts)
    assert not any("sqrt.approx" in text for text in texts)
