"""The kernels of compute capability 9.0 through the real compiler: where there is one, it fits, and is fast."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from aot.chips import EXAMPLES, NAMES, binaries, build, refused
from triton import knobs

import attngen
from attngen.plan.tiles.hopper import apart_skeletons, backward_skeletons, skeletons
from attngen.plan.tiles.traits import traits

DIMS = ((64, 64), (128, 128), (256, 256), (192, 128), (80, 64))
SAMPLE = {("causal", dims) for dims in DIMS[:3]} | {("windowed_alibi", (80, 64)), ("documents", (128, 128))}
SAMPLE |= {("relative_bias", (128, 128))}
"""Each of the chip's own kernels, what a list of runs adds to the forward, and the fullest registers backward. `causal`
is what the tests of the parts look into, too, so it is compiled once for both. Slow are, among others, `sink` at head
dim 64, whose rows are those of `causal`, and whose extra term stands behind the loops; and `documents` at 256, whose
backward rows are those of `causal`, and whose forward follows lists as at 128."""
SPILLS = 15
"""Values that the loop over tiles and the one around it may reload, of all warpgroups and for masked tiles, too:
bookkeeping, never weights or sums, which would take 64 at once."""
MORE = {(name, (64, 64), "hopper_forward"): 24 for name in ("relative_bias", "t5_bias")}
"""A bias by distance beside three warpgroups of 128 registers: two of 168, which spill less, took a quarter longer."""
MORE |= {
    (name, dims, "hopper_backward"): limit
    for name, dims, limit in (
        ("chunked", (64, 64), 120),
        ("prefix_lm", (64, 64), 90),
        ("sliding_window", (64, 64), 50),
        ("custom_normalizer", (64, 64), 72),
        ("documents", (64, 64), 32),
        ("full_bias", (128, 128), 44),
        ("block_sparse", (128, 128), 190),
    )
}
"""Where a mask has several ends, in tiles of 128 queries, addresses of a pair, and a loop over a list of each row: most
where a tile needs its mask. In
one that needs none 0 to 8 of some 570 instructions of a warpgroup, under `full_bias` 10 of 690."""


def matrix() -> list[object]:
    cases = [(name, dims) for name in NAMES for dims in DIMS]
    return [pytest.param(*c, id=str(c), marks=[] if c in SAMPLE else [pytest.mark.slow]) for c in cases]


@pytest.mark.parametrize(("name", "dims"), matrix())
def test_it_fits_and_keeps_to_registers(name: str, dims: tuple[int, int]) -> None:
    kernel = build(name)
    found = binaries(kernel, "sm_90", dims, kind="ptx")  # as the tests of the parts have it
    blocks = tuple(max(64, 1 << (d - 1).bit_length()) for d in dims)
    has_row = blocks in skeletons(traits(kernel.plan), kernel.spec.tile)
    assert ("hopper_forward" in found) == has_row
    assert ("list_key_runs" in found) == (has_row and bool(kernel.plan.keys.tests))
    has_backward = blocks in backward_skeletons(traits(kernel.plan), kernel.spec.tile)
    assert ("hopper_backward" in found) == ("collect" in found) == has_backward
    assert {"forward", "dkdv", "dq"} <= found.keys()  # those for all cards are there, too
    assert not refused(found, "sm_90")
    has_apart = blocks in apart_skeletons(traits(kernel.plan), kernel.spec.tile)
    assert ("hopper_dkdv" in found) == ("hopper_dq" in found) == has_apart
    for kind in (k for k in found if k.startswith("hopper_")):
        assert found[kind].loop_spills <= MORE.get((name, dims, kind.removesuffix("_2")), SPILLS)


@pytest.mark.parametrize("dims", [(64, 64), *(pytest.param(d, marks=pytest.mark.slow) for d in DIMS[1:4])], ids=str)
@pytest.mark.parametrize("mask", ["seen[q, k]", "causal and (q - k) % 4 == 0"])
def test_masks_of_maps_are_words(mask: str, dims: tuple[int, int]) -> None:
    """A thread reads a word for eight of its pairs, and no element of the mask; what kernels of both passes hold fits
    in registers. A warp of the backward kernel reads the map."""
    kernel = attngen.compile(f"attention named\n\nparam seen: bool[Sq, Sk]\nmask = {mask}\n")
    found = binaries(kernel, "sm_90", dims, kind="ptx")
    assert not refused(found, "sm_90")
    kinds = [k for k in found if k.startswith(("hopper_forward", "hopper_backward", "hopper_dkdv"))]
    assert kinds and all(found[k].loop_spills <= SPILLS for k in kinds)
    for kind in kinds:
        text = found[kind].data
        assert isinstance(text, str)
        assert (
            text.count("ld.global.b8") == (1 if kind.startswith("hopper_backward") else 0) and "ld.global.b32" in text
        )
    asked = found["map_keys"].data
    assert isinstance(asked, str) and ("ld.global.b8" in asked) == ("seen" in mask)


@pytest.mark.parametrize(
    ("dtype", "name"), [("bf16", "causal"), pytest.param("fp16", "causal", marks=pytest.mark.slow)]
)
def test_its_parts(dtype: str, name: str) -> None:
    text = binaries(build(name), "sm_90", (128, 128), dtype, "ptx")["hopper_forward"].data
    assert isinstance(text, str)
    operands = {"bf16": "bf16.bf16", "fp16": "f16.f16"}[dtype]
    assert re.search(rf"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.{operands}", text)
    assert "setmaxnreg.dec" in text and "setmaxnreg.inc" in text
    assert "cp.async.bulk.tensor" in text and "mbarrier.try_wait" in text
    # Each of two warpgroups: keys and values are free, in the loop and beside it, and queries; and whose turn it is,
    # which the last one says first; the same, but for queries, of a tile that none of its queries meets.
    assert text.count("bar.arrive") == 2 * (2 * 2 + 1 + 1 + 3) + 1


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_products_wait_only_where_the_source_waits(dim: int, tmp_path: Path) -> None:
    """The assembler makes each product wait (its note C7513) where it finds that operands change under one."""
    cubin = binaries(build("causal"), "sm_90", (dim, dim), "bf16", "cubin")["hopper_forward"].data
    assert isinstance(cubin, bytes)
    (tmp_path / "cubin").write_bytes(cubin)
    command = [knobs.nvidia.nvdisasm.path, "-c", str(tmp_path / "cubin")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Three warpgroups wait for scores and for values; two for both before their loop, in it, and after it for values.
    assert listing.count("WARPGROUP.DEPBAR") == {64: 3 * 2, 128: 2 * 4, 256: 2 * 4}[dim]


@pytest.mark.parametrize(
    ("dtype", "operands"), [("bf16", "bf16.bf16"), pytest.param("fp16", "f16.f16", marks=pytest.mark.slow)]
)
def test_the_parts_of_the_backward_kernel(dtype: str, operands: str) -> None:
    text = binaries(build("causal"), "sm_90", (128, 128), dtype, "ptx")["hopper_backward"].data
    assert isinstance(text, str)
    products = re.findall(rf"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k16)\.f32\.{operands}", text)
    # Two warpgroups: S and dP in eight steps of 64 columns, dV and dK in four of 128. One: dQ's halves in eight of 64.
    # S and dP each start with a step for what rows add, in bfloat16 whatever q is.
    terms = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.bf16\.bf16", text)
    assert (products.count("m64n64k16"), products.count("m64n128k16")) == (2 * 16 + 16 + 4 * (dtype == "bf16"), 2 * 8)
    assert len(terms) == (2 * 16 + 16 if dtype == "bf16" else 0) + 2 * 2
    # dS is stored and a tile is free: in each half's tiles, and where the second half passes over some, before them and
    # behind (the first meets all, which the compiler sees). These two, dQ's and two warps have read the next item.
    assert text.count("bar.arrive") == 2 + (2 + 2 * 2) + 5
    assert "ld.acquire.gpu.global" in text and "st.release.gpu.global" in text
    assert re.search(r"atom\.global\.gpu\.relaxed\.add\.v4\.f32", text)


def test_the_parts_of_the_backward_kernels_above_head_dim_128() -> None:
    found = binaries(build("causal"), "sm_90", (256, 256), "bf16", "ptx")
    for kind, products in {"hopper_dkdv": (64, 8), "hopper_dq": (64, 8)}.items():
        text = found[kind].data
        assert isinstance(text, str)
        shapes = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k16)\.f32\.bf16", text)
        # Two warpgroups. dK/dV: S or dP in sixteen steps of 64 columns, before the loop and in it, and dV or dK in four
        # of 256. dQ: both S and dP, and dQ in four, in the loop.
        assert (shapes.count("m64n64k16"), shapes.count("m64n256k16")) == products
    handed = found["hopper_dkdv"].data
    assert isinstance(handed, str) and "st.shared.v4" in handed and "ld.shared.v4" in handed  # 16 bytes a thread


@pytest.mark.parametrize(
    ("chip", "dims", "dtype"), [("sm_90", (20, 20), "bf16"), ("sm_90", (64, 20), "bf16"), ("sm_80", (64, 64), "bf16")]
)
def test_elsewhere_the_portable_kernel_runs(chip: str, dims: tuple[int, int], dtype: str) -> None:
    found = binaries(build("causal"), chip, dims, dtype, "ttgir")  # which `test_kinds` looks into
    assert "forward" in found and not any("hopper" in name for name in found)


def test_up_to_head_dim_32_the_kernels_of_the_chip_are_backward_and_for_pairs() -> None:
    assert {n for n in binaries(build("causal"), "sm_90", (32, 32), kind="ptx") if "hopper" in n} == {
        "hopper_backward",
        "hopper_backward_2",
    }
    found = binaries(build("full_bias"), "sm_90", (32, 16), kind="ptx")
    assert {"hopper_forward", "hopper_backward"} <= found.keys()
    assert all(x.loop_spills <= SPILLS for n, x in found.items() if "hopper" in n)


def test_who_wants_no_kernel_of_a_chip_gets_none() -> None:
    path = EXAMPLES / "causal.attn"
    assert "gluon" in attngen.compile(path).source
    assert attngen.compile(path, arch="sm_90").source.count("@gluon.jit") == attngen.compile(path).source.count(
        "@gluon.jit"
    )
    for arch in ("portable", "sm_80", "gfx942"):
        assert "gluon" not in attngen.compile(path, arch=arch).source
    assert "gluon" not in attngen.compile(path, tile=(64, 64)).source
    assert "gluon" in attngen.compile(path, tile=(128, 64)).source
