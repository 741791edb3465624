"""Gradients that packed tensors and lengths lack: what the message says trains, and gives the formula's gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attngen
from attngen.errors import UsageError

HEADS, GROUPS, WIDTH = 4, 2, 16
LENGTHS = (5, 8)
TOTAL = sum(LENGTHS)
OFFSETS = torch.tensor([0, 5, 13]).int()
ADVICE = {
    "distance": "put the sequences in one row, q (1, Hq, T, D), with `same_document(ids)` in the mask, and call the "
    "dense function",
    "position": "put the sequences in one row, q (1, Hq, T, D), with `same_document(ids)` in the mask, and with "
    "positions from a param, at[b, q] and at[b, k], and call the dense function",
    "two sides": "declare it twice, [B, Sq] for what is read at q, and pass the same tensor for both",
    "groups": "declare it [B, Hq, Sk], read it at h, and pass x.repeat_interleave(Hq // Hkv, dim=-2)",
}
LACKING = {
    "distance": ("x: f32[Hq, N]", "x[h, clamp(q - k + 3, 0, N - 1)]", (HEADS, 7)),
    "position": ("x: f32[Hq, N]", "x[h, clamp(k, 0, N - 1)]", (HEADS, 8)),
    "two sides": ("x: f32[B, Sk]", "x[b, q] * x[b, k]", (TOTAL,)),
    "groups": ("x: f32[B, Hkv, Sk]", "x[b, hkv, k]", (GROUPS, TOTAL)),
}


def drawn(case: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    numbers = torch.Generator().manual_seed(0)
    operands = [torch.randn(TOTAL, h, WIDTH, generator=numbers) for h in (HEADS, GROUPS, GROUPS)]
    return operands, torch.randn(LACKING[case][2], generator=numbers).requires_grad_()


def by_formula(case: str) -> torch.Tensor:
    """The gradient of the sum of squares, sequence by sequence, in float64."""
    operands, x = drawn(case)
    x = x.detach().double().requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for first, end in zip(OFFSETS.tolist(), OFFSETS.tolist()[1:], strict=False):
        q, k, v = (y[first:end].double().transpose(0, 1) for y in operands)
        k, v = (y.repeat_interleave(HEADS // GROUPS, 0) for y in (k, v))
        at = torch.arange(end - first)
        bias: dict[str, Callable[[], torch.Tensor]] = {
            "distance": lambda at=at: x[:, (at[:, None] - at + 3).clamp(0, 6)],
            "position": lambda at=at: x[:, at.clamp(0, 7)][:, None],
            "two sides": lambda a=first, e=end: x[a:e, None] * x[a:e],
            "groups": lambda a=first, e=end: x[:, a:e].repeat_interleave(HEADS // GROUPS, 0)[:, None],
        }
        score = q @ k.transpose(1, 2) / WIDTH**0.5 + bias[case]()
        loss = loss + (score.softmax(-1) @ v).square().sum()
    return torch.autograd.grad(loss, x)[0].float()


def compiled(declared: str, added: str, mask: str = "true") -> attngen.Kernel:
    text = f"attention a\n{declared}\nscore = qk * scale + {added}\nmask = {mask}\n"
    return attngen.compile(text, arch="portable", tile=(16, 16))


def followed(case: str) -> torch.Tensor:
    """The gradient, computed in the way that the message says."""
    operands, x = drawn(case)
    declared, added, _ = LACKING[case]
    ids = torch.tensor([0] * LENGTHS[0] + [1] * LENGTHS[1]).int()
    row = [y.transpose(0, 1)[None] for y in operands]
    match case:
        case "distance":
            kernel = compiled(f"param ids: int[B, Sk]\nparam {declared}", added, "same_document(ids)")
            out = kernel(*row, ids=ids[None], x=x)
        case "position":
            at = torch.cat([torch.arange(n) for n in LENGTHS]).int()
            params = f"param ids: int[B, Sk]\nparam at: int[B, Sk]\nparam {declared}"
            kernel = compiled(params, added.replace("(k,", "(at[b, k],"), "same_document(ids)")
            out = kernel(*row, ids=ids[None], at=at[None], x=x)
        case "two sides":
            kernel = compiled("param x: f32[B, Sk]\nparam y: f32[B, Sq]", "y[b, q] * x[b, k]")
            out = kernel.varlen(*operands, x=x, y=x, cu_seqlens_q=OFFSETS)
        case _:
            kernel = compiled("param x: f32[B, Hq, Sk]", "x[b, h, k]")
            out = kernel.varlen(*operands, x=x.repeat_interleave(HEADS // GROUPS, dim=-2), cu_seqlens_q=OFFSETS)
    return torch.autograd.grad(out.square().sum(), x)[0]


@pytest.mark.parametrize("case", LACKING)
def test_the_advice_for_packed_sequences_trains(case: str) -> None:
    operands, x = drawn(case)
    kernel = compiled(f"param {LACKING[case][0]}", LACKING[case][1])
    with pytest.raises(UsageError) as raised:
        kernel.varlen(*operands, x=x, cu_seqlens_q=OFFSETS)
    assert str(raised.value) == (
        f"a: the gradient of x is summed over pairs or chosen cells, which is done for dense tensors only: "
        f"{ADVICE[case]}; if x needs no gradient, pass x.detach(), or declare it `fixed`"
    )
    torch.testing.assert_close(followed(case), by_formula(case), rtol=1e-4, atol=1e-4)


def test_the_advice_for_lengths_trains() -> None:
    operands, x = drawn("distance")
    declared, added, _ = LACKING["distance"]
    batch: list[Any] = [torch.zeros(2, y.shape[1], max(LENGTHS), WIDTH) for y in operands]
    for b, (first, end) in enumerate(((0, 5), (5, 13))):
        for whole, y in zip(batch, operands, strict=True):
            whole[b, :, : end - first] = y[first:end].transpose(0, 1)
    n = torch.tensor(LENGTHS).int()
    advice = "write the lengths into the mask, `k < n\\[b\\]`, and call the dense function"
    with pytest.raises(UsageError, match=advice):
        compiled(f"param {declared}", added)(*batch, x=x, q_stop=n, k_stop=n)
    out = compiled(f"param n: int[B]\nparam {declared}", added, "k < n[b]")(*batch, x=x, n=n)
    loss = sum(out[b, :, :length].square().sum() for b, length in enumerate(LENGTHS))
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], by_formula("distance"), rtol=1e-4, atol=1e-4)
