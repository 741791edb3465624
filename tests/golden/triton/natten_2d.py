"""natten_2d: fused attention for GPUs, forward and backward, in Triton.

Made by attngen from the specification below: edit that and compile again, or edit this file by hand.
It needs torch and triton alone. `natten_2d` is differentiable, and a custom operator, with which torch.compile needs no
graph break.

Here stands what depends on the mask and the score, in this order: the call; the mask, which says which tiles meet; the
kernels; tables of tile sizes, free to change; launches. What does not is attngen's runtime.
"""

# @generated
# SPDX-License-Identifier: Apache-2.0
# API of the runtime: 2
#
# The specification:
#
#     # Neighbourhood attention on an image, with a relative position bias: each pixel sees the (2 radius + 1)^2 pixels
#     # around it; at the image's border the neighbourhood is moved inwards, not cut off.
#     #
#     #   s_ij = q_i . k_j / sqrt(D) + bias[h, y_j - y_i, x_j - x_i],
#     #          |y_j - c(y_i)| <= radius  and  |x_j - c(x_i)| <= radius
#     #   c(y) = clip(y, radius, height - 1 - radius),   and alike for x
#     #
#     # Hassani et al., "Neighborhood Attention Transformer", CVPR 2023 (https://arxiv.org/abs/2204.07143).
#     attention natten_2d
#
#     const width = 32  # pixels of an image's row; position p is pixel (p // width, p % width)
#     const radius = 3
#     const reach = 4 * radius + 1  # offsets run from -2 radius to 2 radius
#
#     param bias: f32[Hq, reach, reach]
#
#     let height = Sk // width
#     let y_q = q // width
#     let x_q = q % width
#     let y_k = k // width
#     let x_k = k % width
#     let centre(p, extent) = clamp(p, radius, extent - 1 - radius)
#
#     score = qk * scale + bias[h, y_k - y_q + 2 * radius, x_k - x_q + 2 * radius]
#     mask = abs(y_k - centre(y_q, height)) <= radius and abs(x_k - centre(x_q, width)) <= radius
#
#     assume Sq == Sk
#     assume Sk % width == 0
#     assume Sk >= (2 * radius + 1) * width
#
# sha256 of its text: 98c803b1cfe06078f8abea09888157442e3937fb72916c6f71ccc5cbee96f8be
# options: target=triton precision=ieee width=32 radius=3 reach=13
# Proved: streaming, range-safety, empty-rows, locality, gradients, tile-ranges, index-bounds, integer-width.
# fmt: off

from __future__ import annotations

from collections import namedtuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._attngen import host, items, rows, sm90
from ._attngen.gluon import (
    BARRIER, COPY_IN, COPY_OUT, REINTERPRET, fence_async_shared, gl, gluon, mbarrier, tma, warpgroup_mma,
    warpgroup_mma_wait
)

__all__ = ["natten_2d"]

PRECISION = tl.constexpr("ieee")  # of float32 products; half precision is exact in the product

# Sizes, and strides of params, for whose values Triton must not compile a kernel again.
UNSPECIALIZED = ['Hq', 'Hkv', 'Sq', 'Sk', 'bias_stride_0', 'bias_stride_1']
_Tiling = namedtuple("_Tiling", "D Dv BQ BK GRAD_BIAS", defaults=(False, ))  # compile-time sizes of a tile


