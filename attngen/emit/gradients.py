"""Gradients of float params on their way out: sums kept by the main kernels, and what the host does with them.

Takes the plan's `LeafGradient`s, gives `RowSum`s (for the dQ and dK/dV templates), `GradientView`s (for the launcher)
and `PairGradient`s (leaves whose index depends on the pair: kernels of their own).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit import host_expressions
from attngen.emit.kernel_code import KernelCode
from attngen.emit.params import ParamView
from attngen.ir.attention import Attention, Param
from attngen.ir.nodes import SIZES, Expr, Load, Scalar, Symbol
from attngen.plan.kernel import Gather, KernelPlan, LeafGradient


@dataclass(frozen=True, slots=True)
class RowSum:
    """A running sum over the walked axis: one number for each held row (or column), kept beside dQ (or dK)."""

    name: str
    flag: str
    param: str
    per_row: bool
    pair: Expr | None
    weight: Expr | None
    d_extra: Expr | None
    contribution: str = ""
    extra: str = ""

    def with_code(self, code: KernelCode, normalised: str) -> RowSum:
        """With the texts that the kernel's code gives to the parts."""
        parts: list[str] = []
        if self.pair is not None:
            parts.append(_times("g", code.results[f"pair_{self.name}"]))
        if self.weight is not None:
            parts.append(_times("dp", code.results[f"weight_{self.name}"]) + normalised)
        extra = ""
        if self.d_extra is not None:
            share = f"tl.exp2({code.results['log2_extra']} - row_lse)" if "log2_extra" in code.results else "inv_den"
            extra = _times(f"-delta * {share}", code.results[f"extra_{self.name}"])
        return replace(self, contribution=" + ".join(parts) or "g * 0.0", extra=extra)


def _times(left: str, right: str) -> str:
    if right == "1.0":
        return left
    return f"{left} * ({right})" if not right.replace(".", "").replace("_", "").isalnum() else f"{left} * {right}"


@dataclass(frozen=True, slots=True)
class GradientView:
    """One float param's gradient on the host: `lines` add every leaf's part to `total` (float32, the param's shape)."""

    param: str
    total: str
    position: int
    lines: tuple[str, ...]
    scatters: bool


def flag(param: ParamView) -> str:
    return f"GRAD_{param.name.upper()}"


def leaf_name(plan: KernelPlan, params: tuple[ParamView, ...], gradient: LeafGradient) -> str:
    """A name for the sums of one leaf: `sum_slope`, or `sum_slope_1` for the second leaf of a param."""
    own = [g for g in plan.gradients if g.param == gradient.param]
    name = next(p.name for p in params if p.keyword == gradient.param)
    number = own.index(gradient)
    return f"sum_{name}" + (f"_{number}" if number else "")


def row_sums(plan: KernelPlan, params: tuple[ParamView, ...], *kinds: Gather) -> tuple[RowSum, ...]:
    found: list[RowSum] = []
    for g in plan.gradients:
        if g.gather in kinds:
            param = next(p for p in params if p.keyword == g.param)
            name = leaf_name(plan, params, g)
            found.append(RowSum(name, flag(param), param.name, g.gather is not Gather.HEAD, g.pair, g.weight, g.extra))
    return tuple(found)


AXES = {Gather.HEAD: ("b", "h"), Gather.ROW: ("b", "h", "q"), Gather.COLUMN: ("b", "h", "k")}
_SIZES = {"b": "B", "h": "Hq", "q": "Sq", "k": "Sk"}


