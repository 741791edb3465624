"""What the launcher and the public function of a generated module say: arguments, checks, conversions, docs.

Takes the plan and the params, gives `LaunchView` for `templates/triton/launch.py.j2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngen.emit import host_expressions
from attngen.emit.gradients import GradientView, host_names
from attngen.emit.params import ParamView
from attngen.ir import printing
from attngen.ir.nodes import SIZES, Expr, Load, Symbol
from attngen.ir.walk import nodes, symbols
from attngen.plan.kernel import KernelPlan

if TYPE_CHECKING:
    from attngen.emit.triton_views import TestView


@dataclass(frozen=True, slots=True)
class LaunchView:
    params: tuple[ParamView, ...]
    typed_params: str  # ", slope: Tensor, window: int"
    plain_params: str  # ", slope, window"
    public_arguments: str
    size_lines: tuple[str, ...]
    kernel_values: tuple[str, ...]
    n_plain: int
    output_types: str
    output_names: str
    gradient_types: str
    gradients: tuple[GradientView, ...]
    forward_call: tuple[str, ...]
    dkdv_call: tuple[str, ...]
    dq_call: tuple[str, ...]
    saved_tensors: str
    values: tuple[str, ...]
    returned_gradients: str
    check_lines: tuple[str, ...]
    convert_lines: tuple[str, ...]
    param_docs: tuple[str, ...]
    needs_math: bool
    reads_scalars: bool

    @property
    def scatters(self) -> bool:
        return any(g.scatters for g in self.gradients)


def launch_view(
    plan: KernelPlan,
    params: tuple[ParamView, ...],
    sizes: tuple[str, ...],
    tests: tuple[TestView, ...],
    gradients: tuple[GradientView, ...],
    saves_den: bool,
    row_tensors: tuple[str, ...],
    dq_sums: tuple[str, ...],
    dkdv_sums: tuple[str, ...],
) -> LaunchView:
    attention = plan.attention
    by_name = {g.param: g.total for g in gradients}
    values = ("scale", *sizes, *(v for p in params for v in p.host_arguments))
    checks = _checks(plan, params)
    inputs = ("*_tiled(tma, BQ, q)", "*_tiled(tma, BK, k, v)")
    dq_inputs = ("*_tiled(tma, dq_BQ, q)", "*_tiled(tma, dq_BK, k, v)", "*_tiled(tma, dq_BQ, d_out)")
    seed = ("seed",) if attention.dropout is not None else ()
    key_tests = tuple(n.removesuffix("_ptr") for t in tests if t.axis == "k" for n in t.pointers)
    query_tests = tuple(n.removesuffix("_ptr") for t in tests if t.axis == "q" for n in t.pointers)
    flags = tuple(f"GRAD_{g.param.upper()}=needed[{i}]" for i, g in enumerate(gradients))
    names = ["out", "lse", *(["den"] if saves_den else [])]
    return LaunchView(
        params=params,
        typed_params="".join(f", {p.name}: {p.annotation}" for p in params),
        plain_params="".join(f", {p.name}" for p in params),
        public_arguments="".join(f", {p.keyword}" for p in params),
        size_lines=("B, Hq, Sq, _ = q.shape", "Hkv, Sk = k.shape[1:3]", *_bound_sizes(plan, params)),
        kernel_values=values,
        n_plain=len(values),
        output_types=", ".join(["Tensor"] * len(names)),
        output_names=", ".join(names),
        gradient_types=", ".join(["Tensor"] * (3 + len(gradients))),
        gradients=gradients,
        forward_call=(
            *inputs,
            *names,
            *seed,
            *key_tests,
            "*arguments",
            "**sizes",
            "BQ=BQ",
            "BK=BK",
            "TMA=tma",
            "num_warps=warps",
            "num_stages=stages",
        ),
        dkdv_call=(
            *inputs,
            "*_tiled(tma, BQ, d_out)",
            *row_tensors,
            "dk",
            "dv",
            *dkdv_sums,
            *seed,
            *query_tests,
            "*arguments",
            "**sizes",
            "BQ=BQ",
            "BK=BK",
            "TMA=tma",
            *flags,
            "num_warps=warps",
            "num_stages=stages",
        ),
        dq_call=(
            *dq_inputs,
            *row_tensors,
            "dq",
            *dq_sums,
            *seed,
            *key_tests,
            "*arguments",
            "**sizes",
            "BQ=dq_BQ",
            "BK=dq_BK",
            "TMA=tma",
            *flags,
            "num_warps=dq_warps",
            "num_stages=dq_stages",
        ),
        saved_tensors="".join(f"{p.name}, " for p in params if p.by_pointer),
        values=tuple(p.name for p in params if not p.by_pointer),
        returned_gradients="".join(f", {by_name.get(p.name, _zeros(p, i))}" for i, p in enumerate(params)),
        check_lines=checks,
        convert_lines=_conversions(params),
        param_docs=tuple(_doc(plan, p) for p in params),
        needs_math=any("math." in line for line in checks),
        reads_scalars=any("_readable(" in line for line in checks),
    )


def _zeros(p: ParamView, position: int) -> str:
    """The gradient of a param on which the result does not depend smoothly."""
    if p.type != "float":
        return "None"
    return f"torch.zeros_like({p.name}) if ctx.needs_input_grad[{3 + position}] else None"


def _bound_sizes(plan: KernelPlan, params: tuple[ParamView, ...]) -> list[str]:
    """Lines that read the sizes that params bind."""
    lines: list[str] = []
    for size in plan.attention.sizes:
        view, axis = next(
            (v, i)
            for v, p in zip(params, plan.attention.params, strict=True)
            for i, d in enumerate(p.shape)
            if d == Symbol(size, d.type)
        )
        lines.append(f"{size} = {view.name}.shape[{axis}]")
    return lines


def _checks(plan: KernelPlan, params: tuple[ParamView, ...]) -> tuple[str, ...]:
    """Lines of `_check` for the params: type, dtype, device, shape, facts."""
    lines: list[str] = []
    names = host_names(plan.attention, params)
    seen: set[str] = set()
    for view, param in zip(params, plan.attention.params, strict=True):
        name, key = view.name, view.keyword
        if view.rank:
            dtypes = ", ".join(view.dtypes)
            lines += [
                f'_require(isinstance({name}, Tensor), f"{key} must be a torch.Tensor, not {{type({name}).__name__}}")',
                f'_require({name}.dtype in ({dtypes},), f"{key} must be {_words(view.dtypes)}, not {{{name}.dtype}}")',
                f"_require({name}.device == q.device, "
                f'f"{key} must be on q\'s device {{q.device}}, not {{{name}.device}}")',
                f'_require({name}.dim() == {view.rank}, f"{key} must have {view.rank} dimension'
                f"{'s' if view.rank > 1 else ''} ({', '.join(map(printing.expression, param.shape))}), not shape "
                f'{{tuple({name}.shape)}}")',
            ]
            for axis, dim in enumerate(param.shape):
                if isinstance(dim, Symbol) and dim.id in plan.attention.sizes and dim.id not in seen:
                    seen.add(dim.id)
                    lines.append(f"{dim.id} = {name}.shape[{axis}]")
            shape = ", ".join(host_expressions.python(d, names) for d in param.shape)
            lines.append(
                f"_require(tuple({name}.shape) == ({shape},), "
                f'f"{key} must have shape {{({shape},)}}, not {{tuple({name}.shape)}}")'
            )
        elif view.type == "float":
            lines += [
                f"_require(isinstance({name}, (int, float)) and not isinstance({name}, bool) "
                f"or isinstance({name}, Tensor) "
                f'and {name}.dim() == 0 and {name}.is_floating_point(), f"{key} must be a number or a 0-dimensional '
                f'float tensor, not {{{name}!r}}")',
            ]
        else:
            kind = "(bool,)" if view.type == "bool" else "(int, torch.SymInt)"
            lines.append(
                f"_require(isinstance({name}, {kind})"
                + (f" and not isinstance({name}, bool)" if view.type == "int" else "")
                + f', f"{key} must be {"a bool" if view.type == "bool" else "an int"}, not {{{name}!r}}")'
            )
    for view, param in zip(params, plan.attention.params, strict=True):
        if param.is_scalar and param.where is not None:
            lines += _fact(param.where, view.keyword, view.name, names, "where")
    for fact in plan.attention.assumes:
        if not any(isinstance(n, Load) for n in nodes(fact)) and symbols(fact) <= {*SIZES, *plan.attention.sizes}:
            lines += _fact(fact, "assume", None, names, "assume")
    return tuple(lines)


def _fact(fact: Expr, key: str, name: str | None, names: dict[str, str], kind: str) -> list[str]:
    text = host_expressions.python(fact, names)
    quoted = printing.expression(fact)
    if name is None:
        return [f'_require({text}, "the specification assumes {quoted}")']
    return [f"if _readable({name}):", f'    _require({text}, f"{key} must satisfy {quoted}, not {{{name}}}")']


def _conversions(params: tuple[ParamView, ...]) -> tuple[str, ...]:
    lines: list[str] = []
    for p in params:
        if p.rank == 0 and p.type == "float":
            lines += [
                f"if isinstance({p.name}, Tensor):",
                f"    {p.name} = {p.name}.to(device=q.device, dtype=torch.float32)",
                "else:",
                f"    {p.name} = torch.full((), {p.name}, dtype=torch.float32, device=q.device)",
            ]
    return tuple(lines)


def _doc(plan: KernelPlan, p: ParamView) -> str:
    param = plan.attention.param(p.keyword)
    shape = f" ({', '.join(map(printing.expression, param.shape))})" if param.shape else ""
    kind = (
        "a number or 0-dimensional tensor"
        if not p.rank and p.type == "float"
        else _words(p.dtypes)
        if p.rank
        else p.type
    )
    where = f", where {printing.expression(param.where)}" if param.where is not None else ""
    return f"{p.keyword}{shape}: {kind}{where}."


def _words(dtypes: tuple[str, ...]) -> str:
    return " or ".join(d.removeprefix("torch.") for d in dtypes)
