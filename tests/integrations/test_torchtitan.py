"""The module for torchtitan equals its attention's dense formula, document by document."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
import torch
from integrations.models import assert_close
from torch import Tensor

from attngen.errors import UsageError
from attngen.integrations.torchtitan import VarlenAttention

TARGET = "triton"
DOCUMENTS = (5, 9, 6)


class VarlenMetadata(NamedTuple):
    cu_seq_q: Tensor
    cu_seq_k: Tensor
    max_q: int
    max_k: int


def metadata() -> VarlenMetadata:
    offsets = torch.tensor([0, 5, 14, 20], dtype=torch.int32)
    return VarlenMetadata(offsets, offsets, max(DOCUMENTS), max(DOCUMENTS))


def operands(**options: Any) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(20, heads, 16, generator=generator, **options) for heads in (4, 2, 2))
    return q, k, v


def dense(
    q: Tensor, k: Tensor, v: Tensor, window: tuple[int, int], slope: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output (T, H, D) and lse (T, H): scores of each document in float64, keys and values repeated to H heads."""
    outs, lses = [], []
    for one in zip(*(x.double().split(DOCUMENTS) for x in (q, k, v)), strict=True):
        query, key, value = (x.transpose(0, 1) for x in one)
        key, value = (x.repeat_interleave(2, 0) for x in (key, value))
        ahead = torch.arange(query.shape[1]) - torch.arange(query.shape[1])[:, None]
        scores = query @ key.mT / 4
        if slope is not None:
            scores = scores - slope.double()[:, None, None] * ahead.abs()
        before, after = (100 if limit == -1 else limit for limit in window)
        scores = scores.masked_fill((ahead < -before) | (ahead > after), -torch.inf)
        outs.append((scores.softmax(-1) @ value).transpose(0, 1))
        lses.append(scores.logsumexp(-1).T)
    return torch.cat(outs), torch.cat(lses)


@pytest.mark.parametrize("window", [(-1, 0), (-1, -1), (3, 0), (3, 3), (3, 1), (-1, 2)])
def test_windows(window: tuple[int, int]) -> None:
    attention = VarlenAttention(window_size=window, target=TARGET)
    q, k, v = operands(requires_grad=True)
    out = attention(q, k, v, attention_metadata=metadata(), enable_gqa=True)
    expected = dense(q, k, v, window)[0]
    assert_close(out.double(), expected)
    gradient = torch.randn(out.shape)
    ours = torch.autograd.grad(out, (q, k, v), gradient)
    for mine, theirs in zip(ours, torch.autograd.grad(expected, (q, k, v), gradient.double()), strict=True):
        assert_close(mine, theirs)


def test_out_transform_gets_lse_by_token_and_head() -> None:
    """torchtitan's gpt-oss weighs the output by the sigmoid of lse minus the sink."""
    attention = VarlenAttention(target=TARGET)
    sink = torch.randn(4)

    def transform(out: Tensor, lse: Tensor) -> Tensor:
        return out * torch.sigmoid(lse - sink)[..., None].to(out.dtype)

    q, k, v = operands()
    found = attention(q, k, v, attention_masks=metadata(), out_transform=transform)
    assert_close(found.double(), transform(*dense(q, k, v, (-1, 0))))


def test_a_spec_of_ones_own_with_a_trained_param() -> None:
    text = "attention titan_alibi\nparam slope: f32[Hq]\nscore = qk * scale + alibi(slope)\nmask = causal\n"
    slope = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.1, 0.0]))
    attention = VarlenAttention(text, {"slope": slope}, target=TARGET)
    assert list(dict(attention.named_parameters())) == ["slope"]
    q, k, v = operands()
    expected = dense(q, k, v, (-1, 0), slope)[0]
    out = attention(q, k, v, attention_metadata=metadata())
    assert_close(out.double(), expected)
    (ours,) = torch.autograd.grad(out.square().sum(), slope)
    (theirs,) = torch.autograd.grad(expected.square().sum(), slope)
    assert_close(ours, theirs)


def test_rows_of_torchtitan_0_3() -> None:
    """That release passes (B, L, N, H), whose results come so. The metadata counts the tokens of all rows."""
    attention = VarlenAttention(target=TARGET)
    q, k, v = operands(requires_grad=True)
    rows = [x.unflatten(0, (2, 10)) for x in (q, k, v)]
    out = attention(*rows, attention_masks=metadata(), enable_gqa=True)
    expected, lse = dense(q, k, v, (-1, 0))
    assert out.shape == (2, 10, 4, 16)
    assert_close(out.flatten(0, 1).double(), expected)
    pairs = zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, expected)), strict=True)
    for ours, theirs in pairs:
        assert_close(ours, theirs)
    found = attention(*rows, attention_masks=metadata(), out_transform=lambda out, lse: out * 0 + lse[..., None])
    assert_close(found[..., 0].flatten(0, 1).double(), lse)


@pytest.mark.parametrize(("name", "shape"), [("k", (20, 32)), ("v", (2, 10, 2, 16)), ("q", (20, 4, 4, 4, 1))])
def test_tensors_of_other_dimensions(name: str, shape: tuple[int, ...]) -> None:
    given = dict(zip("qkv", operands(), strict=True)) | {name: torch.zeros(shape)}
    wanted = r"\(T, N, H\): tokens, heads, head dim, or \(B, L, N, H\) as q, k and v alike"
    with pytest.raises(UsageError, match=rf"{name} has shape {re.escape(str(shape))}, and must be {wanted}"):
        VarlenAttention(target=TARGET)(*given.values(), attention_masks=metadata())


def test_mistakes() -> None:
    attention = VarlenAttention(target=TARGET)
    with pytest.raises(UsageError, match="attention_metadata is missing"):
        attention(*operands())
    with pytest.raises(UsageError, match=r"window_size \(3, -2\) must be two ints"):
        VarlenAttention(window_size=(3, -2))
    with pytest.raises(UsageError, match="write the window into the spec"):
        VarlenAttention("attention a\nmask = causal\n", window_size=(3, 0))
    with pytest.raises(UsageError, match="has no param 'slope'; it has none"):
        VarlenAttention(params={"slope": 1.0}, target=TARGET)
    for window in (5, None, "ab", (1.5, 0)):
        with pytest.raises(UsageError, match=r"window_size .* must be"):
            VarlenAttention(window_size=window)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="params must be a dict of the spec's params by name, not int"):
        VarlenAttention("attention a\nmask = causal\n", params=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must have cu_seq_q, cu_seq_k, max_q and max_k, and is a int"):
        attention(*operands(), attention_metadata=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="kernels of target triton, not torch"):
        VarlenAttention(target="torch")
    named = "attention a\nparam forward: f32[Hq]\nscore = qk * scale + forward[h]\n"
    with pytest.raises(UsageError, match=r"param 'forward': an nn\.Module has an attribute of that name"):
        VarlenAttention(named, {"forward": torch.nn.Parameter(torch.zeros(2))}, target=TARGET)
