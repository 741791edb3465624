"""Pieces of a sequence in JAX, merged and finished, against the whole in float64: out, lse and every gradient."""

from __future__ import annotations

import functools
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attngen
from attngen import inputs, reference
from attngen.errors import UsageError
from attngen.prove.verdict import Obligation

pytestmark = pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPECS = {
    name: str(EXAMPLES / f"{name}.attn")
    for name in (
        *(
            "alibi",
            "causal",
            "chunked",
            "custom_normalizer",
            "dilated",
            "documents",
            "dropout",
            "prefix_lm",
            "sigmoid",
            "sink",
        ),
        *("sliding_window", "softcap", "softmax1", "windowed_alibi", "window_global", "full_bias"),
    )
}
SPECS["biased by row"] = (
    "attention r\nparam column: f32[B, Sk]\nparam row: f32[Sq]\n"
    "score = qk * scale + column[b, k] * row[q]\nmask = causal\n"
)
SPECS["plain sum"] = (
    "attention p\nparam escape: f32[Hq] where 0 < escape and escape < 9\n"
    "normalizer soft(e) {\n    weight(s) = sigmoid(s)\n    denominator = sum + e\n    shift = none\n}\n"
    "mask = causal\nnormalizer = soft(e = escape[h])\n"
)
SPECS["dropout, a sink"] = (
    "attention s\nparam slope: f32[Hq]\nparam sink: f32[Hq]\nparam p: f32 where 0 <= p < 1\n"
    "score = qk * scale - slope[h] * (q - k)\nmask = abs(q - k) < 20\n"
    "normalizer = softmax(sink = sink[h])\ndropout = p\n"
)
SEED = 2**40 + 9
SIZES = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 40, "Sk": 40, "D": 8, "Dv": 12}
CUTS = ((0, 20, 40), (0, 20, 20, 40))
"""Where queries and where keys are cut."""


def _whole(spec: str, target: str) -> tuple[attngen.Kernel, list[jax.Array], dict[str, Any]]:
    kernel = attngen.compile(SPECS[spec], target, tile=(16, 16) if target == "jax" else None)
    rng = np.random.default_rng(0)
    sizes = inputs.settle(kernel.spec, SIZES, fixed=set(SIZES))
    params = inputs.examples(kernel.spec, sizes, seed=0)
    params = {n: np.float32(x) if np.result_type(x) == np.float64 else x for n, x in params.items()}
    shapes = (sizes["Hq"], sizes["D"]), (sizes["Hkv"], sizes["D"]), (sizes["Hkv"], sizes["Dv"])
    return kernel, [jnp.asarray(rng.standard_normal((2, 40, *s)), jnp.float32) for s in shapes], params


def _most(right: Any, found: Any) -> float:
    right, found = np.asarray(right, np.float64), np.asarray(found, np.float64)
    return float(np.abs(right.reshape(found.shape) - found).max() / max(1.0, np.abs(right).max()))


