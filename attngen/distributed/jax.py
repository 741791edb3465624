"""Context parallelism: one sequence's rows on many devices, attention over all of them (`jax.shard_map`).

    attend = context_parallel(kernel, mesh, "context")
    here = attend.over(4096)                         # what the host knows of a batch
    tokens = here.shard(tokens, 1)                   # rows in the order in which the devices hold them
    # inside shard_map over "context", of which q, k and v have their rows (axis 1):
    out = here(q, k, v, slope=slope)                 # differentiable

A kernel's pieces are computed where their queries lie, and merged. For targets jax and pallas, without dropout. All
devices run one program, so their stretches are equal blocks (`blocks`); JAX itself asks that a device's rows are as
many as any other's.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from attngen.distributed import jax_heads
from attngen.distributed.blocks import Blocks, balanced_blocks, blocks, turns
from attngen.distributed.jax_run import Way, attention
from attngen.distributed.layout import Layout, contiguous, headtail
from attngen.distributed.schedule import EXCHANGES, Exchange, Masked, Schedule, Sequences, row_work, schedule
from attngen.errors import UsageError
from attngen.ir.walk import params as read_params
from attngen.kernel import Kernel

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
lax: Any = importlib.import_module("jax.lax")

LayoutName = Literal["auto", "contiguous", "headtail"]


def context_parallel(
    kernel: Kernel,
    mesh: Any,
    axis: str | tuple[str, str],
    layout: LayoutName | Layout = "auto",
    exchange: Exchange = "ring",
) -> Attend:
    """Attention of `kernel` over sequences whose rows lie along an axis of a mesh, for use inside `jax.shard_map`.

    `layout` says who holds which rows: "auto" balances the mask's work in as few blocks as will do, "contiguous" and
    "headtail" are what they say, and a `Layout` is your own. `exchange`: "ring" sends each device the keys that its
    queries need, in turns, each while the one before is computed; "gather" fetches all keys at once; "heads" exchanges
    rows for heads (Ulysses). Two axes do both: rows lie along them as along one, keys move along the first, and heads
    are exchanged along the second.

    Params are the same on all devices. JAX sums their gradients over the axis, as for anything that devices share.
    """
    if kernel.target not in ("jax", "pallas"):
        raise UsageError(
            f"{kernel.name}: over shard_map, kernels are for target jax or pallas, not for {kernel.target}"
        )
    if kernel.spec.dropout is not None:
        raise UsageError(f"{kernel.name}: dropout is not supported on several ranks yet: leave it out of the spec")
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    unknown = next((a for a in axes if a not in mesh.shape), None)
    if unknown is not None:
        raise UsageError(f"the mesh has no axis {unknown!r}; there are {', '.join(mesh.shape)}")
    if exchange not in EXCHANGES:
        raise UsageError(f"exchange {exchange!r} is not known; there are {', '.join(EXCHANGES)}")
    if isinstance(layout, str) and layout not in ("auto", "contiguous", "headtail"):
        raise UsageError(f"layout {layout!r} is not known; there are auto, contiguous, headtail, or a Layout")
    if len(axes) != (1 if exchange == "heads" else len(axes)) or not 1 <= len(axes) <= 2:
        raise UsageError(f"axis {axis!r}: give one axis, or with exchange 'ring' or 'gather' two")
    across, within = (None, axes[0]) if exchange == "heads" else (axes[0], axes[1] if len(axes) == 2 else None)
    if within is not None:
        jax_heads.check(kernel)
    sizes = tuple(1 if a is None else mesh.shape[a] for a in (across, within))
    return Attend(kernel, across, within, (sizes[0], sizes[1]), layout, exchange)


@dataclass(frozen=True, eq=False)
class Attend:
    """See `context_parallel`. Called as `attend(q, k, v, …)`, it is `over(…)` of the rows of all devices, and the
    call."""

    kernel: Kernel
    across: str | None
    """The axis along which keys move."""
    within: str | None
    """The axis along which heads are exchanged."""
    sizes: tuple[int, int]
    """Of the two axes: groups, and devices of a group."""
    layout: LayoutName | Layout
    exchange: Exchange
    _kept: dict[Any, Placed] = field(default_factory=dict[Any, Any])

    @property
    def ranks(self) -> int:
        return self.sizes[0] * self.sizes[1]

    def over(self, Sq: int, *, Sk: int | None = None, **params: Any) -> Placed:
        """A batch's rows on their devices. `Sq` (and `Sk`, if it is another): rows of all devices together. `params`:
        what the mask reads, as numbers and NumPy arrays, for balance and to send less. A mask that reads what is not
        given here is taken to allow every pair."""
        known = {p.name for p in self.kernel.spec.params}
        unknown = next((name for name in params if name not in known), None)
        if unknown is not None:
            raise UsageError(f"{self.kernel.name}: no param {unknown!r}; there are {', '.join(known) or 'none'}")
        traced = next((n for n, x in params.items() if isinstance(x, jax.core.Tracer)), None)
        if traced is not None:
            raise UsageError(f"{traced}: give it as a NumPy array, or leave it out of over(…): here it is traced")
        given = {n: np.asarray(x) if hasattr(x, "shape") else x for n, x in params.items()}
        key = Sq, Sk, *((n, _fingerprint(x)) for n, x in sorted(given.items()))
        if key not in self._kept:
            self._kept[key] = self._placed(Sequences.dense(Sq, Sk), Masked(params=given))
        return self._kept[key]

    def _placed(self, sequences: Sequences, masked: Masked) -> Placed:
        """Groups hold blocks; the devices of a group share its rows out evenly."""
        members = self.sizes[1]
        q_layout = self._layout(sequences, masked)
        same = sequences.q == sequences.k
        k_layout = q_layout if same else contiguous(sequences.k[-1], self.ranks)
        q_blocks, k_blocks = (blocks(x.grouped(members)) for x in (q_layout, k_layout))
        for own in (q_blocks, k_blocks):
            if own.each * own.size % members:
                raise UsageError(f"{own.rows} rows are not the same number on {self.ranks} devices: pad the sequence")
        made = schedule(
            self.kernel, q_layout, sequences, self.exchange, k_layout=k_layout, heads=members, masked=masked
        )
        return Placed(self, made, q_blocks, k_blocks)

    def _layout(self, sequences: Sequences, masked: Masked) -> Layout:
        total, (groups, members) = sequences.q[-1], self.sizes
        if isinstance(self.layout, Layout):
            if (self.layout.ranks, self.layout.total) != (self.ranks, total):
                have = f"{self.layout.total} rows on {self.layout.ranks} devices"
                raise UsageError(f"the layout has {have}, and there are {total} rows on {self.ranks} devices")
            return self.layout
        if self.layout == "headtail":
            return headtail(total, groups).divided(members)
        if self.layout == "contiguous" or groups == 1:
            return contiguous(total, self.ranks)
        return balanced_blocks(row_work(self.kernel, sequences, masked), groups).divided(members)

    def __call__(self, q: Any, k: Any, v: Any, **arguments: Any) -> Any:
        read = read_params(self.kernel.spec.mask)
        known = {n: x for n, x in arguments.items() if n in read and not isinstance(x, jax.core.Tracer)}
        Sq, Sk = (x.shape[1] * self.ranks for x in (q, k))
        return self.over(Sq, Sk=None if Sk == Sq else Sk, **known)(q, k, v, **arguments)


def _fingerprint(x: Any) -> Any:
    """What is equal where values are; arrays are NumPy's."""
    return (x.shape, x.dtype.str, x.tobytes()) if hasattr(x, "shape") else x


