"""The numerical obligation: nothing that the kernel computes overflows or is undefined, for inputs of a stated size.

Takes the attention, the plan and the work that is allowed, returns claims: ints have values, scores and what the kernel
makes of them are finite wherever the mask allows, exponents are not positive, sums stay finite, states of -inf merge
without NaN. Shown by intervals on the plan's own expressions; what fails is refuted with inputs found by trying. What
the kernel evaluates of the state is in `recurrence`; sums and weights without a running maximum are in `weight_range`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from attngen.errors import NOWHERE, Span
from attngen.ir import build, printing, walk
from attngen.ir.attention import Attention
from attngen.ir.nodes import INDICES, MOST_SHIFTED, Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.plan.kernel import KernelPlan
from attngen.plan.score.weights import Form, S
from attngen.prove.budget.watchdog import OutOfTime
from attngen.prove.budget.work import OutOfWork, Work
from attngen.prove.intervals.input_boxes import stated
from attngen.prove.obligations import recurrence, weight_range
from attngen.prove.obligations.approximation import approximations
from attngen.prove.obligations.finite import Finiteness, Holds
from attngen.prove.obligations.fixes import fact_for, fix_of
from attngen.prove.search.witness import Witness
from attngen.prove.search.wording import BY, example, nothing_found, span_of
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict

_Check = Callable[[Finiteness, KernelPlan], Iterator[Claim]]


def range_safety(attention: Attention, plan: KernelPlan, work: Work) -> tuple[Claim, ...]:
    """The claims, in a stable order. What the work does not reach is Unknown."""
    claims: list[Claim] = []
    subject = "range safety"
    try:
        with work.watched():
            questions = Finiteness(plan.attention, plan.facts.scale_positive, work)
            for name, check in _CHECKS:
                subject = name
                found = list(check(questions, plan))
                claims += found
                if any(isinstance(c.verdict, Refuted) for c in found):
                    break  # what follows would rest on what is false
            else:
                claims = [*claims[:-1], _with_limits(claims[-1], questions, plan)]
    except (OutOfTime, OutOfWork) as stop:
        sentence = "every number that the kernel computes stays finite"
        claims.append(Claim(subject, sentence, Unknown(BY, stop.reason), span=attention.score.span))
    return tuple(claims)


def _with_limits(claim: Claim, questions: Finiteness, plan: KernelPlan) -> Claim:
    """The claim with a note of how large inputs may be: beyond that nothing is claimed."""
    a, n = plan.attention, plan.attention.normalizer
    read = [a.score, a.mask, *(e for e in (n.weight, n.extra, a.dropout) if e is not None)]
    limits = f"range-safety is claimed for {stated(questions.narrowest, a, read)}"
    return replace(claim, note="; ".join(filter(None, (claim.note, limits))))


# ---------------------------------------------------------------- ints


def _domain(questions: Finiteness, plan: KernelPlan) -> Iterator[Claim]:
    """Every `//`, `%`, int power and conversion to int has a value wherever it is evaluated."""
    a = plan.attention
    places: list[tuple[Expr, tuple[Expr, ...]]] = [(a.mask, ()), (a.score, (a.mask,))]
    places += [(i, (a.mask,)) for load in walk.loads(a.score) for i in walk.children(load)]
    n = a.normalizer
    places += [(e, ()) for e in (n.weight, n.extra, n.stream_weight, n.rescale, a.dropout) if e is not None]
    places += [(d, ()) for p in a.params for d in p.shape]
    seen = False
    for e, conditions in places:
        operations = [x for x in walk.nodes(e) if isinstance(x, Apply) and _may_lack_value(x)]
        if not operations:
            continue
        seen = True
        found = questions.defined(e, conditions)
        if isinstance(found, tuple):
            yield _undefined(a, questions, e, conditions, *found)
            return
    if seen:
        steps = ("every divisor of `//` and `%` excludes 0, no int is raised to a negative power,",)
        steps += ("and what becomes an int lies within 32 bits, wherever the mask and the branches let it count",)
        yield Claim("domain", "every int has a value", Proved(BY, steps), span=a.score.span)


def _may_lack_value(e: Apply) -> bool:
    if e.op in (Op.FLOORDIV, Op.MOD, Op.POW, Op.SHIFT_RIGHT):
        return e.type is Type.INT and not isinstance(e.args[1], Literal)
    return e.op in (Op.TO_INT, Op.FLOOR, Op.CEIL) and e.args[0].type is Type.FLOAT


def _undefined(
    a: Attention,
    questions: Finiteness,
    e: Expr,
    conditions: tuple[Expr, ...],
    node: Apply,
    witness: Witness | None,
) -> Claim:
    text = printing.expression(node)

    def fact(part: Expr) -> str:
        return fact_for(questions, part, lambda given: not isinstance(given.defined(e, conditions), tuple))

    match node.op:
        case Op.FLOORDIV | Op.MOD:
            divisor = printing.expression(node.args[1])
            sentence, wrong = f"the divisor of `{text}` is never 0", "divides by 0"
            fault = f"the divisor of `{text}` can be 0"
            fix = fact(node.args[1]) or _least_size(node.args[1])
            fix = fix or f"guard it: `… if {divisor} != 0 else …`"
        case Op.SHIFT_RIGHT:
            sentence = f"the shift of `{text}` is by 0 to {MOST_SHIFTED}"
            wrong, fix = "shifts by more, or by less than 0", _fix_for_shift(node.args[1])
            fault = f"`{text}` can shift by less than 0 or by more than {MOST_SHIFTED}"
        case Op.POW:
            sentence, wrong = f"the exponent of `{text}` is never negative", "has a negative exponent, and no int value"
            fault = f"the exponent of `{text}` can be negative"
            fix = "write float(…) around the base, or bound the exponent"
        case _:
            sentence, wrong = f"`{text}` is an int of 32 bits", "has no value as an int of 32 bits"
            fault = f"`{text}` can lie outside the ints of 32 bits"
            fix = "clamp what is converted"
    verdict: Verdict
    if witness is None:
        verdict = Unknown(BY, f"`{text}`: {nothing_found}")
    else:
        verdict = Refuted(BY, example(witness, (f"`{text}` {wrong}",)), witness.named())
    return Claim("domain", sentence, verdict, span=span_of(node, a.mask, a.score), fix=fix, fault=fault)


def _fix_for_shift(amount: Expr) -> str:
    text = printing.expression(amount)
    inside = text if isinstance(amount, Symbol | Scalar | Load) else f"({text})"
    masked = f"`… >> ({inside} & {MOST_SHIFTED})`"
    if isinstance(amount, Scalar | Load):
        masked = f"`where 0 <= {amount.param} <= {MOST_SHIFTED}` where it is declared, or {masked}"
    return f"nothing bounds `{text}` to 0 … {MOST_SHIFTED}: write {masked}"


_LONGEST = 4096


def _least_size(divisor: Expr) -> str:
    """The `assume` from which on a divisor that reads one size, and nothing else, is positive."""
    from attngen.ir.evaluate import evaluate

    match sorted(walk.symbols(divisor)):
        case [size] if size not in INDICES and not walk.params(divisor):
            values = [int(evaluate(divisor, {size: n}, {})) for n in range(1, _LONGEST + 1)]
            least = max((n for n, value in enumerate(values, 1) if value <= 0), default=0) + 1
            return f"add `assume {size} >= {least}`" if 1 < least <= _LONGEST // 2 else ""
        case _:
            return ""


# ---------------------------------------------------------------- scores


def _score(questions: Finiteness, plan: KernelPlan) -> Iterator[Claim]:
    """Every score that counts is finite, or -inf as written."""
    a, w = plan.attention, plan.weights
    found = questions.finite(a.score, (a.mask,))
    sentence = "every score that the mask allows is finite, or -inf as written"
    yield _finite_claim(questions, "score", sentence, a.score, found, (a.mask,))
    if not isinstance(found, Holds):
        return
    evaluated = [("logit", w.unit, (a.mask,)), ("logit's factor", w.factor, ())]
    if plan.ramp is not None:
        evaluated += [("rising logit", plan.ramp.logit, (a.mask,)), ("rising part of the logit", plan.ramp.rising, ())]
    for name, e, conditions in evaluated:
        if e != a.score and not isinstance(e, Literal):
            sentence = f"the {name} that the kernel evaluates is finite: {printing.expression(e)}"
            yield _finite_claim(questions, name, sentence, e, questions.finite(e, conditions), conditions)


def _finite_claim(
    questions: Finiteness,
    subject: str,
    sentence: str,
    e: Expr,
    found: Holds | Witness | None,
    conditions: tuple[Expr, ...] = (),
) -> Claim:
    a = questions.attention
    verdict: Verdict
    span, fix, fault = span_of(e, a.score), "", ""
    match found:
        case Holds():
            assumed = stated(found.box, a, (e, a.mask))
            sentence = f"{sentence}; for {assumed}" if assumed else sentence
            verdict = Proved(BY, (f"{printing.expression(e)} in {found.values}",))
        case Witness():
            text = printing.expression(found.node)
            lines = (f"`{text}` is {_number(found.result)}{_of(found)}", "a score must be finite, or -inf as written")
            lines = lines if subject in ("score", "logit") else lines[:1]
            verdict = Refuted(BY, example(found, lines), (*found.named(), (text, _number(found.result))))
            span, fix = span_of(found.node, a.score, e), fix_of(questions, found, e, conditions)
            fault = f"the {subject} can be {'NaN' if math.isnan(found.result) else 'infinite'}"
            span = span if span != NOWHERE else a.normalizer.span  # a part of the normalizer's lines
        case None:
            verdict = Unknown(BY, nothing_found)
    return Claim(subject, sentence, verdict, span=span, fix=fix, fault=fault)


def _of(w: Witness) -> str:
    """`: 1 / 0`, from the values of the operands."""
    if not isinstance(w.node, Apply) or not w.operands:
        return ""
    operands = [(x, v) for x, v in zip(w.node.args, w.operands, strict=True) if not isinstance(x, Literal)]
    parts = ", ".join(f"{printing.expression(x)} = {v:.9g}" for x, v in operands)
    return f", where {parts}" if parts else ""


def _number(x: float) -> str:
    return "NaN" if x != x else f"{x:g}"


# ---------------------------------------------------------------- the rest


def _infinite_scores(questions: Finiteness, plan: KernelPlan) -> Iterator[Claim]:
    """A score of -inf, where the spec writes one, counts as masked. That of an exponential is the streaming's claim."""
    a, w = plan.attention, plan.weights
    written = any(isinstance(node, Literal) and math.isinf(node.value) for node in walk.nodes(a.score))
    if w.form is Form.EXPONENTIAL or not written:
        return
    sentence = "a score of -inf has weight 0, and passes on no gradient"
    parts = [walk.substitute(e, {S: build.real(-math.inf)}) for e in (w.stream, w.slope) if e is not None]
    found = questions.true(build.conjunction(*(build.apply(Op.EQ, e, build.real(0.0)) for e in parts)))
    verdict: Verdict = Proved(BY)
    if isinstance(found, Witness):
        verdict = Refuted(BY, example(found, ("the weight of a score of -inf is not 0",)), found.named())
    elif found is None:
        verdict = Unknown(BY, nothing_found)
    fix = "" if isinstance(verdict, Proved) else "mask such pairs instead"
    yield Claim("infinite scores", sentence, verdict, span=a.score.span, fix=fix)


