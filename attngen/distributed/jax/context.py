"""Context parallelism: one sequence's rows on many devices, attention over all of them (`jax.shard_map`).

    attend = context_parallel(kernel, mesh, "context")
    here = attend.over(4096)                         # what the host knows of a batch
    tokens = here.shard(tokens, 1)                   # rows in the order in which the devices hold them
    # inside shard_map over "context", of which q, k and v have their rows (axis 1):
    out = here(q, k, v, slope=slope)                 # differentiable

A kernel's pieces are computed where their queries lie, and merged. For targets jax and pallas. All devices run one
program, so they hold equal blocks of rows (`distributed/plan/blocks.py`). `shard` fills the last blocks up: rows behind
the last one of the sequence are padding, which no query sees and which has no gradient.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from attngen import targets
from attngen.distributed.jax import heads
from attngen.distributed.jax.run import Way, attention
from attngen.distributed.plan.blocks import (
    Blocks,
    Turn,
    balanced_blocks,
    blocks,
    contiguous_blocks,
    headtail_blocks,
    turns,
)
from attngen.distributed.plan.layout import Layout
from attngen.distributed.plan.schedule import (
    EXCHANGES,
    Exchange,
    Masked,
    Schedule,
    Sequences,
    check_dim,
    check_given,
    check_operands,
    row_work,
    same_as_said,
    schedule,
)
from attngen.errors import UsageError
from attngen.ir.axes import expressions
from attngen.ir.walk import params as read_params, reads, symbols
from attngen.kernel import Kernel
from attngen.piece_arguments import check_known
from attngen.pieces import check_seed

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
lax: Any = importlib.import_module("jax.lax")

LayoutName = Literal["auto", "contiguous", "headtail"]
Offsets = Sequence[int] | npt.NDArray[Any]
_KEPT = 16
"""Batches whose tables are kept, for calls that say the same again."""


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
    queries need, in turns, each while the one before is computed; "gather" fetches the same keys at once; "heads"
    exchanges rows for heads (Ulysses). Two axes do both: rows lie along them as along one, keys move along the first,
    and heads are exchanged along the second.

    Params are the same on all devices. JAX sums their gradients over the axis, as for anything that devices share.
    """
    if not isinstance(cast(object, kernel), Kernel):
        raise UsageError(f"kernel must be what attngen.compile returns, not {type(kernel).__name__}")
    if not targets.named(kernel.target).takes_jax:
        raise UsageError(
            f"{kernel.name}: over shard_map, kernels are for target jax or pallas, not for {kernel.target}"
        )
    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        raise UsageError(f"mesh must be a jax.sharding.Mesh, not {type(mesh).__name__}")
    axes: tuple[Any, ...] = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if len({*axes}) != len(axes):
        raise UsageError(f"axis {axis!r}: name two different axes")
    unknown = next((a for a in axes if a not in mesh.shape), None)
    if unknown is not None:
        raise UsageError(f"the mesh has no axis {unknown!r}; there are {', '.join(mesh.shape)}")
    if exchange not in EXCHANGES:
        raise UsageError(f"exchange {exchange!r} is not known; there are {', '.join(EXCHANGES)}")
    if not isinstance(layout, Layout) and layout not in ("auto", "contiguous", "headtail"):
        raise UsageError(f"layout {layout!r} is not known; there are auto, contiguous, headtail, or a Layout")
    if len(axes) != (1 if exchange == "heads" else len(axes)) or not 1 <= len(axes) <= 2:
        raise UsageError(f"axis {axis!r}: give one axis, or with exchange 'ring' or 'gather' two")
    across, within = (None, axes[0]) if exchange == "heads" else (axes[0], axes[1] if len(axes) == 2 else None)
    if within is not None:
        heads.check(kernel)
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

    def over(
        self,
        Sq: int | None = None,
        *,
        Sk: int | None = None,
        cu_seqlens: Offsets | None = None,
        cu_seqlens_k: Offsets | None = None,
        **params: Any,
    ) -> Placed:
        """A batch's rows on their devices. `Sq` (and `Sk`, if it is another): rows of all devices together, any number.
        Packed: `cu_seqlens`, where sequences begin and the last one ends. `params`: what the mask reads, as numbers and
        NumPy arrays, for balance and to send less. A mask that reads what is not given here is taken to allow every
        pair."""
        check_known(self.kernel.name, self.kernel.spec.params, params)
        said = {"cu_seqlens": cu_seqlens, "cu_seqlens_k": cu_seqlens_k, **params}
        traced = next((n for n, x in said.items() if isinstance(x, jax.core.Tracer)), None)
        if traced is not None:
            raise UsageError(f"{traced}: give it as a NumPy array, or leave it out of over(…): here it is traced")
        sequences = _sequences(Sq, Sk, cu_seqlens, cu_seqlens_k)
        given = {n: np.array(x) if hasattr(x, "shape") else x for n, x in params.items()}  # theirs may change
        check_given(self.kernel.spec, sequences, given)
        key = sequences, *((n, _fingerprint(x)) for n, x in sorted(given.items()))
        if key not in self._kept:
            if len(self._kept) == _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._placed(sequences, Masked(params=given))
        return self._kept[key]

    def _placed(self, sequences: Sequences, masked: Masked) -> Placed:
        """Groups hold blocks; the devices of a group share its rows out evenly."""
        if sequences.packed:
            _check_packed(self.kernel)
        groups, members = self.sizes
        q_blocks = self._blocks(sequences, masked)
        same = sequences.q == sequences.k
        k_blocks = q_blocks if same else contiguous_blocks(sequences.k[-1], groups, members)
        q_layout, k_layout = q_blocks.layout(members), k_blocks.layout(members)
        made = schedule(
            self.kernel, q_layout, sequences, self.exchange, k_layout=k_layout, heads=members, masked=masked
        )
        return Placed(self, made, q_blocks, k_blocks, turns(made, q_blocks, k_blocks), masked.params)

    def _blocks(self, sequences: Sequences, masked: Masked) -> Blocks:
        total, (groups, members) = sequences.q[-1], self.sizes
        if isinstance(self.layout, Layout):
            if (self.layout.ranks, self.layout.total) != (self.ranks, total):
                have = f"{self.layout.total} rows on {self.layout.ranks} devices"
                raise UsageError(f"the layout has {have}, and there are {total} rows on {self.ranks} devices")
            return blocks(self.layout, members)
        if self.layout == "contiguous" or groups == 1:
            return contiguous_blocks(total, groups, members)
        if self.layout == "headtail":
            return headtail_blocks(total, groups, members)
        return balanced_blocks(row_work(self.kernel, sequences, masked), groups, members)

    def __call__(self, q: Any, k: Any, v: Any, **arguments: Any) -> Any:
        read = read_params(self.kernel.spec.mask)
        known = {n: x for n, x in arguments.items() if n in read and not isinstance(x, jax.core.Tracer)}
        Sq, Sk = (x.shape[1] * self.ranks for x in (q, k))
        return self.over(Sq, Sk=None if Sk == Sq else Sk, **known)(q, k, v, **arguments)


