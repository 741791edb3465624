"""The one module that imports sympy: terms, the constants in them, and whether two terms are one.

Takes terms (`reading` makes them of expressions), returns yes or no; verdicts are `equality`'s. Two terms are the same
if they are one rational function of their atoms: exponentials multiplied out, tanh written by exp, indicators (symbols
that are 0 or 1) their own squares.

Decimal constants that are a simple multiple of log2 e, ln 2, pi or 2 / sqrt(pi) up to the rounding of a double are
taken for it, and coefficients that differ by no more than such a rounding count as equal: what is shown with them is
exact up to the rounding of the constants.
"""

from __future__ import annotations

import importlib
import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

from attngen.prove.algebra.sample_points import mp
from attngen.prove.algebra.term_size import price
from attngen.prove.budget.work import Work

sp: Any = importlib.import_module("sympy")  # sympy has no types
Term: TypeAlias = Any
"""A sympy expression."""

LN2: Term = sp.Symbol("ln2", positive=True)  # a symbol: sympy would turn exp(x log 2) into 2**x, which meets no exp
ABOVE, AT = "is positive:", "is zero:"
"""What the names of indicators begin with; the number of the kink follows."""

_ROUNDING = 2.0**-46  # a few roundings of doubles


@lru_cache(maxsize=1)
def _known_constants() -> tuple[tuple[Any, Term], ...]:
    ln2 = mp.log(2)
    return (
        (mp.mpf(1), sp.Integer(1)),
        (1 / ln2, 1 / LN2),
        (ln2, LN2),
        (1 / mp.sqrt(mp.pi), 1 / sp.sqrt(sp.pi)),
        (mp.pi, sp.pi),
        (mp.sqrt(2), sp.sqrt(2)),
        (1 / (ln2 * mp.sqrt(mp.pi)), 1 / (LN2 * sp.sqrt(sp.pi))),
    )


@lru_cache(maxsize=512)
def constant(value: float) -> Term:
    """The number that a double stands for: itself if it is short, else a simple multiple of a known constant."""
    if math.isinf(value):
        return sp.oo if value > 0 else -sp.oo
    exact = Fraction(value)
    if exact.denominator <= 2**20:
        return sp.Rational(exact.numerator, exact.denominator)
    for known, term in _known_constants():
        ratio = mp.mpf(value) / known
        simple = Fraction(float(ratio)).limit_denominator(4096)
        short = Fraction(f"{float(ratio):.11e}")
        for candidate in (simple, short):
            if abs(mp.mpf(candidate.numerator) / candidate.denominator - ratio) <= abs(ratio) * mp.mpf(2) ** -51:
                return sp.Rational(candidate.numerator, candidate.denominator) * term
    return sp.Rational(exact.numerator, exact.denominator)


def expanded(x: Term, work: Work) -> Term:
    """`x` multiplied out. Raises `OutOfWork` where the result may be too long."""
    work.spend(price(x))
    return sp.expand(x)


def same(a: Term, b: Term, work: Work) -> bool:
    """Whether two terms are equal for certain: the same rational function of their atoms. Raises `OutOfWork`."""
    if a == b:
        return True
    if a.has(sp.oo, -sp.oo, sp.nan, sp.zoo) or b.has(sp.oo, -sp.oo, sp.nan, sp.zoo):
        return False
    if expanded(a - b, work) == 0:
        return True
    if _same_fractions(a, b, work):
        return True
    if a.has(sp.tanh) or b.has(sp.tanh):
        return _same_fractions(a.replace(sp.tanh, _tanh), b.replace(sp.tanh, _tanh), work)
    return False


def _tanh(x: Term) -> Term:
    return (sp.exp(2 * x) - 1) / (sp.exp(2 * x) + 1)


def _same_fractions(a: Term, b: Term, work: Work) -> bool:
    work.spend(price(a, b))
    (p, u), (r, v) = (sp.fraction(sp.together(sp.expand(x, log=True))) for x in (a, b))
    work.spend(price(p * v, r * u))
    left, right = _coefficients(p * v), _coefficients(r * u)
    return all(_close(left.get(k, 0), right.get(k, 0)) for k in {**left, **right})


def _close(a: Any, b: Any) -> bool:
    return abs(a - b) <= _ROUNDING * max(abs(a), abs(b))


def _coefficients(x: Term) -> dict[Term, Any]:
    """The terms of `x`, multiplied out: numbers by monomials. Exponentials of sums are products here."""
    found: dict[Term, Any] = {}
    for part in sp.Add.make_args(sp.expand(sp.expand(x), power_exp=True)):
        numbers: list[Term] = []
        rest: list[Term] = []
        above: set[str] = set()
        at: set[str] = set()
        for f in sp.Mul.make_args(part):
            if f.free_symbols <= {LN2}:
                numbers.append(f)
                continue
            base = f.base if f.is_Pow else f
            which = above if str(base).startswith(ABOVE) else at if str(base).startswith(AT) else None
            if base.is_Symbol and which is not None:
                which.add(str(base).rsplit(" ", 1)[1])
                f = base  # 0 and 1 are their own squares
            rest.append(f)
        if above & at:  # nothing is both positive and zero
            continue
        value = sp.Mul(*numbers).subs(LN2, sp.log(2)).evalf(40)
        monomial = sp.Mul(*rest)
        found[monomial] = found.get(monomial, 0) + value
    return found
