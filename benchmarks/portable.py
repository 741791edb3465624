"""The portable targets on this machine's CPU, beside dense attention in the same framework; writes portable.json.

    python benchmarks/portable.py                       # torch, and jax where it is installed
    python benchmarks/portable.py --lengths 1024 --dry  # a quick look, nothing written

Each time is the least of several runs: other work on the machine only ever adds to it (`load` says how much there was).
All sides run one after the other in the same process, with the same number of threads. `dense` is the formula written
out, `builtin` the framework's own function.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import attngen  # noqa: E402
from attngen.files import json_rows  # noqa: E402

SPEC = "attention causal\nmask = causal\n"


def least(run: Callable[[], object], repeats: int) -> float:
    """Milliseconds of the fastest of so many runs, after one that doesn't count."""
    run()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def torch_cell(heads: int, length: int, dim: int, repeats: int, threads: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(threads)
    q, k, v = (torch.randn(1, heads, length, dim, requires_grad=True) for _ in range(3))
    forbidden = torch.ones(length, length, dtype=torch.bool).triu(1)

    def dense(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax((q @ k.mT * dim**-0.5).masked_fill(forbidden, -math.inf), -1) @ v

    def builtin(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    kernel = attngen.compile(SPEC, "torch")
    assert torch.allclose(kernel(q, k, v), dense(q, k, v), atol=1e-4)
    found: dict[str, float] = {}
    for name, function in (("dense", dense), ("builtin", builtin), ("attngen", kernel)):

        def forward(function: Any = function) -> None:
            with torch.no_grad():
                function(q, k, v)

        def both(function: Any = function) -> None:
            function(q, k, v).sum().backward()

        found[f"{name}_forward_ms"] = least(forward, repeats)
        found[f"{name}_both_ms"] = least(both, repeats)
    return found


def jax_cell(heads: int, length: int, dim: int, repeats: int, threads: int) -> dict[str, float]:
    import jax
    import jax.numpy as jnp

    q, k, v = (jax.random.normal(key, (1, length, heads, dim)) for key in jax.random.split(jax.random.key(0), 3))

    def dense(q: Any, k: Any, v: Any) -> Any:
        score = jnp.einsum("bqhd,bkhd->bhqk", q, k) * dim**-0.5
        score = jnp.where(jnp.tril(jnp.ones((length, length), bool)), score, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(score, -1), v)

    def builtin(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    kernel = attngen.compile(SPEC, "jax").function
    assert jnp.allclose(kernel(q, k, v), dense(q, k, v), atol=1e-4)
    found: dict[str, float] = {}
    for name, function in (("dense", dense), ("builtin", builtin), ("attngen", kernel)):
        forward = jax.jit(function)
        both = jax.jit(jax.grad(lambda q, k, v, f=function: f(q, k, v).sum(), argnums=(0, 1, 2)))
        found[f"{name}_forward_ms"] = least(lambda f=forward: jax.block_until_ready(f(q, k, v)), repeats)
        found[f"{name}_both_ms"] = least(lambda f=both: jax.block_until_ready(f(q, k, v)), repeats)
    return found


CELLS = {"torch": torch_cell, "jax": jax_cell}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024, 2048, 4096])
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="runs at the longest length; shorter ones take more")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1); XLA takes all")
    parser.add_argument("--targets", nargs="+", choices=tuple(CELLS), default=list(CELLS))
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "what": f"causal, batch 1, {args.heads} heads, head dim {args.dim}, float32; milliseconds, the least of "
        "several runs; `both` is forward and backward; a cell's name has the number of queries and keys",
        "command": "python benchmarks/portable.py",
        "machine": f"{_processor()}, {os.cpu_count()} logical CPUs, {platform.system()}",
        "threads": args.threads,
        "load": [round(x, 1) for x in os.getloadavg()],
        "versions": {},
        "cells": {},
    }
    for target in args.targets:
        if find_spec(target) is None:
            print(f"{target} is not installed")
            continue
        result["versions"][target] = version(target)
        for length in args.lengths:
            repeats = args.repeats * max(args.lengths) // length
            cell = CELLS[target](args.heads, length, args.dim, repeats, args.threads)
            cell["forward_speedup"] = cell["dense_forward_ms"] / cell["attngen_forward_ms"]
            cell["both_speedup"] = cell["dense_both_ms"] / cell["attngen_both_ms"]
            name = f"{target}:{length}"
            result["cells"][name] = {key: round(value, 2) for key, value in cell.items()}
            print(name, json.dumps(result["cells"][name]))
    if not args.dry:
        (HERE / "portable.json").write_text(json_rows(result), encoding="utf-8")


def _processor() -> str:
    """The CPU's name as Linux has it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