def _factor(questions: Finiteness, plan: KernelPlan) -> Iterator[Claim]:
    """The logit's factor, and a shifted weight's kappa, are positive: the maximum is that of the exponents."""
    w = plan.weights
    if w.form is Form.DIRECT:
        return
    found = questions.true(build.apply(Op.LT, build.real(0.0), w.factor))
    text = printing.expression(w.factor)
    sentence = f"the factor of the logits is positive: {text}"
    span = span_of(w.factor, *(e for e in (plan.attention.normalizer.rescale, plan.attention.score) if e is not None))
    match found:
        case None:
            yield Claim("factor", sentence, Unknown(BY, nothing_found), span=span)
        case Witness():
            lines = recurrence.wrong_direction(plan, found)
            fix = "write the exponent so that it rises with the score, or add a `where` that makes its factor positive"
            verdict = Refuted(BY, example(found, lines), found.named())
            yield Claim("factor", sentence, verdict, span=span, fix=fix)
        case box:
            assumed = stated(box, plan.attention, (w.factor,))
            sign = "; the launcher takes the scale's sign into q" if walk.reads(w.factor, "scale") else ""
            values = questions.values(w.factor, (), box)
            yield Claim("factor", sentence + sign, Proved(BY, (f"{text} in {values}; for {assumed}",)), span=span)


