"""What a call is held against, as lines of Python: facts about elements, checked on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attngen.emit.text.params import ParamView
from attngen.ir import printing
from attngen.ir.attention import Param
from attngen.ir.nodes import Expr, Load, Storage, Symbol, Type
from attngen.ir.walk import nodes, params, reads
from attngen.plan.kernel import KernelPlan


@dataclass(frozen=True, slots=True)
class FactsView:
    """`lines` of `_check_facts`; `params`: those whose values `check=True` needs, tensors and floats that may be on the
    device; `accepted`: whether the function has an argument `check` (not where a param has that name)."""

    lines: tuple[str, ...]
    params: tuple[str, ...]
    accepted: bool


@dataclass(frozen=True, slots=True)
class Target:
    """How a target says it: `expression` prints one, `element` gives a tensor's values in a type to compute in.
    `heads`: the shape of batches and heads. `sequence`: the variable that says whose elements are looked at, where they
    are not those of every sequence; messages then begin with it. `refuse` and `broken`: the functions that raise an
    error, and that find the first place where a fact does not hold."""

    expression: Callable[[Expr, Mapping[str, str]], str]
    element: Callable[[str, Storage], str]
    heads: str
    sequence: str | None = None
    refuse: str = "_refuse"
    broken: str = "_broken"

    @property
    def subject(self) -> str:
        return "" if self.sequence is None else f"sequence {{{self.sequence}}}: "

    def elements(self, view: ParamView, param: Param) -> tuple[str, str]:
        """The elements of a param, and the place `at` in them as indices of the whole."""
        batch = next((i for i, d in enumerate(param.shape) if d == Symbol("B", Type.INT)), None)
        if self.sequence is None or batch is None:
            return view.name, "at"
        one = self.sequence
        return f"{view.name}.narrow({batch}, {one}, 1)", f"(*at[:{batch}], {one}, *at[{batch + 1}:])"


def facts_view(
    plan: KernelPlan,
    views: tuple[ParamView, ...],
    names: Mapping[str, str],
    lines: list[str],
    target: Target,
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
            elements, at = target.elements(view, param)
            own = {**names, param.name: target.element(elements, param.storage)}
            place = f"{view.keyword}[{{', '.join(map(str, {at}))}}]"
            broken = f"{target.subject}{place} is {{{elements}[at].item()}}"
            lines += [
                f"at = {target.broken}({target.expression(param.where, own)}, {elements}.shape)",
                "if at is not None:",
                f'    {target.refuse}(f"{broken}, and must satisfy {printing.expression(param.where)}")',
            ]
    for fact in attention.assumes:
        if any(isinstance(n, Load) for n in nodes(fact)):
            needed |= dict.fromkeys(names[name] for name in params(fact))
            per_head = reads(fact, "h", "hkv")
            batch = "{at[0]}" if target.sequence is None else f"{{{target.sequence}}}"
            place = f"b = {batch}" + (", h = {at[1]}" if per_head else "")
            message = f"{target.subject}the specification assumes {printing.expression(fact)}"
            at_heads = reads(fact, "b", "h", "hkv")
            lines += [
                f"at = {target.broken}({target.expression(fact, names)}, {target.heads})",
                "if at is not None:",
                f'    {target.refuse}(f"{message}; not so at {place}")'
                if at_heads
                else f'    {target.refuse}("{message}; it does not hold")',
            ]
    if any(p.name == "check" for p in attention.params):
        return FactsView((), (), accepted=False)
    return FactsView(tuple(lines), tuple(needed), accepted=True)


def about_elements(plan: KernelPlan) -> list[Expr]:
    """The facts about elements."""
    attention = plan.attention
    facts = [p.where for p in attention.params if p.where is not None and not p.is_scalar]
    return [*facts, *(fact for fact in attention.assumes if any(isinstance(n, Load) for n in nodes(fact)))]


def bound_by(plan: KernelPlan, views: tuple[ParamView, ...]) -> dict[str, str]:
    """Where the host finds each size that a param binds."""
    found: dict[str, str] = {}
    for view, param in zip(views, plan.attention.params, strict=True):
        for axis, dim in enumerate(param.shape):
            if isinstance(dim, Symbol) and dim.id in plan.attention.sizes:
                found.setdefault(dim.id, f"{view.name}.shape[{axis}]")
    return found
