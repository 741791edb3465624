"""The standard library: `grammar/prelude.attn`, parsed once.

Gives its lets as functions (a let without arguments is expanded at each use too, so that its nodes carry the span of
the use) and its normalizers. A normalizer called `softmax__sink` there is the `softmax(sink = E)` of a file.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from attngen import resources
from attngen.analyse.report import Text
from attngen.analyse.scope import LANGUAGE, Binding, Function
from attngen.errors import Source
from attngen.syntax import ast, parser

YIELDING = frozenset({"tan", "distance", "logsigmoid", "softplus"})
"""Names that came with versions 2 and 3 of the language: a file of an earlier version may define them itself."""


@dataclass(frozen=True, slots=True)
class Prelude:
    text: Text
    names: Mapping[str, Binding]  # the language's names and the prelude's
    functions: Mapping[str, Function]
    normalizers: Mapping[str, tuple[ast.DefineNormalizer, ...]]  # by the name that a file uses


@functools.cache
def prelude() -> Prelude:
    source = Source(resources.read("grammar/prelude.attn"), "prelude.attn")
    functions: dict[str, Function] = {}
    normalizers: dict[str, tuple[ast.DefineNormalizer, ...]] = {}
    for statement in parser.parse(source).statements:
        if isinstance(statement, ast.Let):
            functions[statement.name] = Function(statement, prelude=True)
        elif isinstance(statement, ast.DefineNormalizer):
            base = statement.name.split("__")[0]
            normalizers[base] = (*normalizers.get(base, ()), statement)
    return Prelude(Text(source), {**LANGUAGE, **functions}, functions, normalizers)
