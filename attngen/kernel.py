"""A compiled attention that can be called: the generated file's functions, loaded and compiled when first asked for.

Takes what `api.build` made; gives the functions of every geometry, the float64 reference, and the source.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from attngen import files, targets
from attngen.errors import UsageError
from attngen.foreign import answer
from attngen.ir.attention import Attention
from attngen.quantized import Quantized, dequantized
from attngen.signature import PublicSignature
from attngen.vocabulary import GEOMETRIES

if TYPE_CHECKING:
    from types import ModuleType

    from attngen.emit import Options
    from attngen.ir.evaluate import Array
    from attngen.ir.pieces import Piece
    from attngen.plan import KernelPlan
    from attngen.prove.proof import Proof

_Own = ParamSpec("_Own")
_Result = TypeVar("_Result")


def _of_pieces(method: Callable[_Own, _Result]) -> Callable[_Own, _Result]:
    """A method that takes params by name: one with the name of an argument of its own is refused."""
    code = method.__code__
    arguments = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    @functools.wraps(method)
    def called(*operands: _Own.args, **given: _Own.kwargs) -> _Result:
        kernel = cast(Kernel, operands[0])
        clash = next((p.name for p in kernel.spec.params if p.name in arguments), None)
        if clash is not None:
            said = f"the param `{clash}` has the name of an argument of {method.__name__}: rename it in the spec"
            raise UsageError(f"{kernel.name}: {said}")
        return method(*operands, **given)

    return called


_BOUNDS = ("q_start", "q_stop", "k_start", "k_stop")
_ENDINGS = {"dense": "", "packed": "_varlen", "lengths": "_lengths"}
"""Of the functions' names, by geometry."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A function of a generated file, and what it calls: the runtime's `Attention`, for target triton."""

    function: Callable[..., Any]
    attention: Any = None


@dataclass(frozen=True, eq=False, repr=False)
class Kernel:
    """One compiled attention: call it as the generated function, `kernel(q, k, v, *, PARAM=…, scale=None, …)`.

    q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), tensors of one dtype on one device; gives out (B, Hq, Sq,
    Dv), with `return_lse=True` also lse (B, Hq, Sq). Pallas: JAX arrays, heads behind lengths, as in
    `jax.nn.dot_product_attention`: q (B, Sq, Hq, D), out (B, Sq, Hq, Dv); lse as before. Differentiable in q, k, v and
    every float param. q, k and v may be what `attngen.quantize` returns: 8-bit floats, whose kernel is compiled at the
    first such call (target triton). With q_start, q_stop, k_start or k_stop (int32, (B,)) a sequence is the rows start
    … stop - 1 of its batch row; the other rows are 0 in out and -inf in lse, and reach nothing. The generated file is
    loaded at the first call. On a machine without a GPU (or a TPU) Triton's (or Pallas') runs in its interpreter. Wrong
    arguments raise `UsageError`.
    """

    spec: Attention
    """The closed, typed attention (`attngen.ir`); its `assume`s include what every call checks of sizes."""
    plan: KernelPlan
    """What the planner decided."""
    source: str
    """The generated file: standalone, and yours to keep."""
    target: str = field(default="triton")
    proof: Proof | None = field(default=None)
    """What was proved of the plan, obligation by obligation (`attngen.prove.proof.Proof`)."""
    made: tuple[str, Options] | None = field(default=None)
    """The spec's text, and the options of the file: from them the functions of other geometries are compiled."""
    captured: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Params that a call need not give (`attngen.from_flex`)."""
    # None until they are loaded: FSDP reads every field of a module's arguments.
    _geometries: dict[str, Loaded] = field(init=False, default=cast(Any, None))
    _runtime: Any = field(init=False, default=cast(Any, None))
    _pieces: dict[tuple[bool, bool], tuple[Piece, Kernel]] = field(init=False, default=cast(Any, None))
    _narrow: Kernel | None = field(init=False, default=None)
    _mean_seen: str | None = field(init=False, default=None)
    __signature__ = PublicSignature()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def text(self) -> str:
        """The spec's text, as it was compiled: of `attngen.from_flex`, what it read, to be kept as a file."""
        return "" if self.made is None else self.made[0]

    def __call__(self, /, *operands: Any, **arguments: Any) -> Any:
        arguments = {**self.captured, **arguments} if self.captured else arguments
        if isinstance(operands[0] if operands else arguments.get("q"), Quantized):
            from attngen import eight_bits

            return eight_bits.called(self, operands, arguments)
        bounds = [name for name in _BOUNDS if arguments.get(name) is not None]
        if bounds and not any(p.name in bounds for p in self.spec.params):
            _refuse_spread(self.name, operands, arguments)
            return _called(self.loaded("lengths").function, operands, arguments)
        given = {n: x for n, x in arguments.items() if n not in _BOUNDS or n in bounds}
        return _called(self.loaded("dense").function, operands, given)

    def varlen(self, /, *operands: Any, **arguments: Any) -> Any:
        """The same over packed sequences, `kernel.varlen(q, k, v, *, cu_seqlens_q, PARAM=…, …)`.

        q (Tq, Hq, D), k (Tk, Hkv, D), v (Tk, Hkv, Dv): the rows of all sequences follow one another. Sequence b has the
        queries cu_seqlens_q[b] … cu_seqlens_q[b + 1] - 1 and the keys that cu_seqlens_k says (without it the same), of
        which it sees the first seqused_k[b] if that is given; all three int32, (B + 1,) and (B,), read on the device.
        Gives out (Tq, Hq, Dv), with `return_lse=True` also lse (Hq, Tq), float32. A param with an element for each row
        has the rows of all sequences, without the dimension B. For target triton; compiled at the first call.
        """
        arguments = {**self.captured, **arguments} if self.captured else arguments
        _refuse_spread(self.name, operands, arguments)
        if any(isinstance(x, Quantized) for x in (*operands, *arguments.values())):
            raise UsageError(f"{self.name}: 8-bit floats are taken by dense calls alone: give varlen bfloat16")
        return _called(self.loaded("packed").function, operands, arguments)

    @property
    def function(self) -> Callable[..., Any]:
        """The generated function itself, loaded when it is first asked for."""
        return self.loaded("dense").function

    def loaded(self, geometry: str) -> Loaded:
        """The function of this geometry, loaded when it is first asked for."""
        self._load(geometry)
        return self._geometries[geometry]

    def _load(self, geometry: str) -> None:
        if geometry not in (self._geometries or {}):
            source = self.source if geometry == "dense" else self.with_geometry(geometry)
            one = {geometry: self._loaded(source, _ENDINGS[geometry])}
            object.__setattr__(self, "_geometries", {**(self._geometries or {}), **one})

    def eight_bits(self) -> Kernel:
        """The kernel of 8-bit floats with factors (`dtype="fp8"`), compiled and proved when it is first asked for."""
        self._load_narrow()
        return cast("Kernel", self._narrow)

    def sees_mean(self) -> str | None:
        """Why keys must keep their mean (`KernelPlan.sees_mean`)."""
        self._load_narrow()
        return self._mean_seen

    def _load_narrow(self) -> None:
        if self._narrow is None:
            from attngen import eight_bits

            own = self if self.spec.value_scale is not None else eight_bits.kernel_of(self)
            object.__setattr__(self, "_mean_seen", self.plan.sees_mean)
            object.__setattr__(self, "_narrow", own)

    def _load_runtime(self) -> None:
        if "_runtime" not in self.__dict__:
            from attngen.torch_pieces import KernelPieces

            object.__setattr__(self, "_runtime", KernelPieces(self))

    def pieces(self) -> Any:
        """The functions over pieces of PyTorch's tensors, as files carry them (`attngen.torch_pieces`)."""
        self._refuse_pieces()
        self._load_runtime()
        return self._runtime

    # `torch.compile` calls these instead of tracing into them. `torch.compiler.assume_constant_result` sets the same,
    # but needs torch. What they set is read only after them: else `torch.compile` would guard that it is missing.
    for _loads in (_load, _load_narrow, _load_runtime):
        _loads._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    del _loads

    def _module(self, source: str) -> ModuleType:
        return targets.named(self.target).load(source, self.name)

    def _loaded(self, source: str, ending: str) -> Loaded:
        module = self._module(source)
        attention = getattr(module, "_attention", None)
        if attention is None:
            vars(module).update(_Refusal=UsageError, _CALLER=7)
        else:
            attention.refusal, attention.caller = UsageError, 9
        return Loaded(getattr(module, f"{self.name}{ending}"), attention)

    def with_results(self, out: Any, lse: Any) -> AbstractContextManager[None]:
        """A context in which this kernel's calls return these results and compute nothing: for their gradients."""
        return self.loaded("packed" if lse.ndim == 2 else "dense").attention.finished(out, lse)

    def with_geometry(self, kind: str) -> str:
        """The source of a file that has this geometry, too: this kernel's own where it does."""
        if kind not in GEOMETRIES:
            raise UsageError(f"no geometry {kind!r}; there are {', '.join(GEOMETRIES)}")
        if self.made is None or kind not in targets.named(self.target).geometries:
            raise UsageError(f"{self.name}: the geometry {kind} is for kernels that were compiled for target triton")
        text, options = self.made
        if kind in options.geometry:
            return self.source
        if self.spec.value_scale is not None:
            raise self._dense_alone(kind)
        kept = {kind, *options.geometry} - {"pieces"}
        wider = replace(options, geometry=tuple(g for g in GEOMETRIES if g in kept))
        return targets.emit(self.plan, text, wider, self.proof.summary() if self.proof is not None else ())

    def _dense_alone(self, kind: str) -> UsageError:
        said = f"8-bit floats are taken by dense calls alone, not by {kind}"
        return UsageError(f"{self.name}: {said}: compile without dtype=fp8, and give it bfloat16")

    def _refuse_pieces(self) -> None:
        if self.spec.value_scale is not None:
            raise self._dense_alone("pieces")

    def piece(self, *, each: bool = False, clipped: bool = False) -> tuple[Piece, Kernel]:
        """The kernel of a piece of a longer sequence (`ir.pieces`), compiled and proved when it is first asked for."""
        self._load_piece(each, clipped)
        return self._pieces[each, clipped]

    def _load_piece(self, each: bool, clipped: bool) -> None:
        from attngen import chain, pieces

        self._refuse_pieces()
        if (each, clipped) in (self._pieces or {}):
            return
        if self.made is None:
            raise UsageError(f"{self.name}: pieces are for kernels that `attngen.compile` made")
        text, options = self.made
        made = pieces.make(self.name, self.spec, text, options, each=each, clipped=clipped)
        own = Kernel(
            spec=chain.callable_spec(made.piece.own, made.plan),
            plan=made.plan,
            source=made.source,
            target=self.target,
            proof=made.proof,
            made=(made.text, options),
        )
        object.__setattr__(self, "_pieces", {**(self._pieces or {}), (each, clipped): (made.piece, own)})

    _load_piece._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]

    def _pieces_module(self) -> Any:
        """The module that computes with pieces of this target's arrays."""
        self._refuse_pieces()
        if targets.named(self.target).takes_jax:
            from attngen import jax_pieces

            return jax_pieces
        from attngen import torch_pieces

        return torch_pieces

    @_of_pieces
    def partial(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        q_offset: Any,
        k_offset: Any,
        Sq: Any,
        Sk: Any,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        scale: Any = None,
        dropout_seed: Any = None,
        h_offset: Any = 0,
        b_offset: Any = 0,
        **params: Any,
    ) -> tuple[Any, Any]:
        """What queries get from some of a sequence's keys: out (float32) and lse, to be merged with other parts.

        q holds positions q_offset, q_offset + 1, … of a sequence of Sq queries, k and v those from k_offset on, of Sk
        keys; (B, H, S, D), or packed with cu_seqlens_q, where the four numbers may be int32 tensors, one for each
        sequence. Params with an element for each row are those of the whole sequence. The denominator's own term (a
        sink) is left out: `finish` adds it, once. For targets triton, pallas and jax; of JAX, arrays are (B, S, H, D),
        not packed, and the four numbers may be traced. Raises `UsageError` where a gradient is wanted.

        Dropout needs `dropout_seed`, the same for all pieces; they drop what the whole drops. If the piece's heads or
        sequences are not the whole's first, `h_offset` and `b_offset` say how many come before: ints, or int32 tensors
        with a number for each sequence.
        """
        from attngen.pieces import Place

        place = Place(
            q_offset=q_offset, k_offset=k_offset, Sq=Sq, Sk=Sk, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
            h_offset=h_offset, b_offset=b_offset, dropout_seed=dropout_seed,
        )  # fmt: skip
        module = self._pieces_module()
        place.check(module.checks(self), (q, k, v), self.spec, params)
        return module.partial(self, (q, k, v), place, scale, params)

    def merge(self, parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
        """(out, lse) of parts of the same queries, whose keys are disjoint, in any order and grouping."""
        module = self._pieces_module()
        module.checks(self).check_parts(parts)
        return module.merge(self, parts)

    @_of_pieces
    def finish(self, out: Any, lse: Any, *, cu_seqlens_q: Any = None, **params: Any) -> tuple[Any, Any]:
        """(out, lse) with the denominator's own term, which one of all merged parts must get, once.

        Give the `cu_seqlens_q` of packed rows if some belong to no sequence: these get no such term, so their lse stays
        -inf. Targets `jax` and `pallas` have no packed rows.
        """
        module = self._pieces_module()
        checks = module.checks(self)
        checks.check_part(out, lse)
        checks.check_ends(lse, cu_seqlens_q)
        return module.finish(self, (out, lse), params, *(() if cu_seqlens_q is None else (cu_seqlens_q,)))

    @_of_pieces
    def partial_backward(
        self,
        q: Any,
        k: Any,
        v: Any,
        d_out: Any,
        out: Any,
        lse: Any,
        *,
        q_offset: Any,
        k_offset: Any,
        Sq: Any,
        Sk: Any,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        d_lse: Any = None,
        scale: Any = None,
        dropout_seed: Any = None,
        h_offset: Any = 0,
        b_offset: Any = 0,
        accumulate: tuple[Any, Any, Any] | None = None,
        **params: Any,
    ) -> tuple[Any, Any, Any, dict[str, Any]]:
        """(dq, dk, dv, {param: gradient}) in float32, of what this piece contributes to the finished `out` and `lse`.

        Params that require a gradient get one, in JAX every float param. `accumulate`: float32 tensors to which dq, dk
        and dv are added in place, in JAX arrays whose sums are new; the sums are returned. The gradients of all pieces,
        and of `finish_backward`, add up to those of the whole.
        """
        from attngen.pieces import Place

        place = Place(
            q_offset=q_offset, k_offset=k_offset, Sq=Sq, Sk=Sk, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
            h_offset=h_offset, b_offset=b_offset, dropout_seed=dropout_seed,
        )  # fmt: skip
        module = self._pieces_module()
        checks, operands = module.checks(self), (q, k, v)
        place.check(checks, operands, self.spec, params)
        checks.check_results(operands, out, lse)
        checks.check_gradient(d_out, d_lse, out, lse)
        if accumulate is not None:
            checks.check_sums(accumulate, operands)
        return module.partial_backward(self, operands, (d_out, d_lse), (out, lse), place, scale, params, accumulate)

    @_of_pieces
    def finish_backward(
        self, d_out: Any, out: Any, lse: Any, *, d_lse: Any = None, cu_seqlens_q: Any = None, **params: Any
    ) -> dict[str, Any]:
        """{param: gradient} of the denominator's own term, in float32, from the finished `out` and `lse`.

        `cu_seqlens_q`: as in `finish`; the incoming gradients of rows that no sequence has are ignored.
        """
        module = self._pieces_module()
        checks = module.checks(self)
        checks.check_part(out, lse)
        checks.check_gradient(d_out, d_lse, out, lse)
        checks.check_ends(lse, cu_seqlens_q)
        ends = () if cu_seqlens_q is None else (cu_seqlens_q,)
        return module.finish_backward(self, (d_out, d_lse), (out, lse), params, *ends)

    @_of_pieces
    def visits(
        self, q_range: tuple[int, int], k_range: tuple[int, int], Sq: int, Sk: int, **params: Any
    ) -> Literal["none", "some", "all"]:
        """Whether queries start … stop - 1 of `q_range` may attend to no key of `k_range`, to some, or all to all.

        On the host. "none" and "all" are certain, and the answer is exact for areas of at most 2**26 pairs, if params
        that the mask reads are given, as CPU tensors. "some" where they are not.
        """
        from attngen.visits import asked, visits

        return visits(self, q_range, k_range, asked(self, q_range, k_range, Sq, Sk, params))

    @_of_pieces
    def work(self, q_range: tuple[int, int], k_range: tuple[int, int], Sq: int, Sk: int, **params: Any) -> int:
        """Pairs of a head: at least those that may attend, at most the area. See `visits`."""
        from attngen.visits import asked, work

        return work(self, q_range, k_range, asked(self, q_range, k_range, Sq, Sk, params))

    def reference(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        return_lse: bool = False,
        dropout_seed: int | None = None,
        **params: Any,
    ) -> Array | tuple[Array, Array]:
        """The same result by the definition: dense, float64, NumPy. Takes arrays or tensors, in the target's order."""
        import numpy as np

        from attngen.ir.narrow import DESCALES
        from attngen.reference import evaluate

        q, k, v = (dequantized(x) if isinstance(x, Quantized) else x for x in (q, k, v))
        if self.spec.value_scale is not None:
            factors = {name: np.asarray(params.get(name, 1.0)) for name in DESCALES}
            params |= {n: np.broadcast_to(x, k.shape[:2]) if x.ndim == 0 else x for n, x in factors.items()}
        heads_inside = targets.named(self.target).takes_jax
        if heads_inside:
            q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        result = evaluate(self.spec, q, k, v, params=params, scale=scale, dropout_seed=dropout_seed)
        out = result.out.swapaxes(1, 2) if heads_inside else result.out
        return (out, result.lse) if return_lse else out

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the generated file, whole or not at all."""
        if not isinstance(cast(Any, path), str | os.PathLike):
            raise UsageError(f"path must be the path of a file to write, not {path!r}")
        files.write(path, self.source)

    def __repr__(self) -> str:
        params = "".join(f", {p.name}" for p in self.spec.params)
        return f"<attngen.Kernel {self.name}(q, k, v{', *' if params else ''}{params}) for {self.target}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the call, the formula, the mask with its tiles, what is proved. Runs no kernel."""
        from attngen.explain.notebook import html

        arguments = str(inspect.signature(cast(Callable[..., Any], self))).replace("'", "")
        return html(self.spec, self.plan, self.proof, f"{self.name}{arguments}  # target {self.target}")

    def __reduce__(self) -> tuple[type[Kernel], tuple[Any, ...]]:
        # The loaded functions belong to this process; another one loads its own.
        return Kernel, (self.spec, self.plan, self.source, self.target, self.proof, self.made)


def _refuse_spread(name: str, operands: tuple[Any, ...], arguments: dict[str, Any]) -> None:
    if any(type(x).__name__ == "DTensor" for x in (*operands, *arguments.values())):
        raise UsageError(
            f"{name}: DTensors are taken by dense calls alone: give packed sequences and lengths local tensors, "
            "x.to_local(), whose heads are cut in the same way"
        )


def _called(function: Callable[..., Any], operands: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    try:
        return function(*operands, **arguments)
    except TypeError as error:
        # Python raises it here, and no deeper, where the function has no such argument or one is missing.
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        unknown = str(error).partition("unexpected keyword argument '")[2].partition("'")[0]
        raise UsageError(f"{error}{answer(unknown)}") from error
