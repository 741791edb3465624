"""custom_normalizer: fused attention for TPUs, forward and backward, in Pallas.

Made by attngen from the specification below: edit that and compile again, or edit this file by hand.
It needs jax alone. `custom_normalizer` is differentiable, and works under jit, grad, vmap, checkpoint and shard_map.
"""

# The specification:
#
#     # A normalizer of one's own: softmax with a learned temperature for each head, and a learned escape.
#     #
#     #   w_ij = exp(s_ij / t_h) / (exp(escape_h / t_h) + sum_j exp(s_ij / t_h)),   j <= i
#     #
#     # Lee, Lee & Song, "Vision Transformer for Small-Size Datasets", 2021 (https://arxiv.org/abs/2112.13492)
#     # (the temperature); Xiao et al., 2023 (https://arxiv.org/abs/2309.17453) (the escape).
#     # The first two lines define the result, the others how it is streamed: that the two agree is for attngen to show.
#     attention custom_normalizer
#
#     param temperature: f32[Hq] where temperature > 0
#     param escape: f32[Hq]
#
#     normalizer tempered(t, e) {
#         weight(s) = exp(s / t)
#         denominator = sum + exp(e / t)
#         shift = max
#         weight(s, m) = exp((s - m) / t)
#         rescale(m, n) = exp((m - n) / t)
#     }
#
#     mask = causal
#
#     normalizer = tempered(t = temperature[h], e = escape[h])
#
# sha256 of its text: 4d68754d3c003150a08bf09d788eaceb1ceb57b26881207c44da7942b3fb18d6
# options: target=pallas precision=ieee
# Proved: streaming, range-safety, empty-rows, locality, gradients, tile-ranges, index-bounds, integer-width.

from __future__ import annotations

import functools
import math
import warnings
from itertools import pairwise as _pairwise
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

INTERPRET = None  # True, False, or pltpu.InterpretParams(…); None: where JAX finds no TPU and CHIP names none
CHIP = None  # a key of VMEM, to compile or export for a chip that is not here; None: the chip that is
PRECISION = lax.Precision.HIGHEST  # of float32 products; bfloat16 is exact in the product
LANES = 128  # the width of a vector register: what is one number a row stands in each of them
LOWEST = -1e30  # below every score; finite, so that a difference of two is a number
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453

# MiB of vector memory that a kernel may use on each chip.
VMEM = {'v4': 16, 'v5e': 96, 'v5p': 64, 'v6e': 96, '7x': 56, 'cpu': 16384}

STRAIGHT = 16  # tiles that a kernel may have one after the other, beside those in its loop
WIDE = ('v6e', '7x')  # chips whose matrix units are two registers wide
PIECE = 512  # rows and columns of what their forward kernel computes at a time
AHEAD = 2  # pieces whose scores it computes before it needs them

# Tile sizes by chip and bytes of an element: forward, dK/dV and dQ kernels, each (queries, keys, full tiles at a time).
TILES = {
    ('v4', 2): ((512, 512, 4), (512, 512, 1), (512, 512, 1)),
    ('v4', 4): ((256, 512, 1), (256, 256, 1), (256, 256, 1)),
    ('v5e', 2): ((512, 512, 4), (512, 512, 1), (512, 512, 1)),
    ('v5e', 4): ((512, 512, 1), (256, 512, 1), (256, 512, 1)),
    ('v5p', 2): ((512, 512, 4), (512, 512, 1), (512, 512, 1)),
    ('v5p', 4): ((512, 512, 1), (256, 512, 1), (256, 512, 1)),
    ('v6e', 2): ((1024, 1024, 4), (512, 512, 1), (512, 512, 1)),
    ('v6e', 4): ((512, 512, 1), (256, 512, 1), (256, 512, 1)),
    ('7x', 2): ((1024, 1024, 4), (512, 512, 1), (512, 512, 1)),
    ('7x', 4): ((512, 512, 1), (256, 512, 1), (256, 512, 1)),
    ('cpu', 2): ((128, 128, 1), (128, 128, 1), (128, 128, 1)),
    ('cpu', 4): ((128, 128, 1), (128, 128, 1), (128, 128, 1)),
}


class Size(NamedTuple):
    """The sizes of a call, known while it is traced."""

    B: int
    Hq: int
    Hkv: int
    Sq: int
    Sk: int
    D: int
    Dv: int


class Tile(NamedTuple):
    """How a kernel takes its work. With `steps` the grid walks the tiles, that many for each held one, and brings them
    from memory one by one; without, the whole of a head lies in vector memory, and the kernel walks it in a loop.
    `counts` are the numbers of (full, masked) tiles that held ones meet, where these are known and few enough.
    `across`: the forward kernel has keys down and queries across, where no log-sum-exp is asked for.
    """

    queries: int
    keys: int
    unroll: int
    steps: int = 0
    counts: tuple[tuple[int, int], ...] = ()
    across: bool = False


class Config(NamedTuple):
    size: Size
    forward: Tile
    dkdv: Tile
    dq: Tile
    fused: bool  # one kernel for dQ, dK and dV: dQ of a head fits vector memory beside the rest
    interpret: bool | pltpu.InterpretParams
    vmem: int
    returns_lse: bool
    spread: tuple[object, object] | None = None  # the axes of an explicit mesh over which batches and heads lie


# ---------------------------------------------------------------- helpers


def _in_32_bits(function):
    """What JAX computes in 32 bits, also where jax_enable_x64 is set."""
    @functools.wraps(function)
    def narrow(*given, **named):
        with jax.enable_x64(False):
            return function(*given, **named)

    return narrow


def _min(a, b):
    return min(a, b) if isinstance(a, int | float) and isinstance(b, int | float) else jnp.minimum(a, b)


def _max(a, b):
    return max(a, b) if isinstance(a, int | float) and isinstance(b, int | float) else jnp.maximum(a, b)


def _log2(x):
    return jnp.log(x) * LOG2E


def _down(x, block):
    """x // block, rounded down; `block` is a power of two."""
    return x >> (block.bit_length() - 1)


def _up(x, block):
    """x / block, rounded up; `block` is a power of two. Right for every int of 32 bits."""
    return (x >> (block.bit_length() - 1)) + ((x & (block - 1)) + block - 1 >> (block.bit_length() - 1))


def _share(i, n, m):
    """Which of m things entry i of n has, n // m entries to each."""
    if m == n:
        return i
    return 0 if m == 1 else lax.div(i, n // m)


def _precision(x):
    return PRECISION if x.dtype == jnp.float32 else None


def _product(a, b):
    """a @ b, in float32."""
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), precision=_precision(a), preferred_element_type=jnp.float32)


def _by_transposed(a, b):
    """a @ b.T, in float32."""
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), precision=_precision(a), preferred_element_type=jnp.float32)


def _transposed_by(a, b):
    """a.T @ b, in float32."""
    return lax.dot_general(a, b, (((0,), (0,)), ((), ())), precision=_precision(a), preferred_element_type=jnp.float32)


