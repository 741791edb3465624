"""The derivations of a few examples as Markdown, whole: what a reader of `--explain` sees is read here.

`pytest tests/golden --update-golden` writes them anew; the commit that moves one says why.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from attngen import api, files
from attngen.explain import ladder, render

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
NAMES = ("custom_normalizer", "documents", "sigmoid", "windowed_alibi")


@pytest.mark.parametrize("name", NAMES)
def test_derivation_is_the_golden_one(name: str, update_golden: bool) -> None:
    attention = api.analyse(files.read_source(EXAMPLES / f"{name}.attn"))
    compare(render(ladder(attention, api.plan(attention)), "md"), HERE / "ladder" / f"{name}.md", update_golden)


def test_the_page_of_the_docs_is_what_check_writes(update_golden: bool) -> None:
    """`attngen check examples/windowed_alibi.attn --explain -o docs/derivation.md`, with the verdicts."""
    spec, planned = api.checked_plan(files.read_source(EXAMPLES / "windowed_alibi.attn"))
    proof, emitted = api.prove(spec, planned)
    compare(api.explain(spec, emitted, proof, "md"), HERE.parents[1] / "docs" / "derivation.md", update_golden)


def compare(text: str, path: Path, update_golden: bool) -> None:
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    assert path.is_file(), "no golden file: run `pytest tests/golden --update-golden`"
    want = path.read_text(encoding="utf-8")
    if text != want:
        lines = difflib.unified_diff(want.splitlines(), text.splitlines(), "golden", "derived", lineterm="")
        pytest.fail("\n".join(list(lines)[:60]), pytrace=False)


def test_no_golden_derivation_is_an_orphan() -> None:
    assert sorted(path.name for path in (HERE / "ladder").iterdir()) == [f"{name}.md" for name in NAMES]
