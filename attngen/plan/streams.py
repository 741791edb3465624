"""A look at a normalizer's stream lines before anything is planned: do they agree with the definition, in numbers?

Takes a normalizer, raises `Refuted` with the numbers where `weight(s, m) * rescale(m, n)` is not `weight(s, n)`, or
where `weight(s, m) / weight(s)` depends on s. Agreement at a dozen points is no proof: that is the prover's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from attngen.errors import Diagnostic, Refuted
from attngen.ir.attention import Normalizer
from attngen.ir.build import integer, real
from attngen.ir.nodes import Expr, Literal, Load, Scalar, Symbol, Type
from attngen.ir.walk import transform

_POINTS = (-1.75, -0.5, 0.625, 1.5)


def check_stream(n: Normalizer) -> None:
    """Raises Refuted; says nothing of lines whose value is undefined at the points that it tries."""
    if not n.shift or n.stream_weight is None or n.rescale is None:
        return
    stream, rescale, weight = n.stream_weight, n.rescale, n.weight
    for s, m, other in itertools.permutations(_POINTS, 3):
        moved = _product(_value(stream, s=s, m=m), _value(rescale, m=m, n=other))
        wanted = _value(stream, s=s, m=other)
        if not _agree(moved, wanted):
            raise _refuted(
                n,
                rescale,
                "weight(s, m) * rescale(m, n) is not weight(s, n)",
                f"at s = {s}, m = {m}, n = {other} they are {moved:.6g} and {wanted:.6g}",
            )
        left = _product(_value(stream, s=s, m=m), _value(weight, s=other))
        right = _product(_value(stream, s=other, m=m), _value(weight, s=s))
        if not _agree(left, right):
            raise _refuted(
                n,
                stream,
                "weight(s, m) is not weight(s) times a factor of m alone",
                f"at m = {m}, weight(s, m) / weight(s) differs between s = {s} and s = {other}",
            )


def _refuted(n: Normalizer, e: Expr, message: str, numbers: str) -> Refuted:
    return Refuted([Diagnostic("stream", f"normalizer `{n.name}`: {message}", e.span, numbers)])


def _value(e: Expr, **points: float) -> float | None:
    """`e` at these points, each param at a number of its own; None where it has no finite value."""
    names: Mapping[str, float] = points

    def at(node: Expr) -> Expr | None:
        match node:
            case Symbol() if node.type is Type.FLOAT:
                return real(names.get(node.id, 0.75))
            case Symbol():
                return integer(3)
            case Scalar() | Load():
                return _stand_in(node.param, node.type)
            case _:
                return None

    found = transform(e, at)
    if isinstance(found, Literal) and math.isfinite(found.value):
        return float(found.value)
    return None


def _stand_in(param: str, type: Type) -> Literal:
    number = 0.6 + (sum(map(ord, param)) % 17) / 20
    make: Callable[[], Literal] = {
        Type.FLOAT: lambda: real(number),
        Type.INT: lambda: integer(2),
        Type.BOOL: lambda: Literal(True, Type.BOOL),
    }[type]
    return make()


def _product(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a * b


def _agree(a: float | None, b: float | None) -> bool:
    return a is None or b is None or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
