"""`attngen compile`: a spec in, a kernel's source out, or any other stage of it, for GPUs and for TPUs.

Three compilers are behind `--emit`: attngen's own makes the stages up to the source, Triton's makes the binaries of
GPUs, and libtpu makes the stages of TPUs.
"""

from __future__ import annotations

import os
import re
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from attngen import api, files, targets, terminal, vocabulary
from attngen.cli import arguments, compile_check, directory, output, shapes
from attngen.cli.parser import Commands
from attngen.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from attngen.aot.compile import Artifact
    from attngen.emit import Tuned, TunedGpu
    from attngen.tpu.compile import Compiled


def add(table: Commands) -> None:
    p = table.add_parser(
        "compile",
        help="write the kernel of a spec",
        description="Compiles a spec to a standalone Python file, or shows any stage on the way.\n"
        "With --check, says whether a file is what a spec compiles to.",
        example="attngen compile examples/windowed_alibi.attn -D window=512 -o windowed_alibi.py",
    )
    arguments.spec(p)
    arguments.target(p, "generate")
    p.add_argument(
        "--check",
        metavar="FILE",
        help="write nothing: exit with status 0 if FILE is, byte for byte, what SPEC compiles to with the options in "
        "FILE's head; else print what differs, and exit with status 1",
    )
    p.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write there instead of to standard output; DIR/: the own part of the file, beside a runtime that all "
        "files in DIR share; cubin and hsaco: one file per kernel, named after it",
    )
    arguments.define(p)
    p.add_argument(
        "--emit",
        choices=(*vocabulary.STAGES, *vocabulary.BINARIES, *vocabulary.TPU_STAGES),
        default="source",
        help="the stage to print (default: source); from ttir on, the real compiler runs, without a GPU or TPU",
    )
    p.add_argument(
        "--arch",
        choices=vocabulary.SOURCE_ARCHITECTURES,
        help="source: the only chip that the file is for; portable: every chip, without chip-specific "
        "kernels; auto (default): every chip. Binary stages: the chip (default: sm_90)",
    )
    p.add_argument(
        "--dtype",
        choices=vocabulary.FILE_DTYPES,
        help="source: the only dtype of q, k, v that the file is for; fp8: 8-bit floats with factors, forward alone. "
        "Binary stages: their dtype (default: bf16)",
    )
    p.add_argument(
        "--head-dim",
        type=arguments.head_dim,
        metavar="D[/Dv]",
        help="source: the only head dims that the file is for. Binary stages: their head dims (default: 64)",
    )
    p.add_argument(
        "--geometry",
        type=arguments.geometries,
        action="extend",
        metavar="KIND[,KIND]",
        help="source: more functions: packed (NAME_varlen), lengths (NAME_lengths), pieces (NAME_partial and others)",
    )
    p.add_argument("--forward", action="store_true", help="leave out the backward pass")
    p.add_argument("--chip", choices=vocabulary.TPUS, help="TPU of mosaic, hlo and schedule (default: v5e)")
    arguments.shape(p)
    p.add_argument("--tiles", metavar="FILE", help="tiles for GPUs or TPUs, as `attngen tune` wrote them")
    arguments.prover_effort(p)
    p.add_argument(
        "--allow-unproved",
        action="append",
        default=[],
        metavar="NAME",
        help="compile although this obligation is unknown; the file says so. A refuted obligation is never accepted",
    )
    p.add_argument(
        "--strict",
        action="store_true",
        help="turn warnings into errors: a mask without a pair, a param without a reader, a score of -inf by position",
    )
    arguments.kernel_options(p)
    p.set_defaults(run=run)


_COMPILED = ("source", *vocabulary.BINARIES, *vocabulary.TPU_STAGES)
_GOES_WITH = {
    "chip": vocabulary.TPU_STAGES,
    "geometry": ("source",),
    "tiles": ("source", *vocabulary.TPU_STAGES),
    "arch": ("source", *vocabulary.BINARIES),
    "forward": ("source", *vocabulary.BINARIES),
    "dtype": _COMPILED,
    "head_dim": _COMPILED,
    "strict": _COMPILED,
    "allow_unproved": _COMPILED,
}
"""What `--emit` must be where one of these is given."""


