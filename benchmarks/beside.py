"""Two sets of generated files beside each other on a GPU, in one process: what a change of templates costs.

    python benchmarks/models.py prepare build/models_before     # at the commit before; packed.py likewise
    python benchmarks/models.py prepare build/models_now        # at this one
    python benchmarks/beside.py run models build/models_before build/models_now -o "$OUT/beside.json"
    python benchmarks/beside.py table benchmarks/beside.json

The cells are those of models.py or packed.py. Both files of a cell are checked against dense float32 and timed in turn.
Cells in which the later file has under 0.96 of the speed are timed again, and the second time counts.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import models
import packed_cells
import report
from report import Result, say
from saved import Files

HERE = Path(__file__).resolve().parent
SIDES = ("before", "now")
AGAIN = 0.96
"""Cells with less than this share of the speed before are timed a second time."""


def speed_kept(cell: Result, direction: str) -> float | None:
    """The later file's speed over the earlier's, from the medians of kernels replayed by a CUDA graph where both have
    them, else of calls."""
    sides = [cell["contenders"].get(side, {}).get(direction, {}) for side in SIDES]
    for unit in ("graph_ms", "ms"):
        if all(unit in side for side in sides):
            return sides[0][unit] / sides[1][unit]
    return None


def dense(cell: models.Cell, files: Mapping[str, Files], args: argparse.Namespace, turns: Any) -> dict[str, Any]:
    import grouped
    import torch

    from attngen.bench.race import Contender

    dtype = torch.bfloat16 if args.device == "cuda" else torch.float16  # Triton's interpreter multiplies bf16 wrongly
    inputs = grouped.draw(cell.shape, args.device, dtype, seed=0)

    def build(side: str) -> Contender:
        return Contender(side, files[side].dense(cell.mask))

    made = {side: functools.partial(build, side) for side in SIDES}
    return grouped.run(grouped.Race(cell.key, cell.shape, cell.formula, inputs, made, cell.pairs), turns)


def uneven(cell: packed_cells.Cell, files: Mapping[str, Files], args: argparse.Namespace, turns: Any) -> dict[str, Any]:
    import grouped

    from attngen.bench import cell as calling
    from attngen.bench.race import graph

    window = packed_cells.WINDOW if args.device == "cuda" else packed_cells.DRY_WINDOW
    inputs = packed_cells.inputs_of(cell, args.device, 0, window)
    expected = packed_cells.truth(inputs)
    told = functools.partial(grouped.failed, cell.key, args.device)
    made = {side: functools.partial(packed_cells.attngen, inputs, files[side]) for side in SIDES}
    ready, records = calling.settle(
        made, lambda _, side: {"errors": packed_cells.errors(inputs, expected, side, backward=True)}, told
    )
    pairs = sum(packed_cells.pairs(cell.variant, n, window) for n in inputs.lengths)
    calling.timed(
        ready,
        records,
        lambda direction, side: graph(side, inputs.qkv, inputs.d_out, direction),
        lambda direction: (4.0 if direction == "forward" else 10.0) * cell.Hq * cell.D * pairs,
        report.DIRECTIONS,
        turns,
        told,
    )
    return records


def matrix(args: argparse.Namespace) -> tuple[list[Any], Callable[..., dict[str, Any]]]:
    dry = args.device == "cpu"
    if args.matrix == "models":
        return [models.Cell("causal", 2, 4, 2, 64, 16, 16)] if dry else list(models.matrix()), dense
    packed = [packed_cells.Cell("causal", *packed_cells.DRY_SHAPE)] if dry else list(packed_cells.matrix())
    return packed, uneven


def compiled(args: argparse.Namespace, index: int) -> None:
    """One process's share of all kernels, into the compilers' caches. Failures are the measuring process's to report.

    Neighbours of a family share kernels, so a process takes whole families."""
    import torch

    from attngen.bench.race import mistakes

    cells, _ = matrix(args)
    families: dict[tuple[object, ...], list[Any]] = {}
    for cell in cells:
        share = (cell.mask, cell.Hq, cell.D) if args.matrix == "models" else (cell.variant, cell.D)
        families.setdefault(share, []).append(cell)
    for position, family in enumerate((side, cells) for cells in families.values() for side in SIDES):
        if position % args.workers != index:
            continue
        side, own = family
        files = Files.at(getattr(args, side))
        for cell in own:
            try:
                if args.matrix == "models":
                    import grouped

                    inputs = grouped.draw(cell.shape, args.device, torch.bfloat16, seed=0)
                    attend: Any = files.dense(cell.mask)
                else:
                    inputs = packed_cells.inputs_of(cell, args.device, 0, packed_cells.WINDOW)
                    attend = packed_cells.attngen(inputs, files).attend
                torch.autograd.grad(attend(*inputs.qkv), inputs.qkv, inputs.d_out)
            except mistakes() as error:
                say(f"{cell.key} {side}: {type(error).__name__}")


def run(args: argparse.Namespace) -> int:
    from gpu import software

    from attngen.bench.race import Turns

    started, note = time.monotonic(), ""
    files = {side: Files.at(getattr(args, side)) for side in SIDES}
    cells, measure = matrix(args)
    cells = [c for c in cells if not args.only or any(part in c.key for part in args.only)]
    if args.workers:
        with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
            list(pool.map(functools.partial(compiled, args), range(args.workers)))
        say(f"{args.workers} processes compiled for {time.monotonic() - started:.0f} s")
    machine, versions = software(args.device)
    turns = Turns(args.device, args.rounds, 10.0 if args.device == "cuda" else 0.0, args.rep)
    result: Result = {"matrix": args.matrix, "machine": machine, "versions": versions, "rep_ms": args.rep}
    result |= {side: {"commit": files[side].commit, "kernels": files[side].digests()} for side in SIDES}
    result |= {"rounds": args.rounds, "cells": []}
    for cell in cells:
        if time.monotonic() - started > args.budget:
            note = f"stopped at the budget of {args.budget:.0f} s before {cell.key}"
            break
        record = {"key": cell.key, **asdict(cell), "contenders": measure(cell, files, args, turns)}
        kept = [speed_kept(record, d) for d in report.DIRECTIONS]
        if any(x is not None and x < AGAIN for x in kept):
            record = {**record, "first": kept, "contenders": measure(cell, files, args, turns)}
        result["cells"].append(record)
        report.write(args.output, result)
        say(line(record))
    print(table(result))
    if note:
        print(note)
    return 1 if note or report.troubles(result) else 0


# ---- what is shown ---------------------------------------------------------------------------------------------------


def line(cell: Result) -> str:
    kept = [speed_kept(cell, d) for d in report.DIRECTIONS]
    shown = " / ".join(f"{math.nan if x is None else x:.3f}" for x in kept)
    first = "".join(f", first {x[0]:.3f} / {x[1]:.3f}" for x in [cell.get("first")] if x and None not in x)
    return f"{cell['key']}: {shown}{first}"


def lines(result: Result) -> Iterator[str]:
    for cell in result["cells"]:
        yield line(cell)
    yield f"{result['matrix']} on {result['machine']}: speed now over speed before, forward / backward"
    for direction in report.DIRECTIONS:
        found = {c["key"]: x for c in result["cells"] if (x := speed_kept(c, direction)) is not None}
        if found:
            least = min(found, key=found.__getitem__)
            mean = report.geometric_mean(found.values())
            yield f"{direction}: geometric mean {mean:.3f}, least {found[least]:.3f} ({least}), {len(found)} cells"
    yield from report.remarks(result)


def table(result: Result) -> str:
    return "\n".join(lines(result))


def main(argv: list[str]) -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    p = commands.add_parser("run", help="measure")
    p.add_argument("matrix", choices=("models", "packed"))
    p.add_argument("before", type=Path, help="what `prepare` wrote at the earlier commit")
    p.add_argument("now", type=Path, help="likewise at the later; its directory has another name")
    p.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="cells whose key holds one of these")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run")
    p.add_argument("-o", "--output", type=Path, default=HERE / "beside.json", help="the JSON (%(default)s)")
    p.add_argument("--workers", type=int, default=0, help="processes that compile everything beforehand")
    p.add_argument("--budget", type=float, default=500.0, metavar="S", help="no cell starts later (%(default)s)")
    p.add_argument("--rep", type=float, default=45.0, metavar="MS", help="milliseconds a measurement (%(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="turns that a measurement is split into (%(default)s)")
    p = commands.add_parser("table", help="show a run again")
    p.add_argument("file", type=Path)
    args = top.parse_args(argv)
    if args.command == "table":
        print(table(report.read(args.file)))
        return 0
    return run(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
