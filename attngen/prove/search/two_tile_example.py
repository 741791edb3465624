"""The streamed recurrence in numbers over two tiles, beside the definition: the counterexample that a reader checks.

Takes a normalizer and its assumptions, returns `Refuted` with scores, a tiling, the streamed result and the defined
one; None where no pair of scores tells them apart.
"""

from __future__ import annotations

from typing import Any

from attngen.ir.attention import Normalizer
from attngen.ir.nodes import Apply, Expr, Op
from attngen.prove.algebra.assumptions import Assumptions
from attngen.prove.algebra.equality import at
from attngen.prove.algebra.sample_points import Point, Undefined, clearly_different, mp, number, numbers
from attngen.prove.verdict import Proved, Refuted, Unknown, Verdict

_PAIRS = ((-0.5, 1.5), (1.5, -0.5), (0.25, 2.0), (-1.0, -0.25), (0.5, 3.0), (-2.0, 0.75))


def _at(point: Point, e: Expr, **symbols: Any) -> Any:
    return Point({**point.symbols, **symbols}, point.scalars, point.params, point.seed).value(e)


def fold_example(n: Normalizer, assumptions: Assumptions) -> Refuted | None:
    """Two keys with values 1 and 0, in tiles of 1: the first weight over the denominator, both ways."""
    if not n.shift or n.stream_weight is None or n.rescale is None:
        return None
    for point in assumptions.points[:3]:
        for pair in _PAIRS:
            try:
                found = _run(n, point, mp.mpf(pair[0]), mp.mpf(pair[1]))
            except (Undefined, ZeroDivisionError, OverflowError):
                continue
            if found is not None:
                return found
    return None


def _run(n: Normalizer, point: Point, first: Any, second: Any) -> Refuted | None:
    assert n.stream_weight is not None and n.rescale is not None
    w1, w2 = (_at(point, n.weight, s=s) for s in (first, second))
    defined = w1 + w2 if n.sums else mp.mpf(1)
    top = max(first, second)
    v1, v2 = _at(point, n.stream_weight, s=first, m=first), _at(point, n.stream_weight, s=second, m=top)
    moved = _at(point, n.rescale, m=first, n=top)
    acc, row_sum = v1 * moved, v1 * moved + v2
    extra = mp.mpf(0)
    if n.extra is not None:
        extra = point.value(n.extra)
        row_sum += extra * _at(point, n.stream_weight, s=top, m=top) / _at(point, n.weight, s=top)
        defined += extra
    if not n.sums:  # the definition divides by nothing: only the quotient of the weights can be compared
        row_sum, defined = v1 * moved + v2, w1 + w2
    if row_sum == 0 or defined == 0:
        if row_sum != 0 or defined == 0:
            return None
        wrong, right = "undefined", number(w1 / defined)
        values: tuple[tuple[str, float], ...] = (("defined", float(w1 / defined)),)
    else:
        streamed, true = acc / row_sum, w1 / defined
        if not clearly_different(streamed, true):
            return None
        wrong, right = numbers(streamed, true)
        values = (("streamed", float(streamed)), ("defined", float(true)))
    others = [f"{name} = {value:g}" for name, value in point.described(n.weight, n.stream_weight, n.rescale, n.extra)
          if name not in ("s", "m", "n")]  # fmt: skip
    a, b, m = number(first), number(second), number(top)
    return Refuted(
        "two tiles",
        (
            f"scores {a} | {b} in tiles of 1, values 1 | 0" + (f", {', '.join(others)}" if others else "") + ":",
            f"tile 1: m = {a}, acc = sum = weight({a}, {a}) = {number(v1)}",
            f"tile 2: m = {m}, acc = {number(v1)} * rescale({a}, {m}) = {number(acc)},"
            f" sum = {number(acc)} + weight({b}, {m}) = {number(acc + v2)}",
            f"streamed {number(acc)} / {number(row_sum)} = {wrong}, defined {number(w1)} / {number(defined)} = {right}",
        ),
        (("score 0", float(first)), ("score 1", float(second)), *values),
    )


def never_vanishes(n: Normalizer, assumptions: Assumptions) -> Verdict:
    """Whether weight(s, m) / weight(s) is not 0 at one m: rescale(m, n) carries that to every other."""
    assert n.stream_weight is not None
    if isinstance(n.stream_weight, Apply) and n.stream_weight.op in (Op.EXP, Op.EXP2):
        return Proved("structure", ("weight(s, m) is an exponential",))
    for point in assumptions.points:
        try:
            stream, weight = point.value(n.stream_weight), point.value(n.weight)
        except (Undefined, OverflowError):
            continue
        if weight != 0:
            if stream != 0:
                return Proved("a point")
            here = point.described(n.stream_weight, n.weight)
            return Refuted("a point", (f"{at(here)}: weight(s, m) = 0, weight(s) = {number(weight)}",), here)
    return Unknown("points", "no point was found at which weight(s) is not 0")
