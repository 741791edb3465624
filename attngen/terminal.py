"""What the command line writes to people: colour where there is a terminal, progress, errors. Takes text, streams."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from attngen.errors import SpecError, SpecWarning
from attngen.vocabulary import OPTIONS

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
_OPTION = re.compile(rf"`({'|'.join(OPTIONS)})=([^`]*)`")
_STYLES = {"bold": "1", "red": "1;31", "green": "32", "dim": "2", "blue": "34"}


def is_coloured(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that takes colour (see no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, stream: TextIO) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if is_coloured(stream) else text


def flagged(message: str) -> str:
    """A message with the arguments that it names as flags: `effort=4` becomes `--effort 4`."""

    def flag(found: re.Match[str]) -> str:
        value = re.sub(r"[\[\]\\\"']", "", found[2])
        return f"`--{found[1].replace('_', '-')}{' ' if value else ''}{value}`"

    return _OPTION.sub(flag, message)


def put(text: str) -> None:
    """Write `text` to standard output as UTF-8, whatever the locale: generated source is a file, not a message."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8"))
    sys.stdout.buffer.flush()


def note(text: str) -> None:
    """A line for the person at the terminal, on standard error."""
    print(paint(flagged(text), "dim", sys.stderr), file=sys.stderr)


def report_usage(program: str, message: str) -> None:
    print(f"{program}: {paint('error', 'red', sys.stderr)}: {flagged(message)}", file=sys.stderr)


@contextmanager
def warnings_as_lines() -> Generator[None]:
    """While the body runs, what attngen warns of a spec is a line of its own on standard error, told once."""

    usual = warnings.showwarning

    def show(message: Warning | str, *rest: Any) -> None:
        if isinstance(message, SpecWarning):
            print(paint(flagged(str(message)), "bold", sys.stderr), file=sys.stderr)
        else:
            usual(message, *rest)

    with warnings.catch_warnings():
        warnings.simplefilter("once", SpecWarning)
        warnings.showwarning = show
        yield


def report_spec(error: SpecError) -> None:
    """Every mistake of a spec, its first line bold and its caret green."""
    for diagnostic in error.diagnostics:
        head, *quoted = flagged(diagnostic.render()).split("\n")
        lines = [paint(head, "bold", sys.stderr), *quoted[:-1], *(paint(q, "green", sys.stderr) for q in quoted[-1:])]
        print("\n".join(lines), file=sys.stderr)
    count = len(error.diagnostics)
    if count > 1:
        print(paint(f"{count} mistakes", "bold", sys.stderr), file=sys.stderr)


class _Trimmed:
    """A stream to which no line is written with blanks at its end: rich fills each line of a table up to its width."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(r" +(?=\n)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console(stream: TextIO) -> Console:
    """A rich console on `stream`: coloured on a terminal only, and wide enough for any table when piped."""
    from rich.console import Console

    width = None if stream.isatty() else 240
    trimmed = cast("TextIO", _Trimmed(stream))
    return Console(file=trimmed, width=width, no_color=not is_coloured(stream), highlight=False, soft_wrap=False)


@contextmanager
def working(message: str) -> Generator[None]:
    """A spinner on standard error while the body runs, on a terminal only, and only where it takes a while."""
    if not sys.stderr.isatty():
        yield
        return
    status = console(sys.stderr).status(message)
    patience = threading.Timer(0.5, status.start)
    patience.start()
    try:
        yield
    finally:
        patience.cancel()
        patience.join()  # a start that is under way comes before the stop
        status.stop()


def progress(message: str, items: Iterable[T], count: int) -> Iterable[T]:
    """The same items; while they are taken, a bar on standard error shows how many of `count` are, on a terminal."""
    if not sys.stderr.isatty():
        return items
    from rich.progress import track

    return track(items, message, total=count, console=console(sys.stderr), transient=True)
