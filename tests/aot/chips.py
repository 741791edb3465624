"""What the tests of this folder share: compiling a spec for a chip, and what a launch there would refuse."""

from __future__ import annotations

import functools
from pathlib import Path

import attngen
from attngen.aot.compile import TARGETS, Artifact, compile_kernels
from attngen.ir.attention import Attention
from attngen.plan.chips import SHARED_MEMORY

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.attn"))
CHIPS = ("sm_80", "sm_90", "sm_100", "gfx942")
TENSOR_MEMORY = 512


def build(spec: str, tile: tuple[int, int] | None = None) -> attngen.Kernel:
    """An example by its name, or a spec's text."""
    return attngen.compile(spec if "\n" in spec else EXAMPLES / f"{spec}.attn", tile=tile)


def binaries(
    kernel: attngen.Kernel, chip: str, dims: tuple[int, int], dtype: str = "bf16", kind: str | None = None
) -> dict[str, Artifact]:
    """Every kernel by its name; compiled once a run, however many tests look at it."""
    kind = kind or ("hsaco" if TARGETS[chip][0] == "hip" else "cubin")
    return dict(_compiled(kernel.source, kernel.spec, chip, dims, dtype, kind))


@functools.cache
def _compiled(
    source: str, spec: Attention, chip: str, dims: tuple[int, int], dtype: str, kind: str
) -> dict[str, Artifact]:
    found = compile_kernels(source, spec, arch=chip, dtype=dtype, head_dim=dims, kind=kind)
    assert len({a.kernel for a in found}) == len(found)
    return {a.kernel: a for a in found}


def refused(found: dict[str, Artifact], chip: str) -> dict[str, str]:
    """Kernels that the chip would not launch, and for want of what."""
    reasons: dict[str, str] = {}
    for name, a in found.items():
        if a.shared > SHARED_MEMORY[chip] * 1024:
            reasons[name] = f"{a.shared} bytes of shared memory"
        if a.tensor_memory > TENSOR_MEMORY:
            reasons[name] = f"{a.tensor_memory} columns of tensor memory"
    return reasons
