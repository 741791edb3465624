"""A row that meets no key gives out 0, the lse of an empty sum, and no gradients of q, k and v.

Its denominator is what is added to the sum, E: lse is log E, and its gradient goes to E. Without E, or where it is 0,
lse is -inf, and where nothing is divided by it is 0. A row whose denominator is 0 gives out 0, an lse of -inf and zero
gradients.

Takes the attention, the plan and the work that is allowed, returns claims. What the kernels evaluate (`recurrence`) is
executed on the state of such a row, case by case over the denominator's extra term, with values known exactly where
they are and as intervals where they are not; every choice must come out decided, and no NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

from attngen.errors import Span
from attngen.ir import build, printing, walk
from attngen.ir.attention import Attention
from attngen.ir.build import add, apply, mul, real, select, sub
from attngen.ir.nodes import Expr, Op, Symbol, Type
from attngen.plan.kernel import KernelPlan
from attngen.plan.score.weights import LOG2E, Form, M, S
from attngen.prove.budget.watchdog import OutOfTime
from attngen.prove.budget.work import OutOfWork, Work
from attngen.prove.intervals import interval_type as i
from attngen.prove.intervals.input_boxes import LEAST, LEAST_SCORE
from attngen.prove.intervals.interval_type import Interval
from attngen.prove.intervals.ranges import Ranges
from attngen.prove.obligations import recurrence as kernel
from attngen.prove.obligations.finite import Finiteness
from attngen.prove.search.wording import BY, example, nothing_found
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown

ZERO = i.point(0.0)
_EXECUTION = 10_000
"""Units for the steps of a row without keys."""
ALLOWED, DP, DELTA, D_LSE = (
    Symbol("allowed", Type.BOOL),
    *(Symbol(n, Type.FLOAT) for n in ("dp", "delta", "d_lse")),
)


def empty_rows(attention: Attention, plan: KernelPlan, work: Work) -> tuple[Claim, ...]:
    claims: list[Claim] = []
    try:
        with work.watched():
            work.spend(_EXECUTION)
            claims.append(_forward(plan))
            claims.append(_backward(plan))
            claims += _vanished(plan, work)
    except (OutOfTime, OutOfWork) as stop:
        sentence = "a row without a key gives 0 and no gradient"
        claims.append(Claim("empty rows", sentence, Unknown(BY, stop.reason), span=attention.score.span))
    return tuple(claims)


class _Execution:
    """Collects what is expected of values, and what came out otherwise."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.wrong: list[str] = []

    def expect(self, what: str, e: Expr, at: Ranges, wanted: Interval, shown: str) -> None:
        value = at.of(kernel.resolved(e, at))
        same = _same(value, wanted)
        (self.steps if same else self.wrong).append(f"{what} = {shown if same else value}")

    def certain(self, what: str, condition: Expr, at: Ranges) -> None:
        truth = at.truth(condition)
        certain = truth.can_hold and not truth.can_fail
        (self.steps if certain else self.wrong).append(what if certain else f"not certain: {what}")

    def same(self, what: str, found: Expr, wanted: Expr, shown: str) -> None:
        same = found == wanted
        (self.steps if same else self.wrong).append(f"{what} = {shown if same else printing.expression(found)}")

    def claim(self, subject: str, sentence: str, span: Span) -> Claim:
        if self.wrong:
            return Claim(subject, sentence, Unknown(BY, "; ".join(self.wrong)), span=span)
        return Claim(subject, sentence, Proved(f"{BY}, {len(self.steps)} steps", tuple(self.steps)), span=span)


def _same(value: Interval, wanted: Interval) -> bool:
    infinite = (value.minus or value.masked, value.plus) == (wanted.minus or wanted.masked, wanted.plus)
    ends = (value.low, value.high) == (wanted.low, wanted.high) or not (value.has_finite or wanted.has_finite)
    return infinite and ends and not value.nan


