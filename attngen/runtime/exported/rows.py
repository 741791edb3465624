"""Device functions that kernels for every GPU call: rows of a tensor, functions of numbers, tests of data.

A name in capitals among a function's parameters is a constant of the kernel.
"""

# pyright: basic, reportGeneralTypeIssues=false
# Triton's language has no types.

from collections import namedtuple

import triton
import triton.language as tl

from .items import head_of_share, part_of

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


# ---------------------------------------------------------------- rows of a tensor


# The rows of one head. `base`: a pointer to the first one, or a descriptor of all heads.
HeadRows = namedtuple("HeadRows", "base batch head stop stride")
# The same where consecutive positions have consecutive rows only in runs: a table has the number of each run's rows.
RowsInRuns = namedtuple("RowsInRuns", "base batch head stop stride table runs run")


@triton.constexpr_function
def block(cols):
    """The columns of a tile: rounded up to a power of two, at least 16."""
    return max(16, triton.next_power_of_2(cols))


@triton.jit
def int_at(place):
    """An int that the host passed by value or by pointer."""
    return tl.load(place) if place.dtype.is_ptr() else place


@triton.jit
def of_head(tensor, batch, head, strides, stop, ALIGN: tl.constexpr):
    """The rows of one head. ALIGN divides the strides, as the host has checked. Behind them a side in runs has its
    table, how many runs that has for a batch, how many there are in the tensor, and how many rows a run has."""
    stride_b, stride_h, stride_s = strides[0], strides[1], strides[2]
    base = tensor
    if isinstance(tensor, tl.tensor):
        # 64 bits: a batch may hold more than 2**31 elements.
        offset_b = tl.cast(batch, tl.int64) * (stride_b // ALIGN * ALIGN)
        base = tensor + offset_b + tl.cast(head, tl.int64) * (stride_h // ALIGN * ALIGN)
    found = HeadRows(base, batch, head, stop, stride_s // ALIGN * ALIGN)
    if len(strides) > 3:
        table = strides[3] + tl.cast(batch, tl.int64) * strides[4]
        found = RowsInRuns(base, batch, head, stop, stride_s // ALIGN * ALIGN, table, strides[5], strides[6])
    return found


@triton.jit
def row_in_run(number, position, runs, run):
    """The row of a position, in the run of this number, brought inside a tensor of so many runs."""
    return tl.minimum(tl.maximum(number, 0), runs - 1) * run + position % run


@triton.jit
def cells_of(rows, start, row, col):
    """Pointers to the elements of rows from `start` on."""
    if len(rows) > 5:
        position = start + row
        number = tl.load(rows.table + position // rows.run, mask=position < rows.stop, other=0)
        cells = rows.base + row_in_run(tl.cast(number, tl.int64), position, rows.runs, rows.run) * rows.stride + col
    else:
        cells = rows.base + tl.cast(start, tl.int64) * rows.stride + row * rows.stride + col
    return cells


@triton.jit
def load(rows, start, ROWS: tl.constexpr, COLS: tl.constexpr, CHECKED: tl.constexpr):
    """Loads ROWS rows from `start` on. Columns from COLS on are zero and, if CHECKED, so are rows past the end."""
    if not isinstance(rows.base, tl.tensor):
        tile = tl.reshape(rows.base.load([rows.batch, rows.head, start, 0]), [ROWS, block(COLS)])
    else:
        row = tl.arange(0, ROWS)[:, None]
        col = tl.arange(0, block(COLS))[None, :]
        cells = cells_of(rows, start, row, col)
        if CHECKED and block(COLS) == COLS:
            tile = tl.load(cells, mask=row < rows.stop - start, other=0.0)
        elif CHECKED:
            tile = tl.load(cells, mask=(row < rows.stop - start) & (col < COLS), other=0.0)
        elif block(COLS) == COLS:
            tile = tl.load(cells)
        else:
            tile = tl.load(cells, mask=col < COLS, other=0.0)
    return tile


@triton.jit
def load_kept(rows, start, kept, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Loads rows as `load` does, with zeros in those that are not `kept`: a weight of 0 does not hide a NaN."""
    if not isinstance(rows.base, tl.tensor):
        tile = tl.reshape(rows.base.load([rows.batch, rows.head, start, 0]), [ROWS, block(COLS)])
        tile = tl.where(kept, tile, 0.0)
    else:
        row = tl.arange(0, ROWS)[:, None]
        col = tl.arange(0, block(COLS))[None, :]
        cells = cells_of(rows, start, row, col)
        if block(COLS) == COLS:
            tile = tl.load(cells, mask=kept, other=0.0)
        else:
            tile = tl.load(cells, mask=kept & (col < COLS), other=0.0)
    return tile


@triton.jit
def store(rows, values, start, COLS: tl.constexpr):
    """Stores rows of one head from `start` on, in the tensor's dtype."""
    row = tl.arange(0, values.shape[0])[:, None]
    col = tl.arange(0, values.shape[1])[None, :]
    cells = cells_of(rows, start, row, col)
    tl.store(cells, values.to(rows.base.dtype.element_ty), mask=(row < rows.stop - start) & (col < COLS))


@triton.jit
def clear(tensor, batch, head, strides, first, stop, COLS: tl.constexpr, ALIGN: tl.constexpr):
    """Stores zeros in the rows first … stop - 1 of one head."""
    rows = of_head(tensor, batch, head, strides, stop, ALIGN)
    for start in range(first, stop, 16):
        store(rows, tl.zeros([16, block(COLS)], tl.float32), start, COLS)


# ---------------------------------------------------------------- what a row of queries carries


@triton.jit
def no_values(ROWS: tl.constexpr, COLS: tl.constexpr):
    """The sum of values of rows without a key so far."""
    return tl.zeros([ROWS, block(COLS)], tl.float32)


@triton.jit
def no_sums(ROWS: tl.constexpr, COLS: tl.constexpr):
    """(sum of values, sum of weights) of rows without a key so far."""
    acc = no_values(ROWS, COLS)
    return acc, tl.zeros([ROWS], tl.float32)


@triton.jit
def no_keys(ROWS: tl.constexpr, COLS: tl.constexpr):
    """(sum of values, maximum, sum of weights) of rows without a key so far."""
    acc = no_values(ROWS, COLS)
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    return acc, row_max, tl.zeros([ROWS], tl.float32)


@triton.jit
def three_parts(x):
    """Three bfloat16 numbers whose sum is x exactly: 3 x 8 bits."""
    first = x.to(tl.bfloat16)
    x -= first.to(tl.float32)
    second = x.to(tl.bfloat16)
    return first, second, (x - second.to(tl.float32)).to(tl.bfloat16)


# ---------------------------------------------------------------- pairs of a query and a key


@triton.jit
def among(position, least, count):
    """least <= position < least + count, by one unsigned comparison."""
    return (position - least).to(tl.uint32) < tl.cast(count, tl.uint32)


@triton.jit
def load_pairs(start, least, most, offsets, FAST: tl.constexpr):
    """The elements at `offsets`, whose extremes are `least` and `most`. If these are equal, one element serves all.

    FAST takes inline PTX, since Triton's pipeliner would stage every element in shared memory.
    """
    if FAST and start.dtype.element_ty == tl.float32:
        values = tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $3, 0; mov.f32 $0, $2; @p ld.global.nc.f32 $0, [$1]; }",
            "=f,l,f,r",
            [(start + offsets).to(tl.int64), tl.load(start + least), (least != most).to(tl.int32)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        values = tl.load(start + offsets)
    return values


@triton.jit
def tile_edges(q0, k0, like, KEYS_DOWN: tl.constexpr):
    """The pairs at which the diagonals of a tile begin, from the last query's first key on. The last one is repeated
    up to a power of two.
    """
    QUERIES: tl.constexpr = like.shape[1] if KEYS_DOWN else like.shape[0]
    KEYS: tl.constexpr = like.shape[0] if KEYS_DOWN else like.shape[1]
    at = tl.arange(0, 2 * (KEYS if KEYS > QUERIES else QUERIES)) - (QUERIES - 1)
    return q0 + tl.maximum(-at, 0), k0 + tl.minimum(tl.maximum(at, 0), KEYS - 1)


@triton.jit
def along_diagonals(values, like, KEYS_DOWN: tl.constexpr):
    """Spreads the values of the pairs of `tile_edges` along the diagonals of a tile."""
    down, across = tl.arange(0, like.shape[0])[:, None], tl.arange(0, like.shape[1])[None, :]
    at = down + (like.shape[1] - 1 - across) if KEYS_DOWN else across + (like.shape[0] - 1 - down)
    return tl.reshape(tl.gather(values, tl.reshape(at, [like.shape[0] * like.shape[1]]), 0), like.shape)


@triton.jit
def keep(seed, batch, head, q_idx, k_idx, threshold):
    """Whether dropout keeps a pair: Philox 4x32-10 on (k, q, head, batch), keyed by the seed, so nothing is stored."""
    zero = q_idx * 0 + k_idx * 0
    word, _, _, _ = tl.philox(seed, zero + k_idx, zero + q_idx, zero + head, zero + batch)
    return word >= threshold


@triton.jit
def listed(value, lists, exists, size, stride):
    """Whether the lists that begin at these places and `exist` have a value. None has one below 0."""
    found = (lists.to(tl.int64) == 0) & (value != value)  # nothing, in the shape of both
    for number in range(size):
        found |= tl.load(lists + tl.cast(number, tl.int64) * stride, mask=exists, other=-1) == value
    return found & (value >= 0)


@triton.jit
def listed_block(value, first, lists, exists, size, stride, BLOCK: tl.constexpr):
    """The same of the numbers of a tile's blocks, of BLOCK keys each, from `first` on: looked for once a list."""
    found = (lists.to(tl.int64) == 0) & (value != value)
    for n in tl.static_range((value.shape[0] * value.shape[1] - 1) // BLOCK + 2):
        found |= listed(first + n, lists, exists, size, stride) & (value == first + n)
    return found


# ---------------------------------------------------------------- functions of numbers


@triton.jit
def moved(x, by: tl.constexpr):
    """x + by, or the end of x's dtype that lies before it."""
    if x.dtype == tl.int64:
        x = tl.maximum(x, -(2**63) - by) if by < 0 else tl.minimum(x, 2**63 - 1 - by)
    else:
        x = tl.maximum(x, -(2**31) - by) if by < 0 else tl.minimum(x, 2**31 - 1 - by)
    return x + by


@triton.jit
def tanh(x, FAST: tl.constexpr):
    """tanh by one exponential, or near 0 by its series, where the subtraction would lose digits.

    FAST takes one PTX instruction, whose relative error is 2**-11, that of half precision.
    """
    if FAST:
        y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        square = x * x
        near = x * (1.0 - square * (0.33333333 - square * (0.13333333 - square * 0.05396825)))
        y = tl.where(square < 0.01, near, 1.0 - 2.0 / (tl.exp2(x * 2.8853900817779268) + 1.0))
    return y


@triton.jit
def wave(x, asm):
    """One PTX instruction after a reduction to one period."""
    turns = tl.floor(x * 0.15915494309189535 + 0.5)
    turned = tl.fma(turns, 1.7484556e-07, tl.fma(turns, -6.2831854820251465, x))
    y = tl.inline_asm_elementwise(asm, "=f,f", [turned], dtype=tl.float32, is_pure=True, pack=1)
    return tl.minimum(tl.maximum(y, -1.0), 1.0)


@triton.jit
def sin(x, FAST: tl.constexpr):
    """sin. FAST takes one PTX instruction after a reduction to one period; its error is at most 2**-20."""
    return wave(x, "sin.approx.f32 $0, $1;") if FAST else tl.sin(x)


@triton.jit
def cos(x, FAST: tl.constexpr):
    """cos. FAST takes one PTX instruction after a reduction to one period; its error is at most 2**-20."""
    return wave(x, "cos.approx.f32 $0, $1;") if FAST else tl.cos(x)


@triton.jit
def log(x, FAST: tl.constexpr):
    """log. FAST takes one PTX instruction. Its error is 2**-21, relative to the value, or to 1 if that is larger."""
    if FAST:
        exponent = tl.inline_asm_elementwise(
            "lg2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
        y = exponent * 0.6931471805599453
    else:
        y = tl.log(x)
    return y


@triton.jit
def log2(x, FAST: tl.constexpr):
    """log2. FAST takes one PTX instruction. Its error is 2**-22, relative to the value, or to 1 if that is larger."""
    if FAST:
        y = tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = tl.log2(x)
    return y


@triton.jit
def sign(x):
    """-1, 0 or 1."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0))


@triton.jit
def int_sign(x):
    """-1, 0 or 1, of an int."""
    return tl.where(x > 0, 1, tl.where(x < 0, -1, 0))


@triton.jit
def int_power(x, N: tl.constexpr):
    """x ** N for a constant N >= 0, by squaring."""
    y = x * 0 + 1
    square = x
    for bit in tl.static_range(31):
        if (N >> bit) & 1 == 1:
            y = y * square
        if N >> (bit + 1) > 0:
            square = square * square
    return y


@triton.jit
def power(x, N: tl.constexpr):
    """x ** N for a constant N < 0."""
    return 1.0 / int_power(x, -N)


@triton.jit
def int_power_of(x, n):
    """x ** n for ints, n >= 0, by squaring, in 64 bits."""
    square = tl.cast(x, tl.int64) + n * 0
    y = square * 0 + 1
    for bit in tl.static_range(31):
        y = tl.where((n >> bit) & 1 != 0, y * square, y)
        square = square * square
    return y


@triton.jit
def power_of(x, n):
    """x ** n for a float and an int of any size: exp2(n log2 |x|), with the sign of x where n is odd."""
    size = tl.exp2(tl.cast(n, tl.float32) * tl.log2(tl.abs(x)))
    size = tl.where(n == 0, 1.0, size)
    return tl.where(x < 0, tl.where(n % 2 != 0, -size, size), size)


@triton.jit
def added_parts(cells, kv_head, tile, n_tiles, shares, PART: tl.constexpr, WIDTH: tl.constexpr):
    """The sum of the parts of all shares, in a fixed order, brought from the order of threads to that of rows."""
    cells += tl.arange(0, 64 * WIDTH)
    total = tl.zeros([64 * WIDTH], tl.float32)
    for share in range(shares):
        total += tl.load(cells + part_of(head_of_share(kv_head, share, shares), tile, n_tiles) * PART)
    return tl.reshape(tl.permute(tl.reshape(total, [4, WIDTH // 8, 8, 4, 2, 2]), [0, 4, 2, 1, 3, 5]), [64, WIDTH])


# ---------------------------------------------------------------- which tiles meet


@triton.jit
def listed_tiles(walks_ptr, tiles_ptr, row, n_walked):
    """How many of the tiles that a row lists need no mask, which come first, how many there are, and where they are."""
    whole, every = tl.load(walks_ptr + 2 * row), tl.load(walks_ptr + 2 * row + 1)
    return whole, every, tiles_ptr + tl.cast(row, tl.int64) * n_walked


@triton.jit
def stored_bits_of_keys(cell, pairs, first, queries):
    """Stores 0 or 1 for each pair of 32 queries from `first` of a tile on, as bits: for each query words of keys."""
    KEYS: tl.constexpr = pairs.shape[1]
    words = tl.sum(tl.reshape(pairs, [KEYS, 32]) << tl.arange(0, 32)[None, :], 1)
    tl.store(cell + first * (KEYS // 32) + tl.arange(0, KEYS), words)
    return words


@triton.jit
def stored_bits_of_queries(cell, pairs, first, queries):
    """The same, where each key has words of 32 queries for all `queries` of the tile."""
    words = tl.sum(pairs << tl.arange(0, 32)[:, None], 0)
    tl.store(cell + tl.arange(0, pairs.shape[1]) * (queries // 32) + first // 32, words)
    return words


@triton.jit
def is_named(map_ptr, row, tile, n_walked):
    """Whether a row of a map names a tile."""
    return tl.load(map_ptr + tl.cast(row, tl.int64) * n_walked + tile) != 0


@triton.jit
def list_named(entries, tiles, n_walked, what):
    """Stores the numbers of the tiles of which a row of a map says `what`, and returns how many these are."""
    count = n_walked * 0
    for first in range(0, n_walked, 128):
        at = first + tl.arange(0, 128)
        named = tl.where(tl.load(entries + at, mask=at < n_walked, other=0) == what, 1, 0)
        tl.store(tiles + count + tl.cumsum(named, 0) - named, at, mask=named != 0)
        count += tl.sum(named, 0)
    return count


@triton.jit
def sorted_runs(a_lo, a_hi, b_lo, b_hi):
    """Two runs of tiles, the one that starts first in front."""
    swap = b_lo < a_lo
    return (
        tl.where(swap, b_lo, a_lo),
        tl.where(swap, b_hi, a_hi),
        tl.where(swap, a_lo, b_lo),
        tl.where(swap, a_hi, b_hi),
    )


@triton.jit
def can_hold(there, least, most, low, high, TEST: tl.constexpr):
    """Whether a test between values here (least … most) and those of a tile, if it is there (low … high), can hold for
    some pair. TEST: 0 equal, 1 here <= there, 2 there <= here, 3 here < there, 4 there < here. attngen's prover
    executes this function, and the next.
    """
    if TEST == 0:
        can = there & (low <= most) & (least <= high)
    elif TEST == 1:
        can = there & (least <= high)
    elif TEST == 2:
        can = there & (low <= most)
    elif TEST == 3:
        can = there & (least < high)
    else:
        can = there & (low < most)
    return can


@triton.jit
def must_hold(there, least, most, low, high, TEST: tl.constexpr):
    """Whether it then holds for every pair."""
    if TEST == 0:
        must = there & (low == high) & (low == least) & (low == most)
    elif TEST == 1:
        must = there & (most <= low)
    elif TEST == 2:
        must = there & (high <= least)
    elif TEST == 3:
        must = there & (most < low)
    else:
        must = there & (high < least)
    return must


@triton.jit
def matching_tiles(least_ptr, most_ptr, least, most, n_tiles, TILE: tl.constexpr, TEST: tl.constexpr):
    """Where a test between this tile's values (least … most) and those of each walked tile can hold, and where it must.

    Gives positions any_lo, any_hi (the hull of the tiles where it can hold) and all_lo, all_hi (a run of tiles in which
    it holds for every pair; empty where those tiles are not consecutive). TEST: see `can_hold`.
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
        can = can_hold(there, least, most, low, high, TEST)
        must = must_hold(there, least, most, low, high, TEST)
        any_lo = tl.minimum(any_lo, tl.min(tl.where(can, t, n_tiles), 0))
        any_hi = tl.maximum(any_hi, tl.max(tl.where(can, t + 1, 0), 0))
        all_lo = tl.minimum(all_lo, tl.min(tl.where(must, t, n_tiles), 0))
        all_hi = tl.maximum(all_hi, tl.max(tl.where(must, t + 1, 0), 0))
        count += tl.sum(tl.where(must, 1, 0), 0)
    all_hi = tl.where(count == all_hi - all_lo, all_hi, all_lo)
    return any_lo * TILE, any_hi * TILE, all_lo * TILE, all_hi * TILE
