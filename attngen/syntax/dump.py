"""Stable text of the syntax tree, spans included: what `--emit ast` prints."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from attngen.errors import Span
from attngen.syntax import ast


def dump(module: ast.Module) -> str:
    """One node a line, children indented below their parent, `@line:column` behind each."""
    return "\n".join(line for statement in module.statements for line in _lines(statement, "", "")) + "\n"


_Part = ast.Statement | ast.Expr | ast.Argument | ast.KeywordArgument | ast.NormalizerLine


def _lines(node: _Part, label: str, indent: str) -> list[str]:
    words: list[str] = []
    below: list[str] = []
    for field in fields(node):
        value: Any = getattr(node, field.name)
        if isinstance(value, Span):
            continue
        if isinstance(value, _Part):
            below += _lines(value, f"{field.name}: ", indent + "  ")
        elif isinstance(value, tuple) and value and isinstance(value[0], _Part):
            for number, part in enumerate(cast("tuple[_Part, ...]", value)):
                below += _lines(part, f"{field.name}[{number}]: ", indent + "  ")
        else:
            words.append(f"{field.name}={value!r}")
    place = f"@{node.span.line}:{node.span.column}"
    return [f"{indent}{label}{type(node).__name__}({', '.join(words)}) {place}", *below]
