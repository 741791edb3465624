"""FlexAttention's functions on the card, by `flex_attention`, beside PyTorch's own and a dense formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import attngen

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

S = 700


def drawn(D: int = 64) -> tuple[torch.Tensor, ...]:
    g = torch.Generator("cuda").manual_seed(D)
    shapes = ((2, 4, S, D), (2, 4, S, D), (2, 4, S, D))
    return tuple(torch.randn(s, generator=g, device="cuda").bfloat16().requires_grad_() for s in shapes)


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found.float() - wanted.float()).norm() <= 2e-2 * wanted.float().norm())


def documents() -> Any:
    ids = (torch.arange(S, device="cuda") // 200).expand(2, S).contiguous()
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (ids[b, q_idx] == ids[b, kv_idx])


def dilated(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx >= kv_idx) & ((q_idx - kv_idx) % 4 == 0)


@pytest.mark.parametrize("mask", ["documents", "dilated"])
def test_results_and_gradients_are_those_of_pytorch(mask: str) -> None:
    mask_mod = documents() if mask == "documents" else dilated
    slope = torch.rand(4, device="cuda")

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - slope[h] * (q_idx - kv_idx)

    q, k, v = drawn()
    block_mask = create_block_mask(mask_mod, 2, None, S, S, device="cuda")
    theirs = torch.compile(flex_attention)(q, k, v, score_mod=score_mod, block_mask=block_mask)
    mine = attngen.flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask)
    d_out = torch.randn_like(mine)
    assert close(mine, theirs)
    for a, b in zip(*(torch.autograd.grad(x, (q, k, v), d_out) for x in (mine, theirs)), strict=True):
        assert close(a, b)


def test_a_captured_table_learns() -> None:
    table = torch.randn(4, 257, device="cuda", requires_grad=True)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[h, (q_idx - kv_idx).clamp(-128, 128) + 128]

    q, k, v = drawn()
    out = attngen.flex_attention(q, k, v, score_mod=score_mod)
    at = torch.arange(S, device="cuda")
    wide = [x.detach().float().requires_grad_() for x in (q, k, v)]
    bias = table[:, (at[:, None] - at).clamp(-128, 128) + 128]
    wanted = torch.softmax(wide[0] @ wide[1].mT / 8 + bias, -1) @ wide[2]
    d_out = torch.randn_like(out)
    mine = torch.autograd.grad(out, (q, k, v, table), d_out)
    for a, b in zip(mine, torch.autograd.grad(wanted, (*wide, table), d_out.float()), strict=True):
        assert close(a, b)
