"""Generated JAX and Pallas functions on a mesh of four devices, and lowered for devices that are not here.

However arrays lie on a mesh, results are those of the plain call, and lie as q does, over batches and heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import attngen
from attngen.runtime.loader import execute

pytestmark = pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning")
EXAMPLES = Path(__file__).parents[2] / "examples"
INSIDE = PartitionSpec("batch", None, "head", None)
BY_HEAD = (
    "attention by_head\nscore = qk * scale - exp2(-8.0 * float(h + 1) / float(Hq)) * float(q - k)\nmask = causal\n"
)
Arrays = dict[str, jax.Array]


@functools.cache
def source(name: str, target: str) -> str:
    spec = BY_HEAD if name == "by_head" else EXAMPLES / f"{name}.attn"
    return attngen.compile(spec, target, tile=(16, 16), consts={"radius": 3} if name == "relative_bias" else {}).source


def function(name: str, target: str, chip: str | None = None) -> Callable[..., jax.Array]:
    module = execute(source(name, target), name)
    if chip is not None:
        module.CHIP = chip
    return getattr(module, name)


def numbers(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def operands(heads: int = 2, kv_heads: int = 2) -> Arrays:
    return {
        "q": numbers(2, 19, heads, 8),
        "k": numbers(2, 19, kv_heads, 8, seed=1),
        "v": numbers(2, 19, kv_heads, 8, seed=2),
    }


PARAMS: dict[str, tuple[Arrays, PartitionSpec]] = {
    "alibi": ({"slope": jnp.asarray([0.25, 0.5])}, PartitionSpec("head")),
    "relative_bias": ({"table": numbers(2, 7, seed=4)}, PartitionSpec("head", None)),
    "documents": ({"ids": jnp.asarray([[0] * 9 + [1] * 10, [0, 1] * 9 + [2]])}, PartitionSpec("batch", None)),
    "by_head": ({}, PartitionSpec()),
}


def mesh(kind: AxisType) -> Mesh:
    return jax.make_mesh((2, 2), ("batch", "head"), axis_types=(kind, kind))


def specs(name: str) -> dict[str, PartitionSpec]:
    params, spec = PARAMS[name]
    return dict.fromkeys("qkv", INSIDE) | dict.fromkeys(params, spec)


def close(a: object, b: object) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def results(attend: Callable[[Arrays], jax.Array], arrays: Arrays) -> tuple[jax.Array, Arrays]:
    """out, and the gradients of what is learned."""
    data = {n: x for n, x in arrays.items() if x.dtype != jnp.float32}

    def loss(learned: Arrays) -> tuple[jax.Array, jax.Array]:
        out = attend({**learned, **data})
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum(), out

    gradients, out = jax.grad(loss, has_aux=True)({n: x for n, x in arrays.items() if n not in data})
    return out, gradients


def placed(arrays: Arrays, on: Mesh, by: dict[str, PartitionSpec]) -> Arrays:
    return {n: jax.device_put(x, NamedSharding(on, by[n])) for n, x in arrays.items()}


def lies(x: jax.Array, spec: PartitionSpec) -> bool:
    sharding = x.sharding
    return isinstance(sharding, NamedSharding) and sharding.is_equivalent_to(NamedSharding(sharding.mesh, spec), x.ndim)


# ---------------------------------------------------------------- shard_map


@pytest.mark.parametrize(
    ("name", "target"),
    [("alibi", "pallas"), ("documents", "pallas"), ("alibi", "jax"), ("documents", "jax"), ("relative_bias", "jax")],
)
def test_shard_map_with_checked_axes(name: str, target: str) -> None:
    attend, by = function(name, target), specs(name)
    arrays = {**operands(), **PARAMS[name][0]}
    over_mesh = jax.shard_map(lambda a: attend(**a), mesh=mesh(AxisType.Auto), in_specs=(by,), out_specs=INSIDE)
    got = jax.jit(functools.partial(results, over_mesh))(arrays)
    close(got, results(lambda a: attend(**a), arrays))
    assert lies(got[0], INSIDE)


def test_shard_map_without_checked_axes() -> None:
    attend = function("alibi", "pallas")
    arrays = {**operands(), **PARAMS["alibi"][0]}
    over_mesh = jax.shard_map(
        lambda a: attend(**a), mesh=mesh(AxisType.Auto), in_specs=(specs("alibi"),), out_specs=INSIDE, check_vma=False
    )
    close(jax.jit(functools.partial(results, over_mesh))(arrays), results(lambda a: attend(**a), arrays))


@pytest.mark.parametrize("target", ["pallas", "jax"])
def test_params_that_all_shards_share_get_the_sum_of_gradients(target: str) -> None:
    attend = function("alibi", target)
    arrays = {**operands(), **PARAMS["alibi"][0]}
    batches = PartitionSpec("batch")
    over_mesh = jax.shard_map(
        lambda a: attend(**a),
        mesh=mesh(AxisType.Auto),
        in_specs=(dict.fromkeys("qkv", batches) | {"slope": PartitionSpec()},),
        out_specs=batches,
    )
    close(jax.jit(functools.partial(results, over_mesh))(arrays), results(lambda a: attend(**a), arrays))


@pytest.mark.parametrize("target", ["pallas", "jax"])
def test_shard_map_while_nothing_is_traced(target: str) -> None:
    attend, arrays = function("alibi", target), {**operands(), **PARAMS["alibi"][0]}
    over_mesh = jax.shard_map(
        lambda a: attend(**a), mesh=mesh(AxisType.Auto), in_specs=(specs("alibi"),), out_specs=INSIDE
    )
    close(over_mesh(arrays), attend(**arrays))


def test_vmap_inside_shard_map() -> None:
    attend, arrays = function("alibi", "pallas"), {**operands(), **PARAMS["alibi"][0]}
    many = {n: jnp.stack([x, 0.5 * x]) for n, x in arrays.items()}
    by = {n: PartitionSpec(None, *spec) for n, spec in specs("alibi").items()}
    over_mesh = jax.shard_map(
        jax.vmap(lambda a: attend(**a)), mesh=mesh(AxisType.Auto), in_specs=(by,), out_specs=by["q"]
    )
    close(jax.jit(over_mesh)(many)[1], attend(**{n: 0.5 * x for n, x in arrays.items()}))


def test_the_compiled_kernels_pass_the_check() -> None:
    attend = function("alibi", "pallas", chip="v5e")
    arrays = {**operands(), **PARAMS["alibi"][0]}
    over_mesh = jax.shard_map(
        lambda a: attend(**a), mesh=mesh(AxisType.Auto), in_specs=(specs("alibi"),), out_specs=INSIDE
    )
    traced = jax.jit(jax.grad(lambda a: (over_mesh(a) ** 2).sum())).trace(arrays)
    assert str(traced.jaxpr).count("pallas_call") == 2


# ---------------------------------------------------------------- meshes that jit sees


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("alibi", AxisType.Explicit, "pallas"),
        ("alibi", AxisType.Explicit, "jax"),
        ("alibi", AxisType.Auto, "pallas"),
        ("by_head", AxisType.Auto, "pallas"),  # each device needs all heads
    ],
)
def test_results_lie_as_q_does(name: str, kind: AxisType, target: str) -> None:
    attend, on = function(name, target), mesh(kind)
    arrays = {**operands(), **PARAMS[name][0]}
    by = specs(name)
    want = results(lambda a: attend(**a), arrays)
    with jax.set_mesh(on):
        run = jax.jit(functools.partial(results, lambda a: attend(**a)))
        got = run(placed(arrays, on, by))
        close(got, want)
        for x, spec in ((got[0], INSIDE), *((got[1][n], by[n]) for n in got[1])):
            assert lies(x, spec if name == "alibi" else PartitionSpec("batch")), x.sharding
        text = run.lower(placed(arrays, on, by)).compile().as_text()
    assert ("all-gather" in text) == (name == "by_head")


@pytest.mark.parametrize("target", ["pallas", "jax"])
def test_an_explicit_mesh_while_nothing_is_traced(target: str) -> None:
    attend, on = function("alibi", target), mesh(AxisType.Explicit)
    arrays = {**operands(), **PARAMS["alibi"][0]}
    out, lse = attend(**placed(arrays, on, specs("alibi")), return_lse=True)
    close((out, lse), attend(**arrays, return_lse=True))
    assert lies(out, INSIDE) and lies(lse, PartitionSpec("batch", "head", None))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_what_the_devices_share_gets_the_sum_of_gradients(kv_heads: int) -> None:
    """One head of keys for all heads of queries, or for half of them; one table of slopes for all batches."""
    attend, on = function("alibi", "pallas"), mesh(AxisType.Auto)
    arrays = {**operands(heads=4, kv_heads=kv_heads), "slope": jnp.asarray([0.1, 0.2, 0.3, 0.4])}
    by = specs("alibi") | (dict.fromkeys("kv", PartitionSpec("batch")) if kv_heads == 1 else {})
    got = jax.jit(functools.partial(results, lambda a: attend(**a)))(placed(arrays, on, by))
    close(got, results(lambda a: attend(**a), arrays))
    assert lies(got[0], INSIDE) and lies(got[1]["k"], by["k"])


def test_vmap_on_a_mesh() -> None:
    attend, on = function("alibi", "pallas"), mesh(AxisType.Auto)
    arrays = placed({**operands(), **PARAMS["alibi"][0]}, on, specs("alibi"))
    queries = jnp.stack([arrays["q"], 2 * arrays["q"]])
    got = jax.jit(jax.vmap(lambda q: attend(**{**arrays, "q": q})))(queries)
    close(got[1], attend(**{**arrays, "q": 2 * arrays["q"]}))


# ---------------------------------------------------------------- export


def shapes(batch: object = 2, length: object = 256) -> dict[str, jax.ShapeDtypeStruct]:
    array = jax.ShapeDtypeStruct((batch, length, 2, 64), jnp.float32)
    return dict.fromkeys("qkv", array) | {"slope": jax.ShapeDtypeStruct((2,), jnp.float32)}


def exported(attend: Callable[..., jax.Array], arrays: object, *platforms: str) -> jax.export.Exported:
    return jax.export.export(jax.jit(lambda a: attend(**a)), platforms=platforms)(arrays)


@pytest.mark.parametrize("platforms", [("tpu",), ("cpu", "tpu")])
def test_the_interpreter_is_not_exported_for_a_tpu(platforms: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"alibi: this program was traced for Pallas' interpreter.* set CHIP"):
        exported(function("alibi", "pallas"), shapes(), *platforms)


def test_kernels_are_exported_for_the_chip_that_is_named() -> None:
    attend = function("alibi", "pallas", chip="v5e")
    for batch in (2, *jax.export.symbolic_shape("b")):
        assert "tpu_custom_call" in exported(attend, shapes(batch), "tpu").mlir_module()


@pytest.mark.parametrize("target", ["pallas", "jax"])
def test_the_batch_may_be_symbolic_and_nothing_else(target: str) -> None:
    attend = function("alibi", target)
    batch, length = jax.export.symbolic_shape("b, s")
    arrays = {**operands(), **PARAMS["alibi"][0]}
    symbolic = {
        n: jax.ShapeDtypeStruct((batch, *x.shape[1:]) if n in "qkv" else x.shape, x.dtype) for n, x in arrays.items()
    }
    close(exported(attend, symbolic, "cpu").call(arrays), attend(**arrays))
    with pytest.raises(ValueError, match=r"alibi: q has shape .*: only the batch may be symbolic"):
        exported(attend, shapes(batch, length), "cpu")


def test_a_symbolic_batch_with_numbers_of_its_own_is_refused_for_a_tpu() -> None:
    attend = function("documents", "pallas", chip="v5e")
    (batch,) = jax.export.symbolic_shape("b")
    arrays = {n: x for n, x in shapes(batch).items() if n != "slope"} | {
        "ids": jax.ShapeDtypeStruct((batch, 256), jnp.int32)
    }
    with pytest.raises(ValueError, match="documents: each batch has numbers of its own"):
        exported(attend, arrays, "tpu")
