"""`attngen fmt`: specs in, the same specs in their canonical layout out."""

from __future__ import annotations

import sys
from argparse import Namespace

from attngen import api, files, terminal
from attngen.cli.parser import Commands


def add(table: Commands) -> None:
    p = table.add_parser(
        "fmt",
        help="lay out specs",
        description="Prints specs in their canonical layout; comments stay.",
        example="attngen fmt --check examples/*.attn",
    )
    p.add_argument("files", nargs="+", metavar="FILE", help="specs; - is standard input")
    how = p.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="name the files that would change, and exit with status 1")
    how.add_argument("-w", "--write", action="store_true", help="write the files back instead of printing")
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
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