def _forward(plan: KernelPlan) -> Claim:
    """The tiles that a row without keys may still walk leave its state alone; the finish makes 0 and lse of it."""
    w = plan.weights
    found = _Execution()
    if w.form is Form.DIRECT:
        weight = select(ALLOWED, kernel.X, real(0.0))
        at = kernel.place(plan, row_sum=ZERO, acc=ZERO).given(ALLOWED, holds=False)
        found.expect("weight of a masked pair", weight, at, ZERO, "0")
        extras = (("", ZERO),) if w.extra is None else (("E = 0: ", ZERO), ("E > 0: ", kernel.POSITIVE))
        finish = kernel.finish_direct(sums=w.sums, extra=w.extra is not None)
    else:
        at = kernel.place(plan, row_max=kernel.MINUS_INFINITY, tile_max=kernel.MINUS_INFINITY, x=kernel.MINUS_INFINITY)
        at = at.with_interval(kernel.ROW_SUM, ZERO).with_interval(kernel.ACC, ZERO)
        at = at.given(ALLOWED, holds=False)
        found.expect("in a masked tile: maximum", kernel.NEW_MAX, at, kernel.MINUS_INFINITY, "-inf")
        rescale = apply(Op.EXP2, kernel.RESCALE)
        found.expect("factor of the sums", rescale, at, ZERO, "exp2(-inf - 0) = 0")
        weight = (
            apply(Op.EXP2, kernel.WEIGHT)
            if w.form is Form.EXPONENTIAL
            else select(ALLOWED, kernel.V, real(0.0))  # masked after it is computed
        )
        found.expect("weight of a masked pair", weight, at, ZERO, "0")
        found.expect("row_sum", add(mul(kernel.ROW_SUM, rescale), weight), at, ZERO, "0 * 0 + 0 = 0")
        extras = (
            (("", ZERO),) if w.log_extra is None else (("E = 0: ", kernel.MINUS_INFINITY), ("E > 0: ", kernel.FINITE))
        )
        finish = kernel.finish_shifted(exponential=w.form is Form.EXPONENTIAL, extra=w.log_extra is not None)
    for case, extra in extras:
        here = at.with_interval(kernel.EXTRA, extra).with_interval(kernel.TOTAL, kernel.MINUS_INFINITY)
        if case == "E > 0: ":
            log = apply(Op.LOG, kernel.EXTRA) if w.form is Form.DIRECT else kernel.EXTRA
            found.same(f"{case}lse", _of_extra_alone(finish.lse, here), log, "log E")
            found.expect(f"{case}out", _of_extra_alone(finish.acc, here), here, ZERO, "0")
            continue
        found.expect(f"{case}out", finish.acc, here, ZERO, "0")
        if not w.sums:
            found.expect("lse", finish.lse, here, ZERO, "log 1 = 0")
        else:
            found.certain(f"{case}the denominator is found to be 0", finish.empty, here)
            found.expect(f"{case}lse", finish.lse, here, kernel.MINUS_INFINITY, "-inf")
    lse = "log E, -inf for E = 0" if len(extras) > 1 else "-inf" if w.sums else "0"
    sentence = f"a row without keys gives out = 0 and lse = {lse}"
    return found.claim("forward", sentence, plan.attention.normalizer.span)


def _of_extra_alone(e: Expr, at: Ranges) -> Expr:
    """`e` where there is the extra term alone, and not 0: choices made, and what is certain of such a row put in.

    A finite number less itself is 0, exactly. The maximum of -inf and a finite number is that number.
    """
    certain: dict[Expr, Expr] = {kernel.ROW_SUM: real(0.0)}
    if _same(at.of(kernel.TOTAL), kernel.MINUS_INFINITY):
        certain[kernel.MERGED] = kernel.EXTRA
    away: dict[Expr, Expr] = {sub(kernel.EXTRA, kernel.EXTRA): real(0.0)}
    away[mul(real(0.0), apply(Op.EXP2, sub(kernel.TOTAL, kernel.EXTRA)))] = real(0.0)  # 0 * exp2(-inf)
    for known in (certain, away):
        e = walk.transform(kernel.resolved(e, at), known.get)
    return e


