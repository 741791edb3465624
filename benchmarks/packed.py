"""Packed sequences of uneven lengths, beside FlashAttention 4's and 3's varlen functions.

    python benchmarks/packed.py prepare build/packed           # where attngen is
    python benchmarks/packed.py run --kernels build/packed     # on the GPU
    python benchmarks/packed.py table                          # afterwards, anywhere

All sequences are causal: plain, and with ALiBi, a soft cap of 50, a window of 1024, and learned sinks. attngen calls
`NAME_varlen` if the generated file has it, else documents over the packed tokens in one batch row. Each contender is
checked against dense float32, sequence by sequence. And where the file has `NAME_lengths`, padded rows are timed beside
dense ones, both counted by the pairs that they compute.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import report
from packed_cells import (
    DRY_SHAPE,
    DRY_WINDOW,
    PEERS,
    TOLERANCE,
    VARIANTS,
    WINDOW,
    Cell,
    Inputs,
    builds,
    errors,
    inputs_of,
    matrix,
    pairs,
    prepare,
    truth,
)
from report import Result, say
from saved import Files

if TYPE_CHECKING:
    from attngen.bench.race import Contender

HERE = Path(__file__).resolve().parent
OWED = {"alibi": (0.85, 0.85), "softcap": (0.75, 0.85), "sliding_window": (0.85, 0.85), "sink": (0.85, 0.85)}
"""What a variant owes of plain causal's speed, forward and backward."""


# ---- the run ---------------------------------------------------------------------------------------------------------


def measure(cell: Cell, args: argparse.Namespace) -> Result:
    import grouped

    from attngen.bench import clock
    from attngen.bench.race import Turns, mistakes, race

    window = WINDOW if args.device == "cuda" else DRY_WINDOW
    inputs = inputs_of(cell, args.device, args.seed, window)
    expected = truth(inputs)
    records: dict[str, dict[str, Any]] = {}
    ready: dict[str, Contender] = {}
    failed = functools.partial(grouped.failed, cell.key, args.device)
    for name, build in builds(inputs, Files.at(args.kernels), args.peers, args.device).items():
        try:
            made = build()
            if made is None:
                continue
            started = time.perf_counter()
            worst = errors(inputs, expected, made, backward=made.backward)
            right = all(error <= TOLERANCE for error in worst.values())
            first_s = round(time.perf_counter() - started, 3)
            records[name] = {"right": right, "errors": worst, "first_call_s": first_s, "way": made.name}
        except mistakes() as error:
            records[name] = {"failure": failed(name, error)}
            continue
        if right:
            ready[name] = made
        else:
            say(f"{cell.key} {name} WRONG: {worst}")
    del expected
    allowed = sum(pairs(cell.variant, n, window) for n in inputs.lengths)
    turns = Turns(args.device, args.rounds, 10.0 if args.device == "cuda" else 0.0, args.rep)
    for direction in report.DIRECTIONS:
        racing = {n: made for n, made in ready.items() if direction == "forward" or made.backward}
        work = functools.partial(_work, inputs, direction)
        outcome = race(racing, work, turns, failed)
        flops = (4.0 if direction == "forward" else 10.0) * cell.Hq * cell.D * allowed
        for name in racing:
            if name in outcome.failures:
                records[name]["failure"] = outcome.failures[name]
                del ready[name]
            else:
                timing = clock.summary(outcome.samples[name])
                records[name][direction] = timing.record(flops, outcome.graph_ms.get(name))
    return {"key": cell.key, **asdict(cell), "lengths": list(inputs.lengths), "contenders": records}


def _work(inputs: Inputs, direction: str, made: Contender) -> Callable[[], object]:
    from attngen.bench.race import graph

    return graph(made, inputs.qkv, inputs.d_out, direction)


