"""Where a command's result goes: to standard output, or into the files that `-o` names, never over the spec."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from attngen import files, terminal
from attngen.errors import UsageError


def deliver(text: str, output: str | None) -> None:
    if output is None or output == "-":
        terminal.put(text)
    else:
        files.write(output, text)


def refuse_overwriting(spec: str, outputs: Sequence[str]) -> None:
    for output in outputs:
        if files.same_file(spec, output):
            raise UsageError(f"-o {output} would overwrite the spec; choose another name")


def picture_format(args: Namespace) -> str:
    """The format of `-o FILE`, or an empty string where none is asked for."""
    if not args.output:
        return ""
    suffix = Path(args.output).suffix.lower().lstrip(".")
    if suffix not in ("png", "svg"):
        raise UsageError(f"-o {args.output}: a picture ends in .png or .svg")
    refuse_overwriting(args.spec, [args.output])
    return suffix
