"""Which item is which tile of which head, which query heads an item walks, and whose turn it is to add to dQ.

Programs are items, or draw them from a queue. `together` heads lie side by side, the last group with those that are
left: items go through the first tile of each head of a group, then the second of each. So K and V of a group stay in
the cache, and the items of a head rise with the place of a tile in the order. attngen's prover executes these functions
as they stand here.
"""

# pyright: basic, reportGeneralTypeIssues=false
# Triton's language has no types.

import triton
import triton.language as tl

# ---------------------------------------------------------------- heads


@triton.jit
def kv_head_of(head, Hq, Hkv):
    """The head of keys and values that a query head reads."""
    return head // (Hq // Hkv)


@triton.jit
def query_head(kv_head, member, group):
    """A member of the group of Hq // Hkv query heads that read a KV head."""
    return kv_head * group + member


# ---------------------------------------------------------------- items


@triton.jit
def head_after_head(n_tiles, n_heads):
    """(tile, batch, head) of this program: one head after the other, so that its keys stay in the cache."""
    i = tl.program_id(0) // n_tiles
    return tl.program_id(0) % n_tiles, i // n_heads, i % n_heads


@triton.jit
def side_by_side(item, n_tiles, heads, together):
    """(first head of the group, place in its head's order, head) of an item."""
    first = item // (n_tiles * together) * together
    width = tl.minimum(heads - first, together)
    i = item - first * n_tiles
    order = i // width
    return first, order, first + i % width


