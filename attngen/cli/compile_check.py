"""`attngen compile --check`: a spec and a generated file in, what compiling anew would change of it out.

The options are those in the file's head. Nothing is written.
"""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from attngen import api, files, targets, terminal
from attngen.cli import made as generated
from attngen.cli.made import Made
from attngen.errors import Source, UsageError

if TYPE_CHECKING:
    from attngen.emit import Tuned, TunedGpu
    from attngen.vocabulary import Const

SHOWN = 200
"""Lines of a difference that are printed."""


def run(args: Namespace, tiles: Callable[[], tuple[Tuned, ...] | tuple[TunedGpu, ...]]) -> int:
    """`tiles`: those of `--tiles`, for the target that `args` has then."""
    if args.output is not None:
        raise UsageError("-o does not go with --check, which writes nothing: leave out one of them")
    if args.spec == args.check == "-":
        raise UsageError("SPEC and --check can't both be standard input: name a file for one of them")
    data = files.read_bytes(args.check, generated.KIND)
    made = generated.read(files.decoded(data, args.check))
    name = made.file.name
    generated.refuse_contradictions(made, args)
    if args.geometry and set(made.options.geometry) != {"dense", *args.geometry}:
        raise generated.contradiction(made, "geometry", tuple(args.geometry))
    source = files.read_source(args.spec)
    consts, tile = _asked(made)
    args.target, args.define = made.options.target, list(consts.items())
    if args.tiles and tiles() != (made.options.tuned or made.options.tuned_gpu):
        raise generated.contradiction(made, "tiles", args.tiles)
    there = {const for const, _ in api.analyse(source).consts}
    for const in [const for const in consts if const not in there]:
        terminal.note(f"{source.name} has no const `{const}`, which {name} was made with")
        del consts[const]
    options = generated.checked(made.options, tile=tile)
    allowed = _allowed(made, args.allow_unproved)
    chosen: dict[str, Any] = {"strict": args.strict, "effort": args.effort}
    if generated.is_own_part(made.file.text):
        text = api.package(source, options, consts, allowed, **chosen)[f"{made.head.name}.py"]
    else:
        text = api.stage("source", source, options, consts, allowed, fork=True, **chosen)
    if text.encode() == data:
        terminal.note(f"{name} is what {source.name} compiles to")
        return 0
    again = f"attngen compile {shlex.quote(args.spec)} {generated.flags(options, consts)}".rstrip()
    return _differs(data.decode("utf-8"), text, name, source, f"{again} -o {shlex.quote(args.check)}")


def _asked(made: Made) -> tuple[dict[str, Const], tuple[int, int] | None]:
    """The consts and the tile that a caller asked for: those that the spec in the file's head does not have itself."""
    own = api.analyse(made.spec)
    usual = dict(own.consts)
    consts = {const: value for const, value in made.said.consts if usual.get(const) != value}
    tile = own.tile or targets.named(made.options.target).tile()
    return consts, None if made.options.tile == tile else made.options.tile


def _allowed(made: Made, given: list[str]) -> list[str]:
    from attngen.prove.verdict import allowed_in

    return list(dict.fromkeys([*allowed_in(made.head.proof), *given]))


# ---------------------------------------------------------------- the difference


def _differs(there: str, anew: str, name: str, source: Source, again: str) -> int:
    """Print what is different, and how to write the file anew; the exit status."""
    if re.sub(r"\r\n?", "\n", there) == anew:
        terminal.note(f"{name} is what {source.name} compiles to, but for its line ends, which are not those of Unix")
        return 1
    lines = list(_difference(there, anew, name, source))
    shown = [terminal.paint(x, _STYLES[x[0]], sys.stdout) if x[0] in _STYLES else x for x in lines[:SHOWN]]
    shown += [f"… and {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
    terminal.put("".join(f"{line}\n" for line in shown))
    changed = [line[0] for line in lines[2:]]
    terminal.note(
        f"{name} is not what {source.name} compiles to: {changed.count('-')} lines would go, {changed.count('+')} "
        f"would come; write it anew with {again}"
    )
    return 1


_STYLES = {"+": "green", "-": "red", "@": "blue"}


def _difference(there: str, anew: str, name: str, source: Source) -> Iterator[str]:
    """The lines that `diff -u` prints."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (there, anew))
    for line in difflib.unified_diff(old, new, name, f"{source.name}, compiled anew"):
        yield line.removesuffix("\n")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"
