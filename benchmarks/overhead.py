"""What a call costs the host: the Python function, beside a launch of its kernel by Triton, already compiled.

    python benchmarks/overhead.py -o "$OUT/overhead.json"       # on a GPU; --kernels DIR as for gpu.py

Microseconds of the host's clock a call, over calls in a row of a problem so small that the card waits. `launch` is
`kernel[grid](…)` with the arguments that the call makes; `operator` the custom operator, which torch.compile calls.
`peers` has the same of FlexAttention, compiled once for this shape, and of FlashAttention 4, where its package is here.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import peers
import torch
import torch._functorch.config as functorch
from cells import FULL_SIZE, Cell, Inputs, make_inputs, mask_mod, score_mod

from attngen.files import json_rows

CASES = (Cell("causal", 64, 128, 128, 128), Cell("causal", 128, 128, 128, 256), Cell("alibi", 64, 128, 128, 128))


def microseconds(work: Callable[[], object], *, calls: int = 200, rounds: int = 9) -> float:
    """Of one call, at the median of the rounds."""
    spent: list[float] = []
    for _ in range(rounds):
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        spent.append((time.perf_counter() - start) / calls * 1e6)
        torch.cuda.synchronize()
    return statistics.median(spent)


def launches(module: Any, call: Callable[[], object]) -> list[Callable[[], object]]:
    """Each launch of `call` by Triton itself, with the same arguments; kernels are compiled already."""
    found: list[Callable[[], object]] = []
    kind = module.Launch if hasattr(module, "Launch") else module._Launch  # as older files call it
    launch = kind.launch

    def noted(own: Any, *arguments: Any) -> None:
        kept = [copy.copy(x) if hasattr(x, "base") else x for x in arguments]  # descriptors are let go
        found.append(lambda: own.kernel[own.grid](*kept, **own.options))
        launch(own, *arguments)

    kind.launch, kind.run = noted, property(lambda own: None, lambda own, run: None)  # else they go beneath Triton
    try:
        call()
    finally:
        kind.launch = launch
        del kind.run
    return found


def measure(cell: Cell, kernels: peers.Kernels) -> dict[str, Any]:
    inputs = make_inputs(cell, FULL_SIZE, device="cuda", seed=0)
    module = kernels.module(cell.variant)
    attend = peers.generated(cell, inputs, kernels).attend
    q, k, v = (x.detach() for x in inputs.qkv)
    params = list(inputs.params.values())
    learned = [x for x in inputs.params.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    attend(q, k, v)
    (launch,) = launches(module, lambda: attend(q, k, v))
    out = attend(*inputs.qkv)
    scale = cell.D**-0.5

    def backward() -> object:
        return torch.autograd.grad(out, [*inputs.qkv, *learned], inputs.grad_out, retain_graph=True)

    rivals = {name: host_us(attend, inputs) for name, attend in peers_of(cell, inputs).items()}
    times = {
        "launch": microseconds(launch),
        "call": microseconds(lambda: attend(q, k, v)),
        "check": microseconds(lambda: module._attention.check((q, k, v, *params), scale)),
        "operator": microseconds(lambda: module._attention.operator.forward(q, k, v, *params, scale)),
        "call with gradients": microseconds(lambda: attend(*inputs.qkv)),
        "backward": microseconds(backward, calls=100),
    }
    return {"key": cell.key, "us": times, "call / launch": times["call"] / times["launch"], "peers": rivals}


def peers_of(cell: Cell, inputs: Inputs) -> dict[str, Callable[..., Any]]:
    """Who has the variant, ready to be called with q, k, v."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    functorch.donated_buffer = False  # or it refuses retain_graph
    change = score_mod(cell.variant, FULL_SIZE, inputs.params)
    allowed = mask_mod(cell.variant, FULL_SIZE, inputs.params)
    mask = None if allowed is None else create_block_mask(allowed, None, None, cell.N, cell.N, device="cuda")
    compiled: Any = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    found: dict[str, Callable[..., Any]] = {
        "flex": lambda q, k, v: compiled(q, k, v, score_mod=change, block_mask=mask),
    }
    if peers.applies("fa4", cell) and peers.has_fa4():
        found["fa4"] = peers.fa4(cell, FULL_SIZE).attend
    return found


def host_us(attend: Callable[..., Any], inputs: Inputs) -> dict[str, float]:
    """Of a call without gradients, of one with, and of its backward pass."""
    plain = tuple(x.detach() for x in inputs.qkv)
    out = attend(*inputs.qkv)
    return {
        "call": microseconds(lambda: attend(*plain)),
        "call with gradients": microseconds(lambda: attend(*inputs.qkv)),
        "backward": microseconds(
            lambda: torch.autograd.grad(out, inputs.qkv, inputs.grad_out, retain_graph=True), calls=100
        ),
    }


def main() -> int:
    p = argparse.ArgumentParser(prog="overhead.py", description=__doc__)
    p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `gpu.py prepare` wrote")
    p.add_argument("-o", "--output", type=Path, help="the JSON")
    args = p.parse_args()
    kernels = peers.Kernels.at(args.kernels)
    found = [measure(cell, kernels) for cell in CASES]
    for record in found:
        for name, us in record["peers"].items():
            beside = ", ".join(f"{what} {t:.1f} ({t / record['us'][what]:.2f} of attngen's)" for what, t in us.items())
            print(f"{record['key']} {name}: {beside}")
        said = ", ".join(f"{name} {us:.1f}" for name, us in record["us"].items())
        print(f"{record['key']}: {said} us; call / launch {record['call / launch']:.2f}")
    if args.output:
        date = datetime.now(UTC).date().isoformat()
        rounded = [
            {
                **r,
                "us": {n: round(us, 1) for n, us in r["us"].items()},
                "call / launch": round(r["call / launch"], 2),
                "peers": {p: {n: round(us, 1) for n, us in own.items()} for p, own in r["peers"].items()},
            }
            for r in found
        ]
        result = {"machine": torch.cuda.get_device_name(), "date": date, "torch": torch.__version__, "cases": rounded}
        args.output.write_text(json_rows(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
