"""What names mean, and which of them each place may read.

Takes nothing, returns the binding types, the names that the language itself defines, and the rules of each place
(score, mask, where, …). The resolution of a name is in `expressions`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from attngen.errors import NOWHERE, Span
from attngen.ir import build, walk
from attngen.ir.nodes import INDICES, SIZES, Apply, Expr, Literal, Load, Scalar, Symbol, Type
from attngen.syntax import ast

# ---------------------------------------------------------------- bindings


@dataclass(frozen=True, slots=True)
class Value:
    """A name that stands for an expression. `expr` is None where its definition is wrong, or not yet known."""

    expr: Expr | None
    kind: str  # in words: "index", "size", "const", "scalar param", "let", "argument", …
    span: Span = NOWHERE


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor param; only its elements can be read."""

    name: str
    type: Type
    shape: tuple[Expr, ...]
    span: Span = NOWHERE


@dataclass(frozen=True, slots=True)
class Function:
    """A `let` with arguments, and each `let` of the prelude: expanded where it is used.

    `prelude` tells whose names its body reads. An unsound body was reported already.
    """

    let: ast.Let
    prelude: bool
    sound: bool = True

    @property
    def signature(self) -> str:
        args = "" if self.let.args is None else f"({', '.join(a.name for a in self.let.args)})"
        return self.let.name + args


@dataclass(frozen=True, slots=True)
class Builtin:
    """A function of the language, by name; `functions` knows the rest."""

    signature: str


@dataclass(frozen=True, slots=True)
class Later:
    """A name that the file defines, but that can't be read yet."""

    kind: str  # "const", "param", "let"
    span: Span
    being_defined: bool = False


Binding = Value | Tensor | Function | Builtin | Later


def describe(name: str, binding: Binding) -> str:
    """`name` and what it is, as messages say it."""
    match binding:
        case Tensor():
            return f"`{name}` is a tensor param"
        case Function(let=let):
            return f"`{name}` is a let" if let.args is None else f"`{name}` is a function"
        case Builtin():
            return f"`{name}` is a function"
        case Value(kind=kind) | Later(kind=kind):
            article = "an" if kind[0] in "aeiou" else "a"
            return f"`{name}` is {article} {kind}"


SIGNATURES: Mapping[str, str] = MappingProxyType(
    {
        **{
            name: f"{name}(x)"
            for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "erf")
        },
        **{name: f"{name}(x)" for name in ("abs", "sign")},
        "min": "min(a, b)",
        "max": "max(a, b)",
        "clamp": "clamp(x, lo, hi)",
        **{name: f"{name}(x)" for name in ("floor", "ceil", "float", "int")},
    }
)
"""How each function of the language is called."""

SCORE_ONLY = Symbol("qk", Type.FLOAT)
SCALE = Symbol("scale", Type.FLOAT)

LANGUAGE: Mapping[str, Binding] = MappingProxyType(
    {
        **{name: Value(build.index(name), "index") for name in INDICES},
        **{name: Value(build.index(name), "size") for name in SIZES},
        "qk": Value(SCORE_ONLY, "product of query and key"),
        "scale": Value(SCALE, "run-time argument of every attention"),
        "inf": Value(build.real(math.inf), "constant"),
        "pi": Value(build.real(math.pi), "constant"),
        **{name: Builtin(signature) for name, signature in SIGNATURES.items()},
    }
)
"""The names that every expression has, the prelude's left out."""

_INDEX_OF_SIZE = {"B": "b", "Hq": "h", "Hkv": "hkv", "Sq": "q", "Sk": "k"}


_POSITION = re.compile(r"\b[qk]\b")


def indices_of(shape: tuple[Expr, ...], written: Iterable[str] = ()) -> str:
    """The indices that a tensor is read with, judging by its dims, for a fix.

    `written`: the texts of those that stand there, too few or too many. A position among them keeps its place: under
    self-attention `t[q]` of a `t: f32[B, Sk]` is meant as `t[b, q]`.
    """
    found = [_INDEX_OF_SIZE.get(d.id, "…") if isinstance(d, Symbol) else "…" for d in shape]
    texts = list(written)
    meant = [t for t in texts if _POSITION.search(t) and t not in found]
    for axis, index in enumerate(found):
        if meant and index in ("q", "k") and index not in texts:
            found[axis] = meant.pop(0)
    return ", ".join(found)


# ---------------------------------------------------------------- places


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file where expressions stand, and what they may read there, consts and functions apart."""

    what: str  # "`mask`", "a const"
    may: str  # what it may read, for the fix
    symbols: frozenset[str] = frozenset()  # indices, `qk`, `scale`
    sizes: bool = False
    scalars: bool = False
    tensors: bool = False
    lets: bool = True

    def bars(self, e: Expr) -> Symbol | Scalar | Load | None:
        """The first thing in `e` that this place may not read, or None."""
        for node in walk.nodes(e):
            match node:
                case Symbol():
                    allowed = node.id in self.symbols if node.id in _NOT_SIZES else self.sizes
                case Scalar():
                    allowed = self.scalars
                case Load():
                    allowed = self.tensors
                case Literal() | Apply():
                    continue
            if not allowed:
                return node
        return None


_NOT_SIZES = frozenset(INDICES) | {"qk", "scale"}
_ALL = _NOT_SIZES

LET = Place("a let", "any name", _ALL, sizes=True, scalars=True, tensors=True)
SCORE = Place("`score`", "any name", _ALL, sizes=True, scalars=True, tensors=True)
MASK = Place("`mask`", "any name but `qk`", _ALL - {"qk"}, sizes=True, scalars=True, tensors=True)
CONST = Place("a const", "earlier consts only", lets=False)
WHERE = Place("`where`", "params, sizes and consts", sizes=True, scalars=True, tensors=True)
ASSUME = Place("`assume`", "params, sizes, consts, `b`, `h` and `hkv`", frozenset({"b", "h", "hkv"}), True, True, True)
DROPOUT = Place("`dropout`", "consts and scalar params", scalars=True)
NORMALIZER = Place(
    "a normalizer", "params, sizes, consts, `scale`, `b`, `h` and `hkv`", _ALL - {"q", "k", "qk"}, True, True, True
)

# ---------------------------------------------------------------- scopes


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names mean where an expression stands, and where its mistakes are shown.

    Inside the body of a function, mistakes are shown at the outermost call (`call`), made by the name `callee`: with
    other arguments the body may be fine. Nodes from the prelude's text carry the span of the use (`use`).
    """

    place: Place
    names: Mapping[str, Binding]
    formals: Mapping[str, Binding] = field(default_factory=dict[str, Binding])
    call: Span | None = None
    callee: str = ""
    use: Span | None = None

    def find(self, name: str) -> Binding | None:
        return self.formals.get(name) or self.names.get(name)
