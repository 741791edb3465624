"""What a proof may assume of a spec: the signs of its params, and points at which its facts hold.

Takes an attention, returns its `Assumptions`. They also keep the names of opaque terms, so that all terms of one proof
use the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attngen.ir import walk
from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Expr, Literal, Op, Scalar, Symbol, Type
from attngen.prove.algebra.sample_points import Point, points


@dataclass(frozen=True)
class Assumptions:
    """What the spec lets a proof assume: signs of params and sizes, and points at which every fact holds.

    `positive_scale` holds where the launcher can take the sign of the scale into q, so that kernels see a positive one.
    """

    attention: Attention
    positive_scale: bool

    @cached_property
    def signs(self) -> Mapping[str, dict[str, bool]]:
        """sympy's assumptions about each param."""
        found = {p.name: {"real": True} for p in self.attention.params}
        facts = [p.where for p in self.attention.params] + list(self.attention.assumes)
        for fact in facts:
            for part in _conjuncts(fact):
                self._note(part, found)
        for p in self.attention.params:
            if _contradictory(found[p.name]):  # which `tile-ranges` refutes; sympy takes no such symbol
                found[p.name] = {"real": True}
            if p.type is Type.INT:
                found[p.name]["integer"] = True
        return found

    def _note(self, fact: Expr, found: dict[str, dict[str, bool]]) -> None:
        match fact:
            case Apply(op=Op.LT | Op.LE, args=(Literal() as low, Scalar() as x)):
                if low.value > 0 or (low.value == 0 and fact.op is Op.LT) or (x.type is Type.INT and low.value > -1):
                    above = low.value > 0 or fact.op is Op.LT
                    found[x.param]["positive" if above else "nonnegative"] = True
                elif low.value == 0:
                    found[x.param]["nonnegative"] = True
            case Apply(op=Op.LT | Op.LE, args=(Scalar() as x, Literal() as high)):
                if high.value < 0 or (high.value == 0 and fact.op is Op.LT):
                    found[x.param]["negative"] = True
                elif high.value == 0:
                    found[x.param]["nonpositive"] = True
            case Apply(op=Op.NE, args=(Scalar() as x, Literal(value=0)) | (Literal(value=0), Scalar() as x)):
                found[x.param]["nonzero"] = True
            case _:
                pass

    @cached_property
    def points(self) -> tuple[Point, ...]:
        return tuple(points(self.attention, positive_scale=self.positive_scale, count=24))

    @cached_property
    def kinks(self) -> dict[Any, int]:
        """Numbers for the arguments of kinks, for their indicators."""
        return {}

    @cached_property
    def atoms(self) -> dict[Any, Any]:
        """The symbols of opaque things, by what they are."""
        return {}


def assumptions(attention: Attention) -> Assumptions:
    """The assumptions of a spec, its scale positive where the launcher can make it so."""
    return Assumptions(attention, scale_enters_as_product(attention))


def scale_enters_as_product(attention: Attention) -> bool:
    """Whether q . k and the scale are read as `qk * scale` alone: the launcher can make it positive."""
    qk, scale = Symbol("qk", Type.FLOAT), Symbol("scale", Type.FLOAT)

    def alone(e: Expr) -> bool:
        if isinstance(e, Apply) and e.op is Op.MUL and set(e.args) == {qk, scale}:
            return True
        return e not in (qk, scale) and all(alone(c) for c in walk.children(e))

    n = attention.normalizer
    others = (attention.mask, n.weight, n.extra, n.stream_weight, n.rescale)
    return alone(attention.score) and not any(walk.reads(e, "qk", "scale") for e in others if e is not None)


def _contradictory(signs: Mapping[str, bool]) -> bool:
    """Whether no number has all these signs."""
    up = "positive" in signs or "nonnegative" in signs
    down = "negative" in signs or "nonpositive" in signs
    return up and down and bool({"positive", "negative", "nonzero"} & signs.keys())


def _conjuncts(fact: Expr | None) -> tuple[Expr, ...]:
    if fact is None:
        return ()
    return fact.args if isinstance(fact, Apply) and fact.op is Op.AND else (fact,)
