"""The jax target beside the parity suite: names, transformations, several tiles at a time, and what it never makes."""

from __future__ import annotations

import ast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emit_names import CLASHES, SPECS, names_beside_params

import attngen
from attngen import targets
from attngen.emit.jax.names import reserved
from attngen.verify.comparison import Case, compare

SIZES = {"B": 1, "Hq": 2, "Hkv": 1, "Sq": 20, "Sk": 20, "D": 16, "Dv": 16}


def check(text: str, **sizes: int) -> None:
    kernel = attngen.compile(text, "jax", tile=(16, 16))
    results = list(compare(kernel, Case("small", "fp32", tuple((SIZES | sizes).items())), "cpu"))
    assert len(results) >= 5
    assert [r for r in results if not r.passed] == []


@pytest.mark.parametrize("name", SPECS)
def test_every_name_of_the_templates_is_reserved(name: str) -> None:
    missing = names_beside_params(attngen.compile(SPECS[name], "jax").source) - reserved()
    assert not missing, f"names that the templates use and a param could take: {sorted(missing)}"


@pytest.mark.parametrize("what", ["locals of the kernels", "modules and builtins", "derived names", "case"])
def test_names_that_clash(what: str) -> None:
    check(f"attention subject\n{CLASHES[what]}\nmask = causal\n")


@pytest.mark.parametrize(
    "body",
    [
        "mask = D > 500 or causal",
        "score = min(qk, 1) + max(k - q, 3) + abs(q - k) * sign(float(q) - float(k)) + int(qk) + floor(qk) + ceil(qk)",
        "param w: f32[Sk, Hq]\nscore = qk * scale + w[k, h]",
        "param w: f32[Sk, Sq]\nscore = qk * scale + w[k, q]",
        "param w: f32[Hkv, Sq, Sk]\nscore = qk * scale + w[hkv, q, k]",
        "param t: f32[3]\nscore = qk * scale + (t[q % 5] if q % 5 < 3 else 0.0)",
        "param flag: bool[B, Sq]\nmask = flag[b, q]",
        "param at: int[B, Hq, Sk]\nmask = at[b, h, k] <= q",
    ],
)
def test_corners_of_the_language(body: str) -> None:
    check(f"attention a\n{body}\n")


@pytest.mark.parametrize(
    "body",
    [
        "param w: f32[Hkv, Sq, Sk]\nscore = qk * scale + w[hkv, q, k]",
        "param near: bool[Hkv, Sk, Sq]\nparam bad: bool[B, Hq, Sq, Sk]\nmask = near[hkv, k, q] or bad[b, h, q, k]",
    ],
)
def test_params_of_pairs_are_shared_by_the_heads_that_share_keys(body: str) -> None:
    check(f"attention a\n{body}\n", B=2, Hq=4, Hkv=2)


SPEC = "attention a\nparam slope: f32[Hq]\nscore = qk * scale + alibi(slope)\nmask = sliding_window(40)\n"


def given(batch: int = 2, length: int = 70) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 4)
    q = jax.random.normal(keys[0], (batch, length, 2, 16))
    k, v = (jax.random.normal(key, (batch, length, 1, 16)) for key in keys[1:3])
    return q, k, v, jnp.abs(jax.random.normal(keys[3], (2,)))


def loss(function, q, k, v, slope):  # type: ignore[no-untyped-def]
    return (function(q, k, v, slope=slope) ** 2).sum()


def test_several_tiles_at_a_time_give_the_same() -> None:
    kernel = attngen.compile(SPEC, "jax", tile=(16, 16))
    module = targets.named("jax").load(kernel.source, kernel.name)
    found = []
    for together in (1, 3, 8):
        module.TOGETHER["cpu"] = together
        found.append(jax.jit(jax.grad(lambda *x: loss(kernel.function, *x), argnums=(0, 1, 2, 3)))(*given()))
    module.TOGETHER["cpu"] = 1
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


def test_jit_vmap_and_checkpoint() -> None:
    function = attngen.compile(SPEC, "jax", tile=(16, 16)).function
    q, k, v, slope = given()
    plain = jax.grad(lambda *x: loss(function, *x), argnums=(0, 3))(q, k, v, slope)
    saved = jax.jit(jax.grad(jax.checkpoint(lambda *x: loss(function, *x)), argnums=(0, 3)))(q, k, v, slope)
    for one, two in zip(plain, saved, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
    each = jax.vmap(lambda q, k, v: function(q[None], k[None], v[None], slope=slope)[0])(q, k, v)
    np.testing.assert_allclose(each, function(q, k, v, slope=slope), rtol=1e-5, atol=1e-5)


def test_no_array_of_the_whole_score_is_made() -> None:
    function = attngen.compile(SPEC, "jax", tile=(64, 64)).function
    text = str(jax.make_jaxpr(jax.grad(lambda *x: loss(function, *x)))(*given(1, 2048)))
    assert "2048,2048" not in text and "while" in text


def test_the_file_imports_jax_alone() -> None:
    tree = ast.parse(attngen.compile("attention a", "jax").source)
    modules = {n.module for n in tree.body if isinstance(n, ast.ImportFrom)}
    modules |= {alias.name for n in tree.body if isinstance(n, ast.Import) for alias in n.names}
    assert modules <= {"__future__", "functools", "math", "typing", "jax", "jax.numpy"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": jnp.ones((2, 3, 4))}, "q must have 4 dimensions"),
        ({"k": jnp.ones((1, 5, 2, 3))}, "k must have q's batch and head dim"),
        ({"q": jnp.ones((1, 5, 3, 4))}, "q's 3 heads must be a multiple of the 2 heads"),
        ({"slope": jnp.ones(3)}, r"slope must have shape \(Hq\) = \(2,\), not \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, jax.Array], message: str) -> None:
    kernel = attngen.compile("attention a\nparam slope: f32[Hq]\nscore = qk * slope[h]\n", "jax")
    arguments = {n: jnp.ones((1, 5, 2, 4)) for n in "qkv"} | {"slope": jnp.ones(2)} | change
    with pytest.raises(ValueError, match=f"a: {message}"):
        kernel(**arguments)


def test_a_refused_assume_names_sizes_and_params() -> None:
    kernel = attngen.compile(
        "attention a\nparam n: int\nassume n <= Sq\nscore = qk * scale\nmask = k < n\n", target="jax"
    )
    q = jnp.zeros((1, 8, 1, 16))
    with pytest.raises(attngen.UsageError, match=r"assumes n <= Sq; here Sq = 8, n = 9$"):
        kernel(q, q, q, n=9)
