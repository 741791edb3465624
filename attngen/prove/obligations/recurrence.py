"""The state of a row as the kernels keep it, and the exponents that they evaluate of it.

Takes a plan's weights, returns the expressions of `templates/`: one step over a tile, the merge of the denominator's
extra term, the finish, and what backward reads; over symbols for the state. Each is looked at case by case, a maximum
being -inf (no key yet) or finite, so that no rule about infinities is left to the eye.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from attngen.ir import build, printing, walk
from attngen.ir.build import add, apply, div, maximum, mul, real, select, sub
from attngen.ir.nodes import Apply, Expr, Op, Symbol, Type
from attngen.plan.kernel import KernelPlan
from attngen.plan.score.weights import Form
from attngen.prove.intervals import interval_type as i
from attngen.prove.intervals.input_boxes import LEAST, LEAST_SCORE
from attngen.prove.intervals.interval_type import Interval
from attngen.prove.intervals.ranges import Ranges
from attngen.prove.obligations import lemmas
from attngen.prove.search.witness import Witness
from attngen.prove.search.wording import BY
from attngen.prove.verdict import Claim, Proved, Unknown

ROW_MAX, TILE_MAX, X = (Symbol(n, Type.FLOAT) for n in ("row_max", "tile_max", "x"))
ROW_SUM, ACC, V = (Symbol(n, Type.FLOAT) for n in ("row_sum", "acc", "v"))
FACTOR, TOTAL, EXTRA, ROW_LSE = (Symbol(n, Type.FLOAT) for n in ("factor", "total", "extra", "row_lse"))
NONE = real(-math.inf)

_LARGE = 2.0**60
MINUS_INFINITY = Interval(math.inf, -math.inf, minus=True)
PLUS_INFINITY = Interval(math.inf, -math.inf, plus=True)
FINITE = i.between(-_LARGE, _LARGE)
POSITIVE = i.between(1 / _LARGE, _LARGE)
Case = tuple[str, Interval]
STATES: tuple[Case, ...] = (("-inf", MINUS_INFINITY), ("finite", FINITE))


# ---------------------------------------------------------------- what the kernels evaluate


def _or_zero(e: Expr) -> Expr:
    """The reference point: 0 as long as no key was met."""
    return select(apply(Op.EQ, e, NONE), real(0.0), e)


NEW_MAX = maximum(ROW_MAX, TILE_MAX)
SHIFT = _or_zero(NEW_MAX)
RESCALE = mul(sub(ROW_MAX, SHIFT), FACTOR)
WEIGHT = mul(sub(X, SHIFT), FACTOR)  # x * factor - shift * factor, in one rounding
AHEAD = mul(sub(TILE_MAX, ROW_MAX), FACTOR)
MERGED = maximum(TOTAL, EXTRA)
MERGED_SHIFT = _or_zero(MERGED)
MERGE_SUMS = sub(TOTAL, MERGED_SHIFT)
MERGE_EXTRA = sub(EXTRA, MERGED_SHIFT)


@dataclass(frozen=True, slots=True)
class Finish:
    """What a row gives out: `empty` decides, `acc` is the output's element, `lse` to base e (shifted forms: base 2)."""

    empty: Expr
    acc: Expr
    lse: Expr


def finish_shifted(*, exponential: bool, extra: bool) -> Finish:
    """After the loop, the extra term merged if there is one (`total` is then the merged one)."""
    row_sum, acc, total = ROW_SUM, ACC, TOTAL
    if extra:
        scale = apply(Op.EXP2, MERGE_SUMS)
        row_sum = add(mul(ROW_SUM, scale), apply(Op.EXP2, MERGE_EXTRA))
        acc, total = mul(ACC, scale), MERGED
    nothing = apply(Op.EQ, MERGED if extra else ROW_MAX, NONE)
    empty = nothing if exponential or extra else build.disjunction(nothing, apply(Op.EQ, row_sum, real(0.0)))
    whole = select(empty, real(1.0), row_sum)
    lse = select(empty, NONE, add(total, apply(Op.LOG2, whole)))
    return Finish(empty, div(acc, whole), lse)


