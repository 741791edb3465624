"""Measures attention as models call it: grouped heads, tensors (B, S, H, D) in memory, causal and full.

    python benchmarks/models.py prepare build/models          # where attngen is: compile the two specs
    python benchmarks/models.py run --kernels build/models    # on the GPU: needs torch and triton
    python benchmarks/models.py table | plot                  # afterwards, anywhere

All contenders of a cell run in one process, in turn, each checked first against dense float32. A run continues the
results that its output file already holds, if they are of the same kernels and machine: a whole matrix takes several
calls. README.md says how to read them.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import report
from report import Result, say

if TYPE_CHECKING:
    from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # this checkout's attngen, installed or not
SPECS = {"causal": "attention causal\nmask = causal\n", "full": "attention full\n"}
PEERS = ("fa4", "fa3", "cudnn", "flex")
TOLERANCE = 2e-2
"""Relative error of bf16 results. Right kernels land between 2e-3 and 8e-3."""


@dataclass(frozen=True, slots=True)
class Cell:
    mask: str
    B: int
    Hq: int
    Hkv: int
    N: int
    D: int
    Dv: int

    @property
    def key(self) -> str:
        dims = f"{self.D}" if self.Dv == self.D else f"{self.D}/{self.Dv}"
        return f"{self.mask}:{self.B}x{self.N}:{self.Hq}/{self.Hkv}:{dims}"

    def flops(self, direction: str) -> float:
        """2 B Hq N² (D + Dv) for the two products of the forward pass; backward has three with D and two with Dv."""
        pairs = self.N * self.N if self.mask == "full" else self.N * (self.N + 1) / 2
        width = self.D + self.Dv if direction == "forward" else 3 * self.D + 2 * self.Dv
        return 2.0 * self.B * self.Hq * pairs * width


def matrix() -> Iterator[Cell]:
    """16,384 tokens a cell, the cells that models run most first."""
    for Hq, Hkv, D, Dv in (
        (32, 8, 128, 128),
        (64, 8, 128, 128),
        (16, 16, 128, 128),
        (28, 4, 128, 128),
        (32, 1, 128, 128),
        (64, 8, 64, 64),
        (8, 4, 256, 256),
        (16, 16, 192, 128),
    ):
        for N in (8192, 2048, 16384, 4096, 1024, 512):
            for mask in ("causal", "full"):
                yield Cell(mask, 16384 // N, Hq, Hkv, N, D, Dv)


# ---- inputs and truth ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inputs:
    """q, k, v and d_out as models hold them: views (B, H, S, D) of tensors that are (B, S, H, D) in memory."""

    qkv: tuple[Tensor, Tensor, Tensor]
    d_out: Tensor


def inputs_of(cell: Cell, device: str, seed: int) -> Inputs:
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = torch.bfloat16 if device == "cuda" else torch.float16

    def draw(heads: int, dim: int) -> Tensor:
        shape = (cell.B, cell.N, heads, dim)
        return torch.randn(shape, generator=generator, device=device).to(dtype).transpose(1, 2)

    q, k, v, d_out = draw(cell.Hq, cell.D), draw(cell.Hkv, cell.D), draw(cell.Hkv, cell.Dv), draw(cell.Hq, cell.Dv)
    return Inputs((q.requires_grad_(), k.requires_grad_(), v.requires_grad_()), d_out)


def truth(cell: Cell, inputs: Inputs, rows: int = 1024) -> dict[str, Tensor]:
    """Dense float32 of the last batch's last group of heads: out and dq (group, N, ·), dk and dv (N, ·)."""
    import torch

    group = cell.Hq // cell.Hkv
    q, k, v = (x.detach()[-1].float() for x in inputs.qkv)
    q, k, v = (x.requires_grad_() for x in (q[-group:].clone(), k[-1].clone(), v[-1].clone()))
    d_out = inputs.d_out[-1, -group:].float()
    keys = torch.arange(cell.N, device=q.device)
    found: list[Tensor] = []
    for start in range(0, cell.N, rows):
        score = q[:, start : start + rows] @ k.T / math.sqrt(cell.D)
        if cell.mask == "causal":
            score = score.masked_fill(keys[None, :] > keys[start : start + rows, None], -math.inf)
        out = torch.softmax(score, -1) @ v
        out.backward(d_out[:, start : start + rows])
        found.append(out.detach())
    assert q.grad is not None and k.grad is not None and v.grad is not None
    return {"out": torch.cat(found, 1), "dq": q.grad, "dk": k.grad, "dv": v.grad}


