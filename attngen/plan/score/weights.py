"""How the kernel evaluates weights: the normalizer's lines brought to one of three forms.

Takes the attention, returns `Weights`. The forms:

* `exponential`: weight(s) = exp(kappa * s). The kernel keeps base-2 logits `x = factor * unit` and evaluates
  `exp2(factor * unit - factor * max(unit))`, so a positive factor common to a head (the softmax scale, a soft cap)
  costs one multiply-add. Backward needs the log-sum-exp alone: `p = exp2(x - lse * log2 e)`.
* `shifted`: any other weight with a running maximum; needs rescale(m, n) = exp(kappa * (m - n)), so that
  `weight(s, lse / kappa)` is the normalised weight.
* `direct`: no running maximum; the kernel keeps the plain denominator.

The denominator's extra term E enters as log E, merged at the end like one more key, so that it cannot overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from attngen.errors import Diagnostic, SpecError
from attngen.ir import build
from attngen.ir.attention import Attention
from attngen.ir.build import add, apply, div, is_literal, mul, neg, real, sub
from attngen.ir.nodes import Apply, Expr, Literal, Op, Symbol, Type
from attngen.ir.walk import children, reads, rebuild, substitute, transform
from attngen.plan.ints.facts import Facts
from attngen.plan.score.derivative import derivative

LOG2E = 1.0 / math.log(2.0)
TURNED = (Op.LT, Op.LE, Op.EQ, Op.NE, Op.SIGN, Op.FLOOR, Op.CEIL, Op.TO_INT)
"""Operations that an error of one bit may turn."""

S, M, N = Symbol("s", Type.FLOAT), Symbol("m", Type.FLOAT), Symbol("n", Type.FLOAT)


class Form(StrEnum):
    EXPONENTIAL = "exponential"
    SHIFTED = "shifted"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class Weights:
    """`logit` is the float that the running maximum sees, with `factor > 0` (see the module's docstring).

    exponential: weight = exp2(factor * unit); `natural` is kappa * score, whose derivatives the backward pass uses.
    shifted: `unit` is the score, `factor` is kappa * log2 e, `stream` is weight(s, m), `rescale` is rescale(m, n).
    direct: `unit` is the score, `stream` is weight(s).
    `slope` is d stream / d s (shifted, direct). `log_extra` is log E, per head, or None; `sums` as in the normalizer.
    """

    form: Form
    unit: Expr
    factor: Expr
    natural: Expr
    kappa: Expr
    stream: Expr
    rescale: Expr | None
    slope: Expr | None
    sums: bool
    log_extra: Expr | None
    extra: Expr | None

    @property
    def own_term(self) -> Expr | None:
        """The logarithm of the denominator's own term; None where there is none."""
        if self.log_extra is None and self.extra is not None and not is_literal(self.extra, 0):
            return apply(Op.LOG, self.extra)
        return self.log_extra


def weights(attention: Attention, facts: Facts) -> Weights:
    n = attention.normalizer
    score = gathered(converted_early(attention.score))
    one = real(1.0)
    if not n.shift or not n.sums:  # without a sum to divide by, a reference point could only be taken out again
        slope = derivative(n.weight, S) or real(0.0)
        return Weights(
            Form.DIRECT, score, one, score, one, n.weight, None, slope, n.sums, None, n.extra if n.sums else None
        )
    assert n.stream_weight is not None and n.rescale is not None
    kappa = _slope_in_m(n.rescale)
    if kappa is None:  # weight(s, m) may say it; that the two agree is for the prover
        away = _slope_in_m(n.stream_weight)
        kappa = None if away is None else neg(away)
    if kappa is None:
        raise SpecError(
            [
                Diagnostic(
                    "rescale-form",
                    f"normalizer `{n.name}`: rescale(m, n) must be an exponential of m - n",
                    n.rescale.span,
                    "write rescale(m, n) = exp(c * (m - n)), or shift = none",
                )
            ]
        )
    log_extra = (
        None if n.extra is None or build.is_literal(n.extra, 0) else logarithm(n.extra) or apply(Op.LOG, n.extra)
    )
    extra = None if log_extra is None else n.extra
    log_weight = logarithm(n.weight)
    if (
        log_weight is not None
        and derivative(log_weight, S) == kappa
        and is_zero(substitute(log_weight, {S: real(0.0)}))
    ):
        natural = mul(score, kappa)
        factor, unit = leading_factor(scaled(score, mul(kappa, real(LOG2E))), facts)
        return Weights(
            Form.EXPONENTIAL, unit, factor, natural, kappa, n.stream_weight, n.rescale, None, n.sums, log_extra, extra
        )
    slope = derivative(n.stream_weight, S) or real(0.0)
    factor = mul(kappa, real(LOG2E))
    return Weights(
        Form.SHIFTED, score, factor, score, kappa, n.stream_weight, n.rescale, slope, n.sums, log_extra, extra
    )


def _slope_in_m(e: Expr) -> Expr | None:
    """d log e / d m, where `e` is an exponential whose exponent is linear in m."""
    log = logarithm(e)
    slope = None if log is None else derivative(log, M)
    return None if slope is None or reads(slope, "s", "m", "n") else slope


def is_zero(e: Expr) -> bool:
    """Whether `e` is zero by the rules that hold for finite numbers (0 * x = 0)."""
    match e:
        case Literal():
            return e.type is not Type.BOOL and e.value == 0
        case Apply(op=Op.MUL):
            return any(is_zero(a) for a in e.args)
        case Apply(op=Op.DIV | Op.NEG):
            return is_zero(e.args[0])
        case Apply(op=Op.ADD | Op.SUB):
            return all(is_zero(a) for a in e.args)
        case _:
            return False


def logarithm(e: Expr) -> Expr | None:
    """log(e) with exponentials taken apart, or None where `e` is not built of them."""
    match e:
        case Literal():
            return real(math.log(e.value)) if e.value > 0 else None
        case Apply(op=Op.EXP):
            return e.args[0]
        case Apply(op=Op.EXP2):
            return mul(e.args[0], real(math.log(2.0)))
        case Apply(op=Op.MUL | Op.DIV):
            a, b = logarithm(e.args[0]), logarithm(e.args[1])
            if a is None or b is None:
                return None
            return add(a, b) if e.op is Op.MUL else sub(a, b)
        case Apply(op=Op.POW) if isinstance(e.args[1], Literal):
            a = logarithm(e.args[0])
            return None if a is None else mul(a, real(float(e.args[1].value)))
        case _:
            return None


def per_head(e: Expr) -> bool:
    """Whether `e` is one number for a head of a batch: free of q, k and qk."""
    return not reads(e, "q", "k", "qk")


def scaled(e: Expr, factor: Expr) -> Expr:
    """e * factor, with the per-head factor carried into sums and products until it meets a per-head part.

    Exact over the reals; in floats each term is rounded once, as before. `slope[h] * distance` times log2(e) becomes
    `(slope[h] * log2 e) * distance`: the product in brackets is computed once a head.
    """
    if per_head(e):
        return mul(e, factor)
    if isinstance(e, Apply):
        a, b, c = (*e.args, *e.args, *e.args)[:3]  # a one-armed operation has one argument, a select three
        match e.op:
            case Op.ADD | Op.SUB:
                return apply(e.op, scaled(a, factor), scaled(b, factor))
            case Op.NEG:
                return neg(scaled(a, factor))
            case Op.MUL if per_head(b):
                return _product(a, mul(b, factor)) if not _is_sum(a) else scaled(a, mul(b, factor))
            case Op.MUL if per_head(a):
                return _product(b, mul(a, factor)) if not _is_sum(b) else scaled(b, mul(a, factor))
            case Op.DIV if per_head(b):
                return scaled(a, div(factor, b))
            case Op.SELECT:
                return build.select(a, scaled(b, factor), scaled(c, factor))
            case _:
                pass
    return _product(e, factor)


def _product(e: Expr, factor: Expr) -> Expr:
    """e * factor, where `log(x) * log2(e)` is log2(x): chips have logarithms to base 2."""
    rest = _without_log2e(factor) if isinstance(e, Apply) and e.op is Op.LOG else None
    return mul(e, factor) if rest is None or not isinstance(e, Apply) else mul(apply(Op.LOG2, *e.args), rest)


def _without_log2e(factor: Expr) -> Expr | None:
    """The factor divided by log2(e), where it is a product with it."""
    match factor:
        case Literal(value=value):
            return real(1.0) if value == LOG2E else None
        case Apply(op=Op.MUL, args=(a, b)):
            left, right = _without_log2e(a), _without_log2e(b)
            return mul(left, b) if left is not None else None if right is None else mul(a, right)
        case _:
            return None


def _is_sum(e: Expr) -> bool:
    return isinstance(e, Apply) and e.op in (Op.ADD, Op.SUB, Op.NEG)


def gathered(e: Expr, *, turns: bool = False) -> Expr:
    """`e` with the per-head factors of each product of floats put together: `qk * scale / cap` is `qk * (scale / cap)`.

    What is in brackets is computed once a head; a division for every pair would cost as much as an exponential.
    `turns`: `e` is compared or becomes an int or a sign, so that its last bit may decide; there only powers of two
    are put together, which round nothing.
    """

    def product(node: Expr) -> Expr | None:
        if not isinstance(node, Apply):
            return None
        if node.op in TURNED and not turns:
            return rebuild(node, tuple(gathered(c, turns=True) for c in node.args))
        if node.op not in (Op.MUL, Op.DIV) or node.type is not Type.FLOAT:
            return None
        factor, rest = split_factor(node)
        if per_head(node) or build.is_literal(factor, 1) or (turns and not _rounds_nothing(node)):
            return None
        return mul(rebuild(rest, tuple(gathered(c, turns=turns) for c in children(rest))), factor)

    return transform(e, product)


def _rounds_nothing(e: Expr) -> bool:
    """Whether the per-head factors of a product are powers of two."""
    match e:
        case Literal(type=Type.FLOAT, value=value):
            return abs(math.frexp(value)[0]) == 0.5
        case Apply(op=Op.MUL | Op.DIV | Op.NEG, args=args):
            return all(_rounds_nothing(a) for a in args)
        case _:
            return not per_head(e)


def converted_early(e: Expr) -> Expr:
    """`e` with distances between positions taken in floats: `float(|q - k|)` is `|float(q) - float(k)|`.

    A row's and a column's positions are converted once; converting every pair would cost as much as an exponential.
    Exact while lengths are below 2**24. Only positions, lengths and small numbers are: other integers may be large.
    """

    def conversion(node: Expr) -> Expr | None:
        if isinstance(node, Apply) and node.op is Op.TO_FLOAT and is_distance(node.args[0]):
            return _in_floats(node.args[0])
        return None

    return transform(e, conversion)


def is_distance(e: Expr) -> bool:
    """Whether `e` is made of positions and lengths by operations that commute with the conversion to float."""
    if isinstance(e, Symbol):
        return e.id in ("q", "k", "Sq", "Sk")
    if isinstance(e, Literal):
        return e.type is Type.INT and abs(e.value) < 2**16
    commutes = (Op.ADD, Op.SUB, Op.NEG, Op.ABS, Op.MIN, Op.MAX)
    return isinstance(e, Apply) and e.op in commutes and all(is_distance(a) for a in e.args)


def _in_floats(e: Expr) -> Expr:
    if isinstance(e, Apply) and reads(e, "q") and reads(e, "k"):
        return apply(e.op, *(_in_floats(a) for a in e.args), span=e.span)
    return apply(Op.TO_FLOAT, e)


def leading_factor(e: Expr, facts: Facts) -> tuple[Expr, Expr]:
    """`(factor, unit)` with e = factor * unit, the factor per head and positive for certain; `(1, e)` otherwise."""
    if isinstance(e, Apply) and e.op is Op.MUL:
        a, b = e.args
        if per_head(b) and facts.is_positive(b):
            inner, unit = leading_factor(a, facts)
            return mul(b, inner), unit
        if per_head(a) and facts.is_positive(a):
            inner, unit = leading_factor(b, facts)
            return mul(a, inner), unit
    return real(1.0), e


def split_factor(e: Expr) -> tuple[Expr, Expr]:
    """`(factor, rest)` with e = factor * rest and the factor per head, of any sign: it stays outside the loops."""
    if per_head(e):
        return e, real(1.0)
    if isinstance(e, Apply):
        if e.op is Op.MUL:
            first, rest_a = split_factor(e.args[0])
            second, rest_b = split_factor(e.args[1])
            return mul(first, second), mul(rest_a, rest_b)
        if e.op is Op.NEG:
            factor, rest = split_factor(e.args[0])
            return neg(factor), rest
        if e.op is Op.DIV and per_head(e.args[1]):
            factor, rest = split_factor(e.args[0])
            return div(factor, e.args[1]), rest
    return real(1.0), e
