"""`check=True` names the argument that says where sequences begin and end, and the messages' hints lead out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attngen
from attngen.errors import UsageError

LENGTHS = [4, 5]
OFFSETS = torch.nn.functional.pad(torch.tensor(LENGTHS).cumsum(0), (1, 0)).int()


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values).int()


def kernel() -> attngen.Kernel:
    return attngen.compile("attention c\nmask = causal\n", arch="portable", tile=(16, 16))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"cu_seqlens_q": ints(4, 5)},
            "c: cu_seqlens_q[0] is 4, and must be 0: sequences begin at offsets, which are sums of lengths, "
            "torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()",
        ),
        (
            {"cu_seqlens_q": ints(0, 5, 12)},
            "c: cu_seqlens_q[2] is 12, and must be from 0 to 9, the number of rows of q",
        ),
        (
            {"cu_seqlens_q": ints(0, -1, 9)},
            "c: cu_seqlens_q[1] is -1, and must be from 0 to 9, the number of rows of q",
        ),
        ({"cu_seqlens_q": ints(0, 9, 4)}, "c: cu_seqlens_q[2] is 4, and must not be less than cu_seqlens_q[1], 9"),
        (
            {"cu_seqlens_q": OFFSETS, "cu_seqlens_k": ints(2, 4, 7)},
            "c: cu_seqlens_k[0] is 2, and must be 0: sequences begin at offsets, which are sums of lengths, "
            "torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()",
        ),
        (
            {"cu_seqlens_q": OFFSETS, "short": True},
            "c: cu_seqlens_q[2] is 9, and must be from 0 to 7, the number of rows of k",
        ),
        (
            {"cu_seqlens_q": OFFSETS, "seqused_k": ints(4, 6)},
            "c: seqused_k[1] must be between 0 and the sequence's 5 keys, not 6",
        ),
        (
            {"cu_seqlens_q": OFFSETS, "max_seqlen_q": 4},
            "c: max_seqlen_q must be an int of at least 5, the rows of q in the longest sequence, not 4",
        ),
        (
            {"cu_seqlens_q": OFFSETS, "max_seqlen_k": -1},
            "c: max_seqlen_k must be an int of at least 5, the rows of k in the longest sequence, not -1",
        ),
    ],
)
def test_packed(given: dict[str, Any], message: str) -> None:
    x = torch.randn(9, 2, 16)
    keys = x[:7] if given.pop("short", False) else x
    with pytest.raises(UsageError) as raised:
        kernel().varlen(x, keys, keys, **given, check=True)
    assert str(raised.value) == message


def test_what_is_right_passes() -> None:
    """The hint's offsets, hints that are too long, fewer used keys than the hint, and rows behind the last sequence."""
    x = torch.randn(11, 2, 16, generator=torch.Generator().manual_seed(0))
    more = {"max_seqlen_q": 7, "max_seqlen_k": torch.tensor(4), "seqused_k": ints(4, 4)}
    out = kernel().varlen(x, x, x, cu_seqlens_q=OFFSETS, **more, check=True)
    for first, last, keys in ((0, 4, 4), (4, 9, 8)):
        q, k = (x[first:end].transpose(0, 1) for end in (last, keys))
        rows, columns = torch.arange(last - first), torch.arange(keys - first)
        allowed = columns <= rows[:, None] + len(columns) - len(rows)
        right = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=allowed)
        right = torch.where(allowed.any(1)[:, None], right, 0.0)
        torch.testing.assert_close(out[first:last].transpose(0, 1), right)
    assert not out[9:].any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"q_stop": ints(5, 12)}, "c: q_stop[1] is 12, and must be from 0 to 9, the number of rows of q"),
        ({"k_stop": ints(12, 5)}, "c: k_stop[0] is 12, and must be from 0 to 9, the number of rows of k"),
        ({"k_start": ints(0, -3)}, "c: k_start[1] is -3, and must be from 0 to 9, the number of rows of k"),
        ({"q_start": ints(10, 0)}, "c: q_start[0] is 10, and must be from 0 to 9, the number of rows of q"),
        ({"k_start": ints(5, 0), "k_stop": ints(4, 9)}, "c: k_stop[0] is 4, and must not be less than k_start[0], 5"),
    ],
)
def test_lengths(given: dict[str, torch.Tensor], message: str) -> None:
    x = torch.randn(2, 2, 9, 16)
    with pytest.raises(UsageError) as raised:
        kernel()(x, x, x, **given, check=True)
    assert str(raised.value) == message
