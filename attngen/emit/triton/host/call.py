"""What the own part of a generated module says of its calls: arguments, docs, params, checks, params' gradients.

Takes the plan and the params, returns the `CallView` that `templates/triton/host/` reads. What is the same in every
file is the runtime's (`runtime/exported`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attngen.emit.text.facts import FactsView
from attngen.emit.text.params import ParamView
from attngen.emit.text.weights import WeightView
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.emit.torch_shared.calls import RUNTIME
from attngen.emit.torch_shared.checks import check_lines, size_checks
from attngen.emit.torch_shared.facts import torch_facts
from attngen.emit.torch_shared.leaves import host_names
from attngen.emit.torch_shared.public_function import bound_sizes, param_doc
from attngen.emit.triton.portable.param_gradients import GradientView
from attngen.ir import printing
from attngen.ir.attention import Param
from attngen.ir.narrow import DESCALES
from attngen.ir.nodes import SIZES, Symbol
from attngen.ir.walk import params as read_params, symbols
from attngen.plan.ints.facts import ScaleUse, scale_use
from attngen.plan.kernel import KernelPlan

Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """`keywords` and `docs` are of the public function; `operands` its tensors and params, by the names of the caller,
    `names` the params' by names that are free of clashes. `more`: what a call gives beside them; `result`: the dtype
    and layout of out; `kind`: the class of the runtime that it calls. `checked`: whether `check` looks at elements.
    `checks`, `size_checks` and `facts` are lines that refuse what does not fit; `bound` bind the sizes that params
    bind. `totals` are the params' gradients, which `gradient_lines` bind. `params` are the runtime's values, and
    `options` what else it is told, as keywords.
    """

    keywords: Lines
    docs: Lines
    operands: Lines
    names: Lines
    more: Lines
    result: str
    kind: str
    checked: bool
    checks: Lines
    size_checks: Lines
    bound: Lines
    facts: Lines
    gradient_lines: Lines
    totals: Lines
    pairs: bool
    params: Lines
    options: Lines
    precise: bool

    @property
    def given(self) -> str:
        """The operands of a call, as one tuple."""
        return f"({', '.join(self.operands)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParts:
    """What `call_view` takes beside the plan. `pairs`: whether kernels gather a param's gradient over pairs;
    `sums_of_none`: whether a param has a gradient where there are no keys; `fetched`: the param whose tiles come with
    those of keys, or none; `fast`: whether kernels have the constant FAST; `only`: what calls are restricted to."""

    params: tuple[ParamView, ...]
    weights: WeightView
    gradients: tuple[GradientView, ...]
    pairs: bool
    sums_of_none: bool
    forward_only: bool
    fetched: str
    fast: bool
    only: Lines


def call_view(plan: KernelPlan, parts: CallParts) -> CallView:
    params, w, gradients, narrow = parts.params, parts.weights, parts.gradients, plan.narrow
    facts = torch_facts(plan, params, host_names(plan.attention, params, RUNTIME), calls=RUNTIME)
    checks = check_lines(plan, params, RUNTIME)
    sizes = size_checks(plan, params, RUNTIME)
    saves = (*(("den",) if w.saves_den else ()), *(("rest",) if w.saves_rest else ()))
    own = {
        "check_params": bool(checks),
        "check_sizes": bool(sizes),
        "check_facts": bool(facts.params),
        "gradients": bool(gradients) and not parts.forward_only,
        "pairs": parts.pairs,
    }
    functions = {
        "check_params": "_check_params",
        "check_sizes": "_check_sizes",
        "check_facts": "_check_facts",
        "gradients": "_param_gradients",
        "pairs": "_pair_launches",
    }
    learned = {g.param for g in gradients}
    use = {ScaleUse.FACTOR: (), ScaleUse.OTHERWISE: ('scale="otherwise"',), ScaleUse.UNREAD: ('scale="unread"',)}
    return CallView(
        keywords=(
            *(f"{p.keyword}: {_annotation(plan, p)}" for p in params),
            *("scale: float | Tensor | None = None", "return_lse: bool = False"),
            "dropout_seed: int | Tensor | None = None",
            *(("check: bool = False",) if facts.accepted else ()),
            *(("out_dtype: torch.dtype = torch.bfloat16",) if narrow else ()),
        ),
        docs=_docs(plan, params, facts),
        operands=("q", "k", "v", *(p.keyword for p in params)),
        names=tuple(p.name for p in params),
        more=(*(("check",) if facts.accepted else ()), *(("out_dtype=out_dtype",) if narrow else ())),
        result="out_dtype and q's layout" if narrow else "q's dtype and layout",
        kind="NarrowAttention" if narrow else "Attention",
        checked=bool(facts.params),
        checks=checks,
        size_checks=sizes,
        bound=(*bound_sizes(plan, params),),
        facts=facts.lines,
        gradient_lines=_gradient_lines(plan, params, gradients),
        totals=tuple(g.total for g in gradients),
        pairs=parts.pairs,
        params=tuple(
            _param(plan, view, param, learned) for view, param in zip(params, plan.attention.params, strict=True)
        ),
        options=(
            *(f"{name}={functions[name]}" for name, some in own.items() if some),
            *((f"fetched=lambda {_ranked(params)}: host.fetched_bytes({parts.fetched})",) if parts.fetched else ()),
            *((f"saves={_tuple(saves)}",) if saves else ()),
            *use[scale_use(plan.attention)],
            *(() if plan.facts.scale_positive else ("positive=False",)),
            *(("dropout=True",) if plan.attention.dropout is not None else ()),
            *(("sums_of_none=True",) if parts.sums_of_none else ()),
            *(("fast=True",) if parts.fast else ()),
            *((f"longest_bits={plan.choices.longest_bits}",) if plan.choices.longest_bits != _LONGEST else ()),
            *((f"only=dict({', '.join(parts.only)})",) if parts.only else ()),
        ),
        precise=w.saves_rest,
    )


_FACTORS = "q, k and v stand for themselves times these factors; a number counts for all batches and heads."


def _annotation(plan: KernelPlan, param: ParamView) -> str:
    factor = plan.narrow and param.keyword in DESCALES
    return "Tensor | float = 1.0" if factor else param.public_annotation


_LONGEST = 27
"""The runtime's default of `longest_bits`."""


