"""A module's source cut into its statements: what each binds, and what it reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attngen.errors import InternalError

TITLE = "# ---------------------------------------------------------------- {}"
REGISTERED = TITLE.format("registered")
"""The title of an own part's last section, which needs the runtime when it is imported."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A statement at the top level, with the comments in front of it: its text, the names that it binds, and those that
    it reads."""

    node: ast.stmt
    text: str
    names: frozenset[str]
    read: frozenset[str]

    @property
    def defines(self) -> bool:
        return isinstance(self.node, ast.FunctionDef | ast.ClassDef)

    @property
    def imports(self) -> bool:
        return isinstance(self.node, ast.Import | ast.ImportFrom)


def units(source: str) -> Iterator[Unit]:
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
        names = frozenset(bound(node)) - {"_"}
        if "__all__" in names or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        yield Unit(node, "\n".join(lines[comments:end]), names, frozenset(_read(node)))


def _read(node: ast.AST) -> set[str]:
    """The names that are read and not bound inside: a function's own names are none of its module's."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        found |= _read(child)
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        own = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        outside = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        outside += [a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg) and a.annotation is not None]
        outside += node.decorator_list if isinstance(node, ast.FunctionDef) else []
        found -= own | stored
        for part in outside:
            found |= _read(part)
    return found


def bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds in its module."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from ((a.asname or a.name).partition(".")[0] for a in names)
        case ast.Try(body=body, handlers=handlers):
            for part in (*body, *(statement for h in handlers for statement in h.body)):
                yield from bound(part)
        case ast.Assign() | ast.AnnAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
        case ast.Expr():
            pass
        case _:
            raise InternalError(f"a generated module has a {type(node).__name__.lower()} at its top level")


def laid_out(texts: Iterable[tuple[Unit, str]]) -> str:
    """Statements one below the other, with two lines around a definition."""
    below: list[str] = []
    before = True
    for unit, text in texts:
        below += ["", "", text] if unit.defines or before else [text]
        before = unit.defines
    return "\n".join(below).strip("\n")


def renamed(unit: Unit, names: Iterable[str], ending: str) -> str:
    """The text with these names' ending. Changes the unit's node likewise."""
    own = sorted((unit.read | unit.names) & {*names})
    if not own:
        return unit.text
    text = with_ending(unit.text, own, ending)
    if ast.dump(_Ending(own, ending).visit(unit.node)) != ast.dump(ast.parse(text).body[0]):
        raise InternalError(f"a name of a generated module has two meanings: one of {', '.join(own)}")
    return text


def with_ending(text: str, names: Iterable[str], ending: str) -> str:
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
            node.value = with_ending(node.value, self.names, self.ending)
        return node

    def _own(self, name: str) -> str:
        return f"{name}{self.ending}" if name in self.names else name
