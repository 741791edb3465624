"""Names of other attention libraries and of papers, and what the language has in their place.

Takes nothing, returns `INSTEAD`, which messages quote, and a fix for a name that stands for many pairs at once.
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
        "q_pos": "q",
        "k_pos": "k",
        "kv_pos": "k",
        "seqlen": "Sk",
        "seq_len": "Sk",
        "num_heads": "Hq",
        "n_heads": "Hq",
        "num_kv_heads": "Hkv",
        "n_kv_heads": "Hkv",
        "batch_size": "B",
        "bsz": "B",
        "head_dim": "D",
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
        "matmul": "qk",
        "einsum": "qk",
        "dot": "qk",
    }
)
"""By the name elsewhere: the expression to write."""

_OF_WEIGHTS = frozenset({"softmax", "log_softmax"})
_OF_MANY = frozenset({
    "all", "amax", "amin", "any", "argmax", "argmin", "argsort", "cummax", "cumprod", "cumsum", "logsumexp", "mean",
    "median", "norm", "prod", "roll", "sort", "std", "sum", "topk", "tril", "triu", "var",
})  # fmt: skip


def many_pairs_fix(name: str) -> str:
    """What to write for a function over positions, which no score of one pair has; empty for any other name."""
    if name in _OF_WEIGHTS:
        return f"a score is of one pair: the normalizer takes the {name.removeprefix('log_')}, so write its argument"
    if name in _OF_MANY:
        param = f"{name}s"
        computed = f"compute it before the call, declare `param {param}: f32[B, Sk]`, and read {param}[b, k]"
        return f"a score is of one pair: {computed}"
    return ""