def finish_direct(*, sums: bool, extra: bool) -> Finish:
    """Without a running maximum: the denominator itself, or none."""
    if not sums:
        return Finish(build.FALSE, ACC, real(0.0))
    den = add(ROW_SUM, EXTRA) if extra else ROW_SUM
    empty = apply(Op.EQ, den, real(0.0))
    whole = select(empty, real(1.0), den)
    return Finish(empty, select(empty, real(0.0), div(ACC, whole)), select(empty, NONE, apply(Op.LOG, whole)))


# ---------------------------------------------------------------- looking at them


def place(plan: KernelPlan, **values: Interval) -> Ranges:
    """The state's symbols in these intervals; `factor` is positive."""
    found = Ranges(plan.attention, LEAST).with_interval(FACTOR, POSITIVE)
    for name, value in values.items():
        found = found.with_interval(Symbol(name, Type.FLOAT), value)
    return found


def resolved(e: Expr, at: Ranges) -> Expr:
    """`e` with every choice made that is certain at this place."""

    def choose(node: Expr) -> Expr | None:
        if isinstance(node, Apply) and node.op is Op.SELECT:
            truth = at.truth(node.args[0])
            if not (truth.can_hold and truth.can_fail):
                return resolved(node.args[1] if truth.can_hold else node.args[2], at)
        return None

    return walk.transform(e, choose)


def exponents(plan: KernelPlan) -> Iterator[Claim]:
    """Every exponent of the forward and backward kernels is -inf or at most 0, whatever has been met before."""
    w = plan.weights
    if w.form is Form.DIRECT:
        return
    lines: list[str] = []
    wrong: list[str] = []

    def look(what: str, e: Expr, at: Ranges) -> None:
        value = at.of(resolved(e, at))
        good = value.most <= 0 and not value.nan
        (lines if good else wrong).append(f"{what}: {'exponent' if good else 'exponent may be'} {_short(value)}")

    for (row, row_max), (tile, tile_max) in product(STATES, STATES):
        at = place(plan, row_max=row_max, tile_max=tile_max)
        look(f"rescale, row's maximum {row}, tile's {tile}", RESCALE, at)
        if w.form is Form.EXPONENTIAL:
            look(f"weight of a masked pair, row's maximum {row}, tile's {tile}", WEIGHT, _with(at, MINUS_INFINITY))
            if tile == "finite":
                look(f"weight, row's maximum {row}, x <= tile's maximum", WEIGHT, _below(_with(at, FINITE), NEW_MAX))
    if w.log_extra is not None:
        for (row, total), (other, extra) in product(STATES, STATES):
            at = place(plan, total=total, extra=extra)
            look(f"merging the extra term, maximum {row}, log E {other}: sums", MERGE_SUMS, at)
            look(f"merging the extra term, maximum {row}, log E {other}: E", MERGE_EXTRA, at)
    if w.form is Form.EXPONENTIAL:
        # lse = max + log2 row_sum, and row_sum >= 1: the maximum's own weight is exp2(0).
        at = _below(place(plan, row_max=FINITE, x=FINITE), ROW_MAX).with_interval(TOTAL, i.between(0.0, 60.0))
        look("backward, x - lse", sub(mul(sub(X, ROW_MAX), FACTOR), TOTAL), at)
        at = place(plan, row_lse=PLUS_INFINITY, x=FINITE)
        look("backward, row without keys: x - inf", sub(mul(X, FACTOR), ROW_LSE), at)
    but = (
        "; but for weights that are tried, or made where the reference lags: below"
        if plan.hopper is not None and plan.hopper.slack
        else ""
    )
    sentence = f"every exponent that the kernels evaluate is at most 0, or -inf; none is NaN{but}"
    if w.form is Form.SHIFTED:
        sentence = "every exponent of a rescaling is at most 0, or -inf; none is NaN"
    note = (
        "in fp32 the logit and the maximum are rounded apart: an exponent may exceed 0 by |logit| / 2**24, which stays "
        "below 128 for logits up to 2**30"
    )
    span = plan.attention.normalizer.span
    if wrong:
        yield Claim("exponents", sentence, Unknown(BY, "; ".join(wrong)), span=span)
        return
    yield Claim("exponents", sentence, Proved(f"{BY}, {len(lines)} cases", tuple(lines)), span=span, note=note)


