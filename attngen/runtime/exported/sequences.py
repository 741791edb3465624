# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""A generated attention over sequences that begin and end anywhere: packed in one tensor, or in rows of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .arguments import is_int, stand_in
from .attention import Attention
from .calls import Calls, Layout
from .devices import chip, layout_of, padded, strided
from .tables import tiles_by_chip
from .watched import hidden

BOUNDS: tuple[str, ...] = ("q_start", "q_stop", "k_start", "k_stop")
OFFSETS = (
    "sequences begin at offsets, which are sums of lengths, torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()"
)


def sequence_tiles(table: str, q: Tensor, v: Tensor) -> tuple[tuple[int, ...], ...]:
    """The tiles of sequences: at head dim 128 those of 256, since pointers take more registers than descriptors."""
    own = chip(q.device), q.element_size(), padded(max(q.shape[-1], v.shape[-1]))
    found = tiles_by_chip(table)
    return found.get(("sm_90", 2, 256) if own == ("sm_90", 2, 128) else own) or found[own]


class Sequences(Calls):
    """The calls over sequences of an attention. `refused` raises what sequences of some kind cannot be asked for.
    `check_one` checks the facts about elements and sizes of one sequence.
    """

    def __init__(
        self,
        attention: Attention,
        key: str,
        *,
        forward: Callable[..., tuple[Any, ...]],
        backward: Callable[..., tuple[Any, ...]] | None = None,
        gradients: Callable[..., tuple[Tensor, ...]] | None = None,
        refused: Callable[..., None] | None = None,
        check_one: Callable[..., None] | None = None,
    ) -> None:
        self.refused, self.check_one = refused, check_one
        bounds = (*((name, "Tensor?") for name in BOUNDS), ("packed", "bool"))
        super().__init__(attention, key, forward, backward, gradients, bounds=bounds)

    # ---------------------------------------------------------------- calls

    def packed(
        self,
        operands: tuple[Any, ...],
        ends: tuple[Any, Any, Any],
        longest: tuple[Any, Any],
        block_table: Any = None,
        out: Any = None,
        scale: Any = None,
        return_lse: bool = False,
        dropout_seed: Any = None,
        check: bool = False,
    ) -> Any:
        """A call whose sequences follow one another. `ends`: cu_seqlens_q, cu_seqlens_k, seqused_k; `longest`: hints,
        max_seqlen_q and max_seqlen_k."""
        if block_table is not None:
            self.refuse("block_table: keys and values in pages are not supported yet")
        bounds, rows = self.packed_bounds(operands[0], operands[1], *ends, longest, check)
        return self.into(out, self.of_rows(operands, bounds, rows, scale, dropout_seed, True), return_lse)

    def lengths(
        self,
        operands: tuple[Any, ...],
        bounds: tuple[Any, Any, Any, Any],
        scale: Any = None,
        return_lse: bool = False,
        dropout_seed: Any = None,
        check: bool = False,
    ) -> Any:
        """A call whose sequences are a part of each batch row: `bounds` say where, in the order of `BOUNDS`."""
        given = dict(zip(BOUNDS, bounds, strict=True))
        found, rows = self.bounds_of_rows(operands[0], operands[1], given, check)
        return self.into(None, self.of_rows(operands, found, rows, scale, dropout_seed, False), return_lse)

    def of_rows(
        self, operands: tuple[Any, ...], bounds: dict[str, Any], rows: Any, scale: Any, seed: Any, packed: bool
    ) -> tuple[Any, ...]:
        if self.refused is not None:
            self.refused(self.attention, *operands, packed)
        return self.call(operands, scale, seed, (*bounds.values(), packed), rows)[:2]

    def into(self, out: Any, results: tuple[Any, ...], return_lse: bool) -> Any:
        """What a call returns. The result is copied into `out` if that is given."""
        result, lse = results
        if out is not None:
            wanted = result.shape, result.dtype, result.device
            if not isinstance(out, Tensor) or (out.shape, out.dtype, out.device) != wanted:
                have = type(out).__name__
                if isinstance(out, Tensor):
                    have = f"{tuple(out.shape)}, {out.dtype} on {out.device}"
                self.refuse(f"out must be a tensor {tuple(wanted[0])}, {wanted[1]} on {wanted[2]}, not {have}")
            shared = any(n > 1 and s == 0 for n, s in zip(out.shape, out.stride(), strict=True))
            if shared or (out.requires_grad and torch.is_grad_enabled()):
                self.refuse(
                    "out must be a tensor with memory for each element that requires no gradient: the result is copied "
                    "into it"
                )
            result = out.copy_(result)
        return (result, lse) if return_lse else result

    # ---------------------------------------------------------------- checks

    def checked(self, operands: tuple[Any, ...], scale: Any, bounds: tuple[Any, ...], rows: Any) -> tuple[Any, ...]:
        """Raises one clear error if an argument does not fit. Lengths are on the device; they are checked if `rows`
        holds them."""
        packed = bounds[-1]
        a, refuse = self.attention, self.refuse
        for name, x in zip(("q", "k", "v"), operands, strict=False):
            if not isinstance(x, Tensor):
                refuse(f"{name} must be a torch.Tensor, not {type(x).__name__}")
            if packed and x.dim() != 3:
                found = f"not shape {tuple(x.shape)}"
                refuse(f"{name} must have 3 dimensions (rows of all sequences, heads, head dim), {found}")
            if not packed and x.dim() != 4:
                refuse(f"{name} must have 4 dimensions (batch, heads, length, head dim), not shape {tuple(x.shape)}")
        for p, x in zip(a.params, operands[3:], strict=True):
            self.check_rows(p, x, packed)
        found = self.with_batches(operands, bounds)
        repeated = a.check(found, scale, False, True)
        names = ("q", "k", "v", *(p.name for p in a.ranked))
        for name, x, y in zip(names, a.tensors(found), a.tensors(repeated), strict=True):
            if x.numel() and x.shape != y.shape:
                shape = tuple(x.shape)
                refuse(f"{name} has shape {shape}: sizes of 1 are not repeated for sequences: expand it before")
        if self.check_one is None:
            return operands
        every: Any = rows or ()
        for b, (of_q, of_k) in enumerate(every):
            own = {"Sq": of_q, "Sk": of_k}
            given = [
                x[tuple(own.get(axis, slice(None)) for axis in p.rows)] if p.rows else x
                for p, x in zip(a.params, found[3:], strict=True)
            ]
            q, k, v = found[0][:, :, of_q], found[1][:, :, of_k], found[2][:, :, of_k]
            self.check_one(a, b, q, k, v, *given)
        return operands

    def check_rows(self, p: Any, x: Any, packed: bool) -> None:
        """A param with an element for each row: packed rows of all sequences follow one another, without a batch."""
        if not (packed and p.rows):
            return
        dims, rank = p.dims, len(p.strides)
        if "B" not in p.rows:
            self.refuse(
                f"{p.name} ({dims}) has an element for each row of every sequence alike, which packed tensors cannot "
                "hold: declare it with the dimension B"
            )
        if not isinstance(x, Tensor) or x.dim() != rank - 1:
            self.refuse(
                f"{p.name} ({dims}) must have {rank - 1} dimension{'s' if rank > 2 else ''} for packed sequences: rows "
                "of all of them, without B"
            )

    def with_batches(self, operands: tuple[Any, ...], bounds: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operands as dense calls take them: packed tensors belong to each of the sequences."""
        if not bounds[-1]:
            return operands
        count, given = bounds[0].numel(), list(operands[3:])
        for i, p in enumerate(self.attention.params):
            if "B" in p.rows:
                batch = p.rows.index("B")
                shape = [count if axis == batch else -1 for axis in range(len(p.rows))]
                given[i] = given[i].unsqueeze(batch).expand(shape)
        return (*(strided(x, count, True) for x in operands[:3]), *given)

    def bound(self, name: str, x: Any, q: Tensor, count: int, words: str) -> Any:
        """Checks an argument that says where sequences begin or end."""
        if x is None:
            return None
        if not isinstance(x, Tensor) or x.dtype is not torch.int32 or x.dim() != 1 or x.device != q.device:
            kind = f"{x.dtype} of shape {tuple(x.shape)} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
            self.refuse(f"{name} must be an int32 tensor with one dimension on q's device {q.device}, not {kind}")
        if x.numel() != count:
            self.refuse(f"{name} must have {words}, {count}, not {x.numel()}")
        return x.contiguous()

    def side(
        self, name: str, start: Tensor | None, stop: Tensor | None, count: int, total: int, offsets: str = ""
    ) -> list[slice]:
        """The rows of sequences on one side, read on the host: this waits for the device. `offsets`: the argument that
        says where packed sequences begin and end.
        """
        if torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            self.refuse(
                "check=True reads lengths, which torch.compile and CUDA graphs do not allow: leave it out there"
            )
        starts = [0] * count if start is None else start.tolist()
        stops = [total] * count if stop is None else stop.tolist()
        if offsets and starts[0] != 0:
            self.refuse(f"{offsets}[0] is {starts[0]}, and must be 0: {OFFSETS}")
        for i, (first, end) in enumerate(zip(starts, stops, strict=True)):
            low, high = f"{name}_start[{i}]", f"{name}_stop[{i}]"
            if offsets:
                low, high = f"{offsets}[{i}]", f"{offsets}[{i + 1}]"
            for where, n in ((low, first), (high, end)):
                if not 0 <= n <= total:
                    self.refuse(f"{where} is {n}, and must be from 0 to {total}, the number of rows of {name}")
            if end < first:
                self.refuse(f"{high} is {end}, and must not be less than {low}, {first}")
        return [slice(first, end) for first, end in zip(starts, stops, strict=True)]

    def packed_bounds(
        self,
        q: Any,
        k: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        seqused_k: Any,
        longest: tuple[Any, Any],
        check: bool,
    ) -> tuple[dict[str, Any], Any]:
        """Where the sequences of packed tensors begin and end, and their rows if `check` reads them."""
        for name, x in (("q", q), ("k", k)):
            if not isinstance(x, Tensor) or x.dim() != 3:
                self.refuse(f"{name} must be a tensor with 3 dimensions (rows of all sequences, heads, head dim)")
        if not isinstance(cu_seqlens_q, Tensor) or cu_seqlens_q.dim() != 1 or cu_seqlens_q.numel() < 2:
            self.refuse(
                "cu_seqlens_q must be an int32 tensor (B + 1,): where each of B sequences begins, and where the last "
                "one ends"
            )
        count = cu_seqlens_q.numel() - 1
        words = "one number for each sequence and one for the end"
        cu_q = self.bound("cu_seqlens_q", cu_seqlens_q, q, count + 1, words)
        cu_k = cu_q if cu_seqlens_k is None else self.bound("cu_seqlens_k", cu_seqlens_k, q, count + 1, words)
        bounds = {"q_start": cu_q[:-1], "q_stop": cu_q[1:], "k_start": cu_k[:-1], "k_stop": cu_k[1:]}
        used = self.bound("seqused_k", seqused_k, q, count, "one number for each sequence")
        named = "cu_seqlens_q" if cu_seqlens_k is None else "cu_seqlens_k"
        of_q: list[slice] = []
        of_k: list[slice] = []
        if check:
            of_q = self.side("q", bounds["q_start"], bounds["q_stop"], count, q.shape[0], "cu_seqlens_q")
            of_k = self.side("k", bounds["k_start"], bounds["k_stop"], count, k.shape[0], named)
        if used is not None:
            for i, (n_used, own) in enumerate(zip(used.tolist() if check else (), of_k, strict=False)):
                if not 0 <= n_used <= own.stop - own.start:
                    most = own.stop - own.start
                    self.refuse(f"seqused_k[{i}] must be between 0 and the sequence's {most} keys, not {n_used}")
                of_k[i] = slice(own.start, own.start + n_used)
            bounds["k_stop"] = torch.minimum(bounds["k_start"] + used, bounds["k_stop"])
        for name, n, rows in (("q", longest[0], of_q), ("k", longest[1], of_k)):
            most = max([0, *[own.stop - own.start for own in rows]])
            if check and n is not None and not (is_int(n) and n >= most):
                found = f"the rows of {name} in the longest sequence, not {n}"
                self.refuse(f"max_seqlen_{name} must be an int of at least {most}, {found}")
        return bounds, list(zip(of_q, of_k, strict=True)) if check else None

    def bounds_of_rows(self, q: Any, k: Any, given: dict[str, Any], check: bool) -> tuple[dict[str, Any], Any]:
        """Where the sequences of batch rows begin and end, and their rows if `check` reads them."""
        for name, x in (("q", q), ("k", k)):
            if not isinstance(x, Tensor) or x.dim() != 4:
                self.refuse(f"{name} must be a tensor with 4 dimensions (batch, heads, length, head dim)")
        words = "a number for each batch row"
        bounds = {name: self.bound(name, x, q, q.shape[0], words) for name, x in given.items()}
        if not check:
            return bounds, None
        rows = (
            self.side(s, bounds[f"{s}_start"], bounds[f"{s}_stop"], q.shape[0], x.shape[2])
            for s, x in (("q", q), ("k", k))
        )
        return bounds, list(zip(*rows, strict=True))

    # ---------------------------------------------------------------- what calls of sequences do

    def filled(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        given = [stand_in(x) if p.rows else x for p, x in zip(self.attention.params, operands[3:], strict=True)]
        same = all([x is y for x, y in zip(given, operands[3:], strict=True)])
        return operands if same else (*operands[:3], *given)

    def key(self, operands: tuple[Any, ...], bounds: tuple[Any, ...]) -> Any:
        places = [x is None or (x.numel(), x.data_ptr() % 16) for x in bounds[:4]]
        return bounds[-1], layout_of(*self.attention.tensors(operands)), *places

    def laid(self, operands: tuple[Any, ...], bounds: tuple[Any, ...]) -> Layout:
        a, packed = self.attention, bounds[-1]
        tensors = a.tensors(self.with_batches(operands[: a.at_scale], bounds))[3:]
        return Layout(a, *operands[:3], *tensors, count=bounds[0].numel() if packed else 0, packed=packed)

    def summed(
        self, known: Layout, values: dict[str, Any], pairs: dict[str, Any], needed: list[bool], inputs: tuple[Any, ...]
    ) -> tuple[Tensor, ...]:
        totals = self.attention.totals(inputs, needed, torch.zeros_like)
        return totals if self.param_gradients is None else self.param_gradients(values, totals, needed, inputs[1])

    def pairs(self, q: Tensor, k: Tensor, **given: Any) -> int:
        """How many pairs the sequences have, whatever the mask: at most, where the host cannot read lengths."""
        ends = [given.get(name) for name in BOUNDS]
        if all(x is None for x in ends) or any(x is not None and hidden(x) for x in ends):
            return q.shape[0] * (k.shape[0] if q.dim() == 3 else q.shape[2] * k.shape[2])
        whole = 0, q.shape[-2], 0, k.shape[-2]  # packed sequences have all ends
        q_start, q_stop, k_start, k_stop = (n if x is None else x.long() for n, x in zip(whole, ends, strict=True))
        area: Any = (q_stop - q_start) * (k_stop - k_start)
        return int(area.sum())


def refuse_gradient(a: Attention, name: str, x: object, packed: bool, why: tuple[str, str]) -> None:
    """Refuses a param's gradient that sequences do not sum: `why`, of packed ones and of others."""
    if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
        a.refuse(
            f"the gradient of {name} is summed over pairs or chosen cells, which is done for dense tensors only: "
            f"{why[0 if packed else 1]}; if {name} needs no gradient, pass {name}.detach(), or declare it `fixed`"
        )
    return None
