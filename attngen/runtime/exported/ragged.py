"""Rows of sequences that begin and end anywhere, and which tile of which sequence a program takes.

What a call says of where sequences begin and end is read here, and whatever it says, no row outside a tensor is read.
"""

# pyright: basic, reportGeneralTypeIssues=false
# Triton's language has no types.

import triton
import triton.language as tl

from .items import tile_in_order
from .rows import of_head

# ---------------------------------------------------------------- ints, which attngen's prover executes


@triton.jit
def begin(start, total):
    """The row at which a sequence begins, brought inside a tensor of `total` rows."""
    return tl.minimum(tl.maximum(start, 0), total)


@triton.jit
def first(begin, total):
    """The row of position 0, which there is even if the sequence has none."""
    return tl.maximum(tl.minimum(begin, total - 1), 0)


@triton.jit
def size(begin, stop, total):
    """How many rows a sequence has that begins there and stops before `stop`."""
    return tl.minimum(tl.maximum(stop, begin), total) - begin


@triton.jit
def slot(begin, sequence, total, tile, PACKED: tl.constexpr):
    """The number of a sequence's first tile among those of all. No two tiles share one, and no sum over sequences is
    needed.
    """
    return begin // tile + sequence if PACKED else sequence * ((total + tile - 1) // tile)


@triton.jit
def before(own_tiles, tiles, sequence, own):
    """Whether the tiles of `sequence` are listed before those of `own`: the longest sequences come first."""
    return (own_tiles < tiles) | ((own_tiles == tiles) & (sequence < own))


@triton.jit
def paired(earlier, order, most, rank, least):
    """A tile's place where the tiles of two sequences alternate, as long as both have some: `earlier` are the tiles of
    those listed before, `rank` their number and `least` the fewest tiles of one; `most` the most of one behind it.
    """
    return tl.where((rank & 1) == 0, earlier + order + tl.minimum(order, most), earlier - least + (2 * order + 1))


@triton.jit
def within(size, start):
    """How many rows a sequence has from `start` on."""
    return tl.maximum(size - start, 0)


def slots(total: int, tile: int, n_sequences: int, packed: bool) -> int:
    """An upper bound of the number of tiles of all sequences."""
    return total // tile + n_sequences if packed else n_sequences * ((total + tile - 1) // tile)


# ---------------------------------------------------------------- rows and tiles


@triton.jit
def begin_of(start_ptr, sequence, total):
    """The row at which a sequence begins, clamped to the tensor."""
    start = tl.load(start_ptr + sequence) if start_ptr is not None else 0
    return begin(start, total)


@triton.jit
def rows_of_sequence(start_ptr, stop_ptr, sequence, total):
    """The row of position 0 of a sequence, and how many rows it has: start … stop - 1, and none outside the tensor.

    Without pointers these are all rows.
    """
    stop = tl.load(stop_ptr + sequence) if stop_ptr is not None else total
    at = begin_of(start_ptr, sequence, total)
    return first(at, total), size(at, stop, total)


@triton.jit
def tile_of_slot(number, start_ptr, total, n_sequences, tile: tl.constexpr, PACKED: tl.constexpr):
    """(tile, sequence) of a slot. Each sequence has as many slots as it may need tiles."""
    if PACKED:
        # The last sequence whose first slot is at or before this one.
        sequence = 0
        stop = n_sequences
        while stop - sequence > 1:
            middle = (sequence + stop) // 2
            is_before = first_slot(start_ptr, middle, total, tile) <= number
            sequence = tl.where(is_before, middle, sequence)
            stop = tl.where(is_before, stop, middle)
        found = number - first_slot(start_ptr, sequence, total, tile)
    else:
        sequence = number // tl.cdiv(total, tile)
        found = number - slot(0, sequence, total, tile, False)
    return found, sequence


@triton.jit
def first_slot(start_ptr, sequence, total, tile: tl.constexpr):
    """The slot of a packed sequence's first tile. No two tiles share a slot, and no sum over sequences is needed."""
    return slot(begin_of(start_ptr, sequence, total), sequence, total, tile, True)


@triton.jit
def rows_between(start_ptr, stop_ptr, sequence, n_sequences, total, PACKED: tl.constexpr):
    """(stop of the rows before a sequence that no sequence has, first and stop of those behind it): those before it are
    from the first row on. Of packed sequences only the first has rows before it.
    """
    at = begin_of(start_ptr, sequence, total)
    _first, own = rows_of_sequence(start_ptr, stop_ptr, sequence, total)
    stop_before = at
    stop = total
    if PACKED:
        stop_before = tl.where(sequence == 0, at, 0)
        if sequence + 1 < n_sequences:
            stop = begin_of(start_ptr, sequence + 1, total)
    return stop_before, at + own, stop


