"""The process that loads libtpu: `python -m attngen.tpu.worker`, a pickled `Request` on standard input.

Gives a pickled `Lowered` or `Refused` on standard output. What the compiler dumps goes where the environment says.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attngen.tpu.compile import Lowered, Refused, Request, Signature, instructions


@dataclass(frozen=True, slots=True)
class Program:
    """What a request's entry gives: a JAX function and its arguments, each a `jax.ShapeDtypeStruct` or an array.

    An array's value counts: the estimate follows what the kernel reads from it. A shape alone says nothing of values.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def lowered(request: Request) -> Lowered | Refused:
    jax: Any = importlib.import_module("jax")
    topologies: Any = importlib.import_module("jax.experimental.topologies")
    known: Any = importlib.import_module("attngen.tpu.known")
    mosaic: Any = importlib.import_module("jax._src.pallas.mosaic.error_handling")
    device = topologies.get_topology_desc(platform="tpu", topology_name=request.chip.topology).devices[0]
    name_chip(device)
    placed = jax.sharding.SingleDeviceSharding(device)
    module, _, name = request.entry.partition(":")
    build = getattr(importlib.import_module(module), name)
    stage = "trace"
    try:
        program: Program = build(**dict(request.arguments))
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=placed) for a in program.arguments]
        traced = jax.jit(program.function).trace(*shapes)
        stage = "lower"
        low = traced.lower(lowering_platforms=("tpu",))
        stage = "compile"
        compiled = low.compile()
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError, mosaic.MosaicError) as error:
        return Refused(stage, f"{type(error).__name__}: {error}")
    values = [None if isinstance(a, jax.ShapeDtypeStruct) else a for a in program.arguments]
    signatures: tuple[Signature, ...] = known.pallas_calls(traced.jaxpr, values)
    text = compiled.as_text()
    hlo = re.sub(r'"body":"[^"]*"', '"body":"..."', text)
    temporary = compiled.memory_analysis().temp_size_in_bytes
    return Lowered(hlo, _mosaic(text) if request.mosaic else (), signatures, temporary)


def name_chip(device: Any) -> None:
    """Kernels that ask for the chip while they are traced get the one that is compiled for, not this machine's."""
    information: Any = importlib.import_module("jax._src.pallas.mosaic.tpu_info")
    information.get_device_kind = lambda: device.device_kind
    information.get_num_device_cores = lambda: device.num_cores


def _mosaic(hlo: str) -> tuple[tuple[str, str], ...]:
    """(kernel, Mosaic text) of every Pallas kernel in a compiled module."""
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    library: Any = importlib.import_module("jax._src.lib")
    ir, passes, tpu = library.mlir.ir, library.mlir.passmanager, library.tpu
    found: list[tuple[str, str]] = []
    for name, instruction in instructions(hlo).items():
        body = re.search(r'"body":("[^"]*")', instruction)
        if body is None:
            continue
        with mlir.make_ir_context() as context:
            tpu.register_dialect(context)
            context.allow_unregistered_dialects = True
            module = ir.Module.parse(base64.b64decode(json.loads(body[1])))
            passes.PassManager.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
            found.append((name, str(module)))
    return tuple(found)


def main() -> None:
    request: Request = pickle.load(sys.stdin.buffer)
    answer = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed must not get into the answer
    outcome = lowered(request)
    with os.fdopen(answer, "wb") as stream:
        pickle.dump(outcome, stream)


if __name__ == "__main__":
    main()
