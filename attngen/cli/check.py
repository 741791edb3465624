"""`attngen check`: specs in, a table of obligations, JSON, or the derivation out.

The exit status is 0 where `compile` would write every one of these kernels, 1 where it would refuse one.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attngen import api, files, targets, terminal
from attngen.cli import arguments
from attngen.cli.output import refuse_overwriting
from attngen.cli.parser import Commands
from attngen.errors import Source, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from attngen.prove.budget.work import Budget
    from attngen.prove.proof import Proof
    from attngen.vocabulary import Const

EXPLANATIONS: dict[str, Literal["md", "tex"]] = {".md": "md", ".tex": "tex"}
"""What `--explain -o` writes, by the file's ending."""


def add(table: Commands) -> None:
    p = table.add_parser(
        "check",
        help="prove that a spec's kernel computes what the spec defines",
        description="Discharges every obligation of a spec's plan: streaming, range safety, empty rows, locality,\n"
        "gradients, tile ranges, index bounds, integer width. What is false comes with a counterexample, and\n"
        "exit status 1. `compile` proves the same before it writes a file.",
        example="attngen check examples/*.attn",
    )
    p.add_argument("specs", nargs="+", metavar="SPEC", help="spec files; - is standard input")
    arguments.define(p)
    p.add_argument(
        "--target",
        choices=[*targets.TARGETS],
        default="triton",
        help="whose plan: ints differ in width (default: triton)",
    )
    p.add_argument("-v", "--verbose", action="store_true", help="print every claim below the table")
    p.add_argument("--json", action="store_true", help="print every claim with its verdict, method and counterexample")
    p.add_argument("--explain", action="store_true", help="print the derivation, from dense softmax to tiles and back")
    arguments.prover_effort(p)
    p.add_argument(
        "--timeout",
        type=arguments.seconds,
        default=600.0,
        metavar="S",
        help="seconds for a spec, as a last resort; a claim that is stopped is unknown (default: 600)",
    )
    p.add_argument("-o", "--output", metavar="FILE", help="with --explain: write it there, .md or .tex")
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
    if args.output is not None and not args.explain:
        raise UsageError("-o goes with --explain; the table and --json go to standard output")
    if args.explain and len(args.specs) > 1:
        raise UsageError("--explain takes one SPEC")
    if args.explain and args.json:
        raise UsageError("--explain and --json exclude each other")
    consts = dict(args.define)
    if args.explain:
        return _explain(args.specs[0], consts, args.target, _budget(args), args.output)
    holds = True
    documents: list[object] = []
    noted: dict[str, list[str]] = {}
    for spec in args.specs:
        source = files.read_source(spec)
        with terminal.working(f"proving {source.name}"):
            proof = api.check(source, consts, target=args.target, budget=_budget(args))
        holds &= proof.holds
        if args.json:
            from attngen.prove.record import to_json

            documents.append({"file": source.name, **to_json(proof)})
        else:
            _print(proof, source, consts, noted if len(args.specs) > 1 else None, verbose=args.verbose)
    for note, names in noted.items():
        print(f"note on {', '.join(names)}: {note}")
    if args.json:
        terminal.put(terminal.flagged(json.dumps(documents if len(documents) != 1 else documents[0], indent=2)) + "\n")
    return 0 if holds else 1


def _budget(args: Namespace) -> Budget:
    from attngen.prove.budget.work import Budget

    return Budget(args.effort, args.timeout)


def _print(
    proof: Proof,
    source: Source,
    consts: dict[str, Const],
    noted: dict[str, list[str]] | None = None,
    *,
    verbose: bool = False,
) -> None:
    """`noted` takes the notes, by what they say, of a proof that is one of several."""
    from attngen.analyse.doubts import doubts
    from attngen.analyse.unaligned import unaligned
    from attngen.prove.report import claims, details, notes

    out = terminal.console(sys.stdout)
    out.print(_table(proof))
    for line in claims(proof) if verbose else ():
        print(line)
    for line in details(proof, source):
        print(terminal.flagged(line))
    spec = api.analyse(source, consts)
    for doubt in doubts(spec, source):
        print(doubt.line("warning"))
    for place in unaligned(spec, source):
        print(place.line("note"))
    for note in notes(proof):
        if noted is None:
            print(f"note: {note}")
        else:
            noted.setdefault(note, []).append(proof.name)
    count = sum(len(s.claims) for s in proof.shown)
    if proof.holds and not proof.unknown:
        time = "from the cache" if proof.cached else f"in {proof.seconds:.2f} s"
        print(terminal.paint(f"{proof.name}: proved, {count} claims {time}", "green", sys.stdout))
    elif proof.holds:
        print(f"{proof.name}: compiles; unproved ranges are dropped")
    else:
        print(terminal.paint(f"{proof.name}: refused", "red", sys.stdout))


def _table(proof: Proof) -> Table:
    from rich import box
    from rich.table import Table

    from attngen.prove.report import rows

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("obligation", "verdict"):
        table.add_column(heading)
    table.add_column("claims", justify="right")
    table.add_column("what it says")
    colours = {"proved": "green", "refuted": "bold red", "unknown": "yellow"}
    for r in rows(proof):
        verdict = f"[{colours[r.verdict]}]{r.verdict}[/]"
        table.add_row(r.obligation, verdict, r.claims, r.sentence)
    return table


def _explain(path: str, consts: dict[str, Const], target: str, budget: Budget, output: str | None) -> int:
    form: Literal["text", "md", "tex"] = "text"
    if output is not None:
        suffix = Path(output).suffix.lower()
        if suffix not in EXPLANATIONS:
            raise UsageError(f"-o {output}: a derivation ends in {' or '.join(EXPLANATIONS)}")
        refuse_overwriting(path, [output])
        form = EXPLANATIONS[suffix]
    source = files.read_source(path)
    with terminal.working(f"proving {source.name}"):
        spec, planned = api.checked_plan(source, consts, target)
        proof, emitted = api.prove(spec, planned, budget)
    if not proof.holds:
        _print(proof, source, consts)
        return 1
    text = terminal.flagged(api.explain(spec, emitted, proof, form))
    if output is None:
        terminal.put(text)
    else:
        files.write(output, text)
        terminal.note(f"wrote {output}")
    return 0