@triton.jit
def list_tiles(
    items_ptr,
    own,
    bounds,
    n_sequences,
    totals,
    batch_rows,
    TILE: tl.constexpr,
    QUERIES: tl.constexpr,
    LATE: tl.constexpr,
    PAIRED: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Lists the tiles of a sequence, behind those of sequences with more tiles; where it is the first, also how many
    there are of all. PAIRED: the tiles of two sequences alternate. Each has eight numbers: its own in the sequence, and
    what is known of that. Where packed sequences overlap, which a call must not say, nothing is listed: there is room
    for tiles of others alone, and parts of dQ have one order.
    """
    q_start_ptr, q_stop_ptr, k_start_ptr, k_stop_ptr = bounds
    q_first, q_size = rows_of_sequence(q_start_ptr, q_stop_ptr, own, totals[0])
    k_first, k_size = rows_of_sequence(k_start_ptr, k_stop_ptr, own, totals[1])
    own_tiles = tl.cdiv(q_size if QUERIES else k_size, TILE)
    earlier, rank, least, most = 0, 0, 1 << 30, 0
    listed = 0
    overlaps = 0
    for start in range(0, n_sequences, 128):
        sequence = start + tl.arange(0, 128)
        known = tl.minimum(sequence, n_sequences - 1)
        _first, q_rows = rows_of_sequence(q_start_ptr, q_stop_ptr, known, totals[0])
        _first, k_rows = rows_of_sequence(k_start_ptr, k_stop_ptr, known, totals[1])
        walked = q_rows if QUERIES else k_rows
        if PACKED:
            following = tl.minimum(sequence + 1, n_sequences - 1)
            q_over = begin_of(q_start_ptr, known, totals[0]) + q_rows > begin_of(q_start_ptr, following, totals[0])
            k_over = begin_of(k_start_ptr, known, totals[1]) + k_rows > begin_of(k_start_ptr, following, totals[1])
            over = (q_over | k_over) & (sequence + 1 < n_sequences)
            overlaps += tl.sum(tl.where(over, 1, 0), 0)
        tiles = tl.where(sequence < n_sequences, tl.cdiv(walked, TILE), 0)
        earlier_one = before(own_tiles, tiles, sequence, own)
        earlier += tl.sum(tl.where(earlier_one, tiles, 0), 0)
        rank += tl.sum(tl.where(earlier_one, 1, 0), 0)
        least = tl.minimum(least, tl.min(tl.where(earlier_one, tiles, 1 << 30), 0))
        most = tl.maximum(most, tl.max(tl.where(earlier_one | (sequence == own), 0, tiles), 0))
        listed += tl.sum(tiles, 0)
    listed = tl.where(overlaps > 0, 0, listed)
    own_tiles = tl.where(overlaps > 0, 0, own_tiles)
    if own == 0:
        tl.store(items_ptr, listed)
    batch = 0 if PACKED else own
    for start in range(0, own_tiles, 128):
        order = start + tl.arange(0, 128)
        place = earlier + order
        if PAIRED:
            place = paired(earlier, order, most, rank, least)
        item = items_ptr + 8 * (1 + place)
        exists = order < own_tiles
        tl.store(item, tile_in_order(order, own_tiles, LATE), mask=exists)
        tl.store(item + 1, own + order * 0, mask=exists)
        tl.store(item + 2, q_size + order * 0, mask=exists)
        tl.store(item + 3, k_size + order * 0, mask=exists)
        tl.store(item + 4, q_first + order * 0, mask=exists)
        tl.store(item + 5, k_first + order * 0, mask=exists)
        tl.store(item + 6, batch * batch_rows[0] + q_first + order * 0, mask=exists)
        tl.store(item + 7, batch * batch_rows[1] + k_first + order * 0, mask=exists)


@triton.jit
def rows_of_part(
    tensor,
    part,
    n_slots,
    start_ptr,
    stop_ptr,
    n_sequences,
    strides,
    heads,
    total,
    tile: tl.constexpr,
    PACKED: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """The rows of the head and sequence that a part belongs to, and the part's first row."""
    _stride_b, _stride_h, stride_s = strides
    if n_slots is None:
        n_tiles = tl.cdiv(total, tile)
        i = part // n_tiles
        of_part = of_head(tensor, i // heads, i % heads, strides, total, ALIGN)
        start = part % n_tiles * tile
    else:
        found, sequence = tile_of_slot(tl.cast(part % n_slots, tl.int32), start_ptr, total, n_sequences, tile, PACKED)
        row, own = rows_of_sequence(start_ptr, stop_ptr, sequence, total)
        moved = tensor + tl.cast(row, tl.int64) * (stride_s // ALIGN * ALIGN)
        of_part = of_head(moved, sequence, part // n_slots, strides, tl.where(found < 0, 0, own), ALIGN)
        start = tl.maximum(found, 0) * tile
    return of_part, start
