"""docs/errors: each code has a page, its message is what attngen prints for its spec, and the mended spec compiles.

`make golden` writes the messages, and the list of pages, anew.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

import attngen
from attngen.cli.main import main
from attngen.prove.verdict import Obligation

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "errors"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
FORM = re.compile(
    r"^`[\w-]+\.attn`(?P<printed>, as a program prints it)?:\n\n```(?:python)?\n(?P<spec>.*?)^```\n\n"
    r"`attngen (?P<command>[^`]+)` prints(?P<some>, among other lines)?:\n\n```\n(?P<message>.*?)^```\n"
    r"(?:\nMended:\n\n```\n(?P<mended>.*?)^```\n)?",
    re.M | re.S,
)
REPORTERS = {"Diagnostic", "error", "_report", "_refuse"}
"""Functions that take a code first, or behind a scope."""
WITHOUT_A_SPEC = {"float-range", "locality"}
"""Codes that no spec is known to raise: their pages say why."""


@dataclass(frozen=True)
class Page:
    text: str
    form: re.Match[str]

    @property
    def spec(self) -> str:
        """Long ones are given by the program that prints them."""
        if not self.form["printed"]:
            return self.form["spec"]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(self.form["spec"], {})
        return out.getvalue()


def page(path: Path) -> Page:
    text = path.read_text()
    form = FORM.search(text)
    assert form is not None, f"{path.name} is not of the form that the other pages have"
    return Page(text, form)


def codes_in_source() -> set[str]:
    """Constants that are codes of messages: arguments of reporters, and what `_problem` in constants.py returns."""
    found = {str(o) for o in Obligation}
    for path in (ROOT / "attngen").rglob("*.py"):
        text = path.read_text()
        if not any(f"{name}(" in text for name in (*REPORTERS, "_problem")):
            continue  # parsing costs
        for node in ast.walk(ast.parse(text)):
            given: list[ast.expr] = []
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                given = node.args[:2] if name in REPORTERS else []
            elif path.name == "constants.py" and isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                given = node.value.elts[:1]
            words = [x.value for x in given if isinstance(x, ast.Constant) and isinstance(x.value, str)]
            found |= {word for word in words if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)}
    return found


def test_each_code_has_a_page() -> None:
    assert {path.stem for path in PAGES} == codes_in_source()
    assert [path.stem for path in PAGES if path.read_text().split("\n")[0] != f"# {path.stem}"] == []
    assert {path.stem for path in PAGES if not FORM.search(path.read_text())} == WITHOUT_A_SPEC


def test_the_list_of_pages(update_golden: bool) -> None:
    """With the first sentence of each."""
    listed = FOLDER / "README.md"
    head = "| code | meaning |\n|---|---|\n"
    rows = ""
    for path in PAGES:
        meaning = " ".join(path.read_text().split("\n\n")[1].split())
        rows += f"| [{path.stem}]({path.name}) | {re.split(r'(?<=[.]) ', meaning)[0]} |\n"
    before, _, found = listed.read_text().partition(head)
    if update_golden:
        listed.write_text(before + head + rows)
    else:
        assert found == rows


SHOWN = [path for path in PAGES if path.stem not in WITHOUT_A_SPEC]


@pytest.mark.parametrize("path", SHOWN, ids=lambda p: p.stem)
def test_the_message_is_the_one_that_is_printed(
    path: Path, update_golden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = page(path)
    found = printed(path.stem, shown, shown.spec, tmp_path, monkeypatch, capsys)
    assert f"[{path.stem}]: " in found.split("\n")[0]
    if update_golden:
        start, end = shown.form.span("message")
        path.write_text(shown.text[:start] + found + shown.text[end:])
    else:
        assert shown.form["message"] == found


@pytest.mark.parametrize("path", SHOWN, ids=lambda p: p.stem)
def test_the_mended_spec_compiles(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a warning, and without the note. Where only more work is needed, the spec itself."""
    shown = page(path)
    mended = shown.form["mended"] or shown.spec
    attngen.compile(mended, "torch", strict=True)
    if shown.form["command"].startswith("check"):
        assert printed(path.stem, shown, mended, tmp_path, monkeypatch, capsys) == ""


def printed(
    code: str,
    shown: Page,
    spec: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What the page's command prints on standard error, or, of what it prints at all, the messages of this code."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{code}.attn").write_text(spec)
    main(shlex.split(shown.form["command"]))
    out, err = capsys.readouterr()
    if not shown.form["some"]:
        return err
    messages = re.findall(r"^[\w-]+\.attn:\d+:\d+: .*\n(?: .*\n)*", out + err, re.M)
    return "".join(m for m in messages if f"[{code}]: " in m.split("\n")[0])
