# pyright: basic, reportAttributeAccessIssue=false, reportConstantRedefinition=false
# Gluon has no types.

"""Gluon, in which kernels of compute capability 9.0 are written, and what releases of Triton call differently in it.

Under an unknown release of Triton these kernels are read and never compiled; the portable ones run.
"""

from typing import Any

import triton
import triton.language as tl

from .releases import KNOWN

GLUON_KNOWN = KNOWN
try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_init,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as HopperDescriptor

    # Triton 3.7 renamed these functions. Each line takes the new name if it exists, else that of 3.6.
    BARRIER: Any = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
    SHARED: Any = gl.shared_memory_descriptor
    REINTERPRET: Any = SHARED.reinterpret if hasattr(SHARED, "reinterpret") else SHARED._reinterpret
    COPY_IN: Any = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
    COPY_OUT: Any = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
except (ImportError, AttributeError):
    GLUON_KNOWN = False
    gluon, gl = triton, tl
    fence_async_shared = mbarrier = tma = warpgroup_mma = warpgroup_mma_init = warpgroup_mma_wait = None
    HopperDescriptor = SHARED = BARRIER = REINTERPRET = COPY_IN = COPY_OUT = None
