"""Attention inside `shard_map` over rows that devices share: equal to one device, forward and every gradient."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec
from pallas.shared_rows import CASES, SPECS, worst

import attngen
from attngen.distributed import Layout
from attngen.distributed.jax import Attend, Placed, context_parallel
from attngen.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning")


@pytest.mark.parametrize("case", CASES)
def test_four_devices_equal_one(case: str) -> None:
    found = worst(CASES[case])
    assert all(e <= 2e-5 for e in found.values()), found


@pytest.mark.parametrize(
    "cases", [("causal", "documents", "window, pallas"), ("any length", "any length, gathered", "packed")]
)
def test_eight_devices_equal_one(cases: tuple[str, ...]) -> None:
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("shared_rows.py")), "8", *cases],
        capture_output=True, text=True, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    errors = [float(line) for line in ran.stdout.split()]
    assert len(errors) == len(cases) and max(errors) <= 2e-5, errors


def mesh(*shape: int) -> Mesh:
    names = ("rows", "heads")[: len(shape)]
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))


def causal(**options: Any) -> Attend:
    return context_parallel(attngen.compile("attention c\nmask = causal\n", "jax"), mesh(4), "rows", **options)


def test_dropout_takes_a_traced_seed_and_wants_one() -> None:
    kernel = attngen.compile("attention d\nmask = causal\ndropout = 0.5\n", "jax", tile=(16, 16))
    here = context_parallel(kernel, mesh(2, 2), ("rows", "heads")).over(32)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 32, 2, 8)), jnp.float32)
    rows = PartitionSpec(None, ("rows", "heads"))

    def run(seed: Any) -> Any:
        return jax.shard_map(
            lambda x, seed: here(x, x, x, dropout_seed=seed, b_offset=3),
            mesh=mesh(2, 2), in_specs=(rows, PartitionSpec()), out_specs=rows,
        )(here.shard(x, 1), seed)  # fmt: skip

    for seed in (7, jnp.asarray([7, 1], jnp.uint32)):
        whole = kernel(*(jnp.broadcast_to(x, (4, *x.shape[1:])),) * 3, dropout_seed=seed)[3:]
        found = here.unshard(jax.jit(run)(jnp.asarray(seed)), 1)
        np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match="dropout_seed is missing"):
        here(x, x, x)


def test_a_window_asks_the_neighbours_alone() -> None:
    attend = context_parallel(attngen.compile(SPECS["window"], "jax"), mesh(4), "rows", "contiguous")
    rounds = attend.over(128).schedule.rounds
    assert [[(t.source, t.target) for t in r.transfers] for r in rounds] == [[], [(0, 1), (1, 2), (2, 3)]]

    def run(q: jax.Array, given: dict[str, jax.Array]) -> jax.Array:
        return attend.over(128)(q, q, q, **given)

    rows = PartitionSpec(None, "rows")
    x, given = jnp.ones((1, 128, 2, 8)), {"slope": jnp.ones(2), "sink": jnp.ones(2)}
    shared = jax.shard_map(run, mesh=mesh(4), in_specs=(rows, PartitionSpec()), out_specs=rows)
    text = str(jax.make_jaxpr(shared)(x, given))
    assert text.count("ppermute[") == 2 and "perm=((0, 1), (1, 2), (2, 3))" in text.replace("\n", " ")


def test_gather_sends_what_is_needed_at_once() -> None:
    """A window needs one neighbour's keys, and a causal mask half of what all devices have."""
    rows = PartitionSpec(None, "rows")
    x, given = jnp.ones((1, 120, 2, 8)), {"slope": jnp.ones(2), "sink": jnp.ones(2)}
    window = context_parallel(attngen.compile(SPECS["window"], "jax"), mesh(4), "rows", "contiguous", "gather")

    def permutes(here: Placed, **given: jax.Array) -> list[str]:
        run = jax.shard_map(lambda q: here(q, q, q, **given), mesh=mesh(4), in_specs=rows, out_specs=rows)
        text = str(jax.make_jaxpr(run)(x)).replace("\n", " ")
        assert "all_gather" not in text and "optimization_barrier" not in text
        return re.findall(r"perm=\(((?:\(\d+, \d+\)[, ]*)+)\)", text)

    assert permutes(window.over(120), **given) == ["(0, 1), (1, 2), (2, 3)"] * 2
    here = causal(layout="contiguous", exchange="gather").over(120)
    assert sum(move.count("(") for move in permutes(here)) == 2 * (3 + 2 + 1)
    assert len(here.turns) == 1


