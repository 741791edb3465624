"""Whether a contender is right, and what stands in a table in place of a time.

Takes tensors for an error, and a contender's record, as the JSON has it, for the rest. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

TOLERANCE = 2e-2
"""Of `||x - truth|| / ||truth||` in half precision: operands carry 8 or 11 bits; right kernels land below 8e-3."""
_FORWARD = ("out", "lse")


def error(found: Any, pairs: Iterable[tuple[Any, Any]]) -> float:
    """The largest `||x - truth|| / ||truth||` of the pairs (x, truth), which are parts of the tensor `found`; nan where
    any element of `found` is a NaN, inf where one is infinite."""
    if bool(found.isnan().any()):
        return math.nan
    if bool(found.isinf().any()):
        return math.inf
    return max(float((x.detach().float() - truth).norm() / truth.norm().clamp(min=1e-30)) for x, truth in pairs)


def right(errors: Mapping[str, float], direction: str = "backward") -> bool:
    """Whether what a direction gives is within the tolerance: of the forward pass, out and lse; of the backward pass
    these and the gradients, since it goes on from them."""
    return all(float(e) <= TOLERANCE for e in _of(errors, direction))  # so that nan fails


def word(record: Mapping[str, Any], direction: str) -> str:
    """Why a contender has no time in this direction: `NaN`, `wrong`, `failed`, or `n/a` where it can't compute the
    cell. Empty where it has a time, or where nothing was measured."""
    if direction in record:
        return ""
    if "failure" in record:
        return "failed"
    if "unable" in record:
        return "n/a"
    if right(record["errors"], direction):
        return ""
    return "NaN" if any(math.isnan(float(e)) for e in _of(record["errors"], direction)) else "wrong"


def reason(record: Mapping[str, Any]) -> str:
    """A footnote's line for a contender that lacks a time: who refused or failed says why, who was wrong has its
    errors. Empty for one that is right."""
    for key, said in (("unable", "not measured"), ("failure", "FAILED")):
        if key in record:
            return f"{said}: {str(record[key]).strip().splitlines()[0]}"
    if record["right"]:
        return ""
    return "WRONG: relative errors " + ", ".join(f"{name} {float(e):.1e}" for name, e in record["errors"].items())


def troubled(record: Mapping[str, Any]) -> bool:
    """Whether a contender failed or was wrong; one that can't compute a cell is no trouble."""
    return "failure" in record or not record.get("right", True)


def _of(errors: Mapping[str, float], direction: str) -> list[float]:
    return [e for name, e in errors.items() if direction == "backward" or name in _FORWARD]
