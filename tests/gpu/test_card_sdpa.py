"""PyTorch's own calls by attngen's kernels: scaled_dot_product_attention and varlen_attn on the card."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attngen.integrations import torch_provider

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@contextlib.contextmanager
def active() -> Iterator[None]:
    handle = torch_provider.activate()
    try:
        yield
    finally:
        handle.remove()


def drawn(kv_heads: int = 4, D: int = 64, S: int = 700) -> list[Tensor]:
    g = torch.Generator("cuda").manual_seed(D)
    shapes = ((2, S, 4, D), (2, S, kv_heads, D), (2, S, kv_heads, D))
    made = (torch.randn(s, generator=g, device="cuda").bfloat16().transpose(1, 2) for s in shapes)
    return [x.requires_grad_() for x in made]


def close(a: Tensor, b: Tensor) -> bool:
    return bool((a.float() - b.float()).norm() <= 2e-2 * b.float().norm())


@pytest.mark.parametrize("D", [64, 128, 80])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_results_and_gradients_are_those_of_flash_attention(causal: bool, D: int, kv_heads: int) -> None:
    leaves = drawn(kv_heads, D)

    def step() -> tuple[Tensor, ...]:
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=kv_heads < 4)
        return (out, *torch.autograd.grad(out, leaves, torch.ones_like(out)))

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        theirs = step()
        with active(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as ran:
            mine = step()
        again = step()
    assert any("hopper" in e.key or "forward_kernel" in e.key for e in ran.key_averages())
    assert all(close(a, b) and a.stride() == b.stride() for a, b in zip(mine, theirs, strict=True))
    # The forward pass is theirs again, to the bit; the order of the sums in their dQ is another in each run.
    assert torch.equal(again[0], theirs[0]) and all(close(a, b) for a, b in zip(again, theirs, strict=True))


def test_dropout_is_pytorch_s_own() -> None:
    leaves = drawn()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found: list[tuple[Tensor, ...]] = []
        for scope in (contextlib.nullcontext, active):
            with scope():
                torch.manual_seed(0)
                out = F.scaled_dot_product_attention(*leaves, dropout_p=0.3)
                found.append((out, *torch.autograd.grad(out.sum(), leaves)))
    assert torch.equal(found[0][0], found[1][0]) and all(close(a, b) for a, b in zip(*found, strict=True))


def test_a_layer_trains_and_compiles() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True, device="cuda", dtype=torch.bfloat16)
    x, weights = torch.randn(2, 2, 300, 256, device="cuda", dtype=torch.bfloat16)
    exact = copy.deepcopy(layer).float()

    def gradients(attend: Callable[[Tensor], Tensor], of: nn.Module) -> tuple[Tensor, ...]:
        out = attend(x.to(next(of.parameters()).dtype))
        return torch.autograd.grad((out * weights).float().sum(), [*of.parameters()])

    def errors(found: tuple[Tensor, ...]) -> list[float]:
        return [float((a.float() - b).norm() / b.norm()) for a, b in zip(found, true, strict=True)]

    true = gradients(exact, exact)
    theirs = errors(gradients(layer, layer))
    with active():
        for attend in (layer, torch.compile(layer, fullgraph=True)):
            mine = errors(gradients(attend, layer))
            assert all(a <= 1.5 * b + 2e-3 for a, b in zip(mine, theirs, strict=True)), (mine, theirs)


def test_packed_rows() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    ends = torch.tensor([0, 130, 130, 700], device="cuda", dtype=torch.int32)
    leaves = [x[0].transpose(0, 1).contiguous().detach().requires_grad_() for x in drawn()]

    def step() -> tuple[Tensor, ...]:
        out = varlen.varlen_attn(*leaves, ends, ends, 570, 570, window_size=(-1, 0))
        return (out, *torch.autograd.grad(out, leaves, torch.ones_like(out)))

    theirs = step()
    with active():
        mine = step()
    assert all(close(a, b) for a, b in zip(mine, theirs, strict=True))
