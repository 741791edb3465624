"""The map of tiles that hold allowed pairs, as text: what `templates/triton/hopper/map.py.j2` reads.

Takes the plan's `TileTest` and the module's frame, returns a `MapView`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.triton.code.expressions import Printer
from attngen.emit.triton.code.kernel_code import KernelCode, KernelWriter
from attngen.emit.triton.hopper.lists import ListView, list_view
from attngen.emit.triton.portable.frame import Frame
from attngen.emit.triton.portable.kernels import kernel_code
from attngen.ir.build import TRUE
from attngen.ir.nodes import Expr, Load, Symbol, Type
from attngen.ir.walk import loads
from attngen.plan import passes
from attngen.plan.ints.guards import Access, AxisAccess
from attngen.plan.levels import Level
from attngen.plan.mask.holes import Part, TileTest

_EXTREMES = {Type.INT: (str(2**63 - 1), f"-{2**63 - 1}"), Type.FLOAT: ('float("inf")', 'float("-inf")')}
"""What least and greatest values are where a tile has no element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideView:
    """The tiles of one axis: `lines` bind the values of its `index`, by `start` and `size`, and `parts` are (name, text,
    what is greater than all, what is less)."""

    index: str
    size: str
    lines: tuple[str, ...]
    parts: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapAxisView:
    """A map of `walked` tiles, called `name`, a row for each tile of the other axis, which is `held`. `held_rows` and
    `walked_rows`: how many positions are looked at, where a tile has fewer than a power of two. `noted`: tiles that
    are held wait for each other at these."""

    name: str
    held: SideView
    walked: SideView
    held_start: str
    held_tile: str
    held_rows: str
    walked_start: str
    walked_tile: str
    walked_rows: str
    noted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MapView:
    """`code` evaluates the mask for a tile of queries and one of keys; `can` and `must` are the test of
    the tiles' extremes."""

    code: KernelCode
    can: str
    must: str
    lists: ListView
    arguments: tuple[str, ...]
    unspecialized: list[str]
    keys: MapAxisView
    queries: MapAxisView


def map_view(frame: Frame, test: TileTest | None) -> MapView | None:
    if test is None:
        return None
    kernel, lists = frame.kernel_view(), list_view(test.lists)
    assert lists is not None
    queries = _side(frame, Level.ROW, tuple(p for p in test.parts if not p.of_keys))
    keys = _side(frame, Level.COLUMN, tuple(p for p in test.parts if p.of_keys))
    return MapView(
        code=kernel_code(frame, Level.ROW, passes.Pass({}, {})),
        can=_test(frame, test, test.can),
        must=_test(frame, test, test.must),
        lists=lists,
        arguments=kernel.arguments,
        unspecialized=kernel.unspecialized,
        keys=MapAxisView(
            name="keys", held=queries, walked=keys,
            held_start="q0", held_tile="BQ", held_rows="ROWS", walked_start="k0", walked_tile="BK", walked_rows="BK", noted=False,
        ),
        queries=MapAxisView(
            name="queries", held=keys, walked=queries,
            held_start="k0", held_tile="BK", held_rows="BK", walked_start="q0", walked_tile="BQ", walked_rows="ROWS", noted=True,
        ),
    )  # fmt: skip


def _side(frame: Frame, level: Level, parts: tuple[Part, ...]) -> SideView:
    index, size = ("q_idx", "Sq") if level is Level.ROW else ("k_idx", "Sk")
    writer = KernelWriter(frame.plan, frame.params, level)
    code = writer.write({}, TRUE, known=(index, *frame.known), outside={p.name: p.value for p in parts})

    def view(p: Part) -> tuple[str, str, str, str]:
        text = code.results[p.name]
        return p.name, f"tl.cast({text}, tl.int64)" if p.value.type is Type.INT else text, *_EXTREMES[p.value.type]

    return SideView(
        index=index, size=size, lines=(*code.head_lines, *code.held_lines), parts=tuple(view(p) for p in parts)
    )


def _test(frame: Frame, test: TileTest, condition: Expr) -> str:
    """Elements are read within the tensor, whatever the extremes are."""
    choices = frame.plan.choices
    everywhere = tuple(Access(e, (AxisAccess(False, low=True, high=True),) * len(e.indices)) for e in loads(condition))
    printer = replace(frame.printer(), choices=replace(choices, accesses=(*everywhere, *choices.accesses)))
    for part in test.parts:
        for end in part.bounds:
            assert isinstance(end, Symbol)
            printer.bind(end, end.id)
    return printer.text(condition)
