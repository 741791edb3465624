"""What each rank of a `shard_map` runs: attention over keys that other ranks hold, forward and backward.

Takes a `Way` (kernel, mesh axis, blocks, turns) and a rank's arrays, (B, S, H, D); returns out and lse. Every rank runs
this one program: which blocks it has, and which pieces it computes, it looks up in tables by its number. Keys of the
next turn move while those of this one are computed. Gradients of keys and values go home in float32, and are added in
the order of the turns.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attngen.distributed.blocks import Blocks, Turn
from attngen.kernel import Kernel

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
lax: Any = importlib.import_module("jax.lax")

Params = dict[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Way:
    """`turns` of a ring; None: all keys are gathered first. `numbers`: params that are Python numbers."""

    kernel: Kernel
    axis: str
    q_blocks: Blocks
    k_blocks: Blocks
    turns: tuple[Turn, ...] | None
    scale: float | None
    numbers: Mapping[str, Any]

    def place(self, q_block: Any, k_offset: Any) -> dict[str, Any]:
        """Where a piece is, and what it gets beside arrays."""
        sizes = {"Sq": self.q_blocks.rows, "Sk": self.k_blocks.rows}
        q_offset = _own(self, self.q_blocks.held)[q_block] * self.q_blocks.size
        return {"q_offset": q_offset, "k_offset": k_offset, **sizes, "scale": self.scale, **self.numbers}

    def q_rows(self, x: Any, block: Any, axis: int = 1) -> Any:
        return _rows(x, block, self.q_blocks.size, axis)


def attention(way: Way, q: Any, k: Any, v: Any, params: Params) -> tuple[Any, Any]:
    """out in q's dtype, and lse. Differentiable in q, k, v and every float param, of which ranks hold the same."""
    axes = frozenset({way.axis}).union(*(jax.typeof(x).manual_axis_type.varying for x in (q, k, v, *params.values())))
    q, k, v, params = jax.tree.map(functools.partial(_varying, axes), (q, k, v, params))
    floats = {n: x for n, x in params.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    return _attend(way, q, k, v, floats, {n: x for n, x in params.items() if n not in floats})


def _varying(axes: frozenset[str], x: Any) -> Any:
    missing = tuple(sorted(axes - jax.typeof(x).manual_axis_type.varying))
    return lax.pcast(x, missing, to="varying") if missing else x


def _like(x: Any, shape: tuple[int, ...], value: float = 0.0) -> Any:
    """A number everywhere, in float32, which differs between ranks wherever `x` does."""
    return _varying(jax.typeof(x).manual_axis_type.varying, jnp.full(shape, value, jnp.float32))


def _own(way: Way, table: Any) -> Any:
    """A table's row for this rank."""
    return jnp.asarray(table)[lax.axis_index(way.axis)]


def _rows(x: Any, block: Any, size: int, axis: int = 1) -> Any:
    return lax.dynamic_slice_in_dim(x, block * size, size, axis)


def _put(x: Any, rows: Any, block: Any, axis: int = 1) -> Any:
    return lax.dynamic_update_slice_in_dim(x, rows, block * rows.shape[axis], axis)


def _add(x: Any, rows: Any, block: Any) -> Any:
    return _put(x, _rows(x, block, rows.shape[1]) + rows, block)


# ---------------------------------------------------------------- where keys come from


Visit = Callable[[Any, Any, Any, Any], Any]
"""(state, block of queries, where the keys begin in what was fetched, their position) to state."""


@dataclass(frozen=True, eq=False)
class Fetched:
    """Keys and values that are here, and `each(visit, state)`: a call for each piece that this rank computes."""

    k: Any
    v: Any
    length: int
    """Keys of a piece."""
    each: Callable[[Visit, Any], Any]
    home: Callable[[Any], Any]
    """Gradients like k or v to this rank's own part of the sum over ranks, like its own keys."""


def _moved(way: Way, turn: Turn, own: tuple[Any, Any]) -> Fetched:
    size = way.k_blocks.size
    sent = _own(way, turn.sent)

    def moved(x: Any) -> Any:
        parts = [_rows(x, sent[i], size) for i in range(turn.sent.shape[1])]
        return lax.ppermute(jnp.concatenate(parts, 1), way.axis, turn.pairs)

    def home(x: Any) -> Any:
        x = lax.ppermute(x, way.axis, [(target, source) for source, target in turn.pairs])
        total = _like(x, (x.shape[0], way.k_blocks.each * size, *x.shape[2:]))
        for i in range(turn.sent.shape[1]):  # a slot that is not sent holds zeros
            total = _add(total, _rows(x, i, size), sent[i])
        return total

    def each(visit: Visit, state: Any) -> Any:
        pieces = _own(way, turn.pieces)

        def one(i: Any, state: Any) -> Any:
            q_block, slot, number = (pieces[i, j] for j in range(3))
            return visit(state, q_block, slot * size, number * size)

        if turn.pieces.shape[1] == 1 and turn.counts.all():
            return one(0, state)
        return lax.fori_loop(0, _own(way, turn.counts), one, state)

    k, v = (moved(x) for x in own) if turn.pairs else own
    return Fetched(k, v, size, each, home if turn.pairs else lambda x: x)


def _gathered(way: Way, own: tuple[Any, Any]) -> Fetched:
    """All keys in the order of their positions."""
    order = way.k_blocks.held.reshape(-1)
    size = way.k_blocks.size

    def dealt(x: Any, numbers: Any) -> Any:
        """Blocks in another order."""
        parts = x.reshape(x.shape[0], -1, size, *x.shape[2:])
        return parts[:, numbers].reshape(x.shape)

    def whole(x: Any) -> Any:
        return dealt(lax.all_gather(x, way.axis, axis=1, tiled=True), order.argsort())

    def home(x: Any) -> Any:
        return lax.psum_scatter(dealt(x, order), way.axis, scatter_dimension=1, tiled=True)

    def each(visit: Visit, state: Any) -> Any:
        def one(q_block: Any, state: Any) -> Any:
            return visit(state, q_block, 0, 0)

        blocks = way.q_blocks.each
        return one(0, state) if blocks == 1 else lax.fori_loop(0, blocks, one, state)

    k, v = (whole(x) for x in own)
    return Fetched(k, v, k.shape[1], each, home)


def _turns(way: Way, k: Any, v: Any, state: Any, compute: Callable[[Fetched, Any], Any]) -> Any:
    """compute(fetched, state) turn by turn. The next turn's keys set out when the turn before this one is computed.

    The barriers say so: without them the compiler starts all transfers at once, and keeps what the forward pass fetched
    for the backward pass, which takes memory for all keys.
    """
    fetches = [functools.partial(_gathered, way)]
    if way.turns is not None:
        fetches = [functools.partial(_moved, way, turn) for turn in way.turns]
    if not fetches:
        return state
    ready = fetches[0]((k, v))
    for following in fetches[1:]:
        k, v, state = lax.optimization_barrier((k, v, state))
        coming = following((k, v))
        state = compute(ready, state)
        ready = coming
    return compute(ready, state)


# ---------------------------------------------------------------- forward and backward


def _forward(way: Way, q: Any, k: Any, v: Any, params: Params) -> tuple[Any, Any]:
    kernel, (batch, rows, heads, _) = way.kernel, q.shape
    nothing = float("-inf") if kernel.spec.normalizer.sums else 0.0

    def compute(keys: Fetched, state: Any) -> Any:
        def visit(state: Any, q_block: Any, at: Any, k_offset: Any) -> Any:
            out, lse = state
            own_k, own_v = (lax.dynamic_slice_in_dim(x, at, keys.length, 1) for x in (keys.k, keys.v))
            part = kernel.partial(way.q_rows(q, q_block), own_k, own_v, **way.place(q_block, k_offset), **params)
            part = kernel.merge([(way.q_rows(out, q_block), way.q_rows(lse, q_block, 2)), part])
            return _put(out, part[0], q_block), _put(lse, part[1], q_block, 2)

        return keys.each(visit, state)

    state = _like(q, (batch, rows, heads, v.shape[3])), _like(q, (batch, heads, rows), nothing)
    out, lse = _turns(way, k, v, state, compute)
    return kernel.finish(out, lse, **params, **way.numbers)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(way: Way, q: Any, k: Any, v: Any, floats: Params, data: Params) -> tuple[Any, Any]:
    out, lse = _forward(way, q, k, v, {**floats, **data})
    return out.astype(q.dtype), lse


def _attend_forward(way: Way, q: Any, k: Any, v: Any, floats: Params, data: Params) -> Any:
    out, lse = _forward(way, q, k, v, {**floats, **data})
    return (out.astype(q.dtype), lse), (q, k, v, floats, data, out, lse)


def _attend_backward(way: Way, saved: Any, cotangents: tuple[Any, Any]) -> Any:
    q, k, v, floats, data, out, lse = saved
    d_out, d_lse = cotangents
    kernel, params = way.kernel, {**floats, **data}
    homes: list[tuple[Any, Any]] = []

    def compute(keys: Fetched, state: Any) -> Any:
        def visit(state: Any, q_block: Any, at: Any, k_offset: Any) -> Any:
            dq, dk, dv, totals = state
            own_k, own_v = (lax.dynamic_slice_in_dim(x, at, keys.length, 1) for x in (keys.k, keys.v))
            place = way.place(q_block, k_offset)
            q_own, d_own, out_own = (way.q_rows(x, q_block) for x in (q, d_out, out))
            lse_own, place["d_lse"] = (way.q_rows(x, q_block, 2) for x in (lse, d_lse))
            found = kernel.partial_backward(q_own, own_k, own_v, d_own, out_own, lse_own, **place, **params)
            block = at // keys.length
            sums = (_add(x, g, b) for x, g, b in zip((dq, dk, dv), found[:3], (q_block, block, block), strict=True))
            return *sums, {n: x + found[3][n] for n, x in totals.items()}

        dq, totals = state
        zeros = (_like(x, x.shape) for x in (keys.k, keys.v))
        dq, *found, totals = keys.each(visit, (dq, *zeros, totals))
        homes.append(tuple(keys.home(x) for x in found))
        return dq, totals

    state = _like(q, q.shape), {n: _like(q, x.shape) for n, x in floats.items()}
    dq, totals = _turns(way, k, v, state, compute)
    dk, dv = (functools.reduce(jnp.add, own) for own in zip(*homes, strict=True)) if homes else (0.0 * k, 0.0 * v)
    more = kernel.finish_backward(d_out, out, lse, d_lse=d_lse, **params, **way.numbers)
    gradients = {n: (totals[n] + more[n]).astype(x.dtype) for n, x in floats.items()}
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), gradients, None


_attend.defvjp(_attend_forward, _attend_backward)