def natten_2d(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor, scale: float | Tensor | None = None, return_lse: bool = False,
    dropout_seed: int | Tensor | None = None, check: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention `natten_2d`, fused, differentiable in every float argument.

    q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), with any strides, all float16, bfloat16 or float32.
    bias (Hq, 13, 13): float32 or float16 or bfloat16 or float64.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given. A tensor may learn.
    dropout_seed is accepted for the sake of a common signature, and has no effect.
    check is accepted for the sake of a common signature: here every call checks all facts.

    Returns out (B, Hq, Sq, Dv) in q's dtype and layout, and with return_lse also the log-sum-exp (B, Hq, Sq), natural,
    float32. A query that may attend to no key has a zero row in the result and zero gradients in q, k and v. Raises
    ValueError if an argument does not fit.
    """
    return _attention((q, k, v, bias), scale, return_lse, dropout_seed, check)


# ---------------------------------------------------------------- the mask: which tiles meet


@triton.jit
def _extremes_of_queries(tile, ends_ptr, call, BQ: tl.constexpr, ROWS: tl.constexpr):
    """Stores the least and the greatest value that each part of the mask has in a tile of queries."""
    _scale, _Hq, _Hkv, Sq, Sk, _bias_ptr, _bias_stride_0, _bias_stride_1, _bias_stride_2 = call
    position = tl.arange(0, ROWS)
    q_idx = tile * BQ + position
    inside = (position < BQ) & (q_idx < Sq)
    head_term = Sk // 32 - 1 - 3
    centre = tl.minimum(tl.maximum(q_idx // 32, 3), head_term)
    centre_2 = tl.minimum(tl.maximum(q_idx % 32, 3), 28)
    test1 = tl.cast(centre, tl.int64)
    tl.store(ends_ptr + 0, tl.min(tl.where(inside, test1, 9223372036854775807), 0))
    tl.store(ends_ptr + 1, tl.max(tl.where(inside, test1, -9223372036854775807), 0))
    test3 = tl.cast(centre_2, tl.int64)
    tl.store(ends_ptr + 2, tl.min(tl.where(inside, test3, 9223372036854775807), 0))
    tl.store(ends_ptr + 3, tl.max(tl.where(inside, test3, -9223372036854775807), 0))


@triton.jit
def _extremes_of_keys(tile, ends_ptr, call, BK: tl.constexpr):
    """Stores the least and the greatest value that each part of the mask has in a tile of keys."""
    _scale, _Hq, _Hkv, _Sq, Sk, _bias_ptr, _bias_stride_0, _bias_stride_1, _bias_stride_2 = call
    position = tl.arange(0, BK)
    k_idx = tile * BK + position
    inside = (position < BK) & (k_idx < Sk)
    y_k = k_idx // 32
    x_k = k_idx % 32
    test0 = tl.cast(y_k, tl.int64)
    tl.store(ends_ptr + 0, tl.min(tl.where(inside, test0, 9223372036854775807), 0))
    tl.store(ends_ptr + 1, tl.max(tl.where(inside, test0, -9223372036854775807), 0))
    test2 = tl.cast(x_k, tl.int64)
    tl.store(ends_ptr + 2, tl.min(tl.where(inside, test2, 9223372036854775807), 0))
    tl.store(ends_ptr + 3, tl.max(tl.where(inside, test2, -9223372036854775807), 0))


@triton.jit(do_not_specialize=['Hq', 'Hkv', 'Sq', 'Sk', 'bias_stride_0', 'bias_stride_1'])
def _extremes_kernel(
    q_ends_ptr, k_ends_ptr, scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2,
    BQ: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr,
):
    """Calls `_extremes_of_queries` and `_extremes_of_keys` for each tile of each list."""
    call = (scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2)
    rows_of_list = tl.cdiv(Sq, BQ) + tl.cdiv(Sk, BK)
    place = tl.program_id(0) // rows_of_list
    tile = tl.program_id(0) % rows_of_list
    _batch, _kv_head = items.reader_of(place, Hkv, False, False)
    if tile < tl.cdiv(Sq, BQ):
        entry = items.entry_of(place, tile, tl.cdiv(Sq, BQ), 0, 4)
        _extremes_of_queries(tile, q_ends_ptr + entry, call, BQ, ROWS)
    else:
        tile -= tl.cdiv(Sq, BQ)
        entry = items.entry_of(place, tile, tl.cdiv(Sk, BK), 0, 4)
        _extremes_of_keys(tile, k_ends_ptr + entry, call, BK)


@triton.jit
def _pairs(q0, q1, k0, call, BK: tl.constexpr):
    """1 for each pair of 32 queries from q0 on, up to q1, and a tile of keys that is inside and that the mask allows,
    and 1 for each that is outside or allowed."""
    _scale, _Hq, _Hkv, _Sq, Sk, _bias_ptr, _bias_stride_0, _bias_stride_1, _bias_stride_2 = call
    q_idx = (q0 + tl.arange(0, 32))[:, None]
    head_term = Sk // 32 - 1 - 3
    centre = tl.minimum(tl.maximum(q_idx // 32, 3), head_term)
    row_term = centre - 3
    row_term_2 = centre + 3
    centre_2 = tl.minimum(tl.maximum(q_idx % 32, 3), 28)
    row_term_3 = centre_2 - 3
    row_term_4 = centre_2 + 3
    k_idx = (k0 + tl.arange(0, BK))[None, :]
    y_k = k_idx // 32
    x_k = k_idx % 32
    inside = (q_idx <= q1) & (k_idx < Sk)
    allowed = (k_idx < Sk) & (row_term <= y_k) & (y_k <= row_term_2) & (row_term_3 <= x_k) & (x_k <= row_term_4)
    return tl.where(inside & allowed, 1, 0), tl.where((inside == 0) | allowed, 1, 0)


@triton.jit
def _found(q0, q1, k0, call, BQ: tl.constexpr, BK: tl.constexpr):
    """What the mask allows of the pairs of two tiles: 0 none, 1 some, 3 all. It looks until it knows."""
    some = 0
    every = 1
    for first in range(0, BQ, 32):
        if (some == 0) | (every != 0):
            one, whole = _pairs(q0 + first, q1, k0, call, BK)
            some |= tl.max(tl.max(one, 1), 0)
            every &= tl.min(tl.min(whole, 1), 0)
    return some + 2 * every


@triton.jit
def _word(flags):
    """32 flags as a word."""
    return tl.sum(tl.where(flags, 1, 0) << tl.arange(0, 32), 0)


@triton.jit(do_not_specialize=["n_walked"])
def _sort_tiles_kernel(map_ptr, walks_ptr, tiles_ptr, n_walked):
    """Lists the tiles that a row of the map names, first those that need no mask; how many these are, and how many all.
    """
    row = tl.cast(tl.program_id(0), tl.int64)
    whole = rows.list_named(map_ptr + row * n_walked, tiles_ptr + row * n_walked, n_walked, 3)
    tl.store(walks_ptr + 2 * row, whole)
    others = rows.list_named(map_ptr + row * n_walked, tiles_ptr + row * n_walked + whole, n_walked, 1)
    tl.store(walks_ptr + 2 * row + 1, whole + others)


@triton.jit
def _map_keys(
    bits_ptr, first_entry, held_ends, walked_ends, tile, group, n_walked, call,
    BQ: tl.constexpr, BK: tl.constexpr, CUT: tl.constexpr,
):
    """(numbers, entries, whether they are of this share) of 32 tiles of keys: what the mask allows of the pairs with
    a tile that is held, 0 none, 1 some, 3 all, so that it need not be asked. There are `n_walked` tiles; a row's
    entries begin at `first_entry`. CUT: it need not be asked either where the tensor ends in a tile that is held.

    Extremes say so of most tiles; of the others it looks at the pairs, 32 queries at a time. bits_ptr: where it keeps
    what it finds, a bit for each pair of all tiles that need a mask: for each position that is held, words of 32
    neighbours that are walked.
    """
    _scale, _Hq, _Hkv, Sq, Sk, _bias_ptr, _bias_stride_0, _bias_stride_1, _bias_stride_2 = call
    test1_least = tl.load(held_ends + 0)
    test1_most = tl.load(held_ends + 1)
    test3_least = tl.load(held_ends + 2)
    test3_most = tl.load(held_ends + 3)
    share = group % 8
    number = tl.arange(0, 32)
    at = group // 8 * 32 + number
    there = at < n_walked
    ends = walked_ends + items.entry_of(0, at, n_walked, 0, 4)
    test0_least = tl.load(ends + 0, mask=there, other=0)
    test0_most = tl.load(ends + 1, mask=there, other=0)
    test2_least = tl.load(ends + 2, mask=there, other=0)
    test2_most = tl.load(ends + 3, mask=there, other=0)
    must = (there & (tl.maximum(-(test0_least - test1_most), test0_most - test1_least) <= 3)
        & (tl.maximum(-(test2_least - test3_most), test2_most - test3_least) <= 3))
    inside = (at + 1) * BK <= Sk
    if not CUT:
        inside &= (tile + 1) * BQ <= Sq
    mixed = there & False
    entry = tl.where(must, 3, tl.where(mixed, 1, 0))
    unknown = (there & (must == 0) & (mixed == 0)
        & (tl.maximum(0, tl.maximum(test0_least - test1_most, -(test0_most - test1_least))) <= 3)
        & (tl.maximum(0, tl.maximum(test2_least - test3_most, -(test2_most - test3_least))) <= 3))
    if bits_ptr is not None:
        unknown |= mixed | (must & (inside == 0))
    asked = _word(unknown)
    for own in range(share, 32, 8):
        if (asked >> own) & 1 != 0:
            q0 = tile * BQ
            k0 = (group // 8 * 32 + own) * BK
            q1 = tl.minimum(q0 + BQ, Sq) - 1
            if bits_ptr is not None:
                cell = bits_ptr + (first_entry + group // 8 * 32 + own) * (BQ * BK // 32)
                some = tl.zeros([BK], tl.int32)
                hole = some
                for first in range(0, BQ, 32):
                    one, _whole = _pairs(q0 + first, q1, k0, call, BK)
                    bits = rows.stored_bits_of_keys(cell, one, first, BQ)
                    some |= bits
                    hole |= bits ^ -1
                # Where the tensor ends in a tile, kernels ask the mask, whatever is found.
                found = tl.max(tl.where(some != 0, 1, 0), 0) + 2 * tl.min(tl.where(hole != 0, 0, 1), 0)
            else:
                found = _found(q0, q1, k0, call, BQ, BK)
            entry = tl.where(number == own, found, entry)
    return at, tl.where(inside, entry, entry & 1), number % 8 == share


@triton.jit(do_not_specialize=['Hq', 'Hkv', 'Sq', 'Sk', 'bias_stride_0', 'bias_stride_1'])
def _map_keys_kernel(
    map_ptr, bits_ptr, q_ends_ptr, k_ends_ptr, scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1,
    bias_stride_2,
    BQ: tl.constexpr, BK: tl.constexpr, CUT: tl.constexpr,
):
    """Calls `_map_keys` for each tile of each list."""
    call = (scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2)
    n_held = tl.cdiv(Sq, BQ)
    n_walked = tl.cdiv(Sk, BK)
    place, tile, group = items.part_of_entry(tl.program_id(0), n_held, tl.cdiv(n_walked, 32) * 8)
    _batch, _kv_head = items.reader_of(place, Hkv, False, False)
    first_entry = tl.cast(items.entry_of(place, tile, n_held, 0, 1), tl.int64) * n_walked
    held_ends = q_ends_ptr + items.entry_of(place, tile, n_held, 0, 4)
    walked_ends = k_ends_ptr + items.entry_of(place, 0, n_walked, 0, 4)
    at, entry, own = _map_keys(bits_ptr, first_entry, held_ends, walked_ends, tile, group, n_walked, call, BQ, BK, CUT)
    tl.store(map_ptr + first_entry + at, entry, mask=own & (at < n_walked))


@triton.jit(do_not_specialize=["n_held", "n_walked"])
def _list_keys_kernel(map_ptr, bits_ptr, walks_ptr, tiles_ptr, n_held, n_walked, WORDS: tl.constexpr):
    """Lists the tiles of keys that a row of the map names: each as twice its number, and one more if it needs no
    mask; and how many there are. A list without any begins with tile 0, which kernels may visit all the same: none
    of its pairs, whose bits are so many WORDS, is allowed.
    """
    row = tl.program_id(0)
    entries = map_ptr + tl.cast(row, tl.int64) * n_walked
    tiles = tiles_ptr + tl.cast(row, tl.int64) * n_walked
    count = n_walked * 0
    for first in range(0, n_walked, 128):
        at = first + tl.arange(0, 128)
        entry = tl.load(entries + at, mask=at < n_walked, other=0)
        some = tl.where(entry != 0, 1, 0)
        tl.store(tiles + count + tl.cumsum(some, 0) - some, 2 * at + (entry >> 1), mask=some != 0)
        count += tl.sum(some, 0)
    tl.store(walks_ptr + row, count)
    tl.store(tiles, 0, mask=count == 0)
    if bits_ptr is not None:
        for first in range(0, tl.where(count == 0, WORDS, 0), 32):
            tl.store(bits_ptr + tl.cast(row, tl.int64) * n_walked * WORDS + first + tl.arange(0, 32), 0)


@triton.jit
def _map_queries(
    bits_ptr, first_entry, held_ends, walked_ends, tile, group, n_walked, call,
    BQ: tl.constexpr, BK: tl.constexpr, CUT: tl.constexpr,
):
    """(numbers, entries, whether they are of this share) of 32 tiles of queries: what the mask allows of the pairs with
    a tile that is held, 0 none, 1 some, 3 all, so that it need not be asked. There are `n_walked` tiles; a row's
    entries begin at `first_entry`. CUT: it need not be asked either where the tensor ends in a tile that is held.

    Extremes say so of most tiles; of the others it looks at the pairs, 32 queries at a time. bits_ptr: where it keeps
    what it finds, a bit for each pair of all tiles that need a mask: for each position that is held, words of 32
    neighbours that are walked.
    """
    _scale, _Hq, _Hkv, Sq, Sk, _bias_ptr, _bias_stride_0, _bias_stride_1, _bias_stride_2 = call
    test0_least = tl.load(held_ends + 0)
    test0_most = tl.load(held_ends + 1)
    test2_least = tl.load(held_ends + 2)
    test2_most = tl.load(held_ends + 3)
    share = group % 8
    number = tl.arange(0, 32)
    at = group // 8 * 32 + number
    there = at < n_walked
    ends = walked_ends + items.entry_of(0, at, n_walked, 0, 4)
    test1_least = tl.load(ends + 0, mask=there, other=0)
    test1_most = tl.load(ends + 1, mask=there, other=0)
    test3_least = tl.load(ends + 2, mask=there, other=0)
    test3_most = tl.load(ends + 3, mask=there, other=0)
    must = (there & (tl.maximum(-(test0_least - test1_most), test0_most - test1_least) <= 3)
        & (tl.maximum(-(test2_least - test3_most), test2_most - test3_least) <= 3))
    inside = (at + 1) * BQ <= Sq
    if not CUT:
        inside &= (tile + 1) * BK <= Sk
    mixed = there & False
    entry = tl.where(must, 3, tl.where(mixed, 1, 0))
    unknown = (there & (must == 0) & (mixed == 0)
        & (tl.maximum(0, tl.maximum(test0_least - test1_most, -(test0_most - test1_least))) <= 3)
        & (tl.maximum(0, tl.maximum(test2_least - test3_most, -(test2_most - test3_least))) <= 3))
    if bits_ptr is not None:
        unknown |= mixed | (must & (inside == 0))
    asked = _word(unknown)
    for own in range(share, 32, 8):
        if (asked >> own) & 1 != 0:
            k0 = tile * BK
            q0 = (group // 8 * 32 + own) * BQ
            q1 = tl.minimum(q0 + BQ, Sq) - 1
            if bits_ptr is not None:
                cell = bits_ptr + (first_entry + group // 8 * 32 + own) * (BQ * BK // 32)
                some = tl.zeros([BK], tl.int32)
                hole = some
                for first in range(0, BQ, 32):
                    one, _whole = _pairs(q0 + first, q1, k0, call, BK)
                    bits = rows.stored_bits_of_queries(cell, one, first, BQ)
                    some |= bits
                    hole |= bits ^ -1
                # Where the tensor ends in a tile, kernels ask the mask, whatever is found.
                found = tl.max(tl.where(some != 0, 1, 0), 0) + 2 * tl.min(tl.where(hole != 0, 0, 1), 0)
            else:
                found = _found(q0, q1, k0, call, BQ, BK)
            entry = tl.where(number == own, found, entry)
    return at, tl.where(inside, entry, entry & 1), number % 8 == share


@triton.jit(do_not_specialize=['Hq', 'Hkv', 'Sq', 'Sk', 'bias_stride_0', 'bias_stride_1'])
def _map_queries_kernel(
    map_ptr, bits_ptr, q_ends_ptr, k_ends_ptr, scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1,
    bias_stride_2,
    BQ: tl.constexpr, BK: tl.constexpr, CUT: tl.constexpr,
):
    """Calls `_map_queries` for each tile of each list."""
    call = (scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2)
    n_held = tl.cdiv(Sk, BK)
    n_walked = tl.cdiv(Sq, BQ)
    place, tile, group = items.part_of_entry(tl.program_id(0), n_held, tl.cdiv(n_walked, 32) * 8)
    _batch, _kv_head = items.reader_of(place, Hkv, False, False)
    first_entry = tl.cast(items.entry_of(place, tile, n_held, 0, 1), tl.int64) * n_walked
    held_ends = k_ends_ptr + items.entry_of(place, tile, n_held, 0, 4)
    walked_ends = q_ends_ptr + items.entry_of(place, 0, n_walked, 0, 4)
    at, entry, own = _map_queries(bits_ptr, first_entry, held_ends, walked_ends, tile, group, n_walked, call, BQ, BK,
        CUT)
    tl.store(map_ptr + first_entry + at, entry, mask=own & (at < n_walked))


@triton.jit(do_not_specialize=["n_held", "n_walked", "n_slots"])
def _list_queries_kernel(
    map_ptr, bits_ptr, walks_ptr, tiles_ptr, met_ptr, firsts_ptr, n_held, n_walked, n_slots,
    WORDS: tl.constexpr,
):
    """Lists the tiles of queries that a row of the map names: each as twice its number, and one more if it needs no
    mask; and how many there are. A list without any begins with tile 0, which kernels may visit all the same: none
    of its pairs, whose bits are so many WORDS, is allowed.

    For each of these tiles, also notes the first tile that is held of those that name it, as n_held minus its number,
    and the last, as its number plus 1. Tiles of sequences have slots for numbers; `firsts_ptr` says where they begin.
    """
    row = tl.program_id(0)
    entries = map_ptr + tl.cast(row, tl.int64) * n_walked
    tiles = tiles_ptr + tl.cast(row, tl.int64) * n_walked
    count = n_walked * 0
    for first in range(0, n_walked, 128):
        at = first + tl.arange(0, 128)
        entry = tl.load(entries + at, mask=at < n_walked, other=0)
        some = tl.where(entry != 0, 1, 0)
        tl.store(tiles + count + tl.cumsum(some, 0) - some, 2 * at + (entry >> 1), mask=some != 0)
        count += tl.sum(some, 0)
        if met_ptr is not None:
            place = row // n_held
            slot = at if firsts_ptr is None else tl.load(firsts_ptr + row) + at
            onwards = met_ptr + items.note_cell(place, False, slot, n_slots)
            backwards = met_ptr + items.note_cell(place, True, slot, n_slots)
            noted = items.noted_tile(row % n_held, n_held, False), items.noted_tile(row % n_held, n_held, True)
            tl.atomic_max(onwards, noted[0], mask=some != 0, sem="relaxed")
            tl.atomic_max(backwards, noted[1], mask=some != 0, sem="relaxed")
    tl.store(walks_ptr + row, count)
    tl.store(tiles, 0, mask=count == 0)
    if bits_ptr is not None:
        for first in range(0, tl.where(count == 0, WORDS, 0), 32):
            tl.store(bits_ptr + tl.cast(row, tl.int64) * n_walked * WORDS + first + tl.arange(0, 32), 0)


# ---------------------------------------------------------------- forward


@triton.jit
def _attend_tile(state, held, k_rows, v_rows, k0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Folds the keys k0 … k0 + BK - 1 into a tile's state. `held`: values that do not depend on the key."""
    acc, row_max, row_sum = state
    (q, head, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term, y_q, x_q, row_term, row_term_2,
        row_term_3, row_term_4) = held
    Sk = k_rows.stop
    k_idx = (k0 + tl.arange(0, tiling.BK))[None, :]
    k = rows.load(k_rows, k0, tiling.BK, tiling.D, MASKED)
    qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    y_k = k_idx // 32
    term = y_k - y_q + 6
    x_k = k_idx % 32
    term_2 = x_k - x_q + 6
    x = (qk * head_term
        + tl.cast(tl.load(bias_ptr + tl.cast(head, tl.int64) * bias_stride_0 + term * bias_stride_1
        + term_2 * bias_stride_2, mask=(term >= 0) & (term < 13) & (term_2 >= 0) & (term_2 < 13), other=0),
        tl.float32) * 1.4426950408889634)
    if MASKED:
        x = tl.where((k_idx < Sk) & (row_term <= y_k) & (y_k <= row_term_2) & (row_term_3 <= x_k) & (x_k <= row_term_4),
            x, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(x, 1))
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # rows without a key so far
    rescale = tl.exp2(row_max - shift)
    weight = tl.exp2(x - shift[:, None])
    row_max = new_max
    row_sum = row_sum * rescale + tl.sum(weight, 1)
    acc = acc * rescale[:, None]
    v = rows.load(v_rows, k0, tiling.BK, tiling.Dv, MASKED)
    acc = tl.dot(weight.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, row_max, row_sum


@triton.jit
def _finish(state):
    """The output rows and their log-sum-exp, from the final state."""
    acc, row_max, row_sum = state
    total = row_max
    empty = row_max == float("-inf")
    row_sum = tl.where(empty, 1.0, row_sum)
    acc = acc / row_sum[:, None]
    lse = tl.where(empty, float("-inf"), (total + tl.log2(row_sum)) * rows.LN2)
    return acc, lse


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rest_ptr, walks_ptr, tiles_ptr, scale, Hq, Hkv, Sq, Sk, bias_ptr,
    bias_stride_0, bias_stride_1, bias_stride_2, q_strides, k_strides, v_strides, out_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr, PRECISE: tl.constexpr,
):
    """One tile of queries of one head: visits the tiles of keys that it meets."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    tile, batch, head = items.head_after_head(tl.cdiv(Sq, BQ), Hq)
    kv_head = items.kv_head_of(head, Hq, Hkv)
    q0 = tile * BQ
    q_idx = (q0 + tl.arange(0, BQ))[:, None]
    q_rows = rows.of_head(q_ptr, batch, head, q_strides, Sq, ALIGN)
    k_rows = rows.of_head(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = rows.of_head(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    q = rows.load(q_rows, q0, BQ, D, True)
    head_term = scale * 1.4426950408889634
    head_term_2 = Sk // 32 - 1 - 3
    y_q = q_idx // 32
    x_q = q_idx % 32
    centre = tl.minimum(tl.maximum(y_q, 3), head_term_2)
    row_term = centre - 3
    row_term_2 = centre + 3
    centre_2 = tl.minimum(tl.maximum(x_q, 3), 28)
    row_term_3 = centre_2 - 3
    row_term_4 = centre_2 + 3
    held = (q, head, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term, y_q, x_q, row_term, row_term_2,
        row_term_3, row_term_4)
    state = rows.no_keys(BQ, Dv)
    n_whole, n_listed, listed = rows.listed_tiles(walks_ptr, tiles_ptr,
        items.entry_of(items.list_of(batch, kv_head, Hkv, False, False), tile, tl.cdiv(Sq, BQ), 0, 1), tl.cdiv(Sk, BK))
    for step in tl.range(n_whole):
        at = tl.load(listed + step)
        state = _attend_tile(state, held, k_rows, v_rows, at * BK, tiling, False)
    for step in tl.range(n_listed - n_whole):
        at = tl.load(listed + (n_whole + step))
        state = _attend_tile(state, held, k_rows, v_rows, at * BK, tiling, True)
    acc, lse = _finish(state)
    row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
    out_rows = rows.of_head(out_ptr, batch, head, out_strides, Sq, ALIGN)
    rows.store(out_rows, acc, q0, Dv)
    if PRECISE:
        rounded = acc.to(out_ptr.dtype.element_ty).to(tl.float32)
        rows.store(rows.HeadRows(rest_ptr + row * Dv, batch, head, Sq, Dv), acc - rounded, q0, Dv)
    queries = q0 + tl.arange(0, BQ)
    tl.store(lse_ptr + row + queries, lse, mask=queries < Sq)


# ---------------------------------------------------------------- forward, for compute capability 9.0


# A program takes items: BQ queries of one head. A producer warp copies their queries, and the keys and values that they
# meet, to shared memory. Consumer warpgroups take 64 queries each:
#
#     for each tile of keys that these meet:
#         S = Q K^T
#         P = weights of S and O = O rescaled: `_weigh`
#         O = O + P V         PIPELINED: it runs while the next S is computed and weighed
#
# ORDERED: they start products one after the other, so that one multiplies while another weighs.

# _Rings: tiles in shared memory. _Work: the next items, and how they are counted. _Call: the arguments of a call that
# every function takes. _Config: compile-time constants. _Results: where results go. _Walk: the tiles of keys that a
# warpgroup visits.
_Rings = namedtuple("_Rings", "q k v")
_Work = namedtuple("_Work", "notes queue_ptr n_work together walks_ptr tiles_ptr bits_ptr")
_Call = namedtuple("_Call", "scale Hq Hkv Sq Sk bias_ptr bias_stride_0 bias_stride_1 bias_stride_2")
_Config = namedtuple("_Config",
    "D Dv BLOCK_DV BQ BK STAGES SCHEDULE OUT_APART PIPELINED PRECISE Q_COLS K_COLS K_PARTS PARTS ORDER "
    "dtype qk_layout")
_Results = namedtuple("_Results", "desc tiles lse_ptr rest_ptr")
_Walk = namedtuple("_Walk", "turn n_steps first stop met")


@gluon.jit
def _key_runs(q0, batch, kv_head, work, call, config: gl.constexpr):
    """How many tiles of keys the tile of queries from q0 on meets, and where `_list_keys_kernel` stored them, and
    `_map_keys_kernel` which of their pairs are allowed."""
    first = 0
    n_held = (call.Sq + config.BQ - 1) // config.BQ
    place = items.list_of(batch, kv_head, call.Hkv, False, False)
    row = items.entry_of(place, first + q0 // config.BQ, n_held, 0, 1)
    first_entry = tl.cast(row, gl.int64) * ((call.Sk + config.BK - 1) // config.BK)
    return (gl.load(work.walks_ptr + row), work.tiles_ptr + first_entry,
        work.bits_ptr + first_entry * (config.BQ * config.BK // 32))


@gluon.jit
def _load_tiles(q_desc, k_desc, v_desc, rings, work, call, config: gl.constexpr):
    """The producer warp: fetches the queries, keys and values of every tile, as far ahead as the rings have room."""
    _scale, Hq, Hkv, Sq, _Sk, _bias_ptr, _bias_stride_0, _bias_stride_1, _bias_stride_2 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    turn = 0
    round = 0
    n_tiles = (Sq + BQ - 1) // BQ
    item = gl.program_id(0)
    while item < work.n_work:
        tile, batch, head = items.tile_of_item(item, work.n_work, n_tiles, Hq, work.together, False, False)
        kv_head = items.kv_head_of(head, Hq, Hkv)
        q0 = tile * BQ
        any_hi, met, _bits = _key_runs(q0, batch, kv_head, work, call, config)
        n_steps = tl.maximum(any_hi, 1)
        v0 = 0
        for step in range(n_steps + 1):  # values come a step after their keys
            if step < n_steps:
                at = n_steps - 1 - step
                entry = gl.load(met + at)
                place = sm90.acquire(rings.k, turn + step)
                mbarrier.expect(rings.k.ready.index(place), config.K_PARTS * k_desc.block_type.nbytes)
                for part in gl.static_range(config.K_PARTS):
                    k_tile = rings.k.tiles.index(place * config.K_PARTS + part)
                    COPY_IN(k_desc, (batch, kv_head, (entry >> 1) * BK, part * config.K_COLS),
                        rings.k.ready.index(place), k_tile)
                k0 = (entry >> 1) * BK
            else:
                k0 = 0
            if step == 0:
                for part in gl.static_range(config.PARTS):
                    sm90.await_place(rings.q, part, round)
                    if config.SCHEDULE == "queue":
                        sm90.publish_item(work.notes, 2 * part + (round & 1), item, tile, batch, head)
                    mbarrier.expect(rings.q.ready.index(part), q_desc.block_type.nbytes)
                    q_tile = REINTERPRET(rings.q.tiles.index(part), q_desc.dtype, [1, 1, 64, config.Q_COLS],
                        q_desc.layout)
                    COPY_IN(q_desc, (batch, head, q0 + part * 64, 0), rings.q.ready.index(part), q_tile)
            else:
                place = sm90.acquire(rings.v, turn + step - 1)
                sm90.fetch(v_desc, rings.v, place, (batch, kv_head, v0, 0))
            v0 = k0
        turn += n_steps
        round += 1
        item = (gl.num_programs(0) + gl.atomic_add(work.queue_ptr, 1, sem="relaxed") if config.SCHEDULE == "queue"
            else work.n_work)
    if config.SCHEDULE == "queue":
        for part in gl.static_range(config.PARTS):
            sm90.await_place(rings.q, part, round)
            sm90.publish_item(work.notes, 2 * part + (round & 1), work.n_work, 0, 0, 0)
            mbarrier.arrive(rings.q.ready.index(part), count=1)
    sm90.await_released(rings.k, turn)
    sm90.await_released(rings.v, turn)


@gluon.jit
def _weigh(row_sum, row_max, qk, words, k0, masked, terms, config: gl.constexpr):
    """The weights P of 64 queries for the keys k0 … k0 + BK - 1, packed, and the rows' state after them: the sums l of
    weights, and references, which are earlier maxima, renewed when a sum passes 2^8. With X the logits, to base 2, and
    M those of the references:

        P = 2^(X - M)    l = l rescale + sum_k P    rescale = 2^(M before - M)

    `terms`: values that do not depend on the key.
    """
    head, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, _bits, head_term, y_q, x_q = terms
    BK: gl.constexpr = config.BK
    k_idx = (k0 + gl.arange(0, BK, layout=gl.SliceLayout(0, qk.type.layout)))[None, :]
    y_k = k_idx // 32
    term = y_k - y_q + 6
    x_k = k_idx % 32
    term_2 = x_k - x_q + 6
    x = (qk * head_term
        + tl.cast(tl.load(bias_ptr + tl.cast(head, tl.int64) * bias_stride_0 + term * bias_stride_1
        + term_2 * bias_stride_2, mask=(term >= 0) & (term < 13) & (term_2 >= 0) & (term_2 < 13), other=0),
        tl.float32) * 1.4426950408889634)
    if masked:
        sm90.opaque(k0)  # else the compilers may make the mask for every tile
        allowed = sm90.kept_pairs(qk, words)
        x = tl.where(allowed, x, float("-inf"))
    weight, sums, row_max, rescale = sm90.lagging_weights(x, row_max, 1.0, config.dtype, 8)
    row_sum = row_sum * rescale + sums
    return weight, rescale, row_sum, row_max


@gluon.jit
def _attend(acc, row_sum, row_max, q, rings, walk, terms, config: gl.constexpr, PART: gl.constexpr):
    """Adds the tiles of keys of a walk. PIPELINED: the product for the next scores runs while this warpgroup weighs the
    current ones; else the other warpgroups fill the gaps.
    """
    turn, n_steps, first, stop, met = walk
    _head, _bias_ptr, _bias_stride_0, _bias_stride_1, _bias_stride_2, bits, _head_term, _y_q, _x_q = terms
    BK: gl.constexpr = config.BK
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    no_scores = gl.zeros([64, BK], gl.float32, layout=config.qk_layout)
    words = sm90.pair_words(no_scores, bits)
    begin = first
    if config.PIPELINED:
        step = first
        begin = first + 1
        at = n_steps - 1 - step
        entry = gl.load(met + at)
        if entry % 2 == 0:
            words = sm90.pair_words(no_scores, bits + (entry >> 1) * (BK // 32 * config.BQ))
        k_place = sm90.await_tile(rings.k, turn + step)
        qk_token = sm90.start_scores(q, rings.k, k_place, no_scores, config)
        qk = warpgroup_mma_wait(0, deps=(qk_token,))
        sm90.release(rings.k, turn + step)
        weight, rescale, row_sum, row_max = _weigh(row_sum, row_max, qk, words, (entry >> 1) * BK, entry % 2 == 0,
            terms, config)
        p = sm90.unpacked(weight, config.dtype, weight_layout)
    for step in range(begin, stop):
        at = n_steps - 1 - step
        entry = gl.load(met + at)
        if entry % 2 == 0:
            words = sm90.pair_words(no_scores, bits + (entry >> 1) * (BK // 32 * config.BQ))
        k_place = sm90.await_tile(rings.k, turn + step)
        sm90.await_products(config.ORDER, PART)
        qk_token = sm90.start_scores(q, rings.k, k_place, no_scores, config)
        if config.PIPELINED:
            v = sm90.arrived(rings.v, turn + step - 1, BK, config.BLOCK_DV)
            acc_token = warpgroup_mma(p, v, acc, is_async=True)
        sm90.pass_products(config.ORDER, (PART + 1) % config.PARTS)
        qk = warpgroup_mma_wait(1 if config.PIPELINED else 0, deps=(qk_token,))
        sm90.release(rings.k, turn + step)
        weight, rescale, row_sum, row_max = _weigh(row_sum, row_max, qk, words, (entry >> 1) * BK, entry % 2 == 0,
            terms, config)
        if config.PIPELINED:
            sm90.pin_order(n_steps)
            acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
            sm90.release(rings.v, turn + step - 1)
        acc = sm90.rescaled(acc, rescale)
        p = sm90.unpacked(weight, config.dtype, weight_layout)
        if not config.PIPELINED:
            v = sm90.arrived(rings.v, turn + step, BK, config.BLOCK_DV)
            acc, p = warpgroup_mma_wait(0, deps=(warpgroup_mma(p, v, acc, is_async=True), p))
            sm90.release(rings.v, turn + step)
    if config.OUT_APART and config.SCHEDULE != "once":
        sm90.release(rings.q, PART)  # the next queries arrive during the last product
    if config.PIPELINED:
        v = sm90.arrived(rings.v, turn + stop - 1, BK, config.BLOCK_DV)
        acc, p = warpgroup_mma_wait(0, deps=(warpgroup_mma(p, v, acc, is_async=True), p))
        sm90.release(rings.v, turn + stop - 1)
    return acc, row_sum, row_max


@gluon.jit
def _store_tile(acc, lse, place, results, rings, call, config: gl.constexpr, PART: gl.constexpr):
    """Stores the results of 64 queries. `place`: their batch, head, first position and positions."""
    _scale, Hq, _Hkv, Sq, _Sk, _bias_ptr, _bias_stride_0, _bias_stride_1, _bias_stride_2 = call
    batch, head, q0, queries = place
    Dv: gl.constexpr = config.Dv
    row = (batch * tl.cast(Hq, gl.int64) + head) * Sq
    gl.store(results.lse_ptr + row + queries, lse, mask=queries < Sq)
    out = acc.to(results.desc.dtype)
    if config.PRECISE:
        out_row = (q0 + gl.arange(0, 64, layout=gl.SliceLayout(1, acc.type.layout)))[:, None]
        out_col = gl.arange(0, config.BLOCK_DV, layout=gl.SliceLayout(0, acc.type.layout))[None, :]
        rest = (acc - out.to(gl.float32)).to(results.desc.dtype)
        gl.store(results.rest_ptr + row * Dv + out_row * Dv + out_col, rest, mask=(out_row < Sq) & (out_col < Dv))
    # The copy engine clips the result to the tensor. Without shared memory of its own, it takes that of the queries.
    if config.OUT_APART:
        out_tile = results.tiles.index(PART)
        tma.store_wait(0)
    else:
        out_tile = REINTERPRET(rings.q.tiles.index(PART), results.desc.dtype, [1, 1, 64, config.BLOCK_DV],
            results.desc.layout)
    out_tile.reshape([64, config.BLOCK_DV]).store(out)
    fence_async_shared()
    BARRIER()
    COPY_OUT(results.desc, (batch, head, q0, 0), out_tile)


@gluon.jit
def _attend_tiles(results, rings, work, call, config: gl.constexpr, PART: gl.constexpr):
    """A consumer warpgroup: 64 queries of every tile."""
    scale, Hq, Hkv, Sq, _Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2 = call
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
    tile, batch, head = items.tile_of_item(item, work.n_work, n_tiles, Hq, work.together, False, False)
    if PART == config.PARTS - 1:
        sm90.pass_products(config.ORDER, 0)
    while item < work.n_work:
        kv_head = items.kv_head_of(head, Hq, Hkv)
        q0 = tile * BQ
        any_hi, met, bits = _key_runs(q0, batch, kv_head, work, call, config)
        n_steps = tl.maximum(any_hi, 1)
        q0 += PART * 64
        bits += PART * (64 * BK // 32)
        queries = q0 + gl.arange(0, 64, layout=rows_layout)
        q_idx = queries[:, None]
        head_term = scale * 1.4426950408889634
        y_q = q_idx // 32
        x_q = q_idx % 32
        terms = (head, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, bits, head_term, y_q, x_q)

        acc = gl.zeros([64, config.BLOCK_DV], gl.float32, layout=acc_layout)
        row_sum, row_max = sm90.no_key_yet(no_scores)
        mbarrier.wait(rings.q.ready.index(PART), round & 1)
        q = REINTERPRET(rings.q.tiles.index(PART), config.dtype, [64, config.Q_COLS], q_layout)
        walk = _Walk(turn, n_steps, 0, n_steps, met)
        acc, row_sum, row_max = _attend(acc, row_sum, row_max, q, rings, walk, terms, config, PART)
        turn += n_steps
        round += 1

        if config.SCHEDULE == "queue":
            tile, batch, head = sm90.noted_item(work.notes, 2 * PART + (round - 1 & 1))
        else:
            tile, batch, head = items.tile_of_item(sm90.opaque(item), work.n_work, n_tiles, Hq, work.together, False,
                False)
        q0 = tile * BQ + PART * 64
        place = batch, head, q0, q0 + gl.arange(0, 64, layout=rows_layout)
        acc, lse = sm90.normalized(acc, row_sum, row_max, 1.0, None, rows_layout)
        _store_tile(acc, lse, place, results, rings, call, config, PART)
        if config.SCHEDULE == "once":
            item = work.n_work
        else:
            if not config.OUT_APART:
                tma.store_wait(0)
                sm90.release(rings.q, PART)
            mbarrier.wait(rings.q.ready.index(PART), round & 1)
            slot = 2 * PART + (round & 1)
            item = sm90.noted(work.notes, 4 * slot)
            tile, batch, head = sm90.noted_item(work.notes, slot)
    if PART == 0:
        sm90.await_products(config.ORDER, PART)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=['n_work', 'together', 'Hq', 'Hkv', 'Sq', 'Sk', 'bias_stride_0', 'bias_stride_1'])
def _hopper_forward_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, rest_ptr, queue_ptr, n_work, together, walks_ptr, tiles_ptr, bits_ptr,
    scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2,
    D: gl.constexpr, Dv: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, BQ: gl.constexpr,
    BK: gl.constexpr, STAGES: gl.constexpr, SCHEDULE: gl.constexpr, ORDERED: gl.constexpr, OUT_APART: gl.constexpr,
    PIPELINED: gl.constexpr, REGISTERS: gl.constexpr, SPARE: gl.constexpr, PRECISE: gl.constexpr,
):
    """The forward pass: consumer warpgroups of 64 queries each, and one producer warp."""
    PARTS: gl.constexpr = BQ // 64
    THREADS: gl.constexpr = sm90.WARP + PARTS * sm90.WARPGROUP  # that share a tile of keys or values
    # Hardware barriers. Triton uses the first six of sixteen; these tell that a place is free, and whose products are
    # next.
    K_FREE: gl.constexpr = 6
    V_FREE: gl.constexpr = K_FREE + STAGES
    Q_FREE: gl.constexpr = V_FREE + STAGES
    ORDER: gl.constexpr = Q_FREE + PARTS if ORDERED else None
    gl.static_assert(Q_FREE + PARTS + (PARTS if ORDERED else 0) <= 16)
    # Tile sizes are powers of two, so 192 columns of keys come in three parts.
    Q_COLS: gl.constexpr = 256 if BLOCK_D == 192 else BLOCK_D
    K_COLS: gl.constexpr = 64 if BLOCK_D == 192 else BLOCK_D
    K_PARTS: gl.constexpr = BLOCK_D // K_COLS
    Q_PLACE: gl.constexpr = Q_COLS if OUT_APART or Q_COLS > BLOCK_DV else BLOCK_DV
    dtype: gl.constexpr = q_desc.dtype
    qk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BK, 16])
    config: gl.constexpr = _Config(D, Dv, BLOCK_DV, BQ, BK, STAGES, SCHEDULE, OUT_APART, PIPELINED, PRECISE, Q_COLS,
        K_COLS, K_PARTS, PARTS, ORDER, dtype, qk_layout)
    q_tiles = gl.allocate_shared_memory(dtype, [PARTS, 1, 1, 64, Q_PLACE], q_desc.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES * K_PARTS, 1, 1, BK, K_COLS], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BK, BLOCK_DV], v_desc.layout)
    out_tiles = (gl.allocate_shared_memory(out_desc.dtype, [PARTS, 1, 1, 64, BLOCK_DV], out_desc.layout) if OUT_APART
        else q_tiles)
    notes = gl.allocate_shared_memory(gl.int32, [8 * PARTS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_ring = sm90.ring(q_tiles, Q_FREE, PARTS, sm90.WARP + sm90.WARPGROUP, 1)
    k_ring = sm90.ring(k_tiles, K_FREE, STAGES, THREADS, 1)
    rings = _Rings(q_ring, k_ring, sm90.ring(v_tiles, V_FREE, STAGES, THREADS, 1))
    fence_async_shared()
    BARRIER()  # once here: else the compiler puts one into the loops
    work = _Work(notes, queue_ptr, n_work, together, walks_ptr, tiles_ptr, bits_ptr)
    call = _Call(scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2)
    results = _Results(out_desc, out_tiles, lse_ptr, rest_ptr)
    if PARTS == 2:
        gl.warp_specialize(
            [
                (_attend_tiles, (results, rings, work, call, config, 0)),
                (_attend_tiles, (results, rings, work, call, config, 1)),
                (_load_tiles, (q_desc, k_desc, v_desc, rings, work, call, config)),
            ],
            [4, 1],
            [REGISTERS, SPARE],
        )
    else:
        gl.warp_specialize(
            [
                (_attend_tiles, (results, rings, work, call, config, 0)),
                (_attend_tiles, (results, rings, work, call, config, 1)),
                (_attend_tiles, (results, rings, work, call, config, 2)),
                (_load_tiles, (q_desc, k_desc, v_desc, rings, work, call, config)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, SPARE],
        )


# ---------------------------------------------------------------- backward


@triton.jit(do_not_specialize=["n_counters", *UNSPECIALIZED])
def _rows_kernel(
    lse_ptr, scaled_lse_ptr, out_ptr, rest_ptr, d_out_ptr, d_lse_ptr, delta_ptr, Hq, Sq, out_strides, d_out_strides,
    counters_ptr, n_counters,
    Dv: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, HAS_D_LSE: tl.constexpr, PRECISE: tl.constexpr,
):
    """Values of a row that all of its pairs read: the log-sum-exp to base 2, inf for rows that met no key; delta.

    delta = rowsum(d_out * out) - d_lse is what a pair subtracts from d_out . v (Dao et al., 2022).
    """
    if counters_ptr is not None:
        # Clears the counters of later kernels. Programs suffice for all of them.
        at = tl.cast(tl.program_id(0), tl.int64) * 128 + tl.arange(0, 128)
        tl.store(counters_ptr + at, tl.zeros([128], tl.int32), mask=at < n_counters)
    tile, batch, head = items.head_after_head(tl.cdiv(Sq, ROWS), Hq)
    q0 = tile * ROWS
    row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
    queries = q0 + tl.arange(0, ROWS)
    lse = tl.load(lse_ptr + row + queries, mask=queries < Sq, other=0.0)
    tl.store(scaled_lse_ptr + row + queries, tl.where(lse == float("-inf"), float("inf"), lse * rows.LOG2E),
        mask=queries < Sq)
    out_rows = rows.of_head(out_ptr, batch, head, out_strides, Sq, ALIGN)
    d_out_rows = rows.of_head(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
    out = rows.load(out_rows, q0, ROWS, Dv, True).to(tl.float32)
    if PRECISE:
        out += rows.load(rows.HeadRows(rest_ptr + row * Dv, batch, head, Sq, Dv), q0, ROWS, Dv, True).to(tl.float32)
    d_out = rows.load(d_out_rows, q0, ROWS, Dv, True).to(tl.float32)
    delta = tl.sum(out * d_out, 1)
    if HAS_D_LSE:
        delta -= tl.load(d_lse_ptr + row + queries, mask=queries < Sq, other=0.0)
    tl.store(delta_ptr + row + queries, delta, mask=queries < Sq)


@triton.jit
def _dq_tile(dq, held, k_rows, v_rows, k0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Adds the keys k0 … k0 + BK - 1 to dQ."""
    (q, d_out, row_lse, delta, head, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term, y_q, x_q,
        row_term, row_term_2, row_term_3, row_term_4) = held
    Sk = k_rows.stop
    k_idx = (k0 + tl.arange(0, tiling.BK))[None, :]
    k = rows.load(k_rows, k0, tiling.BK, tiling.D, MASKED)
    v = rows.load(v_rows, k0, tiling.BK, tiling.Dv, MASKED)
    qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    dp = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
    y_k = k_idx // 32
    term = y_k - y_q + 6
    x_k = k_idx % 32
    term_2 = x_k - x_q + 6
    p = tl.exp2(qk * head_term
        + tl.cast(tl.load(bias_ptr + tl.cast(head, tl.int64) * bias_stride_0 + term * bias_stride_1
        + term_2 * bias_stride_2, mask=(term >= 0) & (term < 13) & (term_2 >= 0) & (term_2 < 13), other=0),
        tl.float32) * 1.4426950408889634 - row_lse)
    if MASKED:
        allowed = (k_idx < Sk) & (row_term <= y_k) & (y_k <= row_term_2) & (row_term_3 <= x_k) & (x_k <= row_term_4)
        p = tl.where(allowed, p, 0.0)
    dp = dp - delta
    g = p * dp
    dq = tl.dot(g.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dq_ptr, walks_ptr, tiles_ptr, scale, Hq, Hkv, Sq, Sk, bias_ptr,
    bias_stride_0, bias_stride_1, bias_stride_2, q_strides, k_strides, v_strides, d_out_strides, dq_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr, GRAD_BIAS: tl.constexpr,
):
    """dQ of one tile of queries of one head: visits the same tiles of keys as the forward kernel."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK, GRAD_BIAS)
    tile, batch, head = items.head_after_head(tl.cdiv(Sq, BQ), Hq)
    kv_head = items.kv_head_of(head, Hq, Hkv)
    q0 = tile * BQ
    q_idx = (q0 + tl.arange(0, BQ))[:, None]
    q_rows = rows.of_head(q_ptr, batch, head, q_strides, Sq, ALIGN)
    k_rows = rows.of_head(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = rows.of_head(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    d_out_rows = rows.of_head(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
    row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
    q = rows.load(q_rows, q0, BQ, D, True)
    d_out = rows.load(d_out_rows, q0, BQ, Dv, True)
    queries = q0 + tl.arange(0, BQ)
    head_term = scale * 1.4426950408889634
    head_term_2 = Sk // 32 - 1 - 3
    row_lse = tl.load(lse_ptr + row + queries, mask=queries < Sq, other=float("inf"))[:, None]
    delta = tl.load(delta_ptr + row + queries, mask=queries < Sq, other=0.0)[:, None]
    y_q = q_idx // 32
    x_q = q_idx % 32
    centre = tl.minimum(tl.maximum(y_q, 3), head_term_2)
    row_term = centre - 3
    row_term_2 = centre + 3
    centre_2 = tl.minimum(tl.maximum(x_q, 3), 28)
    row_term_3 = centre_2 - 3
    row_term_4 = centre_2 + 3
    held = (q, d_out, row_lse, delta, head, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term, y_q, x_q,
        row_term, row_term_2, row_term_3, row_term_4)
    dq = (tl.zeros([BQ, rows.block(D)], tl.float32))
    n_whole, n_listed, listed = rows.listed_tiles(walks_ptr, tiles_ptr,
        items.entry_of(items.list_of(batch, kv_head, Hkv, False, False), tile, tl.cdiv(Sq, BQ), 0, 1), tl.cdiv(Sk, BK))
    for step in tl.range(n_whole):
        at = tl.load(listed + step)
        dq = _dq_tile(dq, held, k_rows, v_rows, at * BK, tiling, False)
    for step in tl.range(n_listed - n_whole):
        at = tl.load(listed + (n_whole + step))
        dq = _dq_tile(dq, held, k_rows, v_rows, at * BK, tiling, True)
    dq_rows = rows.of_head(dq_ptr, batch, head, dq_strides, Sq, ALIGN)
    rows.store(dq_rows, dq * scale, q0, D)


@triton.jit
def _dkdv_tile(state, held, q_rows, d_out_rows, q0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """Adds the queries q0 … q0 + BQ - 1 to dK and dV. `held`: values that do not depend on the query."""
    dk, dv = state
    (k, v, row, lse_ptr, delta_ptr, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term, head_term_2, y_k,
        x_k, col_term, col_term_2, col_term_3, col_term_4) = held
    Sq = q_rows.stop
    head = q_rows.head
    queries = q0 + tl.arange(0, tiling.BQ)
    q_idx = queries[None, :]
    q = rows.load(q_rows, q0, tiling.BQ, tiling.D, MASKED)
    d_out = rows.load(d_out_rows, q0, tiling.BQ, tiling.Dv, MASKED)
    qk = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    dp = tl.dot(v, tl.trans(d_out), input_precision=PRECISION)  # early, so that it runs while p is computed
    if MASKED:
        row_lse = tl.load(lse_ptr + row + queries, mask=queries < Sq, other=float("inf"))[None, :]
        delta = tl.load(delta_ptr + row + queries, mask=queries < Sq, other=0.0)[None, :]
    else:
        row_lse = tl.load(lse_ptr + row + queries)[None, :]
        delta = tl.load(delta_ptr + row + queries)[None, :]
    y_q = q_idx // 32
    term = y_k - y_q + 6
    x_q = q_idx % 32
    term_2 = x_k - x_q + 6
    p = tl.exp2(qk * head_term
        + tl.cast(tl.load(bias_ptr + tl.cast(head, tl.int64) * bias_stride_0 + term * bias_stride_1
        + term_2 * bias_stride_2, mask=(term >= 0) & (term < 13) & (term_2 >= 0) & (term_2 < 13), other=0),
        tl.float32) * 1.4426950408889634 - row_lse)
    if MASKED:
        centre = tl.minimum(tl.maximum(y_q, 3), head_term_2)
        centre_2 = tl.minimum(tl.maximum(x_q, 3), 28)
        allowed = ((q_idx < Sq) & (col_term <= centre) & (centre <= col_term_2) & (col_term_3 <= centre_2)
            & (centre_2 <= col_term_4))
        p = tl.where(allowed, p, 0.0)
    dv = tl.dot(p.to(d_out.dtype), d_out, dv, input_precision=PRECISION)
    dp = dp - delta
    g = p * dp
    dk = tl.dot(g.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, walks_ptr, tiles_ptr, scale, Hq, Hkv, Sq, Sk,
    bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, q_strides, k_strides, v_strides, d_out_strides, dk_strides,
    dv_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr, GRAD_BIAS: tl.constexpr,
):
    """dK and dV of one tile of keys of one KV head: visits the queries that it meets, head by head."""
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK, GRAD_BIAS)
    tile, batch, kv_head = items.head_after_head(tl.cdiv(Sk, BK), Hkv)
    k0 = tile * BK
    k_idx = (k0 + tl.arange(0, BK))[:, None]
    k_rows = rows.of_head(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
    v_rows = rows.of_head(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
    k = rows.load(k_rows, k0, BK, D, True)
    v = rows.load(v_rows, k0, BK, Dv, True)
    dk = tl.zeros([BK, rows.block(D)], tl.float32)
    dv = tl.zeros([BK, rows.block(Dv)], tl.float32)
    group = Hq // Hkv
    for member in range(group):
        head = items.query_head(kv_head, member, group)
        row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
        q_rows = rows.of_head(q_ptr, batch, head, q_strides, Sq, ALIGN)
        d_out_rows = rows.of_head(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
        head_term = scale * 1.4426950408889634
        head_term_2 = Sk // 32 - 1 - 3
        y_k = k_idx // 32
        x_k = k_idx % 32
        col_term = y_k - 3
        col_term_2 = y_k + 3
        col_term_3 = x_k - 3
        col_term_4 = x_k + 3
        held = (k, v, row, lse_ptr, delta_ptr, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term,
            head_term_2, y_k, x_k, col_term, col_term_2, col_term_3, col_term_4)
        state = (dk, dv)
        n_whole, n_listed, listed = rows.listed_tiles(walks_ptr, tiles_ptr,
            items.entry_of(items.list_of(batch, kv_head, Hkv, False, False), tile, tl.cdiv(Sk, BK), 0, 1),
            tl.cdiv(Sq, BQ))
        for step in tl.range(n_whole):
            at = tl.load(listed + step)
            state = _dkdv_tile(state, held, q_rows, d_out_rows, at * BQ, tiling, False)
        for step in tl.range(n_listed - n_whole):
            at = tl.load(listed + (n_whole + step))
            state = _dkdv_tile(state, held, q_rows, d_out_rows, at * BQ, tiling, True)
        dk, dv = state
    dk_rows = rows.of_head(dk_ptr, batch, kv_head, dk_strides, Sk, ALIGN)
    dv_rows = rows.of_head(dv_ptr, batch, kv_head, dv_strides, Sk, ALIGN)
    rows.store(dk_rows, dk * scale, k0, D)
    rows.store(dv_rows, dv, k0, Dv)


@triton.jit
def _sum_bias_tile(held, k_rows, v_rows, k0, tiling: tl.constexpr, MASKED: tl.constexpr):
    """d loss / d bias[h, k // 32 - q // 32 + 6, k % 32 - q % 32 + 6], for every pair of a tile, and the index."""
    (q, d_out, row_lse, delta, head, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term, y_q, x_q,
        row_term, row_term_2, row_term_3, row_term_4) = held
    Sk = k_rows.stop
    k_idx = (k0 + tl.arange(0, tiling.BK))[None, :]
    k = rows.load(k_rows, k0, tiling.BK, tiling.D, MASKED)
    v = rows.load(v_rows, k0, tiling.BK, tiling.Dv, MASKED)
    qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    dp = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
    y_k = k_idx // 32
    term = y_k - y_q + 6
    x_k = k_idx % 32
    term_2 = x_k - x_q + 6
    p = tl.exp2(qk * head_term
        + tl.cast(tl.load(bias_ptr + tl.cast(head, tl.int64) * bias_stride_0 + term * bias_stride_1
        + term_2 * bias_stride_2, mask=(term >= 0) & (term < 13) & (term_2 >= 0) & (term_2 < 13), other=0),
        tl.float32) * 1.4426950408889634 - row_lse)
    if MASKED:
        allowed = (k_idx < Sk) & (row_term <= y_k) & (y_k <= row_term_2) & (row_term_3 <= x_k) & (x_k <= row_term_4)
        p = tl.where(allowed, p, 0.0)
    dp = dp - delta
    g = p * dp
    contribution = g
    if MASKED:
        contribution = tl.where(allowed, contribution, 0.0)
    return contribution, head, term, term_2


@triton.jit(do_not_specialize=UNSPECIALIZED)
def _sum_bias_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, cells_ptr, cell_strides, largest_ptr, unit_ptr, walks_ptr,
    tiles_ptr, scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, q_strides, k_strides,
    v_strides, d_out_strides,
    D: tl.constexpr, Dv: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, ALIGN: tl.constexpr, MEASURE: tl.constexpr,
):
    """One tile of queries of one head. Adds to 64-bit integers in units of `unit`, so that any order gives the same
    bits.

    With MEASURE, finds the largest contribution instead, from which the host chooses the unit.
    """
    tiling: tl.constexpr = _Tiling(D, Dv, BQ, BK)
    query_tile = tl.program_id(0)
    group = Hq // Hkv
    largest = tl.zeros([BQ], tl.float32)
    per_unit = 1.0 / tl.load(unit_ptr)
    for batch in tl.range(tl.program_id(1), tl.program_id(1) + 1):
        for head in tl.range(tl.program_id(2), tl.program_id(2) + 1):
            kv_head = head // group
            row = (batch * tl.cast(Hq, tl.int64) + head) * Sq
            d_out_rows = rows.of_head(d_out_ptr, batch, head, d_out_strides, Sq, ALIGN)
            q_rows = rows.of_head(q_ptr, batch, head, q_strides, Sq, ALIGN)
            k_rows = rows.of_head(k_ptr, batch, kv_head, k_strides, Sk, ALIGN)
            v_rows = rows.of_head(v_ptr, batch, kv_head, v_strides, Sk, ALIGN)
            head_term = scale * 1.4426950408889634
            head_term_2 = Sk // 32 - 1 - 3
            q0 = query_tile * BQ
            queries = q0 + tl.arange(0, BQ)
            q_idx = queries[:, None]
            row_lse = tl.load(lse_ptr + row + queries, mask=queries < Sq, other=float("inf"))[:, None]
            delta = tl.load(delta_ptr + row + queries, mask=queries < Sq, other=0.0)[:, None]
            y_q = q_idx // 32
            x_q = q_idx % 32
            centre = tl.minimum(tl.maximum(y_q, 3), head_term_2)
            row_term = centre - 3
            row_term_2 = centre + 3
            centre_2 = tl.minimum(tl.maximum(x_q, 3), 28)
            row_term_3 = centre_2 - 3
            row_term_4 = centre_2 + 3
            n_whole, n_listed, listed = rows.listed_tiles(walks_ptr, tiles_ptr,
                items.entry_of(items.list_of(batch, kv_head, Hkv, False, False), query_tile, tl.cdiv(Sq, BQ), 0, 1),
                tl.cdiv(Sk, BK))
            q = rows.load(q_rows, q0, BQ, D, True)
            d_out = rows.load(d_out_rows, q0, BQ, Dv, True)
            held = (q, d_out, row_lse, delta, head, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term,
                y_q, x_q, row_term, row_term_2, row_term_3, row_term_4)
            for step in tl.range(n_whole):
                at = tl.load(listed + step)
                contribution, index_0, index_1, index_2 = _sum_bias_tile(
                    held, k_rows, v_rows, at * BK, tiling, False
                )
                contribution = tl.where(q_idx < Sq, contribution, 0.0)  # past the end, a score may be NaN
                if MEASURE:
                    largest = tl.maximum(largest, tl.max(tl.abs(contribution), 1))
                else:
                    cells = (cells_ptr + tl.cast(index_0, tl.int64) * cell_strides[0]
                        + tl.cast(index_1, tl.int64) * cell_strides[1] + tl.cast(index_2, tl.int64) * cell_strides[2])
                    inside = ((contribution != 0.0) & (index_0 >= 0) & (index_0 < Hq) & (index_1 >= 0) & (index_1 < 13)
                        & (index_2 >= 0) & (index_2 < 13))
                    tl.atomic_add(cells, tl.cast(tl.floor(contribution * per_unit + 0.5), tl.int64), mask=inside,
                        sem="relaxed")
            for step in tl.range(n_listed - n_whole):
                at = tl.load(listed + (n_whole + step))
                contribution, index_0, index_1, index_2 = _sum_bias_tile(
                    held, k_rows, v_rows, at * BK, tiling, True
                )
                contribution = tl.where(q_idx < Sq, contribution, 0.0)  # past the end, a score may be NaN
                if MEASURE:
                    largest = tl.maximum(largest, tl.max(tl.abs(contribution), 1))
                else:
                    cells = (cells_ptr + tl.cast(index_0, tl.int64) * cell_strides[0]
                        + tl.cast(index_1, tl.int64) * cell_strides[1] + tl.cast(index_2, tl.int64) * cell_strides[2])
                    inside = ((contribution != 0.0) & (index_0 >= 0) & (index_0 < Hq) & (index_1 >= 0) & (index_1 < 13)
                        & (index_2 >= 0) & (index_2 < 13))
                    tl.atomic_add(cells, tl.cast(tl.floor(contribution * per_unit + 0.5), tl.int64), mask=inside,
                        sem="relaxed")

    if MEASURE:
        cell = (tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)) * tl.num_programs(0) + tl.program_id(0)
        tl.store(largest_ptr + cell, tl.max(largest, 0))


