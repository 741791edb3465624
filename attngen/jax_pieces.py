"""Attention by pieces for the targets that print JAX: `pieces`, over JAX arrays and for functions that are traced.

Takes a `Kernel` of target jax or pallas and what its methods `partial`, `merge`, `finish`, `partial_backward` and
`finish_backward` were called with; the numbers of a `Place` may be traced. A generated module differentiates one core,
`_attend`. A piece runs the same module with a core of its own, which gives out in float32 or, backward, starts from the
finished results: then the weights that are computed again, exp(s - lse), are already those of the whole.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from attngen.emit.torch_shared.own_term import readable_term
from attngen.errors import UsageError
from attngen.ir.nodes import Load, Scalar, Symbol, Type
from attngen.ir.pieces import row_axes
from attngen.ir.walk import children, params as read_params
from attngen.piece_arguments import Checks, check_known, check_params
from attngen.pieces import Kernel, Place, check_seed
from attngen.plan.score.weights import Form
from attngen.runtime.exported.merging import PART, Arrays
from attngen.runtime.exported.places import over_rows

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")

if TYPE_CHECKING:
    from attngen.emit.jax_shared.expressions import Leaf

Core = Callable[..., tuple[Any, Any]]
"""In place of a module's `_attend`: (configuration, q, k, v, floats, data) to (out, lse)."""


def _arrays() -> Arrays:
    return Arrays(jnp.exp, jnp.where, jnp.logaddexp, heads_inside=True)


def checks(kernel: Kernel) -> Checks:
    return Checks(
        name=kernel.name,
        kinds=(jax.Array, np.ndarray),
        noun="an array",
        is_float=lambda dtype: bool(jnp.issubdtype(dtype, jnp.floating)),
        is_float32=lambda dtype: dtype == jnp.float32,
        packed=False,
        heads_inside=True,
    )


# ---------------------------------------------------------------- forward


def partial(kernel: Kernel, operands: Sequence[Any], place: Place, scale: Any, params: Mapping[str, Any]) -> PART:
    module = _module(kernel, place)

    def core(config: Any, q: Any, k: Any, v: Any, floats: Any, data: Any) -> PART:
        q, k, v, floats = _constant(kernel)((q, k, v, floats))
        _, saved = module["_attend_forward"](config, q, k, v, floats, data)
        return saved[5], saved[6]  # what the backward pass takes: behind the arguments, out and lse

    out, lse = _run(kernel, module, core, operands, place, scale, params)
    return out.astype(jnp.float32), lse


def _constant(kernel: Kernel) -> Callable[[Any], Any]:
    """The identity, which nobody may differentiate."""

    @jax.custom_jvp
    def constant(x: Any) -> Any:
        return x

    def refused(*_: Any) -> Any:
        raise UsageError(
            f"{kernel.name}: partial is not differentiable by JAX: call partial_backward for the gradients"
        )

    constant.defjvp(refused)
    return constant


def _module(kernel: Kernel, place: Place) -> Mapping[str, Any]:
    """What the piece's generated module defines."""
    _, own = kernel.piece(each=place.each, clipped=place.clipped)
    return own.function.__globals__


def _run(
    kernel: Kernel,
    module: Mapping[str, Any],
    core: Core,
    operands: Sequence[Any],
    place: Place,
    scale: Any,
    params: Mapping[str, Any],
) -> PART:
    check_known(kernel.name, kernel.spec.params, params)
    check_seed(kernel, place.dropout_seed)
    piece, _ = kernel.piece(each=place.each, clipped=place.clipped)
    lengths = {"Sq": place.Sq, "Sk": place.Sk}
    found, lengths = over_rows(params, row_axes(kernel.spec), lengths, _refusal(kernel), _repeated)
    numbers = (place.q_offset, place.k_offset, *lengths.values(), place.h_offset, place.b_offset)
    for name, x in zip(piece.numbers, numbers, strict=False):
        found[name] = jnp.broadcast_to(jnp.asarray(x, jnp.int32), operands[0].shape[:1]) if place.each else x
    own = [_required(kernel, p.name, found, "the piece reads it") for p in piece.own.params]
    return module["_call"](*operands, *own, scale, True, place.dropout_seed, core)


