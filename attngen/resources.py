"""Finds the grammar and the templates: inside an installed wheel, else in the checkout."""

from __future__ import annotations

from pathlib import Path

from attngen.errors import InternalError


def root() -> Path:
    """The folder that holds `grammar/` and `templates/`."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "_data", here.parent):
        if (candidate / "grammar" / "attn.lark").is_file():
            return candidate
    raise InternalError("grammar/attn.lark is missing from the installation")


def read(relative: str) -> str:
    """The text of a resource, such as `grammar/prelude.attn`."""
    return (root() / relative).read_text(encoding="utf-8")
