"""The generated function as PyTorch sees it: compile, FakeTensor, checkpoint, gradcheck, and what it refuses."""

from __future__ import annotations

import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import attngen

SPEC = """attention generated
param slope: f32[Hq]
param cap: f32 where cap > 0
param window: int where window >= 1
score = softcap(qk * scale, cap) - slope[h] * (q - k)
mask = 0 <= q - k < window
"""


@pytest.fixture(scope="module")
def kernel() -> attngen.Kernel:
    return attngen.compile(SPEC, tile=(16, 16))


def qkv(S: int = 20, D: int = 16, H: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, H, S, D, generator=generator, requires_grad=True) for _ in range(3)]


def test_fake_tensors(kernel: attngen.Kernel) -> None:
    mode = FakeTensorMode()
    q, k, v, slope = (mode.from_tensor(x.detach()) for x in (*qkv(), torch.rand(2)))
    with mode:
        out, lse = kernel(q, k, v, slope=slope, cap=30.0, window=8, return_lse=True)
    assert out.shape == (1, 2, 20, 16)
    assert lse.shape == (1, 2, 20)
    assert lse.dtype is torch.float32


def test_checkpoint_gives_the_same_gradients(kernel: attngen.Kernel) -> None:
    q, k, v = qkv()
    slope = torch.rand(2, requires_grad=True)

    def run(*x: torch.Tensor) -> torch.Tensor:
        return kernel(*x, slope=slope, cap=3.0, window=8)

    kept = torch.autograd.grad(run(q, k, v).square().sum(), (q, k, v, slope))
    again = torch.autograd.grad(checkpoint(run, q, k, v, use_reentrant=False).square().sum(), (q, k, v, slope))
    for a, b in zip(kept, again, strict=True):
        assert torch.equal(a, b)


def test_torch_compile_takes_it_whole(kernel: attngen.Kernel) -> None:
    q, k, v = qkv()
    slope, cap = torch.rand(2, requires_grad=True), torch.tensor(3.0, requires_grad=True)

    def network(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return kernel(q * 1.5, k, v, slope=slope, cap=cap, window=8) * 2

    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    expected, found = network(q, k, v), compiled(q, k, v)
    torch.testing.assert_close(found, expected)
    leaves = (q, k, v, slope, cap)
    for a, b in zip(
        torch.autograd.grad(found.square().sum(), leaves),
        torch.autograd.grad(expected.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_gradcheck(kernel: attngen.Kernel) -> None:
    q, k, v = (x.detach()[:, :1, :5, :8].contiguous().requires_grad_() for x in qkv())
    slope, cap = torch.rand(1, requires_grad=True), torch.tensor(3.0, requires_grad=True)

    def run(*x: torch.Tensor) -> torch.Tensor:
        return kernel(*x[:3], slope=x[3], cap=x[4], window=8)

    assert torch.autograd.gradcheck(run, (q, k, v, slope, cap), eps=1e-2, atol=2e-2, rtol=2e-2, nondet_tol=0.0)


def test_operator_registrations(kernel: attngen.Kernel) -> None:
    q, k, v = qkv()
    module = sys.modules[kernel.function.__module__]
    arguments = (q, k, v, torch.rand(2, requires_grad=True), torch.tensor(3.0), 8, 0.25, False)
    torch.library.opcheck(module._attention.operator.forward, arguments, test_utils=("test_schema", "test_faketensor"))


def test_a_scale_of_any_sign(kernel: attngen.Kernel) -> None:
    q, k, v = (x.detach() for x in qkv())
    for scale in (0.3, -0.3, 0.0):
        expected = kernel.reference(q, k, v, slope=torch.zeros(2), cap=3.0, window=8, scale=scale)
        zero = kernel(q, k, v, slope=torch.zeros(2), cap=3.0, window=8, scale=scale)
        torch.testing.assert_close(zero.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slope": torch.rand(3)}, r"slope must have shape \(Hq\) = \(2,\), not \(3,\)"),
        (
            {"slope": torch.ones(2, dtype=torch.int64)},
            "slope must be float32 or float16 or bfloat16 or float64, not torch.int64",
        ),
        ({"slope": torch.rand(2, 1)}, r"slope must have 1 dimension \(Hq\), not shape \(2, 1\)"),
        ({"slope": 0.5}, "slope must be a torch.Tensor, not float"),
        ({"cap": -1.0}, "cap must satisfy 0.* < cap, not -1.0"),
        ({"cap": torch.rand(2)}, "cap must be a number or a 0-dimensional float tensor, not Tensor"),
        ({"window": 0}, "window must satisfy 1 <= window, not 0"),
        ({"window": 1.5}, "window must be an int or a 0-dimensional int tensor, not float"),
        ({"q": torch.rand(1, 2, 20)}, r"q must have 4 dimensions .* not shape \(1, 2, 20\)"),
        ({"k": torch.rand(1, 2, 21, 16)}, r"k must have .* \(1, 2, 20, 16\), not \(1, 2, 21, 16\)"),
        ({"v": torch.rand(2, 2, 20, 16)}, r"v must have q's batch 1, not 2"),
        ({"v": torch.rand(1, 2, 20, 16).half()}, "v must have q's dtype torch.float32, not torch.float16"),
        ({"q": torch.rand(1, 3, 20, 16)}, "q's 3 heads must be a multiple of the 2 heads of k and v"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(kernel: attngen.Kernel, change: dict, message: str) -> None:
    q, k, v = (x.detach() for x in qkv())
    arguments = {"q": q, "k": k, "v": v, "slope": torch.rand(2), "cap": 3.0, "window": 8, **change}
    with pytest.raises(ValueError, match=message):
        kernel(**arguments)


@pytest.mark.parametrize("change", [{"slope": None}, {"extra": 1}])
def test_missing_and_unknown_arguments(kernel: attngen.Kernel, change: dict) -> None:
    q, k, v = (x.detach() for x in qkv())
    arguments = {"slope": torch.rand(2), "cap": 3.0, "window": 8, **change}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    with pytest.raises(attngen.UsageError, match=next(iter(change))):
        kernel(q, k, v, **arguments)
