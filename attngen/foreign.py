"""What to write in place of the keywords of other libraries' attention: PyTorch's, JAX's, FlashAttention's.

Takes the name of an unknown argument, gives the sentence that a message ends with. Knows no kernel.
"""

from __future__ import annotations

_CAUSAL = "write `mask = causal` in the specification"
_MASK = (
    "declare it in the specification, `param keep: bool[B, Hq, Sq, Sk]` with `mask = keep[b, h, q, k]`, or "
    "`param bias: f32[B, Hq, Sq, Sk]` with `score = qk * scale + bias[b, h, q, k]`, and give it by that name"
)
_SCALE = "the argument is called `scale`"
_WINDOW = "write `mask = sliding_window(w)` in the specification, with w keys that count the query's own"
_HEADS = "leave it out: k and v may always have fewer heads than q"
_PACKED = "packed sequences are for kernel.varlen(q, k, v, cu_seqlens_q=…), with q (rows, heads, head dim)"
_LENGTHS = "give k_stop, or kernel.varlen the argument seqused_k"

ANSWERS = {
    "is_causal": _CAUSAL,
    "causal": _CAUSAL,
    "attn_mask": _MASK,
    "attention_mask": _MASK,
    "mask": _MASK,
    "bias": _MASK,
    "attn_bias": _MASK,
    "softmax_scale": _SCALE,
    "sm_scale": _SCALE,
    "dropout_p": "write `dropout = 0.1` in the specification, or `param p: f32 where 0 <= p < 1` and `dropout = p`",
    "window_size": _WINDOW,
    "local_window_size": _WINDOW,
    "enable_gqa": _HEADS,
    "softcap": "write `score = softcap(qk * scale, 50.0)` in the specification",
    "alibi_slopes": "declare `param slope: f32[Hq]` and write `score = qk * scale + alibi(slope)` in the specification",
    "block_mask": "write the mask in the specification: the kernel finds the tiles that it needs",
    "score_mod": "write the score in the specification",
    "cu_seqlens_q": _PACKED,
    "cu_seqlens_k": _PACKED,
    "cu_seq_q": _PACKED,
    "cu_seq_k": _PACKED,
    "max_seqlen_q": _PACKED,
    "max_seqlen_k": _PACKED,
    "seqused_k": _LENGTHS,
    "key_value_seq_lengths": _LENGTHS,
}
"""By the name of the argument."""


def answer(argument: str) -> str:
    """The end of a message about an argument that a kernel does not have; empty where nothing is known of it."""
    found = ANSWERS.get(argument)
    return f": {found}" if found else ""