def run(args: Namespace) -> int:
    if args.check is not None and args.emit != "source":
        raise UsageError(f"--check compares generated files: leave out --emit {args.emit}")
    if args.emit in vocabulary.TPU_STAGES and args.arch is not None:
        raise UsageError(
            f"--arch names a GPU; for --emit {args.emit} name a TPU with --chip {', '.join(vocabulary.TPUS)}"
        )
    for name, kinds in _GOES_WITH.items():
        if getattr(args, name) and args.emit not in kinds:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} goes with --emit {', '.join(kinds)}, not with {args.emit}")
    if args.check is None:
        arguments.settle(args)
    if args.emit in vocabulary.TPU_STAGES:
        return _compile_for_tpu(args)
    if args.shape and args.tiles is None:
        raise UsageError(f"--shape goes with --tiles or with --emit {', '.join(vocabulary.TPU_STAGES)}")
    if args.check is not None:
        return compile_check.run(args, lambda: _tuned(args))
    tuned = _tuned(args)
    output.refuse_overwriting(args.spec, [args.output] if args.output else [])
    return _write_stage(args, tuned) if args.emit in vocabulary.STAGES else _compile_binaries(args)


def _tuned(args: Namespace) -> tuple[Tuned, ...] | tuple[TunedGpu, ...]:
    """What `--tiles` has for the shape and the target that are asked for."""
    if args.tiles is None:
        return ()
    source, tiles = files.read_source(args.spec), files.read_source(args.tiles)
    return api.tuned_tiles(source, dict(args.define), args.target, tiles, dict(args.shape))


# ---------------------------------------------------------------- stages of attngen


def _write_stage(args: Namespace, tuned: tuple[Tuned, ...] | tuple[TunedGpu, ...]) -> int:
    options = api.options(
        args.target,
        args.precision,
        args.tile,
        args.arch or "auto",
        tuned,
        head_dim=args.head_dim,
        dtype=args.dtype,
        forward=args.forward,
        geometry=tuple(dict.fromkeys(args.geometry or ("dense",))),
    )
    began = time.perf_counter()
    source, consts = files.read_source(args.spec), dict(args.define)
    if directory.is_directory(args.output):
        if args.emit != "source":
            raise UsageError(f"-o {args.output}: a directory takes files of target triton, not --emit {args.emit}")
        found = api.package(source, options, consts, args.allow_unproved, strict=args.strict, effort=args.effort)
        directory.write(args.output, found)
        return 0
    text = api.stage(
        args.emit, source, options, consts, args.allow_unproved, fork=True, strict=args.strict, effort=args.effort
    )
    output.deliver(terminal.flagged(text) if args.emit == "proof" else text, args.output)
    if args.emit == "source" and args.output not in (None, "-"):
        terminal.note(f"wrote {args.output} in {time.perf_counter() - began:.1f} s, {_held(text)}")
    return 0


def _held(text: str) -> str:
    """How many lines a generated file has, of its own and of the runtime, and what is proved of it."""
    from attngen.emit.triton import placement

    count, own = text.count("\n"), placement.own_lines(text)
    lines = f"{count} lines"
    if own is not None:
        runtime = own.runtime.stop - own.runtime.start
        lines = f"{count} lines, of which {runtime} are the runtime's"
    proved = re.search(r"^# Proved: (.+)\.$", text, re.MULTILINE)
    return f"{lines}; proved: {proved[1]}" if proved else f"{lines}; nothing is proved of it"


# ---------------------------------------------------------------- binaries of GPUs


def _compile_binaries(args: Namespace) -> int:
    from attngen.aot import compile as aot

    if args.emit not in targets.named(args.target).stages:
        raise UsageError(f"--emit {args.emit} is made by Triton's compiler: leave out --target {args.target}")
    arch = args.arch or ("gfx942" if args.emit == "hsaco" else "sm_90")
    if arch not in vocabulary.ARCHITECTURES:
        raise UsageError(f"--emit {args.emit} needs a chip: --arch {', '.join(vocabulary.ARCHITECTURES)}")
    dtype = args.dtype or "bf16"
    aot.require(args.emit, arch=arch, dtype=dtype, head_dim=args.head_dim)
    narrow = dtype if dtype == vocabulary.NARROW else None
    options = api.options(args.target, args.precision, args.tile, dtype=narrow, forward=args.forward)
    kernel = api.build(
        files.read_source(args.spec),
        options,
        dict(args.define),
        args.allow_unproved,
        strict=args.strict,
        effort=args.effort,
    )
    with terminal.working(f"compiling {kernel.name} for {arch}"):
        artifacts = api.binaries(kernel, args.emit, arch=arch, dtype=dtype, head_dim=args.head_dim or (64, 64))
    report = binaries_table(artifacts)
    if args.emit not in ("cubin", "hsaco"):
        parts = [f"// ---- {a.kernel}\n{_as_text(a.data).rstrip()}\n" for a in artifacts if a.data is not None]
        output.deliver("\n".join(parts), args.output)
        terminal.console(sys.stderr).print(report)
        lacking = [a.kernel for a in artifacts if a.data is None]
        if lacking:
            terminal.note(f"no {args.emit} of {', '.join(lacking)}: written in Gluon, which starts at ttgir")
        return 0
    if args.output is not None:
        named = {_file_of_kernel(args.output, a.kernel): a.data for a in artifacts if a.data is not None}
        output.refuse_overwriting(args.spec, list(named))
        files.write_all(named)
        for name in named:
            terminal.note(f"wrote {name}")
    terminal.console(sys.stdout).print(report)
    return 0