def _tuple(texts: Iterable[str]) -> str:
    own = [f'"{x}"' for x in texts]
    return f"({', '.join(own)}{',' if len(own) == 1 else ''})"


def _ranked(params: tuple[ParamView, ...]) -> str:
    return ", ".join(p.name for p in params if p.rank)


def _param(plan: KernelPlan, view: ParamView, param: Param, learned: set[str]) -> str:
    """A param as the runtime knows it."""
    names = {size: f"s.{size}" for size in (*SIZES, *plan.attention.sizes)}
    binds = [
        f'("{d.id}", {axis})'
        for axis, d in enumerate(param.shape)
        if isinstance(d, Symbol) and d.id in plan.attention.sizes
    ]
    rows = ["Sq" if "Sq" in r else "Sk" if "Sk" in r else "B" if "B" in r else "" for r in map(symbols, param.shape)]
    has_rows = {"Sq", "Sk"} & {*rows}
    shape = ", ".join(host_expressions.python(d, names) for d in param.shape)
    found = [
        f'"{view.keyword}"',
        *((f'local="{view.name}"',) if view.name != view.keyword else ()),
        *((f'kind="{view.type}"',) if view.type != "float" else ()),
        *((f"strides={_tuple(view.strides)}", f"shape=lambda s: ({shape},)") if view.rank else ()),
        *((f"binds=({', '.join(binds)},)",) if binds else ()),
        *(("either=True",) if view.either else ()),
        *(("learns=True",) if view.name in learned else ()),
        *((f"rows={_tuple(rows)}", f'dims="{_dims(param)}"') if has_rows else ()),
    ]
    return f"host.Param({', '.join(found)})"


def _dims(param: Param) -> str:
    return ", ".join(map(printing.expression, param.shape))


def _docs(plan: KernelPlan, params: tuple[ParamView, ...], facts: FactsView) -> Lines:
    learns = " A tensor may learn." if scale_use(plan.attention) is ScaleUse.FACTOR else ""
    seed = (
        "dropout_seed fixes which weights are dropped; without one, torch's generator draws it."
        if plan.attention.dropout is not None
        else "dropout_seed is accepted for the sake of a common signature, and has no effect."
    )
    check: Lines = ()
    if facts.params:
        check = ("check looks at every element that a fact is about, and waits for the device to do so.",)
    elif facts.accepted:
        check = ("check is accepted for the sake of a common signature: here every call checks all facts.",)
    return (
        *(param_doc(plan, p) for p in params),
        *((_FACTORS,) if plan.narrow else ()),
        f"scale multiplies q . k where the score says so; 1 / sqrt(D) when not given.{learns}",
        seed,
        *check,
    )


# ---------------------------------------------------------------- params' gradients


def _gradient_lines(plan: KernelPlan, params: tuple[ParamView, ...], gradients: tuple[GradientView, ...]) -> Lines:
    """Lines that bind each total: float32 and of the param's shape, or without elements where it is not needed."""
    lines: list[str] = []
    if any(g.lines for g in gradients):
        lines += ["B, Hq, Hkv, Sq, Sk, D, Dv = known.shape", 'q = values["q"]', *bound_sizes(plan, params)]
        read = {name for g in plan.gradients for name in read_params(g.leaf)}
        # Ints and bools that tensors hold, where indices on the host read them.
        lines += [f'{p.name} = values["{p.name}"]' for p in params if p.either and p.keyword in read]
    for g in gradients:
        first = g.sum or f"torch.zeros_like({g.param}, dtype=torch.float32)"
        lines.append(f"{g.total} = {first} if needed[{g.number}] else {g.param}.new_empty(0)")
    for g in gradients:
        if g.lines:
            lines += [f"if needed[{g.number}]:", *(f"    {line}" for line in g.lines)]
    return tuple(lines)