@pytest.mark.parametrize("target", ["jax", "pallas"])
@pytest.mark.parametrize("spec", SPECS)
def test_pieces_in_jax_add_up_to_the_whole(spec: str, target: str) -> None:
    kernel, (q, k, v), params = _whole(spec, target)
    exact = [np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v)]
    drops = kernel.spec.dropout is not None
    seed = {"dropout_seed": SEED} if drops else {}
    right = reference.evaluate(kernel.spec, *exact, params=params, **seed)
    rng = np.random.default_rng(1)
    d_out, d_lse = rng.standard_normal(right.out.shape), rng.standard_normal(right.lse.shape)
    finite = np.isfinite(right.lse)
    slopes = reference.gradients(kernel.spec, *exact, d_out, np.where(finite, d_lse, 0.0), params=params, **seed)
    d_out, d_lse = jnp.asarray(d_out, jnp.float32).swapaxes(1, 2), jnp.asarray(d_lse, jnp.float32)
    partial = jax.jit(functools.partial(kernel.partial, Sq=40, Sk=40, **params, **seed))
    backward = jax.jit(functools.partial(kernel.partial_backward, Sq=40, Sk=40, **params, **seed))
    dk, dv, dq, totals = jnp.zeros_like(k), jnp.zeros_like(v), [], {}
    outs, lses = [], []
    for q0, q1 in pairwise(CUTS[0]):
        ends = list(pairwise(CUTS[1]))
        parts = [partial(q[:, q0:q1], k[:, k0:k1], v[:, k0:k1], q_offset=q0, k_offset=k0) for k0, k1 in ends]
        halves = [kernel.merge(parts[2:]), kernel.merge([parts[1], parts[0]])]
        out, lse = kernel.finish(*kernel.merge(halves), **params)
        assert out.dtype == lse.dtype == jnp.float32
        outs.append(out)
        lses.append(lse)
        own = jnp.zeros_like(q[:, q0:q1])
        for k0, k1 in ends:
            sums = own, dk[:, k0:k1], dv[:, k0:k1]
            own, own_dk, own_dv, found = backward(
                q[:, q0:q1], k[:, k0:k1], v[:, k0:k1], d_out[:, q0:q1], out, lse, d_lse=d_lse[:, :, q0:q1],
                q_offset=q0, k_offset=k0, accumulate=sums,
            )  # fmt: skip
            dk, dv = dk.at[:, k0:k1].set(own_dk), dv.at[:, k0:k1].set(own_dv)
            totals = {n: g + totals.get(n, 0.0) for n, g in found.items()}
        for n, g in kernel.finish_backward(d_out[:, q0:q1], out, lse, d_lse=d_lse[:, :, q0:q1], **params).items():
            totals[n] += g
        dq.append(own)
    out, lse = jnp.concatenate(outs, 1), jnp.concatenate(lses, 2)
    assert (np.isfinite(lse) == finite).all()
    wrong = {"out": _most(right.out.swapaxes(1, 2), out), "lse": _most(right.lse[finite], lse[finite])}
    wrong |= {
        n: _most(getattr(slopes, n).swapaxes(1, 2), g)
        for n, g in zip("qkv", (jnp.concatenate(dq, 1), dk, dv), strict=True)
    }
    wrong |= {n: _most(slopes.params[n], g) for n, g in totals.items()}
    assert set(totals) == set(slopes.params)
    assert all(e <= 3e-5 for e in wrong.values()), wrong


@pytest.mark.parametrize("target", ["jax", "pallas"])
def test_pieces_of_some_heads_and_sequences_drop_what_the_whole_drops(target: str) -> None:
    kernel, (q, k, v), params = _whole("dropout", target)
    params |= {"dropout_seed": SEED}
    right = kernel(q, k, v, **params)[:, 20:, 2:]
    rows, heads = slice(20, 40), slice(2, 4)
    place = {"q_offset": 20, "k_offset": 0, "Sq": 40, "Sk": 40, "h_offset": 2}

    def piece(b: slice, **given: Any) -> Any:
        return kernel.partial(q[b, rows, heads], k[b, :, 1:], v[b, :, 1:], **place, **params, **given)[0]

    assert _most(right, piece(slice(0, 2))) < 1e-6
    assert _most(right[1:], piece(slice(1, 2), b_offset=1)) < 1e-6
    assert _most(right[::-1], piece(slice(None, None, -1), b_offset=jnp.asarray([1, -1]))) < 1e-6
    assert _most(right[1:], piece(slice(1, 2))) > 0.1, "without its number, a sequence drops other weights"


def test_bfloat16_parts_are_not_rounded_and_gradients_start_from_finished_results() -> None:
    kernel = attngen.compile(SPECS["causal"], "jax", tile=(16, 16))
    q, k, v = (jnp.asarray(np.random.default_rng(i).standard_normal((1, 16, 1, 8)), jnp.bfloat16) for i in range(3))
    out, lse = kernel.partial(q, k, v, q_offset=0, k_offset=0, Sq=16, Sk=16)
    wide = kernel.partial(*(x.astype(jnp.float32) for x in (q, k, v)), q_offset=0, k_offset=0, Sq=16, Sk=16)
    np.testing.assert_allclose(out, wide[0], atol=1e-6)
    place = {"q_offset": 0, "k_offset": 0, "Sq": 16, "Sk": 16}
    forward = jax.make_jaxpr(functools.partial(kernel.partial, **place))(q, k, v)
    backward = jax.make_jaxpr(functools.partial(kernel.partial_backward, **place))(q, k, v, out, out, lse)
    assert " log " in str(forward) and " log " not in str(backward), "the forward pass takes the logarithm of its sums"


