"""What the public function refuses: lines that test each param's type, dtype, device, shape and facts.

Takes the plan and the params, returns lines of Python for `_check` in the generated module. Messages are formatted only
where they are raised, so that a call that fits pays for comparisons alone.
"""

from __future__ import annotations

from attngen.emit.text.params import ParamView
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.emit.torch_shared.calls import PLAIN, Calls
from attngen.emit.torch_shared.facts import if_readable, need_lines
from attngen.emit.torch_shared.leaves import host_names
from attngen.ir import printing
from attngen.ir.attention import Param
from attngen.ir.lists import empty_sizes
from attngen.ir.nodes import SIZES, Expr, Load, Symbol
from attngen.ir.walk import nodes, params as read_params, reads, symbols
from attngen.plan.ints.reach import Reach
from attngen.plan.kernel import Gather, KernelPlan
from attngen.plan.levels import Level, level_of

_TURNED_LINE = (
    'turned = "are q, k and v (batch, length, heads, head dim)? They must be (batch, heads, length, head dim): '
    'transpose them, as in q.transpose(1, 2); " if 1 < Sq < Hq and Sk < Hkv and all(x.stride(1) > x.stride(2) for x in '
    '(q, k)) and not torch.compiler.is_compiling() else ""'
)


def check_lines(
    plan: KernelPlan, params: tuple[ParamView, ...], calls: Calls = PLAIN, *, spans: bool = True
) -> tuple[str, ...]:
    """The lines, in the order of the params; then their `where`s. What is asked of sizes: see `size_checks`.

    `spans`: the target computes offsets in 32 bits, and tensors that span more are refused. Its kernels read elements
    also where a length is 0: of what stands in for a tensor that has none.
    """
    attention = plan.attention
    lines: list[str] = [_TURNED_LINE] if calls is PLAIN and any(view.rank for view in params) else []
    names = host_names(attention, params)
    empty, bound = empty_sizes(attention), set[str]()
    for view, param in zip(params, attention.params, strict=True):
        if view.rank:
            lines += _tensor(view, param, names, attention.sizes, empty, bound, _of_pairs(plan, param), calls)
            lines += _span(plan, view, calls) if spans else []
            if spans and any(reads(dim, "Sq", "Sk") for dim in param.shape):
                lines += ["if not (Sq and Sk):", f"    {view.name} = {calls.helper}stand_in({view.name})"]
        else:
            lines += _scalar(view, plan.choices.reach(param.name), calls)
    return (*lines, *_scalar_facts(plan, params, calls, about_lengths=False))


def _scalar_facts(
    plan: KernelPlan, params: tuple[ParamView, ...], calls: Calls, subject: str = "", *, about_lengths: bool
) -> tuple[str, ...]:
    """The lines that test the `where`s of scalars: those that read lengths, or the others."""
    lines: list[str] = []
    names = host_names(plan.attention, params)
    for view, param in zip(params, plan.attention.params, strict=True):
        if not param.is_scalar or param.where is None or reads(param.where, "Sq", "Sk") is not about_lengths:
            continue
        text = host_expressions.python(param.where, names)
        message = f"{subject}{view.keyword} must satisfy {printing.expression(param.where)}, not {{{view.name}}}"
        lines += _refuse(f"{if_readable(param.where, names, calls.helper)}not ({text})", message, calls)
    return tuple(lines)


def size_checks(
    plan: KernelPlan, params: tuple[ParamView, ...], calls: Calls = PLAIN, subject: str = ""
) -> tuple[str, ...]:
    """The lines that test what is said of sizes: `where`s of scalars, `assume`s, and the plan's needs. Messages begin
    with `subject`."""
    attention = plan.attention
    names = host_names(attention, params)
    lines = list(_scalar_facts(plan, params, calls, subject, about_lengths=True))
    for fact in attention.assumes:
        if _about_sizes(fact, attention.sizes):
            text = host_expressions.python(fact, names)
            values = ", ".join(f"{x} = {{{names[x]}}}" for x in sorted({*symbols(fact), *read_params(fact)}))
            message = f"{subject}the specification assumes {printing.expression(fact)}; here {values}"
            lines += _refuse(f"{if_readable(fact, names, calls.helper)}not ({text})", message, calls)
    return (*lines, *need_lines(plan, names, calls, subject))


def _refuse(condition: str, message: str, calls: Calls) -> list[str]:
    return [f"if {condition}:", f'    {calls.own}refuse(f"{message}")']


def _about_sizes(fact: Expr, sizes: tuple[str, ...]) -> bool:
    return not any(isinstance(n, Load) for n in nodes(fact)) and symbols(fact) <= {*SIZES, *sizes}


