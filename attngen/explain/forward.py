"""The forward rungs: from the dense definition to the pass that the kernel makes, its last division and its lse.

Takes a `Setting`, returns `Step`s. A normalizer without a running maximum skips the rungs that it does not need, and
says why it does not need them. What a tile is, and which are visited, is in `tiles`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import assert_never

from attngen.explain import notation as n
from attngen.explain.formulas import SYMBOLS, Writer
from attngen.explain.notation import Code, Math, Prose, prose
from attngen.explain.steps import (
    ACC_I,
    ACC_NEW,
    DEN_I,
    J_IN_KEYS,
    KEY,
    KEYS_I,
    LSE_I,
    M_I,
    M_NEW,
    MINUS_INFINITY,
    MU_I,
    O_I,
    ONE,
    P_IJ,
    Q_I,
    QUERY,
    S_IJ,
    SUM_I,
    SUM_NEW,
    TOP_I,
    V_J,
    X_IJ,
    Z_IJ,
    ZERO,
    Line,
    Setting,
    Step,
    formula,
)
from attngen.explain.tiles import tiles, visited
from attngen.ir import build
from attngen.ir.nodes import Apply, Expr, Op, Symbol, Type
from attngen.ir.walk import reads
from attngen.plan.score.weights import Form, M, N
from attngen.prove.verdict import Obligation

LOG2E = build.real(1.0 / math.log(2.0))
_S, _M, _N = n.atom("s"), n.atom("m"), SYMBOLS["n"]
_Y, _C = n.atom("y"), n.atom("c")
_X, _REF = Symbol("x", Type.FLOAT), Symbol("ref", Type.FLOAT)


def forward(at: Setting) -> Iterator[Step]:
    yield _definition(at)
    match at.form:
        case Form.EXPONENTIAL | Form.SHIFTED:
            yield _safe(at)
            yield _online(at)
            yield _one_pass(at)
        case Form.DIRECT:
            yield _unshifted(at)
        case _:
            assert_never(at.form)
    yield tiles(at)
    yield visited(at, at.plan.keys)
    match at.form:
        case Form.EXPONENTIAL:
            yield _base_two(at)
        case Form.SHIFTED:
            yield _rescaling_in_base_two(at)
        case Form.DIRECT:
            pass
        case _:
            assert_never(at.form)
    if at.extra is not None and at.form is not Form.DIRECT:
        yield _extra(at, at.extra)
    yield _finish(at)
    if at.attention.dropout is not None:
        yield _dropout(at, at.write(at.attention.dropout))


# ---------------------------------------------------------------- the definition


def _definition(at: Setting) -> Step:
    result: list[Line] = []
    if at.sums:
        total = n.big_sum(J_IN_KEYS, at.weight())
        result.append((DEN_I, total if at.extra is None else n.plus(total, at.write(at.extra))))
    result += [(P_IJ, at.share()), (O_I, n.big_sum(J_IN_KEYS, at.dropped(P_IJ, V_J)))]
    says = prose(
        "{s} is the score of query {i} and key {j}, and {keys} holds the keys that the query may see. The dense form "
        "writes every score down: memory grows with the product of the lengths. A query that sees no key gets a row of "
        "zeros. ",
        s=S_IJ, i=QUERY, j=KEY, keys=KEYS_I,
    )  # fmt: skip
    if at.drops:
        says += prose(
            "Dropout multiplies each pair by {z}, which is 0 or makes up for the pairs that are lost. ", z=Z_IJ
        )
    if at.attention.mask != at.plan.attention.mask:
        says += prose("A score of {minus_infinity} counts as masked. ", minus_infinity=MINUS_INFINITY)
    return Step(
        f"Dense {at.attention.normalizer.name}: the definition",
        says + _given(at),
        (formula((S_IJ, at.write(at.attention.score)), (KEYS_I, _allowed(at))), *at.where(), formula(*result)),
        prose("the definition; the score of a pair depends on that pair alone, and is whole before it is weighed"),
        (Obligation.LOCALITY,),
    )


def _allowed(at: Setting) -> Math:
    inside = n.compared(ZERO, ("<=", KEY), ("<", SYMBOLS["Sk"]))
    mask = at.attention.mask
    if mask == build.TRUE:
        return n.such_that(KEY, inside)
    parts = mask.args if isinstance(mask, Apply) and mask.op is Op.AND else (mask,)
    writer = Writer(names={**at.write.names, at.attention.score: S_IJ})
    return n.such_that(KEY, n.conjoined([inside, *writer.conjuncts(parts)], "and"))


def _given(at: Setting) -> Prose:
    """The facts that the spec states, about its params and about sizes."""
    facts = [p.where for p in at.attention.params if p.where is not None]
    written = [at.write(fact) for fact in (*facts, *at.attention.assumes)]
    found: Prose = ()
    for place, fact in enumerate(written):
        before = "The file takes as given that " if place == 0 else " and " if place == len(written) - 1 else ", "
        found += (before, fact)
    return (*found, ".") if found else ()


# ---------------------------------------------------------------- with a running maximum


def _row_factor(at: Setting, m: Math) -> Math:
    """What weight(s, m) is of weight(s)."""
    return at.by(build.apply(Op.EXP, build.neg(build.mul(at.kappa, M))), m=m)


def _safe(at: Setting) -> Step:
    numerator = n.big_sum(J_IN_KEYS, at.dropped(at.moved(), V_J))
    below = SUM_I if at.extra is None else n.plus(SUM_I, n.product(_row_factor(at, M_I), at.write(at.extra)))
    return Step(
        "Safe: three passes",
        prose(
            "Each weight is taken relative to the row's maximum, so that none overflows however large the scores are. "
            "The maximum is that of the whole score, with every term and cap that the file gives it, not that of the "
            "dot products: a term added later could overflow again. Pass one finds {m}, pass two the sum {sum}, pass "
            "three the output.",
            m=M_I, sum=SUM_I,
        ),
        (
            formula(
                (M_I, n.extreme("max", J_IN_KEYS, S_IJ)),
                (SUM_I, n.big_sum(J_IN_KEYS, at.moved())),
                (O_I, n.quotient(numerator, below)),
            ),
        ),
        prose(
            "{moved}; the last factor is the row's, and cancels between numerator and denominator",
            moved=n.compared(at.moved(_S, _M), ("=", n.product(at.weight(_S), _row_factor(at, _M)))),
        ),
        (Obligation.STREAMING, Obligation.RANGE_SAFETY),
    )  # fmt: skip


def _maximum() -> Line:
    return M_NEW, n.call(r"\max", "max", M_I, S_IJ)


def _sum(at: Setting) -> Line:
    return SUM_NEW, n.plus(n.product(SUM_I, at.rescale()), at.moved(m=M_NEW))


def _online(at: Setting) -> Step:
    moved = n.compared(n.product(at.moved(_S, _M), at.rescale(_M, _N)), ("=", at.moved(_S, _N)))
    return Step(
        "Online: two passes",
        prose(
            "Maximum and sum are kept together, from {start} on. When a key raises the maximum from {m} to {new}, what "
            "has been summed is brought to the new reference point by one factor. A second pass makes the output.",
            start=n.listed(MINUS_INFINITY, ZERO), m=M_I, new=M_NEW,
        ),
        (formula(_maximum(), _sum(at)),),
        prose(
            "{moved}; by induction over the keys, {sum} is the sum of the weights relative to the maximum so far",
            moved=moved, sum=SUM_I,
        ),
        (Obligation.STREAMING, Obligation.RANGE_SAFETY),
    )  # fmt: skip


def _one_pass(at: Setting) -> Step:
    numerator = n.plus(n.product(ACC_I, at.rescale()), at.dropped(at.moved(m=M_NEW), V_J))
    return Step(
        "Attention: one pass",
        prose(
            "The division by the sum is the same for the whole row, so it can wait: the numerator {acc} is kept beside "
            "the sum, and divided once, at the end. Every key and value is then read once, and no score is stored.",
            acc=ACC_I,
        ),
        (formula(_maximum(), _sum(at), (ACC_NEW, numerator)),),
        prose("the sum over the keys is linear: a factor of the row may be taken out of it, at any time"),
        (Obligation.STREAMING,),
    )


_TO_BASE_TWO = n.compared(n.exponential(_Y), ("=", n.exponential(n.product(Writer()(LOG2E), _Y), "2")))
_MAX_SCALES = n.compared(n.call(r"\max", "max", n.product(_C, _Y)), ("=", n.product(_C, n.call(r"\max", "max", _Y))))


def _base_two(at: Setting) -> Step:
    w = at.plan.weights
    kernel = build.apply(Op.EXP2, build.sub(build.mul(w.factor, _X), build.mul(w.factor, _REF)))
    says = prose("The hardware's exponential is to base 2, so the logits are kept in base 2. ")
    identity: Prose = (_TO_BASE_TWO,)
    if build.is_literal(w.factor, 1):
        says += prose(
            "What a head shares is multiplied by {log2e} once a head, not once a pair.", log2e=at.write(LOG2E)
        )
    else:
        says += prose(
            "The factor {factor}, which the pairs of a head share, is left out of the maximum and folded into the "
            "exponent: one multiply-add and one exponential a pair.",
            factor=at.write(w.factor),
        )
        identity += prose("; {scales} for {positive}", scales=_MAX_SCALES, positive=n.compared(_C, (">", ZERO)))
        if reads(w.factor, "scale"):
            says += prose(" A scale that is not positive goes into {q} first.", q=Q_I)
    lines: list[Line] = [
        (X_IJ, at.write(w.unit)),
        (MU_I, n.extreme("max", J_IN_KEYS, X_IJ)),
        (at.moved(), at.by(kernel, x=X_IJ, ref=MU_I)),
    ]
    return Step("In base 2", says, (formula(*lines),), identity, (Obligation.RANGE_SAFETY,))


def _rescaling_in_base_two(at: Setting) -> Step:
    kernel = build.apply(Op.EXP2, build.mul(at.plan.weights.factor, build.sub(M, N)))
    return Step(
        "In base 2",
        prose("The hardware's exponential is to base 2. The rescaling is evaluated so; the weight as the file has it."),
        (formula((at.rescale(), at.by(kernel, m=M_I, n=M_NEW))),),
        (_TO_BASE_TWO,),
        (Obligation.RANGE_SAFETY,),
    )


def _extra(at: Setting, extra: Expr) -> Step:
    log_extra = at.plan.weights.log_extra
    assert log_extra is not None
    here, logit = at.times_kappa(M_I), at.write(log_extra)
    back = n.exponential(n.minus(here, TOP_I))
    return Step(
        "The denominator's extra term",
        prose(
            "The term {extra} enters last, as one more key that has a weight and no value. It is taken relative to a "
            "common reference point too, so it cannot overflow however large it is.",
            extra=at.write(extra),
        ),
        (
            formula(
                (TOP_I, n.call(r"\max", "max", here, logit)),
                (
                    SUM_NEW,
                    n.plus(n.product(SUM_I, back), at.by(build.apply(Op.EXP, build.sub(log_extra, _REF)), ref=TOP_I)),
                ),
                (ACC_NEW, n.product(ACC_I, back)),
            ),
        ),
        prose(
            "{log}: the merge with the state of a key that has this logarithm and no value",
            log=n.compared(n.call(r"\ln", "ln", at.write(extra)), ("=", logit)),
        ),
        (Obligation.STREAMING, Obligation.RANGE_SAFETY),
    )


# ---------------------------------------------------------------- without one


def _unshifted(at: Setting) -> Step:
    lines: list[Line] = [(SUM_NEW, n.plus(SUM_I, at.weight()))] if at.sums else []
    lines.append((ACC_NEW, n.plus(ACC_I, at.dropped(at.weight(), V_J))))
    if at.attention.normalizer.shift:
        says = prose("There is no sum to divide by, so a reference point could only be taken out again: none is kept. ")
    else:
        says = prose("This normalizer has no running maximum ({none}), and needs none: ", none=Code("shift = none"))
        says += _bounded(at)
    if at.sums:
        says += prose("Sum and numerator are kept side by side, from 0 on, and divided once, at the end.")
    else:
        says += prose("Rows have no denominator: each weight is final as soon as it is known.")
    return Step(
        "Attention: one pass",
        says,
        (formula(*lines),),
        prose("a sum may be taken key by key" + ("; the division is the same for the whole row" if at.sums else "")),
        (Obligation.STREAMING, Obligation.RANGE_SAFETY),
    )


def _bounded(at: Setting) -> Prose:
    weight = at.attention.normalizer.weight
    written = at.weight(_S)
    if isinstance(weight, Apply) and weight.op is Op.SIGMOID:
        between = n.compared(ZERO, ("<", written), ("<", ONE))
        return prose(
            "{between} for every score, so there is nothing to bring down and nothing to rescale. ", between=between
        )
    return prose(
        "{weight} must stay finite for every score that can occur, and then there is nothing to bring down and nothing "
        "to rescale. ",
        weight=written,
    )


# ---------------------------------------------------------------- the end


def _finish(at: Setting) -> Step:
    log_den = n.call(r"\ln", "ln", DEN_I)
    match at.form:
        case Form.EXPONENTIAL | Form.SHIFTED:
            top = TOP_I if at.extra is not None else at.times_kappa(M_I)
            lse = n.plus(top, n.call(r"\ln", "ln", SUM_I))
            lines: list[Line] = [(O_I, n.quotient(ACC_I, SUM_I)), (LSE_I, lse), (None, log_den)]
            identity = prose("the reference point's factor cancels in the quotient, and is added back in the logarithm")
        case Form.DIRECT if at.sums:
            den = SUM_I if at.extra is None else n.plus(SUM_I, at.write(at.extra))
            lines = [(DEN_I, den), (O_I, n.quotient(ACC_I, DEN_I)), (LSE_I, log_den)]
            identity = prose("the sum over all tiles is the definition's")
        case Form.DIRECT:
            lines = [(O_I, ACC_I), (LSE_I, ZERO)]
            identity = prose("the sum over all tiles is the definition's; the denominator is 1, and its logarithm 0")
        case _:
            assert_never(at.form)
    says = prose(
        "{end}. A query that met no key is written as {zero} and {nothing}{never}.".replace(
            "{end}", "At the end a row is divided once" if at.sums else "At the end the row is written"
        ).replace("{never}", ", never as 0 / 0" if at.sums else ""),
        zero=n.compared(O_I, ("=", ZERO)), nothing=n.compared(LSE_I, ("=", MINUS_INFINITY)),
    )  # fmt: skip
    shown_by = (Obligation.STREAMING, Obligation.EMPTY_ROWS)
    return Step("Finish, and the log-sum-exp", says, (formula(*lines),), identity, shown_by)


def _dropout(at: Setting, p: Math) -> Step:
    keep = n.minus(ONE, p)
    word = n.operator("Philox", *map(at.write, at.attention.counter.values()), n.roman("seed"))
    drawn = n.compared(word, (">=", n.product(p, n.power(n.atom("2"), n.atom("32")))))
    normalised = "Weights are dropped after they are normalised: {sum} counts every pair, the numerator those kept. "
    return Step(
        "Dropout",
        prose(
            (normalised if at.sums else "")
            + "The bits come from the pair's own counter and from the seed, so the backward kernels draw "
            "the same ones again, and none is stored.",
            sum=SUM_I,
        ),
        (formula((Z_IJ, n.cases(n.quotient(ONE, keep), drawn, ZERO))),),
        prose("a pair is kept with probability {keep}, so {z} is 1 on average", keep=keep, z=Z_IJ),
        (Obligation.LOCALITY,),
    )
