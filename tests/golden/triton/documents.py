"""documents: fused attention for GPUs, forward and backward, in Triton.

Made by attngen from the specification below: edit that and compile again, or edit this file by hand.
It needs torch and triton alone. `documents` is differentiable, and a custom operator, with which torch.compile needs no
graph break.
"""

# The specification:
#
#     # Packed documents: several sequences share a row of the batch, and no token sees another document.
#     #
#     #   s_ij = q_i . k_j / sqrt(D),   j <= i  and  id_i = id_j
#     #
#     # Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021 (https://arxiv.org/abs/2107.02027).
#     attention documents
#
#     param ids: int[B, Sk]  # which document a token belongs to, in any order
#
#     mask = causal and same_document(ids)
#
#     assume Sq == Sk
#
# sha256 of its text: 7ed32c82cbffdaaeba08d7448fc276a2bb5ed74c0b25ed16f390a011adba49ba
# options: target=triton precision=ieee
# Proved: streaming, range-safety, empty-rows, locality, gradients, tile-ranges, index-bounds, integer-width.

from __future__ import annotations

import functools
import math
import operator
import sys
import threading
import warnings
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import flop_registry
from triton import knobs
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

# The first and last release of Triton that this file is tested with, and whose private names it knows.
RELEASES = ((3, 6), (3, 9))
KNOWN = RELEASES[0] <= tuple(map(int, triton.__version__.split(".")[:2])) <= RELEASES[1]

# The kernels for Hopper GPUs are written in Gluon. Under an unknown release of Triton the portable kernels run.
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
    _BARRIER = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
    _SHARED = gl.shared_memory_descriptor
    _REINTERPRET = _SHARED.reinterpret if hasattr(_SHARED, "reinterpret") else _SHARED._reinterpret
    _COPY_IN = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
    _COPY_OUT = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
except (ImportError, AttributeError):
    GLUON_KNOWN = False
    gluon, gl = triton, tl  # the kernels are read, and never compiled

PRECISION = tl.constexpr("ieee")  # of float32 products; half precision is exact in the product
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

# Tile sizes by (chip, bytes of an element, head dim rounded up): for the forward, dK/dV and dQ kernels, each (queries,
# keys, warps, stages). All fit the chip's shared memory.
TILES = {
    (chip, size, head_dim): row
    for row, places in (
        (((128, 64, 4, 3), (64, 64, 4, 1), (128, 64, 8, 2)), ((("sm_80", "sm_86",), 2, (16, 32)),)),
        (((128, 64, 8, 3), (32, 64, 8, 2), (128, 64, 8, 3)), ((("sm_80", "sm_86",), 2, (64,)),)),
        (((128, 32, 8, 3), (64, 64, 8, 1), (128, 32, 8, 2)), ((("sm_80",), 2, (128,)),)),
        (((64, 64, 8, 2), (32, 32, 8, 1), (64, 32, 8, 2)), ((("sm_80",), 2, (256,)),)),
        (((32, 32, 4, 1), (32, 32, 4, 1), (32, 32, 4, 1)), ((("sm_80", "sm_86", "sm_90", "sm_100",), 4, (16, 32, 64)),
         (("gfx942",), 4, (16, 32, 64, 128)),)),
        (((32, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1)), ((("sm_80", "sm_86", "sm_90", "sm_100",), 4, (128,)),)),
        (((32, 16, 8, 1), (16, 32, 8, 1), (32, 16, 8, 1)), ((("sm_80", "sm_90", "sm_100",), 4, (256,)),)),
        (((128, 32, 8, 3), (32, 64, 8, 1), (128, 32, 8, 2)), ((("sm_86",), 2, (128,)),)),
        (((64, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1)), ((("sm_86",), 2, (256,)),)),
        (((32, 16, 8, 1), (16, 16, 8, 1), (16, 16, 8, 1)), ((("sm_86",), 4, (256,)),)),
        (((128, 64, 4, 3), (64, 64, 4, 2), (128, 64, 4, 3)), ((("sm_90",), 2, (16, 32)),)),
        (((64, 128, 4, 2), (64, 64, 4, 2), (128, 64, 8, 3)), ((("sm_90",), 2, (64,)),)),
        (((64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 4, 2)), ((("sm_90",), 2, (128,)),)),
        (((128, 64, 8, 2), (64, 64, 8, 2), (64, 64, 4, 2)), ((("sm_90",), 2, (256,)),)),
        (((128, 64, 8, 3), (64, 64, 4, 1), (128, 64, 8, 2)), ((("sm_100",), 2, (16, 32)),)),
        (((128, 64, 8, 3), (64, 64, 8, 1), (64, 64, 8, 2)), ((("sm_100",), 2, (64,)),)),
        (((128, 64, 4, 2), (64, 64, 8, 1), (64, 64, 8, 2)), ((("sm_100",), 2, (128,)),)),
        (((128, 64, 8, 1), (64, 64, 8, 1), (64, 64, 8, 1)), ((("sm_100",), 2, (256,)),)),
        (((128, 64, 4, 2), (64, 64, 4, 1), (128, 64, 4, 2)), ((("gfx942",), 2, (16, 32)),)),
        (((128, 64, 4, 2), (64, 64, 4, 1), (64, 64, 4, 2)), ((("gfx942",), 2, (64,)),)),
        (((128, 64, 4, 1), (32, 64, 4, 1), (64, 64, 4, 1)), ((("gfx942",), 2, (128,)),)),
        (((64, 64, 4, 1), (16, 64, 8, 1), (32, 32, 4, 1)), ((("gfx942",), 2, (256,)),)),
        (((32, 16, 4, 1), (16, 32, 4, 1), (32, 16, 4, 1)), ((("gfx942",), 4, (256,)),)),
        (((64, 64, 4, 1), (64, 64, 4, 1), (64, 64, 4, 1)), ((("cpu",), 2, (16, 32, 64, 128, 256)), (("cpu",), 4, (16,
         32, 64, 128, 256)),)),
    )
    for chips, size, head_dims in places
    for chip in chips
    for head_dim in head_dims
}

# Register limits by (head dim rounded up, queries, keys, warps, stages of the forward tile), so that one more program
# fits on a multiprocessor.
REGISTERS: dict[tuple[int, ...], int] = {(128, 64, 128, 4, 1): 168, (128, 64, 64, 4, 1): 168}


# The forward kernel for Hopper by head dims of (q and k, v), rounded up: queries, keys, stages, whether a warpgroup
# overlaps its own products, whether warpgroups start products in turn, registers of a consumer and of a producer
# thread. together: at least so many heads take their tiles in turn; ahead: or as many as have so many tiles in all.
# SCHEDULE: `once`, a program takes one tile; `queue`, the next one until none is left. OUT_APART: results have shared
# memory of their own.
HopperRow = namedtuple("HopperRow", "BQ BK STAGES PIPELINED ORDERED REGISTERS SPARE together ahead SCHEDULE OUT_APART")
HOPPER = {
    (64, 64): (192, 64, 2, False, True, 160, 32, 8, 512, 'queue', True),
    (64, 128): (128, 64, 4, True, False, 240, 24, 8, 512, 'queue', True),
    (128, 64): (128, 64, 4, True, False, 240, 24, 8, 512, 'queue', True),
    (128, 128): (128, 64, 4, True, False, 240, 24, 8, 512, 'queue', True),
    (256, 128): (128, 64, 2, True, False, 240, 24, 8, 512, 'once', False),
    (256, 256): (128, 64, 2, True, False, 240, 24, 8, 512, 'once', False),
    (192, 128): (128, 64, 2, True, False, 240, 24, 8, 512, 'once', False),
}

# The backward kernel for Hopper, likewise: queries, keys, stages, whether weights wait for dO, together, ahead,
# registers of a producer thread, and whether, with enough heads, tiles of keys are taken from the last to the first.
HopperBackwardRow = namedtuple("HopperBackwardRow", "BQ BK STAGES EARLY together ahead SPARE BACKWARDS")
HOPPER_BACKWARD = {
    (32, 32): (128, 128, 3, False, 4, 512, 24, True),
    (64, 64): (128, 128, 3, False, 4, 512, 24, True),
    (128, 128): (64, 128, 3, True, 2, 256, 24, True),
}

# The backward kernels for larger head dims. dK/dV: queries, keys, stages, by how many tiles the warpgroup of the
# weights may be ahead, heads that take tiles in turn, registers of a producer thread. dQ: queries, keys, stages of
# keys, stages of values, heads that take tiles in turn, registers of a producer thread.
HopperDkdvRow = namedtuple("HopperDkdvRow", "BQ BK STAGES AHEAD together SPARE")
HopperDqRow = namedtuple("HopperDqRow", "BQ BK K_STAGES V_STAGES together SPARE")
HOPPER_APART = {
    (256, 256): ((64, 64, 2, 1, 1, 24), (128, 64, 2, 1, 1, 24)),
    (192, 128): ((64, 64, 2, 1, 1, 24), (128, 64, 2, 2, 1, 24)),
    (256, 128): ((64, 64, 2, 1, 1, 24), (128, 64, 2, 2, 1, 24)),
    (128, 256): ((64, 64, 2, 1, 1, 24), (128, 64, 2, 2, 1, 24)),
}


# ---------------------------------------------------------------- helpers


# _Rows: the rows of one head (`base`: a pointer, or a descriptor of all heads). _Tiling: compile-time sizes of a tile.
_Rows = namedtuple("_Rows", "base batch head stop stride")
_Tiling = namedtuple("_Tiling", "D Dv BQ BK")

# Sizes, and strides of params, for whose values Triton must not specialize a kernel.
UNSPECIALIZED = ['B', 'Hq', 'Hkv', 'Sq', 'Sk', 'ids_stride_0']


@triton.constexpr_function
def _block(cols):
    """The columns of a tile: rounded up to a power of two, at least 16."""
    return max(16, triton.next_power_of_2(cols))


@triton.jit
def _load_rows(rows, start, ROWS: tl.constexpr, COLS: tl.constexpr, CHECKED: tl.constexpr):
    """Loads ROWS rows from `start` on. Columns from COLS on are zero and, if CHECKED, so are rows past the end."""
    if not isinstance(rows.base, tl.tensor):
        tile = tl.reshape(rows.base.load([rows.batch, rows.head, start, 0]), [ROWS, _block(COLS)])
    else:
        row = tl.arange(0, ROWS)[:, None]
        col = tl.arange(0, _block(COLS))[None, :]
        cells = rows.base + tl.cast(start, tl.int64) * rows.stride + row * rows.stride + col
        if CHECKED and _block(COLS) == COLS:
            tile = tl.load(cells, mask=row < rows.stop - start, other=0.0)
        elif CHECKED:
            tile = tl.load(cells, mask=(row < rows.stop - start) & (col < COLS), other=0.0)
        elif _block(COLS) == COLS:
            tile = tl.load(cells)
        else:
            tile = tl.load(cells, mask=col < COLS, other=0.0)
    return tile


@triton.jit
def _store_rows(rows, values, start, COLS: tl.constexpr):
    """Stores rows of one head from `start` on, in the tensor's dtype."""
    row = tl.arange(0, values.shape[0])[:, None]
    col = tl.arange(0, values.shape[1])[None, :]
    cells = rows.base + tl.cast(start, tl.int64) * rows.stride + row * rows.stride + col
    tl.store(cells, values.to(rows.base.dtype.element_ty), mask=(row < rows.stop - start) & (col < COLS))


