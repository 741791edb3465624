"""What each rank of a `shard_map` runs: attention over keys that other ranks hold, forward and backward.

Takes a `Way` (kernel, mesh axis, blocks, turns) and a rank's arrays, (B, S, H, D); returns out and lse. Every rank runs
this one program: which blocks it has, and which pieces it computes, it looks up in tables by its number. Keys of the
next turn move while those of this one are computed. Gradients of keys and values go home in float32, and are added in
the order of the turns.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngen import jax_pieces
from attngen.distributed.plan.blocks import Blocks, Move, Turn
from attngen.distributed.plan.schedule import Sequences
from attngen.kernel import Kernel
from attngen.pieces import Place

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
lax: Any = importlib.import_module("jax.lax")

Params = dict[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Way:
    """`axis`: None where one rank has everything. `numbers`: params that are Python numbers."""

    kernel: Kernel
    axis: str | None
    sequences: Sequences
    q_blocks: Blocks
    k_blocks: Blocks
    turns: tuple[Turn, ...]
    scale: float | None
    numbers: Mapping[str, Any]

    def place(self, q_block: Any, number: Any, sequence: Any, drawn: Params) -> Place:
        """Where a piece is: of queries, a block of this rank; of keys, the block of that number."""
        s, at = self.sequences, (_own(self, self.q_blocks.held)[q_block], number)
        offsets = [n * own.size for n, own in zip(at, (self.q_blocks, self.k_blocks), strict=True)]
        if not s.packed:
            (Sq, Sk), clipped = s.sizes(0), self.q_blocks.padded or self.k_blocks.padded
        else:
            ends = [jnp.asarray(np.asarray(x, np.int32)) for x in (s.q, s.k)]
            offsets = [x - first[sequence] for x, first in zip(offsets, ends, strict=True)]
            (Sq, Sk), clipped = (x[sequence + 1] - x[sequence] for x in ends), True
            drawn = {n: x + sequence if n == "b_offset" else x for n, x in drawn.items()}
        return Place(q_offset=offsets[0], k_offset=offsets[1], Sq=Sq, Sk=Sk, clipped=clipped, **drawn)

    def q_rows(self, x: Any, block: Any, axis: int = 1) -> Any:
        return _rows(x, block, self.q_blocks.size, axis)

    def k_rows(self, x: Any, block: Any) -> Any:
        return _rows(x, block, self.k_blocks.size)


def attention(way: Way, q: Any, k: Any, v: Any, params: Params, drawn: Params) -> tuple[Any, Any]:
    """out in q's dtype, and lse. Differentiable in q, k, v and every float param, of which ranks hold the same.

    `drawn`: with dropout, its seed, and how many heads and sequences of the whole come before those of q.
    """
    drawn = {
        n: jax_pieces.seed_words(way.kernel, x) if n == "dropout_seed" else jnp.asarray(x) for n, x in drawn.items()
    }
    own: frozenset[str] = frozenset(() if way.axis is None else (way.axis,))
    axes = own.union(*(jax.typeof(x).manual_axis_type.varying for x in (q, k, v, *params.values(), *drawn.values())))
    q, k, v, params, drawn = jax.tree.map(functools.partial(_varying, axes), (q, k, v, params, drawn))
    floats = {n: x for n, x in params.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    return _attend(way, q, k, v, floats, {n: x for n, x in params.items() if n not in floats}, drawn)


def _varying(axes: frozenset[str], x: Any) -> Any:
    missing = tuple(sorted(axes - jax.typeof(x).manual_axis_type.varying))
    return lax.pcast(x, missing, to="varying") if missing else x


def _like(x: Any, shape: tuple[int, ...], value: float = 0.0) -> Any:
    """A number everywhere, in float32, which differs between ranks wherever `x` does."""
    return _varying(jax.typeof(x).manual_axis_type.varying, jnp.full(shape, value, jnp.float32))


def _own(way: Way, table: Any) -> Any:
    """A table's row for this rank."""
    return jnp.asarray(table)[0 if way.axis is None else lax.axis_index(way.axis)]


