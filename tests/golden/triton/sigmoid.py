"""sigmoid: fused attention for GPUs, forward and backward, in Triton.

Made by attngen from the specification below: edit that and compile again, or edit this file by hand.
It needs torch and triton alone. `sigmoid` is differentiable, and a custom operator, with which torch.compile needs no
graph break.

Here stands what depends on the mask and the score, in this order: the call; the mask, which says which tiles meet; the
kernels; tables of tile sizes, free to change; launches. What does not is attngen's runtime.
"""

# @generated
# SPDX-License-Identifier: Apache-2.0
# API of the runtime: 1
#
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
# fmt: off

from __future__ import annotations

from collections import namedtuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._attngen import host, rows, sm90
from ._attngen.gluon import (
    BARRIER, COPY_IN, COPY_OUT, REINTERPRET, fence_async_shared, gl, gluon, mbarrier, tma, warpgroup_mma,
    warpgroup_mma_wait
)

__all__ = ["sigmoid"]

PRECISION = tl.constexpr("ieee")  # of float32 products; half precision is exact in the product


# Sizes, and strides of params, for whose values Triton must not compile a kernel again.
UNSPECIALIZED = ['Hq', 'Hkv', 'Sq', 'Sk']
_Tiling = namedtuple("_Tiling", "D Dv BQ BK")  # compile-time sizes of a tile


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
    return _attention((q, k, v), scale, return_lse, dropout_seed, check)


# ---------------------------------------------------------------- the mask: which tiles meet


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


# ---------------------------------------------------------------- helpers


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


# ---------------------------------------------------------------- forward


