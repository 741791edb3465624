"""The edges of a generated function: sizes of zero, a scale that learns, and what PyTorch's and JAX's transforms ask of
it. Each is right or refused, never silently without a part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import attngen
from attngen.errors import UsageError
from attngen.runtime.loader import SHARED, execute

TEXT = """attention edges
param slope: f32[Hq]
param cap: f32 where cap >= 1
mask = causal
score = softcap(qk * scale, cap) + slope[h] * (k - q)
"""
ELSEWHERE = "attention elsewhere\nscore = qk * scale + scale\n"
TORCH = ("triton", "torch")
JAX = ("jax", "pallas")


@pytest.fixture(scope="module", params=TORCH)
def kernel(request: pytest.FixtureRequest) -> attngen.Kernel:
    return attngen.compile(TEXT, request.param)


def operands(
    rows: int = 18,
    heads: int = 2,
    batch: int = 1,
    kv_heads: int = 2,
    dim: int = 16,
    keys: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    random = torch.Generator().manual_seed(7)
    keys = rows if keys is None else keys

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(**options).requires_grad_()

    q, k, v = drawn(batch, heads, rows, dim), drawn(batch, kv_heads, keys, dim), drawn(batch, kv_heads, keys, dim)
    slope = torch.rand(heads, generator=random).to(device=q.device).requires_grad_()
    return {"q": q, "k": k, "v": v, "slope": slope, "cap": 3.0}


def dense(q: Any, k: Any, v: Any, slope: Any, cap: float, scale: Any) -> torch.Tensor:
    """TEXT, written once more in plain torch."""
    distance = torch.arange(k.shape[2])[None, :] - torch.arange(q.shape[2])[:, None]
    score = cap * torch.tanh(q @ k.mT * scale / cap) + slope[:, None, None] * distance
    return score.masked_fill(distance > 0, -torch.inf).softmax(-1) @ v


# ---------------------------------------------------------------- sizes of zero

ZEROS = [{"batch": 0}, {"rows": 0}, {"rows": 0, "keys": 5}, {"keys": 0}, {"heads": 0}, {"heads": 0, "kv_heads": 0}]


@pytest.mark.parametrize("sizes", ZEROS, ids=str)
def test_an_empty_call_gives_an_empty_result_and_zero_gradients(kernel: attngen.Kernel, sizes: dict[str, int]) -> None:
    given = operands(**sizes)
    out, lse = kernel(**given, return_lse=True)
    assert out.shape == given["q"].shape and lse.shape == out.shape[:3]
    assert not out.any() and bool((lse == -torch.inf).all())
    out.sum().backward()
    for name in ("q", "k", "v", "slope"):
        assert given[name].grad.shape == given[name].shape and not given[name].grad.any()


@pytest.mark.parametrize("target", JAX)
@pytest.mark.parametrize("sizes", ZEROS, ids=str)
def test_an_empty_call_of_jax(target: str, sizes: dict[str, int]) -> None:
    kernel = attngen.compile(TEXT, target)
    given = {name: jnp.asarray(x.detach().numpy()) if name != "cap" else x for name, x in operands(**sizes).items()}
    q, k, v = (given.pop(name).swapaxes(1, 2) for name in "qkv")
    out, dq = jax.value_and_grad(lambda q: kernel(q, k, v, **given).sum())(q)
    assert out == 0 and kernel(q, k, v, **given).shape == q.shape == dq.shape and not dq.any()


@pytest.mark.parametrize("target", [*TORCH, *JAX])
def test_a_head_dim_of_zero_is_refused(target: str) -> None:
    inside = target in JAX
    given = {name: x.detach().numpy() if inside and name != "cap" else x for name, x in operands(dim=0).items()}
    with pytest.raises(ValueError, match=r"head dims must be .*1 .*, not 0 and 0"):
        attngen.compile(TEXT, target)(**given)


# ---------------------------------------------------------------- a scale that learns


@pytest.mark.parametrize("scale", [0.3, 0.0, -0.4])
def test_a_scale_gets_its_gradient(kernel: attngen.Kernel, scale: float) -> None:
    given = operands()
    learnt = torch.tensor(scale, requires_grad=True)
    out = kernel(**given, scale=learnt)
    assert torch.equal(out, kernel(**given, scale=scale))
    wanted = torch.autograd.grad(dense(**given, scale=learnt).square().sum(), (learnt, *given.values())[:4])
    found = torch.autograd.grad(out.square().sum(), (learnt, *given.values())[:4])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_a_scale_gets_its_gradient_in_half_precision(kernel: attngen.Kernel) -> None:
    given = operands(dtype=torch.bfloat16)
    learnt = torch.tensor(0.3, requires_grad=True)
    out = kernel(**given, scale=learnt)
    assert torch.equal(out, kernel(**given, scale=0.3))
    exact = {name: x.double() if name in "qkv" else x for name, x in given.items()}
    (wanted,) = torch.autograd.grad(dense(**exact, scale=learnt.double()).square().sum(), learnt)
    (found,) = torch.autograd.grad(out.float().square().sum(), learnt)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.02)


def test_a_scale_gets_its_gradient_in_a_compiled_function(kernel: attngen.Kernel) -> None:
    given = operands()
    scale = torch.tensor(0.3, requires_grad=True)
    compiled = torch.compile(kernel.function, backend="aot_eager", fullgraph=True)
    (found,) = torch.autograd.grad(compiled(**given, scale=scale).square().sum(), scale)
    (wanted,) = torch.autograd.grad(kernel(**given, scale=scale).square().sum(), scale)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("target", TORCH)
def test_a_scale_elsewhere_in_the_score_is_refused_a_gradient(target: str) -> None:
    kernel = attngen.compile(ELSEWHERE, target)
    q = torch.ones(1, 1, 4, 16)
    scale = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(ValueError, match="declare `param temperature: f32`"):
        kernel(q, q, q, scale=scale)
    assert torch.equal(kernel(q, q, q, scale=scale.detach()), kernel(q, q, q, scale=0.5))
    with pytest.raises(ValueError, match=r"scale must be one number, not a tensor of shape \(2,\)"):
        kernel(q, q, q, scale=torch.ones(2))


@pytest.mark.parametrize("target", JAX)
def test_a_scale_in_jax(target: str) -> None:
    kernel = attngen.compile("attention plain\nmask = causal\n", target)
    q, k, v = (jnp.asarray(x) for x in np.random.default_rng(0).normal(size=(3, 1, 9, 1, 8)).astype(np.float32))

    def plain(scale: Any) -> Any:
        score = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="highest") * scale
        score = jnp.where(jnp.tril(jnp.ones((9, 9), bool)), score, -jnp.inf)
        return (jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(score), v, precision="highest") ** 2).sum()

    found, wanted = (jax.jit(jax.grad(f)) for f in (lambda scale: (kernel(q, k, v, scale=scale) ** 2).sum(), plain))
    for scale in (0.3, 0.0, -0.4):
        np.testing.assert_allclose(found(scale), wanted(scale), atol=1e-4)
    with pytest.raises(ValueError, match="declare `param temperature: f32`"):
        jax.grad(lambda scale: attngen.compile(ELSEWHERE, target)(q, k, v, scale=scale).sum())(0.5)


# ---------------------------------------------------------------- transforms of torch.func


def gradient(function: Callable[..., torch.Tensor], q: torch.Tensor, slope: torch.Tensor) -> Any:
    return torch.func.grad(lambda q, slope: function(q, slope).square().sum(), argnums=(0, 1))(q, slope)


def pulled_back(function: Callable[..., torch.Tensor], q: torch.Tensor, slope: torch.Tensor) -> Any:
    out, pull = torch.func.vjp(function, q, slope)
    return pull(torch.ones_like(out))


def reverse_jacobian(function: Callable[..., torch.Tensor], q: torch.Tensor, slope: torch.Tensor) -> Any:
    return torch.func.jacrev(lambda slope: function(q, slope).sum((0, 1, 3)))(slope)


def of_each_sample(function: Callable[..., torch.Tensor], q: torch.Tensor, slope: torch.Tensor) -> Any:
    own = torch.func.grad(lambda slope, q: function(q, slope).square().sum())
    return torch.func.vmap(own, in_dims=(None, 0))(slope, torch.stack([q, 2 * q]))


def of_a_batch(function: Callable[..., torch.Tensor], q: torch.Tensor, slope: torch.Tensor) -> Any:
    many = torch.func.vmap(lambda q: function(q, slope))
    return torch.func.grad(lambda q: many(q).square().sum())(torch.stack([q, 2 * q]))


@pytest.mark.parametrize("transform", [gradient, pulled_back, reverse_jacobian, of_each_sample, of_a_batch])
def test_transforms_of_torch_func_find_gradients(kernel: attngen.Kernel, transform: Callable[..., Any]) -> None:
    given = {name: x.detach() if name != "cap" else x for name, x in operands(6).items()}
    q, k, v, slope, cap = (given[name] for name in ("q", "k", "v", "slope", "cap"))

    found = transform(lambda q, slope: kernel(q, k, v, slope=slope, cap=cap), q, slope)
    wanted = transform(lambda q, slope: dense(q, k, v, slope, cap, q.shape[3] ** -0.5), q, slope)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_a_transform_of_a_transform_is_refused(kernel: attngen.Kernel) -> None:
    given = {name: x.detach() if name != "cap" else x for name, x in operands(6).items()}
    q = given.pop("q")
    inner = torch.func.grad(lambda q: kernel(q=q, **given).square().sum())
    with pytest.raises(UsageError, match="a second derivative is not computed"):
        torch.func.grad(lambda q: inner(q).sum())(q)


def test_transforms_of_packed_sequences() -> None:
    kernel = attngen.compile("attention subject\nmask = causal\n")
    q, k, v = (torch.randn(9, 2, 16) for _ in "qkv")
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)

    def loss(q: torch.Tensor) -> torch.Tensor:
        return kernel.varlen(q, k, v, cu_seqlens_q=offsets).square().sum()

    leaf = q.clone().requires_grad_()
    loss(leaf).backward()
    assert torch.equal(torch.func.grad(loss)(q), leaf.grad)


# ---------------------------------------------------------------- derivatives that are not computed


def hessian(function: Callable[[torch.Tensor], torch.Tensor], q: torch.Tensor) -> None:
    torch.func.hessian(function)(q)


def forward_mode(function: Callable[[torch.Tensor], torch.Tensor], q: torch.Tensor) -> None:
    torch.func.jvp(function, (q,), (q,))


def jacobian(function: Callable[[torch.Tensor], torch.Tensor], q: torch.Tensor) -> None:
    torch.func.jacfwd(function)(q)


def dual(function: Callable[[torch.Tensor], torch.Tensor], q: torch.Tensor) -> None:
    with forward_ad.dual_level():
        function(forward_ad.make_dual(q, q))


def dual_of_compiled(function: Callable[[torch.Tensor], torch.Tensor], q: torch.Tensor) -> None:
    compiled = torch.compile(function, backend="aot_eager")
    compiled(q)
    dual(compiled, q)


@pytest.mark.parametrize("transform", [forward_mode, jacobian, hessian, dual, dual_of_compiled])
def test_forward_mode_is_refused(kernel: attngen.Kernel, transform: Callable[..., None]) -> None:
    given = {name: x.detach() if name != "cap" else x for name, x in operands(6).items()}
    q = given.pop("q")
    refused = "forward-mode|jvp function|setup_context|forward AD"
    with pytest.raises((ValueError, RuntimeError, NotImplementedError), match=refused):
        transform(lambda q: kernel(q=q, **given).sum(), q)


@pytest.mark.parametrize("name", ["q", "scale", "cap"])
@pytest.mark.parametrize("transform", [forward_mode, jacobian, hessian, dual])
def test_forward_mode_is_refused_by_target_torch(transform: Callable[..., None], name: str) -> None:
    text = "attention subject\nparam cap: f32 where cap > 0\nscore = softcap(qk * scale, cap)\nmask = causal\n"
    kernel = attngen.compile(text, target="torch")
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    given = {"q": q, "k": k, "v": v, "scale": torch.tensor(0.3), "cap": torch.tensor(2.0)}
    with pytest.raises(UsageError, match=r"forward-mode derivatives .* are not computed"):
        transform(lambda x: kernel(**{**given, name: x}).sum(), given[name])


def test_without_the_private_names_of_pytorch_a_call_takes_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attngen.compile("attention subject\nmask = causal\n")
    q, k, v = (torch.randn(1, 2, 20, 16, requires_grad=True) for _ in "qkv")
    wanted = torch.autograd.grad(kernel(q, k, v).square().sum(), (q, k, v))
    monkeypatch.delattr(torch._C, "_len_torch_dispatch_stack")
    other = attngen.compile("attention other\nmask = causal\n").source  # an operator is registered once
    module = sys.modules[f"{SHARED}.watched"]
    assert module.HAS_PRIVATE_NAMES and not execute(other, "other").HAS_PRIVATE_NAMES
    monkeypatch.setattr(module, "HAS_PRIVATE_NAMES", False)
    found = torch.autograd.grad(kernel(q, k, v).square().sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(UsageError, match="forward-mode derivatives"):
            kernel(dual, k, v)


def test_forward_mode_of_something_else_is_no_matter() -> None:
    kernel = attngen.compile(TEXT)
    given = {name: x.detach() if name != "cap" else x for name, x in operands(6).items()}
    expected = kernel(**given)
    out, tangent = torch.func.jvp(lambda x: kernel(**{**given, "v": given["v"] * 1}) * x, (expected,), (expected,))
    assert torch.equal(out, expected * expected) and torch.equal(tangent, out)


class Watching(TorchDispatchMode):
    """Under it calls go by the operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("mode", [nullcontext, Watching])