def _backward(plan: KernelPlan) -> Claim:
    """No pair of such a row passes anything on: p and ds are 0. The extra term has all of the row's share, or none."""
    w = plan.weights
    found = _Execution()
    at = kernel.place(plan, dp=kernel.FINITE, d_lse=kernel.FINITE, x=kernel.FINITE).given(ALLOWED, holds=False)
    delta = sub(real(0.0), D_LSE)  # rowsum(d_out * out) - d_lse, of an out that is 0
    g = sub(DP, delta) if w.sums else DP
    sentence = "a row without keys has zero gradients"
    if w.extra is not None:
        sentence = "a row without keys has zero gradients, but that of lse, which goes to log E"
    if w.form is Form.DIRECT:
        masked = select(ALLOWED, kernel.X, real(0.0))
        found.expect("p of a masked pair", masked, at, ZERO, "0")
        found.expect("ds", mul(masked, g), at, ZERO, "0 * (dp - delta) = 0")
        if w.sums:
            den = apply(Op.DIV, real(1.0), kernel.TOTAL)
            here = at.with_interval(kernel.TOTAL, kernel.PLUS_INFINITY)
            found.expect("1 / den, stored as inf", den, here, ZERO, "0")
            if w.extra is not None:
                share = mul(mul(build.neg(delta), den), kernel.V)
                here = here.with_interval(kernel.V, kernel.FINITE)
                found.expect("E = 0: share of the extra term", share, here, ZERO, "0")
                found.steps.append(
                    "E > 0: den = E, which gets -delta / E = d_lse / E, the derivative of log E times d_lse"
                )
        return found.claim("backward", sentence, plan.attention.normalizer.span)
    lse = Symbol("lse", Type.FLOAT)
    stored = select(apply(Op.EQ, lse, kernel.NONE), real(float("inf")), mul(lse, real(LOG2E)))
    at = at.with_interval(lse, kernel.MINUS_INFINITY)
    found.expect("row_lse", stored, at, kernel.PLUS_INFINITY, "inf, for an lse of -inf")
    at = at.with_interval(kernel.ROW_LSE, kernel.PLUS_INFINITY)
    if w.form is Form.EXPONENTIAL:
        p = apply(Op.EXP2, sub(mul(kernel.X, kernel.FACTOR), kernel.ROW_LSE))
        found.expect("p, even before the mask", p, at, ZERO, "exp2(x - inf) = 0")
    else:
        p = select(ALLOWED, kernel.V, real(0.0))
        found.expect("p of a masked pair", p, at, ZERO, "0")
    found.expect("ds", mul(p, g), at, ZERO, "0 * (dp - delta) = 0")
    if w.log_extra is not None:
        share = apply(Op.EXP2, sub(kernel.EXTRA, kernel.ROW_LSE))
        here = at.with_interval(kernel.EXTRA, kernel.MINUS_INFINITY)
        found.expect("E = 0: share of the extra term", share, here, ZERO, "exp2(-inf - inf) = 0")
        here = at.with_interval(lse, kernel.FINITE).with_interval(kernel.EXTRA, kernel.FINITE)
        here = here.with_interval(kernel.ROW_LSE, kernel.FINITE)
        masked = select(ALLOWED, kernel.V, real(0.0))  # whatever its weight is, relative to log E
        found.expect("E > 0: p of a masked pair", masked, here, ZERO, "0")
        found.expect("E > 0: ds", mul(masked, g), here, ZERO, "0 * (dp - delta) = 0")
        alone = walk.substitute(share, {kernel.ROW_LSE: kernel.EXTRA})
        shown = "exp2(log E - log E) = 1: log E gets -delta = d_lse"
        found.same("E > 0: share of the extra term", _of_extra_alone(alone, here), real(1.0), shown)
    return found.claim("backward", sentence, plan.attention.normalizer.span)


# ---------------------------------------------------------------- keys, but no weight