def _sequences(Sq: int | None, Sk: int | None, cu: Offsets | None, cu_k: Offsets | None) -> Sequences:
    """What callers say of a batch's rows."""
    if (Sq is None) == (cu is None):
        raise UsageError("say how many rows all devices have together: Sq, or cu_seqlens= for packed sequences")
    if Sq is not None:
        if cu_k is not None:
            raise UsageError("cu_seqlens_k goes with cu_seqlens")
        return Sequences.dense(Sq, Sk)
    if Sk is not None:
        raise UsageError("Sk goes with Sq: packed sequences have cu_seqlens_k")
    ends = (None if x is None else [*x] for x in (cu, cu_k))
    return Sequences.of_offsets(*ends)  # pyright: ignore[reportArgumentType]


def _check_packed(kernel: Kernel) -> None:
    """Pieces of packed sequences know the sequence's positions and length, and no more."""
    spec = kernel.spec
    sized = next((p.name for p in spec.params if any(symbols(d) & {"B", "Sq", "Sk"} for d in p.shape)), None)
    if sized is not None:
        raise UsageError(
            f"{kernel.name}: {sized} has an element for each row or sequence, which packed sequences in JAX do not "
            "support: lay them out as one sequence, and let the mask compare ids of documents"
        )
    if any(reads(e, "b", "B") for e in expressions(spec)):
        raise UsageError(f"{kernel.name}: the spec reads `b`, which packed sequences in JAX do not support")


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
    turns: tuple[Turn, ...]
    params: Mapping[str, Any]

    def shard(self, x: Any, dim: int, *, keys: bool = False, fill: Any = 0) -> Any:
        """The rows along `dim` in the order in which devices hold them: cut evenly, each gets its own. `fill`: what
        rows of padding have. Outside `shard_map`."""
        own = self._own(keys)
        check_dim(x, dim, "array")
        if x.shape[dim] != own.total:
            raise UsageError(f"dimension {dim} has {x.shape[dim]} rows, and the sequence has {own.total}")
        if not own.total:  # from which nothing can be taken
            return jnp.full((*x.shape[:dim], own.rows, *x.shape[dim:][1:]), fill, x.dtype)
        return jnp.take(x, jnp.asarray(own.order()), dim, mode="fill", fill_value=fill)

    def unshard(self, x: Any, dim: int, *, keys: bool = False) -> Any:
        """The inverse of `shard`, without padding."""
        own = self._own(keys)
        check_dim(x, dim, "array")
        if x.shape[dim] != own.rows:
            raise UsageError(f"dimension {dim} has {x.shape[dim]} rows, and the devices have {own.rows}")
        return jnp.take(x, own.order().argsort()[: own.total], dim)

    def _own(self, keys: bool) -> Blocks:
        return self.k_blocks if keys else self.q_blocks

    def positions(self, *, keys: bool = False) -> Any:
        """The position of each of this device's rows in its sequence (int32), -1 for padding. Inside `shard_map`."""
        own, s = self._own(keys), self.schedule.sequences
        ends = np.asarray(s.k if keys else s.q)
        rows = own.order()
        at = rows - ends[np.clip(np.searchsorted(ends, rows, "right") - 1, 0, max(0, s.count - 1))]
        table = np.where(rows < own.total, at, -1).reshape(self.attend.ranks, -1).astype(np.int32)
        axes = tuple(a for a in (self.attend.across, self.attend.within) if a is not None)
        return jnp.asarray(table)[lax.axis_index(axes)]

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        return_lse: bool = False,
        dropout_seed: Any = None,
        h_offset: Any = 0,
        b_offset: Any = 0,
        **params: Any,
    ) -> Any:
        """out (B, S, Hq, Dv) of this device's queries in q's dtype, and with `return_lse` lse (B, Hq, S). Packed: q
        (T, Hq, D), out (T, Hq, Dv), lse (Hq, T). Rows of padding have 0 in out and -inf in lse.

        Params are whole on every device, those with an element for each row too. Dropout needs `dropout_seed`, the same
        on every device: with it, what one device drops is dropped. Where another axis of the mesh cuts heads or
        batches, `h_offset` and `b_offset` say how many come before those of this device.
        """
        check_seed(self.attend.kernel, dropout_seed)
        packed = self.schedule.sequences.packed
        for name, x, own in (("q", q, self.q_blocks), ("k", k, self.k_blocks), ("v", v, self.k_blocks)):
            if x.ndim != 4 - packed:
                axes = (
                    "3 dimensions (rows, heads, head dim)" if packed else "4 dimensions (batch, rows, heads, head dim)"
                )
                raise UsageError(f"{name} must have {axes}, not shape {x.shape}")
            if x.shape[-3] * self.attend.ranks != own.rows:
                have = f"each of {self.attend.ranks} devices has {own.rows // self.attend.ranks}"
                raise UsageError(f"{name} has {x.shape[-3]} rows, and {have}: call this inside shard_map")
        if isinstance(scale, jax.core.Tracer):
            raise UsageError("scale must be a number on several devices: multiply q by a scale that learns")
        if scale is not None and getattr(scale, "shape", None) == ():
            scale = float(scale)
        check_operands(q, k, v, -2)
        concrete = {n: x for n, x in params.items() if not isinstance(x, jax.core.Tracer)}
        same_as_said(self.attend.kernel.spec, self.params, concrete)
        arrays = {n: jnp.asarray(x) for n, x in params.items() if hasattr(x, "shape")}
        numbers = {n: x for n, x in params.items() if n not in arrays}
        q, k, v = (self._real(x[None] if packed else x, keys) for x, keys in ((q, False), (k, True), (v, True)))
        drawn: dict[str, Any] = {}
        if self.attend.kernel.spec.dropout is not None:
            drawn = {"dropout_seed": dropout_seed, "h_offset": h_offset, "b_offset": b_offset}
        out, lse = self._attended(q, k, v, arrays, scale, numbers, drawn)
        out, lse = self._real(out, False), self._real(lse.swapaxes(1, 2), False, -jnp.inf).swapaxes(1, 2)
        out, lse = (x[0] if packed else x for x in (out, lse))
        return (out, lse) if return_lse else out

    def _real(self, x: Any, keys: bool, other: float = 0.0) -> Any:
        """`x` (B, S, …) with a number in rows of padding, whose own values and gradients reach nothing."""
        if not self._own(keys).padded:
            return x
        real = self.positions(keys=keys) >= 0
        return jnp.where(real.reshape(-1, *(1,) * (x.ndim - 2)), x, jnp.asarray(other, x.dtype))

    def _attended(
        self,
        q: Any,
        k: Any,
        v: Any,
        arrays: dict[str, Any],
        scale: float | None,
        numbers: Mapping[str, Any],
        drawn: dict[str, Any],
    ) -> tuple[Any, Any]:
        attend, operands = self.attend, (q, k, v)
        if attend.within is not None:
            operands, arrays = heads.exchanged(attend.kernel, attend.within, operands, arrays)
            before = lax.axis_index(attend.within) * operands[0].shape[2]
            drawn = {n: x + before if n == "h_offset" else x for n, x in drawn.items()}
        if attend.across is None and not self.schedule.sequences.packed and not drawn:
            ends = self.q_blocks.total, self.k_blocks.total, self.k_blocks.total
            operands = (x[:, :end] for x, end in zip(operands, ends, strict=True))
            out, lse = attend.kernel(*operands, **arrays, **numbers, scale=scale, return_lse=True)
            behind = 0, self.q_blocks.rows - self.q_blocks.total
            out = jnp.pad(out, ((0, 0), behind, (0, 0), (0, 0)))
            lse = jnp.pad(lse, ((0, 0), (0, 0), behind))
        else:
            way = Way(
                kernel=attend.kernel,
                axis=attend.across,
                sequences=self.schedule.sequences,
                q_blocks=self.q_blocks,
                k_blocks=self.k_blocks,
                turns=self.turns,
                scale=scale,
                numbers=numbers,
            )
            out, lse = attention(way, *operands, arrays, drawn)
        return (out, lse) if attend.within is None else heads.returned(attend.within, out, lse)
