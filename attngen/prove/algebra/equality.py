"""Whether two expressions are equal, an expression is positive, a derivative is the planned one: verdicts by algebra.

Equality is decided in this order: the same tree; the same rational function of the atoms (exponentials multiplied out,
tanh written by exp); the same in every case of the kinks, below, at and above each, for the whole or term by term; then
numbers, which only refute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attngen.ir.build import mul, neg
from attngen.ir.nodes import Apply, Expr, Load, Op
from attngen.ir.printing import expression as text
from attngen.ir.walk import loads
from attngen.prove.algebra.assumptions import Assumptions
from attngen.prove.algebra.sample_points import Point, Undefined, clearly_different, mp, number, numbers
from attngen.prove.algebra.sympy_door import Term, expanded, same, sp
from attngen.prove.algebra.term_size import price
from attngen.prove.algebra.terms import Reading, Split, has_comparison
from attngen.prove.budget.watchdog import OutOfTime
from attngen.prove.budget.work import OutOfWork, Work
from attngen.prove.intervals.input_boxes import LONGEST, Box
from attngen.prove.intervals.ranges import ranges
from attngen.prove.verdict import Proved, Refuted, Unknown, Verdict

_CASES = 81
_ANY_INPUT = Box(qk=math.inf, scale=math.inf, param=math.inf, tiny=0.0, length=LONGEST)

Comparison = Callable[[Reading], tuple[Term, Term]]


def in_cases(
    compared: Comparison, assumptions: Assumptions, work: Work, leaves: frozenset[Expr] | None = None, ties: bool = True
) -> str | None:
    """How two terms were shown equal in every case of their kinks, or None. `compared` reads them in one case."""
    waiting: list[dict[Term, int]] = [{}]
    cases = 0
    while waiting:
        decisions = waiting.pop()
        try:
            pair = compared(Reading(assumptions, work, decisions, leaves=leaves, ties=ties))
        except Split as split:
            waiting += [{**decisions, split.key: sign} for sign in split.choices]
            continue
        cases += 1
        if cases > _CASES or not (same(*pair, work) or _impossible(decisions, work)):
            return None
    return "sympy" if cases == 1 else f"sympy, {cases} cases"


def _impossible(decisions: Mapping[Term, int], work: Work) -> bool:
    """Whether these signs contradict each other: up to three arguments, each not negative, with a negative sum."""
    parts: list[tuple[Term, bool]] = []
    for key, sign in decisions.items():
        parts += [(sign * key, True)] if sign else [(key, False), (-key, False)]
    for count in (2, 3):
        for chosen in itertools.combinations(parts, count):
            total = expanded(sp.Add(*(term for term, _ in chosen)), work)
            if total.is_negative or (total.is_nonpositive and any(strict for _, strict in chosen)):
                return True
    return False


def _at_once(compared: Comparison, assumptions: Assumptions, work: Work) -> str | None:
    """All cases in one comparison, by indicators; None where that shows nothing."""
    try:
        return "sympy" if same(*compared(Reading(assumptions, work, indicators=True)), work) else None
    except Split:
        return None


def equal(
    a: Expr, b: Expr, assumptions: Assumptions, work: Work, names: tuple[str, str] = ("planned", "true")
) -> Verdict:
    """Whether two expressions have the same value wherever the spec's facts hold. Refuted comes with a point.

    `names` are what the two are called there.
    """
    if a == b:
        return Proved("the same expression")
    ties = has_comparison(a, b)
    try:
        with work.watched():
            opaque = Reading(assumptions, work)
            whole = same(opaque.term(a), opaque.term(b), work)
            how = "sympy" if whole else _term_by_term(a, b, assumptions, work, ties)
            how = how or in_cases(lambda r: (r.term(a), r.term(b)), assumptions, work, ties=ties)
    except (OutOfTime, OutOfWork) as stop:
        how, reason = None, stop.reason
    else:
        reason = "sympy brings the two sides to no common form"
    if how is not None:
        return Proved(how, (f"{text(a)} = {text(b)}",))
    return differing(a, b, assumptions, names) or Unknown("sympy", f"{reason}, and no point tells them apart")


def _term_by_term(a: Expr, b: Expr, assumptions: Assumptions, work: Work, ties: bool) -> str | None:
    """Sums whose kinks are too many for all cases at once, but which agree term by term, in order."""
    left, right = _summands(a), _summands(b)
    if len(left) != len(right) or not 1 < len(left) <= 16:
        return None
    for x, y in zip(left, right, strict=True):
        opaque = Reading(assumptions, work)
        pair = partial(_terms, x, y)
        whole = same(opaque.term(x), opaque.term(y), work)
        if not whole and in_cases(pair, assumptions, work, ties=ties) is None:
            return None
    return "sympy, term by term"


def _terms(a: Expr, b: Expr, reading: Reading) -> tuple[Term, Term]:
    return reading.term(a), reading.term(b)


def _summands(e: Expr) -> list[Expr]:
    """The terms of a sum, a factor of the whole sum brought to each."""
    match e:
        case Apply(op=Op.ADD, args=(a, b)):
            return [*_summands(a), *_summands(b)]
        case Apply(op=Op.SUB, args=(a, b)):
            return [*_summands(a), *(neg(x) for x in _summands(b))]
        case Apply(op=Op.NEG, args=(a,)):
            return [neg(x) for x in _summands(a)]
        case Apply(op=Op.MUL, args=(a, b)):
            left, right = _summands(a), _summands(b)
            if len(left) > 1 and len(right) > 1:
                return [e]
            return [mul(x, b) for x in left] if len(left) > 1 else [mul(a, y) for y in right]
        case _:
            return [e]


def differing(a: Expr, b: Expr, assumptions: Assumptions, names: tuple[str, str]) -> Refuted | None:
    """A point at which two expressions clearly differ."""
    for point in assumptions.points:
        try:
            x, y = point.value(a), point.value(b)
        except (Undefined, OverflowError):
            continue
        if clearly_different(x, y):
            return _refuted(point, (a, b), (x, y), names, (text(a), text(b)))
    return None


def at(values: tuple[tuple[str, int | float | bool | str], ...]) -> str:
    """The values of a point, for a sentence."""
    return "at " + ", ".join(f"{name} = {value:g}" for name, value in values) if values else "everywhere"


def _refuted(
    point: Point, read: tuple[Expr | None, ...], values: tuple[Any, Any], names: tuple[str, str], texts: tuple[str, str]
) -> Refuted:
    here = point.described(*read)
    lines = tuple(
        f"{name} = {short(t)} = {v}" if t and t != v else f"{name} = {v}"
        for name, t, v in zip(names, texts, numbers(*values), strict=True)
    )
    return Refuted("a point", (f"{at(here)}:", *lines), (*here, *zip(names, map(float, values), strict=True)))


def short(t: str) -> str:
    return t if len(t) <= 160 else f"{t[:157]}…"


def _has_sign(e: Expr, assumptions: Assumptions, *, zero: bool, work: Work) -> bool:
    """Whether e > 0, or e >= 0, follows from its parts' signs, or else from its terms'."""

    def follows(part: Expr, zero: bool = zero) -> bool:
        return _has_sign(part, assumptions, zero=zero, work=work)

    match e:
        case Apply(op=Op.SELECT, args=(_, then, otherwise)):
            return follows(then) and follows(otherwise)
        case Apply(op=Op.MUL | Op.MIN, args=(a, b)) if follows(a) and follows(b):
            return True
        case Apply(op=Op.DIV, args=(a, b)) if follows(a) and follows(b, zero=False):
            return True
        case Apply(op=Op.MAX, args=(a, b)) if follows(a) or follows(b):
            return True
        case _:
            term = sp.factor_terms(expanded(Reading(assumptions, work).term(e), work))
            if term.is_positive or (zero and term.is_nonnegative):
                return True
            found = ranges(assumptions.attention, _ANY_INPUT, loads(e), scale_positive=assumptions.positive_scale).of(e)
            return not (found.minus or found.masked) and (found.low > 0 or (zero and found.low >= 0))


def sign_of(e: Expr, assumptions: Assumptions, *, zero: bool, work: Work) -> Verdict:
    """Whether e > 0, or e >= 0 where `zero` allows it, wherever the spec's facts hold."""
    reason = f"the sign of {text(e)} does not follow from the facts"
    try:
        with work.watched():
            if _has_sign(e, assumptions, zero=zero, work=work):
                return Proved("sympy")
    except (OutOfTime, OutOfWork) as stop:
        reason = f"{reason}: {stop.reason}"
    for point in assumptions.points:
        try:
            value = point.value(e)
        except Undefined:
            continue
        if value < 0 or (value == 0 and not zero):
            here = point.described(e)
            needed = "at least 0" if zero else "above 0"
            return Refuted("a point", (f"{at(here)}: {text(e)} is {number(value)}, and must be {needed}",), here)
    return Unknown("sympy", reason)


