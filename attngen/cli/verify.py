"""`attngen verify`: a spec or a generated file in, its kernel's errors against the float64 reference out."""

from __future__ import annotations

import sys
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from attngen import api, files, targets, terminal, vocabulary
from attngen.cli import arguments
from attngen.cli.parser import Commands
from attngen.errors import Source, UsageError

if TYPE_CHECKING:
    from attngen.emit import Options
    from attngen.ir.attention import Attention
    from attngen.kernel import Kernel
    from attngen.plan import KernelPlan
    from attngen.targets import Target
    from attngen.verify.comparison import Case, Comparing, Comparison, Use


def add(table: Commands) -> None:
    p = table.add_parser(
        "verify",
        help="run a kernel against the float64 reference",
        description="Compiles a spec, runs it forward and backward on shapes that tend to break kernels, and compares\n"
        "every result with the float64 reference. Exit status 1 if one is over its tolerance.\n"
        "\n"
        "In the place of a spec it takes a file that `attngen compile` wrote, whether or not it was edited since. It\n"
        "EXECUTES THAT FILE: give one that you would import. The reference is that of the spec in the file's head,\n"
        "and the file's options and geometries are those in its head.",
        example="attngen verify examples/alibi.attn --device cpu\n  attngen verify alibi.py",
    )
    p.add_argument("spec", metavar="SPEC|FILE.py", help="a .attn file, or a generated file; - is standard input")
    arguments.target(p, "run")
    p.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to run (default: a GPU or TPU if there is one); cpu is the target's interpreter",
    )
    p.add_argument(
        "--geometry",
        type=arguments.geometries,
        action="extend",
        metavar="KIND[,KIND]",
        help="where the rows of a sequence are: dense, lengths, packed, pieces (default: dense; of a file: all that it "
        "has). Lengths and packed have uneven sequences, with rows of NaN beside them; pieces are stretches of dense "
        "tensors, merged",
    )
    p.add_argument(
        "--dtype",
        choices=(vocabulary.NARROW,),
        help="of a spec, 8-bit floats: their kernel on 8-bit inputs, forward; and what is lost of inputs of 16 bits",
    )
    arguments.define(p)
    arguments.kernel_options(p)
    p.set_defaults(run=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is verified. `spec` has what every call checks among its `assume`s; `kernels` gives the kernel of each case,
    for a geometry and a device. `use`: for which calls; `elsewhere`: what to do about a const that no case is longer
    than. A file has the geometries that it has: it refuses none, and gets a case that is longer than its consts."""

    spec: Attention
    plan: KernelPlan
    options: Options
    geometries: tuple[str, ...]
    kernels: Callable[[str, str], Callable[[Case], Kernel]]
    use: Use
    is_file: bool
    elsewhere: str
    exact: Callable[[], Kernel] | None = None
    """Of a spec in 8-bit floats: its kernel of 16 bits, whose results are beside."""

    @property
    def target(self) -> Target:
        return targets.named(self.options.target)


def run(args: Namespace) -> int:
    source = files.read_text(args.spec)
    is_file = files.is_generated(source) or source.name.endswith(".py")
    if not is_file:
        arguments.settle(args)
    return _verify(_of_file(source, args) if is_file else _of_spec(source, args), args.device)


def _of_spec(source: Source, args: Namespace) -> _Subject:
    consts = dict(args.define)
    geometries: tuple[str, ...] = tuple(dict.fromkeys(args.geometry or ["dense"]))
    options = {geometry: _options(args, geometry) for geometry in geometries}
    from attngen.verify import comparison

    spec, planned = api.checked_plan(source, consts, args.target, dtype=args.dtype)
    return _Subject(
        spec=api.callable_spec(spec, planned),
        plan=planned,
        options=options[geometries[0]],
        geometries=geometries,
        kernels=lambda geometry, device: comparison.compiled(source, options[geometry], consts, device),
        use=comparison.Use(dtype=args.dtype),
        is_file=False,
        elsewhere="try -D {}=… as well",
        exact=(lambda: api.build(source, api.options(args.target), consts)) if args.dtype else None,
    )


def _of_file(source: Source, args: Namespace) -> _Subject:
    from attngen.cli import made
    from attngen.verify import comparison

    file = made.read(source)
    made.refuse_contradictions(file, args)
    o = file.options
    geometries: tuple[str, ...] = tuple(dict.fromkeys(args.geometry or o.geometry))
    if not {*geometries} <= {*o.geometry}:
        raise made.contradiction(file, "geometry", geometries)
    kernel = made.kernel(file)
    return _Subject(
        spec=kernel.spec,
        plan=kernel.plan,
        options=o,
        geometries=geometries,
        kernels=lambda geometry, device: lambda case: kernel,
        use=comparison.Use(dtype=o.dtype, head_dim=o.head_dim, tile=o.tile or _UNKNOWN),
        is_file=True,
        elsewhere="compile with a smaller `{}`, and verify that file as well",
    )


_UNKNOWN = (64, 64)
"""Tiles of a file that does not say them in its head."""


def _verify(subject: _Subject, wanted: str) -> int:
    from attngen.verify import comparison

    spec, target, geometries = subject.spec, subject.target, subject.geometries
    device = target.device(wanted)
    statuses: list[int] = []
    tried: list[Case] = []
    for geometry in geometries:
        label = spec.name if geometry == "dense" else f"{spec.name}, {geometry}"
        try:
            cases, comparing = _chosen(subject, device, geometry)
            compared = _compared(subject.kernels(geometry, device), cases, device, subject.options, comparing)
            results = list(terminal.progress(f"verifying {label}", compared, len(cases)))
        except UsageError as error:  # what this geometry refuses
            if len(geometries) == 1 or subject.is_file:
                raise
            terminal.note(f"{geometry}: {error}")
            continue
        if geometry in ("lengths", "packed") and not subject.options.forward:
            _say_unlearned(subject.plan, geometry)
        tried += cases
        statuses.append(_report(f"{label} on {_device_name(device, target)}", results))
    if subject.exact is not None:
        _report_losses(subject.exact(), device)
    if not statuses:
        raise UsageError(f"{spec.name}: every geometry asked for refuses it")
    for name, value in comparison.beyond(spec, tried):
        terminal.note(f"no sequence here is as long as `{name}` = {value}: {subject.elsewhere.format(name)}")
    return max(statuses)


def _compared(
    kernel: Callable[[Case], Kernel], cases: Iterable[Case], device: str, options: Options, comparing: Comparing
) -> Iterator[tuple[Comparison, ...]]:
    for case in cases:
        yield tuple(comparing(kernel(case), case, device, coarse=options.precision != "ieee"))


def _options(args: Namespace, geometry: str) -> Options:
    """Of the file that is verified. Functions for pieces are a kernel's own, whatever the file holds."""
    if geometry == "pieces" and not targets.named(args.target).pieces:
        able = targets.listed([target for target in targets.TARGETS.values() if target.pieces], "and")
        raise UsageError(f"pieces are for the targets {able}, not for {args.target}")
    own = () if geometry == "pieces" and args.dtype is None else (geometry,)
    return api.options(args.target, args.precision, args.tile, dtype=args.dtype, geometry=own)


def _chosen(subject: _Subject, device: str, geometry: str) -> tuple[tuple[Case, ...], Comparing]:
    from attngen.verify import comparison, pieces, sequences

    if geometry in ("dense", "pieces"):
        cases = comparison.cases(subject.spec, device, subject.target, subject.use)
        cases += comparison.longer(subject.spec, cases) if subject.is_file and geometry == "dense" else ()
        return cases, comparison.compare if geometry == "dense" else pieces.compare
    return sequences.cases(subject.spec, device, subject.use), partial(sequences.compare, geometry=geometry)


def _say_unlearned(planned: KernelPlan, geometry: str) -> None:
    from attngen.emit.torch_shared.leaves import unsummed

    for name in unsummed(planned):
        why = "is summed over pairs, which is done for dense tensors only"
        terminal.note(f"{geometry}: the gradient of `{name}` {why}: not compared")


def _report_losses(kernel: Kernel, device: str) -> None:
    """Relative errors of `out`, for inputs of 16 bits that are quantized."""
    from attngen.verify import eight_bits

    out = terminal.console(sys.stdout)
    out.print("\nrelative error of out, |out - truth| / |truth|, of inputs before they are quantized\n", soft_wrap=True)
    for loss in eight_bits.losses(kernel, device):
        out.print(f"{loss.note}: {loss.case.shape()}", soft_wrap=True)
        out.print("  " + "  ".join(f"{way} {error:.4f}" for way, error in loss.errors), soft_wrap=True)


def _report(title: str, results: Sequence[tuple[Comparison, ...]]) -> int:
    """Print the table and the verdict; the exit status."""
    out = terminal.console(sys.stdout)
    out.print(f"{title}: errors against the float64 reference\n", soft_wrap=True)
    for line in _comparison_lines(results):
        out.print(line, soft_wrap=True)
    out.print()
    failed = sum(not c.passed for row in results for c in row)
    empty = [row[0].case for row in results if all(c.zeros for c in row if c.result == "out")]
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
    print(terminal.paint(f"verified: {count} results of {len(results)} cases within tolerance", "green", sys.stdout))
    return 0


def _device_name(device: str, target: Target) -> str:
    if device != "cpu":
        return target.device_name()
    return f"the CPU, in {target.interpreter}" if target.interpreter else "the CPU"


def _comparison_lines(results: Sequence[tuple[Comparison, ...]]) -> Iterator[str]:
    """Each case, and below it its results, which stand in columns. A spec may have any number of params, so no table
    with a column for each would fit a terminal."""
    name = max(len(c.result) for row in results for c in row)
    for row in results:
        case, tolerance = row[0].case, f"tolerance {row[0].tolerance:g}"
        yield from textwrap.wrap(f"{case.note}: {case.dtype}, {case.shape()}, {tolerance}", _WIDTH)
        cells = [f"{c.result:>{name}} {c.error:7.1e}{' ' if c.passed else '!'}" for c in row]
        shown = [cell if c.passed else f"[bold red]{cell}[/]" for cell, c in zip(cells, row, strict=True)]
        each = max(1, (_WIDTH - 1) // (len(cells[0]) + 1))
        yield from ("  " + " ".join(shown[i : i + each]).rstrip() for i in range(0, len(shown), each))


_WIDTH = 80
"""Columns of a terminal that nobody has made wider."""
