"""The backward rungs: from the gradient of the output to those of q, k, v and of every float param.

Takes a `Setting`, returns `Step`s: the weights again from what the forward kept, the derivative of the normalizer, that
of the score, dQ by rows and dK, dV by columns, and how each param's gradient is summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from attngen.explain import notation as n
from attngen.explain.formulas import SYMBOLS, Writer
from attngen.explain.forward import LOG2E
from attngen.explain.notation import Code, Equation, Formula, Math, Prose, prose
from attngen.explain.steps import (
    DELTA_I,
    DEN_I,
    DK_J,
    DLSE_I,
    DO_I,
    DP_IJ,
    DQ_I,
    DV_J,
    I_IN_QUERIES,
    J_IN_KEYS,
    K_J,
    LSE_I,
    MU_I,
    O_I,
    P_IJ,
    Q_I,
    QK_IJ,
    QUERIES_J,
    QUERY,
    S_IJ,
    T_IJ,
    V_J,
    X_IJ,
    Z_IJ,
    Line,
    Setting,
    Step,
    dot,
    formula,
    grad,
)
from attngen.explain.tiles import visited
from attngen.ir import build
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Symbol, Type
from attngen.ir.walk import nodes
from attngen.plan.kernel import Gather, LeafGradient
from attngen.plan.score.derivative import derivative
from attngen.plan.score.weights import Form, S
from attngen.prove.verdict import Obligation

# Quantities of the rows, as symbols that formulas are built with.
QK, X, LSE, DEN, DELTA, G = (Symbol(id, Type.FLOAT) for id in ("qk", "x", "lse", "den", "delta", "g"))


W_IJ = n.atom("w_{ij}", "w_ij")


def backward(at: Setting) -> Iterator[Step]:
    yield _weights_again(at)
    yield _normalizer(at)
    yield _score(at)
    yield _products(at)
    yield visited(at, at.plan.queries)
    if at.plan.gradients:
        yield _params(at)


# ---------------------------------------------------------------- the normalizer


def _weights_again(at: Setting) -> Step:
    lines: list[Line] = []
    kept: Math | None = LSE_I
    match at.form:
        case Form.EXPONENTIAL:
            if not at.plain:
                lines.append((T_IJ, at.times_kappa(S_IJ)))
            in_base_two = build.sub(build.mul(at.plan.weights.factor, X), build.mul(LOG2E, LSE))
            lines.append((P_IJ, n.exponential(n.minus(at.logit, LSE_I))))
            lines.append((None, at.by(build.apply(Op.EXP2, in_base_two), x=X_IJ, lse=LSE_I)))
            log_den = n.exponential(n.minus(at.logit, n.call(r"\ln", "ln", DEN_I)))
            identity: Prose = (n.compared(n.quotient(at.weight(), DEN_I), ("=", log_den)),)
        case Form.SHIFTED:
            lines.append((MU_I, at.by(build.div(LSE, at.kappa), lse=LSE_I)))
            lines.append((P_IJ, at.moved(m=MU_I)))
            identity = prose("relative to {mu}, the denominator is 1", mu=MU_I)
        case Form.DIRECT:
            lines.append((P_IJ, at.share()))
            kept = DEN_I if at.sums else None
            identity = prose("the definition")
        case _:
            assert_never(at.form)
    says: Prose = ()
    if kept is not None:
        says = prose("The forward pass keeps, beside its output, the row's {kept}. ", kept=kept)
    says += prose(
        "Each tile's weights are computed again where they are needed: the backward kernels store nothing that grows "
        "with the product of the lengths. A query that met no key has weights 0, and gets and gives no gradient."
    )
    if at.drops:
        says += prose(" The pairs that dropout kept are drawn again, bit for bit.")
    shown_by = (Obligation.STREAMING, Obligation.EMPTY_ROWS)
    return Step("Backward: the weights again", says, (formula(*lines),), identity, shown_by)


def _normalizer(at: Setting) -> Step:
    back = dot(DO_I, V_J)
    lines: list[Line] = [(DP_IJ, n.product(Z_IJ, back) if at.drops else back)]
    if not at.sums:
        says = prose(
            "Without a denominator the weights of a row do not depend on one another: no row sum is needed, and each "
            "pair's gradient is its own. "
        )
        identity = prose("the chain rule for one weight")
    else:
        couples = "The derivative of a softmax" if at.form is Form.EXPONENTIAL else "Dividing by the sum"
        says = prose(
            f"{couples} couples the weights of a row, but through one number only. {{delta}} (the papers call it D, or "
            "delta) is computed once a row, from the output and its gradient, before the loops start; it saves a pass "
            "over the keys. The gradient of the log-sum-exp, where there is one, enters through it. ",
            delta=DELTA_I,
        )
        lines.append((DELTA_I, n.minus(dot(DO_I, O_I), DLSE_I)))
        weighted = n.big_sum(J_IN_KEYS, n.product(P_IJ, DP_IJ))
        identity = prose(
            "{rule}"
            + ("" if at.form is Form.EXPONENTIAL else " for the weight {w} before the division")
            + "; {weighted}, since {out}",
            w=W_IJ,
            rule=_quotient_rule(at),
            weighted=n.compared(weighted, ("=", dot(DO_I, O_I))),
            out=n.compared(O_I, ("=", n.big_sum(J_IN_KEYS, at.dropped(P_IJ, V_J)))),
        )
    lines.append((grad(at.logit), n.product(P_IJ if at.form is Form.EXPONENTIAL else _slope(at), _difference(at))))
    says += _kinks(at.plan.weights.stream, [S])
    shown_by = (Obligation.STREAMING, Obligation.GRADIENTS)
    return Step("From the output to the scores", says, (formula(*lines),), identity, shown_by)


def _quotient_rule(at: Setting) -> Math:
    """How one weight of a row moves with the logit, or with the plain weight, of another pair."""
    other = n.atom("j'", "j′")
    same = n.bracketed(n.compared(n.atom("j"), ("=", other)))
    p_other = n.atom("P_{ij'}", "P_ij′")
    if at.form is Form.EXPONENTIAL:
        moved = n.atom(f"{at.logit.tex[0]}_{{ij'}}", f"{at.logit.text[0]}_ij′")
        return n.compared(_partial(P_IJ, moved), ("=", n.product(P_IJ, n.minus(same, p_other))))
    moved = n.atom("w_{ij'}", "w_ij′")
    return n.compared(_partial(P_IJ, moved), ("=", n.quotient(n.minus(same, P_IJ), DEN_I)))


def _slope(at: Setting) -> Math:
    """d weight / d score, normalised."""
    slope = at.plan.weights.slope
    assert slope is not None
    over = build.div(slope, DEN) if at.form is Form.DIRECT and at.sums else slope
    return at.by(over, s=S_IJ, m=MU_I, den=DEN_I)


def _difference(at: Setting) -> Math:
    """The gradient of a normalised weight."""
    return n.minus(DP_IJ, DELTA_I) if at.sums else DP_IJ


def _partial(above: Math, below: Math) -> Math:
    return Math(rf"\frac{{\partial {above.tex}}}{{\partial {below.tex}}}", f"∂{above.text}/∂{below.text}")


_KINKS = {
    Op.ABS: "the derivative of |y| at 0 is 0",
    Op.MIN: "min gives the gradient to its first argument where both are equal",
    Op.MAX: "max gives the gradient to its first argument where both are equal",
}


def _kinks(e: Expr, leaves: list[Expr]) -> Prose:
    """The side that the kernel takes where `e` has a kink in one of these."""
    found = [
        text
        for op, text in _KINKS.items()
        for node in nodes(e)
        if isinstance(node, Apply) and node.op is op and any(derivative(node, leaf) is not None for leaf in leaves)
    ]
    return prose(f"At a kink the kernel takes one side: {', '.join(dict.fromkeys(found))}. ") if found else ()


# ---------------------------------------------------------------- the score, and q, k, v


def _score(at: Setting) -> Step:
    slope = _partial(at.logit, QK_IJ)
    says = prose("The score's own derivative, written out from the file's formula. ")
    says += _kinks(at.plan.weights.natural, [QK, *(g.leaf for g in at.plan.gradients)])
    if not build.is_literal(at.plan.d_factor, 1):
        says += prose(
            "The factor {factor} is the head's: the kernels multiply by it once, after the loop.",
            factor=at.write(at.plan.d_factor),
        )
    lines: list[Line] = [
        (slope, at.write(build.mul(at.plan.d_factor, at.plan.d_pair))),
        (grad(QK_IJ), n.product(grad(at.logit), slope)),
    ]
    identity = prose("the chain rule")
    return Step("From the scores to the dot products", says, (formula(*lines),), identity, (Obligation.GRADIENTS,))


def _products(at: Setting) -> Step:
    pair, columns = grad(QK_IJ), [SYMBOLS["h"], I_IN_QUERIES]
    return Step(
        "dQ by rows, dK and dV by columns",
        prose(
            "One kernel holds a tile of queries and walks the keys, as the forward one does; another holds a tile of "
            "keys and walks the queries, {columns}, of every query head {h} that shares the keys of {hkv}. Each "
            "gradient is written once, by one program, in a fixed order: no atomic additions.",
            columns=n.compared(QUERIES_J, ("=", n.such_that(QUERY, J_IN_KEYS))),
            h=SYMBOLS["h"], hkv=SYMBOLS["hkv"],
        ),
        (
            formula(
                (DQ_I, n.big_sum(J_IN_KEYS, n.product(pair, K_J))),
                (DK_J, n.big_sum(columns, n.product(pair, Q_I))),
                (DV_J, n.big_sum(columns, at.dropped(P_IJ, DO_I))),
            ),
        ),
        prose("a sum over pairs may be taken by rows or by columns"),
        (Obligation.GRADIENTS,),
    )  # fmt: skip


# ---------------------------------------------------------------- params

_GATHERED = {
    Gather.HEAD: "one number a tile of queries, from the dQ kernel; then over the tiles",
    Gather.ROW: "one number a query, from the dQ kernel",
    Gather.COLUMN: "one number a key, from the dK/dV kernel",
    Gather.DENSE: "a kernel of its own writes each tile once, looping over what the index leaves out",
    Gather.DIAGONAL: "a kernel of its own walks the diagonals on which the distance of query and key is the same",
    Gather.SCATTER: "integer atomics on a fixed-point grid: integer sums do not depend on their order",
}


def _params(at: Setting) -> Step:
    says = prose(
        "A param's gradient is the sum of what every pair that reads it contributes, always in a fixed order, so that "
        "the bits repeat."
    )
    for name, gather in dict.fromkeys((g.param, g.gather) for g in at.plan.gradients):
        says += prose(f" {{name}}: {_GATHERED[gather]}.", name=Code(name))
    read = [g.param for g in at.plan.gradients]
    for name in dict.fromkeys(name for name in read if read.count(name) > 1):
        says += prose(" {name} is read in several places, whose parts are added.", name=Code(name))
    if any(g.extra is not None for g in at.plan.gradients):
        says += prose(" What a param does to the denominator's extra term is one more summand a row.")
    return Step(
        "The gradients of the params",
        says,
        tuple(_param(at, g) for g in at.plan.gradients),
        prose("the chain rule, summed over the pairs whose index is the param's element"),
        (Obligation.GRADIENTS, Obligation.INDEX_BOUNDS),
    )


def _param(at: Setting, g: LeafGradient) -> Formula:
    """The gradient of one leaf: a sum over pairs, and one over rows for the denominator's extra term."""
    target, free, conditions = _element(at, g)
    heads = [SYMBOLS[x] for x in ("b", "h") if x not in free]
    rows = [*heads, *([] if "q" in free else [QUERY])]
    pairs = [*rows, *([] if "k" in free else [J_IN_KEYS])]
    parts: list[tuple[bool, Math]] = []
    summands: list[tuple[bool, Math]] = []
    if g.pair is not None:
        summands.append(_signed(at.write.at(g=grad(at.logit)), build.mul(g.pair, G)))
    if g.weight is not None:
        over = build.div(g.weight, DEN) if at.form is Form.DIRECT and at.sums else g.weight
        taken, written = _signed(at.write.at(s=S_IJ, m=MU_I, den=DEN_I), over)
        summands.append((taken, n.product(written, _difference(at))))
    if len(summands) == 1:
        parts.append((summands[0][0], _summed([*pairs, *conditions], summands[0][1])))
    elif summands:
        parts.append((False, _summed([*pairs, *conditions], n.total(summands))))
    if g.extra is not None:
        taken, written = _extra(at, g.extra)
        parts.append((taken, _summed([*rows, *conditions], written)))
    (first, *others), name = parts, grad(target)
    more = (Equation(None, part, "-" if taken else "+") for taken, part in others)
    return Formula((Equation(name, n.total([first])), *more))


