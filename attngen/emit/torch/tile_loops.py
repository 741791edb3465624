"""The tiles that a loop visits, as a Python function of plain ints: the plan's steps printed.

Takes `Loops`, returns `TilesView`. A bound that differs from batch to batch or from head to head is taken where it
holds for all: the hull of `any`, what all have of `full`, since all heads are worked on together.
"""

from __future__ import annotations

from collections.abc import Mapping

from attngen.emit.arrays.tile_code import free_names
from attngen.emit.arrays.views import TilesView
from attngen.emit.text.loop_steps import function_lines, step_lines
from attngen.emit.torch.leaves import Leaves
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.ir.nodes import Apply, Expr, Load, Op, Scalar, Type
from attngen.ir.walk import nodes, reads
from attngen.plan.mask.loops import ZERO, Loops, Ordered, Rounded, Run


def tiles_view(found: Loops, leaves: Leaves, *, masked: bool) -> TilesView:
    lines = step_lines(
        found.steps,
        rounded=lambda step: _rounded(step, leaves),
        text=lambda e: host_expressions.python(e, _Same()),
        ordered=_ordered,
    )
    returned = {ZERO: ZERO, **{name: host_expressions.python(e, _Same()) for name, e in found.returned.items()}}
    lists = {name: runs for name, runs in (("full", found.full), ("partial", found.partial)) if runs}
    tiles = [f"{name} = [{_tiles(runs, returned)}]" for name, runs in lists.items()]
    visited = [f"[(tile, {name == 'partial'}) for tile in {name}]" if masked else name for name in lists]
    read = free_names([*lines, *returned.values()])
    answers = (f"{t.name}_{which}" for t in found.tests for which in ("any_lo", "any_hi", "all_lo", "all_hi"))
    sizes = ("B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", "scale", "batch", "head", "kv_head")
    arguments = tuple(n for n in ("q0", "q1", *answers, *sizes, *leaves.names()) if n in read)
    which = ", each with whether it needs the mask" if masked else ""
    function = function_lines(
        (f"def _{found.name}({', '.join(arguments)}):",),
        (
            f'"""The tiles of keys that the queries q0 … q1 meet{which}.',
            "",
            "`any` is where some pair is allowed, `full` where every pair is.",
            '"""',
        ),
        (*lines, *tiles),
        " + ".join(visited) or "[]",
    )
    loop = "tile, masked" if masked else "tile"
    reads_tensors = bool(found.tests) or any(isinstance(s, Rounded) and _is_tensor(s.bound) for s in found.steps)
    return TilesView(arguments, function, loop, reads_tensors)


def _tiles(runs: tuple[Run, ...], returned: Mapping[str, str]) -> str:
    ends = (returned[r.stop] if r.start == ZERO else f"{returned[r.start]}, {returned[r.stop]}" for r in runs)
    return ", ".join(f"*range({e})" for e in ends)


def _rounded(step: Rounded, leaves: Leaves) -> str:
    text = _bound(step.bound, step.up, leaves)
    return f"{f'({text} + TILE_K - 1)' if step.up else f'max({text}, 0)'} // TILE_K"


def _ordered(step: Ordered) -> str:
    a, b = step.first, step.second
    pairs = f"({a.start}, {a.stop}), ({b.start}, {b.stop})"
    return f"{pairs} = sorted([{pairs}])"


def _is_tensor(e: Expr) -> bool:
    return reads(e, "b", "h", "hkv") or any(isinstance(n, Load) for n in nodes(e))


class _Same(dict[str, str]):
    """Every name stands for itself."""

    def __missing__(self, key: str) -> str:
        return key


def _bound(e: Expr, up: bool, leaves: Leaves) -> str:
    if _is_plain(e, leaves):
        names = _Same({keyword: p.name for keyword, p in leaves.params.items()})
        return host_expressions.python(e, names)
    return f"{'_greatest' if up else '_least'}({leaves.printer().text(e)})"


def _is_plain(e: Expr, leaves: Leaves) -> bool:
    """Whether Python's own numbers do: no element of a tensor, no float, no division by what may be 0."""
    if reads(e, "b", "h", "hkv", "scale"):
        return False
    for n in nodes(e):
        if isinstance(n, Load) or (isinstance(n, Scalar) and n.type is Type.FLOAT) or n.type is Type.FLOAT:
            return False
        if isinstance(n, Apply) and n.op is Op.POW:
            return False
        if isinstance(n, Apply) and n.op in (Op.FLOORDIV, Op.MOD) and not leaves.plan.facts.is_positive(n.args[1]):
            return False
    return True