def _rows(x: Any, block: Any, size: int, axis: int = 1) -> Any:
    return lax.dynamic_slice_in_dim(x, block * size, size, axis)


def _put(x: Any, rows: Any, block: Any, axis: int = 1) -> Any:
    return lax.dynamic_update_slice_in_dim(x, rows, block * rows.shape[axis], axis)


def _add(x: Any, rows: Any, block: Any) -> Any:
    return _put(x, _rows(x, block, rows.shape[1]) + rows, block)


# ---------------------------------------------------------------- where keys come from


def _moved(way: Way, move: Move, x: Any) -> Any:
    """Keys or values like `x`, this rank's own, as a move brings them."""
    if not move.pairs:
        return x
    sent = _own(way, move.sent)
    parts = [way.k_rows(x, sent[i]) for i in range(move.slots)]
    return lax.ppermute(jnp.concatenate(parts, 1), way.axis, move.pairs)


@dataclass(frozen=True, eq=False)
class Fetched:
    """Keys and values of a turn that are here."""

    turn: Turn
    k: Any
    v: Any


def _fetched(way: Way, turn: Turn, own: tuple[Any, Any]) -> Fetched:
    k, v = ([_moved(way, move, x) for move in turn.moves] for x in own)
    return Fetched(turn, _joined(k), _joined(v))


def _joined(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, 1)


def _sent_home(way: Way, turn: Turn, x: Any) -> list[Any]:
    """Gradients of a turn's keys, move by move, where they arrive."""
    ends = np.cumsum([move.slots * way.k_blocks.size for move in turn.moves])
    back = ([(target, source) for source, target in move.pairs] for move in turn.moves)
    parts = zip(jnp.split(x, ends[:-1], 1), back, strict=True)
    return [lax.ppermute(own, way.axis, pairs) if pairs else own for own, pairs in parts]


def _arrived(way: Way, turn: Turn, total: Any, parts: Sequence[Any]) -> Any:
    """The sum for this rank's own keys, with what a turn sent home."""
    for move, x in zip(turn.moves, parts, strict=True):
        if not move.pairs:
            total = total + x
            continue
        sent = _own(way, move.sent)
        for i in range(move.slots):  # a slot that is not sent holds zeros
            total = _add(total, way.k_rows(x, i), sent[i])
    return total


Visit = Callable[[Any, Any, Any, Place], Any]
"""(state, block of queries, slot of the block of keys, where they are) to state."""


def _each(way: Way, turn: Turn, drawn: Params, visit: Visit, state: Any) -> Any:
    """A call for each piece of a turn that this rank computes."""
    pieces = _own(way, turn.pieces)

    def one(i: Any, state: Any) -> Any:
        q_block, slot, number, sequence = (pieces[i, j] for j in range(4))
        return visit(state, q_block, slot, way.place(q_block, number, sequence, drawn))

    if turn.pieces.shape[1] == 1 and turn.counts.all():
        return one(0, state)
    return lax.fori_loop(0, _own(way, turn.counts), one, state)


Compute = Callable[[Fetched, Any], tuple[Any, Any]]
"""(keys, state) to the state, and what a turn sends home."""


def _turns(
    way: Way, turns: Sequence[Turn], own: tuple[Any, Any], state: Any, compute: Compute, add: Callable[..., Any]
) -> Any:
    """The state after all turns. While a turn is computed, the keys of the next one are on their way, and what the one
    before sends home, which add(state, turn, what) puts into the state afterwards.

    The barriers say so: without them the compiler starts all transfers at once, and keeps what the forward pass fetched
    for the backward pass, which takes memory for all keys; and it sends nothing home before all turns are computed.
    """
    if not turns:
        return state
    coming = _fetched(way, turns[0], own)
    leaving: list[tuple[Turn, Any]] = []
    for following in (*turns[1:], None):
        ready = coming
        if following is not None:
            own, state = lax.optimization_barrier((own, state))
            coming = _fetched(way, following, own)
        state, sent = compute(ready, state)
        for before in leaving:
            state = add(state, *before)
        leaving = [(ready.turn, sent)]
    return add(state, *leaving[0])


# ---------------------------------------------------------------- forward and backward


