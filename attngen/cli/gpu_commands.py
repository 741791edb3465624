"""What `bench` does, and `tune` for GPUs: measure a spec's kernel on the GPU that is here.

Take parsed arguments; give 0, or 1 where somebody failed or was wrong. Without a GPU: `UsageError`.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attngen import api, files, terminal
from attngen.cli import commands
from attngen.errors import UsageError
from attngen.tune import keys as tile_keys

if TYPE_CHECKING:
    from attngen.api import Kernel
    from attngen.bench.tiles import Bench
    from attngen.plan.tiles.hopper_trials import Rows
    from attngen.plan.tiles.portable import Tile
    from attngen.tune.ahead import Job
    from attngen.tune.gpu import Candidate, Key, Timer, Trial, Tuning

USUAL = {"B": 1, "Hq": 8, "Hkv": 8, "Sq": 4096, "Sk": 4096, "D": 128, "Dv": 128}
_STORAGE = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "int": "int32",
    "bool": "bool",
    "u8": "uint8",
    "i8": "int8",
    "i16": "int16",
}


def run_bench(args: Namespace) -> int:
    outputs = _outputs(args)
    source = files.read_source(args.spec)
    spec = api.analyse(source, dict(args.define))
    shapes = _shapes(args, spec)
    torch = require_gpu("bench")
    from attngen.bench import picture as show
    from attngen.bench import run
    from attngen.bench.race import Turns

    with terminal.working(f"compiling {spec.name}"):
        subject = api.bench_subject(source, dict(args.define))
    seed = secrets.randbelow(2**31) if args.seed is None else args.seed
    how = run.How(Turns("cuda", 3, 10.0, args.rep), args.dtype, not args.forward_only, seed)
    record: dict[str, Any] = {**described(torch), "name": spec.name, "dtype": args.dtype, "seed": seed, "points": []}
    record["ceiling_tflops"] = run.ceiling_tflops(args.dtype)
    for sizes in shapes:
        with terminal.working(f"measuring {spec.name}, {show.shape(sizes)}"):
            params = tensors(torch, spec, sizes, dict(args.param), "cuda")
            record["points"].append(run.measure(subject, sizes, params, args.against, how))
        _write(outputs, record)  # after each, so that a run that is cut off leaves what it has
    out = terminal.console(sys.stdout)
    out.print(f"{spec.name} on {record['machine']}, {args.dtype}; checked before it was timed")
    out.print(show.table(record))
    for line in show.remarks(record):
        out.print(line, markup=False)
    for path in outputs:
        terminal.note(f"wrote {path}")
    return 1 if show.wrong(record) else 0


# ---------------------------------------------------------------- tune


def run_tune(args: Namespace) -> int:
    from attngen import inputs

    source = files.read_source(args.spec)
    spec = api.analyse(source, dict(args.define))
    path = args.output or f"{spec.name}.gpu.json"
    commands.refuse_overwriting(args.spec, [path])
    asked = dict(args.shape)
    wanted = commands.sizes_wanted(spec, USUAL, asked)
    commands.check_heads(wanted)
    sizes = inputs.settle(api.callable_spec(spec, api.plan(spec)), wanted, fixed=set(asked))
    torch = require_gpu("tune --target triton")
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
    _print_tuning(spec.name, tuning)
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
    drawn = run.draw(dict(sizes), tensors(torch, spec, sizes, given, "cuda"), how)
    extra = {"dropout_seed": 1} if spec.dropout is not None else {}
    module = sys.modules[kernel.function.__module__]
    planned = rows_of(kernel.plan, spec.tile, (sizes["D"], sizes["Dv"]))
    timer = Bench(module, kernel.function, drawn.qkv, drawn.grad_out, {**drawn.params, **extra}, planned)
    request = aot.request(kernel.source, spec, arch=timer.chip, dtype=dtype, sizes=sizes, target=target_here())
    return timer, Job(request, timer.row, timer.rows)


def target_here() -> tuple[str, int | str, int]:
    """What Triton calls the GPU that is here: backend, architecture, threads of a warp."""
    driver: Any = importlib.import_module("triton").runtime.driver
    target = driver.active.get_current_target()
    return target.backend, target.arch, target.warp_size


def tune_with(
    key: Key,
    own: Mapping[str, Tile],
    rows: Rows,
    timer: Timer,
    path: str,
    *,
    tiles: bool = True,
    budget: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    begin: Callable[[Sequence[Candidate]], None] = lambda candidates: None,
) -> Tuning:
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
        for trial in _with_progress(f"tuning on {key.card}, {said}", trials(tuning, waiting, timer), len(waiting)):
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


def _with_progress(said: str, trials: Iterable[Trial | None], count: int) -> Iterable[Trial | None]:
    if not sys.stderr.isatty():
        return trials
    from rich.progress import track

    return track(trials, said, total=count, console=terminal.console(sys.stderr), transient=True)


def _print_tuning(name: str, tuning: Tuning) -> None:
    """The three fastest candidates of each kernel, and how many did not run."""
    from rich import box
    from rich.table import Table

    key = tuning.key
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("kernel", "fastest", "ms", "next", "then"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for kernel in dict.fromkeys(t.kernel for t in tuning.trials):
        first, *others = [*tuning.ranked(kernel)[:3]] or [None]
        if first is not None and first.ms is not None:
            rest = [f"{_said(t)}  {(t.ms or 0.0) / first.ms:.2f}x" for t in others if t is not None]
            table.add_row(kernel, _said(first), f"{first.ms:.3f}", *rest)
    refused = sum(t.ms is None for t in tuning.trials)
    out = terminal.console(sys.stdout)
    out.print(f"{name} on {key.card}, {key.dtype}, {key.shape()}: {len(tuning.trials)} candidates, {refused} refused")
    out.print(table)
    out.print("[dim]all but forward: of the whole backward pass, the other kernels as the file has them[/]")
    out.print("[dim]tiles: queries x keys, warps, stages; rows of the chip's own kernels: as in the file's tables[/]")


def _said(trial: Trial) -> str:
    from attngen.plan.tiles.portable import Tile

    match trial.setting:
        case None:
            return "the portable kernels" if trial.kernel == "portable" else "the chip's own kernel"
        case Tile(queries, keys, warps, stages):
            return f"{queries} x {keys}, {warps}, {stages}"
        case row:
            return " ".join(str(int(x)) if isinstance(x, bool) else str(x) for x in row.row)


# ---------------------------------------------------------------- what both need


def require_gpu(command: str) -> Any:
    """torch, where it has a GPU."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise UsageError(f"{command} needs PyTorch and a GPU: pip install 'attngen[torch,triton]'") from error
    if not torch.cuda.is_available():
        raise UsageError(
            f"{command} measures on a GPU, and PyTorch sees none here; "
            "attngen cost counts operations and bytes for a chip that needn't be there"
        )
    return torch


