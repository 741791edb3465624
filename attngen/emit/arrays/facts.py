"""What `check=True` and the sizes of a call are held against: needs at each call, facts about elements on request.

Takes the plan and the names of the host code, returns lines of Python for `_check` and `_check_facts` in the generated
module. A fact about elements names the first one that breaks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from attngen.emit.jax_shared.expressions import Printer
from attngen.emit.text.params import ParamView
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.ir import printing
from attngen.ir.nodes import SIZES, Expr, Load, Scalar, Storage, Symbol, Type
from attngen.ir.walk import nodes, params, reads, symbols
from attngen.plan.kernel import KernelPlan


@dataclass(frozen=True, slots=True)
class FactsView:
    """`lines` of `_check_facts`; `params`: those whose values `check=True` needs, tensors and floats that may be on the
    device; `accepted`: whether the function has an argument `check` (not where a param has that name)."""

    lines: tuple[str, ...]
    params: tuple[str, ...]
    accepted: bool


@dataclass(frozen=True, slots=True)
class _Target:
    """How a target says it: `expression` prints one, `element` gives a tensor's values in a type to compute in."""

    expression: Callable[[Expr, Mapping[str, str]], str]
    element: Callable[[str, Storage], str]


def need_lines(plan: KernelPlan, names: Mapping[str, str]) -> tuple[str, ...]:
    """For each comparison of sizes that keeps reads inside: the call is refused without it."""
    lines: list[str] = []
    for need in plan.needs:
        values = ", ".join(f"{shown} = {{{names[planned]}}}" for shown, planned in need.sizes)
        message = f"needs {need.text}, or a tensor would be read outside; here {values}"
        lines += [f"if not ({host_expressions.python(need.condition, names)}):", f'    _refuse(f"{message}")']
    return tuple(lines)


def torch_facts(plan: KernelPlan, views: tuple[ParamView, ...], names: Mapping[str, str]) -> FactsView:
    """Every name stands for a tensor, so that the fact is computed on tensors alone."""
    facts = _unchecked(plan)
    read = {name for fact in facts for name in symbols(fact)}
    read |= {"b", "h"} & read and {"B", "Hq"}
    read |= {"h", "Hq", "Hkv"} if "hkv" in read else set()
    places = {"B": "q.shape[0]", "Hq": "q.shape[1]", "Sq": "q.shape[2]", "D": "q.shape[3]"}
    places |= {"Hkv": "v.shape[1]", "Sk": "v.shape[2]", "Dv": "v.shape[3]"} | _bound(plan, views)
    lines = [
        f"{names[size]} = torch.tensor({places[size]})" for size in (*SIZES, *plan.attention.sizes) if size in read
    ]
    for view, param in zip(views, plan.attention.params, strict=True):
        if param.is_scalar and any(param.name in params(fact) for fact in facts):
            lines.append(f"{view.name} = torch.as_tensor({view.name})")
    if {"b", "h", "hkv"} & read:
        lines += ["at_b = torch.arange(q.shape[0], device=q.device)[:, None]"]
        lines += ["at_h = torch.arange(q.shape[1], device=q.device)[None, :]"]
    casts = {Storage.INT: ".long()", Storage.F16: ".float()", Storage.BF16: ".float()"}
    target = _Target(host_expressions.torch, lambda name, storage: name + casts.get(storage, ""))
    return _view(plan, views, names, lines, target, "(q.shape[0], q.shape[1])", traced=False)


def jax_facts(plan: KernelPlan, views: tuple[ParamView, ...], sizes: Mapping[str, str]) -> FactsView:
    """`sizes` are the names that the host code has for sizes, all of them fields of `size`."""
    names = {**{s: f"size.{s}" for s in SIZES}, **{s: f"size.{name}" for s, name in sizes.items()}}
    names |= {v.keyword: v.name for v in views} | {"b": "at_b", "h": "at_h", "hkv": "(at_h // (size.Hq // size.Hkv))"}
    read = {name for fact in _unchecked(plan) for name in symbols(fact)}
    lines: list[str] = []
    if {"b", "h", "hkv"} & read:
        lines += ["at_b, at_h = jnp.arange(size.B)[:, None], jnp.arange(size.Hq)[None, :]"]
    casts = {Storage.F16: ".astype(jnp.float32)", Storage.BF16: ".astype(jnp.float32)"}
    target = _Target(partial(_jax_text, plan), lambda name, storage: f"jnp.asarray({name}){casts.get(storage, '')}")
    return _view(plan, views, names, lines, target, "(size.B, size.Hq)", traced=True)


def _jax_text(plan: KernelPlan, e: Expr, names: Mapping[str, str]) -> str:
    def leaf(e: Symbol | Scalar | Load) -> str:
        match e:
            case Symbol():
                return names[e.id]
            case Scalar():
                return names[e.param]
            case Load():
                return f"_element({names[e.param]}, {', '.join(printer.text(i) for i in e.indices)})"

    printer = Printer(replace(plan.choices, wide=()), leaf)
    return printer.text(e)


def _view(
    plan: KernelPlan,
    views: tuple[ParamView, ...],
    names: Mapping[str, str],
    lines: list[str],
    target: _Target,
    heads: str,
    *,
    traced: bool,
) -> FactsView:
    """`traced`: the target may be given any scalar without its value, not floats alone."""
    attention = plan.attention
    needed: dict[str, None] = {}
    for view, param in zip(views, attention.params, strict=True):
        if param.where is not None and (not param.is_scalar or traced or param.type is Type.FLOAT):
            needed |= dict.fromkeys([view.name, *(names[name] for name in params(param.where))])
        if param.where is not None and not param.is_scalar:
            own = {**names, param.name: target.element(view.name, param.storage)}
            lines += [
                f"at = _broken({target.expression(param.where, own)}, {view.name}.shape)",
                "if at is not None:",
                f"    _refuse(f\"{view.keyword}[{{', '.join(map(str, at))}}] is {{{view.name}[at].item()}}, "
                f'and must satisfy {printing.expression(param.where)}")',
            ]
    for fact in attention.assumes:
        if any(isinstance(n, Load) for n in nodes(fact)):
            needed |= dict.fromkeys(names[name] for name in params(fact))
            per_head = reads(fact, "h", "hkv")
            place = "b = {at[0]}" + (", h = {at[1]}" if per_head else "")
            message = f"the specification assumes {printing.expression(fact)}"
            at_heads = reads(fact, "b", "h", "hkv")
            lines += [
                f"at = _broken({target.expression(fact, names)}, {heads})",
                "if at is not None:",
                f'    _refuse(f"{message}; not so at {place}")'
                if at_heads
                else f'    _refuse("{message}; it does not hold")',
            ]
    if any(p.name == "check" for p in attention.params):
        return FactsView((), (), accepted=False)
    return FactsView(tuple(lines), tuple(needed), accepted=True)


def _unchecked(plan: KernelPlan) -> list[Expr]:
    """The facts about elements."""
    attention = plan.attention
    facts = [p.where for p in attention.params if p.where is not None and not p.is_scalar]
    return [*facts, *(fact for fact in attention.assumes if any(isinstance(n, Load) for n in nodes(fact)))]


def _bound(plan: KernelPlan, views: tuple[ParamView, ...]) -> dict[str, str]:
    """Where the host finds each size that a param binds."""
    found: dict[str, str] = {}
    for view, param in zip(views, plan.attention.params, strict=True):
        for axis, dim in enumerate(param.shape):
            if isinstance(dim, Symbol) and dim.id in plan.attention.sizes:
                found.setdefault(dim.id, f"{view.name}.shape[{axis}]")
    return found