def padded(args: argparse.Namespace, B: int = 4, S: int = 4096, Hq: int = 32, Hkv: int = 8, D: int = 128) -> Result:
    """Rows of which 10 % is padding, by `NAME_lengths`, beside dense rows of the same tensors: TFLOP/s by the pairs."""
    import grouped
    import torch

    from attngen.bench import clock
    from attngen.bench.race import Contender, Turns, race

    files = Files.at(args.kernels)
    function = files.function("causal", "_lengths")
    assert function is not None
    shape = grouped.Shape(B, Hq, Hkv, S, S, D, D)
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float16
    inputs = grouped.draw(shape, args.device, dtype, args.seed)
    stops = torch.linspace(0.8 * S, S, B, device=args.device).round().to(torch.int32)
    dense = files.dense("causal")
    ready = {
        "dense": Contender("dense", lambda q, k, v: dense(q, k, v)),
        "lengths": Contender("lengths", lambda q, k, v: function(q, k, v, q_stop=stops, k_stop=stops)),
    }
    q, k, v = (x.detach() for x in inputs.qkv)
    n = int(stops[0])  # the shortest row, by itself
    alone = dense(*(x[:1, :, :n] for x in (q, k, v))).float()
    error = float((ready["lengths"].attend(q, k, v)[:1, :, :n].float() - alone).norm() / alone.norm())
    if not error <= TOLERANCE:
        return {"failure": f"the shortest row's relative error is {error:.3g}"}
    counted = {"dense": S * (S + 1) / 2, "lengths": sum(pairs("causal", n, S) for n in stops.tolist()) / B}
    turns = Turns(args.device, args.rounds, 10.0 if args.device == "cuda" else 0.0, args.rep)
    found: Result = {"shape": asdict(shape), "q_stop": stops.tolist(), "error": error}
    for direction in report.DIRECTIONS:
        work = functools.partial(grouped.work, inputs, direction)
        outcome = race(ready, work, turns, functools.partial(grouped.failed, "padded", args.device))
        for name in ready:
            if name not in outcome.failures:
                timing = clock.summary(outcome.samples[name]).record(shape.flops(direction, counted[name]))
                found.setdefault(name, {})[direction] = timing
    return found


def run(args: argparse.Namespace) -> int:
    import grouped
    from gpu import software

    from attngen.bench.race import DeviceLostError

    grouped.keep_caches()
    started, note = time.monotonic(), ""
    machine, versions = software(args.device)
    files = Files.at(args.kernels)
    result: Result = {
        "machine": machine, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions, "seed": args.seed, "rep_ms": args.rep, "rounds": args.rounds,
        "kernels": files.digests(), "cells": [],
    }  # fmt: skip
    if args.output.exists():
        kept = report.read(args.output)
        if all(kept[x] == result[x] for x in ("machine", "versions", "seed", "kernels")):
            result = {**kept, "cells": kept["cells"]}
    done = {c["key"] for c in result["cells"]}
    every = [Cell(v, *DRY_SHAPE) for v in VARIANTS] if args.device == "cpu" else list(matrix())
    cells = [c for c in every if c.key not in done and (not args.only or any(o in c.key for o in args.only))]
    if args.workers and cells:
        passed = ["--kernels", str(args.kernels), "--only", *(c.key for c in cells)]
        spent = grouped.warm(Path(__file__).resolve(), passed, args.workers, args.budget / 3)
        say(f"{args.workers} processes compiled for {spent:.0f} s")
    for cell in cells:
        if time.monotonic() - started > args.budget:
            note = f"stopped at the budget of {args.budget:.0f} s before {cell.key}: the same command continues"
            break
        try:
            result["cells"].append(measure(cell, args))
        except DeviceLostError as error:
            note = f"stopped: the device is lost {error}"
            break
        report.write(args.output, result)
        say(line(result["cells"][-1]))
    if not note and not args.only and "padded" not in result and files.function("causal", "_lengths") is not None:
        result["padded"] = padded(args) if args.device == "cuda" else padded(args, 2, 64, 4, 2, 16)
        report.write(args.output, result)
    print(table(result))
    if note:
        print(note)
    return 1 if note or troubles(result) else 0


def warm(args: argparse.Namespace) -> int:
    import grouped
    import torch

    from attngen.bench.race import mistakes

    grouped.keep_caches()
    index, count = grouped.sliced(args.slice)
    cells = [c for c in matrix() if not args.only or any(o in c.key for o in args.only)]
    for cell in cells[index::count]:
        inputs = inputs_of(cell, args.device, args.seed, WINDOW)
        for name, build in builds(inputs, Files.at(args.kernels), ("fa4",), args.device).items():
            try:
                made = build()
                if made is not None:
                    torch.autograd.grad(made.attend(*inputs.qkv), inputs.qkv, inputs.d_out)
            except mistakes() as error:
                grouped.failed(cell.key, args.device, name, error)
    return 0


# ---- what is shown ---------------------------------------------------------------------------------------------------


