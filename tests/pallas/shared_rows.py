"""Attention over rows that devices share, beside one device: the largest difference of results and gradients.

`python tests/pallas/shared_rows.py DEVICES CASE…` prints it for each case, on that many devices of a CPU.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_backend_optimization_level=0 --xla_force_host_platform_device_count={sys.argv[1]}"

import jax
import jax.numpy as jnp
import numpy as np

import attngen
from attngen import inputs
from attngen.distributed import Layout
from attngen.distributed.jax import context_parallel

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SEED = 2**40 + 11
P = jax.sharding.PartitionSpec
SPECS = {
    "window": (
        "attention w\nparam slope: f32[Hq]\nparam sink: f32[Hq]\nscore = qk * scale + alibi(slope)\n"
        "mask = sliding_window(16)\nnormalizer = softmax(sink = sink[h])\n"
    ),
    "dropped": (
        "attention d\nparam slope: f32[Hq]\nparam sink: f32[Hq]\nparam p: f32 where 0 <= p < 1\n"
        "score = qk * scale + alibi(slope)\nmask = sliding_window(40)\nnormalizer = softmax(sink = sink[h])\n"
        "dropout = p\n"
    ),
    "biased": (
        "attention r\nparam column: f32[B, Sk]\nparam row: f32[Sq]\nparam by_head: f32[Hkv, Sk]\n"
        "score = qk * scale + column[b, k] * row[q] + by_head[hkv, k]\nmask = causal\n"
    ),
}


@dataclass(frozen=True)
class Case:
    spec: str
    target: str = "jax"
    exchange: Any = "ring"
    layout: Any = "auto"
    mesh: tuple[int, ...] = ()
    """Devices along each axis; all along one where it is empty."""
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    dtype: Any = jnp.float32
    ends: tuple[int, ...] = ()
    """Of packed sequences: where they begin, and where the last one ends."""
    key_ends: tuple[int, ...] = ()


CASES = {
    "causal": Case("causal"),
    "causal, pallas": Case("causal", "pallas"),
    "window": Case("window", layout="headtail"),
    "window, pallas": Case("window", "pallas", layout="contiguous"),
    "documents": Case("documents"),
    "documents, pallas": Case("documents", "pallas", "gather"),
    "biased": Case("biased"),
    "biased, gathered": Case("biased", exchange="gather"),
    "biased, by heads": Case("biased", exchange="heads", sizes={"Hq": 8}),
    "window by heads, pallas": Case("window", "pallas", "heads"),
    "window on two axes": Case("window", mesh=(2, 2)),
    "biased on two axes, gathered, pallas": Case("biased", "pallas", "gather", mesh=(2, 2)),
    "sigmoid": Case("sigmoid"),
    "a constant term of the denominator": Case("softmax1"),
    "a constant term of the denominator, gathered, pallas": Case("softmax1", "pallas", "gather"),
    "custom normalizer": Case("custom_normalizer", exchange="gather", layout="headtail"),
    "any length": Case("causal", sizes={"Sq": 117, "Sk": 117}),
    "any length, pallas": Case("window", "pallas", layout="headtail", sizes={"Sq": 101, "Sk": 101}),
    "any length, gathered": Case("biased", exchange="gather", sizes={"Sq": 117, "Sk": 117}),
    "any length by heads": Case("biased", exchange="heads", sizes={"Hq": 8, "Sq": 117, "Sk": 117}),
    "any length on two axes": Case("documents", mesh=(2, 2), sizes={"Sq": 75, "Sk": 75}),
    "any length of keys": Case("window", sizes={"Sq": 31, "Sk": 95}),
    "fewer rows than devices": Case("sigmoid", sizes={"Sq": 3, "Sk": 2}),
    "a layout in which one device has less": Case(
        "biased", layout=Layout((((0, 16), (64, 75)), ((16, 32),), ((32, 64),), ())), sizes={"Sq": 75, "Sk": 75}
    ),
    "packed": Case("alibi", ends=(0, 50, 53, 53, 90, 117)),
    "packed, gathered, pallas": Case("window", "pallas", "gather", ends=(0, 50, 53, 96)),
    "packed by heads": Case("window", exchange="heads", ends=(0, 50, 53, 117)),
    "packed on two axes": Case("window", mesh=(2, 2), layout="headtail", ends=(0, 33, 64)),
    "packed, other keys than queries": Case("causal", ends=(0, 9, 31, 40), key_ends=(0, 20, 55, 77)),
    "other keys than queries": Case("causal", sizes={"Sq": 32, "Sk": 96}),
    "dropped": Case("dropped"),
    "dropped, any length, pallas": Case("dropped", "pallas", "gather", sizes={"Sq": 101, "Sk": 101}),
    "dropped by heads": Case("dropped", exchange="heads"),
    "dropped on two axes, packed": Case("dropped", mesh=(2, 2), ends=(0, 33, 64)),
    "dropped by heads, packed, pallas": Case("dropped", "pallas", "heads", ends=(0, 50, 53, 117)),
    "own layout": Case("prefix_lm", layout=Layout((((0, 16), (48, 64)), ((16, 48),), ((64, 96),), ((96, 128),)))),
}


def worst(case: Case) -> dict[str, float]:
    """By result and gradient, beside the largest entry, or 1 if that is less."""
    kernel = attngen.compile(SPECS.get(case.spec, EXAMPLES / f"{case.spec}.attn"), case.target, tile=(16, 16))
    shape = case.mesh or (jax.device_count(),)
    names = ("across", "within")[: len(shape)]
    mesh = jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape))
    sizes = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 128, "Sk": 128, "D": 8, "Dv": 12, **case.sizes}
    params = inputs.examples(kernel.spec, inputs.settle(kernel.spec, sizes, fixed=set(sizes)), seed=0)
    params = {n: np.float32(x) if np.result_type(x) == np.float64 else x for n, x in params.items()}
    arrays = {n: jnp.asarray(x) for n, x in params.items() if np.ndim(x)}
    numbers = {n: x.item() if hasattr(x, "item") else x for n, x in params.items() if n not in arrays}
    rng = np.random.default_rng(0)
    ends, key_ends = case.ends, case.key_ends or case.ends
    if ends:
        sizes |= {"Sq": ends[-1], "Sk": key_ends[-1]}
    batch = () if ends else (sizes["B"],)
    shapes = (
        (*batch, rows, sizes[heads], sizes[dim])
        for rows, heads, dim in ((sizes["Sq"], "Hq", "D"), (sizes["Sk"], "Hkv", "D"), (sizes["Sk"], "Hkv", "Dv"))
    )
    operands = dict(zip("qkv", (jnp.asarray(rng.standard_normal(s), case.dtype) for s in shapes), strict=True))
    attend = context_parallel(kernel, mesh, names[0] if len(names) == 1 else names, case.layout, case.exchange)
    host = {n: x for n, x in params.items() if n in arrays and not jnp.issubdtype(arrays[n].dtype, jnp.floating)}
    if ends:
        here = attend.over(cu_seqlens=ends, cu_seqlens_k=key_ends, **host, **numbers)
    else:
        here = attend.over(sizes["Sq"], Sk=sizes["Sk"], **host, **numbers)
    at = len(batch)
    rows, by_head = P(*(None,) * at, names), P(*(None,) * at, None, names)

    def alone(q: Any, k: Any, v: Any, given: Any) -> Any:
        if not ends:
            return kernel(q, k, v, **given, **numbers, return_lse=True, dropout_seed=SEED)
        places = ((slice(*a), slice(*b)) for a, b in zip(pairwise(ends), pairwise(key_ends), strict=True))
        found: list[Any] = []
        for n, (a, b) in enumerate(places):  # as number n of a batch, by which dropout counts it
            own = (jnp.broadcast_to(x, (n + 1, *x.shape)) for x in (q[a], k[b], v[b]))
            found.append([x[n] for x in kernel(*own, **given, **numbers, return_lse=True, dropout_seed=SEED)])
        out, lse = zip(*found, strict=True)
        return jnp.concatenate(out, 0), jnp.concatenate(lse, 1)

    def shared(q: Any, k: Any, v: Any, given: Any) -> Any:
        run = jax.shard_map(
            lambda q, k, v, given: here(q, k, v, **given, **numbers, return_lse=True, dropout_seed=SEED),
            mesh=mesh, in_specs=(rows, rows, rows, P()), out_specs=(rows, by_head),
        )  # fmt: skip
        k, v = (here.shard(x, at, keys=True, fill=jnp.nan) for x in (k, v))
        out, lse = run(here.shard(q, at, fill=jnp.nan), k, v, given)
        return here.unshard(out, at), here.unshard(lse, at + 1)

    def results(attend: Any) -> dict[str, Any]:
        learned = {n: x for n, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}

        def loss(q: Any, k: Any, v: Any, learned: Any) -> Any:
            out, lse = attend(q, k, v, {**arrays, **learned})
            weighed = (x * jnp.cos(jnp.arange(x.size)).reshape(x.shape) for x in (out, jnp.maximum(lse, -1e4)))
            return sum(x.astype(jnp.float32).sum() for x in weighed), (out, jnp.maximum(lse, -1e4))

        slopes, (out, lse) = jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(*operands.values(), learned)
        return {"out": out, "lse": lse, **dict(zip("qkv", slopes[:3], strict=True)), **slopes[3]}

    right, found = results(alone), results(shared)
    return {n: float(jnp.abs(right[n] - found[n]).max() / jnp.maximum(1.0, jnp.abs(right[n]).max())) for n in right}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    assert jax.device_count() == int(sys.argv[1])
    for name in sys.argv[2:]:
        print(max(worst(CASES[name]).values()))
