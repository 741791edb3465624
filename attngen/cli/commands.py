"""What each command does: takes parsed arguments, calls the floors below, prints, and gives the exit status.

0 is success; 1 is refuted, not verified, or (`fmt --check`) not formatted. Wrong use raises `UsageError` or
`SpecError`. Modules that cost time are imported where a command needs them.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attngen import api, files, terminal, vocabulary
from attngen.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from attngen.aot.compile import Artifact
    from attngen.cli.verify_runs import Case, Comparison
    from attngen.cost.model import Cost
    from attngen.emit import Tuned, TunedGpu
    from attngen.ir.attention import Attention
    from attngen.show.survey import Survey


def run_compile(args: Namespace, tuned: tuple[Tuned, ...] | tuple[TunedGpu, ...] = ()) -> int:
    refuse_overwriting(args.spec, [args.output] if args.output else [])
    if args.emit in vocabulary.STAGES:
        for flag in ("arch", "dtype", "head_dim")[args.emit == "source" :]:
            if getattr(args, flag) is not None:
                kinds = ", ".join((*(["source"] if flag == "arch" else []), *vocabulary.BINARIES))
                raise UsageError(f"--{flag.replace('_', '-')} goes with --emit {kinds}, not with {args.emit}")
        if args.strict and args.emit != "source":
            raise UsageError(f"--strict goes with --emit source and what is made of it, not with {args.emit}")
        options = api.options(args.target, args.precision, args.tile, args.arch or "auto", tuned)
        source, consts = files.read_source(args.spec), dict(args.define)
        text = api.stage(args.emit, source, options, consts, args.allow_unproved, fork=True, strict=args.strict)
        deliver(text, args.output)
        return 0
    return _compile_binaries(args)


def _compile_binaries(args: Namespace) -> int:
    if args.target != "triton":
        raise UsageError(f"--emit {args.emit} is made by Triton's compiler: leave out --target {args.target}")
    arch = args.arch or ("gfx942" if args.emit == "hsaco" else "sm_90")
    if arch not in vocabulary.ARCHITECTURES:
        raise UsageError(f"--emit {args.emit} needs a chip: --arch {', '.join(vocabulary.ARCHITECTURES)}")
    options = api.options(args.target, args.precision, args.tile)
    kernel = api.build(
        files.read_source(args.spec), options, dict(args.define), args.allow_unproved, strict=args.strict
    )
    with terminal.working(f"compiling {kernel.name} for {arch}"):
        artifacts = api.binaries(
            kernel, args.emit, arch=arch, dtype=args.dtype or "bf16", head_dim=args.head_dim or (64, 64)
        )
    report = _report(artifacts)
    if args.emit not in ("cubin", "hsaco"):
        parts = [f"// ---- {a.kernel}\n{_as_text(a.data).rstrip()}\n" for a in artifacts if a.data is not None]
        deliver("\n".join(parts), args.output)
        terminal.console(sys.stderr).print(report)
        lacking = [a.kernel for a in artifacts if a.data is None]
        if lacking:
            terminal.note(f"no {args.emit} of {', '.join(lacking)}: written in Gluon, which starts at ttgir")
        return 0
    if args.output is not None:
        named = {beside(args.output, a.kernel): a.data for a in artifacts if a.data is not None}
        refuse_overwriting(args.spec, list(named))
        files.write_all(named)
        for name in named:
            terminal.note(f"wrote {name}")
    terminal.console(sys.stdout).print(report)
    return 0


def _as_text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8")


def beside(output: str, kernel: str) -> str:
    """`build/alibi.cubin` holds one kernel only, so each goes into `build/alibi.KERNEL.cubin`."""
    stem, suffix = os.path.splitext(output)
    return f"{stem}.{kernel}{suffix}"


def _report(artifacts: Sequence[Artifact]) -> Table:
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


def run_fmt(args: Namespace) -> int:
    sources = [files.read_source(path) for path in args.files]
    formatted = [api.format_source(source) for source in sources]
    changed = [s for s, text in zip(sources, formatted, strict=True) if s.text != text]
    if args.check:
        for source in changed:
            print(f"{source.name} is not formatted", file=sys.stderr)
        return 1 if changed else 0
    for source, text in zip(sources, formatted, strict=True):
        if args.write and source.name != "<stdin>":
            if source in changed:
                files.write(source.name, text)
                terminal.note(f"formatted {source.name}")
        else:
            terminal.put(text)
    return 0


def run_show(args: Namespace) -> int:
    suffix = _picture(args)
    survey = _survey(args)
    if args.output:
        from attngen.show.image import image

        with terminal.working("drawing"):
            picture = image(survey, suffix)
        files.write(args.output, picture)
        print(survey.summary())
        return 0
    from attngen.show import text

    if terminal.is_coloured(sys.stdout) and "utf" in (sys.stdout.encoding or "").lower():
        console = terminal.console(sys.stdout)
        console.print(text.coloured(survey, min(console.width - 1, 128)))
    else:
        print(text.plain(survey), end="")
    return 0


def _survey(args: Namespace) -> Survey:
    from attngen import inputs
    from attngen.ir import walk
    from attngen.show.survey import survey

    spec = api.analyse(files.read_source(args.spec), dict(args.define))
    planned = api.plan(spec)
    length = inputs.telling_length(spec)
    wanted = {"B": 1, "Hq": 1, "Hkv": 1, "Sq": length, "Sk": length, "D": 64, "Dv": 64}
    asked = dict(args.size)
    wanted |= sizes_wanted(spec, wanted, asked)
    # Which batch and head is looked at says how many there must be.
    wanted["B"] = max(wanted["B"], args.batch + 1) if "B" not in asked else wanted["B"]
    if "Hq" not in asked and "Hkv" not in asked:
        wanted["Hq"] = wanted["Hkv"] = args.head + 1
    check_heads(wanted)
    sizes = inputs.settle(api.callable_spec(spec, planned), wanted, fixed=asked)
    needed = walk.params(spec.mask)
    values = inputs.examples(spec, sizes, dict(args.param), only=needed)
    tile = args.tile or _tile(spec.tile, max(sizes["Sq"], sizes["Sk"]))
    with terminal.working("solving the tiles"):
        return survey(planned, sizes, values, tile=tile, batch=args.batch, head=args.head)


def sizes_wanted(spec: Attention, usual: Mapping[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    """`usual` sizes with those that the user asked for: one length or one number of heads alone means both."""
    unknown = [name for name in asked if name not in usual and name not in spec.sizes]
    if unknown:
        raise UsageError(f"{spec.name} has no size {unknown[0]!r}; there are {', '.join([*usual, *spec.sizes])}")
    wanted = {**usual, **asked}
    for one, other in (("Hq", "Hkv"), ("Sq", "Sk"), ("D", "Dv")):
        if (one in asked) != (other in asked):
            wanted[one] = wanted[other] = asked[one if one in asked else other]
    return wanted


def check_heads(sizes: Mapping[str, int]) -> None:
    if sizes["Hq"] % sizes["Hkv"]:
        raise UsageError(f"Hq = {sizes['Hq']} is no multiple of Hkv = {sizes['Hkv']}")


def _tile(own: tuple[int, int] | None, length: int) -> tuple[int, int]:
    """The spec's tile, or a usual one, unless the picture would be of a few tiles only."""
    tile = own or (128, 64)
    return tile if length >= 8 * max(tile) else (16, 16)


