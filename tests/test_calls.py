"""What people expect of a call: numbers of any kind, in any place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attngen
from attngen import UsageError

WINDOWED = (
    "attention windowed\nparam window: int\nparam slope: f32\n"
    "score = qk * scale - slope * float(q - k)\nmask = 0 <= q - k < window\n"
)
FACT = "attention shorter\nparam window: int where window > 0\nmask = 0 <= q - k < window\n"
SEVEN = {
    "numpy, 64 bits": np.int64(7),
    "numpy, 8 bits": np.uint8(7),
    "64 bits": torch.tensor(7),
    "32 bits": torch.tensor(7, dtype=torch.int32),
    "8 bits": torch.tensor(7, dtype=torch.uint8),
}


def operands(length: int = 40, batch: int = 1, heads: int = 2) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    shape = batch, heads, length, 16
    return tuple(torch.randn(shape, generator=generator).requires_grad_() for _ in range(3))


def results(kernel: attngen.Kernel, leaves: tuple[torch.Tensor, ...], **params: Any) -> tuple[torch.Tensor, ...]:
    out = kernel(*leaves, **params)
    return out, *torch.autograd.grad(out.square().sum(), leaves)


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("given", SEVEN.values(), ids=SEVEN)
@pytest.mark.parametrize("target", ["triton", "torch"])
def test_an_int_may_be_numpys_or_a_tensor(target: str, given: Any) -> None:
    leaves = operands()
    for text, more in ((WINDOWED, {"slope": np.float32(0.1)}), (FACT, {})):
        kernel = attngen.compile(text, target, tile=(16, 16))
        plain = {name: float(x) for name, x in more.items()}
        wanted, found = results(kernel, leaves, window=7, **plain), results(kernel, leaves, window=given, **more)
        assert all(map(torch.equal, wanted, found))


def test_an_int_in_a_tensor_is_read_by_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host, which would wait for the device, asks for its value only where the file states a fact about it."""
    asked: list[object] = []
    for name in ("__bool__", "__int__", "__index__", "item", "tolist"):
        own = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x, own=own: (asked.append(x), own(x))[1])
    leaves, seven = operands(), torch.tensor(7)
    results(attngen.compile(WINDOWED, tile=(16, 16)), leaves, window=seven, slope=0.1)
    assert not [x for x in asked if x is seven]
    results(attngen.compile(FACT, tile=(16, 16)), leaves, window=seven)
    assert [x for x in asked if x is seven]


@pytest.mark.parametrize("given", [7, torch.tensor(7)], ids=["an int", "a tensor"])
def test_an_int_in_a_graph(given: Any) -> None:
    kernel, leaves = attngen.compile(WINDOWED, tile=(16, 16)), operands()
    traced = torch.compile(lambda q, k, v, n: kernel(q, k, v, window=n, slope=0.1), fullgraph=True, backend="aot_eager")
    out = traced(*leaves, given)
    found = (out, *torch.autograd.grad(out.square().sum(), leaves))
    assert all(map(torch.equal, found, results(kernel, leaves, window=7, slope=0.1)))


def test_an_int_that_has_to_be_checked_is_no_tensor_in_a_graph() -> None:
    kernel, leaves = attngen.compile(FACT, tile=(16, 16)), operands()
    traced = torch.compile(lambda q, k, v, n: kernel(q, k, v, window=n), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="window must be an int here, not a tensor"):
        traced(*leaves, torch.tensor(7))
    assert torch.equal(traced(*leaves, 7), kernel(*leaves, window=7))


@pytest.mark.parametrize("wrong", [7.0, True, "7", None, np.float32(7), torch.tensor(7.0), torch.tensor([7])])
@pytest.mark.parametrize("target", ["triton", "torch"])
def test_what_is_no_int_is_refused(target: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match="window must be an int or a 0-dimensional int tensor, not "):
        attngen.compile(WINDOWED, target, tile=(16, 16))(*operands(), window=wrong, slope=0.1)


def test_a_fact_about_an_int_is_checked_in_a_tensor() -> None:
    with pytest.raises(UsageError, match="window must satisfy 0 < window, not 0"):
        attngen.compile(FACT, tile=(16, 16))(*operands(), window=torch.tensor(0))


def test_a_tensor_that_changed_before_the_backward_pass_is_refused() -> None:
    leaves, window = operands(), torch.tensor(7)
    out = attngen.compile(WINDOWED, tile=(16, 16))(*leaves, window=window, slope=0.1)
    window += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
