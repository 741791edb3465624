"""Finds the grammar, the templates and the examples: inside an installed wheel, else in the checkout."""

from __future__ import annotations

from pathlib import Path

from attngen.errors import InternalError


def root() -> Path:
    """The folder that holds `grammar/`, `templates/` and `examples/`."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "_data", here.parent):
        if (candidate / "grammar" / "attn.lark").is_file():
            return candidate
    raise InternalError("grammar/attn.lark is missing from the installation")


def read(relative: str) -> str:
    """The text of a resource, such as `grammar/prelude.attn`."""
    return (root() / relative).read_text(encoding="utf-8")


def names(folder: str, suffix: str) -> tuple[str, ...]:
    """The files in a folder of resources, and in those below it, that end so: sorted, without the ending."""
    here = root() / folder
    return tuple(sorted(p.relative_to(here).as_posix().removesuffix(suffix) for p in here.rglob(f"*{suffix}")))
