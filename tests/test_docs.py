"""The documents: every link leads to a file and a heading, every path exists, and every program of the recipes runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
RECIPES = re.findall(r"^## (.*?)\n.*?^```python\n(.*?)^```", (ROOT / "docs/recipes.md").read_text(), re.M | re.S)

FRONT_PAGE = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub names them in links."""
    return {
        re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_path_exists(page: Path) -> None:
    """A path in backquotes is relative to the root, to attngen/, or to the page's own folder."""
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.-]*\.(?:py|j2|md|lark|attn|json|svg))(?:::\w+)?`", page.read_text())
    assert [p for p in paths if not any((base / p).exists() for base in (ROOT, ROOT / "attngen", page.parent))] == []


@pytest.mark.parametrize("code", [pytest.param(code, id=title) for title, code in RECIPES])
def test_every_recipe_runs(code: str, tmp_path: Path) -> None:
    run(code, tmp_path)


@pytest.mark.parametrize("code", FRONT_PAGE)
def test_the_front_page_runs(code: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run(code, tmp_path)


def run(code: str, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