def lagging(plan: KernelPlan) -> Iterator[Claim]:
    """Where the reference may lag behind the maximum, exponents exceed 0: how far, for each state of row and tile."""
    slack = plan.hopper.slack if plan.hopper is not None else 0
    if not slack:
        return
    lines: list[str] = []
    wrong: list[str] = []
    for (row, row_max), (tile, tile_max) in product(STATES, STATES):
        at = place(plan, row_max=row_max, tile_max=tile_max)
        tried = at.of(resolved(AHEAD, at))  # the exponent of the greatest weight, with the reference there is
        for moves in (False, True) if row == tile == "finite" else (tried.nan or tried.most > slack,):
            exponent = RESCALE if moves else mul(sub(ROW_MAX, _or_zero(ROW_MAX)), FACTOR)
            rescale = at.of(resolved(exponent, at))
            text = f"row's reference {row}, tile's maximum {tile}: it {'becomes the greater' if moves else 'stays'}"
            good = rescale.most <= 0 and not rescale.nan
            (lines if good else wrong).append(f"{text}; rescale: exponent {_short(rescale)}")
    at = _below(place(plan, row_max=FINITE, tile_max=FINITE, x=FINITE), NEW_MAX)
    weight = at.of(resolved(WEIGHT, at))
    if weight.most > 0 or weight.nan:
        wrong.append(f"a weight with a new reference: exponent may be {_short(weight)}")
    most, sums = 2**slack, 27 + slack
    lead = plan.hopper.lead if plan.hopper is not None else 0
    formats = "e4m3, which ends at 448" if plan.narrow else "fp16, bf16 and fp32"
    if slack > (8 if plan.narrow else 14):  # fp16 ends below 2**16, and an exponent may be rounded up
        wrong.append(f"a weight of {most} may leave {formats}")
    if not 0 <= lead <= slack:
        wrong.append(f"a new reference may lie {lead} powers of two below the maximum")
    if sums + 90 > 127:
        wrong.append(f"acc may reach 2**{sums + 90}, which leaves float32")
    sentence = (
        f"on compute capability 9.0 the reference may lag behind the maximum by {slack} powers of two: a weight "
        f"is at most {most} in {formats}, 1 <= row_sum <= {most} * number of keys"
    )
    steps = (
        *lines,
        *lemmas.lagging(slack, lead),
        f"row_sum <= 2**{sums}, |acc| <= 2**{sums} * max |v|: finite for |v| <= 2**90",
    )
    span = plan.attention.normalizer.span
    if wrong:
        yield Claim("lagging reference", sentence, Unknown(BY, "; ".join(wrong)), span=span)
        return
    note = (
        "rounded apart, an exponent of a new reference may exceed 0 by |logit| / 2**24: it stays below 15, which fp16 "
        "holds, for logits up to 2**27"
    )
    yield Claim("lagging reference", sentence, Proved(f"{BY}, sympy", steps), span=span, note=note)


def _with(at: Ranges, x: Interval) -> Ranges:
    return at.with_interval(X, x)


def _below(at: Ranges, top: Expr) -> Ranges:
    """The same place, where x <= top."""
    return at.given(apply(Op.LE, X, resolved(top, at)))


def _short(value: Interval) -> str:
    if not value.has_finite:
        return str(value)
    return ("<= 0" if value.high <= 0 else str(value)) + (" or -inf" if value.minus or value.masked else "")


def wrong_direction(plan: KernelPlan, witness: Witness) -> tuple[str, ...]:
    """What becomes of two scores where the logits' factor is not positive."""
    factor = witness.at(plan.weights.factor)
    text = printing.expression(plan.weights.factor)
    if not factor < 0:
        return (
            f"`{text}` is {'NaN' if factor != factor else f'{factor:g}'}: the maximum says nothing of the exponents",
        )
    low = min(-LEAST_SCORE, 130 / factor)
    exponent = factor * low
    return (
        f"`{text}` is {factor:g}; scores 0 and {low:g}: the maximum is 0",
        f"the exponent of the other is {factor:g} * ({low:g} - 0) = {exponent:g} > 0: exp2 of it is inf in fp32",
    )
