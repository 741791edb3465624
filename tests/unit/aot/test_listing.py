"""Counts read from what the compilers print. The texts are cut from real listings."""

from __future__ import annotations

import pytest

from attngen.aot import listing
from attngen.errors import InternalError

USAGE = """
Fatbin elf code:
================
Resource usage:
 Common:
  GLOBAL:0
 Function _forward_kernel:
  REG:255 STACK:148 SHARED:0 LOCAL:0 CONSTANT[0]:672 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

LOG = """
ptxas info    : Compiling entry function '_forward_kernel' for 'sm_90a'
ptxas info    : Function properties for _forward_kernel
    148 bytes stack frame, 136 bytes spill stores, 172 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 148 bytes cumulative stack size
"""

SASS = """
.text._dkdv_kernel:
        /*0000*/                   STL [R1+0x7c], R9 ;
        /*0010*/              @!P0 BRA `(.L_x_9) ;
.L_x_3:
        /*0020*/                   LDL R4, [R1+0x7c] ;
.L_x_4:
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R6, R4 ;
        /*0040*/                   STL.64 [R1+0x8], R4 ;
        /*0050*/                   LDL.LU R4, [R1+0x8] ;
        /*0060*/               @P1 BRA `(.L_x_4) ;
        /*0070*/                   LDL R4, [R1+0x7c] ;
        /*0080*/               @P2 BRA `(.L_x_3) ;
.L_x_5:
        /*0090*/                   LDL R4, [R1+0x7c] ;
        /*00a0*/               @P3 BRA `(.L_x_5) ;
.L_x_9:
        /*00b0*/                   EXIT ;
"""

AMD = """
	s_cbranch_execz .LBB0_9
.LBB0_1:                                ; =>This Inner Loop Header: Depth=1
	v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3]
	scratch_store_dword off, v2, off offset:68 ; 4-byte Folded Spill
	scratch_load_dwordx2 v[4:5], off, off offset:8 ; 8-byte Folded Reload
	s_cbranch_scc1 .LBB0_1
	scratch_load_dword v2, off, off offset:68 ; 4-byte Folded Reload
.LBB0_9:
	.vgpr_count:     256
	.vgpr_spill_count: 36
"""


def test_nvidia_registers() -> None:
    assert listing.nvidia_registers(USAGE) == (255, 148)


def test_nvidia_spills_are_counted_in_registers() -> None:
    assert listing.nvidia_spills(LOG) == 136 // 4


def test_only_the_innermost_loop_with_a_product_counts() -> None:
    # The loop .L_x_3 holds .L_x_4, and .L_x_5 multiplies nothing; a forward branch makes no loop.
    assert listing.nvidia_loop_spills(SASS) == 2


def test_without_tensor_cores_products_are_ffmas() -> None:
    assert listing.nvidia_loop_spills(SASS.replace("HMMA.16816.F32.BF16", "FFMA")) == 2
    # With tensor cores somewhere, a loop of FFMAs alone is no main loop.
    assert listing.nvidia_loop_spills(SASS.replace("LDL R4, [R1+0x7c] ;\n        /*00a0*/", "FFMA ;\n/*00a0*/")) == 2


@pytest.mark.parametrize("product", ["HGMMA.64x64x16.F32.BF16", "UTCHMMA"])
def test_newer_products(product: str) -> None:
    assert listing.nvidia_loop_spills(SASS.replace("HMMA.16816.F32.BF16", product)) == 2


def test_amd() -> None:
    assert listing.amd_registers(AMD) == (256, 36)
    assert listing.amd_loop_spills(AMD) == 2
    assert listing.amd_loop_spills(AMD.replace("v_mfma_f32_16x16x16_bf16", "v_add_f32")) == 0


def test_a_listing_that_says_nothing_is_an_error() -> None:
    with pytest.raises(InternalError, match="REG"):
        listing.nvidia_registers("")
