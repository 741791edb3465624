"""Generated Pallas functions under JAX's transformations, and the form in which the grid brings the tiles.

Every transformation must give what the plain call gives; the two forms of a kernel must agree.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attngen
from attngen.runtime.loader import execute

pytestmark = pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning")
EXAMPLES = Path(__file__).parents[2] / "examples"
Arrays = dict[str, jax.Array]


@functools.cache
def source(name: str, **consts: int) -> str:
    return attngen.compile(EXAMPLES / f"{name}.attn", "pallas", tile=(16, 16), consts=consts).source


def module(name: str, **consts: int) -> ModuleType:
    """A fresh module, whose settings a test may change."""
    return execute(source(name, **consts), name)


def function(name: str, **consts: int) -> Callable[..., jax.Array]:
    return getattr(module(name, **consts), name)


def numbers(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def operands(batch: int = 2, rows: int = 35, columns: int = 35, heads: int = 2, kv_heads: int = 1) -> Arrays:
    return {
        "q": numbers(batch, rows, heads, 16),
        "k": numbers(batch, columns, kv_heads, 16, seed=1),
        "v": numbers(batch, columns, kv_heads, 16, seed=2),
    }


def close(a: object, b: object) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def loss(attend: Callable[..., tuple[jax.Array, jax.Array]], arrays: Arrays) -> jax.Array:
    out, lse = attend(**arrays, return_lse=True)
    return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum() + 0.1 * lse.sum()


def gradients(attend: Callable[..., tuple[jax.Array, jax.Array]], arrays: Arrays) -> Arrays:
    return jax.grad(lambda a: loss(attend, a))(arrays)


# ---------------------------------------------------------------- transformations


def test_jit_grad_and_checkpoint_agree_with_the_plain_call() -> None:
    attend = function("alibi")
    arrays = {**operands(), "slope": jnp.asarray([0.25, 0.5])}
    want = gradients(attend, arrays)
    close(jax.jit(lambda a: gradients(attend, a))(arrays), want)
    kept = jax.checkpoint(lambda **a: attend(**a))
    close(gradients(lambda return_lse, **a: attend(return_lse=True, **a), arrays), want)
    close(jax.grad(lambda a: (kept(**a) ** 2).sum())(arrays), jax.grad(lambda a: (attend(**a) ** 2).sum())(arrays))


def test_vmap_over_operands_and_params() -> None:
    attend = function("alibi")
    stacked = {
        name: jnp.stack([x, 0.5 * x, -x]) for name, x in {**operands(), "slope": jnp.asarray([0.25, 0.5])}.items()
    }
    got = jax.vmap(lambda a: gradients(attend, a))(stacked)
    for i in range(3):
        close(jax.tree.map(lambda x, i=i: x[i], got), gradients(attend, jax.tree.map(lambda x, i=i: x[i], stacked)))


def test_vmap_over_queries_alone() -> None:
    attend = function("sliding_window", window=9)
    arrays = operands()
    many = jnp.stack([arrays["q"], 2 * arrays["q"]])
    got = jax.vmap(lambda q: attend(q, arrays["k"], arrays["v"]))(many)
    close(got[1], attend(many[1], arrays["k"], arrays["v"]))


# ---------------------------------------------------------------- the two forms


def streamed(name: str, **consts: int) -> Callable[..., jax.Array]:
    """The function on a chip with no room for a head: the grid brings the tiles."""
    found = module(name, **consts)
    found.VMEM = {**found.VMEM, "cpu": 0}
    return getattr(found, name)


CASES: dict[str, tuple[dict[str, int], Arrays]] = {
    "causal": ({}, {}),
    "sliding_window": ({"window": 9}, {}),
    "window_global": ({"radius": 6, "globals": 3}, {}),
    "documents": ({}, {"ids": jnp.asarray(np.repeat([[0, 1, 2, 1, 3]] * 2, 7, axis=1))}),
    "cross_attention": ({}, {"lengths": jnp.asarray([20, 0])}),
    "full_bias": ({}, {"bias": numbers(2, 35, 35, seed=3)}),
    "relative_bias": ({"radius": 7}, {"table": numbers(2, 15, seed=4)}),
    "sigmoid": ({}, {}),
    "custom_normalizer": ({}, {"temperature": jnp.asarray([0.5, 2.0]), "escape": jnp.asarray([0.1, -0.3])}),
}


@pytest.mark.parametrize("name", CASES)
def test_streamed_tiles_give_what_resident_heads_give(name: str) -> None:
    consts, params = CASES[name]
    arrays = operands()
    learned = {n: x for n, x in params.items() if x.dtype == jnp.float32}
    data = {n: x for n, x in params.items() if n not in learned}
    resident, grid = (functools.partial(f(name, **consts), **data) for f in (function, streamed))
    run = jax.jit(lambda a: gradients(resident, a)), jax.jit(lambda a: gradients(grid, a))
    close(run[1]({**arrays, **learned}), run[0]({**arrays, **learned}))


WALKS = {
    "causal": {},
    "full_bias": {},
    "sliding_window": {"window": 40},
    "window_global": {"radius": 20, "globals": 3},
    "sigmoid": {},
}


@pytest.mark.parametrize("name", WALKS)
@pytest.mark.parametrize("length", [64, 139])
def test_tiles_one_after_the_other_give_what_loops_give(name: str, length: int) -> None:
    """`unroll` full tiles go into the loop's body, and what is left behind it, as many as `STRAIGHT` allows."""
    arrays = operands(1, length, length) | ({"bias": numbers(2, length, length, seed=3)} if name == "full_bias" else {})
    found: list[jax.Array] = []
    for straight, unroll in ((0, 1), (0, 2), (99, 1), (99, 2), (99, 4), (99, 16)):
        made = module(name, **WALKS[name])
        made.STRAIGHT, made.TILES = straight, {("cpu", 4): ((16, 16, unroll), (16, 16, 1), (16, 16, 1))}
        found.append(jnp.concatenate([x.ravel() for x in getattr(made, name)(**arrays, return_lse=True)]))
    for other in found[1:]:
        close(other, found[0])