def _element(at: Setting, g: LeafGradient) -> tuple[Math, frozenset[str], list[Math]]:
    """The element that a leaf is, which of b, h, q, k it fixes, and the conditions on what its index computes."""
    if not isinstance(g.leaf, Load):
        return at.write(g.leaf), frozenset(), []
    computed = [e for e in g.leaf.indices if not _is_plain(e)]
    if not computed:
        return at.write(g.leaf), frozenset(e.id for e in g.leaf.indices if isinstance(e, Symbol)), []
    shown: list[Math] = []
    conditions: list[Math] = []
    for e in g.leaf.indices:
        if _is_plain(e):
            shown.append(at.write(e))
            continue
        number = str(len(conditions) + 1) if len(computed) > 1 else ""
        shown.append(n.atom(f"c_{number}" if number else "c", f"c{number}"))
        conditions.append(n.compared(at.write(e), ("=", shown[-1])))
    fixed = frozenset(e.id for e in g.leaf.indices if isinstance(e, Symbol) and _is_plain(e))
    return n.indexed(n.roman(g.param), shown), fixed, conditions


def _is_plain(e: Expr) -> bool:
    """Whether an index is one of the four positions, or a number."""
    return isinstance(e, Literal) or (isinstance(e, Symbol) and e.id in ("b", "h", "q", "k"))