def _exponents(questions: Finiteness, plan: KernelPlan) -> Iterator[Claim]:
    yield from recurrence.exponents(plan)
    yield from recurrence.lagging(plan)


def _derivatives(questions: Finiteness, plan: KernelPlan) -> Iterator[Claim]:
    """The derivatives that backward multiplies with are finite, so that 0 * derivative is 0 and no gradient is NaN."""
    a, w = plan.attention, plan.weights
    parts: dict[Expr, tuple[str, tuple[Expr, ...], Span]] = {
        plan.d_factor: ("q . k", (), a.score.span),
        plan.d_pair: ("q . k", (a.mask,), span_of(plan.d_pair, a.score)),
    }
    for g in plan.gradients:
        leaf, param = printing.expression(g.leaf), a.param(g.param).span
        for e, conditions, line in ((g.pair, (a.mask,), a.score), (g.extra, (), a.normalizer.extra)):
            if e is not None:
                span = span_of(e, line) if line is not None else param
                parts.setdefault(e, (leaf, conditions, span if span != NOWHERE else param))
        if g.weight is not None and w.form is Form.DIRECT:
            span = span_of(g.weight, a.normalizer.weight)
            e = walk.substitute(g.weight, {S: w.unit})
            parts.setdefault(e, (leaf, (a.mask,), span if span != NOWHERE else param))
    steps: list[str] = []
    for e, (leaf, conditions, span) in parts.items():
        if isinstance(e, Literal):
            continue
        text = printing.expression(e)
        found = questions.finite(e, conditions)
        sentence = f"the derivative in {leaf} is finite: {text}"
        match found:
            case Holds():
                steps.append(f"{text} in {found.values}")
            case Witness():
                node = printing.expression(found.node)
                lines = (
                    f"the derivative in {leaf} is {text}",
                    f"`{node}` is {_number(found.result)}{_of(found)}: the gradient is NaN or infinite",
                )
                values = (*found.named(), (node, _number(found.result)))
                fix = fix_of(questions, found, e, conditions) if isinstance(found.node, Apply) else ""
                yield Claim("derivatives", sentence, Refuted(BY, example(found, lines), values), span=span, fix=fix)
                return
            case None:
                yield Claim("derivatives", sentence, Unknown(BY, nothing_found), span=span)
                return
    if steps:
        sentence = "the derivatives that backward multiplies with are finite"
        yield Claim("derivatives", sentence, Proved(BY, tuple(steps)), span=a.score.span)


