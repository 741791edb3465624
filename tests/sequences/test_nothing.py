"""Params of which a dimension is 0, in each geometry: results are those of no pair, and gradients are zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attngen
from attngen.runtime.loader import load

SPEC = """attention kept
param keep: bool[B, Sk]
param slope: f32[Hq]
param bias: f32[B, Hq, Sk]
param row: f32[B, Sq]
param first: f32[B, Sk] fixed
param sink: f32[Hq]
score = qk * scale + slope[h] * float(k) + bias[b, h, k] * row[b, q] + first[b, 0]
mask = keep[b, k]
normalizer = softmax(sink = sink[h])
"""
SIZES = [(1, 4, 5, 0), (2, 4, 0, 5), (2, 4, 0, 0), (2, 0, 5, 5)]
"""B, Hq, Sq, Sk: there is no pair."""


def drawn(B: int, Hq: int, Sq: int, Sk: int) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    numbers = torch.Generator().manual_seed(0)
    shapes = (B, Hq, Sq, 16), (B, Hq // 2, Sk, 16), (B, Hq // 2, Sk, 24)
    floats = {"slope": (Hq,), "bias": (B, Hq, Sk), "row": (B, Sq), "first": (B, Sk), "sink": (Hq,)}
    q, k, v = (torch.randn(shape, generator=numbers) for shape in shapes)
    params = {name: torch.randn(shape, generator=numbers) for name, shape in floats.items()}
    return [q, k, v], {"keep": torch.ones(B, Sk, dtype=torch.bool), **params}


def of_no_pair(params: dict[str, Any], B: int, Hq: int, Sq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse by their definition: nothing, and the sink."""
    return torch.zeros(B, Hq, Sq, 24), params["sink"].reshape(1, Hq, 1).expand(B, Hq, Sq)


def learning(*tensors: torch.Tensor) -> None:
    for x in tensors:
        if x.is_floating_point():
            x.requires_grad_()


@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.parametrize("sizes", SIZES)
def test_dense(sizes: tuple[int, ...], target: str) -> None:
    operands, params = drawn(*sizes)
    learning(*operands, *params.values())
    out, lse = attngen.compile(SPEC, target=target)(*operands, **params, return_lse=True)
    check_dense(sizes, operands, params, out, lse)


def check_dense(
    sizes: tuple[int, ...], operands: list[torch.Tensor], params: dict[str, Any], out: Any, lse: Any
) -> None:
    want = of_no_pair(params, *sizes[:3])
    assert torch.equal(out, want[0]) and torch.allclose(lse, want[1])
    leaves = [x for x in (*operands, *params.values()) if x.requires_grad]
    found = torch.autograd.grad(out.sum() + lse.sum(), leaves, allow_unused=True, materialize_grads=True)
    of_sink = torch.full_like(params["sink"], float(sizes[0] * sizes[2]))
    for x, gradient in zip(leaves, found, strict=True):
        assert torch.allclose(gradient, of_sink if x is params["sink"] else torch.zeros_like(x))


@pytest.mark.parametrize("sizes", SIZES)
def test_lengths(sizes: tuple[int, ...]) -> None:
    operands, params = drawn(*sizes)
    learning(*operands, *params.values())
    stop = torch.full((sizes[0],), sizes[3]).int()
    kernel = attngen.compile(SPEC)
    for _ in range(2):  # what passed the checks once is not checked again
        out, lse = kernel(*operands, **params, k_stop=stop, return_lse=True, check=True)
        check_dense(sizes, operands, params, out, lse)


@pytest.mark.parametrize("sizes", SIZES)
def test_packed(sizes: tuple[int, ...]) -> None:
    (B, _, Sq, Sk), (operands, params) = sizes, drawn(*sizes)
    learning(*operands, *params.values())
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in operands)
    rows = {name: params[name].flatten() for name in ("keep", "row", "first")}
    rows["bias"] = params["bias"].transpose(0, 1).flatten(1)
    ends = {f"cu_seqlens_{s}": torch.arange(B + 1).int() * n for s, n in (("q", Sq), ("k", Sk))}
    kernel = attngen.compile(SPEC)
    for _ in range(2):
        out, lse = kernel.varlen(q, k, v, **params | rows, **ends, return_lse=True, check=True)
        found = out.unflatten(0, (B, Sq)).transpose(1, 2), lse.unflatten(1, (B, Sq)).transpose(0, 1)
        check_dense(sizes, operands, params, *found)


def check_pieces(functions: Any, operands: list[Any], params: dict[str, Any], sizes: tuple[int, ...]) -> None:
    """Results and gradients of the piece that is the whole. A JAX array's axes of heads and rows are exchanged."""
    B, Hq, Sq, Sk = sizes
    place = {"q_offset": 0, "k_offset": 0, "Sq": Sq, "Sk": Sk}
    out, lse = functions["finish"](*functions["partial"](*operands, **place, **params), **params)
    assert not np.asarray(out).any() and out.shape[0] == B
    lse_wanted = np.broadcast_to(np.asarray(params["sink"]).reshape(1, Hq, 1), (B, Hq, Sq))
    np.testing.assert_allclose(np.asarray(lse), lse_wanted, rtol=1e-6)
    learned = {n: x.clone().requires_grad_() if hasattr(x, "requires_grad_") and n not in ("keep", "first") else x
               for n, x in params.items()}  # fmt: skip
    *found, gradients = functions["partial_backward"](*operands, out, out, lse, **place, **learned)
    assert all(not np.asarray(g).any() and g.shape == x.shape for g, x in zip(found, operands, strict=True))
    assert {"slope", "bias", "row", "sink"} <= gradients.keys()
    assert all(not np.asarray(g).any() and g.shape == params[n].shape for n, g in gradients.items())


@pytest.mark.parametrize("sizes", SIZES)
def test_pieces(sizes: tuple[int, ...]) -> None:
    kernel = attngen.compile(SPEC, geometry=("pieces",), arch="portable", tile=(16, 16))
    own = vars(load(kernel.source, kernel.name))
    for functions in (
        {n: getattr(kernel, n) for n in ("partial", "finish", "partial_backward")},
        {n: own[f"kept_{n}"] for n in ("partial", "finish", "partial_backward")},
    ):
        check_pieces(functions, *drawn(*sizes), sizes)


@pytest.mark.parametrize("sizes", SIZES)
def test_jax(sizes: tuple[int, ...]) -> None:
    jnp: Any = pytest.importorskip("jax.numpy")
    operands, params = drawn(*sizes)
    arrays = [jnp.asarray(x.numpy().swapaxes(1, 2)) for x in operands]
    given = {n: jnp.asarray(x.numpy()) for n, x in params.items()}
    kernel = attngen.compile(SPEC, target="jax")
    out, lse = kernel(*arrays, **given, return_lse=True)
    want = of_no_pair(params, *sizes[:3])
    np.testing.assert_array_equal(out, want[0].transpose(1, 2))
    np.testing.assert_allclose(lse, want[1], rtol=1e-6)
    check_pieces({n: getattr(kernel, n) for n in ("partial", "finish", "partial_backward")}, arrays, given, sizes)
