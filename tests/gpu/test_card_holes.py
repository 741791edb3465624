"""Masks with holes between tiles, on the card: results and gradients beside a dense formula in float32, the same bits
in every run, and no read outside of a tensor where lengths are no multiples of tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attngen

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

Draw = Callable[[int, torch.Generator], dict[str, torch.Tensor]]
Allowed = Callable[..., torch.Tensor]


def tree(S: int, g: torch.Generator) -> dict[str, torch.Tensor]:
    """A prompt and branches of a hundred tokens behind it; in the second row of the batch, tokens lie in any order."""
    at = torch.arange(S, device="cuda")
    first = torch.where(at < 300, 0, 1 + (at - 300) // 100)
    last = torch.where(at < 300, 1000, first + 1)
    order = torch.randperm(S, generator=g, device="cuda")
    return {n: torch.stack([x, x[order]]).int() for n, x in (("first", first), ("last", last))}


def image(S: int, g: torch.Generator) -> dict[str, torch.Tensor]:
    at = torch.arange(S, device="cuda")
    tile, inside = at // 128, at % 128
    return {"x": (tile % 4 * 16 + inside % 16).int(), "y": (tile // 4 * 8 + inside // 16).int()}


def lists(S: int, g: torch.Generator) -> dict[str, torch.Tensor]:
    count = -(-S // 64)
    return {"chosen": torch.randint(-1, count, (2, count, 3), generator=g, device="cuda").int()}


def blocks(S: int, g: torch.Generator) -> dict[str, torch.Tensor]:
    count = -(-S // 64)
    return {"chosen": torch.rand(2, count, count, generator=g, device="cuda") < 0.2}


CASES: dict[str, tuple[str, Draw, Allowed]] = {
    "tree": (
        "param first: int[B, Sk]\nparam last: int[B, Sk]\n"
        "mask = causal and first[b, k] <= first[b, q] < last[b, k]\nassume Sq == Sk\n",
        tree,
        lambda b, h, q, k, first, last: (k <= q) & (first[b, k] <= first[b, q]) & (first[b, q] < last[b, k]),
    ),
    "image": (
        "param x: int[Sk]\nparam y: int[Sk]\nmask = abs(x[q] - x[k]) <= 4 and abs(y[q] - y[k]) <= 4\nassume Sq == Sk\n",
        image,
        lambda b, h, q, k, x, y: ((x[q] - x[k]).abs() <= 4) & ((y[q] - y[k]).abs() <= 4),
    ),
    "blocks": (
        "param chosen: bool[Hkv, rows, columns]\nmask = causal and chosen[hkv, q // 64, k // 64]\nassume Sq == Sk\n",
        blocks,
        lambda b, h, q, k, chosen: (k <= q) & chosen[h // 2, q // 64, k // 64],
    ),
    "lists": (
        "param chosen: int[Hkv, rows, some]\nmask = causal and k // 64 in chosen[hkv, q // 64]\nassume Sq == Sk\n",
        lists,
        lambda b, h, q, k, chosen: (k <= q) & (chosen[h // 2, q // 64] == (k // 64)[..., None]).any(-1),
    ),
    "fourth": (
        "mask = causal and distance % 4 == 0\n",
        lambda S, g: {},
        lambda b, h, q, k: (k <= q) & ((q - k) % 4 == 0),
    ),
}


def check(name: str, sizes: tuple[int, int], D: int, dtype: torch.dtype, arch: str = "auto") -> None:
    text, draw, allowed = CASES[name]
    kernel = attngen.compile(f"attention holes\n{text}", arch=arch)
    Sq, Sk = sizes
    g = torch.Generator("cuda").manual_seed(Sk + D)
    params: dict[str, Any] = draw(Sk, g)
    shapes = ((2, 4, Sq, D), (2, 2, Sk, D), (2, 2, Sk, D))
    q, k, v = (torch.randn(s, generator=g, device="cuda").to(dtype).requires_grad_() for s in shapes)
    d_out = torch.randn(shapes[0], generator=g, device="cuda").to(dtype)

    b, h = torch.arange(2, device="cuda")[:, None, None, None], torch.arange(4, device="cuda")[:, None, None]
    row, column = torch.arange(Sk - Sq, Sk, device="cuda")[:, None], torch.arange(Sk, device="cuda")
    seen = allowed(b, h, row, column[None, :], **params).expand(2, 4, Sq, Sk)
    wide = [x.detach().float().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(2, 1) for x in wide[1:])
    scores = (wide[0] @ keys.mT / D**0.5).masked_fill(~seen, float("-inf"))
    right = torch.softmax(scores, -1).nan_to_num() @ values
    gradients = torch.autograd.grad(right, wide, d_out.float())

    found: list[tuple[torch.Tensor, ...]] = []
    for _ in range(3):
        poison = [torch.full_like(d_out, float("nan")) for _ in range(4)]  # what no kernel writes is then seen
        del poison
        out = kernel(q, k, v, **params)
        found.append((out, *torch.autograd.grad(out, (q, k, v), d_out)))
    for mine, theirs in zip(found[0], (right, *gradients), strict=True):
        assert (mine.float() - theirs).norm() <= 1e-2 * theirs.norm()
    for again in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], again, strict=True))


@pytest.mark.parametrize("D", [64, 128, 256])
@pytest.mark.parametrize("S", [1500, 2048])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, S: int, D: int) -> None:
    check(name, (S, S), D, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_portable_kernels(name: str, dtype: torch.dtype) -> None:
    check(name, (1500, 1500), 64, dtype, "portable")


@pytest.mark.parametrize("Sq", [1, 7, 100])
def test_short_queries(Sq: int) -> None:
    """One list of all queries, whose places are shared out among programs."""
    check("fourth", (Sq, 5000), 128, torch.bfloat16)
