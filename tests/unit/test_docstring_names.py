"""Files, modules and members that docstrings of attngen name in backticks: they exist.

Checked are paths (`plan/mask/lists.py`, `templates/triton/host/`), file names (`module.py.j2`), and dotted names of a
module (`ir.build`), of what is in it (`ir.build.apply`) or of a member of a class (`Kernel.partial`). The first folders
of a name may be left out; one that begins with a package of attngen is in that package. Not checked are single names,
which may be a module's or a variable's, what follows a member or a function, names with placeholders, and those of
`OTHERS`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("attngen", "benchmarks", "docs", "examples", "grammar", "templates", "tests")
SUFFIXES = ("py", "j2", "md", "toml", "lark", "json")
LIBRARIES = {"ast", "inspect", "jax", "nn", "numpy", "tl", "torch", "triton"}
VARIABLES = {"kernel.varlen", "model.set_attn_implementation", "writer.at"}
NO_FILES = {"build/alibi.cubin", "build/alibi.KERNEL.cubin", "n/a", "project.optional-dependencies"}
OTHERS = LIBRARIES | VARIABLES | NO_FILES
"""Names that are not checked, or with what they begin."""


@dataclass(frozen=True)
class Repository:
    paths: set[str]
    """Of files and folders, from the root on, with `/` before each."""
    modules: dict[str, set[str]] = field(default_factory=dict)
    """By dotted name, without `attngen`, what each binds when it is imported: what it imports included."""
    classes: dict[str, list[ast.ClassDef]] = field(default_factory=dict)
    docstrings: list[tuple[str, str]] = field(default_factory=list)
    """Those of modules, classes and functions, and what stands below an attribute, each with its file and line."""

    def knows(self, name: str) -> bool:
        if "/" in name or name.rpartition(".")[2] in SUFFIXES:
            path = f"/{name.rstrip('/')}"
            if f"/attngen/{name.partition('/')[0]}" in self.paths:
                return f"/attngen{path}" in self.paths
            return any(known.endswith(path) for known in self.paths)
        parts = name.split(".")
        if parts[0] == "attngen" or parts[0] in self.modules:
            return self._holds("", parts[parts[0] == "attngen" :])
        if parts[0] in self.classes:
            return self._member(parts[0], parts[1])
        homes = (home for home in self.modules if f".{home}".endswith(f".{parts[0]}"))
        return any(self._holds(home, parts[1:]) for home in homes)

    def _holds(self, home: str, rest: list[str]) -> bool:
        if not rest:
            return True
        inner = f"{home}.{rest[0]}".lstrip(".")
        if inner in self.modules and self._holds(inner, rest[1:]):
            return True
        if rest[0] not in self.modules[home]:
            return False
        return len(rest) == 1 or rest[0] not in self.classes or self._member(rest[0], rest[1])

    def _member(self, owner: str, name: str) -> bool:
        return any(name in members(c) or self._inherited(c, name) for c in self.classes.get(owner, ()))

    def _inherited(self, c: ast.ClassDef, name: str) -> bool:
        return any(isinstance(base, ast.Name) and self._member(base.id, name) for base in c.bases)


def wrong(docstring: str, repository: Repository) -> list[str]:
    """The names in backticks that look like one of ours, and are none."""
    found = (text.partition("(")[0] for text in re.findall(r"`([^`]+)`", docstring))
    looked = (name for name in found if re.fullmatch(r"[A-Za-z_]\w*([./]\w[\w-]*)+/?|[A-Za-z_]\w*/", name))
    ours = (name for name in looked if not {name, re.split(r"[./]", name)[0]} & OTHERS)
    return [name for name in ours if not repository.knows(name)]


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All that are inside, and no expressions: they are many, and hold no docstrings."""
    for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, inner, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def members(c: ast.ClassDef) -> set[str]:
    own = bound(c.body)
    for node in ast.walk(c):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
    return own


def bound(body: Iterable[ast.stmt]) -> set[str]:
    """Names that statements bind, those inside `if`, `try` and `with` included."""
    found: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.Import() | ast.ImportFrom():
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            case ast.If() | ast.Try() | ast.With():
                found |= bound(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
            case _:
                found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found


@cache
def repository() -> Repository:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    files += [*(ROOT / folder for folder in FOLDERS), *(path for path in ROOT.iterdir() if path.is_file())]
    made = Repository({f"/{path.relative_to(ROOT).as_posix()}" for path in files})
    for path in sorted((ROOT / "attngen").rglob("*.py")):
        tree, own = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(ROOT)
        parts = own.with_suffix("").parts[1:]
        made.modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = bound(tree.body)
        for node in statements(tree):
            match node:
                case ast.ClassDef(name):
                    made.classes.setdefault(name, []).append(node)
                case ast.Expr(ast.Constant(str(text))):
                    made.docstrings.append((f"{own}:{node.lineno}", text))
    return made


@pytest.mark.whole(1)
def test_docstrings_name_what_exists() -> None:
    known = repository()
    found = [f"{where}: `{name}`" for where, text in known.docstrings for name in wrong(text, known)]
    assert len(known.docstrings) > 1000
    assert found == []


@pytest.mark.parametrize(
    "name",
    [
        "plan/mask/lists.py",
        "ranges.py",
        "emit/triton/hopper",
        "templates/triton/host/",
        "tests/",
        "pyproject.toml",
        "attngen.pieces",
        "obligations.tile_walks",
        "ir.build.apply",
        "build.apply(a, b)",
        "Kernel.partial",
        "kernel.Kernel.partial",
        "torch.compile",
        "templates/<target>/",
        "distributed/plan/schedule.py",
        "coverage.coverage",
        "single",
    ],
)
def test_a_right_name_passes(name: str) -> None:
    assert wrong(f"What `{name}` says.", repository()) == []


@pytest.mark.parametrize(
    "name",
    [
        "plan/mask/ordre.py",
        "ordre.py",
        "mask/plan/lists.py",
        "plan/schedule.py",
        "plan.schedule",
        "emit/triton/hoper",
        "template/",
        "attngen.piece",
        "attngen.plan.mask.orders",
        "obligations.tile_walk",
        "obligation.tile_walks",
        "ir.build.applied",
        "build.applied(a, b)",
        "Kernel.parts",
        "kernel.Kernel.parts",
    ],
)
def test_a_wrong_name_is_found(name: str) -> None:
    assert wrong(f"What `{name}` and\n`plan/mask/lists.py` say.", repository()) == [name.partition("(")[0]]
