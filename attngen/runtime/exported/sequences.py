# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""A generated attention over sequences that begin and end anywhere: packed in one tensor, or in rows of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .arguments import in_autocast, is_int, scale_number, scaled, stand_in
from .attention import Attention, Backward, Layout
from .devices import alignment, chip, current, layout_of, like, padded, strided, strides_of
from .launch import SAME, compiled_together
from .operators import FINISHED, Operator
from .tables import tiles_by_chip
from .watched import hidden, unwatched

BOUNDS: tuple[str, ...] = ("q_start", "q_stop", "k_start", "k_stop")
OFFSETS = (
    "sequences begin at offsets, which are sums of lengths, torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()"
)


def sequence_tiles(table: str, q: Tensor, v: Tensor) -> tuple[tuple[int, ...], ...]:
    """The tiles of sequences: at head dim 128 those of 256, since pointers take more registers than descriptors."""
    own = chip(q.device), q.element_size(), padded(max(q.shape[-1], v.shape[-1]))
    found = tiles_by_chip(table)
    return found.get(("sm_90", 2, 256) if own == ("sm_90", 2, 128) else own) or found[own]


def contiguous_rows(x: Tensor) -> Tensor:
    """`x`, with contiguous rows."""
    return x if x.stride(-1) == 1 else x.contiguous()


def result_like(x: Tensor, cols: int, packed: bool) -> Tensor:
    """An empty tensor for results by the rows of `x`."""
    return x.new_empty((*x.shape[:2], cols)) if packed else x.new_empty_strided(*like(x, cols))