def test_bounds_of_floats_are_not_counted_beforehand() -> None:
    """A chip may round them otherwise than the machine that traces, and no stretch of code would fit."""
    text = "attention near\nparam width: f32\nmask = 0 <= q - k and q - k < floor(width)\n"
    kernel = attngen.compile(text, "pallas", tile=(16, 16), allow_unproved=("tile-ranges",))
    arrays = operands()
    close(kernel(**arrays, width=9.5), kernel.reference(**arrays, width=9.5))
    assert "counts=counts" not in kernel.source
    assert "counts=counts" in source("sliding_window", window=9)


@pytest.mark.parametrize(("name", "dim"), [("causal", 128), ("softmax1", 128), ("causal", 64)])
@pytest.mark.parametrize("spread", [0.3, 4.0])
def test_weights_that_the_matrix_unit_adds_up_are_no_less_exact(name: str, dim: int, spread: float) -> None:
    """On chips with columns to spare: numerator and denominator are then rounded alike. An lse is not made of them."""
    attend, text = attngen.compile(EXAMPLES / f"{name}.attn", "pallas"), source(name)
    arrays = {n: numbers(1, 256, 2, dim, seed=i).astype(jnp.bfloat16) for i, n in enumerate("qkv")}
    arrays["q"] = arrays["q"] * jnp.bfloat16(spread)
    exact = np.asarray(attend.reference(**{n: np.asarray(x, np.float64) for n, x in arrays.items()}), np.float64)
    off: list[float] = []
    kept: list[jax.Array] = []
    for wide in ((), ("v6e",)):
        made = execute(text, name)
        made.CHIP, made.INTERPRET, made.WIDE, made.TILES = "v6e", True, wide, {("v6e", 2): ((128, 128, 2),) * 3}
        run = getattr(made, name)
        off.append(float(np.sqrt(((np.asarray(run(**arrays), np.float64) - exact) ** 2).mean())))
        kept.append(run(**arrays, return_lse=True)[1])
    assert 0 < off[1] <= 1.01 * off[0]
    assert off[0] != off[1]
    assert jnp.array_equal(*kept)


@pytest.mark.parametrize("name", ["causal", "sigmoid", "custom_normalizer", "relative_bias"])
def test_without_its_lse_the_function_gives_the_same(name: str) -> None:
    consts, params = CASES[name]
    attend, arrays = function(name, **consts), {**operands(), **params}
    close(attend(**arrays), attend(**arrays, return_lse=True)[0])
    alone = jax.grad(lambda a: (attend(**a) ** 2).sum())(arrays)
    close(alone, jax.grad(lambda a: (attend(**a, return_lse=True)[0] ** 2).sum())(arrays))


