"""The code of the Triton kernels of the backward pass.

Takes the module's frame and the sums that params' gradients need, returns the dQ and dK/dV kernels' `KernelCode`, the
`BackwardView` of what they read of each row, and a `PairView` for each leaf that has a kernel of its own.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.emit.text.render import bracket
from attngen.emit.torch_shared.leaves import leaf_name
from attngen.emit.triton.code.kernel_code import KernelCode, free_names
from attngen.emit.triton.portable.data_tests import test_view
from attngen.emit.triton.portable.forward import list_row
from attngen.emit.triton.portable.frame import Frame
from attngen.emit.triton.portable.kernels import kernel_code, padded
from attngen.emit.triton.portable.map import MapLaunches, MapView, tiles_found
from attngen.emit.triton.portable.param_gradients import PairView, RowSum, pair_view
from attngen.emit.triton.portable.views import BackwardView
from attngen.ir.nodes import Load
from attngen.ir.walk import reads
from attngen.plan import passes
from attngen.plan.kernel import Gather, LeafGradient
from attngen.plan.levels import Level
from attngen.plan.score.weights import Form

_ROW_NAMES = {"lse": ("row_lse",), "den": ("inv_den",), "delta": ("delta",)}
_OPTIONAL = ("logit", "stream", "slope", "kappa", "d_pair", "d_factor")


def backward_code(
    frame: Frame, held: Level, sums: tuple[RowSum, ...], *, by_diagonal: bool
) -> tuple[KernelCode, tuple[RowSum, ...]]:
    """The dQ kernel's code (`held` is ROW) or the dK/dV kernel's, and the sums with what each pair gives to them."""
    found = passes.backward(frame.plan, ((s.name, s.gradient) for s in sums), by_diagonal=by_diagonal)
    results, outside = dict(found.pair), dict(found.head)
    in_tile = {"kappa": True, "d_factor": held is Level.COLUMN and not _factor_is_outer(frame)}
    for name in [n for n in in_tile if n in outside]:
        (results if in_tile[name] else outside)[name] = outside.pop(name)
    code = padded(kernel_code(frame, held, replace(found, pair=results, head=outside)), *_OPTIONAL)
    return code, tuple(s.with_code(code, backward_view(frame).normalised) for s in sums)


def pair_gradient(frame: Frame, g: LeafGradient, map: MapView | None) -> PairView:
    """The kernel of one leaf whose index depends on the pair."""
    name = leaf_name(frame.plan, frame.params, g)
    own = replace(g, extra=None)  # a normalizer's arguments do not vary with the pair
    found = passes.backward(frame.plan, ((name, own),), by_diagonal=True)
    results = {**found.pair, **{n: e for n, e in found.head.items() if n == "kappa"}}
    results.pop("d_pair", None)  # q . k has no gradient here
    row_sum = RowSum(name, "", g.param, per_row=False, gradient=own)
    if g.gather is Gather.SCATTER:
        assert isinstance(g.leaf, Load)
        results.update({f"index_{i}": index for i, index in enumerate(g.leaf.indices)})
    code = padded(kernel_code(frame, Level.ROW, replace(found, pair=results, head={})), *_OPTIONAL)
    row_sum = row_sum.with_code(code, backward_view(frame).normalised)
    tests = tuple(test_view(frame, t, "k") for t in frame.plan.keys.tests)
    asks = map is not None and g.gather is not Gather.SCATTER  # the map itself, and no list
    before = (
        MapLaunches(map=map, walked="keys").made(cut=True)
        if map is not None and asks
        else tiles_found("keys", map, tests)
    )
    return pair_view(frame.plan, frame.params, g, code, row_sum.contribution, _visited(frame), before, frame.printer())


def _visited(frame: Frame) -> str:
    """Whether a tile of queries meets a tile of keys."""
    keys = frame.key_ranges()
    if keys.lists is not None:
        row = list_row(keys.lists, replace(frame.place.listed["q"], row="query_tile"))
        return f"rows.is_named(map_ptr, {row}, key_tile, tl.cdiv(Sk, BK))"
    runs = [f"((key_tile >= {r.start}) & (key_tile < {r.stop}))" for r in frame.plan.key_loops.runs]
    return " | ".join(runs) or "key_tile < 0"


def backward_view(frame: Frame) -> BackwardView:
    """Without the factors, which are known once the kernels' code is."""
    w = frame.plan.weights
    rows = passes.rows(frame.plan)
    names = [name for row in rows for name in _ROW_NAMES[row]]
    if w.form is Form.SHIFTED:
        names.insert(1, "row_ref")
    flags = tuple(
        f"GRAD_{p.name.upper()}" for p in frame.params if any(g.param == p.keyword for g in frame.plan.gradients)
    )
    return BackwardView(
        "delta" in rows,
        tuple(f"{row}_ptr" for row in rows),
        tuple(names),
        " * inv_den" if "den" in rows else "",
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
        return f" * {bracket(text)}" if text else ""

    outer = _factor_is_outer(frame)
    factor = passes.backward(frame.plan, ()).head.get("d_factor")
    return replace(
        view,
        dq_factor=times(dq.results["d_factor"]),
        dk_factor=times(frame.printer().text(factor)) if outer and factor is not None else "",
        dk_factor_in_tile="" if outer else times(dkdv.results["d_factor"]),
    )
