"""Names of generated Triton files that nothing from a spec may have."""

from __future__ import annotations

import functools

from attngen.emit.text.reserved import BUILTINS, PARTS, POSITIONS, RUNS, template_names, test_names

_MOST_DIMS = 9
_LINES = frozenset({
    "above", "below", "cell", "cells", "deltas", "distances", "drop", "exists", "exponent", "flat", "holds",
    "inside", "inv_den", "inv_keep", "k_safe", "key_tiles", "largest", "n_full", "n_walked", "pairs",
    "q_safe", "query_tiles", "row_ref", "side", "threshold", "unit", "wrong",
})  # fmt: skip
"""What the lines bind that are not in templates: those of kernels' code, of param gradients and of checks."""


@functools.cache
def reserved() -> frozenset[str]:
    """`tests/unit/emit` holds this against generated modules."""
    ends = ("any_lo", "any_hi", "all_lo", "all_hi", "least", "most", "tile", "least_ptr", "most_ptr")
    return (
        template_names("triton", "gluon")
        | BUILTINS
        | POSITIONS
        | RUNS
        | PARTS
        | _LINES
        | {f"own_{name}" for name in RUNS | PARTS}
        | {f"{name}_{axis}" for name in ("index", "cell_stride") for axis in range(_MOST_DIMS)}
        | test_names("", "key_", "query_", ends=("", "_ptr", *(f"_{end}" for end in ends)))
    )
