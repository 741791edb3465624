"""What stands at the top of a Triton module.

Takes the plan, the spec's text and the options, returns a `Header`.
"""

from __future__ import annotations

import hashlib

from attngen.emit.options import Options, TunedGpu
from attngen.emit.text.header import Header, consts, header, tile
from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton
from attngen.plan.kernel import KernelPlan

OPERATORS = "3"
"""Part of the operators' names, by which PyTorch's compiler keeps from run to run what it compiled: another number
where the arguments change, or the shapes, dtypes or layout of the results."""


def _rows(tuned: TunedGpu) -> str:
    """What was chosen of a chip's own kernels, in the options' words."""
    found: list[str] = []
    if tuned.row is not None:
        found.append(f"forward:{_columns(tuned.row.row)}")
    match tuned.backward:
        case BackwardSkeleton():
            found.append(f"backward:{_columns(tuned.backward.row)}")
        case ApartSkeleton(dkdv, dq):
            found += [f"dkdv:{_columns(dkdv.row)}", f"dq:{_columns(dq.row)}"]
        case None:
            found += ["backward:portable"] if tuned.portable else []
    return f"/{tuned.dims[0]}x{tuned.dims[1]}/{'/'.join(found)}" if found else ""


def _columns(row: tuple[int | bool | str, ...]) -> str:
    return "x".join(str(int(x)) if isinstance(x, bool) else str(x) for x in row)


def triton_header(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> Header:
    a = plan.attention
    said = ["target=triton", f"precision={options.precision}", *consts(a), *tile(a.tile)]
    said += [f"arch={options.arch}"] if options.arch != "auto" else []
    said += [f"head_dim={options.head_dim[0]}/{options.head_dim[1]}"] if options.head_dim else []
    said += [f"dtype={options.dtype}"] if options.dtype else []
    said += ["forward"] if options.forward else []
    said += [f"geometry={','.join(options.geometry)}"] if options.geometry != ("dense",) else []
    for t in options.tuned_gpu:
        tuned = "/".join("x".join(map(str, part)) if part else "own" for part in (t.forward, t.dkdv, t.dq))
        said.append(f"tuned={t.chip}/{8 * t.itemsize}/{t.head_block}:{tuned}{_rows(t)}")
    key = hashlib.sha256("\n".join([text, *said, OPERATORS]).encode()).hexdigest()
    passes = "forward" if options.forward else "forward and backward"
    gradients = "without gradients" if options.forward else "differentiable in every float argument"
    return header(
        a.name,
        text,
        title=f"fused attention for GPUs, {passes}, in Triton.",
        summary=f"fused, {gradients}.",
        said=said,
        proof=proof,
        precision=options.precision,
        operator=f"attngen::{a.name}_{key[:12]}",
    )
