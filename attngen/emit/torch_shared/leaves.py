"""Where a param's gradient is added: names, axes and host expressions that Triton's files and plain PyTorch's share."""

from __future__ import annotations

from attngen.emit.text.params import ParamView
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.emit.torch_shared.calls import PLAIN, Calls
from attngen.ir.attention import Attention, Param
from attngen.ir.nodes import SIZES, Expr, Load, Scalar, Symbol
from attngen.plan.kernel import Gather, KernelPlan, LeafGradient


def leaf_name(plan: KernelPlan, params: tuple[ParamView, ...], gradient: LeafGradient) -> str:
    """A name for the sums of one leaf: `sum_slope`, or `sum_slope_1` for the second leaf of a param."""
    own = [g for g in plan.gradients if g.param == gradient.param]
    name = next(p.name for p in params if p.keyword == gradient.param)
    number = own.index(gradient)
    return f"sum_{name}" + (f"_{number}" if number else "")


AXES = {Gather.HEAD: ("b", "h"), Gather.ROW: ("b", "h", "q"), Gather.COLUMN: ("b", "h", "k")}


_SIZES = {"b": "B", "h": "Hq", "q": "Sq", "k": "Sk"}


def reduced(
    attention: Attention,
    params: tuple[ParamView, ...],
    leaf: Scalar | Load,
    axes: tuple[str, ...],
    values: str,
    total: str,
) -> list[str]:
    """Lines that add `values`, over `axes`, to the leaf's cells of `total`."""
    text = summed(attention, leaf, axes, values)
    if text is None:
        return scattered(attention, params, leaf, axes, values, total)
    return [f"{total} += {to_size(leaf, text, total)}"]


def to_size(leaf: Scalar | Load, values: str, like: str) -> str:
    """`values`, as `summed` gives them, in the shape of `like`: summed along the dims that have a size of 1 there."""
    return values if isinstance(leaf, Scalar) else f"{values}.sum_to_size({like}.shape)"


def summed(
    attention: Attention, leaf: Scalar | Load, axes: tuple[str, ...], values: str, *, tiles: bool = False
) -> str | None:
    """`values`, over `axes`, as the param's cells; None where they scatter. `tiles`: one more axis is summed over."""
    if isinstance(leaf, Scalar):
        return f"{values}.sum()"
    plain = _plain(leaf, attention.param(leaf.param), axes)
    if plain is None:
        return None
    missing = (*(i for i, axis in enumerate(axes) if axis not in plain), *((-1,) if tiles else ()))
    text = f"{values}.sum({missing})" if missing else values
    kept = [axis for axis in axes if axis in plain]
    order = tuple(kept.index(axis) for axis in plain)
    return text + (f".permute({order})" if order != tuple(range(len(order))) else "")


def scattered(
    attention: Attention,
    params: tuple[ParamView, ...],
    leaf: Scalar | Load,
    axes: tuple[str, ...],
    values: str,
    total: str,
    calls: Calls = PLAIN,
) -> list[str]:
    """Lines that add `values`, over `axes`, to whichever cells of `total` the leaf's indices say."""
    assert isinstance(leaf, Load)
    return gathered(attention, params, leaf, axes, leaf.indices, values, total, calls)


def _plain(leaf: Load, param: Param, axes: tuple[str, ...]) -> tuple[str, ...] | None:
    """The axes that the indices are, each once and over the whole of its dim; None for anything else."""
    ids: list[str] = []
    for i, size in zip(leaf.indices, param.shape, strict=True):
        if not (isinstance(i, Symbol) and isinstance(size, Symbol) and i.id in axes and _SIZES[i.id] == size.id):
            return None
        ids.append(i.id)
    return tuple(ids) if len(set(ids)) == len(ids) else None


def host_names(attention: Attention, params: tuple[ParamView, ...], calls: Calls = PLAIN) -> dict[str, str]:
    """How the host code names what index expressions read; index axes are `at_b`, `at_h`, `at_q`, `at_k`."""
    names = {s: s for s in (*SIZES, *attention.sizes)}
    names.update({p.keyword: p.name for p in params})
    names.update({axis: f"at_{axis}" for axis in ("b", "h", "q", "k", "distance")})
    names.update(hkv="(at_h // (Hq // max(Hkv, 1)))", device="q.device", scale="scale")
    names.update(element=calls.element, listed=calls.listed)
    return names


def gathered(
    attention: Attention,
    params: tuple[ParamView, ...],
    leaf: Load,
    axes: tuple[str, ...],
    indices: tuple[Expr, ...],
    values: str,
    total: str,
    calls: Calls = PLAIN,
) -> list[str]:
    """Lines that bind the positions of `axes`, and add `values` to the cells of `total` at `indices`, if they exist."""
    true = "torch.ones((), dtype=torch.bool, device=q.device)"
    bools = {p.keyword: f"(({p.name} != 0) & {true})" for p in params if not p.rank and p.type == "bool"}
    names = host_names(attention, params, calls) | bools
    shape = attention.param(leaf.param).shape
    lines: list[str] = []
    for number, axis in enumerate(axes):
        dims = "".join(", None" for _ in axes[number + 1 :])
        text = f"torch.arange({_SIZES[axis]}, device=q.device)" if axis != "distance" else "distances"
        lines.append(f"at_{axis} = {text}" + (f"[:{dims}]" if dims else ""))
    texts = [host_expressions.torch(i, names) for i in indices]
    extents = [host_expressions.python(size, names) for size in shape]
    inside = " & ".join(f"({i} >= 0) & ({i} < {n})" for i, n in zip(texts, extents, strict=True))
    lines.append(f"exists = torch.as_tensor({inside}, device=q.device)")
    lines.append(f"{total} += {calls.gathered}({values}, exists, ({', '.join(texts)},), {total}.shape)")
    return lines


def unsummed(plan: KernelPlan) -> tuple[str, ...]:
    """The params whose gradient is summed over pairs or chosen cells, which only the dense geometry does."""
    found = dict.fromkeys(
        g.param
        for g in plan.gradients
        if g.gather not in AXES
        or summed(plan.attention, g.leaf, AXES[g.gather], "x", tiles=len(AXES[g.gather]) == 2) is None
    )
    return tuple(found)