@dataclass(frozen=True, eq=False)
class Placed:
    """A batch whose rows lie on devices, as `schedule` says. Called inside `shard_map`, like the kernel, on local
    rows."""

    attend: Attend
    schedule: Schedule
    q_blocks: Blocks
    k_blocks: Blocks

    def shard(self, x: Any, dim: int, *, keys: bool = False) -> Any:
        """The rows along `dim` in the order in which devices hold them: cut evenly, each gets its own. Outside
        `shard_map`."""
        return jnp.take(x, self._order(x, dim, keys), dim)

    def unshard(self, x: Any, dim: int, *, keys: bool = False) -> Any:
        """The inverse of `shard`."""
        return jnp.take(x, self._order(x, dim, keys).argsort(), dim)

    def _order(self, x: Any, dim: int, keys: bool) -> Any:
        order = (self.k_blocks if keys else self.q_blocks).order()
        if x.shape[dim] != len(order):
            raise UsageError(f"dimension {dim} has {x.shape[dim]} rows, and the sequence has {len(order)}")
        return order

    def positions(self, *, keys: bool = False) -> Any:
        """The position of each of this device's rows in the sequence (int32). Inside `shard_map`."""
        own = self.k_blocks if keys else self.q_blocks
        order = own.order().reshape(self.attend.ranks, -1).astype(np.int32)
        axes = tuple(a for a in (self.attend.across, self.attend.within) if a is not None)
        return jnp.asarray(order)[lax.axis_index(axes)]

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        return_lse: bool = False,
        dropout_seed: Any = None,
        **params: Any,
    ) -> Any:
        """out (B, S, Hq, Dv) of this device's queries in q's dtype, and with `return_lse` lse (B, Hq, S).

        Params are whole on every device, those with an element for each row too. `dropout_seed` has no effect.
        """
        for name, x, own in (("q", q, self.q_blocks), ("k", k, self.k_blocks), ("v", v, self.k_blocks)):
            if x.ndim != 4:
                raise UsageError(f"{name} must have 4 dimensions (batch, rows, heads, head dim), not shape {x.shape}")
            if x.shape[1] * self.attend.ranks != own.rows:
                have = f"each of {self.attend.ranks} devices has {own.rows // self.attend.ranks}"
                raise UsageError(f"{name} has {x.shape[1]} rows, and {have}: call this inside shard_map")
        if scale is not None and hasattr(scale, "shape"):
            raise UsageError("scale must be a number on several devices: multiply q by a scale that learns")
        arrays = {n: jnp.asarray(x) for n, x in params.items() if hasattr(x, "shape")}
        numbers = {n: x for n, x in params.items() if n not in arrays}
        attend, operands = self.attend, (q, k, v)
        if attend.within is not None:
            operands, arrays = jax_heads.exchanged(attend.kernel, attend.within, operands, arrays)
        if attend.across is None:
            out, lse = attend.kernel(*operands, **arrays, **numbers, scale=scale, return_lse=True)
        else:
            out, lse = attention(self._way(attend.across, scale, numbers), *operands, arrays)
        if attend.within is not None:
            out, lse = jax_heads.returned(attend.within, out, lse)
        return (out, lse) if return_lse else out

    def _way(self, axis: str, scale: float | None, numbers: Mapping[str, Any]) -> Way:
        ring = self.attend.exchange == "ring"
        return Way(
            kernel=self.attend.kernel,
            axis=axis,
            q_blocks=self.q_blocks,
            k_blocks=self.k_blocks,
            turns=turns(self.schedule, self.q_blocks, self.k_blocks) if ring else None,
            scale=scale,
            numbers=numbers,
        )