@pytest.mark.parametrize("name", ["causal", "window_global", "sink"])
def test_one_backward_kernel_gives_what_two_give(name: str) -> None:
    """dQ is added up beside dK and dV where a head of it fits vector memory; elsewhere it has a kernel of its own."""
    consts = {"radius": 6, "globals": 3} if name == "window_global" else {}
    one, two = module(name, **consts), module(name, **consts)
    configured = two._configured
    two._configured = lambda *a: configured(*a)._replace(fused=False)
    arrays = operands() | ({"sink": jnp.asarray([0.5, -0.5])} if name == "sink" else {})
    close(gradients(getattr(one, name), arrays), gradients(getattr(two, name), arrays))


def test_keys_that_do_not_exist_leave_no_trace() -> None:
    """Their products are 0, far above every score here: their weights would be infinite."""
    arrays = operands(heads=1)
    arrays |= {"q": 30 + arrays["q"], "k": -30 + arrays["k"]}
    attend = attngen.compile("attention plain\nscore = qk * scale\n", "pallas", tile=(16, 16))
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(gradients(attend, arrays)))


def test_the_grid_is_as_long_as_the_longest_row_of_tiles() -> None:
    found = module("sliding_window", window=20)
    found.VMEM = {**found.VMEM, "cpu": 0}
    size = found.Size(B=1, Hq=1, Hkv=1, Sq=512, Sk=512, D=16, Dv=16)
    config = found._configured(size, jnp.float32, {}, {"scale": jnp.ones((1, 1, 1, 1))}, False)
    # 20 keys behind 16 queries: 35 keys, in at most 4 tiles of 16.
    assert [tile.steps for tile in (config.forward, config.dq, config.dkdv)] == [3, 3, 3]
    unscaled = found._configured(size, jnp.float32, {}, {}, False)
    assert unscaled._replace(interpret=True) == config._replace(interpret=True)


# ---------------------------------------------------------------- values that are not known yet


def test_params_may_be_traced() -> None:
    attend = function("prefix_lm")
    arrays = operands()
    close(jax.jit(lambda n: attend(**arrays, prefix=n))(jnp.asarray(11)), attend(**arrays, prefix=11))
    close(jax.jit(lambda s: attend(**arrays, prefix=3, scale=s))(-0.5), attend(**arrays, prefix=3, scale=-0.5))


def test_dropout_keeps_what_the_reference_keeps() -> None:
    kernel = attngen.compile(EXAMPLES / "dropout.attn", "pallas", tile=(16, 16))
    arrays = operands()
    seed = 0x1234_5678_9ABC
    want = kernel.reference(**arrays, p=0.3, dropout_seed=seed)
    np.testing.assert_allclose(kernel(**arrays, p=0.3, dropout_seed=seed), want, rtol=2e-5, atol=2e-5)
    words = jnp.asarray([0x5678_9ABC, 0x1234], jnp.uint32)
    np.testing.assert_allclose(kernel(**arrays, p=0.3, dropout_seed=words), want, rtol=2e-5, atol=2e-5)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": jnp.zeros((2, 35, 16))}, "q must have 4 dimensions"),
        (
            {"q": jnp.zeros((2, 35, 2, 16), jnp.float16)},
            "q must be bfloat16 or float32, which TPUs multiply",
        ),
        ({"k": jnp.zeros((2, 34, 1, 16))}, r"k must have q's batch and head dim, and v's heads and length"),
        ({"slope": jnp.zeros(3)}, r"slope must have shape \(Hq\) = \(2,\), not \(3,\)"),
        ({"slope": 0.5}, "slope must be an array, not float"),
        ({"scale": jnp.zeros(2)}, "scale must be one number"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    arrays = {**operands(), "slope": jnp.asarray([0.25, 0.5]), **change}
    with pytest.raises(ValueError, match=f"alibi: {message}"):
        function("alibi")(**arrays)


def test_dropout_wants_a_seed() -> None:
    with pytest.raises(ValueError, match="dropout needs dropout_seed"):
        function("dropout")(**operands(), p=0.1)
