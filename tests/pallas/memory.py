"""Generated Pallas functions in the TPU's interpreter with its memory checks on.

It simulates the memories of a TPU and every copy between them. Memory that nobody has written holds NaN, a read or
write outside a buffer raises, grid dimensions that are declared parallel go in random order over several cores, and
accesses that nothing orders are reported on standard output as `RACE DETECTED`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from jax.experimental.pallas import tpu as pltpu

from attngen.runtime.loader import execute

RACE = "RACE DETECTED"


class Form(StrEnum):
    """How a kernel takes its work: a head resident in vector memory, tiles brought by the grid, or, with a head
    resident, dQ in a kernel of its own, where dQ, dK and dV could come from one.
    """

    RESIDENT = "resident"
    STREAMED = "streamed"
    APART = "apart"


def checked(source: str, name: str, form: Form, cores: int = 2) -> Callable[..., Any]:
    """The function `name` of a generated file, its kernels checked, on a chip of so many cores."""
    module: Any = execute(source, name)
    module.INTERPRET = pltpu.InterpretParams(
        detect_races=True,
        uninitialized_memory="nan",
        out_of_bounds_reads="raise",
        num_cores_or_threads=cores,
        random_seed=5,
    )
    if form is Form.STREAMED:
        module.VMEM = {**module.VMEM, "cpu": 0}
    if form is Form.APART:
        configured = module._configured
        module._configured = lambda *a: configured(*a)._replace(fused=False)
    return getattr(module, name)


def fuses(source: str) -> bool:
    """Whether a generated file has a kernel for dQ, dK and dV at once."""
    return "fused: bool" in source