def test_numbers_for_each_batch_row() -> None:
    kernel = attngen.compile(SPECS["causal"], "jax", tile=(16, 16))
    q, k, v = (jnp.asarray(np.random.default_rng(i).standard_normal((2, 24, 1, 8)), jnp.float32) for i in range(3))
    place = {"Sq": jnp.asarray([24, 16]), "Sk": jnp.asarray([24, 16])}
    out, _ = kernel.partial(q[:, :8], k[:, :16], v[:, :16], q_offset=jnp.asarray([16, 8]), k_offset=0, **place)
    for b, (q0, n) in enumerate(((16, 24), (8, 16))):
        own = slice(b, b + 1)
        right = kernel.partial(q[own, :8], k[own, :16], v[own, :16], q_offset=q0, k_offset=0, Sq=n, Sk=n)
        np.testing.assert_allclose(out[own], right[0], atol=1e-6)


def test_what_a_piece_in_jax_refuses() -> None:
    kernel = attngen.compile(SPECS["sink"], "jax", tile=(16, 16))
    x, place = jnp.ones((1, 8, 2, 4)), {"q_offset": 0, "k_offset": 0, "Sq": 8, "Sk": 8}
    with pytest.raises(UsageError, match="partial is not differentiable by JAX"):
        jax.grad(lambda q: kernel.partial(q, x, x, **place)[0].sum())(x)
    with pytest.raises(UsageError, match="packed pieces are for"):
        kernel.partial(x, x, x, cu_seqlens_q=jnp.asarray([0, 8]), **place)
    with pytest.raises(UsageError, match="sink is missing: the denominator's own term reads it"):
        kernel.finish(x, jnp.ones((1, 2, 8)))
    with pytest.raises(UsageError, match="no param 'slope'"):
        kernel.partial(x, x, x, slope=1.0, **place)
    with pytest.raises(UsageError, match="k does not fit: its 8 rows from k_offset = 4 on pass the end"):
        kernel.partial(x, x, x, **{**place, "k_offset": 4})
    lse, sink = jnp.ones((1, 2, 8)), jnp.ones(2)
    for said, call in {
        "parts[0] must be a pair (out, lse), not ArrayImpl": lambda: kernel.merge((x, lse)),
        "out of parts[1] must have shape (1, 8, 2, 4), that of parts[0], not (1, 8, 2, 1)": (
            lambda: kernel.merge([(x, lse), (x[..., :1], lse)])
        ),
        "no param 'foo'": lambda: kernel.finish(x, lse, sink=sink, foo=1),
        "sink must have shape (Hq) = (2,), not (3,)": lambda: kernel.finish(x, lse, sink=jnp.ones(3)),
        "lse must have shape (1, 2, 8), that of out without its head dim": lambda: kernel.finish(
            x, lse[:, :1], sink=sink
        ),
        "q must be an array, not NoneType": lambda: kernel.partial(None, x, x, **place),
        "Sk must be an int, or an array with an int for each": lambda: kernel.partial(x, x, x, **{**place, "Sk": 8.0}),
        "q_offset must hold ints, not float32": lambda: kernel.partial(x, x, x, **{**place, "q_offset": jnp.zeros(1)}),
        "d_lse must have shape (1, 2, 8), that of lse": (
            lambda: kernel.partial_backward(x, x, x, x, x, lse, **place, sink=sink, d_lse=lse[:, :1])
        ),
        "accumulate[2] must be float32, not bfloat16": (
            lambda: kernel.partial_backward(
                x, x, x, x, x, lse, **place, sink=sink, accumulate=(x, x, x.astype(jnp.bfloat16))
            )
        ),
        "d_out must have shape (1, 8, 2, 4), that of out": (
            lambda: kernel.finish_backward(x[:, :1], x, lse, sink=sink)
        ),
    }.items():
        with pytest.raises(UsageError, match=re.escape(said)):
            call()
    dropped = attngen.compile(SPECS["dropout"], "jax", tile=(16, 16))
    with pytest.raises(UsageError, match="dropout_seed is missing: all pieces of a call draw from the same one"):
        dropped.partial(x, x, x, p=0.1, **place)


def test_ints_of_pieces_fit_32_bits() -> None:
    """JAX has no more. Sums of positions and offsets fit; a product that would saturate, with another answer, is
    refused."""
    for spec in ("causal", "sliding_window"):
        for clipped in (False, True):
            _, own = attngen.compile(SPECS[spec], "pallas").piece(clipped=clipped)
            assert own.proof is not None and own.plan.keys.all
            assert [c.subject for c in own.proof.of(Obligation.INTEGER_WIDTH).claims] == ["32 bits"]
    with pytest.raises(UsageError, match="not proved: saturation"):
        attngen.compile("attention c\nmask = k * 100 <= q * 100\n", "pallas").piece()
