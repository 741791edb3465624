"""What leaves of an expression are called in a generated torch module: positions, sizes, params and their elements.

Takes a plan and its params, returns printers. An element of a param whose indices are positions of its own axes is a
slice; any other is read by index tensors, and is 0 outside the tensor.
"""

from __future__ import annotations

from attngen.emit.text.params import ParamView
from attngen.emit.torch.expressions import Leaf, Printer
from attngen.errors import InternalError
from attngen.ir.nodes import Load, Scalar, Symbol, Type
from attngen.ir.walk import children
from attngen.plan.kernel import KernelPlan

POSITIONS = {"b": "batch", "h": "head", "hkv": "kv_head", "q": "q_idx", "k": "k_idx"}
SLICES = {"b": ":", "h": ":", "q": "q0 : q1 + 1", "k": "k0 : k1 + 1"}
_AXES = (("b", "B"), ("h", "Hq"), ("q", "Sq"), ("k", "Sk"))


class Leaves:
    def __init__(self, plan: KernelPlan, params: tuple[ParamView, ...]):
        self.plan = plan
        self.params = {p.keyword: p for p in params}

    def printer(self) -> Printer:
        return Printer(self.plan.facts, self.text)

    def names(self) -> tuple[str, ...]:
        """Every param, and the sizes that params bind."""
        return (*(p.name for p in self.params.values()), *self.plan.attention.sizes)

    def text(self, leaf: Leaf) -> str:
        match leaf:
            case Symbol():
                return POSITIONS.get(leaf.id, leaf.id)
            case Scalar():
                return self.params[leaf.param].name
            case Load():
                return self.load(leaf)

    def load(self, e: Load) -> str:
        name = self.params[e.param].name
        if e.member is not None:
            return f"_listed({name}, {', '.join(map(self.printer().text, children(e)))})"
        axes = own_axes(self.plan, e)
        if axes is not None and list(axes) == sorted(axes, key="bhqk".index):
            cells = ", ".join(SLICES[a] if a in axes else "None" for a in "bhqk")
            text = f"{name}[{cells}]"
        else:
            text = f"_element({name}, {', '.join(map(self.printer().text, e.indices))})"
        match e.type:
            case Type.FLOAT:
                return f"{text}.float()"
            case Type.INT:
                return f"{text}.long()"
            case Type.BOOL:
                return text
            case _:
                raise InternalError(f"a load of type {e.type}")


def own_axes(plan: KernelPlan, e: Load) -> tuple[str, ...] | None:
    """The axes (of b, h, q, k) that the indices are, each once and of the dim's own size; None for anything else."""
    found: list[str] = []
    for i, size in plan.attention.param(e.param).axes(e):
        if not (isinstance(i, Symbol) and isinstance(size, Symbol) and (i.id, size.id) in _AXES):
            return None
        found.append(i.id)
    return tuple(found) if len(set(found)) == len(found) else None
