"""Cells measured one after another: continued from the output file, cut off at a budget, compiled beforehand.

Takes the cells and a function that measures one; writes the JSON after each, prints the table, gives the exit status.
What is measured is left to models.py, drawn.py and holes.py.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import report
from report import Result, say
from saved import Files


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """`cells` have a `key`. `measure` gives a cell's record but for its key. `facts` is what results must have in
    common, beside machine, versions and kernels, for a run to continue them."""

    script: Path
    cells: Sequence[Any]
    measure: Callable[[Any], Result]
    line: Callable[[Result], str]
    table: Callable[[Result], str]
    facts: Mapping[str, Any] = field(default_factory=dict)


def run(sweep: Sweep, args: argparse.Namespace) -> int:
    """The exit status: 1 where the run was cut off, or a contender failed or was wrong."""
    import grouped
    from gpu import software

    from attngen.bench.race import DeviceLostError

    grouped.keep_caches()
    started, note = time.monotonic(), ""
    machine, versions = software(args.device)
    files = Files.at(args.kernels)
    result: Result = {
        "machine": machine, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions, **sweep.facts, "commit": files.commit, "rep_ms": args.rep, "rounds": args.rounds,
        "kernels": files.digests(), "cells": [],
    }  # fmt: skip
    if args.output.exists():
        kept = report.read(args.output)
        if all(kept[x] == result[x] for x in ("machine", "versions", "kernels", *sweep.facts)):
            result["cells"] = kept["cells"]
    done = {c["key"] for c in result["cells"]}
    cells = [c for c in sweep.cells if c.key not in done]
    say(f"{machine}; {len(cells)} cells")
    if args.workers and cells:
        passed = ["--kernels", str(args.kernels), "--only", *(c.key for c in cells)]
        spent = grouped.warm(sweep.script, passed, args.workers, args.budget / 3)
        say(f"{args.workers} processes compiled for {spent:.0f} s")
        result["warmed"] = True  # so first_call_s is of filled caches
    for cell in cells:
        if time.monotonic() - started > args.budget:
            note = f"stopped at the budget of {args.budget:.0f} s before {cell.key}: the same command continues"
            break
        try:
            result["cells"].append({"key": cell.key, **sweep.measure(cell)})
        except DeviceLostError as error:
            note = f"stopped: the device is lost {error}"
            break
        report.write(args.output, result)
        say(sweep.line(result["cells"][-1]))
    print(sweep.table(result))
    if note:
        print(note)
    return 1 if note or report.troubles(result) else 0


def turns(args: argparse.Namespace) -> Any:
    from attngen.bench.race import Turns

    return Turns(args.device, args.rounds, 10.0 if args.device == "cuda" else 0.0, args.rep)


def options(
    commands: Any, only: str, output: Path, budget: float
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parsers of `run` and `warm`; `only` says which keys `--only` chooses."""
    measure = commands.add_parser("run", help="measure, or continue a run")
    warm = commands.add_parser("warm", help="fill the compilers' caches, a part of it")
    for p in (measure, warm):
        p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `prepare` wrote")
        p.add_argument("--only", nargs="+", default=[], metavar="KEY", help=only)
        p.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run without peers")
    warm.add_argument("--slice", default="0/1", metavar="I/N", help="this process's share")
    p = measure
    p.add_argument("-o", "--output", type=Path, default=output, help="the JSON (%(default)s)")
    p.add_argument("--workers", type=int, default=0, help="processes that compile everything beforehand")
    p.add_argument("--budget", type=float, default=budget, metavar="S", help="no cell starts later (%(default)s)")
    p.add_argument("--rep", type=float, default=45.0, metavar="MS", help="milliseconds a measurement (%(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="turns that a measurement is split into (%(default)s)")
    return measure, warm
