"""`attngen verify`: a spec in, a table of its kernel's errors against the float64 reference out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from attngen import api, files, targets, terminal
from attngen.cli import arguments
from attngen.cli.parser import Commands
from attngen.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from attngen.cli.comparison import Case, Comparing, Comparison
    from attngen.emit import Options
    from attngen.ir.attention import Attention
    from attngen.plan import KernelPlan
    from attngen.targets import Target


def add(table: Commands) -> None:
    p = table.add_parser(
        "verify",
        help="run a spec's kernel against the float64 reference",
        description="Compiles a spec, runs it forward and backward on shapes that tend to break kernels, and compares\n"
        "every result with the float64 reference. Exit status 1 if one is over its tolerance.",
        example="attngen verify examples/alibi.attn --device cpu",
    )
    arguments.spec(p)
    p.add_argument("--target", choices=[*targets.TARGETS], default="triton", help="what to run (default: triton)")
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
        help="where the rows of a sequence are: dense, lengths, packed, pieces (default: dense). Lengths and packed "
        "have uneven sequences, with rows of NaN beside them; pieces are stretches of dense tensors, merged",
    )
    arguments.define(p)
    arguments.kernel_options(p)
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
    source, consts = files.read_source(args.spec), dict(args.define)
    geometries: tuple[str, ...] = tuple(dict.fromkeys(args.geometry or ["dense"]))
    options = {geometry: _options(args, geometry) for geometry in geometries}
    spec = api.analyse(source, consts)
    from attngen.cli import comparison

    target = targets.named(args.target)
    device = target.device(args.device)
    planned = api.plan(spec, args.target)
    spec = api.callable_spec(spec, planned)
    statuses: list[int] = []
    for geometry in geometries:
        try:
            cases, comparing = _chosen(spec, device, target, geometry)
            compared = comparison.verify(source, cases, device, options[geometry], consts, comparing)
            label = spec.name if geometry == "dense" else f"{spec.name}, {geometry}"
            results = list(terminal.progress(f"verifying {label}", compared, len(cases)))
        except UsageError as error:  # what this geometry refuses
            if len(geometries) == 1:
                raise
            terminal.note(f"{geometry}: {error}")
            continue
        if geometry in ("lengths", "packed"):
            _say_unlearned(planned, geometry)
        for name, value in comparison.beyond(spec, cases):
            terminal.note(f"no sequence here is as long as `{name}` = {value}: try -D {name}=… as well")
        statuses.append(_report(f"{label} on {_device_name(device, target)}", results))
    if not statuses:
        raise UsageError(f"{spec.name}: every geometry asked for refuses it")
    return max(statuses)


def _options(args: Namespace, geometry: str) -> Options:
    """Of the file that is verified. Functions for pieces are a kernel's own, whatever the file holds."""
    if geometry == "pieces" and not targets.named(args.target).pieces:
        able = targets.listed([target for target in targets.TARGETS.values() if target.pieces], "and")
        raise UsageError(f"pieces are for the targets {able}, not for {args.target}")
    return api.options(args.target, args.precision, args.tile, geometry=() if geometry == "pieces" else (geometry,))


def _chosen(spec: Attention, device: str, target: Target, geometry: str) -> tuple[tuple[Case, ...], Comparing]:
    from attngen.cli import comparison, pieces, sequences

    if geometry in ("dense", "pieces"):
        cases = comparison.cases(spec, device, target)
        return cases, comparison.compare if geometry == "dense" else pieces.compare
    return sequences.cases(spec, device), partial(sequences.compare, geometry=geometry)


def _say_unlearned(planned: KernelPlan, geometry: str) -> None:
    from attngen.emit.torch_shared.leaves import unsummed

    for name in unsummed(planned):
        why = "is summed over pairs, which is done for dense tensors only"
        terminal.note(f"{geometry}: the gradient of `{name}` {why}: not compared")


def _report(title: str, results: Sequence[tuple[Comparison, ...]]) -> int:
    """Print the table and the verdict; the exit status."""
    table, failed = _comparison_table(results)
    empty = [row[0].case for row in results if all(c.zeros for c in row if c.result == "out")]
    out = terminal.console(sys.stdout)
    out.print(f"{title}: errors against the float64 reference")
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
    print(terminal.paint(f"verified: {count} results of {len(results)} cases within tolerance", "green", sys.stdout))
    return 0


def _device_name(device: str, target: Target) -> str:
    if device != "cpu":
        return target.device_name()
    return f"the CPU, in {target.interpreter}" if target.interpreter else "the CPU"


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
