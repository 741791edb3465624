"""Calls as people write them at first: what is meant is done, or one message says what to write."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import attngen
from attngen.errors import UsageError

SWITCHED = """attention switched
param on: bool
param slope: f32[Hq]
score = qk * scale - (slope[h] * float(q - k) if on else 0.0)
mask = k <= q or on
"""
ALIBI = "attention alibied\nparam slope: f32[Hq]\nscore = qk * scale - slope[h] * float(q - k)\nmask = k <= q\n"
DOCUMENTS = "attention d\nparam ids: int[B, Sk]\nparam gain: f32\nscore = qk * gain\nmask = same_document(ids)\n"
TORCH, JAX = ("triton", "torch"), ("jax", "pallas")


def compiled(text: str, target: str) -> attngen.Kernel:
    options: dict[str, Any] = {"arch": "portable", "tile": (16, 16)} if target == "triton" else {}
    return attngen.compile(text, target=target, **options)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def message(call: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as raised:
        call()
    return str(raised.value)


# ---------------------------------------------------------------- bools in tensors


def switched(on: bool, x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    at = torch.arange(x.shape[2], dtype=torch.float32)
    away = at[:, None] - at
    score = x @ x.transpose(2, 3) / x.shape[3] ** 0.5
    score = score - slope[:, None, None] * away if on else score.masked_fill(away < 0, -torch.inf)
    return score.softmax(-1) @ x


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("target", TORCH)
@pytest.mark.filterwarnings("ignore:.*vmap:UserWarning")
def test_a_tensor_may_hold_a_bool(target: str, on: bool) -> None:
    kernel, x = compiled(SWITCHED, target), drawn(1, 2, 21, 16)
    slope = torch.tensor([0.1, 0.3], requires_grad=True)
    right = switched(on, x, slope)
    gradient = torch.autograd.grad(right.square().sum(), slope)[0] if on else torch.zeros(2)
    for given in (torch.tensor(on), np.bool_(on), on):
        out = kernel(x, x, x, on=given, slope=slope)
        torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-5)
        (found,) = torch.autograd.grad(out.square().sum(), slope)
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-4)
    mapped = torch.vmap(lambda y: kernel(y, y, y, on=torch.tensor(on), slope=slope.detach()))(x[None])
    torch.testing.assert_close(mapped[0], right.detach(), rtol=1e-4, atol=1e-5)
    said = message(lambda: kernel(x, x, x, on=torch.tensor([on]), slope=slope))
    assert said == "switched: on must be a bool or a 0-dimensional bool tensor, not Tensor"


@pytest.mark.filterwarnings("ignore:.*vmap:UserWarning")
def test_kernels_read_a_bool_where_it_is() -> None:
    """Packed, a batch of bools, and whole graphs: the host never reads it. A fact needs it on the host."""
    kernel, x, slope = compiled(SWITCHED, "triton"), drawn(1, 2, 21, 16), torch.tensor([0.1, 0.3])
    rows, ends = x[0].transpose(0, 1), torch.tensor([0, 21]).int()
    out = kernel.varlen(rows, rows, rows, on=torch.tensor(True), slope=slope, cu_seqlens_q=ends)
    torch.testing.assert_close(out.transpose(0, 1)[None], switched(True, x, slope), rtol=1e-4, atol=1e-5)
    mapped = torch.vmap(lambda on: kernel(x, x, x, on=on, slope=slope))(torch.tensor([False, True]))
    for on, found in zip((False, True), mapped, strict=True):
        torch.testing.assert_close(found, switched(on, x, slope), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    whole = torch.compile(lambda on: kernel(x, x, x, on=on, slope=slope), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(whole(torch.tensor(True)), switched(True, x, slope), rtol=1e-4, atol=1e-5)
    sure = compiled("attention sure\nparam on: bool where on\nmask = k <= q or on\n", "triton")
    assert torch.equal(sure(x, x, x, on=torch.tensor(True)), sure(x, x, x, on=True))
    assert message(lambda: sure(x, x, x, on=torch.tensor(False))) == "sure: on must satisfy on, not False"


@pytest.mark.parametrize("target", TORCH)
def test_an_int_in_a_tensor_counts_in_gradients_by_cells(target: str) -> None:
    text = "attention t\nparam n: int\nparam on: bool\nparam ids: int[B, Sq]\nparam table: f32[N]\n"
    text += "score = qk * scale + table[clamp(ids[b, q] + (n if on else 0), 0, N - 1)] * float(k)\n"
    kernel, x, ids = compiled(text, target), drawn(1, 2, 21, 16), torch.arange(21).int()[None] % 5
    table = drawn(9).requires_grad_()
    bias = table[ids[0].long() + 3][:, None] * torch.arange(21.0)
    right = (x @ x.transpose(2, 3) / 4 + bias).softmax(-1) @ x
    (gradient,) = torch.autograd.grad(right.square().sum(), table)
    for n, on in ((3, True), (torch.tensor(3), torch.tensor(True))):
        out = kernel(x, x, x, n=n, on=on, ids=ids, table=table)
        torch.testing.assert_close(torch.autograd.grad(out.square().sum(), table)[0], gradient, rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------- float64


@pytest.mark.parametrize("target", [*TORCH, *JAX])
def test_float64_is_rounded_with_a_warning_once(target: str) -> None:
    x, array = drawn(1, 4, 4, 16), np.asarray if target in JAX else torch.from_numpy
    operand: Any = x.numpy() if target in JAX else x
    kernel = compiled(ALIBI.replace("alibied", f"alibied_on_{target}"), target)
    for dtype, count in ((np.float32, 0), (np.float64, 1), (np.float64, 0)):
        slope = array(np.linspace(0.1, 0.4, 4).astype(dtype))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            kernel(operand, operand, operand, slope=slope)
        told = [w for w in seen if "float64" in str(w.message)]
        assert len(told) == count
        if told:
            single = "slope.astype('float32')" if target in JAX else "slope.float()"
            assert str(told[0].message) == (
                f"alibied_on_{target}: slope is float64, and is rounded to float32, which has 24 bits: give {single} "
                "if they suffice, or subtract what all elements share before"
            )
            assert told[0].filename == __file__


# ---------------------------------------------------------------- ints beyond 32 bits


@pytest.mark.parametrize("target", JAX)
@pytest.mark.filterwarnings("ignore:.*interpreter:UserWarning")
def test_ids_beyond_32_bits_are_refused(target: str) -> None:
    import jax
    import jax.numpy as jnp

    kernel, x = compiled(DOCUMENTS, target), drawn(1, 6, 2, 16).numpy()
    ids = np.array([[3, 3, 3, 2**40, 2**41, 2**41]])
    said = (
        "d: ids[0, 3] is 1099511627776, and must be from -2147483648 to 2147483647: JAX files compute in 32 bits; "
        "renumber ids from 0, and clamp bounds"
    )
    assert message(lambda: kernel(x, x, x, ids=ids, gain=0.25)) == said
    assert message(lambda: jax.jit(lambda y: kernel(y, y, y, ids=ids, gain=0.25))(x)) == said
    with jax.enable_x64(True):
        wide = jnp.asarray(ids)
        assert message(lambda: kernel(x, x, x, ids=wide, gain=0.25)) == said
        assert message(lambda: jax.jit(lambda y: kernel(y, y, y, ids=wide, gain=0.25))(x)) == said
    renumbered = np.unique(ids, return_inverse=True)[1].reshape(ids.shape)
    y = torch.from_numpy(x).transpose(1, 2)
    same = torch.from_numpy(ids[0][:, None] == ids[0])
    right = torch.nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=same)
    found = kernel(x, x, x, ids=renumbered, gain=0.25)
    np.testing.assert_allclose(found, right.transpose(1, 2), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- other libraries' habits


@pytest.mark.parametrize(
    ("keyword", "value", "end"),
    [
        ("is_causal", True, "write `mask = causal` in the specification"),
        ("attn_mask", None, "and give it by that name"),
        ("softmax_scale", 0.1, "the argument is called `scale`"),
        ("dropout_p", 0.1, "or `param p: f32 where 0 <= p < 1` and `dropout = p`"),
        ("window_size", (3, 0), "with w keys that count the query's own"),
        ("enable_gqa", True, "leave it out: k and v may always have fewer heads than q"),
        (
            "cu_seqlens_q", torch.tensor([0, 5]),
            "packed sequences are for kernel.varlen(q, k, v, cu_seqlens_q=…), with q (rows, heads, head dim)",
        ),
    ],
)  # fmt: skip
def test_keywords_of_other_libraries_get_the_answer(keyword: str, value: object, end: str) -> None:
    x = drawn(1, 2, 5, 16)
    kernel = attngen.compile("attention plain\n", target="torch")
    said = message(lambda: kernel(x, x, x, **{keyword: value}))
    assert said.startswith(f"plain() got an unexpected keyword argument '{keyword}': ") and said.endswith(end)
    assert message(lambda: kernel(x, x, x, wrong=1)) == "plain() got an unexpected keyword argument 'wrong'"


def test_what_the_answers_say_compiles() -> None:
    for body in (
        "mask = causal", "mask = sliding_window(3)", "dropout = 0.1", "param p: f32 where 0 <= p < 1\ndropout = p",
        "param keep: bool[B, Hq, Sq, Sk]\nmask = keep[b, h, q, k]", "score = softcap(qk * scale, 50.0)",
        "param bias: f32[B, Hq, Sq, Sk]\nscore = qk * scale + bias[b, h, q, k]",
        "param slope: f32[Hq]\nscore = qk * scale + alibi(slope)",
    ):  # fmt: skip
        attngen.compile(f"attention a\n{body}\n", target="torch")


@pytest.mark.parametrize("target", TORCH)
def test_heads_behind_lengths_are_recognised(target: str) -> None:
    kernel, x = compiled(ALIBI, target), drawn(1, 8, 2, 16)
    slope = torch.tensor([0.1, 0.2])
    assert message(lambda: kernel(x, x, x, slope=slope)) == (
        "alibied: are q, k and v (batch, length, heads, head dim)? They must be (batch, heads, length, head dim): "
        "transpose them, as in q.transpose(1, 2); slope must have shape (Hq) = (8,), not (2,)"
    )
    y = x.transpose(1, 2)
    assert kernel(y, y, y, slope=slope).shape == (1, 2, 8, 16)
    assert message(lambda: kernel(y, y, y, slope=slope[:0])).startswith("alibied: slope must have shape (Hq) = (2,)")


@pytest.mark.parametrize("target", JAX)
@pytest.mark.filterwarnings("ignore:.*interpreter:UserWarning")
def test_what_is_pytorchs_is_recognised(target: str) -> None:
    import jax.numpy as jnp

    kernel, x = compiled(ALIBI, target), drawn(1, 2, 8, 16)
    slope = np.array([0.1, 0.2], np.float32)
    assert message(lambda: kernel(x.numpy(), x.numpy(), x.numpy(), slope=slope)) == (
        "alibied: are q, k and v (batch, heads, length, head dim)? They must be (batch, length, heads, head dim): "
        "exchange the two, as in q.swapaxes(1, 2); slope must have shape (Hq) = (8,), not (2,)"
    )
    y = x.transpose(1, 2).contiguous()
    for name, given in (("q", (y, slope)), ("slope", (y.numpy(), torch.from_numpy(slope)))):
        said = message(lambda given=given: kernel(given[0], y.numpy(), y.numpy(), slope=given[1]))
        assert said == (
            f"alibied: {name} is a tensor of PyTorch, and must be an array of JAX, as jax.numpy.from_dlpack({name}) is"
            "; or compile the specification with target='triton'"
        )
    z = jnp.from_dlpack(y)
    assert kernel(z, z, z, slope=slope).shape == (1, 8, 2, 16)


def test_a_param_is_no_const() -> None:
    said = message(lambda: attngen.compile("attention a\nparam w: int\nmask = 0 <= q - k < w\n", w=3))
    assert said == "`w` is a param, not a const: give it at each call, kernel(q, k, v, w=…)"