def _of_pairs(plan: KernelPlan, param: Param) -> tuple[int, ...]:
    """The dims of queries and keys in a gradient with an element for each pair, which kernels write tile by tile."""
    found = (g.leaf for g in plan.gradients if g.param == param.name and g.gather is Gather.DENSE)
    own = (i for leaf in found if isinstance(leaf, Load) for i, e in enumerate(leaf.indices) if reads(e, "q", "k"))
    return tuple(sorted(set(own)))


def _tensor(
    view: ParamView,
    param: Param,
    names: dict[str, str],
    sizes: tuple[str, ...],
    empty: frozenset[str],
    bound: set[str],
    spread_axes: tuple[int, ...],
    calls: Calls,
) -> list[str]:
    """`empty`: the sizes that may be 0. `spread_axes`: dims along which a size of 1 is expanded before the kernels,
    whatever they are asked for."""
    name, key = view.name, view.keyword
    dims = ", ".join(map(printing.expression, param.shape))
    lines = [
        *_refuse(
            f"not isinstance({name}, Tensor)", f"{key} must be a torch.Tensor, not {{type({name}).__name__}}", calls
        ),
        *_refuse(
            f"{name}.dtype not in ({', '.join(view.dtypes)},)",
            f"{key} must be {words(view.dtypes)}, not {{{name}.dtype}}",
            calls,
        ),
        *_refuse(
            f"{name}.device != q.device", f"{key} must be on q's device {{q.device}}, not {{{name}.device}}", calls
        ),
        *_refuse(
            f"{name}.dim() != {view.rank}",
            f"{key} must have {view.rank} dimension{'s' if view.rank > 1 else ''} ({dims}), "
            f"not shape {{tuple({name}.shape)}}",
            calls,
        ),
    ]
    lines += [f'{calls.own}note_rounding("{key}", {name})'] if view.type == "float" else []
    for axis, dim in enumerate(param.shape):
        if isinstance(dim, Symbol) and dim.id in sizes and dim.id not in bound:
            bound.add(dim.id)
            lines.append(f"{dim.id} = {name}.shape[{axis}]")
            if dim.id not in empty:
                message = f"{key} must have an element at least along {dim.id}, not shape {{tuple({name}.shape)}}"
                lines += _refuse(f"{dim.id} < 1", message, calls)
    wanted = f"({', '.join(host_expressions.python(d, names) for d in param.shape)},)"
    axes = f"range({view.rank}) if whole else {spread_axes}"
    spread = f'    {name} = {calls.refusing("spread")}"{key}", {name}, {wanted}, "{dims}", {axes}, turned)'
    return [*lines, f"if tuple({name}.shape) != {wanted}:", spread]


def _scalar(view: ParamView, reach: Reach | None, calls: Calls) -> list[str]:
    name, key = view.name, view.keyword
    more: list[str] = []
    match view.type:
        case "float":
            wanted, fits = "a number or a 0-dimensional float tensor", f"{calls.helper}is_number({name})"
            more = [f'{name} = {calls.own}single("{key}", {name})']
        case "int":
            wanted, fits = "an int or a 0-dimensional int tensor", f"{calls.helper}is_int({name})"
            low, high = (reach.low, reach.high) if reach else (63, 63)
            what = (
                f"between -2**{low} and 2**{high} - 1, since the kernel {reach.why}" if reach else "an int of 64 bits"
            )
            wide = f"isinstance({name}, int) and not -(2**{low}) <= {name} < 2**{high}"
            more = _refuse(wide, f"{key} must be {what}, not {{{name}}}", calls)
        case _:
            wanted, fits = "a bool or a 0-dimensional bool tensor", f"{calls.helper}is_bool({name})"
    return [*_refuse(f"not {fits}", f"{key} must be {wanted}, not {{type({name}).__name__}}", calls), *more]


def _span(plan: KernelPlan, view: ParamView, calls: Calls) -> list[str]:
    """An index that differs from pair to pair is multiplied by its stride in 32 bits."""
    own = [a.load for a in plan.choices.accesses if a.load.param == view.keyword]
    axes = {axis for load in own for axis, i in enumerate(load.indices) if level_of(i) is Level.PAIR}
    return [
        line
        for axis in sorted(axes)
        for line in _refuse(
            f"{view.name}.shape[{axis}] * {view.name}.stride({axis}) >= 2**31",
            f"{view.keyword} must span fewer than 2**31 elements along dimension {axis}",
            calls,
        )
    ]


def words(dtypes: tuple[str, ...]) -> str:
    """`float16 or bfloat16`."""
    return " or ".join(d.removeprefix("torch.") for d in dtypes)
