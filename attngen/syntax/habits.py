"""Names of other attention libraries, and what the language has in their place.

Takes nothing, returns `INSTEAD`, which messages quote.
"""

from __future__ import annotations

from types import MappingProxyType

INSTEAD = MappingProxyType(
    {
        # FlexAttention's arguments of a score_mod or mask_mod
        "q_idx": "q",
        "kv_idx": "k",
        "k_idx": "k",
        "batch": "b",
        "head": "h",
        "kv_head": "hkv",
        "q_len": "Sq",
        "kv_len": "Sk",
        "score": "qk * scale",
        # functions of PyTorch, JAX and NumPy
        "where": "A if C else B",
        "select": "A if C else B",
        "logical_and": "A and B",
        "logical_or": "A or B",
        "logical_not": "not A",
        "pow": "A ** B",
        "power": "A ** B",
        "remainder": "A % B",
        "floor_divide": "A // B",
        "maximum": "max(A, B)",
        "minimum": "min(A, B)",
        "absolute": "abs(A)",
        "log_sigmoid": "logsigmoid(A)",
        "log1p": "log(1 + A)",
    }
)
"""By the name elsewhere: the expression to write."""
