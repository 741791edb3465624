"""Lengths and padding: what it costs that a forbidden row of K or V may hold NaN.

    python benchmarks/forbidden.py -o "$OUT/forbidden.json"       # on an H100 or H200
    python benchmarks/forbidden.py --dry                          # on the CPU: that it runs

Each file is timed beside one whose kernels take every row inside the tensor for a row that matters, so that they load
and keep all of them, turn about; forward, and forward with backward. bfloat16, 16,384 tokens, heads of 2,048 in all.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import attngen
from attngen.files import json_rows
from attngen.runtime.loader import load

SPECS = {
    "lengths": "param n: int[B]\nmask = k < n[b]\n",
    "causal_lengths": "param n: int[B]\nmask = causal and k < n[b]\n",
    "padding": "param keep: bool[B, Sk]\nmask = keep[b, k]\n",
}
CHANGES = ((r"return \(k_idx < Sk\) & .*", "return k_idx < Sk"), (r"if first < stop:", "if first < 0:"))
ROUNDS = 15


def without(source: str) -> str:
    """The file whose kernels clear nothing; its operators have names of their own."""
    for old, new in CHANGES:
        source, count = re.subn(old, new, source)
        if not count:
            raise ValueError(f"the generated file has no line {old!r}")
    return re.sub(r'"(attngen::\w+)"', r'"\1_unclear"', source)


def params(name: str, batch: int, length: int, device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if name == "padding":
        return {"keep": (torch.rand(batch, length, generator=generator) < 0.9).to(device)}
    return {"n": torch.randint(length // 2, length + 1, (batch,), generator=generator).to(device)}


def seconds(call: Callable[[], object], device: str, calls: int) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def measured(name: str, dim: int, length: int, tokens: int, width: int, device: str) -> dict[str, Any]:
    kernel = attngen.compile(f"attention {name}\n{SPECS[name]}")
    functions = [getattr(load(s, name), name) for s in (kernel.source, without(kernel.source))]
    batch, heads = tokens // length, width // dim
    q, k, v = (
        torch.randn(batch, heads, length, dim, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"
    )
    given = params(name, batch, length, device)
    found: dict[str, Any] = {"spec": name, "D": dim, "N": length}
    for direction in ("forward", "both"):

        def call(function: Callable[..., torch.Tensor], direction: str = direction) -> None:
            out = function(q, k, v, **given)
            if direction == "both":
                out.sum().backward()

        calls = 10 if device == "cuda" else 1
        for function in functions:
            call(function)
        times: list[list[float]] = [[], []]
        for _ in range(ROUNDS if device == "cuda" else 1):
            for each, function in zip(times, functions, strict=True):
                each.append(seconds(lambda f=function: call(f), device, calls))
        cleared, plain = (statistics.median(each) for each in times)
        found[direction] = {"cleared_us": cleared * 1e6, "plain_us": plain * 1e6, "more": cleared / plain - 1}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--only", nargs="+", choices=SPECS, default=list(SPECS))
    options = parser.parse_args()
    dims, lengths, tokens, width, device = ((64, 128, 256), (1024, 4096, 16384), 16384, 2048, "cuda")
    if options.dry:
        dims, lengths, tokens, width, device = (16,), (64,), 64, 16, "cpu"
    rows: list[dict[str, Any]] = []
    for name in options.only:
        for dim in dims:
            for length in lengths:
                rows.append(measured(name, dim, length, tokens, width, device))
                print(json.dumps(rows[-1]), flush=True)
    if options.output:
        options.output.write_text(json_rows({"rows": rows}), encoding="utf-8")


if __name__ == "__main__":
    main()
