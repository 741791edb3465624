"""Kernels of 8-bit floats, as their users call them: in Triton's interpreter, which computes in float32."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from hopper_model.cases import EXAMPLES

import attngen
from attngen import inputs, reference
from attngen.quantized import dequantized
from attngen.verify.comparison import Case, as_param

E4M3 = torch.float8_e4m3fn
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.attn"))
REFUSED = {"dropout"}
"""Weights are divided by what is kept."""


def tensors(*, heads: int = 2, rows: int = 40, dim: int = 32, offset: float = 0.0) -> tuple[torch.Tensor, ...]:
    """q, k, v with twice as many heads of queries; keys are `offset` from zero."""
    drawn = torch.Generator().manual_seed(rows)
    q, k, v = (torch.randn(2, n, rows, dim, generator=drawn) for n in (2 * heads, heads, heads))
    return tuple(x.requires_grad_() for x in (q, k + offset, v))  # pyright: ignore


def error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine.double() - theirs.double()).norm() / theirs.double().norm())


@pytest.mark.parametrize("name", [n for n in NAMES if n not in REFUSED])
def test_every_example_with_its_factors(name: str) -> None:
    """Beside the definition, over what the 8-bit floats stand for."""
    plain = attngen.compile(EXAMPLES / f"{name}.attn", target="torch")
    kernel = attngen.compile(EXAMPLES / f"{name}.attn", dtype="fp8")
    wanted = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 40, "Sk": 40, "D": 32, "Dv": 32}
    sizes = inputs.settle(plain.spec, wanted, fixed=("D", "Dv"))
    values = inputs.examples(plain.spec, sizes)
    params = {p.name: as_param(p, values[p.name], Case("", "fp32", ()), "cpu") for p in plain.spec.params}
    drawn = torch.Generator().manual_seed(1)
    q, k, v = (
        attngen.quantize(torch.randn(sizes["B"], sizes[h], sizes[s], 32, generator=drawn) * 3, heads=sizes["Hkv"])
        for h, s in (("Hq", "Sq"), ("Hkv", "Sk"), ("Hkv", "Sk"))
    )
    factors = {"q_descale": q.descale, "k_descale": k.descale, "v_descale": v.descale}
    with torch.no_grad():
        out, lse = kernel(q.values, k.values, v.values, **factors, **params, return_lse=True)
    right = reference.evaluate(plain.spec, *(dequantized(x).double() for x in (q, k, v)), params=params)
    assert out.dtype is torch.bfloat16 and kernel.proof is not None and kernel.proof.holds
    assert error(out, torch.from_numpy(right.out)) <= 4e-3
    met = np.isfinite(right.lse)
    assert np.abs(lse.numpy()[met] - right.lse[met]).max(initial=0.0) <= 1e-3


ALIBI = EXAMPLES / "alibi.attn"
WAYS: dict[str, dict[str, bool]] = {
    "plain": {},
    "smooth": {"smooth": True},
    "rotated": {"rotate": True},
    "both": {"smooth": True, "rotate": True},
}


@pytest.mark.parametrize(("way", "offset"), [*((way, 2.0) for way in WAYS), ("smooth", 30.0), ("both", 30.0)])
def test_gradients_go_straight_through(way: str, offset: float) -> None:
    """To the tensors that were quantized, and to params; keys have a mean, which smoothing takes off."""
    attend = attngen.compile(ALIBI)
    q, k, v = tensors(offset=offset)
    slope = torch.tensor([0.5, 0.25, 0.125, 0.0625], requires_grad=True)
    rotate = WAYS[way].get("rotate", False)
    given = attngen.quantize(q, heads=2, rotate=rotate), attngen.quantize(k, **WAYS[way]), attngen.quantize(v)  # pyright: ignore
    mine = attend(*given, slope=slope, return_lse=True)
    theirs = attend(q, k, v, slope=slope, return_lse=True)
    cotangents = [torch.randn(x.shape, generator=torch.Generator().manual_seed(i)) for i, x in enumerate(theirs)]
    for a, b in zip(mine, theirs, strict=True):
        assert error(a, b) <= (0.06 if WAYS[way].get("smooth") else 0.12)
    gradients = [
        torch.autograd.grad(found, (q, k, v, slope), [c.to(x.dtype) for c, x in zip(cotangents, found, strict=True)])
        for found in (mine, theirs)
    ]
    for a, b in zip(*gradients, strict=True):
        assert a.dtype is b.dtype and error(a, b) <= 0.12


def test_gradients_of_large_scores() -> None:
    """What the factors multiply is exact in bfloat16, rotated or not: the rows of weights sum to 1."""
    attend = attngen.compile(CAUSAL)
    q, k, v = (x.detach() for x in tensors(dim=64))
    q, k = (x * 6.0 for x in (q, k))
    for rotate in (False, True):
        narrow = [attngen.quantize(q, heads=2, rotate=rotate), attngen.quantize(k, rotate=rotate), attngen.quantize(v)]
        stands = [dequantized(x).requires_grad_() for x in narrow]
        given = [x._replace(source=s) for x, s in zip(narrow, stands, strict=True)]
        mine, theirs = attend(*given), attend(*stands)
        for a, b in zip(*(torch.autograd.grad(x.float().square().sum(), stands) for x in (mine, theirs)), strict=True):
            assert error(a, b) <= 0.03


def test_gradients_are_of_what_needs_them_and_once() -> None:
    attend = attngen.compile(CAUSAL)
    q, k, v = tensors()
    given = attngen.quantize(q, heads=2), attngen.quantize(k.detach()), attngen.quantize(v.detach())
    (once,) = torch.autograd.grad(attend(*given).float().square().sum(), q, create_graph=True)
    assert k.grad is None and once.abs().sum() > 0
    with pytest.raises(attngen.UsageError, match="a second derivative is not computed"):
        torch.autograd.grad(once.square().sum() + q.sum(), q)
    for options, said in (({"forward": True}, "without forward=True"), ({"dtype": "fp16"}, 'without dtype="fp16"')):
        other = attngen.compile(CAUSAL, **options)  # pyright: ignore
        with pytest.raises(attngen.UsageError, match=said):
            other(*given)
        with torch.no_grad():
            assert error(other(*given), attend(*given)) <= 0.01


def test_nothing_to_attend_to() -> None:
    q, k, v = (x.detach() for x in tensors())
    given = attngen.quantize(q, heads=2), attngen.quantize(k[:, :, :0], smooth=True), attngen.quantize(v[:, :, :0])
    out, lse = attngen.compile("attention a\n")(*given, return_lse=True)
    assert not out.any() and (lse == -float("inf")).all()


def test_smoothing_helps_where_keys_have_a_mean() -> None:
    attend = attngen.compile("attention a\nmask = causal\n")
    q, k, v = (x.detach() for x in tensors(offset=8.0))
    right = attend(q, k, v)
    plain, smooth = (
        error(attend(attngen.quantize(q, heads=2), attngen.quantize(k, smooth=s), attngen.quantize(v)), right)
        for s in (False, True)
    )
    assert smooth <= 0.05 <= 2 * smooth <= plain


def test_a_factor_may_be_a_number_and_the_scale_any_sign() -> None:
    attend = attngen.compile("attention a\nmask = causal\n", dtype="fp8")
    q, k, v = (x.detach().to(E4M3) for x in tensors())
    for scale in (0.3, -0.3, 0.0):
        out = attend(q, k, v, q_descale=0.5, v_descale=2.0, scale=scale, out_dtype=torch.float16)
        right = reference.evaluate(
            attngen.compile("attention a\nmask = causal\n", target="torch").spec,
            *(x.double().numpy() * f for x, f in ((q.float(), 0.5), (k.float(), 1.0), (v.float(), 2.0))),
            scale=scale,
        )
        assert out.dtype is torch.float16 and error(out, torch.from_numpy(right.out)) <= 1e-3


def test_a_scale_of_zero_keeps_what_is_no_number() -> None:
    """As in the definition, where 0 * NaN is no number: in 8 bits and in 16."""
    q, k, v = (x.detach() for x in tensors())
    q[0, 1, 3, 5] = torch.nan
    for dtype, cast in (("fp8", E4M3), (None, torch.float16)):
        attend = attngen.compile(CAUSAL, dtype=dtype)
        out = attend(*(x.to(cast) for x in (q, k, v)), scale=0.0)
        assert out.isnan().all(-1).nonzero().tolist() == [[0, 1, 3]]
        right = attend.reference(*(x.to(cast) for x in (q, k, v)), scale=0.0)
        assert np.array_equal(np.isnan(right), out.isnan().numpy())
        assert error(out[1], torch.from_numpy(right)[1]) <= 1e-2


def test_kinds_of_numbers_and_the_reference() -> None:
    attend = attngen.compile(CAUSAL, dtype="fp8")
    given = [x.detach().to(E4M3) for x in tensors()]
    out = attend(*given, q_descale=np.float32(0.5), k_descale=2)
    wide = torch.from_numpy(attend.reference(*given, q_descale=0.5, k_descale=torch.full((2, 2), 2.0)))
    assert error(out, wide) <= 4e-3
    meta = attend(*(x.to("meta") for x in given), v_descale=2.0)
    assert meta.is_meta and meta.shape == out.shape and meta.dtype is torch.bfloat16
    narrow = [attngen.quantize(x.detach(), heads=2) for x in tensors()]
    plain = attngen.compile(CAUSAL)
    assert error(plain(*narrow), torch.from_numpy(plain.reference(*narrow))) <= 4e-3


def test_layouts_and_granularity() -> None:
    x = (torch.randn(2, 40, 4, 32) * torch.tensor([1.0, 1.0, 8.0, 8.0])[:, None]).transpose(1, 2)
    by_head, whole = attngen.quantize(x, heads=2), attngen.quantize(x, "tensor", heads=2)
    assert by_head.values.stride() == x.stride() and by_head.descale.shape == whole.descale.shape == (2, 2)
    assert whole.descale.unique().numel() == 1 < by_head.descale.unique().numel()
    for found in (by_head, whole):
        assert error(dequantized(found), x) <= 0.04 and not found.values.float().isnan().any()
    nothing = attngen.quantize(torch.zeros(1, 2, 4, 32))
    assert (nothing.descale == 1.0).all() and not nothing.values.float().any()


def test_a_rotation_is_its_own_inverse() -> None:
    x = torch.zeros(1, 1, 3, 64)
    x[0, 0, 1, 5] = 100.0  # an outlier, which spreads
    found = attngen.quantize(x, rotate=True)
    assert error(dequantized(found), x) <= 0.04
    assert found.values.float().abs()[0, 0, 1].min() == found.values.float().abs().max()


def test_torch_compile_and_pickles() -> None:
    attend = attngen.compile("attention a\nmask = causal\n", dtype="fp8")
    q, k, v = (x.detach().to(E4M3) for x in tensors())
    factors = {name: torch.full((2, 2), 0.5) for name in ("q_descale", "k_descale", "v_descale")}
    plain = attend(q, k, v, **factors)
    compiled: Any = torch.compile(lambda *given: attend(*given, **factors), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), plain)
    assert torch.equal(pickle.loads(pickle.dumps(attend))(q, k, v, **factors), plain)


def test_one_graph_without_gradients() -> None:
    attend = attngen.compile(CAUSAL)
    q, k, v = (x.detach() for x in tensors())
    given = attngen.quantize(q, heads=2), attngen.quantize(k, smooth=True), attngen.quantize(v)
    compiled: Any = torch.compile(lambda *given: attend(*given, return_lse=True), fullgraph=True, backend="aot_eager")
    for mine, theirs in zip(compiled(*given), attend(*given, return_lse=True), strict=True):
        assert error(mine, theirs) <= 1e-6


CAUSAL = "attention a\nmask = causal\n"
WRONG: dict[str, tuple[str, Any, str]] = {
    "another dtype": (CAUSAL, lambda f, q, k, v: f(q, k, v), "q must be float8_e4m3fn, not torch.float16"),
    "a narrow head": (
        CAUSAL,
        lambda f, q, k, v: f(*(x[..., :16].to(E4M3) for x in (q, k, v))),
        "head dims of 8-bit floats must be multiples of 16, from 32 on, not 16 and 16",
    ),
    "a result in float32": (
        CAUSAL,
        lambda f, q, k, v: f(*(x.to(E4M3) for x in (q, k, v)), out_dtype=torch.float32),
        "out_dtype must be torch.bfloat16 or torch.float16, not torch.float32",
    ),
    "a gradient": (
        CAUSAL,
        lambda f, q, k, v: f(q.to(E4M3).requires_grad_(), k.to(E4M3), v.to(E4M3)),
        "8-bit floats have no gradients",
    ),
    "a negative factor": (
        CAUSAL,
        lambda f, q, k, v: f(*(x.to(E4M3) for x in (q, k, v)), q_descale=torch.full((2, 2), -1.0), check=True),
        "must satisfy 0.0 < q_descale",
    ),
    "one that is quantized": (
        CAUSAL,
        lambda f, q, k, v: f(attngen.quantize(q, heads=2), k, v),
        "k must be what attngen.quantize returns, as the others are",
    ),
    "one that is rotated": (
        CAUSAL,
        lambda f, q, k, v: f(attngen.quantize(q, heads=2, rotate=True), *map(attngen.quantize, (k, v))),
        "rotate q and k, or neither, and not v",
    ),
    "no factor": (
        CAUSAL,
        lambda f, q, k, v: f(*(x.to(E4M3) for x in (q, k, v)), k_descale=10**400),
        "k_descale must be above 0 and finite in float32",
    ),
    "lengths": (
        CAUSAL,
        lambda f, q, k, v: f(*(x.to(E4M3) for x in (q, k, v)), k_stop=torch.ones(2, dtype=torch.int32)),
        "8-bit floats are taken by dense calls alone, not by lengths",
    ),
    "an unknown argument": (
        CAUSAL,
        lambda f, q, k, v: f(attngen.quantize(q, heads=2), *map(attngen.quantize, (k, v)), slope=1.0),
        "unexpected keyword argument 'slope'",
    ),
    "a tensor too many": (
        CAUSAL,
        lambda f, q, k, v: f(attngen.quantize(q, heads=2), *map(attngen.quantize, (k, v, v))),
        "takes q, k and v and then named arguments, not 4 tensors",
    ),
    "one twice": (
        CAUSAL,
        lambda f, q, k, v: f(attngen.quantize(q, heads=2), *map(attngen.quantize, (k, v)), q=q),
        "takes q, k and v and then named arguments, not q twice",
    ),
    "smooth keys": (
        CAUSAL,
        lambda f, q, k, v: f(attngen.quantize(q, heads=2), attngen.quantize(k, smooth=True), attngen.quantize(v)),
        'keys are smooth for kernels that were compiled without dtype="fp8"',
    ),
    "smooth queries": (
        CAUSAL,
        lambda f, q, k, v: f(attngen.quantize(q, heads=2, smooth=True), *map(attngen.quantize, (k, v))),
        "smooth is for k alone",
    ),
}
SMOOTH: dict[str, tuple[str, str]] = {
    "a soft cap": ("score = softcap(qk * scale, 30.0)\n", "the score is not scale * q . k and terms without q . k"),
    "a step": (
        "score = qk * scale + (3.0 if qk > 0.0 else 0.0)\n",
        "the score is not scale * q . k and terms without q . k",
    ),
    "a sink": (
        "param s: f32[Hq]\nnormalizer = softmax(sink = s[h])\n",
        "the normalizer `softmax` is not softmax alone",
    ),
    "sigmoid": ("normalizer = sigmoid\n", "is not softmax alone"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused(wrong: str) -> None:
    text, call, said = WRONG[wrong]
    q, k, v = (x.detach().half() for x in tensors())
    with pytest.raises(attngen.UsageError, match=re.escape(said)):
        call(attngen.compile(text, dtype="fp8"), q, k, v)


@pytest.mark.parametrize("seen", SMOOTH)
def test_smoothing_is_refused_where_the_result_would_change(seen: str) -> None:
    body, why = SMOOTH[seen]
    attend = attngen.compile(f"attention a\n{body}")
    q, k, v = (x.detach() for x in tensors())
    params = {"s": torch.zeros(4)} if "param s" in body else {}
    with pytest.raises(attngen.UsageError, match="k must not be smooth, since .*" + re.escape(why)):
        attend(attngen.quantize(q, heads=2), attngen.quantize(k, smooth=True), attngen.quantize(v), **params)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("attention a\ndropout = 0.1\n", "dropout divides weights by what it keeps"),
        ("attention a\nparam k_descale: f32\nscore = qk * scale * k_descale\n", "`k_descale` is an argument of"),
        (
            "attention a\nnormalizer n {\nweight(s) = max(s, 0.0)\ndenominator = sum + 1\nshift = none\n}\n"
            "normalizer = n\n",
            "the weights of normalizer `n` are not known to be at most 1",
        ),
    ],
)
def test_a_spec_that_8_bits_do_not_hold_is_refused(text: str, said: str) -> None:
    with pytest.raises(attngen.SpecError, match=re.escape(said)):
        attngen.compile(text, dtype="fp8")


def test_what_is_no_tensor_for_it_is_refused() -> None:
    for given, said in (
        ((torch.zeros(2, 3),), "x must be a float tensor"),
        ((torch.zeros(1, 1, 2, 2), "row"), 'granularity must be "head" or "tensor"'),
    ):
        with pytest.raises(attngen.UsageError, match=said):
            attngen.quantize(*given)  # pyright: ignore
    with pytest.raises(attngen.UsageError, match="heads must divide the 4 heads of x, not 3"):
        attngen.quantize(torch.zeros(1, 4, 2, 32), heads=3)
    with pytest.raises(attngen.UsageError, match="rotate needs a head dim that is a power of two, not 48"):
        attngen.quantize(torch.zeros(1, 4, 2, 48), rotate=True)
    with pytest.raises(attngen.UsageError, match="8-bit floats are for kernels that were compiled for target triton"):
        attngen.compile(CAUSAL, target="torch")(*[attngen.quantize(torch.zeros(1, 1, 2, 32))] * 3)


def test_packed_rows_are_refused() -> None:
    q, k, v = (x.detach() for x in tensors())
    given = attngen.quantize(q, heads=2), attngen.quantize(k), attngen.quantize(v)
    with pytest.raises(attngen.UsageError, match="8-bit floats are taken by dense calls alone: give varlen bfloat16"):
        attngen.compile(CAUSAL).varlen(*given, cu_seqlens_q=torch.zeros(2, dtype=torch.int32))


def test_the_fix_of_weights_that_8_bits_do_not_hold() -> None:
    text = "attention a\nnormalizer n {\nweight(s) = min(max(s, 0.0), 1.0)\ndenominator = sum + 1\nshift = none\n}\n"
    assert attngen.compile(f"{text}normalizer = n\n", dtype="fp8").source