def described(torch: Any) -> dict[str, Any]:
    """The machine, the day, and the versions that the figures hold for."""
    import datetime
    import platform

    triton: Any = importlib.import_module("triton")
    versions = {"torch": str(torch.__version__), "triton": triton.__version__, "python": platform.python_version()}
    versions |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    return {
        "machine": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions,
    }


def tensors(
    torch: Any, spec: Any, sizes: Mapping[str, int], given: Mapping[str, bool | int | float], device: str
) -> dict[str, Any]:
    """A value for every param: tensors on the device, scalars as numbers."""
    from attngen import inputs

    values = inputs.examples(spec, sizes, given)
    return {
        p.name: values[p.name]
        if p.is_scalar
        else torch.tensor(values[p.name]).to(getattr(torch, _STORAGE[p.storage.value])).to(device)
        for p in spec.params
    }


def _shapes(args: Namespace, spec: Any) -> list[dict[str, int]]:
    """The shape asked for, or one for each of `--lengths`."""
    from attngen import inputs

    asked = dict(args.shape)
    wanted = commands.sizes_wanted(spec, USUAL, asked)
    commands.check_heads(wanted)
    spec = api.callable_spec(spec, api.plan(spec))
    if not args.lengths:
        return [inputs.settle(spec, wanted, fixed=set(asked))]
    fixed = (set(asked) - {"Sq", "Sk"}) | {"Sk"}
    return [inputs.settle(spec, commands.of_length(wanted, n), fixed=fixed) for n in args.lengths]


def _outputs(args: Namespace) -> list[str]:
    for path in args.output:
        if Path(path).suffix.lower() not in (".json", ".svg", ".png"):
            raise UsageError(f"-o {path}: results end in .json, pictures in .svg or .png")
    commands.refuse_overwriting(args.spec, args.output)
    return list(args.output)


def _write(outputs: Sequence[str], record: Mapping[str, Any]) -> None:
    from attngen.bench import picture as show

    for path in outputs:
        suffix = Path(path).suffix.lower().lstrip(".")
        files.write(path, as_json(record) if suffix == "json" else show.image(record, suffix))


def as_json(record: Mapping[str, Any]) -> str:
    """JSON has no inf and no nan: such an error is written as text."""
    return json.dumps(_strict(record), indent=1, allow_nan=False) + "\n"


def _strict(value: Any) -> Any:
    match value:
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case dict():
            return {key: _strict(v) for key, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_strict(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