def _across(x, width):
    """What rows hold the same in every lane, for a tile of that width."""
    return x[:, :width] if width <= LANES else jnp.tile(x, (1, -(-width // LANES)))[:, :width]


def _by_lanes(x):
    """Row sums that are not finished: (rows, LANES), whose lanes add up to the rows' sums. It takes additions alone."""
    rows, width = x.shape
    if width % LANES:
        x = jnp.concatenate([x, jnp.zeros((rows, -width % LANES), x.dtype)], 1)
    return sum(x[:, first : first + LANES] for first in range(0, x.shape[1], LANES))


def _over_lanes(x):
    """The sum over the lanes, in every lane."""
    return jnp.broadcast_to(x.sum(1, keepdims=True), x.shape)


def _as_row(x):
    """(rows, LANES), the same in every lane, as one row (1, rows)."""
    return x.T[:1]


def _held(row):
    """The reverse of `_as_row`."""
    return jnp.broadcast_to(row, (LANES, row.shape[1])).T


def _start(walked, block):
    """Where a tile begins, in rows or columns."""
    return walked * block if isinstance(walked, int) else pl.multiple_of(walked * block, block)


def _inside(mask, position, size, block, shape):
    """The mask of a tile; the ragged end of the walked axis is outside."""
    if size % block == 0:
        return jnp.broadcast_to(mask, shape)
    return jnp.broadcast_to(mask & (position < size), shape)


def _chunk(ref, walked, block):
    """One tile of rows of what lies in vector memory."""
    return ref[pl.ds(_start(walked, block), block), :]


def _walked(at, tile):
    """Where tile `at` lies in a block: the grid brings it by itself, or all of the head is there."""
    return 0 if tile.steps else at


def _total(runs):
    return sum(hi - lo for lo, hi in runs)


def _numbered(step, runs):
    """The tile of iteration `step`, counting through the runs in order."""
    start, passed = runs[0][0], 0
    at = start + step
    for (lo, hi), (start, _) in _pairwise(runs):
        passed = passed + (hi - lo)
        at = jnp.where(step < passed, at, start + step - passed)
    return at


def _visited(step, full, partial, n_tiles):
    """The tile that the grid brings at a step; after the last one, the same again, which costs nothing."""
    if not full and not partial:
        return 0
    n_full, n_partial = _total(full), _total(partial)
    number = _min(step, _max(n_full + n_partial - 1, 0))
    at = _numbered(number, [*full, *partial])
    return _min(_max(at, 0), n_tiles - 1)


def _looped(n_full, n_partial, unroll):
    """How many full tiles are walked in a loop, `unroll` in each round: what is left stands in the tail, which is not
    empty.
    """
    rounds = _down(_max(n_full - 1 + _min(n_partial, 1), 0), unroll)
    return rounds * unroll


def _tails(counts, unroll):
    """The (full, masked) tiles that are left after the rounds, one of each kind."""
    found = set()
    for n_full, n_partial in counts:
        looped = _looped(n_full, n_partial, unroll)
        found.add((n_full - looped, n_partial))
    return sorted(found)


def _walk(full, partial, tile, start, attend, finish):
    """Calls attend([(at, masked), …]) for the tiles of the runs, with those that stand one after the other: as the grid
    walks for the step at hand, or in a loop and then all that are left, so that the last tiles, the finish and, where no
    tile needs the loop, the start are scheduled as one.
    """
    n_full, n_partial = _total(full), _total(partial)

    def whole(steps):
        attend([(_numbered(step, full), False) for step in steps])

    def masked(steps):
        attend([(_numbered(step, partial), True) for step in steps])

    if tile.steps:
        step = pl.program_id(3)
        pl.when(step == 0)(start)
        if full:
            pl.when(step < n_full)(lambda: whole([step]))
        if partial:
            pl.when((n_full <= step) & (step < n_full + n_partial))(lambda: masked([step - n_full]))
        pl.when(step == tile.steps - 1)(finish)
        return

    if not tile.counts:
        start()
        if full:
            _loop(n_full, tile.unroll, whole)
        if not partial:
            finish()
            return
        _loop(n_partial - 1, 1, masked)

        def last():
            masked([n_partial - 1])
            finish()

        pl.when(0 < n_partial)(last)
        pl.when(n_partial <= 0)(finish)
        return
    looped = _looped(n_full, n_partial, tile.unroll)
    left = n_full - looped
    rolled = any(_looped(*count, tile.unroll) for count in tile.counts)
    if rolled:
        start()
        _loop(looped, tile.unroll, whole)

    def tail(n_whole, n_masked):
        if not rolled:
            start(clear=n_whole + n_masked == 0)
        tiles = [(_numbered(looped + i, full), False) for i in range(n_whole)]
        tiles += [(_numbered(i, partial), True) for i in range(n_masked)]
        attend(tiles, first=not rolled, last=True)

    tails = _tails(tile.counts, tile.unroll)
    for count in tails:
        run = functools.partial(tail, *count)
        run() if len(tails) == 1 else pl.when((left == count[0]) & (n_partial == count[1]))(run)


def _in_turn(attend, finish):
    """attend(tiles, first, last) of a function of one tile, which may be told that it is the first."""

    def several(tiles, first=False, last=False):
        for i, tile in enumerate(tiles):
            attend(*tile, first=first and i == 0)
        if last:
            finish()

    return several


def _loop(count, unroll, body):
    """body([0, …]) up to count - 1, `unroll` of them at a time, then one by one."""
    rounds = _down(count, unroll)

    def several(i, _):
        body([i * unroll + j for j in range(unroll)])

    def one(i, _):
        body([i])

    lax.fori_loop(0, rounds, several, None)
    if unroll > 1:
        lax.fori_loop(rounds * unroll, count, one, None)


def _heads_first(x, block):
    """(B, S, H, D) as (B, H, S, D), with zeros up to a whole number of tiles."""
    x = jnp.swapaxes(x, 1, 2)
    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % block), (0, 0)))


def _heads_inside(x, length):
    """The reverse of `_heads_first`."""
    return jnp.swapaxes(x[:, :, :length], 1, 2)


def _vectors(x, axis, block, missing=0):
    """An operand of one position axis, as (B, H, tiles, 1, block)."""
    x = x.reshape(*x.shape[:2], x.shape[axis])
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % block)), constant_values=missing)
    return x.reshape(*x.shape[:2], -1, 1, block)


def _unrolled(x, length):
    """(B, H, tiles, 1, block) as (B, H, length)."""
    return x.reshape(*x.shape[:2], -1)[..., :length]


def _numbers(x):
    """An operand or a term that is one number a head (or fewer), flat."""
    return jnp.asarray(x).reshape(-1)


def _reduced(x, like):
    """Sums over the axes that an operand does not have."""
    missing = tuple(axis for axis in range(4) if like.shape[axis] == 1 and x.shape[axis] != 1)
    x = x.sum(missing, keepdims=True) if missing else x
    if like.shape[1] != x.shape[1]:  # an operand of the key heads
        x = x.reshape(x.shape[0], like.shape[1], -1, *x.shape[2:]).sum(2)
    return x.astype(like.dtype)


class _Blocks:
    """What a program sees of an array, for a kernel that holds a tile of one axis and walks those of the other."""

    def __init__(self, size, tile, held_block, walked_block, n_walked, at):
        self.size, self.held_block, self.walked_block = size, held_block, walked_block
        self.span = 1 if tile.steps else n_walked
        self.at = at if tile.steps else (lambda *_: 0)

    def _spec(self, x, block, where):
        n_batch, n_heads = x.shape[:2]

        def index(batch, head, held, *rest):
            own = _share(batch, self.size.B, n_batch), _share(head, self.size.Hq, n_heads)
            return *own, *where(held, lambda: self.at(batch, head, held, *rest))

        return x, pl.BlockSpec((None, None, *block), index)

    def held(self, x):
        return self._spec(x, (self.held_block, x.shape[3]), lambda held, at: (held, 0))

    def walked(self, x):
        return self._spec(x, (self.span * self.walked_block, x.shape[3]), lambda held, at: (at(), 0))

    def held_vector(self, x):
        return self._spec(x, (None, *x.shape[3:]), lambda held, at: (held, 0, 0))

    def walked_vector(self, x):
        return self._spec(x, (self.span, *x.shape[3:]), lambda held, at: (at(), 0, 0))

    def pairs_by_rows(self, x):
        return self._spec(x, (self.held_block, self.span * self.walked_block), lambda held, at: (held, at()))

    def pairs_by_columns(self, x):
        return self._spec(x, (self.span * self.walked_block, self.held_block), lambda held, at: (at(), held))

    def whole(self, x):
        return self._spec(x, x.shape[2:], lambda held, at: (0, 0))


def _result(shape, dtype, *like):
    """The type of a result, which varies with what it is made of."""
    kind = jax.typeof(like[0])
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=type(kind.manual_axis_type)(varying=_axes(*like)))


def _lowered_for_tpu(*_) -> NoReturn:
    _refuse(
        "this program was traced for Pallas' interpreter, since JAX found no TPU: it is none for a TPU. To export or "
        f"compile for one, set CHIP in this module first, to one of {', '.join(c for c in VMEM if c != 'cpu')}"
    )


_for_no_tpu = Primitive("for_no_tpu")  # its operand, unless the program is lowered for a TPU
_for_no_tpu.def_impl(lambda x: x)
_for_no_tpu.def_abstract_eval(lambda x: x)
batching.defvectorized(_for_no_tpu)
mlir.register_lowering(_for_no_tpu, lambda _, x: [x])
mlir.register_lowering(_for_no_tpu, _lowered_for_tpu, platform="tpu")


def _started(call, config, *arrays):
    """call(*arrays). Pallas' interpreter cannot type what varies over axes of a mesh, inside `shard_map` with checked
    axes: there it runs as an exported program, which has no such types.
    """
    if config.interpret and INTERPRET is None:
        arrays = _for_no_tpu.bind(arrays[0]), *arrays[1:]
    if not config.interpret and not all(isinstance(n, int) for x in arrays if x.ndim == 1 for n in x.shape):
        _refuse("each batch has numbers of its own in a TPU's scalar memory, so its size must not be symbolic")
    if config.interpret is not True or not _axes(arrays):
        return call(*arrays)

    @jax.custom_batching.custom_vmap
    def interpreted(*arrays):
        plain = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
        found = jax.export.export(jax.jit(call), platforms=[jax.default_backend()])(*plain).call(*arrays)
        return _alike(arrays, found)[1]

    @interpreted.def_vmap
    def _(_, mapped, *arrays):
        many = jax.vmap(call, in_axes=[0 if x else None for x in mapped])
        found = _started(many, config, *arrays)
        return found, jax.tree.map(lambda _: True, found)

    return interpreted(*arrays)


def _launch(kernel, config, tile, n_tiles, numbers, inputs, outputs, scratch, ordered=False):
    """Runs a kernel over batches, heads, held tiles and, where the grid walks, steps.

    `ordered`: the held tiles of a head add to one result, one after the other.
    """
    size = config.size
    specs = [block(jax.ShapeDtypeStruct(shape, dtype))[1] for shape, dtype, block in outputs]
    order = ("parallel", "parallel", "arbitrary" if ordered else "parallel") + (("arbitrary",) if tile.steps else ())

    def call(*arrays):
        return pl.pallas_call(
            kernel,
            out_shape=[_result(shape, dtype, *arrays) for shape, dtype, _ in outputs],
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=len(numbers),
                grid=(size.B, size.Hq, n_tiles) + ((tile.steps,) if tile.steps else ()),
                in_specs=[spec for _, spec in inputs],
                out_specs=specs,
                scratch_shapes=[pltpu.VMEM(shape, dtype) for shape, dtype in scratch],
            ),
            compiler_params=pltpu.CompilerParams(dimension_semantics=order, vmem_limit_bytes=config.vmem << 20),
            interpret=config.interpret,
        )(*arrays)

    return _started(call, config, *numbers, *(x for x, _ in inputs))


