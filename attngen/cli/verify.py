"""`attngen verify`: a spec in, a table of its kernel's errors against the float64 reference out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngen import api, files, terminal, vocabulary
from attngen.cli import arguments
from attngen.cli.parser import Commands

if TYPE_CHECKING:
    from rich.table import Table

    from attngen.cli.comparison import Comparison


def add(table: Commands) -> None:
    p = table.add_parser(
        "verify",
        help="run a spec's kernel against the float64 reference",
        description="Compiles a spec, runs it forward and backward on shapes that tend to break kernels, and compares\n"
        "every result with the float64 reference. Exit status 1 if one is over its tolerance.",
        example="attngen verify examples/alibi.attn --device cpu",
    )
    arguments.spec(p)
    p.add_argument("--target", choices=vocabulary.TARGETS, default="triton", help="what to run (default: triton)")
    p.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to run (default: a GPU or TPU if there is one); cpu is the target's interpreter",
    )
    arguments.define(p)
    arguments.kernel_options(p)
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
    from attngen.cli import comparison

    source = files.read_source(args.spec)
    consts = dict(args.define)
    spec = api.analyse(source, consts)
    device = comparison.choose_device(args.device, args.target)
    cases = comparison.cases(api.callable_spec(spec, api.plan(spec, args.target)), device, args.target)
    for name, value in comparison.beyond(spec, cases):
        terminal.note(f"no sequence here is as long as `{name}` = {value}: try -D {name}=… as well")
    options = api.options(args.target, args.precision, args.tile)
    compared = comparison.verify(source, cases, device, options, consts)
    results = list(terminal.progress(f"verifying {spec.name}", compared, len(cases)))
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
        from attngen.cli import comparison

        return comparison.jax_device_name()
    import torch

    return torch.cuda.get_device_name()


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