def _vanished(plan: KernelPlan, work: Work) -> Iterator[Claim]:
    """A row that has keys, all of weight 0."""
    w = plan.weights
    span = plan.attention.normalizer.span
    if not w.sums:
        return
    sentence = "a row whose denominator is 0 gives out = 0, lse = -inf and zero gradients"
    match w.form:
        case Form.EXPONENTIAL:
            step = "the key that has the maximum has weight exp2(0) = 1: with a key, the denominator is at least 1"
            yield Claim("denominator 0", sentence, Proved(BY, (step,)), span=span)
        case Form.DIRECT:
            yield _vanished_direct(plan, sentence)
        case Form.SHIFTED:
            yield _vanished_shifted(plan, work, sentence)


def _vanished_direct(plan: KernelPlan, sentence: str) -> Claim:
    w = plan.weights
    found = _Execution()
    at = kernel.place(plan, row_sum=ZERO, acc=kernel.FINITE, extra=ZERO)
    finish = kernel.finish_direct(sums=True, extra=w.extra is not None)
    found.certain("the row is found empty", finish.empty, at)
    found.expect("out", finish.acc, at, ZERO, "0")
    found.expect("lse", finish.lse, at, kernel.MINUS_INFINITY, "-inf")
    at = kernel.place(plan, total=kernel.PLUS_INFINITY, x=kernel.FINITE, dp=kernel.FINITE, d_lse=kernel.FINITE)
    p = mul(kernel.X, apply(Op.DIV, real(1.0), kernel.TOTAL))
    found.expect("p = weight * (1 / den), with den stored as inf", p, at, ZERO, "0")
    found.expect("ds = slope * (1 / den) * (dp - delta)", mul(p, add(DP, D_LSE)), at, ZERO, "0")
    return found.claim("denominator 0", sentence, plan.attention.normalizer.span)


def _vanished_shifted(plan: KernelPlan, work: Work, sentence: str) -> Claim:
    w = plan.weights
    span = plan.attention.normalizer.span
    own = walk.substitute(w.stream, {M: S})  # the weight of the key that has the maximum
    text = printing.expression(w.stream)
    questions = Finiteness(plan.attention, plan.facts.scale_positive, work)
    place = questions.place(LEAST, (), (own,))
    values = place.with_interval(S, i.between(-LEAST_SCORE, LEAST_SCORE)).of(own)
    if values.low > 0 and values.finite:
        step = f"the key that has the maximum m has weight {text} at s = m, in {values}: with a key, the sum is not 0"
        return Claim("denominator 0", sentence, Proved(BY, (step,)), span=span)
    found = _Execution()
    if w.log_extra is None:
        at = kernel.place(plan, row_max=kernel.FINITE, row_sum=ZERO, acc=ZERO)
        finish = kernel.finish_shifted(exponential=False, extra=False)
        found.certain("the row is found empty", finish.empty, at)
        found.expect("out", finish.acc, at, ZERO, "0")
        found.expect("lse", finish.lse, at, kernel.MINUS_INFINITY, "-inf")
        # The reference point of such a row is inf / kappa.
        at = place.with_interval(S, i.between(-LEAST_SCORE, LEAST_SCORE)).with_interval(M, kernel.PLUS_INFINITY)
        for name, e in (("p", w.stream), ("slope", w.slope)):
            if e is not None:
                found.expect(f"{name}, for a reference point of inf", e, at, ZERO, "0")
        return found.claim("denominator 0", sentence, span)
    # With an extra term far below the maximum, both parts of the denominator vanish: acc / 0.
    far = apply(Op.LT, real(150.0), sub(mul(S, w.factor), mul(w.log_extra, real(LOG2E))))
    inside = (apply(Op.LE, S, real(LEAST_SCORE)), far)
    witness = questions.search(scale_positive=True).find(apply(Op.EQ, own, real(0.0)), inside, "true")
    if witness is None:
        reason = f"the weight of the key that has the maximum may be 0: {nothing_found}"
        return Claim("denominator 0", sentence, Unknown(BY, reason), span=span)
    lines = (
        "this key alone has weight 0, and the extra term is exp2 of less than -150 relative to its score: 0 in fp32",
        "so the kernel's denominator is 0 and out = 0 / 0 = NaN; right is 0",
    )
    return Claim("denominator 0", sentence, Refuted(BY, example(witness, lines), witness.named()), span=span)