def _extra(at: Setting, extra: Expr) -> tuple[bool, Math]:
    """A row's part through the extra term E: -delta (E / Z) d log E, or -delta dE / Z; its sign apart."""
    log_extra = at.plan.weights.log_extra
    if at.form is Form.DIRECT or log_extra is None:
        inner = build.div(build.mul(DELTA, extra), DEN)
    else:
        inner = build.mul(build.mul(DELTA, build.apply(Op.EXP, build.sub(log_extra, LSE))), extra)
    return _signed(at.write.at(delta=DELTA_I, den=DEN_I, lse=LSE_I), build.neg(inner))


def _signed(write: Writer, e: Expr) -> tuple[bool, Math]:
    """Whether a product is taken away, and what it is without that sign."""
    if isinstance(e, Apply) and e.op in (Op.MUL, Op.DIV, Op.NEG):
        return write.signed(e)
    return False, write(e)


def _summed(under: list[Math], body: Math) -> Math:
    """The sum of `body`, with the indices that run freely written first, in one."""
    plain = [p for p in under if p.tex_binds == n.ATOM]
    bound = [p for p in under if p.tex_binds != n.ATOM]
    first = [Math(", ".join(p.tex for p in plain), ", ".join(p.text for p in plain))] if plain else []
    return n.big_sum([*first, *bound], body) if under else body
