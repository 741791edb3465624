"""Lines of the public function that Triton's files and plain PyTorch's share."""

from __future__ import annotations

from attngen.emit.text.params import ParamView
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.emit.torch_shared.checks import words
from attngen.emit.torch_shared.leaves import host_names
from attngen.ir import printing
from attngen.ir.nodes import Symbol
from attngen.plan.kernel import KernelPlan


def zeros(p: ParamView, position: int) -> str:
    """The gradient of a param on which the result does not depend smoothly."""
    if p.type != "float":
        return "None"
    return f"torch.zeros_like({p.name}) if ctx.needs_input_grad[{3 + position}] else None"


def bound_sizes(plan: KernelPlan, params: tuple[ParamView, ...]) -> list[str]:
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


def repeated(plan: KernelPlan, params: tuple[ParamView, ...]) -> list[str]:
    """Lines that repeat the sizes of 1 of tensors, without a copy."""
    names = host_names(plan.attention, params)
    return [
        f"{v.name} = {v.name}.expand({', '.join(host_expressions.python(d, names) for d in p.shape)})"
        for v, p in zip(params, plan.attention.params, strict=True)
        if v.rank
    ]


def conversions(params: tuple[ParamView, ...], number: str) -> tuple[str, ...]:
    """Lines that make a tensor of each float scalar, an int of each int scalar, and a bool of each bool.

    `number` is what to call for a float that is no tensor.
    """
    lines: list[str] = []
    for p in params:
        if p.rank == 0 and p.type == "float":
            lines += [
                f"if isinstance({p.name}, Tensor):",
                f"    {p.name} = {p.name}.to(device=q.device, dtype=torch.float32)",
                "else:",
                f"    {p.name} = {number.format(p.name)}",
            ]
        elif p.rank == 0 and p.type == "int":
            lines += [f"if type({p.name}) is not int:", f'    {p.name} = _whole("{p.keyword}", {p.name})']
        elif p.rank == 0:
            lines += [
                f"if type({p.name}) is not bool:",
                f'    {p.name} = bool(_whole("{p.keyword}", {p.name}, "a bool"))',
            ]
    return tuple(lines)


_SCALARS = {"float": "a number", "int": "an int", "bool": "a bool"}


def param_doc(plan: KernelPlan, p: ParamView) -> str:
    param = plan.attention.param(p.keyword)
    shape = f" ({', '.join(map(printing.expression, param.shape))})" if param.shape else ""
    kind = words(p.dtypes) if p.rank else f"{_SCALARS[p.type]} or 0-dimensional tensor"
    where = f", where {printing.expression(param.where)}" if param.where is not None else ""
    return f"{p.keyword}{shape}: {kind}{where}."
