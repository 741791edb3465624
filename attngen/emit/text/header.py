"""What stands at the top of a generated file: the spec in comments, what was chosen, what was proved.

Takes a spec's text and words that a target chose, returns a `Header`; and the other way round, of a file's text, a
`Head`. the templates of modules lay a header out.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from dataclasses import dataclass

from attngen.errors import Source, UsageError

_INDENT = "    "
"""Of the spec's lines, and of what an option's line has no room for."""
_ROOM = 120 - len("# options: ")
_LINE_END = re.compile(r"\r\n|\r|\n")
"""Where Python ends a comment, and nowhere else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """`operator` is the name of a custom operator, and `precision` what the target calls that of float32 products;
    both are empty for a target that has none."""

    name: str
    title: str
    summary: str
    spec_lines: tuple[str, ...]
    digest: str  # of the spec's text
    options: str
    proof: tuple[str, ...]  # comment lines: what was proved
    precision: str = ""
    operator: str = ""


def header(
    name: str,
    text: str,
    *,
    title: str,
    summary: str,
    said: list[str],
    proof: tuple[str, ...],
    precision: str = "",
    operator: str = "",
) -> Header:
    """`text` is the spec as written, `title` and `summary` are words behind its name, `said` are the options."""
    lines = _lines(text)
    options = textwrap.wrap(" ".join(map(_broken, said)), _ROOM, break_long_words=False, break_on_hyphens=False)
    return Header(
        name=name,
        title=f"{name}: {title}",
        summary=f"Attention `{name}`, {summary}",
        spec_lines=tuple(f"# {_INDENT}{line}".rstrip() for line in lines),
        digest=_digest(lines),
        options=f"\n# {_INDENT}".join(options),
        proof=tuple(f"# {line}" for line in proof),
        precision=precision,
        operator=operator,
    )


def _broken(word: str) -> str:
    """A word with a blank behind a slash, if no line has room for all of it."""
    cut = word.rfind("/", 0, _ROOM - len(_INDENT)) + 1 if len(word) > _ROOM - len(_INDENT) else 0
    return f"{word[:cut]} {_broken(word[cut:])}" if cut else word


def _lines(text: str) -> list[str]:
    """The spec's lines, without blanks at their ends, and without empty lines around them: what comments can hold."""
    return "\n".join(line.rstrip() for line in _LINE_END.split(text)).strip("\n").split("\n")


def _digest(lines: list[str]) -> str:
    """That of a file with these lines: of a spec that is laid out as `attngen fmt` does, its own."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


# ---------------------------------------------------------------- read


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a generated file says of itself. `text` is the spec's, `digest` what its sha256 was when the file was made,
    `options` are the words that `attngen.emit.said` reads, `proof` are sentences."""

    name: str
    text: str
    digest: str
    options: str
    proof: str

    @property
    def fits(self) -> bool:
        """Whether the text is still that of which the digest is."""
        return _digest(_lines(self.text)) == self.digest


_SPEC = re.compile(r"(#? ?)The specification:")
_SHA = re.compile(r"#? ?sha256 of its text: ([0-9a-f]{64})")
_OPTIONS = re.compile(r"#? ?options: (.*)")
_NAME = re.compile(r"^[ \t]*attention[ \t]+([A-Za-z_]\w*)", re.MULTILINE)


def read_head(file: Source) -> Head:
    """The head of a generated file, in comments or in its docstring. Raises `UsageError` where there is none."""
    lines = [line.rstrip() for line in _LINE_END.split(file.text)]
    begin, mark = _found(_SPEC, lines, 0)
    if mark is None:
        mend = "give a file that `attngen compile` wrote"
        raise UsageError(f"attngen did not make {file.name}: its head has no line `The specification:`; {mend}")
    end, digest = _found(_SHA, lines, begin)
    at, options = _found(_OPTIONS, lines, end)
    for what, there in (("sha256 of its text: …", digest), ("options: …", options)):
        if there is None:
            raise unreadable(file.name, f"no line `{what}` follows the spec")
    assert digest is not None and options is not None
    comment = mark[1] != ""
    own = [_own_line(file, n, lines[n], comment=comment) for n in range(begin + 1, end)]
    text = "\n".join(own).strip("\n") + "\n"
    name = _NAME.search(text)
    if name is None:
        raise unreadable(file.name, "its spec has no line `attention NAME`")
    rest = [_bare(line, comment=comment) for line in lines[at + 1 :]]
    length = next((i for i, line in enumerate(rest) if line.strip() in ("", '"""')), len(rest))
    more = next((i for i, line in enumerate(rest[:length]) if not line.startswith(_INDENT)), length)
    return Head(
        name=name[1],
        text=text,
        digest=digest[1],
        options=" ".join([options[1], *(line.strip() for line in rest[:more])]).replace("/ ", "/"),
        proof=" ".join(rest[more:length]),
    )


def unreadable(name: str, why: str) -> UsageError:
    return UsageError(f"the head of {name} can't be read: {why}; restore it, or compile the spec anew")


def _found(pattern: re.Pattern[str], lines: list[str], begin: int) -> tuple[int, re.Match[str] | None]:
    """The first line from `begin` on that is this."""
    matches = ((n, pattern.fullmatch(lines[n])) for n in range(begin, len(lines)))
    return next(((n, match) for n, match in matches if match is not None), (len(lines), None))


def _bare(line: str, *, comment: bool) -> str:
    """Without what makes it a line of a comment."""
    return line.removeprefix("#").removeprefix(" ") if comment else line


def _own_line(file: Source, number: int, line: str, *, comment: bool) -> str:
    """A line of the spec."""
    bare = _bare(line, comment=comment)
    if (bare and not bare.startswith(_INDENT)) or (comment and not line.startswith("#")):
        raise unreadable(file.name, f"line {number + 1} is neither the spec's nor `sha256 of its text: …`")
    return bare.removeprefix(_INDENT)
