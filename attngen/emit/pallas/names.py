"""Names of generated Pallas modules that nothing from a spec may have."""

from __future__ import annotations

import functools

from attngen.emit.text.reserved import BUILTINS, PARTS, POSITIONS, RUNS, template_names, test_names

_LINES = frozenset({
    "delta", "delta_ref", "den_ref", "drop", "holds", "inv_den", "inv_keep", "key_kinds_ref", "key_map_ref", "kind",
    "kv_head", "listed", "lse_ref", "query_map_ref", "row_lse", "row_ref", "scale_ref", "seed_ref", "threshold",
    "turned", "wrong",
})  # fmt: skip
"""What the lines bind that are not in templates: those of kernels' code, of rows and of checks."""


@functools.cache
def reserved() -> frozenset[str]:
    """`tests/unit/emit` holds this against generated modules."""
    ends = ("", "_any_lo", "_any_hi", "_all_lo", "_all_hi", "_ref")
    names = template_names("pallas") | BUILTINS | POSITIONS
    return names | RUNS | PARTS | _LINES | test_names("", "key_", "query_", ends=ends)