def _as_text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8")


def _file_of_kernel(name: str, kernel: str) -> str:
    """`build/alibi.cubin` holds one kernel only, so each goes into `build/alibi.KERNEL.cubin`."""
    stem, suffix = os.path.splitext(name)
    return f"{stem}.{kernel}{suffix}"


def binaries_table(artifacts: Sequence[Artifact]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("kernel")
    tensor_memory = any(a.tensor_memory for a in artifacts)
    spilling = any(a.spills for a in artifacts)
    for heading in ("registers", "spills", *(["in main loops"] if spilling else []), "shared memory", "size"):
        table.add_column(heading, justify="right")
    if tensor_memory:
        table.add_column("tensor memory", justify="right")
    for a in artifacts:
        counts = ["-" if count is None else str(count) for count in (a.registers, a.spills)]
        counts += [str(a.loop_spills)] if spilling else []
        size = "-" if a.data is None else f"{len(a.data)} B"
        sizes = [f"{a.shared} B", size, *([f"{a.tensor_memory} columns"] if tensor_memory else [])]
        table.add_row(a.kernel, *counts, *sizes)
    return table


# ---------------------------------------------------------------- stages of TPUs


def _compile_for_tpu(args: Namespace) -> int:
    from attngen.tpu import compile as tpu, programs

    if args.emit not in targets.named(args.target).stages:
        raise UsageError(f"--emit {args.emit} is made by a TPU's compiler: add --target pallas")
    output.refuse_overwriting(args.spec, [args.output] if args.output else [])
    chip, dtype = args.chip or "v5e", args.dtype or "bf16"
    programs.check_dtype(dtype)
    tpu.require()
    options = api.options(args.target, args.precision, args.tile, tuned=_tuned(args))
    source, consts = files.read_source(args.spec), dict(args.define)
    asked = dict(args.shape)
    if args.head_dim is not None:
        asked = {"D": args.head_dim[0], "Dv": args.head_dim[1], **asked}
    sizes = shapes.settled(api.callable_spec(*api.checked_plan(source, consts, args.target, args.tile)), asked)
    kernel = api.build(
        source,
        options,
        consts,
        args.allow_unproved,
        strict=args.strict,
        effort=args.effort,
    )
    with terminal.working(f"compiling {kernel.name} for {chip}"):
        compiled = api.tpu_compile(kernel, chip=chip, dtype=dtype, sizes=sizes, mosaic=args.emit == "mosaic")
    _write_tpu_stage(args, compiled)
    said = f"{kernel.name} for {chip}, {dtype}, " + " ".join(f"{n}={s}" for n, s in sizes.items())
    _print_estimate(compiled, said, sys.stderr if args.emit != "schedule" and not args.output else sys.stdout)
    return 0


def _write_tpu_stage(args: Namespace, compiled: Compiled) -> None:
    """The text that was asked for; of a schedule only into files, one a kernel, since it is long."""
    if args.emit == "hlo":
        output.deliver(compiled.hlo, args.output)
    elif args.emit == "mosaic":
        parts = [f"// ---- {name}\n{text.rstrip()}\n" for name, text in compiled.mosaic]
        output.deliver("\n".join(parts), args.output)
    elif args.output is not None:
        named = {_file_of_kernel(args.output, k.name): k.bundles for k in compiled.kernels if k.is_pallas}
        output.refuse_overwriting(args.spec, list(named))
        files.write_all(named)
        for name in named:
            terminal.note(f"wrote {name}")


def _print_estimate(compiled: Compiled, title: str, stream: TextIO) -> None:
    from attngen.tpu.estimate import estimate
    from attngen.tpu.report import tables

    terminal.console(stream).print(tables(estimate(compiled), title))
