"""Concrete inputs at which something goes wrong in float32.

A `Witness` has a value for every index, size, param and element that is read. `search` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attngen.ir import build, printing, walk
from attngen.ir.attention import Attention
from attngen.ir.nodes import Expr, Load, Type
from attngen.prove.intervals.ingredients import Value


@dataclass(frozen=True, slots=True)
class Witness:
    """`values`: what each leaf is (symbols, scalars, loads). `node`: the innermost expression that goes wrong."""

    values: tuple[tuple[Expr, Value], ...]
    node: Expr
    operands: tuple[float, ...]
    result: float

    def at(self, e: Expr) -> float:
        """The value of `e` at these inputs, in float64; the symbols that it reads must be among them."""
        from attngen.prove.search.samples import value_of

        return value_of(walk.substitute(e, {leaf: build.literal(value) for leaf, value in self.values}))

    def moved(self, positions: Mapping[Expr, int], a: Attention) -> Witness | None:
        """The same inputs with other positions and sizes; None where the elements that are read do not go with them."""
        values: dict[Expr, Value] = {**dict(self.values), **positions}
        there = replace(self, values=tuple(values.items()))
        elements: dict[tuple[str, Type, tuple[float, ...]], Value] = {}
        for leaf, value in self.values:
            if isinstance(leaf, Load):
                at = tuple(there.at(index) for index in walk.children(leaf))
                if elements.setdefault((leaf.param, leaf.type, at), value) != value:
                    return None
                for (index, dim), new in zip(a.param(leaf.param).axes(leaf), at, strict=False):
                    if new != self.at(index) and not 0 <= new < int(values.get(dim, 0)):
                        return None
        return there

    def named(self) -> tuple[tuple[str, Value], ...]:
        return tuple((printing.expression(leaf), value) for leaf, value in self.values)


def facts_of(a: Attention) -> tuple[Expr, ...]:
    """What holds of every call, whatever its tensors are."""
    facts = [p.where for p in a.params if p.is_scalar and p.where is not None]
    return (*facts, *(f for f in a.assumes if not walk.reads(f, "b", "h", "hkv", "q", "k") and not walk.loads(f)))