class Sequences:
    """The functions over sequences of an attention, which checks and converts what both kinds of calls share.

    `forward(known, q, k, v, out, align, packed)` and `backward(known, q, k, v, d_out, dk, dv, align, packed, asked)`
    return launches as those of `Attention` do, for tensors with a batch for each sequence; `gradients` the params'
    gradients. `refused` raises what sequences of some kind cannot be asked for. `check_one` checks the facts about
    elements and sizes of one sequence.
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
        self.attention, self.refuse = attention, attention.refuse
        self.forward_launches, self.backward_launches, self.param_gradients = forward, backward, gradients
        self.refused, self.check_one = refused, check_one
        bounds = (*((name, "Tensor?") for name in BOUNDS), ("packed", "bool"))
        self.laid_out: dict[tuple[Any, ...], tuple[Layout, dict[str, Any]]] = {}
        self.checked: set[Any] = set()  # layouts and numbers that passed the checks
        self.operator = Operator(key, attention.signature_of(bounds), self, backward is None)

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
        return self.into(out, self.call(operands, bounds, rows, scale, dropout_seed, True), return_lse)

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
        return self.into(None, self.call(operands, found, rows, scale, dropout_seed, False), return_lse)

    def call(
        self, operands: tuple[Any, ...], bounds: dict[str, Any], rows: Any, scale: Any, dropout_seed: Any, packed: bool
    ) -> tuple[Any, ...]:
        """out and lse. `rows`: those of each sequence, where they are known."""
        a, q = self.attention, operands[0]
        if isinstance(q, Tensor) and not q.is_meta and torch.is_autocast_enabled(q.device.type):
            operands = (*(in_autocast(x, q.device.type) for x in operands[:3]), *operands[3:])
            with torch.autocast(q.device.type, enabled=False):
                return self.call(operands, bounds, rows, scale, dropout_seed, packed)
        count = bounds["q_start"].numel() if packed else q.shape[0]
        if self.refused is not None:
            self.refused(a, *operands, packed)
        if scale is None:
            scale = q.shape[-1] ** -0.5 if q.shape[-1] else 1.0
        elif isinstance(scale, Tensor):
            q, scale = scaled(self.refuse, q, scale, a.scale_use)
            operands = (q, *operands[1:])
        elif type(scale) is not float or not abs(scale) < torch.inf:
            scale = scale_number(self.refuse, scale)
        fit = None
        alone = rows is None and unwatched(*a.all_tensors(operands, dropout_seed))
        if alone:
            fit = a.numbers(operands, scale)
            fit = None if fit is None else (fit, packed, count, layout_of(*a.tensors(operands)))
        if fit is None or fit not in self.checked:
            self.check(operands, scale, count, packed, rows)
            if fit is not None and not q.is_meta:
                if len(self.checked) >= 1024:
                    self.checked.clear()
                self.checked.add(fit)
        if q.dtype is torch.bfloat16 and q.is_cpu:
            # Triton's interpreter has no bfloat16 products, so it computes in float32.
            operands = (*(x.float() for x in operands[:3]), *operands[3:])
            out, lse = self.call(operands, bounds, rows, scale, dropout_seed, packed)
            return out.bfloat16(), lse
        given = [stand_in(x) if p.rows else x for p, x in zip(a.params, operands[3:], strict=True)]
        inputs = a.inputs((*operands[:3], *given), scale, dropout_seed, False)
        inputs = (*inputs, *(bounds[name] for name in BOUNDS), packed)
        return a.run(self.operator, inputs, (alone and not q.is_meta) or None)[:2]

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

    def check(self, operands: tuple[Any, ...], scale: Any, count: int, packed: bool, rows: Any) -> None:
        """Raises one clear error if an argument does not fit. Lengths are on the device; they are checked if `rows`
        holds them."""
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
        found = self.with_batches(operands, count, packed)
        repeated = a.check(found, scale, False, True)
        names = ("q", "k", "v", *(p.name for p in a.ranked))
        for name, x, y in zip(names, a.tensors(found), a.tensors(repeated), strict=True):
            if x.numel() and x.shape != y.shape:
                shape = tuple(x.shape)
                refuse(f"{name} has shape {shape}: sizes of 1 are not repeated for sequences: expand it before")
        if self.check_one is None:
            return
        every: Any = rows or ()
        for b, (of_q, of_k) in enumerate(every):
            own = {"Sq": of_q, "Sk": of_k}
            given = [
                x[tuple(own.get(axis, slice(None)) for axis in p.rows)] if p.rows else x
                for p, x in zip(a.params, found[3:], strict=True)
            ]
            q, k, v = found[0][:, :, of_q], found[1][:, :, of_k], found[2][:, :, of_k]
            self.check_one(a, b, q, k, v, *given)

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

    def with_batches(self, operands: tuple[Any, ...], count: int, packed: bool) -> tuple[Any, ...]:
        """The operands as dense calls take them: packed tensors belong to each of `count` sequences."""
        if not packed:
            return operands
        given = list(operands[3:])
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

    # ---------------------------------------------------------------- what the operator computes

    def values(
        self, inputs: tuple[Any, ...], tensors: dict[str, Tensor], packed: bool, bounds: dict[str, Any]
    ) -> tuple[Layout, dict[str, Any]]:
        """The `Layout` of a call, and the values that kernels take. `tensors`: q, k, v and results, by name."""
        a = self.attention
        places = [x is None or (x.numel(), x.data_ptr() % 16) for x in bounds.values()]
        ranked = a.tensors(inputs)[3:]
        key = packed, layout_of(*tensors.values(), *ranked), *places
        if key not in self.laid_out:
            count = bounds["q_start"].numel() if packed else tensors["q"].shape[0]
            found = {name: strided(x, count, packed) for name, x in tensors.items()}
            given = self.with_batches((*(tensors[x] for x in "qkv"), *inputs[3 : 3 + len(a.params)]), count, packed)
            known = a.layout(*a.tensors(given))
            strides = strides_of(**{name: x.stride() for name, x in found.items()})
            if len(self.laid_out) >= 1024:
                self.laid_out.clear()
            more: dict[str, Any] = {"n_sequences": count, "align": alignment(strides), "key": key}
            self.laid_out[key] = known, {**known.values, **strides, **more}
        known, same = self.laid_out[key]
        return known, {**a.values_of(same, inputs), **tensors, **bounds}

    def attend(self, inputs: tuple[Any, ...], known: Any = None, learn: Callable[..., Any] | None = None) -> Any:
        """`learn`: the backward pass of its results, whose kernels are compiled at the same time."""
        a, precise = self.attention, self.attention.rounds and inputs[self.attention.at_precise]
        *ends, packed = inputs[-5:]
        inputs = (*[contiguous_rows(x) for x in inputs[:3]], *inputs[3:])
        q, k, v = inputs[:3]
        if (results := FINISHED.get()) is not None:
            return a.saved(q, precise, results)
        bounds = dict(zip(BOUNDS, ends, strict=True))
        found = self.results_of(q, v, precise, packed)
        kept = tuple(found[name] for name in a.kept)
        out = found["out"]
        if out.numel():
            layout, values = self.values(inputs, {"out": out, "q": q, "k": k, "v": v}, packed, bounds)
            if a.rounds and not precise:
                found["rest"] = out
            values.update(found)
            key = "forward", values[SAME]["key"], *a.deciding(inputs), precise
            if key not in layout.sequences:
                ahead = learn and functools.partial(learn, *kept)
                count = layout.shape[0]
                tensors = (strided(x, count, packed) for x in (q, k, v, out))
                more = (precise,) if a.rounds else ()
                launches = self.forward_launches(layout, *tensors, values[SAME]["align"], packed, *more)
                layout.sequences[key] = compiled_together(launches, values, ahead)
            with current(q):
                for launch in layout.sequences[key]:
                    launch(values)
        return kept

    def results_of(self, q: Tensor, v: Tensor, precise: bool, packed: bool) -> dict[str, Any]:
        """Empty results by name."""
        lse = q.new_empty((q.shape[1], q.shape[0]) if packed else q.shape[:3], dtype=torch.float32)
        found: dict[str, Any] = {"out": result_like(q, v.shape[-1], packed), "lse": lse}
        if "den" in self.attention.kept:
            found["den"] = torch.empty_like(lse)
        if self.attention.rounds:
            found["rest"] = q.new_empty((*lse.shape, v.shape[-1])) if precise else None
        return found

    def empty_results(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        precise = self.attention.rounds and inputs[self.attention.at_precise]
        found = self.results_of(inputs[0], inputs[2], precise, inputs[-1])
        named = [found[name] for name in self.attention.kept]
        return tuple(inputs[0].new_empty(0) if x is None else x for x in named)

    def empty_gradients(self, inputs: tuple[Any, ...], needed: list[bool]) -> tuple[Any, ...]:
        packed = inputs[-1]
        gradients = (result_like(x, x.shape[-1], packed) for x in inputs[:3])
        return (*gradients, *self.attention.totals(inputs, needed, torch.empty_like))

    def pairs(self, q: Tensor, k: Tensor, **given: Any) -> int:
        """How many pairs the sequences have, whatever the mask: at most, where the host cannot read lengths."""
        ends = [given.get(name) for name in BOUNDS]
        if all(x is None for x in ends) or any(x is not None and hidden(x) for x in ends):
            return q.shape[0] * (k.shape[0] if q.dim() == 3 else q.shape[2] * k.shape[2])
        whole = 0, q.shape[-2], 0, k.shape[-2]  # packed sequences have all ends
        q_start, q_stop, k_start, k_stop = (n if x is None else x.long() for n, x in zip(whole, ends, strict=True))
        area: Any = (q_stop - q_start) * (k_stop - k_start)
        return int(area.sum())

    def gradients(
        self, d_out: Tensor, d_lse: Any, inputs: tuple[Any, ...], kept: tuple[Tensor, ...], needed: list[bool]
    ) -> tuple[Any, ...]:
        """The gradients of q, k, v, and of params that learn."""
        a = self.attention
        *ends, packed = inputs[-5:]
        dq, dk, dv = (result_like(x, x.shape[-1], packed) for x in inputs[:3])
        out, d_out, q, k, v = (contiguous_rows(x) for x in (kept[0], d_out, *inputs[:3]))
        kept, inputs = (out, *kept[1:]), (q, k, v, *inputs[3:])
        totals = a.totals(inputs, needed, torch.zeros_like)
        if not (q.numel() and (k.numel() or a.sums_of_none)):
            return dq.zero_(), dk.zero_(), dv.zero_(), *totals
        usual = 1e-18 < inputs[a.at_scale] < 1e18  # so that log-sum-exps can be divided by it
        d_lse = d_lse if d_lse is None else d_lse.contiguous()
        asked = Backward(d_lse is not None, a.rounds and kept[-1].numel() > 0, (*needed,), usual)
        tensors = {"out": out, "d_out": d_out, "dq": dq, "dk": dk, "dv": dv, "q": q, "k": k, "v": v}
        known, values = self.values(inputs, tensors, packed, dict(zip(BOUNDS, ends, strict=True)))
        values.update(zip(a.kept, kept, strict=True), natural_lse=kept[1], d_lse=d_lse)
        key = (
            *("backward", values[SAME]["key"], *a.deciding(inputs), asked),
            d_lse is None or (d_lse.dtype, d_lse.data_ptr() % 16),
            *(x.data_ptr() % 16 for x in kept[1:]),
        )
        if key not in known.sequences:
            assert self.backward_launches is not None
            count = known.shape[0]
            operands = (strided(x, count, packed) for x in (q, k, v, d_out, dk, dv))
            launches = self.backward_launches(known, *operands, values[SAME]["align"], packed, asked)
            known.sequences[key] = compiled_together(launches, values)
        with current(q):
            for launch in known.sequences[key]:
                launch(values)
        if self.param_gradients is not None:
            totals = self.param_gradients(values, totals, needed, k)
        return dq, dk, dv, *totals


def refuse_gradient(a: Attention, name: str, x: object, packed: bool, why: tuple[str, str]) -> None:
    """Refuses a param's gradient that sequences do not sum: `why`, of packed ones and of others."""
    if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
        a.refuse(
            f"the gradient of {name} is summed over pairs or chosen cells, which is done for dense tensors only: "
            f"{why[0 if packed else 1]}; if {name} needs no gradient, pass {name}.detach(), or declare it `fixed`"
        )
    return None
