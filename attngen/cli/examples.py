"""`attngen examples`: no name in, the names of the examples out; a name in, that example's spec out."""

from __future__ import annotations

import sys
from argparse import Namespace

from attngen import resources, terminal
from attngen.cli import output
from attngen.cli.parser import Commands
from attngen.errors import UsageError


def add(table: Commands) -> None:
    p = table.add_parser(
        "examples",
        help="list the example specs, or print one",
        description="Lists the example specs that come with attngen, or prints one to start from.",
        example="attngen examples alibi -o alibi.attn",
    )
    p.add_argument("name", nargs="?", metavar="NAME", help="the example to print")
    p.add_argument("-o", "--output", metavar="FILE", help="write it to FILE")
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
    known = resources.names("examples", ".attn")
    if args.name is None:
        if args.output is not None:
            raise UsageError(f"-o goes with the NAME of an example; there are {', '.join(known)}")
        _list(known)
        return 0
    if args.name not in known:
        raise UsageError(f"no example {args.name!r}; there are {', '.join(known)}")
    output.deliver(resources.read(f"examples/{args.name}.attn"), args.output)
    return 0


def _list(known: tuple[str, ...]) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name in known:
        table.add_row(name, said(resources.read(f"examples/{name}.attn")))
    terminal.console(sys.stdout).print(table)


def said(spec: str) -> str:
    """The first paragraph of a spec's comment, in one line."""
    return " ".join(line.lstrip("# ") for line in spec.partition("\n#\n")[0].splitlines())