@triton.jit
def _attend_tile(acc, held, k_rows, v_rows, k0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Folds the keys k0 … k0 + BK - 1 into a tile's state. `held`: values that do not depend on the key."""
    q, scale, head_term = held
    Sk = k_rows.stop
    k_idx = (k0 + tl.arange(0, tiling.BK))[None, :]
    k = rows.load(k_rows, k0, tiling.BK, tiling.D, MASKED)
    qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    x = qk * scale - head_term
    weight = tl.sigmoid(x)
    if MASKED:
        weight = tl.where((k_idx < Sk), weight, 0.0)
    v = rows.load(v_rows, k0, tiling.BK, tiling.Dv, MASKED)
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
    q_rows = rows.of_head(q_ptr, batch, head, q_strides, Sq, ALIGN)
    k_rows = rows.of_head(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = rows.of_head(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    q = rows.load(q_rows, q0, BQ, D, True)
    head_term = tl.log(tl.cast(Sk, tl.float32))
    held = (q, scale, head_term)
    acc = rows.no_values(BQ, Dv)
    full_hi, any_hi = _key_tiles(Sk, BK)
    for step in tl.range(full_hi):
        acc = _attend_tile(acc, held, k_rows, v_rows, step * BK, tiling, False)
    for step in tl.range(any_hi - full_hi):
        acc = _attend_tile(acc, held, k_rows, v_rows, (full_hi + step) * BK, tiling, True)
    acc, lse = _finish(acc)
    row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
    out_rows = rows.of_head(out_ptr, batch, head, out_strides, Sq, ALIGN)
    rows.store(out_rows, acc, q0, Dv)
    queries = q0 + tl.arange(0, BQ)
    tl.store(lse_ptr + row + queries, lse, mask=queries < Sq)


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
    k_rows = rows.of_head(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = rows.of_head(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    col = tl.arange(0, rows.block(D))[None, :]
    q_rows = rows.of_head(q_ptr, batch, head, q_strides, Sq, ALIGN)
    q = tl.load(q_rows.base + q_idx * q_rows.stride + col, mask=(q_idx < Sq) & (col < D), other=0.0)
    head_term = tl.log(tl.cast(Sk, tl.float32))
    held = (q, scale, head_term)
    acc = rows.no_values(BQ, Dv)
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
    cells = parts_ptr + cell * (rows.block(Dv) + 4)
    tl.store(cells + tl.arange(0, rows.block(Dv))[None, :], acc, mask=q_idx < Sq)


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

    acc = rows.no_values(BQ, Dv)
    for first in tl.range(0, pieces, PIECES):
        piece = first + tl.arange(0, PIECES)
        cells = parts_ptr + (tl.cast(tl.program_id(0), tl.int64) * pieces + piece) * (rows.block(Dv) + 4)
        part = tl.load(cells[:, None] + tl.arange(0, rows.block(Dv))[None, :], mask=(piece < pieces)[:, None],
            other=0.0)
        acc += tl.sum(part, 0)[None, :]
    acc, lse = _finish(acc)
    row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
    out_rows = rows.of_head(out_ptr, batch, head, out_strides, Sq, ALIGN)
    rows.store(out_rows, acc, q0, Dv)
    queries = q0 + tl.arange(0, BQ)
    tl.store(lse_ptr + row + queries, lse, mask=queries < Sq)


# ---------------------------------------------------------------- forward, for compute capability 9.0


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
def _work_item(item, n_tiles, n_heads, n_work, together):
    """(tile, batch, head) of an item: early tiles first, `together` heads in turn."""
    _first, order, i = _in_turn(item, n_tiles, n_work // n_tiles, together)
    return order, i // n_heads, i % n_heads


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
                    sm90.barrier_sync(k_ring.FREE + stage, config.SHARE, 1)
                mbarrier.expect(k_ring.ready.index(stage), config.K_PARTS * k_desc.block_type.nbytes)
                for part in gl.static_range(config.K_PARTS):
                    k_tile = k_ring.tiles.index(stage * config.K_PARTS + part)
                    COPY_IN(k_desc, [batch, kv_head, at * BK, part * config.K_COLS], k_ring.ready.index(stage), k_tile)
                k0 = at * BK
            else:
                k0 = 0
            if step == 0:
                for part in gl.static_range(config.PARTS):
                    if round > 0:
                        sm90.barrier_sync(q_ring.FREE + part, 160, 1)
                    if config.SCHEDULE == "queue":
                        sm90.publish_item(work.notes, 2 * part + (round & 1), item, tile, batch, head)
                    mbarrier.expect(q_ring.ready.index(part), q_desc.block_type.nbytes)
                    q_tile = REINTERPRET(q_ring.tiles.index(part), q_desc.dtype, [1, 1, 64, config.Q_COLS],
                        q_desc.layout)
                    COPY_IN(q_desc, [batch, head, q0 + part * 64, 0], q_ring.ready.index(part), q_tile)
            else:
                stage = (turn + step - 1) % config.STAGES
                if turn + step > config.STAGES:
                    sm90.barrier_sync(v_ring.FREE + stage, config.SHARE, 1)
                mbarrier.expect(v_ring.ready.index(stage), v_desc.block_type.nbytes)
                COPY_IN(v_desc, [batch, kv_head, v0, 0], v_ring.ready.index(stage), v_ring.tiles.index(stage))
            v0 = k0
        turn += n_steps
        round += 1
        item = (gl.num_programs(0) + gl.atomic_add(work.queue_ptr, 1, sem="relaxed") if config.SCHEDULE == "queue"
            else work.n_work)
    if config.SCHEDULE == "queue":
        for part in gl.static_range(config.PARTS):
            if round > 0:
                sm90.barrier_sync(q_ring.FREE + part, 160, 1)
            sm90.publish_item(work.notes, 2 * part + (round & 1), work.n_work, 0, 0, 0)
            mbarrier.arrive(q_ring.ready.index(part), count=1)
    for last in range(tl.minimum(turn, config.STAGES)):
        sm90.barrier_sync(k_ring.FREE + (turn - 1 - last) % config.STAGES, config.SHARE, 1)
        sm90.barrier_sync(v_ring.FREE + (turn - 1 - last) % config.STAGES, config.SHARE, 1)


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
    qk_token = sm90.start_scores(q, k_ring, stage, no_scores, config)
    qk = warpgroup_mma_wait(0, deps=(qk_token,))
    sm90.barrier_arrive(k_ring.FREE + stage, config.SHARE, 4)
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
            sm90.barrier_sync(config.ORDER + PART, 256, 4)
        qk_token = sm90.start_scores(q, k_ring, stage, no_scores, config)
        mbarrier.wait(v_ring.ready.index(v_stage), v_phase)
        acc_token = warpgroup_mma(p, v_ring.tiles.index(v_stage).reshape([BK, config.BLOCK_DV]), acc, is_async=True)
        if config.ORDERED:
            sm90.barrier_arrive(config.ORDER + (PART + 1) % config.PARTS, 256, 4)
        qk = warpgroup_mma_wait(1, deps=(qk_token,))
        sm90.barrier_arrive(k_ring.FREE + stage, config.SHARE, 4)
        weight = _weigh(qk, at * BK, own_full_hi <= at, terms, config)
        sm90.pin_order(n_steps)
        acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
        sm90.barrier_arrive(v_ring.FREE + v_stage, config.SHARE, 4)
        p = gl.convert_layout(weight.to(config.dtype), weight_layout)
    if config.OUT_APART and config.SCHEDULE != "once":  # the next queries arrive during the last product
        sm90.barrier_arrive(q_ring.FREE + PART, 160, 4)
    mbarrier.wait(v_ring.ready.index(stage), phase)
    acc_token = warpgroup_mma(p, v_ring.tiles.index(stage).reshape([BK, config.BLOCK_DV]), acc, is_async=True)
    acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
    sm90.barrier_arrive(v_ring.FREE + stage, config.SHARE, 4)
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
            sm90.barrier_sync(config.ORDER + PART, 256, 4)
        qk_token = sm90.start_scores(q, k_ring, stage, no_scores, config)
        if config.ORDERED:
            sm90.barrier_arrive(config.ORDER + (PART + 1) % config.PARTS, 256, 4)
        qk = warpgroup_mma_wait(0, deps=(qk_token,))
        sm90.barrier_arrive(k_ring.FREE + stage, config.SHARE, 4)
        weight = _weigh(qk, at * BK, own_full_hi <= at, terms, config)
        p = gl.convert_layout(weight.to(config.dtype), weight_layout)
        mbarrier.wait(v_ring.ready.index(stage), phase)
        acc_token = warpgroup_mma(p, v_ring.tiles.index(stage).reshape([BK, config.BLOCK_DV]), acc, is_async=True)
        acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
        sm90.barrier_arrive(v_ring.FREE + stage, config.SHARE, 4)
    if config.OUT_APART and config.SCHEDULE != "once":
        sm90.barrier_arrive(q_ring.FREE + PART, 160, 4)
    return acc


@gluon.jit
def _store_tile(acc, lse, place, results, q_ring, call, config: gl.constexpr, PART: gl.constexpr):
    """Stores the results of 64 queries. `place`: their batch, head, first position and positions."""
    _scale, Hq, _Hkv, Sq, _Sk = call
    batch, head, q0, queries = place
    row = (batch * tl.cast(Hq, gl.int64) + head) * Sq
    gl.store(results.lse_ptr + row + queries, lse, mask=queries < Sq)
    out = acc.to(config.dtype)
    # The copy engine clips the result to the tensor. Without shared memory of its own, it takes that of the queries.
    if config.OUT_APART:
        out_tile = results.tiles.index(PART)
        tma.store_wait(0)
    else:
        out_tile = REINTERPRET(q_ring.tiles.index(PART), config.dtype, [1, 1, 64, config.BLOCK_DV], results.desc.layout)
    out_tile.reshape([64, config.BLOCK_DV]).store(out)
    fence_async_shared()
    BARRIER()
    COPY_OUT(results.desc, [batch, head, q0, 0], out_tile)


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
        sm90.barrier_arrive(config.ORDER, 256, 4)
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
        q = REINTERPRET(q_ring.tiles.index(PART), config.dtype, [64, config.Q_COLS], q_layout)
        if config.PIPELINED:
            walk = _Walk(turn, n_steps, 0, n_steps, own_full_hi)
            acc = _attend_overlapped(acc, q, q_ring, k_ring, v_ring, walk, terms, config, PART)
        else:
            walk = _Walk(turn, n_steps, 0, own_stop, own_full_hi)
            acc = _attend_in_turn(acc, q, q_ring, k_ring, v_ring, walk, terms, config, PART)
            for step in range(own_stop, n_steps):
                sm90.release_tile(turn + step, k_ring, v_ring, config, PART)
        turn += n_steps
        round += 1

        if config.SCHEDULE == "queue":
            tile, batch, head = sm90.noted_item(work.notes, 2 * PART + (round - 1 & 1))
        else:
            tile, batch, head = _work_item(sm90.opaque(item), n_tiles, Hq, work.n_work, work.together)
        q0 = tile * BQ + PART * 64
        place = batch, head, q0, q0 + gl.arange(0, 64, layout=rows_layout)
        acc, lse = _normalized(acc, rows_layout)
        _store_tile(acc, lse, place, results, q_ring, call, config, PART)
        if config.SCHEDULE == "once":
            item = work.n_work
        else:
            if not config.OUT_APART:
                tma.store_wait(0)
                sm90.barrier_arrive(q_ring.FREE + PART, 160, 4)
            mbarrier.wait(q_ring.ready.index(PART), round & 1)
            slot = 2 * PART + (round & 1)
            item = sm90.noted(work.notes, 4 * slot)
            tile, batch, head = sm90.noted_item(work.notes, slot)
    if config.ORDERED and PART == 0:
        sm90.barrier_sync(config.ORDER, 256, 4)
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
    q_ring = sm90.Ring(q_tiles, gl.allocate_shared_memory(gl.int64, [PARTS, 1], mbarrier.MBarrierLayout()), Q_FREE)
    k_ring = sm90.Ring(k_tiles, gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout()), K_FREE)
    v_ring = sm90.Ring(v_tiles, gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout()), V_FREE)
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
    k = rows.load(k_rows, k0, tiling.BK, tiling.D, MASKED)
    v = rows.load(v_rows, k0, tiling.BK, tiling.Dv, MASKED)
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
    q_rows = rows.of_head(q_ptr, batch, head, q_strides, Sq, ALIGN)
    k_rows = rows.of_head(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = rows.of_head(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    d_out_rows = rows.of_head(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
    q = rows.load(q_rows, q0, BQ, D, True)
    d_out = rows.load(d_out_rows, q0, BQ, Dv, True)
    head_term = tl.log(tl.cast(Sk, tl.float32))
    held = (q, d_out, scale, head_term)
    dq = (tl.zeros([BQ, rows.block(D)], tl.float32))
    full_hi, any_hi = _key_tiles(Sk, BK)
    for step in tl.range(full_hi):
        dq = _dq_tile(dq, held, k_rows, v_rows, step * BK, tiling, False)
    for step in tl.range(any_hi - full_hi):
        dq = _dq_tile(dq, held, k_rows, v_rows, (full_hi + step) * BK, tiling, True)
    dq_rows = rows.of_head(dq_ptr, batch, head, dq_strides, Sq, ALIGN)
    rows.store(dq_rows, dq * scale, q0, D)


@triton.jit
def _dkdv_tile(state, held, q_rows, d_out_rows, q0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Adds the queries q0 … q0 + BQ - 1 to dK and dV. `held`: values that do not depend on the query."""
    dk, dv = state
    k, v, scale, head_term = held
    Sq = q_rows.stop
    queries = q0 + tl.arange(0, tiling.BQ)
    q_idx = queries[None, :]
    q = rows.load(q_rows, q0, tiling.BQ, tiling.D, MASKED)
    d_out = rows.load(d_out_rows, q0, tiling.BQ, tiling.Dv, MASKED)
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
    k_rows = rows.of_head(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = rows.of_head(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    k = rows.load(k_rows, k0, BK, D, True)
    v = rows.load(v_rows, k0, BK, Dv, True)
    dk = tl.zeros([BK, rows.block(D)], tl.float32)
    dv = tl.zeros([BK, rows.block(Dv)], tl.float32)
    group = Hq // Hkv
    for member in range(group):
        head = kv_head * group + member
        q_rows = rows.of_head(q_ptr, batch, head, q_strides, Sq, ALIGN)
        d_out_rows = rows.of_head(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
        head_term = tl.log(tl.cast(Sk, tl.float32))
        held = (k, v, scale, head_term)
        state = (dk, dv)
        full_hi, any_hi = _query_tiles(Sq, BQ)
        for step in tl.range(full_hi):
            state = _dkdv_tile(state, held, q_rows, d_out_rows, step * BQ, tiling, False)
        for step in tl.range(any_hi - full_hi):
            state = _dkdv_tile(state, held, q_rows, d_out_rows, (full_hi + step) * BQ, tiling, True)
        dk, dv = state
    dk_rows = rows.of_head(dk_ptr, batch, kv_head, dk_strides, Sk, ALIGN)
    dv_rows = rows.of_head(dv_ptr, batch, kv_head, dv_strides, Sk, ALIGN)
    rows.store(dk_rows, dk * scale, k0, D)
    rows.store(dv_rows, dv, k0, Dv)


# ---------------------------------------------------------------- tables


# Tiles of kernels for every GPU: queries, keys, warps, stages; by chip, bytes of an element, head dim rounded up. All
# fit the chip's shared memory.
TILES = """
    chips                    | bytes | head dims        | forward    | dK, dV    | dQ
    sm_80 sm_86              | 2     | 16 32            | 128 64 4 3 | 64 64 4 1 | 128 64 8 2
    sm_80 sm_86              | 2     | 64               | 128 64 8 3 | 32 64 8 2 | 128 64 8 3
    sm_80 sm_86              | 2     | 128              | 128 32 8 3 | 64 64 8 1 | 128 32 8 2
    sm_80                    | 2     | 256              | 64 64 8 2  | 32 32 8 1 | 64 32 8 2
    sm_80 sm_86 sm_90 sm_100 | 4     | 16 32 64         | 32 32 4 1  | 32 32 4 1 | 32 32 4 1
    gfx942                   | 4     | 16 32 64 128     | 32 32 4 1  | 32 32 4 1 | 32 32 4 1
    sm_80 sm_86 sm_90 sm_100 | 4     | 128              | 32 32 8 1  | 32 32 8 1 | 32 32 8 1
    sm_80 sm_90 sm_100       | 4     | 256              | 32 16 8 1  | 16 32 8 1 | 32 16 8 1
    sm_86                    | 2     | 256              | 64 32 8 1  | 32 32 8 1 | 32 32 8 1
    sm_86                    | 4     | 256              | 32 16 8 1  | 16 16 8 1 | 16 16 8 1
    sm_90                    | 2     | 16 32            | 128 64 4 3 | 64 64 4 2 | 128 64 4 3
    sm_90                    | 2     | 64               | 64 128 4 2 | 64 64 4 2 | 128 64 8 3
    sm_90                    | 2     | 128              | 64 64 4 1  | 32 64 4 2 | 128 64 8 3
    sm_90                    | 2     | 256              | 128 64 8 2 | 64 64 8 2 | 64 64 4 2
    sm_100                   | 2     | 16 32            | 128 64 8 3 | 64 64 4 1 | 128 64 8 2
    sm_100                   | 2     | 64               | 128 64 8 3 | 64 64 8 1 | 64 64 8 2
    sm_100                   | 2     | 128              | 128 64 4 2 | 64 64 4 1 | 64 64 8 2
    sm_100                   | 2     | 256              | 128 64 8 1 | 64 64 8 1 | 64 64 8 1
    gfx942                   | 2     | 16 32            | 128 64 4 2 | 64 64 4 1 | 128 64 4 2
    gfx942                   | 2     | 64               | 128 64 4 2 | 64 64 4 1 | 64 64 4 2
    gfx942                   | 2     | 128              | 128 64 4 1 | 32 64 4 1 | 64 64 4 1
    gfx942                   | 2     | 256              | 64 64 4 1  | 16 64 8 1 | 32 32 4 1
    gfx942                   | 4     | 256              | 32 16 4 1  | 16 32 4 1 | 32 16 4 1
    cpu                      | 2     | 16 32 64 128 256 | 64 64 4 1  | 64 64 4 1 | 64 64 4 1
    cpu                      | 4     | 16 32 64 128 256 | 64 64 4 1  | 64 64 4 1 | 64 64 4 1
"""

# Register limits by (head dim rounded up, queries, keys, warps, stages of the forward tile), so that one more program
# fits on a multiprocessor.
REGISTERS: dict[tuple[int, ...], int] = {(128, 64, 128, 4, 1): 168, (128, 64, 64, 4, 1): 128}

# Short queries: the most rows, keys and elements of a tile, warps, stages, programs that a multiprocessor runs at a
# time.
SPLIT = """
    chips                    | bytes | rows, keys, elements, warps, stages, programs
    sm_80 sm_90 sm_100       | 2     | 64 128 8192 4 3 2
    sm_80 sm_86 sm_90 sm_100 | 4     | 32 32 4096 8 1 2
    sm_86                    | 2     | 64 128 8192 4 2 2
    gfx942                   | 2     | 64 128 8192 4 1 2
    gfx942                   | 4     | 64 128 4096 4 1 2
    cpu                      | 2     | 64 64 8192 4 1 1
    cpu                      | 4     | 64 64 8192 4 1 1
"""

# The forward kernel for compute capability 9.0, by head dims of (q and k, v), rounded up. PIPELINED: a warpgroup
# overlaps its own products; ORDERED: warpgroups start products in turn; REGISTERS of a consumer's thread, SPARE those
# of a producer's. together: at least so many heads take their tiles in turn; ahead: or as many as have so many tiles in
# all. SCHEDULE: `once`, a program takes one tile; `queue`, the next one until none is left. OUT_APART: results have
# shared memory of their own.
HOPPER = """
    head dims | BQ  BK STAGES PIPELINED ORDERED REGISTERS SPARE together ahead SCHEDULE OUT_APART
    192 128   | 128 64 2      no        no      240       24    1        0     once     no
    256 128   | 128 64 2      yes       yes     240       24    1        0     once     no
    256 256   | 128 64 2      yes       yes     240       24    1        0     once     no
"""


# ---------------------------------------------------------------- launches


def _forward_launches(known, q, k, v, out) -> tuple:
    """The launches of the forward pass, for calls of one layout."""
    B, Hq, Hkv, Sq, _Sk, D, Dv = known.shape
    if pieces := host.split_pieces(SPLIT, q, k, v, True, host.ceil(Sq, host.tiles(TILES, q, v)[0][0]) * B * Hq):
        tma = host.has_tma(k, v)
        BQ, BK, warps, stages = host.split_tile(SPLIT, q, k, v, True)
        return (host.Launch(_split_kernel, host.ceil(Hq // Hkv * Sq, BQ) * B * Hkv * pieces,
            dict(**known.constants, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages),
            tiles=dict(k=BK, v=BK) if tma else {}, scalars=dict(pieces=pieces),
            buffers=dict(parts=((B * Hq * Sq * pieces * (host.padded(Dv) + 4),), torch.float32))),
            host.Launch(_merge_kernel, B * Hq * Sq,
                dict(D=D, Dv=Dv, PIECES=16, ALIGN=known.constants["ALIGN"], num_warps=4)),)
    if (row := host.hopper_row(HOPPER, q, k, v, out)) is not None:
        BQ, BK = row.BQ, row.BK
        n_tiles = host.ceil(Sq, BQ)
        n_work = n_tiles * B * Hq
        return (*((host.add_queue,) if row.SCHEDULE == "queue" else ()),
            host.HopperLaunch(_hopper_forward_kernel,
                n_work if row.SCHEDULE == "once" else min(n_work, host.multiprocessors(q.device)),
                dict(**{**known.wide, "BLOCK_D": max(64, host.hopper_columns(D, Dv)[0])}, BQ=BQ, BK=BK,
                STAGES=row.STAGES, SCHEDULE=row.SCHEDULE, ORDERED=row.ORDERED, OUT_APART=row.OUT_APART,
                PIPELINED=row.PIPELINED, REGISTERS=row.REGISTERS, SPARE=row.SPARE),
                tiles=dict(q=64, out=64, k=BK, v=BK),
                scalars=dict(n_work=n_work, together=max(row.together, row.ahead // n_tiles))),)
    tma = host.has_tma(q, k, v)
    BQ, BK, warps, stages = host.tiles(TILES, q, v)[0]
    return (host.Launch(_forward_kernel, host.ceil(Sq, BQ) * B * Hq,
        dict(**known.constants, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages,
        **host.register_limit(REGISTERS, q, BQ, BK, warps, stages)), tiles=dict(q=BQ, k=BK, v=BK) if tma else {}),)


def _backward_launches(known, strides, q, k, v, d_out, dq, dk, dv, asked) -> tuple:
    """The launches of the backward pass, for calls of one layout. `asked`: what a call wants."""
    B, Hq, Hkv, Sq, Sk, _D, _Dv = known.shape
    align = host.alignment(strides, known.constants["ALIGN"])
    tma = host.has_tma(q, k, v, d_out)
    BQ, BK, warps, stages = host.tiles(TILES, q, v)[1]
    by_keys = (host.Launch(_dkdv_kernel, host.ceil(Sk, BK) * B * Hkv,
        dict(**{**known.constants, "ALIGN": align}, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages),
        tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK) if tma else {}),)
    BQ, BK, warps, stages = host.tiles(TILES, q, v)[2]
    by_rows = (host.Launch(_dq_kernel, host.ceil(Sq, BQ) * B * Hq,
        dict(**{**known.constants, "ALIGN": align}, BQ=BQ, BK=BK, num_warps=warps, num_stages=stages),
        tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK) if tma else {}),)
    return (*by_keys,
        *by_rows,)


# ---------------------------------------------------------------- registered


_attention = host.Attention(
    "sigmoid",
    "attngen::sigmoid_839b3e0b091a",
    api=1,
    forward=_forward_launches,
    backward=_backward_launches,
)
