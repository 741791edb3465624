"""Names of generated JAX modules that nothing from a spec may have."""

from __future__ import annotations

import functools

from attngen.emit.text.reserved import BUILTINS, PARTS, POSITIONS, RUNS, template_names, test_names

_LINES = frozenset({
    "deltas", "drop", "holds", "inv_den", "inv_dens", "inv_keep", "key_lists", "listed", "query_lists", "row_lses",
    "row_ref", "threshold", "turned", "wrong",
})  # fmt: skip
"""What the lines bind that are not in templates: those of a pair of tiles, of rows and of checks."""


@functools.cache
def reserved() -> frozenset[str]:
    """`tests/unit/emit` holds this against generated modules."""
    ends = ("", "s", "_any_lo", "_any_hi", "_all_lo", "_all_hi")
    names = template_names("jax") | BUILTINS | POSITIONS
    return names | RUNS | PARTS | _LINES | test_names("", "key_", "query_", ends=ends)
