"""The kernels of sequences, through the real compilers of every chip."""

from __future__ import annotations

from pathlib import Path

import pytest

import attngen
from attngen.aot.compile import compile_kernels

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("name", ["causal", "documents", "alibi", "rollouts", "softcap"])
def test_kernels_of_sequences_compile(name: str, arch: str) -> None:
    kernel = attngen.compile(EXAMPLES / f"{name}.attn", geometry=("packed", "lengths"), arch="portable")
    kind = "hsaco" if arch == "gfx942" else "cubin"
    found = compile_kernels(kernel.source, kernel.spec, arch=arch, dtype="bf16", head_dim=(64, 64), kind=kind)
    own = {a.kernel: a for a in found if a.kernel.startswith("sequence_")}
    wanted = {"sequence_forward", "sequence_dq", "sequence_dkdv"}
    wanted |= {"sequence_key_test0", "sequence_query_test0"} if name == "documents" else set()
    maps = {"sequence_extremes", "sequence_map_keys", "sequence_map_queries"}
    assert wanted | (maps if name == "rollouts" else set()) <= own.keys()


def test_no_loop_spills_at_head_dim_128() -> None:
    """Tiles for descriptors take too many registers here: with them the forward kernel had 503 spilled values."""
    kernel = attngen.compile(EXAMPLES / "causal.attn", geometry=("packed",), arch="sm_90")
    found = compile_kernels(kernel.source, kernel.spec, arch="sm_90", dtype="bf16", head_dim=(128, 128), kind="cubin")
    own = {a.kernel: a for a in found}
    for part in ("forward", "dq", "dkdv"):
        assert not own[f"sequence_{part}"].loop_spills
