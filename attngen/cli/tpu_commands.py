"""What `compile` and `tune` do for a TPU that needn't be there: call the api, print, and give the exit status.

`run_compile` takes the stages that libtpu makes, and hands every other one to `commands`.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from attngen import api, files, terminal, vocabulary
from attngen.cli import commands
from attngen.errors import UsageError
from attngen.tune import keys as tile_keys

if TYPE_CHECKING:
    from attngen.emit import Tuned, TunedGpu
    from attngen.ir.attention import Attention
    from attngen.tpu.compile import Compiled
    from attngen.tune.tpu import Tile, Trial, Tuning

_USUAL = {"B": 1, "Hq": 8, "Hkv": 8, "Sq": 4096, "Sk": 4096, "D": 128, "Dv": 128}


def run_compile(args: Namespace) -> int:
    if args.emit not in vocabulary.TPU_STAGES:
        if args.chip is not None:
            raise UsageError(f"--chip goes with --emit {', '.join(vocabulary.TPU_STAGES)}, not with {args.emit}")
        if args.shape and args.tiles is None:
            raise UsageError(f"--shape goes with --tiles or with --emit {', '.join(vocabulary.TPU_STAGES)}")
        return commands.run_compile(args, _tuned_gpu(args) if args.target == "triton" else _tuned(args))
    if args.target != "pallas":
        raise UsageError(f"--emit {args.emit} is made by a TPU's compiler: add --target pallas")
    if args.arch is not None:
        raise UsageError(
            f"--arch names a GPU; for --emit {args.emit} name a TPU with --chip {', '.join(vocabulary.TPUS)}"
        )
    outputs = [args.output] if args.output else []
    commands.refuse_overwriting(args.spec, outputs)
    options = api.options(args.target, args.precision, args.tile, tuned=_tuned(args))
    kernel = api.build(
        files.read_source(args.spec), options, dict(args.define), args.allow_unproved, strict=args.strict
    )
    chip = args.chip or "v5e"
    sizes = _sizes(args, kernel.spec)
    with terminal.working(f"compiling {kernel.name} for {chip}"):
        compiled = api.tpu_compile(
            kernel, chip=chip, dtype=args.dtype or "bf16", sizes=sizes, mosaic=args.emit == "mosaic"
        )
    _deliver(args, compiled)
    said = f"{kernel.name} for {chip}, {args.dtype or 'bf16'}, " + " ".join(f"{n}={s}" for n, s in sizes.items())
    _report(compiled, said, sys.stderr if args.emit != "schedule" and not args.output else sys.stdout)
    return 0


def _tuned(args: Namespace) -> tuple[Tuned, ...]:
    if args.tiles is None:
        return ()
    source, tiles = files.read_source(args.spec), files.read_source(args.tiles)
    return tile_keys.tpu_tiles(source, api.analyse(source, dict(args.define)), tiles, dict(args.shape))


def _tuned_gpu(args: Namespace) -> tuple[TunedGpu, ...]:
    if args.tiles is None:
        return ()
    source, tiles = files.read_source(args.spec), files.read_source(args.tiles)
    return tile_keys.gpu_tiles(source, api.analyse(source, dict(args.define)), tiles, dict(args.shape))


def _sizes(args: Namespace, spec: Attention) -> dict[str, int]:
    from attngen import inputs

    asked = dict(args.shape)
    head_dim = getattr(args, "head_dim", None)
    if head_dim is not None:
        asked = {"D": head_dim[0], "Dv": head_dim[1], **asked}
    wanted = commands.sizes_wanted(spec, _USUAL, asked)
    commands.check_heads(wanted)
    return inputs.settle(spec, wanted, fixed=set(asked))


def _deliver(args: Namespace, compiled: Compiled) -> None:
    """The text that was asked for; of a schedule only into files, one a kernel, since it is long."""
    if args.emit == "hlo":
        commands.deliver(compiled.hlo, args.output)
    elif args.emit == "mosaic":
        parts = [f"// ---- {name}\n{text.rstrip()}\n" for name, text in compiled.mosaic]
        commands.deliver("\n".join(parts), args.output)
    elif args.output is not None:
        named = {commands.beside(args.output, k.name): k.bundles for k in compiled.kernels if k.is_pallas}
        commands.refuse_overwriting(args.spec, list(named))
        files.write_all(named)
        for name in named:
            terminal.note(f"wrote {name}")


def _report(compiled: Compiled, title: str, stream: TextIO) -> None:
    from attngen.tpu.estimate import estimate
    from attngen.tpu.report import tables

    terminal.console(stream).print(tables(estimate(compiled), title))


# ---------------------------------------------------------------- tune


def run_tune(args: Namespace) -> int:
    from attngen.tune.tpu import Tuning, candidates, dump, load

    source = files.read_source(args.spec)
    kernel = api.build(source, api.options("pallas", args.precision), dict(args.define))
    path = args.output or f"{kernel.name}.tiles.json"
    commands.refuse_overwriting(args.spec, [path])
    known = list(load(files.read_source(path))) if os.path.exists(path) else []
    sizes = _sizes(args, kernel.spec)
    key = tile_keys.tpu_key(source, kernel.spec, args.chip, args.dtype, sizes)
    tuning = next((t for t in known if t.key == key), Tuning(key))
    others = [t for t in known if t.key != key]
    found = tile_keys.tune(kernel.source, kernel.spec, tuning)
    for trial in _with_progress(f"tuning {kernel.name} for {args.chip}", found, len(candidates(sizes))):
        if trial is not None:
            tuning = tuning.with_trial(trial)
            files.write(path, dump([*others, tuning]))
    _print_tuning(kernel.name, tuning)
    terminal.note(f"wrote {path}; compile with --tiles {path}")
    return 0


def _with_progress(said: str, trials: Iterable[Trial | None], count: int) -> Iterable[Trial | None]:
    if not sys.stderr.isatty():
        return trials
    from rich.progress import track

    return track(trials, said, total=count, console=terminal.console(sys.stderr), transient=True)


def _print_tuning(name: str, tuning: Tuning) -> None:
    """The three fastest tiles of each kernel. Raises `UsageError` where the chip takes none."""
    from rich import box
    from rich.table import Table

    from attngen.tpu.estimate import CAVEATS
    from attngen.tune.tpu import KERNELS

    key = tuning.key
    if tuning.best() is None:
        reasons = {t.refused for t in tuning.trials if t.refused}
        raise UsageError(f"{key.chip} takes no candidate tile of {name}: {'; '.join(sorted(reasons))}")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("kernel")
    for heading in ("tile", "estimated cycles", "next", "then"):
        table.add_column(heading, justify="right")
    for kernel in KERNELS:
        ranked = tuning.ranked(kernel)[:3]
        if not ranked:
            continue
        (cycles, tile), *others = ranked
        rest = [f"{_tile(t)}  {c / cycles:.2f}x" for c, t in others]
        table.add_row(kernel, _tile(tile), f"{cycles:,}", *rest)
    out = terminal.console(sys.stdout)
    out.print(f"{name} for {key.chip}, {key.dtype}, {key.shape()}: {len(tuning.trials)} candidates")
    out.print(table)
    out.print(f"[dim]{CAVEATS[0]}[/]")


def _tile(tile: Tile) -> str:
    queries, keys, unroll = tile
    return f"{queries} x {keys}, {unroll} at a time"