# ---------------------------------------------------------------- which tiles meet


def _key_tiles(q0, q1, size, block):
    """Runs of tiles that the queries q0 … q1 meet: those in which every pair is allowed, then those that need the mask."""
    Sq = size.Sq
    Sk = size.Sk
    any_hi = _up(_min(Sk, q1 + Sk - Sq + 1), block)
    any_hi = _max(any_hi, 0)
    full_hi = _down(_min(Sk, q0 + Sk - Sq + 1), block)
    full_hi = _max(full_hi, 0)
    full_hi = _min(_max(full_hi, 0), any_hi)
    return [(0, full_hi)], [(full_hi, any_hi)]


def _query_tiles(k0, k1, size, block):
    """Runs of tiles that the keys k0 … k1 meet: those in which every pair is allowed, then those that need the mask."""
    Sq = size.Sq
    Sk = size.Sk
    any_lo = _down(_max(0, k0 + Sq - Sk), block)
    any_hi = _up(Sq, block)
    any_hi = _max(any_hi, any_lo)
    full_lo = _up(_max(0, k1 + Sq - Sk), block)
    full_hi = _down(Sq, block)
    full_hi = _max(full_hi, full_lo)
    full_lo = _min(_max(full_lo, any_lo), any_hi)
    full_hi = _min(_max(full_hi, full_lo), any_hi)
    return [(full_lo, full_hi)], [(any_lo, full_lo), (full_hi, any_hi)]


# ---------------------------------------------------------------- forward


def _forward_kernel(
    head_term_ref, extra_term_ref, q_ref, k_ref, v_ref, out_ref, *rest,
    size, tile, saves,
):
    """One tile of queries of one head meets the tiles of keys that it can see."""
    lse_ref, max_s, sum_s, acc_s = rest if saves else (None, *rest)
    Sq = size.Sq
    Sk = size.Sk
    Dv = size.Dv
    BQ, BK = tile.queries, tile.keys
    height = BQ
    width = BK
    head = pl.program_id(1)
    held = pl.program_id(2)
    q0 = held * BQ
    q1 = _min(q0 + BQ, Sq) - 1
    q_idx = q0 + lax.broadcasted_iota(jnp.int32, (BQ, LANES), 0)
    head_term = head_term_ref[head]
    extra_term = extra_term_ref[head]
    row_term = q_idx + Sk - Sq

    def start(clear=True):
        if clear:
            max_s[...] = jnp.full_like(max_s, LOWEST)
            sum_s[...] = jnp.zeros_like(sum_s)
            acc_s[...] = jnp.zeros_like(acc_s)

    def attend(at, masked, first=False):
        k0 = at * BK
        walked = _walked(at, tile)
        k_idx = k0 + lax.broadcasted_iota(jnp.int32, (1, BK), 1)
        k = _chunk(k_ref, walked, BK)
        v = _chunk(v_ref, walked, BK)
        qk = _by_transposed(q_ref[...], k)
        x = qk * head_term
        if masked:
            allowed = _inside(k_idx <= _across(row_term, width), k_idx, Sk, BK, (height, width))
            x = jnp.where(allowed, x, -jnp.inf)
        old_max = jnp.full_like(max_s, LOWEST) if first else max_s[...]
        new_max = jnp.maximum(old_max, x.max(1, keepdims=True))
        max_s[...] = new_max
        rescale = jnp.exp2(old_max - new_max)
        weight = jnp.exp2(x - _across(new_max, width))
        added = _by_lanes(weight)
        sum_s[...] = added if first else sum_s[...] * rescale + added
        product = _product(weight.astype(v.dtype), v)
        acc_s[...] = product if first else acc_s[...] * _across(rescale, Dv) + product

    def finish():
        row_sum = _over_lanes(sum_s[...])
        row_max = max_s[...]
        total = row_max
        # The denominator's extra term is one more key without a value.
        extra = extra_term
        merged = jnp.maximum(total, extra)
        rescale = jnp.exp2(total - merged)
        row_sum = row_sum * rescale + jnp.exp2(extra - merged)
        total = merged
        empty = (row_max == LOWEST) & (extra == -jnp.inf)
        row_sum = jnp.where(empty, 1.0, row_sum)
        share = rescale / row_sum
        out_ref[...] = (acc_s[...] * _across(share, Dv)).astype(out_ref.dtype)
        if saves:
            lse_ref[...] = _as_row(jnp.where(empty, -jnp.inf, (total + _log2(row_sum)) * LN2))

    full, partial = _key_tiles(q0, q1, size, BK)
    _walk(full, partial, tile, start, _in_turn(attend, finish), finish)


def _forward(config, q, k, v, floats, data, dtype, saves):
    """out (B, Sq, Hq, Dv) in `dtype`, and, if `saves`, lse (B, Hq, Sq) in float32; else None."""
    size, tile = config.size, config.forward
    if tile.across and not saves:
        return _forward_across(config, q, k, v, floats, data), None
    B = size.B
    Hq = size.Hq
    Sq = size.Sq
    Sk = size.Sk
    Dv = size.Dv
    BQ, BK = tile.queries, tile.keys
    temperature_h = floats["temperature_h"]
    escape_h = floats["escape_h"]
    scale = data["scale"]
    head_term = scale * (1.0 / temperature_h * 1.4426950408889634)
    extra_term = escape_h / temperature_h * 1.4426950408889634
    numbers = [_numbers(head_term), _numbers(extra_term), ]

    def at(batch, head, held, step, head_term_ref, extra_term_ref):
        q0 = held * BQ
        q1 = _min(q0 + BQ, Sq) - 1
        full, partial = _key_tiles(q0, q1, size, BK)
        return _visited(step, full, partial, _up(Sk, BK))

    cut = _Blocks(size, tile, BQ, BK, _up(Sk, BK), at)
    n_tiles = _up(Sq, BQ)
    row = ((B, Hq, n_tiles, 1, BQ), jnp.float32, cut.held_vector)
    results = _launch(
        functools.partial(_forward_kernel, size=size, tile=tile, saves=saves), config, tile, n_tiles, numbers,
        [cut.held(_heads_first(q, BQ)), cut.walked(_heads_first(k, BK)), cut.walked(_heads_first(v, BK))],
        [((B, Hq, n_tiles * BQ, Dv), dtype, cut.held), *([row] * 1 if saves else [])],
        [((BQ, LANES), jnp.float32), ((BQ, LANES), jnp.float32), ((BQ, Dv), jnp.float32)],
    )
    if not saves:
        return _heads_inside(results[0], Sq), None
    return _heads_inside(results[0], Sq), *(_unrolled(x, Sq) for x in results[1:])


