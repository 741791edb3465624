"""What the launcher and the public function of a generated module say: arguments, checks, conversions, docs.

Takes the plan and the params, gives `LaunchView` for `templates/triton/launch/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngen.emit.text.facts import FactsView
from attngen.emit.text.params import ParamView
from attngen.emit.torch_shared.checks import check_lines
from attngen.emit.torch_shared.facts import torch_facts
from attngen.emit.torch_shared.leaves import host_names
from attngen.emit.torch_shared.public_function import bound_sizes, conversions, param_doc, zeros
from attngen.emit.triton.param_gradients import GradientView
from attngen.plan.kernel import KernelPlan

if TYPE_CHECKING:
    from attngen.emit.triton.views import TestView


@dataclass(frozen=True, slots=True)
class LaunchView:
    params: tuple[ParamView, ...]
    typed_params: str  # ", slope: Tensor, window: int"
    plain_params: str  # ", slope, window"
    public_arguments: str
    sizes: tuple[str, ...]  # that every kernel takes
    size_lines: tuple[str, ...]
    bound_lines: tuple[str, ...]
    plain_values: tuple[str, ...]  # what every kernel takes after its pointers, but for strides
    forward_key: str  # of what, beside the layout, decides which compiled kernel is launched
    output_types: str
    output_names: str
    given_names: str  # the same as the operator has to give them: tensors all
    gradient_types: str
    gradients: tuple[GradientView, ...]
    gradient_names: tuple[str, ...]  # what the backward pass gives
    hopper_backward_arguments: tuple[str, ...]
    hopper_backward_options: tuple[str, ...]
    hopper_dkdv_arguments: tuple[str, ...]
    hopper_dkdv_options: tuple[str, ...]
    hopper_dq_arguments: tuple[str, ...]
    hopper_dq_options: tuple[str, ...]
    forward_arguments: tuple[str, ...]
    forward_options: tuple[str, ...]
    hopper_arguments: tuple[str, ...]
    hopper_options: tuple[str, ...]
    inputs: tuple[str, ...]  # what the operator takes
    laid_out: tuple[str, ...]  # the tensors whose layout decides which compiled kernel is launched
    decides: tuple[str, ...]  # and what else does
    scalars: tuple[str, ...]
    maybe_tensors: tuple[str, ...]  # scalars that may be given as tensors
    numbers: bool  # whether there are floats among them
    requires_grad: str  # whether one of them needs a gradient
    dkdv_arguments: tuple[str, ...]
    dkdv_options: tuple[str, ...]
    dq_arguments: tuple[str, ...]
    dq_options: tuple[str, ...]
    saved_tensors: str
    values: tuple[str, ...]
    returned_gradients: str
    check_lines: tuple[str, ...]
    convert_lines: tuple[str, ...]
    param_docs: tuple[str, ...]
    needs_math: bool
    learned: str  # whether some param needs a gradient
    signs_scale: bool  # the sign of the scale can be taken into q
    reads_scalars: bool
    facts: FactsView
    lists: bool  # whether some kernel of one chip reads which tiles it walks
    portable_dq: str  # when extremes in tiles of keys are wanted backward; always, if empty

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
    saves_rest: bool,
    row_tensors: tuple[str, ...],
    dq_sums: tuple[str, ...],
    dkdv_sums: tuple[str, ...],
    lists: bool,
    walks: bool,
    row_terms: bool,
    dkdv_walks: bool,
    dq_walks: bool,
    whole: bool,
    apart: bool,
) -> LaunchView:
    """Whether a kernel of one chip reads which tiles it walks: `lists` the forward kernel, `walks` the backward kernel,
    or, of two, either. `whole` and `apart`: whether there are such kernels backward, one or two. `row_terms`: see
    `GluonBackwardView`."""
    attention = plan.attention
    by_name = {g.param: g.total for g in gradients}
    host = tuple(v for p in params for v in p.host_arguments)
    checks = check_lines(plan, params)
    seed = ("seed",) if attention.dropout is not None else ()
    pointers = tuple(p.name for p in params if p.by_pointer)
    key_tests = tuple(n.removesuffix("_ptr") for t in tests if t.axis == "k" for n in t.pointers)
    query_tests = tuple(n.removesuffix("_ptr") for t in tests if t.axis == "q" for n in t.pointers)
    decides = (*(d for p in params for d in deciding(p)), *(f"{s}.data_ptr() % 16" for s in seed))
    forward_key = (*decides, *(("precise",) if saves_rest else ()))
    flags = tuple(f"GRAD_{g.param.upper()}=needed[{i}]" for i, g in enumerate(gradients))
    names = ["out", "lse", *(["den"] if saves_den else []), *(["rest"] if saves_rest else [])]
    written = ["rest if precise else out" if name == "rest" else name for name in names]
    blocks = ("D=D", "Dv=Dv", "BLOCK_D=_hopper_block(D)", "BLOCK_DV=_hopper_block(Dv)", "BQ=BQ", "BK=BK")
    fixed = ("FAST=True", "num_warps=4")
    return LaunchView(
        params=params,
        typed_params="".join(f", {p.name}: {p.annotation}" for p in params),
        plain_params="".join(f", {p.name}" for p in params),
        public_arguments="".join(f", {p.keyword}" for p in params),
        sizes=sizes,
        bound_lines=tuple(bound_sizes(plan, params)),
        size_lines=("B, Hq, Sq, D = q.shape", "Hkv, Sk, Dv = v.shape[1:]", *bound_sizes(plan, params)),
        plain_values=("scale", "*known.sizes", *host),
        forward_key=f"({', '.join(forward_key)}{',' if len(forward_key) == 1 else ''})",
        output_types=", ".join(["Tensor"] * len(names)),
        output_names=", ".join(names),
        given_names=", ".join("out.new_empty(0) if rest is None else rest" if n == "rest" else n for n in names),
        gradient_types=", ".join(["Tensor"] * (3 + len(gradients))),
        gradients=gradients,
        gradient_names=("dq", "dk", "dv", *(g.total for g in gradients)),
        forward_arguments=("*ready.tiles(q, k, v)", *written, *seed, *key_tests, "*plain", "*known.strides"),
        forward_options=(
            "**sizes",
            "BQ=BQ",
            "BK=BK",
            "TMA=tma",
            *(("PRECISE=precise",) if saves_rest else ()),
            "num_warps=warps",
            "num_stages=stages",
        ),
        hopper_arguments=(
            "*ready.tiles(q, k, v, out)",
            *written[1:],
            *seed,
            "queue",
            "ready.n_work",
            "ready.together",
            *(("lists",) if lists else ()),
            "*plain",
        ),
        hopper_options=(
            'D=sizes["D"]',
            'Dv=sizes["Dv"]',
            'BLOCK_D=_hopper_block(sizes["D"])',
            'BLOCK_DV=_hopper_block(sizes["Dv"])',
            "BQ=BQ",
            "BK=BK",
            "STAGES=stages",
            "SCHEDULE=schedule",
            "ORDERED=ordered",
            "OUT_APART=apart",
            "PIPELINED=pipelined",
            "REGISTERS=registers",
            "SPARE=spare",
            "FAST=True",
            *(("PRECISE=precise",) if saves_rest else ()),
            "num_warps=4",
        ),
        hopper_backward_arguments=(
            *(
                ("*by_keys.tiles(q, k, v, d_out, dk, dv, terms)",)
                if row_terms
                else ("*by_keys.tiles(q, k, v, d_out, dk, dv)", *row_tensors)
            ),
            "dq_parts",
            "turns",
            "queue",
            "by_keys.n_work",
            "by_keys.together",
            *(("walks", "met") if walks else ()),
            "*plain",
        ),
        hopper_backward_options=(
            "D=D",
            "Dv=Dv",
            "BLOCK_D=block",
            "BLOCK_DV=_hopper_block(Dv)",
            "BQ=BQ",
            "BK=BK",
            "STAGES=stages",
            "EARLY=early",
            "BACKWARDS=backwards",
            "SPARE=spare",
            "FAST=True",
            "num_warps=4",
        ),
        hopper_dkdv_arguments=(
            "*by_keys.tiles(q, k, v, d_out, dk, dv)",
            *row_tensors,
            "by_keys.n_work",
            "by_keys.together",
            *(("walks",) if dkdv_walks else ()),
            "*plain",
        ),
        hopper_dkdv_options=(*blocks, "STAGES=stages", "AHEAD=ahead", "SPARE=spare", *fixed),
        hopper_dq_arguments=(
            "*by_rows.tiles(q, k, v, d_out, dq)",
            *row_tensors,
            *dq_sums,
            "by_rows.n_work",
            "by_rows.together",
            *(("walks",) if dq_walks else ()),
            "*plain",
        ),
        hopper_dq_options=(
            *blocks,
            "K_STAGES=stages",
            "V_STAGES=value_stages",
            "SPARE=spare",
            *flags,
            *fixed,
        ),
        inputs=("q", "k", "v", *(p.name for p in params), "scale", *seed, *(("precise",) if saves_rest else ())),
        laid_out=("q", "k", "v", *(p.name for p in params if p.rank)),
        decides=decides,
        scalars=tuple(p.name for p in params if not p.rank),
        maybe_tensors=(
            *(p.name for p in params if not p.rank and p.by_pointer),
            *(("dropout_seed",) if seed else ()),
        ),
        numbers=any(not p.rank and p.by_pointer for p in params),
        requires_grad=" or ".join(f"{x}.requires_grad" for x in ("q", "k", "v", *pointers)),
        dkdv_arguments=(
            "*by_keys.tiles(q, k, v, d_out)",
            *row_tensors,
            "dk",
            "dv",
            *dkdv_sums,
            *seed,
            *query_tests,
            "*plain",
            "*known.strides",
        ),
        dkdv_options=(
            "**sizes",
            "BQ=BQ",
            "BK=BK",
            "TMA=tma",
            *flags,
            "num_warps=warps",
            "num_stages=stages",
        ),
        dq_arguments=(
            "*by_rows.tiles(q, k, v, d_out)",
            *row_tensors,
            "dq",
            *dq_sums,
            *seed,
            *key_tests,
            "*plain",
            "*known.strides",
        ),
        dq_options=(
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
        returned_gradients="".join(f", {by_name.get(p.name, zeros(p, i))}" for i, p in enumerate(params)),
        check_lines=checks,
        convert_lines=conversions(params, "_number({}, q.device, known is not None)"),
        param_docs=tuple(param_doc(plan, p) for p in params),
        learned=" or ".join(f"{g.param}.requires_grad" for g in gradients),
        signs_scale=plan.facts.scale_positive,
        needs_math=any("math." in line for line in checks),
        reads_scalars=any("_readable(" in line for line in checks),
        facts=torch_facts(plan, params, host_names(attention, params)),
        lists=lists or walks or dkdv_walks or dq_walks,
        portable_dq=" and ".join(
            [
                *(["by_keys.kernel is not _hopper_backward_kernel"] if whole else []),
                *(["by_rows.kernel is not _hopper_dq_kernel"] if apart else []),
            ]
        ),
    )


def deciding(p: ParamView) -> tuple[str, ...]:
    """What of a scalar decides which compiled kernel is launched: its address, or how many bits it needs."""
    if p.rank or p.type == "bool":
        return ()
    return (f"{p.name}.data_ptr() % 16",) if p.by_pointer else (f"-(2**31) <= {p.name} < 2**31", f"{p.name} < 2**63")
