"""What is known of an expression's value: constant lower and upper bounds, from the language and from `where` facts.

Takes the attention (for its `where`s and `assume`s), returns `Facts`. Simple interval arithmetic over constants; what
it cannot bound it calls unknown (None), which is always safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from attngen.ir.attention import Attention
from attngen.ir.build import index
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import reads, substitute

Bounds = tuple[float | None, float | None]
"""(lower, upper), each inclusive, None where unknown."""

UNKNOWN: Bounds = (None, None)

_INDICES = {"B": "b", "Hq": "h", "Hkv": "hkv"}
"""Which index counts along a size."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Constant bounds of params (`positive` holds those with a strict lower bound of 0 or more), and of symbols.

    `scale_positive` holds where the launcher can take the sign of the scale into q: see `enters_as_product`. `own`: the
    indices at which each param is read inside: of one with an element for each head or batch, its own.
    """

    params: dict[str, Bounds]
    positive: frozenset[str]
    scale_positive: bool = True
    own: dict[str, tuple[Expr, ...]] = field(default_factory=dict[str, tuple[Expr, ...]])

    def bounds(self, e: Expr) -> Bounds:
        match e:
            case Literal():
                return (float(e.value), float(e.value))
            case Symbol():
                return UNKNOWN if e.id == "scale" and not self.scale_positive else _symbol(e)
            case Scalar():
                return self.params.get(e.param, UNKNOWN)
            case Load():
                # A load outside its tensor reads 0, so 0 is among the values unless it is `own`.
                low, high = self.params.get(e.param, UNKNOWN)
                return (None if low is None else min(low, 0.0), None if high is None else max(high, 0.0))
            case Apply():
                return self._apply(e)
            case _:
                assert_never(e)

    def is_positive(self, e: Expr) -> bool:
        """Whether `e > 0` for certain."""
        match e:
            case Symbol(id="scale"):
                return self.scale_positive
            case Scalar():
                low = self.params.get(e.param, UNKNOWN)[0]
                return e.param in self.positive or (low is not None and low > 0)
            case Load():
                return e.indices == self.own.get(e.param) and self.is_positive(Scalar(e.param, e.type))
            case Apply(op=Op.MUL | Op.DIV | Op.MIN | Op.MAX):
                if all(self.is_positive(a) for a in e.args):
                    return True
            case Apply(op=Op.ADD):
                if all(self.is_positive(a) or self.is_nonnegative(a) for a in e.args):
                    return any(self.is_positive(a) for a in e.args)
            case Apply(op=Op.TO_FLOAT):
                return self.is_positive(e.args[0])
            case _:
                pass
        low = self.bounds(e)[0]
        return low is not None and low > 0

    def is_nonnegative(self, e: Expr) -> bool:
        low = self.bounds(e)[0]
        return (low is not None and low >= 0) or (isinstance(e, Scalar) and e.param in self.positive)

    def _apply(self, e: Apply) -> Bounds:
        parts = [self.bounds(a) for a in e.args]
        low = [p[0] for p in parts]
        high = [p[1] for p in parts]
        match e.op:
            case Op.ADD:
                return _sum(low[0], low[1]), _sum(high[0], high[1])
            case Op.SUB:
                return _sum(low[0], _minus(high[1])), _sum(high[0], _minus(low[1]))
            case Op.NEG:
                return _minus(high[0]), _minus(low[0])
            case Op.MUL:
                return _product(parts[0], parts[1])
            case Op.MIN:
                return (None if None in low else min(x for x in low if x is not None)), _least(high)
            case Op.MAX:
                return _greatest(low), (None if None in high else max(x for x in high if x is not None))
            case Op.ABS:
                return (0.0, None)
            case Op.FLOORDIV:
                if low[0] is not None and low[0] >= 0 and low[1] is not None and low[1] > 0:
                    return (0.0, high[0])
                return UNKNOWN
            case Op.MOD:
                if low[1] is not None and low[1] > 0:
                    return (0.0, None if high[1] is None else high[1] - 1)
                return UNKNOWN
            case Op.DIV:
                if low[0] is not None and low[0] >= 0 and low[1] is not None and low[1] > 0:
                    return (0.0, None)
                return UNKNOWN
            case Op.SELECT:
                return (
                    None if low[1] is None or low[2] is None else min(low[1], low[2]),
                    None if high[1] is None or high[2] is None else max(high[1], high[2]),
                )
            case Op.TO_FLOAT | Op.TO_INT | Op.FLOOR | Op.CEIL:
                if e.args[0].type is Type.BOOL:
                    return (0.0, 1.0)
                # What NaN, infinities and numbers beyond 32 bits become as ints is the chip's choice, and rounding may
                # carry a float past a whole number: no bound of a float is one of the int.
                return parts[0] if e.op is Op.TO_FLOAT else UNKNOWN
            case Op.EXP | Op.EXP2 | Op.SQRT | Op.RSQRT:
                return (0.0, None)
            case Op.SIGMOID:
                return (0.0, 1.0)
            case Op.TANH | Op.SIN | Op.COS | Op.ERF | Op.SIGN:
                return (-1.0, 1.0)
            case Op.SHIFT_RIGHT:
                return (0.0, high[0]) if low[0] is not None and low[0] >= 0 else UNKNOWN
            case Op.BIT_AND | Op.BIT_OR | Op.BIT_XOR:
                if low[0] is not None and low[1] is not None and low[0] >= 0 and low[1] >= 0:
                    return (0.0, _least(high) if e.op is Op.BIT_AND else None)
                return UNKNOWN
            case Op.POW | Op.LOG | Op.LOG2:
                return UNKNOWN
            case Op.LT | Op.LE | Op.EQ | Op.NE | Op.NOT | Op.AND | Op.OR:
                return (0.0, 1.0)
            case _:
                assert_never(e.op)


def _symbol(e: Symbol) -> Bounds:
    match e.id:
        case "b" | "h" | "hkv" | "q" | "k" | "q0" | "q1" | "k0" | "k1":
            return (0.0, None)
        case "qk" | "s" | "m" | "n":
            return UNKNOWN
        case "scale":
            return (0.0, None)
        case _:
            return (1.0, None)  # sizes: a call with an empty dim launches nothing


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _minus(a: float | None) -> float | None:
    return None if a is None else -a


def _least(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return min(known) if known else None


def _greatest(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) if known else None


def _product(a: Bounds, b: Bounds) -> Bounds:
    if a[0] is not None and a[0] >= 0 and b[0] is not None and b[0] >= 0:
        both = a[1] is not None and b[1] is not None
        return (a[0] * b[0], (a[1] or 0.0) * (b[1] or 0.0) if both else None)
    if None in a or None in b:
        return UNKNOWN
    corners = [x * y for x in a for y in b if x is not None and y is not None]
    return (min(corners), max(corners))


def facts(attention: Attention) -> Facts:
    """Reads the `where`s and `assume`s that bound one param by constants; the others are left to the prover."""
    bounds: dict[str, Bounds] = {}
    positive: set[str] = set()

    def note(name: str, low: float | None, high: float | None) -> None:
        old_low, old_high = bounds.get(name, UNKNOWN)
        bounds[name] = (_greatest([old_low, low]), _least([old_high, high]))

    def read(fact: Expr) -> None:
        if not isinstance(fact, Apply):
            return
        if fact.op is Op.AND:
            for part in fact.args:
                read(part)
        elif fact.op in (Op.LT, Op.LE):
            left, right = fact.args
            strict = fact.op is Op.LT
            if isinstance(left, Literal) and isinstance(right, Scalar):
                value = float(left.value)
                note(right.param, value + 1 if strict and right.type is Type.INT else value, None)
                if strict and value >= 0:
                    positive.add(right.param)
            elif isinstance(left, Scalar) and isinstance(right, Literal):
                value = float(right.value)
                note(left.param, None, value - 1 if strict and left.type is Type.INT else value)

    for param in attention.params:
        if param.where is not None:
            read(param.where)
    for fact in attention.assumes:
        read(fact)
    own: dict[str, tuple[Expr, ...]] = {
        p.name: tuple(index(_INDICES[name]) for name in p.dim_names)
        for p in attention.params
        if p.shape and _INDICES.keys() >= {*p.dim_names}
    }
    return Facts(bounds, frozenset(positive), enters_as_product(attention), own)


class ScaleUse(StrEnum):
    """How weights depend on the scale. Where it is a factor of q . k alone, q can take it, and with it its gradient."""

    FACTOR = "factor"
    OTHERWISE = "otherwise"
    UNREAD = "unread"


def scale_use(attention: Attention) -> ScaleUse:
    n = attention.normalizer
    read = (attention.score, n.weight, n.extra, n.stream_weight, n.rescale)
    if enters_as_product(attention):
        return ScaleUse.FACTOR
    return ScaleUse.OTHERWISE if any(reads(e, "scale") for e in read if e is not None) else ScaleUse.UNREAD


def enters_as_product(attention: Attention) -> bool:
    """Whether q . k and the scale enter the attention as `qk * scale` in the score alone.

    Then a scale of -s is a scale of s with q negated, and a scale of 0 is a scale of 1 with q zeroed.
    """
    qk, scale = Symbol("qk", Type.FLOAT), Symbol("scale", Type.FLOAT)
    product = Symbol("scaled_qk", Type.FLOAT)
    rest = substitute(
        attention.score, {Apply(Op.MUL, pair, Type.FLOAT): product for pair in ((qk, scale), (scale, qk))}
    )
    n = attention.normalizer
    others = (rest, attention.mask, n.weight, n.extra, n.stream_weight, n.rescale)
    return not any(reads(e, "qk", "scale") for e in others if e is not None)
