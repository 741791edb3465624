"""What stands at the top of a Triton module.

Takes the plan, the spec's text and the options, returns a `Header`.
"""

from __future__ import annotations

import hashlib

from attngen.emit.options import Options
from attngen.emit.said import words
from attngen.emit.text.header import Header, header
from attngen.plan.kernel import KernelPlan

OPERATORS = "3"
"""Part of the operators' names, by which PyTorch's compiler keeps from run to run what it compiled: another number
where the arguments change, or the shapes, dtypes or layout of the results."""


def triton_header(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> Header:
    a = plan.attention
    said = words(options, a.consts, a.tile)
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