def test_a_second_derivative_is_never_dropped(
    kernel: attngen.Kernel, constant: bool, mode: Callable[[], AbstractContextManager[Any]]
) -> None:
    """Not even where the first one's cotangent is a constant, and the rest of the loss has a gradient."""
    given = operands(6)
    cotangent = torch.ones(1, 2, 6, 16, requires_grad=not constant)
    with mode():
        out = kernel(**given)
    plain = torch.autograd.grad(out, given["q"], cotangent, retain_graph=True)
    (first,) = torch.autograd.grad(out, given["q"], cotangent, create_graph=True)
    assert torch.equal(first, plain[0])
    with pytest.raises(ValueError, match="a second derivative is not computed"):
        (first.square().sum() + given["q"].sum()).backward()


def test_second_derivatives_in_jax() -> None:
    q = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, 1, 8)), jnp.float32)
    with pytest.raises(ValueError, match="a second derivative is not computed"):
        kernel = attngen.compile("attention plain\nmask = causal\n", "pallas")
        jax.hessian(lambda q: kernel(q, q, q).sum())(q)


# ---------------------------------------------------------------- shapes without numbers


def test_meta_tensors_get_shapes(kernel: attngen.Kernel) -> None:
    given = operands(device="meta", dtype=torch.bfloat16)
    scale = torch.empty((), device="meta", requires_grad=True)
    out, lse = kernel(**given, scale=scale, return_lse=True)
    assert out.is_meta and out.dtype == torch.bfloat16 and out.shape == given["q"].shape
    assert lse.is_meta and lse.dtype == torch.float32 and lse.shape == out.shape[:3]
    out.sum().backward()
    for x in (given["q"], given["k"], given["v"], given["slope"], scale):
        assert x.grad.is_meta and x.grad.shape == x.shape


