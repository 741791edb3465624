# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""An attention as an operator of PyTorch that autograd, torch.compile, torch.func and FakeTensor know."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from .watched import has_tangents, is_transformed, unwatched

Tensors = tuple[Any, ...]
FINISHED: ContextVar[tuple[Tensor, Tensor] | None] = ContextVar("results that calls return", default=None)


@contextmanager
def finished(out: Tensor, lse: Tensor) -> Generator[None]:
    """In this block, calls return these results, in float32, in place of computing them: for their gradients."""
    token = FINISHED.set((out.detach(), lse.detach().contiguous()))
    try:
        yield
    finally:
        FINISHED.reset(token)


class Signature(NamedTuple):
    """The operator's inputs by name, with their types in its schema, from q, k and v on; and its results.

    `learned`: which inputs after q, k and v get gradients; `smooth`: which others are float tensors, whose gradient is
    zero.
    """

    inputs: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    learned: tuple[int, ...] = ()
    smooth: tuple[int, ...] = ()

    def schema(self) -> str:
        inputs = ", ".join(f"{kind} {name}" for name, kind in self.inputs)
        return f"({inputs}) -> ({', '.join('Tensor' for _ in self.results)})"

    def backward_schema(self) -> str:
        inputs = ", ".join(f"{kind} {name}" for name, kind in self.inputs)
        kept = ", ".join(f"Tensor {name}" for name in self.results)
        results = ", ".join("Tensor" for _ in range(3 + len(self.learned)))
        return f"(Tensor d_out, Tensor? d_lse, {inputs}, {kept}, bool[] needed) -> ({results})"


class Computes(Protocol):
    """What an operator does: `known` and `learn` are of calls without its dispatch (`Attention.attend`)."""

    def refuse(self, message: str) -> NoReturn: ...
    def attend(self, inputs: Tensors, known: Any = None, learn: Callable[..., Any] | None = None) -> Tensors: ...
    def gradients(
        self, d_out: Tensor, d_lse: Tensor | None, inputs: Tensors, kept: Tensors, needed: list[bool]
    ) -> Tensors: ...
    def empty_results(self, inputs: Tensors) -> Tensors: ...
    def empty_gradients(self, inputs: Tensors, needed: list[bool]) -> Tensors: ...
    def pairs(self, **inputs: Any) -> int: ...


