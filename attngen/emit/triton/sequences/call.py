"""What the functions for sequences say on the host: arguments, checks, launches, gradients.

Takes the plan, what the dense functions say (`CallView`) and the kernels, returns the `SequenceCallView` that
`templates/triton/sequences/host.py.j2` reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.text.params import ParamView
from attngen.emit.text.weights import WeightView
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.emit.torch_shared.checks import size_checks
from attngen.emit.torch_shared.facts import torch_facts
from attngen.emit.torch_shared.leaves import AXES, host_names, leaf_name, summed
from attngen.emit.torch_shared.public_function import param_doc
from attngen.emit.triton.code.launches import Way
from attngen.emit.triton.code.test_views import TestView
from attngen.emit.triton.hopper.forward import GluonView
from attngen.emit.triton.host.call import CallView, kernel_value
from attngen.emit.triton.host.passes import BOUNDS, BackwardKernels
from attngen.emit.triton.portable.param_gradients import GradientView
from attngen.emit.triton.portable.views import BackwardView
from attngen.emit.triton.sequences.launches import sequence_backward, sequence_forward, sequence_whole
from attngen.emit.triton.sequences.rows import geometries, needs_batch
from attngen.errors import UsageError
from attngen.ir import printing
from attngen.ir.attention import Param
from attngen.ir.nodes import Load, Symbol
from attngen.ir.walk import reads, symbols
from attngen.plan.kernel import KernelPlan, LeafGradient
from attngen.plan.score.distance import distance_index

Lines = tuple[str, ...]

_COMMON = (
    "scale: float | Tensor | None = None",
    "return_lse: bool = False",
    "dropout_seed: int | Tensor | None = None",
    "check: bool = False",
)
_PACKED = (
    "cu_seqlens_q: Tensor",
    *(f"{name}: Tensor | None = None" for name in ("cu_seqlens_k", "seqused_k", "block_table")),
    *(f"{name}: int | None = None" for name in ("max_seqlen_q", "max_seqlen_k")),
    "out: Tensor | None = None",
)
_LENGTHS = tuple(f"{name}: Tensor | None = None" for name in BOUNDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCallView:
    """Names and lines of the host, as in `CallView`. `slots` are the texts of how many slots there are, packed and not.
    `expanded`: lines that give a param with rows its batch again; `stand_ins`: elements, if it has none. `whole`: how
    the one backward kernel is launched. `one`: the arguments of `_check_one`, the rows of one sequence, whose sizes and
    elements `size_checks` and `facts` check."""

    packed: bool
    lengths: bool
    slots: tuple[str, str]
    # the public functions
    packed_keywords: Lines
    lengths_keywords: Lines
    packed_docs: Lines
    lengths_docs: Lines
    public_arguments: Lines
    call_parameters: Lines
    refusals: Lines
    stand_ins: Lines
    op_arguments: Lines
    # checks
    arguments: Lines
    rank_checks: Lines
    expanded: Lines
    one: Lines
    facts: Lines
    sizes: Lines
    size_checks: Lines
    # the forward pass
    laid_out: Lines
    keywords: Lines  # the same as a caller writes them
    known: Lines
    inputs: Lines
    typed_inputs: Lines
    fake_inputs: Lines
    fake_outputs: Lines
    output_lines: Lines
    forward_ways: tuple[Way, ...]
    forward: Way
    forward_values: Lines
    forward_key: Lines
    operator_lines: Lines
    launch_arguments: Lines
    # the backward pass
    whole: tuple[Way, ...]
    backward: tuple[tuple[str, Way], ...]
    backward_lines: Lines
    backward_values: Lines
    backward_key: Lines
    backward_parameters: Lines
    backward_arguments: Lines
    typed_cotangents: Lines
    cotangents: Lines
    totals: Lines
    totals_after: Lines
    saved_inputs: Lines
    saved: Lines
    backward_inputs: Lines
    returned_gradients: Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceParts:
    """What `sequence_call_view` takes beside the plan and the dense call. `listed`: kernels of compute capability 9.0
    take tiles of sequences."""

    geometry: tuple[str, ...]
    params: tuple[ParamView, ...]
    weights: WeightView
    bwd: BackwardView
    gradients: tuple[GradientView, ...]
    kernels: BackwardKernels
    fast: GluonView | None
    listed: bool
    key_tests: tuple[TestView, ...]
    backward: bool


def sequence_call_view(plan: KernelPlan, call: CallView, parts: SequenceParts) -> SequenceCallView:
    params, w, gradients = parts.params, parts.weights, parts.gradients
    _refuse_names(plan, parts.geometry)
    names = tuple(p.name for p in params)
    ranked = tuple(p for p in params if p.rank)
    typed_bounds = tuple(f"{b}: Tensor | None = None" for b in BOUNDS)
    precise = ("precise",) if w.saves_rest else ()
    needed = ("needed",) if gradients else ()
    delta = parts.bwd.has_delta
    forward_ways, forward = sequence_forward(
        parts.fast, listed=parts.listed, tests=parts.key_tests, precise=w.saves_rest
    )
    whole = sequence_whole(parts.kernels) if parts.backward else ()
    usual = ("usual",) if any("usual" in way.when for way in whole) else ()
    laid_out = ("q", "k", "v", *(p.name for p in ranked))
    expanded = _expanded(plan, params)
    kept = call.outputs
    param_values = tuple(f"{p.name}={kernel_value(p)}" for p in params)
    seed = ("seed",) if plan.attention.dropout is not None else ()
    backward_arguments = (
        *(("d_lse is not None",) if delta else ()),
        *(("rest.numel() > 0",) if precise else ()),
        *needed,
        *usual,
    )
    return SequenceCallView(
        packed="packed" in parts.geometry,
        lengths="lengths" in parts.geometry,
        slots=_slots(plan),
        packed_keywords=(*(f"{p.keyword}: {p.public_annotation}" for p in params), *_PACKED, *_COMMON),
        lengths_keywords=(*(f"{p.keyword}: {p.public_annotation}" for p in params), *_LENGTHS, *_COMMON),
        packed_docs=_docs(plan, call, params, packed=True),
        lengths_docs=_docs(plan, call, params, packed=False),
        public_arguments=call.public_arguments,
        call_parameters=("q", "k", "v", *names, "bounds", "rows", "scale", "dropout_seed", "packed"),
        refusals=(*call.refusals, *_unsummed(plan, params, gradients)),
        stand_ins=tuple(f"{view.name} = _stand_in({view.name})" for view, _ in _with_rows(plan, params)),
        op_arguments=(*call.call_inputs, *(f'bounds["{b}"]' for b in BOUNDS), "packed"),
        arguments=("q", "k", "v", *names),
        rank_checks=_rank_checks(plan, params),
        expanded=expanded,
        one=("q[:, :, of_q]", "k[:, :, of_k]", "v[:, :, of_k]", *_rows_of_one(plan, params)),
        facts=torch_facts(plan, params, host_names(plan.attention, params), "b").lines,
        sizes=call.size_lines,
        size_checks=size_checks(plan, params, "sequence {b}: "),
        laid_out=laid_out,
        keywords=("q", "k", "v", *(p.keyword for p in ranked)),
        known=(*(f'found["{x}"]' for x in "qkv"), *(p.name for p in ranked)),
        inputs=(*call.inputs, *BOUNDS, "packed"),
        typed_inputs=(*call.typed_inputs, *typed_bounds, "packed: bool = False"),
        fake_inputs=(*call.fake_inputs, *(f"{b}=None" for b in BOUNDS), "packed=False"),
        fake_outputs=("out", "lse", *(_empty(name, "precise", "0") for name in kept[2:])),
        output_lines=tuple(f"{name} = {_empty(name, 'precise', 'None')}" for name in kept[2:]),
        forward_ways=forward_ways,
        forward=forward,
        forward_values=(
            *(f"{x}={x}" for x in kept[1:] if x != "rest"),
            *(("rest=rest if precise else out",) if precise else ()),
            *param_values,
            *(f"{x}={x}" for x in ("scale", *seed)),
        ),
        forward_key=('"forward"', 'values["key"]', *call.deciding, *precise),
        operator_lines=_operator_lines(call),
        launch_arguments=precise,
        whole=whole,
        backward=sequence_backward(parts.kernels, listed=parts.listed) if parts.backward else (),
        backward_lines=(
            *(("usual = 1e-18 < scale < 1e18  # so that log-sum-exps can be divided by it",) if usual else ()),
            *(("d_lse = d_lse if d_lse is None else d_lse.contiguous()",) if delta else ()),
        ),
        backward_values=(
            *(f"{x}={x}" for x in (*(("d_lse",) if delta else ()), *kept[1:]) if x != "lse"),
            "natural_lse=lse" if parts.bwd.has_lse else "lse=lse",
            *param_values,
            *(f"{x}={x}" for x in ("scale", *seed)),
        ),
        backward_key=(
            *('"backward"', 'values["key"]', *call.deciding),
            *(("d_lse is None or (d_lse.dtype, d_lse.data_ptr() % 16)",) if delta else ()),
            *(f"{x}.data_ptr() % 16" for x in kept[1:]),
            *(("rest.numel() > 0",) if precise else ()),
            *(("tuple(needed)",) if needed else ()),
            *usual,
        ),
        backward_parameters=(*(("has_d_lse",) if delta else ()), *precise, *needed, *usual),
        backward_arguments=backward_arguments,
        typed_cotangents=(*call.typed_cotangents, *(f"{b}: Tensor | None" for b in BOUNDS), "packed: bool"),
        cotangents=(*call.cotangents, *BOUNDS, "packed"),
        totals=tuple(
            f"{g.total} = torch.zeros({g.param}.shape if needed[{g.number}] else 0, device=q.device)" for g in gradients
        ),
        totals_after=tuple(line for g in gradients for line in _sums(plan, params, g)),
        saved_inputs=(*call.saved_inputs, *BOUNDS, "ctx.packed"),
        saved=(*call.saved, *BOUNDS),
        backward_inputs=(*call.backward_inputs, *BOUNDS, "ctx.packed"),
        returned_gradients=(*call.returned_gradients, *(("None",) * 5)),
    )


def _slots(plan: KernelPlan) -> tuple[str, str]:
    names = {name: name for name in ("total", "tile", "n_sequences")}
    lengths, packed = (host_expressions.python(g.slots, names) for g in geometries(plan))
    return packed, lengths


def _refuse_names(plan: KernelPlan, geometry: tuple[str, ...]) -> None:
    check = _COMMON[-1:]
    own = {"packed": (*_PACKED, *check), "lengths": (*_LENGTHS, *check)}
    for kind in geometry:
        taken = {text.split(":")[0] for text in own.get(kind, ())}
        clash = next((p.name for p in plan.attention.params if p.name in taken), None)
        if clash is not None:
            raise UsageError(f"the param `{clash}` has the name of an argument of the geometry {kind}: rename it")


def _docs(plan: KernelPlan, call: CallView, params: tuple[ParamView, ...], *, packed: bool) -> Lines:
    found: list[str] = []
    for view, param in zip(params, plan.attention.params, strict=True):
        text = param_doc(plan, view)
        rows = any(symbols(d) & {"Sq", "Sk"} for d in param.shape)
        if rows and packed:
            dims = [printing.expression(d) for d in param.shape]
            flat = ", ".join({"Sq": "Tq", "Sk": "Tk"}.get(d, d) for d in dims if d != "B")
            text = text.replace(f"({', '.join(dims)})", f"({flat}{',' if len(dims) == 2 else ''})")
        found.append(text)
    return (*found, *(line for line in call.docs[len(params) :] if not line.startswith("check ")))


def _with_rows(plan: KernelPlan, params: tuple[ParamView, ...]) -> list[tuple[ParamView, int | None]]:
    """The params with an element for each row, and which of their dimensions is the batch."""
    found: list[tuple[ParamView, int | None]] = []
    for view, param in zip(params, plan.attention.params, strict=True):
        if any(symbols(d) & {"Sq", "Sk"} for d in param.shape):
            batch = next((i for i, d in enumerate(param.shape) if "B" in symbols(d)), None)
            found.append((view, batch))
    return found


def _expanded(plan: KernelPlan, params: tuple[ParamView, ...]) -> Lines:
    lines: list[str] = []
    for view, batch in _with_rows(plan, params):
        if batch is not None:
            shape = ", ".join("count" if i == batch else "-1" for i in range(view.rank))
            lines.append(f"{view.name} = {view.name}.unsqueeze({batch}).expand({shape}) if packed else {view.name}")
    return tuple(lines)


def _rows_of_one(plan: KernelPlan, params: tuple[ParamView, ...]) -> Lines:
    """Each param with the rows of one sequence."""
    found: list[str] = []
    for view, param in zip(params, plan.attention.params, strict=True):
        own = ["of_q" if "Sq" in symbols(d) else "of_k" if "Sk" in symbols(d) else ":" for d in param.shape]
        found.append(f"{view.name}[{', '.join(own)}]" if set(own) - {":"} else view.name)
    return tuple(found)


def _rank_checks(plan: KernelPlan, params: tuple[ParamView, ...]) -> Lines:
    lines: list[str] = []
    by_name = {p.name: p for p in plan.attention.params}
    for view, _ in _with_rows(plan, params):
        dims = ", ".join(printing.expression(d) for d in by_name[view.keyword].shape)
        if needs_batch(by_name[view.keyword].shape):
            message = (
                f"{view.keyword} ({dims}) has an element for each row of every sequence alike, which packed tensors "
                "cannot hold: declare it with the dimension B"
            )
            lines += ["if packed:", f'    _refuse("{message}")']
        else:
            message = (
                f"{view.keyword} ({dims}) must have {view.rank - 1} dimension{'s' if view.rank > 2 else ''} for packed "
                "sequences: rows of all of them, without B"
            )
            lines += [
                f"if packed and (not isinstance({view.name}, Tensor) or {view.name}.dim() != {view.rank - 1}):",
                f'    _refuse("{message}")',
            ]
    return tuple(lines)


def _unsummed(plan: KernelPlan, params: tuple[ParamView, ...], gradients: tuple[GradientView, ...]) -> Lines:
    """A gradient whose sum is not over whole rows, columns or heads."""
    lines: list[str] = []
    for g in gradients:
        keyword = next(p.keyword for p in params if p.name == g.param)
        apart = next((x.leaf for x in plan.gradients if x.param == keyword and _sum(plan, params, x) is None), None)
        if not isinstance(apart, Load):
            continue
        packed, lengths = (
            f"the gradient of {keyword} is summed over pairs or chosen cells, which is done for dense tensors only: "
            f"{advice}; if {keyword} needs no gradient, pass {keyword}.detach(), or declare it `fixed`"
            for advice in _advice(keyword, apart, plan.attention.param(keyword))
        )
        test = f"torch.is_grad_enabled() and isinstance({g.param}, Tensor) and {g.param}.requires_grad"
        lines += [f"if {test}:", f'    _refuse("{packed}" if packed else "{lengths}")']
    return tuple(lines)


def _advice(keyword: str, leaf: Load, param: Param) -> tuple[str, str]:
    """How to train a param that is read so: with packed sequences, and with lengths."""
    dims = [d.id if isinstance(d, Symbol) else "" for d in param.shape]
    for axis, (index, dim) in enumerate(zip(leaf.indices, dims, strict=True)):
        match index:
            case Symbol(id="hkv"):
                own = ", ".join("Hq" if i == axis else printing.expression(d) for i, d in enumerate(param.shape))
                repeated = f"{keyword}.repeat_interleave(Hq // Hkv, dim={axis - len(dims)})"
                text = f"declare it [{own}], read it at h, and pass {repeated}"
                return text, text
            case Symbol(id="q" | "k") if dim in ("Sq", "Sk") and dim != f"S{index.id}":
                own = ", ".join(
                    f"S{index.id}" if i == axis else printing.expression(d) for i, d in enumerate(param.shape)
                )
                text = f"declare it twice, [{own}] for what is read at {index.id}, and pass the same tensor for both"
                return text, text
            case _:
                pass
    positions = any(reads(i, "q", "k") for i in leaf.indices) and distance_index(leaf) is None
    more = ", and with positions from a param, at[b, q] and at[b, k]" if positions else ""
    return (
        f"put the sequences in one row, q (1, Hq, T, D), with `same_document(ids)` in the mask{more}, and call the "
        "dense function",
        "write the lengths into the mask, `k < n[b]`, and call the dense function",
    )


def _sum(plan: KernelPlan, params: tuple[ParamView, ...], leaf: LeafGradient) -> str | None:
    """The sum of one leaf of a gradient; None where it is not over whole axes."""
    if leaf.gather not in AXES:
        return None
    axes, value = AXES[leaf.gather], f'values["{leaf_name(plan, params, leaf)}"]'
    return summed(plan.attention, leaf.leaf, axes, value, tiles=len(axes) == 2)


def _sums(plan: KernelPlan, params: tuple[ParamView, ...], g: GradientView) -> Lines:
    keyword = next(p.keyword for p in params if p.name == g.param)
    found = [_sum(plan, params, leaf) for leaf in plan.gradients if leaf.param == keyword]
    texts = [text for text in found if text is not None]
    if not texts or len(texts) < len(found):
        return ()
    has_rows = any(view.name == g.param for view, _ in _with_rows(plan, params))
    some = " and k.numel()" if has_rows else ""  # else what stands in for it has no sum
    return (f"if needed[{g.number}]{some}:", *(f"    {g.total} += ({t}).reshape({g.total}.shape)" for t in texts))


def _empty(name: str, condition: str, otherwise: str) -> str:
    """What the backward pass needs of each row beside `lse`: denominators, or what out lost in rounding."""
    if name == "den":
        return "torch.empty_like(lse)"
    shape = "(*lse.shape, v.shape[-1])"
    return f"q.new_empty({shape}) if {condition} else {'None' if otherwise == 'None' else 'q.new_empty(0)'}"


def _operator_lines(call: CallView) -> Lines:
    text = f"_attend_sequences({', '.join((*call.inputs, *BOUNDS, 'packed'))})"
    return tuple(line.replace(f"_attend({', '.join(call.inputs)})", text) for line in call.operator_lines)


__all__ = ["SequenceCallView", "SequenceParts", "sequence_call_view"]
