"""What stands at the top of a generated file: the spec in comments, what was chosen, what was proved.

Takes a spec's text and words that a target chose, returns a `Header`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from attngen.ir.attention import Attention


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
    # The text stands in comments, whose lines Python ends at these characters and no others.
    lines = re.split(r"\r\n|\r|\n", text.strip("\r\n"))
    return Header(
        name=name,
        title=f"{name}: {title}",
        summary=f"Attention `{name}`, {summary}",
        spec_lines=tuple(f"#     {line}".rstrip() for line in lines),
        digest=hashlib.sha256(text.encode()).hexdigest(),
        options=" ".join(said),
        proof=tuple(f"# {line}" for line in proof),
        precision=precision,
        operator=operator,
    )


def consts(attention: Attention) -> list[str]:
    """The spec's consts, as options say them."""
    return [f"{name}={value}" for name, value in attention.consts]


def tile(found: tuple[int, int] | None) -> list[str]:
    """A tile of the spec's or of the target's, as options say it."""
    return [f"tile={found[0]}x{found[1]}"] if found else []
