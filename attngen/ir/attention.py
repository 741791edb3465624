"""One attention variant, fully named and typed: what the analyser gives and everything later reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from attngen.errors import NOWHERE, Span
from attngen.ir.build import add, index, integer
from attngen.ir.nodes import Expr, Load, Storage, Symbol, Type

_ZERO = integer(0)


@dataclass(frozen=True, slots=True)
class Param:
    """A run-time parameter. `shape` is empty for a scalar; each dim is an int expression over sizes and literals.

    `where` is the fact about it (about each element of a tensor, which stands in it as `Scalar(name)`), or None.
    A `fixed` float param has no gradient.
    """

    name: str
    storage: Storage
    shape: tuple[Expr, ...] = ()
    where: Expr | None = None
    fixed: bool = False
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)

    @property
    def type(self) -> Type:
        return self.storage.type

    @property
    def learns(self) -> bool:
        """Whether it has a gradient."""
        return self.type is Type.FLOAT and not self.fixed

    @property
    def dim_names(self) -> list[str]:
        """Its dimensions by their sizes' names; "" for what is not a size."""
        return [d.id if isinstance(d, Symbol) else "" for d in self.shape]

    @property
    def is_scalar(self) -> bool:
        return not self.shape

    def axes(self, load: Load) -> Iterator[tuple[Expr, Expr]]:
        """Each index of a load of it, with the dim that it is along. The axis of a list has no index."""
        return zip(load.indices, self.shape[: len(load.indices)], strict=True)


@dataclass(frozen=True, slots=True)
class Normalizer:
    """How weights are made from scores, arguments already put in.

    Definition: `out = sum_k weight(s_k) v_k / denominator`, with
    `denominator = sum_k weight(s_k) + extra` where `sums` holds, else 1 (then `extra` is None).
    Stream: with `shift`, the kernel keeps m = max s and evaluates `stream_weight` (over the symbols `s`, `m`), and
    multiplies its sums by `rescale` (over `m`, `n`) when m moves to n. Without, `stream_weight` and `rescale` are None.
    `weight` is over the symbol `s`; all may read params and the indices `b`, `h`, `hkv`.
    """

    name: str
    weight: Expr
    sums: bool
    extra: Expr | None
    shift: bool
    stream_weight: Expr | None
    rescale: Expr | None
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where dropout counts a pair's key, query, head and sequence from: each index as itself plus this int.

    Whether a weight is dropped is a function of the seed and the four sums. A piece of a longer sequence counts from
    where it begins there, so it drops what the whole drops.
    """

    k: Expr = _ZERO
    q: Expr = _ZERO
    h: Expr = _ZERO
    b: Expr = _ZERO

    def mapped(self, f: Callable[[Expr], Expr]) -> Origin:
        return Origin(f(self.k), f(self.q), f(self.h), f(self.b))


@dataclass(frozen=True, slots=True)
class Attention:
    """A whole spec. `sizes` are the fresh dims bound at the call, in the order of their first use."""

    name: str
    consts: tuple[tuple[str, bool | int | float], ...]
    params: tuple[Param, ...]
    sizes: tuple[str, ...]
    score: Expr  # float
    mask: Expr  # bool
    normalizer: Normalizer
    dropout: Expr | None  # float, over scalar params; its value is in [0, 1)
    tile: tuple[int, int] | None  # (query rows, key columns), or None for auto
    assumes: tuple[Expr, ...]  # facts about sizes and params
    origin: Origin = Origin()  # of what dropout counts, if there is some
    value_scale: Expr | None = None  # what results are multiplied by, where q, k and v are 8-bit floats (`ir.narrow`)
    tile_span: Span = field(default=NOWHERE, compare=False, kw_only=True)

    def param(self, name: str) -> Param:
        return next(p for p in self.params if p.name == name)

    @property
    def counter(self) -> dict[str, Expr]:
        """What dropout counts a pair as, by index, in the order of Philox's words; empty without dropout."""
        if self.dropout is None:
            return {}
        o = self.origin
        return {i: add(index(i), first) for i, first in (("k", o.k), ("q", o.q), ("h", o.h), ("b", o.b))}
