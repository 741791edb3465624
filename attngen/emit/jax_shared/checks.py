"""What the public function of a Pallas module refuses, and how it takes its params.

Takes the plan and the params, returns lines of Python for `_check` and `_call` in the generated module.
"""

from __future__ import annotations

from collections.abc import Mapping

from attngen.emit.text.params import DTYPES, SMALL_INTS, ParamView
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.emit.torch_shared.facts import if_readable, need_lines
from attngen.ir import printing
from attngen.ir.attention import Param
from attngen.ir.lists import empty_sizes
from attngen.ir.nodes import SIZES, Expr, Load, Storage, Symbol, Type
from attngen.ir.walk import nodes, params as read_params, symbols
from attngen.plan.kernel import KernelPlan

_DTYPES = {s: tuple("jnp.bool_" if d == "bool" else f"jnp.{d}" for d in found) for s, found in DTYPES.items()}
_TURNED_LINE = (
    'turned = "are q, k and v (batch, heads, length, head dim)? They must be (batch, length, heads, head dim): '
    'exchange the two, as in q.swapaxes(1, 2); " if 1 < Sq < Hq and Sk < Hkv else ""'
)
"""What to say before what is wrong with a param, if there are more heads than positions."""
_SCALARS = {Type.FLOAT: "a number", Type.INT: "an int", Type.BOOL: "a bool"}


def check_lines(plan: KernelPlan, params: tuple[ParamView, ...], sizes: Mapping[str, str]) -> tuple[str, ...]:
    """The lines, in the order of the params; then their `where`s, the `assume`s about sizes, the plan's needs."""
    attention = plan.attention
    names = {**{s: s for s in SIZES}, **sizes, **{p.keyword: p.name for p in params}}
    lines: list[str] = [_TURNED_LINE] if any(view.rank for view in params) else []
    empty, bound = empty_sizes(attention), set[str]()
    for view, param in zip(params, attention.params, strict=True):
        if param.is_scalar:
            lines += _scalar(view, param)
        else:
            lines += _tensor(view, param, names, attention.sizes, empty, bound)
    for view, param in zip(params, attention.params, strict=True):
        if param.is_scalar and param.where is not None:
            text = host_expressions.python(param.where, names)
            message = f"{view.keyword} must satisfy {printing.expression(param.where)}, not {{{view.name}}}"
            lines += _refuse(f"{if_readable(param.where, names)}not ({text})", message)
    for fact in attention.assumes:
        if _about_sizes(fact, attention.sizes):
            text = host_expressions.python(fact, names)
            values = ", ".join(f"{x} = {{{names[x]}}}" for x in sorted({*symbols(fact), *read_params(fact)}))
            message = f"the specification assumes {printing.expression(fact)}; here {values}"
            lines += _refuse(f"{if_readable(fact, names)}not ({text})", message)
    return (*lines, *need_lines(plan, names))


def convert_lines(
    attention_params: tuple[Param, ...], params: tuple[ParamView, ...], sizes: Mapping[str, str]
) -> tuple[str, ...]:
    """Lines that make an array of each param, with its dims of size 1 repeated."""
    names = {name: f"size.{own}" for name, own in {**{s: s for s in SIZES}, **sizes}.items()}
    lines: list[str] = []
    for view, param in zip(params, attention_params, strict=True):
        if param.storage is Storage.INT or (param.is_scalar and param.type is Type.INT):
            lines.append(f'{view.name} = _as_int("{view.keyword}", {view.name})')
        elif param.is_scalar:
            dtype = "jnp.float32" if param.type is Type.FLOAT else "jnp.bool_"
            lines.append(f"{view.name} = jnp.asarray({view.name}, {dtype})")
        elif param.storage in SMALL_INTS:
            lines.append(f"{view.name} = jnp.asarray({view.name}, jnp.int32)")
        elif param.storage is Storage.BOOL:
            lines.append(f"{view.name} = jnp.asarray({view.name}, jnp.bool_)")
        else:
            lines.append(f"{view.name} = jnp.asarray({view.name})")
        if param.shape:
            lines.append(f"{view.name} = jnp.broadcast_to({view.name}, {_shape(param, names)})")
    return tuple(lines)


