"""The code of the Triton kernels of the backward pass.

Takes the module's frame and the sums that params' gradients need, gives the dQ and dK/dV kernels' `KernelCode`, the
`BackwardView` of what they read of each row, and a `PairView` for each leaf that has a kernel of its own.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.emit.text.render import bracket
from attngen.emit.torch_shared.leaves import leaf_name
from attngen.emit.triton.data_tests import test_view
from attngen.emit.triton.frame import Frame
from attngen.emit.triton.kernel_code import KernelCode, free_names
from attngen.emit.triton.kernels import X, kernel_code, padded
from attngen.emit.triton.param_gradients import PairView, RowSum, pair_view
from attngen.emit.triton.views import BackwardView
from attngen.ir.build import mul, real
from attngen.ir.nodes import Expr, Load, Symbol, Type
from attngen.ir.walk import named, reads, substitute
from attngen.plan.kernel import Gather, LeafGradient
from attngen.plan.levels import Level
from attngen.plan.score.weights import LOG2E, Form, M, S

ROW_REF = Symbol("row_ref", Type.FLOAT)
GRADIENT_RESULTS = ("unit", "unit_scaled", "stream", "slope", "kappa")


def backward_code(frame: Frame, held: Level, sums: tuple[RowSum, ...]) -> tuple[KernelCode, tuple[RowSum, ...]]:
    """The dQ kernel's code (`held` is ROW) or the dK/dV kernel's, and the sums with what each pair gives to them."""
    w = frame.plan.weights
    results = {"d_pair": frame.plan.d_pair, **_results(frame)}
    outside: dict[str, Expr] = {}
    for s in sums:
        if s.pair is not None:
            results[f"pair_{s.name}"] = s.pair
        if s.weight is not None:
            results[f"weight_{s.name}"] = substitute(s.weight, {S: X, M: ROW_REF})
        if s.d_extra is not None:
            outside[f"extra_{s.name}"] = s.d_extra
    if any(s.d_extra is not None for s in sums) and w.log_extra is not None:
        outside["log2_extra"] = mul(w.log_extra, real(LOG2E))
    in_tile = held is Level.COLUMN and not _factor_is_outer(frame)
    (results if in_tile else outside)["factor"] = frame.plan.d_factor
    code = kernel_code(frame, held, results, outside)
    code = padded(code, *GRADIENT_RESULTS)
    return code, tuple(s.with_code(code, backward_view(frame).normalised) for s in sums)


def pair_gradient(frame: Frame, g: LeafGradient) -> PairView:
    """The kernel of one leaf whose index depends on the pair."""
    assert isinstance(g.leaf, Load)
    name = leaf_name(frame.plan, frame.params, g)
    results = _results(frame)
    row_sum = RowSum(name, "", g.param, False, g.pair, g.weight, None)
    if g.pair is not None:
        results[f"pair_{name}"] = g.pair
    if g.weight is not None:
        results[f"weight_{name}"] = substitute(g.weight, {S: X, M: ROW_REF})
    if g.gather is Gather.SCATTER:
        results.update({f"index_{i}": index for i, index in enumerate(g.leaf.indices)})
    code = padded(kernel_code(frame, Level.ROW, results, {}), *GRADIENT_RESULTS)
    row_sum = row_sum.with_code(code, backward_view(frame).normalised)
    runs = [f"(key_tile >= {r.start}) & (key_tile < {r.stop})" for r in frame.plan.key_loops.runs]
    view = backward_view(frame)
    key_tests = [f"key_{t.name}_{which}" for t in frame.plan.keys.tests for which in ("least", "most")]
    seed = ("seed",) if frame.plan.attention.dropout is not None else ()
    tiles = "*pairs.tiles(q, k, v, d_out)"
    call = (tiles, *view.row_tensors, "OUTPUTS", *seed, *key_tests, "*plain", "*known.strides")
    tests = tuple(
        f"key_{t.name}_least, key_{t.name}_most = "
        f"_extremes(pairs.tests[{number}], {test_view(frame, t, 'k').dtype}, q.device, plain)"
        for number, t in enumerate(frame.plan.keys.tests)
    )
    visited = " | ".join(f"({r})" for r in runs) or "key_tile < 0"
    return pair_view(frame.plan, frame.params, g, code, row_sum.contribution, visited, call, tests)


def _results(frame: Frame) -> dict[str, Expr]:
    """What every backward kernel evaluates for a pair."""
    w = frame.plan.weights
    if w.form is Form.EXPONENTIAL:
        return {"unit_scaled": mul(w.unit, named(w.factor, "logit_scale"))}
    assert w.slope is not None
    results = {
        "unit": w.unit,
        "stream": substitute(w.stream, {S: X, M: ROW_REF}),
        "slope": substitute(w.slope, {S: X, M: ROW_REF}),
    }
    if w.form is Form.SHIFTED:
        results["kappa"] = named(mul(w.kappa, real(LOG2E)), "logit_scale")
    return results


def backward_view(frame: Frame) -> BackwardView:
    """Without the factors, which are known once the kernels' code is."""
    w = frame.plan.weights
    pointers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    if w.form is not Form.DIRECT:
        pointers, names = ("lse_ptr",), ("row_lse",) if w.form is Form.EXPONENTIAL else ("row_lse", "row_ref")
    elif w.sums:
        pointers, names = ("den_ptr",), ("inv_den",)
    if w.sums:
        pointers, names = (*pointers, "delta_ptr"), (*names, "delta")
    flags = tuple(
        f"GRAD_{p.name.upper()}" for p in frame.params if any(g.param == p.keyword for g in frame.plan.gradients)
    )
    return BackwardView(
        w.form,
        w.sums,
        pointers,
        tuple(p.removesuffix("_ptr") for p in pointers),
        names,
        " * inv_den" if w.form is Form.DIRECT and w.sums else "",
        flags,
        "",
        "",
        "",
    )


def _factor_is_outer(frame: Frame) -> bool:
    """Whether dK can be multiplied by the factor at the end, after the loop over the group's heads."""
    plain = frame.printer().text(frame.plan.d_factor)
    return not reads(frame.plan.d_factor, "h") and free_names([plain]) <= {"scale", "D", "Dv", *frame.sizes}


def with_factors(frame: Frame, view: BackwardView, dq: KernelCode, dkdv: KernelCode) -> BackwardView:
    """`view` with what dQ and dK are multiplied by, and where."""

    def times(text: str) -> str:
        return "" if text == "1.0" else f" * {bracket(text)}"

    outer = _factor_is_outer(frame)
    return replace(
        view,
        dq_factor=times(dq.results["factor"]),
        dk_factor=times(frame.printer().text(frame.plan.d_factor)) if outer else "",
        dk_factor_in_tile="" if outer else times(dkdv.results["factor"]),
    )
