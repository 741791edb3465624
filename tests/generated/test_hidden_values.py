"""Scalars whose values the host cannot read: it asks nothing of them, and what it can read it checks as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attngen

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

BOUNDS = "attention bounds\nparam lo: f32\nparam hi: f32 where hi > lo\nscore = clamp(qk * scale, lo, hi)\n"
DIVIDED = "attention divided\nparam c: f32\nassume c > 0\nscore = qk * scale / c\n"
CAPPED = "attention capped\nparam cap: f32 where cap > 0\nscore = softcap(qk * scale, cap)\nmask = causal\n"
DROPPED = "attention dropped\nmask = causal\ndropout = 0.1\n"
WINDOW = "attention window\nparam n: int where n > 0\nmask = 0 <= q - k < n\n"

targets = pytest.mark.parametrize("target", ["triton", "torch"])


def tensors() -> Any:
    return torch.randn(3, 1, 2, 21, 16, generator=torch.Generator().manual_seed(0))


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@targets
def test_seeds_that_change_are_traced_as_ints(target: str) -> None:
    q, k, v = tensors()
    kernel = attngen.compile(DROPPED, target=target)
    traced: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        traced.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(lambda seed: kernel(q, k, v, dropout_seed=seed), fullgraph=True, backend=backend)
    for seed in (0, 1, 5, 6, 7):
        torch.testing.assert_close(compiled(seed), kernel(q, k, v, dropout_seed=seed))
    assert len(traced) <= 2
    with pytest.raises(attngen.UsageError, match="dropout_seed must be an int of 64 bits or a tensor, not True"):
        kernel(q, k, v, dropout_seed=True)
    same = kernel(q, k, v, dropout_seed=3)
    assert torch.equal(kernel(q, k, v, dropout_seed=np.array(3)), same)


@targets
@pytest.mark.parametrize(
    ("text", "name", "others", "wrong"),
    [(BOUNDS, "lo", {"hi": 0.7}, "hi must satisfy lo < hi"), (DIVIDED, "c", {}, "assumes 0.0 < c")],
)
def test_a_fact_of_a_traced_scalar_is_not_asked(
    target: str, text: str, name: str, others: dict[str, float], wrong: str
) -> None:
    q, k, v = tensors()
    kernel = attngen.compile(text, target=target)
    found = torch.tensor(-1.0 if others else 2.0, requires_grad=True)
    compiled = whole(lambda x: kernel(q, k, v, **{name: x}, **others))
    torch.testing.assert_close(compiled(found), kernel(q, k, v, **{name: found}, **others))
    on_meta = kernel(*(x.to("meta") for x in (q, k, v)), **{name: found.detach().to("meta")}, **others)
    assert on_meta.is_meta and on_meta.shape == q.shape
    with pytest.raises(attngen.UsageError, match=wrong):
        kernel(q, k, v, **{name: -found if name == "c" else -found + 1}, **others)


@targets
@pytest.mark.filterwarnings("ignore:.*vmap:UserWarning")
def test_a_batch_of_caps(target: str) -> None:
    q, k, v = tensors()
    kernel = attngen.compile(CAPPED, target=target)
    caps = torch.tensor([1.0, 2.0])

    def gradient(cap: Any) -> Any:
        own = cap.clone().requires_grad_()
        kernel(q, k, v, cap=own).sum().backward()
        return own.grad

    found = torch.vmap(lambda cap: kernel(q, k, v, cap=cap))(caps)
    torch.testing.assert_close(found, torch.stack([kernel(q, k, v, cap=cap) for cap in caps]))
    gradients = torch.vmap(torch.func.grad(lambda cap: kernel(q, k, v, cap=cap).sum()))(caps)
    torch.testing.assert_close(gradients, torch.stack([gradient(cap) for cap in caps]), rtol=1e-4, atol=1e-5)
    with pytest.raises(attngen.UsageError, match=r"cap must satisfy 0\.0 < cap"):
        torch.func.grad(lambda cap: kernel(q, k, v, cap=cap).sum())(torch.tensor(-2.0))


@targets
def test_a_batch_of_ints_that_a_call_has_to_read(target: str) -> None:
    q, k, v = tensors()
    kernel = attngen.compile(WINDOW, target=target)
    with pytest.raises(attngen.UsageError, match=r"n must be an int here, not a tensor: .* fake or batched"):
        torch.vmap(lambda n: kernel(q, k, v, n=n))(torch.tensor([2, 3]))


@targets
def test_fake_tensors(target: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    kernel = attngen.compile(CAPPED, target=target)
    with FakeTensorMode():
        q = torch.randn(1, 2, 5, 8)
        assert kernel(q, q, q, cap=torch.empty(())).shape == q.shape


@targets
def test_sparse_tensors_are_refused(target: str) -> None:
    q, k, v = tensors()
    kernel = attngen.compile("attention plain\n", target=target)
    for given in ((q.to_sparse(), k, v), (q, k, v.to_sparse())):
        with pytest.raises(attngen.UsageError, match=r"must be a strided tensor, not torch\.sparse_coo"):
            kernel(*given)


@pytest.mark.parametrize("target", ["jax", "pallas"])
@pytest.mark.filterwarnings("ignore:.*interpreter:UserWarning")
def test_a_fact_of_a_traced_scalar_in_jax(target: str) -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(tensors()[0].numpy())
    kernel = attngen.compile(BOUNDS, target=target)
    wanted = kernel(x, x, x, lo=-0.5, hi=0.7)
    np.testing.assert_allclose(jax.jit(lambda lo: kernel(x, x, x, lo=lo, hi=0.7))(-0.5), wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(attngen.UsageError, match="hi must satisfy lo < hi"):
        kernel(x, x, x, lo=1.0, hi=0.7)