def _refusal(kernel: Kernel) -> Callable[[str], NoReturn]:
    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{kernel.name}: {message}")

    return refuse


def _required(kernel: Kernel, name: str, params: Mapping[str, Any], why: str) -> Any:
    """A param's value. Raises `UsageError` where it is missing."""
    if name not in params:
        raise UsageError(f"{kernel.name}: {name} is missing: {why}")
    return params[name]


def _repeated(x: Any, shape: Sequence[int]) -> Any:
    return jnp.broadcast_to(x, shape) if x.size else jnp.zeros(shape, x.dtype)


def seed_words(kernel: Kernel, seed: Any) -> Any:
    """A seed as generated modules take it, as an array."""
    return kernel.function.__globals__["_seed"](seed)


def merge(kernel: Kernel, parts: Sequence[PART]) -> PART:
    return _arrays().merged(parts, sums=kernel.spec.normalizer.sums)


def finish(kernel: Kernel, part: PART, params: Mapping[str, Any]) -> PART:
    check_known(kernel.name, kernel.spec.params, params)
    own = _own_term(kernel, part[1], params)
    return part if own is None else _arrays().finished(part, own)


def _own_term(kernel: Kernel, lse: Any, params: Mapping[str, Any]) -> Any:
    """The logarithm of the denominator's own term, like `lse`; None where there is none."""
    from attngen.emit.jax_shared.expressions import Printer

    term = readable_term(kernel.name, kernel.plan.weights)
    if term is None:
        return None
    why = "the denominator's own term reads it"
    given = {n: _required(kernel, n, params, why) for n in read_params(term)}
    sizes = {"B": lse.shape[0], "Hq": lse.shape[1]}
    shapes = check_params(kernel.spec, given, sizes)
    ints = {p.name for p in kernel.spec.params if p.type is Type.INT}
    as_int = kernel.function.__globals__.get("_as_int")
    values = {n: as_int(n, x) if n in ints and as_int else jnp.asarray(x) for n, x in given.items()}
    values = {n: jnp.broadcast_to(x, shapes[n]) if n in shapes else x for n, x in values.items()}
    types = {p.name: _DTYPES[p.type] for p in kernel.spec.params}
    values = {n: x.astype(types[n]) for n, x in values.items()}

    def leaf(e: Leaf) -> str:
        match e:
            case Symbol():
                return f"at_{e.id}"
            case Scalar():
                return f"values[{e.param!r}]"
            case Load():
                by = "_element" if e.member is None else "_listed"
                return f"{by}(values[{e.param!r}], {', '.join(map(printer.text, children(e)))})"

    printer = Printer(kernel.plan.choices, leaf)
    found: dict[str, Any] = {
        **kernel.function.__globals__,
        "values": values,
        "_element": _element,
        "_listed": _listed,
        "at_Hq": lse.shape[1],
        "at_h": jnp.arange(lse.shape[1]).reshape(1, -1, 1),
        "at_b": jnp.arange(lse.shape[0]).reshape(-1, 1, 1),
    }
    result = eval(printer.text(term), found)
    return jnp.broadcast_to(jnp.asarray(result, jnp.float32), lse.shape)


_DTYPES = {Type.FLOAT: jnp.float32, Type.INT: jnp.int32, Type.BOOL: jnp.bool_}
"""What kernels compute with: small ints would wrap around."""


def _element(x: Any, *index: Any) -> Any:
    """x[index], which is 0 outside the array."""
    at = jnp.broadcast_arrays(*map(jnp.asarray, index))
    ends: list[tuple[Any, int]] = list(zip(at, x.shape, strict=True))
    inside: Any = functools.reduce(jnp.logical_and, ((i >= 0) & (i < size) for i, size in ends))
    return jnp.where(inside, x[tuple(jnp.clip(i, 0, max(size - 1, 0)) for i, size in ends)], jnp.zeros((), x.dtype))