def errors(cell: Cell, inputs: Inputs, expected: Mapping[str, Tensor], attend: Any, backward: bool) -> dict[str, float]:
    """Relative errors by name; inf where an element of a whole tensor is not finite."""
    import torch

    group = cell.Hq // cell.Hkv
    out = attend(*inputs.qkv)
    found = {"out": out}
    if backward:
        found |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, inputs.qkv, inputs.d_out), strict=True))
    worst: dict[str, float] = {}
    for name, x in found.items():
        part = x[-1, -group:] if name in ("out", "dq") else x[-1, -1]
        gap = (part.detach().float() - expected[name]).norm() / expected[name].norm()
        worst[name] = float(gap) if bool(torch.isfinite(x).all()) else math.inf
    return worst


# ---- contenders ------------------------------------------------------------------------------------------------------


def fa3() -> Any:
    """FlashAttention 3's forward pass, which is all that its package for inference has."""
    from attngen.bench.race import Contender

    sys.modules["flash_attn_config"] = importlib.import_module("fa3_fwd_config")
    function: Callable[..., Any] = importlib.import_module("fa3_fwd_interface").flash_attn_func

    def made(causal: bool) -> Any:
        def attend(q: Any, k: Any, v: Any) -> Any:
            found = function(*(x.detach().transpose(1, 2) for x in (q, k, v)), causal=causal)
            return (found if hasattr(found, "transpose") else found[0]).transpose(1, 2)

        return Contender("fa3", attend)

    return made


def contender(name: str, cell: Cell, kernels: Path, device: str) -> Any:
    from attngen.bench import contenders
    from attngen.bench.race import Contender

    causal, grouped = cell.mask == "causal", cell.Hq != cell.Hkv
    match name:
        case "attngen":
            function = load(kernels, cell.mask)
            return Contender("attngen", lambda q, k, v: function(q, k, v))
        case "fa4":
            return contenders.fa4({"causal": causal})
        case "fa3":
            return fa3()(causal)
        case "cudnn":
            return contenders.scaled("cudnn", causal=causal, device=device, grouped=grouped)
        case _:
            allowed = (lambda b, h, q, k: k <= q) if causal else None
            shape = (cell.B, cell.Hq, cell.N, cell.N)
            return contenders.flex(None, allowed, shape, batches=None, heads=None, device=device, grouped=grouped)


