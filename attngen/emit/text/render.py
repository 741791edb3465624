"""The one Jinja environment. Templates lay out; filters here only break, indent and bracket text."""

from __future__ import annotations

import ast
import base64
import functools
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

import jinja2
from jinja2.bccache import Bucket

from attngen import cache, resources


def _lines(lines: Iterable[str], indent: int) -> str:
    """Each line at the indent, with its newline; nothing for no lines."""
    return "".join(f"{' ' * indent}{line}".rstrip() + "\n" for line in lines)


def _wrap(names: Iterable[str], indent: int) -> str:
    return textwrap.fill(
        ", ".join(names), width=116 - indent, subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _constants(names: Iterable[str], module: str = "gl") -> str:
    """Arguments that a function takes at compile time: of Gluon, or of Triton's own `tl`."""
    return _wrap((f"{name}:{module}.constexpr" for name in names), 4).replace(":", ": ")


def _names(names: Iterable[str]) -> str:
    """The names of a namedtuple's fields, as one string over as many lines as it takes."""
    lines = textwrap.wrap(" ".join(names), width=100)
    return "\n    ".join(f'"{line} "' for line in lines[:-1]) + ("\n    " if lines[1:] else "") + f'"{lines[-1]}"'


def bracket(text: str) -> str:
    """`text` as a factor of a product."""
    return text if re.fullmatch(r"[\w.]+(\([^()]*\))?", text) else f"({text})"


def condition(text: str) -> str:
    """`text` beside `&` or `|`, which bind more tightly than a comparison."""
    node = ast.parse(text, mode="eval").body
    loose = isinstance(node, ast.Compare) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr))
    return f"({text})" if loose and node.col_offset == 0 else text  # else it is in brackets already


_LAYOUT: dict[str, Any] = {
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
    "optimized": False,  # each template is rendered once or twice: folding its constants costs more than it saves
}


class _Compiled(jinja2.BytecodeCache):
    """Templates as Jinja compiled them, kept between processes, with the digest of what is kept."""

    def load_bytecode(self, bucket: Bucket) -> None:
        digest, _, code = (cache.remembered("templates", self._key(bucket)) or "").partition("\n")
        if code and cache.digest(code) == digest:
            bucket.bytecode_from_string(base64.b64decode(code))

    def dump_bytecode(self, bucket: Bucket) -> None:
        code = base64.b64encode(bucket.bytecode_to_string()).decode()
        cache.remember("templates", self._key(bucket), f"{cache.digest(code)}\n{code}")

    def _key(self, bucket: Bucket) -> str:
        """Of a text in a place, for this Jinja and this Python."""
        return cache.digest(f"{bucket.key} {bucket.checksum} {jinja2.__version__} {sys.version} {_LAYOUT}")


@functools.cache
def environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.root() / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Python source, not HTML; names and literals come from the typed IR alone
        bytecode_cache=_Compiled(),
        **_LAYOUT,
    )
    filters: dict[str, Any] = environment.filters  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    filters.update(lines=_lines, wrap=_wrap, bracket=bracket, condition=condition, constants=_constants, names=_names)
    return environment


def render(template: str, context: dict[str, Any]) -> str:
    """The template's text, with runs of blank lines brought to two at the top level and one inside."""
    text = environment().get_template(template).render(context)
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    text = re.sub(r"\n{3,}(?=[ \t])", "\n\n", text)
    return text.rstrip("\n") + "\n"
