"""Results lie in memory as q, k and v do, and gradients are read wherever they lie."""

from __future__ import annotations

import pytest
import torch

import attngen

SPECS = {
    "plain": "attention plain\nmask = causal\n",
    "biased": "attention biased\nparam slope: f32[Hq]\nscore = qk * scale - slope[h] * abs(q - k)\n",
    "summed": "attention summed\nscore = qk * scale\nnormalizer = sigmoid\n",
}


def _inputs(spec: str, *, inside: bool) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """q, k, v of different lengths, heads inside rows or rows inside heads."""
    drawn = torch.Generator().manual_seed(7)
    shapes = ((2, 4, 21, 16), (2, 2, 37, 16), (2, 2, 37, 24))
    tensors = [torch.randn(shape, generator=drawn) for shape in shapes]
    if inside:
        tensors = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    params = {"slope": torch.rand(4, generator=drawn)} if spec == "biased" else {}
    return tuple(x.requires_grad_() for x in tensors), params


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("d_inside", [True, False])
def test_results_lie_as_the_arguments_do(spec: str, inside: bool, d_inside: bool) -> None:
    kernel = attngen.compile(SPECS[spec])
    (q, k, v), params = _inputs(spec, inside=inside)
    out = kernel(q, k, v, **params)
    d_out = torch.randn(2, 21, 4, 24).transpose(1, 2) if d_inside else torch.randn(2, 4, 21, 24)
    gradients = torch.autograd.grad(out, (q, k, v), d_out)
    for x in (out, *gradients):
        assert (x.transpose(1, 2) if inside else x).is_contiguous()
    plain = attngen.compile(SPECS[spec], "torch")
    q2, k2, v2 = (x.detach().double().contiguous().requires_grad_() for x in (q, k, v))
    wanted = plain(q2.float(), k2.float(), v2.float(), **params)
    torch.testing.assert_close(out, wanted, atol=2e-5, rtol=2e-5)
    for found, right in zip(gradients, torch.autograd.grad(wanted, (q2, k2, v2), d_out.contiguous()), strict=True):
        torch.testing.assert_close(found, right.float(), atol=5e-5, rtol=5e-5)


def test_short_queries_and_expanded_gradients() -> None:
    """The kernels that cut the keys into pieces; a gradient whose strides are 0."""
    kernel = attngen.compile(SPECS["plain"])
    q = torch.randn(1, 2, 4, 16).transpose(1, 2).requires_grad_()  # (1, 4, 2, 16)
    k, v = (torch.randn(1, 600, 2, 16).transpose(1, 2).requires_grad_() for _ in "kv")
    out = kernel(q, k, v)
    assert out.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(out.detach(), torch.tensor(kernel.reference(q, k, v)).float(), atol=2e-5, rtol=2e-5)
    out.sum().backward()
    assert q.grad is not None and q.grad.transpose(1, 2).is_contiguous()


def test_the_compiler_is_told_the_layout() -> None:
    kernel = attngen.compile(SPECS["plain"])
    (q, k, v), _ = _inputs("plain", inside=True)
    found = torch.compile(lambda *x: kernel(*x), fullgraph=True, backend="aot_eager")(q, k, v)
    assert found.stride() == kernel(q, k, v).stride()
    found.sum().backward()
    for x in (q, k, v):
        assert x.grad is not None and x.grad.transpose(1, 2).is_contiguous()
