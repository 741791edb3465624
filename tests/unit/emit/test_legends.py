"""A template's first lines name what it reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import meta

from attngen.emit.text.render import environment

TEMPLATES = Path(__file__).parents[3] / "templates"
PATHS = [p for folder in ("triton", "pieces") for p in sorted((TEMPLATES / folder).rglob("*.j2"))]


def legend(text: str) -> set[str]:
    remark = re.match(r"\{#(.*?)#\}", text, re.DOTALL)
    assert remark, "a template starts with what it is"
    _, _, names = remark[1].partition("Legend:")
    return set(re.findall(r"(\w+)\s+\(", names))


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.relative_to(TEMPLATES).as_posix())
def test_the_legend_names_what_the_template_reads(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert legend(text) == meta.find_undeclared_variables(environment().parse(text))
