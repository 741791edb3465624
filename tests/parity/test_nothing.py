"""Params without elements: a size of the file is refused; where a length is 0, no kernel reads beside memory."""

from __future__ import annotations

import pytest
import torch

import attngen
from attngen.errors import UsageError


def drawn(Sq: int, Sk: int) -> tuple[torch.Tensor, ...]:
    r = torch.Generator().manual_seed(0)
    shapes = (1, 2, Sq, 8), (1, 1, Sk, 8), (1, 1, Sk, 8)
    return tuple(torch.randn(shape, generator=r).requires_grad_() for shape in shapes)


@pytest.mark.parametrize("target", ["torch", "triton"])
@pytest.mark.parametrize("index", ["0", "N - 1", "min(k, N - 1)", "k % N"])
def test_a_size_of_the_file_is_at_least_1(index: str, target: str) -> None:
    kernel = attngen.compile(f"attention a\nparam t: f32[N]\nscore = qk * scale + t[{index}]\n", target=target)
    with pytest.raises(UsageError, match=r"a: t must have an element at least along N, not shape \(0,\)"):
        kernel(*drawn(4, 5), t=torch.empty(0))


@pytest.mark.parametrize("target", ["torch", "triton"])
@pytest.mark.parametrize(("length", "Sq", "Sk"), [("Sk", 20, 0), ("Sq", 0, 20), ("Sq", 0, 0)])
def test_where_a_length_is_0_nothing_is_read_beside_a_param(length: str, Sq: int, Sk: int, target: str) -> None:
    """The interpreter of Triton reads addresses as they are: at that of an empty tensor it ends with the process."""
    axis = length[1]
    text = f"attention a\nparam t: f32[{length}]\nscore = qk * scale + k * t[0] * t[{axis}]\n"
    inputs, t = drawn(Sq, Sk), torch.empty(0, requires_grad=True)
    out = attngen.compile(text, target=target)(*inputs, t=t)
    grads = torch.autograd.grad(out.sum(), (*inputs, t))
    assert not out.any() and not any(g.any() for g in grads)
    assert [g.shape for g in grads] == [x.shape for x in (*inputs, t)]
