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
import warnings
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad
from triton import knobs
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

# The releases of Triton whose private names are known: this file is tested with 3.6 to 3.9.
RELEASES = ((3, 6), (3, 9))
KNOWN = RELEASES[0] <= tuple(map(int, triton.__version__.split(".")[:2])) <= RELEASES[1]

PRECISION = tl.constexpr("ieee")  # of float32 products; half precision is exact in the product

# Tile sizes by (chip, bytes of an element, head dim rounded up): forward, dK/dV and dQ kernels, each
# (queries, keys, warps, stages). None of them needs more shared memory than the chip has.
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

# The most registers of a thread, by (head dim rounded up, queries, keys, warps, stages of the forward tile). With more,
# one program fewer fits on a multiprocessor.
REGISTERS: dict[tuple[int, ...], int] = {(128, 64, 128, 4, 1): 168, (128, 64, 64, 4, 1): 128}

# Short queries, whose keys are cut into pieces, by (chip, bytes of an element): rows and keys of a tile at most,
# elements of either, warps, stages, and how many programs a multiprocessor runs at a time.
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


# ---------------------------------------------------------------- helpers


# The rows of one head of a tensor: where they are, by a pointer or by a descriptor of all heads; how many, how far
# apart. And what functions of a tile are compiled for.
_Rows = namedtuple("_Rows", "base batch head stop stride")
_Tiling = namedtuple("_Tiling", "D Dv BQ BK")

# Sizes and strides: a kernel isn't compiled again for one that is 1 or a multiple of 16.
UNSPECIALIZED = ['Hq', 'Hkv', 'Sq', 'Sk', 'q_stride_b', 'q_stride_h', 'q_stride_s', 'k_stride_b', 'k_stride_h',
    'k_stride_s', 'v_stride_b', 'v_stride_h', 'v_stride_s', 'out_stride_b', 'out_stride_h', 'out_stride_s',
    'd_out_stride_b', 'd_out_stride_h', 'd_out_stride_s', 'dq_stride_b', 'dq_stride_h', 'dq_stride_s', 'dk_stride_b',
    'dk_stride_h', 'dk_stride_s', 'dv_stride_b', 'dv_stride_h', 'dv_stride_s']


@triton.constexpr_function
def _block(cols):
    """What a tile's columns are rounded up to: a power of two, 16 at least."""
    return max(16, triton.next_power_of_2(cols))


@triton.jit
def _load_rows(rows, start, ROWS: tl.constexpr, COLS: tl.constexpr, CHECKED: tl.constexpr):
    """Rows start … start + ROWS - 1. Columns from COLS on are zero, and with CHECKED rows that do not exist."""
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
    """Stores rows start … of one head, in the type of the memory."""
    row = tl.arange(0, values.shape[0])[:, None]
    col = tl.arange(0, values.shape[1])[None, :]
    cells = rows.base + tl.cast(start, tl.int64) * rows.stride + row * rows.stride + col
    tl.store(cells, values.to(rows.base.dtype.element_ty), mask=(row < rows.stop - start) & (col < COLS))


