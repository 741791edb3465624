"""What the functions for sequences say on the host: arguments, checks, launches, gradients.

Takes the plan, what the dense functions say (`CallView`) and the kernels, returns the `SequenceCallView` that
`templates/triton/host/` reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.text.params import ParamView
from attngen.emit.text.weights import WeightView
from attngen.emit.torch_shared.calls import RUNTIME
from attngen.emit.torch_shared.checks import size_checks
from attngen.emit.torch_shared.facts import torch_facts
from attngen.emit.torch_shared.leaves import AXES, host_names, leaf_name, summed
from attngen.emit.torch_shared.public_function import param_doc
from attngen.emit.triton.code.launches import Way
from attngen.emit.triton.code.test_views import TestView
from attngen.emit.triton.hopper.forward import GluonView
from attngen.emit.triton.host.call import CallView
from attngen.emit.triton.host.passes import BOUNDS, BackwardKernels
from attngen.emit.triton.portable.param_gradients import GradientView
from attngen.emit.triton.sequences.launches import sequence_backward, sequence_forward, sequence_whole
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
    """Names and lines of the host, as in `CallView`.
    `refused`: lines that refuse gradients which are not summed; `whole`: how the one backward kernel is launched.
    `size_checks` and `facts` check the sizes and elements of one sequence, b."""

    packed: bool
    lengths: bool
    packed_keywords: Lines
    lengths_keywords: Lines
    packed_docs: Lines
    lengths_docs: Lines
    refused: Lines
    facts: Lines
    size_checks: Lines
    forward_ways: tuple[Way, ...]
    forward: Way
    whole: tuple[Way, ...]
    backward: tuple[tuple[str, Way], ...]
    gradient_lines: Lines
    options: Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceParts:
    """What `sequence_call_view` takes beside the plan and the dense call. `listed`: kernels of compute capability 9.0
    take tiles of sequences."""

    geometry: tuple[str, ...]
    params: tuple[ParamView, ...]
    weights: WeightView
    gradients: tuple[GradientView, ...]
    kernels: BackwardKernels
    fast: GluonView | None
    listed: bool
    key_tests: tuple[TestView, ...]
    backward: bool


def sequence_call_view(plan: KernelPlan, call: CallView, parts: SequenceParts) -> SequenceCallView:
    params, w, gradients = parts.params, parts.weights, parts.gradients
    _refuse_names(plan, parts.geometry)
    forward_ways, forward = sequence_forward(
        parts.fast, listed=parts.listed, tests=parts.key_tests, map=parts.kernels.map, precise=w.saves_rest
    )
    names = host_names(plan.attention, params, RUNTIME)
    refused = _unsummed(plan, params, gradients)
    facts = torch_facts(plan, params, names, "b", RUNTIME).lines
    sizes = size_checks(plan, params, RUNTIME, "sequence {b}: ")
    own = {
        "backward=_sequence_backward_launches": parts.backward,
        "gradients=_sequence_param_gradients": parts.backward and bool(gradients),
        "refused=_refuse_sequences": bool(refused),
        "check_one=_check_one": bool(facts or sizes),
    }
    return SequenceCallView(
        packed="packed" in parts.geometry,
        lengths="lengths" in parts.geometry,
        packed_keywords=(*(f"{p.keyword}: {p.public_annotation}" for p in params), *_PACKED, *_COMMON),
        lengths_keywords=(*(f"{p.keyword}: {p.public_annotation}" for p in params), *_LENGTHS, *_COMMON),
        packed_docs=_docs(plan, call, params, packed=True),
        lengths_docs=_docs(plan, call, params, packed=False),
        refused=refused,
        facts=facts,
        size_checks=sizes,
        forward_ways=forward_ways,
        forward=forward,
        whole=sequence_whole(parts.kernels) if parts.backward else (),
        backward=sequence_backward(parts.kernels, listed=parts.listed) if parts.backward else (),
        gradient_lines=tuple(line for g in gradients for line in _sums(plan, params, g)),
        options=tuple(text for text, some in own.items() if some),
    )


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


def _unsummed(plan: KernelPlan, params: tuple[ParamView, ...], gradients: tuple[GradientView, ...]) -> Lines:
    """A gradient whose sum is not over whole rows, columns or heads."""
    lines: list[str] = []
    for g in gradients:
        keyword = next(p.keyword for p in params if p.name == g.param)
        apart = next((x.leaf for x in plan.gradients if x.param == keyword and _sum(plan, params, x) is None), None)
        if not isinstance(apart, Load):
            continue
        packed, lengths = _advice(keyword, apart, plan.attention.param(keyword))
        lines.append(f'host.refuse_gradient(a, "{keyword}", {g.param}, packed, ("{packed}", "{lengths}"))')
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


__all__ = ["SequenceCallView", "SequenceParts", "sequence_call_view"]