# ---------------------------------------------------------------- backward, for compute capability 9.0


# The arguments of a call that every function takes. Each kernel also has a tuple of the pointers and counts of its
# work, and one of its compile-time constants.
_BackwardCall = namedtuple("_BackwardCall", "scale Hq Hkv Sq Sk bias_ptr bias_stride_0 bias_stride_1 bias_stride_2")


@gluon.jit
def _kept_bits(like, words, config: gl.constexpr):
    """All bits of each packed pair that the mask allows, and none of the others."""
    BQ: gl.constexpr = config.BQ
    allowed = sm90.kept_pairs(like, words)
    low, high = allowed.reshape([like.shape[0], BQ // 2, 2]).split()
    return gl.where(low, 0xFFFF, 0) | gl.where(high, -65536, 0)


@gluon.jit
def _weigh_again(qk, row_lse, head, q0, terms, config: gl.constexpr, dtype: gl.constexpr):
    """The weights of a tile (rows are keys, columns are queries), from its scores and the log-sum-exp of each query;
    where the score is not linear in q . k, also the weights times its derivative. Packed, and not yet masked. `terms`:
    values that do not depend on the query.
    """
    _Sq, _Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term, y_k, x_k = terms
    BQ: gl.constexpr = config.BQ
    columns: gl.constexpr = gl.SliceLayout(0, qk.type.layout)
    q_idx = (q0 + gl.arange(0, BQ, layout=columns))[None, :]
    y_q = q_idx // 32
    term = y_k - y_q + 6
    x_q = q_idx % 32
    term_2 = x_k - x_q + 6
    p = tl.exp2(qk * head_term
        + tl.cast(tl.load(bias_ptr + tl.cast(head, tl.int64) * bias_stride_0 + term * bias_stride_1
        + term_2 * bias_stride_2, mask=(term >= 0) & (term < 13) & (term_2 >= 0) & (term_2 < 13), other=0),
        tl.float32) * 1.4426950408889634 - row_lse)
    weight = sm90.packed(p, dtype)
    return weight


# A program takes items: BK keys of one KV head. Two warpgroups take half of these keys each:
#
#     for each query head that reads them, and each tile of its queries that meets them:
#         S^T = K Q^T                 P^T = weights of S^T: `_weigh_again`
#         dP^T = V dO^T - delta       dS^T = P^T dP^T, times the score's derivative
#         dV = dV + P^T dO            dK = dK + dS^T Q
#
# A third warpgroup computes dS K and adds it to dQ, in the order of the tiles of keys. Of three more warps one fetches,
# one waits until this program's part of dQ is next, and one notes that it is added.
_BackwardRings = namedtuple("_BackwardRings", "k v q d_out rows ds notes")
_BackwardResults = namedtuple("_BackwardResults", "dk_desc dv_desc dk_tiles")
_BackwardWork = namedtuple("_BackwardWork",
    "lse_ptr delta_ptr dq_parts_ptr parts_ptr added_ptr queue_ptr n_work together span met_ptr map_ptr "
    "walks_ptr tiles_ptr bits_ptr")
_BackwardConfig = namedtuple("_BackwardConfig", "D Dv BLOCK_D BLOCK_DV BQ BK EARLY SHARED DK_OVER_DS")


@gluon.jit
def _item(item, work, call, config: gl.constexpr):
    """(tile, order, back, n_tiles, sums, batch, kv_head, start, end): an item is a tile of keys of a KV head, and of
    the query heads that read these the members start … end - 1. `order` is the number of this tile in the order of all,
    n_tiles, which may go `back`; `sums` that of its partial sums.
    """
    n_tiles = (call.Sk + config.BK - 1) // config.BK
    tile, order, back, item_head = items.tile_of_keys(item, work.n_work, n_tiles, work.together, False)
    batch, kv_head, start, end = items.members(item_head, call.Hq, call.Hkv, work.span, config.SHARED)
    sums = items.part_of(item_head, tile, n_tiles)
    return tile, order, back, n_tiles, sums, batch, kv_head, start, end


@gluon.jit
def _query_runs(tile, batch, kv_head, work, call, config: gl.constexpr):
    """How many tiles of queries a tile of keys meets, as runs, and where `_list_queries_kernel` stored them, and
    `_map_queries_kernel` which of their pairs are allowed."""
    first = 0
    n_held = (call.Sk + config.BK - 1) // config.BK
    place = items.list_of(batch, kv_head, call.Hkv, False, False)
    row = items.entry_of(place, first + tile, n_held, 0, 1)
    first_entry = tl.cast(row, gl.int64) * ((call.Sq + config.BQ - 1) // config.BQ)
    return (0, gl.load(work.walks_ptr + row), work.tiles_ptr + first_entry,
        work.bits_ptr + first_entry * (config.BQ * config.BK // 32))


@gluon.jit
def _load_backward_tiles(q_desc, k_desc, v_desc, d_out_desc, item, rings, work, call, config: gl.constexpr):
    """The producer warp: fetches the keys and values of an item once, and queries and dO as far ahead as the rings have
    room. It takes the next item when all copies of this one have started, and publishes it.
    """
    BK: gl.constexpr = config.BK
    turn = 0
    round = 0
    while item < work.n_work:
        tile, _order, back, _n_tiles, _sums, batch, kv_head, start, end = _item(item, work, call, config)
        k0 = tile * BK
        sm90.fetch_held(k_desc, rings.k, round, (batch, kv_head, k0, 0), (batch, kv_head, k0 + BK // 2, 0))
        for member in range(start, end):
            head = items.query_head(kv_head, member, call.Hq // call.Hkv)
            lse_tiles, delta_tiles = rings.rows
            row = (batch * tl.cast(call.Hq, gl.int64) + head) * call.Sq
            first, stop, met, _bits = _query_runs(tile, batch, kv_head, work, call, config)
            n_steps = stop - first
            for step in range(n_steps):
                at = items.tile_of_step(step, first, stop, back, False)
                entry = gl.load(met + at)
                q0 = (entry >> 1) * config.BQ
                queries = q0 + gl.arange(0, config.BQ, layout=gl.BlockedLayout([1], [32], [1], [0]))
                row_lse = gl.load(work.lse_ptr + row + queries, mask=queries < call.Sq, other=float("inf"))
                delta = gl.load(work.delta_ptr + row + queries, mask=queries < call.Sq, other=0.0)
                place = sm90.acquire(rings.q, turn)
                sm90.fetch(q_desc, rings.q, place, (batch, head, q0, 0))
                lse_tiles.index(place).store(row_lse)
                delta_tiles.index(place).store(-delta)
                mbarrier.arrive(rings.q.ready.index(place), count=1)
                if (member == start) & (step == 0):
                    sm90.fetch_held(v_desc, rings.v, round, (batch, kv_head, k0, 0), (batch, kv_head, k0 + BK // 2, 0))
                sm90.fetch(d_out_desc, rings.d_out, place, (batch, head, q0, 0))
                turn += 1
            if (member == start) & (n_steps == 0):
                sm90.fetch_held(v_desc, rings.v, round, (batch, kv_head, k0, 0), (batch, kv_head, k0 + BK // 2, 0))
        item = gl.atomic_add(work.queue_ptr, 1, sem="relaxed") if gl.num_programs(0) < work.n_work else work.n_work
        sm90.publish_next(rings.notes, round, item)
        round += 1
    sm90.await_released(rings.notes, round)
    sm90.await_released(rings.q, turn)


@gluon.jit
def _meets_before(order, back, place, at, n_tiles, work, call, config: gl.constexpr):
    """Whether an earlier tile of keys in the order meets the tile of queries `at`."""
    first = 0
    n_held = (call.Sk + config.BK - 1) // config.BK
    first_walked = 0
    n_walked = (call.Sq + config.BQ - 1) // config.BQ
    noted = gl.load(work.met_ptr + items.note_cell(place, back, first_walked + at, n_walked))
    return items.comes_later(order, noted, items.end_of_notes(first, n_tiles, n_held, back))


@gluon.jit
def _parts_before(order, back, place, at, n_tiles, work, call, config: gl.constexpr):
    """How many parts have been when the last earlier tile of keys that meets the tile of queries `at` is added."""
    first = 0
    n_held = (call.Sk + config.BK - 1) // config.BK
    room = (call.Sq + config.BQ - 1) // config.BQ
    count = 0
    chunk = items.last_chunk(order)
    while count == 0:
        others = items.place_of_lane(chunk, gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0])))
        tile = items.tile_in_order(others, n_tiles, back)
        row = tl.cast(items.entry_of(place, first + tile, n_held, 0, 1), gl.int64)
        entry = gl.load(work.map_ptr + row * room + at, mask=others < order, other=0)
        count = tl.max(gl.where(entry != 0, items.passed_turn(others), 0), 0)
        chunk -= 1
    return count


@gluon.jit
def _await_parts(item, rings, adding, work, call, config: gl.constexpr):
    """A warp that waits, for each tile of dQ, until the previous tile of keys in the order has added its part."""
    turn = 0
    round = 0
    while item < work.n_work:
        tile, order, back, n_tiles, _sums, batch, kv_head, start, end = _item(item, work, call, config)
        for member in range(start, end):
            head = items.query_head(kv_head, member, call.Hq // call.Hkv)
            cells = work.added_ptr + (batch * call.Hq + head) * ((call.Sq + config.BQ - 1) // config.BQ)
            place = items.list_of(batch, kv_head, call.Hkv, False, False)
            first, stop, met, _bits = _query_runs(tile, batch, kv_head, work, call, config)
            for step in range(stop - first):
                at = items.tile_of_step(step, first, stop, back, False)
                at = gl.load(met + at) >> 1
                sm90.await_room(adding.noted, turn)
                if _meets_before(order, back, place, at, n_tiles, work, call, config):
                    sm90.await_parts(cells + at, _parts_before(order, back, place, at, n_tiles, work, call, config))
                sm90.tell_step(adding.ready, turn)
                turn += 1
        item = sm90.next_item(rings.notes, round, 1)
        round += 1


@gluon.jit
def _note_parts(item, rings, adding, work, call, config: gl.constexpr):
    """A warp that tells the next tile of keys in the order, for each tile of dQ, that this item's part is added."""
    turn = 0
    round = 0
    while item < work.n_work:
        tile, order, back, _n_tiles, _sums, batch, kv_head, start, end = _item(item, work, call, config)
        for member in range(start, end):
            head = items.query_head(kv_head, member, call.Hq // call.Hkv)
            cells = work.added_ptr + (batch * call.Hq + head) * ((call.Sq + config.BQ - 1) // config.BQ)
            first, stop, met, _bits = _query_runs(tile, batch, kv_head, work, call, config)
            for step in range(stop - first):
                sm90.await_step(adding.added, turn)
                at = items.tile_of_step(step, first, stop, back, False)
                at = gl.load(met + at) >> 1
                sm90.note_parts(cells + at, items.passed_turn(order))
                sm90.tell_step(adding.noted, turn)
                turn += 1
        item = sm90.next_item(rings.notes, round, 1)
        round += 1


@gluon.jit
def _add_dq_tiles(item, rings, adding, work, call, config: gl.constexpr):
    """The consumer warpgroup that multiplies dS by the keys, and adds the products to dQ in order. The other
    consumers may be two tiles ahead of it.
    """
    turn = 0
    round = 0
    while item < work.n_work:
        tile, order, back, n_tiles, _sums, batch, kv_head, start, end = _item(item, work, call, config)
        mbarrier.wait(rings.k.ready, round & 1)
        for member in range(start, end):
            head = items.query_head(kv_head, member, call.Hq // call.Hkv)
            place = items.list_of(batch, kv_head, call.Hkv, False, False)
            first, stop, met, _bits = _query_runs(tile, batch, kv_head, work, call, config)
            for step in range(stop - first):
                at = items.tile_of_step(step, first, stop, back, False)
                at = gl.load(met + at) >> 1
                part = (batch * tl.cast(call.Hq, gl.int64) + head) * ((call.Sq + config.BQ - 1) // config.BQ) + at
                sm90.add_dq_tile(part, _meets_before(order, back, place, at, n_tiles, work, call, config), turn, rings,
                    adding, work, config)
                sm90.tell_step(adding.added, turn)
                turn += 1
        mbarrier.arrive(rings.k.free, count=1)
        item = sm90.next_item(rings.notes, round, 4)
        round += 1


@gluon.jit
def _differentiate_tile(dk, dv, turn, at, masked, rings, held, terms, config: gl.constexpr, PART: gl.constexpr):
    """Adds the tile of queries `at` to dK and dV, and stores its dS for dQ.

    Threads read shared memory before they start a product, since later their reads would queue behind the product's. dS
    is stored while the products of dV and dK run.
    """
    _batch, head, _kv_head, _k0, _k_idx, bits = held
    BQ: gl.constexpr = config.BQ
    HALF: gl.constexpr = config.BK // 2
    dtype: gl.constexpr = rings.q.tiles.dtype
    pair_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BQ, 16])
    no_pairs = gl.zeros([HALF, BQ], gl.float32, layout=pair_layout)
    # Addresses are computed anew: kept over the loop, they would not fit in registers.
    again = sm90.opaque(gl.to_tensor(0))
    place = sm90.await_tile(rings.q, turn)
    lse_tiles, delta_tiles = rings.rows
    row_lse = lse_tiles.index(place).load(gl.SliceLayout(0, pair_layout))[None, :]
    q = rings.q.tiles.index(place).reshape([BQ, config.BLOCK_D])
    k_rows = rings.k.tiles.index(PART + sm90.opaque(gl.to_tensor(0))).reshape([HALF, config.BLOCK_D])
    qk_token = warpgroup_mma(k_rows, q.permute((1, 0)), no_pairs, use_acc=False, is_async=True)
    if config.EARLY:
        sm90.await_tile(rings.d_out, turn)
    if not config.EARLY:  # then there are registers for it
        words = sm90.pair_words(no_pairs, bits + at * (config.BK * BQ // 32))
    qk = warpgroup_mma_wait(0, deps=(qk_token,))
    weight = _weigh_again(qk, row_lse, head, at * BQ, terms, config, dtype)
    if masked:
        if config.EARLY:
            words = sm90.pair_words(no_pairs, bits + at * (config.BK * BQ // 32))
        kept = _kept_bits(no_pairs, words, config)
        weight &= kept
    if not config.EARLY:
        sm90.await_tile(rings.d_out, turn)
    d_out = rings.d_out.tiles.index(place).reshape([BQ, config.BLOCK_DV])
    v_rows = rings.v.tiles.index(PART + again).reshape([HALF, config.BLOCK_DV])
    row_delta = delta_tiles.index(place).load(gl.SliceLayout(0, pair_layout))[None, :]
    less_delta = gl.broadcast(row_delta, no_pairs)[0]  # dP starts at -delta, which takes no registers of its own
    dp_token = warpgroup_mma(v_rows, d_out.permute((1, 0)), less_delta, is_async=True)
    p = sm90.unpacked(weight, dtype, gl.DotOperandLayout(0, dv.type.layout, 2))
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    ds = (sm90.unpacked_wide(weight, dtype, pair_layout) * dp).to(dtype)
    dv_token = warpgroup_mma(p, d_out, dv, is_async=True)
    slopes = gl.convert_layout(ds, gl.DotOperandLayout(0, dk.type.layout, 2))
    dk_token = warpgroup_mma(slopes, q, dk, is_async=True)
    sm90.store_slopes(rings.ds, ds, turn, PART * rings.ds.free.shape[0] + again)
    dv, p, dk, slopes = warpgroup_mma_wait(0, deps=(dv_token, p, dk_token, slopes))
    sm90.release(rings.q, turn)
    return dk, dv


@gluon.jit
def _differentiate_tiles(results, item, rings, work, call, config: gl.constexpr, PART: gl.constexpr):
    """A consumer warpgroup: dK and dV of its half of the keys. It visits tiles of queries from the last to the first,
    or from the first on where the order is backwards. dS of both halves goes through shared memory to the warpgroup of
    dQ.
    """
    scale, _Hq, _Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2 = call
    HALF: gl.constexpr = config.BK // 2
    dtype: gl.constexpr = results.dk_desc.dtype
    pair_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BQ, 16])
    dk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_D, 16])
    dv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_DV, 16])
    turn = 0
    round = 0
    while item < work.n_work:
        tile, _order, back, _n_tiles, sums, batch, kv_head, start, end = _item(item, work, call, config)
        k0 = tile * config.BK + PART * HALF
        k_idx = (k0 + gl.arange(0, HALF, layout=gl.SliceLayout(1, pair_layout)))[:, None]
        dk = gl.zeros([HALF, config.BLOCK_D], gl.float32, layout=dk_layout)
        dv = gl.zeros([HALF, config.BLOCK_DV], gl.float32, layout=dv_layout)
        mbarrier.wait(rings.k.ready, round & 1)
        mbarrier.wait(rings.v.ready, round & 1)
        for member in range(start, end):
            head = items.query_head(kv_head, member, call.Hq // call.Hkv)
            first, stop, met, bits = _query_runs(tile, batch, kv_head, work, call, config)
            own_first, own_stop, _own_met, _own_bits = _query_runs(tile, batch, kv_head, work, call, config)
            begin, after = items.half_of_steps(first, stop, own_first, own_stop, back, False)
            for step in range(begin):
                sm90.release_queries(turn + step, rings, config, PART)
            turn += begin
            head_term = scale * 1.4426950408889634
            y_k = k_idx // 32
            x_k = k_idx % 32
            terms = (Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term, y_k, x_k)
            bits += PART * (HALF * config.BQ // 32)
            held = (batch, head, kv_head, k0, k_idx, bits)
            for step in range(begin, after):
                at = items.tile_of_step(step, first, stop, back, False)
                entry = gl.load(met + at)
                dk, dv = _differentiate_tile(dk, dv, turn, entry >> 1, entry % 2 == 0, rings, held, terms, config, PART)
                turn += 1
            for step in range(after, stop - first):
                sm90.release_queries(turn + step - after, rings, config, PART)
            turn += stop - first - after

        mbarrier.arrive(rings.k.free, count=1)
        if config.SHARED:
            sm90.store_parts(dk * scale, dv, 2 * sums + PART, work, config)
            item = sm90.next_item(rings.notes, round, 4)
        else:
            # dV takes the place of this half of the values; the copy engine clips both results.
            dv_place = rings.v.tiles.index(PART)
            dv_place.reshape([HALF, config.BLOCK_DV]).store(dv.to(dtype))
            dk = dk * scale
            if config.DK_OVER_DS:
                sm90.await_slopes_read(rings.ds, turn)
            dk_place = results.dk_tiles.index(PART)
            dk_place.reshape([HALF, config.BLOCK_D]).store(dk.to(dtype))
            fence_async_shared()
            BARRIER()
            COPY_OUT(results.dv_desc, (batch, kv_head, k0, 0), dv_place)
            COPY_OUT(results.dk_desc, (batch, kv_head, k0, 0), dk_place)
            item = sm90.next_item(rings.notes, round, 4)
            tma.store_wait(0)
        mbarrier.arrive(rings.v.free, count=1)
        round += 1


@triton.jit(do_not_specialize=["n_parts", "span", *UNSPECIALIZED])
def _collect_kernel(
    dq_parts_ptr, added_ptr, dq_ptr, parts_ptr, dk_ptr, dv_ptr, n_parts, span, scale, Hq, Hkv, Sq, Sk, bias_ptr,
    bias_stride_0, bias_stride_1, bias_stride_2, dq_strides, dk_strides, dv_strides,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BQ: tl.constexpr,
    BK: tl.constexpr, SHARED: tl.constexpr, ALIGN: tl.constexpr,
):
    """Brings a tile of dQ from the order of threads to that of the tensor. SHARED: also adds up the partial sums of dK
    and dV for half a tile of keys.
    """
    part = tl.cast(tl.program_id(0), tl.int64)
    if part < n_parts:
        n_tiles = tl.cdiv(Sq, BQ)
        met = tl.load(added_ptr + part) > 0  # else no tile of keys has stored a part
        held = tl.load(dq_parts_ptr + part * (BQ * BLOCK_D) + tl.arange(0, BQ * BLOCK_D), mask=met, other=0.0)
        parts = tl.reshape(held, [BQ // 64, BLOCK_D // 64, 4, 8, 8, 4, 2, 2])
        dq = tl.reshape(tl.permute(parts, [0, 2, 6, 4, 1, 3, 5, 7]), [BQ, BLOCK_D])
        i = part // n_tiles
        dq_rows = rows.of_head(dq_ptr, i // Hq, i % Hq, dq_strides, Sq, ALIGN)
        rows.store(dq_rows, dq * scale, part % n_tiles * BQ, D)
    elif SHARED:
        half = tl.program_id(0) - n_parts
        n_tiles = tl.cdiv(Sk, BK)
        tile = half // 2 % n_tiles
        kv_head = half // (2 * n_tiles)
        shares = items.share_count(Hq // Hkv, span)
        PART: tl.constexpr = 128 * (BLOCK_D + BLOCK_DV)
        cells = parts_ptr + half % 2 * (PART // 2)
        k0 = tile * BK + half % 2 * 64
        dk = rows.added_parts(cells, kv_head, tile, n_tiles, shares, PART, BLOCK_D)
        dk_rows = rows.of_head(dk_ptr, kv_head // Hkv, kv_head % Hkv, dk_strides, Sk, ALIGN)
        rows.store(dk_rows, dk, k0, D)
        dv = rows.added_parts(cells + 64 * BLOCK_D, kv_head, tile, n_tiles, shares, PART, BLOCK_DV)
        dv_rows = rows.of_head(dv_ptr, kv_head // Hkv, kv_head % Hkv, dv_strides, Sk, ALIGN)
        rows.store(dv_rows, dv, k0, Dv)


@gluon.jit(do_not_specialize=['n_work', 'together', 'span', 'Hq', 'Hkv', 'Sq', 'Sk', 'bias_stride_0', 'bias_stride_1'])
def _hopper_backward_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dk_desc, dv_desc, lse_ptr, delta_ptr, dq_parts_ptr, parts_ptr, added_ptr,
    queue_ptr, n_work, together, span, met_ptr, map_ptr, walks_ptr, tiles_ptr, bits_ptr, scale, Hq, Hkv, Sq, Sk,
    bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2,
    D: gl.constexpr, Dv: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, BQ: gl.constexpr,
    BK: gl.constexpr, STAGES: gl.constexpr, EARLY: gl.constexpr, SHARED: gl.constexpr, SPARE: gl.constexpr,
):
    """dK and dV of one tile of keys, and its part of dQ, which is added after those of the previous tiles in the order.

    Programs take items in order, and an item waits only for items that have begun, so there is no deadlock.
    """
    # Hardware barriers. Triton uses the first seven of sixteen; DS_PLACES tell that dS is stored, one that the next
    # item is read, STAGES that a place of queries is free.
    HELD: gl.constexpr = 208  # registers of a thread; those of four warpgroups add up to 512
    DS_PLACES: gl.constexpr = 2
    DS_STORED: gl.constexpr = 7
    READ: gl.constexpr = DS_STORED + DS_PLACES
    FREE: gl.constexpr = READ + 1
    gl.static_assert(FREE + STAGES <= 16)
    DK_OVER_DS: gl.constexpr = False  # with terms, shared memory has no room for dK
    gl.static_assert(BK == 128)
    HALF: gl.constexpr = BK // 2
    dtype: gl.constexpr = q_desc.dtype
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF, BQ], dtype)
    work = _BackwardWork(lse_ptr, delta_ptr, dq_parts_ptr, parts_ptr, added_ptr, queue_ptr, n_work, together, span,
        met_ptr, map_ptr,
        walks_ptr, tiles_ptr, bits_ptr)
    call = _BackwardCall(scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2)
    config: gl.constexpr = _BackwardConfig(D, Dv, BLOCK_D, BLOCK_DV, BQ, BK, EARLY, SHARED, DK_OVER_DS)
    k_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, HALF, BLOCK_D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, HALF, BLOCK_DV], v_desc.layout)
    q_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BQ, BLOCK_D], q_desc.layout)
    d_out_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BQ, BLOCK_DV], d_out_desc.layout)
    ds_tiles = gl.allocate_shared_memory(dtype, [2 * DS_PLACES, HALF, BQ], ds_layout)
    if DK_OVER_DS:
        gl.static_assert(DS_PLACES * BQ == BLOCK_D)
        dk_tiles = REINTERPRET(ds_tiles, dtype, [2, 1, 1, HALF, BLOCK_D], dk_desc.layout)
    else:
        dk_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, HALF, BLOCK_D], dk_desc.layout)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lse_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, BQ], plain)
    row_tiles = (lse_tiles, gl.allocate_shared_memory(gl.float32, [STAGES, BQ], plain))
    note = gl.allocate_shared_memory(gl.int32, [1, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # Two warpgroups read queries and dO, which lie at the same place and are freed together, and three the keys; the
    # values make room for dV.
    QUERIES_SHARED: gl.constexpr = sm90.WARP + 2 * sm90.WARPGROUP
    held_keys = sm90.Held(k_tiles, sm90.initialized(1, 1).index(0), sm90.initialized(1, 3).index(0))
    held_values = sm90.Held(v_tiles, sm90.initialized(1, 1).index(0), sm90.initialized(1, 2).index(0))
    q_ring = sm90.ring(q_tiles, FREE, STAGES, QUERIES_SHARED, 2)
    d_out_ring = sm90.ring(d_out_tiles, FREE, STAGES, QUERIES_SHARED, 1)
    notes = sm90.ring(note, READ, 1, 3 * (sm90.WARP + sm90.WARPGROUP), 1)
    adding = sm90.Adding(sm90.initialized(2, 1), sm90.initialized(2, 1), sm90.initialized(2, 1))
    ds = sm90.Handover(ds_tiles, DS_STORED, sm90.initialized(DS_PLACES, 1), 3 * sm90.WARPGROUP)
    fence_async_shared()
    BARRIER()  # once here: else the compiler puts one into the loops
    rings = _BackwardRings(held_keys, held_values, q_ring, d_out_ring, row_tiles, ds, notes)
    results = _BackwardResults(dk_desc, dv_desc, dk_tiles)
    item = gl.atomic_add(queue_ptr, 1, sem="relaxed")
    gl.warp_specialize(
        [
            (_differentiate_tiles, (results, item, rings, work, call, config, 0)),
            (_differentiate_tiles, (results, item, rings, work, call, config, 1)),
            (_add_dq_tiles, (item, rings, adding, work, call, config)),
            (_load_backward_tiles, (q_desc, k_desc, v_desc, d_out_desc, item, rings, work, call, config)),
            (_await_parts, (item, rings, adding, work, call, config)),
            (_note_parts, (item, rings, adding, work, call, config)),
        ],
        [4, 4, 1, 1, 1],
        [HELD, 512 - SPARE - 2 * HELD, SPARE, SPARE, SPARE],
    )


_DkdvRings = namedtuple("_DkdvRings", "k v q d_out pairs lse_tiles delta_tiles")
_DkdvWork = namedtuple("_DkdvWork", "lse_ptr delta_ptr n_work together walks_ptr tiles_ptr bits_ptr")
_DkdvConfig = namedtuple("_DkdvConfig", "D Dv BLOCK_D BLOCK_DV BQ BK")


@gluon.jit
def _queries_met(k0, batch, kv_head, work, call, config: gl.constexpr):
    """How many tiles of queries BK keys from k0 on meet, and where `_list_queries_kernel` stored them."""
    n_tiles = (call.Sk + config.BK - 1) // config.BK
    place = items.list_of(batch, kv_head, call.Hkv, False, False)
    row = items.entry_of(place, k0 // config.BK, n_tiles, 0, 1)
    first_entry = tl.cast(row, gl.int64) * ((call.Sq + config.BQ - 1) // config.BQ)
    return (gl.load(work.walks_ptr + row), work.tiles_ptr + first_entry,
        work.bits_ptr + first_entry * (config.BQ * config.BK // 32))


@gluon.jit
def _load_query_tiles(q_desc, k_desc, v_desc, d_out_desc, rings, work, call, config: gl.constexpr):
    """The producer warp: fetches keys and values once, queries, dO and row terms as far ahead as the rings have room.
    """
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    tile, batch, kv_head = items.tile_of_program(gl.program_id(0), work.n_work, (call.Sk + BK - 1) // BK, call.Hkv,
        work.together, False)
    k0 = tile * BK
    mbarrier.expect(rings.k.ready, k_desc.block_type.nbytes)
    k_place = REINTERPRET(rings.k.tiles.index(0), k_desc.dtype, [1, 1, BK, config.BLOCK_D], k_desc.layout)
    COPY_IN(k_desc, [batch, kv_head, k0, 0], rings.k.ready, k_place)
    mbarrier.expect(rings.v.ready, v_desc.block_type.nbytes)
    v_place = REINTERPRET(rings.v.tiles.index(0), v_desc.dtype, [1, 1, BK, config.BLOCK_DV], v_desc.layout)
    COPY_IN(v_desc, [batch, kv_head, k0, 0], rings.v.ready, v_place)
    turn = 0
    group = call.Hq // call.Hkv
    for member in range(group):
        head = items.query_head(kv_head, member, group)
        row = (batch * tl.cast(call.Hq, gl.int64) + head) * call.Sq
        any_hi, met, _bits = _queries_met(k0, batch, kv_head, work, call, config)
        n_steps = tl.maximum(any_hi, 1)
        for step in range(n_steps):
            at = step
            entry = gl.load(met + at)
            q0 = (entry >> 1) * BQ
            queries = q0 + gl.arange(0, BQ, layout=gl.BlockedLayout([1], [32], [1], [0]))
            row_lse = gl.load(work.lse_ptr + row + queries, mask=queries < call.Sq, other=float("inf"))
            delta = gl.load(work.delta_ptr + row + queries, mask=queries < call.Sq, other=0.0)
            place = sm90.acquire(rings.q, turn + step)
            sm90.fetch(q_desc, rings.q, place, (batch, head, q0, 0))
            rings.lse_tiles.index(place).store(row_lse)
            mbarrier.arrive(rings.q.ready.index(place), count=1)
            place = sm90.acquire(rings.d_out, turn + step)
            sm90.fetch(d_out_desc, rings.d_out, place, (batch, head, q0, 0))
            rings.delta_tiles.index(place).store(delta)
            mbarrier.arrive(rings.d_out.ready.index(place), count=1)
        turn += n_steps
    sm90.await_released(rings.q, turn)
    sm90.await_released(rings.d_out, turn)


@gluon.jit
def _weigh_query_tiles(dv_desc, rings, work, call, config: gl.constexpr):
    """The consumer warpgroup for the weights and dV. It hands the other one what dS needs of the weights, whose
    products run while this one computes weights.
    """
    scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    dtype: gl.constexpr = dv_desc.dtype
    pair_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BQ, 16])
    dv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_DV, 16])
    no_pairs = gl.zeros([BK, BQ], gl.float32, layout=pair_layout)
    dv = gl.zeros([BK, config.BLOCK_DV], gl.float32, layout=dv_layout)
    tile, batch, kv_head = items.tile_of_program(gl.program_id(0), work.n_work, (Sk + BK - 1) // BK, Hkv, work.together,
        False)
    k0 = tile * BK
    k_idx = (k0 + gl.arange(0, BK, layout=gl.SliceLayout(1, pair_layout)))[:, None]
    mbarrier.wait(rings.k.ready, 0)
    turn = 0
    group = Hq // Hkv
    for member in range(group):
        head = items.query_head(kv_head, member, group)
        any_hi, met, bits = _queries_met(k0, batch, kv_head, work, call, config)
        head_term = scale * 1.4426950408889634
        y_k = k_idx // 32
        x_k = k_idx % 32
        terms = (Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, head_term, y_k, x_k)
        n_steps = tl.maximum(any_hi, 1)
        place = sm90.await_tile(rings.q, turn)
        qk_token = sm90.start_product(rings.k.tiles, 0, rings.q.tiles.index(place), no_pairs, config.BLOCK_D)
        qk = warpgroup_mma_wait(0, deps=(qk_token,))
        for step in range(n_steps):
            at = step
            entry = gl.load(met + at)
            row_lse = rings.lse_tiles.index(place).load(gl.SliceLayout(0, pair_layout))[None, :]
            weight = _weigh_again(qk, row_lse, head, (entry >> 1) * BQ, terms, config, dtype)
            if entry % 2 == 0:
                kept = _kept_bits(qk, sm90.pair_words(qk, bits + (entry >> 1) * (BK * BQ // 32)), config)
                weight &= kept
            sm90.release(rings.q, turn + step)
            sm90.hand_over(weight, rings.pairs, turn + step)
            p = sm90.unpacked(weight, dtype, gl.DotOperandLayout(0, dv_layout, 2))
            dv_token = warpgroup_mma(p, sm90.arrived(rings.d_out, turn + step, BQ, config.BLOCK_DV), dv, is_async=True)
            if step + 1 < n_steps:
                place = sm90.await_tile(rings.q, turn + step + 1)
                qk_token = sm90.start_product(rings.k.tiles, 0, rings.q.tiles.index(place), no_pairs, config.BLOCK_D)
                dv, p = warpgroup_mma_wait(1, deps=(dv_token, p))
                sm90.release(rings.d_out, turn + step)
                qk = warpgroup_mma_wait(0, deps=(qk_token,))
            else:
                dv, p = warpgroup_mma_wait(0, deps=(dv_token, p))
                sm90.release(rings.d_out, turn + step)
        turn += n_steps
    sm90.await_taken(rings.pairs, turn)
    sm90.store_result(dv_desc, dv, rings.k.tiles.index(0), batch, kv_head, k0, BK, config.BLOCK_DV)


@gluon.jit
def _differentiate_query_tiles(dk_desc, rings, work, call, config: gl.constexpr):
    """The consumer warpgroup for dP, dS and dK. It reads no score: it takes over the weights."""
    scale, Hq, Hkv, _Sq, Sk, _bias_ptr, _bias_stride_0, _bias_stride_1, _bias_stride_2 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    dtype: gl.constexpr = dk_desc.dtype
    pair_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BQ, 16])
    dk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_D, 16])
    no_pairs = gl.zeros([BK, BQ], gl.float32, layout=pair_layout)
    like = sm90.packed(no_pairs, dtype)
    dk = gl.zeros([BK, config.BLOCK_D], gl.float32, layout=dk_layout)
    tile, batch, kv_head = items.tile_of_program(gl.program_id(0), work.n_work, (Sk + BK - 1) // BK, Hkv, work.together,
        False)
    k0 = tile * BK
    mbarrier.wait(rings.v.ready, 0)
    turn = 0
    group = Hq // Hkv
    for _member in range(group):
        any_hi, _met, _bits = _queries_met(k0, batch, kv_head, work, call, config)
        n_steps = tl.maximum(any_hi, 1)
        place = sm90.await_tile(rings.d_out, turn)
        dp_token = sm90.start_product(rings.v.tiles, 0, rings.d_out.tiles.index(place), no_pairs, config.BLOCK_DV)
        dp = warpgroup_mma_wait(0, deps=(dp_token,))
        for step in range(n_steps):
            dp -= rings.delta_tiles.index(place).load(gl.SliceLayout(0, pair_layout))[None, :]
            sm90.release(rings.d_out, turn + step)
            pairs = sm90.take_over(like, rings.pairs, turn + step)
            ds = (sm90.unpacked_wide(pairs, dtype, pair_layout) * dp).to(dtype)
            slopes = gl.convert_layout(ds, gl.DotOperandLayout(0, dk_layout, 2))
            dk_token = warpgroup_mma(slopes, sm90.arrived(rings.q, turn + step, BQ, config.BLOCK_D), dk, is_async=True)
            if step + 1 < n_steps:
                place = sm90.await_tile(rings.d_out, turn + step + 1)
                dp_token = sm90.start_product(rings.v.tiles, 0, rings.d_out.tiles.index(place), no_pairs,
                    config.BLOCK_DV)
                dk, slopes = warpgroup_mma_wait(1, deps=(dk_token, slopes))
                sm90.release(rings.q, turn + step)
                dp = warpgroup_mma_wait(0, deps=(dp_token,))
            else:
                dk, slopes = warpgroup_mma_wait(0, deps=(dk_token, slopes))
                sm90.release(rings.q, turn + step)
        turn += n_steps
    sm90.store_result(dk_desc, dk * scale, rings.v.tiles.index(0), batch, kv_head, k0, BK, config.BLOCK_D)


@gluon.jit(do_not_specialize=['n_work', 'together', 'Hq', 'Hkv', 'Sq', 'Sk', 'bias_stride_0', 'bias_stride_1'])
def _hopper_dkdv_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dk_desc, dv_desc, lse_ptr, delta_ptr, n_work, together, walks_ptr, tiles_ptr,
    bits_ptr, scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2,
    D: gl.constexpr, Dv: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, BQ: gl.constexpr,
    BK: gl.constexpr, STAGES: gl.constexpr, AHEAD: gl.constexpr, SPARE: gl.constexpr,
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
    keys = sm90.Held(k_tile, sm90.initialized(1, 1).index(0), None)
    values = sm90.Held(v_tile, sm90.initialized(1, 1).index(0), None)
    q_ring = sm90.ring(q_tiles, Q_FREE, STAGES, sm90.WARP + 2 * sm90.WARPGROUP, 2)
    d_out_ring = sm90.ring(d_out_tiles, D_OUT_FREE, STAGES, sm90.WARP + 2 * sm90.WARPGROUP, 2)
    handover = sm90.Handover(handed, HANDED, TAKEN, 2 * sm90.WARPGROUP)
    rings = _DkdvRings(keys, values, q_ring, d_out_ring, handover, lse_tiles, delta_tiles)
    fence_async_shared()
    BARRIER()  # once here: else the compiler puts one into the loops
    work = _DkdvWork(lse_ptr, delta_ptr, n_work, together, walks_ptr, tiles_ptr, bits_ptr)
    call = _BackwardCall(scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2)
    config: gl.constexpr = _DkdvConfig(D, Dv, BLOCK_D, BLOCK_DV, BQ, BK)
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
_DqWork = namedtuple("_DqWork", "lse_ptr delta_ptr n_work together walks_ptr tiles_ptr bits_ptr")
_DqConfig = namedtuple("_DqConfig", "D Dv BLOCK_D BLOCK_DV BQ BK")


@gluon.jit
def _keys_met(q0, batch, kv_head, work, call, config: gl.constexpr):
    """How many tiles of keys BQ queries from q0 on meet, and where `_list_keys_kernel` stored them."""
    n_tiles = (call.Sq + config.BQ - 1) // config.BQ
    place = items.list_of(batch, kv_head, call.Hkv, False, False)
    row = items.entry_of(place, q0 // config.BQ, n_tiles, 0, 1)
    first_entry = tl.cast(row, gl.int64) * ((call.Sk + config.BK - 1) // config.BK)
    return (gl.load(work.walks_ptr + row), work.tiles_ptr + first_entry,
        work.bits_ptr + first_entry * (config.BQ * config.BK // 32))


@gluon.jit
def _load_key_tiles(q_desc, k_desc, v_desc, d_out_desc, rings, work, call, config: gl.constexpr):
    """The producer warp: fetches queries and dO once, keys and values as far ahead as the rings have room."""
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    tile, batch, head = items.tile_of_program(gl.program_id(0), work.n_work, (call.Sq + BQ - 1) // BQ, call.Hq,
        work.together, False)
    kv_head = items.kv_head_of(head, call.Hq, call.Hkv)
    for part in gl.static_range(2):
        q0 = tile * BQ + part * (BQ // 2)
        ready = rings.q.ready.index(part)
        mbarrier.expect(ready, q_desc.block_type.nbytes + d_out_desc.block_type.nbytes)
        COPY_IN(q_desc, [batch, head, q0, 0], ready, rings.q.tiles.index(part))
        COPY_IN(d_out_desc, [batch, head, q0, 0], ready, rings.d_out.tiles.index(part))
    any_hi, met, _bits = _keys_met(tile * BQ, batch, kv_head, work, call, config)
    n_steps = tl.maximum(any_hi, 1)
    for step in range(n_steps):
        at = step
        entry = gl.load(met + at)
        sm90.fetch(k_desc, rings.k, sm90.acquire(rings.k, step), (batch, kv_head, (entry >> 1) * BK, 0))
        sm90.fetch(v_desc, rings.v, sm90.acquire(rings.v, step), (batch, kv_head, (entry >> 1) * BK, 0))
    sm90.await_released(rings.k, n_steps)
    sm90.await_released(rings.v, n_steps)


@gluon.jit
def _weigh_rows(qk, row_lse, k0, masked, terms, config: gl.constexpr):
    """The weights of 64 queries for the keys k0 … k0 + BK - 1; if the score is not linear, also times its derivative.
    """
    _Sk, head, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, bits, head_term, y_q, x_q = terms
    BK: gl.constexpr = config.BK
    k_idx = (k0 + gl.arange(0, BK, layout=gl.SliceLayout(0, qk.type.layout)))[None, :]
    y_k = k_idx // 32
    term = y_k - y_q + 6
    x_k = k_idx % 32
    term_2 = x_k - x_q + 6
    p = tl.exp2(qk * head_term
        + tl.cast(tl.load(bias_ptr + tl.cast(head, tl.int64) * bias_stride_0 + term * bias_stride_1
        + term_2 * bias_stride_2, mask=(term >= 0) & (term < 13) & (term_2 >= 0) & (term_2 < 13), other=0),
        tl.float32) * 1.4426950408889634 - row_lse)
    if masked:
        allowed = sm90.kept_pairs(qk, sm90.pair_words(qk, bits + k0 // 32 * config.BQ))
        allowed = allowed
        p = tl.where(allowed, p, 0.0)
    return p


@gluon.jit
def _differentiate_key_tiles(dq_desc, rings, work, call, config: gl.constexpr, PART: gl.constexpr):
    """A consumer warpgroup: 64 queries, one product after the other. The other consumer fills the gaps."""
    scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2 = call
    BQ: gl.constexpr = config.BQ
    BK: gl.constexpr = config.BK
    dtype: gl.constexpr = dq_desc.dtype
    pair_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BK, 16])
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, config.BLOCK_D, 16])
    rows_layout: gl.constexpr = gl.SliceLayout(1, pair_layout)
    no_pairs = gl.zeros([64, BK], gl.float32, layout=pair_layout)
    dq = gl.zeros([64, config.BLOCK_D], gl.float32, layout=dq_layout)
    tile, batch, head = items.tile_of_program(gl.program_id(0), work.n_work, (Sq + BQ - 1) // BQ, Hq, work.together,
        False)
    kv_head = items.kv_head_of(head, Hq, Hkv)
    any_hi, met, bits = _keys_met(tile * BQ, batch, kv_head, work, call, config)
    n_steps = tl.maximum(any_hi, 1)
    q0 = tile * BQ + PART * 64
    bits += PART * (64 * BK // 32)
    queries = q0 + gl.arange(0, 64, layout=rows_layout)
    q_idx = queries[:, None]
    row = (batch * tl.cast(Hq, gl.int64) + head) * Sq
    row_lse = gl.load(work.lse_ptr + row + queries, mask=queries < Sq, other=float("inf"))[:, None]
    delta = gl.load(work.delta_ptr + row + queries, mask=queries < Sq, other=0.0)[:, None]
    head_term = scale * 1.4426950408889634
    y_q = q_idx // 32
    x_q = q_idx % 32
    terms = (Sk, head, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2, bits, head_term, y_q, x_q)
    mbarrier.wait(rings.q.ready.index(PART), 0)
    for step in range(n_steps):
        k_place = sm90.await_tile(rings.k, step)
        qk_token = sm90.start_product(rings.q.tiles, PART, rings.k.tiles.index(k_place), no_pairs, config.BLOCK_D)
        qk = warpgroup_mma_wait(0, deps=(qk_token,))
        at = step
        entry = gl.load(met + at)
        p = _weigh_rows(qk, row_lse, (entry >> 1) * BK, entry % 2 == 0, terms, config)
        v_place = sm90.await_tile(rings.v, step)
        v_tile = rings.v.tiles.index(v_place
            + sm90.opaque(gl.to_tensor(0)))  # where there is one place its address stays, too
        dp_token = sm90.start_product(rings.d_out.tiles, PART, v_tile, no_pairs, config.BLOCK_DV)
        dp = warpgroup_mma_wait(0, deps=(dp_token,))
        sm90.release(rings.v, step)
        slopes = gl.convert_layout((p * (dp - delta)).to(dtype), gl.DotOperandLayout(0, dq_layout, 2))
        dq_token = warpgroup_mma(slopes, rings.k.tiles.index(k_place).reshape([BK, config.BLOCK_D]), dq, is_async=True)
        dq, slopes = warpgroup_mma_wait(0, deps=(dq_token, slopes))
        sm90.release(rings.k, step)
    sm90.store_result(dq_desc, dq * scale, rings.q.tiles.index(PART), batch, head, q0, 64, config.BLOCK_D)


@gluon.jit(do_not_specialize=['n_work', 'together', 'Hq', 'Hkv', 'Sq', 'Sk', 'bias_stride_0', 'bias_stride_1'])
def _hopper_dq_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dq_desc, lse_ptr, delta_ptr, n_work, together, walks_ptr, tiles_ptr, bits_ptr,
    scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2,
    D: gl.constexpr, Dv: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, BQ: gl.constexpr,
    BK: gl.constexpr, K_STAGES: gl.constexpr, V_STAGES: gl.constexpr, SPARE: gl.constexpr,
):
    """dQ of 128 queries, and their part of the gradients of params, if these learn: two consumer warpgroups, and a
    producer warp.
    """
    # Hardware barriers. Triton uses the first six of sixteen; these tell that a place is free.
    K_FREE: gl.constexpr = 6
    V_FREE: gl.constexpr = K_FREE + K_STAGES
    gl.static_assert(V_FREE + V_STAGES <= 16)
    dtype: gl.constexpr = q_desc.dtype
    q_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, BLOCK_D], q_desc.layout)
    d_out_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, BLOCK_DV], d_out_desc.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [K_STAGES, 1, 1, BK, BLOCK_D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [V_STAGES, 1, 1, BK, BLOCK_DV], v_desc.layout)
    q_ready = sm90.initialized(2, 1)
    THREADS: gl.constexpr = sm90.WARP + 2 * sm90.WARPGROUP
    k_ring = sm90.ring(k_tiles, K_FREE, K_STAGES, THREADS, 1)
    v_ring = sm90.ring(v_tiles, V_FREE, V_STAGES, THREADS, 1)
    rings = _DqRings(sm90.Held(q_tiles, q_ready, None), sm90.Held(d_out_tiles, q_ready, None), k_ring, v_ring)
    fence_async_shared()
    BARRIER()  # once here: else the compiler puts one into the loops
    work = _DqWork(lse_ptr, delta_ptr, n_work, together, walks_ptr, tiles_ptr, bits_ptr)
    call = _BackwardCall(scale, Hq, Hkv, Sq, Sk, bias_ptr, bias_stride_0, bias_stride_1, bias_stride_2)
    config: gl.constexpr = _DqConfig(D, Dv, BLOCK_D, BLOCK_DV, BQ, BK)
    gl.warp_specialize(
        [
            (_differentiate_key_tiles, (dq_desc, rings, work, call, config, 0)),
            (_differentiate_key_tiles, (dq_desc, rings, work, call, config, 1)),
            (_load_key_tiles, (q_desc, k_desc, v_desc, d_out_desc, rings, work, call, config)),
        ],
        [4, 1],
        [240, SPARE],
    )


# ---------------------------------------------------------------- tables


# Tiles of kernels for every GPU: queries, keys, warps, stages; by chip, bytes of an element, head dim rounded up. All
# fit the chip's shared memory.
TILES = """
    chips                    | bytes | head dims        | forward    | dK, dV    | dQ
    sm_80                    | 2     | 16 32            | 128 64 4 3 | 64 64 4 1 | 128 64 8 2
    sm_80                    | 2     | 64               | 128 64 8 2 | 32 64 8 2 | 64 32 8 2
    sm_80                    | 2     | 128              | 128 32 8 3 | 64 64 8 1 | 128 32 8 2
    sm_80                    | 2     | 256              | 64 64 8 2  | 32 32 8 1 | 64 32 8 2
    sm_80 sm_86 sm_90 sm_100 | 4     | 16 32 64         | 32 32 4 1  | 32 32 4 1 | 32 32 4 1
    gfx942                   | 4     | 16 32 64 128     | 32 32 4 1  | 32 32 4 1 | 32 32 4 1
    sm_80 sm_86 sm_90 sm_100 | 4     | 128              | 32 32 8 1  | 32 32 8 1 | 32 32 8 1
    sm_80 sm_90 sm_100       | 4     | 256              | 32 16 8 1  | 16 32 8 1 | 32 16 8 1
    sm_86                    | 2     | 16               | 128 64 4 2 | 64 64 4 1 | 128 64 8 2
    sm_86                    | 2     | 32               | 128 64 4 1 | 64 64 4 1 | 128 64 8 1
    sm_86                    | 2     | 64               | 128 64 8 1 | 32 64 8 2 | 64 32 8 2
    sm_86                    | 2     | 128              | 128 32 8 2 | 32 64 8 1 | 64 32 8 1
    sm_86                    | 2     | 256              | 64 32 8 1  | 32 32 8 1 | 32 32 8 1
    sm_86                    | 4     | 256              | 32 16 8 1  | 16 16 8 1 | 16 16 8 1
    sm_90                    | 2     | 16 32            | 128 64 4 3 | 64 64 4 2 | 128 64 4 3
    sm_90                    | 2     | 64               | 128 64 8 2 | 32 64 4 1 | 64 64 8 2
    sm_90                    | 2     | 128              | 128 64 8 2 | 16 64 4 1 | 64 64 8 2
    sm_90                    | 2     | 256              | 128 64 8 1 | 64 64 8 1 | 64 64 4 1
    sm_100                   | 2     | 16 32            | 128 64 8 3 | 64 64 4 1 | 128 64 8 2
    sm_100                   | 2     | 64 128           | 128 64 8 2 | 64 64 8 1 | 64 64 8 2
    sm_100                   | 2     | 256              | 128 64 8 1 | 64 64 8 1 | 64 64 8 1
    gfx942                   | 2     | 16 32            | 128 64 4 2 | 64 64 4 1 | 128 64 4 2
    gfx942                   | 2     | 64               | 128 64 4 2 | 64 64 4 1 | 64 64 4 2
    gfx942                   | 2     | 128              | 128 64 4 1 | 32 64 4 1 | 64 64 4 1
    gfx942                   | 2     | 256              | 64 64 4 1  | 16 64 8 1 | 32 32 4 1
    gfx942                   | 4     | 256              | 32 16 4 1  | 16 32 4 1 | 32 16 4 1
    cpu                      | 2     | 16 32 64 128 256 | 64 64 4 1  | 64 64 4 1 | 64 64 4 1
    cpu                      | 4     | 16 32 64 128 256 | 64 64 4 1  | 64 64 4 1 | 64 64 4 1
"""

# Register limits by (head dim, queries, keys, warps, stages of the forward tile): so one more program fits.
REGISTERS: dict[tuple[int, ...], int] = {(128, 64, 128, 4, 1): 168, (128, 64, 64, 4, 1): 128}

# The forward kernel for compute capability 9.0, by head dims of (q and k, v), rounded up. PIPELINED: a warpgroup
# overlaps its own products; ORDERED: warpgroups start products one after the other; REGISTERS of a consumer's thread,
# SPARE those of a producer's. together: at least so many heads lie side by side; ahead: or as many as have so many
# tiles in all. SCHEDULE: `once`, a program takes one tile; `queue`, the next one until none is left. OUT_APART: results
# have shared memory of their own.
HOPPER = """
    head dims | BQ  BK STAGES PIPELINED ORDERED REGISTERS SPARE together ahead SCHEDULE OUT_APART
    32 32     | 128 64 2      no        no      240       24    8        0     queue    yes
    64 64     | 128 64 2      no        no      240       24    32       0     queue    yes
    64 128    | 128 64 2      no        no      240       24    8        0     queue    yes
    128 64    | 128 64 2      no        no      240       24    8        0     queue    yes
    128 128   | 128 64 2      no        no      240       24    8        0     queue    yes
    192 128   | 128 64 2      no        no      240       24    8        0     once     no
    256 128   | 128 64 2      no        no      240       24    8        0     once     no
    256 256   | 128 64 2      no        no      240       24    8        0     once     no
"""

# The backward kernel, likewise. EARLY: weights do not wait for dO; BACKWARDS: with enough heads, tiles of keys are
# taken from the last to the first.
HOPPER_BACKWARD = """
    head dims | BQ BK  STAGES EARLY together ahead SPARE BACKWARDS
    32 32     | 64 128 3      no    64       512   24    no
    64 64     | 64 128 3      no    64       512   24    no
    128 128   | 64 128 3      yes   64       256   24    no
"""

# The backward kernels for larger head dims: dK and dV, then dQ. AHEAD: by how many tiles the warpgroup of the weights
# may be ahead.
HOPPER_APART = """
    head dims | BQ BK STAGES AHEAD together SPARE | BQ  BK K_STAGES V_STAGES together SPARE
    256 256   | 64 64 2      1     1        24    | 128 64 2        1        1        24
    192 128   | 64 64 2      1     1        24    | 128 64 2        2        1        24
    256 128   | 64 64 2      1     1        24    | 128 64 2        2        1        24
    128 256   | 64 64 2      1     1        24    | 128 64 2        2        1        24
"""


# ---------------------------------------------------------------- launches


def _check_params(a, q, k, v, bias, turned, whole):
    """Raises one clear error if a param does not fit. Returns the params, if `whole` with sizes of 1 expanded."""
    _B, Hq, _Sq, _D = q.shape
    if not isinstance(bias, Tensor):
        a.refuse(f"bias must be a torch.Tensor, not {type(bias).__name__}")
    if bias.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64,):
        a.refuse(f"bias must be float32 or float16 or bfloat16 or float64, not {bias.dtype}")
    if bias.device != q.device:
        a.refuse(f"bias must be on q's device {q.device}, not {bias.device}")
    if bias.dim() != 3:
        a.refuse(f"bias must have 3 dimensions (Hq, 13, 13), not shape {tuple(bias.shape)}")
    a.note_rounding("bias", bias)
    if tuple(bias.shape) != (Hq, 13, 13,):
        bias = host.spread(a.refuse, "bias", bias, (Hq, 13, 13,), "Hq, 13, 13", range(3) if whole else (), turned)
    if bias.shape[1] * bias.stride(1) >= 2**31:
        a.refuse(f"bias must span fewer than 2**31 elements along dimension 1")
    if bias.shape[2] * bias.stride(2) >= 2**31:
        a.refuse(f"bias must span fewer than 2**31 elements along dimension 2")
    return (bias,)


def _check_sizes(a, q, k, v, bias) -> None:
    """Raises an error if sizes do not fit."""
    _B, _Hq, Sq, _D = q.shape
    _Hkv, Sk, _Dv = v.shape[1:]
    if not (Sq == Sk):
        a.refuse(f"the specification assumes Sq == Sk; here Sk = {Sk}, Sq = {Sq}")
    if not (Sk % 32 == 0):
        a.refuse(f"the specification assumes Sk % 32 == 0; here Sk = {Sk}")
    if not (224 <= Sk):
        a.refuse(f"the specification assumes 224 <= Sk; here Sk = {Sk}")


def _param_gradients(known, values, pairs, needed, bias) -> tuple[Tensor, ...]:
    """The gradients of float params, from what kernels summed: `pairs` are launches of those that sum over pairs."""
    B, Hq, _Hkv, Sq, Sk, _D, _Dv = known.shape
    q = values["q"]
    total_bias = torch.zeros_like(bias, dtype=torch.float32) if needed[0] else bias.new_empty(0)
    if needed[0]:
        cells = torch.zeros(total_bias.shape, dtype=torch.int64, device=q.device)
        unit = torch.ones((), dtype=torch.float32, device=q.device)
        values.update(cells=cells, cell_strides=cells.expand(Hq, 13, 13).stride())
        values["unit"] = unit
        for launch in pairs["sum_bias measured"]:
            launch(values)
        # The unit is so small that rounding is lost in float32, and so large that the sum of all pairs fits 63 bits.
        _, exponent = torch.frexp(values["largest"].amax().clamp(min=1e-30))
        unit = torch.ldexp(torch.ones_like(unit), exponent - (62 - (B * Hq * Sq * Sk).bit_length()))
        values["unit"] = unit
        for launch in pairs["sum_bias"]:
            launch(values)
        total_bias += (cells.double() * unit).float()
    return (total_bias,)


def _forward_launches(known, q, k, v, out, precise) -> tuple:
    """The launches of the forward pass, for calls of one layout."""
    B, Hq, _Hkv, Sq, Sk, D, Dv = known.shape
    if (Sq + 191) * (Sk + 127) <= 2**35 and (row := host.hopper_row(HOPPER, q, k, v, out)) is not None:
        BQ, BK = row.BQ, row.BK
        n_tiles = host.ceil(Sq, BQ)
        n_work = n_tiles * B * Hq
        return (host.add_queue,
            host.Launch(_extremes_kernel, (host.ceil(Sk, BK) + host.ceil(Sq, BQ)),
                dict(BQ=BQ, BK=BK, ROWS=host.padded(BQ), num_warps=4),
                buffers=dict(q_ends=((host.ceil(Sq, BQ) * 4,), torch.int64),
                k_ends=((host.ceil(Sk, BK) * 4,), torch.int64))),
            host.Launch(_map_keys_kernel, host.ceil(Sq, BQ) * host.ceil(host.ceil(Sk, BK), 32) * 8,
                dict(BQ=BQ, BK=BK, CUT=False, num_warps=4),
                buffers=dict(map=((host.ceil(Sq, BQ) * host.ceil(Sk, BK),), torch.int8),
                bits=((host.ceil(Sq, BQ) * host.ceil(Sk, BK) * BQ * BK // 32,), torch.int32))),
            host.Launch(_list_keys_kernel, host.ceil(Sq, BQ), dict(WORDS=BQ * BK // 32, num_warps=1),
                scalars=dict(n_held=host.ceil(Sq, BQ), n_walked=host.ceil(Sk, BK)),
                buffers=dict(walks=((host.ceil(Sq, BQ),), torch.int32),
                tiles=((host.ceil(Sq, BQ) * host.ceil(Sk, BK),), torch.int32))),
            host.HopperLaunch(_hopper_forward_kernel,
                n_work if row.SCHEDULE == "once" else min(n_work, host.multiprocessors(q.device)),
                dict(**{**known.wide, "BLOCK_D": max(64, host.hopper_columns(D, Dv)[0])}, BQ=BQ, BK=BK,
                STAGES=row.STAGES, SCHEDULE=row.SCHEDULE, ORDERED=row.ORDERED, OUT_APART=row.OUT_APART,
                PIPELINED=row.PIPELINED, REGISTERS=row.REGISTERS, SPARE=row.SPARE, PRECISE=precise),
                tiles=dict(q=64, out=64, k=BK, v=BK),
                scalars=dict(n_work=n_work, together=max(row.together, row.ahead // n_tiles))),)
    tma = host.has_tma(q, k, v)
    BQ, BK, warps, stages = host.tiles(TILES, q, v)[0]
    return (host.Launch(_extremes_kernel, (host.ceil(Sk, BK) + host.ceil(Sq, BQ)),
        dict(BQ=BQ, BK=BK, ROWS=host.padded(BQ), num_warps=4),
        buffers=dict(q_ends=((host.ceil(Sq, BQ) * 4,), torch.int64), k_ends=((host.ceil(Sk, BK) * 4,), torch.int64))),
        host.Launch(_map_keys_kernel, host.ceil(Sq, BQ) * host.ceil(host.ceil(Sk, BK), 32) * 8,
            dict(BQ=BQ, BK=BK, CUT=True, num_warps=4), scalars=dict(bits=None),
            buffers=dict(map=((host.ceil(Sq, BQ) * host.ceil(Sk, BK),), torch.int8))),
        host.Launch(_sort_tiles_kernel, host.ceil(Sq, BQ), dict(num_warps=1), scalars=dict(n_walked=host.ceil(Sk, BK)),
            buffers=dict(walks=((2 * host.ceil(Sq, BQ),), torch.int32),
            tiles=((host.ceil(Sq, BQ) * host.ceil(Sk, BK),), torch.int32))),
        host.Launch(_forward_kernel, host.ceil(Sq, BQ) * B * Hq,
            dict(**known.constants, BQ=BQ, BK=BK, PRECISE=precise, num_warps=warps, num_stages=stages,
            **host.register_limit(REGISTERS, q, BQ, BK, warps, stages)), tiles=dict(q=BQ, k=BK, v=BK) if tma else {}),)


def _backward_launches(known, strides, q, k, v, d_out, dq, dk, dv, asked) -> tuple:
    """The launches of the backward pass, for calls of one layout. `asked`: what a call wants."""
    B, Hq, Hkv, Sq, Sk, D, Dv = known.shape
    has_d_lse, precise, needed, _usual = asked
    align = host.alignment(strides, known.constants["ALIGN"])
    if (Sq + 191) * (Sk
        + 127) <= 2**35 and (row := host.hopper_row(HOPPER_BACKWARD, q, k, v, d_out, dk, dv)) is not None:
        BQ, BK = row.BQ, row.BK
        n_tiles, n_parts = host.ceil(Sk, BK), host.ceil(Sq, BQ) * B * Hq
        heads, group = B * Hkv, Hq // Hkv
        wanted = max(1, min(64, 128 // n_tiles))
        span = host.equal_share(group, heads, wanted)
        shares = (group + span - 1) // span
        together, backwards = max(row.together, row.ahead // n_tiles), row.BACKWARDS
        n_work, n_cells = n_tiles * heads * shares, (n_parts + 3) // 4 * 4
        blocks = {name: known.wide[name] for name in ("BLOCK_D", "BLOCK_DV")}
        parts = {"parts": ((n_work * BK * sum(blocks.values()),), torch.float32)} if shares > 1 else {}
        return (host.Launch(_rows_kernel, host.ceil(Sq, 32) * B * Hq,
            dict(Dv=Dv, ROWS=32, ALIGN=align, HAS_D_LSE=has_d_lse, PRECISE=precise),
            buffers=dict(lse=((B, Hq, Sq), torch.float32), delta=((B, Hq, Sq), torch.float32)),
            names=dict(lse="natural_lse", scaled_lse="lse"),
            counters=dict(queue=n_cells, added=n_cells, met=2 * n_cells)),
            host.Launch(_extremes_kernel, (host.ceil(Sk, BK) + host.ceil(Sq, BQ)),
                dict(BQ=BQ, BK=BK, ROWS=host.padded(BQ), num_warps=4),
                buffers=dict(q_ends=((host.ceil(Sq, BQ) * 4,), torch.int64),
                k_ends=((host.ceil(Sk, BK) * 4,), torch.int64))),
            host.Launch(_map_queries_kernel, host.ceil(Sk, BK) * host.ceil(host.ceil(Sq, BQ), 32) * 8,
                dict(BQ=BQ, BK=BK, CUT=False, num_warps=4),
                buffers=dict(map=((host.ceil(Sk, BK) * host.ceil(Sq, BQ),), torch.int8),
                bits=((host.ceil(Sk, BK) * host.ceil(Sq, BQ) * BQ * BK // 32,), torch.int32))),
            host.Launch(_list_queries_kernel, host.ceil(Sk, BK), dict(WORDS=BQ * BK // 32, num_warps=1),
                scalars=dict(n_held=host.ceil(Sk, BK), n_walked=host.ceil(Sq, BQ), n_slots=host.ceil(Sq, BQ),
                firsts=None),
                buffers=dict(walks=((host.ceil(Sk, BK),), torch.int32),
                tiles=((host.ceil(Sk, BK) * host.ceil(Sq, BQ),), torch.int32))),
            host.HopperLaunch(_hopper_backward_kernel, min(n_work, host.multiprocessors(q.device)),
                dict(**known.wide, BQ=BQ, BK=BK, STAGES=row.STAGES, EARLY=row.EARLY, SPARE=row.SPARE,
                BACKWARDS=backwards, SHARED=shares > 1),
                tiles=dict(q=BQ, d_out=BQ, k=BK // 2, v=BK // 2, dk=BK // 2, dv=BK // 2),
                scalars=dict(n_work=n_work, together=together, span=span if shares > 1 else None, parts=None),
                buffers=dict(dq_parts=((n_parts * BQ * blocks["BLOCK_D"],), torch.float32), **parts)),
            host.Launch(_collect_kernel, n_parts + (2 * n_tiles * heads if shares > 1 else 0),
                dict(D=D, Dv=Dv, **blocks, BQ=BQ, BK=BK, SHARED=shares > 1, ALIGN=align),
                scalars=dict(n_parts=n_parts)),)
    tma = host.has_tma(q, k, v, d_out)
    apart = host.hopper_row(HOPPER_APART, q, k, v, d_out, dq, dk, dv) if (Sq + 191) * (Sk + 127) <= 2**35 else None
    BQ, BK, warps, stages = host.tiles(TILES, q, v)[1]
    by_keys = (host.Launch(_extremes_kernel, (host.ceil(Sk, BK) + host.ceil(Sq, BQ)),
        dict(BQ=BQ, BK=BK, ROWS=host.padded(BQ), num_warps=4),
        buffers=dict(q_ends=((host.ceil(Sq, BQ) * 4,), torch.int64), k_ends=((host.ceil(Sk, BK) * 4,), torch.int64))),
        host.Launch(_map_queries_kernel, host.ceil(Sk, BK) * host.ceil(host.ceil(Sq, BQ), 32) * 8,
            dict(BQ=BQ, BK=BK, CUT=True, num_warps=4), scalars=dict(bits=None),
            buffers=dict(map=((host.ceil(Sk, BK) * host.ceil(Sq, BQ),), torch.int8))),
        host.Launch(_sort_tiles_kernel, host.ceil(Sk, BK), dict(num_warps=1), scalars=dict(n_walked=host.ceil(Sq, BQ)),
            buffers=dict(walks=((2 * host.ceil(Sk, BK),), torch.int32),
            tiles=((host.ceil(Sk, BK) * host.ceil(Sq, BQ),), torch.int32))),
        host.Launch(_dkdv_kernel, host.ceil(Sk, BK) * B * Hkv,
            dict(**{**known.constants, "ALIGN": align}, BQ=BQ, BK=BK, GRAD_BIAS=needed[0], num_warps=warps,
            num_stages=stages), tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK) if tma else {}),)
    if apart is not None:
        row = apart[0]
        BQ, BK = row.BQ, row.BK
        n_work = host.ceil(Sk, BK) * B * Hkv
        by_keys = (host.Launch(_extremes_kernel, (host.ceil(Sk, BK) + host.ceil(Sq, BQ)),
            dict(BQ=BQ, BK=BK, ROWS=host.padded(BQ), num_warps=4),
            buffers=dict(q_ends=((host.ceil(Sq, BQ) * 4,), torch.int64),
            k_ends=((host.ceil(Sk, BK) * 4,), torch.int64))),
            host.Launch(_map_queries_kernel, host.ceil(Sk, BK) * host.ceil(host.ceil(Sq, BQ), 32) * 8,
                dict(BQ=BQ, BK=BK, CUT=False, num_warps=4),
                buffers=dict(map=((host.ceil(Sk, BK) * host.ceil(Sq, BQ),), torch.int8),
                bits=((host.ceil(Sk, BK) * host.ceil(Sq, BQ) * BQ * BK // 32,), torch.int32))),
            host.Launch(_list_queries_kernel, host.ceil(Sk, BK), dict(WORDS=BQ * BK // 32, num_warps=1),
                scalars=dict(n_held=host.ceil(Sk, BK), n_walked=host.ceil(Sq, BQ), n_slots=host.ceil(Sq, BQ), met=None,
                firsts=None),
                buffers=dict(walks=((host.ceil(Sk, BK),), torch.int32),
                tiles=((host.ceil(Sk, BK) * host.ceil(Sq, BQ),), torch.int32))),
            host.HopperLaunch(_hopper_dkdv_kernel, n_work,
                dict(**known.wide, BQ=BQ, BK=BK, STAGES=row.STAGES, AHEAD=row.AHEAD, SPARE=row.SPARE),
                tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK, dk=BK, dv=BK),
                scalars=dict(n_work=n_work, together=row.together)),)
    BQ, BK, warps, stages = host.tiles(TILES, q, v)[2]
    by_rows = (host.Launch(_extremes_kernel, (host.ceil(Sk, BK) + host.ceil(Sq, BQ)),
        dict(BQ=BQ, BK=BK, ROWS=host.padded(BQ), num_warps=4),
        buffers=dict(q_ends=((host.ceil(Sq, BQ) * 4,), torch.int64), k_ends=((host.ceil(Sk, BK) * 4,), torch.int64))),
        host.Launch(_map_keys_kernel, host.ceil(Sq, BQ) * host.ceil(host.ceil(Sk, BK), 32) * 8,
            dict(BQ=BQ, BK=BK, CUT=True, num_warps=4), scalars=dict(bits=None),
            buffers=dict(map=((host.ceil(Sq, BQ) * host.ceil(Sk, BK),), torch.int8))),
        host.Launch(_sort_tiles_kernel, host.ceil(Sq, BQ), dict(num_warps=1), scalars=dict(n_walked=host.ceil(Sk, BK)),
            buffers=dict(walks=((2 * host.ceil(Sq, BQ),), torch.int32),
            tiles=((host.ceil(Sq, BQ) * host.ceil(Sk, BK),), torch.int32))),
        host.Launch(_dq_kernel, host.ceil(Sq, BQ) * B * Hq,
            dict(**{**known.constants, "ALIGN": align}, BQ=BQ, BK=BK, GRAD_BIAS=needed[0], num_warps=warps,
            num_stages=stages), tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK) if tma else {}),)
    if apart is not None:
        row = apart[1]
        BQ, BK = row.BQ, row.BK
        n_work = host.ceil(Sq, BQ) * B * Hq
        by_rows = (host.Launch(_extremes_kernel, (host.ceil(Sk, BK) + host.ceil(Sq, BQ)),
            dict(BQ=BQ, BK=BK, ROWS=host.padded(BQ), num_warps=4),
            buffers=dict(q_ends=((host.ceil(Sq, BQ) * 4,), torch.int64),
            k_ends=((host.ceil(Sk, BK) * 4,), torch.int64))),
            host.Launch(_map_keys_kernel, host.ceil(Sq, BQ) * host.ceil(host.ceil(Sk, BK), 32) * 8,
                dict(BQ=BQ, BK=BK, CUT=False, num_warps=4),
                buffers=dict(map=((host.ceil(Sq, BQ) * host.ceil(Sk, BK),), torch.int8),
                bits=((host.ceil(Sq, BQ) * host.ceil(Sk, BK) * BQ * BK // 32,), torch.int32))),
            host.Launch(_list_keys_kernel, host.ceil(Sq, BQ), dict(WORDS=BQ * BK // 32, num_warps=1),
                scalars=dict(n_held=host.ceil(Sq, BQ), n_walked=host.ceil(Sk, BK)),
                buffers=dict(walks=((host.ceil(Sq, BQ),), torch.int32),
                tiles=((host.ceil(Sq, BQ) * host.ceil(Sk, BK),), torch.int32))),
            host.HopperLaunch(_hopper_dq_kernel, n_work,
                dict(**known.wide, BQ=BQ, BK=BK, K_STAGES=row.K_STAGES, V_STAGES=row.V_STAGES, SPARE=row.SPARE,
                GRAD_BIAS=needed[0]), tiles=dict(q=BQ // 2, d_out=BQ // 2, dq=BQ // 2, k=BK, v=BK),
                scalars=dict(n_work=n_work, together=row.together)),)
    return (host.Launch(_rows_kernel, host.ceil(Sq, 32) * B * Hq,
        dict(Dv=Dv, ROWS=32, ALIGN=align, HAS_D_LSE=has_d_lse, PRECISE=precise),
        buffers=dict(lse=((B, Hq, Sq), torch.float32), delta=((B, Hq, Sq), torch.float32)),
        names=dict(lse="natural_lse", scaled_lse="lse")),
        *by_keys,
        *by_rows,)


def _pair_launches(known, strides, q, k, v, d_out, bias) -> dict[str, tuple]:
    """The launches of kernels that sum a param's gradient over pairs, for calls of one layout."""
    B, Hq, _Hkv, Sq, Sk, _D, _Dv = known.shape
    align = host.alignment(strides, known.constants["ALIGN"])
    tma = host.has_tma(q, k, v, d_out)
    pairs = {}
    BQ, BK, warps, _ = host.tiles(TILES, q, v)[2]
    pairs["sum_bias "
        "measured"] = (host.Launch(_extremes_kernel, (host.ceil(Sk, BK) + host.ceil(Sq, BQ)),
        dict(BQ=BQ, BK=BK, ROWS=host.padded(BQ), num_warps=4),
        buffers=dict(q_ends=((host.ceil(Sq, BQ) * 4,), torch.int64), k_ends=((host.ceil(Sk, BK) * 4,), torch.int64))),
        host.Launch(_map_keys_kernel, host.ceil(Sq, BQ) * host.ceil(host.ceil(Sk, BK), 32) * 8,
            dict(BQ=BQ, BK=BK, CUT=True, num_warps=4), scalars=dict(bits=None),
            buffers=dict(map=((host.ceil(Sq, BQ) * host.ceil(Sk, BK),), torch.int8))),
        host.Launch(_sort_tiles_kernel, host.ceil(Sq, BQ), dict(num_warps=1), scalars=dict(n_walked=host.ceil(Sk, BK)),
            buffers=dict(walks=((2 * host.ceil(Sq, BQ),), torch.int32),
            tiles=((host.ceil(Sq, BQ) * host.ceil(Sk, BK),), torch.int32))),
        host.Launch(_sum_bias_kernel, (host.ceil(Sq, BQ), B, Hq),
            dict(**{**known.constants, "ALIGN": align}, BQ=BQ, BK=BK, MEASURE=True, num_warps=warps, num_stages=1),
            tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK) if tma else {},
            buffers=dict(largest=((host.ceil(Sq, BQ), B, Hq), torch.float32))),)
    BQ, BK, warps, _ = host.tiles(TILES, q, v)[2]
    pairs["sum_bias"] = (host.Launch(_sum_bias_kernel, (host.ceil(Sq, BQ), B, Hq),
        dict(**{**known.constants, "ALIGN": align}, BQ=BQ, BK=BK, MEASURE=False, num_warps=warps, num_stages=1),
        tiles=dict(q=BQ, d_out=BQ, k=BK, v=BK) if tma else {}),)
    return pairs


# ---------------------------------------------------------------- registered


_attention = host.Attention(
    "natten_2d",
    "attngen::natten_2d_ee806295595b",
    api=2,
    forward=_forward_launches,
    backward=_backward_launches,
    params=(
        host.Param("bias", strides=("bias_stride_0", "bias_stride_1", "bias_stride_2"), shape=lambda s: (s.Hq, 13, 13,),
            learns=True),
    ),
    check_params=_check_params,
    check_sizes=_check_sizes,
    gradients=_param_gradients,
    pairs=_pair_launches,
    saves=("rest",),
)
