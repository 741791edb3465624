"""A module's source as its statements, each parsed when it is first asked, and once.

A pass over generated source takes units and gives units: those that it leaves as they are keep what was found of them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from attngen.errors import InternalError

TITLE = "# ---------------------------------------------------------------- {}"
REGISTERED = TITLE.format("registered")
"""The title of an own part's last section, which needs the runtime when it is imported."""
_GOES_ON = (" ", ")", "]", "}", "else", "elif ", "except", "finally")
"""What begins a line that belongs to the statement above it."""


@dataclass(eq=False)
class Unit:
    """A statement at the top level: its text, with the comments in front of it, and the lines between it and the
    statement before, which are blank or comments that stand apart."""

    above: tuple[str, ...]
    text: str

    @cached_property
    def node(self) -> ast.stmt:
        """Its lines are counted from the first one of `text`."""
        body = ast.parse(self.text).body
        if len(body) != 1:
            raise InternalError(f"a generated module has {len(body)} statements in one: {self.text}")
        return body[0]

    @cached_property
    def kind(self) -> type[ast.stmt]:
        return type(self.node)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that it binds."""
        return frozenset(bound(self.node)) - {"_"}

    @cached_property
    def reads(self) -> Counter[str]:
        """How often it reads each name, of its own or not."""
        return look(self.node).reads

    @cached_property
    def fields(self) -> Counter[tuple[str, str]]:
        """How often it reads each attribute, after the name of what it reads it of, or after nothing."""
        return look(self.node).fields

    @cached_property
    def read(self) -> frozenset[str]:
        """The names of its module that it reads: a function's own names are none."""
        return frozenset(_names([self.node])[0])

    @property
    def defines(self) -> bool:
        return self.kind in (ast.FunctionDef, ast.ClassDef)

    @property
    def imports(self) -> bool:
        return self.kind in (ast.Import, ast.ImportFrom)

    @property
    def says(self) -> bool:
        """Whether it is a docstring: of the module, or of the constant above it."""
        return self.text.startswith('"')

    def below(self, above: Iterable[str]) -> Unit:
        """The same statement, below other lines."""
        return self._with(tuple(above), self.text, {*vars(self)})

    def respaced(self, text: str) -> Unit:
        """The same statement on other lines."""
        return self._with(self.above, text, {*vars(self)} - {"node"})

    def edited(self, text: str, **found: Any) -> Unit:
        """A statement of the same kind that binds the same names. `found`: what it reads, where that is known."""
        again = self._with(self.above, text, {"kind", "names"})
        vars(again).update(found)
        return again

    def _with(self, above: tuple[str, ...], text: str, known: set[str]) -> Unit:
        again = Unit(above, text)
        vars(again).update({name: vars(self)[name] for name in known - {"above", "text"} if name in vars(self)})
        return again


def cut(source: str) -> list[Unit]:
    """The statements of a module whose lines are laid out as usual: what goes on is indented, closes a bracket, or is
    inside of three quotes."""
    found: list[Unit] = []
    waiting: list[str] = []  # blank lines and comments that may be inside of a statement, or below it
    begun: list[str] = []
    above: list[str] = []
    quoted = decorated = False
    for line in source.split("\n"):
        if begun and (quoted or decorated or line.startswith(_GOES_ON)):
            begun += [*waiting, line]
            waiting = []
            decorated &= not line.startswith(("def ", "class "))
        elif not line or line.startswith("#"):
            waiting.append(line)
        else:
            if begun:
                found.append(Unit(tuple(above), "\n".join(begun)))
            comments = len(waiting)
            while comments and waiting[comments - 1].startswith("#") and not waiting[comments - 1].startswith("# ---"):
                comments -= 1
            above, begun, waiting = waiting[:comments], [*waiting[comments:], line], []
            decorated = line.startswith("@")
        quoted ^= line.count('"""') % 2 == 1
    if begun:
        found.append(Unit(tuple(above), "\n".join(begun)))
    return found


def printed(units: Iterable[Unit]) -> str:
    """The module's source."""
    return "\n".join(line for unit in units for line in (*unit.above, unit.text)) + "\n"


# ---------------------------------------------------------------- what a statement binds and reads


