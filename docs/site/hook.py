"""The pages of the site: the repository's own Markdown, each at its path, so that links between them hold as they are.

An example is a page that quotes its file. mkdocs calls the functions `on_…`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.md", "tests/hopper_model/README.md")
BESIDE = ("docs/**/*.svg", "docs/**/*.png", "benchmarks/*.svg", "benchmarks/*.json", "benchmarks/*.py")
EXAMPLES = sorted(p for p in ROOT.glob("examples/*") if p.suffix in (".attn", ".py"))


class Quoted(File):
    """A page at the path of a file that is not Markdown: links to the file lead to it."""

    def is_documentation_page(self) -> bool:
        return True


def on_config(config: MkDocsConfig) -> None:
    config.nav = _present(config.nav)
    config.watch += [str(ROOT / name) for name in ("docs", "examples", "benchmarks", "README.md", "attngen")]


def on_files(files: Files, config: MkDocsConfig) -> None:
    for pattern in (*PAGES, *BESIDE):
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                files.append(File(_uri(path), str(ROOT), config.site_dir, use_directory_urls=False))
    listed = "\n".join(f"- [{path.name}]({_uri(path)}): {_summary(path)}" for path in EXAMPLES)
    _quote(files, config, "examples", f"# Examples\n\n{listed}\n", "examples/index.html")
    for path in EXAMPLES:
        language = "python" if path.suffix == ".py" else "text"
        text = f"# {path.name}\n\n````{language}\n{path.read_text()}````\n"
        _quote(files, config, _uri(path), text, f"{_uri(path)}.html")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Git hosts need `\\|` for a bar in a cell's code, and take the backslash out: Python-Markdown shows it. They set
    formulas, which are MathML here, so that no page asks for a script."""
    markdown = re.sub(
        r"^\|.*", lambda row: re.sub("`[^`]+`", lambda code: code[0].replace(r"\|", "|"), row[0]), markdown, flags=re.M
    )
    return re.sub(_CODE_OR_FORMULA, _set, markdown, flags=re.M | re.S)


_CODE_OR_FORMULA = (
    r"^```math\n(?P<fenced>.*?)^```$|^\$\$\n(?P<block>.*?)^\$\$$|^(?P<fence>````?)[^`].*?^(?P=fence)$|`[^`\n]+`"
    r"|(?<![\w$])\$(?P<inline>[^$\n]+?)\$(?!\w)"
)

_KNOWN = {r"\cr": r"\\", r"\thinspace": r"\,", "{aligned}": "{align*}"}
"""What the converter knows by another name."""


def _set(found: re.Match[str]) -> str:
    block, inline = found["fenced"] or found["block"], found["inline"]
    formula = block or inline or ""
    for said, known in _KNOWN.items():
        formula = formula.replace(said, known)
    if block:
        return f'<div class="formula">{convert(formula, display="block")}</div>'
    return f"<span>{convert(formula)}</span>" if inline else found[0]


def _quote(files: Files, config: MkDocsConfig, uri: str, text: str, at: str) -> None:
    page = Quoted(uri, None, config.site_dir, use_directory_urls=False, dest_uri=at)
    page.content_string = text
    page.generated_by = "docs/site/hook.py"
    files.append(page)


def _summary(path: Path) -> str:
    """The first sentence of the comment or docstring at its top."""
    first = path.read_text().split("\n\n")[0].replace("\n# ", " ").replace("\n", " ")
    return first.strip('#" ').split(". ")[0].rstrip(".")


def _present(nav: Any) -> Any:
    """A folder as its pages, its README.md first; nothing for a page that does not exist."""
    match nav:
        case list():
            found: list[Any] = []
            for item in nav:
                if item == "examples/":
                    found += ["examples", *map(_uri, EXAMPLES)]
                elif isinstance(item, str) and item.endswith("/"):
                    pages = sorted(ROOT.glob(f"{item}*.md"), key=lambda p: (p.name != "README.md", p.name))
                    found += map(_uri, pages)
                elif not isinstance(item, str) or (ROOT / item).is_file():
                    found.append(_present(item))
            return found
        case dict():
            return {title: _present(items) for title, items in nav.items()}
        case _:
            return nav


def _uri(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