def test_shard_unshard_and_positions() -> None:
    here = causal(layout="headtail").over(32)
    x = jnp.arange(64).reshape(2, 32)
    np.testing.assert_array_equal(here.unshard(here.shard(x, 1), 1), x)
    rows = PartitionSpec("rows")
    at = jax.jit(jax.shard_map(here.positions, mesh=mesh(4), in_specs=(), out_specs=rows))()
    np.testing.assert_array_equal(at, here.shard(jnp.arange(32), 0))
    np.testing.assert_array_equal(at[:8], [0, 1, 2, 3, 28, 29, 30, 31])


def test_rows_of_padding() -> None:
    """Five rows on four devices: the last one has none. A sequence's positions begin again with 0."""
    here, x = causal().over(5), jnp.arange(5) + 10
    np.testing.assert_array_equal(here.shard(x, 0, fill=-100), [10, 11, 12, 13, 14, -100, -100, -100])
    np.testing.assert_array_equal(here.unshard(here.shard(x, 0), 0), x)
    rows = PartitionSpec("rows")
    at = jax.shard_map(here.positions, mesh=mesh(4), in_specs=(), out_specs=rows)()
    np.testing.assert_array_equal(at, [0, 1, 2, 3, 4, -1, -1, -1])
    packed = causal(layout="contiguous").over(cu_seqlens=np.asarray([0, 3, 3, 7]))
    at = jax.shard_map(packed.positions, mesh=mesh(4), in_specs=(), out_specs=rows)()
    np.testing.assert_array_equal(at, [0, 1, 2, 0, 1, 2, 3, -1])


@pytest.mark.parametrize("spec", ["causal", "window"])
def test_padding_has_no_gradient_and_no_effect(spec: str) -> None:
    """Rows of padding hold NaN, and so do the gradients of their results."""
    kernel = attngen.compile(SPECS.get(spec, "attention c\nmask = causal\n"), "jax", tile=(16, 16))
    here = context_parallel(kernel, mesh(4), "rows", "contiguous").over(37)
    given = {"slope": jnp.ones(2), "sink": jnp.ones(2)} if spec == "window" else {}
    rows, by_head = PartitionSpec(None, "rows"), PartitionSpec(None, None, "rows")
    run = jax.shard_map(
        lambda q, k, v, given: here(q, k, v, **given, return_lse=True),
        mesh=mesh(4), in_specs=(rows, rows, rows, PartitionSpec()), out_specs=(rows, by_head),
    )  # fmt: skip
    run = jax.jit(run)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 1, 37, 2, 8)), jnp.float32)
    found = []
    for other in (0.0, jnp.nan):
        (out, lse), pull = jax.vjp(run, *(here.shard(own, 1, fill=other) for own in x), given)
        assert not out[:, 37:].any() and (lse[..., 37:] == -jnp.inf).all()
        slopes = jnp.ones_like(out).at[:, 37:].set(other), jnp.ones_like(lse).at[..., 37:].set(other)
        dq, dk, dv, more = pull(slopes)
        assert not any(own[:, 37:].any() for own in (dq, dk, dv))
        found.append((out, lse, dq, dk, dv, more))
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_results_keep_their_dtype_and_repeat() -> None:
    here = causal().over(64)
    rows = PartitionSpec(None, "rows")
    run = jax.jit(jax.shard_map(lambda q: here(q, q, q), mesh=mesh(4), in_specs=rows, out_specs=rows))
    q = jnp.asarray(np.random.default_rng(0).standard_normal((1, 64, 2, 8)), jnp.bfloat16)
    first, second = (jax.grad(lambda q: (run(q).astype(jnp.float32) ** 2).sum())(q) for _ in range(2))
    assert run(q).dtype == first.dtype == jnp.bfloat16
    np.testing.assert_array_equal(first, second)


