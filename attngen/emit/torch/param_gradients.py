"""Gradients of float params in a generated torch module: what a tile adds, and what becomes of the sums at the end.

Takes the plan's `LeafGradient`s, returns `LeafView`s for the loop and `GradientView`s for after it. The order of all
sums is fixed, so the bits repeat.
"""

from __future__ import annotations

from typing import assert_never

from attngen.emit.arrays.tile_code import TileCode
from attngen.emit.arrays.views import GradientView, LeafView
from attngen.emit.text.params import ParamView
from attngen.emit.text.precedence import times
from attngen.emit.torch.leaves import SLICES, Leaves, own_axes
from attngen.emit.torch_shared.leaves import AXES, gathered, leaf_name, reduced
from attngen.ir.nodes import Load
from attngen.plan.kernel import Gather, KernelPlan, LeafGradient
from attngen.plan.score.distance import distance_index

_SHAPES = {
    Gather.HEAD: "(B, Hq)",
    Gather.ROW: "(B, Hq, Sq)",
    Gather.COLUMN: "(B, Hq, Sk)",
    Gather.DIAGONAL: "(B, Hq, Sq + Sk - 1)",
    Gather.DENSE: "",
    Gather.SCATTER: "",
}


def leaf_views(
    plan: KernelPlan, params: tuple[ParamView, ...], leaves: Leaves, code: TileCode, normalised: str
) -> tuple[LeafView, ...]:
    positions = [v.param for v in gradient_views(plan, params)]
    found: list[LeafView] = []
    for number, g in enumerate(plan.gradients):
        name = leaf_name(plan, params, g)
        own = next(p.name for p in params if p.keyword == g.param)
        parts: list[str] = []
        if g.pair is not None:
            parts.append(times("g", code.results.get(f"pair_{number}")))
        if g.weight is not None:
            parts.append(times("dp", code.results.get(f"weight_{number}")) + normalised)
        row_lines: tuple[str, ...] = ()
        if g.extra is not None:
            share = f"torch.exp2({code.results['log2_extra']} - row_lse)" if code.results["log2_extra"] else "inv_den"
            text = times(f"-delta * {share}", code.results.get(f"extra_{number}"))
            row_lines = (
                f"{name} += ({text}).sum((-2, -1))",
            )  # a normalizer's arguments vary with batch and head alone
        tile_lines = _tile_lines(plan, leaves, g, name, f"total_{own}") if parts else ()
        found.append(LeafView(name, positions.index(own), _SHAPES[g.gather], " + ".join(parts), tile_lines, row_lines))
    return tuple(found)


def _tile_lines(plan: KernelPlan, leaves: Leaves, g: LeafGradient, name: str, total: str) -> tuple[str, ...]:
    match g.gather:
        case Gather.HEAD:
            return (f"{name} += contribution.sum((-2, -1))",)
        case Gather.ROW:
            return (f"{name}[:, :, q0 : q1 + 1] += contribution.sum(-1)",)
        case Gather.COLUMN:
            return (f"{name}[:, :, k0 : k1 + 1] += contribution.sum(-2)",)
        case Gather.DIAGONAL:
            return (f"{name}[:, :, q0 - k1 + Sk - 1 : q1 - k0 + Sk] += _along_diagonals(contribution)",)
        case Gather.DENSE | Gather.SCATTER:
            assert isinstance(g.leaf, Load)
            axes = own_axes(plan, g.leaf)
            return _cell_lines(plan, leaves, g.leaf, total) if axes is None else (_slice_line(axes, total),)
        case _:
            assert_never(g.gather)


def _slice_line(axes: tuple[str, ...], total: str) -> str:
    """Each cell belongs to one pair of (some) heads: sum over the axes that the index leaves out."""
    missing = tuple(i for i, axis in enumerate("bhqk") if axis not in axes)
    kept = [axis for axis in "bhqk" if axis in axes]
    order = tuple(kept.index(axis) for axis in axes)
    text = f"contribution.sum({missing})" if missing else "contribution"
    text += f".permute({order})" if order != tuple(range(len(order))) else ""
    cells = f"{total}[{', '.join(SLICES[axis] for axis in axes)}]"
    return f"{cells} += {text}.sum_to_size({cells}.shape)"


def _cell_lines(plan: KernelPlan, leaves: Leaves, leaf: Load, total: str) -> tuple[str, ...]:
    """Any other index: the cell of each pair, and integer sums of what meets in a cell."""
    printer = leaves.printer()
    shape = plan.attention.param(leaf.param).shape
    texts = [printer.text(i) for i in leaf.indices]
    inside = (f"({i} >= 0) & ({i} < {printer.text(n)})" for i, n in zip(texts, shape, strict=True))
    return (
        f"inside = {' & '.join(inside)}",
        f"{total} += _gathered(contribution, inside, ({', '.join(texts)},), {total}.shape)",
    )


def gradient_views(plan: KernelPlan, params: tuple[ParamView, ...]) -> tuple[GradientView, ...]:
    found: list[GradientView] = []
    for position, view in enumerate(params):
        own = [g for g in plan.gradients if g.param == view.keyword]
        if own:
            total = f"total_{view.name}"
            lines = [line for g in own for line in _last_lines(plan, params, g, total)]
            found.append(GradientView(view.name, total, 3 + position, tuple(lines)))
    return tuple(found)


def _last_lines(plan: KernelPlan, params: tuple[ParamView, ...], g: LeafGradient, total: str) -> list[str]:
    name = leaf_name(plan, params, g)
    if g.gather in AXES:
        return reduced(plan.attention, params, g.leaf, AXES[g.gather], name, total)
    if g.gather is not Gather.DIAGONAL:
        return []
    assert isinstance(g.leaf, Load)
    indices = distance_index(g.leaf)
    assert indices is not None
    axes = ("b", "h", "distance")
    return [
        "distances = torch.arange(Sq + Sk - 1, device=q.device) - (Sk - 1)",
        *gathered(plan.attention, params, g.leaf, axes, indices, name, total),
    ]
