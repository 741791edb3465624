"""A call of a generated function goes straight to its kernels, unless somebody looks on: then through the operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attngen
from attngen.runtime.loader import SHARED

SPEC = """attention launched
param slope: f32[Hq]
param window: int where window >= 1
score = qk * scale - slope[h] * (q - k)
mask = 0 <= q - k < window
"""


@pytest.fixture(scope="module")
def kernel() -> attngen.Kernel:
    return attngen.compile(SPEC, tile=(16, 16))


@pytest.fixture
def module(kernel: attngen.Kernel) -> ModuleType:
    return sys.modules[kernel.function.__module__]


def qkv(*, grad: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 20, 16, generator=generator, requires_grad=grad) for _ in range(3)]


class Seen(TorchDispatchMode):
    """The operators of attngen that are called under it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith("attngen"):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_the_operators(kernel: attngen.Kernel) -> None:
    q, k, v = qkv(grad=True)
    with Seen() as seen:
        kernel(q, k, v, slope=torch.rand(2), window=8).sum().backward()
    assert len(seen.names) == 2
    assert all("launched" in name for name in seen.names) and "backward" in seen.names[1]


def test_a_mode_may_come_between(kernel: attngen.Kernel) -> None:
    """What a call that goes around the operator has saved, the backward operator takes."""
    q, k, v = qkv(grad=True)
    given: dict[str, Any] = {"slope": torch.rand(2), "window": 8}
    expected = torch.autograd.grad(kernel(q, k, v, **given).square().sum(), (q, k, v))
    loss = kernel(q, k, v, **given).square().sum()
    with Seen() as seen:
        found = torch.autograd.grad(loss, (q, k, v))
    assert len(seen.names) == 1 and "backward" in seen.names[0]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_plain_call_needs_no_operator(
    kernel: attngen.Kernel, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the operator was called")

    q, k, v = qkv(grad=True)
    slope = torch.rand(2)
    expected = kernel(q, k, v, slope=slope, window=8)
    gradients = torch.autograd.grad(
        module._attention.operator.forward(q, k, v, slope, 8, 0.25, False)[0].square().sum(), (q, k, v)
    )
    monkeypatch.setattr(module._attention.operator, "call", refuse)
    monkeypatch.setattr(module._attention.operator, "differentiate", refuse)
    found = kernel(q, k, v, slope=slope, window=8)
    assert torch.equal(found, expected)
    for a, b in zip(torch.autograd.grad(found.square().sum(), (q, k, v)), gradients, strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        assert torch.equal(kernel(q, k, v, slope=slope, window=8), expected)
    assert not kernel(*qkv(), slope=slope, window=8).requires_grad


def test_a_second_derivative_is_refused(kernel: attngen.Kernel) -> None:
    q, k, v = qkv(grad=True)
    out = kernel(q, k, v, slope=torch.rand(2), window=8)
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(ValueError, match="a second derivative is not computed"):
        torch.autograd.grad(first.sum(), q)


def test_negated_views_are_read_right(kernel: attngen.Kernel) -> None:
    q, k, v = qkv()
    lazy = torch.complex(torch.zeros_like(q), -q).conj().imag
    assert lazy.is_neg() and torch.equal(lazy, q)
    slope = torch.rand(2)
    assert torch.equal(kernel(lazy, k, v, slope=slope, window=8), kernel(q, k, v, slope=slope, window=8))


def test_a_layout_is_prepared_once(kernel: attngen.Kernel, module: ModuleType) -> None:
    module._attention.ready.clear()
    q, k, v = qkv()
    slope = torch.rand(2)
    for window, scale in ((8, 0.1), (3, 0.2), (2**30, 0.3)):
        out = kernel(q, k, v, slope=slope, window=window, scale=scale)
        expected = kernel.reference(q, k, v, slope=slope, window=window, scale=scale)
        torch.testing.assert_close(out.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)
    (known,) = module._attention.ready.values()
    assert len(known.forward) == 1


def test_kernels_that_test_data_are_kept_and_data_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "attention packed\nparam ids: int[B, Sk]\nmask = causal and same_document(ids)\nassume Sq == Sk\n"
    packed = attngen.compile(text, tile=(16, 16))
    module = sys.modules[packed.function.__module__]
    made: list[Any] = []
    create = module.host.Launch.__init__

    def noted(self: Any, *given: Any, **named: Any) -> None:
        made.append(given[0])
        create(self, *given, **named)

    monkeypatch.setattr(module.host.Launch, "__init__", noted)
    q, k, v = qkv(grad=True)
    counts: list[int] = []
    for border in (5, 13):
        ids = (torch.arange(20) >= border).int()[None]
        out = packed(q, k, v, ids=ids)
        expected = packed.reference(q.detach(), k.detach(), v.detach(), ids=ids)
        torch.testing.assert_close(out.detach().double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)
        _, dk, _ = torch.autograd.grad(out[:, :, border:].sum(), (q, k, v))
        assert dk[:, :, :border].abs().max() == 0 and dk[:, :, border:].abs().max() > 0
        counts.append(len(made))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("window", [0, 2.0, True, "8", [8], torch.tensor([8])], ids=str)
def test_a_known_layout_is_no_excuse(kernel: attngen.Kernel, window: Any) -> None:
    q, k, v = qkv()
    slope = torch.rand(2)
    for good in (1, 2, 8):
        kernel(q, k, v, slope=slope, window=good)
    with pytest.raises(ValueError, match="window must"):
        kernel(q, k, v, slope=slope, window=window)
    with pytest.raises(ValueError, match="k must have"):
        kernel(q, k[:, :, :9], v, slope=slope, window=8)


def far(x: torch.Tensor) -> torch.Tensor:
    """`x` at an address that is no multiple of 16 bytes."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v, slope: (q.half(), k.half(), v.half(), slope, 8),
        lambda q, k, v, slope: (q[:, :, :7], k, v, slope, 8),
        lambda q, k, v, slope: (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, slope, 8),
        lambda q, k, v, slope: (far(q), k, v, slope, 8),
        lambda q, k, v, slope: (q, k, v, far(slope), 8),
        lambda q, k, v, slope: (q, k, v, slope[:1].expand(2), 8),
        lambda q, k, v, slope: (q, k, v, slope, 2**40),
    ],
    ids=["dtype", "length", "strides", "address", "param's address", "param's stride", "64 bits"],
)
def test_what_a_compiled_kernel_depends_on_makes_another_layout(
    kernel: attngen.Kernel, module: ModuleType, change: Callable[..., tuple[Any, ...]]
) -> None:
    q, k, v = qkv()
    slope = torch.rand(2)
    module._attention.ready.clear()
    kernel(q, k, v, slope=slope, window=8)
    q, k, v, slope, window = change(q, k, v, slope)
    kernel(q, k, v, slope=slope, window=window)
    assert sum(len(known.forward) for known in module._attention.ready.values()) == 2


def test_the_second_launch_passes_what_the_first_one_named(module: ModuleType) -> None:
    class Kernel:
        arg_names = ("x_ptr", "n", "m", "BLOCK", "FAST")

        def __init__(self) -> None:
            self.calls: list[Any] = []

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def launch(*arguments: Any, **options: Any) -> Kernel:
                self.calls.append((grid, arguments, options))
                return compiled

            return launch

    asked, compiled = Kernel(), Kernel()
    launch = module.host.Launch(
        asked, 7, {"FAST": True, "BLOCK": 64, "num_warps": 4}, scalars={"n": 1}, names={"x": "y"}
    )
    same = sys.modules[f"{SHARED}.launch"].SAME
    launch({"x": "w", "y": "x", same: {"m": 3}})
    launch({"x": "w", "y": "y", same: {"m": 3}})
    assert asked.calls == [((7, 1, 1), ("x", 1, 3), {"FAST": True, "BLOCK": 64, "num_warps": 4})]
    assert compiled.calls == [((7, 1, 1), ("y", 1, 3, 64, True), {})]


def test_a_seed_of_any_width_is_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled kernels are kept by what they were first called with, which says nothing of the seed's width."""
    dropped = attngen.compile("attention dropped\ndropout = 0.5\n", tile=(16, 16))
    launched = sys.modules[dropped.function.__module__]
    read: list[torch.Tensor] = []
    attend = launched._attention.attend
    monkeypatch.setattr(launched._attention, "attend", lambda *given: read.append(given[0][4]) or attend(*given))
    q, k, v = qkv()
    outs = [dropped(q, k, v, dropout_seed=torch.tensor(7, dtype=d)) for d in (torch.int32, torch.int64)]
    assert torch.equal(*outs)
    assert [seed.dtype for seed in read] == [torch.int64, torch.int64]


def test_numbers_are_kept_by_value_and_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    capped = attngen.compile(
        "attention capped\nparam cap: f32 where cap > 0\nscore = softcap(qk * scale, cap)\n", tile=(16, 16)
    )
    assert capped.function is not None
    module: Any = sys.modules[f"{SHARED}.devices"]
    cpu, stream = torch.device("cpu"), [0]
    assert module.number_tensor(2.0, cpu, True) is not module.number_tensor(2.0, cpu, True)  # no stream, nothing kept
    monkeypatch.setattr(module, "stream_of", lambda _: stream[0])
    kept = module.number_tensor(2, cpu, True)
    assert kept.item() == 2.0 and kept.dtype is torch.float32
    assert module.number_tensor(2.0, cpu, True) is kept
    assert module.number_tensor(2.0, cpu, False) is not kept
    assert module.number_tensor(3.0, cpu, True).item() == 3.0
    assert (
        str(module.number_tensor(0.0, cpu, True).item()) == "0.0"
        and str(module.number_tensor(-0.0, cpu, True).item()) == "-0.0"
    )
    q, k, v = qkv(grad=True)
    with torch.inference_mode():
        assert module.number_tensor(5.0, cpu, True) is not kept
        first = capped(q, k, v, cap=5.0)
    capped(q, k, v, cap=5.0).sum().backward()  # saves what inference mode has not made
    assert torch.equal(capped(q, k, v, cap=5.0), first)
    assert not torch.equal(capped(q, k, v, cap=0.5), first)
    stream[0] = 1
    assert module.number_tensor(2.0, cpu, True) is not kept


def test_saved_tensors_may_come_back_from_other_addresses(kernel: attngen.Kernel, module: ModuleType) -> None:
    """A kernel that was compiled for round addresses is not launched with others."""

    def moved(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)

    def gradients() -> tuple[torch.Tensor, ...]:
        q, k, v = qkv(grad=True)
        return torch.autograd.grad(kernel(q, k, v, slope=torch.full((2,), 0.5), window=8).square().sum(), (q, k, v))

    module._attention.ready.clear()
    first = gradients()
    lse = (1, 2, 20)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: moved(x) if x.shape == lse else x):
        again = gradients()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert sum(len(known.backward) for known in module._attention.ready.values()) == 2


def test_which_gradients_are_wanted_makes_another_launch(kernel: attngen.Kernel, module: ModuleType) -> None:
    """A call that wants no gradient of a param comes first: what it leaves out must not be kept for the next."""
    q, k, v = qkv(grad=True)
    slope = torch.tensor([0.5, 0.25])

    def learned() -> torch.Tensor:
        leaf = slope.clone().requires_grad_()
        return torch.autograd.grad(kernel(q, k, v, slope=leaf, window=8).square().sum(), leaf)[0]

    module._attention.ready.clear()
    alone = learned()
    module._attention.ready.clear()
    torch.autograd.grad(kernel(q, k, v, slope=slope, window=8).square().sum(), q)
    assert torch.equal(learned(), alone) and alone.abs().min() > 0
    (known,) = module._attention.ready.values()
    assert len(known.backward) == 2


def test_a_gradient_of_lse_makes_another_launch(kernel: attngen.Kernel, module: ModuleType) -> None:
    q, k, v = qkv(grad=True)
    slope = torch.tensor([0.5, 0.25])

    def through(share: float) -> torch.Tensor:
        out, lse = kernel(q, k, v, slope=slope, window=8, return_lse=True)
        total = out.square().sum() + share * lse.sum() if share else out.square().sum()
        return torch.autograd.grad(total, q)[0]

    module._attention.ready.clear()
    alone = through(3.0)
    module._attention.ready.clear()
    without = through(0.0)
    assert torch.equal(through(3.0), alone) and not torch.allclose(without, alone)
    (known,) = module._attention.ready.values()
    assert len(known.backward) == 2
