"""`attngen plan-parallel`: a spec, sizes and a number of ranks in; who holds, computes and sends what out."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attngen import api, files, terminal, vocabulary
from attngen.cli import arguments, output, shapes
from attngen.cli.parser import Commands
from attngen.errors import UsageError

if TYPE_CHECKING:
    from attngen.distributed.plan.estimate import Machine
    from attngen.distributed.plan.report import Report
    from attngen.distributed.plan.schedule import Masked, Sequences
    from attngen.ir.attention import Attention
    from attngen.plan import KernelPlan


def add(table: Commands) -> None:
    p = table.add_parser(
        "plan-parallel",
        usage="attngen plan-parallel [-h] SPEC --ranks N [--shape NAME=INT …] [--lengths N,N,…|FILE.npy]\n"
        "                    [--layout auto|contiguous|headtail] [--exchange ring|gather|heads] [--heads N]\n"
        "                    [--chip CHIP] [--link GB/S] [--dtype DTYPE] [-D NAME=VALUE] [--param NAME=VALUE]\n"
        "                    [--data NAME=FILE.npy] [--json] [-o FILE.png|FILE.svg]",
        help="plan one long sequence over many chips",
        description="Cuts sequences over ranks, as attngen.distributed.context_parallel does: who holds, computes and\n"
        "sends what, with work, bytes and estimated times. Proves that each allowed pair is computed once.\n"
        "Exit status 1 if that is refuted or unknown. The chips needn't be there.",
        example="attngen plan-parallel examples/causal.attn --ranks 8 --shape Sq=131072 Hq=32 Hkv=8",
    )
    arguments.spec(p)
    p.add_argument("--ranks", type=arguments.positive, required=True, metavar="N", help="how many chips")
    arguments.shape(p)
    p.add_argument(
        "--lengths",
        type=_lengths,
        metavar="N,N,…|FILE.npy",
        help="packed sequences of these lengths, of as many queries as keys (default: one sequence)",
    )
    p.add_argument(
        "--layout",
        choices=("auto", "contiguous", "headtail"),
        default="auto",
        help="who holds which rows (default: auto, by the mask's work)",
    )
    p.add_argument(
        "--exchange",
        choices=("ring", "gather", "heads"),
        default="ring",
        help="how ranks exchange keys (default: ring)",
    )
    p.add_argument(
        "--heads",
        type=arguments.positive,
        metavar="N",
        help="ranks that share the heads of the same rows (default: 1; with --exchange heads: all)",
    )
    p.add_argument("--chip", choices=vocabulary.CHIPS, default="h200", help="the chip (default: h200)")
    p.add_argument(
        "--link",
        type=arguments.gigabytes,
        metavar="GB/S",
        help="gigabytes a second that leave a chip for others (default: what the chip's own links are said to have)",
    )
    p.add_argument("--dtype", choices=vocabulary.DTYPES, default="bf16", help="dtype of q, k, v (default: bf16)")
    arguments.define(p)
    arguments.param(p)
    arguments.data(p)
    p.add_argument("--json", action="store_true", help="print JSON, with every piece and every transfer")
    p.add_argument("-o", "--output", metavar="FILE", help="draw who computes which pairs, .png or .svg")
    p.set_defaults(run=run)


def _lengths(word: str) -> str | tuple[int, ...]:
    """A file's name, or lengths."""
    if word.endswith(".npy"):
        return word
    if not all(part.isdigit() and len(part) < 10 for part in word.split(",")):
        raise ArgumentTypeError(f"{word!r} has no lengths; write N,N,… such as 4096,300,1200, or FILE.npy")
    return tuple(map(int, word.split(",")))


@dataclass(frozen=True)
class _Subject:
    """What `attngen.visits` asks of a kernel."""

    spec: Attention
    plan: KernelPlan


def run(args: Namespace) -> int:
    suffix = output.picture_format(args)
    with terminal.working("planning"):
        report = _report(args)
    if args.json:
        import json

        from attngen.distributed.plan.report import data

        print(json.dumps(data(report)))
    else:
        from attngen.distributed.plan.report import render

        console = terminal.console(sys.stdout)
        for part in render(report):
            console.print(part)
    if args.output:
        from attngen.distributed.plan.picture import image

        with terminal.working("drawing"):
            picture = image(report, suffix)
        files.write(args.output, picture)
        terminal.note(f"wrote {args.output}")
    return 0 if report.proved else 1