@pytest.mark.parametrize("strict", [True, False])
def test_lengths_without_a_maximum_are_exported(strict: bool) -> None:
    kernel = attngen.compile(TEXT)
    given = {name: x.detach() if name != "cap" else x for name, x in operands().items()}

    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
            return kernel(q, k, v, slope=slope, cap=3.0)

    length = {2: torch.export.Dim("length")}
    shapes = {"q": length, "k": length, "v": length, "slope": None}
    arguments = tuple(given[name] for name in shapes)
    exported = torch.export.export(Attention(), arguments, dynamic_shapes=shapes, strict=strict).module()
    longer = {name: x.detach() if name != "cap" else x for name, x in operands(41).items()}
    torch.testing.assert_close(exported(*(longer[name] for name in shapes)), kernel(**longer))


def test_a_sequence_that_is_too_long_is_refused_when_it_comes() -> None:
    kernel = attngen.compile("attention long\n")
    x = torch.zeros(1, 1, 1, 1).expand(1, 1, 2**27, 1)
    with pytest.raises(ValueError, match=r"sequences must be shorter than 2\*\*27, not 134217728 and 134217728"):
        kernel(x, x, x)


def test_a_compiled_transform_finds_the_gradient_of_each_param() -> None:
    kernel = attngen.compile(
        "attention a\nparam s: f32[Hq]\nparam t: f32\nscore = qk * scale * t - s[h] * k\n", "torch"
    )
    given = operands()

    def total(q: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.sin(kernel(q, given["k"].detach(), given["v"].detach(), s=s, t=t)).sum()

    gradients = torch.func.grad(total, argnums=(0, 1, 2))
    values = given["q"].detach(), torch.rand(2), torch.tensor(1.3)
    compiled = torch.compile(gradients, backend="eager", fullgraph=True)
    for a, b in zip(compiled(*values), gradients(*values), strict=True):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b)
