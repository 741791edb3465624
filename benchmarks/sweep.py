"""Cells measured one after another: continued from the output file, cut off at a budget, compiled several at a time.

Takes the cells and a function that measures one; writes the JSON after each, prints the table, gives the exit status.
What is measured is left to models.py, drawn.py and holes.py.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    cells = [c for c in sweep.cells if c.key not in done and (args.mate is None or c.key == args.mate[1])]
    say(f"{machine}; {len(cells)} cells")
    measured = _together(sweep, cells, args, started) if args.workers else (sweep.measure(c) for c in cells)
    for cell in cells:
        if time.monotonic() - started > args.budget:
            note = f"stopped at the budget of {args.budget:.0f} s before {cell.key}: the same command continues"
            break
        try:
            found = next(measured)
        except DeviceLostError as error:
            note = f"stopped: the device is lost {error}"
            break
        if found is None:
            note = f"{cell.key} came to no result: the same command tries again"
            continue
        result["cells"].append({"key": cell.key, **found})
        report.write(args.output, result)
        say(sweep.line(result["cells"][-1]))
    measured.close()
    print(sweep.table(result))
    if note:
        print(note)
    return 1 if note or report.troubles(result) else 0


def _together(sweep: Sweep, cells: Sequence[Any], args: argparse.Namespace, started: float) -> Generator[Result | None]:
    """Their records, in order, None for one without: so many processes at a time build and check the contenders of a
    cell each, and then, while the others sleep, time them one after the other."""
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # or each starts a pool of its own
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for first in range(0, len(cells), args.workers):
            mates = [Mate(Path(folder), cell.key) for cell in cells[first : first + args.workers]]
            stack.callback(lambda mates=mates: [mate.end() for mate in mates])
            for mate in mates:
                own = ["--workers", "0", "--output", str(mate.output), "--mate", str(mate.place), mate.key]
                mate.start([sys.executable, str(sweep.script), *sys.argv[1:], *own], environment)
            while any(m.builds for m in mates) and time.monotonic() - started < args.budget * 2 / 3:
                time.sleep(0.1)
            say(f"{sum(not m.builds for m in mates)} of {len(mates)} processes are ready")
            for mate in mates:
                yield mate.finish()


@dataclass
class Mate:
    """A process that measures the cell `key`. It says that its contenders are ready by a file, and awaits another."""

    folder: Path
    key: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> Path:
        return self.folder / hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @property
    def output(self) -> Path:
        return self.place.with_suffix(".json")

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(command, env=environment)

    @property
    def builds(self) -> bool:
        assert self.process is not None
        return self.process.poll() is None and not self.place.with_suffix(".ready").exists()

    def finish(self) -> Result | None:
        """Times the cell, unless its contenders are not ready yet: then the process is ended."""
        assert self.process is not None
        if self.builds:
            self.end()
        self.place.with_suffix(".go").touch()
        self.process.wait()
        cells = report.read(self.output)["cells"] if self.output.exists() else []
        return {name: value for name, value in cells[0].items() if name != "key"} if cells else None

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _await_turn(place: Path) -> None:
    """Called by a mate's process when its contenders are ready."""
    place.with_suffix(".ready").touch()
    while not place.with_suffix(".go").exists():
        time.sleep(0.05)


def turns(args: argparse.Namespace) -> Any:
    from attngen.bench.race import Turns

    made = Turns(args.device, args.rounds, 10.0 if args.device == "cuda" else 0.0, args.rep)
    return made if args.mate is None else replace(made, begin=functools.partial(_await_turn, Path(args.mate[0])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """A script's, with `prepare DIRECTORY`, `run` and `table [FILE]`, to which a script adds options and commands."""

    top: argparse.ArgumentParser
    commands: Any
    prepare: argparse.ArgumentParser
    run: argparse.ArgumentParser


def parser(doc: str | None, only: str, output: Path, budget: float) -> Parser:
    """`doc`: the script's text; `only`: which keys `--only` chooses; `output`: the JSON, if none is named."""
    top = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="compile the kernels into a directory (needs attngen)")
    prepare.add_argument("directory", type=Path)
    p = commands.add_parser("run", help="measure, or continue a run")
    p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `prepare` wrote")
    p.add_argument("--only", nargs="+", default=[], metavar="KEY", help=only)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run without peers")
    p.add_argument("-o", "--output", type=Path, default=output, help="the JSON (%(default)s)")
    p.add_argument("--workers", type=int, default=0, help="cells that are built and checked at once, each in a process")
    p.add_argument("--mate", nargs=2, help=argparse.SUPPRESS)  # of such a process: where it is told to begin, its cell
    p.add_argument("--budget", type=float, default=budget, metavar="S", help="no cell starts later (%(default)s)")
    p.add_argument("--rep", type=float, default=45.0, metavar="MS", help="milliseconds a measurement (%(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="turns that a measurement is split into (%(default)s)")
    shown = commands.add_parser("table", help="print what was measured")
    shown.add_argument("file", type=Path, nargs="?", default=output)
    return Parser(top=top, commands=commands, prepare=prepare, run=p)


def perform(
    args: argparse.Namespace,
    prepare: Callable[[argparse.Namespace], object],
    measure: Callable[[argparse.Namespace], int],
    table: Callable[[Result], str],
) -> int:
    """One of the three commands; the exit status."""
    match args.command:
        case "prepare":
            prepare(args)
        case "run":
            return measure(args)
        case _:
            print(table(report.read(args.file)))
    return 0


def chosen(cells: Iterable[Any], args: argparse.Namespace) -> list[Any]:
    """The cells whose key begins as `--only` says."""
    return [c for c in cells if not args.only or any(c.key.startswith(only) for only in args.only)]
