"""Measures attngen beside FlexAttention, FlashAttention 4, cuDNN and SDPA, on the same inputs, in turn.

    python benchmarks/gpu.py prepare build/kernels            # where attngen is: compile what will be measured
    python benchmarks/gpu.py run --kernels build/kernels      # on the GPU: needs torch, triton and matplotlib only
    python benchmarks/gpu.py table | readme | plot | merge FILE…    # afterwards, anywhere

Every contender is checked against dense float32 before it is timed; one that is wrong, or fails, gets no figures, and
the exit status is 1. Results are written after each cell. README.md says how to read them.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import plot
import report
from report import say

if TYPE_CHECKING:
    from cells import Cell, Settings
    from measure import Options
    from peers import Kernels

HERE = Path(__file__).resolve().parent


# ---- the run ---------------------------------------------------------------------------------------------------------


def chosen(
    only: Sequence[str], shapes: Sequence[tuple[int, int]], *, quick: bool, device: str, readme: bool = False
) -> list[Cell]:
    """The cells to measure. A shape that the matrix lacks is added, for the variants asked for."""
    import cells

    every = cells.dry_matrix() if device == "cpu" else cells.quick_matrix() if quick else cells.matrix()
    if quick and device == "cpu":
        every = tuple(c for c in every if c.variant in ("causal", "documents"))
    every = tuple(c for c in every if c.key in report.README) if readme else every
    picked = [c for c in every if (not only or c.variant in only) and (not shapes or (c.D, c.N) in shapes)]
    for D, N in shapes:
        if not any((c.D, c.N) == (D, N) for c in every):
            picked += [cells.Cell(variant, D, N) for variant in only or ("causal", "full")]
    return picked


def software(device: str) -> tuple[str, dict[str, str]]:
    """The machine's name, and the versions that the figures hold for."""
    import platform

    import torch
    import triton

    from attngen.bench import contenders

    versions = {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()}
    if device != "cuda":
        return platform.machine() + " CPU", versions
    versions["cuda"] = str(torch.version.cuda)
    versions["cudnn"] = str(torch.backends.cudnn.version())
    versions |= contenders.packages()
    return torch.cuda.get_device_name(), versions


