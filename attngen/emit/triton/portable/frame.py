"""What every kernel of a Triton module has in common: its params, its arguments, the names that it knows.

Takes the plan, returns a `Frame`, by which the kernels' code is written and the module laid out.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.text.loop_steps import function_lines
from attngen.emit.text.names import Names
from attngen.emit.text.params import ParamView, views
from attngen.emit.triton.code.expressions import Printer
from attngen.emit.triton.code.kernel_code import free_names
from attngen.emit.triton.code.names import reserved
from attngen.emit.triton.code.tile_loops import RangeView, range_view
from attngen.emit.triton.portable.views import KernelView, ListedView, PlaceView
from attngen.ir.nodes import Expr
from attngen.ir.walk import reads, symbols
from attngen.plan.kernel import Gather, KernelPlan

SIZE_ARGUMENTS = ("Hq", "Hkv", "Sq", "Sk")


@dataclass(frozen=True, slots=True)
class Frame:
    """`arguments` are the kernels', of which `sizes` are sizes; `known` are the names that a kernel has of itself;
    `place` says where the rows of its sequence are. `bits`: kernels take from a map's bits which pairs are allowed."""

    plan: KernelPlan
    place: PlaceView
    params: tuple[ParamView, ...]
    sizes: tuple[str, ...]
    arguments: tuple[str, ...]
    known: tuple[str, ...]
    bits: bool = False

    def kernel_view(self) -> KernelView:
        unspecialized = [*self.sizes]
        for p in self.params:
            unspecialized += p.unspecialized
        return KernelView(self.arguments, unspecialized)

    def printer(self) -> Printer:
        return Printer(
            self.plan.choices, {p.name: p for p in self.plan.attention.params}, {p.keyword: p.name for p in self.params}
        )

    def key_ranges(self) -> RangeView:
        assert self.plan.gpu_walks is not None
        return range_view(self.plan.key_loops, self.plan.gpu_walks.keys, self.printer(), "BK")

    def query_ranges(self) -> RangeView:
        assert self.plan.gpu_walks is not None
        return range_view(self.plan.query_loops, self.plan.gpu_walks.queries, self.printer(), "BQ")

    def walk_pointers(self, axis: str) -> tuple[str, ...]:
        """What a kernel reads that finds its tiles of an axis: a list, or the extremes of data in tiles."""
        ranges, loops = (
            (self.plan.keys, self.plan.key_loops) if axis == "k" else (self.plan.queries, self.plan.query_loops)
        )
        name = "key" if axis == "k" else "query"
        tested = (f"{name}_{t.name}_{end}_ptr" for t in ranges.tests for end in ("least", "most"))
        return ("walks_ptr", "tiles_ptr") if loops.lists is not None else tuple(tested)

    def range_functions(self) -> tuple[tuple[str, ...], ...]:
        """Those of loops that have ends, and no list."""
        keys, queries = (self.key_ranges(), "BK", "queries q0 … q1"), (self.query_ranges(), "BQ", "keys k0 … k1")
        return tuple(
            self._range_function(*found) for found in (keys, queries) if found[0].results and not found[0].lists
        )

    def _range_function(self, view: RangeView, block: str, held: str) -> tuple[str, ...]:
        arguments = self.range_names(view)
        # Bounds are computed in 64 bits: a window may be 2**31 - 1, for "no limit".
        ints = {p.name for p in self.params if not p.by_pointer and p.type == "int"}
        wide = (f"{a} = tl.cast({a}, tl.int64)" for a in arguments if a in {"q0", "q1", "k0", "k1", *ints})
        meaning = "`any` may hold an allowed pair; `full` hold no other, and no row beyond the end."
        return function_lines(
            ("@triton.jit", f"def _{view.name}({', '.join((*arguments, block))}: tl.constexpr):"),
            (f'"""Runs of tiles for the {held}: {meaning}"""',),
            (*wide, *view.lines),
            ", ".join(view.returned),
        )

    def range_names(self, view: RangeView) -> tuple[str, ...]:
        """The names that the bounds read, in a stable order."""
        if not view.lines:
            return ()
        read = free_names(view.lines)
        ends = ("q0", "q1") if view.axis == "k" else ("k0", "k1")
        scalars = tuple(p.name for p in self.params if p.load_lines)
        tests = tuple(f"{t.name}_{which}" for t in view.tests for which in ("any_lo", "any_hi", "all_lo", "all_hi"))
        return tuple(n for n in (*ends, *tests, *scalars, *self.known) if n in read)


def dense_place(plan: KernelPlan) -> PlaceView:
    """Every row of a batch is a sequence."""
    queries, keys = "tl.cdiv(Sq, BQ), Hq", "tl.cdiv(Sk, BK), Hkv"
    order = f"items.busy_tiles_first({queries}, True)" if plan.longest_first else f"items.head_after_head({queries})"
    key_order = f"items.busy_tiles_first({keys}, False)" if plan.growing_keys else f"items.head_after_head({keys})"
    return PlaceView(
        query_lines=(f"tile, batch, head = {order}",),
        key_lines=(f"tile, batch, kv_head = {key_order}",),
        row="(batch * tl.cast(Hq, tl.int64) + head) * Sq",
        column="(batch * tl.cast(Hq, tl.int64) + head) * Sk",
        rows={"q": "Sq", "k": "Sk"},
        listed={
            "q": ListedView("tile", "tl.cdiv(Sq, BQ)", "tl.cdiv(Sk, BK)"),
            "k": ListedView("tile", "tl.cdiv(Sk, BK)", "tl.cdiv(Sq, BQ)"),
        },
    )


def frame_of(plan: KernelPlan) -> Frame:
    attention = plan.attention
    params = views(attention, Names(reserved() | set(attention.sizes)))
    summed = any(g.gather in (Gather.DENSE, Gather.DIAGONAL) for g in plan.gradients)  # over the batches, too
    tested = any(reads(e, "b") for t in plan.keys.tests for e in (t.row, t.col))  # in tiles of all batches
    used_b = summed or tested or any("B" in symbols(e) for e in _every_expression(plan))
    sizes = (*(("B",) if used_b else ()), *SIZE_ARGUMENTS, *attention.sizes)
    arguments = ("scale", *sizes, *(a for p in params for a in p.kernel_arguments))
    known = ("batch", "head", "kv_head", "D", "Dv", "FAST", *arguments)
    return Frame(plan, dense_place(plan), params, sizes, arguments, known)


def _every_expression(plan: KernelPlan) -> list[Expr]:
    a = plan.attention
    found = [a.score, a.mask, plan.weights.stream, *(d for p in a.params for d in p.shape)]
    found += [e for e in (plan.weights.log_extra, plan.weights.extra, a.dropout) if e is not None]
    return found
