"""What people expect of a call: numbers of any kind, in any place."""

from __future__ import annotations

import warnings
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


# ---------------------------------------------------------------- sizes of 1

BIASED = (
    "attention biased\nparam bias: f32[B, Hq, Sq, Sk]\nparam slope: f32[Hq]\nparam keep: bool[B, Sk]\n"
    "score = qk * scale + bias[b, h, q, k] - slope[h] * float(q - k)\nmask = causal and keep[b, k]\n"
)


@pytest.mark.parametrize("target", ["triton", "torch"])
def test_sizes_of_1_are_repeated(target: str) -> None:
    """As if they had been expanded before; gradients are those of what was given, summed in another order."""
    kernel = attngen.compile(BIASED, target, tile=(16, 16))
    q, *_ = operands(20, batch=3)
    _, k, v = operands(20)
    bias, slope = torch.randn(1, 2, 1, 20, requires_grad=True), torch.rand(1, requires_grad=True)
    leaves = (q, k, v, bias, slope)
    keep = torch.arange(20)[None] != 3
    given = {"k": k, "v": v, "bias": bias, "slope": slope, "keep": keep}
    shapes = {"k": (3, 2, 20, 16), "v": (3, 2, 20, 16), "bias": (3, 2, 20, 20), "slope": (2,), "keep": (3, 20)}
    whole = {name: x.expand(shapes[name]) for name, x in given.items()}

    def twice(arguments: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        first, out = (kernel(q, **arguments) for _ in range(2))  # the second time the layout is known
        assert torch.equal(first, out)
        return out, *torch.autograd.grad(out.square().sum(), leaves)

    found, wanted = twice(given), twice(whole)
    assert torch.equal(found[0], wanted[0]) and [x.shape for x in found[1:]] == [x.shape for x in leaves]
    assert all((a - b).abs().max() <= 1e-5 * b.abs().max() for a, b in zip(found[1:], wanted[1:], strict=True))
    exact = kernel.reference(q.detach(), **{name: x.detach() for name, x in whole.items()})
    assert np.abs(found[0].detach().numpy() - exact).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("bias", (2, 2, 20, 20), r"bias must have shape \(B, Hq, Sq, Sk\) = \(3, 2, 20, 20\), not \(2, 2, 20, 20\)"),
        ("slope", (3,), r"slope must have shape \(Hq\) = \(2,\), not \(3,\)"),
        ("k", (2, 2, 20, 16), "k must have q's batch"),
    ],
)
def test_other_sizes_are_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    q, *_ = operands(20, batch=3)
    _, k, v = operands(20)
    given = {
        "q": q,
        "k": k,
        "v": v,
        "bias": torch.zeros(1, 1, 1, 1),
        "slope": torch.zeros(1),
        "keep": torch.ones(1, 1) > 0,
    }
    given[name] = torch.zeros(shape)
    with pytest.raises(UsageError, match=message):
        attngen.compile(BIASED, tile=(16, 16))(**given)


# ---------------------------------------------------------------- autocast, and the order of dimensions


@pytest.mark.parametrize("target", ["triton", "torch"])
def test_autocast_is_as_for_sdpa(target: str) -> None:
    kernel, leaves = attngen.compile("attention plain\nmask = causal\n", target, tile=(16, 16)), operands()
    q, k, v = leaves
    scale = torch.tensor(0.2)

    def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2)
        outs = plain, kernel(q, k, v, scale=scale), kernel(q, k, v, scale=0.2)
        return [(out, *torch.autograd.grad(out.float().square().sum(), leaves)) for out in outs]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        for wanted, *others in (both(q, k, v), both(q.half(), k, v.bfloat16())):
            for found in others:
                assert [x.dtype for x in found] == [x.dtype for x in wanted]
                assert all((a.float() - b.float()).abs().max() < 0.1 for a, b in zip(found, wanted, strict=True))
        whole = torch.compile(lambda q: kernel(q, k, v, scale=0.2), fullgraph=target == "triton", backend="eager")(q)
        assert torch.equal(whole, kernel(q, k, v, scale=0.2)) and whole.dtype == torch.bfloat16
    assert kernel(q, k, v).dtype == torch.float32


def test_heads_behind_lengths_are_warned_of_once() -> None:
    kernel = attngen.compile("attention ordered\nmask = causal\n", tile=(16, 16))
    x = torch.randn(1, 24, 8, 16)  # (batch, length, heads, head dim), which is causal over the heads
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        kernel(x.transpose(1, 2), x.transpose(1, 2), x.transpose(1, 2))
        kernel(x[:, :, :1], x, x)  # a decoding step of many heads
        kernel(x.transpose(1, 2).contiguous(), *(2 * [x.transpose(1, 2).contiguous()]))
        assert not [w for w in seen if "more heads than positions" in str(w.message)]
        for _ in range(2):
            kernel(x, x, x)
    (found,) = (w for w in seen if "more heads than positions" in str(w.message))
    assert found.filename == __file__ and "q.transpose(1, 2)" in str(found.message)


# ---------------------------------------------------------------- sequences


@pytest.mark.parametrize("window", [7, torch.tensor(7)], ids=["an int", "a tensor"])
def test_packed_calls_take_the_same(window: Any) -> None:
    text = WINDOWED.replace("slope: f32", "slope: f32[Hq]").replace("slope *", "slope[h] *")
    kernel, leaves = attngen.compile(text, tile=(16, 16)), operands()
    slope = torch.rand(2)
    offsets = torch.tensor([0, 40], dtype=torch.int32)
    out = kernel(*leaves, window=7, slope=slope)

    def packed(slope: torch.Tensor) -> torch.Tensor:
        rows = (x[0].transpose(0, 1) for x in leaves)
        return kernel.varlen(*rows, cu_seqlens_q=offsets, window=window, slope=slope)

    found = packed(slope)
    assert torch.equal(found.transpose(0, 1)[None], out)
    gradients = (torch.autograd.grad(x.square().sum(), leaves) for x in (out, found))
    assert all(map(torch.equal, *gradients))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert packed(slope).dtype == torch.bfloat16
    with pytest.raises(UsageError, match=r"slope has shape \(1,\): sizes of 1 are not repeated for sequences"):
        packed(slope[:1])