def _report(args: Namespace) -> Report:
    from attngen.distributed.plan.coverage import coverage
    from attngen.distributed.plan.estimate import estimate
    from attngen.distributed.plan.layout import contiguous
    from attngen.distributed.plan.report import Report
    from attngen.distributed.plan.schedule import named_layout, row_work, schedule

    source = files.read_source(args.spec)
    spec, planned = api.checked_plan(source, dict(args.define))
    proof, planned = api.prove(spec, planned)
    api.require(proof, source)
    spec = api.callable_spec(spec, planned)
    sequences, sizes, masked = _call(args, spec)
    heads = args.ranks if args.exchange == "heads" else args.heads or 1
    if args.heads and args.exchange == "heads" and args.heads != args.ranks:
        raise UsageError("--exchange heads shares the heads among all ranks: leave --heads out, or use --exchange ring")
    if args.ranks % heads:
        raise UsageError(f"--heads {heads} must divide --ranks {args.ranks}")
    if sizes["Hq"] % heads:
        raise UsageError(f"Hq = {sizes['Hq']} must be divisible by {heads} ranks: choose other --ranks or --heads")
    machine = _machine(args)
    subject = _Subject(spec, planned)
    work = row_work(subject, sequences, masked)
    layout = named_layout(args.layout, sequences, args.ranks, lambda: work, heads=heads)
    keys = layout if sequences.q == sequences.k else contiguous(sequences.k[-1], args.ranks)
    made = schedule(subject, layout, sequences, args.exchange, k_layout=keys, heads=heads, masked=masked)
    return Report(
        name=spec.name,
        layout=args.layout,
        exchange=args.exchange,
        sizes=sizes,
        machine=machine,
        schedule=made,
        claims=coverage(subject, made, masked),
        estimate=estimate(planned, made, work, sizes, machine),
    )


def _machine(args: Namespace) -> Machine:
    from attngen.cost.chips import chip as named
    from attngen.distributed.plan.estimate import Machine

    chip = named(args.chip)
    if args.link is None and chip.link is None:
        raise UsageError(f"the link rate of {args.chip} is not published: give --link GB/S")
    link = args.link * 1e9 if args.link is not None else chip.link.value if chip.link else 0.0
    return Machine(chip=chip, link=link, dtype=args.dtype)


def _call(args: Namespace, spec: Attention) -> tuple[Sequences, Mapping[str, int], Masked]:
    """Sequences, sizes, and what the mask reads."""
    from attngen import inputs
    from attngen.distributed.plan.schedule import Masked, Sequences, check_packed
    from attngen.ir import walk
    from attngen.ir.walk import symbols

    asked = dict(args.shape)
    data = {name: files.read_array(path) for name, path in args.data}
    needed = walk.params(spec.mask)
    sequences = None
    if args.lengths is not None:
        if {"B", "Sq", "Sk"} & set(asked):
            raise UsageError("--lengths says how many sequences and rows there are: leave B, Sq and Sk out of --shape")
        rows = [p.name for p in spec.params if p.name in needed and any(symbols(d) & {"Sq", "Sk"} for d in p.shape)]
        if rows:
            raise UsageError(f"the mask reads {rows[0]}, which has an element for each row: leave --lengths out")
        check_packed(spec)
        lengths = _read_lengths(args.lengths)
        ends = [0]
        for n in lengths:
            ends.append(ends[-1] + n)
        sequences = Sequences.of_offsets(ends)
        asked |= {"B": len(lengths), "Sq": max(lengths), "Sk": max(lengths)}
    for size, length in inputs.sizes_of(spec, data).items():
        if asked.setdefault(size, length) != length:
            raise UsageError(f"{size} = {asked[size]} contradicts the data, which say {size} = {length}")
    wanted = shapes.wanted(spec, shapes.USUAL, asked)
    shapes.check_heads(wanted)
    sizes = inputs.settle(spec, wanted, fixed=asked)
    values: dict[str, Any] = dict(inputs.examples(spec, sizes, dict(args.param), data=data, only=needed))
    shapes.say_invented(spec, [name for name in values if name not in {*data, *dict(args.param)}])
    extents = {name: sizes[name] for name in ("B", "Hq", "Hkv", "D", "Dv")}
    return sequences or Sequences.dense(sizes["Sq"], sizes["Sk"]), sizes, Masked(params=values, extents=extents)


def _read_lengths(lengths: str | tuple[int, ...]) -> tuple[int, ...]:
    found = lengths
    if isinstance(found, str):
        array = files.read_array(found)
        if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
            raise UsageError(f"{found} must have one dimension of ints that are not negative")
        found = tuple(int(n) for n in array)
    if not any(found):
        raise UsageError("--lengths: at least one sequence must have a row")
    return found
