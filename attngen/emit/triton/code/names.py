"""Names of generated Triton files that nothing from a spec may have."""

from __future__ import annotations

import functools

from attngen.emit.text.reserved import BUILTINS, PARTS, POSITIONS, RUNS, template_names, test_names

_MOST_DIMS = 9
_MOST_BLOCKS = 99
_LINES = frozenset({
    "above", "added", "below", "cell", "cells", "check", "counters", "counts", "d_lse", "delta_ptr", "deltas",
    "distances", "dq_parts", "n_counters", "num_warps", "drop", "exists",
    "exponent", "flat", "holds", "inside", "inv_den", "inv_keep", "k_safe", "key_counts", "key_tiles", "largest",
    "last", "listed", "lists", "n_full", "n_listed", "n_walked", "n_whole",
    "natural_lse", "needed", "num_stages", "own_first", "own_stop", "pairs",
    "precise", "q_safe", "query_counts", "query_tiles", "queue", "row_ref", "scaled_lse", "seed", "seed_ptr",
    "share", "side", "slope_p", "terms_desc", "threshold", "together", "turned", "unit", "usual", "wrong",
    "ALL_BATCHES", "ALL_HEADS", "PIPELINED", "SCHEDULE",
})  # fmt: skip
"""What the lines bind that are not in templates: kernels' code, launches, param gradients and checks."""


@functools.cache
def reserved() -> frozenset[str]:
    """`tests/unit/emit` holds this against generated modules."""
    ends = ("any_lo", "any_hi", "all_lo", "all_hi", "least", "most", "tile", "least_ptr", "most_ptr")
    return (
        template_names("triton")
        | BUILTINS
        | POSITIONS
        | RUNS
        | PARTS
        | _LINES
        | {f"own_{name}" for name in RUNS | PARTS}
        | {
            "cell_strides",
            *(f"index_{axis}" for axis in range(_MOST_DIMS)),
            *(f"block{i}" for i in range(_MOST_BLOCKS)),
        }
        | test_names("", "key_", "query_", ends=("", "_ptr", *(f"_{end}" for end in ends)))
    )
