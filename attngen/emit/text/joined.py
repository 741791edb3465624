"""Two generated modules as one file.

Takes the sources of two modules for the same target; returns the first, and of the second what the first does not have.
A definition of the second that reads the same in the first, and whatever it calls too, is the first's. The others get
an ending, so that neither module sees the other's. What a module remembers from call to call is not shared.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from attngen.errors import InternalError


@dataclass(frozen=True, slots=True)
class _Unit:
    """A statement at the top level, with the comments in front of it: its text, the names that it binds, and those that
    it reads."""

    node: ast.stmt
    text: str
    names: frozenset[str]
    read: frozenset[str]


def joined(first: str, second: str, ending: str, title: str) -> str:
    """`title` stands above what comes from the second, whose public functions become private: `_NAME` with the ending.
    The file has no `__all__`."""
    own, others = tuple(_units(first)), tuple(_units(second))
    known = {unit.text for unit in own if not _remembers(unit.node)}
    apart = {name for unit in others if unit.text not in known for name in unit.names}
    public = {name for name in apart if not name.startswith("_") and name.islower()}
    while grown := {n for unit in others if unit.read & apart for n in unit.names} - apart:
        apart |= grown
    taken = {name for unit in own for name in unit.names}
    clash = sorted({f"{name}{ending}" for name in apart} & taken)
    if clash:
        raise InternalError(f"two modules of a file both have {clash[0]}")
    parts = [unit for unit in others if unit.names & apart or unit.read & apart or unit.text not in known]
    return _with(first, own, parts, [_renamed(unit, apart - public, ending) for unit in parts], title)


def followed(first: str, second: str, title: str) -> str:
    """A module, and one that relies on it: all of the second, but for imports that the first has."""
    own, others = tuple(_units(first)), tuple(_units(second))
    known = {unit.text for unit in own}
    parts = [unit for unit in others if unit.text not in known]
    return _with(first, own, parts, [unit.text for unit in parts], title)


def _with(first: str, own: tuple[_Unit, ...], parts: list[_Unit], texts: list[str], title: str) -> str:
    above: list[str] = []
    below: list[str] = []
    before = True
    for unit, text in zip(parts, texts, strict=True):
        if isinstance(unit.node, ast.Import | ast.ImportFrom):
            above.append(text)
            continue
        defines = isinstance(unit.node, ast.FunctionDef | ast.ClassDef)
        below += ["", "", text] if defines or before else [text]
        before = defines
    return "\n".join((_with_imports(first, own, above), "", "", _TITLE.format(title), *below))


_TITLE = "# ---------------------------------------------------------------- {}"


def _units(source: str) -> Iterator[_Unit]:
    """All but the docstring and `__all__`. What follows a function keeps its distance."""
    lines = source.split("\n")
    before = 0
    for node in ast.parse(source).body:
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        begin = min([node.lineno, *(d.lineno for d in decorators)]) - 1
        comments = begin
        while comments > before and lines[comments - 1].startswith("#") and not lines[comments - 1].startswith("# ---"):
            comments -= 1
        end = before = node.end_lineno or node.lineno
        names = frozenset(_bound(node)) - {"_"}
        if "__all__" in names or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        reads = frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        yield _Unit(node, "\n".join(lines[comments:end]), names, reads)


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds in its module."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from ((a.asname or a.name).partition(".")[0] for a in names)
        case ast.Try(body=body, handlers=handlers):
            for part in (*body, *(statement for h in handlers for statement in h.body)):
                yield from _bound(part)
        case ast.Assign() | ast.AnnAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
        case ast.Expr():
            pass
        case _:
            raise InternalError(f"a generated module has a {type(node).__name__.lower()} at its top level")


def _remembers(node: ast.stmt) -> bool:
    """Whether it makes an empty container, which calls fill."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    match node.value:
        case ast.Dict(keys=[]) | ast.List(elts=[]) | ast.Call(func=ast.Name(id="set" | "dict" | "list"), args=[]):
            return True
        case _:
            return False


def _renamed(unit: _Unit, names: set[str], ending: str) -> str:
    """The text with these names' ending."""
    read = sorted((unit.read | unit.names) & names)
    text = unit.text
    if isinstance(unit.node, ast.FunctionDef) and not unit.node.name.startswith("_"):
        text = text.replace(f"def {unit.node.name}(", f"def _{unit.node.name}{ending}(", 1)
        unit.node.name = f"_{unit.node.name}{ending}"
    if read:
        text = _with_ending(text, read, ending)
        if ast.dump(_Ending(read, ending).visit(unit.node)) != ast.dump(ast.parse(text).body[0]):
            raise InternalError(f"a name of a generated module has two meanings: one of {', '.join(read)}")
    return text


def _with_ending(text: str, names: list[str], ending: str) -> str:
    return re.sub(rf"(?<![\w.])({'|'.join(map(re.escape, names))})(?!\w)", rf"\1{ending}", text)


class _Ending(ast.NodeTransformer):
    """The same in a tree."""

    def __init__(self, names: list[str], ending: str) -> None:
        self.names, self.ending = names, ending

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._own(node.id)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._own(node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._own(node.name)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            node.value = _with_ending(node.value, self.names, self.ending)
        return node

    def _own(self, name: str) -> str:
        return f"{name}{self.ending}" if name in self.names else name


def _with_imports(source: str, units: tuple[_Unit, ...], imports: list[str]) -> str:
    """The source, without `__all__`, its imports followed by others."""
    lines = source.split("\n")
    last = max(u.node.end_lineno or 0 for u in units if isinstance(u.node, ast.Import | ast.ImportFrom))
    ends = next((i for i, line in enumerate(lines) if line.startswith("__all__")), len(lines))
    return "\n".join((*lines[:last], *imports, *lines[last:ends])).rstrip("\n")