def test_what_is_refused() -> None:
    jax_causal = attngen.compile("attention c\nmask = causal\n", "jax")
    with pytest.raises(UsageError, match="for target jax or pallas, not for triton"):
        context_parallel(attngen.compile("attention c\nmask = causal\n"), mesh(4), "rows")
    with pytest.raises(UsageError, match="the mesh has no axis 'context'; there are rows"):
        context_parallel(jax_causal, mesh(4), "context")
    with pytest.raises(UsageError, match="exchange 'star' is not known"):
        context_parallel(jax_causal, mesh(4), "rows", exchange="star")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="give one axis"):
        context_parallel(jax_causal, mesh(2, 2), ("rows", "heads"), exchange="heads")
    with pytest.raises(UsageError, match="heads cannot be exchanged"):
        by_head = attngen.compile("attention b\nscore = qk * scale / float(h + 1)\nmask = causal\n", "jax")
        context_parallel(by_head, mesh(4), "rows", exchange="heads")
    with pytest.raises(UsageError, match="at most 16 blocks of equal size"):
        causal(layout=Layout((((0, 1), (41, 80)), ((1, 41),), ((80, 120),), ((120, 160),)))).over(160)
    with pytest.raises(UsageError, match="no param 'window'"):
        causal().over(32, window=3)
    with pytest.raises(UsageError, match="say how many rows all devices have together"):
        causal().over()
    with pytest.raises(UsageError, match="cu_seqlens_k goes with cu_seqlens"):
        causal().over(32, cu_seqlens_k=[0, 32])
    with pytest.raises(UsageError, match="column has an element for each row or sequence"):
        biased = attngen.compile(SPECS["biased"], "jax")
        context_parallel(biased, mesh(4), "rows").over(cu_seqlens=[0, 32])
    with pytest.raises(UsageError, match=r"q must have 3 dimensions \(rows, heads, head dim\)"):
        x = jnp.ones((1, 8, 2, 8))
        causal().over(cu_seqlens=[0, 32])(x, x, x)
    with pytest.raises(UsageError, match="q has 32 rows, and each of 4 devices has 8: call this inside shard_map"):
        x = jnp.ones((1, 32, 2, 8))
        causal().over(32)(x, x, x)
    with pytest.raises(UsageError, match="scale must be a number"):
        x = jnp.ones((1, 8, 2, 8))
        jax.jit(lambda scale: causal().over(32)(x, x, x, scale=scale))(0.5)
    with pytest.raises(UsageError, match=r"cu_seqlens must be ints, not 5\.7"):
        causal().over(cu_seqlens=[0, 5.7, 16])  # type: ignore[list-item]
    with pytest.raises(UsageError, match=r"n is 16 here, and over\(…\) was given 0: both must be the same"):
        x = jnp.ones((1, 8, 2, 8))
        prefix = attngen.compile("attention a\nparam n: int where n >= 0\nmask = k <= q or k < n\n", "jax")
        context_parallel(prefix, mesh(4), "rows").over(32, n=0)(x, x, x, n=16)
    with pytest.raises(UsageError, match=r"n is 16 here, and over\(…\) was given 0: both must be the same"):
        context_parallel(prefix, mesh(4), "rows").over(32, n=0)(x, x, x, n=jnp.int32(16))
    ids_of_keys = "attention d\nparam ids: int[B, Sk]\nmask = ids[b, q] == ids[b, k]\nassume Sq == Sk\n"
    documents = context_parallel(attngen.compile(ids_of_keys, "jax"), mesh(4), "rows")
    ids = np.zeros((1, 32), np.int32)
    with pytest.raises(UsageError, match=r"ids must have shape \(B, Sk\) = \(1, 32\), not \(1, 30\)"):
        documents.over(32, ids=ids[:, :30])
    with pytest.raises(UsageError, match=r"ids has other elements here than over\(…\) was given"):
        documents.over(32, ids=ids)(x, x, x, ids=ids + np.arange(32))
    with pytest.raises(UsageError, match="v must have the 2 heads of k, not 4"):
        causal(exchange="heads").over(32)(x, x, jnp.ones((1, 8, 4, 8)))
    with pytest.raises(UsageError, match="name two different axes"):
        context_parallel(jax_causal, mesh(4), ("rows", "rows"))
    with pytest.raises(UsageError, match=r"mesh must be a jax\.sharding\.Mesh, not NoneType"):
        context_parallel(jax_causal, None, "rows")
    with pytest.raises(UsageError, match="dim must be one of the array's 4 dimensions, not 9"):
        causal().over(32).shard(jnp.ones((1, 32, 2, 8)), 9)


def test_no_rows_are_shared_out() -> None:
    for here in causal().over(0), causal().over(5, Sk=0):
        for keys, own in ((False, here.q_blocks), (True, here.k_blocks)):
            shared = here.shard(jnp.ones((1, own.total, 2)), 1, keys=keys)
            assert shared.shape == (1, own.rows, 2)
            assert here.unshard(shared, 1, keys=keys).shape == (1, own.total, 2)