def line(cell: Result) -> str:
    parts: list[str] = []
    for direction in report.DIRECTIONS:
        found: list[str] = []
        for name in ("attngen", *PEERS):
            speed, ratio = report.tflops(cell, name, direction), report.ratio(cell, name, direction)
            if speed is not None:
                found.append(f"{name} {speed:.0f}" + ("" if name == "attngen" or not ratio else f" x{ratio:.2f}"))
        parts.append(f"{direction} {', '.join(found)}")
    way = cell["contenders"]["attngen"].get("way", "")
    return f"{cell['key']} ({way}): " + "; ".join(parts)


def over_peers(cell: Result, direction: str) -> float | None:
    """attngen's speed over the better peer."""
    found = [r for peer in PEERS if (r := report.ratio(cell, peer, direction)) is not None]
    return min(found) if found else None


def of_plain(result: Result, cell: Result, direction: str) -> float | None:
    """attngen's speed as a share of its speed on the same shape without the variant."""
    for other in result["cells"]:
        if other["variant"] == "causal" and other["key"].split(":", 1)[1] == cell["key"].split(":", 1)[1]:
            ours, plain = (report.tflops(c, "attngen", direction) for c in (cell, other))
            return None if ours is None or plain is None else ours / plain
    return None


def troubles(result: Result) -> list[str]:
    return [
        f"{cell['key']} {name}: {record.get('failure') or record['errors']}"
        for cell in result["cells"]
        for name, record in cell["contenders"].items()
        if "failure" in record or not record["right"]
    ]


def table(result: Result) -> str:
    """TFLOP/s with attngen's speed over each peer; over the better peer; what each variant keeps of plain speed."""
    lines = [line(c) for c in result["cells"]]
    lines.append(f"{result['machine']}, {result['date']}, seed {result['seed']}: TFLOP/s, x = attngen / peer")
    for cell in result["cells"]:
        found = [over_peers(cell, d) for d in report.DIRECTIONS]
        if cell["variant"] == "causal" and None not in found:
            lines.append(f"over the better peer: {cell['key']} {' / '.join(f'{x:.2f}' for x in found if x)}")
        kept = [of_plain(result, cell, d) for d in report.DIRECTIONS]
        if cell["variant"] in OWED and None not in kept:
            shares = [x for x in kept if x is not None]
            owed = OWED[cell["variant"]]
            mark = "  <" if any(x < o for x, o in zip(shares, owed, strict=True)) else ""
            lines.append(
                f"of plain causal: {cell['key']} {shares[0]:.2f} / {shares[1]:.2f}, "
                f"asked {owed[0]:.2f} / {owed[1]:.2f}{mark}"
            )
    if "failure" in result.get("padded", {}):
        lines.append(f"lengths: {result['padded']['failure']}")
    elif "padded" in result:
        for direction in report.DIRECTIONS:
            found = [result["padded"].get(n, {}).get(direction) for n in ("lengths", "dense")]
            if all(found):
                ratio = found[0]["tflops"] / found[1]["tflops"]
                lines.append(f"lengths with 10 % padding, {direction}: {ratio:.3f} of dense by pairs, asked 0.95")
    return "\n".join([*lines, *troubles(result)])


def main(argv: list[str]) -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    p = commands.add_parser("prepare", help="compile the specs into a directory (needs attngen)")
    p.add_argument("directory", type=Path)
    p.add_argument("--dry", action="store_true", help="for a dry run")
    for name, text in (("run", "measure, or continue a run"), ("warm", "fill the compilers' caches, a part of it")):
        p = commands.add_parser(name, help=text)
        p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `prepare` wrote")
        p.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="cells whose key holds one of these")
        p.add_argument("--seed", type=int, default=0, help="of lengths and data (%(default)s)")
        p.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run without peers")
        if name == "warm":
            p.add_argument("--slice", default="0/1", metavar="I/N", help="this process's share")
            continue
        p.add_argument("-o", "--output", type=Path, default=HERE / "packed.json", help="the JSON (%(default)s)")
        p.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
        p.add_argument("--workers", type=int, default=0, help="processes that compile everything beforehand")
        p.add_argument("--budget", type=float, default=300.0, metavar="S", help="no cell starts later (%(default)s)")
        p.add_argument("--rep", type=float, default=45.0, metavar="MS", help="milliseconds a measurement (%(default)s)")
        p.add_argument("--rounds", type=int, default=3, help="turns that a measurement is split into (%(default)s)")
    p = commands.add_parser("table")
    p.add_argument("file", type=Path, nargs="?", default=HERE / "packed.json")
    args = top.parse_args(argv)
    match args.command:
        case "prepare":
            prepare(args.directory, dry=args.dry)
        case "run":
            return run(args)
        case "warm":
            return warm(args)
        case _:
            print(table(report.read(args.file)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
