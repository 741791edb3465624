"""Last touch on generated source: bindings that nothing reads are taken out.

Takes Python source whose assignments have no side effects (the templates make sure), gives source without those whose
name the function never reads. A template may so bind `q1` or `kv_head` for every variant, and a variant that does not
need them does not show them.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any, cast


def without_unused(source: str) -> str:
    """`source` with every unread `name = expression` of its functions removed, and what only those had read."""
    unused: set[int] = set()
    for function in ast.parse(source).body:
        if isinstance(function, ast.FunctionDef):
            unused |= _unused_lines(function)
    return "\n".join(line for number, line in enumerate(source.split("\n"), 1) if number not in unused)


def without_unused_functions(source: str) -> str:
    """`source` without its own functions and classes, of names that begin with `_`, that nothing in it reads."""
    while True:
        tree = ast.parse(source)
        read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        unused = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.startswith("_") and node.name not in read
        ]
        if not unused:
            return source
        lines = source.split("\n")
        for node in reversed(unused):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
            last = node.end_lineno or node.lineno
            while last < len(lines) and not lines[last]:
                last += 1
            del lines[first:last]
        source = "\n".join(lines).rstrip("\n") + "\n"


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
                blocks += _blocks(node)
            for value in vars(node).values():  # what `ast.iter_child_nodes` gives, in a third of its time
                if isinstance(value, list):
                    waiting += cast("list[Any]", value)
                elif isinstance(value, ast.AST):
                    waiting.append(value)
    return reads, blocks


def _blocks(node: ast.stmt) -> tuple[list[ast.stmt], ...]:
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
    return isinstance(target, ast.Name) and not reads[target.id]
