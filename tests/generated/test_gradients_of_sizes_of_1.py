"""Params passed with sizes of 1: gradients have those sizes, and no larger tensor is made on the way."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import attngen
from attngen import reference

B, H, HKV, S, D = 2, 4, 2, 18, 16
TARGETS = ("triton", "torch")
PAIRS = "attention biased\nparam bias: f32[B, Hq, Sq, Sk]\nscore = qk * scale + bias[b, h, q, k]\nmask = causal\n"
SHAPES = ((1, 1, S, S), (1, H, S, S), (B, 1, S, S))


@functools.cache
def compiled(text: str, target: str = "triton") -> attngen.Kernel:
    return attngen.compile(text, target, tile=(16, 16))


def operands() -> tuple[torch.Tensor, ...]:
    """q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(B, h, S, D, generator=generator) for h in (H, HKV, HKV, H))


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).requires_grad_()


def gradient(kernel: attngen.Kernel, bias: torch.Tensor, leaf: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
    q, k, v, d_out = operands()
    out = kernel(q.requires_grad_(), k, v, bias=bias, **more)
    return torch.autograd.grad((out * d_out).sum(), bias if leaf is None else leaf)[0]


def by_hand(bias: torch.Tensor) -> torch.Tensor:
    """The gradient of a bias of any shape that broadcasts to pairs, by autograd through plain softmax in float64."""
    q, k, v, d_out = (x.double() for x in operands())
    k, v = (x.repeat_interleave(H // HKV, 1) for x in (k, v))
    exact = bias.detach().double().requires_grad_()
    scores = q @ k.mT * D**-0.5 + exact
    weights = scores.masked_fill(~torch.ones(S, S, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    return torch.autograd.grad((weights @ v * d_out).sum(), exact)[0]


class Largest(TorchDispatchMode):
    """Notes how many bytes the largest tensor has that is made."""

    nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(x, torch.Tensor):
                self.nbytes = max(self.nbytes, x.untyped_storage().nbytes())
        return made


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Watches a kernel's own backward pass."""
    seen = Largest()

    def watched(kernel: attngen.Kernel) -> Largest:
        module: Any = sys.modules[kernel.function.__module__]
        owner: Any = module._attention if kernel.target == "triton" else module
        name = "gradients" if kernel.target == "triton" else "_backward"
        plain = getattr(owner, name)

        def own(*arguments: Any) -> Any:
            with seen:
                return plain(*arguments)

        monkeypatch.setattr(owner, name, own)
        return seen

    return watched


# ---------------------------------------------------------------- an element for each pair


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_a_bias_of_pairs(target: str, shape: tuple[int, ...], largest: Any) -> None:
    kernel = compiled(PAIRS, target)
    seen, bias = largest(kernel), random(*shape)
    found = gradient(kernel, bias)
    assert found.shape == bias.shape
    torch.testing.assert_close(found.double(), by_hand(bias), rtol=1e-5, atol=1e-5)
    assert torch.equal(gradient(kernel, bias), found)  # the layout is known by now; bits repeat
    assert 4 * B * H * S * D <= seen.nbytes < 4 * B * H * S * S  # no larger than q


@pytest.mark.parametrize("shape", [(1, H, 1, S), (B, 1, S, 1)], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_one_row_or_column_for_all(target: str, shape: tuple[int, ...]) -> None:
    bias = random(*shape)
    found = gradient(compiled(PAIRS, target), bias)
    torch.testing.assert_close(found.double(), by_hand(bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_a_tensor_that_was_expanded_before(target: str) -> None:
    """Its gradient has the expanded shape, since somebody may ask for it."""
    bias = random(1, 1, S, S)
    whole = bias.expand(B, H, S, S)
    kernel = compiled(PAIRS, target)
    torch.testing.assert_close(gradient(kernel, whole).double(), by_hand(whole), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient(kernel, whole, bias).double(), by_hand(bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [1, HKV])
def test_heads_of_keys(heads: int) -> None:
    text = PAIRS.replace("Hq, Sq", "Hkv, Sq").replace("b, h, q", "b, hkv, q")
    bias = random(B, heads, S, S)
    wanted = by_hand(bias.repeat_interleave(H // heads, 1)).unflatten(1, (heads, -1)).sum(2)
    found = gradient(compiled(text), bias)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, B, 5])
def test_a_dim_that_the_call_names(size: int) -> None:
    """It may be longer than the batch, and the elements behind it have gradients of 0. Of one batch it may be 1."""
    text = PAIRS.replace("[B, Hq, Sq", "[n, Sq").replace("b, h, q", "b, q")
    q, k, v, d_out = (x[:size] for x in operands())
    bias = random(size, S, S)
    out = compiled(text)(q, k, v, bias=bias)
    (found,) = torch.autograd.grad((out * d_out).sum(), bias)
    wanted = by_hand(bias[:B, None].expand(B, 1, S, S)).sum(1)
    assert not found[B:].any()
    torch.testing.assert_close(found[: len(q)].double(), wanted[: len(q)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_a_fact_is_checked_of_every_element(target: str) -> None:
    kernel = compiled(PAIRS.replace("Sk]", "Sk] where bias < 9.0"), target)
    bias = random(1, 1, S, S)
    found = gradient(kernel, bias, check=True)
    assert torch.equal(found, gradient(kernel, bias)) and found.shape == bias.shape
    with pytest.raises(attngen.UsageError, match=r"bias\[0, 0, 0, 0\] is .*, and must satisfy bias < 9"):
        gradient(kernel, (bias.abs() + 9.0), check=True)


def test_two_leaves_and_other_layouts() -> None:
    """A param that is read in two ways, and whose memory lies the other way round."""
    text = PAIRS.replace("bias[b, h, q, k]", "bias[b, h, q, k] + 2.0 * bias[b, h, k, q]") + "assume Sq == Sk\n"
    bias = random(1, 1, S, S)
    wanted = by_hand(bias.mT + 2.0 * bias)
    found = gradient(compiled(text), bias.mT, bias)
    torch.testing.assert_close(found.double(), (wanted + 2.0 * wanted.mT).mT, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- other params

OTHERS = """attention others
param slope: f32[B, Hq]
param row: f32[B, Hq, Sq]
param column: f32[B, Sk]
param table: f32[Hq, 9]
param grid: f32[B, Hq, 7]
param level: f32[Hkv]
param keep: bool[B, Sk]
let of_rows = row[b, h, q] * column[b, k] - slope[b, h] * abs(q - k)
score = qk * scale + of_rows + relative_bias(table, 4) + grid[b, h, q * k % 7] + level[hkv]
mask = keep[b, k]
"""


@pytest.mark.parametrize("ones", [("B",), ("Hq", "Hkv"), ("B", "Hq", "Hkv", "S", 9, 7)], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_every_way_to_sum(target: str, ones: tuple[Any, ...]) -> None:
    """Sums of heads, rows, columns, diagonals and chosen cells against the reference's gradients in float64."""
    kernel = compiled(OTHERS, target)
    sizes: dict[Any, int] = {"B": B, "Hq": H, "Hkv": HKV, "S": S, 9: 9, 7: 7} | dict.fromkeys(ones, 1)
    shapes = {
        "slope": ("B", "Hq"), "row": ("B", "Hq", "S"), "column": ("B", "S"), "table": ("Hq", 9), "grid": ("B", "Hq", 7),
        "level": ("Hkv",),
    }  # fmt: skip
    params = {name: random(*(sizes[d] for d in shape)) for name, shape in shapes.items()}
    keep = torch.arange(S)[None].expand(sizes["B"], -1) != 3
    q, k, v, d_out = operands()
    first, out = (kernel(q, k, v, **params, keep=keep) for _ in range(2))
    assert torch.equal(first, out)
    found = torch.autograd.grad((out * d_out).sum(), list(params.values()))
    given = {name: x.detach().numpy() for name, x in params.items()} | {"keep": keep.numpy()}
    wanted = reference.gradients(kernel.spec, q.numpy(), k.numpy(), v.numpy(), d_out.numpy(), params=given).params
    for (name, x), mine in zip(params.items(), found, strict=True):
        assert mine.shape == x.shape
        assert np.allclose(mine.numpy(), wanted[name], rtol=1e-4, atol=1e-4), name


# ---------------------------------------------------------------- transforms


def test_fake_tensors() -> None:
    kernel = compiled(PAIRS)
    with FakeTensorMode():
        q, k, v = (torch.empty(B, h, S, D) for h in (H, HKV, HKV))
        bias = torch.empty(1, 1, S, S, requires_grad=True)
        (found,) = torch.autograd.grad(kernel(q, k, v, bias=bias).sum(), bias)
        assert found.shape == bias.shape


@pytest.mark.parametrize("target", TARGETS)
def test_many_biases_at_once(target: str) -> None:
    kernel = compiled(PAIRS, target)
    q, k, v, d_out = operands()
    biases = random(2, 1, 1, S, S).detach()

    def loss(bias: torch.Tensor) -> torch.Tensor:
        return (kernel(q, k, v, bias=bias) * d_out).sum()

    found = torch.func.vmap(torch.func.grad(loss))(biases)
    wanted = torch.stack([by_hand(bias) for bias in biases])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