def _shape(param: Param, names: Mapping[str, str]) -> str:
    return f"({', '.join(host_expressions.python(d, names) for d in param.shape)},)"


def doc(param: Param) -> str:
    shape = f" ({', '.join(map(printing.expression, param.shape))})" if param.shape else ""
    kind = _SCALARS[param.type] if param.is_scalar else words(_DTYPES[param.storage])
    where = f", where {printing.expression(param.where)}" if param.where is not None else ""
    return f"{param.name}{shape}: {kind}{where}."


def annotation(param: Param) -> str:
    kind = {Type.FLOAT: "float | ", Type.INT: "int | ", Type.BOOL: "bool | "}[param.type] if param.is_scalar else ""
    return f"{kind}jax.Array"


def words(dtypes: tuple[str, ...]) -> str:
    return " or ".join(d.removeprefix("jnp.").rstrip("_") for d in dtypes)


def _refuse(condition: str, message: str) -> list[str]:
    return [f"if {condition}:", f'    _refuse(f"{message}")']


def _about_sizes(fact: Expr, sizes: tuple[str, ...]) -> bool:
    return not any(isinstance(n, Load) for n in nodes(fact)) and symbols(fact) <= {*SIZES, *sizes}


def _tensor(
    view: ParamView,
    param: Param,
    names: Mapping[str, str],
    sizes: tuple[str, ...],
    empty: frozenset[str],
    bound: set[str],
) -> list[str]:
    """`empty`: the sizes that may be 0."""
    name, key = view.name, view.keyword
    dims = ", ".join(map(printing.expression, param.shape))
    dtypes = _DTYPES[param.storage]
    lines = [
        *_refuse(
            f'not (hasattr({name}, "shape") and hasattr({name}, "dtype"))',
            f"{key} must be an array, not {{type({name}).__name__}}",
        ),
        *_refuse(f"{name}.dtype not in ({', '.join(dtypes)},)", f"{key} must be {words(dtypes)}, not {{{name}.dtype}}"),
        *_refuse(
            f"len({name}.shape) != {view.rank}",
            f"{key} must have {view.rank} dimension{'s' if view.rank > 1 else ''} ({dims}), "
            f"not shape {{tuple({name}.shape)}}",
        ),
    ]
    for axis, dim in enumerate(param.shape):
        if isinstance(dim, Symbol) and dim.id in sizes and dim.id not in bound:
            bound.add(dim.id)
            lines.append(f"{names[dim.id]} = {name}.shape[{axis}]")
            if dim.id not in empty:
                message = f"{key} must have an element at least along {dim.id}, not shape {{tuple({name}.shape)}}"
                lines += _refuse(f"{names[dim.id]} < 1", message)
    wanted = _shape(param, names)
    return [
        *lines,
        *([f'_note_rounding("{key}", {name})'] if param.type is Type.FLOAT else []),
        *_refuse(
            f"not all(n[0] in (1, n[1]) for n in zip({name}.shape, {wanted}, strict=True))",
            f"{{turned}}{key} must have shape ({dims}) = {{{wanted}}}, not {{tuple({name}.shape)}}",
        ),
    ]


def _scalar(view: ParamView, param: Param) -> list[str]:
    name = view.name
    match param.type:
        case Type.FLOAT:
            own, kind = f"isinstance({name}, int | float) and not isinstance({name}, bool)", "jnp.floating"
        case Type.INT:
            own, kind = f"isinstance({name}, int) and not isinstance({name}, bool)", "jnp.integer"
        case Type.BOOL:
            own, kind = f"isinstance({name}, bool)", "jnp.bool_"
    array = f'getattr({name}, "ndim", None) == 0 and jnp.issubdtype({name}.dtype, {kind})'
    wanted = f"{_SCALARS[param.type]}, or an array of no dimensions that holds one"
    lines = _refuse(f"not (({own}) or ({array}))", f"{view.keyword} must be {wanted}, not {{type({name}).__name__}}")
    return [*lines, f'{name} = _single("{view.keyword}", {name})'] if param.type is Type.FLOAT else lines
