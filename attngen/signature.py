"""The signature of a kernel's generated function, for `inspect.signature`, `help` and editors.

Takes an object with a `source` and a `name`. The signature is read off the source: nothing is loaded.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol


class _Generated(Protocol):
    @property
    def source(self) -> str: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Named:
    """A default that the source names, as `torch.bfloat16`: shown as it is written there."""

    text: str

    def __repr__(self) -> str:
        return self.text


class PublicSignature:
    """As `__signature__` of a class: its instances have one, and the class its own."""

    def __get__(self, kernel: _Generated | None, owner: type[Any]) -> inspect.Signature:
        if kernel is None:
            raise AttributeError("__signature__")
        functions = (node for node in ast.parse(kernel.source).body if isinstance(node, ast.FunctionDef))
        node = next(node for node in functions if node.name == kernel.name)
        returns = inspect.Signature.empty if node.returns is None else ast.unparse(node.returns)
        return inspect.Signature([*_parameters(node)], return_annotation=returns)


def _parameters(node: ast.FunctionDef) -> Iterator[inspect.Parameter]:
    empty = inspect.Parameter.empty
    keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    given = [(a, None, inspect.Parameter.POSITIONAL_OR_KEYWORD) for a in node.args.args]
    for a, default, kind in (*given, *((a, d, inspect.Parameter.KEYWORD_ONLY) for a, d in keywords)):
        value = empty if default is None else _value(default)
        annotation = empty if a.annotation is None else ast.unparse(a.annotation)
        yield inspect.Parameter(a.arg, kind, default=value, annotation=annotation)


def _value(default: ast.expr) -> Any:
    try:
        return ast.literal_eval(default)
    except ValueError:
        return Named(ast.unparse(default))
