"""Functions that people have for FlexAttention are read: each spec computes what the function computes."""

from __future__ import annotations

import itertools

import pytest
import torch
from flex.functions import HEADS, LENGTH, MLA, gym
from flex.read_back import SIZES, functions_compute, spec_computes
from torch.nn.attention.flex_attention import create_block_mask, flex_attention as flex

import attngen
from attngen import UsageError
from attngen.flex.spec import read

FUNCTIONS = gym()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_spec_computes_what_the_function_computes(name: str) -> None:
    qk = torch.randn(2, HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1))
    score, mask = spec_computes(read(*FUNCTIONS[name], "one", {}), SIZES, qk)
    wanted, allowed = functions_compute(*FUNCTIONS[name], SIZES, qk)
    assert (mask == allowed.numpy()).all() and 0 < mask.sum() <= mask.size
    torch.testing.assert_close(torch.tensor(score), wanted.detach().double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients_are_those_of_flex_attention(name: str) -> None:
    score_mod, mask_mod = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, HEADS, LENGTH, 16, generator=generator).requires_grad_() for _ in range(3))
    masks = {} if mask_mod is None else {"block_mask": create_block_mask(mask_mod, 2, HEADS, LENGTH, LENGTH, "cpu", 16)}
    out, lse = attngen.flex_attention(q, k, v, score_mod, **masks, return_lse=True)
    given = [x.detach() for x in (q, k, v)]  # which has no backward pass on CPUs
    wanted, wanted_lse = flex(*given, score_mod, **masks, return_lse=True)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-4, atol=1e-5)
    score, allowed = functions_compute(score_mod, mask_mod, SIZES, q @ k.mT / 4)
    dense = torch.softmax(score.masked_fill(~allowed, float("-inf")), -1).nan_to_num() @ v
    captured = [x for x in (() if score_mod is None else _cells(score_mod)) if x.requires_grad]
    found = torch.autograd.grad(out.square().sum(), [q, k, v, *captured])
    for one, other in zip(found, torch.autograd.grad(dense.square().sum(), [q, k, v, *captured]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def _cells(f: object) -> list[torch.Tensor]:
    cells = [cell.cell_contents for cell in getattr(f, "__closure__", None) or ()]
    parts = itertools.chain.from_iterable(c if isinstance(c, list | tuple) else [c] for c in cells)
    return [x for x in parts if isinstance(x, torch.Tensor) and x.is_floating_point()]


def test_a_product_of_captured_rows_is_refused_by_its_line() -> None:
    with pytest.raises(UsageError, match=r"latent_attention\.py:\d+: dot: .*append them to query and key"):
        attngen.from_flex(MLA)
