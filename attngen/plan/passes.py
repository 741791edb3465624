"""What each pass evaluates: the expressions that kernels print, by name, chosen once for all targets.

Takes a plan, returns a `Pass`. Targets choose where an expression is computed and how it is printed. The names:

* `unit`: the score of a pair, without the factor of the head (exponential form); `factor`: that factor, or, in the
  shifted form, what differences of reference points are multiplied by before exp2; `rise` and `row`: see `Ramp`.
* `logit`: the exponent of a pair to base 2 (exponential form), or its score.
* `stream`: the weight of a pair, a function of its score x and of its row's reference point; `slope`: its derivative
  in x; `kappa`: what the log-sum-exp, to base 2, is divided by for the reference point of the backward pass.
* `extra`: the denominator's extra term (direct form); `log2_extra`: its logarithm to base 2 (other forms).
* `value_scale`: what sums of weighted values are multiplied by, where values are 8-bit floats.
* `d_pair` and `d_factor`: what turns a pair's share of the gradient into that of q . k, for the pair and for the head.
* `pair_NAME`, `weight_NAME`, `extra_NAME`: the parts of a leaf's gradient (see `LeafGradient`).

A factor that is 1 is left out: to multiply by `factor`, `d_pair`, `d_factor` or a part of a leaf, ask whether it is
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from attngen.ir.build import is_literal, mul, real
from attngen.ir.nodes import Expr, Symbol, Type
from attngen.ir.walk import named, substitute
from attngen.plan.hopper import Fetched
from attngen.plan.kernel import KernelPlan, LeafGradient
from attngen.plan.score.weights import LOG2E, Form, M, S, Weights

X = Symbol("x", Type.FLOAT)
"""A pair's score."""
REF, ROW_REF = Symbol("ref", Type.FLOAT), Symbol("row_ref", Type.FLOAT)
"""The reference point of a pair's row, in the forward pass and in the backward pass."""

Factor: TypeAlias = Expr
"""A factor of a product. `Factor | None`: None is 1."""
Row: TypeAlias = Literal["lse", "den", "delta"]


@dataclass(frozen=True, slots=True)
class Pass:
    """`pair`: what is evaluated for each pair; `head`: what is evaluated once for a head. `fetched`: elements of pairs
    that come by tiles. `diagonals`: parts of the former that are computed once for each diagonal of a tile."""

    pair: Mapping[str, Expr]
    head: Mapping[str, Expr]
    fetched: Fetched | None = None
    diagonals: tuple[Expr, ...] = ()


def forward(plan: KernelPlan, *, scaled: bool = False) -> Pass:
    """`scaled`: each logit is multiplied by the head's factor when it is made (exponential form), not later."""
    w = plan.weights
    pair: dict[str, Expr] = {"logit": _logit(w)} if scaled else {"unit": w.unit}
    head: dict[str, Expr | None] = {}
    match w.form:
        case Form.EXPONENTIAL:
            head["factor"] = None if scaled else _factor(named(w.factor, "logit_scale"))
        case Form.SHIFTED:
            head["factor"] = named(w.factor, "logit_scale")
            pair["stream"] = substitute(w.stream, {S: X, M: REF})
        case Form.DIRECT:
            pair["stream"] = substitute(w.stream, {S: X})
            head["extra"] = w.extra
    head["log2_extra"] = _log2_extra(w)
    head["value_scale"] = _value_scale(plan, plan.numerics.raised)
    return Pass(pair, _present(head))


def hopper_forward(plan: KernelPlan) -> Pass:
    """Of the forward kernel of compute capability 9.0."""
    found = forward(plan)
    kernels = plan.hopper
    if kernels is None or kernels.forward is None:
        return found
    ramp, fetched = kernels.forward.ramp, kernels.forward.fetched
    if kernels.slack:  # weights may grow to 2**slack by themselves
        found = replace(found, head=_present({**found.head, "value_scale": _value_scale(plan, 0)}))
    if ramp is None:
        return replace(found, fetched=fetched, diagonals=plan.diagonals)
    head = {**found.head, "factor": _factor(named(ramp.factor, "logit_scale")), "rise": ramp.rise}
    return Pass({"unit": ramp.unit, "row": ramp.row}, _present(head), fetched, plan.diagonals)


def backward(plan: KernelPlan, leaves: Iterable[tuple[str, LeafGradient]], *, by_diagonal: bool = False) -> Pass:
    """`leaves`: those whose gradients the pass sums, with their names. by_diagonal: by a kernel that computes
    `diagonals`."""
    w = plan.weights
    leaves = tuple(leaves)
    pair: dict[str, Expr | None] = {"d_pair": _factor(plan.d_pair), "logit": _logit(w)}
    head: dict[str, Expr | None] = {"d_factor": _factor(plan.d_factor)}
    if w.form is not Form.EXPONENTIAL:
        assert w.slope is not None
        pair |= {"stream": _of_row(w.stream), "slope": _of_row(w.slope)}
    if w.form is Form.SHIFTED:
        head["kappa"] = named(mul(w.kappa, real(LOG2E)), "logit_scale")
    for name, g in leaves:
        pair[f"pair_{name}"] = _factor(g.pair)
        pair[f"weight_{name}"] = None if g.weight is None else _factor(_of_row(g.weight))
        head[f"extra_{name}"] = _factor(g.extra)
    if any(g.extra is not None for _, g in leaves):
        head["log2_extra"] = _log2_extra(w)
    return Pass(_present(pair), _present(head), diagonals=plan.diagonals if by_diagonal else ())


def rows(plan: KernelPlan) -> tuple[Row, ...]:
    """What the backward pass reads of each row: the log-sum-exp or the denominator, and delta, which is the product of
    the output and its gradient, less the gradient of the log-sum-exp."""
    w = plan.weights
    found: list[Row] = []
    if w.form is not Form.DIRECT:
        found.append("lse")
    elif w.sums:
        found.append("den")
    if w.sums:
        found.append("delta")
    return tuple(found)


def _logit(w: Weights) -> Expr:
    return mul(w.unit, named(w.factor, "logit_scale")) if w.form is Form.EXPONENTIAL else w.unit


def _of_row(e: Expr) -> Expr:
    return substitute(e, {S: X, M: ROW_REF})


def _log2_extra(w: Weights) -> Expr | None:
    return None if w.log_extra is None else mul(w.log_extra, real(LOG2E))


def _value_scale(plan: KernelPlan, raised: int) -> Expr | None:
    """What the products of weights and values are multiplied by, if weights are raised by 2**raised in them."""
    scale = plan.attention.value_scale
    return None if scale is None else mul(scale, real(2.0**-raised))


def _factor(e: Expr | None) -> Factor | None:
    return None if e is None or is_literal(e, 1) else e


def _present(found: Mapping[str, Expr | None]) -> dict[str, Expr]:
    return {name: e for name, e in found.items() if e is not None}