# ---------------------------------------------------------------- derivatives


def derivative_is(
    planned: Expr,
    parts: tuple[tuple[Expr, Expr | None], ...],
    leaves: tuple[Expr, ...],
    assumptions: Assumptions,
    work: Work,
    others: tuple[Load, ...] = (),
) -> Verdict:
    """Whether `planned` is the sum over `parts` of d e / d leaf, each times its factor; the derivatives are sympy's.

    `leaves` are the ways in which the one leaf is written. At a kink (abs, min, max, a comparison) an expression is
    what the language says: abs is flat at 0, the first of two equals is taken. The cases at the kinks are compared too;
    where an expression is infinite its pair has weight 0. Refuted comes with a point, and the slope there in numbers.
    `others` are other loads of the same param: a point at which one of them reads the same element refutes nothing, for
    the element's derivative is the sum of theirs.
    """
    at_leaf = frozenset(leaves)

    def compared(r: Reading, work: Work) -> tuple[Term, Term]:
        slope = sp.Integer(0)
        for e, factor in parts:
            term = r.term(e)
            if term.is_infinite:
                return term, term
            work.spend(price(term))
            slope += sp.diff(term, r.term(leaves[0])) * (1 if factor is None else r.term(factor))
        return r.term(planned), slope

    reason = "sympy's derivative and the planned one come to no common form"
    attempts: tuple[tuple[Callable[[Comparison, Work], str | None], float], ...] = (
        (lambda c, own: _at_once(c, assumptions, own), 0.4),
        (lambda c, own: in_cases(c, assumptions, own, at_leaf), 0.6),
        (lambda c, own: in_cases(c, assumptions, own), 1.0),
    )
    for attempt, fraction in attempts:
        own = work.share(fraction)
        try:
            with own.watched():
                how = attempt(partial(compared, work=own), own)
        except (OutOfTime, OutOfWork) as stop:
            how, reason = None, stop.reason
        if how is not None:
            return Proved(how, (short(text(planned)),))
    for point in assumptions.points:
        try:
            if any(point.reads(other) == point.reads(leaf) for other in others for leaf in leaves):
                continue
            mine = point.value(planned)
            true = sum((slope_at(point, e, leaves) * (1 if f is None else point.value(f)) for e, f in parts), mp.mpf(0))
        except (Undefined, OverflowError):
            continue
        if clearly_different(mine, true):
            read = (*(e for e, _ in parts), *(f for _, f in parts), planned)
            return _refuted(point, read, (mine, true), ("planned", "true"), (text(planned), ""))
    return Unknown("sympy", f"{reason}, and no point tells them apart")


def slope_at(point: Point, e: Expr, leaves: tuple[Expr, ...]) -> Any:
    """d e / d leaf in numbers, by differences with 40 digits: no rule of differentiation enters. Raises `Undefined`."""
    at, step = point.value(leaves[0]), mp.mpf("1e-15")
    left, right = (point.moved(leaves, at + side * step).value(e) for side in (-1, 1))
    middle = point.value(e)
    if clearly_different((right - middle) / step, (middle - left) / step):
        raise Undefined  # a kink
    return (right - left) / (2 * step)


def quotient(a: Expr, b: Expr, symbols: tuple[str, ...], assumptions: Assumptions, work: Work) -> str | None:
    """a / b as the language writes it, where it is short and reads these float symbols alone."""
    try:
        with work.watched():
            reading = Reading(assumptions, work)
            term = sp.powsimp(expanded(reading.term(a), work) / expanded(reading.term(b), work))
    except (OutOfTime, OutOfWork):
        return None
    if {str(s) for s in term.free_symbols} - set(symbols) or len(str(term)) > 40:
        return None
    return str(term)
