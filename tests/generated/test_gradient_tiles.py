"""Gradients summed over pairs by kernels of their own: a data test's answers are of these kernels' tiles."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

import attngen

DENSE = """attention documents_biased
param ids: int[B, Sk]
param bias: f32[Hq, Sq, Sk]
assume Sq == Sk
score = qk * scale + bias[h, q, k]
mask = same_document(ids)
"""
DIAGONAL = """attention documents_by_distance
param ids: int[B, Sk]
param bias: f32[Hq, 9]
assume Sq == Sk
score = qk * scale + relative_bias(bias, 4)
mask = same_document(ids)
"""


def module_of(kernel: attngen.Kernel) -> ModuleType:
    return sys.modules[kernel.function.__module__]


def bias_gradient(kernel: attngen.Kernel, S: int, bias: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    q, k, v, d_out = (torch.randn(2, 2, S, 16, generator=generator) for _ in range(4))
    bias = bias.clone().requires_grad_()
    (kernel(q, k, v, ids=documents(S), bias=bias) * d_out).sum().backward()
    assert bias.grad is not None
    return bias.grad


def documents(S: int) -> torch.Tensor:
    """Of 9 and of 17 tokens."""
    return torch.stack([torch.arange(S) // 9, torch.arange(S) // 17]).int()


@pytest.mark.parametrize("tile", [(16, 32), (32, 16)])
def test_square_tiles_along_diagonals(tile: tuple[int, int]) -> None:
    torch.testing.assert_close(by_distance(tile), by_distance((16, 16)), rtol=0, atol=1e-4)


@functools.cache
def by_distance(tile: tuple[int, int]) -> torch.Tensor:
    bias = torch.randn(2, 9, generator=torch.Generator().manual_seed(1))
    return bias_gradient(attngen.compile(DIAGONAL, tile=tile), 75, bias)


def test_where_a_chip_has_its_own_backward_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tests no data in tiles of the kernel for the bias. dQ, dK and dV are left out."""
    S = 150
    kernel = attngen.compile(DENSE)
    module = module_of(kernel)
    prepared = module._attention.backward_launches
    bias = torch.randn(2, S, S, generator=torch.Generator().manual_seed(1))
    portable = bias_gradient(kernel, S, bias)

    def as_on_that_chip(*arguments: Any) -> tuple[Any, ...]:
        first, *others = prepared(*arguments)
        assert [x.kernel.__name__ for x in others] == [
            "_query_test0_kernel", "_dkdv_kernel", "_key_test0_kernel", "_dq_kernel"
        ]  # fmt: skip
        return (first,)

    monkeypatch.setattr(module._attention, "backward_launches", as_on_that_chip)
    module._attention.ready.clear()
    assert torch.equal(bias_gradient(kernel, S, bias), portable)
    module._attention.ready.clear()
