"""`attngen tune`: a spec and sizes in, a file of the fastest tiles out, measured on a GPU or estimated for a TPU."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attngen import api, files, targets, terminal, vocabulary
from attngen.cli import arguments, gpu, output, shapes
from attngen.cli.parser import Commands
from attngen.errors import UsageError
from attngen.tune import keys as tile_keys

if TYPE_CHECKING:
    from attngen.api import Kernel
    from attngen.bench.tiles import Bench
    from attngen.plan.tiles import portable
    from attngen.plan.tiles.hopper_trials import Rows
    from attngen.tune import gpu as gpu_tuning, tpu as tpu_tuning
    from attngen.tune.ahead import Job


def add(table: Commands) -> None:
    p = table.add_parser(
        "tune",
        help="choose tile sizes, on a GPU or for a TPU",
        description="triton: times a spec's kernels on the GPU that is here, at candidate tiles, warps and stages;\n"
        "those that compute capability 9.0 has for itself, at candidate rows of their tables.\n"
        "pallas: compiles them with the TPU's own compiler, and keeps the tiles with the fewest estimated cycles; no\n"
        "TPU is needed. A tuning that was stopped goes on where it stopped. `compile --tiles FILE` reads the results.",
        example="attngen tune examples/causal.attn --target triton --shape B=4 Hq=16 Sq=4096 D=128",
    )
    arguments.spec(p)
    p.add_argument(
        "--target",
        choices=("triton", "pallas"),
        help="what to tune (default: triton, or pallas where --chip is given)",
    )
    p.add_argument("--chip", choices=vocabulary.TPUS, help="the TPU (pallas; triton takes the GPU that is here)")
    arguments.shape(p)
    p.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="dtype of q, k, v (default: bf16)")
    arguments.define(p)
    p.add_argument(
        "--precision", choices=vocabulary.PRECISIONS, default="ieee", help="products of fp32 arrays (default: ieee)"
    )
    p.add_argument(
        "-o", "--output", metavar="FILE", help="where tiles are kept (default: NAME.tiles.json; triton: NAME.gpu.json)"
    )
    p.add_argument(
        "--budget", type=arguments.seconds, metavar="S", help="triton: stop after so many seconds; run again to go on"
    )
    p.add_argument(
        "--own", action="store_true", help="triton: no tiles where the chip has kernels of its own; their rows alone"
    )
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
    tpus = targets.named(args.target).tpus if args.target is not None else ()
    if args.target is not None and not tpus and args.chip is not None:
        raise UsageError("--chip names a TPU; --target triton tunes for the GPU that is here")
    if tpus and args.chip is None:
        raise UsageError(f"--target pallas tunes for a TPU: name it with --chip {', '.join(tpus)}")
    if args.chip is None:
        return _tune_on_gpu(args)
    if args.budget is not None:
        raise UsageError("--budget goes with --target triton")
    if args.own:
        raise UsageError("--own goes with --target triton")
    return _tune_for_tpu(args)


# ---------------------------------------------------------------- on a GPU


def _tune_on_gpu(args: Namespace) -> int:
    source = files.read_source(args.spec)
    spec = api.analyse(source, dict(args.define))
    path = args.output or f"{spec.name}.gpu.json"
    output.refuse_overwriting(args.spec, [path])
    sizes = shapes.settled(api.callable_spec(spec, api.plan(spec)), dict(args.shape))
    torch = gpu.require_gpu("tune", f"--chip {', '.join(vocabulary.TPUS)} tunes for a TPU that needn't be there")
    from attngen.tune import ahead

    kernel = api.build(source, api.options("triton", args.precision), dict(args.define))
    timer, job = timer_of(torch, kernel, sizes, args.dtype)
    key = tile_keys.gpu_key(source, spec, torch.cuda.get_device_name(), timer.row, args.dtype, sizes)
    with ahead.Compilers(ahead.workers()) as compilers:
        tuning = tune_with(
            key,
            timer.own,
            timer.rows,
            compilers.timer(job, timer),
            path,
            tiles=not args.own,
            budget=args.budget,
            begin=lambda candidates: compilers.begin(job, candidates),
        )
    _print_gpu_tuning(spec.name, tuning)
    terminal.note(f"wrote {path}; compile with --tiles {path}")
    return 0


def timer_of(
    torch: Any,
    kernel: Kernel,
    sizes: Mapping[str, int],
    dtype: str,
    given: Mapping[str, bool | int | float] = MappingProxyType({}),
) -> tuple[Bench, Job]:
    """What times a kernel's candidates on the GPU that is here, and what compiles them ahead. `given`: some scalars."""
    from attngen.aot import compile as aot
    from attngen.bench import run
    from attngen.bench.race import Turns
    from attngen.bench.tiles import Bench
    from attngen.plan.tiles.hopper_trials import rows_of
    from attngen.tune.ahead import Job

    spec = kernel.spec
    how = run.How(Turns("cuda", 1, 5.0, 30.0), dtype, True, 0)
    drawn = run.draw(dict(sizes), gpu.tensors(torch, spec, sizes, given, "cuda"), how)
    extra = {"dropout_seed": 1} if spec.dropout is not None else {}
    module = sys.modules[kernel.function.__module__]
    planned = rows_of(kernel.plan, spec.tile, (sizes["D"], sizes["Dv"]))
    timer = Bench(module, kernel.function, drawn.qkv, drawn.grad_out, {**drawn.params, **extra}, planned)
    request = aot.request(kernel.source, spec, arch=timer.chip, dtype=dtype, sizes=sizes, target=gpu.target_here())
    return timer, Job(request, timer.row, timer.rows)


