"""The last pass over generated source: it removes bindings, definitions and imports that nothing reads.

Takes Python source whose assignments have no side effects (the templates make sure), returns source without those whose
name is never read. A template may so bind `q1` or `kv_head` for every variant, and a variant that does not need them
does not show them. Names that a function unpacks from a tuple, or counts with, and never reads get a `_` in front.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import Any, cast

_EMPTY_SECTION = re.compile(r"^# -{64} [^\n]+\n\n\n(?=# -{64} )", re.MULTILINE)
"""The title of a section, with another title below it."""
_LEAVES = frozenset({str, int, float, bool, bytes, complex, type(None), type(...)})
"""Of what a tree holds, the classes that are no nodes."""


def pruned(source: str) -> str:
    """A whole file's `source`, without everything that nothing in it reads."""
    return _EMPTY_SECTION.sub("", without_unused_imports(without_unused_definitions(without_unused(source))))


def without_unused(source: str) -> str:
    """As `without_unused_bindings`. Names that a tuple binds, or a loop, and that nothing reads, begin with `_`."""
    return _with_dummy_names(without_unused_bindings(source))


def without_unused_bindings(source: str) -> str:
    """`source` with every unread `name = expression` of its functions removed, and what only those had read."""
    unused: set[int] = set()
    for function in ast.parse(source).body:
        if isinstance(function, ast.FunctionDef):
            unused |= _unused_lines(function)
    return "\n".join(line for number, line in enumerate(source.split("\n"), 1) if number not in unused)


def without_unused_definitions(source: str) -> str:
    """`source` without its own functions, classes and constants that nothing in it reads.

    A function is its own where its name begins with `_` and no decorator but `jit` and `cache` may have registered it;
    a constant where its name is in capitals.
    """
    body = ast.parse(source).body
    reads = {node: _names_and_blocks(node)[0] for node in body}
    read = sum(reads.values(), Counter[str]())
    own = {node: name for node in body if (name := _own_definition(node))}
    unused: set[ast.stmt] = set()
    while found := [node for node, name in own.items() if node not in unused and not read[name]]:
        unused.update(found)
        for node in found:
            read.subtract(reads[node])
    lines = source.split("\n")
    for node in reversed([node for node in body if node in unused]):
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        first = min([node.lineno, *(d.lineno for d in decorators)]) - 1
        last = node.end_lineno or node.lineno
        if last < len(lines) and lines[last].startswith('"""'):  # a constant's docstring
            last += 1
        alone = isinstance(node, ast.FunctionDef | ast.ClassDef) or not (first and lines[first - 1])
        while alone and last < len(lines) and not lines[last]:
            last += 1
        del lines[first:last]
    return "\n".join(lines).rstrip("\n") + "\n" if unused else source


def without_unused_imports(source: str) -> str:
    """`source` without its imports at the top level of which it reads no name."""
    tree = ast.parse(source)
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {"annotations"}
    unused: set[int] = set()
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {(a.asname or a.name).partition(".")[0] for a in node.names}
            if names.isdisjoint(read):
                unused.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return "\n".join(line for number, line in enumerate(source.split("\n"), 1) if number not in unused)


def _own_definition(node: ast.stmt) -> str:
    """The name that `node` defines for the module's own use, or an empty string."""
    match node:
        case ast.FunctionDef(name=name, decorator_list=decorators) | ast.ClassDef(name=name, decorator_list=decorators):
            own = name.startswith("_") and all(ast.unparse(d).endswith(("jit", ".cache")) for d in decorators)
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            own = name.isupper() and not name.startswith("__")
        case _:
            return ""
    return name if own else ""


def _with_dummy_names(source: str) -> str:
    """`source` in which names that a function unpacks from a tuple, or counts with, and never reads begin with `_`."""
    lines = [line.encode() for line in source.split("\n")]
    for function in ast.parse(source).body:
        if isinstance(function, ast.FunctionDef):
            nodes = below(function)
            read = {n.id for n in nodes if n.__class__ is ast.Name and n.ctx.__class__ is ast.Load}
            targets = [n.target for n in nodes if n.__class__ is ast.For]
            targets += [
                n.targets[0] for n in nodes if n.__class__ is ast.Assign and n.targets[0].__class__ is ast.Tuple
            ]
            bound = [n for t in targets for n in below(t) if n.__class__ is ast.Name and n.ctx.__class__ is ast.Store]
            found = [n for n in bound if n.id not in read and n.id[:1] != "_"]
            for name in sorted(found, key=lambda n: (n.lineno, n.col_offset), reverse=True):
                number: int = name.lineno - 1
                line = lines[number]
                lines[number] = line[: name.col_offset] + b"_" + line[name.col_offset :]
    return b"\n".join(lines).decode()


def _unused_lines(function: ast.FunctionDef) -> set[int]:
    """The lines of bindings that nothing reads: in rounds, since each may free another name."""
    reads, blocks = _names_and_blocks(function)
    found: set[int] = set()
    while True:
        dropped: list[ast.stmt] = []
        for block in blocks:
            unused = [s for s in block if _binds_unread(s, reads)]
            if len(unused) < len(block):  # a block keeps at least one statement
                dropped += unused
        if not dropped:
            return found
        for statement in dropped:
            reads.subtract(_names_and_blocks(statement)[0])
            found.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
        for block in blocks:
            block[:] = [s for s in block if s.lineno not in found]


def _names_and_blocks(root: ast.stmt) -> tuple[Counter[str], list[list[ast.stmt]]]:
    """How often each name is read below `root`, and the blocks of statements from which lines may be taken."""
    reads: Counter[str] = Counter()
    blocks: list[list[ast.stmt]] = []
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            reads[node.id] += isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.AST):
            if isinstance(node, ast.stmt):
                blocks += blocks_of(node)
            for value in vars(node).values():  # what `ast.iter_child_nodes` gives, in a third of its time
                if value.__class__ is list:  # which asks no function, unlike `isinstance`
                    waiting += cast("list[Any]", value)
                elif isinstance(value, ast.AST):
                    waiting.append(value)
    return reads, blocks


def below(root: ast.AST) -> list[Any]:
    """`root` and all nodes below it, the outer ones first, as `ast.walk` gives them in five times as long."""
    found: list[ast.AST] = [root]
    for node in found:
        for value in vars(node).values():
            kind = value.__class__
            if kind is list:
                held: list[Any] = value
                found += [x for x in held if x.__class__ not in _LEAVES]
            elif kind not in _LEAVES:
                found.append(value)
    return found


def blocks_of(node: ast.stmt) -> tuple[list[ast.stmt], ...]:
    """The blocks of statements that `node` holds."""
    match node:
        case ast.FunctionDef() | ast.With():
            return (node.body,)
        case ast.For() | ast.While() | ast.If():
            return node.body, node.orelse
        case _:
            return ()


def _binds_unread(statement: ast.stmt, reads: Counter[str]) -> bool:
    match statement:
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
            pass
        case _:
            return False
    if isinstance(target, ast.Tuple) and isinstance(statement, ast.Assign):  # of something that nothing computes
        computed = any(isinstance(n, ast.Call) for n in ast.walk(statement.value))
        return not computed and not any(reads[n.id] for n in ast.walk(target) if isinstance(n, ast.Name))
    return isinstance(target, ast.Name) and not reads[target.id]
