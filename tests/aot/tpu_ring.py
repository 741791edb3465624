"""A ring of devices, compiled by libtpu for a slice that is not here.

`python tests/aot/tpu_ring.py CHIP TOPOLOGY SPEC LAYOUT ROWS` prints the program of the gradients as scheduled.
"""

from __future__ import annotations

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

import attngen
from attngen.distributed.jax import context_parallel
from attngen.tpu.worker import name_chip


def compiled(chip: str, topology: str, spec: str, layout: str, rows: int) -> str:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    name_chip(devices[0])
    mesh = jax.sharding.Mesh(np.asarray(devices).reshape(-1), ("context",))
    kernel = attngen.compile(spec, "pallas")
    vars(sys.modules[kernel.piece()[1].function.__module__]).update(INTERPRET=False, CHIP=chip)
    here = context_parallel(kernel, mesh, "context", layout).over(rows)
    place = jax.sharding.PartitionSpec(None, "context")
    run = jax.shard_map(here, mesh=mesh, in_specs=(place,) * 3, out_specs=place)

    def step(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
        return jax.grad(lambda *x: (run(*x).astype(jnp.float32) ** 2).sum(), (0, 1, 2))(q, k, v)

    x = jax.ShapeDtypeStruct((1, rows, 8, 128), jnp.bfloat16, sharding=jax.sharding.NamedSharding(mesh, place))
    text = jax.jit(step).trace(x, x, x).lower(lowering_platforms=("tpu",)).compile().as_text()
    return re.sub(r'"body":"[^"]*"', '"body":"..."', text)


if __name__ == "__main__":
    *names, rows = sys.argv[1:]
    print(compiled(*names, int(rows)))