def _approximations(questions: Finiteness, plan: KernelPlan) -> Iterator[Claim]:
    yield from approximations(plan)


def _dropout(questions: Finiteness, plan: KernelPlan) -> Iterator[Claim]:
    drop = plan.attention.dropout
    if drop is None:
        return
    inside = build.conjunction(build.apply(Op.LE, build.real(0.0), drop), build.apply(Op.LT, drop, build.real(1.0)))
    found = questions.true(inside)
    sentence = "the dropout probability is in [0, 1), so 1 / (1 - p) is finite"
    span: Span = drop.span if drop.span != NOWHERE else plan.attention.score.span
    match found:
        case None:
            yield Claim("dropout", sentence, Unknown(BY, nothing_found), span=span)
        case Witness():
            fix = f"add `where 0 <= {drop.param} < 1`" if isinstance(drop, Scalar) else "bound it: clamp(…, 0, 0.99)"
            lines = (f"the probability is {printing.expression(drop)}, which is not in [0, 1)",)
            yield Claim("dropout", sentence, Refuted(BY, example(found, lines), found.named()), span=span, fix=fix)
        case _:
            yield Claim("dropout", sentence, Proved(BY), span=span)


def _extra(questions: Finiteness, plan: KernelPlan) -> Iterator[Claim]:
    """The denominator's extra term is not negative; its logarithm, if that is what enters, is at worst -inf."""
    a, w = plan.attention, plan.weights
    extra = a.normalizer.extra if w.sums else None
    if extra is None or build.is_literal(extra, 0):
        return
    span = extra.span if extra.span != NOWHERE else a.normalizer.span
    positive = questions.true(build.apply(Op.LE, build.real(0.0), extra))
    text = printing.expression(extra)
    sentence = f"the denominator's extra term is not negative: {text}"
    name = next((n.param for n in walk.nodes(extra) if isinstance(n, Scalar | Load)), None)
    log = w.log_extra
    if w.form is not Form.DIRECT and log is not None and not _is_log(log, extra):
        # It enters as an exponent, so it is positive by its form; the exponent must be finite.
        sentence = f"the logarithm of the denominator's extra term is finite: {printing.expression(log)}"
        yield _finite_claim(questions, "extra term", sentence, log, questions.finite(log))
        return
    fix = f"add `where {name} >= 0`" if name is not None else "make it positive"
    match positive:
        case None:
            yield Claim("extra term", sentence, Unknown(BY, nothing_found), span=span)
        case Witness():
            lines = (
                "a row without other weight has the denominator E < 0, and an lse of log E = NaN"
                if w.form is Form.DIRECT
                else "the kernel takes log E, which is NaN",
            )
            yield Claim(
                "extra term", sentence, Refuted(BY, example(positive, lines), positive.named()), span=span, fix=fix
            )
        case _:
            yield _finite_claim(questions, "extra term", sentence + ", and finite", extra, questions.finite(extra))


def _is_log(log: Expr, extra: Expr) -> bool:
    return isinstance(log, Apply) and log.op is Op.LOG and log.args[0] == extra


_CHECKS: tuple[tuple[str, _Check], ...] = (
    ("domain", _domain),
    ("score", _score),
    ("infinite scores", _infinite_scores),
    ("factor", _factor),
    ("extra term", _extra),
    ("exponents", _exponents),
    ("sums", weight_range.sums),
    ("dropout", _dropout),
    ("derivatives", _derivatives),
    ("approximations", _approximations),
)