def _listed(x: Any, *place: Any) -> Any:
    """Whether the list x[index] has the member; `place` is the index, then the member."""
    *index, member = map(jnp.asarray, place)
    inside: Any = functools.reduce(
        jnp.logical_and, ((i >= 0) & (i < n) for i, n in zip(index, x.shape, strict=False)), member >= 0
    )
    if 0 in x.shape:
        return jnp.zeros_like(inside)
    lists = x[tuple(jnp.clip(i, 0, n - 1) for i, n in zip(index, x.shape, strict=False))]
    return inside & jnp.any(lists == member[..., None], -1)


# ---------------------------------------------------------------- backward


def partial_backward(
    kernel: Kernel,
    operands: Sequence[Any],
    cotangents: tuple[Any, Any],
    results: PART,
    place: Place,
    scale: Any,
    params: Mapping[str, Any],
    accumulate: tuple[Any, Any, Any] | None,
) -> tuple[Any, Any, Any, dict[str, Any]]:
    module = _module(kernel, place)
    out, lse = results
    d_out, d_lse = cotangents
    d_lse = jnp.zeros_like(lse) if d_lse is None else jnp.where(lse == -jnp.inf, 0.0, d_lse)
    learned = {n: jnp.asarray(x) for n, x in params.items() if _learns(x)}
    w = kernel.plan.weights
    saves_den = w.form is Form.DIRECT and w.sums
    core = functools.partial(_from_finished(module, saves_den=saves_den), (out, lse))

    def whole(operands: Sequence[Any], learned: Mapping[str, Any]) -> PART:
        return _run(kernel, module, core, operands, place, scale, {**params, **learned})

    (own, _), pull = jax.vjp(whole, tuple(jnp.asarray(x) for x in operands), learned)
    (dq, dk, dv), gradients = pull((jnp.asarray(d_out).astype(own.dtype), d_lse))
    found = [x.astype(jnp.float32) for x in (dq, dk, dv)]
    if accumulate is not None:
        found = [total + x for total, x in zip(accumulate, found, strict=True)]
    return found[0], found[1], found[2], {n: g.astype(jnp.float32) for n, g in gradients.items()}


def _learns(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def _from_finished(module: Mapping[str, Any], *, saves_den: bool) -> Callable[..., tuple[Any, Any]]:
    """A core that computes nothing: its results are given, and its gradients those of what the piece adds to them."""

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def core(config: Any, q: Any, k: Any, v: Any, floats: Any, data: Any, out: Any, lse: Any) -> PART:
        return out.astype(q.dtype), lse

    def forward(config: Any, *saved: Any) -> tuple[PART, tuple[Any, ...]]:
        return core(config, *saved), saved

    def backward(config: Any, saved: tuple[Any, ...], cotangents: PART) -> tuple[Any, ...]:
        *_, out, lse = saved
        den = (jnp.where(lse == -jnp.inf, 1.0, jnp.exp(lse)),) if saves_den else ()
        gradients = module["_attend_backward"](config, (*saved, *den), cotangents)
        return *gradients, jnp.zeros_like(out), jnp.zeros_like(lse)

    core.defvjp(forward, backward)

    def attend(finished: PART, config: Any, *arguments: Any) -> PART:
        return core(config, *module["_alike"](*arguments, *finished))

    return attend


def finish_backward(
    kernel: Kernel, cotangents: tuple[Any, Any], results: PART, params: Mapping[str, Any]
) -> dict[str, Any]:
    d_out, d_lse = cotangents
    out, lse = results
    learned = {n: jnp.asarray(x) for n, x in params.items() if _learns(x)}
    none = {n: jnp.zeros(x.shape, jnp.float32) for n, x in learned.items()}
    check_known(kernel.name, kernel.spec.params, params)
    own_log = kernel.plan.weights.own_term
    if own_log is None or not learned.keys() & read_params(own_log):
        return none

    def term(learned: Mapping[str, Any]) -> Any:
        return _own_term(kernel, lse, {**params, **learned})

    own, pull = jax.vjp(term, learned)
    slope = _arrays().own_slope((d_out.astype(jnp.float32), d_lse), (out.astype(jnp.float32), lse), own)
    (gradients,) = pull(slope)
    return {n: g.astype(jnp.float32) for n, g in gradients.items()}
