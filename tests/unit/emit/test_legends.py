"""A template's first lines name what it reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import meta

from attngen.emit.text.render import environment

ROOT = Path(__file__).parents[3]
TEMPLATES = ROOT / "templates"
PATHS = sorted(TEMPLATES.rglob("*.j2"))


def legend(text: str) -> set[str]:
    remark = re.match(r"\{#(.*?)#\}", text, re.DOTALL)
    assert remark, "a template starts with what it is"
    _, _, names = remark[1].partition("Legend:")
    return set(re.findall(r"(\w+)\s+\(", names))


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.relative_to(TEMPLATES).as_posix())
def test_the_legend_names_what_the_template_reads(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert legend(text) == meta.find_undeclared_variables(environment().parse(text))


@pytest.mark.parametrize("path", sorted((ROOT / "attngen").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_templates_that_a_module_names_exist(path: Path) -> None:
    known = [f"/templates/{p.relative_to(TEMPLATES).as_posix()}" for p in PATHS]
    named = re.findall(r"[\w/]+\.py\.j2", path.read_text(encoding="utf-8"))
    assert not [n for n in named if not any(p.endswith(f"/{n}") for p in known)]
