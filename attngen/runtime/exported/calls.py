# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""Calls of an attention: what those of one layout share, and how results and gradients are computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from triton import knobs

from .arguments import in_autocast, scale_number, scaled
from .devices import alignment, chip, current, layout_of, like, lse_like, near, padded, strided, strides_of
from .launch import compiled_together
from .operators import FINISHED, Operator
from .watched import any_autocast, unwatched


class Backward(NamedTuple):
    """What launches of the backward pass depend on. `needed`: which params want a gradient; `usual`: whether
    log-sum-exps can be divided by the scale; `precise`: whether what rounding took from out is known."""

    has_d_lse: bool
    precise: bool
    needed: tuple[bool, ...]
    usual: bool


def wants_gradient(inputs: tuple[Any, ...], places: tuple[int, ...]) -> bool:
    for i in places:
        if inputs[i].requires_grad:
            return torch.is_grad_enabled()
    return False


class Layout:
    """What calls of one layout share: values, numbers that passed the checks, launches.

    q, k and v are as a call has them, `tensors` the params of a shape, with batches. `packed`: their rows belong to
    `count` sequences, each of which is a batch.
    """

    def __init__(
        self, a: Any, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor, count: int = 0, packed: bool = False
    ) -> None:
        if chip(q.device) == "cpu" and not knobs.runtime.interpret:
            a.refuse(
                "q is on the CPU: set TRITON_INTERPRET=1 before triton is imported, or compile for the target torch"
            )
        rows = near(q), near(k), near(v)
        self.near = rows[0] is q and rows[1] is k and rows[2] is v
        self.count, self.packed = count, packed
        # Shapes and strides of the results.
        self.out, self.lse = like(rows[0], v.shape[-1]), lse_like(q)
        q, k, v = self.views(*rows)
        sizes = a.sizes_of(q, v, tensors)
        B, Hq, Sq, D = q.shape
        Hkv, Sk, Dv = v.shape[1:]
        if max(Sq, Sk) >= 2**a.longest_bits:  # not in `check`: while tracing they may be symbols
            found = f"sequences must be shorter than 2**{a.longest_bits}, not {Sq} and {Sk}"
            a.refuse(f"{found}: positions are computed in 32 bits")
        self.shape = B, Hq, Hkv, Sq, Sk, D, Dv
        strides = self.strides(q=rows[0].stride(), k=rows[1].stride(), v=rows[2].stride(), out=self.out[1])
        self.values: dict[str, Any] = {**strides, **vars(sizes), "n_sequences": B, "queue": None}
        for p, x in zip(a.ranked, tensors, strict=True):
            repeated = x if p.shape is None else x.expand(p.shape(sizes))  # of sizes of 1, without a copy
            self.values |= zip(p.strides, repeated.stride(), strict=True)
        if a.fetched is not None:
            self.values["fetched"] = a.fetched(*tensors)
        self.constants: dict[str, Any] = {"D": D, "Dv": Dv, "ALIGN": alignment(strides)}
        if a.fast:
            self.constants["FAST"] = q.element_size() < 4 and chip(q.device).startswith("sm_")
        self.wide = {
            "D": D,
            "Dv": Dv,
            "BLOCK_D": max(64, padded(D)),
            "BLOCK_DV": max(64, padded(Dv)),
            "FAST": True,
            "num_warps": 4,
        }
        self.fits: set[Any] = set()
        self.forward: dict[Any, Any] = {}
        self.backward: dict[Any, Any] = {}

    def views(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors with a batch for each sequence, (B, H, S, D)."""
        return tuple([strided(x, self.count, True) for x in tensors]) if self.packed else tensors

    def strides(self, **tensors: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Those of batches, heads and rows, by the names of the kernels' parameters."""
        if self.packed:
            tensors = {name: (0, head, row) for name, (row, head, _) in tensors.items()}
        return strides_of(**tensors)


class Calls:
    """The calls of an attention in one kind of tensors: dense ones, or sequences that are a part of them.

    `forward(known, q, k, v, out)` and `backward(known, strides, q, k, v, d_out, dq, dk, dv, asked)` return the launches
    for calls of one layout; they are asked once, and the launches are kept and run again. `pairs` returns those of
    kernels that gather a param's gradient over pairs, `gradients` the params' gradients. `bounds`: the operator's last
    inputs, which say where sequences are.
    """

    def __init__(
        self,
        attention: Any,
        key: str,
        forward: Callable[..., tuple[Any, ...]],
        backward: Callable[..., tuple[Any, ...]] | None,
        gradients: Callable[..., tuple[Tensor, ...]] | None,
        pairs: Callable[..., dict[str, Any]] | None = None,
        bounds: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.attention, self.n_bounds = attention, len(bounds)
        self.forward_launches, self.backward_launches, self.pair_launches = forward, backward, pairs
        self.param_gradients = gradients
        self.ready: dict[Any, Layout] = {}  # by layout of the tensors
        signature = attention.signature_of(bounds)
        self.input_names = tuple(name for name, _ in signature.inputs)
        self.operator = Operator(key, signature, self, backward is None)

    def refuse(self, message: str) -> NoReturn:
        raise self.attention.refusal(f"{self.attention.name}: {message}")

    # ---------------------------------------------------------------- a call

    def call(
        self, operands: tuple[Any, ...], scale: Any, seed: Any, bounds: tuple[Any, ...] = (), rows: Any = None
    ) -> tuple[Any, ...]:
        """out and lse, and what the backward pass reads. `rows`: those of each sequence, where they are known."""
        a, q = self.attention, operands[0]
        if any_autocast() and isinstance(q, Tensor) and not q.is_meta and torch.is_autocast_enabled(q.device.type):
            operands = (*[in_autocast(x, q.device.type) for x in operands[:3]], *operands[3:])
            with torch.autocast(q.device.type, enabled=False):
                return self.call(operands, scale, seed, bounds, rows)
        if scale is None:
            try:
                scale = q.shape[-1] ** -0.5
            except (AttributeError, IndexError, ZeroDivisionError):
                scale = 1.0  # `check` refuses this call
        elif isinstance(scale, Tensor):
            operands = self.checked(operands, scale, bounds, rows)
            q, scale = scaled(a.refuse, operands[0], scale, a.scale_use)
            operands = (q, *operands[1:])
        elif type(scale) is not float or not abs(scale) < torch.inf:
            scale = scale_number(a.refuse, scale)
        known = fit = None
        alone = rows is None and unwatched(*a.all_tensors(operands, seed))
        if alone:
            known = self.ready.get(self.key(operands, bounds))
            fit = scale if a.tensors_alone else a.numbers(operands, scale)
        if known is None or fit is None or fit not in known.fits:
            operands = self.checked(operands, scale, bounds, rows)
            if alone and not operands[0].is_meta:
                known = known or self.layout(operands, bounds)
                if len(known.fits) >= 1024:
                    known.fits.clear()
                known.fits.add(fit)
        if operands[0].dtype is torch.bfloat16 and operands[0].is_cpu:
            # Triton's interpreter has no bfloat16 products, so it computes in float32.
            operands = (*(x.float() for x in operands[:3]), *operands[3:])
            out, *rest = self.call(operands, scale, seed, bounds, rows)
            return out.bfloat16(), *rest
        filled = self.filled(operands) if bounds else operands
        inputs = a.inputs(filled, scale, seed, known is not None)
        inputs = (*inputs, *bounds) if bounds else inputs
        if known is not None and not (inputs[0] is operands[0] and filled is operands):
            known = self.layout(inputs, bounds)
        return self.run(inputs, known)

    def run(self, inputs: tuple[Any, ...], known: Layout | None) -> Any:
        """The operator's results, without its dispatch where the layout is `known`."""
        if wants_gradient(inputs, (0, 1, 2, *self.attention.at_pointers)):
            if self.backward_launches is None:
                self.refuse(
                    "this file was made with the option forward and has no gradients: call it under torch.no_grad(), "
                    "or compile the spec without that option"
                )
            if known is not None:
                return self.operator.direct(*inputs, known)
        return self.operator.call(*inputs) if known is None else self.attend(inputs, known)

    # ---------------------------------------------------------------- what dense calls do

    def checked(self, operands: tuple[Any, ...], scale: Any, bounds: tuple[Any, ...], rows: Any) -> tuple[Any, ...]:
        """The operands as they are computed with. Raises one clear error if an argument does not fit."""
        return self.attention.check(operands, scale)

    def filled(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of sequences as kernels may read them although no pair counts."""
        return operands

    def key(self, operands: tuple[Any, ...], bounds: tuple[Any, ...]) -> Any:
        """What launches depend on."""
        return layout_of(*self.attention.tensors(operands))

    def laid(self, operands: tuple[Any, ...], bounds: tuple[Any, ...]) -> Layout:
        return Layout(self.attention, *self.attention.tensors(operands))

    def summed(
        self, known: Layout, values: dict[str, Any], pairs: dict[str, Any], needed: list[bool], inputs: tuple[Any, ...]
    ) -> tuple[Tensor, ...]:
        """The gradients of params."""
        given = inputs[3 : self.attention.at_scale]
        return () if self.param_gradients is None else self.param_gradients(known, values, pairs, needed, *given)

    def pairs(self, q: Tensor, k: Tensor, **_: Any) -> int:
        """How many pairs of a query and a key a head has, whatever the mask."""
        return q.shape[0] * q.shape[2] * k.shape[2]

    # ---------------------------------------------------------------- what the operator computes

    def layout(self, operands: tuple[Any, ...], bounds: tuple[Any, ...]) -> Layout:
        """The `Layout` of these tensors."""
        key = self.key(operands, bounds)
        known = self.ready.get(key)
        if known is None:
            if len(self.ready) >= 1024:
                self.ready.clear()
            known = self.ready[key] = self.laid(operands, bounds)
        return known

    def layout_of_inputs(self, inputs: tuple[Any, ...]) -> Layout:
        return self.layout(inputs, inputs[len(inputs) - self.n_bounds :])

    def attend(
        self, inputs: tuple[Any, ...], known: Layout | None = None, learn: Callable[..., Any] | None = None
    ) -> tuple[Any, ...]:
        """A call that needs no operator knows the layout of its tensors already. `learn` is the backward pass of its
        results, whose kernels are compiled with these.
        """
        a, own = self.attention, known is not None
        known = known or self.layout_of_inputs(inputs)
        precise = a.rounds and inputs[a.at_precise]
        if (given := FINISHED.get()) is not None:
            return a.saved(inputs[0], precise, given)
        if not known.near:
            inputs = (*[near(x) for x in inputs[:3]], *inputs[3:])
        q, k, v = inputs[:3]
        out = q.new_empty_strided(*known.out, dtype=a.result_dtype(inputs))
        lse = q.new_empty_strided(*known.lse, dtype=torch.float32)
        values = a.values_of(known.values, zip(self.input_names, inputs, strict=False))
        values["out"], values["lse"], values["own"] = out, lse, own
        more = a.more_results(lse, v, precise) if len(a.kept) > 2 else {}
        values.update(more)
        results = (out, lse, *more.values())
        if out.numel():
            key = precise if a.tensors_alone else (*a.deciding(inputs), precise)
            if a.rounds and not precise:
                values["rest"] = out
            launches = known.forward.get(key)
            if launches is None:
                ahead = learn and functools.partial(learn, *results)
                launches = self.forward_launches(known, *known.views(q, k, v, out), *((precise,) if a.rounds else ()))
                launches = known.forward[key] = compiled_together(launches, values, ahead)
            with current(q):
                for launch in launches:
                    launch(values)
        return results

    def empty_results(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        a, q, v = self.attention, inputs[0], inputs[2]
        out = q.new_empty_strided(*like(q, v.shape[-1]), dtype=a.result_dtype(inputs))
        lse = q.new_empty(lse_like(q)[0], dtype=torch.float32)
        found = dict(out=out, lse=lse, **a.more_results(lse, v, a.rounds and inputs[a.at_precise]))
        return tuple(out.new_empty(0) if found[name] is None else found[name] for name in a.kept)

    def empty_gradients(self, inputs: tuple[Any, ...], needed: list[bool]) -> tuple[Any, ...]:
        totals = self.attention.totals(inputs, needed, torch.empty_like)
        return (*(torch.empty_like(near(x)) for x in inputs[:3]), *totals)

    def gradients(
        self,
        d_out: Tensor,
        d_lse: Tensor | None,
        inputs: tuple[Any, ...],
        kept: tuple[Tensor, ...],
        needed: list[bool],
    ) -> tuple[Any, ...]:
        """The gradients of q, k, v, and of params that learn."""
        a = self.attention
        known = self.layout_of_inputs(inputs)
        if not known.near:
            inputs = (*[near(x) for x in inputs[:3]], *inputs[3:])
        q, k, v, *given = inputs[: a.at_scale]
        out, d_out = near(kept[0]), near(d_out)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        if not (q.numel() and (k.numel() or a.sums_of_none)):
            return dq.zero_(), dk.zero_(), dv.zero_(), *a.totals(inputs, needed, torch.zeros_like)
        usual = 1e-18 < inputs[a.at_scale] < 1e18  # so that log-sum-exps can be divided by it
        d_lse = d_lse if d_lse is None else d_lse.contiguous()
        asked = d_lse is not None, a.rounds and kept[-1].numel() > 0, (*needed,), usual
        # Hooks on saved tensors may return them at other addresses.
        key = (
            *[x.data_ptr() % 16 for x in (out, *kept[1:], d_out)],
            out.stride(),
            d_out.stride(),
            d_lse is None or (d_lse.dtype, d_lse.data_ptr() % 16),
            *a.deciding(inputs),
            asked,
        )
        found: tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]] | None = known.backward.get(key)
        if new := found is None:
            assert self.backward_launches is not None
            results = {"out": out, "d_out": d_out, "dq": dq, "dk": dk, "dv": dv}
            strides = known.strides(**{name: x.stride() for name, x in results.items()})
            tensors = known.views(q, k, v, d_out, dq, dk, dv)
            launches = self.backward_launches(known, strides, *tensors, Backward(*asked))
            pairs = self.pair_launches(known, strides, q, k, v, d_out, *given) if self.pair_launches else {}
            found = {**known.values, **strides}, launches, pairs
        same, launches, pairs = found
        values = a.values_of(same, zip(self.input_names, inputs, strict=False))
        values.update(zip(a.kept, kept, strict=True))
        values |= {"out": out, "natural_lse": kept[1], "d_out": d_out, "d_lse": d_lse, "dq": dq, "dk": dk, "dv": dv}
        if new:
            compiled_together(launches, values)
            known.backward[key] = found
        with current(q):
            for launch in launches:
                launch(values)
            return dq, dk, dv, *self.summed(known, values, pairs, needed, inputs)