def tune_with(
    key: gpu_tuning.Key,
    own: Mapping[str, portable.Tile],
    rows: Rows,
    timer: gpu_tuning.Timer,
    path: str,
    *,
    tiles: bool = True,
    budget: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    begin: Callable[[Sequence[gpu_tuning.Candidate]], None] = lambda candidates: None,
) -> gpu_tuning.Tuning:
    """Tries what `path` lacks, and writes it after each trial; stops after `budget` seconds of `clock`. `begin` is told
    what will be timed, before any of it is."""
    from attngen.tune.gpu import Tuning, rounds, trials
    from attngen.tune.gpu_file import dump, load

    known = list(load(files.read_source(path))) if os.path.exists(path) else []
    tuning = next((t for t in known if t.key == key), Tuning(key))
    others = [t for t in known if t.key != key]
    start = clock()
    for said, candidates in rounds(own, key, rows, tiles=tiles):
        waiting = candidates(tuning)
        begin([c for c in waiting if not tuning.tried(*c)])
        for trial in terminal.progress(f"tuning on {key.card}, {said}", trials(tuning, waiting, timer), len(waiting)):
            if trial is not None:
                tuning = tuning.with_trial(trial)
                files.write(path, dump([*others, tuning]))
            if budget is not None and clock() - start > budget:
                break
        left = sum(not tuning.tried(*c) for c in waiting)
        if left:
            terminal.note(f"{left} of {len(waiting)} candidates are left ({said}); run the same command again to go on")
            break
    return tuning


def _print_gpu_tuning(name: str, tuning: gpu_tuning.Tuning) -> None:
    """The three fastest candidates of each kernel, a line each, and how many did not run."""
    from rich import box
    from rich.table import Table

    key = tuning.key
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("kernel", "the fastest"):
        table.add_column(heading)
    for heading in ("ms", "times the first"):
        table.add_column(heading, justify="right")
    for kernel in dict.fromkeys(t.kernel for t in tuning.trials):
        ranked = tuning.ranked(kernel)[:3]
        for place, t in enumerate(ranked):
            ms, least = t.ms or 0.0, ranked[0].ms or 0.0
            cells = (f"{ms:.3f}", f"{ms / least:.2f}" if place else "")
            table.add_row("" if place else kernel, _setting(t), *cells, end_section=t is ranked[-1])
    refused = sum(t.ms is None for t in tuning.trials)
    out = terminal.console(sys.stdout)
    out.print(f"{name} on {key.card}, {key.dtype}: {len(tuning.trials)} candidates, {refused} refused")
    out.print(key.shape())
    out.print(table)
    out.print("[dim]all but forward: the whole backward pass, other kernels as the file has them[/]")
    out.print("[dim]tiles: queries x keys, warps, stages[/]")
    out.print("[dim]rows of the chip's own kernels: as in the file's tables[/]")


