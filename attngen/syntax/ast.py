"""The syntax tree of a `.attn` file: what was written, before names and types mean anything.

Nodes are frozen and carry their span outside equality, so `parse(format(tree)) == tree` is a fair test.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attngen.errors import Span

# ---------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True)
class Number:
    """`3`, `0.5`, `1e-6`: an int where the text has neither point nor exponent."""

    value: int | float
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Bool:
    value: bool
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Name:
    id: str
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Call:
    func: str
    args: tuple[Expr, ...]
    func_span: Span = field(compare=False, kw_only=True)
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Index:
    """`t[i, j]`."""

    base: str
    indices: tuple[Expr, ...]
    base_span: Span = field(compare=False, kw_only=True)
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Unary:
    """`op` is `-`, `~` or `not`."""

    op: str
    operand: Expr
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Binary:
    """`op` is one of `** * / // % + - << >> & ^ | and or`. `and` and `or` chains lean to the left."""

    op: str
    left: Expr
    right: Expr
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Compare:
    """`a < b <= c`: `operands` is one longer than `ops`, each of `< <= > >= == !=`.

    `a in t[i]` and `a not in t[i]` stand alone; behind `in` is a `Name` or an `Index`.
    """

    operands: tuple[Expr, ...]
    ops: tuple[str, ...]
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class IfElse:
    """`then if condition else otherwise`."""

    condition: Expr
    then: Expr
    otherwise: Expr
    span: Span = field(compare=False, kw_only=True)


Expr = Number | Bool | Name | Call | Index | Unary | Binary | Compare | IfElse

# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Attention:
    name: str
    name_span: Span = field(compare=False, kw_only=True)
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Const:
    name: str
    value: Expr
    name_span: Span = field(compare=False, kw_only=True)
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Param:
    """`param NAME: dtype[dims] where where fixed`.

    `dims` is empty for a scalar; a dim is a `Name` or an integer `Number`.
    """

    name: str
    dtype: str
    dims: tuple[Name | Number, ...]
    where: Expr | None
    fixed: bool = field(default=False, kw_only=True)
    name_span: Span = field(compare=False, kw_only=True)
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Argument:
    """A formal argument of a `let` or of a normalizer line."""

    name: str
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Let:
    """`let NAME = value` (`args` is None) or `let NAME(a, b) = value`."""

    name: str
    args: tuple[Argument, ...] | None
    value: Expr
    name_span: Span = field(compare=False, kw_only=True)
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Score:
    value: Expr
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Mask:
    value: Expr
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class KeywordArgument:
    name: str
    value: Expr
    name_span: Span = field(compare=False, kw_only=True)
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class UseNormalizer:
    """`normalizer = NAME` (`args` is None) or `normalizer = NAME(arg = E, …)`."""

    name: str
    args: tuple[KeywordArgument, ...] | None
    name_span: Span = field(compare=False, kw_only=True)
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class NormalizerLine:
    """One line of a definition: `target(args) = value`; `args` is None for `denominator` and `shift`.

    `value` of `shift` is a `Name` (`max` or `none`); that of `denominator` is an expression over the name `sum`.
    """

    target: str
    args: tuple[Argument, ...] | None
    value: Expr
    target_span: Span = field(compare=False, kw_only=True)
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class DefineNormalizer:
    """`normalizer NAME(args) { lines }`; `args` is None where the brackets are left out."""

    name: str
    args: tuple[Argument, ...] | None
    lines: tuple[NormalizerLine, ...]
    name_span: Span = field(compare=False, kw_only=True)
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Dropout:
    value: Expr
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Tile:
    """`tile q = 128, k = 64`; both None for `tile auto`."""

    q: int | None
    k: int | None
    span: Span = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Assume:
    value: Expr
    span: Span = field(compare=False, kw_only=True)


Statement = Attention | Const | Param | Let | Score | Mask | UseNormalizer | DefineNormalizer | Dropout | Tile | Assume


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file. The prelude is a module too, of `Let`s and `DefineNormalizer`s only."""

    statements: tuple[Statement, ...]