def gradient_views(
    plan: KernelPlan, params: tuple[ParamView, ...], pair_lines: dict[str, tuple[str, ...]]
) -> tuple[GradientView, ...]:
    """`pair_lines` gives the launches of leaves that have kernels of their own, by leaf name."""
    found: list[GradientView] = []
    for position, view in enumerate(params):
        own = [g for g in plan.gradients if g.param == view.keyword]
        if not own:
            continue
        total = f"total_{view.name}"
        lines: list[str] = []
        scatters = False
        for g in own:
            name = leaf_name(plan, params, g)
            if g.gather in AXES:
                values = f"{name}.sum(-1)" if g.gather is Gather.HEAD else name
                added, general = reduced(plan.attention, params, g.leaf, AXES[g.gather], values, total)
                lines += added
                scatters |= general
            else:
                lines += pair_lines[name]
                scatters = True
        found.append(GradientView(view.name, total, 3 + position, tuple(lines), scatters))
    return tuple(found)


def reduced(
    attention: Attention, params: tuple[ParamView, ...], leaf: Scalar | Load, axes: tuple[str, ...], values: str, total: str,
) -> tuple[list[str], bool]:  # fmt: skip
    """Lines that add `values`, over `axes`, to the cells of `total` that the leaf's index names; and whether they scatter."""
    if isinstance(leaf, Scalar):
        return [f"{total} += {values}.sum()"], False
    param = attention.param(leaf.param)
    plain = _plain(leaf, param, axes)
    if plain is not None:
        missing = tuple(i for i, axis in enumerate(axes) if axis not in plain)
        text = f"{values}.sum({missing})" if missing else values
        kept = [axis for axis in axes if axis in plain]
        order = tuple(kept.index(axis) for axis in plain)
        text += f".permute({order})" if order != tuple(range(len(order))) else ""
        return [f"{total} += {text}"], False
    lines, inside, flat = flat_index(attention, params, leaf, axes, leaf.indices)
    lines.append(f"{total} += _gathered({values}, {inside}, {flat}, {total}.numel()).view({total}.shape)")
    return lines, True


def _plain(leaf: Load, param: Param, axes: tuple[str, ...]) -> tuple[str, ...] | None:
    """The axes that the indices are, each once and over the whole of its dim; None for anything else."""
    ids: list[str] = []
    for i, size in zip(leaf.indices, param.shape, strict=True):
        if not (isinstance(i, Symbol) and isinstance(size, Symbol) and i.id in axes and _SIZES[i.id] == size.id):
            return None
        ids.append(i.id)
    return tuple(ids) if len(set(ids)) == len(ids) else None


def host_names(attention: Attention, params: tuple[ParamView, ...]) -> dict[str, str]:
    """How the host code names what index expressions read; index axes are `at_b`, `at_h`, `at_q`, `at_k`."""
    names = {s: s for s in (*SIZES, *attention.sizes)}
    names.update({p.keyword: p.name for p in params})
    names.update({axis: f"at_{axis}" for axis in ("b", "h", "q", "k", "distance")})
    names.update(hkv="(at_h // (Hq // Hkv))", device="q.device", scale="scale")
    return names


def flat_index(
    attention: Attention, params: tuple[ParamView, ...], leaf: Load, axes: tuple[str, ...], indices: tuple[Expr, ...]
) -> tuple[list[str], str, str]:  # fmt: skip
    """Lines that bind the axes' positions, a condition that the cell exists, and its number in the flat param."""
    names = host_names(attention, params)
    shape = attention.param(leaf.param).shape
    lines: list[str] = []
    for number, axis in enumerate(axes):
        dims = "".join(", None" for _ in axes[number + 1 :])
        text = f"torch.arange({_SIZES[axis]}, device=q.device)" if axis != "distance" else "distances"
        lines.append(f"at_{axis} = {text}" + (f"[:{dims}]" if dims else ""))
    inside: list[str] = []
    flat = ""
    for i, size in zip(indices, shape, strict=True):
        text = host_expressions.torch(i, names)
        extent = host_expressions.python(size, names)
        inside.append(f"({text} >= 0) & ({text} < {extent})")
        flat = f"({flat}) * {extent} + {text}" if flat else text
    lines.append(f"exists = torch.as_tensor({' & '.join(inside)}, device=q.device)")
    lines.append(f"cell = torch.as_tensor({flat}, device=q.device)")
    return lines, "exists", "cell"