@triton.jit
def _head_rows(tensor, batch, head, strides, stop, ALIGN: tl.constexpr):
    """The rows of one head. ALIGN divides the strides, as the host has checked."""
    stride_b, stride_h, stride_s = strides
    base = tensor
    if isinstance(tensor, tl.tensor):
        # 64 bits: a batch may hold more than 2**31 elements.
        offset_b = tl.cast(batch, tl.int64) * (stride_b // ALIGN * ALIGN)
        base = tensor + offset_b + tl.cast(head, tl.int64) * (stride_h // ALIGN * ALIGN)
    return _Rows(base, batch, head, stop, stride_s // ALIGN * ALIGN)


@triton.jit
def _in_turn(item, n_tiles, heads, together):
    """(first head in turn, place in its head's order, head) of an item: `together` heads, which share the L2 cache."""
    first = item // (n_tiles * together) * together
    width = tl.minimum(heads - first, together)
    i = item - first * n_tiles
    order = i // width
    return first, order, first + i % width


@triton.jit
def _busy_tiles_first(n_tiles, n_heads, LATE: tl.constexpr):
    """(tile, batch, head) of this program: eight heads in turn, longest tiles first."""
    _first, order, i = _in_turn(tl.program_id(0), n_tiles, tl.num_programs(0) // n_tiles, 8)
    return n_tiles - 1 - order if LATE else order, i // n_heads, i % n_heads


@triton.jit
def _matching_tiles(least_ptr, most_ptr, least, most, n_tiles, TILE: tl.constexpr, TEST: tl.constexpr):
    """Where a test between this tile's values (least … most) and those of each walked tile can hold, and where it must.

    Gives positions any_lo, any_hi (the hull of the tiles where it can hold) and all_lo, all_hi (a run of tiles in which
    it holds for every pair; empty where those tiles are not consecutive). TEST: 0 equal, 1 here <= there, 2 there <=
    here.
    """
    any_lo = n_tiles
    any_hi = n_tiles * 0
    all_lo = n_tiles
    all_hi = n_tiles * 0
    count = n_tiles * 0
    for first in tl.range(0, n_tiles, 128):
        t = first + tl.arange(0, 128)
        there = t < n_tiles
        low = tl.load(least_ptr + t, mask=there, other=0)
        high = tl.load(most_ptr + t, mask=there, other=0)
        if TEST == 0:
            can = there & (low <= most) & (least <= high)
            must = there & (low == high) & (low == least) & (low == most)
        elif TEST == 1:
            can = there & (least <= high)
            must = there & (most <= low)
        else:
            can = there & (low <= most)
            must = there & (high <= least)
        any_lo = tl.minimum(any_lo, tl.min(tl.where(can, t, n_tiles), 0))
        any_hi = tl.maximum(any_hi, tl.max(tl.where(can, t + 1, 0), 0))
        all_lo = tl.minimum(all_lo, tl.min(tl.where(must, t, n_tiles), 0))
        all_hi = tl.maximum(all_hi, tl.max(tl.where(must, t + 1, 0), 0))
        count += tl.sum(tl.where(must, 1, 0), 0)
    all_hi = tl.where(count == all_hi - all_lo, all_hi, all_lo)
    return any_lo * TILE, any_hi * TILE, all_lo * TILE, all_hi * TILE


# ---------------------------------------------------------------- which tiles meet


@triton.jit
def _key_tiles(q0, q1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi, Sq, Sk, BK: tl.constexpr):
    """Runs of tiles for the queries q0 … q1: `any` may hold an allowed pair; in `full` every pair is allowed."""
    q0 = tl.cast(q0, tl.int64)
    q1 = tl.cast(q1, tl.int64)
    any_lo = tl.cast(tl.maximum(0, test0_any_lo) // BK, tl.int32)
    any_hi = tl.cast(tl.cdiv(tl.minimum(tl.minimum(Sk, q1 + Sk - Sq + 1), test0_any_hi), BK), tl.int32)
    any_hi = tl.maximum(any_hi, any_lo)
    full_lo = tl.cast(tl.cdiv(tl.maximum(0, test0_all_lo), BK), tl.int32)
    full_hi = tl.cast(tl.minimum(tl.minimum(Sk, q0 + Sk - Sq + 1), test0_all_hi) // BK, tl.int32)
    full_hi = tl.maximum(full_hi, full_lo)
    full_lo = tl.minimum(tl.maximum(full_lo, any_lo), any_hi)
    full_hi = tl.minimum(tl.maximum(full_hi, full_lo), any_hi)
    return full_lo, full_hi, any_lo, any_hi


@triton.jit
def _query_tiles(k0, k1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi, Sq, Sk, BQ: tl.constexpr):
    """Runs of tiles for the keys k0 … k1: `any` may hold an allowed pair; in `full` every pair is allowed."""
    k0 = tl.cast(k0, tl.int64)
    k1 = tl.cast(k1, tl.int64)
    any_lo = tl.cast(tl.maximum(tl.maximum(0, k0 + Sq - Sk), test0_any_lo) // BQ, tl.int32)
    any_hi = tl.cast(tl.cdiv(tl.minimum(Sq, test0_any_hi), BQ), tl.int32)
    any_hi = tl.maximum(any_hi, any_lo)
    full_lo = tl.cast(tl.cdiv(tl.maximum(tl.maximum(0, k1 + Sq - Sk), test0_all_lo), BQ), tl.int32)
    full_hi = tl.cast(tl.minimum(Sq, test0_all_hi) // BQ, tl.int32)
    full_hi = tl.maximum(full_hi, full_lo)
    full_lo = tl.minimum(tl.maximum(full_lo, any_lo), any_hi)
    full_hi = tl.minimum(tl.maximum(full_hi, full_lo), any_hi)
    return full_lo, full_hi, any_lo, any_hi


@triton.jit
def _key_test0(place, extremes, arguments, TILE: tl.constexpr):
    """Stores the least and the greatest value of `ids[b, k]` in a tile of keys."""
    tile, batch, head, n_tiles, n_heads = place
    _scale, _B, _Hq, _Hkv, _Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1 = arguments
    least_ptr, most_ptr = extremes
    k_idx = tile * TILE + tl.arange(0, TILE)
    k_safe = tl.minimum(k_idx, Sk - 1)
    value = tl.cast(tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0
        + tl.cast(k_safe, tl.int64) * ids_stride_1), tl.int64)
    inside = k_idx < Sk
    cell = (batch * n_heads + head) * n_tiles + tile
    tl.store(least_ptr + cell, tl.min(tl.where(inside, value, 9223372036854775807), 0))
    tl.store(most_ptr + cell, tl.max(tl.where(inside, value, -9223372036854775807), 0))


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _key_test0_kernel(key_test0_least_ptr, key_test0_most_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0,
    ids_stride_1, TILE: tl.constexpr):
    """Calls `_key_test0` for each tile."""
    place = (tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(0), tl.num_programs(2))
    _key_test0(place, (key_test0_least_ptr, key_test0_most_ptr),
        (scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1), TILE)


@triton.jit
def _query_test0(place, extremes, arguments, TILE: tl.constexpr):
    """Stores the least and the greatest value of `ids[b, q]` in a tile of queries."""
    tile, batch, head, n_tiles, n_heads = place
    _scale, _B, _Hq, _Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1 = arguments
    least_ptr, most_ptr = extremes
    q_idx = tile * TILE + tl.arange(0, TILE)
    value = tl.cast(tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(q_idx, tl.int64) * ids_stride_1,
        mask=(q_idx < Sk), other=0), tl.int64)
    inside = q_idx < Sq
    cell = (batch * n_heads + head) * n_tiles + tile
    tl.store(least_ptr + cell, tl.min(tl.where(inside, value, 9223372036854775807), 0))
    tl.store(most_ptr + cell, tl.max(tl.where(inside, value, -9223372036854775807), 0))


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _query_test0_kernel(query_test0_least_ptr, query_test0_most_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0,
    ids_stride_1, TILE: tl.constexpr):
    """Calls `_query_test0` for each tile."""
    place = (tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(0), tl.num_programs(2))
    _query_test0(place, (query_test0_least_ptr, query_test0_most_ptr),
        (scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1), TILE)


# ---------------------------------------------------------------- forward


@triton.jit
def _no_keys(ROWS: tl.constexpr, COLS: tl.constexpr):
    """The state of rows without a key so far."""
    acc = tl.zeros([ROWS, _block(COLS)], tl.float32)
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    return acc, row_max, row_sum


@triton.jit
def _attend_tile(state, held, k_rows, v_rows, k0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Folds the keys k0 … k0 + BK - 1 into a tile's state. `held`: values that do not depend on the key."""
    acc, row_max, row_sum = state
    q, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, row_term, row_term_2 = held
    Sk = k_rows.stop
    batch = k_rows.batch
    k_idx = (k0 + tl.arange(0, tiling.BK))[None, :]
    k = _load_rows(k_rows, k0, tiling.BK, tiling.D, MASKED)
    qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    x = qk
    if MASKED:
        k_safe = tl.minimum(k_idx, Sk - 1)
        col_term = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(k_safe, tl.int64) * ids_stride_1)
        x = tl.where((k_idx <= row_term) & (row_term_2 == col_term), x, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(x, 1))
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # rows without a key so far
    rescale = tl.exp2((row_max - shift) * logit_scale)
    weight = tl.exp2(x * logit_scale - (shift * logit_scale)[:, None])
    row_max = new_max
    row_sum = row_sum * rescale + tl.sum(weight, 1)
    acc = acc * rescale[:, None]
    v = _load_rows(v_rows, k0, tiling.BK, tiling.Dv, MASKED)
    acc = tl.dot(weight.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, row_max, row_sum


@triton.jit
def _finish(state, factor):
    """The output rows and their log-sum-exp, from the final state."""
    acc, row_max, row_sum = state
    total = row_max * factor
    empty = row_max == float("-inf")
    row_sum = tl.where(empty, 1.0, row_sum)
    acc = acc / row_sum[:, None]
    lse = tl.where(empty, float("-inf"), (total + tl.log2(row_sum)) * LN2)
    return acc, lse


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, key_test0_least_ptr, key_test0_most_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr,
    ids_stride_0, ids_stride_1, q_strides, k_strides, v_strides, out_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr,
):
    """One tile of queries of one head: visits the tiles of keys that it meets."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    tile, batch, head = _busy_tiles_first(tl.cdiv(Sq, BQ), Hq, True)
    kv_head = head // (Hq // Hkv)
    q0 = tile * BQ
    q1 = tl.minimum(q0 + BQ, Sq) - 1
    q_idx = (q0 + tl.arange(0, BQ))[:, None]
    q_rows = _head_rows(q_ptr, batch, head, q_strides, Sq, ALIGN)
    k_rows = _head_rows(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    q = _load_rows(q_rows, q0, BQ, D, True)
    logit_scale = scale * 1.4426950408889634
    row_term = q_idx + Sk - Sq
    row_term_2 = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(q_idx, tl.int64) * ids_stride_1,
        mask=(q_idx < Sk), other=0)
    held = (q, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, row_term, row_term_2)
    state = _no_keys(BQ, Dv)
    test0_least = tl.min(tl.where(q_idx <= q1, tl.cast(row_term_2, tl.int64), 9223372036854775807))
    test0_most = tl.max(tl.where(q_idx <= q1, tl.cast(row_term_2, tl.int64), -9223372036854775807))
    test0_tile = batch * tl.cdiv(Sk, BK)
    (test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi) = _matching_tiles(key_test0_least_ptr + test0_tile,
        key_test0_most_ptr + test0_tile, test0_least, test0_most, tl.cdiv(Sk, BK), BK, 0)
    (full_lo, full_hi, any_lo, any_hi) = _key_tiles(q0, q1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi, Sq,
        Sk, BK)
    for step in tl.range(full_hi - full_lo):
        state = _attend_tile(state, held, k_rows, v_rows, (full_lo + step) * BK, tiling, False)
    for step in tl.range((full_lo - any_lo) + (any_hi - full_hi)):
        at = any_lo + step
        at = tl.where(step < (full_lo - any_lo), at, full_hi + step - (full_lo - any_lo))
        state = _attend_tile(state, held, k_rows, v_rows, at * BK, tiling, True)
    acc, lse = _finish(state, logit_scale)
    row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
    out_rows = _head_rows(out_ptr, batch, head, out_strides, Sq, ALIGN)
    _store_rows(out_rows, acc, q0, Dv)
    rows = q0 + tl.arange(0, BQ)
    tl.store(lse_ptr + row + rows, lse, mask=rows < Sq)


# ---------------------------------------------------------------- forward, for compute capability 9.0


# A ring of tiles in shared memory: the tiles, an mbarrier for each that completes when the tile has arrived, and the
# number of the first hardware barrier that tells that a place is free.
_Ring = namedtuple("_Ring", "tiles ready FREE")


@gluon.jit
def _opaque(item):
    """`item`, opaque to the compiler: values computed from it again do not stay in registers until then."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [item], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _barrier_arrive(number, THREADS: gl.constexpr, WARPS: gl.constexpr):
    """Arrives at hardware barrier `number`, which THREADS threads share, and goes on."""
    each: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    ids = number + gl.full([32 * WARPS], 0, gl.int32, layout=each)
    threads = gl.full([32 * WARPS], THREADS, gl.int32, layout=each)
    gl.inline_asm_elementwise("bar.arrive $1, $2; mov.b32 $0, $1;", "=r,r,r", [ids, threads], gl.int32, False, 1)


@gluon.jit
def _barrier_sync(number, THREADS: gl.constexpr, WARPS: gl.constexpr):
    """Arrives at hardware barrier `number` and waits for all THREADS threads. Their earlier writes are then visible."""
    each: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    ids = number + gl.full([32 * WARPS], 0, gl.int32, layout=each)
    threads = gl.full([32 * WARPS], THREADS, gl.int32, layout=each)
    gl.inline_asm_elementwise("bar.sync $1, $2; mov.b32 $0, $1;", "=r,r,r", [ids, threads], gl.int32, False, 1)


@gluon.jit
def _publish(note, item):
    """Publishes the next item, before anything that follows in this warp."""
    note.store(gl.full([1], item, gl.int32, layout=gl.BlockedLayout([1], [32], [1], [0])))
    _BARRIER()


@gluon.jit
def _unpacked(pairs, dtype: gl.constexpr, layout: gl.constexpr):
    """The packed pairs as a tile in half precision."""
    low = pairs.to(gl.int16).to(dtype, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.join(low, high).reshape([pairs.shape[0], pairs.shape[1] * 2]), layout)


# _Work: the next items, and how they are counted. _Call: the arguments of a call that every function takes. _Config:
# compile-time constants. _Results: where results go. _Walk: the tiles of keys that a warpgroup visits.
_Work = namedtuple("_Work", "notes queue_ptr n_work together")
_Call = namedtuple("_Call", "lists_ptr scale B Hq Hkv Sq Sk ids_ptr ids_stride_0 ids_stride_1")
_Config = namedtuple("_Config",
    "BLOCK_DV BQ BK STAGES SCHEDULE ORDERED OUT_APART PIPELINED Q_COLS K_COLS K_PARTS PARTS SHARE ORDER "
    "dtype qk_layout")
_Results = namedtuple("_Results", "desc tiles lse_ptr")
_Walk = namedtuple("_Walk", "turn n_steps first stop any_lo own_full_lo own_full_hi")


@gluon.jit
def _pin_order(n_steps):
    """A loop that is never entered. The compiler cannot know that, so it moves no wait for a product above it."""
    steps = gl.full([128], n_steps, gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(
        "{ .reg .pred p; wait: setp.ge.s32 p, $1, 0; @p bra.uni go; nanosleep.u32 100; bra.uni wait; go: mov.b32 $0, "
        "$1; }",
        "=r,r", [steps], gl.int32, False, 1,
    )


@gluon.jit
def _work_item(item, n_tiles, n_heads, n_work, together):
    """(tile, batch, head) of an item: late tiles first, `together` heads in turn."""
    _first, order, i = _in_turn(item, n_tiles, n_work // n_tiles, together)
    return n_tiles - 1 - order, i // n_heads, i % n_heads


@gluon.jit
def _publish_item(notes, slot, item, tile, batch, head):
    """Publishes a warpgroup's next item with its tile, batch and head, which takes less time than its own divisions."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    notes.index(4 * slot + 1).store(gl.full([1], tile, gl.int32, layout=one))
    notes.index(4 * slot + 2).store(gl.full([1], batch, gl.int32, layout=one))
    notes.index(4 * slot + 3).store(gl.full([1], head, gl.int32, layout=one))
    _publish(notes.index(4 * slot), item)


@gluon.jit
def _noted(notes, i):
    return tl.max(notes.index(i).load(gl.BlockedLayout([1], [32], [4], [0])), 0)


@gluon.jit
def _noted_item(notes, slot):
    """(tile, batch, head) of the item that is published in this slot."""
    return _noted(notes, 4 * slot + 1), _noted(notes, 4 * slot + 2), _noted(notes, 4 * slot + 3)


@gluon.jit
def _key_runs(q0, batch, head, kv_head, call, config: gl.constexpr, ROWS: gl.constexpr):
    """The tiles of keys that ROWS queries from q0 on meet, as `_list_key_runs_kernel` stored them."""
    lists_ptr, _scale, _B, _Hq, _Hkv, Sq, _Sk, _ids_ptr, _ids_stride_0, _ids_stride_1 = call
    BQ: gl.constexpr = config.BQ
    PARTS: gl.constexpr = BQ // 64
    n_tiles = (Sq + BQ - 1) // BQ
    tile = q0 // BQ
    row = batch * n_tiles + tile
    part = 0 if ROWS == BQ else 1 + q0 % BQ // ROWS
    ends = lists_ptr + (row * (1 + PARTS) + part) * 4
    return gl.load(ends), gl.load(ends + 1), gl.load(ends + 2), gl.load(ends + 3)


@triton.jit
def _list_key_runs(
    item, lists_ptr, call, D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr,
    FAST: tl.constexpr,
):
    """Stores which tiles of keys a tile of queries, and then each 64 queries of it, meet, and which of them need no
    mask; up to the last tile, since every item visits at least one. Queries past the end meet none.
    """
    key_test0_least_ptr, key_test0_most_ptr, _scale, _B, _Hq, _Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1 = call
    PARTS: tl.constexpr = BQ // 64
    n_tiles = tl.cdiv(Sq, BQ)
    row = item // (1 + PARTS)
    part = item % (1 + PARTS)
    tile = row % n_tiles
    place = row // n_tiles
    batch = place
    q0 = tile * BQ + tl.maximum(part - 1, 0) * 64
    last = tl.cast((Sk - 1) // BK, tl.int32)
    stop = tl.where(q0 < Sq, last + 1, 0)
    q1 = tl.minimum(q0 + tl.where(part == 0, BQ, 64), Sq) - 1
    q_idx = (q0 + tl.arange(0, ROWS))[:, None]
    row_term_2 = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(q_idx, tl.int64) * ids_stride_1,
        mask=(q_idx < Sk), other=0)
    test0_least = tl.min(tl.where(q_idx <= q1, tl.cast(row_term_2, tl.int64), 9223372036854775807))
    test0_most = tl.max(tl.where(q_idx <= q1, tl.cast(row_term_2, tl.int64), -9223372036854775807))
    test0_tile = batch * tl.cdiv(Sk, BK)
    (test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi) = _matching_tiles(key_test0_least_ptr + test0_tile,
        key_test0_most_ptr + test0_tile, test0_least, test0_most, tl.cdiv(Sk, BK), BK, 0)
    (full_lo, full_hi, any_lo, any_hi) = _key_tiles(q0, q1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi, Sq,
        Sk, BK)
    ends = lists_ptr + item * 4
    tl.store(ends + 0, tl.minimum(full_lo, stop))
    tl.store(ends + 1, tl.minimum(full_hi, stop))
    tl.store(ends + 2, tl.minimum(any_lo, stop))
    tl.store(ends + 3, tl.minimum(any_hi, stop))


@triton.jit(do_not_specialize=['B', 'Hq', 'Hkv', 'Sq', 'Sk', 'ids_stride_0'])
def _list_key_runs_kernel(
    lists_ptr, counts_ptr, key_test0_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr, FAST: tl.constexpr,
):
    """Calls `_list_key_runs` for each item, after the extremes in each tile of keys are found.

    Programs take tickets as they begin. The first ones find extremes. The others wait for these, which have begun and
    wait for none, so there is no deadlock.
    """
    n_tiles = tl.cdiv(Sk, BK)
    n_found = n_tiles * B
    key_test0_most_ptr = key_test0_ptr + n_tiles * B
    number = tl.atomic_add(counts_ptr + 1, 1, sem="relaxed")
    if number < n_found:
        _key_test0(
            (number % n_tiles, number // n_tiles, 0, n_tiles, 1), (key_test0_ptr, key_test0_most_ptr),
            (scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1), BK,
        )
        tl.debug_barrier()
        tl.atomic_add(counts_ptr + 2, 1, sem="release")
    else:
        while tl.atomic_add(counts_ptr + 2, 0, sem="acquire") < n_found:
            pass
        call = (key_test0_ptr, key_test0_most_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1)
        _list_key_runs(number - n_found, lists_ptr, call, D, Dv, BQ, BK, ROWS, FAST)


@gluon.jit
def _load_tiles(q_desc, k_desc, v_desc, q_ring, k_ring, v_ring, work, call, config: gl.constexpr):
    """The producer warp: fetches the queries, keys and values of every tile, as far ahead as the rings have room."""
    _lists_ptr, _scale, _B, Hq, Hkv, Sq, _Sk, _ids_ptr, _ids_stride_0, _ids_stride_1 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    turn = 0
    round = 0
    n_tiles = (Sq + BQ - 1) // BQ
    item = gl.program_id(0)
    while item < work.n_work:
        tile, batch, head = _work_item(item, n_tiles, Hq, work.n_work, work.together)
        kv_head = head // (Hq // Hkv)
        q0 = tile * BQ
        _full_lo, _full_hi, any_lo, any_hi = _key_runs(q0, batch, head, kv_head, call, config, BQ)
        n_steps = tl.maximum(any_hi - any_lo, 1)
        v0 = 0
        for step in range(n_steps + 1):
            if step < n_steps:
                at = any_lo + n_steps - 1 - step
                stage = (turn + step) % config.STAGES
                if turn + step >= config.STAGES:
                    _barrier_sync(k_ring.FREE + stage, config.SHARE, 1)
                mbarrier.expect(k_ring.ready.index(stage), config.K_PARTS * k_desc.block_type.nbytes)
                for part in gl.static_range(config.K_PARTS):
                    k_tile = k_ring.tiles.index(stage * config.K_PARTS + part)
                    _COPY_IN(k_desc, [batch, kv_head, at * BK, part * config.K_COLS], k_ring.ready.index(stage), k_tile)
                k0 = at * BK
            else:
                k0 = 0
            if step == 0:
                for part in gl.static_range(config.PARTS):
                    if round > 0:
                        _barrier_sync(q_ring.FREE + part, 160, 1)
                    if config.SCHEDULE == "queue":
                        _publish_item(work.notes, 2 * part + (round & 1), item, tile, batch, head)
                    mbarrier.expect(q_ring.ready.index(part), q_desc.block_type.nbytes)
                    q_tile = _REINTERPRET(q_ring.tiles.index(part), q_desc.dtype, [1, 1, 64, config.Q_COLS],
                        q_desc.layout)
                    _COPY_IN(q_desc, [batch, head, q0 + part * 64, 0], q_ring.ready.index(part), q_tile)
            else:
                stage = (turn + step - 1) % config.STAGES
                if turn + step > config.STAGES:
                    _barrier_sync(v_ring.FREE + stage, config.SHARE, 1)
                mbarrier.expect(v_ring.ready.index(stage), v_desc.block_type.nbytes)
                _COPY_IN(v_desc, [batch, kv_head, v0, 0], v_ring.ready.index(stage), v_ring.tiles.index(stage))
            v0 = k0
        turn += n_steps
        round += 1
        item = (gl.num_programs(0) + gl.atomic_add(work.queue_ptr, 1, sem="relaxed") if config.SCHEDULE == "queue"
            else work.n_work)
    if config.SCHEDULE == "queue":
        for part in gl.static_range(config.PARTS):
            if round > 0:
                _barrier_sync(q_ring.FREE + part, 160, 1)
            _publish_item(work.notes, 2 * part + (round & 1), work.n_work, 0, 0, 0)
            mbarrier.arrive(q_ring.ready.index(part), count=1)
    for last in range(tl.minimum(turn, config.STAGES)):
        _barrier_sync(k_ring.FREE + (turn - 1 - last) % config.STAGES, config.SHARE, 1)
        _barrier_sync(v_ring.FREE + (turn - 1 - last) % config.STAGES, config.SHARE, 1)


@gluon.constexpr_function
def _weights_ptx(n, half):
    """PTX for n pairs of neighbouring scores of a thread, of two rows in turn. Returns the weights in pairs of `half`,
    and for each row its sum, its reference and the factor of its earlier sums, each as the row's first number.

    Weights are computed with the current reference. If a sum exceeds 2**8 or is NaN, the maximum becomes the row's
    reference, and the warp computes the weights again. So it is for a row without a reference yet (-inf).
    """
    weights, sums, refs, before, low, high, was, factor = ([f"${i * n + j}" for j in range(n)] for i in range(8))
    scores = [x for pair in zip(low, high, strict=True) for x in pair]
    row = [j // 2 % 2 for j in range(2 * n)]
    passed = [f"setp.gtu.f32 {p}, {sums[r]}, 0f{127 + 8 << 23:08X};" for r, p in enumerate("ab")]
    f = factor[0]

    make = [f"mul.f32 m{r}, u{r}, {f}; neg.f32 m{r}, m{r};" for r in (0, 1)]
    make += [f"fma.rn.f32 w{j}, {x}, {f}, m{row[j]};" for j, x in enumerate(scores)]
    make += [f"ex2.approx.ftz.f32 w{j}, w{j};" for j in range(2 * n)]
    make += [f"cvt.rn.{half}x2.f32 {x}, w{2 * j + 1}, w{2 * j};" for j, x in enumerate(weights)]
    make += [f"add.f32 w{j % 4}, w{j % 4}, w{j};" for j in range(4, 2 * n)]
    make += [f"add.f32 {sums[r]}, w{2 * r}, w{2 * r + 1};" for r in (0, 1)]

    refer = []
    for r in (0, 1):
        mine = [x for x, at in zip(scores, row, strict=True) if at == r]
        # Shuffling the old reference keeps the compiler from computing maxima early. Four maxima run side by side.
        refer += [f"shfl.sync.bfly.b32 m{r}, {was[r]}, 0, 31, -1;"]
        refer += [f"max.f32 w{k % 4}, {f'w{k % 4}' if k > 3 else f'm{r}'}, {x};" for k, x in enumerate(mine)]
        refer += ["max.f32 w0, w0, w1; max.f32 w2, w2, w3;", f"max.f32 m{r}, w0, w2;"]
        refer += [passed[r].replace(" b,", " a,"), f"selp.f32 u{r}, 0f3F800000, 0f00000000, a;"]
        for lanes in (1, 2):  # a row has four threads
            refer += [f"shfl.sync.bfly.b32 y, {x}, {lanes}, 31, -1; max.f32 {x}, {x}, y;" for x in (f"m{r}", f"u{r}")]
        refer += [f"setp.gt.f32 a, u{r}, 0f00000000; selp.f32 {refs[r]}, m{r}, {was[r]}, a;"]
        refer += [f"setp.eq.f32 a, {refs[r]}, 0fFF800000; selp.f32 u{r}, 0f00000000, {refs[r]}, a;"]
        refer += [f"sub.f32 m{r}, {was[r]}, u{r}; mul.f32 m{r}, m{r}, {f}; ex2.approx.ftz.f32 {before[r]}, m{r};"]

    first = [f"mov.f32 u{r}, {was[r]}; mov.f32 {refs[r]}, u{r}; mov.f32 {before[r]}, 0f3F800000;" for r in (0, 1)]
    first += [f"mov.f32 {sums[r]}, 0f7F800000; setp.eq.f32 {p}, u{r}, 0fFF800000;" for r, p in enumerate("ab")]
    return " ".join([
        "{ .reg .pred a, b, none, second;", f".reg .f32 y, m<2>, u<2>, w<{2 * n}>;", *first,
        "setp.ne.u32 second, 0, 0; and.pred a, a, b; vote.sync.all.pred none, a, -1;",
        "again: @none bra.uni anew;", *make, "@second bra.uni done;",
        *passed, "or.pred a, a, b; vote.sync.any.pred a, a, -1; @!a bra.uni done;",
        "anew:", *refer,
        # With a constant 1, the assembler would duplicate the code of the weights, so it is shuffled.
        "mov.f32 y, 0f3F800000; shfl.sync.bfly.b32 y, y, 0, 31, -1; setp.ne.f32 second, y, 0f00000000;",
        "not.pred none, second; bra.uni again; done: }",
    ])


@gluon.constexpr_function
def _weights_constraints(n):
    """Constraints: results (early clobber), then operands."""
    return ",".join(["=&r"] * n + ["=&f"] * (3 * n) + ["f"] * (4 * n))


@gluon.jit
def _one(a, b):
    return a


@gluon.jit
def _firsts(x):
    """(64, 4): the first number of each row that each of the row's four threads holds."""
    return tl.reduce(x.reshape([64, x.shape[1] // 4, 4]), 1, _one)


@gluon.jit
def _across(rows, like, EACH: gl.constexpr):
    """Spreads one number for each of a row's four threads, (64, 4), over all numbers of the thread, EACH at a time."""
    wide = rows.reshape([64, 1, 4, 1]).broadcast_to([64, like.shape[1] // (4 * EACH), 4, EACH]).reshape(like.shape)
    return gl.convert_layout(wide, like.type.layout)


@gluon.jit
def _lagging_weights(x, reference, factor, dtype: gl.constexpr):
    """2**((x - reference) factor), packed; for each thread of a row their sum, the row's next reference, and the factor
    of its earlier sums.
    """
    low, high = x.reshape([64, x.shape[1] // 2, 2]).split()
    COUNT: gl.constexpr = x.shape[1] // 4
    weight, sums, references, rescale = gl.inline_asm_elementwise(
        _weights_ptx(COUNT, "bf16" if dtype == gl.bfloat16 else "f16"), _weights_constraints(COUNT),
        [low, high, _across(reference, low, 1), gl.full(low.shape, factor, gl.float32, layout=low.type.layout)],
        dtype=(gl.int32, gl.float32, gl.float32, gl.float32), is_pure=False, pack=COUNT,
    )
    return weight, _firsts(sums), _firsts(references), _firsts(rescale)


@gluon.constexpr_function
def _multiplied(n):
    """PTX that multiplies n registers in place, unless all factors of the warp are 1. Numbers of a thread's two rows
    alternate every two columns.
    """
    test = f"setp.neu.f32 a, ${2 * n}, 0f3F800000; setp.neu.f32 b, ${2 * n + 2}, 0f3F800000; or.pred a, a, b;"
    products = " ".join(f"mul.f32 ${i}, ${i}, ${2 * n + i};" for i in range(n))
    return f"{{ .reg .pred a, b; {test} vote.sync.any.pred a, a, -1; @!a bra.uni past; {products} past: }}"


@gluon.constexpr_function
def _in_place(n):
    """Constraints: n results, n operands in the same registers, n factors."""
    return ",".join(["=f"] * n + [str(i) for i in range(n)] + ["f"] * n)


@gluon.jit
def _rescaled(acc, rescale):
    """acc * rescale. A warp whose rows all keep their reference skips it."""
    COUNT: gl.constexpr = acc.shape[1] // 2
    return gl.inline_asm_elementwise(
        _multiplied(COUNT), _in_place(COUNT), [acc, _across(rescale, acc, 2)], dtype=gl.float32, is_pure=False,
        pack=COUNT
    )


@gluon.jit
def _no_key_yet(no_scores):
    """(row_sum, row_max) of rows without a key so far, for each of a row's four threads."""
    row_sum = _firsts(no_scores.reshape([64, no_scores.shape[1] // 2, 2]).split()[0])
    return row_sum, row_sum - float("inf")


@gluon.jit
def _weigh(row_sum, row_max, qk, k0, masked, terms, config: gl.constexpr):
    """The weights of 64 queries for the keys k0 … k0 + BK - 1, packed, and the rows' state after them. `terms`: values
    that do not depend on the key.
    """
    batch, Sk, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, row_term, row_term_2 = terms
    BK: gl.constexpr = config.BK
    k_idx = (k0 + gl.arange(0, BK, layout=gl.SliceLayout(0, qk.type.layout)))[None, :]
    x = qk
    if masked:
        _opaque(k0)  # else the compilers may make the mask for every tile
        k_safe = tl.minimum(k_idx, Sk - 1)
        col_term = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(k_safe, tl.int64) * ids_stride_1)
        x = tl.where((k_idx <= row_term) & (row_term_2 == col_term), x, float("-inf"))
    weight, sums, row_max, rescale = _lagging_weights(x, row_max, logit_scale, config.dtype)
    row_sum = row_sum * rescale + sums
    return weight, rescale, row_sum, row_max


@gluon.jit
def _normalized(acc, row_sum, row_max, factor, rows_layout: gl.constexpr):
    """The rows of the result, and their log-sum-exp."""
    acc_rows: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    row_sum = gl.convert_layout(tl.sum(row_sum, 1), rows_layout)
    row_max = gl.convert_layout(tl.max(row_max, 1), rows_layout)
    total = row_max * factor
    empty = row_max == float("-inf")
    row_sum = tl.where(empty, 1.0, row_sum)
    acc = acc * gl.convert_layout(1.0 / row_sum, acc_rows)[:, None]
    return acc, tl.where(empty, float("-inf"), (total + tl.log2(row_sum)) * LN2)


@gluon.jit
def _release_tile(turn, k_ring, v_ring, config: gl.constexpr, PART: gl.constexpr):
    """Releases a tile that none of this warpgroup's queries meets, as soon as it has arrived."""
    stage = turn % config.STAGES
    phase = turn // config.STAGES & 1
    mbarrier.wait(k_ring.ready.index(stage), phase)
    if config.ORDERED:
        _barrier_sync(config.ORDER + PART, 256, 4)
        _barrier_arrive(config.ORDER + (PART + 1) % config.PARTS, 256, 4)
    _barrier_arrive(k_ring.FREE + stage, config.SHARE, 4)
    mbarrier.wait(v_ring.ready.index(stage), phase)
    _barrier_arrive(v_ring.FREE + stage, config.SHARE, 4)


@gluon.jit
def _scores(q, k_ring, stage, no_scores, config: gl.constexpr):
    """Starts the product of queries and a tile of keys, part by part of the head dim."""
    token = no_scores
    for part in gl.static_range(config.K_PARTS):
        k = k_ring.tiles.index(stage * config.K_PARTS + part).reshape([config.BK, config.K_COLS]).permute((1, 0))
        q_part = q if config.K_PARTS == 1 else q.slice(part * config.K_COLS, config.K_COLS, dim=1)
        token = warpgroup_mma(q_part, k, token, use_acc=part > 0, is_async=True)
    return token


@gluon.jit
def _attend_overlapped(
    acc, row_sum, row_max, q, q_ring, k_ring, v_ring, walk, terms, config: gl.constexpr, PART: gl.constexpr
):
    """The tiles of keys, PIPELINED: the product for the next scores runs while this warpgroup weighs the current ones.
    """
    turn, n_steps, first, stop, any_lo, own_full_lo, own_full_hi = walk
    BK: gl.constexpr = config.BK
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    no_scores = gl.zeros([64, BK], gl.float32, layout=config.qk_layout)
    step = first
    at = any_lo + n_steps - 1 - step
    stage = (turn + first) % config.STAGES
    phase = (turn + first) // config.STAGES & 1
    mbarrier.wait(k_ring.ready.index(stage), phase)
    qk_token = _scores(q, k_ring, stage, no_scores, config)
    qk = warpgroup_mma_wait(0, deps=(qk_token,))
    _barrier_arrive(k_ring.FREE + stage, config.SHARE, 4)
    (weight, rescale, row_sum, row_max) = _weigh(row_sum, row_max, qk, at * BK,
        (at < own_full_lo) | (own_full_hi <= at), terms, config)
    p = _unpacked(weight, config.dtype, weight_layout)
    for step in range(first + 1, stop):
        at = any_lo + n_steps - 1 - step
        v_stage = stage
        v_phase = phase
        stage = (turn + step) % config.STAGES
        phase = (turn + step) // config.STAGES & 1
        mbarrier.wait(k_ring.ready.index(stage), phase)
        if config.ORDERED:
            _barrier_sync(config.ORDER + PART, 256, 4)
        qk_token = _scores(q, k_ring, stage, no_scores, config)
        mbarrier.wait(v_ring.ready.index(v_stage), v_phase)
        acc_token = warpgroup_mma(p, v_ring.tiles.index(v_stage).reshape([BK, config.BLOCK_DV]), acc, is_async=True)
        if config.ORDERED:
            _barrier_arrive(config.ORDER + (PART + 1) % config.PARTS, 256, 4)
        qk = warpgroup_mma_wait(1, deps=(qk_token,))
        _barrier_arrive(k_ring.FREE + stage, config.SHARE, 4)
        (weight, rescale, row_sum, row_max) = _weigh(row_sum, row_max, qk, at * BK,
            (at < own_full_lo) | (own_full_hi <= at), terms, config)
        _pin_order(n_steps)
        acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
        _barrier_arrive(v_ring.FREE + v_stage, config.SHARE, 4)
        acc = _rescaled(acc, rescale)
        p = _unpacked(weight, config.dtype, weight_layout)
    if config.OUT_APART and config.SCHEDULE != "once":  # the next queries arrive during the last product
        _barrier_arrive(q_ring.FREE + PART, 160, 4)
    mbarrier.wait(v_ring.ready.index(stage), phase)
    acc_token = warpgroup_mma(p, v_ring.tiles.index(stage).reshape([BK, config.BLOCK_DV]), acc, is_async=True)
    acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
    _barrier_arrive(v_ring.FREE + stage, config.SHARE, 4)
    return acc, row_sum, row_max


@gluon.jit
def _attend_in_turn(
    acc, row_sum, row_max, q, q_ring, k_ring, v_ring, walk, terms, config: gl.constexpr, PART: gl.constexpr
):
    """The tiles of keys, one product after the other. The other warpgroups fill the gaps."""
    turn, n_steps, first, stop, any_lo, own_full_lo, own_full_hi = walk
    BK: gl.constexpr = config.BK
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    no_scores = gl.zeros([64, BK], gl.float32, layout=config.qk_layout)
    for step in range(first, stop):
        at = any_lo + n_steps - 1 - step
        stage = (turn + step) % config.STAGES
        phase = (turn + step) // config.STAGES & 1
        mbarrier.wait(k_ring.ready.index(stage), phase)
        if config.ORDERED:
            _barrier_sync(config.ORDER + PART, 256, 4)
        qk_token = _scores(q, k_ring, stage, no_scores, config)
        if config.ORDERED:
            _barrier_arrive(config.ORDER + (PART + 1) % config.PARTS, 256, 4)
        qk = warpgroup_mma_wait(0, deps=(qk_token,))
        _barrier_arrive(k_ring.FREE + stage, config.SHARE, 4)
        (weight, rescale, row_sum, row_max) = _weigh(row_sum, row_max, qk, at * BK,
            (at < own_full_lo) | (own_full_hi <= at), terms, config)
        acc = _rescaled(acc, rescale)
        p = _unpacked(weight, config.dtype, weight_layout)
        mbarrier.wait(v_ring.ready.index(stage), phase)
        acc_token = warpgroup_mma(p, v_ring.tiles.index(stage).reshape([BK, config.BLOCK_DV]), acc, is_async=True)
        acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
        _barrier_arrive(v_ring.FREE + stage, config.SHARE, 4)
    if config.OUT_APART and config.SCHEDULE != "once":
        _barrier_arrive(q_ring.FREE + PART, 160, 4)
    return acc, row_sum, row_max


@gluon.jit
def _store_tile(acc, lse, place, results, q_ring, call, config: gl.constexpr, PART: gl.constexpr):
    """Stores the results of 64 queries. `place`: their batch, head, first position and positions."""
    _lists_ptr, _scale, _B, Hq, _Hkv, Sq, _Sk, _ids_ptr, _ids_stride_0, _ids_stride_1 = call
    batch, head, q0, rows = place
    row = (batch * tl.cast(Hq, gl.int64) + head) * Sq
    gl.store(results.lse_ptr + row + rows, lse, mask=rows < Sq)
    out = acc.to(config.dtype)
    # The copy engine clips the result to the tensor. Without shared memory of its own, it takes that of the queries.
    if config.OUT_APART:
        out_tile = results.tiles.index(PART)
        tma.store_wait(0)
    else:
        out_tile = _REINTERPRET(q_ring.tiles.index(PART), config.dtype, [1, 1, 64, config.BLOCK_DV],
            results.desc.layout)
    out_tile.reshape([64, config.BLOCK_DV]).store(out)
    fence_async_shared()
    _BARRIER()
    _COPY_OUT(results.desc, [batch, head, q0, 0], out_tile)


@gluon.jit
def _attend_tiles(results, q_ring, k_ring, v_ring, work, call, config: gl.constexpr, PART: gl.constexpr):
    """A consumer warpgroup: 64 queries of every tile."""
    _lists_ptr, scale, _B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, config.Q_COLS], config.dtype)
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_DV, 16])
    rows_layout: gl.constexpr = gl.SliceLayout(1, config.qk_layout)
    no_scores = gl.zeros([64, BK], gl.float32, layout=config.qk_layout)
    turn = 0
    round = 0
    n_tiles = (Sq + BQ - 1) // BQ
    item = gl.program_id(0)
    tile, batch, head = _work_item(item, n_tiles, Hq, work.n_work, work.together)
    if config.ORDERED and PART == config.PARTS - 1:
        _barrier_arrive(config.ORDER, 256, 4)
    while item < work.n_work:
        kv_head = head // (Hq // Hkv)
        q0 = tile * BQ
        _full_lo, _full_hi, any_lo, any_hi = _key_runs(q0, batch, head, kv_head, call, config, BQ)
        n_steps = tl.maximum(any_hi - any_lo, 1)
        q0 += PART * 64
        own_full_lo, own_full_hi, own_any_lo, own_any_hi = _key_runs(q0, batch, head, kv_head, call, config, 64)
        own_first = tl.maximum(tl.minimum(n_steps - (own_any_hi - any_lo), n_steps - 1), 0)
        own_stop = tl.maximum(tl.minimum(n_steps - (own_any_lo - any_lo), n_steps), own_first + 1)
        rows = q0 + gl.arange(0, 64, layout=rows_layout)
        q_idx = rows[:, None]
        logit_scale = scale * 1.4426950408889634
        row_term = q_idx + Sk - Sq
        row_term_2 = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0
            + tl.cast(q_idx, tl.int64) * ids_stride_1, mask=(q_idx < Sk), other=0)
        terms = (batch, Sk, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, row_term, row_term_2)

        acc = gl.zeros([64, config.BLOCK_DV], gl.float32, layout=acc_layout)
        row_sum, row_max = _no_key_yet(no_scores)
        mbarrier.wait(q_ring.ready.index(PART), round & 1)
        q = _REINTERPRET(q_ring.tiles.index(PART), config.dtype, [64, config.Q_COLS], q_layout)
        for step in range(own_first):
            _release_tile(turn + step, k_ring, v_ring, config, PART)
        if config.PIPELINED:
            walk = _Walk(turn, n_steps, own_first, own_stop, any_lo, own_full_lo, own_full_hi)
            (acc, row_sum, row_max) = _attend_overlapped(acc, row_sum, row_max, q, q_ring, k_ring, v_ring, walk, terms,
                config, PART)
        else:
            walk = _Walk(turn, n_steps, own_first, own_stop, any_lo, own_full_lo, own_full_hi)
            (acc, row_sum, row_max) = _attend_in_turn(acc, row_sum, row_max, q, q_ring, k_ring, v_ring, walk, terms,
                config, PART)
        for step in range(own_stop, n_steps):
            _release_tile(turn + step, k_ring, v_ring, config, PART)
        turn += n_steps
        round += 1

        if config.SCHEDULE == "queue":
            tile, batch, head = _noted_item(work.notes, 2 * PART + (round - 1 & 1))
        else:
            tile, batch, head = _work_item(_opaque(item), n_tiles, Hq, work.n_work, work.together)
        q0 = tile * BQ + PART * 64
        place = batch, head, q0, q0 + gl.arange(0, 64, layout=rows_layout)
        acc, lse = _normalized(acc, row_sum, row_max, logit_scale, rows_layout)
        _store_tile(acc, lse, place, results, q_ring, call, config, PART)
        if config.SCHEDULE == "once":
            item = work.n_work
        else:
            if not config.OUT_APART:
                tma.store_wait(0)
                _barrier_arrive(q_ring.FREE + PART, 160, 4)
            mbarrier.wait(q_ring.ready.index(PART), round & 1)
            slot = 2 * PART + (round & 1)
            item = _noted(work.notes, 4 * slot)
            tile, batch, head = _noted_item(work.notes, slot)
    if config.ORDERED and PART == 0:
        _barrier_sync(config.ORDER, 256, 4)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=['n_work', 'together', 'B', 'Hq', 'Hkv', 'Sq', 'Sk', 'ids_stride_0'])
def _hopper_forward_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, queue_ptr, n_work, together, lists_ptr, scale, B, Hq, Hkv, Sq, Sk,
    ids_ptr, ids_stride_0, ids_stride_1,
    D: gl.constexpr, Dv: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, BQ: gl.constexpr,
    BK: gl.constexpr,
    STAGES: gl.constexpr, SCHEDULE: gl.constexpr, ORDERED: gl.constexpr, OUT_APART: gl.constexpr,
    PIPELINED: gl.constexpr, REGISTERS: gl.constexpr, SPARE: gl.constexpr, FAST: gl.constexpr,
):
    """The forward pass: consumer warpgroups of 64 queries each, and one producer warp."""
    PARTS: gl.constexpr = BQ // 64
    SHARE: gl.constexpr = 32 + 2 * BQ  # the threads that share a tile of keys or values
    # Hardware barriers. Triton uses the first six of sixteen; these tell that a place is free, and whose turn it is.
    K_FREE: gl.constexpr = 6
    V_FREE: gl.constexpr = K_FREE + STAGES
    Q_FREE: gl.constexpr = V_FREE + STAGES
    ORDER: gl.constexpr = Q_FREE + PARTS
    gl.static_assert(ORDER + (PARTS if ORDERED else 0) <= 16)
    # Tile sizes are powers of two, so 192 columns of keys come in three parts.
    Q_COLS: gl.constexpr = 256 if BLOCK_D == 192 else BLOCK_D
    K_COLS: gl.constexpr = 64 if BLOCK_D == 192 else BLOCK_D
    K_PARTS: gl.constexpr = BLOCK_D // K_COLS
    Q_PLACE: gl.constexpr = Q_COLS if OUT_APART or Q_COLS > BLOCK_DV else BLOCK_DV
    dtype: gl.constexpr = out_desc.dtype
    qk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BK, 16])
    config: gl.constexpr = _Config(BLOCK_DV, BQ, BK, STAGES, SCHEDULE, ORDERED, OUT_APART, PIPELINED, Q_COLS, K_COLS,
        K_PARTS, PARTS, SHARE,
        ORDER, dtype, qk_layout)
    q_tiles = gl.allocate_shared_memory(dtype, [PARTS, 1, 1, 64, Q_PLACE], q_desc.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES * K_PARTS, 1, 1, BK, K_COLS], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BK, BLOCK_DV], v_desc.layout)
    out_tiles = gl.allocate_shared_memory(dtype, [PARTS, 1, 1, 64, BLOCK_DV], out_desc.layout) if OUT_APART else q_tiles
    notes = gl.allocate_shared_memory(gl.int32, [8 * PARTS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_ring = _Ring(q_tiles, gl.allocate_shared_memory(gl.int64, [PARTS, 1], mbarrier.MBarrierLayout()), Q_FREE)
    k_ring = _Ring(k_tiles, gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout()), K_FREE)
    v_ring = _Ring(v_tiles, gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout()), V_FREE)
    for i in gl.static_range(PARTS):
        mbarrier.init(q_ring.ready.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_ring.ready.index(i), count=1)
        mbarrier.init(v_ring.ready.index(i), count=1)
    fence_async_shared()
    work = _Work(notes, queue_ptr, n_work, together)
    call = _Call(lists_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1)
    results = _Results(out_desc, out_tiles, lse_ptr)
    if PARTS == 2:
        gl.warp_specialize(
            [
                (_attend_tiles, (results, q_ring, k_ring, v_ring, work, call, config, 0)),
                (_attend_tiles, (results, q_ring, k_ring, v_ring, work, call, config, 1)),
                (_load_tiles, (q_desc, k_desc, v_desc, q_ring, k_ring, v_ring, work, call, config)),
            ],
            [4, 1],
            [REGISTERS, SPARE],
        )
    else:
        gl.warp_specialize(
            [
                (_attend_tiles, (results, q_ring, k_ring, v_ring, work, call, config, 0)),
                (_attend_tiles, (results, q_ring, k_ring, v_ring, work, call, config, 1)),
                (_attend_tiles, (results, q_ring, k_ring, v_ring, work, call, config, 2)),
                (_load_tiles, (q_desc, k_desc, v_desc, q_ring, k_ring, v_ring, work, call, config)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, SPARE],
        )


# ---------------------------------------------------------------- backward


@triton.jit
def _three_parts(x):
    """Three bfloat16 numbers whose sum is x exactly: 3 x 8 bits."""
    first = x.to(tl.bfloat16)
    x -= first.to(tl.float32)
    second = x.to(tl.bfloat16)
    return first, second, (x - second.to(tl.float32)).to(tl.bfloat16)


@triton.jit(do_not_specialize=["n_counters", *UNSPECIALIZED])
def _rows_kernel(
    lse_ptr, scaled_lse_ptr, out_ptr, d_out_ptr, d_lse_ptr, delta_ptr, Hq, Sq, out_strides, d_out_strides, counters_ptr,
    n_counters, terms_ptr, scale,
    Dv: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, HAS_D_LSE: tl.constexpr,
):
    """Values of a row that all of its pairs read: the log-sum-exp to base 2, inf for rows that met no key; delta.

    delta = rowsum(d_out * out) - d_lse is what a pair subtracts from d_out . v (Dao et al., 2022).

    For the kernel of compute capability 9.0, both go into the first six of a row's sixteen terms: three that add up to
    -delta, three to -lse / scale. It adds them up by one more step of its products.
    """
    if counters_ptr is not None:
        # Clears the counters of later kernels. Programs suffice for all of them.
        at = tl.cast(tl.program_id(0), tl.int64) * 128 + tl.arange(0, 128)
        tl.store(counters_ptr + at, tl.zeros([128], tl.int32), mask=at < n_counters)
    n_tiles = tl.cdiv(Sq, ROWS)
    q0 = tl.program_id(0) % n_tiles * ROWS
    batch = tl.program_id(0) // n_tiles // Hq
    head = tl.program_id(0) // n_tiles % Hq
    row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
    rows = q0 + tl.arange(0, ROWS)
    lse = tl.load(lse_ptr + row + rows, mask=rows < Sq, other=0.0)
    if scaled_lse_ptr is not None:
        tl.store(scaled_lse_ptr + row + rows, tl.where(lse == float("-inf"), float("inf"), lse * LOG2E), mask=rows < Sq)
    out_rows = _head_rows(out_ptr, batch, head, out_strides, Sq, ALIGN)
    d_out_rows = _head_rows(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
    out = _load_rows(out_rows, q0, ROWS, Dv, True).to(tl.float32)
    d_out = _load_rows(d_out_rows, q0, ROWS, Dv, True).to(tl.float32)
    delta = tl.sum(out * d_out, 1)
    if HAS_D_LSE:
        delta -= tl.load(d_lse_ptr + row + rows, mask=rows < Sq, other=0.0)
    if delta_ptr is not None:
        tl.store(delta_ptr + row + rows, delta, mask=rows < Sq)
    if terms_ptr is not None:
        # A row without keys gets a term that makes its weights zero. It is finite, since 0 times infinity is NaN.
        reference = tl.where(lse == float("-inf"), float("inf"), lse) / -scale
        reference = tl.where(reference < -(2.0**100), -(2.0**100), reference)
        place = tl.arange(0, 16)[None, :]
        terms = tl.zeros([ROWS, 16], tl.bfloat16)
        parts = _three_parts(-delta) + _three_parts(reference)
        for i in tl.static_range(6):
            terms = tl.where(place == i, parts[i][:, None], terms)
        at = ((row + rows) * 16)[:, None] + place
        tl.store(terms_ptr + at, terms, mask=(rows < Sq)[:, None])


@triton.jit
def _dq_tile(dq, held, k_rows, v_rows, k0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Adds the keys k0 … k0 + BK - 1 to dQ."""
    q, d_out, row_lse, delta, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, row_term, row_term_2 = held
    Sk = k_rows.stop
    batch = k_rows.batch
    k_idx = (k0 + tl.arange(0, tiling.BK))[None, :]
    k = _load_rows(k_rows, k0, tiling.BK, tiling.D, MASKED)
    v = _load_rows(v_rows, k0, tiling.BK, tiling.Dv, MASKED)
    qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    dp = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
    p = tl.exp2(qk * logit_scale - row_lse)
    if MASKED:
        k_safe = tl.minimum(k_idx, Sk - 1)
        col_term = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(k_safe, tl.int64) * ids_stride_1)
        allowed = (k_idx <= row_term) & (row_term_2 == col_term)
        p = tl.where(allowed, p, 0.0)
    dp = dp - delta
    g = p * dp
    dq = tl.dot(g.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dq_ptr, key_test0_least_ptr, key_test0_most_ptr, scale, B, Hq,
    Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1, q_strides, k_strides, v_strides, d_out_strides, dq_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr,
):
    """dQ of one tile of queries of one head: visits the same tiles of keys as the forward kernel."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    tile, batch, head = _busy_tiles_first(tl.cdiv(Sq, BQ), Hq, True)
    kv_head = head // (Hq // Hkv)
    q0 = tile * BQ
    q1 = tl.minimum(q0 + BQ, Sq) - 1
    q_idx = (q0 + tl.arange(0, BQ))[:, None]
    q_rows = _head_rows(q_ptr, batch, head, q_strides, Sq, ALIGN)
    k_rows = _head_rows(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    d_out_rows = _head_rows(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
    row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
    q = _load_rows(q_rows, q0, BQ, D, True)
    d_out = _load_rows(d_out_rows, q0, BQ, Dv, True)
    rows = q0 + tl.arange(0, BQ)
    logit_scale = scale * 1.4426950408889634
    row_lse = tl.load(lse_ptr + row + rows, mask=rows < Sq, other=float("inf"))[:, None]
    delta = tl.load(delta_ptr + row + rows, mask=rows < Sq, other=0.0)[:, None]
    row_term = q_idx + Sk - Sq
    row_term_2 = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(q_idx, tl.int64) * ids_stride_1,
        mask=(q_idx < Sk), other=0)
    held = (q, d_out, row_lse, delta, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, row_term, row_term_2)
    dq = (tl.zeros([BQ, _block(D)], tl.float32))
    test0_least = tl.min(tl.where(q_idx <= q1, tl.cast(row_term_2, tl.int64), 9223372036854775807))
    test0_most = tl.max(tl.where(q_idx <= q1, tl.cast(row_term_2, tl.int64), -9223372036854775807))
    test0_tile = batch * tl.cdiv(Sk, BK)
    (test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi) = _matching_tiles(key_test0_least_ptr + test0_tile,
        key_test0_most_ptr + test0_tile, test0_least, test0_most, tl.cdiv(Sk, BK), BK, 0)
    (full_lo, full_hi, any_lo, any_hi) = _key_tiles(q0, q1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi, Sq,
        Sk, BK)
    for step in tl.range(full_hi - full_lo):
        dq = _dq_tile(dq, held, k_rows, v_rows, (full_lo + step) * BK, tiling, False)
    for step in tl.range((full_lo - any_lo) + (any_hi - full_hi)):
        at = any_lo + step
        at = tl.where(step < (full_lo - any_lo), at, full_hi + step - (full_lo - any_lo))
        dq = _dq_tile(dq, held, k_rows, v_rows, at * BK, tiling, True)
    dq_rows = _head_rows(dq_ptr, batch, head, dq_strides, Sq, ALIGN)
    _store_rows(dq_rows, dq * scale, q0, D)


@triton.jit
def _dkdv_tile(state, held, q_rows, d_out_rows, q0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Adds the queries q0 … q0 + BQ - 1 to dK and dV. `held`: values that do not depend on the query."""
    dk, dv = state
    k, v, row, lse_ptr, delta_ptr, k_idx, Sk, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, col_term = held
    Sq = q_rows.stop
    batch = q_rows.batch
    rows = q0 + tl.arange(0, tiling.BQ)
    q_idx = rows[None, :]
    q = _load_rows(q_rows, q0, tiling.BQ, tiling.D, MASKED)
    d_out = _load_rows(d_out_rows, q0, tiling.BQ, tiling.Dv, MASKED)
    qk = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    dp = tl.dot(v, tl.trans(d_out), input_precision=PRECISION)  # early, so that it runs while p is computed
    if MASKED:
        row_lse = tl.load(lse_ptr + row + rows, mask=rows < Sq, other=float("inf"))[None, :]
        delta = tl.load(delta_ptr + row + rows, mask=rows < Sq, other=0.0)[None, :]
    else:
        row_lse = tl.load(lse_ptr + row + rows)[None, :]
        delta = tl.load(delta_ptr + row + rows)[None, :]
    p = tl.exp2(qk * logit_scale - row_lse)
    if MASKED:
        row_term = q_idx + Sk - Sq
        row_term_2 = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0
            + tl.cast(q_idx, tl.int64) * ids_stride_1, mask=(q_idx < Sk), other=0)
        allowed = (q_idx < Sq) & (k_idx <= row_term) & (row_term_2 == col_term)
        p = tl.where(allowed, p, 0.0)
    dv = tl.dot(p.to(d_out.dtype), d_out, dv, input_precision=PRECISION)
    dp = dp - delta
    g = p * dp
    dk = tl.dot(g.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, query_test0_least_ptr, query_test0_most_ptr,
    scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1, q_strides, k_strides, v_strides, d_out_strides,
    dk_strides, dv_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr,
):
    """dK and dV of one tile of keys of one KV head: visits the queries that it meets, head by head."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    tile, batch, kv_head = _busy_tiles_first(tl.cdiv(Sk, BK), Hkv, False)
    k0 = tile * BK
    k1 = tl.minimum(k0 + BK, Sk) - 1
    k_idx = (k0 + tl.arange(0, BK))[:, None]
    k_rows = _head_rows(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    k = _load_rows(k_rows, k0, BK, D, True)
    v = _load_rows(v_rows, k0, BK, Dv, True)
    dk = tl.zeros([BK, _block(D)], tl.float32)
    dv = tl.zeros([BK, _block(Dv)], tl.float32)
    group = Hq // Hkv
    for member in range(group):
        head = kv_head * group + member
        row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
        q_rows = _head_rows(q_ptr, batch, head, q_strides, Sq, ALIGN)
        d_out_rows = _head_rows(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
        logit_scale = scale * 1.4426950408889634
        k_safe = tl.minimum(k_idx, Sk - 1)
        col_term = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(k_safe, tl.int64) * ids_stride_1)
        held = (k, v, row, lse_ptr, delta_ptr, k_idx, Sk, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, col_term)
        state = (dk, dv)
        test0_least = tl.min(tl.where(k_idx <= k1, tl.cast(col_term, tl.int64), 9223372036854775807))
        test0_most = tl.max(tl.where(k_idx <= k1, tl.cast(col_term, tl.int64), -9223372036854775807))
        test0_tile = batch * tl.cdiv(Sq, BQ)
        (test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi) = _matching_tiles(query_test0_least_ptr + test0_tile,
            query_test0_most_ptr + test0_tile, test0_least, test0_most, tl.cdiv(Sq, BQ), BQ, 0)
        (full_lo, full_hi, any_lo, any_hi) = _query_tiles(k0, k1, test0_any_lo, test0_any_hi, test0_all_lo,
            test0_all_hi, Sq, Sk, BQ)
        for step in tl.range(full_hi - full_lo):
            state = _dkdv_tile(state, held, q_rows, d_out_rows, (full_lo + step) * BQ, tiling, False)
        for step in tl.range((full_lo - any_lo) + (any_hi - full_hi)):
            at = any_lo + step
            at = tl.where(step < (full_lo - any_lo), at, full_hi + step - (full_lo - any_lo))
            state = _dkdv_tile(state, held, q_rows, d_out_rows, at * BQ, tiling, True)
        dk, dv = state
    dk_rows = _head_rows(dk_ptr, batch, kv_head, dk_strides, Sk, ALIGN)
    dv_rows = _head_rows(dv_ptr, batch, kv_head, dv_strides, Sk, ALIGN)
    _store_rows(dk_rows, dk * scale, k0, D)
    _store_rows(dv_rows, dv, k0, Dv)


# ---------------------------------------------------------------- backward, for compute capability 9.0


# The arguments of a call that every function takes. Each kernel also has a tuple of the pointers and counts of its
# work, and one of its compile-time constants.
_BackwardCall = namedtuple("_BackwardCall", "scale B Hq Hkv Sq Sk ids_ptr ids_stride_0 ids_stride_1")


@gluon.jit
def _barriers(N: gl.constexpr):
    return gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())


@gluon.jit
def _initialized(N: gl.constexpr, ARRIVALS: gl.constexpr):
    """N mbarriers. A phase of each completes after ARRIVALS arrivals."""
    barriers = _barriers(N)
    for i in gl.static_range(N):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


@gluon.jit
def _acquire(ring, turn, STAGES: gl.constexpr):
    """Waits until both consumers have released the place of a ring's next tile, and returns its stage."""
    stage = turn % STAGES
    if turn >= STAGES:
        _barrier_sync(ring.FREE + stage, 288, 1)
    return stage


@gluon.jit
def _fetch(desc, ring, stage, batch, head, start):
    """Starts the copy of a tile to a place that the producer has acquired."""
    mbarrier.expect(ring.ready.index(stage), desc.block_type.nbytes)
    _COPY_IN(desc, [batch, head, start, 0], ring.ready.index(stage), ring.tiles.index(stage))


@gluon.jit
def _await_released(ring, turn, STAGES: gl.constexpr):
    """Waits until the consumers have released the last tiles of a ring, so that no barrier is left incomplete."""
    for last in range(tl.minimum(turn, STAGES)):
        _barrier_sync(ring.FREE + (turn - 1 - last) % STAGES, 288, 1)


@gluon.jit
def _key_item(item, n_tiles, n_heads, n_work, together):
    """(tile, batch, head) of an item: `together` heads in turn."""
    _first, order, i = _in_turn(item, n_tiles, n_work // n_tiles, together)
    return order, i // n_heads, i % n_heads


@gluon.jit
def _kept_bits(like, q0, k0, batch, head, kv_head, call, config: gl.constexpr, BK: gl.constexpr):
    """All bits of each packed pair that the mask allows, and none of the others. Positions are computed again, because
    there are no registers to keep them.
    """
    _scale, _B, _Hq, _Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1 = call
    BQ: gl.constexpr = config.BQ
    layout: gl.constexpr = like.type.layout
    q_idx = _opaque(q0 + gl.arange(0, BQ, layout=gl.SliceLayout(0, layout)))[None, :]
    k_idx = _opaque(k0 + gl.arange(0, BK, layout=gl.SliceLayout(1, layout)))[:, None]
    k_safe = tl.minimum(k_idx, Sk - 1)
    col_term = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(k_safe, tl.int64) * ids_stride_1)
    row_term = q_idx + Sk - Sq
    row_term_2 = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(q_idx, tl.int64) * ids_stride_1,
        mask=(q_idx < Sk), other=0)
    allowed = (q_idx < Sq) & (k_idx <= row_term) & (row_term_2 == col_term) & (k_idx < Sk)
    low, high = allowed.reshape([BK, BQ // 2, 2]).split()
    return gl.where(low, 0xFFFF, 0) | gl.where(high, -65536, 0)


@gluon.jit
def _weigh_again(
    qk, row_lse, batch, head, kv_head, q0, k0, k_idx, terms, config: gl.constexpr, BK: gl.constexpr, dtype: gl.constexpr
):
    """The weights of a tile (rows are keys, columns are queries), from its scores and the log-sum-exp of each query;
    where the score is not linear in q . k, also the weights times its derivative. Packed, and not yet masked. `terms`:
    values that do not depend on the query.
    """
    _Sq, _Sk, _ids_ptr, _ids_stride_0, _ids_stride_1, logit_scale, _col_term = terms
    p = tl.exp2(qk * logit_scale - row_lse)
    weight = _packed(p, dtype)
    return weight


@gluon.jit
def _packed(x, dtype: gl.constexpr):
    """Packs neighbours of a tile in half precision into 32 bits. A loop would carry 16-bit tensors in a register each.
    """
    low, high = x.reshape([x.shape[0], x.shape[1] // 2, 2]).split()
    ASM: gl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;" if dtype == gl.bfloat16 else "cvt.rn.f16x2.f32 $0, $2, $1;"
    return gl.inline_asm_elementwise(ASM, "=r,f,f", [low, high], gl.int32, True, 1)


@gluon.jit
def _unpacked_wide(pairs, dtype: gl.constexpr, layout: gl.constexpr):
    """The packed pairs as a tile in float32."""
    if dtype == gl.bfloat16:
        low = (pairs << 16).to(gl.float32, bitcast=True)
        high = (pairs & -65536).to(gl.float32, bitcast=True)
    else:
        low = pairs.to(gl.int16).to(dtype, bitcast=True).to(gl.float32)
        high = (pairs >> 16).to(gl.int16).to(dtype, bitcast=True).to(gl.float32)
    return gl.convert_layout(gl.join(low, high).reshape([pairs.shape[0], pairs.shape[1] * 2]), layout)


_BackwardRings = namedtuple("_BackwardRings", "k v q d_out rows ds note")
_Turns = namedtuple("_Turns", "ready added passed")
_BackwardResults = namedtuple("_BackwardResults", "dk_desc dv_desc dk_tiles")
_BackwardWork = namedtuple("_BackwardWork",
    "terms_desc dq_parts_ptr parts_ptr turns_ptr queue_ptr n_work together span walks_ptr met_ptr")
_BackwardConfig = namedtuple("_BackwardConfig",
    "D Dv BLOCK_D BLOCK_DV BQ BK STAGES EARLY BACKWARDS SHARED TURNS DS_STAGES DK_OVER_DS FAST")


@gluon.jit
def _members(head, work, call, config: gl.constexpr):
    """(batch, KV head, start, end): an item of this head visits the query heads start … end - 1 of the group."""
    group = call.Hq // call.Hkv
    kv_head = head
    start = 0
    end = group
    if config.SHARED:
        span = work.span
        shares = (group + span - 1) // span
        share = head % shares
        kv_head = head // shares
        start = share * span
        end = tl.minimum(share * span + span, group)
    return kv_head // call.Hkv, kv_head % call.Hkv, start, end


@gluon.jit
def _walked_item(item, n_tiles, work, config: gl.constexpr):
    """(tile of keys, its number in the order, whether the order is backwards, head) of an item.

    Under a causal mask, and with documents, each tile from the last to the first begins at queries that no tile before
    it has met, so few items wait for their turn. The longest tiles come last, so the last group of heads goes onwards,
    and so do all heads if they are few.
    """
    heads = work.n_work // n_tiles
    together = work.together
    if config.BACKWARDS:
        together = tl.where(heads < 4 * together, heads, together)
    first, order, head = _in_turn(item, n_tiles, heads, together)
    back = (first + together < heads) & config.BACKWARDS
    tile = gl.where(back, n_tiles - 1 - order, order)
    return tile, order, back, head


@gluon.jit
def _place(step, first, stop, back):
    """The tile of queries of that step."""
    return gl.where(back, first + step, stop - 1 - step)


@gluon.jit
def _query_runs(tile, batch, head, kv_head, work, call, config: gl.constexpr, SHARE: gl.constexpr):
    """The tiles of queries that a tile of keys meets, first … stop - 1, and which of them need no mask, as
    `_list_walks` stored them. SHARE: 0 for the whole tile, 1 for its first half, 2 for its second.
    """
    n_tiles = (call.Sk + config.BK - 1) // config.BK
    row = batch * n_tiles + tile
    walk = work.walks_ptr + (row * 3 + SHARE) * 4
    return gl.load(walk + 0), gl.load(walk + 1), gl.load(walk + 2), gl.load(walk + 3)


@triton.jit
def _list_walks(
    item, walks_ptr, met_ptr, call, D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    FAST: tl.constexpr,
):
    """Stores which tiles of queries a tile of keys, or a half of it, visits, and which of them need no mask. For each
    of these tiles of queries, also the first tile of keys that it meets, as n_tiles minus its number, and the last, as
    its number plus 1.
    """
    (query_test0_least_ptr, query_test0_most_ptr, _scale, _B, _Hq, _Hkv, Sq, Sk, ids_ptr, ids_stride_0,
        ids_stride_1) = call
    n_tiles = tl.cdiv(Sk, BK)
    row = item // 3
    part = item % 3
    tile = row % n_tiles
    place = row // n_tiles
    batch = place
    k0 = tile * BK + tl.where(part == 2, BK // 2, 0)
    k1 = tl.minimum(k0 + tl.where(part == 0, BK, BK // 2), Sk) - 1
    k_idx = (k0 + tl.arange(0, BK))[:, None]
    k_safe = tl.minimum(k_idx, Sk - 1)
    col_term = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(k_safe, tl.int64) * ids_stride_1)
    test0_least = tl.min(tl.where(k_idx <= k1, tl.cast(col_term, tl.int64), 9223372036854775807))
    test0_most = tl.max(tl.where(k_idx <= k1, tl.cast(col_term, tl.int64), -9223372036854775807))
    test0_tile = batch * tl.cdiv(Sq, BQ)
    (test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi) = _matching_tiles(query_test0_least_ptr + test0_tile,
        query_test0_most_ptr + test0_tile, test0_least, test0_most, tl.cdiv(Sq, BQ), BQ, 0)
    (full_lo, full_hi, any_lo, any_hi) = _query_tiles(k0, k1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi,
        Sq, Sk, BQ)
    first = any_lo
    stop = any_hi
    walk = walks_ptr + item * 4
    tl.store(walk + 0, first)
    tl.store(walk + 1, stop)
    tl.store(walk + 2, full_lo)
    tl.store(walk + 3, full_hi)
    n_walked = tl.cdiv(Sq, BQ)
    for start in range(first, tl.where(part == 0, stop, first), 128):
        at = start + tl.arange(0, 128)
        tl.atomic_max(met_ptr + 2 * place * n_walked + at, n_tiles - tile, mask=at < stop, sem="relaxed")
        tl.atomic_max(met_ptr + (2 * place + 1) * n_walked + at, tile + 1, mask=at < stop, sem="relaxed")


@triton.jit(do_not_specialize=['B', 'Hq', 'Hkv', 'Sq', 'Sk', 'ids_stride_0'])
def _list_walks_kernel(
    walks_ptr, met_ptr, counts_ptr, query_test0_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, FAST: tl.constexpr,
):
    """Calls `_list_walks` for each item, after the extremes in each tile of queries are found.

    Programs take tickets as they begin. The first ones find extremes. The others wait for these, which have begun and
    wait for none, so there is no deadlock.
    """
    n_tiles = tl.cdiv(Sq, BQ)
    n_found = n_tiles * B
    query_test0_most_ptr = query_test0_ptr + n_tiles * B
    number = tl.atomic_add(counts_ptr + 1, 1, sem="relaxed")
    if number < n_found:
        _query_test0(
            (number % n_tiles, number // n_tiles, 0, n_tiles, 1), (query_test0_ptr, query_test0_most_ptr),
            (scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1), BQ,
        )
        tl.debug_barrier()
        tl.atomic_add(counts_ptr + 2, 1, sem="release")
    else:
        while tl.atomic_add(counts_ptr + 2, 0, sem="acquire") < n_found:
            pass
        call = (query_test0_ptr, query_test0_most_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1)
        _list_walks(number - n_found, walks_ptr, met_ptr, call, D, Dv, BQ, BK, FAST)


@gluon.jit
def _start_with_terms(terms, like, FIRST: gl.constexpr):
    """Starts a product with the terms that a query adds to all of its sums: three of them, from FIRST on, times ones.

    If threads read these terms, all threads that share a query would read them. The ones are computed again, because
    there are no registers to keep them.
    """
    layout: gl.constexpr = gl.DotOperandLayout(0, like.type.layout, 2)
    place = _opaque(gl.arange(0, 16, layout=gl.SliceLayout(0, layout)))[None, :]
    ones = gl.where((place >= FIRST) & (place < FIRST + 3), 1.0, 0.0).to(gl.bfloat16)
    ones = gl.broadcast(ones, gl.zeros([like.shape[0], 16], gl.bfloat16, layout=layout))[0]
    return warpgroup_mma(ones, terms.permute((1, 0)), like, use_acc=False, is_async=True)


@gluon.jit
def _load_backward_tiles(q_desc, k_desc, v_desc, d_out_desc, item, rings, work, call, config: gl.constexpr):
    """The producer warp: fetches the keys and values of an item once, and queries and dO as far ahead as the rings have
    room. It takes the next item when all copies of this one have started, and publishes it.
    """
    BK: gl.constexpr = config.BK
    n_tiles = (call.Sk + BK - 1) // BK
    turn = 0
    round = 0
    group = call.Hq // call.Hkv
    while item < work.n_work:
        tile, _order, back, item_head = _walked_item(item, n_tiles, work, config)
        batch, kv_head, start, end = _members(item_head, work, call, config)
        k0 = tile * BK
        _fetch_halves(k_desc, rings.k, batch, kv_head, k0, round, BK // 2)
        for member in range(start, end):
            head = kv_head * group + member
            first, stop, _full_lo, _full_hi = _query_runs(tile, batch, head, kv_head, work, call, config, 0)
            n_steps = stop - first
            for step in range(n_steps):
                q0 = _place(step, first, stop, back) * config.BQ
                stage = _acquire(rings.q, turn, config.STAGES)
                ready = rings.q.ready.index(stage)
                mbarrier.expect(ready, q_desc.block_type.nbytes + work.terms_desc.block_type.nbytes)
                _COPY_IN(q_desc, [batch, head, q0, 0], ready, rings.q.tiles.index(stage))
                _COPY_IN(work.terms_desc, [batch, head, q0, 0], ready, rings.rows.index(stage))
                if (member == start) & (step == 0):
                    _fetch_halves(v_desc, rings.v, batch, kv_head, k0, round, BK // 2)
                _fetch(d_out_desc, rings.d_out, stage, batch, head, q0)
                turn += 1
            if (member == start) & (n_steps == 0):
                _fetch_halves(v_desc, rings.v, batch, kv_head, k0, round, BK // 2)
        item = gl.atomic_add(work.queue_ptr, 1, sem="relaxed") if gl.num_programs(0) < work.n_work else work.n_work
        if round > 0:
            _barrier_sync(rings.note.FREE, 480, 1)
        _publish(rings.note.tiles, item)
        mbarrier.arrive(rings.note.ready, count=1)
        round += 1
    if round > 0:
        _barrier_sync(rings.note.FREE, 480, 1)
    _await_released(rings.q, turn, config.STAGES)


@gluon.jit
def _fetch_halves(desc, ring, batch, head, k0, round, HALF: gl.constexpr):
    """Fetches the keys, or the values, of an item, when those of the previous item are released. Values come after the
    first queries, because dV of the previous item is stored from their place.
    """
    mbarrier.wait(ring.FREE, (round & 1) ^ 1)
    mbarrier.expect(ring.ready, 2 * desc.block_type.nbytes)
    for part in gl.static_range(2):
        _COPY_IN(desc, [batch, head, k0 + part * HALF, 0], ring.ready, ring.tiles.index(part))


@gluon.jit
def _next_item(note, round, WARPS: gl.constexpr):
    """The item that the producer published for the next round."""
    mbarrier.wait(note.ready, round & 1)
    item = tl.max(note.tiles.load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)
    _barrier_arrive(note.FREE, 480, WARPS)
    return item


@gluon.jit
def _await_turn(turns, turn):
    """Waits until the cell holds `turn`. What other programs added before they wrote it is then visible."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    (address, number) = (turns.to(gl.int64) + gl.full([1], 0, gl.int64, layout=one),
        turn + gl.full([1], 0, gl.int32, layout=one))
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 v; again: ld.acquire.gpu.global.b32 v, [$1]; setp.ne.s32 p, v, $2; @p bra again; "
        "mov.b32 $0, v; }",
        "=r,l,r", [address, number], gl.int32, False, 1,
    )


@gluon.jit
def _pass_turn(turns, turn):
    """Writes `turn` into the cell, after everything that this program has added is visible."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    (address, number) = (turns.to(gl.int64) + gl.full([1], 0, gl.int64, layout=one),
        turn + gl.full([1], 0, gl.int32, layout=one))
    asm: gl.constexpr = "st.release.gpu.global.b32 [$1], $2; mov.b32 $0, $2;"
    gl.inline_asm_elementwise(asm, "=r,l,r", [address, number], gl.int32, False, 1)


@gluon.jit
def _meets_before(order, back, place, at, n_tiles, work, call, config: gl.constexpr):
    """Whether an earlier tile of keys in the order meets the tile of queries `at`."""
    n_walked = (call.Sq + config.BQ - 1) // config.BQ
    noted = gl.load(work.met_ptr + (2 * place + gl.where(back, 1, 0)) * n_walked + at)
    return n_tiles - noted < order


@gluon.jit
def _turn_before(order, back, place, at, n_tiles, work):
    """The turn that the last earlier tile of keys which meets the tile of queries `at` passes on."""
    turn = 0
    chunk = (order + 31) // 32 - 1
    while turn == 0:
        others = chunk * 32 + gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
        tile = gl.where(back, n_tiles - 1 - others, others)
        row = place * n_tiles + tile
        walks = work.walks_ptr + row * 3 * 4
        starts = gl.load(walks, mask=others < order, other=at + 1)
        stops = gl.load(walks + 1, mask=others < order, other=0)
        turn = tl.max(gl.where((starts <= at) & (at < stops), others + 1, 0), 0)
        chunk -= 1
    return turn


@gluon.jit
def _await_turns(item, rings, turns, work, call, config: gl.constexpr):
    """A warp that waits, for each tile of dQ, until the previous tile of keys in the order has added its part."""
    n_tiles = (call.Sk + config.BK - 1) // config.BK
    turn = 0
    round = 0
    group = call.Hq // call.Hkv
    while item < work.n_work:
        tile, order, back, item_head = _walked_item(item, n_tiles, work, config)
        batch, kv_head, start, end = _members(item_head, work, call, config)
        for member in range(start, end):
            head = kv_head * group + member
            cells = work.turns_ptr + (batch * call.Hq + head) * ((call.Sq + config.BQ - 1) // config.BQ)
            place = batch
            first, stop, _full_lo, _full_hi = _query_runs(tile, batch, head, kv_head, work, call, config, 0)
            for step in range(stop - first):
                at = _place(step, first, stop, back)
                mbarrier.wait(turns.passed.index(turn % config.TURNS), (turn // config.TURNS & 1) ^ 1)
                if _meets_before(order, back, place, at, n_tiles, work, call, config):
                    _await_turn(cells + at, _turn_before(order, back, place, at, n_tiles, work))
                mbarrier.arrive(turns.ready.index(turn % config.TURNS), count=1)
                turn += 1
        item = _next_item(rings.note, round, 1)
        round += 1


@gluon.jit
def _pass_turns(item, rings, turns, work, call, config: gl.constexpr):
    """A warp that tells the next tile of keys in the order, for each tile of dQ, that this item's part is added."""
    n_tiles = (call.Sk + config.BK - 1) // config.BK
    turn = 0
    round = 0
    group = call.Hq // call.Hkv
    while item < work.n_work:
        tile, order, back, item_head = _walked_item(item, n_tiles, work, config)
        batch, kv_head, start, end = _members(item_head, work, call, config)
        for member in range(start, end):
            head = kv_head * group + member
            cells = work.turns_ptr + (batch * call.Hq + head) * ((call.Sq + config.BQ - 1) // config.BQ)
            first, stop, _full_lo, _full_hi = _query_runs(tile, batch, head, kv_head, work, call, config, 0)
            for step in range(stop - first):
                mbarrier.wait(turns.added.index(turn % config.TURNS), turn // config.TURNS & 1)
                _pass_turn(cells + _place(step, first, stop, back), order + 1)
                mbarrier.arrive(turns.passed.index(turn % config.TURNS), count=1)
                turn += 1
        item = _next_item(rings.note, round, 1)
        round += 1


@gluon.jit
def _add_dq_tile(part, joins, turn, rings, turns, work, config: gl.constexpr):
    """Adds the product of dS and keys to the tile `part` of dQ, or stores it if it is the first."""
    PIECES: gl.constexpr = config.BQ * config.BLOCK_D // 4096  # of 64 x 64: a thread has registers for one at a time
    no_dq = gl.zeros([64, 64], gl.float32, layout=gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
    stage = turn % config.DS_STAGES
    _barrier_sync(rings.ds.ready + stage, 384, 4)
    for piece in gl.static_range(PIECES):
        dq_token = warpgroup_mma_init(no_dq)
        for half in gl.static_range(2):
            k_half = rings.k.tiles.index(half).reshape([config.BK // 2, config.BLOCK_D])
            ds_half = rings.ds.tiles.index(half * config.DS_STAGES + stage)
            if config.BLOCK_D == 128:
                k_half = k_half.slice(piece * 64, 64, dim=1)
            elif config.BQ == 128:
                ds_half = ds_half.slice(piece * 64, 64, dim=1)
            dq_token = warpgroup_mma(ds_half.permute((1, 0)), k_half, dq_token, use_acc=half > 0, is_async=True)
        dq = warpgroup_mma_wait(0, deps=(dq_token,))
        if piece == PIECES - 1:
            mbarrier.arrive(rings.ds.FREE.index(stage), count=1)
        if piece == 0:
            mbarrier.wait(turns.ready.index(turn % config.TURNS), turn // config.TURNS & 1)
        held = dq.reshape([4, 2, 8, 8, 4, 2]).permute((0, 3, 2, 4, 1, 5)).reshape([4096])  # as threads hold it
        cells = (work.dq_parts_ptr + part * (config.BQ * config.BLOCK_D)
            + (piece * 4096 + gl.arange(0, 4096, layout=held.type.layout)))
        if joins:
            gl.atomic_add(cells, held, sem="relaxed")  # in turn: nobody else adds to these cells now
        else:
            gl.store(cells, held)


@gluon.jit
def _add_dq_tiles(item, rings, turns, work, call, config: gl.constexpr):
    """The consumer warpgroup that multiplies dS by the keys, and adds the products to dQ when it is their turn. The
    other consumers may be two tiles ahead of it.
    """
    n_tiles = (call.Sk + config.BK - 1) // config.BK
    turn = 0
    round = 0
    group = call.Hq // call.Hkv
    while item < work.n_work:
        tile, order, back, item_head = _walked_item(item, n_tiles, work, config)
        batch, kv_head, start, end = _members(item_head, work, call, config)
        mbarrier.wait(rings.k.ready, round & 1)
        for member in range(start, end):
            head = kv_head * group + member
            place = batch
            first, stop, _full_lo, _full_hi = _query_runs(tile, batch, head, kv_head, work, call, config, 0)
            for step in range(stop - first):
                at = _place(step, first, stop, back)
                part = (batch * tl.cast(call.Hq, gl.int64) + head) * ((call.Sq + config.BQ - 1) // config.BQ) + at
                _add_dq_tile(part, _meets_before(order, back, place, at, n_tiles, work, call, config), turn, rings,
                    turns, work, config)
                mbarrier.arrive(turns.added.index(turn % config.TURNS), count=1)
                turn += 1
        mbarrier.arrive(rings.k.FREE, count=1)
        item = _next_item(rings.note, round, 4)
        round += 1


@gluon.jit
def _differentiate_tile(dk, dv, turn, at, masked, rings, held, terms, call, config: gl.constexpr, PART: gl.constexpr):
    """Adds the tile of queries `at` to dK and dV, and stores its dS for dQ.

    Threads read shared memory before they start a product, since later their reads would queue behind the product's. dS
    is stored while the products of dV and dK run.
    """
    batch, head, kv_head, k0, k_idx = held
    BQ: gl.constexpr = config.BQ
    HALF: gl.constexpr = config.BK // 2
    STAGES: gl.constexpr = config.STAGES
    DS_STAGES: gl.constexpr = config.DS_STAGES
    dtype: gl.constexpr = rings.q.tiles.dtype
    pair_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BQ, 16])
    no_pairs = gl.zeros([HALF, BQ], gl.float32, layout=pair_layout)
    # Addresses are computed anew: kept over the loop, they would not fit in registers.
    again = _opaque(gl.to_tensor(0))
    stage = turn % STAGES
    mbarrier.wait(rings.q.ready.index(stage), turn // STAGES & 1)
    row_lse = 0.0  # it is taken off with the product
    terms_tile = rings.rows.index(stage).reshape([BQ, 16])
    q = rings.q.tiles.index(stage).reshape([BQ, config.BLOCK_D])
    k_rows = rings.k.tiles.index(PART + _opaque(gl.to_tensor(0))).reshape([HALF, config.BLOCK_D])
    qk_token = _start_with_terms(terms_tile, no_pairs, 3)
    qk_token = warpgroup_mma(k_rows, q.permute((1, 0)), qk_token, is_async=True)
    if config.EARLY:
        mbarrier.wait(rings.d_out.ready.index(stage), turn // STAGES & 1)
    qk = warpgroup_mma_wait(0, deps=(qk_token,))
    weight = _weigh_again(qk, row_lse, batch, head, kv_head, at * BQ, k0, k_idx, terms, config, HALF, dtype)
    if masked:
        kept = _kept_bits(no_pairs, at * BQ, k0, batch, head, kv_head, call, config, HALF)
        weight &= kept
    if not config.EARLY:
        mbarrier.wait(rings.d_out.ready.index(stage), turn // STAGES & 1)
    d_out = rings.d_out.tiles.index(stage).reshape([BQ, config.BLOCK_DV])
    v_rows = rings.v.tiles.index(PART + again).reshape([HALF, config.BLOCK_DV])
    dp_token = _start_with_terms(terms_tile, no_pairs, 0)
    dp_token = warpgroup_mma(v_rows, d_out.permute((1, 0)), dp_token, is_async=True)
    p = _unpacked(weight, dtype, gl.DotOperandLayout(0, dv.type.layout, 2))
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    ds = (_unpacked_wide(weight, dtype, pair_layout) * dp).to(dtype)
    dv_token = warpgroup_mma(p, d_out, dv, is_async=True)
    slopes = gl.convert_layout(ds, gl.DotOperandLayout(0, dk.type.layout, 2))
    dk_token = warpgroup_mma(slopes, q, dk, is_async=True)
    place = turn % DS_STAGES
    mbarrier.wait(rings.ds.FREE.index(place), (turn // DS_STAGES & 1) ^ 1)
    rings.ds.tiles.index(PART * DS_STAGES + place + again).store(ds)
    fence_async_shared()
    _barrier_arrive(rings.ds.ready + place, 384, 4)
    dv, p, dk, slopes = warpgroup_mma_wait(0, deps=(dv_token, p, dk_token, slopes))
    _barrier_arrive(rings.q.FREE + stage, 288, 4)
    return dk, dv


@gluon.jit
def _release_queries(turn, rings, config: gl.constexpr, PART: gl.constexpr):
    """Releases a tile of queries that only the other half of the keys may meet. Its part of dS is zero."""
    stage = turn % config.STAGES
    mbarrier.wait(rings.q.ready.index(stage), turn // config.STAGES & 1)
    mbarrier.wait(rings.d_out.ready.index(stage), turn // config.STAGES & 1)
    _barrier_arrive(rings.q.FREE + stage, 288, 4)
    place = turn % config.DS_STAGES
    mbarrier.wait(rings.ds.FREE.index(place), (turn // config.DS_STAGES & 1) ^ 1)
    each: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    no_ds = gl.zeros([config.BK // 2, config.BQ], rings.ds.tiles.dtype, layout=each)
    rings.ds.tiles.index(PART * config.DS_STAGES + place).store(no_ds)
    fence_async_shared()
    _barrier_arrive(rings.ds.ready + place, 384, 4)


@gluon.jit
def _differentiate_tiles(results, item, rings, work, call, config: gl.constexpr, PART: gl.constexpr):
    """A consumer warpgroup: dK and dV of its half of the keys. It visits tiles of queries from the last to the first,
    or from the first on where the order is backwards. dS of both halves goes through shared memory to the warpgroup of
    dQ.
    """
    scale, _B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1 = call
    HALF: gl.constexpr = config.BK // 2
    dtype: gl.constexpr = results.dk_desc.dtype
    pair_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BQ, 16])
    dk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_D, 16])
    dv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_DV, 16])
    n_tiles = (Sk + config.BK - 1) // config.BK
    turn = 0
    round = 0
    group = Hq // Hkv
    while item < work.n_work:
        tile, _order, back, item_head = _walked_item(item, n_tiles, work, config)
        batch, kv_head, start, end = _members(item_head, work, call, config)
        k0 = tile * config.BK + PART * HALF
        k_idx = (k0 + gl.arange(0, HALF, layout=gl.SliceLayout(1, pair_layout)))[:, None]
        dk = gl.zeros([HALF, config.BLOCK_D], gl.float32, layout=dk_layout)
        dv = gl.zeros([HALF, config.BLOCK_DV], gl.float32, layout=dv_layout)
        mbarrier.wait(rings.k.ready, round & 1)
        mbarrier.wait(rings.v.ready, round & 1)
        for member in range(start, end):
            head = kv_head * group + member
            first, stop, _full_lo, _full_hi = _query_runs(tile, batch, head, kv_head, work, call, config, 0)
            (own_first, own_stop, own_full_lo, own_full_hi) = _query_runs(tile, batch, head, kv_head, work, call,
                config, 1 + PART)
            own_first = tl.minimum(tl.maximum(own_first, first), stop)
            own_stop = tl.minimum(tl.maximum(own_stop, own_first), stop)
            own_full_lo = tl.where(Sk < k0 + HALF, 0, own_full_lo)
            own_full_hi = tl.where(Sk < k0 + HALF, 0, own_full_hi)
            begin = gl.where(back, own_first - first, stop - own_stop)
            end = begin + own_stop - own_first
            for step in range(begin):
                _release_queries(turn + step, rings, config, PART)
            turn += begin
            logit_scale = scale * 1.4426950408889634
            k_safe = tl.minimum(k_idx, Sk - 1)
            col_term = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0
                + tl.cast(k_safe, tl.int64) * ids_stride_1)
            terms = (Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, col_term)
            held = (batch, head, kv_head, k0, k_idx)
            for step in range(begin, end):
                at = _place(step, first, stop, back)
                (dk, dv) = _differentiate_tile(dk, dv, turn, at, (at < own_full_lo) | (own_full_hi <= at), rings, held,
                    terms, call, config, PART)
                turn += 1
            for step in range(end, stop - first):
                _release_queries(turn + step - end, rings, config, PART)
            turn += stop - first - end

        mbarrier.arrive(rings.k.FREE, count=1)
        if config.SHARED:
            _store_parts(dk * scale, dv, 2 * _part(item_head, tile, n_tiles) + PART, work, config)
            item = _next_item(rings.note, round, 4)
        else:
            # dV takes the place of this half of the values; the copy engine clips both results.
            dv_place = rings.v.tiles.index(PART)
            dv_place.reshape([HALF, config.BLOCK_DV]).store(dv.to(dtype))
            dk = dk * scale
            if config.DK_OVER_DS:
                for place in gl.static_range(config.DS_STAGES):
                    used = ((turn + config.DS_STAGES - 1
                        - place) // config.DS_STAGES)  # so many tiles of dS have been there
                    mbarrier.wait(rings.ds.FREE.index(place), (used & 1) ^ 1)
            dk_place = results.dk_tiles.index(PART)
            dk_place.reshape([HALF, config.BLOCK_D]).store(dk.to(dtype))
            fence_async_shared()
            _BARRIER()
            _COPY_OUT(results.dv_desc, [batch, kv_head, k0, 0], dv_place)
            _COPY_OUT(results.dk_desc, [batch, kv_head, k0, 0], dk_place)
            item = _next_item(rings.note, round, 4)
            tma.store_wait(0)
        mbarrier.arrive(rings.v.FREE, count=1)
        round += 1


@triton.jit
def _part(head, tile, n_tiles):
    """The number of an item's partial sums of dK and dV."""
    head = tl.cast(head, tl.int64)
    return head * n_tiles + tile


@gluon.jit
def _store_parts(dk, dv, half, work, config: gl.constexpr):
    """Stores an item's partial sums for half a tile of keys, for `_collect_kernel`."""
    cells = work.parts_ptr + half * (64 * (config.BLOCK_D + config.BLOCK_DV))
    _store_sums(cells, dk, config.BLOCK_D)
    _store_sums(cells + 64 * config.BLOCK_D, dv, config.BLOCK_DV)


@gluon.jit
def _store_sums(cells, x, WIDTH: gl.constexpr):
    """Stores a part of dK or dV in the order in which threads hold it."""
    held = x.reshape([4, 2, 8, WIDTH // 8, 4, 2]).permute((0, 3, 2, 4, 1, 5)).reshape([64 * WIDTH])
    gl.store(cells + gl.arange(0, 64 * WIDTH, layout=held.type.layout), held)


@triton.jit
def _added_parts(cells, kv_head, tile, n_tiles, shares, PART: tl.constexpr, WIDTH: tl.constexpr):
    """The sum of the parts of all shares, in a fixed order, brought from the order of threads to that of rows."""
    cells += tl.arange(0, 64 * WIDTH)
    total = tl.zeros([64 * WIDTH], tl.float32)
    for share in range(shares):
        total += tl.load(cells + _part(kv_head * shares + share, tile, n_tiles) * PART)
    return tl.reshape(tl.permute(tl.reshape(total, [4, WIDTH // 8, 8, 4, 2, 2]), [0, 4, 2, 1, 3, 5]), [64, WIDTH])


@triton.jit(do_not_specialize=["n_parts", "span", *UNSPECIALIZED])
def _collect_kernel(
    dq_parts_ptr, turns_ptr, dq_ptr, parts_ptr, dk_ptr, dv_ptr, n_parts, span, scale, B, Hq, Hkv, Sq, Sk, ids_ptr,
    ids_stride_0, ids_stride_1,
    dq_strides, dk_strides, dv_strides,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BQ: tl.constexpr,
    BK: tl.constexpr,
    SHARED: tl.constexpr, ALIGN: tl.constexpr,
):
    """Brings a tile of dQ from the order of threads to that of the tensor. SHARED: also adds up the partial sums of dK
    and dV for half a tile of keys.
    """
    part = tl.cast(tl.program_id(0), tl.int64)
    if part < n_parts:
        n_tiles = tl.cdiv(Sq, BQ)
        met = tl.load(turns_ptr + part) > 0  # else no tile of keys has stored a part
        held = tl.load(dq_parts_ptr + part * (BQ * BLOCK_D) + tl.arange(0, BQ * BLOCK_D), mask=met, other=0.0)
        parts = tl.reshape(held, [BQ // 64, BLOCK_D // 64, 4, 8, 8, 4, 2, 2])
        dq = tl.reshape(tl.permute(parts, [0, 2, 6, 4, 1, 3, 5, 7]), [BQ, BLOCK_D])
        i = part // n_tiles
        dq_rows = _head_rows(dq_ptr, i // Hq, i % Hq, dq_strides, Sq, ALIGN)
        _store_rows(dq_rows, dq * scale, part % n_tiles * BQ, D)
    elif SHARED:
        half = tl.program_id(0) - n_parts
        n_tiles = tl.cdiv(Sk, BK)
        tile = half // 2 % n_tiles
        kv_head = half // (2 * n_tiles)
        group = Hq // Hkv
        shares = (group + span - 1) // span
        PART: tl.constexpr = 128 * (BLOCK_D + BLOCK_DV)
        cells = parts_ptr + half % 2 * (PART // 2)
        k0 = tile * BK + half % 2 * 64
        dk = _added_parts(cells, kv_head, tile, n_tiles, shares, PART, BLOCK_D)
        dk_rows = _head_rows(dk_ptr, kv_head // Hkv, kv_head % Hkv, dk_strides, Sk, ALIGN)
        _store_rows(dk_rows, dk, k0, D)
        dv = _added_parts(cells + 64 * BLOCK_D, kv_head, tile, n_tiles, shares, PART, BLOCK_DV)
        dv_rows = _head_rows(dv_ptr, kv_head // Hkv, kv_head % Hkv, dv_strides, Sk, ALIGN)
        _store_rows(dv_rows, dv, k0, Dv)


@gluon.jit(do_not_specialize=['n_work', 'together', 'span', 'B', 'Hq', 'Hkv', 'Sq', 'Sk', 'ids_stride_0'])
def _hopper_backward_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dk_desc, dv_desc, terms_desc, dq_parts_ptr, parts_ptr, turns_ptr, queue_ptr,
    n_work, together, span, walks_ptr, met_ptr, scale, B,
    Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1,
    D: gl.constexpr, Dv: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, BQ: gl.constexpr,
    BK: gl.constexpr,
    STAGES: gl.constexpr, EARLY: gl.constexpr, BACKWARDS: gl.constexpr, SHARED: gl.constexpr, SPARE: gl.constexpr,
    FAST: gl.constexpr,
):
    """dK and dV of one tile of keys, and its part of dQ, which is added after those of the previous tiles in the order.

    Programs take items in order, and an item waits only for items that have begun, so there is no deadlock.
    """
    # Hardware barriers. Triton uses the first seven of sixteen; DS_STAGES tell that dS is stored, one that the next
    # item is read, STAGES that a place of queries is free.
    # Four warpgroups share 512 registers a thread: two for dS, one for dQ, one of single warps.
    HELD: gl.constexpr = 208
    TURNS: gl.constexpr = 2
    DS_STAGES: gl.constexpr = 2
    DS_STORED: gl.constexpr = 7
    READ: gl.constexpr = DS_STORED + DS_STAGES
    FREE: gl.constexpr = READ + 1
    gl.static_assert(FREE + STAGES <= 16)
    DK_OVER_DS: gl.constexpr = BLOCK_D == 128  # with terms, shared memory has no room for dK
    gl.static_assert(BK == 128)
    HALF: gl.constexpr = BK // 2
    dtype: gl.constexpr = q_desc.dtype
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF, BQ], dtype)
    work = _BackwardWork(terms_desc, dq_parts_ptr, parts_ptr, turns_ptr, queue_ptr, n_work, together, span, walks_ptr,
        met_ptr)
    call = _BackwardCall(scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1)
    config: gl.constexpr = _BackwardConfig(D, Dv, BLOCK_D, BLOCK_DV, BQ, BK, STAGES, EARLY, BACKWARDS, SHARED, TURNS,
        DS_STAGES, DK_OVER_DS, FAST)
    k_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, HALF, BLOCK_D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, HALF, BLOCK_DV], v_desc.layout)
    q_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BQ, BLOCK_D], q_desc.layout)
    d_out_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BQ, BLOCK_DV], d_out_desc.layout)
    ds_tiles = gl.allocate_shared_memory(dtype, [2 * DS_STAGES, HALF, BQ], ds_layout)
    if DK_OVER_DS:
        gl.static_assert(DS_STAGES * BQ == BLOCK_D)
        dk_tiles = _REINTERPRET(ds_tiles, dtype, [2, 1, 1, HALF, BLOCK_D], dk_desc.layout)
    else:
        dk_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, HALF, BLOCK_D], dk_desc.layout)
    rows = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, 1, BQ, 16], terms_desc.layout)
    note = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    k_ring = _Ring(k_tiles, _initialized(1, 1).index(0), _initialized(1, 3).index(0))
    v_ring = _Ring(v_tiles, _initialized(1, 1).index(0), _initialized(1, 2).index(0))
    q_ring = _Ring(q_tiles, _barriers(STAGES), FREE)
    d_out_ring = _Ring(d_out_tiles, _barriers(STAGES), FREE)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_ring.ready.index(i), count=1)
        mbarrier.init(d_out_ring.ready.index(i), count=1)
    note_ring = _Ring(note, _initialized(1, 1).index(0), READ)
    turns = _Turns(_barriers(TURNS), _barriers(TURNS), _barriers(TURNS))
    for i in gl.static_range(TURNS):
        mbarrier.init(turns.ready.index(i), count=1)
        mbarrier.init(turns.added.index(i), count=1)
        mbarrier.init(turns.passed.index(i), count=1)
    ds_ring = _Ring(ds_tiles, DS_STORED, _initialized(DS_STAGES, 1))
    fence_async_shared()
    rings = _BackwardRings(k_ring, v_ring, q_ring, d_out_ring, rows, ds_ring, note_ring)
    results = _BackwardResults(dk_desc, dv_desc, dk_tiles)
    item = gl.atomic_add(queue_ptr, 1, sem="relaxed")
    gl.warp_specialize(
        [
            (_differentiate_tiles, (results, item, rings, work, call, config, 0)),
            (_differentiate_tiles, (results, item, rings, work, call, config, 1)),
            (_add_dq_tiles, (item, rings, turns, work, call, config)),
            (_load_backward_tiles, (q_desc, k_desc, v_desc, d_out_desc, item, rings, work, call, config)),
            (_await_turns, (item, rings, turns, work, call, config)),
            (_pass_turns, (item, rings, turns, work, call, config)),
        ],
        [4, 4, 1, 1, 1],
        [HELD, 512 - SPARE - 2 * HELD, SPARE, SPARE, SPARE],
    )


_DkdvRings = namedtuple("_DkdvRings", "k v q d_out pairs lse_tiles delta_tiles")
_DkdvWork = namedtuple("_DkdvWork", "lse_ptr delta_ptr n_work together walks_ptr")
_DkdvConfig = namedtuple("_DkdvConfig", "D Dv BLOCK_D BLOCK_DV BQ BK STAGES AHEAD FAST")


@gluon.jit
def _queries_met(k0, batch, head, kv_head, work, call, config: gl.constexpr):
    """The tiles of queries that BK keys from k0 on meet (`_query_tiles`), up to the last tile."""
    _scale, _B, _Hq, _Hkv, Sq, Sk, _ids_ptr, _ids_stride_0, _ids_stride_1 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    last = tl.cast((Sq - 1) // BQ, tl.int32)
    stop = last + 1
    n_tiles = (Sk + BK - 1) // BK
    tile = k0 // BK
    row = batch * n_tiles + tile
    walk = work.walks_ptr + row * 4
    full_lo = gl.load(walk + 0)
    full_hi = gl.load(walk + 1)
    any_lo = gl.load(walk + 2)
    any_hi = gl.load(walk + 3)
    return tl.minimum(full_lo, stop), tl.minimum(full_hi, stop), tl.minimum(any_lo, stop), tl.minimum(any_hi, stop)


@triton.jit
def _list_queries_met(
    item, walks_ptr, call, D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, FAST: tl.constexpr,
):
    """Stores which tiles of queries a tile of keys meets, and which of them need no mask."""
    (query_test0_least_ptr, query_test0_most_ptr, _scale, _B, _Hq, _Hkv, Sq, Sk, ids_ptr, ids_stride_0,
        ids_stride_1) = call
    n_tiles = tl.cdiv(Sk, BK)
    tile = item % n_tiles
    place = item // n_tiles
    batch = place
    k0 = tile * BK
    k1 = tl.minimum(k0 + BK, Sk) - 1
    k_idx = (k0 + tl.arange(0, BK))[:, None]
    k_safe = tl.minimum(k_idx, Sk - 1)
    col_term = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(k_safe, tl.int64) * ids_stride_1)
    test0_least = tl.min(tl.where(k_idx <= k1, tl.cast(col_term, tl.int64), 9223372036854775807))
    test0_most = tl.max(tl.where(k_idx <= k1, tl.cast(col_term, tl.int64), -9223372036854775807))
    test0_tile = batch * tl.cdiv(Sq, BQ)
    (test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi) = _matching_tiles(query_test0_least_ptr + test0_tile,
        query_test0_most_ptr + test0_tile, test0_least, test0_most, tl.cdiv(Sq, BQ), BQ, 0)
    (full_lo, full_hi, any_lo, any_hi) = _query_tiles(k0, k1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi,
        Sq, Sk, BQ)
    walk = walks_ptr + item * 4
    tl.store(walk + 0, full_lo)
    tl.store(walk + 1, full_hi)
    tl.store(walk + 2, any_lo)
    tl.store(walk + 3, any_hi)


@triton.jit(do_not_specialize=['B', 'Hq', 'Hkv', 'Sq', 'Sk', 'ids_stride_0'])
def _list_queries_met_kernel(
    walks_ptr, counts_ptr, query_test0_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, FAST: tl.constexpr,
):
    """Calls `_list_queries_met` for each item, after the extremes in each tile of queries are found.

    Programs take tickets as they begin. The first ones find extremes. The others wait for these, which have begun and
    wait for none, so there is no deadlock.
    """
    n_tiles = tl.cdiv(Sq, BQ)
    n_found = n_tiles * B
    query_test0_most_ptr = query_test0_ptr + n_tiles * B
    number = tl.atomic_add(counts_ptr + 1, 1, sem="relaxed")
    if number < n_found:
        _query_test0(
            (number % n_tiles, number // n_tiles, 0, n_tiles, 1), (query_test0_ptr, query_test0_most_ptr),
            (scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1), BQ,
        )
        tl.debug_barrier()
        tl.atomic_add(counts_ptr + 2, 1, sem="release")
    else:
        while tl.atomic_add(counts_ptr + 2, 0, sem="acquire") < n_found:
            pass
        call = (query_test0_ptr, query_test0_most_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1)
        _list_queries_met(number - n_found, walks_ptr, call, D, Dv, BQ, BK, FAST)


@gluon.jit
def _load_query_tiles(q_desc, k_desc, v_desc, d_out_desc, rings, work, call, config: gl.constexpr):
    """The producer warp: fetches keys and values once, queries, dO and row terms as far ahead as the rings have room.
    """
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    STAGES: gl.constexpr = config.STAGES
    tile, batch, kv_head = _key_item(gl.program_id(0), (call.Sk + BK - 1) // BK, call.Hkv, work.n_work, work.together)
    k0 = tile * BK
    mbarrier.expect(rings.k.ready, k_desc.block_type.nbytes)
    k_place = _REINTERPRET(rings.k.tiles.index(0), k_desc.dtype, [1, 1, BK, config.BLOCK_D], k_desc.layout)
    _COPY_IN(k_desc, [batch, kv_head, k0, 0], rings.k.ready, k_place)
    mbarrier.expect(rings.v.ready, v_desc.block_type.nbytes)
    v_place = _REINTERPRET(rings.v.tiles.index(0), v_desc.dtype, [1, 1, BK, config.BLOCK_DV], v_desc.layout)
    _COPY_IN(v_desc, [batch, kv_head, k0, 0], rings.v.ready, v_place)
    turn = 0
    group = call.Hq // call.Hkv
    for member in range(group):
        head = kv_head * group + member
        row = (batch * tl.cast(call.Hq, gl.int64) + head) * call.Sq
        _full_lo, _full_hi, any_lo, any_hi = _queries_met(k0, batch, head, kv_head, work, call, config)
        n_steps = tl.maximum(any_hi - any_lo, 1)
        for step in range(n_steps):
            at = any_lo + step
            q0 = at * BQ
            rows = q0 + gl.arange(0, BQ, layout=gl.BlockedLayout([1], [32], [1], [0]))
            row_lse = gl.load(work.lse_ptr + row + rows, mask=rows < call.Sq, other=float("inf"))
            delta = gl.load(work.delta_ptr + row + rows, mask=rows < call.Sq, other=0.0)
            stage = _acquire(rings.q, turn + step, STAGES)
            _fetch(q_desc, rings.q, stage, batch, head, q0)
            rings.lse_tiles.index(stage).store(row_lse)
            mbarrier.arrive(rings.q.ready.index(stage), count=1)
            stage = _acquire(rings.d_out, turn + step, STAGES)
            _fetch(d_out_desc, rings.d_out, stage, batch, head, q0)
            rings.delta_tiles.index(stage).store(delta)
            mbarrier.arrive(rings.d_out.ready.index(stage), count=1)
        turn += n_steps
    for last in range(tl.minimum(turn, STAGES)):
        _barrier_sync(rings.q.FREE + (turn - 1 - last) % STAGES, 288, 1)
        _barrier_sync(rings.d_out.FREE + (turn - 1 - last) % STAGES, 288, 1)


@gluon.jit
def _as_handed(pairs):
    """The packed pairs of a tile in the order of threads, four at a time, so that each thread moves 16 bytes."""
    rows: gl.constexpr = pairs.shape[0]
    cols: gl.constexpr = pairs.shape[1]
    parts = pairs.reshape([rows // 16, 2, 8, cols // 8, 2, 4])
    return parts.permute((3, 0, 2, 5, 4, 1)).reshape([rows * cols])


@gluon.jit
def _hand_over(pairs, ring, turn, AHEAD: gl.constexpr):
    """Hands a tile's pairs to the other warpgroup, when it has released their place."""
    place = turn % AHEAD
    if turn >= AHEAD:
        _barrier_sync(ring.FREE + place, 256, 4)
    ring.tiles.index(place).store(_as_handed(pairs))
    _barrier_arrive(ring.ready + place, 256, 4)


@gluon.jit
def _take_over(like, ring, turn, AHEAD: gl.constexpr):
    """The pairs that `_hand_over` stored, in the layout of `like`."""
    rows: gl.constexpr = like.shape[0]
    cols: gl.constexpr = like.shape[1]
    wanted = _as_handed(like)
    place = turn % AHEAD
    _barrier_sync(ring.ready + place, 256, 4)
    parts = ring.tiles.index(place).load(wanted.type.layout).reshape([cols // 8, rows // 16, 8, 4, 2, 2])
    _barrier_arrive(ring.FREE + place, 256, 4)
    return parts.permute((1, 5, 2, 0, 4, 3)).reshape([rows, cols])


@gluon.jit
def _start_product(held, part, walked, no_pairs, COLS: gl.constexpr):
    """Starts the product of the rows of a tile that stays and the rows of a tile that passes by."""
    dtype: gl.constexpr = walked.dtype
    shape: gl.constexpr = no_pairs.shape
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([shape[0], COLS], dtype)
    # The address of the tile that stays is computed again, because there are no registers to keep it.
    rows = _REINTERPRET(held.index(part + _opaque(gl.to_tensor(0))), dtype, [shape[0], COLS], layout)
    columns = walked.reshape([shape[1], COLS]).permute((1, 0))
    return warpgroup_mma(rows, columns, no_pairs, use_acc=False, is_async=True)


@gluon.jit
def _store_result(desc, values, place, batch, head, start, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Stores a warpgroup's result through shared memory that no other warp reads any more. The copy engine clips it."""
    own = _REINTERPRET(place, desc.dtype, [1, 1, ROWS, COLS], desc.layout)
    own.reshape([ROWS, COLS]).store(values.to(desc.dtype))
    fence_async_shared()
    _BARRIER()
    _COPY_OUT(desc, [batch, head, start, 0], own)
    tma.store_wait(0)


@gluon.jit
def _weigh_query_tiles(dv_desc, rings, work, call, config: gl.constexpr):
    """The consumer warpgroup for the weights and dV. It hands the other one what dS needs of the weights, whose
    products run while this one computes weights.
    """
    scale, _B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    STAGES: gl.constexpr = config.STAGES
    dtype: gl.constexpr = dv_desc.dtype
    pair_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BQ, 16])
    dv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_DV, 16])
    no_pairs = gl.zeros([BK, BQ], gl.float32, layout=pair_layout)
    dv = gl.zeros([BK, config.BLOCK_DV], gl.float32, layout=dv_layout)
    tile, batch, kv_head = _key_item(gl.program_id(0), (Sk + BK - 1) // BK, Hkv, work.n_work, work.together)
    k0 = tile * BK
    k_idx = (k0 + gl.arange(0, BK, layout=gl.SliceLayout(1, pair_layout)))[:, None]
    mbarrier.wait(rings.k.ready, 0)
    turn = 0
    group = Hq // Hkv
    for member in range(group):
        head = kv_head * group + member
        full_lo, full_hi, any_lo, any_hi = _queries_met(k0, batch, head, kv_head, work, call, config)
        logit_scale = scale * 1.4426950408889634
        k_safe = tl.minimum(k_idx, Sk - 1)
        col_term = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(k_safe, tl.int64) * ids_stride_1)
        terms = (Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, col_term)
        n_steps = tl.maximum(any_hi - any_lo, 1)
        stage = turn % STAGES
        phase = turn // STAGES & 1
        mbarrier.wait(rings.q.ready.index(stage), phase)
        qk_token = _start_product(rings.k.tiles, 0, rings.q.tiles.index(stage), no_pairs, config.BLOCK_D)
        qk = warpgroup_mma_wait(0, deps=(qk_token,))
        for step in range(n_steps):
            at = any_lo + step
            row_lse = rings.lse_tiles.index(stage).load(gl.SliceLayout(0, pair_layout))[None, :]
            weight = _weigh_again(qk, row_lse, batch, head, kv_head, at * BQ, k0, k_idx, terms, config, BK, dtype)
            if ((at < full_lo) | (full_hi <= at)):
                kept = _kept_bits(qk, at * BQ, k0, batch, head, kv_head, call, config, BK)
                weight &= kept
            _barrier_arrive(rings.q.FREE + stage, 288, 4)
            _hand_over(weight, rings.pairs, turn + step, config.AHEAD)
            p = _unpacked(weight, dtype, gl.DotOperandLayout(0, dv_layout, 2))
            mbarrier.wait(rings.d_out.ready.index(stage), phase)
            d_out = rings.d_out.tiles.index(stage).reshape([BQ, config.BLOCK_DV])
            dv_token = warpgroup_mma(p, d_out, dv, is_async=True)
            here = stage
            if step + 1 < n_steps:
                stage = (turn + step + 1) % STAGES
                phase = (turn + step + 1) // STAGES & 1
                mbarrier.wait(rings.q.ready.index(stage), phase)
                qk_token = _start_product(rings.k.tiles, 0, rings.q.tiles.index(stage), no_pairs, config.BLOCK_D)
                dv, p = warpgroup_mma_wait(1, deps=(dv_token, p))
                _barrier_arrive(rings.d_out.FREE + here, 288, 4)
                qk = warpgroup_mma_wait(0, deps=(qk_token,))
            else:
                dv, p = warpgroup_mma_wait(0, deps=(dv_token, p))
                _barrier_arrive(rings.d_out.FREE + here, 288, 4)
        turn += n_steps
    for last in range(tl.minimum(turn, config.AHEAD)):
        _barrier_sync(rings.pairs.FREE + (turn - 1 - last) % config.AHEAD, 256, 4)
    _store_result(dv_desc, dv, rings.k.tiles.index(0), batch, kv_head, k0, BK, config.BLOCK_DV)


@gluon.jit
def _differentiate_query_tiles(dk_desc, rings, work, call, config: gl.constexpr):
    """The consumer warpgroup for dP, dS and dK. It reads no score: it takes over the weights."""
    scale, _B, Hq, Hkv, _Sq, Sk, _ids_ptr, _ids_stride_0, _ids_stride_1 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    STAGES: gl.constexpr = config.STAGES
    dtype: gl.constexpr = dk_desc.dtype
    pair_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BQ, 16])
    dk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_D, 16])
    no_pairs = gl.zeros([BK, BQ], gl.float32, layout=pair_layout)
    like = _packed(no_pairs, dtype)
    dk = gl.zeros([BK, config.BLOCK_D], gl.float32, layout=dk_layout)
    tile, batch, kv_head = _key_item(gl.program_id(0), (Sk + BK - 1) // BK, Hkv, work.n_work, work.together)
    k0 = tile * BK
    mbarrier.wait(rings.v.ready, 0)
    turn = 0
    group = Hq // Hkv
    for member in range(group):
        head = kv_head * group + member
        _full_lo, _full_hi, any_lo, any_hi = _queries_met(k0, batch, head, kv_head, work, call, config)
        n_steps = tl.maximum(any_hi - any_lo, 1)
        stage = turn % STAGES
        phase = turn // STAGES & 1
        mbarrier.wait(rings.d_out.ready.index(stage), phase)
        dp_token = _start_product(rings.v.tiles, 0, rings.d_out.tiles.index(stage), no_pairs, config.BLOCK_DV)
        dp = warpgroup_mma_wait(0, deps=(dp_token,))
        for step in range(n_steps):
            dp -= rings.delta_tiles.index(stage).load(gl.SliceLayout(0, pair_layout))[None, :]
            _barrier_arrive(rings.d_out.FREE + stage, 288, 4)
            pairs = _take_over(like, rings.pairs, turn + step, config.AHEAD)
            ds = (_unpacked_wide(pairs, dtype, pair_layout) * dp).to(dtype)
            slopes = gl.convert_layout(ds, gl.DotOperandLayout(0, dk_layout, 2))
            mbarrier.wait(rings.q.ready.index(stage), phase)
            dk_token = warpgroup_mma(slopes, rings.q.tiles.index(stage).reshape([BQ, config.BLOCK_D]), dk,
                is_async=True)
            here = stage
            if step + 1 < n_steps:
                stage = (turn + step + 1) % STAGES
                phase = (turn + step + 1) // STAGES & 1
                mbarrier.wait(rings.d_out.ready.index(stage), phase)
                dp_token = _start_product(rings.v.tiles, 0, rings.d_out.tiles.index(stage), no_pairs, config.BLOCK_DV)
                dk, slopes = warpgroup_mma_wait(1, deps=(dk_token, slopes))
                _barrier_arrive(rings.q.FREE + here, 288, 4)
                dp = warpgroup_mma_wait(0, deps=(dp_token,))
            else:
                dk, slopes = warpgroup_mma_wait(0, deps=(dk_token, slopes))
                _barrier_arrive(rings.q.FREE + here, 288, 4)
        turn += n_steps
    _store_result(dk_desc, dk * scale, rings.v.tiles.index(0), batch, kv_head, k0, BK, config.BLOCK_D)


@gluon.jit(do_not_specialize=['n_work', 'together', 'B', 'Hq', 'Hkv', 'Sq', 'Sk', 'ids_stride_0'])
def _hopper_dkdv_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dk_desc, dv_desc, lse_ptr, delta_ptr, n_work, together, walks_ptr, scale, B, Hq,
    Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1,
    D: gl.constexpr, Dv: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, BQ: gl.constexpr,
    BK: gl.constexpr,
    STAGES: gl.constexpr, AHEAD: gl.constexpr, SPARE: gl.constexpr, FAST: gl.constexpr,
):
    """dK and dV of one tile of keys: a consumer warpgroup for the weights and dV, one for dS and dK, since the
    registers of one do not hold both results, and a producer warp.
    """
    # Hardware barriers. Triton uses the first six of sixteen; these tell that a place of queries, or of dO, is free,
    # and that weights are handed over, or taken.
    Q_FREE: gl.constexpr = 6
    D_OUT_FREE: gl.constexpr = Q_FREE + STAGES
    HANDED: gl.constexpr = D_OUT_FREE + STAGES
    TAKEN: gl.constexpr = HANDED + AHEAD
    gl.static_assert(TAKEN + AHEAD <= 16)
    COLS: gl.constexpr = BLOCK_D if BLOCK_D > BLOCK_DV else BLOCK_DV  # results take the place of keys and values
    dtype: gl.constexpr = q_desc.dtype
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    place_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, BK, COLS], dtype)
    k_tile = gl.allocate_shared_memory(dtype, [1, 1, 1, BK, COLS], place_layout)
    v_tile = gl.allocate_shared_memory(dtype, [1, 1, 1, BK, COLS], place_layout)
    q_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BQ, BLOCK_D], q_desc.layout)
    d_out_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BQ, BLOCK_DV], d_out_desc.layout)
    handed = gl.allocate_shared_memory(gl.int32, [AHEAD, BK * BQ // 2], plain)
    lse_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, BQ], plain)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, BQ], plain)
    k_ring = _Ring(k_tile, _initialized(1, 1).index(0), None)
    v_ring = _Ring(v_tile, _initialized(1, 1).index(0), None)
    q_ring = _Ring(q_tiles, _barriers(STAGES), Q_FREE)
    d_out_ring = _Ring(d_out_tiles, _barriers(STAGES), D_OUT_FREE)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_ring.ready.index(i), count=2)
        mbarrier.init(d_out_ring.ready.index(i), count=2)
    rings = _DkdvRings(k_ring, v_ring, q_ring, d_out_ring, _Ring(handed, HANDED, TAKEN), lse_tiles, delta_tiles)
    fence_async_shared()
    work = _DkdvWork(lse_ptr, delta_ptr, n_work, together, walks_ptr)
    call = _BackwardCall(scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1)
    config: gl.constexpr = _DkdvConfig(D, Dv, BLOCK_D, BLOCK_DV, BQ, BK, STAGES, AHEAD, FAST)
    gl.warp_specialize(
        [
            (_weigh_query_tiles, (dv_desc, rings, work, call, config)),
            (_differentiate_query_tiles, (dk_desc, rings, work, call, config)),
            (_load_query_tiles, (q_desc, k_desc, v_desc, d_out_desc, rings, work, call, config)),
        ],
        [4, 1],
        [240, SPARE],
    )


_DqRings = namedtuple("_DqRings", "q d_out k v")
_DqWork = namedtuple("_DqWork", "lse_ptr delta_ptr n_work together walks_ptr")
_DqConfig = namedtuple("_DqConfig", "D Dv BLOCK_D BLOCK_DV BQ BK K_STAGES V_STAGES FAST")


@gluon.jit
def _keys_met(q0, batch, head, kv_head, work, call, config: gl.constexpr):
    """The tiles of keys that BQ queries from q0 on meet (`_key_tiles`), up to the last tile."""
    _scale, _B, _Hq, _Hkv, Sq, Sk, _ids_ptr, _ids_stride_0, _ids_stride_1 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    last = tl.cast((Sk - 1) // BK, tl.int32)
    stop = last + 1
    n_tiles = (Sq + BQ - 1) // BQ
    tile = q0 // BQ
    row = batch * n_tiles + tile
    walk = work.walks_ptr + row * 4
    full_lo = gl.load(walk + 0)
    full_hi = gl.load(walk + 1)
    any_lo = gl.load(walk + 2)
    any_hi = gl.load(walk + 3)
    return tl.minimum(full_lo, stop), tl.minimum(full_hi, stop), tl.minimum(any_lo, stop), tl.minimum(any_hi, stop)


@triton.jit
def _list_keys_met(
    item, walks_ptr, call, D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, FAST: tl.constexpr,
):
    """Stores which tiles of keys a tile of queries meets, and which of them need no mask."""
    key_test0_least_ptr, key_test0_most_ptr, _scale, _B, _Hq, _Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1 = call
    n_tiles = tl.cdiv(Sq, BQ)
    tile = item % n_tiles
    place = item // n_tiles
    batch = place
    q0 = tile * BQ
    q1 = tl.minimum(q0 + BQ, Sq) - 1
    q_idx = (q0 + tl.arange(0, BQ))[:, None]
    row_term_2 = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(q_idx, tl.int64) * ids_stride_1,
        mask=(q_idx < Sk), other=0)
    test0_least = tl.min(tl.where(q_idx <= q1, tl.cast(row_term_2, tl.int64), 9223372036854775807))
    test0_most = tl.max(tl.where(q_idx <= q1, tl.cast(row_term_2, tl.int64), -9223372036854775807))
    test0_tile = batch * tl.cdiv(Sk, BK)
    (test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi) = _matching_tiles(key_test0_least_ptr + test0_tile,
        key_test0_most_ptr + test0_tile, test0_least, test0_most, tl.cdiv(Sk, BK), BK, 0)
    (full_lo, full_hi, any_lo, any_hi) = _key_tiles(q0, q1, test0_any_lo, test0_any_hi, test0_all_lo, test0_all_hi, Sq,
        Sk, BK)
    walk = walks_ptr + item * 4
    tl.store(walk + 0, full_lo)
    tl.store(walk + 1, full_hi)
    tl.store(walk + 2, any_lo)
    tl.store(walk + 3, any_hi)


@triton.jit(do_not_specialize=['B', 'Hq', 'Hkv', 'Sq', 'Sk', 'ids_stride_0'])
def _list_keys_met_kernel(
    walks_ptr, counts_ptr, key_test0_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, FAST: tl.constexpr,
):
    """Calls `_list_keys_met` for each item, after the extremes in each tile of keys are found.

    Programs take tickets as they begin. The first ones find extremes. The others wait for these, which have begun and
    wait for none, so there is no deadlock.
    """
    n_tiles = tl.cdiv(Sk, BK)
    n_found = n_tiles * B
    key_test0_most_ptr = key_test0_ptr + n_tiles * B
    number = tl.atomic_add(counts_ptr + 1, 1, sem="relaxed")
    if number < n_found:
        _key_test0(
            (number % n_tiles, number // n_tiles, 0, n_tiles, 1), (key_test0_ptr, key_test0_most_ptr),
            (scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1), BK,
        )
        tl.debug_barrier()
        tl.atomic_add(counts_ptr + 2, 1, sem="release")
    else:
        while tl.atomic_add(counts_ptr + 2, 0, sem="acquire") < n_found:
            pass
        call = (key_test0_ptr, key_test0_most_ptr, scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1)
        _list_keys_met(number - n_found, walks_ptr, call, D, Dv, BQ, BK, FAST)


@gluon.jit
def _load_tile(desc, ring, turn, batch, head, start, STAGES: gl.constexpr):
    """Fetches a ring's next tile, when both consumers have released its place."""
    stage = turn % STAGES
    tile = ring.tiles.index(stage)
    ready = ring.ready.index(stage)
    if turn >= STAGES:
        _barrier_sync(ring.FREE + stage, 288, 1)
    mbarrier.expect(ready, desc.block_type.nbytes)
    _COPY_IN(desc, [batch, head, start, 0], ready, tile)


@gluon.jit
def _load_key_tiles(q_desc, k_desc, v_desc, d_out_desc, rings, work, call, config: gl.constexpr):
    """The producer warp: fetches queries and dO once, keys and values as far ahead as the rings have room."""
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    (tile, batch, head) = _key_item(work.n_work - 1 - gl.program_id(0), (call.Sq + BQ - 1) // BQ, call.Hq, work.n_work,
        work.together)
    kv_head = head // (call.Hq // call.Hkv)
    for part in gl.static_range(2):
        q0 = tile * BQ + part * (BQ // 2)
        ready = rings.q.ready.index(part)
        mbarrier.expect(ready, q_desc.block_type.nbytes + d_out_desc.block_type.nbytes)
        _COPY_IN(q_desc, [batch, head, q0, 0], ready, rings.q.tiles.index(part))
        _COPY_IN(d_out_desc, [batch, head, q0, 0], ready, rings.d_out.tiles.index(part))
    _full_lo, _full_hi, any_lo, any_hi = _keys_met(tile * BQ, batch, head, kv_head, work, call, config)
    n_steps = tl.maximum(any_hi - any_lo, 1)
    for step in range(n_steps):
        at = any_lo + step
        _load_tile(k_desc, rings.k, step, batch, kv_head, at * BK, config.K_STAGES)
        _load_tile(v_desc, rings.v, step, batch, kv_head, at * BK, config.V_STAGES)
    _await_released(rings.k, n_steps, config.K_STAGES)
    _await_released(rings.v, n_steps, config.V_STAGES)


@gluon.jit
def _weigh_rows(qk, row_lse, batch, kv_head, k0, masked, terms, config: gl.constexpr):
    """The weights of 64 queries for the keys k0 … k0 + BK - 1; if the score is not linear, also times its derivative.
    """
    Sk, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, row_term, row_term_2 = terms
    BK: gl.constexpr = config.BK
    k_idx = (k0 + gl.arange(0, BK, layout=gl.SliceLayout(0, qk.type.layout)))[None, :]
    p = tl.exp2(qk * logit_scale - row_lse)
    if masked:
        k_safe = tl.minimum(k_idx, Sk - 1)
        col_term = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(k_safe, tl.int64) * ids_stride_1)
        allowed = (k_idx <= row_term) & (row_term_2 == col_term)
        p = tl.where(allowed, p, 0.0)
    return p


@gluon.jit
def _differentiate_key_tiles(dq_desc, rings, work, call, config: gl.constexpr, PART: gl.constexpr):
    """A consumer warpgroup: 64 queries, one product after the other. The other consumer fills the gaps."""
    scale, _B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    dtype: gl.constexpr = dq_desc.dtype
    pair_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BK, 16])
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_D, 16])
    rows_layout: gl.constexpr = gl.SliceLayout(1, pair_layout)
    no_pairs = gl.zeros([64, BK], gl.float32, layout=pair_layout)
    dq = gl.zeros([64, config.BLOCK_D], gl.float32, layout=dq_layout)
    (tile, batch, head) = _key_item(work.n_work - 1 - gl.program_id(0), (Sq + BQ - 1) // BQ, Hq, work.n_work,
        work.together)
    kv_head = head // (Hq // Hkv)
    full_lo, full_hi, any_lo, any_hi = _keys_met(tile * BQ, batch, head, kv_head, work, call, config)
    n_steps = tl.maximum(any_hi - any_lo, 1)
    q0 = tile * BQ + PART * 64
    rows = q0 + gl.arange(0, 64, layout=rows_layout)
    q_idx = rows[:, None]
    row = (batch * tl.cast(Hq, gl.int64) + head) * Sq
    row_lse = gl.load(work.lse_ptr + row + rows, mask=rows < Sq, other=float("inf"))[:, None]
    delta = gl.load(work.delta_ptr + row + rows, mask=rows < Sq, other=0.0)[:, None]
    logit_scale = scale * 1.4426950408889634
    row_term = q_idx + Sk - Sq
    row_term_2 = tl.load(ids_ptr + tl.cast(batch, tl.int64) * ids_stride_0 + tl.cast(q_idx, tl.int64) * ids_stride_1,
        mask=(q_idx < Sk), other=0)
    terms = (Sk, ids_ptr, ids_stride_0, ids_stride_1, logit_scale, row_term, row_term_2)
    mbarrier.wait(rings.q.ready.index(PART), 0)
    for step in range(n_steps):
        stage = step % config.K_STAGES
        v_stage = step % config.V_STAGES
        mbarrier.wait(rings.k.ready.index(stage), step // config.K_STAGES & 1)
        qk_token = _start_product(rings.q.tiles, PART, rings.k.tiles.index(stage), no_pairs, config.BLOCK_D)
        qk = warpgroup_mma_wait(0, deps=(qk_token,))
        at = any_lo + step
        p = _weigh_rows(qk, row_lse, batch, kv_head, at * BK, ((at < full_lo) | (full_hi <= at)), terms, config)
        mbarrier.wait(rings.v.ready.index(v_stage), step // config.V_STAGES & 1)
        v_tile = rings.v.tiles.index(v_stage
            + _opaque(gl.to_tensor(0)))  # where there is one stage its address stays, too
        dp_token = _start_product(rings.d_out.tiles, PART, v_tile, no_pairs, config.BLOCK_DV)
        dp = warpgroup_mma_wait(0, deps=(dp_token,))
        _barrier_arrive(rings.v.FREE + v_stage, 288, 4)
        slopes = gl.convert_layout((p * (dp - delta)).to(dtype), gl.DotOperandLayout(0, dq_layout, 2))
        dq_token = warpgroup_mma(slopes, rings.k.tiles.index(stage).reshape([BK, config.BLOCK_D]), dq, is_async=True)
        dq, slopes = warpgroup_mma_wait(0, deps=(dq_token, slopes))
        _barrier_arrive(rings.k.FREE + stage, 288, 4)
    _store_result(dq_desc, dq * scale, rings.q.tiles.index(PART), batch, head, q0, 64, config.BLOCK_D)


@gluon.jit(do_not_specialize=['n_work', 'together', 'B', 'Hq', 'Hkv', 'Sq', 'Sk', 'ids_stride_0'])
def _hopper_dq_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dq_desc, lse_ptr, delta_ptr, n_work, together, walks_ptr, scale, B, Hq, Hkv, Sq,
    Sk, ids_ptr, ids_stride_0, ids_stride_1,
    D: gl.constexpr, Dv: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, BQ: gl.constexpr,
    BK: gl.constexpr,
    K_STAGES: gl.constexpr, V_STAGES: gl.constexpr, SPARE: gl.constexpr, FAST: gl.constexpr,
):
    """dQ of 128 queries, and their part of params' gradients: two consumer warpgroups, and a producer warp."""
    # Hardware barriers. Triton uses the first six of sixteen; these tell that a place is free.
    K_FREE: gl.constexpr = 6
    V_FREE: gl.constexpr = K_FREE + K_STAGES
    gl.static_assert(V_FREE + V_STAGES <= 16)
    dtype: gl.constexpr = q_desc.dtype
    q_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, BLOCK_D], q_desc.layout)
    d_out_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, BLOCK_DV], d_out_desc.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [K_STAGES, 1, 1, BK, BLOCK_D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [V_STAGES, 1, 1, BK, BLOCK_DV], v_desc.layout)
    q_ready = _initialized(2, 1)
    k_ring = _Ring(k_tiles, _initialized(K_STAGES, 1), K_FREE)
    v_ring = _Ring(v_tiles, _initialized(V_STAGES, 1), V_FREE)
    rings = _DqRings(_Ring(q_tiles, q_ready, None), _Ring(d_out_tiles, q_ready, None), k_ring, v_ring)
    fence_async_shared()
    work = _DqWork(lse_ptr, delta_ptr, n_work, together, walks_ptr)
    call = _BackwardCall(scale, B, Hq, Hkv, Sq, Sk, ids_ptr, ids_stride_0, ids_stride_1)
    config: gl.constexpr = _DqConfig(D, Dv, BLOCK_D, BLOCK_DV, BQ, BK, K_STAGES, V_STAGES, FAST)
    gl.warp_specialize(
        [
            (_differentiate_key_tiles, (dq_desc, rings, work, call, config, 0)),
            (_differentiate_key_tiles, (dq_desc, rings, work, call, config, 1)),
            (_load_key_tiles, (q_desc, k_desc, v_desc, d_out_desc, rings, work, call, config)),
        ],
        [4, 1],
        [240, SPARE],
    )


# ---------------------------------------------------------------- on the host


# Kept between calls. The CPU stands for Triton's interpreter, which counts as a chip of 8 multiprocessors.
_CHIPS: dict[torch.device, str] = {torch.device("cpu"): "cpu"}
_MULTIPROCESSORS: dict[torch.device, int] = {torch.device("cpu"): 8}
_READY: dict[tuple, _Known] = {}  # by layout
_ZEROS: dict[tuple[int, int], list[Tensor]] = {}  # by device and stream
_PLAIN = (Tensor, torch.nn.Parameter)
_Refusal = ValueError  # an `attngen.Kernel` sets its own subclass
_CALLER = 5  # the stack level of warnings; an `attngen.Kernel` adds 2


def _ceil(n: int, d: int) -> int:
    """n / d rounded up, ten times as fast as `triton.cdiv`."""
    return -(-n // d)


def _padded(n: int) -> int:
    """The least power of two that is at least n and 16."""
    return max(16, 1 << (n - 1).bit_length())


def _chip(device: torch.device) -> str:
    """The chip whose table rows a device uses."""
    if device not in _CHIPS and torch.version.hip:
        _CHIPS[device] = "gfx942"
    elif device not in _CHIPS:
        properties = torch.cuda.get_device_properties(device)
        kib = properties.shared_memory_per_block_optin // 1024
        newest = "sm_90" if properties.major == 9 else "sm_100"
        _CHIPS[device] = newest if kib >= 227 else "sm_80" if kib >= 163 else "sm_86"
    return _CHIPS[device]


def _tiles(q: Tensor, v: Tensor) -> tuple[tuple[int, int, int, int], ...]:
    return TILES[_chip(q.device), q.element_size(), _padded(max(q.shape[3], v.shape[3]))]


def _near(x: Tensor) -> Tensor:
    """`x` if its rows are contiguous and less than 2**23 elements apart, else a copy."""
    return x if x.stride(3) == 1 and x.stride(2) < 2**23 else x.contiguous()


def _like(x: Tensor, cols: int) -> tuple[tuple, tuple]:
    """Shape (B, H, S, cols) of a result, and strides in the order of those of `x`: (B, S, H, D) or (B, H, S, D)."""
    B, H, S, _ = x.shape
    inside = x.stride(1) < x.stride(2)
    return (B, H, S, cols), (H * S * cols, cols, H * cols, 1) if inside else (H * S * cols, S * cols, cols, 1)


def _strides(**tensors: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The strides of tensors' batches, heads and rows, by the names of the kernels' parameters."""
    return {f"{name}_strides": found[:3] for name, found in tensors.items()}


def _align(strides: dict[str, tuple[int, ...]], most: int = 16) -> int:
    """The largest power of two, up to `most`, that divides all strides."""
    return math.gcd(most, *(n for found in strides.values() for n in found))


def _copyable(x: Tensor, strides: tuple[int, ...]) -> bool:
    """Whether the copy engine (TMA) can read `x`: it has elements, whole multiples of 16 bytes apart."""
    size = x.element_size()
    return x.numel() > 0 and x.data_ptr() % 16 == 0 and all(0 < n and n * size % 16 == 0 for n in strides)


def _has_tma(*tensors: Tensor) -> bool:
    """Whether the chip has a copy engine that can read these tensors. Kernels load float32 by pointers."""
    chip = _chip(tensors[0].device)
    return chip in ("sm_90", "sm_100") and all(x.element_size() == 2 and _copyable(x, x.stride()[:3]) for x in tensors)


@functools.cache
def _knows_gluon() -> bool:
    """Whether the Hopper kernels support this release of Triton. If not, warns once."""
    if not GLUON_KNOWN:
        first, last = (f"{major}.{minor}" for major, minor in RELEASES)
        warnings.warn(f"documents: its kernels for Hopper GPUs support Triton {first} to {last}, not "
            f"{triton.__version__}; the portable kernels run", stacklevel=2)
    return GLUON_KNOWN


def _columns(D: int, Dv: int) -> tuple[int, int]:
    """Head dims rounded up to the keys of the Hopper tables."""
    dims = max(64, _padded(D)), max(64, _padded(Dv))
    return (32, 32) if max(D, Dv) <= 32 else (192, 128) if D <= 192 and dims == (256, 128) else dims


def _hopper(table: dict, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> tuple | None:
    """The row of a Hopper table, or None where its kernel cannot run."""
    D, Dv = q.shape[3], v.shape[3]
    if _chip(q.device) != "sm_90" or not _has_tma(q, k, v, *others) or not _knows_gluon():
        return None
    return table.get(_columns(D, Dv))


def _span(group: int, heads: int, wanted: int) -> int:
    """How many query heads of a group an item visits: the whole group, or, if there are fewer KV `heads` than `wanted`,
    an equal share of it, so that there are enough items.
    """
    most = max(1, min(group, group * heads // wanted))
    return next(n for n in range(most, 0, -1) if group % n == 0)


def _multiprocessors(device: torch.device) -> int:
    if device not in _MULTIPROCESSORS:
        _MULTIPROCESSORS[device] = torch.cuda.get_device_properties(device).multi_processor_count
    return _MULTIPROCESSORS[device]


def _registers(q: Tensor, *tile: int) -> dict[str, int]:
    """The option that limits registers, for tiles of which several programs should fit on a multiprocessor."""
    half = q.element_size() == 2 and _chip(q.device) in ("sm_90", "sm_100")
    limit = REGISTERS.get((_padded(q.shape[3]), *tile)) if half else None
    return {} if limit is None else {"maxnreg": limit}


_NONE: dict[str, Any] = {}
_WARMED: ContextVar[list | None] = ContextVar("kernels that launches compile and do not run", default=None)
# Triton's interpreter changes `triton.language` for all threads while a kernel runs: there, kernels take turns.
_TURN: Any = vars(triton).setdefault("_interpreter_turn", threading.RLock())


class _Launch:
    """A kernel, and how calls of one layout launch it. It finds its parameters by name among a call's `values`.

    `options`: constants of the kernel and of Triton. `tiles`: rows of a tile, by tensor. `scalars`: more values.
    `buffers`: shapes and dtypes of tensors to allocate. `counters`: sizes of int32 counters for later kernels. `names`:
    parameters that take a value of another name. `run`: launches the compiled kernel again, without Triton's lookup.
    """

    def __init__(self, kernel, grid, options, tiles=_NONE, scalars=_NONE, buffers=_NONE, counters=_NONE,
        names=_NONE) -> None:
        self.kernel, self.options, self.tiles, self.buffers = kernel, options, tiles, buffers
        self.grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
        self.counters = {x: sum([*counters.values()][:i]) for i, x in enumerate(counters)}  # where each begins
        self.scalars = {"counters": None, "n_counters": sum(counters.values()), **scalars}
        given = [x.removesuffix("_ptr").removesuffix("_desc") for x in kernel.arg_names if x not in options]
        self.operands = operator.itemgetter(*[names.get(x, x) for x in given])
        self.places = {given.index(x): x for x in tiles}
        self.constants = [options[x] for x in kernel.arg_names if x in options]
        self.run = None

    def __call__(self, values: dict) -> None:
        values.update(self.scalars)
        for name, (shape, dtype) in self.buffers.items():
            values[name] = values["q"].new_empty(shape, dtype=dtype)
        if self.counters:
            cells = values["counters"] = values["q"].new_empty(self.scalars["n_counters"], dtype=torch.int32)
            for name, start in self.counters.items():
                values[name] = cells[start:] if start else cells
        operands = [*self.operands(values)]
        watched = knobs.runtime.launch_enter_hook  # a profiler's, which Triton calls at each launch
        if self.run is not None and not getattr(watched, "calls", watched):
            self.run(operands)
            return
        for i, name in self.places.items():
            operands[i] = self.descriptor(name, operands[i])
        self.launch(*operands)

    def launch(self, *operands) -> None:
        if (warmed := _WARMED.get()) is not None:
            warmed.append(self.kernel.warmup(*operands, grid=self.grid, **self.options))
            return
        with nullcontext() if isinstance(self.kernel, triton.JITFunction) else _TURN:
            compiled = self.kernel[self.grid](*operands, **self.options)
        if compiled is not None:  # as under the interpreter
            self.run = _launcher(compiled, self.grid, {i: operands[i] for i in self.places}, self.constants)

    def descriptor(self, name: str, x: Tensor):
        block, sizes = [1, 1, self.tiles[name], _padded(x.shape[3])], (list(x.shape), list(x.stride()))
        if "q_desc" in self.kernel.arg_names:
            block[3] = 16 if name == "terms" else max(64, block[3])
            if name == "k" and self.options["BLOCK_D"] == 192:
                block[3] = 64  # in parts, since tile sizes are powers of two
            element = gl.float16 if x.dtype is torch.float16 else gl.bfloat16
            layout: Any = gl.NVMMASharedLayout.get_default_for(block, element)
            return HopperDescriptor(x, *sizes, block, layout)
        return TensorDescriptor(x, *sizes, block)


def _launcher(compiled, grid: tuple, tiles: dict, constants: list) -> Callable | None:
    """A function that calls the compiled launcher directly, since Triton's Python takes longer than the launch.

    `tiles`: its descriptors, by operand; their encoded forms are kept by address. None if the release of Triton may
    have other private names: then Triton launches the kernel, with new descriptors.
    """
    launcher: Any = getattr(compiled, "run", None)
    metas: Any = [None]
    if KNOWN and type(launcher).__name__ == "CudaLauncher" and not (launcher.global_scratch_size
            or launcher.profile_scratch_size or getattr(launcher, "gsan_enabled", False)):
        metas = tiles and (getattr(compiled.metadata, "tensordesc_meta", None) or [None])
    if None in metas:
        return None if tiles else lambda operands: compiled[grid](*operands, *constants)
    described = sys.modules[type(launcher).__module__].make_tensordesc_arg
    more = [None] * (described.__code__.co_argcount - 2)
    for tile in tiles.values():
        tile.base = None  # so that the tensor can be freed
    found: list[tuple] = [(i, tile, meta, {}) for (i, tile), meta in zip(sorted(tiles.items()), metas)]
    active: Any = driver.active
    scratch, watched = (None, None), (compiled.packed_metadata, None, None, None)
    begin = compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl
    if older := triton.__version__.startswith("3.6."):
        begin, launch = (*begin, *scratch, *watched), launcher.launch
        if tiles:
            launch = launch.__closure__[launch.__code__.co_freevars.index("launcher")].cell_contents
    else:
        begin = (*begin, *watched, *scratch, launcher.arg_annotations, launcher.kernel_signature)
        launch = active.utils.launch

    def run(operands: list) -> None:
        for i, tile, meta, by_address in reversed(found):  # each becomes several operands
            address = operands[i].data_ptr()
            parts = by_address.get(address)
            if parts is None:
                if len(by_address) >= 256:
                    by_address.clear()
                parts = by_address[address] = described(replace(tile, base=operands[i]), meta, *more)
            operands[i:i + 1] = parts
        operands += constants
        stream = active.get_current_stream(active.get_current_device())
        launch(*grid, stream, *begin, *(operands if older else (operands,)))

    return run


def _compiled(launches: tuple, values: dict, ahead: Callable | None = None) -> tuple:
    """The launches, after their kernels were compiled in parallel.

    `ahead`: a backward pass whose kernels are compiled at the same time. An error in it is raised when it runs.
    """
    if _WARMED.get() is not None or not isinstance(launches[-1].kernel, triton.JITFunction):
        return launches
    values, device = dict(values), values["q"].device

    def load(kernel) -> Any:
        with torch.cuda.device(device):  # the launcher loads the kernel
            return getattr(kernel, "result", lambda: kernel)().run

    token = _WARMED.set(warmed := [])
    try:
        with ThreadPoolExecutor() as pool, torch.cuda.device(device):
            with triton.AsyncCompileMode(pool, ignore_errors=True):  # `load` raises them
                for x in launches:
                    x(values)
                wanted = [pool.submit(load, kernel) for kernel in warmed]
                if ahead is not None and not torch.cuda.is_current_stream_capturing():
                    ahead()
                    for kernel in warmed[len(wanted):]:
                        pool.submit(load, kernel)
            for x in wanted:
                x.result()
    finally:
        _WARMED.reset(token)
    return launches


class _Known:
    """What calls of one layout share: values, scalars that passed the checks, launches."""

    def __init__(self, q, k, v, ids) -> None:
        B, Hq, Sq, D = q.shape
        Hkv, Sk, Dv = v.shape[1:]
        if max(Sq, Sk) >= 2**27:  # not in `_check`: while tracing they may be symbols
            _refuse(f"sequences must be shorter than 2**27, not {Sq} and {Sk}: positions are computed in 32 bits")
        near = _near(q), _near(k), _near(v)
        self.near = near[0] is q and near[1] is k and near[2] is v
        self.shape = B, Hq, Hkv, Sq, Sk, D, Dv
        # Shapes and strides of the results.
        self.out = _like(q, Dv)
        self.lse = (B, Hq, Sq), (Hq * Sq, Sq, 1)
        strides = _strides(q=near[0].stride(), k=near[1].stride(), v=near[2].stride(), out=self.out[1])
        ids = ids.expand(B, Sk)
        self.values = dict(strides, B=B, Hq=Hq, Hkv=Hkv, Sq=Sq, Sk=Sk, ids_stride_0=ids.stride(0),
            ids_stride_1=ids.stride(1))
        self.constants = dict(D=D, Dv=Dv, ALIGN=_align(strides))
        self.wide = dict(D=D, Dv=Dv, BLOCK_D=max(64, _padded(D)), BLOCK_DV=max(64, _padded(Dv)), FAST=True, num_warps=4)
        self.fits = set()
        self.forward, self.backward = {}, {}


def _layout(*tensors: Tensor) -> tuple:
    """What launches depend on: everything about the tensors but their values, with addresses modulo 16."""
    return tuple([(x.dtype, x.device, x.shape, x.stride(), x.data_ptr() % 16) for x in tensors])


def _known(*tensors: Tensor) -> _Known:
    """The `_Known` of these tensors' layout."""
    layout = _layout(*tensors)
    if layout not in _READY:
        if len(_READY) >= 1024:
            _READY.clear()
        _READY[layout] = _Known(*tensors)
    return _READY[layout]


def _stream(device: torch.device) -> int | None:
    """The stream whose calls may share tensors. None on the CPU, on a device that is not current, and while a CUDA
    graph is captured, since each replay must fill its own.
    """
    if device.type == "cpu" or device.index != torch.cuda.current_device() or torch.cuda.is_current_stream_capturing():
        return None
    active: Any = driver.active
    return active.get_current_stream(device.index)


def _queue(values: dict) -> None:
    """Adds a queue of four zeros to `values`, for an `own` call from a stock that one fill makes for 1,024 calls."""
    device = values["q"].device
    stream = _stream(device) if values["own"] else None
    if stream is None:
        values["queue"] = torch.zeros(4, dtype=torch.int32, device=device)
        return
    try:
        values["queue"] = _ZEROS[device.index, stream].pop()
    except (KeyError, IndexError):
        zeros = torch.zeros((1024, 4), dtype=torch.int32, device=device)
        values["queue"], *_ZEROS[device.index, stream] = zeros.unbind()


def _count_flops(op, of_qk: int, of_v: int, pairs=lambda q, k, **_: q.shape[0] * q.shape[2] * k.shape[2]) -> None:
    """Tells `FlopCounterMode` of an operator's products of lengths D and Dv, so many for each pair, allowed or not."""
    names = [x.name for x in op._opoverload._schema.arguments]

    def flops(*inputs, out_val=None, **more) -> int:
        given = dict(zip(names, inputs), **more)
        q, v = given["q"], given["v"]
        return 2 * q.shape[1] * pairs(**given) * (of_qk * q.shape[-1] + of_v * v.shape[-1])

    flops._get_raw = True  # it takes tensors, not their shapes
    flop_registry[op._opoverload.overloadpacket] = flops


def _forward_launches(known, q, k, v, out) -> tuple:
    """The launches of the forward pass, for calls of one layout."""
    B, Hq, _Hkv, Sq, Sk, D, Dv = known.shape
    if (row := _hopper(HOPPER, q, k, v, out)) is not None:
        row = HopperRow(*row)
        BQ, BK = row.BQ, row.BK
        n_tiles = _ceil(Sq, BQ)
        n_work = n_tiles * B * Hq
        n_lists = n_tiles * (1 + BQ // 64) * B
        return (_queue,
            _Launch(_list_key_runs_kernel, n_lists + _ceil(Sk, BK) * B,
                dict(D=D, Dv=Dv, BQ=BQ, BK=BK, ROWS=_padded(BQ), FAST=True, num_warps=1),
                buffers=dict(lists=((n_lists, 4), torch.int32), key_test0=((2, *(_ceil(Sk, BK), B, 1)), torch.int64)),
                names=dict(counts="queue")),
            _Launch(_hopper_forward_kernel,
                n_work if row.SCHEDULE == "once" else min(n_work, _multiprocessors(q.device)),
                dict(**{**known.wide, "BLOCK_D": max(64, _columns(D, Dv)[0])}, BQ=BQ, BK=BK, STAGES=row.STAGES,
                SCHEDULE=row.SCHEDULE, ORDERED=row.ORDERED, OUT_APART=row.OUT_APART, PIPELINED=row.PIPELINED,
                REGISTERS=row.REGISTERS, SPARE=row.SPARE), tiles=dict(q=64, out=64, k=BK, v=BK),
                scalars=dict(n_work=n_work, together=max(row.together, row.ahead // n_tiles))),)
    tma = _has_tma(q, k, v)
    BQ, BK, warps, stages = _tiles(q, v)[0]
    return (_Launch(_key_test0_kernel, (_ceil(Sk, BK), B, 1), dict(TILE=BK),
        buffers=dict(key_test0_least=((_ceil(Sk, BK), B, 1), torch.int64),
        key_test0_most=((_ceil(Sk, BK), B, 1), torch.int64))),
        _Launch(_forward_kernel, _ceil(Sq, BQ) * B * Hq,
            dict(**known.constants, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages,
            **_registers(q, BQ, BK, warps, stages)), tiles=dict(q=BQ, k=BK, v=BK) if tma else {}),)


def _attend(q, k, v, ids, scale, known=None, learn=None):
    """What the operator computes. A call that needs no operator knows the layout of its tensors already. `learn` is the
    backward pass of its results, whose kernels are compiled with these.
    """
    own = known is not None
    known = known or _known(q, k, v, ids)
    if not known.near:
        q, k, v = _near(q), _near(k), _near(v)
    out = q.new_empty_strided(*known.out)
    lse = q.new_empty_strided(*known.lse, dtype=torch.float32)
    if out.numel():
        key = ()
        values = dict(known.values, q=q, k=k, v=v, out=out, lse=lse, ids=ids, scale=scale, own=own, queue=None)
        launches = known.forward.get(key)
        if launches is None:
            ahead = learn and functools.partial(learn, out, lse)
            launches = known.forward[key] = _compiled(_forward_launches(known, q, k, v, out), values, ahead)
        with torch.cuda.device_of(q):
            for launch in launches:
                launch(values)
    return out, lse


@torch.library.custom_op("attngen::documents_9fe7098178ca", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, ids: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """out (B, Hq, Sq, Dv) in q's dtype and layout; lse (B, Hq, Sq) in float32."""
    return _attend(q, k, v, ids, scale)


@_forward.register_fake
def _(q, k, v, ids, scale):
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    out = q.new_empty_strided(*_like(q, v.shape[3]))
    return out, lse


_count_flops(_forward, 1, 1)


def _backward_launches(known, strides, q, k, v, d_out, dq, dk, dv, has_d_lse, usual) -> tuple:
    """The launches of the backward pass, for calls of one layout."""
    B, Hq, Hkv, Sq, Sk, D, Dv = known.shape
    align = _align(strides, known.constants["ALIGN"])
    if usual and (row := _hopper(HOPPER_BACKWARD, q, k, v, d_out, dk, dv)) is not None:
        row = HopperBackwardRow(*row)
        BQ, BK = row.BQ, row.BK
        n_tiles, n_parts = _ceil(Sk, BK), _ceil(Sq, BQ) * B * Hq
        heads, group, wanted = B * Hkv, Hq // Hkv, 16
        span = _span(group, heads, wanted)
        shares = (group + span - 1) // span
        together, backwards = (wanted, False) if span > 1 else (max(row.together, row.ahead // n_tiles), row.BACKWARDS)
        n_work, n_cells = n_tiles * heads * shares, (n_parts + 3) // 4 * 4
        blocks = {name: known.wide[name] for name in ("BLOCK_D", "BLOCK_DV")}
        parts = {"parts": ((n_work * BK * sum(blocks.values()),), torch.float32)} if shares > 1 else {}
        n_lists = 3 * n_tiles * B
        return (_Launch(_rows_kernel, _ceil(Sq, 32) * B * Hq, dict(Dv=Dv, ROWS=32, ALIGN=align, HAS_D_LSE=has_d_lse),
            scalars=dict(lse=None, delta=None), buffers=dict(terms=((B, Hq, Sq, 16), torch.bfloat16)),
            names=dict(lse="natural_lse", scaled_lse="lse"),
            counters=dict(queue=n_cells, turns=n_cells, met=2 * n_cells)),
            _Launch(_list_walks_kernel, n_lists + _ceil(Sq, BQ) * B, dict(D=D, Dv=Dv, BQ=BQ, BK=BK, FAST=True),
                buffers=dict(walks=((n_lists, 4), torch.int32), query_test0=((2, *(_ceil(Sq, BQ), B, 1)), torch.int64)),
                names=dict(counts="queue")),
            _Launch(_hopper_backward_kernel, min(n_work, _multiprocessors(q.device)),
                dict(**known.wide, BQ=BQ, BK=BK, STAGES=row.STAGES, EARLY=row.EARLY, SPARE=row.SPARE,
                BACKWARDS=backwards, SHARED=shares > 1),
                tiles=dict(q=BQ, d_out=BQ, terms=BQ, k=BK // 2, v=BK // 2, dk=BK // 2, dv=BK // 2),
                scalars=dict(n_work=n_work, together=together, span=span if shares > 1 else None, parts=None),
                buffers=dict(dq_parts=((n_parts * BQ * blocks["BLOCK_D"],), torch.float32), **parts)),
            _Launch(_collect_kernel, n_parts + (2 * n_tiles * heads if shares > 1 else 0),
                dict(D=D, Dv=Dv, **blocks, BQ=BQ, BK=BK, SHARED=shares > 1, ALIGN=align),
                scalars=dict(n_parts=n_parts)),)
    tma = _has_tma(q, k, v, d_out)
    apart = _hopper(HOPPER_APART, q, k, v, d_out, dq, dk, dv)
    BQ, BK, warps, stages = _tiles(q, v)[1]
    by_keys = (_Launch(_query_test0_kernel, (_ceil(Sq, BQ), B, 1), dict(TILE=BQ),
        buffers=dict(query_test0_least=((_ceil(Sq, BQ), B, 1), torch.int64),
        query_test0_most=((_ceil(Sq, BQ), B, 1), torch.int64))),
        _Launch(_dkdv_kernel, _ceil(Sk, BK) * B * Hkv,
            dict(**{**known.constants, "ALIGN": align}, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages),
            tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK) if tma else {}),)
    if apart is not None:
        row = HopperDkdvRow(*apart[0])
        BQ, BK = row.BQ, row.BK
        n_work = _ceil(Sk, BK) * B * Hkv
        n_lists = _ceil(Sk, BK) * B
        by_keys = (_Launch(_list_queries_met_kernel, n_lists + _ceil(Sq, BQ) * B,
            dict(D=D, Dv=Dv, BQ=BQ, BK=BK, FAST=True),
            buffers=dict(walks=((n_lists, 4), torch.int32), query_test0=((2, *(_ceil(Sq, BQ), B, 1)), torch.int64)),
            names=dict(counts="query_counts")),
            _Launch(_hopper_dkdv_kernel, n_work,
                dict(**known.wide, BQ=BQ, BK=BK, STAGES=row.STAGES, AHEAD=row.AHEAD, SPARE=row.SPARE),
                tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK, dk=BK, dv=BK),
                scalars=dict(n_work=n_work, together=row.together)),)
    BQ, BK, warps, stages = _tiles(q, v)[2]
    by_rows = (_Launch(_key_test0_kernel, (_ceil(Sk, BK), B, 1), dict(TILE=BK),
        buffers=dict(key_test0_least=((_ceil(Sk, BK), B, 1), torch.int64),
        key_test0_most=((_ceil(Sk, BK), B, 1), torch.int64))),
        _Launch(_dq_kernel, _ceil(Sq, BQ) * B * Hq,
            dict(**{**known.constants, "ALIGN": align}, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages),
            tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK) if tma else {}),)
    if apart is not None:
        row = HopperDqRow(*apart[1])
        BQ, BK = row.BQ, row.BK
        n_work = _ceil(Sq, BQ) * B * Hq
        n_lists = _ceil(Sq, BQ) * B
        by_rows = (_Launch(_list_keys_met_kernel, n_lists + _ceil(Sk, BK) * B,
            dict(D=D, Dv=Dv, BQ=BQ, BK=BK, FAST=True),
            buffers=dict(walks=((n_lists, 4), torch.int32), key_test0=((2, *(_ceil(Sk, BK), B, 1)), torch.int64)),
            names=dict(counts="key_counts")),
            _Launch(_hopper_dq_kernel, n_work,
                dict(**known.wide, BQ=BQ, BK=BK, K_STAGES=row.K_STAGES, V_STAGES=row.V_STAGES, SPARE=row.SPARE),
                tiles=dict(q=BQ // 2, d_out=BQ // 2, dq=BQ // 2, k=BK, v=BK),
                scalars=dict(n_work=n_work, together=row.together)),)
    return (_Launch(_rows_kernel, _ceil(Sq, 32) * B * Hq, dict(Dv=Dv, ROWS=32, ALIGN=align, HAS_D_LSE=has_d_lse),
        scalars=dict(terms=None), buffers=dict(lse=((B, Hq, Sq), torch.float32), delta=((B, Hq, Sq), torch.float32)),
        names=dict(lse="natural_lse", scaled_lse="lse"),
        counters=dict(query_counts=4, key_counts=4) if apart is not None else {}),
        *by_keys,
        *by_rows,)


def _gradients(d_out: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, ids: Tensor, out: Tensor,
    lse: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k, v."""
    known = _known(q, k, v, ids)
    if not known.near:
        q, k, v = _near(q), _near(k), _near(v)
    out, d_out = _near(out), _near(d_out)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    if q.numel() and k.numel():
        usual = 1e-18 < scale < 1e18  # so that log-sum-exps can be divided by it
        d_lse = d_lse if d_lse is None else d_lse.contiguous()
        # Hooks on saved tensors may return them at other addresses.
        key = (out.data_ptr() % 16, lse.data_ptr() % 16, d_out.data_ptr() % 16, out.stride(), d_out.stride(),
            d_lse is None or (d_lse.dtype, d_lse.data_ptr() % 16), usual)
        strides, launches = known.backward.get(key, (None, ()))
        strides = (strides
            or _strides(out=out.stride(), d_out=d_out.stride(), dq=dq.stride(), dk=dk.stride(), dv=dv.stride()))
        values = dict(known.values, **strides, q=q, k=k, v=v, d_out=d_out, dq=dq, dk=dk, dv=dv, d_lse=d_lse, out=out,
            natural_lse=lse, ids=ids, scale=scale)
        if not launches:
            launches = _compiled(_backward_launches(known, strides, q, k, v, d_out, dq, dk, dv, d_lse is not None,
                usual), values)
            known.backward[key] = strides, launches
        with torch.cuda.device_of(q):
            for launch in launches:
                launch(values)
    else:
        dq, dk, dv = dq.zero_(), dk.zero_(), dv.zero_()
    return dq, dk, dv


_backward = torch.library.custom_op("attngen::documents_9fe7098178ca_backward", _gradients, mutates_args=())


def _refuse_second(ctx, *gradients):
    _refuse("a second derivative is not computed")


_backward.register_autograd(_refuse_second)
_count_flops(_backward, 3, 2)


@_backward.register_fake
def _(d_out, d_lse, q, k, v, ids, out, lse, scale):
    dq, dk, dv = (torch.empty_like(_near(x)) for x in (q, k, v))
    return dq, dk, dv


def _transformable(operator, save, differentiate) -> Callable:
    """`operator`, and under transforms of `torch.func` an autograd function, since they ignore an operator's formula.
    """
    class Transformed(torch.autograd.Function):
        generate_vmap_rule = True
        setup_context = staticmethod(save)
        backward = staticmethod(differentiate)

        @staticmethod
        def forward(*inputs):
            return operator(*inputs)

    return lambda *inputs: (Transformed.apply if _is_transformed() else operator)(*inputs)


def _save(ctx, inputs, output):
    q, k, v, ids, ctx.scale = inputs
    out, lse = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, ids, out, lse)


def _differentiate(ctx, d_out, d_lse, *_, saved=None):
    q, k, v, ids, out, lse = saved or ctx.saved_tensors
    d_out = torch.zeros_like(out) if d_out is None else d_out
    # Outside the operator, autograd would take these for constants and return a wrong second derivative.
    apart = not (torch.is_grad_enabled() or q.is_meta) and _unwatched(d_out, q, k, v)
    if not apart:
        _refuse_tangents(d_out, d_lse, q, k, v)
    backward = _gradients if apart else _backward_operator
    dq, dk, dv = backward(d_out, d_lse, q, k, v, ids, out, lse, ctx.scale)
    return dq, dk, dv, None, None


_forward.register_autograd(_differentiate, setup_context=_save)
_forward_operator = _transformable(_forward, _save, _differentiate)
_backward_operator = _transformable(_backward, lambda *_: None, _refuse_second)


class _Attention(torch.autograd.Function):
    """The operator without its dispatch."""

    @staticmethod
    def forward(ctx, *inputs):
        def learn(*output):
            _save(ctx, inputs[:-1], output)
            _differentiate(ctx, torch.empty_like(output[0]), None, saved=ctx.to_save)

        output = _attend(*inputs, learn=learn)
        _save(ctx, inputs[:-1], output)
        return output

    @staticmethod
    def backward(ctx, *gradients):
        return *_differentiate(ctx, *gradients), None


_FUNCTORCH: Any = getattr(torch._C, "_functorch", None)
_FAKE: Any = getattr(getattr(torch, "_subclasses", None), "FakeTensor", ())
_HAS_PRIVATE_NAMES = all(  # else every call goes through the operator
    hasattr(owner, name)
    for owner, names in (
        (torch._C, "_is_tracing _len_torch_dispatch_stack"),
        (_FUNCTORCH, "peek_interpreter_stack is_functorch_wrapped_tensor is_batchedtensor get_unwrapped"),
        (getattr(torch, "_VF", None), "_unpack_dual"), (forward_ad, "_current_level"), (Tensor, "_is_zerotensor"),
    )
    for name in names.split()
)


def _hidden(x: Tensor) -> bool:
    """Whether the host cannot read a tensor's value: it is traced, captured, fake, on `meta`, or many under vmap."""
    if torch.compiler.is_compiling() or x.is_meta or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True
    while _HAS_PRIVATE_NAMES and _FUNCTORCH.is_functorch_wrapped_tensor(x):
        if _FUNCTORCH.is_batchedtensor(x):
            return True
        x = _FUNCTORCH.get_unwrapped(x)
    return isinstance(x, _FAKE)


def _may_have_tangent(x: Tensor) -> bool:
    """Whether `x` has a tangent, or may: none is seen beneath a second transform, nor while torch.compile traces."""
    if torch.compiler.is_compiling():
        return _HAS_PRIVATE_NAMES
    if not _HAS_PRIVATE_NAMES:
        return forward_ad.unpack_dual(x).tangent is not None
    wrapped = _FUNCTORCH.is_functorch_wrapped_tensor
    beneath = wrapped(x) and (_FUNCTORCH.is_batchedtensor(x) or wrapped(_FUNCTORCH.get_unwrapped(x)))
    return beneath or torch._VF._unpack_dual(x, level=forward_ad._current_level)[1] is not None


def _refuse_tangents(*arguments) -> None:
    """Refuses forward-mode derivatives, which a call would drop silently."""
    if _HAS_PRIVATE_NAMES and forward_ad._current_level < 0:
        return
    if any(isinstance(x, Tensor) and _may_have_tangent(x) for x in arguments):
        _refuse("forward-mode derivatives (jvp, jacfwd, hessian) are not computed: use backward()")


def _unwatched(*tensors: Tensor) -> bool:
    """Whether a call may skip the operator: no compiler, tracer, transform or tensor subclass is active."""
    if torch.compiler.is_compiling() or not _HAS_PRIVATE_NAMES:
        return False
    if torch._C._is_tracing() or torch._C._len_torch_dispatch_stack():
        return False
    if forward_ad._current_level >= 0 or _FUNCTORCH.peek_interpreter_stack() is not None:
        return False
    for x in tensors:
        if type(x) not in _PLAIN or x.layout is not torch.strided or x.is_neg() or x._is_zerotensor():
            return False
    return True


def _is_transformed() -> bool:
    """Whether a transform of `torch.func` is active."""
    return (_HAS_PRIVATE_NAMES and not torch.compiler.is_compiling()
        and _FUNCTORCH.peek_interpreter_stack() is not None)


def _refuse(message: str) -> NoReturn:
    raise _Refusal(f"documents: {message}")


def _check(q, k, v, ids, scale, whole=False):
    """Raises one clear error if an argument does not fit. Returns the tensors, if `whole` with sizes of 1 expanded."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            _refuse(f"{name} must be a torch.Tensor, not {type(x).__name__}")
        if x.dim() != 4:
            _refuse(f"{name} must have 4 dimensions (batch, heads, length, head dim), not shape {tuple(x.shape)}")
        if x.layout is not torch.strided:
            _refuse(f"{name} must be a strided tensor, not {x.layout}")
        if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            _refuse(f"{name} must be float16, bfloat16 or float32, not {x.dtype}")
        if x.dtype != q.dtype:
            _refuse(f"{name} must have q's dtype {q.dtype}, not {x.dtype}")
        if x.device != q.device:
            _refuse(f"{name} must be on q's device {q.device}, not {x.device}")
    B, Hq, Sq, D = q.shape
    k, v = (x.expand(B, -1, -1, -1) if x.shape[0] == 1 != B else x for x in (k, v))
    Hkv, Sk, Dv = v.shape[1:]
    if k.shape != (B, Hkv, Sk, D):
        _refuse(f"k must have q's batch and head dim, and v's heads and length, {(B, Hkv, Sk, D)}, not "
            f"{tuple(k.shape)}")
    if v.shape[0] != B:
        _refuse(f"v must have q's batch {B}, not {v.shape[0]}")
    if Hq % Hkv if Hkv else Hq:
        _refuse(f"q's {Hq} heads must be a multiple of the {Hkv} heads of k and v: their axis is 1")
    if not (0 < D <= 256 and 0 < Dv <= 256):
        _refuse(f"head dims must be from 1 to 256, not {D} and {Dv}")
    if q.device.type not in ("cuda", "cpu", "meta"):
        _refuse(f"q must be on a GPU, or on the CPU under TRITON_INTERPRET=1, not on {q.device}")
    turned = ("are q, k and v (batch, length, heads, head dim)? They must be (batch, heads, length, head dim): "
        "transpose them, as in q.transpose(1, 2); " if 1 < Sq < Hq and Sk < Hkv
        and all(x.stride(1) > x.stride(2) for x in (q, k)) and not torch.compiler.is_compiling() else "")
    if not isinstance(ids, Tensor):
        _refuse(f"ids must be a torch.Tensor, not {type(ids).__name__}")
    if ids.dtype not in (torch.int32, torch.int64,):
        _refuse(f"ids must be int32 or int64, not {ids.dtype}")
    if ids.device != q.device:
        _refuse(f"ids must be on q's device {q.device}, not {ids.device}")
    if ids.dim() != 2:
        _refuse(f"ids must have 2 dimensions (B, Sk), not shape {tuple(ids.shape)}")
    if tuple(ids.shape) != (B, Sk,):
        ids = _spread("ids", ids, (B, Sk,), "B, Sk", range(2) if whole else (), turned)
    if not (Sq and Sk):
        ids = _stand_in(ids)
    if not (Sq == Sk):
        _refuse(f"the specification assumes Sq == Sk; here Sk = {Sk}, Sq = {Sq}")
    _refuse_tangents(q, k, v, ids, scale)
    if turned:
        _warn_of_order()
    return q, k, v, ids


def _stand_in(x: Tensor) -> Tensor:
    """A zero at every index, for a tensor without elements, which kernels may read although no pair counts."""
    return x if x.numel() else x.sum().to(x.dtype).expand((1,) * x.dim())


@functools.cache
def _warn_of_order() -> None:
    """Warns once of more heads than positions, as if q, k and v were (batch, length, heads, head dim)."""
    warnings.warn("documents: are there more heads than positions? q, k and v must be (batch, heads, length, head "
        "dim): transpose what is (batch, length, heads, head dim), as in q.transpose(1, 2)", stacklevel=_CALLER)


def _scale_number(scale) -> float:
    """A scale that is no finite float and no tensor, as a float: an int, or a NumPy number."""
    try:
        if not isinstance(scale, str | bytes | bool) and abs(float(scale)) < torch.inf:
            return float(scale)
    except (TypeError, ValueError, OverflowError):
        pass
    _refuse(f"scale must be a finite number, not {scale!r}")


def _spread(name: str, x: Tensor, shape: tuple[int, ...], dims: str, axes: tuple[int, ...] | range,
    turned: str) -> Tensor:
    """`x` if it fits this shape, a size of 1 any. It is expanded along these axes, without a copy; along the others the
    kernels repeat it, and sum its gradient.
    """
    if any(have not in (1, want) for have, want in zip(x.shape, shape, strict=True)):
        _refuse(f"{turned}{name} must have shape ({dims}) = {shape}, not {tuple(x.shape)}")
    return x.expand([want if i in axes else have for i, (have, want) in enumerate(zip(x.shape, shape))]) if axes else x


def _in_autocast(x: Any, kind: str) -> Any:
    """`x` in autocast's dtype, unless it is float64, as autocast does for scaled_dot_product_attention."""
    fits = isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64 and x.device.type == kind
    return x.to(torch.get_autocast_dtype(kind)) if fits else x


def _scaled(q: Tensor, scale: Tensor) -> tuple[Tensor, float]:
    """q and the number that multiplies q . k. Where the scale learns, or cannot be read, it is divided by that number,
    and the quotient goes into q, with its gradient.
    """
    if scale.numel() != 1:
        _refuse(f"scale must be one number, not a tensor of shape {tuple(scale.shape)}")
    learns = scale.requires_grad and torch.is_grad_enabled()
    hidden = _hidden(scale)
    if not (learns or hidden):
        return q, float(scale)
    number = 1.0 if hidden else float(scale.detach()) or 1.0
    return (q.float() * (scale.reshape(()).to(q.device) / number)).to(q.dtype), number


def documents(
    q: Tensor, k: Tensor, v: Tensor, *, ids: Tensor, scale: float | Tensor | None = None, return_lse: bool = False,
    dropout_seed: int | Tensor | None = None, check: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention `documents`, fused, differentiable in every float argument.

    q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), with any strides, all float16, bfloat16 or float32.
    ids (B, Sk): int32 or int64.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given. A tensor may learn.
    dropout_seed is accepted for the sake of a common signature, and has no effect.
    check is accepted for the sake of a common signature: here every call checks all facts.

    Returns out (B, Hq, Sq, Dv) in q's dtype and layout, and with return_lse also the log-sum-exp (B, Hq, Sq), natural,
    float32. A query that may attend to no key has a zero row in the result and zero gradients in q, k and v. Raises
    ValueError if an argument does not fit.
    """
    return _call(q, k, v, ids, scale, return_lse, dropout_seed)


def _call(q, k, v, ids, scale, return_lse, dropout_seed):
    if isinstance(q, Tensor) and not q.is_meta and torch.is_autocast_enabled(q.device.type):
        q, k, v = (_in_autocast(x, q.device.type) for x in (q, k, v))
        with torch.autocast(q.device.type, enabled=False):
            return _call(q, k, v, ids, scale, return_lse, dropout_seed)
    if scale is None:
        try:
            scale = q.shape[-1] ** -0.5
        except (AttributeError, IndexError, ZeroDivisionError):
            scale = 1.0  # `_check` refuses this call
    elif isinstance(scale, Tensor):
        q, k, v, ids = _check(q, k, v, ids, scale)
        q, scale = _scaled(q, scale)
    elif type(scale) is not float or not abs(scale) < torch.inf:
        scale = _scale_number(scale)
    known = fit = None
    alone = _unwatched(q, k, v, ids)
    if alone:
        known = _READY.get(_layout(q, k, v, ids))
        fit = float(scale)
    if known is None or fit is None or fit not in known.fits:
        q, k, v, ids = _check(q, k, v, ids, scale)
        if alone and not q.is_meta:
            known = known or _known(q, k, v, ids)
            if len(known.fits) >= 1024:
                known.fits.clear()
            known.fits.add(fit)
    if q.dtype is torch.bfloat16 and q.is_cpu:
        # Triton's interpreter has no bfloat16 products, so it computes in float32.
        out, lse = _call(q.float(), k.float(), v.float(), ids, scale, True, dropout_seed)
        return (out.bfloat16(), lse) if return_lse else out.bfloat16()
    if scale <= 0.0:
        # The kernels take a positive scale; its sign, or its being zero, goes into q.
        q, scale = (-q, -scale) if scale < 0.0 else (q * 0.0, 1.0)
        known = known and _known(q, k, v, ids)
    inputs = (q, k, v, ids, float(scale))
    if known is None:
        out, lse = _forward_operator(*inputs)
    elif torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or ids.requires_grad):
        out, lse = _Attention.apply(*inputs, known)
    else:
        out, lse = _attend(*inputs, known)
    return (out, lse) if return_lse else out


__all__ = ["documents"]
