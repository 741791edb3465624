"""Linear forms over int expressions, and what several inequalities between them say of one more.

Takes expressions, returns `Form`s (sum of coefficient * term, plus a constant); an expression that is no sum is a term
of its own. `upper` bounds a form by adding multiples of known `form <= 0` facts to it until its terms cancel, and by
the terms' own bounds: enough for distances under masks such as `k <= q + Sk - Sq`. Float sums of whole numbers are
forms too, where the caller says that they are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from attngen.ir import build
from attngen.ir.nodes import Apply, Expr, Literal, Op, Type


@dataclass(frozen=True, slots=True)
class Form:
    """sum of coefficient * term, plus `constant`. No coefficient is 0."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int

    def __neg__(self) -> Form:
        return self.times(-1)

    def times(self, factor: int) -> Form:
        return Form(tuple((t, c * factor) for t, c in self.terms if factor), self.constant * factor)

    def plus(self, other: Form) -> Form:
        total = dict(self.terms)
        for term, c in other.terms:
            total[term] = total.get(term, 0) + c
        return Form(tuple((t, c) for t, c in total.items() if c), self.constant + other.constant)

    def key(self) -> frozenset[tuple[Expr, int]]:
        return frozenset(self.terms)


Fact = Form
"""A form that is at most 0."""


def form(e: Expr) -> Form:
    """`e` as a form. Floats: conversions of ints are looked through, and literals must be whole."""
    match e:
        case Literal() if e.type is Type.INT:
            return Form((), int(e.value))
        case Literal() if e.type is Type.FLOAT and float(e.value).is_integer() and abs(e.value) < 2**31:
            return Form((), int(e.value))
        case Apply(op=Op.ADD):
            return form(e.args[0]).plus(form(e.args[1]))
        case Apply(op=Op.SUB):
            return form(e.args[0]).plus(-form(e.args[1]))
        case Apply(op=Op.NEG):
            return -form(e.args[0])
        case Apply(op=Op.MUL):
            a, b = form(e.args[0]), form(e.args[1])
            if not a.terms:
                return b.times(a.constant)
            if not b.terms:
                return a.times(b.constant)
        case Apply(op=Op.TO_FLOAT) if e.args[0].type is Type.INT:
            return form(e.args[0])
        case _:
            pass
    return Form(((e, 1),), 0)


def upper(f: Form, facts: tuple[Fact, ...], bound: Callable[[Expr], tuple[float, float]], depth: int = 2) -> float:
    """An upper bound of `f`. `bound` gives the ends of a term."""
    best = _by_terms(f, bound)
    if depth == 0 or not f.terms:
        return best
    coefficients = dict(f.terms)
    for fact in facts:
        # f <= f - factor * fact for factor >= 0, as fact <= 0: choose the factor that cancels one term.
        factors = {coefficients[t] // c for t, c in fact.terms if t in coefficients and coefficients[t] % c == 0}
        for factor in factors:
            if factor > 0:
                best = min(best, upper(f.plus(fact.times(-factor)), facts, bound, depth - 1))
    return best


def _by_terms(f: Form, bound: Callable[[Expr], tuple[float, float]]) -> float:
    total: float = f.constant
    for term, c in f.terms:
        low, high = bound(term)
        end = high if c > 0 else low
        if math.isinf(end):
            return math.inf
        total += c * end
    return total


def size(f: Form, bound: Callable[[Expr], tuple[float, float]]) -> float:
    """The largest absolute value that any partial sum of the form can have."""
    total: float = abs(f.constant)
    for term, c in f.terms:
        total += abs(c) * max(abs(end) for end in bound(term))
    return total


def edges() -> tuple[Fact, ...]:
    """Positions lie below their sizes; heads come in groups."""
    pairs = (("q", "Sq"), ("k", "Sk"), ("h", "Hq"), ("hkv", "Hkv"), ("b", "B"))
    below = tuple(Form(((build.index(a), 1), (build.index(b), -1)), 1) for a, b in pairs)
    return (
        *below,
        Form(((build.index("Hkv"), 1), (build.index("Hq"), -1)), 0),
        Form(((build.index("hkv"), 1), (build.index("h"), -1)), 0),
    )


def is_whole(e: Expr) -> bool:
    """Whether a float is a whole number by its form: conversions of ints, sums of them, literals."""
    if e.type is Type.INT:
        return True
    if isinstance(e, Literal):
        return e.type is Type.FLOAT and float(e.value).is_integer()
    if isinstance(e, Apply):
        if e.op is Op.TO_FLOAT:
            return True
        return e.op in (Op.ADD, Op.SUB, Op.NEG, Op.ABS, Op.MIN, Op.MAX, Op.MUL) and all(is_whole(a) for a in e.args)
    return False