@triton.jit
def tile_of_item(item, n_items, n_tiles, n_heads, together, LATE: tl.constexpr, BATCHES_INSIDE: tl.constexpr):
    """(tile, batch, head) of an item. LATE: the last tiles first. BATCHES_INSIDE: all batches of a head lie side by
    side, for they find in the cache what they share.
    """
    _first, order, i = side_by_side(item, n_tiles, n_items // n_tiles, together)
    tile = n_tiles - 1 - order if LATE else order
    if BATCHES_INSIDE:
        n_batches = n_items // (n_tiles * n_heads)
        batch = i % n_batches
        head = i // n_batches
    else:
        batch = i // n_heads
        head = i % n_heads
    return tile, batch, head


@triton.jit
def busy_tiles_first(n_tiles, n_heads, LATE: tl.constexpr):
    """(tile, batch, head) of this program: eight heads side by side, longest tiles first."""
    tile, batch, head = tile_of_item(tl.program_id(0), tl.num_programs(0), n_tiles, n_heads, 8, LATE, False)
    return tile, batch, head


@triton.jit
def tile_of_program(program, n_programs, n_tiles, n_heads, together, LATE: tl.constexpr):
    """(tile, batch, head) of a program. LATE: all items go backwards."""
    item = n_programs - 1 - program if LATE else program
    tile, batch, head = tile_of_item(item, n_programs, n_tiles, n_heads, together, False, False)
    return tile, batch, head


# ---------------------------------------------------------------- items that add to dQ in order


@triton.jit
def tile_of_keys(item, n_items, n_tiles, together, BACKWARDS: tl.constexpr):
    """(tile of keys, its number in the order, whether the order is backwards, head) of an item.

    Where keys meet later queries alone, as under a causal mask, each tile from the last to the first begins at queries
    that no tile before it has met, so few items wait for others. The longest tiles come last, so the last group of
    heads goes onwards, and so do all heads if they are few.
    """
    heads = n_items // n_tiles
    if BACKWARDS:
        together = tl.where(heads < 4 * together, heads, together)
    first, order, head = side_by_side(item, n_tiles, heads, together)
    back = False
    if BACKWARDS:
        back = first + together < heads
    return tile_in_order(order, n_tiles, back), order, back, head


@triton.jit
def tile_in_order(order, n_tiles, back):
    """The tile of that number in the order."""
    return tl.where(back, n_tiles - 1 - order, order)


@triton.jit
def tile_before(tile, n_tiles, back, BACKWARDS: tl.constexpr):
    """The tile of keys before this one in the order; for the first one, itself."""
    before = tile - 1
    if BACKWARDS:
        before = tl.where(back, tile + 1, before)
    before = tl.maximum(before, 0)
    if BACKWARDS:
        before = tl.minimum(before, n_tiles - 1)
    return before


@triton.jit
def tile_of_step(step, first, stop, back, BACKWARDS: tl.constexpr):
    """The tile of queries of a step, from the last to the first, or onwards where tiles of keys go backwards."""
    tile = stop - 1 - step
    if BACKWARDS:
        tile = tl.where(back, first + step, tile)
    return tile


# ---------------------------------------------------------------- shares of the query heads of a group


@triton.jit
def share_count(group, span):
    """How many shares of `span` members a group has, the last with those that are left."""
    return (group + span - 1) // span


@triton.jit
def members(head, Hq, Hkv, span, SHARED: tl.constexpr):
    """(batch, KV head, start, end): an item of this head visits the members start … end - 1 of the group. SHARED: a
    group has several shares, each of which is a head of items.
    """
    group = Hq // Hkv
    kv_head = head
    start = 0
    end = group
    if SHARED:
        shares = share_count(group, span)
        share = head % shares
        kv_head = head // shares
        start = share * span
        end = tl.minimum(share * span + span, group)
    return kv_head // Hkv, kv_head % Hkv, start, end


@triton.jit
def head_of_share(kv_head, share, shares):
    """The head of items that a share of a KV head is; both are counted over all batches."""
    return kv_head * shares + share


@triton.jit
def part_of(head, tile, n_tiles):
    """The number of an item's partial sums of dK and dV."""
    return tl.cast(head, tl.int64) * n_tiles + tile


# ---------------------------------------------------------------- turns of dQ
#
# Each tile of dQ has a cell that holds a turn, 0 at first. A program waits until it holds the turn that it awaits, adds
# its part, and writes the turn that it passes. Each takes an item when it starts and waits only for lower ones, so
# there is no deadlock.


@triton.jit
def awaited_turn(order):
    """What a tile of keys awaits where the one before it in the order has added a part to the same tile of dQ."""
    return order


@triton.jit
def passed_turn(order):
    """What a tile of keys passes when its part is added."""
    return order + 1


@triton.jit
def end_before(order, first, stop):
    """Of the tile of keys before this one, which meets the tiles of queries first … stop - 1, the end of those that it
    adds to before: none, where this one is the first.
    """
    return tl.where(order > 0, stop, first)


@triton.jit
def meets(at, first, stop):
    """Whether the tile `at` is one of first … stop - 1."""
    return (at >= first) & (at < stop)


@triton.jit
def counters(n_parts):
    """How many ints of a kind a call counts in, which has so many tiles of dQ."""
    return (n_parts + 3) // 4 * 4


# ---------------------------------------------------------------- turns of dQ where data decides who meets whom


@triton.jit
def noted_tile(tile, n_tiles, BACKWARDS: tl.constexpr):
    """What a tile of keys notes for each tile of queries that it meets. The greatest is kept, that of the first in the
    order, which may go backwards; 0 if there is none.
    """
    return tile + 1 if BACKWARDS else n_tiles - tile


@triton.jit
def note_cell(place, back, at, n_walked):
    """Where that is kept, for the tile of queries `at` of n_walked, in the list `place`."""
    return (2 * place + tl.where(back, 1, 0)) * n_walked + at


@triton.jit
def comes_later(order, noted, n_tiles):
    """Whether a tile of keys comes after the first one that meets the same queries."""
    return n_tiles - noted < order


@triton.jit
def end_of_notes(first, n_tiles, n_slots, back):
    """What a note of a tile is taken from, to know its place in the order, where the tiles of a sequence are numbered
    from `first` on among those of all: there are n_slots.
    """
    return tl.where(back, first + n_tiles, n_slots - first)


@triton.jit
def last_chunk(order):
    """The last of the chunks of 32 places in the order that has one before this."""
    return (order + 31) // 32 - 1


@triton.jit
def place_of_lane(chunk, lane):
    """The place in the order at which a lane looks."""
    return chunk * 32 + lane


# ---------------------------------------------------------------- lists of what tests of data say of tiles
#
# A list has an entry for each part of each tile: the tile as a whole, and the rows of each warpgroup, for example.
# Batches and heads that no test tells apart share a list. An item of the kernel that lists is one entry.


@triton.jit
def list_count(B, Hq, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr):
    """How many lists there are. BY_BATCH, BY_HEAD: those of different batches, or heads, may differ."""
    return (B if BY_BATCH else 1) * (Hq if BY_HEAD else 1)


@triton.jit
def list_of(batch, head, Hq, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr):
    """The list of a batch and a head."""
    place = batch if BY_BATCH else 0
    if BY_HEAD:
        place = place * Hq + head
    return place


@triton.jit
def reader_of(place, Hq, BY_BATCH: tl.constexpr, BY_HEAD: tl.constexpr):
    """A batch and a head whose list that is."""
    batch = 0
    head = place if BY_HEAD else 0
    if BY_BATCH:
        batch = place // Hq if BY_HEAD else place
        head = place % Hq if BY_HEAD else 0
    return batch, head


@triton.jit
def entry_of(place, tile, n_tiles, part, parts):
    """The entry of a part of a tile in the list `place`."""
    row = place * n_tiles + tile
    return row * parts + part


@triton.jit
def part_of_entry(item, n_tiles, parts):
    """(list, tile, part) that an entry is of."""
    row = item // parts
    return row // n_tiles, row % n_tiles, item % parts


# ---------------------------------------------------------------- what the rows of one warpgroup walk
#
# Of the tiles that their program walks. Ends of runs that begin with `own_` are those of these rows.


@triton.jit
def end_of_tiles(size, tile, start, held, OF_PARTS: tl.constexpr):
    """Where the tiles of the walked sequence end, which has `size` rows. OF_PARTS: the rows held, from `start` on, may
    all lie past the end of their sequence of `held` rows, as those of a warpgroup can: then there are none.
    """
    stop = tl.cast((size - 1) // tile, tl.int32) + 1
    if OF_PARTS:
        stop = tl.where(start < held, stop, 0)
    return stop


@triton.jit
def limited(end, stop):
    """An end of a run, brought to that of the tiles."""
    return tl.minimum(end, stop)


@triton.jit
def own_steps(start, n_steps, own_start, own_stop, BACKWARDS: tl.constexpr):
    """(first, stop): outside of these steps, at least one, of a walk that begins with the tile `start`, or that ends
    with it, there is no tile of own_start … own_stop - 1.
    """
    first = own_start - start
    stop = own_stop - start
    if BACKWARDS:
        first = n_steps - stop
        stop = n_steps - (own_start - start)
    first = tl.maximum(tl.minimum(first, n_steps - 1), 0)
    return first, tl.maximum(tl.minimum(stop, n_steps), first + 1)


@triton.jit
def half_of_steps(first, stop, own_first, own_stop, back, BACKWARDS: tl.constexpr):
    """(begin, end): the steps of a walk over first … stop - 1 (`tile_of_step`) at which a half of the held tile takes
    tiles of its own.
    """
    own_first = tl.minimum(tl.maximum(own_first, first), stop)
    own_stop = tl.minimum(tl.maximum(own_stop, own_first), stop)
    begin = stop - own_stop
    if BACKWARDS:
        begin = tl.where(back, own_first - first, begin)
    return begin, begin + own_stop - own_first


@triton.jit
def unless_cut(end, start, rows, size):
    """An end of a run that needs no mask: where the end of the sequence cuts the rows held, no tile goes without it."""
    return tl.where(size < start + rows, 0, end)


# ---------------------------------------------------------------- sums of a gradient with an element for each pair
#
# The grid has an axis for batches and one for heads. Along an axis there are as many programs as the gradient has
# elements: one if all read the same element, since the param's index leaves the axis out, or the call passed the param
# with a size of 1 although the axis is longer. Each program adds up the batches or heads that read its element, in
# order, and no program adds to another's.


@triton.jit
def sum_programs(one, whole):
    """How many programs there are along an axis with `whole` elements, unless all read one."""
    return tl.where(one, 1, whole)


@triton.jit
def sum_start(program, group, ALL: tl.constexpr):
    """The first that a program sums; `group` of them read an element. ALL: all do."""
    return 0 if ALL else program * group


@triton.jit
def sum_stop(program, count, group, ALL: tl.constexpr):
    """What follows the last that a program sums, of `count`."""
    return count if ALL else (program + 1) * group
