"""Operands as generated code names and prepares them: arrays of four axes, (batch, head, query, key).

Takes the plan's operands, returns views: names, and the lines of plain JAX, outside the differentiated core, that make
each array of a param. JAX then differentiates those lines itself: the core gives gradients of operands alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attngen.emit.jax_shared.expressions import Leaf, Printer
from attngen.emit.text.names import Names
from attngen.emit.text.params import ParamView
from attngen.errors import InternalError
from attngen.ir.nodes import SIZES, Expr, Load, Scalar, Symbol, Type
from attngen.ir.walk import children, nodes
from attngen.plan.kernel import KernelPlan
from attngen.plan.operands import Extent, Operand, operands
from attngen.plan.score.distance import DISTANCE, distance_index

_AXES = {"b": 0, "h": 1, "hkv": 1, "q": 2, "k": 3}
_POSITIONS = {"b": "at_b", "h": "at_h", "hkv": "(at_h // (Hq // max(Hkv, 1)))", "q": "at_q", "k": "at_k", "qk": "qk"}


@dataclass(frozen=True, slots=True)
class OperandView:
    """`text` makes the array; `number` is its cell in the flat array of numbers that kernels read (extent head)."""

    name: str
    operand: Operand
    floats: bool
    text: str

    @property
    def extent(self) -> Extent:
        return self.operand.extent

    @property
    def group(self) -> str:
        """Which argument of the core holds it: those of `floats` have gradients."""
        return "floats" if self.floats else "data"

    @property
    def number(self) -> str:
        return cell(self.operand.per_batch, self.operand.per_head)


def cell(per_batch: bool, per_head: bool) -> str:
    """Where a program's number stands in a flat array, by what the numbers vary with."""
    match per_batch, per_head:
        case True, True:
            return "batch * Hq + head"
        case True, False:
            return "batch"
        case False, True:
            return "head"
        case _:
            return "0"


class Leaves:
    """How the leaves of expressions are called on the host: sizes, params, positions, operands by their names."""

    def __init__(self, plan: KernelPlan, params: tuple[ParamView, ...], sizes: Mapping[str, str]):
        self.plan = plan
        self.params = {p.keyword: p.name for p in params}
        self.sizes = sizes
        self.names: dict[Scalar | Load, str] = {}

    def printer(self) -> Printer:
        return Printer(self.plan.choices, self.leaf)

    def leaf(self, e: Leaf) -> str:
        match e:
            case Symbol():
                if e == DISTANCE:
                    return "at_distance"
                return _POSITIONS.get(e.id) or self.size(e.id)
            case Scalar() | Load():
                return self.names.get(e) or self.element(e)

    def size(self, id: str) -> str:
        return self.sizes.get(id, id)

    def element(self, e: Scalar | Load, *, spread: bool = True) -> str:
        """The value of a param as an array of four axes. With `spread`, one of key heads is repeated for its group."""
        name = self.params[e.param]
        if isinstance(e, Scalar):
            return f"{name}.reshape(1, 1, 1, 1)"
        if e.member is not None:
            return self.gathered(name, children(e), "_listed")
        axes = [i.id for i in e.indices if isinstance(i, Symbol)]
        if len(axes) == len(e.indices) == len({_AXES.get(a) for a in axes} - {None}):
            at = ", ".join(str(_AXES[a]) for a in axes)
            sizes = {"b": "B", "h": "Hq", "hkv": "Hkv", "q": "Sq", "k": "Sk"}
            lengths = ", ".join(sizes[a] for a in axes)
            comma = "," if len(axes) == 1 else ""
            text = f"_by_axes({name}, ({at}{comma}), ({lengths}{comma}))"
            return f"jnp.repeat({text}, Hq // max(Hkv, 1), 1)" if spread and "hkv" in axes else text
        return self.gathered(name, e.indices)

    def gathered(self, name: str, indices: tuple[Expr, ...], by: str = "_element") -> str:
        printer = self.printer()
        text = f"{by}({name}, {', '.join(printer.text(i) for i in indices)})"
        alone = not any(
            isinstance(n, Symbol) and (n.id in _POSITIONS or n == DISTANCE) for i in indices for n in nodes(i)
        )
        return f"{text}.reshape(1, 1, 1, 1)" if alone else text  # `table[0]`: its indices have no axes to give

    def along_distance(self, e: Load) -> str:
        indices = distance_index(e)
        if indices is None:
            raise InternalError("no function of the distance")
        return self.gathered(self.params[e.param], indices)


def operand_views(
    plan: KernelPlan, params: tuple[ParamView, ...], names: Names, leaves: Leaves, *, spread_pairs: bool
) -> tuple[OperandView, ...]:
    """Binds each operand to a name of its own in `leaves`. Params of pairs and key heads are repeated for the heads
    that share keys with `spread_pairs`; without, kernels find their group's."""
    found: list[OperandView] = []
    for o in operands(plan):
        e = o.expr
        if o.extent is Extent.DISTANCE and isinstance(e, Load):
            text = leaves.along_distance(e)
        else:
            text = leaves.element(e, spread=spread_pairs or o.extent is not Extent.PAIR)
        name = names.fresh(f"{leaves.params[e.param]}_{_suffix(o)}")
        found.append(OperandView(name, o, e.type is Type.FLOAT, text))
    for view in found:
        leaves.names[view.operand.expr] = view.name
    return tuple(found)


def _suffix(o: Operand) -> str:
    """`slope_h`, `ids_bk`, `table_hd` (d: the distance); `cap_value` where it varies with nothing."""
    along = {Extent.HEAD: "", Extent.ROW: "q", Extent.COLUMN: "k", Extent.DISTANCE: "d", Extent.PAIR: "qk"}[o.extent]
    return ("b" * o.per_batch + "h" * o.per_head + along) or "value"


def size_names(plan: KernelPlan, names: Names) -> dict[str, str]:
    """Names of the sizes that params bind, clear of all others."""
    own = {s: s for s in SIZES}
    return {**own, **{s: names.fresh(s) for s in plan.attention.sizes}}