@triton.jit
def _head_rows(tensor, batch, head, strides, stop, ALIGN: tl.constexpr):
    """The rows of one head, for `_load_rows`. The host has found the strides to be multiples of ALIGN."""
    stride_b, stride_h, stride_s = strides
    base = tensor
    if isinstance(tensor, tl.tensor):
        # 64 bits: a batch may hold more than 2**31 elements.
        offset_b = tl.cast(batch, tl.int64) * (stride_b // ALIGN * ALIGN)
        base = tensor + offset_b + tl.cast(head, tl.int64) * (stride_h // ALIGN * ALIGN)
    return _Rows(base, batch, head, stop, stride_s // ALIGN * ALIGN)


@triton.jit
def _head_after_head(n_tiles, n_heads):
    """(tile, batch, head) of this program: the tiles of one head together, so that they share its keys in the cache."""
    pid = tl.program_id(0)
    i = pid // n_tiles
    return pid % n_tiles, i // n_heads, i % n_heads


# ---------------------------------------------------------------- which tiles meet


@triton.jit
def _key_tiles(Sk, BK: tl.constexpr):
    """The tiles that the queries q0 … q1 meet: `any` some pair is allowed, `full` every pair is: no mask there."""
    any_hi = tl.cast(tl.cdiv(Sk, BK), tl.int32)
    any_hi = tl.maximum(any_hi, 0)
    full_hi = tl.cast(Sk // BK, tl.int32)
    full_hi = tl.maximum(full_hi, 0)
    full_hi = tl.minimum(tl.maximum(full_hi, 0), any_hi)
    return full_hi, any_hi


@triton.jit
def _query_tiles(Sq, BQ: tl.constexpr):
    """The tiles that the keys k0 … k1 meet: `any` some pair is allowed, `full` every pair is: no mask there."""
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
    """Folds the keys k0 … k0 + BK - 1 into the state of a tile of queries. `held`: what does not depend on the key."""
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
    """The results of rows whose keys have all been met."""
    lse = tl.zeros([acc.shape[0]], tl.float32)
    return acc, lse


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale, Hq, Hkv, Sq, Sk, q_stride_b, q_stride_h, q_stride_s, k_stride_b,
    k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s, out_stride_b, out_stride_h, out_stride_s,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr,
):
    """One tile of queries of one head: walks the tiles of keys that it can meet."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    tile, batch, head = _head_after_head(tl.cdiv(Sq, BQ), Hq)
    kv_head = head // (Hq // Hkv)
    q0 = tile * BQ
    q_rows = _head_rows(q_ptr, batch, head, (q_stride_b, q_stride_h, q_stride_s), Sq, ALIGN)
    k_rows = _head_rows(k_ptr, batch, kv_head, (k_stride_b, k_stride_h, k_stride_s), Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, (v_stride_b, v_stride_h, v_stride_s), Sk, ALIGN)
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
    out_rows = _head_rows(out_ptr, batch, head, (out_stride_b, out_stride_h, out_stride_s), Sq, ALIGN)
    _store_rows(out_rows, acc, q0, Dv)
    rows = q0 + tl.arange(0, BQ)
    tl.store(lse_ptr + row + rows, lse, mask=rows < Sq)


# ---------------------------------------------------------------- forward, short queries


@triton.jit(do_not_specialize=["pieces", *UNSPECIALIZED])
def _split_kernel(
    q_ptr, k_ptr, v_ptr, parts_ptr, pieces, scale, Hq, Hkv, Sq, Sk, q_stride_b, q_stride_h, q_stride_s, k_stride_b,
    k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s,
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
    k_rows = _head_rows(k_ptr, batch, kv_head, (k_stride_b, k_stride_h, k_stride_s), Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, (v_stride_b, v_stride_h, v_stride_s), Sk, ALIGN)
    col = tl.arange(0, _block(D))[None, :]
    q_rows = _head_rows(q_ptr, batch, head, (q_stride_b, q_stride_h, q_stride_s), Sq, ALIGN)
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
    parts_ptr, out_ptr, lse_ptr, pieces, scale, Hq, Hkv, Sq, Sk, out_stride_b, out_stride_h, out_stride_s,
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
    out_rows = _head_rows(out_ptr, batch, head, (out_stride_b, out_stride_h, out_stride_s), Sq, ALIGN)
    _store_rows(out_rows, acc, q0, Dv)
    rows = q0 + tl.arange(0, BQ)
    tl.store(lse_ptr + row + rows, lse, mask=rows < Sq)


# ---------------------------------------------------------------- backward


@triton.jit
def _dq_tile(dq, held, k_rows, v_rows, k0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Adds to dQ what the keys k0 … k0 + BK - 1 contribute."""
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
    q_ptr, k_ptr, v_ptr, d_out_ptr, dq_ptr, scale, Hq, Hkv, Sq, Sk, q_stride_b, q_stride_h, q_stride_s, k_stride_b,
    k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s, d_out_stride_b, d_out_stride_h, d_out_stride_s,
    dq_stride_b, dq_stride_h, dq_stride_s,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr,
):
    """One tile of queries of one head: walks the same tiles of keys as the forward kernel."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    tile, batch, head = _head_after_head(tl.cdiv(Sq, BQ), Hq)
    kv_head = head // (Hq // Hkv)
    q0 = tile * BQ
    q_rows = _head_rows(q_ptr, batch, head, (q_stride_b, q_stride_h, q_stride_s), Sq, ALIGN)
    k_rows = _head_rows(k_ptr, batch, kv_head, (k_stride_b, k_stride_h, k_stride_s), Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, (v_stride_b, v_stride_h, v_stride_s), Sk, ALIGN)
    d_out_rows = _head_rows(d_out_ptr, batch, head, (d_out_stride_b, d_out_stride_h, d_out_stride_s), Sq, ALIGN)
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
    dq_rows = _head_rows(dq_ptr, batch, head, (dq_stride_b, dq_stride_h, dq_stride_s), Sq, ALIGN)
    _store_rows(dq_rows, dq * scale, q0, D)


@triton.jit
def _dkdv_tile(state, held, q_rows, d_out_rows, q0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Adds to dK and dV what the queries q0 … q0 + BQ - 1 contribute. `held`: what does not depend on the query."""
    dk, dv = state
    k, v, scale, head_term = held
    Sq = q_rows.stop
    rows = q0 + tl.arange(0, tiling.BQ)
    q_idx = rows[None, :]
    q = _load_rows(q_rows, q0, tiling.BQ, tiling.D, MASKED)
    d_out = _load_rows(d_out_rows, q0, tiling.BQ, tiling.Dv, MASKED)
    qk = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    dp = tl.dot(v, tl.trans(d_out), input_precision=PRECISION)  # early: it runs while p is computed
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
    q_ptr, k_ptr, v_ptr, d_out_ptr, dk_ptr, dv_ptr, scale, Hq, Hkv, Sq, Sk, q_stride_b, q_stride_h, q_stride_s,
    k_stride_b, k_stride_h, k_stride_s, v_stride_b, v_stride_h, v_stride_s, d_out_stride_b, d_out_stride_h,
    d_out_stride_s, dk_stride_b, dk_stride_h, dk_stride_s, dv_stride_b, dv_stride_h, dv_stride_s,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr,
):
    """One tile of keys of one key/value head: walks the tiles of queries that meet it, of every head of the group."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    tile, batch, kv_head = _head_after_head(tl.cdiv(Sk, BK), Hkv)
    k0 = tile * BK
    k_rows = _head_rows(k_ptr, batch, kv_head, (k_stride_b, k_stride_h, k_stride_s), Sk, ALIGN)
    v_rows = _head_rows(v_ptr, batch, kv_head, (v_stride_b, v_stride_h, v_stride_s), Sk, ALIGN)
    k = _load_rows(k_rows, k0, BK, D, True)
    v = _load_rows(v_rows, k0, BK, Dv, True)
    dk = tl.zeros([BK, _block(D)], tl.float32)
    dv = tl.zeros([BK, _block(Dv)], tl.float32)
    group = Hq // Hkv
    for member in range(group):
        head = kv_head * group + member
        q_rows = _head_rows(q_ptr, batch, head, (q_stride_b, q_stride_h, q_stride_s), Sq, ALIGN)
        d_out_rows = _head_rows(d_out_ptr, batch, head, (d_out_stride_b, d_out_stride_h, d_out_stride_s), Sq, ALIGN)
        head_term = tl.log(tl.cast(Sk, tl.float32))
        held = (k, v, scale, head_term)
        state = (dk, dv)
        full_hi, any_hi = _query_tiles(Sq, BQ)
        for step in tl.range(full_hi):
            state = _dkdv_tile(state, held, q_rows, d_out_rows, step * BQ, tiling, False)
        for step in tl.range(any_hi - full_hi):
            state = _dkdv_tile(state, held, q_rows, d_out_rows, (full_hi + step) * BQ, tiling, True)
        dk, dv = state
    dk_rows = _head_rows(dk_ptr, batch, kv_head, (dk_stride_b, dk_stride_h, dk_stride_s), Sk, ALIGN)
    dv_rows = _head_rows(dv_ptr, batch, kv_head, (dv_stride_b, dv_stride_h, dv_stride_s), Sk, ALIGN)
    _store_rows(dk_rows, dk * scale, k0, D)
    _store_rows(dv_rows, dv, k0, Dv)


# ---------------------------------------------------------------- on the host


# Kept from call to call. The CPU is Triton's interpreter, with as many multiprocessors as that is given.
_CHIPS: dict[torch.device, str] = {torch.device("cpu"): "cpu"}
_MULTIPROCESSORS: dict[torch.device, int] = {torch.device("cpu"): 8}
_READY: dict[tuple, _Known] = {}  # by layout
_PLAIN = (Tensor, torch.nn.Parameter)
_Refusal = ValueError  # an `attngen.Kernel` puts its own kind of ValueError here
_CALLER = 5  # how many calls up a warning points: two more for an `attngen.Kernel`


def _ceil(n: int, d: int) -> int:
    """n / d, rounded up, in a tenth of the time of Triton's own function."""
    return -(-n // d)


def _padded(n: int) -> int:
    """The least power of two that is at least n and 16."""
    return max(16, 1 << (n - 1).bit_length())


def _chip(device: torch.device) -> str:
    """The chip whose rows of the tables a device takes."""
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
    """`x` itself if its rows are contiguous and near each other, else a copy."""
    return x if x.stride(3) == 1 and x.stride(2) < 2**23 else x.contiguous()


def _like(x: Tensor, cols: int) -> tuple[tuple, tuple]:
    """Shape (B, H, S, cols) and strides of a result that lies in memory as `x` does: heads inside rows, or rows inside
    heads.
    """
    B, H, S, _ = x.shape
    inside = x.stride(1) < x.stride(2)
    return (B, H, S, cols), (H * S * cols, cols, H * cols, 1) if inside else (H * S * cols, S * cols, cols, 1)


def _strides(**tensors: tuple[int, ...]) -> dict[str, int]:
    """The strides of tensors, by the names of the kernels' parameters."""
    return {f"{name}_stride_{axis}": n for name, found in tensors.items() for axis, n in zip("bhs", found)}


def _has_tma(*tensors: Tensor) -> bool:
    """Whether the chip has a copy engine for tiles that can read these tensors. float32 is multiplied in registers."""
    return _chip(tensors[0].device) in ("sm_90", "sm_100") and all(
        x.numel() > 0 and x.element_size() == 2 and x.data_ptr() % 16 == 0
        and all(0 < n and n % 8 == 0 for n in x.stride()[:3])
        for x in tensors
    )


def _multiprocessors(device: torch.device) -> int:
    if device not in _MULTIPROCESSORS:
        _MULTIPROCESSORS[device] = torch.cuda.get_device_properties(device).multi_processor_count
    return _MULTIPROCESSORS[device]


def _registers(q: Tensor, *tile: int) -> dict[str, int]:
    """The option that bounds a program's registers, where a tile is meant for several programs a multiprocessor."""
    half = q.element_size() == 2 and _chip(q.device) in ("sm_90", "sm_100")
    limit = REGISTERS.get((_padded(q.shape[3]), *tile)) if half else None
    return {} if limit is None else {"maxnreg": limit}


_NONE: dict[str, Any] = {}
_WARMED: ContextVar[list | None] = ContextVar("kernels of launches that are to compile and not to run", default=None)


class _Launch:
    """A kernel and how calls of one layout launch it. Its parameters are found by name among a call's `values`.

    `options`: the kernel's constants and Triton's. `tiles`: rows of the tiles in which tensors are read. `scalars`:
    more values. `buffers`: shapes and dtypes of tensors to allocate. `names`: what a
    parameter takes that has another name. `run` launches the compiled kernel again: Triton takes longer to look it up
    than to launch it.
    """

    def __init__(self, kernel, grid, options, tiles=_NONE, scalars=_NONE, buffers=_NONE, names=_NONE) -> None:
        self.kernel, self.options, self.tiles, self.buffers = kernel, options, tiles, buffers
        self.grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
        self.scalars = scalars
        given = [x.removesuffix("_ptr").removesuffix("_desc") for x in kernel.arg_names if x not in options]
        given = [names.get(x, x) for x in given]
        self.operands, self.places = operator.itemgetter(*given), {given.index(x): x for x in tiles}
        self.constants = [options[x] for x in kernel.arg_names if x in options]
        self.run = None

    def __call__(self, values: dict) -> None:
        values.update(self.scalars)
        for name, (shape, dtype) in self.buffers.items():
            values[name] = values["q"].new_empty(shape, dtype=dtype)
        operands = [*self.operands(values)]
        watched = knobs.runtime.launch_enter_hook  # by a profiler, which Triton tells of its launches
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
        compiled = self.kernel[self.grid](*operands, **self.options)
        if compiled is not None:  # as under the interpreter
            self.run = _launcher(compiled, self.grid, {i: operands[i] for i in self.places}, self.constants)

    def descriptor(self, name: str, x: Tensor):
        block, sizes = [1, 1, self.tiles[name], _padded(x.shape[3])], (list(x.shape), list(x.stride()))
        return TensorDescriptor(x, *sizes, block)


def _launcher(compiled, grid: tuple, tiles: dict, constants: list) -> Callable | None:
    """Launches a kernel beneath Triton's Python, which takes longer than the launch itself. `tiles`: its descriptors,
    by the places of their operands; what Triton makes of one is kept by address. Where private names may differ Triton
    launches the kernel, after it has made descriptors (None).
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
        tile.base = None  # so that its memory can be freed
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
        for i, tile, meta, by_address in reversed(found):  # each takes more places than one
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
    """The launches, with kernels that were compiled side by side: one after the other takes as long as all of them.

    `ahead` is a backward pass, whose kernels are compiled with these; what fails there fails again when it is run.
    """
    if _WARMED.get() is not None or not isinstance(launches[-1].kernel, triton.JITFunction):
        return launches
    values, device = dict(values), values["q"].device

    def load(kernel) -> Any:
        with torch.cuda.device(device):  # to have its launcher is to have it on the device
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
    """What is known of calls of one layout: values that are the same in all, scalars that passed the checks, launches.
    """

    def __init__(self, q, k, v) -> None:
        B, Hq, Sq, D = q.shape
        Hkv, Sk, Dv = v.shape[1:]
        if max(Sq, Sk) >= 2**27:  # here, where they are known: while tracing they may be symbols
            _refuse(f"sequences must be shorter than 2**27, not {Sq} and {Sk}: positions are computed in 32 bits")
        near = _near(q), _near(k), _near(v)
        self.near = near[0] is q and near[1] is k and near[2] is v
        self.shape = B, Hq, Hkv, Sq, Sk, D, Dv
        # Shape and strides of the results, kept so that they are allocated quickly.
        self.out = _like(q, Dv)
        self.lse = (B, Hq, Sq), (Hq * Sq, Sq, 1)
        strides = _strides(q=near[0].stride(), k=near[1].stride(), v=near[2].stride(), out=self.out[1])
        self.values = dict(strides, Hq=Hq, Hkv=Hkv, Sq=Sq, Sk=Sk)
        self.constants = dict(D=D, Dv=Dv, ALIGN=math.gcd(16, *strides.values()))
        self.fits = set()
        self.forward, self.backward = {}, {}


def _layout(*tensors: Tensor) -> tuple:
    """What decides how kernels are launched: of tensors everything but the values, and addresses modulo 16."""
    return tuple([(x.dtype, x.device, x.shape, x.stride(), x.data_ptr() % 16) for x in tensors])


def _known(*tensors: Tensor) -> _Known:
    """What is known of these tensors' layout, found out if they are the first of it."""
    layout = _layout(*tensors)
    if layout not in _READY:
        if len(_READY) >= 1024:
            _READY.clear()
        _READY[layout] = _Known(*tensors)
    return _READY[layout]


def _pieces(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Into how many pieces the keys of each tile of queries are cut; 0 where one kernel does it all.

    Queries so short fill neither a tile nor the card. Shapes and the card alone decide, so the bits repeat.
    """
    B, Hq, Sq, _ = q.shape
    Hkv, Sk = k.shape[1:3]
    BQ, BK, _, _ = _split_tile(q, k, v)
    slots = SPLIT[_chip(q.device), q.element_size()][-1] * _multiprocessors(q.device)
    whole = _ceil(Sq, _tiles(q, v)[0][0]) * B * Hq
    if Sk < 4 * BK or Sq > 128 or (Sq > 16 and 4 * whole > slots):
        return 0
    programs = _ceil(Hq // Hkv * Sq, BQ) * B * Hkv
    counts = [programs * n for n in range(1, min(128, _ceil(Sk, 2 * BK)) + 1)]
    # The share of the card that works. Two rounds of programs begin and end together, and memory waits between them.
    busy = [n / (_ceil(n, slots) * slots) * (0.85 if slots < n <= 2 * slots else 1.0) for n in counts]
    return 1 + next(i for i, share in enumerate(busy) if share >= 0.9 * max(busy))


def _split_tile(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, int]:
    """Rows, keys, warps and stages of a piece's tiles."""
    Hq, Hkv, Sq = q.shape[1], k.shape[1], q.shape[2]
    most_rows, most_keys, area, warps, stages, _ = SPLIT[_chip(q.device), q.element_size()]
    longest = max(16, area // _padded(max(q.shape[3], v.shape[3])))
    return min(_padded(Hq // Hkv * Sq), most_rows, longest), min(most_keys, longest), warps, stages


def _forward_launches(known, q, k, v, out) -> tuple:
    """How the forward pass is launched in calls of one layout."""
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
    tma = _has_tma(q, k, v)
    BQ, BK, warps, stages = _tiles(q, v)[0]
    return (_Launch(_forward_kernel, _ceil(Sq, BQ) * B * Hq,
        dict(**known.constants, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages,
        **_registers(q, BQ, BK, warps, stages)), tiles=dict(q=BQ, k=BK, v=BK) if tma else {}),)


def _attend(q, k, v, scale, known=None, learn=None):
    """What the operator computes. A call that needs no operator knows the layout of its tensors already. `learn` is the
    backward pass of its results, whose kernels are compiled with these.
    """
    known = known or _known(q, k, v)
    if not known.near:
        q, k, v = _near(q), _near(k), _near(v)
    out = q.new_empty_strided(*known.out)
    lse = q.new_empty_strided(*known.lse, dtype=torch.float32)
    if out.numel():
        key = ()
        values = dict(known.values, q=q, k=k, v=v, out=out, lse=lse, scale=scale)
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


def _backward_launches(known, strides, q, k, v, d_out, dq, dk, dv) -> tuple:
    """How the backward pass is launched in calls of one layout."""
    B, Hq, Hkv, Sq, Sk, _D, _Dv = known.shape
    align = math.gcd(known.constants["ALIGN"], *strides.values())
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
        # Hooks on saved tensors may hand them back from anywhere.
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


@_backward.register_fake
def _(d_out, d_lse, q, k, v, out, lse, scale):
    dq, dk, dv = (torch.empty_like(_near(x)) for x in (q, k, v))
    return dq, dk, dv


def _transformable(operator, save, differentiate) -> Callable:
    """`operator`, also for transforms of `torch.func`, which do not find the gradients of operators."""
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
    """What the operator does, without its dispatch."""

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
_HAS_PRIVATE_NAMES = all(  # what is asked below, and PyTorch may not have: then every call goes through the operator
    hasattr(owner, name)
    for owner, names in (
        (torch._C, "_is_tracing _len_torch_dispatch_stack"),
        (_FUNCTORCH, "peek_interpreter_stack is_functorch_wrapped_tensor is_batchedtensor get_unwrapped"),
        (getattr(torch, "_VF", None), "_unpack_dual"), (forward_ad, "_current_level"), (Tensor, "_is_zerotensor"),
    )
    for name in names.split()
)


def _unwatched(*tensors: Tensor) -> bool:
    """Whether a call may do without the operator: no compiler, tracer, transform or tensor subclass is active."""
    if torch.compiler.is_compiling() or not _HAS_PRIVATE_NAMES:
        return False
    if torch._C._is_tracing() or torch._C._len_torch_dispatch_stack():
        return False
    if forward_ad._current_level >= 0 or _FUNCTORCH.peek_interpreter_stack() is not None:
        return False
    for x in tensors:
        if type(x) not in _PLAIN or x.is_neg() or x._is_zerotensor():
            return False
    return True


def _is_transformed() -> bool:
    """Whether a transform of `torch.func` is active."""
    return (_HAS_PRIVATE_NAMES and not torch.compiler.is_compiling()
        and _FUNCTORCH.peek_interpreter_stack() is not None)


def _may_have_tangent(x: Tensor) -> bool:
    """Beneath a second transform of `torch.func`, and while torch.compile traces, nobody sees whether it has one."""
    if torch.compiler.is_compiling():
        return _HAS_PRIVATE_NAMES
    if not _HAS_PRIVATE_NAMES:
        return forward_ad.unpack_dual(x).tangent is not None
    wrapped = _FUNCTORCH.is_functorch_wrapped_tensor
    beneath = wrapped(x) and (_FUNCTORCH.is_batchedtensor(x) or wrapped(_FUNCTORCH.get_unwrapped(x)))
    return beneath or torch._VF._unpack_dual(x, level=forward_ad._current_level)[1] is not None


def _refuse_tangents(*arguments) -> None:
    """The operators would drop tangents without an error."""
    if _HAS_PRIVATE_NAMES and forward_ad._current_level < 0:
        return
    if any(isinstance(x, Tensor) and _may_have_tangent(x) for x in arguments):
        _refuse("forward-mode derivatives (jvp, jacfwd, hessian) are not computed: use backward()")


def _refuse(message: str) -> NoReturn:
    raise _Refusal(f"sigmoid: {message}")


def _check(q, k, v, scale):
    """One clear message for what does not fit, before anything is launched; the tensors, where sizes of 1 are repeated.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            _refuse(f"{name} must be a torch.Tensor, not {type(x).__name__}")
        if x.dim() != 4:
            _refuse(f"{name} must have 4 dimensions (batch, heads, length, head dim), not shape {tuple(x.shape)}")
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
        _refuse(f"q's {Hq} heads must be a multiple of the {Hkv} heads of k and v")
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
    """Says once that there are more heads than positions, in the order in which other libraries have lengths first."""
    warnings.warn("sigmoid: are there more heads than positions? q, k and v must be (batch, heads, length, head dim): "
        "transpose what is (batch, length, heads, head dim), as in q.transpose(1, 2)", stacklevel=_CALLER)


def _scale_number(scale) -> float:
    """A scale that is neither a finite float nor a tensor: an int, or a number of NumPy's."""
    try:
        if not isinstance(scale, str | bytes) and abs(float(scale)) < torch.inf:
            return float(scale)
    except (TypeError, ValueError, OverflowError):
        pass
    _refuse(f"scale must be a finite number, not {scale!r}")


def _in_autocast(x: Any, kind: str) -> Any:
    """`x` as autocast hands it to scaled_dot_product_attention: in its dtype, but for float64."""
    fits = isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64 and x.device.type == kind
    return x.to(torch.get_autocast_dtype(kind)) if fits else x


def _scaled(q: Tensor, scale: Tensor) -> tuple[Tensor, float]:
    """q and the number that multiplies q . k. Where the scale learns, or cannot be read, it is divided by that number,
    and the quotient goes into q, with its gradient.
    """
    if scale.numel() != 1:
        _refuse(f"scale must be one number, not a tensor of shape {tuple(scale.shape)}")
    learns = scale.requires_grad and torch.is_grad_enabled()
    hidden = (torch.compiler.is_compiling() or scale.is_meta
        or (scale.is_cuda and torch.cuda.is_current_stream_capturing()))
    if not (learns or hidden):
        return q, float(scale)
    number = 1.0 if hidden else float(scale) or 1.0
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
        # Triton's interpreter has no bfloat16 products: it computes in float32.
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
