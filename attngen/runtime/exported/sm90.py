"""Gluon functions that kernels of compute capability 9.0 (H100, H200) call.

From the top: barriers, rings of tiles, the queue of items, tiles in registers, the softmax in PTX, what the backward
kernels share, sequences. Of the sixteen hardware barriers Triton uses the first six, or seven.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# Gluon has no types.

from collections import namedtuple

import triton.language as tl

from .gluon import (
    BARRIER,
    COPY_IN,
    COPY_OUT,
    REINTERPRET,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from .items import part_of
from .ptx import format_of, in_place, multiplied, weights_constraints, weights_ptx
from .ragged import slot, within
from .rows import LN2

WARP = gl.constexpr(32)  # threads
WARPGROUP = gl.constexpr(128)  # threads, of four warps


# ---------------------------------------------------------------- barriers


@gluon.jit
def barrier_arrive(number, THREADS: gl.constexpr, WARPS: gl.constexpr):
    """Arrives at hardware barrier `number`, which THREADS threads share, and goes on."""
    each: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    ids = number + gl.full([32 * WARPS], 0, gl.int32, layout=each)
    threads = gl.full([32 * WARPS], THREADS, gl.int32, layout=each)
    gl.inline_asm_elementwise("bar.arrive $1, $2; mov.b32 $0, $1;", "=r,r,r", [ids, threads], gl.int32, False, 1)


@gluon.jit
def barrier_sync(number, THREADS: gl.constexpr, WARPS: gl.constexpr):
    """Arrives at hardware barrier `number` and waits for all THREADS threads. Their earlier writes are then visible."""
    each: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    ids = number + gl.full([32 * WARPS], 0, gl.int32, layout=each)
    threads = gl.full([32 * WARPS], THREADS, gl.int32, layout=each)
    gl.inline_asm_elementwise("bar.sync $1, $2; mov.b32 $0, $1;", "=r,r,r", [ids, threads], gl.int32, False, 1)


@gluon.jit
def initialized(N: gl.constexpr, ARRIVALS: gl.constexpr):
    """N mbarriers. A phase of each completes after ARRIVALS arrivals."""
    found = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(found.index(i), count=ARRIVALS)
    return found


# ---------------------------------------------------------------- what compilers must not see


@gluon.jit
def opaque(item):
    """`item`, opaque to the compiler: values computed from it again do not stay in registers until then."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [item], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def pin_order(n_steps):
    """A loop that is never entered. The compiler cannot know that, so it moves no wait for a product above it."""
    steps = gl.full([128], n_steps, gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(
        "{ .reg .pred p; wait: setp.ge.s32 p, $1, 0; @p bra.uni go; nanosleep.u32 100; bra.uni wait; "
        "go: mov.b32 $0, $1; }",
        "=r,r",
        [steps],
        gl.int32,
        False,
        1,
    )


# ---------------------------------------------------------------- rings of tiles


# A ring of tiles in shared memory, each at the place of its number, modulo the number of places. `ready`: an mbarrier
# for each place, which completes when a tile has arrived. `free`: the first hardware barrier that tells that a place is
# free; `threads` share each: all that read tiles, and the warp that fetches them. PairedRing: of tiles of keys, and of
# pairs with them.
Ring = namedtuple("Ring", "tiles ready free threads")
PairedRing = namedtuple("PairedRing", "tiles ready free threads pairs")

# Tiles that stay for an item: the mbarrier, or one for each, that completes when they have arrived; the mbarrier that
# completes when they are free, or None where an item is all that a program does.
Held = namedtuple("Held", "tiles ready free")

# Tiles that warpgroups hand over. `stored`: the first hardware barrier that tells that a tile is there. `free`: what
# tells that a place is free: a number likewise, or mbarriers.
Handover = namedtuple("Handover", "tiles stored free threads")


@gluon.jit
def ring(tiles, FREE: gl.constexpr, PLACES: gl.constexpr, THREADS: gl.constexpr, ARRIVALS: gl.constexpr):
    """A ring, a tile of which arrives ARRIVALS times."""
    return Ring(tiles, initialized(PLACES, ARRIVALS), FREE, THREADS)


@gluon.jit
def acquire(ring, turn):
    """Waits until the place of tile `turn` is free, and returns it."""
    PLACES: gl.constexpr = ring.ready.shape[0]
    place = turn % PLACES
    if turn >= PLACES:
        barrier_sync(ring.free + place, ring.threads, 1)
    return place


@gluon.jit
def await_place(ring, place, round):
    """Waits until a place is free that each round fills once."""
    if round > 0:
        barrier_sync(ring.free + place, ring.threads, 1)


@gluon.jit
def fetch(desc, ring, place, box):
    """Starts the copy of a tile to a place that the producer has acquired. `box`: where the tile begins."""
    mbarrier.expect(ring.ready.index(place), desc.block_type.nbytes)
    COPY_IN(desc, box, ring.ready.index(place), ring.tiles.index(place))


@gluon.jit
def fetch_held(desc, held, round, box, second_box):
    """Fetches the two tiles of an item, when those of the item before are free."""
    mbarrier.wait(held.free, (round & 1) ^ 1)
    mbarrier.expect(held.ready, 2 * desc.block_type.nbytes)
    COPY_IN(desc, box, held.ready, held.tiles.index(0))
    COPY_IN(desc, second_box, held.ready, held.tiles.index(1))


@gluon.jit
def await_tile(ring, turn):
    """Waits until tile `turn` has arrived, and returns its place."""
    PLACES: gl.constexpr = ring.ready.shape[0]
    place = turn % PLACES
    mbarrier.wait(ring.ready.index(place), turn // PLACES & 1)
    return place


@gluon.jit
def arrived(ring, turn, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Waits until tile `turn` has arrived, and returns it."""
    return ring.tiles.index(await_tile(ring, turn)).reshape([ROWS, COLS])


@gluon.jit
def release(ring, turn):
    """A warpgroup says that it has read tile `turn`."""
    barrier_arrive(ring.free + turn % ring.ready.shape[0], ring.threads, 4)


@gluon.jit
def await_released(ring, turn):
    """Waits until the last of `turn` tiles are released, so that no barrier is left incomplete."""
    PLACES: gl.constexpr = ring.ready.shape[0]
    for last in range(tl.minimum(turn, PLACES)):
        barrier_sync(ring.free + (turn - 1 - last) % PLACES, ring.threads, 1)


# ---------------------------------------------------------------- whose products are next


@gluon.jit
def await_products(FIRST: gl.constexpr, PART: gl.constexpr):
    """Waits until this warpgroup may start products. FIRST: the first of the warpgroups' hardware barriers, or None
    where they start products in any order.
    """
    if FIRST is not None:
        barrier_sync(FIRST + PART, 2 * WARPGROUP, 4)


@gluon.jit
def pass_products(FIRST: gl.constexpr, PART: gl.constexpr):
    """Lets the warpgroup PART start products next."""
    if FIRST is not None:
        barrier_arrive(FIRST + PART, 2 * WARPGROUP, 4)


@gluon.jit
def pass_by(turn, k_ring, v_ring, FIRST: gl.constexpr, PART: gl.constexpr, NEXT: gl.constexpr):
    """Releases a tile that none of this warpgroup's queries meets, as soon as it has arrived."""
    await_tile(k_ring, turn)
    await_products(FIRST, PART)
    pass_products(FIRST, NEXT)
    release(k_ring, turn)
    await_tile(v_ring, turn)
    release(v_ring, turn)


# ---------------------------------------------------------------- the queue of items


@gluon.jit
def publish(note, item):
    """Publishes the next item, before anything that follows in this warp."""
    note.store(gl.full([1], item, gl.int32, layout=gl.BlockedLayout([1], [32], [1], [0])))
    BARRIER()


@gluon.jit
def publish_item(notes, slot, item, tile, batch, head):
    """Publishes a warpgroup's next item with its tile, batch and head, which takes less time than its own divisions."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    notes.index(4 * slot + 1).store(gl.full([1], tile, gl.int32, layout=one))
    notes.index(4 * slot + 2).store(gl.full([1], batch, gl.int32, layout=one))
    notes.index(4 * slot + 3).store(gl.full([1], head, gl.int32, layout=one))
    publish(notes.index(4 * slot), item)


@gluon.jit
def noted(notes, i):
    """The number at place `i` of the notes."""
    return tl.max(notes.index(i).load(gl.BlockedLayout([1], [32], [4], [0])), 0)


@gluon.jit
def noted_item(notes, slot):
    """(tile, batch, head) of the item that is published in this slot."""
    return noted(notes, 4 * slot + 1), noted(notes, 4 * slot + 2), noted(notes, 4 * slot + 3)


@gluon.jit
def publish_next(notes, round, item):
    """The backward kernel's producer publishes the item of the next round, when all have read that of this one."""
    place = acquire(notes, round)
    publish(notes.tiles.index(place), item)
    mbarrier.arrive(notes.ready.index(place), count=1)


@gluon.jit
def next_item(notes, round, WARPS: gl.constexpr):
    """The item that the backward kernel's producer published for the next round."""
    place = await_tile(notes, round)
    item = tl.max(notes.tiles.index(place).load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)
    barrier_arrive(notes.free + place, notes.threads, WARPS)
    return item


# ---------------------------------------------------------------- tiles in registers


@gluon.jit
def packed(x, dtype: gl.constexpr):
    """Packs neighbours of a tile in half precision into 32 bits: a loop carries 16-bit tensors in a register each."""
    low, high = x.reshape([x.shape[0], x.shape[1] // 2, 2]).split()
    ASM: gl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;" if dtype == gl.bfloat16 else "cvt.rn.f16x2.f32 $0, $2, $1;"
    return gl.inline_asm_elementwise(ASM, "=r,f,f", [low, high], gl.int32, True, 1)


@gluon.jit
def unpacked(pairs, dtype: gl.constexpr, layout: gl.constexpr):
    """The packed pairs as a tile in half precision."""
    low = pairs.to(gl.int16).to(dtype, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.join(low, high).reshape([pairs.shape[0], pairs.shape[1] * 2]), layout)


@gluon.jit
def unpacked_wide(pairs, dtype: gl.constexpr, layout: gl.constexpr):
    """The packed pairs as a tile in float32."""
    if dtype == gl.bfloat16:
        low = (pairs << 16).to(gl.float32, bitcast=True)
        high = (pairs & -65536).to(gl.float32, bitcast=True)
    else:
        low = pairs.to(gl.int16).to(dtype, bitcast=True).to(gl.float32)
        high = (pairs >> 16).to(gl.int16).to(dtype, bitcast=True).to(gl.float32)
    return gl.convert_layout(gl.join(low, high).reshape([pairs.shape[0], pairs.shape[1] * 2]), layout)


@gluon.jit
def pair_words(like, cell):
    """The bits of a tile's pairs, `like` the tile, from `cell` on: a word for 32 columns of a row."""
    ROWS: gl.constexpr = like.shape[0]
    COLS: gl.constexpr = like.shape[1]
    wide: gl.constexpr = like.reshape([ROWS, COLS // 32, 32]).type.layout
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, gl.SliceLayout(2, wide)))
    cols = gl.arange(0, COLS // 32, layout=gl.SliceLayout(0, gl.SliceLayout(2, wide)))
    return gl.load(cell + rows[:, None] * (COLS // 32) + cols[None, :])


@gluon.jit
def kept_pairs(like, words):
    """Whether the bit of each pair is set. A thread has one of the words for eight pairs."""
    wide: gl.constexpr = like.reshape([like.shape[0], like.shape[1] // 32, 32]).type.layout
    bit = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(1, wide)))[None, None, :]
    # Two binary digits of a bit's number differ between threads, so each thread shifts by them once.
    pairs = ((words[:, :, None] >> (bit & 6)) & (1 << (bit & 25))) != 0
    return gl.convert_layout(pairs.reshape(like.shape), like.type.layout)


@gluon.jit
def warpgroup_edges(q0, k0, like, KEYS_DOWN: gl.constexpr):
    """The pairs at which the diagonals of a tile begin, from the last query's first key on. The last one is repeated up
    to a power of two.
    """
    QUERIES: gl.constexpr = like.shape[1] if KEYS_DOWN else like.shape[0]
    KEYS: gl.constexpr = like.shape[0] if KEYS_DOWN else like.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.arange(0, 2 * (KEYS if KEYS > QUERIES else QUERIES), layout=layout) - (QUERIES - 1)
    return q0 + tl.maximum(-at, 0), k0 + tl.minimum(tl.maximum(at, 0), KEYS - 1)


@gluon.jit
def along_warpgroup(values, like, KEYS_DOWN: gl.constexpr):
    """Spreads the values of the pairs of `warpgroup_edges` along the diagonals of a tile. Threads read them from shared
    memory, at offsets that the compiler knows.
    """
    layout: gl.constexpr = like.type.layout
    down = gl.arange(0, like.shape[0], layout=gl.SliceLayout(1, layout))[:, None]
    across = gl.arange(0, like.shape[1], layout=gl.SliceLayout(0, layout))[None, :]
    at = down + (like.shape[1] - 1 - across) if KEYS_DOWN else across + (like.shape[0] - 1 - down)
    pairs = gl.gather(values, at.reshape([like.shape[0] * like.shape[1]]), 0)
    return gl.convert_layout(pairs.reshape(like.shape), layout)


@gluon.jit
def fetched_pairs(ring, turn, otherwise, config: gl.constexpr, PART: gl.constexpr):
    """The fetched elements of a tile's pairs, for this warpgroup's queries."""
    if config.FETCHES:
        place = turn % ring.ready.shape[0] * config.PARTS + PART
        pairs = ring.pairs.index(place).reshape([64, config.BK]).load(config.qk_layout)
    else:
        pairs = otherwise
    return pairs


# ---------------------------------------------------------------- the forward kernel's products and sums


@gluon.jit
def start_scores(q, ring, place, no_scores, config: gl.constexpr):
    """Starts the product of queries and a tile of keys, part by part of the head dim."""
    token = no_scores
    for part in gl.static_range(config.K_PARTS):
        k = ring.tiles.index(place * config.K_PARTS + part).reshape([config.BK, config.K_COLS]).permute((1, 0))
        q_part = q if config.K_PARTS == 1 else q.slice(part * config.K_COLS, config.K_COLS, dim=1)
        token = warpgroup_mma(q_part, k, token, use_acc=part > 0, is_async=True)
    return token


@gluon.jit
def with_extra(acc, row_sum, total, extra):
    """Adds the denominator's extra term, as one more key without a value."""
    merged = tl.maximum(total, extra)
    shift = tl.where(merged == float("-inf"), 0.0, merged)
    rescale = tl.exp2(total - shift)
    row_sum = row_sum * rescale + tl.exp2(extra - shift)
    return acc * gl.convert_layout(rescale, gl.SliceLayout(1, acc.type.layout))[:, None], row_sum, merged


@gluon.jit
def lane_sums(weight):
    """(64, 4): each row's sum as the partial sums of its four threads."""
    return tl.sum(tl.sum(weight.reshape([64, weight.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def lanes_of_rows(x, like):
    """A row's value, for each of its four threads."""
    return gl.convert_layout(x, gl.SliceLayout(1, like.type.layout))[:, None]


@gluon.jit
def scaled_rows(acc, factors):
    """The rows of `acc`, each times its factor."""
    return acc * gl.convert_layout(factors, gl.SliceLayout(1, acc.type.layout))[:, None]


@gluon.jit
def no_maximum_yet(no_scores):
    """(row_sum, row_max) of rows without a key so far; the sum for each of a row's four threads."""
    rows_layout: gl.constexpr = gl.SliceLayout(1, no_scores.type.layout)
    return lane_sums(no_scores), gl.full([64], float("-inf"), gl.float32, layout=rows_layout)


# ---------------------------------------------------------------- the softmax, whose reference lags behind the maximum


@gluon.jit
def former(a, b):
    """The first of two numbers."""
    return a


@gluon.jit
def firsts(x):
    """(64, 4): the first number of each row that each of the row's four threads holds."""
    return tl.reduce(x.reshape([64, x.shape[1] // 4, 4]), 1, former)


@gluon.jit
def across(rows, like, EACH: gl.constexpr):
    """Spreads one number for each of a row's four threads, (64, 4), over all numbers of the thread, EACH at a time."""
    wide = rows.reshape([64, 1, 4, 1]).broadcast_to([64, like.shape[1] // (4 * EACH), 4, EACH]).reshape(like.shape)
    return gl.convert_layout(wide, like.type.layout)


@gluon.jit
def lagging_weights(x, reference, factor, dtype: gl.constexpr, SLACK: gl.constexpr):
    """2**((x - reference) factor), packed; for each thread of a row their sum, the row's next reference, and the factor
    of its earlier sums.
    """
    low, high = x.reshape([64, x.shape[1] // 2, 2]).split()
    COUNT: gl.constexpr = x.shape[1] // 4
    weight, sums, references, rescale = gl.inline_asm_elementwise(
        weights_ptx(COUNT, format_of(dtype), SLACK, False),
        weights_constraints(COUNT, 4),
        [low, high, across(reference, low, 1), gl.full(low.shape, factor, gl.float32, layout=low.type.layout)],
        dtype=(gl.int32, gl.float32, gl.float32, gl.float32),
        is_pure=False,
        pack=COUNT,
    )
    return weight, firsts(sums), firsts(references), firsts(rescale)


@gluon.jit
def rising_weights(x, reference, factor, dtype: gl.constexpr, rise, ahead, SLACK: gl.constexpr):
    """2**(factor x + ahead - reference), packed; for each thread of a row their sum, the row's next reference, and the
    factor of its earlier sums. `ahead` grows by `rise` from key to key: it is read at each thread's first key alone.
    """
    ahead = firsts(ahead.reshape([64, x.shape[1] // 2, 2]).split()[0])
    low, high = x.reshape([64, x.shape[1] // 2, 2]).split()
    COUNT: gl.constexpr = x.shape[1] // 4
    weight, sums, references, rescale = gl.inline_asm_elementwise(
        weights_ptx(COUNT, format_of(dtype), SLACK, True),
        weights_constraints(COUNT, 6),
        [
            low,
            high,
            across(reference, low, 1),
            gl.full(low.shape, factor, gl.float32, layout=low.type.layout),
            gl.full(low.shape, rise, gl.float32, layout=low.type.layout),
            across(ahead, low, 1),
        ],
        dtype=(gl.int32, gl.float32, gl.float32, gl.float32),
        is_pure=False,
        pack=COUNT,
    )
    return weight, firsts(sums), firsts(references), firsts(rescale)


@gluon.jit
def rescaled(acc, rescale):
    """acc * rescale. A warp whose rows all keep their reference skips it."""
    COUNT: gl.constexpr = acc.shape[1] // 2
    return gl.inline_asm_elementwise(
        multiplied(COUNT),
        in_place(COUNT),
        [acc, across(rescale, acc, 2)],
        dtype=gl.float32,
        is_pure=False,
        pack=COUNT,
    )


@gluon.jit
def no_key_yet(no_scores):
    """(row_sum, row_max) of rows without a key so far, for each of a row's four threads."""
    row_sum = firsts(no_scores.reshape([64, no_scores.shape[1] // 2, 2]).split()[0])
    return row_sum, row_sum - float("inf")


@gluon.jit
def normalized(acc, row_sum, row_max, factor, extra, rows_layout: gl.constexpr):
    """(rows of the result, their log-sum-exp). `extra`: another term of the denominator, to base 2, or None."""
    acc_rows: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    row_sum = gl.convert_layout(tl.sum(row_sum, 1), rows_layout)
    row_max = gl.convert_layout(tl.max(row_max, 1), rows_layout)
    total = row_max * factor
    empty = row_max == float("-inf")
    if extra is not None:
        acc, row_sum, total = with_extra(acc, row_sum, total, extra)
        empty = total == float("-inf")
    row_sum = tl.where(empty, 1.0, row_sum)
    acc = acc * gl.convert_layout(1.0 / row_sum, acc_rows)[:, None]
    return acc, tl.where(empty, float("-inf"), (total + tl.log2(row_sum)) * LN2)


# ---------------------------------------------------------------- the backward kernel: dQ in order


# Parts are added to a tile of dQ in an order, whatever the number of programs: its cell in memory holds how many have
# been. Two warps and a warpgroup do it tile by tile. Their mbarriers, for a few tiles: that this program's part is
# next, that it is added, that the cell says so.
Adding = namedtuple("Adding", "ready added noted")


@gluon.jit
def await_step(steps, turn):
    """Waits for a step of tile `turn`."""
    mbarrier.wait(steps.index(turn % steps.shape[0]), turn // steps.shape[0] & 1)


@gluon.jit
def await_room(steps, turn):
    """Waits until the mbarrier of a step of tile `turn` is done with the tile before."""
    mbarrier.wait(steps.index(turn % steps.shape[0]), (turn // steps.shape[0] & 1) ^ 1)


@gluon.jit
def tell_step(steps, turn):
    """Tells that a step of tile `turn` is done."""
    mbarrier.arrive(steps.index(turn % steps.shape[0]), count=1)


@gluon.jit
def await_parts(cell, count):
    """Waits until the cell says that `count` parts have been. What other programs added before is then visible."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    address = cell.to(gl.int64) + gl.full([1], 0, gl.int64, layout=one)
    number = count + gl.full([1], 0, gl.int32, layout=one)
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 v; again: ld.acquire.gpu.global.b32 v, [$1]; setp.ne.s32 p, v, $2; @p bra again; "
        "mov.b32 $0, v; }",
        "=r,l,r",
        [address, number],
        gl.int32,
        False,
        1,
    )


@gluon.jit
def note_parts(cell, count):
    """Says that `count` parts have been, after everything that this program has added is visible."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    address = cell.to(gl.int64) + gl.full([1], 0, gl.int64, layout=one)
    number = count + gl.full([1], 0, gl.int32, layout=one)
    asm: gl.constexpr = "st.release.gpu.global.b32 [$1], $2; mov.b32 $0, $2;"
    gl.inline_asm_elementwise(asm, "=r,l,r", [address, number], gl.int32, False, 1)


@gluon.jit
def add_dq_tile(part, joins, turn, rings, adding, work, config: gl.constexpr):
    """Adds the product of dS and keys to the tile `part` of dQ, or stores it if it is the first."""
    PIECES: gl.constexpr = config.BQ * config.BLOCK_D // 4096  # of 64 x 64: a thread has registers for one at a time
    no_dq = gl.zeros([64, 64], gl.float32, layout=gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
    PLACES: gl.constexpr = rings.ds.free.shape[0]
    place = turn % PLACES
    barrier_sync(rings.ds.stored + place, rings.ds.threads, 4)
    for piece in gl.static_range(PIECES):
        dq_token = warpgroup_mma_init(no_dq)
        for half in gl.static_range(2):
            k_half = rings.k.tiles.index(half).reshape([config.BK // 2, config.BLOCK_D])
            ds_half = rings.ds.tiles.index(half * PLACES + place)
            if config.BLOCK_D == 128:
                k_half = k_half.slice(piece * 64, 64, dim=1)
            elif config.BQ == 128:
                ds_half = ds_half.slice(piece * 64, 64, dim=1)
            dq_token = warpgroup_mma(ds_half.permute((1, 0)), k_half, dq_token, use_acc=half > 0, is_async=True)
        dq = warpgroup_mma_wait(0, deps=(dq_token,))
        if piece == PIECES - 1:
            mbarrier.arrive(rings.ds.free.index(place), count=1)
        if piece == 0:
            await_step(adding.ready, turn)
        held = dq.reshape([4, 2, 8, 8, 4, 2]).permute((0, 3, 2, 4, 1, 5)).reshape([4096])  # as threads hold it
        at = piece * 4096 + gl.arange(0, 4096, layout=held.type.layout)
        cells = work.dq_parts_ptr + part * (config.BQ * config.BLOCK_D) + at
        if joins:
            gl.atomic_add(cells, held, sem="relaxed")  # in order: nobody else adds to these cells now
        else:
            gl.store(cells, held)


# ---------------------------------------------------------------- the backward kernel: dK and dV


@gluon.jit
def start_with_terms(terms, like, FIRST: gl.constexpr):
    """Starts a product with the terms that a query adds to all of its sums: three of them, from FIRST on, times ones.

    If threads read these terms, all threads that share a query would read them. The ones are computed again, because
    there are no registers to keep them.
    """
    layout: gl.constexpr = gl.DotOperandLayout(0, like.type.layout, 2)
    place = opaque(gl.arange(0, 16, layout=gl.SliceLayout(0, layout)))[None, :]
    ones = gl.where((place >= FIRST) & (place < FIRST + 3), 1.0, 0.0).to(gl.bfloat16)
    ones = gl.broadcast(ones, gl.zeros([like.shape[0], 16], gl.bfloat16, layout=layout))[0]
    return warpgroup_mma(ones, terms.permute((1, 0)), like, use_acc=False, is_async=True)


@gluon.jit
def store_slopes(ds, slopes, turn, first):
    """Hands dS of half a tile of keys, whose places begin at `first`, to the warpgroup of dQ, when it has read what was
    there.
    """
    PLACES: gl.constexpr = ds.free.shape[0]
    place = turn % PLACES
    mbarrier.wait(ds.free.index(place), (turn // PLACES & 1) ^ 1)
    ds.tiles.index(first + place).store(slopes)
    fence_async_shared()
    barrier_arrive(ds.stored + place, ds.threads, 4)


@gluon.jit
def release_queries(turn, rings, config: gl.constexpr, PART: gl.constexpr):
    """Releases a tile of queries that only the other half of the keys may meet. Its part of dS is zero."""
    await_tile(rings.q, turn)
    await_tile(rings.d_out, turn)
    release(rings.q, turn)
    each: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    no_ds = gl.zeros([config.BK // 2, config.BQ], rings.ds.tiles.dtype, layout=each)
    store_slopes(rings.ds, no_ds, turn, PART * rings.ds.free.shape[0])


@gluon.jit
def await_slopes_read(ds, turn):
    """Waits until the warpgroup of dQ has read the last of `turn` tiles of dS."""
    PLACES: gl.constexpr = ds.free.shape[0]
    for place in gl.static_range(PLACES):
        used = (turn + PLACES - 1 - place) // PLACES  # so many tiles have been there
        mbarrier.wait(ds.free.index(place), (used & 1) ^ 1)


@gluon.jit
def store_sums(cells, x, WIDTH: gl.constexpr):
    """Stores a part of dK or dV in the order in which threads hold it."""
    held = x.reshape([4, 2, 8, WIDTH // 8, 4, 2]).permute((0, 3, 2, 4, 1, 5)).reshape([64 * WIDTH])
    gl.store(cells + gl.arange(0, 64 * WIDTH, layout=held.type.layout), held)


@gluon.jit
def store_parts(dk, dv, half, work, config: gl.constexpr):
    """Stores an item's partial sums for half a tile of keys, which the next kernel collects."""
    cells = work.parts_ptr + half * (64 * (config.BLOCK_D + config.BLOCK_DV))
    store_sums(cells, dk, config.BLOCK_D)
    store_sums(cells + 64 * config.BLOCK_D, dv, config.BLOCK_DV)


# ---------------------------------------------------------------- the backward kernels for larger head dims


@gluon.jit
def as_handed(pairs):
    """The packed pairs of a tile in the order of threads, four at a time, so that each thread moves 16 bytes."""
    rows: gl.constexpr = pairs.shape[0]
    cols: gl.constexpr = pairs.shape[1]
    parts = pairs.reshape([rows // 16, 2, 8, cols // 8, 2, 4])
    return parts.permute((3, 0, 2, 5, 4, 1)).reshape([rows * cols])


@gluon.jit
def hand_over(pairs, handover, turn):
    """Hands a tile's pairs to the other warpgroup, when it has released their place."""
    PLACES: gl.constexpr = handover.tiles.shape[0]
    place = turn % PLACES
    if turn >= PLACES:
        barrier_sync(handover.free + place, handover.threads, 4)
    handover.tiles.index(place).store(as_handed(pairs))
    barrier_arrive(handover.stored + place, handover.threads, 4)


@gluon.jit
def take_over(like, handover, turn):
    """The pairs that `hand_over` stored, in the layout of `like`."""
    rows: gl.constexpr = like.shape[0]
    cols: gl.constexpr = like.shape[1]
    wanted = as_handed(like)
    place = turn % handover.tiles.shape[0]
    barrier_sync(handover.stored + place, handover.threads, 4)
    parts = handover.tiles.index(place).load(wanted.type.layout).reshape([cols // 8, rows // 16, 8, 4, 2, 2])
    barrier_arrive(handover.free + place, handover.threads, 4)
    return parts.permute((1, 5, 2, 0, 4, 3)).reshape([rows, cols])


@gluon.jit
def await_taken(handover, turn):
    """Waits until the other warpgroup has taken the last of `turn` tiles, so that no barrier is left incomplete."""
    PLACES: gl.constexpr = handover.tiles.shape[0]
    for last in range(tl.minimum(turn, PLACES)):
        barrier_sync(handover.free + (turn - 1 - last) % PLACES, handover.threads, 4)


@gluon.jit
def start_product(held, part, walked, no_pairs, COLS: gl.constexpr):
    """Starts the product of the rows of a tile that stays and the rows of a tile that passes by."""
    dtype: gl.constexpr = walked.dtype
    shape: gl.constexpr = no_pairs.shape
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([shape[0], COLS], dtype)
    # The address of the tile that stays is computed again, because there are no registers to keep it.
    rows = REINTERPRET(held.index(part + opaque(gl.to_tensor(0))), dtype, [shape[0], COLS], layout)
    columns = walked.reshape([shape[1], COLS]).permute((1, 0))
    return warpgroup_mma(rows, columns, no_pairs, use_acc=False, is_async=True)


@gluon.jit
def store_result(desc, values, place, batch, head, start, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Stores a warpgroup's result through shared memory that no other warp reads any more. The copy engine clips it."""
    own = REINTERPRET(place, desc.dtype, [1, 1, ROWS, COLS], desc.layout)
    own.reshape([ROWS, COLS]).store(values.to(desc.dtype))
    fence_async_shared()
    BARRIER()
    COPY_OUT(desc, [batch, head, start, 0], own)
    tma.store_wait(0)


@gluon.jit
def store_sum(pointer, values, queries, row, q0, part, Sq, EACH: gl.constexpr):
    """Stores what 64 queries add to the gradient of a param: a number for EACH row, or the `part`-th sum of all."""
    if EACH:
        gl.store(pointer + row + queries, values, mask=queries < Sq)
    else:
        gl.store(pointer + part, tl.sum(tl.where(queries < Sq, values, 0.0), 0), mask=q0 < Sq)


# ---------------------------------------------------------------- sequences


# The rows of a sequence: the first one as a descriptor counts, and how many there are; their batch row, the first one
# in it, and how many it has; the sequence's number.
Place = namedtuple("Place", "row size batch first total sequence")


@gluon.jit
def first_row(place, head, heads, size):
    """The number of a head's first query among those of all heads. `place`: a sequence's, or a batch row's number."""
    if isinstance(place, tl.tensor):
        row = (place * tl.cast(heads, gl.int64) + head) * size
    else:
        row = (place.batch * tl.cast(heads, gl.int64) + head) * place.total + place.first
    return row


@gluon.jit
def rows_of_terms(place, heads):
    """The place of a sequence's row terms, which lie head by head."""
    if isinstance(place, tl.tensor):
        found = place
    else:
        found = Place(place.batch * heads * place.total + place.first, place.size, 0, 0, 0, 0)
    return found


@gluon.jit
def box(place, head, start, column):
    """The coordinates of a tile of a sequence, behind whose last row the copy engine reads zeros and stores nothing."""
    if isinstance(place, tl.tensor):
        found = (place, head, start, column)
    else:
        left = within(place.size, start)
        found = (2**30, place.row + start + left, head, 2**30 - left, column)
    return found


@gluon.jit
def first_part(place, head, heads, size, n_slots, tile: gl.constexpr, PACKED: gl.constexpr):
    """The number of a head's first part of dQ."""
    if isinstance(place, tl.tensor):
        part = (place * tl.cast(heads, gl.int64) + head) * ((size + tile - 1) // tile)
    else:
        part = tl.cast(head, gl.int64) * n_slots + slot(place.first, place.sequence, place.total, tile, PACKED)
    return part


@gluon.jit
def slots_of(place, n_tiles, n_slots, tile: gl.constexpr, PACKED: gl.constexpr):
    """(slot of the first tile, how many slots there are): lists have a row for each. n_tiles: those of a batch row."""
    if isinstance(place, tl.tensor):
        found = (0, n_tiles)
    else:
        found = (slot(place.first, place.sequence, place.total, tile, PACKED), n_slots)
    return found


@gluon.jit
def most_tiles(place, size, tile: gl.constexpr):
    """How many tiles of a sequence a row of a list has room for."""
    rows = size if isinstance(place, tl.tensor) else place.total
    return (rows + tile - 1) // tile


@gluon.jit
def listed_part(head, tile, n_tiles, place, work, config: gl.constexpr):
    """The number of an item's partial sums of dK and dV."""
    first, count = slots_of(place, n_tiles, work.k_slots, config.BK, config.PACKED)
    return part_of(head, first + tile, count)