@functools.cache
def load(kernels: Path, mask: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(f"attngen_models_{mask}", kernels / f"{mask}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # before it runs: triton looks modules up by name
    spec.loader.exec_module(module)
    return getattr(module, mask)


def present(name: str, device: str) -> bool:
    from attngen.bench.contenders import has_fa4

    match name:
        case "fa4":
            return device == "cuda" and has_fa4()
        case "fa3":
            return device == "cuda" and importlib.util.find_spec("fa3_fwd_interface") is not None
        case _:
            return device == "cuda"


# ---- the run ---------------------------------------------------------------------------------------------------------


def measure(cell: Cell, args: argparse.Namespace, seed: int) -> Result:
    from attngen.bench import clock
    from attngen.bench.race import MISTAKES, Turns, failure, graph, race

    inputs = inputs_of(cell, args.device, seed)
    expected = truth(cell, inputs)
    records: dict[str, dict[str, Any]] = {}
    ready: dict[str, Any] = {}

    def failed(name: str, error: Exception) -> str:
        say(f"{cell.key} {name} FAILED: {error}")
        return failure(f"{cell.key}, {name}", error, args.device)

    for name in ("attngen", *(p for p in args.peers if present(p, args.device))):
        try:
            made = contender(name, cell, args.kernels, args.device)
            started = time.perf_counter()
            with made.scope():
                worst = errors(cell, inputs, expected, made.attend, backward=name != "fa3")
            right = all(error <= TOLERANCE for error in worst.values())
            first_s = round(time.perf_counter() - started, 3)
            records[name] = {"right": right, "errors": worst, "first_call_s": first_s}
        except MISTAKES as error:
            records[name] = {"failure": failed(name, error)}
            continue
        if right:
            ready[name] = made
    del expected
    for direction in report.DIRECTIONS:
        racing = {n: made for n, made in ready.items() if direction == "forward" or n != "fa3"}
        work = functools.partial(_work, inputs, direction, graph)
        turns = Turns(args.device, args.rounds, 10.0 if args.device == "cuda" else 0.0, args.rep)
        outcome = race(racing, work, turns, failed)
        for name in racing:
            if name in outcome.failures:
                records[name]["failure"] = outcome.failures[name]
                del ready[name]
            else:
                timing = clock.summary(outcome.samples[name])
                records[name][direction] = timing.record(cell.flops(direction), outcome.graph_ms.get(name))
    return {"key": cell.key, **asdict(cell), "contenders": records}


def _work(inputs: Inputs, direction: str, graph: Any, made: Any) -> Callable[[], object]:
    return graph(made, inputs.qkv, inputs.d_out, direction)


def run(args: argparse.Namespace) -> int:
    import hashlib

    from gpu import software

    from attngen.bench.race import DeviceLostError

    machine, versions = software(args.device)
    digests = {m: hashlib.sha256((args.kernels / f"{m}.py").read_bytes()).hexdigest()[:16] for m in SPECS}
    result: Result = {
        "machine": machine, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions, "rep_ms": args.rep, "rounds": args.rounds, "kernels": digests, "cells": [],
    }  # fmt: skip
    if args.output.exists():
        kept = report.read(args.output)
        if (kept["machine"], kept["versions"], kept["kernels"]) == (machine, versions, digests):
            result["cells"] = kept["cells"]
    done = {c["key"] for c in result["cells"]}
    cells = [Cell("causal", 2, 4, 2, 64, 16, 16)] if args.device == "cpu" else matrix()
    started, note = time.monotonic(), ""
    for cell in cells:
        if cell.key in done or (args.only and not any(cell.key.startswith(only) for only in args.only)):
            continue
        if time.monotonic() - started > args.budget:
            note = f"stopped at the budget of {args.budget:.0f} s before {cell.key}: the same command continues"
            break
        try:
            result["cells"].append(measure(cell, args, args.seed))
        except DeviceLostError as error:
            note = f"stopped: the device is lost {error}"
            break
        report.write(args.output, result)
        say(line(result["cells"][-1]))
    print(table(result))
    if note:
        print(note)
    return 1 if note else 0


# ---- what is shown ---------------------------------------------------------------------------------------------------


def best_peer(cell: Result, direction: str) -> tuple[str, float] | None:
    """The fastest peer, and attngen's speed over it."""
    ratios = [(n, r) for n in PEERS if (r := report.ratio(cell, n, direction)) is not None]
    return min(ratios, key=lambda pair: pair[1]) if ratios else None


def line(cell: Result) -> str:
    parts: list[str] = []
    for direction in report.DIRECTIONS:
        ours = report.tflops(cell, "attngen", direction)
        peers = [f"{n} {t:.0f}" for n in PEERS if (t := report.tflops(cell, n, direction)) is not None]
        parts.append(f"{direction} {ours or math.nan:.0f} ({', '.join(peers)})")
    return f"{cell['key']}: " + ", ".join(parts)


def table(result: Result) -> str:
    """A row a cell and direction: TFLOP/s, with attngen's speed over each peer's."""
    rows = [["heads", "D", "N", "mask", "", "attngen", *PEERS]]
    for cell in result["cells"]:
        dims = f"{cell['D']}" if cell["D"] == cell["Dv"] else f"{cell['D']}/{cell['Dv']}"
        for direction in report.DIRECTIONS:
            entries: list[str] = []
            for name in PEERS:
                speed, ratio = report.tflops(cell, name, direction), report.ratio(cell, name, direction)
                lone = "" if speed is None else f"{speed:.0f}"
                entries.append(lone if ratio is None else f"{lone} x{ratio:.2f}")
            ours = report.tflops(cell, "attngen", direction)
            heads = f"{cell['Hq']}/{cell['Hkv']}"
            own = "" if ours is None else f"{ours:.0f}"
            rows.append([heads, dims, str(cell["N"]), cell["mask"], direction[:3], own, *entries])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(f"{result['machine']}, {result['date']}: TFLOP/s, x = attngen / peer")
    for peer in PEERS:
        for direction in report.DIRECTIONS:
            found = [r for cell in result["cells"] if (r := report.ratio(cell, peer, direction)) is not None]
            if found:
                mean = report.geometric_mean(found)
                lines.append(
                    f"attngen / {peer}, {direction}: geometric mean {mean:.2f}, least {min(found):.2f}, "
                    f"most {max(found):.2f} over {len(found)} cells"
                )
    for cell in result["cells"]:
        for name, record in cell["contenders"].items():
            if "failure" in record or not record["right"]:
                lines.append(f"  {cell['key']} {name}: {record.get('failure') or record['errors']}")
    return "\n".join(lines)


def draw(result: Result, path: Path) -> None:
    """attngen's speed over the fastest peer, a point a cell, forward above backward."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "attngen"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 1, figsize=(10, 7), sharex=True, squeeze=False)
    for axes, direction in zip(panels[:, 0], report.DIRECTIONS, strict=True):
        for mask, marker in (("causal", "o"), ("full", "s")):
            cells = [c for c in result["cells"] if c["mask"] == mask and best_peer(c, direction)]
            labels = [f"{c['Hq']}/{c['Hkv']} D {c['D']}\nN {c['N']}" for c in cells]
            ratios = [found[1] for c in cells if (found := best_peer(c, direction))]
            axes.plot(labels, ratios, marker, label=mask)
        axes.axhline(1.0, color="#333333", lw=0.8)
        axes.set_ylabel(f"{direction}: attngen / best peer")
        axes.grid(axis="y", lw=0.4)
    panels[0, 0].legend(frameon=False)
    panels[1, 0].tick_params(axis="x", labelrotation=90, labelsize=7)
    figure.suptitle(f"{result['machine']}, {result['date'][:10]}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def main(argv: list[str]) -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    p = commands.add_parser("prepare", help="compile the specs into a directory (needs attngen)")
    p.add_argument("directory", type=Path)
    p = commands.add_parser("run", help="measure, or continue a run")
    p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `prepare` wrote")
    p.add_argument("-o", "--output", type=Path, default=HERE / "models.json", help="the JSON (%(default)s)")
    p.add_argument("--only", nargs="+", default=[], metavar="KEY", help="cells whose key starts so: causal:2x8192:32/8")
    p.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    p.add_argument("--budget", type=float, default=500.0, metavar="S", help="no cell starts later (%(default)s)")
    p.add_argument("--rep", type=float, default=60.0, metavar="MS", help="milliseconds a measurement (%(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="turns that a measurement is split into (%(default)s)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run without peers")
    for name in ("table", "plot"):
        p = commands.add_parser(name)
        p.add_argument("file", type=Path, nargs="?", default=HERE / "models.json")
    args = top.parse_args(argv)
    match args.command:
        case "prepare":
            import attngen

            args.directory.mkdir(parents=True, exist_ok=True)
            for mask, text in SPECS.items():
                attngen.compile(text).save(args.directory / f"{mask}.py")
        case "run":
            return run(args)
        case "table":
            print(table(report.read(args.file)))
        case _:
            draw(report.read(args.file), args.file.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
