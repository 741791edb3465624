"""What the public function and the operators of a generated module say: arguments, checks, conversions, docs.

Takes the plan and the params, returns the `CallView` that `templates/triton/host/` reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.text.facts import FactsView
from attngen.emit.text.params import ParamView
from attngen.emit.text.weights import WeightView
from attngen.emit.torch_shared.checks import TURNED, check_lines, size_checks
from attngen.emit.torch_shared.facts import torch_facts
from attngen.emit.torch_shared.leaves import host_names
from attngen.emit.torch_shared.public_function import bound_sizes, conversions, param_doc, repeated, zeros
from attngen.emit.triton.portable.param_gradients import GradientView
from attngen.emit.triton.portable.views import BackwardView
from attngen.ir.walk import params as read_params
from attngen.plan.ints.facts import ScaleUse, scale_use
from attngen.plan.kernel import Gather, KernelPlan

Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """Names and lines of the host, in the order in which a call meets them. Lists of names are arguments or targets."""

    # the public function
    keywords: Lines
    docs: Lines
    public_arguments: Lines
    arguments: Lines  # the same by the names that are free of clashes
    plain_params: str  # ", slope, window"
    fact_checks: Lines
    facts: FactsView
    watched: Lines  # what may be a tensor that somebody looks at
    laid_out: Lines  # the tensors whose layout decides how kernels are launched
    fit_lines: Lines
    check_lines: Lines
    size_checks: Lines  # what is asked of a sequence's sizes
    turned: str  # whether heads and positions seem to be exchanged
    convert_lines: Lines
    numbers: bool  # whether scalars become tensors
    call_inputs: Lines
    refusals: Lines
    requires_grad: str  # whether something needs a gradient
    results: Lines
    # a layout, and the forward pass
    size_lines: Lines
    repeat_lines: Lines  # give tensors of which sizes of 1 are repeated the strides that kernels take
    layout_values: Lines
    pairs: bool  # whether kernels gather a param's gradient over pairs
    pair_params: Lines  # the tensors whose gradient's size decides how many programs these have
    inputs: Lines
    typed_inputs: Lines
    fake_inputs: Lines
    forward_arguments: Lines
    forward_key: str
    forward_values: Lines
    output_lines: Lines
    outputs: Lines
    output_types: Lines
    output_doc: str
    operator_lines: Lines
    fake_outputs: Lines
    # the backward pass
    backward_parameters: Lines
    backward_arguments: Lines
    backward_lines: Lines
    backward_key: Lines
    backward_values: Lines
    backward_inputs: Lines
    typed_cotangents: Lines
    cotangents: Lines
    nonempty: str
    gradient_types: Lines
    gradient_doc: str
    gradient_names: Lines
    totals_before: Lines
    totals_after: Lines
    totals_of_none: Lines
    fake_totals: Lines
    # autograd
    deciding: Lines  # what of scalars and the seed decides how kernels are launched
    saved_inputs: Lines
    saved: Lines
    unlearned: Lines
    restored: Lines
    converted: Lines
    returned_gradients: Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParts:
    """What `call_view` takes beside the plan. `sizes`: those that kernels take. `pairs`: see `CallView`. `own`: whether
    a kernel counts from zeros; `usual`: whether backward launches depend on the size of the scale; `sums_of_none`:
    whether a param has a gradient where there are no keys; `fetched`: the param of which tiles come with those of keys,
    or none."""

    params: tuple[ParamView, ...]
    sizes: tuple[str, ...]
    weights: WeightView
    bwd: BackwardView
    gradients: tuple[GradientView, ...]
    pairs: bool
    own: bool
    usual: bool
    sums_of_none: bool
    forward_only: bool
    fetched: str


def call_view(plan: KernelPlan, parts: CallParts) -> CallView:
    params, w, bwd, gradients = parts.params, parts.weights, parts.bwd, parts.gradients
    attention = plan.attention
    names = tuple(p.name for p in params)
    arguments = ("q", "k", "v", *names)
    typed = tuple(f"{x}: Tensor" for x in "qkv")
    typed_params = tuple(f"{p.name}: {p.annotation}" for p in params)
    pointers = tuple(p.name for p in params if p.by_pointer)
    seed, typed_seed = (("seed",), ("seed: Tensor",)) if attention.dropout is not None else ((), ())
    precise = ("precise",) if w.saves_rest else ()
    places = tuple(p.place for p in params if p.either)
    needed = ("needed",) if gradients else ()
    kept = ("out", "lse", *(("den",) if w.saves_den else ()), *(("rest",) if w.saves_rest else ()))
    saved = ("q", "k", "v", *pointers, *kept, *seed, *places)
    inputs = (*arguments, "scale", *seed, *precise, *places)
    facts = torch_facts(plan, params, host_names(attention, params))
    checks = check_lines(plan, params)
    decides = (*(d for p in params for d in _deciding(p)), *(f"{s}.data_ptr() % 16" for s in seed))
    forward_key = (*decides, *precise)
    by_position = {g.position: g for g in gradients}
    learned = " or ".join(f"{g.param}.requires_grad" for g in gradients)
    requires_grad = " or ".join(f"{x}.requires_grad" for x in ("q", "k", "v", *pointers))
    scalars = tuple(p.name for p in params if not p.rank)
    laid_out = ("q", "k", "v", *(p.name for p in params if p.rank))
    param_values = tuple(f"{p.name}={kernel_value(p)}" for p in params)
    dense = {g.param for g in plan.gradients if g.gather is Gather.DENSE}
    pair_params = tuple(p.name for p in params if p.keyword in dense)
    call_seed = ("dropout_seed",) if seed else ()
    delta = ("d_lse",) if bwd.has_delta else ()
    totals = {g.total: _empty_or(g, f"torch.zeros_like({g.param}, dtype=torch.float32)") for g in gradients}
    return CallView(
        keywords=(
            *(f"{p.keyword}: {p.public_annotation}" for p in params),
            *("scale: float | Tensor | None = None", "return_lse: bool = False"),
            "dropout_seed: int | Tensor | None = None",
            *(("check: bool = False",) if facts.accepted else ()),
        ),
        docs=_docs(plan, params, facts),
        public_arguments=("q", "k", "v", *(p.keyword for p in params)),
        arguments=arguments,
        plain_params="".join(f", {name}" for name in names),
        fact_checks=_fact_checks(params) if facts.params else (),
        facts=facts,
        watched=(*laid_out, *_watched_scalars(params, call_seed)),
        laid_out=laid_out,
        fit_lines=_fit_lines(scalars),
        check_lines=checks,
        size_checks=size_checks(plan, params),
        turned="turned" if any(p.rank for p in params) else TURNED,
        convert_lines=_convert_lines(plan, params, laid_out, call_seed, learned if w.saves_rest else ""),
        numbers=any(not p.rank and p.by_pointer for p in params),
        call_inputs=(*arguments, "float(scale)", *call_seed, *precise, *places),
        refusals=_refusals(requires_grad) if parts.forward_only else (),
        requires_grad=requires_grad,
        results=("out", "lse", *(("*_",) if len(kept) > 2 else ())),
        size_lines=("B, Hq, Sq, D = q.shape", "Hkv, Sk, Dv = v.shape[1:]", *bound_sizes(plan, params)),
        repeat_lines=tuple(repeated(plan, params)),
        layout_values=(
            *(f"{size}={size}" for size in parts.sizes),
            *(f"{s}={p.name}.stride({i})" for p in params if p.by_pointer for i, s in enumerate(p.strides)),
            *((f"fetched=_fetched({parts.fetched})",) if parts.fetched else ()),
        ),
        pairs=parts.pairs,
        pair_params=pair_params,
        inputs=inputs,
        typed_inputs=(
            *typed,
            *typed_params,
            "scale: float",
            *typed_seed,
            *(("precise: bool = False",) if precise else ()),
            *(f"{place}: Tensor | None = None" for place in places),
        ),
        fake_inputs=(
            *arguments,
            "scale",
            *seed,
            *(("precise=False",) if precise else ()),
            *(f"{place}=None" for place in places),
        ),
        forward_arguments=("known", "q", "k", "v", "out", *precise),
        forward_key=f"({', '.join(forward_key)}{',' if len(forward_key) == 1 else ''})",
        forward_values=(
            *(f"{x}={x}" for x in ("q", "k", "v", *kept) if x != "rest"),
            *(("rest=rest if precise else out",) if w.saves_rest else ()),
            *param_values,
            *(f"{x}={x}" for x in ("scale", *seed)),
            *(("own=own", "queue=None") if parts.own else ()),
        ),
        output_lines=(
            *(("den = torch.empty_like(lse)",) if w.saves_den else ()),
            *(("rest = q.new_empty(out.shape) if precise else None",) if w.saves_rest else ()),
        ),
        outputs=kept,
        output_types=("Tensor",) * len(kept),
        output_doc=("; the denominators, likewise" if w.saves_den else "")
        + ("; if precise, what out lost in rounding" if w.saves_rest else ""),
        operator_lines=_operator_lines(inputs, kept),
        fake_outputs=("out", "lse", *(_fake(name) for name in kept[2:])),
        backward_parameters=(
            *("known", "strides", "q", "k", "v", "d_out", "dq", "dk", "dv"),
            *(("has_d_lse",) if delta else ()),
            *precise,
            *needed,
            *(("usual",) if parts.usual else ()),
        ),
        backward_arguments=(
            *("known", "strides", "q", "k", "v", "d_out", "dq", "dk", "dv"),
            *(("d_lse is not None",) if delta else ()),
            *(("rest.numel() > 0",) if precise else ()),
            *needed,
            *(("usual",) if parts.usual else ()),
        ),
        backward_lines=(
            *(("usual = 1e-18 < scale < 1e18  # so that log-sum-exps can be divided by it",) if parts.usual else ()),
            *(("d_lse = d_lse if d_lse is None else d_lse.contiguous()",) if delta else ()),
        ),
        backward_key=(
            *(f"{x}.data_ptr() % 16" for x in (*kept, "d_out")),
            "out.stride()",
            "d_out.stride()",
            *(("d_lse is None or (d_lse.dtype, d_lse.data_ptr() % 16)",) if delta else ()),
            *decides,
            *(("rest.numel() > 0",) if precise else ()),
            *(("tuple(needed)",) if needed else ()),
            *(("usual",) if parts.usual else ()),
        ),
        backward_values=(
            *(f"{x}={x}" for x in ("q", "k", "v", "d_out", "dq", "dk", "dv", *delta, *kept) if x != "lse"),
            "natural_lse=lse" if bwd.has_lse else "lse=lse",
            *param_values,
            *(f"{x}={x}" for x in ("scale", *seed)),
        ),
        backward_inputs=(
            *("d_out", "d_lse", "q", "k", "v"),
            *(p.name if p.by_pointer else f"ctx.param_{p.name}" for p in params),
            *kept,
            "ctx.scale",
            *seed,
            *needed,
            *places,
        ),
        typed_cotangents=(
            *("d_out: Tensor", "d_lse: Tensor | None", *typed, *typed_params),
            *(f"{x}: Tensor" for x in kept),
            *("scale: float", *typed_seed),
            *(("needed: list[bool]",) if needed else ()),
            *(f"{place}: Tensor | None" for place in places),
        ),
        cotangents=("d_out", "d_lse", *arguments, *kept, "scale", *seed, *needed, *places),
        nonempty="q.numel()" if parts.sums_of_none else "q.numel() and k.numel()",
        gradient_types=("Tensor",) * (3 + len(gradients)),
        gradient_doc=" and of the float params, empty where not needed" if gradients else "",
        gradient_names=("dq", "dk", "dv", *(g.total for g in gradients)),
        totals_before=(
            *_sizes_of_totals(plan, params, gradients),
            *(totals[g.total] for g in gradients if not g.sum),
        ),
        totals_after=(
            *(_pair_lines(pair_params) if parts.pairs else ()),
            *(_empty_or(g, g.sum) for g in gradients if g.sum),
            *_places_read(plan, params, gradients),
            *(line for g in gradients if g.lines for line in _if_needed(g)),
        ),
        totals_of_none=tuple(totals[g.total] for g in gradients if g.sum),
        fake_totals=tuple(
            _empty_or(g, f"{g.param}.new_empty({g.param}.shape, dtype=torch.float32)") for g in gradients
        ),
        deciding=decides,
        saved_inputs=(
            *("q", "k", "v"),
            *(p.name if p.by_pointer else f"ctx.param_{p.name}" for p in params),
            *("ctx.scale", *seed, *(("_",) if precise else ()), *places),
        ),
        saved=saved,
        unlearned=_unlearned(w),
        restored=(
            *(("rest = out.new_empty(0) if rest is None else rest",) if w.saves_rest else ()),
            *((f"needed = [{', '.join(f'ctx.needs_input_grad[{g.position}]' for g in gradients)}]",) if needed else ()),
        ),
        converted=tuple(
            f"{g.total} = {g.total}.to({g.param}.dtype) if needed[{g.number}] else None" for g in gradients
        ),
        returned_gradients=(
            *("dq", "dk", "dv"),
            *(by_position[3 + i].total if 3 + i in by_position else zeros(p, i) for i, p in enumerate(params)),
            *(("None",) * (1 + len(seed) + len(precise) + len(places))),
        ),
    )


def _deciding(p: ParamView) -> tuple[str, ...]:
    """What of a scalar decides which compiled kernel is launched: its address, or how many bits it needs."""
    if p.rank:
        return ()
    if p.by_pointer:
        return (f"{p.name}.data_ptr() % 16",)
    place = (f"{p.place} is None or {p.place}.dtype",) if p.either else ()
    if p.type == "bool":
        return place
    return (f"-(2**31) <= {p.name} < 2**31", f"{p.name} < 2**63", *place)


def kernel_value(p: ParamView) -> str:
    """What kernels get for a param."""
    if p.either:
        return f"{p.name} if {p.place} is None else {p.place}"
    return f"int({p.name})" if p.type == "bool" and not p.by_pointer else p.name


# ---------------------------------------------------------------- the public function


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
        f"scale multiplies q . k where the score says so; 1 / sqrt(D) when not given.{learns}",
        seed,
        *check,
    )


def _fact_checks(params: tuple[ParamView, ...]) -> Lines:
    public = ", ".join(("q", "k", "v", *(p.keyword for p in params)))
    return ("if check:", f"    _check_facts({public}, scale)")


def _watched_scalars(params: tuple[ParamView, ...], seed: tuple[str, ...]) -> Lines:
    """Scalars that may be given as tensors."""
    found = (*(p.name for p in params if not p.rank), *seed)
    return (f"*(x for x in ({', '.join(found)},) if isinstance(x, Tensor))",) if found else ()


def _fit_lines(scalars: tuple[str, ...]) -> Lines:
    """What a call is known to pass the checks by: numbers alone."""
    if not scalars:
        return ("fit = float(scale)",)
    numbers = " and ".join(f"type({x}) in _NUMBERS" for x in scalars)
    numbers = numbers if len(numbers) < 100 else f"({numbers})"  # where a long line may be broken
    return (f"if {numbers}:", f"    fit = float(scale), {', '.join(f'type({x}), {x}' for x in scalars)}")


def _convert_lines(
    plan: KernelPlan, params: tuple[ParamView, ...], laid_out: Lines, seed: tuple[str, ...], learned: str
) -> Lines:
    """`learned`: whether some param needs a gradient, where the kernels are told."""
    lines = [*conversions(params, "_number({}, q.device, known is not None)", in_memory=True)]
    if plan.facts.scale_positive:
        lines += [
            "if scale <= 0.0:",
            "    # The kernels take a positive scale; its sign, or its being zero, goes into q.",
            "    q, scale = (-q, -scale) if scale < 0.0 else (q * 0.0, 1.0)",
            f"    known = known and _known({', '.join(laid_out)})",
        ]
    if seed:
        lines.append("dropout_seed = _seed_tensor(dropout_seed, q.device)")
    if learned:
        lines += [
            "# A param's gradient sums over all pairs: in half precision it needs what rounding takes from out.",
            f"precise = torch.is_grad_enabled() and ({learned}) and q.dtype is not torch.float32",
        ]
    return tuple(lines)


def _refusals(requires_grad: str) -> Lines:
    message = (
        "this file was made with the option forward and has no gradients: call it under torch.no_grad(), or compile "
        "the spec without that option"
    )
    return (f"if torch.is_grad_enabled() and ({requires_grad}):", f'    _refuse("{message}")')


# ---------------------------------------------------------------- the operators


def _operator_lines(inputs: Lines, kept: Lines) -> Lines:
    call = f"_attend({', '.join(inputs)})"
    if "rest" not in kept:
        return (f"return {call}",)
    names = ", ".join(kept)
    given = ", ".join("out.new_empty(0) if rest is None else rest" if n == "rest" else n for n in kept)
    return (f"{names} = {call}", f"return {given}")


def _fake(name: str) -> str:
    return "torch.empty_like(lse)" if name == "den" else "out.new_empty(out.shape if precise else 0)"


def _unlearned(w: WeightView) -> Lines:
    """What is no result of its own has no gradient."""
    return (
        *(("ctx.mark_non_differentiable(den)",) if w.saves_den else ()),
        *(("if rest is not None:", "    ctx.mark_non_differentiable(rest)") if w.saves_rest else ()),
    )


def _pair_lines(params: Lines) -> Lines:
    launches = f"_pair_launches({', '.join(('known', 'strides', 'q', 'k', 'v', 'd_out', *params))})"
    return ("pairs = known.pairs.get(key)", "if pairs is None:", f"    pairs = known.pairs[key] = {launches}")


def _empty_or(g: GradientView, value: str) -> str:
    return f"{g.total} = {value} if needed[{g.number}] else {g.param}.new_empty(0)"


def _if_needed(g: GradientView) -> Lines:
    return (f"if needed[{g.number}]:", *(f"    {line}" for line in g.lines))


def _places_read(plan: KernelPlan, params: tuple[ParamView, ...], gradients: tuple[GradientView, ...]) -> Lines:
    """Lines after the launches: ints and bools that tensors hold, where indices on the host read them."""
    if not any(g.lines for g in gradients):
        return ()
    read = {name for g in plan.gradients for name in read_params(g.leaf)}
    return tuple(f"{p.name} = {kernel_value(p)}" for p in params if p.either and p.keyword in read)


def _sizes_of_totals(plan: KernelPlan, params: tuple[ParamView, ...], gradients: tuple[GradientView, ...]) -> Lines:
    """Lines that bind the sizes by which values are scattered to cells."""
    if not any(g.lines for g in gradients):
        return ()
    return ("B, Hq, Hkv, Sq, Sk, D, Dv = known.shape", *bound_sizes(plan, params))
