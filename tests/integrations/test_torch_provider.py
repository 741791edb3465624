"""attngen in the place of PyTorch's flash attention: the operators that SDPA and varlen_attn call, on a CPU, where
PyTorch has none of them. `tests/gpu/test_card_sdpa.py` has the calls themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn, varlen_attn_out

from attngen.errors import UsageError
from attngen.integrations import torch_provider

aten: Any = torch.ops.aten
OFFSETS = torch.tensor([0, 10, 10, 24], dtype=torch.int32)


@pytest.fixture(autouse=True)
def active() -> Iterator[torch_provider.Handle]:
    handle = torch_provider.activate("CPU")
    yield handle
    handle.remove()


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float16) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g).to(dtype).requires_grad_() for s in shapes]


def dense(q: Tensor, k: Tensor, v: Tensor, before: int = -1, after: int = -1) -> Tensor:
    """(B, H, S, D), the last query at the last key."""
    q, k, v = (x.float() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    distance = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])
    allowed = torch.ones_like(distance, dtype=torch.bool)
    allowed &= (distance <= before) if before >= 0 else allowed
    allowed &= (-distance <= after) if after >= 0 else allowed
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num() @ v


def same(found: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(found.float(), wanted, rtol=2e-3, atol=2e-3)
    d_out = torch.randn_like(found)
    mine, theirs = (torch.autograd.grad(x, leaves, d_out.to(x.dtype)) for x in (found, wanted))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("Sq", "Sk", "kv_heads"), [(24, 24, 2), (7, 30, 4)])
def test_scaled_dot_product_attention(causal: bool, Sq: int, Sk: int, kv_heads: int) -> None:
    leaves = drawn((2, 4, Sq, 16), (2, kv_heads, Sk, 16), (2, kv_heads, Sk, 16))
    out, lse, *_ = aten._scaled_dot_product_flash_attention(*leaves, 0.0, causal)
    same(out, dense(*leaves, after=0 if causal else -1), leaves)
    assert lse.shape == (2, 4, Sq) and lse.dtype == torch.float32 and not lse.requires_grad


def test_results_have_the_strides_that_pytorch_promises() -> None:
    q, k, v = (x.detach().transpose(1, 2) for x in drawn((2, 24, 4, 16), (2, 24, 4, 16), (2, 24, 4, 16)))
    meta = [x.to("meta") for x in (q, k, v)]
    found, promised = (aten._scaled_dot_product_flash_attention(*x, 0.0, True) for x in ((q, k, v), meta))
    assert found[0].stride() == promised[0].stride() and found[1].shape == promised[1].shape
    own = (found[0], *(q, k, v), *found[:2], *found[2:6], 0.0, True, *found[6:8])
    gradients = aten._scaled_dot_product_flash_attention_backward(*own)
    assert [g.stride() for g in gradients] == [x.stride() for x in (q, k, v)]


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (5, 0), (3, 2)])
def test_packed_sequences(window: tuple[int, int]) -> None:
    leaves = drawn((24, 4, 16), (24, 2, 16), (24, 2, 16))
    found = varlen_attn(*leaves, OFFSETS, OFFSETS, 14, 14, window_size=window, enable_gqa=True)
    assert isinstance(found, Tensor)
    parts: list[Tensor] = []
    for first, stop in zip(OFFSETS[:-1].tolist(), OFFSETS[1:].tolist(), strict=True):
        if first < stop:
            own = (x[first:stop].transpose(0, 1)[None] for x in leaves)
            parts.append(dense(*own, *window)[0].transpose(0, 1))
    same(found, torch.cat(parts), leaves)


def test_keys_that_are_used_and_a_place_for_results() -> None:
    q, k, v = (x.detach() for x in drawn((24, 4, 16), (24, 4, 16), (24, 4, 16)))
    used, place = torch.tensor([4, 0, 9], dtype=torch.int32), torch.full_like(q, 7.0)
    varlen_attn_out(place, q, k, v, OFFSETS, OFFSETS, 14, 14, seqused_k=used)
    wanted = dense(*(x[:n].transpose(0, 1)[None] for x, n in ((q, 10), (k, 4), (v, 4))))[0].transpose(0, 1)
    torch.testing.assert_close(place[:10].float(), wanted, rtol=2e-3, atol=2e-3)


def test_batches_of_rows() -> None:
    leaves = drawn((2, 24, 4, 16), (2, 24, 4, 16), (2, 24, 4, 16))
    out, *_ = aten._flash_attention_forward(*leaves, None, None, 24, 24, 0.0, True, False)
    same(out, dense(*(x.transpose(1, 2) for x in leaves), after=0).transpose(1, 2), leaves)


@pytest.mark.parametrize("asked", [{"dropout_p": 0.1}, {"dtype": torch.float32}])
def test_what_kernels_do_not_have_goes_to_those_of_before(asked: dict[str, Any]) -> None:
    """Here there are none."""
    q, k, v = (x.detach() for x in drawn(*[(1, 2, 8, 16)] * 3, dtype=asked.pop("dtype", torch.float16)))
    with pytest.raises(UsageError, match="aten::_scaled_dot_product_flash_attention asks for what"):
        aten._scaled_dot_product_flash_attention(q, k, v, **asked)


def test_those_of_before_are_called_and_come_back(active: torch_provider.Handle) -> None:
    active.remove()
    own: Any = torch.library.Library("aten", "IMPL")
    own.impl("_scaled_dot_product_flash_attention", lambda q, *_, **__: (q, q, q, q, 1, 2, q, q, q), "CPU")
    q, k, v = (x.detach() for x in drawn(*[(1, 2, 8, 16)] * 3))
    handle = torch_provider.activate("CPU")
    assert aten._scaled_dot_product_flash_attention(q, k, v, 0.5)[4:6] == (1, 2)
    assert aten._scaled_dot_product_flash_attention(q, k, v)[4:6] == (8, 8)
    handle.remove()
    handle.remove()
    assert aten._scaled_dot_product_flash_attention(q, k, v)[4:6] == (1, 2)
    own._destroy()


def test_pytorch_activates_it_by_name() -> None:
    attention: Any = torch.nn.attention
    torch_provider.register()
    attention.activate_flash_attention_impl("ATTNGEN")
    assert attention.current_flash_attention_impl() == "ATTNGEN"
    attention.restore_flash_attention_impl()
    assert attention.current_flash_attention_impl() is None


def test_other_calls_are_as_before() -> None:
    q, k, v = (x.detach() for x in drawn(*[(1, 2, 8, 16)] * 3, dtype=torch.float32))
    torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v), dense(q, k, v))