def run_cost(args: Namespace) -> int:
    suffix = _picture(args)
    spec = api.analyse(files.read_source(args.spec), dict(args.define))
    asked = dict(args.shape)
    usual = {"B": 1, "Hq": 8, "Hkv": 8, "Sq": 4096, "Sk": 4096, "D": 128, "Dv": 128}
    wanted = sizes_wanted(spec, usual, asked)
    check_heads(wanted)
    with terminal.working("counting"):
        found = _cost(args, spec, wanted, asked)
    if args.json:
        import json

        from attngen.cost.table import data

        print(json.dumps(data(found), indent=2))
    else:
        from attngen.cost.table import render

        terminal.console(sys.stdout).print(render(found))
    if args.output:
        from attngen.cost.plot import image

        lengths = [2**i for i in range(9, 16)]
        with terminal.working("drawing"):
            costs = [_cost(args, spec, of_length(wanted, n), set(asked) - {"Sq", "Sk"}) for n in lengths]
            picture = image(costs, suffix)
        files.write(args.output, picture)
        terminal.note(f"wrote {args.output}")
    return 0


def of_length(sizes: Mapping[str, int], keys: int) -> dict[str, int]:
    """`sizes` with so many keys, and queries in proportion."""
    return {**sizes, "Sq": max(1, sizes["Sq"] * keys // sizes["Sk"]), "Sk": keys}


def _cost(args: Namespace, spec: Attention, wanted: Mapping[str, int], fixed: Collection[str]) -> Cost:
    from attngen import inputs
    from attngen.ir import walk

    planned = api.plan(spec)
    sizes = inputs.settle(api.callable_spec(spec, planned), wanted, fixed=fixed)
    values = inputs.examples(spec, sizes, dict(args.param), only=walk.params(spec.mask))
    return api.cost(planned, args.chip, args.dtype, sizes, values, args.tile)


def run_verify(args: Namespace) -> int:
    from attngen.cli import verify_runs

    source = files.read_source(args.spec)
    consts = dict(args.define)
    spec = api.analyse(source, consts)
    device = verify_runs.choose_device(args.device, args.target)
    cases = verify_runs.cases(api.callable_spec(spec, api.plan(spec, args.target)), device, args.target)
    for name, value in verify_runs.beyond(spec, cases):
        terminal.note(f"no sequence here is as long as `{name}` = {value}: try -D {name}=… as well")
    options = api.options(args.target, args.precision, args.tile)
    results = _with_progress(spec.name, cases, verify_runs.verify(source, cases, device, options, consts))
    table, failed = _comparison_table(results)
    empty = [row[0].case for row in results if all(c.zeros for c in row if c.result == "out")]
    out = terminal.console(sys.stdout)
    out.print(f"{spec.name} on {_device_name(device, args.target)}: errors against the float64 reference")
    out.print(table)
    if failed:
        print(terminal.paint(f"NOT verified: {failed} of the results are over their tolerance", "red", sys.stdout))
        return 1
    if len(empty) == len(results):
        message = f"NOT verified: the mask admits no pair in the shapes tried: all {len(results)} cases compare zeros"
        print(terminal.paint(message, "red", sys.stdout))
        return 1
    for case in empty:
        terminal.note(f"the mask admits no pair at {case.shape()}: both sides are zero there")
    count = sum(map(len, results))
    print(terminal.paint(f"verified: {count} results of {len(cases)} cases within tolerance", "green", sys.stdout))
    return 0


def _device_name(device: str, target: str) -> str:
    if device == "cpu":
        interpreter = {"pallas": ", in Pallas' interpreter", "triton": ", in Triton's interpreter"}
        return f"the CPU{interpreter.get(target, '')}"
    if target in ("pallas", "jax"):
        from attngen.cli import verify_runs

        return verify_runs.jax_device_name()
    import torch

    return torch.cuda.get_device_name()


def _with_progress(
    name: str, cases: Sequence[Case], results: Iterator[tuple[Comparison, ...]]
) -> list[tuple[Comparison, ...]]:
    if not sys.stderr.isatty():
        return list(results)
    from rich.progress import track

    console = terminal.console(sys.stderr)
    return list(track(results, f"verifying {name}", total=len(cases), console=console, transient=True))


def _comparison_table(results: Sequence[tuple[Comparison, ...]]) -> tuple[Table, int]:
    """One row a case, one column a result; and how many are over their tolerance."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("case")
    table.add_column("dtype")
    table.add_column("shape")
    for comparison in results[0]:
        table.add_column(comparison.result, justify="right")
    table.add_column("tolerance", justify="right")
    failed = 0
    for row in results:
        cells: list[str] = []
        for comparison in row:
            failed += not comparison.passed
            shown = f"{comparison.error:.1e}"
            cells.append(shown if comparison.passed else f"[bold red]{shown}![/]")
        case = row[0].case
        table.add_row(case.note, case.dtype, case.shape(), *cells, f"{row[0].tolerance:g}")
    return table, failed


# ---------------------------------------------------------------- shared


def _picture(args: Namespace) -> str:
    """The format of `-o FILE`, or an empty string where none is asked for."""
    if not args.output:
        return ""
    suffix = Path(args.output).suffix.lower().lstrip(".")
    if suffix not in ("png", "svg"):
        raise UsageError(f"-o {args.output}: a picture ends in .png or .svg")
    refuse_overwriting(args.spec, [args.output])
    return suffix


def deliver(text: str, output: str | None) -> None:
    if output is None or output == "-":
        terminal.put(text)
    else:
        files.write(output, text)


def refuse_overwriting(spec: str, outputs: Sequence[str]) -> None:
    for output in outputs:
        if files.same_file(spec, output):
            raise UsageError(f"-o {output} would overwrite the spec; choose another name")