@dataclass(slots=True)
class Look:
    """What stands in a tree. `reads` and `fields`: see `Unit`. `blocks`: of statements, from which lines may be taken.
    `marked`: the calls, tuples, assignments and loops in it."""

    reads: Counter[str] = field(default_factory=Counter[str])
    fields: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    blocks: list[list[ast.stmt]] = field(default_factory=list[list[ast.stmt]])
    marked: list[Any] = field(default_factory=list[Any])


_LEAVES = frozenset(
    {
        *(str, int, float, bool, bytes, complex, type(None), type(...), ast.Load, ast.Store),
        *ast.operator.__subclasses__(), *ast.cmpop.__subclasses__(), *ast.boolop.__subclasses__(),
        *ast.unaryop.__subclasses__(),
    }
)  # fmt: skip
"""Of what a tree holds, the classes that have nothing below."""
_MARKED = frozenset({ast.Call, ast.Tuple, ast.Assign, ast.AnnAssign, ast.For})
_HOLDS = frozenset({ast.FunctionDef, ast.With, ast.For, ast.While, ast.If})


def _add_below(node: ast.AST, waiting: list[Any]) -> None:
    """Adds what `ast.iter_child_nodes` gives, and some leaves, in a third of its time."""
    for value in vars(node).values():
        if value.__class__ is list:
            waiting += cast("list[Any]", value)
        elif value.__class__ not in _LEAVES:
            waiting.append(value)


def look(root: ast.AST) -> Look:
    found = Look()
    reads, fields = found.reads, found.fields
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        kind = node.__class__  # which asks no function, unlike `isinstance`
        if kind is ast.Name:
            if node.ctx.__class__ is ast.Load:
                reads[node.id] += 1
            continue
        if kind in _LEAVES:
            continue
        if kind is ast.Attribute:
            fields[field_of(node)] += 1
        elif kind in _MARKED:
            found.marked.append(node)
        if kind in _HOLDS:
            found.blocks += blocks_of(node)
        _add_below(node, waiting)
    return found


def field_of(node: ast.Attribute) -> tuple[str, str]:
    return node.value.id if isinstance(node.value, ast.Name) else "", node.attr


def blocks_of(node: ast.stmt) -> tuple[list[ast.stmt], ...]:
    """The blocks of statements that `node` holds."""
    match node:
        case ast.FunctionDef() | ast.With():
            return (node.body,)
        case ast.For() | ast.While() | ast.If():
            return node.body, node.orelse
        case _:
            return ()


def _names(roots: Sequence[ast.AST]) -> tuple[set[str], set[str]]:
    """The names that are read below and not bound in a function there, and all that are bound."""
    read: set[str] = set()
    stored: set[str] = set()
    waiting: list[Any] = [*roots]
    while waiting:
        node = waiting.pop()
        kind = node.__class__
        if kind is ast.Name:
            (read if node.ctx.__class__ is ast.Load else stored).add(node.id)
        elif kind is ast.FunctionDef or kind is ast.Lambda:
            inside, bound_inside = _of_function(node)
            read |= inside
            stored |= bound_inside
        elif kind not in _LEAVES:
            _add_below(node, waiting)
    return read, stored


def _of_function(node: ast.FunctionDef | ast.Lambda) -> tuple[set[str], set[str]]:
    """As `_names`. Its defaults, its annotations and its decorators are read outside of it."""
    parameters = [a for a in ast.walk(node.args) if isinstance(a, ast.arg)]
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else [*node.body]
    outside: list[ast.AST] = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
    outside += [a.annotation for a in parameters if a.annotation is not None]
    if isinstance(node, ast.FunctionDef):
        outside += [*node.decorator_list, *([] if node.returns is None else [node.returns])]
    read, stored = _names(body)
    return read - {a.arg for a in parameters} - stored | _names(outside)[0], stored


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


# ---------------------------------------------------------------- other places, other names


def laid_out(texts: Iterable[tuple[Unit, str]]) -> str:
    """Statements one below the other, with two lines around a definition."""
    below: list[str] = []
    before = True
    for unit, text in texts:
        below += ["", "", text] if unit.defines or before else [text]
        before = unit.defines
    return "\n".join(below).strip("\n")


def renamed(unit: Unit, names: Iterable[str], ending: str) -> str:
    """The text with these names' ending."""
    own = sorted((unit.read | unit.names) & {*names})
    if not own:
        return unit.text
    text = with_ending(unit.text, own, ending)
    before = ast.parse(unit.text).body[0]
    if ast.dump(_Ending(own, ending).visit(before)) != ast.dump(ast.parse(text).body[0]):
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