def _forward_across_kernel(
    head_term_ref, extra_term_ref, q_ref, k_ref, v_ref, out_ref, max_s, acc_s,
    *, size, tile,
):
    """What `_forward_kernel` computes, with keys down and queries across, in pieces of a tile. Values stream past weights
    that stand in the matrix units, all of whose columns then count, and ones beside the values add the weights up.
    """
    Sq = size.Sq
    Sk = size.Sk
    Dv = size.Dv
    BQ, BK = tile.queries, tile.keys
    height, width = min(BK, PIECE), min(BQ, PIECE)
    head = pl.program_id(1)
    held = pl.program_id(2)
    head_term = head_term_ref[head]
    extra_term = extra_term_ref[head]

    def start(clear=True):
        if clear:
            max_s[...] = jnp.full_like(max_s, LOWEST)
            acc_s[...] = jnp.zeros_like(acc_s)

    def scores(at, masked, row, i):
        column = i * width
        columns = slice(column, column + width)
        top_query = held * BQ + column
        top_key = at * BK + row
        walked = _walked(at, tile)
        chunk = pl.ds(_start(walked * (BK // height) + row // height, height), height)
        q_idx = top_query + lax.broadcasted_iota(jnp.int32, (1, width), 1)
        k_idx = top_key + lax.broadcasted_iota(jnp.int32, (height, LANES), 0)
        qk = _by_transposed(k_ref[chunk, :], q_ref[columns, :])
        x = qk * head_term
        if masked:
            row_term = q_idx + Sk - Sq
            allowed = _inside(_across(k_idx, width) <= row_term, _across(k_idx, width), Sk, BK, (height, width))
            x = jnp.where(allowed, x, -jnp.inf)
        return x

    def values(at, row):
        v = v_ref[pl.ds(_start(_walked(at, tile) * (BK // height) + row // height, height), height), :]
        return jnp.concatenate([v.T, jnp.ones((acc_s.shape[0] - Dv, height), v.dtype)], 0)

    def absorb(x, v, columns, old_max):
        new_max = jnp.maximum(LOWEST if old_max is None else old_max, x.max(0, keepdims=True))
        both = _product(v, jnp.exp2(x - new_max).astype(v.dtype))
        return new_max, both if old_max is None else acc_s[:, columns] * jnp.exp2(old_max - new_max) + both

    def attend(tiles, first=False, last=False):
        """Some pieces' scores are computed ahead of their weights, so that the matrix units have work meanwhile."""
        across = [slice(column, column + width) for column in range(0, BQ, width)]
        row_max = [None if first else max_s[:, columns] for columns in across]
        pieces = [(*tile, row, i) for tile in tiles for row in range(0, BK, height) for i in range(len(across))]
        ahead = [scores(*piece) for piece in pieces[:AHEAD]]
        for number, (at, _, row, i) in enumerate(pieces):
            ahead += [scores(*piece) for piece in pieces[number + AHEAD :][:1]]
            if i == 0:
                v = values(at, row)
            row_max[i], acc = absorb(ahead.pop(0), v, across[i], row_max[i])
            if last and number >= len(pieces) - len(across):
                finish(across[i], row_max[i], acc)
            else:
                acc_s[:, across[i]] = acc
        if not last:
            max_s[...] = jnp.concatenate(row_max, 1)
        elif not pieces:
            finish_all()

    def finish(columns, row_max, acc):
        row_sum = acc[Dv : Dv + 1, :]
        total = row_max
        # The denominator's extra term is one more key without a value.
        extra = extra_term
        merged = jnp.maximum(total, extra)
        rescale = jnp.exp2(total - merged)
        row_sum = row_sum * rescale + jnp.exp2(extra - merged)
        row_sum = jnp.where((row_max == LOWEST) & (extra == -jnp.inf), 1.0, row_sum)
        share = rescale / row_sum
        out_ref[columns, :] = (acc[:Dv, :] * share).astype(out_ref.dtype).T

    def finish_all():
        finish(slice(None), max_s[...], acc_s[...])

    q0 = held * BQ
    q1 = _min(q0 + BQ, Sq) - 1
    full, partial = _key_tiles(q0, q1, size, BK)
    _walk(full, partial, tile, start, attend, finish_all)


def _forward_across(config, q, k, v, floats, data):
    """out (B, Sq, Hq, Dv), by the kernel above."""
    size, tile = config.size, config.forward
    B = size.B
    Hq = size.Hq
    Sq = size.Sq
    Sk = size.Sk
    Dv = size.Dv
    BQ, BK = tile.queries, tile.keys
    temperature_h = floats["temperature_h"]
    escape_h = floats["escape_h"]
    scale = data["scale"]
    head_term = scale * (1.0 / temperature_h * 1.4426950408889634)
    extra_term = escape_h / temperature_h * 1.4426950408889634
    numbers = [_numbers(head_term), _numbers(extra_term), ]

    def at(batch, head, held, step, head_term_ref, extra_term_ref):
        q0 = held * BQ
        q1 = _min(q0 + BQ, Sq) - 1
        full, partial = _key_tiles(q0, q1, size, BK)
        return _visited(step, full, partial, _up(Sk, BK))

    cut = _Blocks(size, tile, BQ, BK, _up(Sk, BK), at)
    n_tiles = _up(Sq, BQ)
    ones = 32 // q.dtype.itemsize  # rows of a register
    (out,) = _launch(
        functools.partial(_forward_across_kernel, size=size, tile=tile), config, tile, n_tiles, numbers,
        [cut.held(_heads_first(q, BQ)), cut.walked(_heads_first(k, BK)), cut.walked(_heads_first(v, BK))],
        [((B, Hq, n_tiles * BQ, Dv), q.dtype, cut.held)],
        [((1, BQ), jnp.float32), ((Dv + ones, BQ), jnp.float32)],
    )
    return _heads_inside(out, Sq)


# ---------------------------------------------------------------- backward


def _dq_kernel(
    head_term_ref, head_term_2_ref, head_term_3_ref, d_factor_ref, head_term_4_ref, head_term_5_ref, extra_term_ref,
    scale_ref, q_ref, k_ref, v_ref, d_out_ref, lse_ref, delta_ref, dq_ref, sum_temperature_h_ref,
    sum_escape_h_ref, dq_s, sum_temperature_h_s, sum_escape_h_s,
    *, size, tile,
):
    """One tile of queries of one head: meets the same tiles of keys as the forward kernel."""
    Sq = size.Sq
    Sk = size.Sk
    BQ, BK = tile.queries, tile.keys
    height = BQ
    width = BK
    head = pl.program_id(1)
    held = pl.program_id(2)
    q0 = held * BQ
    q1 = _min(q0 + BQ, Sq) - 1
    q_idx = q0 + lax.broadcasted_iota(jnp.int32, (BQ, LANES), 0)
    head_term_2 = head_term_2_ref[head]
    head_term_3 = head_term_3_ref[head]
    d_factor = d_factor_ref[head]
    scale = scale_ref[0]
    row_lse = _held(lse_ref[...])
    delta = _held(delta_ref[...])
    row_term = q_idx + Sk - Sq

    def start():
        dq_s[...] = jnp.zeros_like(dq_s)
        sum_temperature_h_s[...] = jnp.zeros_like(sum_temperature_h_s)
        sum_escape_h_s[...] = jnp.zeros_like(sum_escape_h_s)

    def attend(at, masked, first=False):
        k0 = at * BK
        walked = _walked(at, tile)
        k_idx = k0 + lax.broadcasted_iota(jnp.int32, (1, BK), 1)
        k = _chunk(k_ref, walked, BK)
        v = _chunk(v_ref, walked, BK)
        qk = _by_transposed(q_ref[...], k)
        dp = _by_transposed(d_out_ref[...], v)
        p = jnp.exp2(qk * head_term_2 - _across(row_lse, width))
        if masked:
            allowed = _inside(k_idx <= _across(row_term, width), k_idx, Sk, BK, (height, width))
            p = jnp.where(allowed, p, 0.0)
        dp = dp - _across(delta, width)
        g = p * dp
        ds = g * (jnp.broadcast_to(1.0, (height, width)))
        if masked:
            ds = jnp.where(allowed, ds, 0.0)  # the derivative may be infinite where the mask forbids
        contribution = g * (head_term_3 * (qk * scale))
        if masked:
            contribution = jnp.where(allowed, contribution, 0.0)
        sum_temperature_h_s[...] += _by_lanes(contribution)
        contribution = g * 0.0
        if masked:
            contribution = jnp.where(allowed, contribution, 0.0)
        sum_escape_h_s[...] += _by_lanes(contribution)
        dq_s[...] += _product(ds.astype(k.dtype), k)

    def finish():
        dq_ref[...] = (dq_s[...] * d_factor).astype(dq_ref.dtype)
        sum_temperature_h_ref[...] = jnp.where(q_idx < Sq, sum_temperature_h_s[...], 0.0).sum(0, keepdims=True)
        sum_escape_h_ref[...] = jnp.where(q_idx < Sq, sum_escape_h_s[...], 0.0).sum(0, keepdims=True)

    full, partial = _key_tiles(q0, q1, size, BK)
    _walk(full, partial, tile, start, _in_turn(attend, finish), finish)


def _dq(config, q, k, v, d_out, lse, delta, floats, data):
    """dQ (B, Sq, Hq, D), and the gradients of operands by name."""
    size, tile = config.size, config.dq
    B = size.B
    Hq = size.Hq
    Sq = size.Sq
    Sk = size.Sk
    D = size.D
    BQ, BK = tile.queries, tile.keys
    temperature_h = floats["temperature_h"]
    escape_h = floats["escape_h"]
    scale = data["scale"]
    head_term = 1.0 / temperature_h
    head_term_2 = scale * (head_term * 1.4426950408889634)
    head_term_3 = -(head_term / temperature_h)
    d_factor = scale * head_term
    head_term_4 = escape_h / temperature_h
    head_term_5 = -(head_term_4 / temperature_h)
    extra_term = head_term_4 * 1.4426950408889634
    numbers = [_numbers(head_term), _numbers(head_term_2), _numbers(head_term_3), _numbers(d_factor), _numbers(head_term_4), _numbers(head_term_5), _numbers(extra_term), _numbers(scale), ]

    def at(batch, head, held, step, head_term_ref, head_term_2_ref, head_term_3_ref, d_factor_ref, head_term_4_ref,
        head_term_5_ref, extra_term_ref, scale_ref):
        q0 = held * BQ
        q1 = _min(q0 + BQ, Sq) - 1
        full, partial = _key_tiles(q0, q1, size, BK)
        return _visited(step, full, partial, _up(Sk, BK))

    cut = _Blocks(size, tile, BQ, BK, _up(Sk, BK), at)
    n_tiles = _up(Sq, BQ)
    dq, *sums = _launch(
        functools.partial(_dq_kernel, size=size, tile=tile), config, tile, n_tiles, numbers,
        [cut.held(_heads_first(q, BQ)), cut.walked(_heads_first(k, BK)), cut.walked(_heads_first(v, BK)), cut.held(_heads_first(d_out, BQ)), cut.held_vector(_vectors(lse[..., None], 2, BQ, jnp.inf)), cut.held_vector(_vectors(delta[..., None], 2, BQ, 0.0))],
        [((B, Hq, n_tiles * BQ, D), q.dtype, cut.held), ((B, Hq, n_tiles, 1, LANES), jnp.float32, cut.held_vector), ((B, Hq, n_tiles, 1, LANES), jnp.float32, cut.held_vector)],
        [((BQ, D), jnp.float32), ((BQ, LANES), jnp.float32), ((BQ, LANES), jnp.float32)],
    )
    gradients = {}
    gradients["temperature_h"] = _reduced(sums[0].sum((2, 3, 4))[..., None, None], temperature_h)
    gradients["temperature_h"] += _reduced(-delta[..., None] * jnp.exp2(extra_term - lse[..., None]) * head_term_5, temperature_h)
    gradients["escape_h"] = _reduced(sums[1].sum((2, 3, 4))[..., None, None], escape_h)
    gradients["escape_h"] += _reduced(-delta[..., None] * jnp.exp2(extra_term - lse[..., None]) * head_term, escape_h)
    return _heads_inside(dq, Sq), gradients


def _dkdv_kernel(
    head_term_ref, head_term_2_ref, d_factor_ref, q_ref, k_ref, v_ref, d_out_ref, lse_ref, delta_ref, dk_ref,
    dv_ref, dk_s, dv_s,
    *, size, tile,
):
    """One tile of keys meets the tiles of one head's queries that can see it."""
    Sq = size.Sq
    Sk = size.Sk
    BQ, BK = tile.queries, tile.keys
    height = BK
    width = BQ
    head = pl.program_id(1)
    held = pl.program_id(2)
    k0 = held * BK
    k1 = _min(k0 + BK, Sk) - 1
    k_idx = k0 + lax.broadcasted_iota(jnp.int32, (BK, LANES), 0)
    head_term_2 = head_term_2_ref[head]
    d_factor = d_factor_ref[head]

    def start():
        dk_s[...] = jnp.zeros_like(dk_s)
        dv_s[...] = jnp.zeros_like(dv_s)

    def attend(at, masked, first=False):
        q0 = at * BQ
        walked = _walked(at, tile)
        q_idx = q0 + lax.broadcasted_iota(jnp.int32, (1, BQ), 1)
        q = _chunk(q_ref, walked, BQ)
        d_out = _chunk(d_out_ref, walked, BQ)
        qk = _by_transposed(k_ref[...], q)
        dp = _by_transposed(v_ref[...], d_out)
        row_lse = lse_ref[walked]
        delta = delta_ref[walked]
        p = jnp.exp2(qk * head_term_2 - row_lse)
        if masked:
            row_term = q_idx + Sk - Sq
            allowed = _inside(_across(k_idx, width) <= row_term, q_idx, Sq, BQ, (height, width))
            p = jnp.where(allowed, p, 0.0)
        dp = dp - delta
        g = p * dp
        ds = g * (jnp.broadcast_to(1.0, (height, width)))
        if masked:
            ds = jnp.where(allowed, ds, 0.0)  # the derivative may be infinite where the mask forbids
        dv_s[...] += _product(p.astype(d_out.dtype), d_out)
        ds = ds.astype(q.dtype)
        dk_s[...] += _product(ds, q)

    def finish():
        dk_ref[...] = (dk_s[...] * d_factor).astype(dk_ref.dtype)
        dv_ref[...] = dv_s[...].astype(dv_ref.dtype)

    full, partial = _query_tiles(k0, k1, size, BQ)
    _walk(full, partial, tile, start, _in_turn(attend, finish), finish)


def _dkdv(config, q, k, v, d_out, lse, delta, floats, data):
    """dK (B, Sk, Hkv, D) and dV (B, Sk, Hkv, Dv), and the gradients of operands by name."""
    size, tile = config.size, config.dkdv
    B = size.B
    Hq = size.Hq
    Hkv = size.Hkv
    Sq = size.Sq
    Sk = size.Sk
    D = size.D
    Dv = size.Dv
    BQ, BK = tile.queries, tile.keys
    temperature_h = floats["temperature_h"]
    scale = data["scale"]
    head_term = 1.0 / temperature_h
    head_term_2 = scale * (head_term * 1.4426950408889634)
    d_factor = scale * head_term
    numbers = [_numbers(head_term), _numbers(head_term_2), _numbers(d_factor), ]

    def at(batch, head, held, step, head_term_ref, head_term_2_ref, d_factor_ref):
        k0 = held * BK
        k1 = _min(k0 + BK, Sk) - 1
        full, partial = _query_tiles(k0, k1, size, BQ)
        return _visited(step, full, partial, _up(Sq, BQ))

    cut = _Blocks(size, tile, BK, BQ, _up(Sq, BQ), at)
    n_tiles = _up(Sk, BK)
    dtype = k.dtype if Hq == Hkv else jnp.float32  # the heads of a group are summed before they are rounded
    dk, dv = _launch(
        functools.partial(_dkdv_kernel, size=size, tile=tile), config, tile, n_tiles, numbers,
        [cut.walked(_heads_first(q, BQ)), cut.held(_heads_first(k, BK)), cut.held(_heads_first(v, BK)), cut.walked(_heads_first(d_out, BQ)), cut.walked_vector(_vectors(lse[..., None], 2, BQ, jnp.inf)), cut.walked_vector(_vectors(delta[..., None], 2, BQ, 0.0))],
        [((B, Hq, n_tiles * BK, D), dtype, cut.held), ((B, Hq, n_tiles * BK, Dv), dtype, cut.held)],
        [((BK, D), jnp.float32), ((BK, Dv), jnp.float32)],
    )
    gradients = {}
    dk, dv = (x.reshape(B, Hkv, Hq // Hkv, *x.shape[2:]).sum(2).astype(k.dtype) for x in (dk, dv))
    return _heads_inside(dk, Sk), _heads_inside(dv, Sk), gradients


def _backward_kernel(
    head_term_ref, head_term_2_ref, head_term_3_ref, d_factor_ref, head_term_4_ref, head_term_5_ref, extra_term_ref,
    scale_ref, q_ref, k_ref, v_ref, d_out_ref, lse_ref, delta_ref, dk_ref, dv_ref, dq_ref,
    sum_temperature_h_ref, sum_escape_h_ref, dk_s, dv_s, sum_temperature_h_s, sum_escape_h_s,
    *, size, tile,
):
    """One tile of keys meets the tiles of one head's queries that can see it, and adds to all of their gradients."""
    Sq = size.Sq
    Sk = size.Sk
    BQ, BK = tile.queries, tile.keys
    height = BK
    width = BQ
    head = pl.program_id(1)
    held = pl.program_id(2)
    k0 = held * BK
    k1 = _min(k0 + BK, Sk) - 1
    k_idx = k0 + lax.broadcasted_iota(jnp.int32, (BK, LANES), 0)
    head_term_2 = head_term_2_ref[head]
    head_term_3 = head_term_3_ref[head]
    d_factor = d_factor_ref[head]
    scale = scale_ref[0]

    def start():
        @pl.when(held == 0)
        def _():
            dq_ref[...] = jnp.zeros_like(dq_ref)

        dk_s[...] = jnp.zeros_like(dk_s)
        dv_s[...] = jnp.zeros_like(dv_s)
        sum_temperature_h_s[...] = jnp.zeros_like(sum_temperature_h_s)
        sum_escape_h_s[...] = jnp.zeros_like(sum_escape_h_s)

    def attend(at, masked, first=False):
        q0 = at * BQ
        walked = _walked(at, tile)
        q_idx = q0 + lax.broadcasted_iota(jnp.int32, (1, BQ), 1)
        q = _chunk(q_ref, walked, BQ)
        d_out = _chunk(d_out_ref, walked, BQ)
        qk = _by_transposed(k_ref[...], q)
        dp = _by_transposed(v_ref[...], d_out)
        row_lse = lse_ref[walked]
        delta = delta_ref[walked]
        p = jnp.exp2(qk * head_term_2 - row_lse)
        if masked:
            row_term = q_idx + Sk - Sq
            allowed = _inside(_across(k_idx, width) <= row_term, q_idx, Sq, BQ, (height, width))
            p = jnp.where(allowed, p, 0.0)
        dp = dp - delta
        g = p * dp
        ds = g * (jnp.broadcast_to(1.0, (height, width)))
        if masked:
            ds = jnp.where(allowed, ds, 0.0)  # the derivative may be infinite where the mask forbids
        contribution = g * (head_term_3 * (qk * scale))
        if masked:
            contribution = jnp.where(allowed, contribution, 0.0)
        sum_temperature_h_s[...] += _by_lanes(contribution)
        contribution = g * 0.0
        if masked:
            contribution = jnp.where(allowed, contribution, 0.0)
        sum_escape_h_s[...] += _by_lanes(contribution)
        dv_s[...] += _product(p.astype(d_out.dtype), d_out)
        if Sk % BK:
            ds = jnp.where(_across(k_idx, width) < Sk, ds, 0.0)  # of keys that do not exist it may be infinite
        ds = ds.astype(q.dtype)
        dk_s[...] += _product(ds, q)
        dq_ref[pl.ds(pl.multiple_of(q0, BQ), BQ), :] += _transposed_by(ds, k_ref[...])

    def finish():
        dk_ref[...] = (dk_s[...] * d_factor).astype(dk_ref.dtype)
        dv_ref[...] = dv_s[...].astype(dv_ref.dtype)
        sum_temperature_h_ref[...] = jnp.where(k_idx < Sk, sum_temperature_h_s[...], 0.0).sum(0, keepdims=True)
        sum_escape_h_ref[...] = jnp.where(k_idx < Sk, sum_escape_h_s[...], 0.0).sum(0, keepdims=True)

    full, partial = _query_tiles(k0, k1, size, BQ)
    _walk(full, partial, tile, start, _in_turn(attend, finish), finish)


def _backward(config, q, k, v, d_out, lse, delta, floats, data):
    """dQ (B, Sq, Hq, D), dK (B, Sk, Hkv, D) and dV (B, Sk, Hkv, Dv), and the gradients of operands by name."""
    size, tile = config.size, config.dkdv
    B = size.B
    Hq = size.Hq
    Hkv = size.Hkv
    Sq = size.Sq
    Sk = size.Sk
    D = size.D
    Dv = size.Dv
    BQ, BK = tile.queries, tile.keys
    temperature_h = floats["temperature_h"]
    escape_h = floats["escape_h"]
    scale = data["scale"]
    head_term = 1.0 / temperature_h
    head_term_2 = scale * (head_term * 1.4426950408889634)
    head_term_3 = -(head_term / temperature_h)
    d_factor = scale * head_term
    head_term_4 = escape_h / temperature_h
    head_term_5 = -(head_term_4 / temperature_h)
    extra_term = head_term_4 * 1.4426950408889634
    numbers = [_numbers(head_term), _numbers(head_term_2), _numbers(head_term_3), _numbers(d_factor), _numbers(head_term_4), _numbers(head_term_5), _numbers(extra_term), _numbers(scale), ]

    def at(batch, head, held, step, head_term_ref, head_term_2_ref, head_term_3_ref, d_factor_ref, head_term_4_ref,
        head_term_5_ref, extra_term_ref, scale_ref):
        k0 = held * BK
        k1 = _min(k0 + BK, Sk) - 1
        full, partial = _query_tiles(k0, k1, size, BQ)
        return _visited(step, full, partial, _up(Sq, BQ))

    cut = _Blocks(size, tile, BK, BQ, _up(Sq, BQ), at)
    n_tiles = _up(Sk, BK)
    dtype = k.dtype if Hq == Hkv else jnp.float32  # the heads of a group are summed before they are rounded
    dk, dv, dq, *sums = _launch(
        functools.partial(_backward_kernel, size=size, tile=tile), config, tile, n_tiles, numbers,
        [cut.walked(_heads_first(q, BQ)), cut.held(_heads_first(k, BK)), cut.held(_heads_first(v, BK)), cut.walked(_heads_first(d_out, BQ)), cut.walked_vector(_vectors(lse[..., None], 2, BQ, jnp.inf)), cut.walked_vector(_vectors(delta[..., None], 2, BQ, 0.0))],
        [((B, Hq, n_tiles * BK, D), dtype, cut.held), ((B, Hq, n_tiles * BK, Dv), dtype, cut.held), ((B, Hq, _up(Sq, BQ) * BQ, D), jnp.float32, cut.whole), ((B, Hq, n_tiles, 1, LANES), jnp.float32, cut.held_vector), ((B, Hq, n_tiles, 1, LANES), jnp.float32, cut.held_vector)],
        [((BK, D), jnp.float32), ((BK, Dv), jnp.float32), ((BK, LANES), jnp.float32), ((BK, LANES), jnp.float32)],
        ordered=True,
    )
    gradients = {}
    gradients["temperature_h"] = _reduced(sums[0].sum((2, 3, 4))[..., None, None], temperature_h)
    gradients["temperature_h"] += _reduced(-delta[..., None] * jnp.exp2(extra_term - lse[..., None]) * head_term_5, temperature_h)
    gradients["escape_h"] = _reduced(sums[1].sum((2, 3, 4))[..., None, None], escape_h)
    gradients["escape_h"] += _reduced(-delta[..., None] * jnp.exp2(extra_term - lse[..., None]) * head_term, escape_h)
    dk, dv = (x.reshape(B, Hkv, Hq // Hkv, *x.shape[2:]).sum(2).astype(k.dtype) for x in (dk, dv))
    dq = (dq * d_factor).astype(q.dtype)
    return _heads_inside(dq, Sq), _heads_inside(dk, Sk), _heads_inside(dv, Sk), gradients


# ---------------------------------------------------------------- meshes of devices


def _axes(*arrays):
    """The axes of a mesh over which arrays vary, inside `shard_map`."""
    types = [jax.typeof(x) for x in jax.tree.leaves(arrays)]
    return frozenset().union(*(t.manual_axis_type.varying for t in types))


def _alike(*arrays):
    """The arrays, each varying wherever one of them does; JAX then sums their gradients over those axes."""
    axes = _axes(*arrays)

    def moved(x):
        missing = tuple(sorted(axes - _axes(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(moved, arrays)


def _on_mesh(compute, return_lse, q, *arguments):
    """compute(spread, q, *arguments). On a mesh with explicit axes JAX asks for the result's sharding: that of q over batch,
    length and heads. `spread` names the axes of batches and heads; it is None elsewhere.
    """
    place = jax.typeof(q).sharding
    if place.mesh.manual_axes:
        compute = jax.jit(compute, static_argnums=0)  # inside `shard_map` no array has a value, not even while nothing is traced
    axes = place.mesh.explicit_axes
    if not axes:
        return compute(None, q, *arguments)
    batch, length, heads, _ = place.spec
    specs = jax.P(batch, length, heads, None), jax.P(batch, heads, length)
    out, lse = (jax.sharding.NamedSharding(place.mesh, spec) for spec in specs)
    inner = functools.partial(compute, (batch, heads))
    return jax.sharding.auto_axes(inner, axes=axes, out_sharding=(out, lse) if return_lse else out)(q, *arguments)


SPREADS = True, True  # whether devices may share batches and heads: not where the core reads which one it has


def _spread(run, config, counts, inside, outside):
    """run(config, inside, outside): a pair of tuples of arrays, for a pair. Arrays inside have their heads third, those
    outside second. On a mesh each device has batches and heads of its own: of explicit axes those of q. What else XLA
    spreads it can cut in Pallas' own interpreter; kernels for a TPU, and its interpreter, it refuses. `counts`: arrays inside that are
    taken, and that are returned.
    """
    if config.spread is not None:
        results = jax.eval_shape(functools.partial(run, config), inside, outside)
        mesh = jax.sharding.get_abstract_mesh()
        own, taken, returned = _cut(run, config, mesh, *config.spread, (inside, outside), results)
        return jax.shard_map(own, in_specs=taken, out_specs=returned, check_vma=False)(inside, outside)
    if config.interpret is not True or jax.sharding.get_abstract_mesh().manual_axes:
        return run(config, inside, outside)
    if _readable(inside[0]):
        if len(inside[0].sharding.device_set) == 1:
            return run(config, inside, outside)
        return jax.jit(_partitioned, static_argnums=(0, 1, 2))(run, config, counts, inside, outside)
    call = jax.custom_batching.custom_vmap(functools.partial(_partitioned, run, config, counts))

    @call.def_vmap
    def _(_, mapped, *arrays):
        axes = jax.tree.map(lambda x: 0 if x else None, tuple(mapped))
        results = jax.vmap(functools.partial(run, config), in_axes=axes)(*arrays)
        return results, jax.tree.map(lambda _: True, results)

    return call(inside, outside)


@functools.partial(custom_partitioning, static_argnums=(0, 1, 2))
def _partitioned(run, config, counts, inside, outside):
    return run(config, inside, outside)


def _sharing(run, config, counts, mesh, arguments, results):
    """XLA's rule: which dimensions of the arrays are batches (b) and heads (h, in groups of g
    where heads of keys are fewer, but more than one)."""
    size = config.size

    def factors(number, x, axis):
        names = [f"n{number}d{i}" for i in range(len(x.shape))]
        if len(names) > axis:
            if SPREADS[0] and x.shape[0] == size.B:
                names[0] = "b"
            if SPREADS[1] and x.shape[axis] == size.Hq:
                names[axis] = "h" if size.Hkv in (1, size.Hq) else "(h g)"
            elif SPREADS[1] and x.shape[axis] == size.Hkv > 1:
                names[axis] = "h"
        return " ".join(names)

    taken = [factors(i, x, 2 if i < counts[0] else 1) for i, x in enumerate(arguments)]
    given = [factors(i + len(taken), x, 2 if i < counts[1] else 1) for i, x in enumerate(results)]
    rule = f"{', '.join(taken)} -> {', '.join(given)}"
    return (rule, {"g": size.Hq // size.Hkv}) if "g" in rule else rule


def _partition(run, config, counts, mesh, arguments, results):
    """The program of one device, as XLA asks for it."""
    batch, _, heads, _ = arguments[0][0].sharding.spec
    own, *specs = _cut(run, config, mesh, batch, heads, arguments, results)
    taken, returned = jax.tree.map(functools.partial(jax.sharding.NamedSharding, mesh), specs)
    return mesh, own, returned, taken


def _cut(run, config, mesh, batch, heads, arguments, results):
    """The program of one device, and what it has of arguments and results. What all batches or heads share gets the sum
    of the devices' gradients.
    """
    size = config.size
    batch = _dividing(mesh, batch, size.B) if SPREADS[0] else ()
    heads = _dividing(mesh, heads, size.Hq if size.Hkv == 1 else size.Hkv) if SPREADS[1] else ()

    def axes(x, axis):
        """Of the mesh, for the dimensions of batches and heads."""
        whole = len(x.shape) <= axis
        return () if whole or x.shape[0] == 1 else batch, () if whole or x.shape[axis] == 1 else heads

    def place(x, axis):
        dimensions = [None] * len(x.shape)
        if len(x.shape) > axis:
            dimensions[0], dimensions[axis] = axes(x, axis)
        return jax.P(*dimensions)

    def total(x, shape, axis):
        missing = tuple(a for a in batch + heads if a not in sum(axes(shape, axis), ()))
        return lax.psum(x, missing) if missing else x

    def each(function, *pairs):
        inside, outside = zip(*pairs, strict=True)
        return jax.tree.map(lambda *x: function(*x, 2), *inside), jax.tree.map(lambda *x: function(*x, 1), *outside)

    def own(inside, outside):
        (B, _, Hq, _), (_, _, Hkv, _) = inside[0].shape, inside[1].shape
        part = config._replace(size=size._replace(B=B, Hq=Hq, Hkv=Hkv), spread=None)
        return each(total, run(part, inside, outside), results)

    return own, each(place, arguments), each(place, results)


def _dividing(mesh, axes, n):
    """As many of the axes, from the first on, as divide n evenly."""
    taken = []
    for axis in axes if isinstance(axes, tuple) else () if axes is None else (axes,):
        if n % (math.prod(mesh.shape[a] for a in taken) * mesh.shape[axis]):
            break
        taken.append(axis)
    return tuple(taken)


_partitioned.def_partition(_partition, sharding_rule=_sharing)


# ---------------------------------------------------------------- the function


def _chip():
    """The key of TILES that fits this machine's accelerator."""
    if CHIP is not None:
        return CHIP
    kind = jax.devices()[0].device_kind.lower()
    for name, words in (("v4", ("v4",)), ("v5e", ("v5 lite", "v5e")), ("v5p", ("v5",)), ("v6e", ("v6",)), ("7x", ("7",))):
        if "tpu" in kind and any(word in kind for word in words):
            return name
    return "cpu"  # Pallas' interpreter


def _interpreted():
    """Whether to interpret: said once, since it is slow."""
    if INTERPRET is not None:
        return INTERPRET
    if jax.default_backend() == "tpu" or CHIP not in (None, "cpu"):
        return False
    warnings.warn("custom_normalizer: no TPU found, so Pallas kernels run in its interpreter, which is exact but slow", stacklevel=4)
    return True


def _fitted(tile, size, chip):
    """A tile no longer than the sequences need; on a chip, of whole registers."""
    queries, keys, unroll = tile
    least = 16 if chip == "cpu" else LANES
    return min(queries, _power_of_two(size.Sq, least)), min(keys, _power_of_two(size.Sk, least)), unroll


def _power_of_two(n, least):
    """The least power of two that is at least both."""
    return max(least, 1 << max(n - 1, 0).bit_length())


def _configured(size, dtype, floats, data, returns_lse):
    """Tiles, and which kernels have a whole head in vector memory and which are brought it tile by tile."""
    chip = _chip()
    itemsize = jnp.dtype(dtype).itemsize
    room = VMEM[chip] << 20
    forward, dkdv, dq = (_fitted(tile, size, chip) for tile in TILES[chip, itemsize])
    wide, wide_v = (-(-d // LANES) * LANES for d in (size.D, size.Dv))
    of_dq = 8 * wide * size.Sq
    fused = 3 * of_dq <= room
    tiles = []
    for kernel, (queries, keys, unroll) in (("forward", forward), ("dkdv", dkdv), ("dq", dq)):
        held, walked, length = (keys, queries, size.Sq) if kernel == "dkdv" else (queries, keys, size.Sk)
        whole = (length + walked) * ((wide + wide_v) * itemsize + 16) + 0 * held * (length + walked)
        own = held * ((wide + wide_v) * (2 * itemsize + 4) + 3072) + 24 * held * walked
        own += of_dq // 2 if fused and kernel == "dkdv" else 0
        tile = Tile(queries, keys, unroll)
        if 2 * whole + 2 * own > room:
            counts = (_query_counts if kernel == "dkdv" else _key_counts)(size, tile, floats, data)
            n_tiles = _up(length, walked)
            needed = [_max(n_full + n_partial, 1) for n_full, n_partial in counts]
            tile = tile._replace(steps=max(needed, default=n_tiles))
        elif kernel == "forward":
            counts = _key_counts(size, tile, floats, data)
            if sum(map(sum, _tails(counts, unroll))) <= STRAIGHT:
                tile = tile._replace(counts=counts)
        if kernel == "forward" and chip in WIDE and itemsize == 2 and size.Dv in (LANES // 2, LANES):
            tile = tile._replace(across=True)
        tiles.append(tile)
    return Config(size, *tiles, fused, _interpreted(), VMEM[chip], returns_lse)


def _key_counts(size, tile, floats, data):
    """The numbers of (full, masked) tiles of keys that tiles of queries meet; none where values or floats decide that."""
    Sq = size.Sq
    with jax.ensure_compile_time_eval():
        q0 = jnp.arange(_up(Sq, tile.queries)).reshape(1, 1, -1, 1) * tile.queries
        q1 = jnp.minimum(q0 + tile.queries, Sq) - 1
        full, partial = _key_tiles(q0, q1, size, tile.keys)
        n_full, n_partial = jnp.broadcast_arrays(jnp.asarray(_total(full)), jnp.asarray(_total(partial)))
        return tuple(sorted({(int(a), int(b)) for a, b in zip(n_full.ravel(), n_partial.ravel(), strict=True)}))


def _query_counts(size, tile, floats, data):
    """The numbers of (full, masked) tiles of queries that tiles of keys meet; none where values or floats decide that."""
    Sk = size.Sk
    with jax.ensure_compile_time_eval():
        k0 = jnp.arange(_up(Sk, tile.keys)).reshape(1, 1, -1, 1) * tile.keys
        k1 = jnp.minimum(k0 + tile.keys, Sk) - 1
        full, partial = _query_tiles(k0, k1, size, tile.queries)
        n_full, n_partial = jnp.broadcast_arrays(jnp.asarray(_total(full)), jnp.asarray(_total(partial)))
        return tuple(sorted({(int(a), int(b)) for a, b in zip(n_full.ravel(), n_partial.ravel(), strict=True)}))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(config, q, k, v, floats, data):
    (out,), lse = _spread(_forward_alone, config, (3, 1), (q, k, v), (floats, data))
    return out, lse[0] if config.returns_lse else None


def _forward_alone(config, inside, outside):
    out, lse, *_ = _forward(config, *inside, *outside, inside[0].dtype, config.returns_lse)
    return (out,), (lse,) if config.returns_lse else ()


def _forward_saving(config, inside, outside):
    # A param's gradient sums over all pairs: in half precision it needs out before it is rounded.
    out, *rows = _forward(config, *inside, *outside, jnp.float32, True)
    return (out,), tuple(rows)


@jax.custom_jvp
def _first_order(x):
    """x, where nobody may differentiate once more: kernels have no derivatives."""
    return x


_first_order.defjvp(lambda *_: _refuse("a second derivative is not computed"))


@_in_32_bits
def _attend_forward(config, q, k, v, floats, data):
    q, k, v, floats = _first_order((q, k, v, floats))
    (out,), rows = _spread(_forward_saving, config, (3, 1), (q, k, v), (floats, data))
    return (out.astype(q.dtype), rows[0] if config.returns_lse else None), (q, k, v, floats, data, out, *rows)


def _backward_whole(config, inside, outside):
    """dQ, dK and dV; the gradients of the operands."""
    q, k, v, d_out = inside
    lse, delta, floats, data = outside
    gradients = {name: jnp.zeros_like(x) for name, x in floats.items()}
    if config.fused:
        dq, dk, dv, more = _backward(config, q, k, v, d_out, lse, delta, floats, data)
    else:
        dq, more = _dq(config, q, k, v, d_out, lse, delta, floats, data)
        gradients.update(more)
        dk, dv, more = _dkdv(config, q, k, v, d_out, lse, delta, floats, data)
    gradients.update(more)
    return (dq, dk, dv), (_alike(q, gradients)[1],)


@_in_32_bits
def _attend_backward(config, saved, cotangents):
    q, k, v, floats, data, out, lse = saved
    d_out, d_lse = _first_order(cotangents)
    # What a pair subtracts from d_out . v (Dao et al., 2022).
    delta = jnp.einsum("bqhd,bqhd->bhq", d_out.astype(jnp.float32), out.astype(jnp.float32), precision=lax.Precision.HIGHEST)
    if config.returns_lse:
        delta = delta - d_lse
    lse = jnp.where(lse == -jnp.inf, jnp.inf, lse * LOG2E)  # to base 2; a row that met no key gets no weight
    outside = lse, delta, floats, data
    gradients, (more,) = _spread(_backward_whole, config, (4, 3), (q, k, v, d_out), outside)
    return *gradients, more, None


_attend.defvjp(_attend_forward, _attend_backward)


def _by_axes(x, axes, lengths):
    """A param whose indices are positions, on four axes; it is zero outside itself."""
    for axis, length in enumerate(lengths):
        x = lax.slice_in_dim(x, 0, min(length, x.shape[axis]), axis=axis)
        x = jnp.pad(x, [(0, length - x.shape[axis] if a == axis else 0) for a in range(x.ndim)])
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    return jnp.expand_dims(jnp.transpose(x, order), tuple(a for a in range(4) if a not in axes))


_Refusal = ValueError  # an `attngen.Kernel` puts its own kind of ValueError here
_CALLER = 5  # the stack level of warnings; an `attngen.Kernel` adds 2


def _refuse(message) -> NoReturn:
    raise _Refusal(f"custom_normalizer: {message}")


def _readable(x):
    """Whether a value can be looked at: not while it is traced."""
    return not isinstance(x, jax.core.Tracer)


def _note_rounding(name, x):
    """Warns of a float64 param."""
    if x.dtype == jnp.float64:
        _warn_of_rounding(name)


@functools.cache
def _warn_of_rounding(name):
    """Warns once for each param."""
    warnings.warn(f"custom_normalizer: {name} is float64, and is rounded to float32, which has 24 bits: give {name}.astype('float32') if they suffice, or subtract what all elements share before", stacklevel=_CALLER + 1)


def _check(q, k, v, temperature, escape, scale):
    """One clear message for what does not fit, before anything is launched."""
    for name, x in (("q", q), ("k", k), ("v", v), ("temperature", temperature), ("escape", escape), ("scale", scale)):
        if type(x).__module__ == "torch":
            _refuse(f"{name} is a tensor of PyTorch, and must be an array of JAX, as jax.numpy.from_dlpack({name}) is; or compile the specification with target='triton'")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            _refuse(f"{name} must be an array, not {type(x).__name__}")
        if len(x.shape) != 4:
            _refuse(f"{name} must have 4 dimensions (batch, length, heads, head dim), not shape {tuple(x.shape)}")
        if x.dtype not in (jnp.bfloat16, jnp.float32):
            _refuse(f"{name} must be bfloat16 or float32, which TPUs multiply, not {x.dtype}")
        if x.dtype != q.dtype:
            _refuse(f"{name} must have q's dtype {q.dtype}, not {x.dtype}")
        if not all(isinstance(n, int) for n in x.shape[1:]):
            _refuse(f"{name} has shape {tuple(x.shape)}: only the batch may be symbolic; export one function for each length")
    B, Sq, Hq, D = q.shape
    _, Sk, Hkv, Dv = v.shape
    if tuple(k.shape[1:]) != (Sk, Hkv, D) or k.shape[0] not in (1, B):
        _refuse(f"k must have q's batch and head dim, and v's heads and length, {(B, Sk, Hkv, D)}, not {tuple(k.shape)}")
    if v.shape[0] not in (1, B):
        _refuse(f"v must have q's batch {B} (or 1), not {v.shape[0]}")
    if Hq % Hkv if Hkv else Hq:
        _refuse(f"q's {Hq} heads must be a multiple of the {Hkv} heads of k and v: their axis is 2")
    if not (0 < D <= 256 and 0 < Dv <= 256):
        _refuse(f"head dims must be from 1 to 256, not {D} and {Dv}")
    if max(Sq, Sk) >= 2**27:
        _refuse(f"sequences must be shorter than 2**27 = {2**27}, not {max(Sq, Sk)}")
    if isinstance(scale, int | float) and not abs(scale) < jnp.inf:
        _refuse(f"scale must be a finite number, not {scale!r}")
    if isinstance(scale, bool) or not (scale is None or isinstance(scale, int | float) or getattr(scale, "ndim", None) == 0):
        _refuse(f"scale must be one number, not {f'an array of shape {scale.shape}' if hasattr(scale, 'shape') else repr(scale)}")
    turned = "are q, k and v (batch, heads, length, head dim)? They must be (batch, length, heads, head dim): exchange the two, as in q.swapaxes(1, 2); " if 1 < Sq < Hq and Sk < Hkv else ""
    if not (hasattr(temperature, "shape") and hasattr(temperature, "dtype")):
        _refuse(f"temperature must be an array, not {type(temperature).__name__}")
    if temperature.dtype not in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float64,):
        _refuse(f"temperature must be float32 or float16 or bfloat16 or float64, not {temperature.dtype}")
    if len(temperature.shape) != 1:
        _refuse(f"temperature must have 1 dimension (Hq), not shape {tuple(temperature.shape)}")
    _note_rounding("temperature", temperature)
    if not all(n[0] in (1, n[1]) for n in zip(temperature.shape, (Hq,), strict=True)):
        _refuse(f"{turned}temperature must have shape (Hq) = {(Hq,)}, not {tuple(temperature.shape)}")
    if not (hasattr(escape, "shape") and hasattr(escape, "dtype")):
        _refuse(f"escape must be an array, not {type(escape).__name__}")
    if escape.dtype not in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float64,):
        _refuse(f"escape must be float32 or float16 or bfloat16 or float64, not {escape.dtype}")
    if len(escape.shape) != 1:
        _refuse(f"escape must have 1 dimension (Hq), not shape {tuple(escape.shape)}")
    _note_rounding("escape", escape)
    if not all(n[0] in (1, n[1]) for n in zip(escape.shape, (Hq,), strict=True)):
        _refuse(f"{turned}escape must have shape (Hq) = {(Hq,)}, not {tuple(escape.shape)}")
    return Size(B, Hq, Hkv, Sq, Sk, D, Dv)


def _check_facts(size, temperature, escape):
    """The facts that no call checks unless it is asked to."""
    if not all(_readable(x) for x in (temperature,)):
        _refuse("check=True needs concrete values: leave it out under jax.jit and other transforms")
    at = _broken(0.0 < jnp.asarray(temperature), temperature.shape)
    if at is not None:
        _refuse(f"temperature[{', '.join(map(str, at))}] is {temperature[at].item()}, and must satisfy 0.0 < temperature")


def _broken(holds, shape):
    """The first place where a fact does not hold."""
    wrong = jnp.argwhere(jnp.logical_not(jnp.broadcast_to(holds, shape)))
    return tuple(map(int, wrong[0])) if len(wrong) else None


def custom_normalizer(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    temperature: jax.Array,
    escape: jax.Array,
    scale: float | jax.Array | None = None,
    return_lse: bool = False,
    dropout_seed: int | jax.Array | None = None,
    check: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention `custom_normalizer`, fused, differentiable in every float argument.

    q (B, Sq, Hq, D), k (B, Sk, Hkv, D), v (B, Sk, Hkv, Dv), all bfloat16 or float32.
    temperature (Hq): float32 or float16 or bfloat16 or float64, where 0.0 < temperature.
    escape (Hq): float32 or float16 or bfloat16 or float64.
    scale multiplies q . k where the score says so; 1 / sqrt(D) when not given. An array may learn.
    dropout_seed is accepted for the sake of a common signature, and has no effect.
    check looks at every element that a fact is about, which needs concrete values: not under jax.jit.

    Gives out (B, Sq, Hq, Dv) in q's dtype, and with return_lse also the log-sum-exp (B, Hq, Sq), natural, float32.
    A query that may attend to no key has a zero row in the result and zero gradients in q, k and v. Raises ValueError if an argument does not fit.
    """
    if check:
        _check_facts(_check(q, k, v, temperature, escape, scale), temperature, escape)
    return _call(q, k, v, temperature, escape, scale, return_lse, dropout_seed)


def _call(q, k, v, temperature, escape, scale, return_lse, dropout_seed, attend=_attend):
    """`attend` is the differentiated core; attngen has another one for pieces of a longer sequence."""
    if scale is None:
        scale = q.shape[-1] ** -0.5 if hasattr(q, "shape") and len(q.shape) and q.shape[-1] else 1.0
    size = _check(q, k, v, temperature, escape, scale)
    q, k, v = jnp.asarray(q), *(jnp.broadcast_to(x, (size.B, *x.shape[1:])) for x in (k, v))
    temperature = jnp.asarray(temperature)
    temperature = jnp.broadcast_to(temperature, (size.Hq,))
    escape = jnp.asarray(escape)
    escape = jnp.broadcast_to(escape, (size.Hq,))
    if not isinstance(scale, int | float) or scale <= 0:
        # The kernels take a positive scale; its sign, or its being zero, goes into q, and with it its gradient.
        scale = jnp.asarray(scale, jnp.float32)
        number = lax.stop_gradient(jnp.where(scale == 0.0, 1.0, jnp.abs(scale)))
        q, scale = (q.astype(jnp.float32) * (scale / number)).astype(q.dtype), number
    scale = jnp.asarray(scale, jnp.float32)
    compute = functools.partial(_computed, attend, size, return_lse)
    return _on_mesh(compute, return_lse, q, k, v, temperature, escape, scale)


@_in_32_bits
def _computed(attend, size, return_lse, spread, q, k, v, temperature, escape, scale):
    """The result, once the arguments are checked and converted. Each param is brought to the arrays that are read of it."""
    B = size.B
    Hq = size.Hq
    Sq = size.Sq
    Sk = size.Sk
    Dv = size.Dv
    temperature_h = _by_axes(temperature, (1,), (Hq,))
    escape_h = _by_axes(escape, (1,), (Hq,))
    floats = {"temperature_h": temperature_h.astype(jnp.float32), "escape_h": escape_h.astype(jnp.float32), }
    data = {"scale": scale.reshape(1, 1, 1, 1), }
    q, k, v, floats, data = _alike(q, k, v, floats, data)
    if 0 in (B, Hq, Sq, Sk):
        out, lse = jnp.zeros((B, Sq, Hq, Dv), q.dtype), jnp.broadcast_to(jnp.asarray(escape_h / temperature_h, jnp.float32), (B, Hq, Sq, 1))[..., 0]
    else:
        config = _configured(size, q.dtype, floats, data, return_lse)._replace(spread=spread)
        out, lse = attend(config, q, k, v, floats, data)
    return (out, lse) if return_lse else out


__all__ = ["custom_normalizer"]
