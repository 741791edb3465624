"""Where mistakes are described: spans, diagnostics, and the exceptions that carry them.

Takes source text and positions, returns one-line messages with a caret. Knows nothing of the language.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of source text. Lines and columns count from 1; `end_column` is one past the last character."""

    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, other: Span) -> Span:
        """The stretch from the start of this span to the end of `other`."""
        return Span(self.line, self.column, other.end_line, other.end_column)


NOWHERE = Span(0, 0, 0, 0)
"""The span of what no file says: defaults and derived expressions."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text and the name under which messages quote it."""

    text: str
    name: str = "<string>"

    def line(self, number: int) -> str:
        lines = self.text.split("\n")
        return lines[number - 1].rstrip("\r") if 1 <= number <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake: a stable `code`, where, what is wrong in a sentence, and how to mend it. `notes` are lines below."""

    code: str
    message: str
    span: Span
    fix: str = ""
    source: Source | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    def render(self) -> str:
        """The message as the terminal shows it, with the line quoted, a caret below it, and then the notes."""
        return "".join([self._head(), *(f"\n  {note}" for note in self.notes)])

    def line(self, severity: str) -> str:
        """The message in one line, without the text that it is about."""
        name = self.source.name if self.source else "<string>"
        fix = f"; {self.fix}" if self.fix else ""
        return f"{name}:{self.span.line}:{self.span.column}: {severity}[{self.code}]: {self.message}{fix}"

    def _head(self) -> str:
        name = self.source.name if self.source else "<string>"
        head = f"{name}:{self.span.line}:{self.span.column}: error[{self.code}]: {self.message}"
        if self.source is None or self.span.line == 0:
            return head + (f"\n  = {self.fix}" if self.fix else "")
        text = self.source.line(self.span.line)
        start = max(self.span.column, 1) - 1
        stop = self.span.end_column - 1 if self.span.end_line == self.span.line else len(text)
        # Long lines (hostile or generated) are quoted around the caret only.
        left = max(0, start - 80) if len(text) > 160 else 0
        shown = text[left : left + 160].replace("\t", " ")
        shown = "".join(c if c.isprintable() else "�" for c in shown)
        width = max(1, min(stop, left + 160) - start)
        number = str(self.span.line)
        caret = " " * (start - left) + "^" * width
        return f"{head}\n  {number} | {shown}\n  {' ' * len(number)} | {caret}" + (f" {self.fix}" if self.fix else "")


class AttnError(Exception):
    """Base of everything that attngen raises on purpose."""


class SpecError(AttnError):
    """The spec is wrong. Holds every mistake that was found, in the order of the text."""

    def __init__(self, diagnostics: Iterable[Diagnostic]):
        self.diagnostics = tuple(sorted(dict.fromkeys(diagnostics), key=lambda d: (d.span.line, d.span.column, d.code)))
        super().__init__("\n".join(d.render() for d in self.diagnostics))

    def quoting(self, source: Source) -> SpecError:
        """The same, with the lines quoted, of a stage that sees no text."""
        return type(self)(replace(d, source=source) for d in self.diagnostics)


class Refuted(SpecError):
    """The spec is well formed, and what it claims is false. The message holds the numbers that show it."""


class Unproved(SpecError):
    """The spec is well formed, and the prover could not show what the compiler would rely on."""


class SpecWarning(UserWarning):
    """The spec compiles as it is written, and can hardly be meant so."""


class UsageError(AttnError, ValueError):
    """The caller asked for something that does not exist or does not fit: an option, an argument, a file."""


class InternalError(AttnError):
    """What cannot happen did. The message asks for a report. `log` is what a process that ended badly had to say: the
    message has its last lines."""

    def __init__(self, what: str, log: str = ""):
        last = [f"\n  {line[:400]}" for line in log.strip().splitlines()[-12:]]
        super().__init__(f"internal error: {what}; please report it with the spec that caused it{''.join(last)}")