def _setting(trial: gpu_tuning.Trial) -> str:
    from attngen.plan.tiles.portable import Tile

    match trial.setting:
        case None:
            return "the portable kernels" if trial.kernel == "portable" else "the chip's own kernel"
        case Tile(queries, keys, warps, stages):
            return f"{queries} x {keys}, {warps}, {stages}"
        case row:
            return " ".join(str(int(x)) if isinstance(x, bool) else str(x) for x in row.row)


# ---------------------------------------------------------------- for a TPU


def _tune_for_tpu(args: Namespace) -> int:
    from attngen.tpu import compile as tpu
    from attngen.tune.tpu import Tuning, candidates, dump, load

    source = files.read_source(args.spec)
    spec = api.callable_spec(*api.checked_plan(source, dict(args.define), "pallas"))
    path = args.output or f"{spec.name}.tiles.json"
    output.refuse_overwriting(args.spec, [path])
    known = list(load(files.read_source(path))) if os.path.exists(path) else []
    sizes = shapes.settled(spec, dict(args.shape))
    tpu.require()
    kernel = api.build(source, api.options("pallas", args.precision), dict(args.define))
    key = tile_keys.tpu_key(source, kernel.spec, args.chip, args.dtype, sizes)
    tuning = next((t for t in known if t.key == key), Tuning(key))
    others = [t for t in known if t.key != key]
    found = tile_keys.tune(kernel.source, kernel.spec, tuning)
    for trial in terminal.progress(f"tuning {kernel.name} for {args.chip}", found, len(candidates(sizes))):
        if trial is not None:
            tuning = tuning.with_trial(trial)
            files.write(path, dump([*others, tuning]))
    _print_tpu_tuning(kernel.name, tuning)
    terminal.note(f"wrote {path}; compile with --tiles {path}")
    return 0


def _print_tpu_tuning(name: str, tuning: tpu_tuning.Tuning) -> None:
    """The three fastest tiles of each kernel, a line each. Raises `UsageError` where the chip takes none."""
    from rich import box
    from rich.table import Table

    from attngen.tpu.estimate import CAVEATS
    from attngen.tune.tpu import KERNELS

    key = tuning.key
    if tuning.best() is None:
        reasons = {t.refused for t in tuning.trials if t.refused}
        raise UsageError(f"{key.chip} takes no candidate tile of {name}: {'; '.join(sorted(reasons))}")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("kernel", "the fastest"):
        table.add_column(heading)
    for heading in ("estimated cycles", "times the first"):
        table.add_column(heading, justify="right")
    for kernel in KERNELS:
        ranked = tuning.ranked(kernel)[:3]
        for place, (cycles, tile) in enumerate(ranked):
            cells = (f"{cycles:,}", f"{cycles / ranked[0][0]:.2f}" if place else "")
            table.add_row("" if place else kernel, _tile(tile), *cells, end_section=place + 1 == len(ranked))
    out = terminal.console(sys.stdout)
    out.print(f"{name} for {key.chip}, {key.dtype}: {len(tuning.trials)} candidates")
    out.print(key.shape())
    out.print(table)
    out.print(f"[dim]{CAVEATS[0]}[/]")


def _tile(tile: tpu_tuning.Tile) -> str:
    queries, keys, unroll = tile
    return f"{queries} x {keys}, {unroll} at a time"
