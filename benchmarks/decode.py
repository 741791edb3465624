"""Short queries against a long cache: attngen's split walk beside its unsplit kernel, SDPA and FlexAttention.

`sdpa` is `scaled_dot_product_attention` as it comes, `flash2` with FlashAttention 2 for its only backend. `fa3` is
FlashAttention 3's split-KV, where the package fa3-fwd is here.

    python benchmarks/gpu.py prepare build/kernels                               # where attngen is installed
    python benchmarks/decode.py --kernels build/kernels -o "$OUT/decode.json"    # on a GPU

bfloat16, D = 128, Hq = 32 and Hkv = 8 unless the key says otherwise; every contender is checked against dense float32
first, and attngen's bits over ten runs. `ms` is the median over runs of `triton.testing.do_bench`, which clears the L2
cache; `graph_ms` the same of a CUDA graph's replay, `host_us` what a call takes of the host where calls follow each
other. `of_copy` is the bytes of K and V over `graph_ms`, as a share of what a large `torch.copy_` moves (read and
written) in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import flash
import peers
import torch
import triton
from overhead import microseconds
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attngen.bench.clock import sample, summary
from attngen.files import json_rows

HQ, HKV, D = 32, 8, 128
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Shape:
    variant: str
    B: int
    Sq: int
    Sk: int
    Hq: int = HQ
    Hkv: int = HKV

    @property
    def key(self) -> str:
        heads = "" if (self.Hq, self.Hkv) == (HQ, HKV) else f":{self.Hq}/{self.Hkv}"
        return f"{self.variant}:B{self.B}:Sq{self.Sq}:Sk{self.Sk}{heads}"


SHAPES = (
    Shape("full", 8, 1, 32768),
    Shape("full", 8, 4, 32768),
    Shape("full", 8, 16, 32768),
    Shape("full", 8, 1, 4096),
    Shape("full", 1, 1, 32768),
    Shape("full", 1, 1, 4096),
    Shape("full", 1, 64, 32768),
    Shape("causal", 8, 4, 32768),
    Shape("alibi", 8, 1, 32768),
    Shape("softcap", 8, 1, 32768),
    Shape("sliding_window", 8, 1, 32768),
)
SERVED = (
    Shape("full", 64, 1, 4096),
    Shape("full", 128, 1, 2048, 64, 8),
    Shape("full", 32, 1, 8192, 16, 16),
    Shape("causal", 8, 4, 16384, 64, 8),
    Shape("causal", 32, 4, 8192, 16, 16),
    Shape("full", 1, 1, 131072),
    Shape("causal", 4, 512, 16384),
)
"""Shapes that servers run, beside FlashAttention 3's split-KV alone: caches (B, S, H, D) in memory. The first five were
slower than it."""
WITH_FLEX = SHAPES[:3] + SHAPES[4:5] + SHAPES[8:]
Modifier = Any  # an elementwise function of (score,) b, h, q, k, as FlexAttention takes them
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One shape's tensors. `score` and `allowed` say what the variant is; the last query stands with the last key."""

    shape: Shape
    qkv: tuple[Tensor, Tensor, Tensor]
    params: dict[str, Tensor]
    window: int
    cap: float

    def score(self) -> Modifier:
        """What becomes of a scaled score, elementwise."""
        offset, cap, slope = self.shape.Sk - self.shape.Sq, self.cap, self.params.get("slope")
        match self.shape.variant:
            case "alibi":
                return lambda s, b, h, q, k: s - slope[h] * (q + offset - k)
            case "softcap":
                return lambda s, b, h, q, k: cap * torch.tanh(s / cap)
            case _:
                return lambda s, b, h, q, k: s

    def allowed(self) -> Modifier:
        """Which pairs may attend."""
        offset, window = self.shape.Sk - self.shape.Sq, self.window
        match self.shape.variant:
            case "full":
                return lambda b, h, q, k: k >= 0
            case "sliding_window":
                return lambda b, h, q, k: (k <= q + offset) & (q + offset - k < window)
            case _:
                return lambda b, h, q, k: k <= q + offset

    def dense(self) -> Tensor:
        """In float32, a batch at a time."""
        q, k, v = self.qkv
        h, i, j = (torch.arange(n, device=q.device) for n in (self.shape.Hq, self.shape.Sq, self.shape.Sk))
        score, allowed = self.score(), self.allowed()
        out = torch.empty(q.shape, device=q.device)
        for b in range(q.shape[0]):
            keys, values = (x[b].float().repeat_interleave(self.shape.Hq // self.shape.Hkv, 0) for x in (k, v))
            s = score(q[b].float() @ keys.mT * D**-0.5, b, h[:, None, None], i[:, None], j)
            out[b] = s.masked_fill(~allowed(b, h, i[:, None], j), -torch.inf).softmax(-1) @ values
        return out


def case_of(shape: Shape, kernels: peers.Kernels) -> Case:
    torch.manual_seed(0)
    sizes = ((shape.Hq, shape.Sq), (shape.Hkv, shape.Sk), (shape.Hkv, shape.Sk))

    def draw(h: int, s: int) -> Tensor:
        if shape in SERVED:
            return torch.randn(shape.B, s, h, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        return torch.randn(shape.B, h, s, D, device="cuda", dtype=torch.bfloat16)

    q, k, v = (draw(*size) for size in sizes)
    params = {"slope": 2.0 ** -torch.arange(1, shape.Hq + 1, device="cuda").float()} if shape.variant == "alibi" else {}
    return Case(shape, (q, k, v), params, kernels.settings.window, kernels.settings.cap)


def flex(case: Case) -> Attend:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    s = case.shape
    mask = None if s.variant == "full" else create_block_mask(case.allowed(), None, None, s.Sq, s.Sk, device="cuda")
    change = case.score() if s.variant in ("alibi", "softcap") else None
    compiled: Any = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return lambda q, k, v: compiled(q, k, v, score_mod=change, block_mask=mask, enable_gqa=True)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def split_kv(case: Case) -> Attend:
    """FlashAttention 3, which chooses the number of splits."""
    function, causal = flash.fa3().flash_attn_with_kvcache, case.shape.variant == "causal"
    lengths = torch.full((case.shape.B,), case.shape.Sk, dtype=torch.int32, device=case.qkv[0].device)

    def attend(*qkv: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in qkv)
        return function(q, k, v, cache_seqlens=lengths, causal=causal).transpose(1, 2)

    return attend


def measured(case: Case, attend: Attend, want: Tensor, copy: float, *, repeats: int = 0) -> dict[str, Any]:
    q, k, v = case.qkv
    out = attend(q, k, v)
    error = ((out.float() - want).norm() / want.norm()).item()
    if not error <= TOLERANCE:
        return {"error": error, "failure": "wrong"}
    found: dict[str, Any] = {"error": error}
    if repeats:
        found["same_bits"] = all(torch.equal(attend(q, k, v), out) for _ in range(repeats))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        attend(q, k, v)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(q, k, v)
    call = summary(sample(lambda: attend(q, k, v), device="cuda", warmup_ms=10, rep_ms=60))
    replay = summary(sample(graph.replay, device="cuda", warmup_ms=10, rep_ms=60))
    found |= {"ms": call.ms, "graph_ms": replay.ms, "q20": replay.q20, "q80": replay.q80, "runs": replay.runs}
    if case.shape.variant != "sliding_window":  # which reads its window alone
        rate = (k.nbytes + v.nbytes) / (replay.ms * 1e-3) / 1e12
        found |= {"tb_s": rate, "of_copy": rate / copy}
    return found


def cell(shape: Shape, kernels: peers.Kernels, copy: float, *, with_flex: bool) -> dict[str, Any]:
    case = case_of(shape, kernels)
    want = case.dense()
    module, function = kernels.module(shape.variant), kernels.function(shape.variant)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return function(q, k, v, **case.params)

    found = {"attngen": measured(case, attend, want, copy, repeats=10)}
    launches = [x for known in module._attention.ready.values() for ready in known.forward.values() for x in ready]
    scalars = [x.scalars for x in launches if hasattr(x, "scalars")]
    found["attngen"]["pieces"] = max((s["pieces"] for s in scalars if "pieces" in s), default=0)
    if shape not in SERVED:
        own = module.host.split_pieces
        module._attention.ready.clear()
        module.host.split_pieces = lambda *_: 0
        found["unsplit"] = measured(case, attend, want, copy)
        module.host.split_pieces = own
        module._attention.ready.clear()
    others: list[tuple[str, Callable[[], tuple[Attend, Any]]]] = []
    if shape.variant in ("full", "causal") and flash.has_fa3():
        others.append(("fa3", lambda: (split_kv(case), nullcontext())))
    if shape not in SERVED and (shape.variant == "full" or (shape.variant == "causal" and shape.Sq == 1)):
        others.append(("sdpa", lambda: (sdpa, nullcontext())))
        others.append(("flash2", lambda: (sdpa, sdpa_kernel(SDPBackend.FLASH_ATTENTION))))
    if with_flex:
        others.append(("flex", lambda: (flex(case), nullcontext())))
    for name, make in others:
        try:
            contender, scope = make()
            with scope:
                found[name] = measured(case, contender, want, copy)
        except RuntimeError as failed:  # what a backend does not take, or a compiler cannot do
            found[name] = {"failure": str(failed).split("\n")[0][:200]}
    return {"key": shape.key, "contenders": found}


def copy_rate() -> float:
    """TB/s that a copy of 2 GiB reads and writes."""
    x = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    return (
        2 * x.nbytes / (summary(sample(lambda: y.copy_(x), device="cuda", warmup_ms=20, rep_ms=200)).ms * 1e-3) / 1e12
    )


def host(kernels: peers.Kernels) -> dict[str, float]:
    """Microseconds of the host a call: of a known layout; of a length that has not been met; and of others."""
    q, k, v = case_of(Shape("full", 1, 1, 2048), kernels).qkv
    module, function = kernels.module("full"), kernels.function("full")
    found = {"call": microseconds(lambda: function(q, k, v)), "sdpa": microseconds(lambda: sdpa(q, k, v))}
    lengths = range(1024, 2048, 4)
    start = time.perf_counter()
    for n in lengths:
        function(q, k[:, :, :n], v[:, :, :n])
    found["new length"] = (time.perf_counter() - start) / len(lengths) * 1e6
    torch.cuda.synchronize()
    own = module.host.split_pieces
    module._attention.ready.clear()
    module.host.split_pieces = lambda *_: 0
    found["unsplit"] = microseconds(lambda: function(q, k, v))
    module.host.split_pieces = own
    module._attention.ready.clear()
    return found


def main() -> int:
    p = argparse.ArgumentParser(prog="decode.py", description=__doc__)
    p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `gpu.py prepare` wrote")
    p.add_argument("--only", metavar="VARIANT", help="its shapes alone, put into what OUTPUT holds")
    p.add_argument("--served", action="store_true", help="the shapes beside FlashAttention 3 alone")
    p.add_argument("--budget", type=float, default=600.0, metavar="S", help="no FlexAttention once so much is spent")
    p.add_argument("-o", "--output", type=Path, help="the JSON")
    args = p.parse_args()
    started = time.perf_counter()
    kernels = peers.Kernels.at(args.kernels)
    variants = {s.variant for s in (*SHAPES, *SERVED)}
    copy = copy_rate()
    print(f"copy: {copy:.2f} TB/s")
    if args.only:
        result = json.loads(args.output.read_text(encoding="utf-8"))
        if result["kernels"] != {name: digest for name, digest in kernels.digests().items() if name in variants}:
            p.error(f"{args.output} is of other kernels")
    else:
        result = {
            "machine": torch.cuda.get_device_name(),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
            "command": "python benchmarks/decode.py --kernels build/kernels -o benchmarks/decode.json",
            "kernels": {name: digest for name, digest in kernels.digests().items() if name in variants},
            "shape": {"Hq": HQ, "Hkv": HKV, "D": D, "dtype": "bfloat16"},
            "copy_tb_s": copy,
            "host_us": host(kernels) if not args.served else {},
            "cells": [],
        }
        print("host, us a call:", ", ".join(f"{name} {us:.1f}" for name, us in result["host_us"].items()))
    failed = False
    shapes = SERVED if args.served else (*SERVED, *SHAPES)
    for shape in sorted(shapes, key=lambda s: s in WITH_FLEX):  # FlexAttention compiles for seconds: last
        if args.only not in (None, shape.variant):
            continue
        flexible = shape in WITH_FLEX and time.perf_counter() - started < args.budget
        record = cell(shape, kernels, copy, with_flex=flexible)
        failed |= not record["contenders"]["attngen"].get("same_bits")
        result["cells"] = [r for r in result["cells"] if r["key"] != record["key"]] + [record]
        for name, c in record["contenders"].items():
            said = c["failure"] if "failure" in c else f"{c['graph_ms'] * 1e3:.1f} us"
            share = f", {c['of_copy']:.3f} of copy" if "of_copy" in c else ""
            print(f"{record['key']} {name}: {said}{share}", flush=True)
        if args.output:
            args.output.write_text(json_rows(result), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