class Watchdog:
    """Ends the process when a cell hangs: prints the table of what there is, and exits with status 3."""

    def __init__(self, limit: float, result: report.Result):
        self.limit, self.result = limit, result
        self.timer: threading.Timer | None = None

    def rest(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            faulthandler.cancel_dump_traceback_later()

    def watch(self, key: str) -> None:
        self.rest()
        # The second alarm needs no interpreter lock, for a hang inside a call that keeps it.
        faulthandler.dump_traceback_later(self.limit + 20, exit=True, file=2)
        self.timer = threading.Timer(self.limit, self.bark, (key,))
        self.timer.daemon = True
        self.timer.start()

    def bark(self, key: str) -> None:
        faulthandler.dump_traceback(file=2)
        print(report.table(self.result))
        print(f"HUNG: {key} took over {self.limit:.0f} s; the cells above were written before it", flush=True)
        os._exit(3)


def run(args: argparse.Namespace) -> int:
    if args.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
    import grouped
    from cells import DRY_SIZE, FULL_SIZE
    from measure import Options

    grouped.keep_caches()

    settings = DRY_SIZE if args.device == "cpu" else FULL_SIZE
    options = Options(
        device=args.device,
        backward=not args.no_backward,
        rounds=2 if args.quick else args.rounds,
        warmup_ms=5.0 if args.quick else 10.0,
        rep_ms=0.0 if args.device == "cpu" else 30.0 if args.quick else args.rep,
        seed=secrets.randbelow(2**31) if args.seed is None else args.seed,
        peers=args.peers,
        flex_mode=args.flex_mode,
    )
    picked = chosen(args.only, args.shapes, quick=args.quick, device=args.device, readme=args.readme)
    if not picked:
        print("gpu.py: no cell is left by --only and --shapes", file=sys.stderr)
        return 2
    with ExitStack() as stack:
        kernels = gather(args.kernels, sorted({c.variant for c in picked}), settings, stack)
        if args.command == "warm":
            return warm(picked, settings, kernels, options, args)
        if args.workers:
            passed = [*args.given, "--kernels", str(kernels.directory)]
            spent = grouped.warm(HERE / "gpu.py", passed, args.workers, args.budget / 3)
            say(f"{args.workers} processes compiled for {spent:.0f} s")
        return measure_all(picked, settings, kernels, options, args)


def warm(
    picked: Sequence[Cell], settings: Settings, kernels: Kernels, options: Options, args: argparse.Namespace
) -> int:
    """The share of one process."""
    import grouped
    from measure import first_calls

    index, count = grouped.sliced(args.slice)
    for cell in picked[index::count]:
        first_calls(cell, settings, kernels, options)
    return 0


def gather(directory: Path | None, variants: Sequence[str], settings: Settings, stack: ExitStack) -> Kernels:
    """The kernels of `directory`, or, without one, compiled now into a directory that lasts as long as the run."""
    import peers

    if directory is None:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attngen-bench-")))
        peers.prepare(directory, tuple(variants), settings)
    kernels = peers.Kernels.at(directory)
    if kernels.settings != settings:
        raise SystemExit(f"gpu.py: {directory} was prepared for {kernels.settings}, not {settings}; prepare it again")
    return kernels


def measure_all(
    picked: Sequence[Cell], settings: Settings, kernels: Kernels, options: Options, args: argparse.Namespace
) -> int:
    from cells import measured_dtype
    from measure import DeviceLostError, measure

    machine, versions = software(options.device)
    result: report.Result = {
        "machine": machine,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "dry_run": options.device == "cpu",
        "dtype": str(measured_dtype(options.device)).removeprefix("torch."),
        "rep_ms": options.rep_ms,
        "rounds": options.rounds,
        "seed": options.seed,
        "warmed": args.workers > 0,  # then first_call_s is of filled caches
        "flex_mode": options.flex_mode,
        "kernels": kernels.digests(),
        "cells": [],
    }
    say(f"{machine}, {versions}; {len(picked)} cells, seed {options.seed}")
    watchdog = Watchdog(args.cell_limit, result)
    started = time.monotonic()
    note = ""
    for i, cell in enumerate(picked):
        if time.monotonic() - started > args.budget:
            note = f"STOPPED at the budget of {args.budget:.0f} s; not measured: {' '.join(c.key for c in picked[i:])}"
            break
        watchdog.watch(cell.key)
        try:
            result["cells"].append(measure(cell, settings, kernels, options))
        except DeviceLostError as error:
            note = f"STOPPED: the device is lost {error}; not measured: {' '.join(c.key for c in picked[i:])}"
            break
        report.write(args.output, result)
        say(report.line(result["cells"][-1]))
    watchdog.rest()
    report.write(args.output, result)
    if result["cells"] and not args.no_plot:
        plot.draw(result, args.plot or args.output.with_suffix(".svg"))
    print(report.table(result))
    if note:
        print(note)
    return 1 if note or report.troubles(result) else 0


# ---- command line ----------------------------------------------------------------------------------------------------


def names(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        found = tuple(t.strip() for t in text.split(",") if t.strip())
        for name in found:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(allowed)}")
        return found

    return parse


def shapes(text: str) -> list[tuple[int, int]]:
    """`128:4096,64:16384` as (D, N) pairs."""
    try:
        return [(int(d), int(n)) for d, n in (part.split(":") for part in text.split(",") if part)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} isn't D:N,D:N…, as in 128:4096,64:16384") from None


def parser() -> argparse.ArgumentParser:
    # The lists stand here too, so that --help answers without torch; a test compares them with cells.py and peers.py.
    variants = names(
        ("full", "causal", "alibi", "softcap", "sliding_window", "prefix_lm", "documents", "relative_bias")
    )
    top = argparse.ArgumentParser(
        prog="gpu.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)

    p = commands.add_parser("prepare", help="compile the kernels to be measured into a directory (needs attngen)")
    p.add_argument("directory", type=Path)
    p.add_argument("--only", type=variants, default=(), metavar="VARIANT,…")
    p.add_argument("--dry", action="store_true", help="with the small constants of a dry run (run --device cpu)")

    for name, text in (
        ("run", "measure (without a command, this one is meant)"),
        ("warm", "fill the compilers' caches, a part of it"),
    ):
        measuring(commands.add_parser(name, help=text), variants)

    p = commands.add_parser("table", help="print a result's table")
    p.add_argument("files", type=Path, nargs=1)
    p = commands.add_parser("readme", help="print README's table of a result, in Markdown")
    p.add_argument("files", type=Path, nargs=1)
    p = commands.add_parser("chart", help="draw README's chart of a result, for a light page and for a dark one")
    p.add_argument("files", type=Path, nargs=1)
    p = commands.add_parser("plot", help="draw a result")
    p.add_argument("files", type=Path, nargs=1)
    p.add_argument("-o", "--output", type=Path, help="the picture (the JSON's name with .svg)")
    p = commands.add_parser("merge", help="join results of several runs, later cells in place of earlier ones")
    p.add_argument("files", type=Path, nargs="+")
    p.add_argument("-o", "--output", type=Path, required=True)
    return top


def measuring(p: argparse.ArgumentParser, variants: Callable[[str], tuple[str, ...]]) -> None:
    """The options of `run`, which hands them to the processes that compile beforehand."""
    rivals = names(("flex", "flex-flash", "cudnn", "sdpa", "fa4"))
    p.add_argument("--kernels", type=Path, metavar="DIR", help="what `prepare` wrote; without it attngen compiles now")
    p.add_argument("-o", "--output", type=Path, default=HERE / "h200.json", help="the JSON (%(default)s)")
    p.add_argument("--plot", type=Path, help="the picture (the JSON's name with .svg)")
    p.add_argument("--no-plot", action="store_true")
    p.add_argument("--only", type=variants, default=(), metavar="VARIANT,…", help="these variants alone")
    p.add_argument("--shapes", type=shapes, default=[], metavar="D:N,…", help="these shapes alone")
    p.add_argument(
        "--peers",
        type=rivals,
        default=("flex", "flex-flash", "cudnn", "sdpa", "fa4"),
        metavar="PEER,…",
        help="flex, flex-flash, cudnn, sdpa, fa4",
    )
    p.add_argument("--no-backward", action="store_true")
    p.add_argument("--readme", action="store_true", help="the cells of README's table alone")
    p.add_argument("--quick", action="store_true", help="four cells, short repetitions")
    p.add_argument("--budget", type=float, default=530.0, metavar="S", help="no cell starts later (%(default)s)")
    p.add_argument("--cell-limit", type=float, default=150.0, metavar="S", help="a cell that takes longer is a hang")
    p.add_argument("--rep", type=float, default=90.0, metavar="MS", help="milliseconds a measurement (%(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="turns that a measurement is split into (%(default)s)")
    p.add_argument("--seed", type=int, help="of the inputs (a fresh one each run; the JSON records it)")
    p.add_argument("--flex-mode", metavar="MODE", help="FlexAttention's torch.compile mode")
    p.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run, tiny, times without meaning"
    )
    p.add_argument("--workers", type=int, default=0, help="processes that compile everything beforehand")
    p.add_argument("--slice", default="0/1", metavar="I/N", help="of `warm`: this process's share")


def main(argv: Sequence[str]) -> int:
    argv = list(argv)
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help")):
        argv.insert(0, "run")
    args = parser().parse_args(argv)
    args.given = argv[1:]
    match args.command:
        case "prepare":
            import peers
            from cells import DRY_SIZE, FULL_SIZE, VARIANTS

            peers.prepare(args.directory, args.only or VARIANTS, DRY_SIZE if args.dry else FULL_SIZE)
        case "run" | "warm":
            return run(args)
        case "table":
            print(report.table(report.read(args.files[0])))
        case "readme":
            print(report.readme(report.read(args.files[0])))
        case "chart":
            for page in ("light", "dark"):
                plot.headline(report.read(args.files[0]), args.files[0].with_suffix(f".{page}.svg"), page)
        case "plot":
            plot.draw(report.read(args.files[0]), args.output or args.files[0].with_suffix(".svg"))
        case _:
            merged = report.merge([report.read(f) for f in args.files])
            report.write(args.output, merged)
            print(report.table(merged))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
