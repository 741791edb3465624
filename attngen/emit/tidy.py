"""Last touch on generated source: bindings that nothing reads are taken out.

Takes Python source whose assignments have no side effects (the templates make sure), gives source without those whose
name the function never reads. A template may so bind `q1` or `kv_head` for every variant, and a variant that does not
need them does not show them.
"""

from __future__ import annotations

import ast


def without_unused(source: str) -> str:
    """`source` with every unread `name = expression` of its functions removed, and what only those had read."""
    lines = source.split("\n")
    for function in reversed(ast.parse(source).body):
        if isinstance(function, ast.FunctionDef):
            first, last = function.lineno - 1, function.end_lineno or function.lineno
            lines[first:last] = _tidied(function, lines[first:last])
    return "\n".join(lines)


def _tidied(function: ast.FunctionDef, lines: list[str]) -> list[str]:
    """The function's own lines without what nothing reads: again and again, since each round may free another name."""
    while dropped := _unused_lines(function):
        before = function.lineno
        lines = [line for number, line in enumerate(lines, before) if number not in dropped]
        again = ast.parse("\n".join(lines)).body[0]
        assert isinstance(again, ast.FunctionDef)
        function = again
    return lines


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
    names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
    read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
    found: set[int] = set()
    for node in ast.walk(function):
        for block in _blocks(node):
            unused = [s for s in block if _binds_unread(s, read)]
            if len(unused) < len(block):  # a block keeps at least one statement
                for statement in unused:
                    found.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return found


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    match node:
        case ast.FunctionDef() | ast.With():
            return [node.body]
        case ast.For() | ast.While() | ast.If():
            return [node.body, node.orelse]
        case _:
            return []


def _binds_unread(statement: ast.stmt, read: set[str]) -> bool:
    match statement:
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
            pass
        case _:
            return False
    return isinstance(target, ast.Name) and target.id not in read
