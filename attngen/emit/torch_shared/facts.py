"""What elements and the sizes of a call are held against, on tensors of torch; sizes alike in every target."""

from __future__ import annotations

from collections.abc import Mapping

from attngen.emit.text.facts import FactsView, Target, about_elements, bound_by, facts_view
from attngen.emit.text.params import ParamView
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.emit.torch_shared.calls import PLAIN, Calls
from attngen.ir.nodes import SIZES, Expr, Storage, Type
from attngen.ir.walk import params, symbols
from attngen.plan.kernel import KernelPlan


def need_lines(plan: KernelPlan, names: Mapping[str, str], calls: Calls = PLAIN, subject: str = "") -> tuple[str, ...]:
    """For each comparison of sizes that keeps reads inside: the call is refused without it. See `size_checks`."""
    lines: list[str] = []
    for need in plan.needs:
        values = ", ".join(f"{shown} = {{{names[planned]}}}" for shown, planned in need.sizes)
        message = f"{subject}needs {need.text}, or a tensor would be read outside; here {values}"
        lines += [f"if not ({host_expressions.python(need.condition, names)}):", f'    {calls.own}refuse(f"{message}")']
    return tuple(lines)


def torch_facts(
    plan: KernelPlan,
    views: tuple[ParamView, ...],
    names: Mapping[str, str],
    sequence: str | None = None,
    calls: Calls = PLAIN,
) -> FactsView:
    """Every name stands for a tensor, so that the fact is computed on tensors alone. `sequence`: see `Target`; tensors
    then have the rows of this sequence."""
    facts = about_elements(plan)
    read = {name for fact in facts for name in symbols(fact)}
    read |= {"b", "h"} & read and {"B", "Hq"}
    read |= {"h", "Hq", "Hkv"} if "hkv" in read else set()
    places = {"B": "q.shape[0]", "Hq": "q.shape[1]", "Sq": "q.shape[2]", "D": "q.shape[3]"}
    places |= {"Hkv": "v.shape[1]", "Sk": "v.shape[2]", "Dv": "v.shape[3]"} | bound_by(plan, views)
    lines = [
        f"{names[size]} = torch.tensor({places[size]})" for size in (*SIZES, *plan.attention.sizes) if size in read
    ]
    for view, param in zip(views, plan.attention.params, strict=True):
        if any(param.name in params(fact) for fact in facts):
            if param.is_scalar:
                lines.append(f"{view.name} = torch.as_tensor({view.name})")
            elif param.type is Type.INT:  # small ones would wrap around
                lines.append(f"{view.name} = {view.name}.long()")
    if {"b", "h", "hkv"} & read:
        every, one = (
            "torch.arange(q.shape[0], device=q.device)[:, None]",
            f"torch.tensor([[{sequence}]], device=q.device)",
        )
        lines += [f"at_b = {every if sequence is None else one}"]
        lines += ["at_h = torch.arange(q.shape[1], device=q.device)[None, :]"]
    casts = {Storage.F16: ".float()", Storage.BF16: ".float()"}
    heads = f"({'q.shape[0]' if sequence is None else 1}, q.shape[1])"

    def element(name: str, storage: Storage) -> str:
        return name + casts.get(storage, "")

    refuse, broken = f"{calls.own}refuse", f"{calls.helper}first_broken"
    target = Target(host_expressions.torch, element, heads, sequence, refuse, broken)
    return facts_view(plan, views, names, lines, target, traced=False)


def if_readable(fact: Expr, names: Mapping[str, str], helper: str = "_") -> str:
    """The beginning of a condition, which holds if the host can read every scalar that the fact names."""
    return "".join(f"{helper}readable({names[name]}) and " for name in sorted(params(fact)))
