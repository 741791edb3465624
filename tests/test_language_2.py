"""What version 2 of the language added: bits of ints, small ints, `tan`, `fixed`, floats of any dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attngen
from attngen import api, reference
from attngen.errors import Source

PACKED = """attention packed
param words: int[B, W]
mask = k <= q and ((words[b, k >> 5] >> (k & 31)) & 1 == 1 or k < 2)
"""


def ir(body: str) -> str:
    return api.stage("ir", Source(f"attention a\n{body}\n"), api.options("triton"))


def line(body: str, word: str = "mask") -> str:
    return next(x for x in ir(body).split("\n") if x.startswith(word))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("k >> 3 == 1", "k // 8 == 1"),
        ("k << 3 == 8", "k * 8 == 8"),
        ("k & 7 == 1", "k % 8 == 1"),
        ("~k == -3", "-k - 1 == -3"),
        ("1 << 2 | 1 == k", "5 == k"),
        ("k ^ q & 6 == 0", "k ^ q & 6 == 0"),
        ("(k ^ q) & 6 == 0", "(k ^ q) & 6 == 0"),
        ("k >> q - 1 < 4", "k >> q - 1 < 4"),
    ],
)
def test_bits_are_arithmetic_where_they_can_be(written: str, meant: str) -> None:
    assert line(f"mask = {written}") == f"mask = {meant}"


def test_operators_on_bits_bind_as_in_python() -> None:
    values = {"u": 45, "w": 27, "n": 3}
    consts = "\n".join(f"const {name} = {value}" for name, value in values.items())
    for text in ("u | w ^ n & u << n", "~u + w >> 1", "u ^ w | n << 2 & u - w", "-u >> n & ~w ** 2"):
        assert line(f"{consts}\nmask = k == ({text})") == f"mask = k == {eval(text, dict(values))}", text
    assert line(f"{consts}\nmask = u & w == w | n") == f"mask = {str(eval('u & w == w | n', dict(values))).lower()}"


@pytest.mark.parametrize("target", ["triton", "torch", "jax", "pallas"])
def test_a_packed_mask_is_its_bools(target: str) -> None:
    """Beside a dense attention with the unpacked bits; bit 31, the sign, among them."""
    rng = np.random.default_rng(0)
    B, H, S, D = 2, 2, 70, 16
    bits = rng.random((B, 96)) < 0.5
    bits[:, 31] = True
    words = np.packbits(bits, axis=1, bitorder="little").view(np.uint32).astype(np.int64)
    words = np.where(words >= 2**31, words - 2**32, words)
    q, k, v = (rng.standard_normal((B, H, S, D)).astype(np.float32) for _ in range(3))
    kernel = attngen.compile(PACKED, target=target)
    if target in ("triton", "torch"):
        tensors = [torch.tensor(x) for x in (q, k, v)]
        out = kernel(*tensors, words=torch.tensor(words, dtype=torch.int32)).numpy()
    else:
        import jax.numpy as jnp

        arrays: list[Any] = [jnp.asarray(x.swapaxes(1, 2)) for x in (q, k, v)]
        out = np.asarray(kernel(*arrays, words=jnp.asarray(words, jnp.int32))).swapaxes(1, 2)
    i = np.arange(S)
    allowed = (i <= i[:, None]) & (bits[:, None, None, :S] | (i < 2))
    scores = np.where(allowed, q.astype(float) @ k.swapaxes(-1, -2) / np.sqrt(D), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v
    assert np.abs(out - want).max() < 2e-5


@pytest.mark.parametrize("storage", ["u8", "i8", "i16"])
def test_small_ints_do_not_wrap(storage: str) -> None:
    top = {"u8": 255, "i8": 127, "i16": 32767}[storage]
    kernel = attngen.compile(f"attention small\nparam t: {storage}[Sk]\nmask = t[k] + 1 > {top} or k == 0\n")
    dtype = {"u8": torch.uint8, "i8": torch.int8, "i16": torch.int16}[storage]
    q, k, v = (torch.randn(1, 1, 5, 16) for _ in range(3))
    t = torch.tensor([0, top, 0, 0, 0], dtype=dtype)
    found = kernel(q, k, v, t=t)
    want = torch.nn.functional.scaled_dot_product_attention(q, k[..., :2, :], v[..., :2, :])
    assert (found - want).abs().max() < 1e-5


@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.parametrize("line", ["mask = keep[b, k]", "mask = not keep[b, k]", "score = qk + float(keep[b, k])"])
def test_a_bool_may_come_as_bytes(target: str, line: str) -> None:
    """Any byte but 0 is true."""
    kernel = attngen.compile(f"attention kept\nparam keep: bool[B, Sk]\n{line}\n", target=target)
    q, k, v = (torch.randn(2, 1, 5, 16) for _ in range(3))
    keep = torch.tensor([[1, 0, 2, 255, 0], [0, 1, 4, 0, 1]], dtype=torch.uint8)
    assert torch.equal(kernel(q, k, v, keep=keep), kernel(q, k, v, keep=keep.bool()))


@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_float_param_takes_any_float_dtype(target: str, dtype: torch.dtype) -> None:
    """Its values count in float32, and its gradient has its own dtype."""
    text = "attention tilted\nparam slope: f32[Hq]\nscore = qk * scale - slope[h] * float(q - k)\nmask = causal\n"
    kernel = attngen.compile(text, target=target)
    q, k, v = (torch.randn(1, 2, 9, 16) for _ in range(3))
    slope = torch.tensor([0.25, 0.5], dtype=dtype, requires_grad=True)
    plain = slope.detach().float().requires_grad_()
    for s in (slope, plain):
        kernel(q, k, v, slope=s).square().sum().backward()
    assert slope.grad is not None and plain.grad is not None and slope.grad.dtype == dtype
    assert torch.equal(slope.grad, plain.grad.to(dtype))


def test_a_float_param_of_another_dtype_in_jax() -> None:
    import jax
    import jax.numpy as jnp

    text = "attention tilted\nparam slope: f32[Hq]\nscore = qk * scale - slope[h] * float(q - k)\nmask = causal\n"
    q, k, v = (jnp.asarray(np.random.default_rng(n).standard_normal((1, 9, 2, 16)), jnp.float32) for n in range(3))
    for target in ("jax", "pallas"):
        kernel = attngen.compile(text, target=target).function
        gradient = jax.grad(lambda slope, kernel=kernel: (kernel(q, k, v, slope=slope) ** 2).sum())
        half = gradient(jnp.asarray([0.25, 0.5], jnp.bfloat16))
        assert half.dtype == jnp.bfloat16
        whole = gradient(jnp.asarray([0.25, 0.5], jnp.float32))
        assert np.allclose(np.asarray(half, np.float32), np.asarray(whole), rtol=1e-2)


def test_a_fixed_param_has_no_gradient_and_its_place_is_printed() -> None:
    text = "attention still\nparam tilt: f32[Sk] where tilt > 0 fixed\nscore = qk * scale + tilt[k]\n"
    kernel = attngen.compile(text)
    assert not kernel.plan.gradients and "param tilt: f32[Sk] where 0.0 < tilt fixed" in ir(text.split("\n", 1)[1])
    q, k, v = (torch.randn(1, 1, 6, 16, requires_grad=True) for _ in range(3))
    tilt = torch.rand(6) + 0.1
    tilt.requires_grad_()
    kernel(q, k, v, tilt=tilt).sum().backward()
    assert tilt.grad is None or not tilt.grad.any()
    assert q.grad is not None and attngen.compile(text.replace(" fixed", "")).plan.gradients


def test_fixed_is_for_floats() -> None:
    with pytest.raises(attngen.SpecError, match=r"3:20: error\[fixed\]: `n` is no float"):
        attngen.compile("attention a\n\nparam n: int[Hq]   fixed\nmask = k < n[h]\n")


def test_tan_is_known_and_gives_way_to_a_files_own() -> None:
    assert line("score = tan(clamp(qk, -1.0, 1.0))", "score").startswith("score = sin(")
    assert line("let tan(x) = x + 1.0\nscore = tan(qk)", "score") == "score = qk + 1.0"
    assert line("param tan: f32\nscore = tan * qk", "score") == "score = tan * qk"
    assert line("param t: f32[tan]\nscore = qk * t[q % tan]", "score") == "score = qk * t[q % tan]"


def test_a_tangent_is_finite_where_the_cosine_is_not_zero() -> None:
    attngen.compile("attention tangent\nscore = tan(clamp(qk * scale, -1.5, 1.5))\n")
    with pytest.raises(attngen.SpecError, match="range-safety"):
        attngen.compile("attention tangent\nscore = tan(clamp(qk * scale, -1.6, 1.6))\n")


def test_a_shift_that_may_be_too_far_is_refused() -> None:
    with pytest.raises(attngen.Refuted, match="`q >> k` can shift by less than 0 or by more than 31") as caught:
        attngen.compile("attention shifted\nmask = q >> k == 0\n")
    assert "& 31" in str(caught.value)


def test_fixed_is_a_name_where_the_grammar_takes_one() -> None:
    assert "param fixed: f32" in ir("param fixed: f32 where fixed > 0 fixed\nscore = qk * fixed")


def test_the_reference_repeats_dims_of_size_1() -> None:
    """As kernels do, and the gradient has the shape that was given."""
    kernel = attngen.compile("attention a\nparam a: f32[Hq, Sk]\nscore = qk * scale + a[h, k]\n", target="torch")
    q, k, v = torch.randn(3, 1, 2, 12, 16)
    a = torch.randn(1, 12, requires_grad=True)
    out = kernel(q, k, v, a=a)
    torch.testing.assert_close(out.double(), torch.from_numpy(kernel.reference(q, k, v, a=a)), rtol=1e-5, atol=1e-5)
    out.sum().backward()
    found = reference.gradients(kernel.spec, q, k, v, np.ones(out.shape), params={"a": a}).params["a"]
    torch.testing.assert_close(a.grad.double(), torch.from_numpy(found), rtol=1e-4, atol=1e-5)
    with pytest.raises(attngen.UsageError, match=r"param `a` has shape \(1, 11\); expected \(2, 12\)"):
        kernel.reference(q, k, v, a=a[:, 1:])
