"""`torch.compile(fullgraph=True)` where values of tensors say which tiles meet: the torch target says that it breaks
the graph, as it does without `fullgraph`; the Triton target takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import attngen

SPECS = {
    "documents": "attention documents\nparam ids: int[B, Sk]\nmask = causal and same_document(ids)\n",
    "lengths": "attention lengths\nparam ids: int[B]\nmask = k < ids[b]\n",
    "by_head": "attention by_head\nparam ids: int[B]\nmask = causal and q - k < (h + 1) * 8 and ids[b] > 0\n",
}
IDS = {
    "documents": torch.arange(40)[None].expand(2, 40) // 13,
    "lengths": torch.tensor([3, 20]),
    "by_head": torch.tensor([1, 2]),
}


def allowed(name: str) -> torch.Tensor:
    q, k = torch.arange(40)[:, None], torch.arange(40)[None]
    ids = IDS[name]
    match name:
        case "documents":
            return ((k <= q) & (ids[:, :, None] == ids[:, None]))[:, None]
        case "lengths":
            return (k < ids[:, None, None, None]).expand(2, 2, 40, 40)
        case _:
            return ((k <= q) & (q - k < (torch.arange(2)[:, None, None] + 1) * 8))[None]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def whole(kernel: Callable[..., torch.Tensor], name: str, fullgraph: bool) -> Callable[..., torch.Tensor]:
    return torch.compile(lambda *x: kernel(*x, ids=IDS[name]) * 2, fullgraph=fullgraph, backend="aot_eager")


@pytest.mark.parametrize("name", SPECS)
def test_the_torch_target_breaks_the_graph_and_says_so_where_it_must_not(name: str) -> None:
    kernel = attngen.compile(SPECS[name], "torch", tile=(16, 16))
    torch.manual_seed(0)
    x = [torch.randn(2, 2, 40, 16, requires_grad=True) for _ in range(3)]
    truth = torch.nn.functional.scaled_dot_product_attention(*x, attn_mask=allowed(name))
    said = (
        f"{name}: values of tensors say which tiles meet, and the host reads them; "
        "with fullgraph=True, compile the spec for target triton"
    )
    with pytest.raises(torch._dynamo.exc.Unsupported, match=said):
        whole(kernel, name, True)(*x)
    torch._dynamo.reset()
    found = whole(kernel, name, False)(*x)
    torch.testing.assert_close(found, 2 * truth, atol=2e-5, rtol=0)
    gradients = torch.autograd.grad(found.sum(), x)
    for a, b in zip(gradients, torch.autograd.grad(2 * truth.sum(), x), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", SPECS)
def test_the_message_leads_to_a_kernel_that_has_one_graph(name: str) -> None:
    kernel = attngen.compile(SPECS[name], "triton", tile=(16, 16))
    x = [torch.randn(2, 2, 40, 16) for _ in range(3)]
    truth = torch.nn.functional.scaled_dot_product_attention(*x, attn_mask=allowed(name))
    torch.testing.assert_close(whole(kernel, name, True)(*x), 2 * truth, atol=2e-5, rtol=0)


def test_a_mask_of_positions_alone_has_one_graph_on_the_torch_target() -> None:
    kernel = attngen.compile("attention plain\nmask = causal\n", "torch", tile=(16, 16))
    x = [torch.randn(1, 2, 40, 16) for _ in range(3)]
    found = torch.compile(lambda *y: kernel(*y), fullgraph=True, backend="aot_eager")(*x)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True))
    assert "graph_break" not in kernel.source