class Operator:
    """`key`: its name, `attngen::NAME_…`. `forward_only`: without gradients."""

    def __init__(self, key: str, signature: Signature, computes: Computes, forward_only: bool) -> None:
        self.signature, self.computes = signature, computes
        tensors = [i for i, (_, kind) in enumerate(signature.inputs) if kind.startswith("Tensor")]
        self.n_inputs = len(signature.inputs)
        self.n_tensors, self.no_gradients = len(tensors), (None,) * (self.n_inputs - 3)
        # The inputs with tensors first, then numbers; and back.
        order = [*tensors, *[i for i in range(self.n_inputs) if i not in tensors]]
        self.apart = operator.itemgetter(*order)
        self.mixed = order != sorted(order)
        self.together = operator.itemgetter(*[order.index(i) for i in range(self.n_inputs)])

        def attend(*inputs: Any) -> Tensors:
            found = computes.attend(inputs)
            return tuple(found[0].new_empty(0) if x is None else x for x in found)

        self.forward = torch.library.custom_op(key, attend, mutates_args=(), schema=signature.schema())
        self.forward.register_fake(lambda *inputs: computes.empty_results(inputs))
        count_flops(self.forward, 1, 1, computes.pairs)
        self.call: Callable[..., Any] = self.forward
        self.backward: Any = None
        if forward_only:
            return

        def differentiate(d_out: Tensor, d_lse: Tensor | None, *given: Any) -> Tensors:
            return computes.gradients(d_out, d_lse, given[: self.n_inputs], given[self.n_inputs : -1], given[-1])

        schema = signature.backward_schema()
        self.backward = torch.library.custom_op(f"{key}_backward", differentiate, mutates_args=(), schema=schema)
        self.backward.register_fake(
            lambda d_out, d_lse, *given: computes.empty_gradients(given[: self.n_inputs], given[-1])
        )
        self.backward.register_autograd(self._refuse_second)
        count_flops(self.backward, 3, 2, computes.pairs)
        self.differentiate = transformable(self.backward, lambda *_: None, self._refuse_second)
        self.forward.register_autograd(self._differentiate, setup_context=self._save)
        self.call = transformable(self.forward, self._save, self._differentiate)
        self.direct = self._direct()

    def _refuse_second(self, ctx: Any, *gradients: Any) -> NoReturn:
        self.computes.refuse("a second derivative is not computed")

    def _save(self, ctx: Any, inputs: Tensors, output: Tensors) -> None:
        apart, n = self.apart(inputs), self.n_tensors
        ctx.numbers = apart[n:]
        if more := [x for x in output[2:] if x is not None]:
            ctx.mark_non_differentiable(*more)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*apart[:n], *output)

    def _differentiate(
        self, ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, *_: Any, saved: Tensors | None = None
    ) -> Tensors:
        found: Tensors = saved or ctx.saved_tensors
        inputs, kept = (*found[: self.n_tensors], *ctx.numbers), found[self.n_tensors :]
        inputs = self.together(inputs) if self.mixed else inputs
        out = kept[0]
        if kept[-1] is None:  # what only some calls save comes last
            kept = (*kept[:-1], out.new_empty(0))
        d_out = torch.zeros_like(out) if d_out is None else d_out
        learned, smooth = self.signature.learned, self.signature.smooth
        wants: tuple[bool, ...] = ctx.needs_input_grad
        needed = list(map(wants.__getitem__, learned))
        # Outside the operator, autograd would take these for constants and return a wrong second derivative.
        if not (torch.is_grad_enabled() or out.is_meta) and unwatched(d_out, *inputs[:3]):
            found = self.computes.gradients(d_out, d_lse, inputs, kept, needed)
        else:
            refuse_tangents(self.computes.refuse, d_out, d_lse, *inputs[:3])
            found = self.differentiate(d_out, d_lse, *inputs, *kept, needed)
        if not (smooth or True in needed):
            return *found[:3], *self.no_gradients
        gradients: list[Any] = [*found[:3], *self.no_gradients]
        for i, total in zip(learned, found[3:], strict=True):
            gradients[i] = total.to(inputs[i].dtype) if wants[i] else None
        for i in smooth:
            gradients[i] = torch.zeros_like(inputs[i]) if wants[i] else None
        return tuple(gradients)

    def _direct(self) -> Callable[..., Any]:
        """The operator without its dispatch: inputs, then what is known of their layout."""
        op = self

        class Direct(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *given: Any) -> Tensors:  # pyright: ignore[reportIncompatibleMethodOverride]
                inputs = given[:-1]

                def learn(*output: Any) -> None:
                    op._save(ctx, inputs, output)
                    op._differentiate(ctx, torch.empty_like(output[0]), None, saved=ctx.to_save)

                output = op.computes.attend(inputs, given[-1], learn)
                op._save(ctx, inputs, output)
                return output

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Tensors:  # pyright: ignore[reportIncompatibleMethodOverride]
                return *op._differentiate(ctx, *gradients), None

        return Direct.apply


def refuse_tangents(refuse: Callable[[str], NoReturn], *arguments: object) -> None:
    """Refuses forward-mode derivatives, which a call would drop silently."""
    if has_tangents(*arguments):
        refuse("forward-mode derivatives (jvp, jacfwd, hessian) are not computed: use backward()")


def transformable(operator: Any, save: Callable[..., Any], differentiate: Callable[..., Any]) -> Callable[..., Any]:
    """`operator`, and under transforms of `torch.func` an autograd function, since they ignore an operator's
    formula."""

    class Transformed(torch.autograd.Function):
        generate_vmap_rule = True
        setup_context = staticmethod(save)
        backward = staticmethod(differentiate)

        @staticmethod
        def forward(*inputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return operator(*inputs)

    return lambda *inputs: (Transformed.apply if is_transformed() else operator)(*inputs)


def count_flops(op: Any, of_qk: int, of_v: int, pairs: Callable[..., int]) -> None:
    """Tells `FlopCounterMode` of an operator's products of lengths D and Dv, so many for each pair, allowed or not."""
    names = [x.name for x in op._opoverload._schema.arguments]

    def flops(*inputs: Any, out_val: Any = None, **more: Any) -> int:
        given = {**dict(zip(names, inputs, strict=False)), **more}
        q, v = given["q"], given["v"]
        return 2 * q.shape[1] * pairs(**given) * (of_qk * q.shape[-1] + of_v * v.shape[-1])

    flops._get_raw = True  # type: ignore[attr-defined]  # it takes tensors, not their shapes
    flop_registry[op._opoverload.overloadpacket] = flops
