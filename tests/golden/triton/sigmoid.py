"""sigmoid: fused attention for GPUs, forward and backward, in Triton.

Made by attngen from the specification below: edit that and compile again, or edit this file by hand.
It needs torch and triton alone. `sigmoid` is differentiable, and a custom operator, with which torch.compile needs no
graph break.
"""

# The specification:
#
#     # Sigmoid attention: every pair is weighed for itself, and rows need no sum.
#     #
#     #   out_i = sum_j sigmoid(q_i . k_j / sqrt(D) - log(Sk)) v_j
#     #
#     # Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", ICLR 2025
#     # (https://arxiv.org/abs/2409.04431): the bias -log(n) keeps a row's weight near one at the start of training.
#     attention sigmoid
#
#     score = qk * scale - log(Sk)
#
#     normalizer = sigmoid
#
# sha256 of its text: 9c4e6b348b353f604eb673d7e0624388587de44183b215c0e0ffeed1c22e4998
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

# Tile sizes by (chip, bytes of an element, head dim rounded up): for the forward, dK/dV and dQ kernels, each (queries,
# keys, warps, stages). All fit the chip's shared memory.
TILES = {
    (chip, size, head_dim): row
    for row, places in (
        (((128, 64, 4, 3), (64, 64, 4, 1), (128, 64, 8, 2)), ((("sm_80", "sm_86",), 2, (16, 32)),)),
        (((128, 64, 8, 3), (32, 64, 8, 2), (128, 64, 8, 3)), ((("sm_80", "sm_86",), 2, (64,)),)),
        (((128, 32, 8, 3), (64, 64, 8, 1), (128, 32, 8, 2)), ((("sm_80", "sm_86",), 2, (128,)),)),
        (((64, 64, 8, 2), (32, 32, 8, 1), (64, 32, 8, 2)), ((("sm_80",), 2, (256,)),)),
        (((32, 32, 4, 1), (32, 32, 4, 1), (32, 32, 4, 1)), ((("sm_80", "sm_86", "sm_90", "sm_100",), 4, (16, 32, 64)),
         (("gfx942",), 4, (16, 32, 64, 128)),)),
        (((32, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1)), ((("sm_80", "sm_86", "sm_90", "sm_100",), 4, (128,)),)),
        (((32, 16, 8, 1), (16, 32, 8, 1), (32, 16, 8, 1)), ((("sm_80", "sm_90", "sm_100",), 4, (256,)),)),
        (((64, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1)), ((("sm_86",), 2, (256,)),)),
        (((32, 16, 8, 1), (16, 16, 8, 1), (16, 16, 8, 1)), ((("sm_86",), 4, (256,)),)),
        (((128, 64, 4, 3), (64, 64, 4, 2), (128, 64, 4, 3)), ((("sm_90",), 2, (16, 32)),)),
        (((64, 128, 4, 2), (64, 64, 4, 2), (128, 64, 8, 3)), ((("sm_90",), 2, (64,)),)),
        (((64, 64, 4, 1), (32, 64, 4, 2), (128, 64, 8, 3)), ((("sm_90",), 2, (128,)),)),
        (((128, 64, 8, 2), (64, 64, 8, 2), (64, 64, 4, 2)), ((("sm_90",), 2, (256,)),)),
        (((128, 64, 8, 3), (64, 64, 4, 1), (128, 64, 8, 2)), ((("sm_100",), 2, (16, 32)),)),
        (((128, 64, 8, 3), (64, 64, 8, 1), (64, 64, 8, 2)), ((("sm_100",), 2, (64,)),)),
        (((128, 64, 4, 2), (64, 64, 4, 1), (64, 64, 8, 2)), ((("sm_100",), 2, (128,)),)),
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
REGISTERS: dict[tuple[int, ...], int] = {(128, 64, 128, 4, 1): 168, (128, 64, 64, 4, 1): 128}

# Short queries by (chip, bytes of an element): the most rows, keys and elements of a tile, warps, stages, programs that
# a multiprocessor runs at a time.
SPLIT = {
    ('sm_80', 2): (64, 128, 8192, 4, 3, 2),
    ('sm_80', 4): (32, 32, 4096, 8, 1, 2),
    ('sm_86', 2): (64, 128, 8192, 4, 2, 2),
    ('sm_86', 4): (32, 32, 4096, 8, 1, 2),
    ('sm_90', 2): (64, 128, 8192, 4, 3, 2),
    ('sm_90', 4): (32, 32, 4096, 8, 1, 2),
    ('sm_100', 2): (64, 128, 8192, 4, 3, 2),
    ('sm_100', 4): (32, 32, 4096, 8, 1, 2),
    ('gfx942', 2): (64, 128, 8192, 4, 1, 2),
    ('gfx942', 4): (64, 128, 4096, 4, 1, 2),
    ('cpu', 2): (64, 64, 8192, 4, 1, 1),
    ('cpu', 4): (64, 64, 8192, 4, 1, 1),
}

# The forward kernel for Hopper by head dims of (q and k, v), rounded up: queries, keys, stages, whether a warpgroup
# overlaps its own products, whether warpgroups start products in turn, registers of a consumer and of a producer
# thread. together: at least so many heads take their tiles in turn; ahead: or as many as have so many tiles in all.
# SCHEDULE: `once`, a program takes one tile; `queue`, the next one until none is left. OUT_APART: results have shared
# memory of their own.
HopperRow = namedtuple("HopperRow", "BQ BK STAGES PIPELINED ORDERED REGISTERS SPARE together ahead SCHEDULE OUT_APART")
HOPPER = {
    (192, 128): (128, 64, 2, False, False, 240, 24, 1, 0, 'once', False),
    (256, 128): (128, 64, 2, True, True, 240, 24, 1, 0, 'once', False),
    (256, 256): (128, 64, 2, True, True, 240, 24, 1, 0, 'once', False),
}


# ---------------------------------------------------------------- helpers


# _Rows: the rows of one head (`base`: a pointer, or a descriptor of all heads). _Tiling: compile-time sizes of a tile.
_Rows = namedtuple("_Rows", "base batch head stop stride")
_Tiling = namedtuple("_Tiling", "D Dv BQ BK")

# Sizes, and strides of params, for whose values Triton must not specialize a kernel.
UNSPECIALIZED = ['Hq', 'Hkv', 'Sq', 'Sk']


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
def _head_after_head(n_tiles, n_heads):
    """(tile, batch, head) of this program: one head after the other, so that its keys stay in the cache."""
    pid = tl.program_id(0)
    i = pid // n_tiles
    return pid % n_tiles, i // n_heads, i % n_heads


@triton.jit
def _in_turn(item, n_tiles, heads, together):
    """(first head in turn, place in its head's order, head) of an item: `together` heads, which share the L2 cache."""
    first = item // (n_tiles * together) * together
    width = tl.minimum(heads - first, together)
    i = item - first * n_tiles
    order = i // width
    return first, order, first + i % width


# ---------------------------------------------------------------- which tiles meet


@triton.jit
def _key_tiles(Sk, BK: tl.constexpr):
    """Runs of tiles for the queries q0 … q1: `any` may hold an allowed pair; in `full` every pair is allowed."""
    any_hi = tl.cast(tl.cdiv(Sk, BK), tl.int32)
    any_hi = tl.maximum(any_hi, 0)
    full_hi = tl.cast(Sk // BK, tl.int32)
    full_hi = tl.maximum(full_hi, 0)
    full_hi = tl.minimum(tl.maximum(full_hi, 0), any_hi)
    return full_hi, any_hi


@triton.jit
def _query_tiles(Sq, BQ: tl.constexpr):
    """Runs of tiles for the keys k0 … k1: `any` may hold an allowed pair; in `full` every pair is allowed."""
    any_hi = tl.cast(tl.cdiv(Sq, BQ), tl.int32)
    any_hi = tl.maximum(any_hi, 0)
    full_hi = tl.cast(Sq // BQ, tl.int32)
    full_hi = tl.maximum(full_hi, 0)
    full_hi = tl.minimum(tl.maximum(full_hi, 0), any_hi)
    return full_hi, any_hi


# ---------------------------------------------------------------- forward


@triton.jit
def _no_keys(ROWS: tl.constexpr, COLS: tl.constexpr):
    """The state of rows without a key so far."""
    acc = tl.zeros([ROWS, _block(COLS)], tl.float32)
    return acc


@triton.jit
def _attend_tile(acc, held, k_rows, v_rows, k0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Folds the keys k0 … k0 + BK - 1 into a tile's state. `held`: values that do not depend on the key."""
    q, scale, head_term = held
    Sk = k_rows.stop
    k_idx = (k0 + tl.arange(0, tiling.BK))[None, :]
    k = _load_rows(k_rows, k0, tiling.BK, tiling.D, MASKED)
    qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    x = qk * scale - head_term
    weight = tl.sigmoid(x)
    if MASKED:
        weight = tl.where((k_idx < Sk), weight, 0.0)
    v = _load_rows(v_rows, k0, tiling.BK, tiling.Dv, MASKED)
    acc = tl.dot(weight.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _finish(acc):
    """The output rows and their log-sum-exp, from the final state."""
    lse = tl.zeros([acc.shape[0]], tl.float32)
    return acc, lse


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale, Hq, Hkv, Sq, Sk, q_strides, k_strides, v_strides, out_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr,
):
    """One tile of queries of one head: visits the tiles of keys that it meets."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    tile, batch, head = _head_after_head(tl.cdiv(Sq, BQ), Hq)
    kv_head = head // (Hq // Hkv)
    q0 = tile * BQ
    q_rows = _head_rows(q_ptr, batch, head, q_strides, Sq, ALIGN)
    k_rows = _head_rows(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    q = _load_rows(q_rows, q0, BQ, D, True)
    head_term = tl.log(tl.cast(Sk, tl.float32))
    held = (q, scale, head_term)
    acc = _no_keys(BQ, Dv)
    full_hi, any_hi = _key_tiles(Sk, BK)
    for step in tl.range(full_hi):
        acc = _attend_tile(acc, held, k_rows, v_rows, step * BK, tiling, False)
    for step in tl.range(any_hi - full_hi):
        acc = _attend_tile(acc, held, k_rows, v_rows, (full_hi + step) * BK, tiling, True)
    acc, lse = _finish(acc)
    row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
    out_rows = _head_rows(out_ptr, batch, head, out_strides, Sq, ALIGN)
    _store_rows(out_rows, acc, q0, Dv)
    rows = q0 + tl.arange(0, BQ)
    tl.store(lse_ptr + row + rows, lse, mask=rows < Sq)


# ---------------------------------------------------------------- forward, short queries


@triton.jit(do_not_specialize=["pieces", *UNSPECIALIZED])
def _split_kernel(
    q_ptr, k_ptr, v_ptr, parts_ptr, pieces, scale, Hq, Hkv, Sq, Sk, q_strides, k_strides, v_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr,
):
    """One piece of the walk of one tile, whose rows are the queries of all heads that share keys."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    group = Hq // Hkv
    n_tiles = tl.cdiv(group * Sq, BQ)
    tile = tl.program_id(0) % n_tiles
    piece = tl.program_id(0) // n_tiles % pieces
    i = tl.program_id(0) // n_tiles // pieces
    batch = i // Hkv
    row = tile * BQ + tl.arange(0, BQ)[:, None]
    kv_head = i % Hkv
    head = kv_head * group + row % group  # one for each row
    q_idx = row // group
    k_rows = _head_rows(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    col = tl.arange(0, _block(D))[None, :]
    q_rows = _head_rows(q_ptr, batch, head, q_strides, Sq, ALIGN)
    q = tl.load(q_rows.base + q_idx * q_rows.stride + col, mask=(q_idx < Sq) & (col < D), other=0.0)
    head_term = tl.log(tl.cast(Sk, tl.float32))
    held = (q, scale, head_term)
    acc = _no_keys(BQ, Dv)
    full_hi, any_hi = _key_tiles(Sk, BK)
    n_full = full_hi
    n_walked = n_full + any_hi - full_hi
    share = tl.cast(tl.cdiv(n_walked, pieces), tl.int32)
    first = tl.minimum(piece * share, n_walked)
    stop = tl.minimum(first + share, n_walked)
    for step in tl.range(tl.minimum(first, n_full), tl.minimum(stop, n_full)):
        acc = _attend_tile(acc, held, k_rows, v_rows, step * BK, tiling, False)
    for step in tl.range(tl.maximum(first, n_full) - n_full, tl.maximum(stop, n_full) - n_full):
        acc = _attend_tile(acc, held, k_rows, v_rows, (full_hi + step) * BK, tiling, True)
    cell = ((batch * tl.cast(Hq, tl.int64) + head) * Sq + q_idx) * pieces + piece
    cells = parts_ptr + cell * (_block(Dv) + 4)
    tl.store(cells + tl.arange(0, _block(Dv))[None, :], acc, mask=q_idx < Sq)


@triton.jit(do_not_specialize=["pieces", *UNSPECIALIZED])
def _merge_kernel(
    parts_ptr, out_ptr, lse_ptr, pieces, scale, Hq, Hkv, Sq, Sk, out_strides,
    D: tl.constexpr, Dv: tl.constexpr, PIECES: tl.constexpr, ALIGN: tl.constexpr,
):
    """One query of one head: merges the sums of its pieces, PIECES at a time, by the rule of the online softmax."""
    BQ: tl.constexpr = 1
    i = tl.program_id(0) // Sq
    q0 = tl.program_id(0) % Sq
    batch = i // Hq
    head = i % Hq

    acc = _no_keys(BQ, Dv)
    for first in tl.range(0, pieces, PIECES):
        piece = first + tl.arange(0, PIECES)
        cells = parts_ptr + (tl.cast(tl.program_id(0), tl.int64) * pieces + piece) * (_block(Dv) + 4)
        part = tl.load(cells[:, None] + tl.arange(0, _block(Dv))[None, :], mask=(piece < pieces)[:, None], other=0.0)
        acc += tl.sum(part, 0)[None, :]
    acc, lse = _finish(acc)
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


# _Work: the next items, and how they are counted. _Call: the arguments of a call that every function takes. _Config:
# compile-time constants. _Results: where results go. _Walk: the tiles of keys that a warpgroup visits.
_Work = namedtuple("_Work", "notes queue_ptr n_work together")
_Call = namedtuple("_Call", "scale Hq Hkv Sq Sk")
_Config = namedtuple("_Config",
    "BLOCK_DV BQ BK STAGES SCHEDULE ORDERED OUT_APART PIPELINED Q_COLS K_COLS K_PARTS PARTS SHARE ORDER "
    "dtype qk_layout")
_Results = namedtuple("_Results", "desc tiles lse_ptr")
_Walk = namedtuple("_Walk", "turn n_steps first stop own_full_hi")


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
    """(tile, batch, head) of an item: early tiles first, `together` heads in turn."""
    _first, order, i = _in_turn(item, n_tiles, n_work // n_tiles, together)
    return order, i // n_heads, i % n_heads


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
    """The tiles of keys that ROWS queries from q0 on meet (`_key_tiles`), up to the last tile, since every item visits
    at least one. Queries past the end meet none.
    """
    _scale, _Hq, _Hkv, Sq, Sk = call
    BK: gl.constexpr = config.BK
    last = tl.cast((Sk - 1) // BK, tl.int32)
    stop = tl.where(q0 < Sq, last + 1, 0)
    full_hi, any_hi = _key_tiles(Sk, BK)
    return tl.minimum(full_hi, stop), tl.minimum(any_hi, stop)


@gluon.jit
def _load_tiles(q_desc, k_desc, v_desc, q_ring, k_ring, v_ring, work, call, config: gl.constexpr):
    """The producer warp: fetches the queries, keys and values of every tile, as far ahead as the rings have room."""
    _scale, Hq, Hkv, Sq, _Sk = call
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
        _full_hi, any_hi = _key_runs(q0, batch, head, kv_head, call, config, BQ)
        n_steps = tl.maximum(any_hi, 1)
        v0 = 0
        for step in range(n_steps + 1):
            if step < n_steps:
                at = step
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


@gluon.jit
def _weigh(qk, k0, masked, terms, config: gl.constexpr):
    """The weights of 64 queries for the keys k0 … k0 + BK - 1. `terms`: values that do not depend on the key."""
    Sk, scale, head_term = terms
    BK: gl.constexpr = config.BK
    k_idx = (k0 + gl.arange(0, BK, layout=gl.SliceLayout(0, qk.type.layout)))[None, :]
    x = qk * scale - head_term
    weight = tl.sigmoid(x)
    if masked:
        weight = tl.where((k_idx < Sk), weight, 0.0)
    return weight


@gluon.jit
def _normalized(acc, rows_layout: gl.constexpr):
    """The rows of the result, and zeros for the log-sum-exp, since there is no denominator."""
    return acc, gl.zeros([64], gl.float32, layout=rows_layout)


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
    acc, q, q_ring, k_ring, v_ring, walk, terms, config: gl.constexpr, PART: gl.constexpr
):
    """The tiles of keys, PIPELINED: the product for the next scores runs while this warpgroup weighs the current ones.
    """
    turn, n_steps, first, stop, own_full_hi = walk
    BK: gl.constexpr = config.BK
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    no_scores = gl.zeros([64, BK], gl.float32, layout=config.qk_layout)
    step = first
    at = step
    stage = (turn + first) % config.STAGES
    phase = (turn + first) // config.STAGES & 1
    mbarrier.wait(k_ring.ready.index(stage), phase)
    qk_token = _scores(q, k_ring, stage, no_scores, config)
    qk = warpgroup_mma_wait(0, deps=(qk_token,))
    _barrier_arrive(k_ring.FREE + stage, config.SHARE, 4)
    weight = _weigh(qk, at * BK, own_full_hi <= at, terms, config)
    p = gl.convert_layout(weight.to(config.dtype), weight_layout)
    for step in range(first + 1, stop):
        at = step
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
        weight = _weigh(qk, at * BK, own_full_hi <= at, terms, config)
        _pin_order(n_steps)
        acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
        _barrier_arrive(v_ring.FREE + v_stage, config.SHARE, 4)
        p = gl.convert_layout(weight.to(config.dtype), weight_layout)
    if config.OUT_APART and config.SCHEDULE != "once":  # the next queries arrive during the last product
        _barrier_arrive(q_ring.FREE + PART, 160, 4)
    mbarrier.wait(v_ring.ready.index(stage), phase)
    acc_token = warpgroup_mma(p, v_ring.tiles.index(stage).reshape([BK, config.BLOCK_DV]), acc, is_async=True)
    acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
    _barrier_arrive(v_ring.FREE + stage, config.SHARE, 4)
    return acc


@gluon.jit
def _attend_in_turn(
    acc, q, q_ring, k_ring, v_ring, walk, terms, config: gl.constexpr, PART: gl.constexpr
):
    """The tiles of keys, one product after the other. The other warpgroups fill the gaps."""
    turn, _n_steps, first, stop, own_full_hi = walk
    BK: gl.constexpr = config.BK
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    no_scores = gl.zeros([64, BK], gl.float32, layout=config.qk_layout)
    for step in range(first, stop):
        at = step
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
        weight = _weigh(qk, at * BK, own_full_hi <= at, terms, config)
        p = gl.convert_layout(weight.to(config.dtype), weight_layout)
        mbarrier.wait(v_ring.ready.index(stage), phase)
        acc_token = warpgroup_mma(p, v_ring.tiles.index(stage).reshape([BK, config.BLOCK_DV]), acc, is_async=True)
        acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
        _barrier_arrive(v_ring.FREE + stage, config.SHARE, 4)
    if config.OUT_APART and config.SCHEDULE != "once":
        _barrier_arrive(q_ring.FREE + PART, 160, 4)
    return acc


@gluon.jit
def _store_tile(acc, lse, place, results, q_ring, call, config: gl.constexpr, PART: gl.constexpr):
    """Stores the results of 64 queries. `place`: their batch, head, first position and positions."""
    _scale, Hq, _Hkv, Sq, _Sk = call
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
    scale, Hq, Hkv, Sq, Sk = call
    BQ: gl.constexpr = config.BQ
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, config.Q_COLS], config.dtype)
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_DV, 16])
    rows_layout: gl.constexpr = gl.SliceLayout(1, config.qk_layout)
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
        _full_hi, any_hi = _key_runs(q0, batch, head, kv_head, call, config, BQ)
        n_steps = tl.maximum(any_hi, 1)
        q0 += PART * 64
        own_full_hi, own_any_hi = _key_runs(q0, batch, head, kv_head, call, config, 64)
        own_stop = tl.maximum(tl.minimum(own_any_hi, n_steps), 1)
        head_term = tl.log(tl.cast(Sk, tl.float32))
        terms = (Sk, scale, head_term)

        acc = gl.zeros([64, config.BLOCK_DV], gl.float32, layout=acc_layout)
        mbarrier.wait(q_ring.ready.index(PART), round & 1)
        q = _REINTERPRET(q_ring.tiles.index(PART), config.dtype, [64, config.Q_COLS], q_layout)
        if config.PIPELINED:
            walk = _Walk(turn, n_steps, 0, n_steps, own_full_hi)
            acc = _attend_overlapped(acc, q, q_ring, k_ring, v_ring, walk, terms, config, PART)
        else:
            walk = _Walk(turn, n_steps, 0, own_stop, own_full_hi)
            acc = _attend_in_turn(acc, q, q_ring, k_ring, v_ring, walk, terms, config, PART)
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
        acc, lse = _normalized(acc, rows_layout)
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


@gluon.jit(do_not_specialize=['n_work', 'together', 'Hq', 'Hkv', 'Sq', 'Sk'])
def _hopper_forward_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, queue_ptr, n_work, together, scale, Hq, Hkv, Sq, Sk,
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
    call = _Call(scale, Hq, Hkv, Sq, Sk)
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
def _dq_tile(dq, held, k_rows, v_rows, k0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Adds the keys k0 … k0 + BK - 1 to dQ."""
    q, d_out, scale, head_term = held
    Sk = k_rows.stop
    k_idx = (k0 + tl.arange(0, tiling.BK))[None, :]
    k = _load_rows(k_rows, k0, tiling.BK, tiling.D, MASKED)
    v = _load_rows(v_rows, k0, tiling.BK, tiling.Dv, MASKED)
    qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    dp = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
    x = qk * scale - head_term
    term = tl.sigmoid(x)
    slope_p = (term * (1.0 - term))
    if MASKED:
        allowed = (k_idx < Sk)
        slope_p = tl.where(allowed, slope_p, 0.0)
    g = slope_p * dp
    dq = tl.dot(g.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, dq_ptr, scale, Hq, Hkv, Sq, Sk, q_strides, k_strides, v_strides, d_out_strides,
    dq_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr,
):
    """dQ of one tile of queries of one head: visits the same tiles of keys as the forward kernel."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    tile, batch, head = _head_after_head(tl.cdiv(Sq, BQ), Hq)
    kv_head = head // (Hq // Hkv)
    q0 = tile * BQ
    q_rows = _head_rows(q_ptr, batch, head, q_strides, Sq, ALIGN)
    k_rows = _head_rows(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    d_out_rows = _head_rows(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
    q = _load_rows(q_rows, q0, BQ, D, True)
    d_out = _load_rows(d_out_rows, q0, BQ, Dv, True)
    head_term = tl.log(tl.cast(Sk, tl.float32))
    held = (q, d_out, scale, head_term)
    dq = (tl.zeros([BQ, _block(D)], tl.float32))
    full_hi, any_hi = _key_tiles(Sk, BK)
    for step in tl.range(full_hi):
        dq = _dq_tile(dq, held, k_rows, v_rows, step * BK, tiling, False)
    for step in tl.range(any_hi - full_hi):
        dq = _dq_tile(dq, held, k_rows, v_rows, (full_hi + step) * BK, tiling, True)
    dq_rows = _head_rows(dq_ptr, batch, head, dq_strides, Sq, ALIGN)
    _store_rows(dq_rows, dq * scale, q0, D)


@triton.jit
def _dkdv_tile(state, held, q_rows, d_out_rows, q0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Adds the queries q0 … q0 + BQ - 1 to dK and dV. `held`: values that do not depend on the query."""
    dk, dv = state
    k, v, scale, head_term = held
    Sq = q_rows.stop
    rows = q0 + tl.arange(0, tiling.BQ)
    q_idx = rows[None, :]
    q = _load_rows(q_rows, q0, tiling.BQ, tiling.D, MASKED)
    d_out = _load_rows(d_out_rows, q0, tiling.BQ, tiling.Dv, MASKED)
    qk = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    dp = tl.dot(v, tl.trans(d_out), input_precision=PRECISION)  # early, so that it runs while p is computed
    x = qk * scale - head_term
    term = tl.sigmoid(x)
    p = term
    if MASKED:
        allowed = (q_idx < Sq)
        p = tl.where(allowed, p, 0.0)
    dv = tl.dot(p.to(d_out.dtype), d_out, dv, input_precision=PRECISION)
    g = (term * (1.0 - term)) * dp
    if MASKED:
        g = tl.where(allowed, g, 0.0)
    dk = tl.dot(g.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, dk_ptr, dv_ptr, scale, Hq, Hkv, Sq, Sk, q_strides, k_strides, v_strides,
    d_out_strides, dk_strides, dv_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr,
):
    """dK and dV of one tile of keys of one KV head: visits the queries that it meets, head by head."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    tile, batch, kv_head = _head_after_head(tl.cdiv(Sk, BK), Hkv)
    k0 = tile * BK
    k_rows = _head_rows(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    k = _load_rows(k_rows, k0, BK, D, True)
    v = _load_rows(v_rows, k0, BK, Dv, True)
    dk = tl.zeros([BK, _block(D)], tl.float32)
    dv = tl.zeros([BK, _block(Dv)], tl.float32)
    group = Hq // Hkv
    for member in range(group):
        head = kv_head * group + member
        q_rows = _head_rows(q_ptr, batch, head, q_strides, Sq, ALIGN)
        d_out_rows = _head_rows(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
        head_term = tl.log(tl.cast(Sk, tl.float32))
        held = (k, v, scale, head_term)
        state = (dk, dv)
        full_hi, any_hi = _query_tiles(Sq, BQ)
        for step in tl.range(full_hi):
            state = _dkdv_tile(state, held, q_rows, d_out_rows, step * BQ, tiling, False)
        for step in tl.range(any_hi - full_hi):
            state = _dkdv_tile(state, held, q_rows, d_out_rows, (full_hi + step) * BQ, tiling, True)
        dk, dv = state
    dk_rows = _head_rows(dk_ptr, batch, kv_head, dk_strides, Sk, ALIGN)
    dv_rows = _head_rows(dv_ptr, batch, kv_head, dv_strides, Sk, ALIGN)
    _store_rows(dk_rows, dk * scale, k0, D)
    _store_rows(dv_rows, dv, k0, Dv)


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
        warnings.warn(f"sigmoid: its kernels for Hopper GPUs support Triton {first} to {last}, not "
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
    `buffers`: shapes and dtypes of tensors to allocate. `names`: parameters that take a value of another name. `run`:
    launches the compiled kernel again, without Triton's lookup.
    """

    def __init__(self, kernel, grid, options, tiles=_NONE, scalars=_NONE, buffers=_NONE, names=_NONE) -> None:
        self.kernel, self.options, self.tiles, self.buffers = kernel, options, tiles, buffers
        self.grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
        self.scalars = scalars
        given = [x.removesuffix("_ptr").removesuffix("_desc") for x in kernel.arg_names if x not in options]
        self.operands = operator.itemgetter(*[names.get(x, x) for x in given])
        self.places = {given.index(x): x for x in tiles}
        self.constants = [options[x] for x in kernel.arg_names if x in options]
        self.run = None

    def __call__(self, values: dict) -> None:
        values.update(self.scalars)
        for name, (shape, dtype) in self.buffers.items():
            values[name] = values["q"].new_empty(shape, dtype=dtype)
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

    def __init__(self, q, k, v) -> None:
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
        self.values = dict(strides, Hq=Hq, Hkv=Hkv, Sq=Sq, Sk=Sk)
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


def _pieces(q: Tensor, k: Tensor, v: Tensor) -> int:
    """How many pieces the keys of a tile are cut into, by shapes and GPU alone, so that bits repeat; 0: no pieces."""
    B, Hq, Sq, _ = q.shape
    Hkv, Sk = k.shape[1:3]
    BQ, BK, _, _ = _split_tile(q, k, v)
    slots = SPLIT[_chip(q.device), q.element_size()][-1] * _multiprocessors(q.device)
    whole = _ceil(Sq, _tiles(q, v)[0][0]) * B * Hq
    if Sk < 4 * BK or Sq > 128 or (Sq > 16 and 4 * whole > slots):
        return 0
    programs = _ceil(Hq // Hkv * Sq, BQ) * B * Hkv
    counts = [programs * n for n in range(1, min(128, _ceil(Sk, 2 * BK)) + 1)]
    # The share of the GPU that is busy. Between exactly two rounds of programs, memory idles.
    busy = [n / (_ceil(n, slots) * slots) * (0.85 if slots < n <= 2 * slots else 1.0) for n in counts]
    return 1 + next(i for i, share in enumerate(busy) if share >= 0.9 * max(busy))


def _split_tile(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, int]:
    """Rows, keys, warps and stages of a piece's tiles."""
    Hq, Hkv, Sq = q.shape[1], k.shape[1], q.shape[2]
    most_rows, most_keys, area, warps, stages, _ = SPLIT[_chip(q.device), q.element_size()]
    longest = max(16, area // _padded(max(q.shape[3], v.shape[3])))
    return min(_padded(Hq // Hkv * Sq), most_rows, longest), min(most_keys, longest), warps, stages


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
    B, Hq, Hkv, Sq, _Sk, D, Dv = known.shape
    if pieces := _pieces(q, k, v):
        tma = _has_tma(k, v)
        BQ, BK, warps, stages = _split_tile(q, k, v)
        return (_Launch(_split_kernel, _ceil(Hq // Hkv * Sq, BQ) * B * Hkv * pieces,
            dict(**known.constants, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages),
            tiles=dict(k=BK, v=BK) if tma else {}, scalars=dict(pieces=pieces),
            buffers=dict(parts=((B * Hq * Sq * pieces * (_padded(Dv) + 4),), torch.float32))),
            _Launch(_merge_kernel, B * Hq * Sq,
                dict(D=D, Dv=Dv, PIECES=16, ALIGN=known.constants["ALIGN"], num_warps=4)),)
    if (row := _hopper(HOPPER, q, k, v, out)) is not None:
        row = HopperRow(*row)
        BQ, BK = row.BQ, row.BK
        n_tiles = _ceil(Sq, BQ)
        n_work = n_tiles * B * Hq
        return (*((_queue,) if row.SCHEDULE == "queue" else ()),
            _Launch(_hopper_forward_kernel,
                n_work if row.SCHEDULE == "once" else min(n_work, _multiprocessors(q.device)),
                dict(**{**known.wide, "BLOCK_D": max(64, _columns(D, Dv)[0])}, BQ=BQ, BK=BK, STAGES=row.STAGES,
                SCHEDULE=row.SCHEDULE, ORDERED=row.ORDERED, OUT_APART=row.OUT_APART, PIPELINED=row.PIPELINED,
                REGISTERS=row.REGISTERS, SPARE=row.SPARE), tiles=dict(q=64, out=64, k=BK, v=BK),
                scalars=dict(n_work=n_work, together=max(row.together, row.ahead // n_tiles))),)
    tma = _has_tma(q, k, v)
    BQ, BK, warps, stages = _tiles(q, v)[0]
    return (_Launch(_forward_kernel, _ceil(Sq, BQ) * B * Hq,
        dict(**known.constants, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages,
        **_registers(q, BQ, BK, warps, stages)), tiles=dict(q=BQ, k=BK, v=BK) if tma else {}),)


def _attend(q, k, v, scale, known=None, learn=None):
    """What the operator computes. A call that needs no operator knows the layout of its tensors already. `learn` is the
    backward pass of its results, whose kernels are compiled with these.
    """
    own = known is not None
    known = known or _known(q, k, v)
    if not known.near:
        q, k, v = _near(q), _near(k), _near(v)
    out = q.new_empty_strided(*known.out)
    lse = q.new_empty_strided(*known.lse, dtype=torch.float32)
    if out.numel():
        key = ()
        values = dict(known.values, q=q, k=k, v=v, out=out, lse=lse, scale=scale, own=own, queue=None)
        launches = known.forward.get(key)
        if launches is None:
            ahead = learn and functools.partial(learn, out, lse)
            launches = known.forward[key] = _compiled(_forward_launches(known, q, k, v, out), values, ahead)
        with torch.cuda.device_of(q):
            for launch in launches:
                launch(values)
    return out, lse


@torch.library.custom_op("attngen::sigmoid_a09993bf4ff9", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """out (B, Hq, Sq, Dv) in q's dtype and layout; lse (B, Hq, Sq) in float32."""
    return _attend(q, k, v, scale)


@_forward.register_fake
def _(q, k, v, scale):
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    out = q.new_empty_strided(*_like(q, v.shape[3]))
    return out, lse


_count_flops(_forward, 1, 1)


def _backward_launches(known, strides, q, k, v, d_out, dq, dk, dv) -> tuple:
    """The launches of the backward pass, for calls of one layout."""
    B, Hq, Hkv, Sq, Sk, _D, _Dv = known.shape
    align = _align(strides, known.constants["ALIGN"])
    tma = _has_tma(q, k, v, d_out)
    BQ, BK, warps, stages = _tiles(q, v)[1]
    by_keys = (_Launch(_dkdv_kernel, _ceil(Sk, BK) * B * Hkv,
        dict(**{**known.constants, "ALIGN": align}, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages),
        tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK) if tma else {}),)
    BQ, BK, warps, stages = _tiles(q, v)[2]
    by_rows = (_Launch(_dq_kernel, _ceil(Sq, BQ) * B * Hq,
        dict(**{**known.constants, "ALIGN": align}, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages),
        tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK) if tma else {}),)
    return (*by_keys,
        *by_rows,)


def _gradients(d_out: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k, v."""
    known = _known(q, k, v)
    if not known.near:
        q, k, v = _near(q), _near(k), _near(v)
    out, d_out = _near(out), _near(d_out)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    if q.numel() and k.numel():
        # Hooks on saved tensors may return them at other addresses.
        key = out.data_ptr() % 16, lse.data_ptr() % 16, d_out.data_ptr() % 16, out.stride(), d_out.stride()
        strides, launches = known.backward.get(key, (None, ()))
        strides = (strides
            or _strides(out=out.stride(), d_out=d_out.stride(), dq=dq.stride(), dk=dk.stride(), dv=dv.stride()))
        values = dict(known.values, **strides, q=q, k=k, v=v, d_out=d_out, dq=dq, dk=dk, dv=dv, out=out, lse=lse,
            scale=scale)
        if not launches:
            launches = _compiled(_backward_launches(known, strides, q, k, v, d_out, dq, dk, dv), values)
            known.backward[key] = strides, launches
        with torch.cuda.device_of(q):
            for launch in launches:
                launch(values)
    else:
        dq, dk, dv = dq.zero_(), dk.zero_(), dv.zero_()
    return dq, dk, dv


_backward = torch.library.custom_op("attngen::sigmoid_a09993bf4ff9_backward", _gradients, mutates_args=())


def _refuse_second(ctx, *gradients):
    _refuse("a second derivative is not computed")


_backward.register_autograd(_refuse_second)
_count_flops(_backward, 3, 2)


@_backward.register_fake
def _(d_out, d_lse, q, k, v, out, lse, scale):
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
    q, k, v, ctx.scale = inputs
    out, lse = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse)


def _differentiate(ctx, d_out, d_lse, *_, saved=None):
    q, k, v, out, lse = saved or ctx.saved_tensors
    d_out = torch.zeros_like(out) if d_out is None else d_out
    # Outside the operator, autograd would take these for constants and return a wrong second derivative.
    apart = not (torch.is_grad_enabled() or q.is_meta) and _unwatched(d_out, q, k, v)
    if not apart:
        _refuse_tangents(d_out, d_lse, q, k, v)
    backward = _gradients if apart else _backward_operator
    dq, dk, dv = backward(d_out, d_lse, q, k, v, out, lse, ctx.scale)
    return dq, dk, dv, None


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
    raise _Refusal(f"sigmoid: {message}")


def _check(q, k, v, scale, whole=False):
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
    _refuse_tangents(q, k, v, scale)
    if 1 < Sq < Hq and Sk < Hkv and all(x.stride(1) > x.stride(2)
        for x in (q, k)) and not torch.compiler.is_compiling():
        _warn_of_order()
    return q, k, v


@functools.cache
def _warn_of_order() -> None:
    """Warns once of more heads than positions, as if q, k and v were (batch, length, heads, head dim)."""
    warnings.warn("sigmoid: are there more heads than positions? q, k and v must be (batch, heads, length, head dim): "
        "transpose what is (batch, length, heads, head dim), as in q.transpose(1, 2)", stacklevel=_CALLER)


def _scale_number(scale) -> float:
    """A scale that is no finite float and no tensor, as a float: an int, or a NumPy number."""
    try:
        if not isinstance(scale, str | bytes | bool) and abs(float(scale)) < torch.inf:
            return float(scale)
    except (TypeError, ValueError, OverflowError):
        pass
    _refuse(f"scale must be a finite number, not {scale!r}")


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


def sigmoid(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | Tensor | None = None, return_lse: bool = False,
    dropout_seed: int | Tensor | None = None, check: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention `sigmoid`, fused, differentiable in every float argument.

    q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), with any strides, all float16, bfloat16 or float32.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given. A tensor may learn.
    dropout_seed is accepted for the sake of a common signature, and has no effect.
    check is accepted for the sake of a common signature: here every call checks all facts.

    Returns out (B, Hq, Sq, Dv) in q's dtype and layout, and with return_lse also the log-sum-exp (B, Hq, Sq), natural,
    float32. A query that may attend to no key has a zero row in the result and zero gradients in q, k and v. Raises
    ValueError if an argument does not fit.
    """
    return _call(q, k, v, scale, return_lse, dropout_seed)


def _call(q, k, v, scale, return_lse, dropout_seed):
    if isinstance(q, Tensor) and not q.is_meta and torch.is_autocast_enabled(q.device.type):
        q, k, v = (_in_autocast(x, q.device.type) for x in (q, k, v))
        with torch.autocast(q.device.type, enabled=False):
            return _call(q, k, v, scale, return_lse, dropout_seed)
    if scale is None:
        try:
            scale = q.shape[-1] ** -0.5
        except (AttributeError, IndexError, ZeroDivisionError):
            scale = 1.0  # `_check` refuses this call
    elif isinstance(scale, Tensor):
        q, k, v = _check(q, k, v, scale)
        q, scale = _scaled(q, scale)
    elif type(scale) is not float or not abs(scale) < torch.inf:
        scale = _scale_number(scale)
    known = fit = None
    alone = _unwatched(q, k, v)
    if alone:
        known = _READY.get(_layout(q, k, v))
        fit = float(scale)
    if known is None or fit is None or fit not in known.fits:
        q, k, v = _check(q, k, v, scale)
        if alone and not q.is_meta:
            known = known or _known(q, k, v)
            if len(known.fits) >= 1024:
                known.fits.clear()
            known.fits.add(fit)
    if q.dtype is torch.bfloat16 and q.is_cpu:
        # Triton's interpreter has no bfloat16 products, so it computes in float32.
        out, lse = _call(q.float(), k.float(), v.float(), scale, True, dropout_seed)
        return (out.bfloat16(), lse) if return_lse else out.bfloat16()
    if scale <= 0.0:
        # The kernels take a positive scale; its sign, or its being zero, goes into q.
        q, scale = (-q, -scale) if scale < 0.0 else (q * 0.0, 1.0)
        known = known and _known(q, k, v)
    inputs = (q, k, v, float(scale))
    if known is None:
        out, lse = _forward_operator(*inputs)
    elif torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out, lse = _Attention.apply(*inputs, known)
    else:
        out, lse = _attend(*inputs, known)
    return (out, lse) if return_lse else out


__all__ = ["sigmoid"]
