"""lse of a row without keys is the logarithm of what is added to the sum, which gets its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attngen
from attngen.reference import evaluate, gradients

SINK = "attention sink\nparam e: f32[Hq]\nmask = k > q\nnormalizer = softmax(sink = e[h])\n"
PLUS = """attention plus
param e: f32[Hq] where e > 0
mask = k > q
normalizer n(e) {
    weight(s)   = tanh(s) + 1.0
    denominator = sum + e
    shift       = none
}
normalizer = n(e = e[h])
"""
ONE = "attention one\nmask = k > q\nnormalizer = softmax1\n"
SIGMOID = "attention gates\nmask = k > q\nnormalizer = sigmoid\n"
TOLERANCE = 2e-5


def _torch(kernel: attngen.Kernel, arrays: dict[str, np.ndarray], d_out: np.ndarray, d_lse: np.ndarray) -> list[Any]:
    import torch

    given = {name: torch.from_numpy(x.astype(np.float32)).requires_grad_() for name, x in arrays.items()}
    out, lse = kernel(**given, return_lse=True)
    ends = [torch.from_numpy(x.astype(np.float32)) for x in (d_out, d_lse)]
    found = torch.autograd.grad([out, lse], list(given.values()), ends)
    return [x.detach().numpy() for x in (out, lse, *found)]


def _jax(kernel: attngen.Kernel, arrays: dict[str, np.ndarray], d_out: np.ndarray, d_lse: np.ndarray) -> list[Any]:
    import jax
    import jax.numpy as jnp

    def inside(x: Any) -> Any:
        return x.swapaxes(1, 2) if x.ndim == 4 else x

    given = {name: jnp.asarray(inside(x), jnp.float32) for name, x in arrays.items()}
    (out, lse), pull = jax.vjp(lambda x: kernel(**x, return_lse=True), given)
    (found,) = pull((jnp.asarray(inside(d_out), jnp.float32), jnp.asarray(d_lse, jnp.float32)))
    return [np.asarray(x) for x in (inside(out), lse, *(inside(found[name]) for name in given))]


@pytest.mark.parametrize("target", ["triton", "torch", "jax", "pallas"])
@pytest.mark.parametrize("text", [SINK, PLUS, ONE, SIGMOID], ids=["sink", "plus", "one", "sigmoid"])
def test_its_denominator_is_what_is_added_to_the_sum(text: str, target: str) -> None:
    kernel = attngen.compile(text, target)
    random = np.random.default_rng(5)
    for queries, keys in ((6, 6), (3, 0)):  # the last query of six has no key; without keys, no query has
        arrays = {name: random.normal(size=(1, 2, n, 16)) for name, n in (("q", queries), ("k", keys), ("v", keys))}
        params = {p.name: np.array([0.7, 1.9]) for p in kernel.spec.params}
        d_out, d_lse = random.normal(size=(1, 2, queries, 16)), random.normal(size=(1, 2, queries))
        found = (_torch if target in ("triton", "torch") else _jax)(kernel, {**arrays, **params}, d_out, d_lse)
        right = evaluate(kernel.spec, **arrays, params=params)
        back = gradients(kernel.spec, **arrays, d_out=d_out, d_lse=d_lse, params=params)
        wanted = [right.out, right.lse, back.q, back.k, back.v, *back.params.values()]
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)
        alone = {"sink": [0.7, 1.9], "plus": np.log([0.7, 1.9])}.get(kernel.name, [0.0, 0.0])
        np.testing.assert_allclose(found[1][0, :, -1], alone, rtol=TOLERANCE, atol=TOLERANCE)
        if params:
            assert (np.abs(back.params["e"]) > 1e-3).all()


@pytest.mark.parametrize("param", ["c: f32[B, Hkv, Sk]", "c: f32[Hq, 3]"])
def test_a_param_that_keys_read_has_no_gradient_where_there_is_no_key(param: str) -> None:
    import torch

    read = "c[b, hkv, k]" if "Sk" in param else "c[h, k % 3]"
    for target in ("torch", "triton"):
        kernel = attngen.compile(f"attention subject\nparam {param}\nscore = qk * scale + {read}\n", target)
        q, kv = torch.randn(1, 2, 4, 16, requires_grad=True), torch.randn(1, 1, 0, 16)
        c = torch.zeros((1, 1, 0) if "Sk" in param else (2, 3), requires_grad=True)
        out = kernel(q, kv, kv, c=c)
        out.sum().backward()
        assert not out.any() and not q.grad.any() and not c.grad.any()