def _kept(state: Any, *_: Any) -> Any:
    """The forward pass sends nothing home."""
    return state


def _forward(way: Way, q: Any, k: Any, v: Any, params: Params, drawn: Params) -> tuple[Any, Any]:
    kernel, (batch, rows, heads, _) = way.kernel, q.shape
    nothing = float("-inf") if kernel.spec.normalizer.sums else 0.0

    def compute(keys: Fetched, state: Any) -> tuple[Any, None]:
        def visit(state: Any, q_block: Any, slot: Any, place: Place) -> Any:
            out, lse = state
            operands = way.q_rows(q, q_block), *(way.k_rows(x, slot) for x in (keys.k, keys.v))
            part = jax_pieces.partial(kernel, operands, place, way.scale, params)
            part = kernel.merge([(way.q_rows(out, q_block), way.q_rows(lse, q_block, 2)), part])
            return _put(out, part[0], q_block), _put(lse, part[1], q_block, 2)

        return _each(way, keys.turn, drawn, visit, state), None

    state = _like(q, (batch, rows, heads, v.shape[3])), _like(q, (batch, heads, rows), nothing)
    out, lse = _turns(way, way.turns, (k, v), state, compute, _kept)
    return kernel.finish(out, lse, **params)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(way: Way, q: Any, k: Any, v: Any, floats: Params, data: Params, drawn: Params) -> tuple[Any, Any]:
    out, lse = _forward(way, q, k, v, {**floats, **data, **way.numbers}, drawn)
    return out.astype(q.dtype), lse


def _attend_forward(way: Way, q: Any, k: Any, v: Any, floats: Params, data: Params, drawn: Params) -> Any:
    out, lse = _forward(way, q, k, v, {**floats, **data, **way.numbers}, drawn)
    return (out.astype(q.dtype), lse), (q, k, v, floats, data, drawn, out, lse)


def _attend_backward(way: Way, saved: Any, cotangents: tuple[Any, Any]) -> Any:
    q, k, v, floats, data, drawn, out, lse = saved
    d_out, d_lse = cotangents
    kernel, params = way.kernel, {**floats, **data, **way.numbers}

    def compute(keys: Fetched, state: Any) -> tuple[Any, Any]:
        def visit(state: Any, q_block: Any, slot: Any, place: Place) -> Any:
            dq, dk, dv, totals = state
            operands = way.q_rows(q, q_block), *(way.k_rows(x, slot) for x in (keys.k, keys.v))
            cotangents = way.q_rows(d_out, q_block), way.q_rows(d_lse, q_block, 2)
            results = way.q_rows(out, q_block), way.q_rows(lse, q_block, 2)
            found = jax_pieces.partial_backward(
                kernel, operands, cotangents, results, place, way.scale, params, accumulate=None
            )
            sums = (_add(x, g, b) for x, g, b in zip((dq, dk, dv), found[:3], (q_block, slot, slot), strict=True))
            return *sums, {n: x + found[3][n] for n, x in totals.items()}

        dq, *sums, totals = state
        zeros = (_like(x, x.shape) for x in (keys.k, keys.v))
        dq, *found, totals = _each(way, keys.turn, drawn, visit, (dq, *zeros, totals))
        return (dq, *sums, totals), [_sent_home(way, keys.turn, x) for x in found]

    def add(state: Any, turn: Turn, sent: Any) -> Any:
        dq, *sums, totals = state
        return dq, *(_arrived(way, turn, x, own) for x, own in zip(sums, sent, strict=True)), totals

    # Own keys come last: then the last gradients go home while a kernel runs, too.
    turns = sorted(way.turns, key=lambda turn: not any(move.pairs for move in turn.moves))
    state = *(_like(x, x.shape) for x in (q, k, v)), {n: _like(q, x.shape) for n, x in floats.items()}
    dq, dk, dv, totals = _turns(way, turns, (k, v), state, compute, add)
    more = kernel.finish_backward(d_out, out, lse, d_lse=d_lse, **params)
    gradients = {n: (totals[n] + more[n]).astype(x.dtype) for n, x in floats.items()}
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), gradients, None, None


_attend.defvjp(_attend_forward, _attend_backward)
